//! Records: the durable facts.
//!
//! A record states the *result* of a decision in absolute terms ("this message is leased until then, attempt 3"), never
//! an instruction to decide again. So a store applies records without interpreting them, and replaying a record that is
//! already in effect changes nothing.

use std::fmt;
use std::sync::Arc;

use crate::answers::AnswerPosition;
use crate::id::IdSet;
use crate::id::{Lsn, MessageId};
use crate::message::{Kind, Lease, Life, MaxAttempts, MessageContent, Stage, State};
use crate::name::{Key, QueueName};
use crate::policy::{Backoff, OF_A_NUMBER, QueueSettings};
use crate::time::{Due, EngineMs, Now, Partial, WallMs};

mod codec;
mod fields;
mod head;

pub use fields::{Reader, Writer, find_bytes, skip_fields, varint};
pub use head::{NewPut, RowHead, StageKind};

/// The decoded value, or why the bytes cannot be decoded.
type Decoded<T> = Result<T, DecodeError>;

/// Why bytes are no record: damage that a checksum did not detect, or a later version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes end in the middle of a field.
    Short,
    /// A field has a value that this version does not know; the name of the field.
    Unknown(&'static str),
    /// A later version has added a field to this structure that must not be ignored.
    Newer(&'static str),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Short => f.write_str("the bytes end in the middle of a field"),
            DecodeError::Unknown(what) => write!(f, "unknown value of {what}"),
            DecodeError::Newer(what) => write!(
                f,
                "this {what} has a field of a later version of duewheel, which must not be ignored: use that version"
            ),
        }
    }
}

impl std::error::Error for DecodeError {}

/// A durable fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A message exists, with this life. A second record for an id replaces the first.
    Put {
        /// The content.
        message: Arc<MessageContent>,
        /// The present life.
        life: Life,
        /// The former state, if the id existed before.
        was: Option<Was>,
    },
    /// The message's life has changed.
    Changed {
        /// The message.
        id: MessageId,
        /// The present life.
        life: Life,
        /// The former state.
        was: Was,
    },
    /// A consumer has leased the message: the short form of `Changed` for the most frequent change.
    Granted {
        /// The message.
        id: MessageId,
        /// Number of grants so far, this one included.
        attempt: u32,
        /// The lease.
        lease: Lease,
        /// The former state.
        was: Was,
    },
    /// The message is removed.
    Removed {
        /// The message.
        id: MessageId,
        /// The reason.
        why: Gone,
        /// The former state.
        was: Was,
    },
    /// A queue's settings and pause have changed.
    Queue {
        /// The queue.
        name: QueueName,
        /// The configured settings.
        settings: QueueSettings,
        /// Whether it grants messages.
        pause: Pause,
    },
    /// All messages of the queue that were put before this record are removed, except some.
    Purged {
        /// The queue.
        queue: QueueName,
        /// The leased messages, which stay.
        keep: IdSet,
        /// The id that is given next: messages with smaller ids are removed.
        before: MessageId,
        /// The number of removed messages.
        purged: u64,
    },
    /// The answer to an enqueue with a `dedupe_id`.
    Deduped(DedupeRow),
    /// Remembered answers of a queue are forgotten, the oldest ones. Those without a position stay.
    AnswersForgotten {
        /// The queue of the answers.
        queue: QueueName,
        /// The ordinal of the last forgotten answer.
        upto: Lsn,
    },
}

impl Record {
    /// The former and the present state of the record's message; both `None` for a record about a queue.
    pub fn moves(&self) -> (Option<TallyState>, Option<TallyState>) {
        let stood = |was: &Was| TallyState { kind: was.kind, due: was.due, weight: was.weight };
        match self {
            Record::Put { message, life, was } => {
                let weight = (message.weight() + life.weight()) as u64;
                let stands = TallyState { kind: life.stage.kind(), due: life.due, weight };
                (was.as_ref().map(stood), Some(stands))
            }
            Record::Changed { life, was, .. } => {
                let weight = was.weight.saturating_sub(was.detail).saturating_add(life.weight() as u64);
                let stands = TallyState { kind: life.stage.kind(), due: life.due, weight };
                (Some(stood(was)), Some(stands))
            }
            Record::Granted { was, .. } => {
                (Some(stood(was)), Some(TallyState { kind: Kind::Leased, ..stood(was) }))
            }
            Record::Removed { was, .. } => (Some(stood(was)), None),
            Record::Queue { .. }
            | Record::Purged { .. }
            | Record::Deduped(_)
            | Record::AnswersForgotten { .. } => (None, None),
        }
    }

