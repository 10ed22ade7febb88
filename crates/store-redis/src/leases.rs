//! Renews the lease of a shard, and looks at the memory and the settings of its master.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use duewheel_core::store::{ErrorKind, StoreError, Waker};
use duewheel_core::{Epoch, ShardId};
use duewheel_store_medium::{Acquired, FileKind, LeaseFence, MediumStore, boot_ms};
use redis::Pipeline;

use crate::fault;
use crate::files::RedisFiles;
use crate::keeping::{self, Keeping};
use crate::keys::{self, Keys};
use crate::memory::KEEPING;
use crate::options::Options;
use crate::owner::RedisOwner;
use crate::reign::{self, Claimant};
use crate::wire::{self, Servers, Wire};

/// Time between two checks of the server's memory when it is limited.
const MEMORY: Duration = Duration::from_millis(500);

/// Renews the lease, and ends the owner as soon as the lease is uncertain.
pub(crate) async fn keep(owner: Arc<RedisOwner>, control: Wire) {
    let lease = owner.options().lease;
    let mut control = Some(control);
    while !owner.is_over() {
        // The settings of the master are read with each renewal: an answer must not claim for long a level that no
        // longer holds.
        let most = if owner.memory.max() > 0 { MEMORY } else { KEEPING };
        let pause = (lease / 3).min(most);
        tokio::time::sleep(pause.min(Duration::from_millis(owner.fence.left()))).await;
        if owner.check().is_err() {
            return; // the lease has run out
        }
        let left = Duration::from_millis(owner.fence.left());
        match tokio::time::timeout(left, renew(&owner, &mut control)).await {
            Ok(Ok(())) => {}
            // Another owner has the shard, or an operator must act.
            Ok(Err(error)) if error.kind() != ErrorKind::Unavailable => return owner.end(error),
            Ok(Err(_)) => {
                control = None;
                tokio::time::sleep((lease / 20).min(Duration::from_millis(owner.fence.left()))).await;
            }
            Err(_) => {
                let _ = owner.check();
            }
        }
    }
}

async fn renew(owner: &RedisOwner, control: &mut Option<Wire>) -> Result<(), StoreError> {
    let wire = match control {
        Some(wire) => wire,
        None => {
            let slots = owner.servers.slots().await?;
            let connection = owner.servers.connect(slots.master_of(&owner.keys.owner)?).await?;
            control.insert(Wire::new(connection))
        }
    };
    let mut ask = Pipeline::new();
    ask.add_command(reign::renewal(&owner.keys, &owner.reign, owner.options().lease));
    ask.cmd("INFO").arg("memory");
    let asked = boot_ms();
    let landed = owner.memory.landed();
    let mut reply = wire.call(ask).await?.into_iter();
    let mut next = || fault::some(reply.next(), "renew");
    reign::judge(next()?)?;
    owner.fence.renewed(asked);
    owner.counts.renewals.fetch_add(1, SeqCst);
    if owner.memory.is_keeping_due() {
        owner.memory.note_alone(Keeping::ask(wire).await?.level());
    }
    let was_full = owner.memory.free() == 0;
    let (used, max) = keeping::read(next()?)?;
    owner.memory.note(used, max, landed);
    if (owner.memory.free() == 0) != was_full {
        owner.wake();
    }
    Ok(())
}

// Opens a shard: acquires it, then looks whether its files are all there.

/// Opens a shard for a single owner, as node `duewheel`. `waker` is called when something became durable or a page was
/// loaded. Several nodes share shards by a [`RedisCoordinator`](crate::RedisCoordinator).
///
/// A lease that cannot be renewed in time ends the store; so does a call that fails or is not answered.
///
/// # Errors
/// `Fenced` while the lease of another owner runs, `Corrupt` for an unknown format, damage, or a server that may evict keys
/// (`maxmemory-policy allkeys-…`), `Unavailable` if Redis cannot be reached
/// ([`ErrorKind`](duewheel_core::store::ErrorKind)).
///
/// # Examples
/// ```no_run
/// use std::sync::Arc;
/// use duewheel_core::ShardId;
/// use duewheel_core::store::Store;
///
/// let options = duewheel_store_redis::Options::parse("redis://127.0.0.1:6379/0")?;
/// let mut store = duewheel_store_redis::open(&options, ShardId(0), Arc::new(|| {}))?;
/// let recovered = store.recovered();
/// println!("{} queues, epoch {}", recovered.queues.len(), recovered.epoch.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn open(options: &Options, shard: ShardId, waker: Waker) -> Result<MediumStore, StoreError> {
    let alone = Claimant { node: "duewheel".into(), number: 0, advertise: "".into(), cluster: None };
    open_as(Servers(Arc::new(options.clone())), shard, alone, waker)
}

