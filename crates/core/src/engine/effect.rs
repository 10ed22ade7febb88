//! Effects: what the driver must do, in order, as data.

use crate::id::{Lsn, MessageId, ReplyTo};
use crate::message::DeadReason;
use crate::name::{Key, QueueName};
use crate::record::Record;
use crate::store::{EventRequest, Load};

use super::reply::Reply;

/// An effect that the owner of the engine carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Append this record; its position is the next.
    Append(Record),
    /// Send this answer once its condition holds.
    Respond {
        /// The destination.
        to: ReplyTo,
        /// The answer.
        reply: Reply,
        /// The condition.
        after: After,
    },
    /// Load this page and give it back as [`super::Input::Loaded`].
    Load(Load),
    /// Read these events and give them back as [`super::Input::Events`].
    ReadEvents(EventRequest),
    /// Report this to the operator.
    Notice(Notice),
}

/// The condition of an answer. Both parts must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct After {
    /// Everything up to here is durable, at the promised level.
    pub durable: Lsn,
    /// Everything up to here is written.
    pub written: Lsn,
}

/// An event that is worth a line in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A message became ready in a queue from which no consumer has reserved since the start. It is kept. Reported once
    /// for each queue.
    Unattended(QueueName),
    /// A message has become dead.
    Died {
        /// The queue.
        queue: QueueName,
        /// The message's id.
        id: MessageId,
        /// The message's key.
        key: Option<Key>,
        /// The reason.
        reason: DeadReason,
    },
}

/// Effects, in order.
pub type Effects = Vec<Effect>;