    /// An upper bound of the encoded size in bytes, close to it: bounds groups without encoding them twice.
    pub fn weight(&self) -> usize {
        let name = self.queue().as_str().len();
        OF_A_RECORD
            + name
            + match self {
                Record::Put { message, life, was } => {
                    let was = if was.is_some() { OF_A_RECORD + name } else { 0 };
                    let headers = message.headers.len() * 2 * OF_A_NUMBER;
                    let dedupe_id = message.dedupe_id.as_deref().map_or(0, str::len);
                    message.weight() + headers + dedupe_id + of_past(life) + was
                }
                Record::Changed { life, .. } => of_past(life),
                Record::Granted { .. }
                | Record::Removed { .. }
                | Record::Queue { .. }
                | Record::AnswersForgotten { .. } => 0,
                Record::Purged { keep, .. } => of_ids(keep),
                Record::Deduped(row) => {
                    row.dedupe_id.len() + row.key.as_ref().map_or(0, |key| key.as_str().len())
                }
            }
    }

    /// The message of the record; `None` for a record about a queue.
    pub fn message(&self) -> Option<MessageId> {
        match self {
            Record::Put { message, .. } => Some(message.id),
            Record::Changed { id, .. } | Record::Granted { id, .. } | Record::Removed { id, .. } => Some(*id),
            Record::Queue { .. }
            | Record::Purged { .. }
            | Record::Deduped(_)
            | Record::AnswersForgotten { .. } => None,
        }
    }

    /// The queue of the record.
    pub fn queue(&self) -> &QueueName {
        match self {
            Record::Put { message, .. } => &message.queue,
            Record::Changed { was, .. } | Record::Granted { was, .. } | Record::Removed { was, .. } => {
                &was.queue
            }
            Record::Queue { name, .. } => name,
            Record::Purged { queue, .. } | Record::AnswersForgotten { queue, .. } => queue,
            Record::Deduped(row) => &row.queue,
        }
    }
}

/// Largest encoded size of a record without names, bodies, headers, histories and details, in bytes.
const OF_A_RECORD: usize = 256;

/// An upper bound of the size of a set of ids, each as its difference from the one before. For a given number and span
/// of ids it is largest when all differences are equal; a difference of `b` bits takes at most 1 + `b` / 7 bytes.
fn of_ids(ids: &IdSet) -> usize {
    let between = ids.span() / (ids.len() as u64).max(1);
    let bits = (u64::BITS - between.leading_zeros()) as usize;
    ids.len() + ids.len() * bits / 7 + 2 * OF_A_NUMBER
}

fn of_past(life: &Life) -> usize {
    let history: usize = life.history.iter().map(|past| 4 * OF_A_NUMBER + past.note.len()).sum();
    history + life.weight()
}

/// The state of a message, as tallies count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TallyState {
    /// The stage of the message.
    pub kind: Kind,
    /// The due time.
    pub due: Due,
    /// The weight in bytes.
    pub weight: u64,
}

/// The state of a message before a record: what a store needs to update its tallies without reading the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Was {
    /// The queue, which never changes.
    pub queue: QueueName,
    /// The stage of the message.
    pub kind: Kind,
    /// The due time.
    pub due: Due,
    /// The weight in bytes.
    pub weight: u64,
    /// The part of it that is the detail of the message.
    pub detail: u64,
    /// Bytes of the past attempts, which are no part of it.
    pub past: u64,
    /// Bytes of the content that are no part of it.
    pub unweighed: u64,
}

impl Was {
    /// The state of a message as it is.
    pub fn of(message: &MessageContent, life: &Life) -> Self {
        let (detail, queue) = (life.weight() as u64, message.queue.clone());
        Was {
            queue,
            kind: life.stage.kind(),
            due: life.due,
            weight: message.weight() as u64 + detail,
            detail,
            past: life.past_bytes() as u64,
            unweighed: message.unweighed() as u64,
        }
    }
}

