//! The names of a shard's keys in Redis. `docs/redis.md` describes them.

use duewheel_core::time::Class;
use duewheel_core::{QueueName, ShardId};

/// The names of a shard's keys: all have the same hash tag, so all are in one slot.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    tag: String,
    /// The owner of the shard, and the end of its lease.
    pub(crate) owner: String,
    /// Its position, clocks and ids.
    pub(crate) head: String,
    /// id → the message as it was enqueued.
    pub(crate) messages: String,
    /// id → its life, if it has changed.
    pub(crate) lives: String,
    /// id → its lease.
    pub(crate) leases: String,
    /// Leased messages, the score is the deadline; all queues.
    pub(crate) leased: String,
    /// Dead messages, by the instant they were due at; all queues.
    pub(crate) held_at: String,
    /// Dead messages, by the engine time they were due at; all queues.
    pub(crate) held_after: String,
    /// `queue id` → remembered answer.
    pub(crate) answers: String,
    /// The same names; the score is the time at which they are deleted.
    pub(crate) answer_ends: String,
    /// queue → settings, pause, totals, tally.
    pub(crate) books: String,
    /// The changes of the books since their last checkpoint.
    pub(crate) tail: String,
    /// queue → its last purge, until the sweep has deleted the messages.
    pub(crate) purges: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str, shard: ShardId) -> Self {
        let tag = format!("{{{prefix}:{shard}}}:");
        let key = |name: &str| format!("{tag}{name}");
        Keys {
            owner: key("owner"),
            head: key("head"),
            messages: key("messages"),
            lives: key("lives"),
            leases: key("leases"),
            leased: key("leased"),
            held_at: key("held:at"),
            held_after: key("held:after"),
            answers: key("answers"),
            answer_ends: key("answers:ends"),
            books: key("books"),
            tail: key("tail"),
            purges: key("purges"),
            tag,
        }
    }

    /// The common prefix of all keys.
    pub(crate) fn tag(&self) -> &str {
        &self.tag
    }

    /// The keys that exist once, and their types.
    pub(crate) fn types(&self) -> [(&str, &'static str); 13] {
        [
            (&self.owner, "hash"),
            (&self.head, "hash"),
            (&self.messages, "hash"),
            (&self.lives, "hash"),
            (&self.leases, "hash"),
            (&self.answers, "hash"),
            (&self.books, "hash"),
            (&self.purges, "hash"),
            (&self.leased, "zset"),
            (&self.held_at, "zset"),
            (&self.held_after, "zset"),
            (&self.answer_ends, "zset"),
            (&self.tail, "list"),
        ]
    }

    /// The dead messages of a queue, in the order of their deaths.
    pub(crate) fn dead(&self, queue: &QueueName) -> String {
        format!("{}dead:{queue}", self.tag)
    }

    /// Messages of a queue by due time, not dead, that were enqueued one by one.
    pub(crate) fn singles(&self, class: Class, queue: &QueueName) -> String {
        format!("{}{}:{queue}", self.tag, word(class))
    }

    /// The spans of a queue that have a list.
    pub(crate) fn spans(&self, class: Class, queue: &QueueName) -> String {
        format!("{}{}-spans:{queue}", self.tag, word(class))
    }

    /// Start of a span → the number of messages that are in its list alone.
    pub(crate) fn live(&self, class: Class, queue: &QueueName) -> String {
        format!("{}{}-live:{queue}", self.tag, word(class))
    }

    /// The prefix of the keys of lists; the start of the span follows, and the queue.
    pub(crate) fn lists(&self, class: Class) -> String {
        format!("{}{}-span:", self.tag, word(class))
    }

    /// The list of a span: positions of messages that were enqueued many at a time.
    pub(crate) fn list(&self, class: Class, start: u64, queue: &QueueName) -> String {
        format!("{}{start}:{queue}", self.lists(class))
    }

    /// key → id of the message that holds it.
    pub(crate) fn held_keys(&self, queue: &QueueName) -> String {
        format!("{}key:{queue}", self.tag)
    }

    /// `key id` of the dead messages that have one.
    pub(crate) fn dead_keys(&self, queue: &QueueName) -> String {
        format!("{}deadkey:{queue}", self.tag)
    }
}

fn word(class: Class) -> &'static str {
    match class {
        Class::At => "at",
        Class::After => "after",
    }
}
