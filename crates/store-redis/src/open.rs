//! Opens a shard: acquires it, then reads the books. No message is read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, SystemTime};

use duewheel_core::record::{ClockPair, DecodeError, Reader};
use duewheel_core::store::{ErrorKind, Ledger, StoreError, Waker};
use duewheel_core::tally::DueCounts;
use duewheel_core::time::{EngineMs, WallMs};
use duewheel_core::{Lsn, QueueName, ShardId};
use redis::Pipeline;

use crate::books::{self, GroupReader};
use crate::keeping::Keeping;
use crate::keys::Keys;
use crate::mark::Mark;
use crate::options::Options;
use crate::reign::{self, Claimant, Fence, RedisReign};
use crate::shared::RedisShared;
use crate::wire::{Servers, Wire};
use crate::{fault, value};

/// Number of fields of one step of a scan.
const SCAN: u64 = 1_000;
/// Number of groups of one step through the list.
const GROUPS: u64 = 256;

/// An acquired shard, and its state.
pub(crate) struct AcquiredShard {
    pub(crate) shared: Arc<RedisShared>,
    /// The connection that renews the lease.
    pub(crate) control: Wire,
    pub(crate) ledger: Ledger,
    /// Size of the list in bytes.
    pub(crate) tail: usize,
    /// Queues of the last checkpoint that no longer exist: the next one must delete them.
    pub(crate) gone: Vec<QueueName>,
    /// The largest body that the master accepts.
    pub(crate) max_body_bytes: usize,
}

/// Acquires a shard and reads what its owner needs.
pub(crate) async fn open(
    servers: Servers,
    shard: ShardId,
    claimant: Claimant,
    waker: Waker,
) -> Result<AcquiredShard, StoreError> {
    let options = Arc::clone(&servers.0);
    let keys = Keys::new(&options.prefix, shard);
    let slots = servers.slots().await?;
    let master = slots.master_of(&keys.owner)?;
    let connected = tokio::join!(servers.connect(master), servers.connect(master));
    let (wire, control) = (Wire::new(connected.0?), Wire::new(connected.1?));
    let room = options.remembered.memory_of(master);
    let landed = room.landed();
    let (used, max) = memory(&control).await?;
    room.note(used, max, landed);
    let keeping = Keeping::ask(&control).await?;
    room.note_keeping(&keeping);
    check_types(&control, &keys).await?;
    let (reign, asked) = reign::acquire(&control, &keys, &claimant, &options).await?;
    let fence = Fence::new(asked, options.lease);
    let found = tokio::select! {
        found = read(&wire, &keys) => found,
        // Many books may have to be read.
        error = keep(&control, &keys, &reign, &fence, options.lease) => Err(error),
    };
    let LoadedBooks { mut ledger, marks, tail, gone } = match found {
        Ok(found) => found,
        Err(error) => {
            reign::ended(&reign.incarnation);
            let mut give_back = Pipeline::new();
            give_back.add_command(reign::renewal(&keys, &reign, std::time::Duration::ZERO));
            let _ = control.call(give_back).await; // or it runs out
            return Err(error);
        }
    };
    if let Some(clock) = ledger.clock() {
        let own = options.remembered.clock_of(&keys, &reign.before).and_then(|of| of.engine());
        let clock = match (own, reign.noted_ago) {
            // The last owner was this process, so its own clock is the most exact.
            (Some(engine), _) => {
                let wall = wall_of(SystemTime::now()).0;
                ClockPair {
                    wall: WallMs(wall.saturating_sub(engine.0.saturating_sub(clock.engine.0))),
                    ..clock
                }
            }
            (None, Some(ago)) => noted(&options, &keys, clock, ago, reign.taken),
            (None, None) => clock,
        };
        ledger.note_clock(clock);
    }
    let applied = ledger.applied();
    let shared = RedisShared::new(
        servers,
        keys,
        (reign, fence),
        (wire, room, keeping.replicas),
        waker,
        applied,
        marks,
    );
    Ok(AcquiredShard {
        shared: Arc::new(shared),
        control,
        ledger,
        tail,
        gone,
        max_body_bytes: keeping.max_body_bytes(),
    })
}

