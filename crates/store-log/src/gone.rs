//! Subtracts from runs the rows that newer tables have removed.

use std::sync::Arc;

use duewheel_core::MessageId;
use duewheel_core::store::{ErrorKind, StoreError};
use roaring::RoaringTreemap;

use crate::fault::ReadFault;
use crate::mem::Mem;
use crate::run::Mask;
use crate::view::LiveRun;

/// The runs without the rows that these tables remove. Rows that they change stay, because the rest of these messages
/// is in the runs alone.
pub(crate) fn without_gone(parts: &[LiveRun], tables: &[Arc<Mem>]) -> Result<Vec<LiveRun>, ReadFault> {
    let mut parts = parts.to_vec();
    for mem in tables {
        take_away(&mut parts, mem, sorted(mem.ids().filter(|id| mem.is_gone(MessageId(*id))))?);
    }
    Ok(parts)
}

/// A set of the ids, which are in ascending order.
pub(crate) fn sorted(ids: impl Iterator<Item = u64>) -> Result<RoaringTreemap, ReadFault> {
    let ids = RoaringTreemap::from_sorted_iter(ids);
    Ok(ids.map_err(|_| StoreError::new(ErrorKind::Unavailable, "ids are out of order"))?)
}

/// Removes ids from the parts, and the rows that the table's purges took.
pub(crate) fn take_away(parts: &mut [LiveRun], mem: &Mem, ids: RoaringTreemap) {
    for part in parts {
        let removed = &part.live.ids & &ids;
        if !removed.is_empty() {
            let weight = removed.iter().map(|id| mem.weight_before(MessageId(id))).sum();
            Arc::make_mut(&mut part.live).take(&removed, weight);
        }
        for (queue, purge) in mem.purges() {
            if let Some(no) = part.run.queue_no(queue) {
                let live = Arc::make_mut(&mut part.live);
                // The kept ids that are in this run: each id is in one run, and is stored once.
                let keep = purge.keep.iter().filter(|id| live.may_have(*id)).collect();
                live.mask(no, Mask { before: purge.before, keep });
            }
        }
    }
}