/// Why a message was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// A consumer has acked it.
    Acked,
    /// The producer has cancelled it.
    Cancelled,
    /// Another message has taken the key.
    Replaced,
    /// The message was dead for longer than its queue keeps dead messages.
    Expired,
    /// Another message had taken the key while it was leased, and the lease has ended without an ack.
    Superseded,
}

/// Whether a queue grants messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Pause {
    /// The queue grants messages.
    #[default]
    Running,
    /// The queue grants no messages until it is resumed.
    Paused,
    /// The queue grants no messages for a time.
    Until {
        /// The end of the pause.
        end: EngineMs,
        /// The length that was asked for, in ms.
        length_ms: u64,
    },
}

impl Pause {
    /// Whether this is a pause that differs from `before`.
    pub(crate) fn begins_after(self, before: Pause) -> bool {
        self != Pause::Running && self != before
    }
}

/// The answer that a `dedupe_id` stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DedupeRow {
    /// The queue of the id.
    pub queue: QueueName,
    /// The caller's id.
    pub dedupe_id: Box<str>,
    /// The fingerprint of the request, with `defaults` in place of what it left out; the same id with another content
    /// is refused.
    pub content: u128,
    /// The values that applied to what the request left out; `None` for an answer to no enqueue.
    pub defaults: Option<EnqueueDefaults>,
    /// The end of the dedupe window.
    pub until: EngineMs,
    /// The answer's message.
    pub id: MessageId,
    /// The answer's key.
    pub key: Option<Key>,
    /// The answer's due time.
    pub due_at: WallMs,
    /// The answer's generation.
    pub generation: u32,
    /// Whether the answer said that the message was created.
    pub created: Created,
    /// The answer's state of the message that was kept.
    pub kept: Option<State>,
    /// The position in the queue's log of answers; `None` for an answer that duewheel itself needs: it is in no limit,
    /// and remembered until it expires.
    pub position: Option<AnswerPosition>,
}

/// The values that apply to what an enqueue leaves out, at the time of its decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnqueueDefaults {
    /// `priority`
    pub priority: u32,
    /// `lease_ms`
    pub lease_ms: u64,
    /// `max_attempts`
    pub max_attempts: MaxAttempts,
    /// `backoff`
    pub backoff: Backoff,
    /// `expires_in_ms`, if the queue has one.
    pub expires_in_ms: Option<u64>,
}

/// Memory and space of an answer without its names, in bytes.
const OF_AN_ANSWER: usize = 96;

impl DedupeRow {
    /// The size that counts in quotas and limits, in bytes.
    pub fn size(&self) -> u64 {
        DedupeRow::size_of(&self.queue, &self.dedupe_id, self.key.as_ref())
    }

    /// The size of an answer with these names.
    pub fn size_of(queue: &QueueName, dedupe_id: &str, key: Option<&Key>) -> u64 {
        let key = key.map_or(0, |key| key.as_str().len());
        (OF_AN_ANSWER + queue.as_str().len() + dedupe_id.len() + key) as u64
    }
}

/// The effect of an accepted enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Created {
    /// The enqueue created a message.
    New,
    /// The enqueue created a message in place of this one.
    Replacing(MessageId),
    /// The enqueue kept the message that had the key (`if_exists: keep`).
    Kept,
    /// The enqueue created a message that has taken the key of this one, which is leased (`if_exists: supersede`).
    Superseding(MessageId),
}

/// Totals of a queue since it came into existence. A fold over its records, so that they survive a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Totals {
    /// Messages accepted.
    pub enqueued: u64,
    /// Grants.
    pub granted: u64,
    /// Acks.
    pub acked: u64,
    /// Messages cancelled.
    pub cancelled: u64,
    /// Messages replaced.
    pub replaced: u64,
    /// Messages purged.
    pub purged: u64,
    /// Deaths of messages; a message counts each time it dies.
    pub died: u64,
    /// Dead messages removed by their queue's setting.
    pub expired: u64,
    /// Number of pauses.
    pub paused: u64,
    /// Messages that lost their key while they were leased, and whose lease ended without an ack.
    pub superseded: u64,
}