/// Checks the types of the keys: a key that another program uses would let a group be applied in part.
async fn check_types(wire: &Wire, keys: &Keys) -> Result<(), StoreError> {
    let mut ask = Pipeline::new();
    for (key, _) in keys.types() {
        ask.cmd("TYPE").arg(key);
    }
    let replies = wire.call(ask).await?;
    for ((key, should), reply) in keys.types().into_iter().zip(replies) {
        let is = value::text(reply, "TYPE")?.unwrap_or_default();
        if is != should && is != "none" {
            return Err(fault::damaged(key, "", &format!("it is a {is}, and should be a {should}")));
        }
    }
    Ok(())
}

/// The clocks as another process recorded them, with the wall clock adjusted to this node's. The time since then is the
/// smaller of the difference by the server's clock and the difference by the wall clocks of the two nodes: either may
/// have been stepped, and nothing must be early. It is rounded so that the result is never too long.
fn noted(options: &Options, keys: &Keys, clock: ClockPair, ago: Duration, taken: SystemTime) -> ClockPair {
    let wall = wall_of(taken);
    let ago = reign::millis(ago);
    let by_wall = wall.0.saturating_sub(2).saturating_sub(clock.wall.0);
    if ago.abs_diff(by_wall) > reign::millis(options.lease) {
        options.remembered.disagreements(keys).fetch_add(1, SeqCst);
        tracing::warn!(
            shard = keys.tag(),
            by_redis_ms = ago,
            by_wall_clock_ms = by_wall,
            "Redis' clock and this node's disagree about how long a shard was without an owner; the shorter time counts"
        );
    }
    ClockPair { wall: WallMs(wall.0.saturating_sub(ago.min(by_wall))), ..clock }
}

/// The wall clock, rounded up, and one ms more for the delay of a reading.
fn wall_of(time: SystemTime) -> WallMs {
    WallMs(WallMs::from_system_time_up(time).0.saturating_add(1))
}

/// Renews the lease until another owner has the shard.
async fn keep(
    control: &Wire,
    keys: &Keys,
    reign: &RedisReign,
    fence: &Fence,
    lease: std::time::Duration,
) -> StoreError {
    loop {
        tokio::time::sleep(lease / 3).await;
        let asked = reign::boot_ms();
        let mut ask = Pipeline::new();
        ask.add_command(reign::renewal(keys, reign, lease));
        let renewed = match control.call(ask).await {
            Ok(reply) => value::some(reply.into_iter().next(), "renew").and_then(reign::judge),
            Err(failure) => Err(failure.error),
        };
        match renewed {
            Ok(()) => fence.renewed(asked),
            Err(error) => return error,
        }
    }
}

/// The used and the largest memory; refuses a server that evicts keys.
pub(crate) async fn memory(wire: &Wire) -> Result<(u64, u64), StoreError> {
    let mut ask = Pipeline::new();
    ask.cmd("INFO").arg("memory");
    let reply = value::some(wire.call(ask).await?.into_iter().next(), "INFO")?;
    read_memory(reply)
}

/// Reads the reply of `INFO memory`.
pub(crate) fn read_memory(reply: redis::Value) -> Result<(u64, u64), StoreError> {
    let info = value::some(value::text(reply, "INFO")?, "INFO")?;
    let number = |field| value::info(&info, field).and_then(|n| n.parse().ok()).unwrap_or(0);
    let (used, max) = (number("used_memory"), number("maxmemory"));
    let policy = value::info(&info, "maxmemory_policy").unwrap_or("noeviction");
    if max > 0 && policy.starts_with("allkeys") {
        let what = format_args!("maxmemory-policy is {policy}: it would throw messages away; set noeviction")
            .to_string();
        return Err(StoreError::new(ErrorKind::Corrupt, what));
    }
    Ok((used, max))
}

struct LoadedBooks {
    ledger: Ledger,
    marks: BTreeMap<QueueName, Mark>,
    tail: usize,
    gone: Vec<QueueName>,
}

