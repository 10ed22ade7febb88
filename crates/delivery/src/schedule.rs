//! Schedules: they make messages of a queue from the occurrences of a recurrence, each exactly once.
//!
//! Everything here is pure: the present is an argument, and every effect on a store is data ([`ScheduleStep`]).

mod plan;
mod record;
mod settings;
mod state;

pub(crate) use plan::{to_ms, to_time};
pub use record::{BadRecord, ScheduleRecord};
pub(crate) use record::{instant_text, occurrence_key};
pub use settings::{MissedPolicy, OverlapPolicy, ScheduleSettings, Timetable};
pub use state::{
    AfterTaking, DueAnswer, EnterOutcome, LookFacts, OccurrenceEnd, PastOccurrence, PreviousRun,
    ScheduleBlock, ScheduleCounts, ScheduleEntry, ScheduleState, ScheduleStep, TakeBack, TakeOutcome,
};
