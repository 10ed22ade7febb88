//! What the engine wants done: data, for a driver to carry out in order.

use crate::id::{Lsn, ReplyTo};
use crate::name::QueueName;
use crate::record::Record;
use crate::store::Load;

use super::reply::Reply;

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Append this record; its position is the next.
    Append(Record),
    /// Give this answer, but not before its condition holds.
    Respond {
        /// To whom.
        to: ReplyTo,
        /// The answer.
        reply: Reply,
        /// Not before.
        after: After,
    },
    /// Load this page and give it back as [`super::Input::Loaded`].
    Load(Load),
    /// Tell a person.
    Notice(Notice),
}

/// What an answer waits for. Both must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct After {
    /// Everything up to here is durable, at the level that was promised.
    pub durable: Lsn,
    /// Everything up to here is written.
    pub written: Lsn,
}

/// Worth a line in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A message became ready in a queue from which nobody has reserved since the start. It is kept. Said once a queue.
    Unattended(QueueName),
    /// A message died. Said for the first of a queue since the start.
    Died(QueueName),
}

/// What the engine wants done, in order.
pub type Effects = Vec<Effect>;
