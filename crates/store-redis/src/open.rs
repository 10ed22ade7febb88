//! Opens a shard: acquires it, then looks whether its files are all there.

use std::sync::Arc;

use duewheel_core::store::{StoreError, Waker};
use duewheel_core::{Epoch, ShardId};
use duewheel_store_medium::{Acquired, FileKind, LeaseFence, MediumStore};
use redis::Pipeline;

use crate::files::RedisFiles;
use crate::keeping::Keeping;
use crate::keys::Keys;
use crate::options::Options;
use crate::owner::RedisOwner;
use crate::reign::{self, Claimant};
use crate::wire::{self, Servers, Wire};
use crate::{fault, leases, script, usage, value};

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
        owner.add_task(tokio::spawn(leases::keep(Arc::clone(&owner), control)));
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
    let (used, max) = usage::ask(&control).await?;
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
    let mut call = owner.fenced(script::files(), &[&keys.files, &keys.blocks]);
    call.arg(&keys.block).arg("recover");
    owner.call(call, 0).await?;
    let mut ask = Pipeline::new();
    ask.cmd("HGET").arg(&keys.head).arg("journal");
    let reply = owner.answer(FileKind::Blob, owner.files.call(ask)).await?;
    let writes = value::number(value::some(reply.into_iter().next(), "HGET")?, "HGET")?;
    writes.ok_or_else(|| fault::damaged(&keys.head, "journal", "it is not there"))
}
