//! New messages per second, beside the usual home-made queue on the same server: a script for each message, pipelined.
//!
//! `cargo run --release -p duewheel-store-redis --example enqueue -- [messages]`. Starts a server of its own with
//! `appendfsync everysec`. The server's processor time per message is printed, too: with one server that is what ends
//! first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use duewheel_core::id::{Epoch, LeaseToken, SessionId};
use duewheel_core::message::{Kind, Lease, Life, MessageContent};
use duewheel_core::record::{ClockPair, Gone, Group, Record, Was};
use duewheel_core::store::Store;
use duewheel_core::time::{Due, EngineMs, WallMs};
use duewheel_core::{Key, Lsn, MessageId, QueueName, ShardId};
use duewheel_redis_rig::{Appendonly, Redis, Settings};
use duewheel_store_medium::MediumStore;
use duewheel_store_redis::Options;

const GROUP: u64 = 1_000;
const BODY: &[u8] = &[b'x'; 150];
const ROUNDS: usize = 3;

type Failed = Box<dyn std::error::Error>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keyed {
    No,
    Yes,
}

fn main() -> Result<(), Failed> {
    let messages = std::env::args().nth(1).map_or(Ok(200_000), |n| n.parse::<u64>())?;
    let redis = Redis::start(Settings { appendonly: Appendonly::EverySecond, ..Settings::default() })?;
    println!("{messages} messages of {} bytes, {GROUP} in a group or pipeline", BODY.len());
    println!("{:>26} {:>12} {:>14} {:>12}", "", "messages/s", "server µs each", "bytes each");
    for _ in 0..ROUNDS {
        for (name, keyed) in [("duewheel", Keyed::No), ("duewheel, with keys", Keyed::Yes)] {
            ours(&redis, name, messages, keyed)?;
        }
        redis.command(&["FLUSHALL", "SYNC"])?;
        measure(&redis, "script for each message", messages, || home_made(&redis, messages))?;
    }
    Ok(())
}

fn measure(
    redis: &Redis,
    name: &str,
    messages: u64,
    run: impl FnOnce() -> Result<Duration, Failed>,
) -> Result<(), Failed> {
    let before = cpu(redis)?;
    let took = run()?;
    #[allow(clippy::cast_precision_loss)] // figures for people
    let each = |what: f64| what / messages as f64;
    let cpu = each((cpu(redis)? - before) * 1e6);
    // All that is there, of so many messages.
    let bytes = each(field(redis, "memory", "used_memory")? - 1.0e6);
    println!("{name:>26} {:>12.0} {cpu:>14.2} {bytes:>12.0}", 1.0 / each(took.as_secs_f64()));
    Ok(())
}

fn field(redis: &Redis, section: &str, name: &str) -> Result<f64, Failed> {
    let info = redis.command(&["INFO", section])?.text().unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(line.unwrap_or("0").trim().parse()?)
}

/// Seconds of the server's processor, without the thread that syncs.
fn cpu(redis: &Redis) -> Result<f64, Failed> {
    Ok(field(redis, "cpu", "used_cpu_user_main_thread")? + field(redis, "cpu", "used_cpu_sys_main_thread")?)
}

/// New messages, then a grant of each, then an ack of each.
fn ours(redis: &Redis, name: &str, messages: u64, keyed: Keyed) -> Result<(), Failed> {
    redis.command(&["FLUSHALL", "SYNC"])?;
    let mut store = duewheel_store_redis::open(&Options::parse(&redis.url(0))?, ShardId(0), Arc::new(|| {}))?;
    let Lsn(next) = store.recovered().next_lsn;
    let queue = QueueName::new("close-review")?;
    let put = |id| put(&queue, id, keyed);
    let was = |id, kind| Was {
        queue: queue.clone(),
        kind,
        due: due(id),
        weight: BODY.len() as u64,
        detail: 0,
        past: 0,
        unweighed: 0,
    };
    let grant = |id| {
        let token = LeaseToken { epoch: Epoch(1), counter: id };
        let (until, granted_at) = (EngineMs(4_000_000), WallMs(1_763_740_800_000));
        let lease = Lease { token, until, session: SessionId::NONE, granted_at };
        Ok(Record::Granted { id: MessageId(id), attempt: 1, lease, was: was(id, Kind::Waiting) })
    };
    let ack = |id| Ok(Record::Removed { id: MessageId(id), why: Gone::Acked, was: was(id, Kind::Leased) });
    let mut from = next;
    for (what, record) in
        [("", &put as &dyn Fn(u64) -> Result<Record, Failed>), (": a grant", &grant), (": an ack", &ack)]
    {
        let groups: Vec<Group> = (0..messages / GROUP)
            .map(|n| {
                let records = (1..=GROUP).map(|i| record(n * GROUP + i)).collect::<Result<_, _>>()?;
                let first = Lsn(from + n * GROUP);
                Ok(Group { first, clock: ClockPair::default(), records })
            })
            .collect::<Result<_, Failed>>()?;
        from += messages;
        let name = format!("{name}{what}");
        measure(redis, &name, messages, || append(&mut store, &groups))?;
    }
    Ok(())
}

fn append(store: &mut MediumStore, groups: &[Group]) -> Result<Duration, Failed> {
    let start = Instant::now();
    for group in groups {
        store.append(group)?;
    }
    let last = groups.last().map_or(Lsn(0), Group::last);
    while store.progress()?.durable < last {
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(start.elapsed())
}

fn due(id: u64) -> Due {
    Due::After(EngineMs(3_600_000 + id * 7_919 % 1_000_000))
}

fn put(queue: &QueueName, id: u64, keyed: Keyed) -> Result<Record, Failed> {
    let key = match keyed {
        Keyed::No => None,
        Keyed::Yes => Some(Key::new(&format!("order-{id}"))?),
    };
    let message = MessageContent {
        dedupe_id: None,
        id: MessageId(id),
        queue: queue.clone(),
        key,
        body: Bytes::from_static(BODY),
        headers: Vec::new(),
        options: duewheel_core::message::Options::default(),
        enqueued_at: WallMs(1_763_740_800_000),
    };
    let life = Life::new(due(id), None);
    Ok(Record::Put { message: Arc::new(message), life, was: None })
}

fn home_made(redis: &Redis, messages: u64) -> Result<Duration, Failed> {
    let client = redis::Client::open(redis.url(0))?;
    let mut connection = client.get_connection()?;
    let script =
        "redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])";
    let hash: String = redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut connection)?;
    let start = Instant::now();
    for n in 0..messages / GROUP {
        let mut pipe = redis::pipe();
        for i in 0..GROUP {
            let id = 1 + n * GROUP + i;
            let due = 1_763_740_800_000 + id * 7_919 % 1_000_000;
            pipe.cmd("EVALSHA").arg(&hash).arg(2).arg("jobs").arg("due").arg(id).arg(BODY).arg(due).ignore();
        }
        pipe.exec(&mut connection)?;
    }
    Ok(start.elapsed())
}
