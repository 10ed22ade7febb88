//! Delivery: messages of a queue as signed requests to a webhook.
//!
//! A [`PushTarget`] is a validated description of the receiver. Its requests are signed as [Standard
//! Webhooks](https://www.standardwebhooks.com) 1.0 says, and only go to addresses that its [`Networks`] permit.

// Callers of the library have no other place to learn what may fail.
#![warn(clippy::missing_errors_doc)]

mod answer;
mod breaker;
mod bulk;
mod civil;
mod client;
mod connect;
mod connections;
mod cron;
pub mod limits;
mod message_url;
mod networks;
mod origins;
mod plan;
mod pusher;
mod random;
mod records;
mod recurrence;
mod request;
mod schedule;
mod scheduler;
mod settings;
mod supervised;
mod target;
mod targets;
mod trace;
mod tracer;
mod workers;

/// Counters for the fuzz targets; not part of the interface.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    pub use crate::cron::cron_steps;
}

pub use answer::PushVerdict;
pub use breaker::{Breaker, BreakerStage, Charge, Failing, Permit, RequestMark};
pub use bulk::{
    BadBulk, BulkAction, BulkCount, BulkCounts, BulkError, BulkFilter, BulkJobs, BulkMove, BulkPhase,
    BulkRequest, BulkTenant, BulkView, BulkWorker, DeadByReason, DeadMove, DeadReasons, MoveFailure,
    MovedDead, UrlMoves, dead_reasons, filtered_page, move_dead,
};
pub use civil::{DstFold, DstGap, OccurrenceNote, zone_data};
pub use client::{PushClass, PushClient, PushOutcome};
pub use connect::{Resolver, SystemResolver};
pub use duewheel_api::signing::{BadSecret, SigningSecret};
pub use message_url::{MessageUrl, TARGET_URL_HEADER};
pub use networks::{BadNetwork, Networks};
pub use plan::RetryPlan;
pub use pusher::{PushCounts, Pusher, PusherError};
pub use records::{NextLook, NotWritten, RecordStore, StoredRecord};
pub use recurrence::{Occurrence, Recurrence, RecurrenceSettings};
pub use request::{PushRequest, webhook_id};
pub use schedule::{
    AfterTaking, BadRecord, DueAnswer, EnterOutcome, LookFacts, MissedPolicy, OccurrenceEnd, OverlapPolicy,
    PastOccurrence, PreviousRun, ScheduleBlock, ScheduleCounts, ScheduleEntry, ScheduleRecord,
    ScheduleSettings, ScheduleState, ScheduleStep, TakeBack, TakeOutcome, Timetable,
};
pub use scheduler::{
    Backfilled, PastOccurrences, ScheduleError, ScheduleListed, ScheduleView, ScheduleWorker, Schedules,
    SettingsChange, WorkerCounts,
};
pub use settings::BadSettings;
pub use supervised::{Stopped, Supervised};
pub use target::{NetworkSettings, PushRate, PushTarget, RetrySettings, TargetSettings};
pub use targets::{
    BadSealKey, SealKeys, Sealing, ShownTarget, TargetChoice, TargetError, TargetPause, TargetService,
    TargetState, TargetView, Targets, TestedTarget,
};
pub use trace::{TRACEPARENT, TRACESTATE, TraceContext};
pub use tracer::{PushSpan, PushStart, PushTracer};
pub use workers::{
    BookReport, DeliveryAttempt, FailingTarget, PushWorkers, PushWorkersStart, TargetAttempt, TargetBook,
    TargetEntry, TargetStage, TargetStatus, Ticket, Tickets, deliveries,
};
