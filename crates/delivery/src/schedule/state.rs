//! The durable progress of a schedule; the facts, steps and answers of a look at it.

use serde::{Deserialize, Serialize};

/// The progress of a schedule. Instants are ms since 1970.
///
/// Every instant of the recurrence up to the cursor has exactly one place: it has entered its queue, is about to
/// (`entering`), waits to enter (`backlog`, `buffered`, `candidate`), or is counted as missed or skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleState {
    /// Instants up to this one are judged.
    pub cursor: u64,
    /// The latest present of any look: no later look has an earlier one, whatever its clock says.
    pub present: u64,
    /// Instants that enter, oldest first. Those behind the present were taken back by an edit.
    pub backlog: Vec<u64>,
    /// The last missed occurrence so far, while older ones are still being judged.
    pub candidate: Option<u64>,
    /// The occurrence that waits until the previous one is settled.
    pub buffered: Option<u64>,
    /// Occurrences that may be in their queue already: a crash may have hidden the answer.
    pub entering: Vec<ScheduleEntry>,
    /// Occurrences in their queue that are not due yet.
    pub pending: Vec<ScheduleEntry>,
    /// Occurrences that are due, and whose shards have not answered since whether their messages entered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<ScheduleEntry>,
    /// Occurrences that are being taken back.
    pub taking: Vec<TakeBack>,
    /// Messages that were taken back and are to be removed.
    pub erasing: Vec<u64>,
    /// Instants behind the cursor that an earlier recurrence has entered already.
    pub done_ahead: Vec<u64>,
    /// Raised when occurrences are taken back, so that entering them again is another enqueue.
    pub round: u32,
    /// The occurrence that became due last: its message.
    pub last_id: Option<u64>,
    /// When the next of the missed occurrences may enter.
    pub spread_until: u64,
    /// Occurrences that may still be put into their queue; `None`: any number.
    pub remaining: Option<u64>,
    /// The counts.
    pub counts: ScheduleCounts,
    /// The latest occurrences, oldest first.
    pub latest: Vec<PastOccurrence>,
    /// Why an occurrence waits that its queue has refused.
    pub block: Option<ScheduleBlock>,
    /// Until when a worker has the record for itself.
    pub held_until: u64,
    /// Whether the schedule is being removed.
    pub removing: bool,
}

/// An occurrence that enters its queue, or has entered it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleEntry {
    /// The nominal instant of the occurrence.
    pub at: u64,
    /// When its message is due.
    pub due: u64,
    /// The round of [`ScheduleState::round`].
    pub round: u32,
    /// Until when its queue remembers the answer; later it is not known whether it has entered.
    #[serde(default)]
    pub until: u64,
    /// Whether it is enqueued without its key, because another message has that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keyless: bool,
    /// The message, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// The generation of the message.
    #[serde(default)]
    pub generation: u32,
}

/// An occurrence that is being taken back out of its queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TakeBack {
    /// The occurrence.
    pub entry: ScheduleEntry,
    /// How its instant is treated afterwards.
    pub then: AfterTaking,
    /// Whether an edit has left it no place among the occurrences that remain.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub surplus: bool,
}

/// How an instant is treated after its occurrence was taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterTaking {
    /// The occurrence enters again, with other content.
    EntersAgain,
    /// The occurrence has passed, and is counted as missed.
    Missed,
    /// The occurrence is judged anew, if it still occurs.
    Dropped,
    /// The occurrence became due while its shard was closed, and is judged like those after it.
    Judged,
}

/// What has become of all occurrences.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "OccurrenceCounts"))]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleCounts {
    /// Have entered the queue and are due.
    pub entered: u64,
    /// Were missed and did not enter.
    pub missed: u64,
    /// Were skipped, because the previous message was not settled.
    pub skipped: u64,
    /// Were refused by the queue at first, and waited.
    pub blocked: u64,
    /// Have entered without a key, because another message has it.
    pub keyless: u64,
    /// May or may not have entered.
    pub unsure: u64,
}

/// The end of an occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OccurrenceEnd {
    /// The occurrence entered its queue.
    Entered,
    /// The occurrence was missed.
    Missed,
    /// The occurrence was skipped.
    Skipped,
    /// The outcome is unknown: the occurrence may have entered.
    Unsure,
}

/// An entry in the list of the latest occurrences.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PastOccurrence {
    /// The nominal instant of the occurrence.
    pub at: u64,
    /// How it ended.
    pub end: OccurrenceEnd,
    /// The message of the occurrence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
}

/// Why an occurrence waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleBlock {
    /// The first occurrence that was refused.
    pub at: u64,
    /// Why, in words that name no queue.
    pub why: String,
    /// How often it was refused in a row.
    pub tries: u32,
    /// When it is tried again.
    pub until: u64,
}

/// The next step of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleStep {
    /// Write the record, enqueue these, report each with [`ScheduleState::entered`].
    Enter(Vec<ScheduleEntry>),
    /// Write the record, take the messages back, report each with [`ScheduleState::took`].
    Take(Vec<TakeBack>),
    /// Write the record, remove the messages, report with [`ScheduleState::erased`].
    Erase(Vec<u64>),
    /// Ask which messages ahead are gone, report each with [`ScheduleState::removed`], and advance.
    Check,
    /// Ask whether this message is settled, and advance with the answer.
    Look(u64),
    /// Write the record: the next look is at this instant.
    Sleep(u64),
    /// The schedule is to be removed.
    Remove,
}

/// Whether the previous occurrence is settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreviousRun {
    /// The message of the previous occurrence was not looked at.
    #[default]
    Unknown,
    /// The message of the previous occurrence is scheduled, ready or leased.
    Unsettled,
    /// The message of the previous occurrence is done, dead or removed.
    Settled,
}

/// The facts on which a look decides.
#[derive(Clone, Copy, Debug)]
pub struct LookFacts<'a> {
    /// The name of the schedule.
    pub name: &'a str,
    /// The present, in ms since 1970.
    pub now: u64,
    /// Whether the previous occurrence is settled.
    pub previous: PreviousRun,
    /// Whether this look has asked for the messages that are not due yet.
    pub is_checked: bool,
    /// How long an answer is remembered, in ms.
    pub remembered: u64,
}

/// The answer to the enqueue of an occurrence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnterOutcome {
    /// The message is in its queue: now, or since an earlier enqueue.
    Entered {
        /// The message.
        id: u64,
        /// The generation of the message.
        generation: u32,
        /// Whether it has its key.
        keyed: bool,
    },
    /// The message was refused, for this reason.
    Refused(String),
    /// The outcome is unknown: the message may be in its queue.
    Unknown,
}

/// The answer to taking a message back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeOutcome {
    /// The message cannot be delivered any more.
    Taken,
    /// The message was delivered, or a caller has changed it: it counts as entered.
    Gone,
    /// A caller has removed the message before it was due.
    Removed,
    /// The outcome is unknown.
    Unknown,
}

/// The answer of a shard about the message of an occurrence that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DueAnswer {
    /// The message is ready, leased, dead, or gone, or a caller has changed it: the occurrence has entered.
    Entered,
    /// The message is still scheduled, although it is due.
    Scheduled,
    /// No answer came: the shard may be closed.
    Unknown,
}
