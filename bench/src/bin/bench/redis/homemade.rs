//! The usual home-made queue, written as well as possible: a hash of bodies, a sorted set by due time, a sorted set of
//! messages in progress, and three scripts. Delivery is at least once: a message that is not acked in time is due
//! again.
//!
//! | key | |
//! |---|---|
//! | `queue:bodies` | hash: the caller's own id to the body; an id is there once |
//! | `queue:due` | sorted set: id by the instant in ms |
//! | `queue:taken` | sorted set: id by the instant at which it is due again |
//!
//! It has fewer features than duewheel: no priorities, attempts, dead letters, waiting, or leases with tokens (a late
//! consumer acks the message of another one).

use std::io;
use std::time::Duration;

use duewheel_redis_rig::{Redis, Value};

use crate::redis::resp;

const BODIES: &[u8] = b"queue:bodies";
const DUE: &[u8] = b"queue:due";
const TAKEN: &[u8] = b"queue:taken";

/// The largest number of messages of a poll.
pub(crate) const CLAIM: usize = 1_000;
const TAKEN_FOR_MS: u64 = 60_000;

/// Takes triples of id, instant and body; returns the number of new ones.
const ENQUEUE: &str = "
local due = {}
for i = 1, #ARGV, 3 do
  if redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 2]) == 1 then
    due[#due + 1] = ARGV[i + 1]
    due[#due + 1] = ARGV[i]
  end
end
if #due > 0 then redis.call('ZADD', KEYS[2], unpack(due)) end
return #due / 2";

/// Enqueues one message, without a loop and a table.
const ENQUEUE_ONE: &str = "
if redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[3]) == 0 then return 0 end
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
return 1";

/// Takes the present time, a number, and the time at which messages are due again: moves due messages, and returns
/// their ids and bodies.
const POLL: &str = "
local late = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', ARGV[1], 'LIMIT', 0, 100)
for _, id in ipairs(late) do
  redis.call('ZREM', KEYS[3], id)
  redis.call('ZADD', KEYS[2], ARGV[1], id)
end
local ids = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
if #ids == 0 then return {} end
local taken = {}
for i, id in ipairs(ids) do
  taken[2 * i - 1] = ARGV[3]
  taken[2 * i] = id
end
redis.call('ZREM', KEYS[2], unpack(ids))
redis.call('ZADD', KEYS[3], unpack(taken))
return {ids, redis.call('HMGET', KEYS[1], unpack(ids))}";

/// Takes ids: removes the messages, and returns how many were in progress.
const ACK: &str = "
local known = redis.call('ZREM', KEYS[3], unpack(ARGV))
redis.call('HDEL', KEYS[1], unpack(ARGV))
return known";

/// The scripts, as Redis calls them.
#[derive(Clone, Debug)]
pub(crate) struct Homemade {
    enqueue: Vec<u8>,
    enqueue_one: Vec<u8>,
    poll: Vec<u8>,
    ack: Vec<u8>,
}

impl Homemade {
    /// Loads the scripts.
    ///
    /// # Errors
    /// Redis refuses them.
    pub(crate) fn load(redis: &Redis) -> io::Result<Self> {
        let mut wire = redis.connect(Duration::from_secs(10))?;
        let mut sha = |script: &str| match wire.command(&["SCRIPT", "LOAD", script])? {
            Value::Bytes(sha) => Ok(sha),
            other => Err(io::Error::other(format!("a script was answered {other:?}"))),
        };
        Ok(Homemade {
            enqueue: sha(ENQUEUE)?,
            enqueue_one: sha(ENQUEUE_ONE)?,
            poll: sha(POLL)?,
            ack: sha(ACK)?,
        })
    }

    /// Appends a call that enqueues this number of messages; id, instant and body of each follow by [`push_message`].
    pub(crate) fn push_enqueue(&self, out: &mut Vec<u8>, messages: usize) {
        let script = if messages == 1 { &self.enqueue_one } else { &self.enqueue };
        resp::head(out, 5 + 3 * messages);
        for word in [b"EVALSHA", script.as_slice(), b"2", BODIES, DUE] {
            resp::push_word(out, word);
        }
    }

    /// Appends a poll.
    pub(crate) fn push_poll(&self, out: &mut Vec<u8>, now_ms: u64) {
        let [now, most, again] =
            [now_ms, CLAIM as u64, now_ms + TAKEN_FOR_MS].map(|n| n.to_string().into_bytes());
        resp::push(out, &[b"EVALSHA", &self.poll, b"3", BODIES, DUE, TAKEN, &now, &most, &again]);
    }

    /// Appends an ack of these ids.
    pub(crate) fn push_ack(&self, out: &mut Vec<u8>, ids: &[Vec<u8>]) {
        resp::head(out, 6 + ids.len());
        for word in [b"EVALSHA", self.ack.as_slice(), b"3", BODIES, DUE, TAKEN] {
            resp::push_word(out, word);
        }
        for id in ids {
            resp::push_word(out, id);
        }
    }
}

/// Appends a message of a call that enqueues.
pub(crate) fn push_message(out: &mut Vec<u8>, id: &[u8], due: &[u8], body: &[u8]) {
    for word in [id, due, body] {
        resp::push_word(out, word);
    }
}