async fn read(wire: &Wire, keys: &Keys) -> Result<LoadedBooks, StoreError> {
    let mut ask = Pipeline::new();
    let fields = ["lsn", "engine", "wall", "books", "next_id", "due"];
    ask.cmd("HMGET").arg(&keys.head).arg(&fields);
    let of = "HMGET";
    let reply = value::some(wire.call(ask).await?.into_iter().next(), of)?;
    let head = value::bytes_list(reply, of)?;
    let bad = |field: &'static str| fault::damaged(&keys.head, field, "it is not a number");
    let number = |at: usize| -> Result<Option<u64>, StoreError> {
        let Some(Some(text)) = head.get(at) else { return Ok(None) };
        let n = std::str::from_utf8(text).ok().and_then(|n| n.parse().ok());
        n.map(Some).ok_or_else(|| bad(fields[at]))
    };
    let lsn = Lsn(number(0)?.ok_or_else(|| bad("lsn"))?);
    let clock = match (number(1)?, number(2)?) {
        (Some(engine), Some(wall)) => Some(ClockPair { engine: EngineMs(engine), wall: WallMs(wall) }),
        _ => None,
    };
    let due = match head.get(5) {
        Some(Some(blob)) => due(blob.clone()).map_err(|e| fault::undecodable(&keys.head, "due", e))?,
        _ => DueCounts::default(),
    };
    let mut ledger = Ledger::resume(Lsn(number(3)?.unwrap_or(0)), number(4)?.unwrap_or(1), None, due);

    let mut gone = Vec::new();
    for (name, blob) in scan(wire, &keys.books).await? {
        let shown = String::from_utf8_lossy(&name).into_owned();
        let name = queue_name(&keys.books, &name)?;
        gone.push(name.clone());
        let row = books::read_blob(name, blob);
        ledger.restore(row.map_err(|error| fault::undecodable(&keys.books, shown, error))?);
    }
    let (mut reader, mut from, mut tail) = (GroupReader::default(), 0u64, 0);
    loop {
        let mut ask = Pipeline::new();
        ask.cmd("LRANGE").arg(&keys.tail).arg(from).arg(from + GROUPS - 1);
        let reply = value::some(wire.call(ask).await?.into_iter().next(), "LRANGE")?;
        let groups = value::bytes_list(reply, "LRANGE")?;
        let last = (groups.len() as u64) < GROUPS;
        for (at, group) in (from..).zip(groups.into_iter().flatten()) {
            tail += group.len();
            let heads = reader.read(group).map_err(|e| fault::undecodable(&keys.tail, at, e))?;
            if heads.first != ledger.applied().next() {
                return Err(fault::damaged(&keys.tail, at, "it does not follow the one before"));
            }
            heads.apply_to(&mut ledger);
        }
        from += GROUPS;
        if last {
            break;
        }
    }
    if ledger.applied() != lsn {
        let what = format!("the books end at {:?}, the head at {lsn:?}", ledger.applied());
        return Err(fault::damaged(&keys.tail, "", &what));
    }
    if let Some(clock) = clock {
        ledger.note_clock(clock);
    }
    let mut marks = BTreeMap::new();
    for (name, text) in scan(wire, &keys.purges).await? {
        let queue = queue_name(&keys.purges, &name)?;
        let mark = Mark::read(&text).map_err(|what| fault::damaged(&keys.purges, &queue, what))?;
        marks.insert(queue, mark);
    }
    gone.retain(|name| ledger.row(name).is_none());
    Ok(LoadedBooks { ledger, marks, tail, gone })
}

fn due(blob: Vec<u8>) -> Result<DueCounts, DecodeError> {
    DueCounts::decode(&mut Reader::new(blob.into()))
}

fn queue_name(key: &str, name: &[u8]) -> Result<QueueName, StoreError> {
    let text = std::str::from_utf8(name).ok();
    text.and_then(|text| QueueName::stored(text).ok())
        .ok_or_else(|| fault::damaged(key, String::from_utf8_lossy(name), "it is not the name of a queue"))
}

/// Reads all fields of a hash that is not changed meanwhile.
async fn scan(wire: &Wire, key: &str) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, StoreError> {
    let (mut fields, mut cursor) = (BTreeMap::new(), b"0".to_vec());
    loop {
        let mut ask = Pipeline::new();
        ask.cmd("HSCAN").arg(key).arg(&cursor).arg("COUNT").arg(SCAN);
        let of = "HSCAN";
        let reply = value::some(wire.call(ask).await?.into_iter().next(), of)?;
        let mut parts = value::list(reply, of)?.into_iter();
        let mut next = || value::some(parts.next(), of);
        cursor = value::some(value::bytes(next()?, of)?, of)?;
        fields.extend(value::pairs(next()?, of)?);
        if cursor == b"0" {
            return Ok(fields);
        }
    }
}
