//! Shows what a shard holds, and writes nothing.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duewheel_core::message::Row;
use duewheel_core::record::ClockPair;
use duewheel_core::store::{ErrorKind, Load, More, QueueRow, Sequence, StoreError, Which};
use duewheel_core::{Epoch, Lsn, QueueName};

use crate::disk::Disk;
use crate::folder::MANIFEST;
use crate::journal::{reign, replay};
use crate::load::{LoadRequest, Loader};
use crate::manifest::Manifest;
use crate::mem::Mem;
use crate::names::Interner;
use crate::readers::Readers;
use crate::view::StoreView;

/// Rows and bytes of bodies that are read at a time.
const PAGE: (usize, usize) = (1_000, 4 << 20);

/// The content of a shard when it was read.
pub struct Inspected {
    /// The epoch of its last owner.
    pub epoch: Epoch,
    /// The last record of the store.
    pub last: Lsn,
    /// The clocks as recorded last.
    pub clock: Option<ClockPair>,
    /// The queues of the store, by name.
    pub queues: Vec<QueueRow>,
    view: Arc<StoreView>,
    active: Mutex<Mem>,
}

/// Reads a shard on a disk of the caller's own: its manifest, its books and its journal; runs as they are needed.
///
/// Nothing is locked. While a server has the shard its files change, and one may be gone when it is read: then repeat the
/// call.
///
/// # Errors
/// [`ErrorKind::Corrupt`] for damage and for a folder that holds no shard, [`ErrorKind::Unavailable`] if it cannot be read.
///
/// # Examples
/// ```
/// use duewheel_store_log::disk::RealDisk;
/// use duewheel_store_log::{LogStore, Options, inspect_on};
/// use std::sync::Arc;
///
/// let dir = tempfile::tempdir()?;
/// drop(LogStore::open(dir.path(), Options::default(), Arc::new(|| {}))?);
/// let inspected = inspect_on(&RealDisk::new(dir.path()))?;
/// assert!(inspected.queues.is_empty() && inspected.rows(None, 10)?.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn inspect_on(disk: &dyn Disk) -> Result<Inspected, StoreError> {
    let nothing = || StoreError::new(ErrorKind::Corrupt, format_args!("there is no {MANIFEST}"));
    let manifest = Manifest::read(disk)?.ok_or_else(nothing)?;
    let names = Interner::default();
    let kept = reign::keep(disk, &manifest, &names, 1)?;
    let replayed = replay::replay(disk, &manifest, &kept.books, 1)?;
    let mut mem = replayed.mem;
    mem.settle();
    let (hasher, next_id) = (manifest.hasher(), replayed.ledger.next_id().0);
    let active = Mem::new(hasher, replayed.applied, (next_id, 1), replayed.ledger.clock());
    Ok(Inspected {
        epoch: replayed.epoch,
        last: replayed.applied,
        clock: replayed.ledger.clock(),
        queues: replayed.ledger.rows().collect(),
        view: Arc::new(StoreView { hasher, frozen: vec![Arc::new(mem)], parts: kept.parts }),
        active: Mutex::new(active),
    })
}

impl Inspected {
    /// Messages of one queue, or of all: first those that are due at an instant, by that, then those after a delay. In any
    /// stage, dead ones among them.
    ///
    /// # Errors
    /// See [`inspect_on`].
    pub fn rows(&self, queue: Option<&QueueName>, most: usize) -> Result<Vec<Row>, StoreError> {
        let (loader, readers) = (Loader::default(), Arc::new(Readers::default()));
        let mut rows = Vec::new();
        for sequence in [Sequence::AllAt, Sequence::AllAfter] {
            let which = queue.map_or(Which::All, |queue| Which::One(queue.clone()));
            let mut load = Load {
                ticket: 0,
                sequence,
                which,
                after: None,
                until: u64::MAX,
                rows: PAGE.0,
                bytes: PAGE.1,
            };
            while rows.len() < most {
                load.rows = PAGE.0.min(most - rows.len());
                let request =
                    LoadRequest::new(load.clone(), self.last, Arc::clone(&self.view), &mut self.active());
                let page = loader.load(&readers, request, || Arc::clone(&self.view))?;
                let page = page.loaded(std::iter::empty());
                rows.extend(page.rows);
                match page.more {
                    More::Yes => load.after = page.upto,
                    More::No => break,
                }
            }
        }
        Ok(rows)
    }

    fn active(&self) -> MutexGuard<'_, Mem> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Inspected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inspected")
            .field("epoch", &self.epoch)
            .field("last", &self.last)
            .field("queues", &self.queues.len())
            .finish_non_exhaustive()
    }
}
