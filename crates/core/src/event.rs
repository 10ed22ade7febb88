//! Events: what a record says about the life of its message, for readers that follow it.
//!
//! An event is a translation of one record, without any look-up: so it costs nothing while no reader follows, and it is
//! the same whenever the record is read. It contains no body, header, token or note. Records of system queues and
//! records that are not about a message have none.
//!
//! ```text
//!   accepted ──▶ fired ──▶ granted ──▶ acked
//!      │  ▲                   │  └───▶ returned, lease_expired ──▶ granted …
//!      │  └ postponed         └──────▶ dead ──▶ redriven ──▶ granted …
//!      │                      └──────▶ superseded
//!      └──▶ cancelled, replaced, expired, purged
//! ```

use crate::id::{Lsn, MessageId};
use crate::message::{DeadReason, Ended, Kind, Life, PastAttempt, Stage};
use crate::name::{Key, QueueName, named_enum};
use crate::record::{ClockPair, Gone, Group, Record, Was};
use crate::time::{Due, Now, WallMs};

/// An event in the life of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MessageEvent {
    /// The position of its record; for an event without a record, the last position before it.
    pub position: Lsn,
    /// When it happened.
    pub at: WallMs,
    /// The queue.
    pub queue: QueueName,
    /// The kind of event.
    pub kind: EventKind,
    /// The message; `None`: several.
    pub id: Option<MessageId>,
    /// The key of the message, where the record has it: when it is accepted, and when its content is changed.
    pub key: Option<Key>,
    /// When it is due, by the clocks at the time of the event; for waiting messages.
    pub due_at: Option<WallMs>,
    /// The number of its attempts so far, when it has had any.
    pub attempt: Option<u32>,
    /// The reason.
    pub reason: Option<EventReason>,
    /// The number of messages, of an event of several.
    pub count: Option<u64>,
}

named_enum! {
/// A kind of event in the life of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum EventKind {
    /// The message was accepted.
    Accepted => "accepted",
    /// The message has another due time.
    Postponed => "postponed",
    /// The message has another content or other settings, and the same due time; or it has lost its key to another
    /// message while it was leased, or such a lease has another deadline.
    Changed => "changed",
    /// The message became due. Only a fire that a caller asked for has a record.
    Fired => "fired",
    /// A consumer has leased it.
    Granted => "granted",
    /// The lease has another deadline.
    Extended => "extended",
    /// The lease has ended without a result: the message waits for another attempt.
    Returned => "returned",
    /// The lease ran out: the message waits for another attempt.
    LeaseExpired => "lease_expired",
    /// The message is dead.
    Dead => "dead",
    /// The message was dead, and waits again.
    Redriven => "redriven",
    /// A consumer has acked it.
    Acked => "acked",
    /// The producer has cancelled it.
    Cancelled => "cancelled",
    /// Another message has taken the key.
    Replaced => "replaced",
    /// The message was removed because its time was over.
    Expired => "expired",
    /// The messages of a queue were removed.
    Purged => "purged",
    /// The message had lost its key to another one while it was leased, and its lease has ended without an ack.
    Superseded => "superseded",
}
}

/// The reason of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum EventReason {
    /// Why the message is dead.
    Dead(DeadReason),
    /// How the attempt ended.
    Ended(Ended),
    /// A caller has asked for it.
    Asked,
}

impl EventReason {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            EventReason::Dead(reason) => reason.as_str(),
            EventReason::Ended(how) => how.as_str(),
            EventReason::Asked => "asked",
        }
    }
}

impl MessageEvent {
    /// The event of a record with this position, in a group with these clocks; `None` if the record is not about the
    /// life of a message, or about one of a system queue.
    pub fn of(record: &Record, position: Lsn, clock: ClockPair) -> Option<Self> {
        if record.queue().is_system() {
            return None;
        }
        let now = Now::whole(clock.engine.0, clock.wall.0);
        let event = |kind, id| MessageEvent::new(kind, record.queue().clone(), id, position, clock.wall);
        Some(match record {
            Record::Put { message, life, was } => {
                let (kind, reason) = put(life, was.as_ref(), now);
                let clock = as_answered(clock, life, Some(message.enqueued_at));
                MessageEvent { key: message.key.clone(), reason, ..event(kind, message.id) }.with(life, clock)
            }
            Record::Changed { id, life, was } => {
                let (kind, reason) = changed(life, was, now);
                MessageEvent { reason, ..event(kind, *id) }.with(life, as_answered(clock, life, None))
            }
            Record::Granted { id, attempt, .. } => {
                MessageEvent { attempt: Some(*attempt), ..event(EventKind::Granted, *id) }
            }
            Record::Removed { id, why, .. } => event(removed(*why), *id),
            Record::Purged { purged, .. } => {
                MessageEvent { id: None, count: Some(*purged), ..event(EventKind::Purged, MessageId(0)) }
            }
            _ => return None, // a record about a queue
        })
    }

    /// The event of a message that has become due, after the record at `position`.
    pub fn fired(queue: QueueName, id: MessageId, position: Lsn, at: WallMs) -> Self {
        Self::new(EventKind::Fired, queue, id, position, at)
    }