impl Totals {
    /// Counts one record. Numbers saturate, because a damaged store may contain any value.
    pub fn count(&mut self, record: &Record) {
        let (total, by) = match record {
            Record::Put { was, .. } => (&mut self.enqueued, u64::from(was.is_none())),
            Record::Granted { .. } => (&mut self.granted, 1),
            // The long form of a grant, which brings a limit.
            Record::Changed { life: Life { stage: Stage::Leased(_), marks, .. }, was, .. } => {
                (&mut self.granted, u64::from(was.kind == Kind::Waiting && marks.limit.is_some()))
            }
            Record::Changed { life, was, .. } => {
                let died = was.kind != Kind::Dead && matches!(life.stage, Stage::Dead { .. });
                (&mut self.died, u64::from(died))
            }
            Record::Removed { why, .. } => match why {
                Gone::Acked => (&mut self.acked, 1),
                Gone::Cancelled => (&mut self.cancelled, 1),
                Gone::Replaced => (&mut self.replaced, 1),
                Gone::Expired => (&mut self.expired, 1),
                Gone::Superseded => (&mut self.superseded, 1),
            },
            Record::Purged { purged, .. } => (&mut self.purged, *purged),
            Record::Queue { .. } | Record::Deduped(_) | Record::AnswersForgotten { .. } => return,
        };
        *total = total.saturating_add(by);
    }

    /// The number of messages that have ended, in whatever way.
    pub fn settled(&self) -> u64 {
        let ends = [self.acked, self.cancelled, self.replaced, self.superseded, self.purged, self.expired];
        ends.into_iter().fold(0, u64::saturating_add)
    }

    /// The totals since `before`, which is an earlier state of the same totals.
    #[must_use]
    pub fn since(&self, before: &Totals) -> Totals {
        self.with(before, u64::saturating_sub)
    }

    /// Each total, combined with that of `other`.
    #[must_use]
    pub fn with(&self, other: &Totals, combine: impl Fn(u64, u64) -> u64) -> Totals {
        let part = |of: fn(&Totals) -> u64| combine(of(self), of(other));
        Totals {
            enqueued: part(|t| t.enqueued),
            granted: part(|t| t.granted),
            acked: part(|t| t.acked),
            cancelled: part(|t| t.cancelled),
            replaced: part(|t| t.replaced),
            purged: part(|t| t.purged),
            died: part(|t| t.died),
            expired: part(|t| t.expired),
            paused: part(|t| t.paused),
            superseded: part(|t| t.superseded),
        }
    }

    /// Counts a pause that differs from `before`.
    pub(crate) fn count_pause(&mut self, pause: Pause, before: Pause) {
        self.paused = self.paused.saturating_add(u64::from(pause.begins_after(before)));
    }
}

/// A reading of both clocks, written with each group, so that downtime counts.
///
/// Engine time is rounded down and the wall clock up, so that the downtime computed from it is never longer than the
/// real one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockPair {
    /// Engine time.
    pub engine: EngineMs,
    /// Wall-clock time.
    pub wall: WallMs,
}

impl ClockPair {
    /// The pair of a reading of the clocks.
    pub fn of(now: Now) -> Self {
        let up = match now.partial {
            Partial::Whole => 0,
            Partial::Cut => 1,
        };
        ClockPair { engine: now.engine, wall: WallMs(now.wall.0.saturating_add(up)) }
    }

    /// Engine time when a shard is opened at `wall_now`: downtime counts, a wall clock that went back does not.
    ///
    /// ```
    /// # use duewheel_core::{record::ClockPair, time::{EngineMs, WallMs}};
    /// let last = ClockPair { engine: EngineMs(500), wall: WallMs(10_000) };
    /// assert_eq!(last.engine_at(WallMs(13_000)), EngineMs(3_500));
    /// assert_eq!(last.engine_at(WallMs(2_000)), EngineMs(500));
    /// ```
    pub fn engine_at(&self, wall_now: WallMs) -> EngineMs {
        EngineMs(self.engine.0.saturating_add(wall_now.0.saturating_sub(self.wall.0)))
    }
}