/// Opens a shard for a node.
pub(crate) fn open_as(
    servers: Servers,
    shard: ShardId,
    claimant: Claimant,
    waker: Waker,
) -> Result<MediumStore, StoreError> {
    let (shared, log) = (servers.0.shared.clone(), servers.0.log.clone());
    let (files, acquired) = acquire(servers, shard, claimant, Arc::clone(&waker))?;
    MediumStore::open(Arc::new(files), &shared, log, &acquired, waker)
}

/// Acquires a shard, without opening its store.
pub(crate) fn acquire(
    servers: Servers,
    shard: ShardId,
    claimant: Claimant,
    waker: Waker,
) -> Result<(RedisFiles, Acquired), StoreError> {
    wire::wait_for(async move {
        let shards = claimant.cluster.as_ref().map_or(1, |cluster| cluster.shards);
        let (owner, control, writes) = take(servers, shard, claimant, waker).await?;
        let reign = &owner.reign;
        let acquired = Acquired {
            shard: shard.0,
            shards,
            first_id: reign.first_id,
            tokens: reign.tokens,
            given_up: Epoch(0),
            noted_ago: reign.noted_ago,
            taken: reign.taken,
        };
        owner.add_task(tokio::spawn(keep(Arc::clone(&owner), control)));
        Ok((RedisFiles::new(owner, writes), acquired))
    })
}

/// Acquires a shard; gives the owner, the connection that renews the lease, and the number of the last write to the
/// journal.
async fn take(
    servers: Servers,
    shard: ShardId,
    claimant: Claimant,
    waker: Waker,
) -> Result<(Arc<RedisOwner>, Wire, u64), StoreError> {
    let options = Arc::clone(&servers.0);
    let keys = Keys::new(&options.prefix, shard);
    let slots = servers.slots().await?;
    let master = slots.master_of(&keys.owner)?;
    let connected = tokio::join!(servers.connect(master), servers.connect(master), servers.connect(master));
    let (journal, files, control) =
        (Wire::new(connected.0?), Wire::new(connected.1?), Wire::new(connected.2?));
    let room = options.remembered.memory_of(master);
    let landed = room.landed();
    let (used, max) = keeping::ask(&control).await?;
    room.note(used, max, landed);
    let keeping = Keeping::ask(&control).await?;
    room.note_alone(keeping.level());
    let (reign, asked) = reign::acquire(&control, &keys, &claimant, &options).await?;
    let fence = LeaseFence::new(asked, options.lease);
    let owner = Arc::new(RedisOwner::new(
        servers,
        keys,
        (reign, fence),
        (journal, files),
        (room, keeping.replicas),
        waker,
    ));
    match recover(&owner).await {
        Ok(writes) => Ok((owner, control, writes)),
        Err(error) => {
            let mut give_back = Pipeline::new();
            give_back.add_command(reign::giving_back(&owner.keys, &owner.reign, None));
            let _ = control.call(give_back).await; // or it runs out
            owner.cut();
            Err(error)
        }
    }
}

/// Removes what earlier owners have left without a name, and looks whether every file is complete: a failover in the
/// midst of a slot that moves may lose single keys.
async fn recover(owner: &RedisOwner) -> Result<u64, StoreError> {
    let keys = &owner.keys;
    let mut call = owner.fenced(keys::files(), &[&keys.files, &keys.blocks]);
    call.arg(&keys.block).arg("recover");
    owner.call(call, 0).await?;
    let mut ask = Pipeline::new();
    ask.cmd("HGET").arg(&keys.head).arg("journal");
    let reply = owner.answer(FileKind::Blob, owner.files.call(ask)).await?;
    let writes = fault::number(fault::some(reply.into_iter().next(), "HGET")?, "HGET")?;
    writes.ok_or_else(|| fault::damaged(&keys.head, "journal", "it is not there"))
}
