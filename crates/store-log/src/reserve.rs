//! The disk space that must stay free, so that the data in memory can be written.
//!
//! | data | source of its space |
//! |---|---|
//! | the run of the next flush: rows, bodies that are written again, indexes, and the temporary space for sorting these | counted as free space ([`DiskReserve::wanted`]): new messages are refused before it is used up |
//! | the next group, which becomes a part of that run | the same ([`cushion`]) |
//! | the next state file and the next manifest | the file `RESERVE`, which is given up for them and made again |
//! | acks, cancels, purges | the ballast of the journal ([`crate::journal::preparer`]) |
//!
//! So a flush that only contains removals needs no free space at all.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use duewheel_core::store::StoreError;

use crate::disk::{Disk, FileAccess, allocate_if_possible};
use crate::fault::failed;
use crate::folder::{RESERVE, RESERVE_BYTES};
use crate::mem::Mem;
use crate::options::Options;

/// Bytes of a run besides its messages: its head, its footer, its list of queues. The cushion includes them.
pub(crate) const RUN: u64 = 2048;
/// Largest size of a queue in the state file in bytes, without its histogram.
const QUEUE: u64 = 512;
/// Largest number of bytes that a record adds to the state file: a column of a histogram, or a removed id of a run.
const RECORD: u64 = 12;
/// Largest number of bytes that an id which a purge keeps adds to the state file. It is in the entry of one run.
const KEPT: u64 = 8;
/// The reserve grows in steps of this size.
const STEP: u64 = 64 * 1024;

/// Largest size of the flush of a memtable in bytes, besides the present state file.
pub(crate) fn of_table(mem: &Mem) -> u64 {
    mem.extent().most + of_state(mem)
}

/// Largest number of bytes that the flush of a memtable adds to the state file.
pub(crate) fn of_state(mem: &Mem) -> u64 {
    mem.queues().len() as u64 * QUEUE + mem.records() * RECORD + mem.kept() * KEPT
}

/// Largest number of bytes that the memtables gain before the owner asks for room again, in the form in which a flush
/// writes them.
pub(crate) fn cushion(options: &Options) -> u64 {
    2 * options.max_group_bytes
}

/// Disk space that is reserved, and its purposes.
#[derive(Debug)]
pub(crate) struct DiskReserve {
    /// Largest size of the flushes of all memtables, in bytes.
    pub(crate) to_flush: AtomicU64,
    /// Bytes that the present flush has written.
    pub(crate) flushing: AtomicU64,
    /// Bytes of the files of the state: one with all of it has no more.
    pub(crate) state_bytes: AtomicU64,
    /// Bytes reserved for the next one.
    pub(crate) reserved: AtomicU64,
}

impl DiskReserve {
    /// With a state of so many bytes.
    pub(crate) fn new(state_bytes: u64) -> Self {
        DiskReserve {
            to_flush: AtomicU64::new(0),
            flushing: AtomicU64::new(0),
            state_bytes: AtomicU64::new(state_bytes),
            reserved: AtomicU64::new(0),
        }
    }

    /// Bytes that must be free for all data in memory and for the next group.
    pub(crate) fn wanted(&self, options: &Options) -> u64 {
        // The bytes that a running flush has written are not free any more, and need not be.
        let tables = self.to_flush.load(Relaxed).saturating_sub(self.flushing.load(Relaxed));
        tables.saturating_add(self.beside()).saturating_add(cushion(options))
    }

    /// Bytes that a flush may take.
    pub(crate) fn free_for_flush(&self, disk: &dyn Disk) -> io::Result<u64> {
        Ok(disk.free_bytes()?.saturating_sub(self.beside()))
    }

    /// Bytes that the reserve lacks to take the present state file.
    fn beside(&self) -> u64 {
        self.state_bytes.load(Relaxed).saturating_sub(self.reserved.load(Relaxed))
    }

    /// Reserves blocks for the next state file and the next manifest.
    pub(crate) fn keep(&self, disk: &dyn Disk) -> Result<(), StoreError> {
        if disk.allocates_zeros() {
            return Ok(()); // nothing can be set aside there
        }
        let state = self.state_bytes.load(Relaxed);
        // The smallest part of it is for the manifest.
        let wanted = if state > RESERVE_BYTES / 2 {
            RESERVE_BYTES + state.next_multiple_of(STEP)
        } else {
            RESERVE_BYTES
        };
        let there = match disk.open(RESERVE, FileAccess::Read) {
            Ok(file) => file.size().unwrap_or(0),
            Err(_) => 0,
        };
        self.reserved.store(there.saturating_sub(RESERVE_BYTES / 2), Relaxed);
        if there >= wanted {
            return Ok(());
        }
        // Existing blocks are not given up if the larger reserve would not fit.
        if there > 0 && disk.free_bytes().is_ok_and(|free| free.saturating_add(there) < wanted + STEP) {
            return Ok(());
        }
        let _ = disk.remove(RESERVE); // or it is not there
        self.reserved.store(0, Relaxed);
        let file = disk.create(RESERVE).map_err(failed("create", RESERVE))?;
        let zeros = vec![0; 64 * 1024];
        let mut kept = allocate_if_possible(&*file, wanted).map(drop);
        let mut at = 0;
        while kept.is_ok() && at < wanted {
            kept = file.write_at(&zeros, at);
            at += zeros.len() as u64;
        }
        if let Err(error) = kept {
            let _ = disk.remove(RESERVE);
            return Err(failed("allocate", RESERVE)(error));
        }
        self.reserved.store(wanted - RESERVE_BYTES / 2, Relaxed);
        Ok(())
    }

    /// Gives up the reserve for its purpose. Returns false if there is none.
    pub(crate) fn give_up(&self, disk: &dyn Disk) -> bool {
        self.reserved.store(0, Relaxed);
        disk.remove(RESERVE).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use duewheel_core::hash_key::HashKey;
    use duewheel_core::record::{Record, Writer};
    use duewheel_core::{MessageId, QueueName};

    use super::*;
    use crate::run::hash::NameHasher;

    /// Story: a purge was one record of 12 bytes, but added each id that it kept to the state file.
    #[test]
    fn reserve_covers_ids_kept_by_purge() {
        let mut mem = Mem::unused(NameHasher::new(HashKey::seeded(1)));
        let mut of_kept = |ids: u64| {
            let keep: Vec<_> = (0..ids).map(|n| MessageId(n << 40)).collect();
            let queue = QueueName::new("orders").unwrap();
            let purged = Record::Purged { queue, keep: keep.into(), before: MessageId(1 << 52), purged: 1 };
            let mut writer = Writer::default();
            writer.record(&purged);
            mem.push(&purged, &writer.bytes).unwrap();
            of_state(&mem)
        };
        let none = of_kept(0);
        let many = of_kept(1_000);
        // As the state writes them: differences of 2^40 take six bytes.
        assert!(many >= none + 6 * 1_000, "{many} bytes, without them {none}");
        // The later purge of a queue replaces an earlier one.
        assert_eq!(of_kept(1), many - 999 * KEPT + RECORD);
    }
}