/// A boot of a machine: the number that its kernel generates at each start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BootId(pub u128);

/// Relates engine time to the elapsed time of one boot.
///
/// Engine time follows elapsed time as long as an owner lives, and an owner that finds the anchor of its own boot
/// continues by it. So one anchor determines engine time for all moments of its boot, the downtime of processes
/// included, independently of steps and slews of the wall clock.
///
/// ```
/// # use duewheel_core::{record::{BootAnchor, BootId}, time::EngineMs};
/// let anchor = BootAnchor { boot: BootId(7), engine: EngineMs(500), elapsed_ns: 9_000_000_000 };
/// assert_eq!(anchor.engine_ns(BootId(7), 9_002_000_000), Some(502_000_000));
/// assert_eq!(anchor.engine_ns(BootId(8), 9_002_000_000), None, "another boot");
/// assert_eq!(anchor.at(EngineMs(400)).map(|a| a.elapsed_ns), Some(8_900_000_000));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootAnchor {
    /// The boot.
    pub boot: BootId,
    /// Engine time at one moment of the boot.
    pub engine: EngineMs,
    /// The elapsed time since the boot at that engine time, suspend included, in ns.
    pub elapsed_ns: u64,
}

const NS_OF_MS: i128 = 1_000_000;

impl BootAnchor {
    /// Engine time in ns at a moment of a boot; `None` if it is another boot, or one whose clock is behind the anchor.
    pub fn engine_ns(&self, boot: BootId, elapsed_ns: u64) -> Option<u64> {
        let passed = i128::from(elapsed_ns) - i128::from(self.elapsed_ns);
        // An anchor may have been taken at the end of its millisecond.
        if boot != self.boot || passed < -NS_OF_MS {
            return None;
        }
        u64::try_from(i128::from(self.engine.0) * NS_OF_MS + passed).ok()
    }

    /// This anchor, expressed by another engine time; `None` if that was before the boot.
    #[must_use]
    pub fn at(&self, engine: EngineMs) -> Option<Self> {
        let passed = (i128::from(engine.0) - i128::from(self.engine.0)) * NS_OF_MS;
        let elapsed_ns = u64::try_from(i128::from(self.elapsed_ns) + passed).ok()?;
        Some(BootAnchor { boot: self.boot, engine, elapsed_ns })
    }
}

/// Records that become durable together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Position of the first record; the others follow without a gap.
    pub first: Lsn,
    /// The clocks at the time of the decision.
    pub clock: ClockPair,
    /// The records, at least one.
    pub records: Vec<Record>,
}

impl Group {
    /// Position of the last record.
    pub fn last(&self) -> Lsn {
        Lsn(self.first.0 + self.records.len() as u64 - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Story: the fuzzer wrote two purges of nearly 2^64 messages into a journal, with a right checksum; adding them up
    /// ended the process.
    #[test]
    fn totals_saturate_at_their_maximum() {
        let queue = QueueName::new("q").unwrap();
        let purged = |purged| Record::Purged {
            queue: queue.clone(),
            keep: IdSet::default(),
            before: MessageId(1),
            purged,
        };
        let mut totals = Totals { paused: u64::MAX, ..Totals::default() };
        totals.count(&purged(u64::MAX - 1));
        totals.count(&purged(7));
        totals.count_pause(Pause::Paused, Pause::Running);
        assert_eq!((totals.purged, totals.paused), (u64::MAX, u64::MAX));
    }

    #[test]
    fn restart_gains_no_time_by_rounding() {
        // Story: left at engine 100.0, wall 5000.9; opened at wall 6000.0. Both rounded down, the downtime of 999.1 ms
        // became 1000, and a message could be 0.9 ms early for each restart.
        let left = Now { engine: EngineMs(100), wall: WallMs(5_000), partial: Partial::Cut };
        assert_eq!(ClockPair::of(left).engine_at(WallMs(6_000)), EngineMs(1_099));
        assert_eq!(ClockPair::of(Now::whole(100, 5_000)).engine_at(WallMs(6_000)), EngineMs(1_100));
    }
}
