//! The cost in Redis of the parts that a message may consist of, written 1000 at a time in one transaction: a lower
//! bound for any store on Redis.

use std::io;
use std::time::{Duration, Instant};

use duewheel_judge::rng::scatter;
use duewheel_redis_rig::{Redis, Value};

const GROUP: u64 = 1_000;
const HOUR_MS: u64 = 3_600_000;
const PATIENCE: Duration = Duration::from_secs(10);

/// The parts that are written of each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parts {
    /// All messages of a group in one value, appended to a list.
    Blob,
    /// A field of a hash.
    Field,
    /// A field, and a member of this number of sorted sets, at random positions.
    FieldAndSets(usize),
}

/// Writes this number of messages.
pub(crate) fn write(redis: &Redis, parts: Parts, count: u64, body: usize) -> io::Result<Duration> {
    let mut wire = redis.connect(PATIENCE)?;
    let words = |words: &[&str]| -> Vec<Vec<u8>> { words.iter().map(|w| w.as_bytes().to_vec()).collect() };
    let body = vec![b'x'; body];
    let mut took = Duration::ZERO;
    for first in (0..count).step_by(usize::try_from(GROUP).unwrap_or(1)) {
        let numbers = first..first + GROUP;
        let mut commands = vec![words(&["MULTI"])];
        if parts == Parts::Blob {
            let mut append = words(&["RPUSH", "groups"]);
            append.push(numbers.clone().flat_map(|_| body.iter().copied()).collect());
            commands.push(append);
        } else {
            let mut fields = words(&["HSET", "bodies"]);
            fields.extend(numbers.clone().flat_map(|n| [n.to_string().into_bytes(), body.clone()]));
            commands.push(fields);
        }
        if let Parts::FieldAndSets(sets) = parts {
            for set in 0..sets {
                let mut members = words(&["ZADD", &format!("due{set}")]);
                let member = |n: u64| [(scatter(n) % HOUR_MS).to_string(), n.to_string()];
                members.extend(numbers.clone().flat_map(member).map(String::into_bytes));
                commands.push(members);
            }
        }
        commands.push(words(&["EXEC"]));
        let began = Instant::now();
        wire.send(&commands)?;
        for _ in &commands {
            if let Value::Error(error) = wire.read()? {
                return Err(io::Error::other(error));
            }
        }
        took += began.elapsed();
    }
    Ok(took)
}