    /// An event that has nothing besides.
    fn new(kind: EventKind, queue: QueueName, id: MessageId, position: Lsn, at: WallMs) -> Self {
        MessageEvent {
            position,
            at,
            queue,
            kind,
            id: Some(id),
            key: None,
            due_at: None,
            attempt: None,
            reason: None,
            count: None,
        }
    }

    /// The events of a group.
    pub fn of_group(group: &Group) -> impl Iterator<Item = MessageEvent> {
        let positions = group.first.0..;
        let records = positions.zip(&group.records);
        records.filter_map(|(at, record)| MessageEvent::of(record, Lsn(at), group.clock))
    }

    /// Approximate memory that it needs, in bytes.
    pub fn weight(&self) -> usize {
        size_of::<MessageEvent>()
            + self.queue.as_str().len()
            + self.key.as_ref().map_or(0, |key| key.as_str().len())
    }

    fn with(mut self, life: &Life, now: Now) -> Self {
        self.attempt = (life.attempt > 0).then_some(life.attempt);
        self.due_at = (life.stage.kind() == Kind::Waiting).then(|| now.wall_of(life.due));
        self
    }
}

/// The clocks by which the answer to the same change has reported due times. Answers round the wall clock down; a group
/// has it rounded up, and does not say whether there was a part of a millisecond. The record shows it if its message
/// was accepted or an attempt has ended now, or by a delay from now on, which such a part makes longer. In other
/// records, of a fire, a redrive at once and a change of the content alone, the due time may be a millisecond later
/// than answered.
fn as_answered(clock: ClockPair, life: &Life, enqueued_at: Option<WallMs>) -> Now {
    let part = |later: u64, earlier: u64| later.checked_sub(earlier).filter(|ms| *ms <= 1);
    let since = |then: WallMs| part(clock.wall.0, then.0);
    let delayed = match (life.due, life.marks.delay_ms) {
        (Due::After(due), Some(ms)) if ms > 0 => part(due.0, clock.engine.0.saturating_add(ms)),
        (Due::After(_) | Due::At(_), _) => None,
    };
    let ended = || life.history.last().and_then(|past| since(past.ended_at));
    let rounded_up = enqueued_at.and_then(since).or(delayed).or_else(ended).unwrap_or(0);
    Now::whole(clock.engine.0, clock.wall.0.saturating_sub(rounded_up))
}

type KindAndReason = (EventKind, Option<EventReason>);

fn put(life: &Life, was: Option<&Was>, now: Now) -> KindAndReason {
    match (was, &life.stage) {
        (Some(was), _) => changed(life, was, now),
        (None, Stage::Dead { reason, .. }) => (EventKind::Dead, Some(EventReason::Dead(*reason))),
        (None, Stage::Waiting { .. } | Stage::Leased(_)) => (EventKind::Accepted, None),
    }
}

fn changed(life: &Life, was: &Was, now: Now) -> KindAndReason {
    match (was.kind, &life.stage) {
        (Kind::Waiting | Kind::Leased, Stage::Dead { reason, .. }) => {
            (EventKind::Dead, Some(EventReason::Dead(*reason)))
        }
        (Kind::Dead, Stage::Dead { .. }) => (EventKind::Changed, None),
        (Kind::Dead, Stage::Waiting { .. }) => (EventKind::Redriven, None),
        (Kind::Waiting | Kind::Dead, Stage::Leased(_)) => (EventKind::Granted, None),
        (Kind::Leased, Stage::Leased(_)) if life.marks.superseded_by.is_some() => (EventKind::Changed, None),
        (Kind::Leased, Stage::Leased(_)) => (EventKind::Extended, None),
        (Kind::Leased, Stage::Waiting { token: Some(_) }) => (EventKind::LeaseExpired, None),
        (Kind::Leased, Stage::Waiting { token: None }) => {
            let how = just_ended(life, now).map(|past| EventReason::Ended(past.how));
            (EventKind::Returned, how)
        }
        (Kind::Waiting, Stage::Waiting { .. }) => moved(life, was, now),
    }
}

/// A change of a message that waits and waited before.
fn moved(life: &Life, was: &Was, now: Now) -> KindAndReason {
    // A consumer may nack after its lease ran out, as long as no other one has the message.
    let late_nack = just_ended(life, now).filter(|past| past.how == Ended::Nacked && now.is_due(was.due));
    if let Some(past) = late_nack {
        return (EventKind::Returned, Some(EventReason::Ended(past.how)));
    }
    if life.due == was.due {
        (EventKind::Changed, None)
    } else if now.is_due(life.due) && !now.is_due(was.due) {
        (EventKind::Fired, Some(EventReason::Asked))
    } else {
        (EventKind::Postponed, None)
    }
}

/// The attempt that this change has ended, as far as the history tells. The wall clock of a group is rounded up, that of
/// the history down.
fn just_ended(life: &Life, now: Now) -> Option<&PastAttempt> {
    let last = life.history.last()?;
    let is_now = now.wall.0.saturating_sub(last.ended_at.0) <= 1 && last.ended_at <= now.wall;
    (is_now && last.attempt == life.attempt).then_some(last)
}

fn removed(why: Gone) -> EventKind {
    match why {
        Gone::Acked => EventKind::Acked,
        Gone::Cancelled => EventKind::Cancelled,
        Gone::Replaced => EventKind::Replaced,
        Gone::Expired => EventKind::Expired,
        Gone::Superseded => EventKind::Superseded,
    }
}
