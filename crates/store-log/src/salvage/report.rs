//! The report of a salvage: damage, and losses, certain or possible.

use std::fmt;

use duewheel_core::{Due, Key, Lsn, MessageId, QueueName};
use roaring::RoaringTreemap;

use crate::fault::Damage;

/// The result of a salvage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SalvageReport {
    /// Messages in the new folder, those included that have ended and are kept, and the server's own.
    pub messages: u64,
    /// Pending messages: those of these that have not ended, in queues of users.
    pub pending: u64,
    /// Remembered answers in the new folder.
    pub answers: u64,
    /// Places of the old folder that could not be read.
    pub damage: Vec<Damage>,
    /// The losses. Empty: nothing is lost.
    pub losses: Vec<Loss>,
}

impl SalvageReport {
    /// Adds the report of a folder of this name.
    pub(super) fn add(&mut self, folder: &str, other: SalvageReport) {
        let SalvageReport { messages, pending, answers, damage, losses } = other;
        self.messages += messages;
        self.pending += pending;
        self.answers += answers;
        self.damage.extend(damage.into_iter().map(|damage| damage.inside(folder)));
        let of_shard = |loss| Loss::InShard { folder: folder.to_owned(), loss: Box::new(loss) };
        self.losses.extend(losses.into_iter().map(of_shard));
    }
}

/// A loss, or a possible repetition because of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// Records of the journal: messages put by them are lost, messages settled by them come again, messages changed by
    /// them are in their former state.
    Records {
        /// The first record.
        from: Lsn,
        /// The last record.
        to: Lsn,
    },
    /// A message of which only changes were found.
    Message {
        /// The message.
        id: MessageId,
        /// The queue of the message.
        queue: QueueName,
        /// The due time of the message.
        due: Due,
    },
    /// Messages in an unreadable part of a run. A purge may have removed some of them; [`Loss::Missing`] has the exact
    /// number.
    Ids {
        /// The first id.
        first: MessageId,
        /// The last id; all in between are also lost.
        last: MessageId,
    },
    /// A range of due times of some of the lost messages: [`Loss::Ids`] names these.
    Due {
        /// The file that had them.
        file: String,
        /// The first due time of the range.
        from: Due,
        /// The last one, of the same clock; `None`: the range has no end.
        until: Option<Due>,
    },
    /// Messages of a run of which not even the ids are known. Without a manifest a merge may have written them to
    /// another run, which is also salvaged.
    Run {
        /// The file.
        file: String,
        /// Number of messages, if it is known.
        messages: Option<u64>,
    },
    /// The marks of a run's settled messages: these may come again.
    Settled {
        /// The file of the run.
        file: String,
    },
    /// A message that is kept in the state before its last change.
    Stale {
        /// The message.
        id: MessageId,
        /// The queue of the message.
        queue: QueueName,
    },
    /// A message that has lost its key, because a newer one has it.
    Key {
        /// The message.
        id: MessageId,
        /// The queue of the message.
        queue: QueueName,
        /// The key that it had.
        key: Key,
        /// The message that has it now.
        holder: MessageId,
    },
    /// All that a shard had, if it ever had an owner: it has no file.
    Shard,
    /// Settings, pauses and totals of queues, except for those in the journal.
    Settings {
        /// The file that had them.
        file: String,
    },
    /// Remembered answers: an enqueue that is repeated with its `dedupe_id` may be accepted twice.
    Answers {
        /// The file that had them.
        file: String,
    },
    /// The books count more messages of a queue than were found.
    Missing {
        /// The queue.
        queue: QueueName,
        /// The difference.
        messages: u64,
    },
    /// The books count fewer messages of a queue than were found: some of these may have been settled.
    Surplus {
        /// The queue.
        queue: QueueName,
        /// The difference.
        messages: u64,
    },
    /// A loss of one of several shards.
    InShard {
        /// The folder of the shard.
        folder: String,
        /// The loss itself.
        loss: Box<Loss>,
    },
}

impl Loss {
    /// The name of the kind in JSON.
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
            Loss::Shard => "shard",
            Loss::Settings { .. } => "settings",
            Loss::Answers { .. } => "answers",
            Loss::Missing { .. } => "missing",
            Loss::Surplus { .. } => "surplus",
            Loss::InShard { loss, .. } => loss.as_str(),
        }
    }

    /// A set of ids, as ranges.
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
                write!(f, "the records from LSN {} to {} are lost: ", from.0, to.0)?;
                f.write_str("messages that they put are lost, messages that they settled come again")
            }
            Loss::Shard => f.write_str("there is no file: all that it had is lost, if it ever had an owner"),
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
                write!(f, "messages of {file} are lost, as far as no other file has them; ")?;
                f.write_str("neither their ids nor their number is known")
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
            Loss::InShard { folder, loss } => write!(f, "{folder}: {loss}"),
        }
    }
}
