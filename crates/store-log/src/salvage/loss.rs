//! What is lost of a damaged folder, or may be.

use std::fmt;

use duewheel_core::{Due, Key, Lsn, MessageId, QueueName};
use roaring::RoaringTreemap;

/// One thing that is lost, or that may come again because it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// Records of the journal: messages put by them are lost, settled by them come again, changed by them are as before.
    Records {
        /// The first one.
        from: Lsn,
        /// The last one; `None` if it is not known how many there were.
        to: Option<Lsn>,
    },
    /// A message of which only changes were found.
    Message {
        /// Which one.
        id: MessageId,
        /// Its queue.
        queue: QueueName,
        /// When it was due.
        due: Due,
    },
    /// Messages that were in a part of a run which cannot be read. A purge may have taken some of them: [`Loss::Missing`] counts.
    Ids {
        /// The first one.
        first: MessageId,
        /// The last one; all in between are lost, too.
        last: MessageId,
    },
    /// Some of the lost messages were due in this stretch: [`Loss::Ids`] tells which.
    Due {
        /// The file that had them.
        file: String,
        /// The first due time of the stretch.
        from: Due,
        /// The last one, of the same clock; `None`: it has no end.
        until: Option<Due>,
    },
    /// Messages of a run of which not even the ids are known.
    Run {
        /// The file.
        file: String,
        /// How many, if that is known.
        messages: Option<u64>,
    },
    /// What of a run was settled: it may come again.
    Settled {
        /// The file of the run.
        file: String,
    },
    /// A message that is as it was before its last change.
    Stale {
        /// Which one.
        id: MessageId,
        /// Its queue.
        queue: QueueName,
    },
    /// A message that has no key any more, because a newer one has it.
    Key {
        /// Which one.
        id: MessageId,
        /// Its queue.
        queue: QueueName,
        /// The key that it had.
        key: Key,
        /// The message that has it now.
        holder: MessageId,
    },
    /// Settings, pauses and totals of queues, but for what the journal says of them.
    Settings {
        /// The file that had them.
        file: String,
    },
    /// Remembered answers: an enqueue that is repeated with its `dedupe_id` may be accepted twice.
    Answers {
        /// The file that had them.
        file: String,
    },
    /// By the books a queue has more messages than were found.
    Missing {
        /// The queue.
        queue: QueueName,
        /// How many more.
        messages: u64,
    },
    /// By the books a queue has fewer messages than were found: so many may have been settled.
    Surplus {
        /// The queue.
        queue: QueueName,
        /// How many fewer.
        messages: u64,
    },
}

impl Loss {
    /// The word for it in JSON.
    pub fn as_str(&self) -> &'static str {
        match self {
            Loss::Records { .. } => "records",
            Loss::Message { .. } => "message",
            Loss::Ids { .. } => "ids",
            Loss::Due { .. } => "due",
            Loss::Run { .. } => "run",
            Loss::Settled { .. } => "settled",
            Loss::Stale { .. } => "stale",
            Loss::Key { .. } => "key",
            Loss::Settings { .. } => "settings",
            Loss::Answers { .. } => "answers",
            Loss::Missing { .. } => "missing",
            Loss::Surplus { .. } => "surplus",
        }
    }

    /// A set of ids, in stretches.
    pub(super) fn of_ids(ids: &RoaringTreemap) -> Vec<Loss> {
        let mut losses: Vec<Loss> = Vec::new();
        for id in ids {
            match losses.last_mut() {
                Some(Loss::Ids { last, .. }) if last.0 + 1 == id => *last = MessageId(id),
                _ => losses.push(Loss::Ids { first: MessageId(id), last: MessageId(id) }),
            }
        }
        losses
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Records { from, to } => {
                match to {
                    Some(to) => write!(f, "the records from LSN {} to {} are lost", from.0, to.0)?,
                    None => write!(f, "the records from LSN {} on are lost", from.0)?,
                }
                f.write_str(": messages that they put are lost, messages that they settled come again")
            }
            Loss::Message { id, queue, due } => {
                write!(f, "message {} of queue {queue} is lost; it was due at {due:?}", id.0)
            }
            Loss::Ids { first, last } if first == last => {
                write!(f, "message {} is lost, unless a purge took it", first.0)
            }
            Loss::Ids { first, last } => {
                write!(f, "the messages {} to {} are lost, unless a purge took them", first.0, last.0)
            }
            Loss::Due { file, from, until: Some(until) } => {
                write!(f, "of the messages lost with {file} some were due from {from:?} to {until:?}")
            }
            Loss::Due { file, from, until: None } => {
                write!(f, "of the messages lost with {file} some were due from {from:?} on")
            }
            Loss::Run { file, messages: Some(n) } => {
                write!(f, "up to {n} messages of {file} are lost; their ids are not known")
            }
            Loss::Run { file, messages: None } => {
                write!(f, "messages of {file} are lost; neither their ids nor their number is known")
            }
            Loss::Settled { file } => {
                write!(f, "it is lost which messages of {file} are settled: those may come again")
            }
            Loss::Stale { id, queue } => {
                write!(f, "message {} of queue {queue} is kept in an older state than its last", id.0)
            }
            Loss::Key { id, queue, key, holder } => {
                let (id, holder) = (id.0, holder.0);
                write!(f, "message {id} of queue {queue} has lost its key {key}, which message {holder} has")
            }
            Loss::Settings { file } => {
                write!(f, "settings, pauses and totals of queues are lost with {file}, but for later changes")
            }
            Loss::Answers { file } => {
                write!(f, "remembered answers of {file} are lost: a repeated dedupe_id may be accepted twice")
            }
            Loss::Missing { queue, messages } => write!(f, "queue {queue} has lost {messages} messages"),
            Loss::Surplus { queue, messages } => {
                write!(f, "queue {queue} has {messages} messages more than it had: those come again")
            }
        }
    }
}
