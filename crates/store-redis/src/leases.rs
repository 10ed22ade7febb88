//! Renews the lease of a shard, and looks at the memory and the settings of its master.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use duewheel_core::store::{ErrorKind, StoreError};
use duewheel_store_medium::boot_ms;
use redis::Pipeline;

use crate::keeping::Keeping;
use crate::memory::KEEPING;
use crate::owner::RedisOwner;
use crate::reign;
use crate::usage;
use crate::value;
use crate::wire::Wire;

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
    let mut next = || value::some(reply.next(), "renew");
    reign::judge(next()?)?;
    owner.fence.renewed(asked);
    owner.counts.renewals.fetch_add(1, SeqCst);
    if owner.memory.is_keeping_due() {
        owner.memory.note_alone(Keeping::ask(wire).await?.level());
    }
    let was_full = owner.memory.free() == 0;
    let (used, max) = usage::read(next()?)?;
    owner.memory.note(used, max, landed);
    if (owner.memory.free() == 0) != was_full {
        owner.wake();
    }
    Ok(())
}
