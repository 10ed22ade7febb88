//! The takeover of a folder by a new owner.
//!
//! 1. The manifest is made durable as it was read. The folder is read ([`replay`]); if it is damaged the takeover ends
//!    here, and nothing has been changed.
//! 2. Files that no manifest lists are removed.
//! 3. The header of the last segment may be in the page cache only: it is written again and synced, so that it cannot
//!    be missing once a later segment is in use.
//! 4. A manifest with the new epoch lists one more segment, the one that this owner will write to: a prepared one if
//!    there is any, under a new incarnation, so that frames of an earlier attempt in it are ignored. A disk without
//!    space for one gets a small one, which takes the groups of the last segments as well, if those are few.
//! 5. The unproven groups are written into it and synced, *then* its header is written and synced. From that moment on
//!    its first LSN marks the end of the former segment.
//! 6. Segments without valid frames, or without any behind the cut, are unlisted, to be used again.
//!
//! A crash at any point leaves either the old end of the journal or the new one, and step 1 finds the same records.

use std::collections::VecDeque;
use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use duewheel_core::record::{BootAnchor, Writer};
use duewheel_core::store::{ErrorKind, Ledger, StoreError};
use duewheel_core::{Epoch, Lsn};

use super::preparer;
use super::replay::{self, Replayed, Unproven};
use super::segment::{BLOCK, Header, Prepared, Sealed};
use super::writer::Active;
use crate::disk::{Disk, DiskFile, FileAccess};
use crate::fault::{Damage, ReadFault, failed};
use crate::format::{Incarnation, JOURNAL, MANIFEST, MANIFEST_TEMP, RESERVE, RUNS, STATE};
use crate::journal::segment::{self, FrameHead};
use crate::manifest::{Manifest, SegmentEntry};
use crate::mem::Mem;
use crate::options::{Options, WorkMode};
use crate::run::opened::Interner;
use crate::run::{Live, Run};
use crate::shared::{DiskSpace, Journal};
use crate::state::{self, Lost, StateFile};
use crate::view::LiveRun;

/// A folder that has been taken over.
#[derive(Debug)]
pub(crate) struct Reign {
    pub(crate) manifest: Manifest,
    /// The books as of the last cut.
    pub(crate) books: Ledger,
    pub(crate) parts: Vec<LiveRun>,
    pub(crate) names: Interner,
    /// The records behind the cut, and the books with these in them.
    pub(crate) mem: Mem,
    pub(crate) ledger: Ledger,
    pub(crate) applied: Lsn,
    pub(crate) anchor: Option<BootAnchor>,
    pub(crate) active: Active,
    pub(crate) journal: Journal,
    /// Whether the last owner closed the folder.
    pub(crate) was_closed: bool,
}

/// Takes over a folder. The caller has its lock.
pub(crate) fn begin(disk: &dyn Disk, options: &Options) -> Result<Reign, StoreError> {
    disk.make_dirs(&[JOURNAL, RUNS, STATE]).map_err(failed("make the folders of", ""))?;
    let old = match Manifest::read(disk)? {
        Some(manifest) => {
            // The former owner may have been killed between renaming the manifest and making the name durable. Files
            // that it does not list are removed below, and an older manifest, which a power loss could bring back, may
            // list only those.
            disk.sync_dir("").map_err(failed("sync the names of", ""))?;
            manifest
        }
        None => start_folder(disk)?,
    };
    let names = Interner::default();
    let threads = match options.workers {
        WorkMode::Threads => 1 + options.readers,
        WorkMode::ByHand => 1,
    };
    let Kept { books, parts } = keep(disk, &old, &names, threads)?;
    let mut replayed = replay::replay(disk, &old, &books, options.id_step)?;
    let was_closed = old.is_closed;
    remove_unlisted(disk, &old)?;
    if let Some((entry, header)) = replayed.doubtful_header() {
        write_header(disk, &entry, &header)?;
    }

    let mut manifest = old;
    // An older manifest did not say where their tails start.
    manifest.runs = parts.iter().map(|part| *part.run.entry()).collect();
    manifest.epoch = next_epoch(replayed.epoch).map_err(ReadFault::from)?.max(disk.least_epoch());
    manifest.proven = replayed.proven;
    manifest.is_closed = false;
    let mut first = replayed.proven.next();
    let chosen = choose(disk, options, &mut manifest, &replayed, SegmentSize::Agreed);
    let Chosen { entry, file, filled, dropped } = match chosen {
        Err(error) if error.kind() == ErrorKind::Full => {
            first = replayed.take_back_last(disk, MOST_AGAIN)?.unwrap_or(first);
            let mut small = || choose(disk, options, &mut manifest, &replayed, SegmentSize::Least);
            match small() {
                Err(error) if error.kind() == ErrorKind::Full && disk.remove(RESERVE).is_ok() => small()?,
                chosen => chosen?,
            }
        }
        chosen => chosen?,
    };
    manifest.replace(disk)?;

    let name: Arc<str> = entry.no.segment().into();
    let frames = Rewritten::new(&replayed).frames(entry.incarnation);
    if !frames.is_empty() {
        file.write_at(&frames, BLOCK as u64).map_err(failed("write", &name))?;
        file.sync_data().map_err(failed("sync", &name))?;
    }
    let header = Header {
        first,
        watermark: replayed.applied,
        epoch: manifest.epoch,
        clock: replayed.ledger.clock(),
        anchor: replayed.anchor,
    };
    file.write_at(&header.encode(&entry), 0).map_err(failed("write", &name))?;
    file.sync_data().map_err(failed("sync", &name))?;

    let cut = books.applied();
    let is_covered = |s: &Sealed| s.records() == 0 || s.end <= cut.next();
    let (empty, sealed): (Vec<_>, Vec<_>) = replayed.used.into_iter().partition(is_covered);
    if !empty.is_empty() {
        manifest.proven = replayed.applied;
        manifest.segments.retain(|listed| !empty.iter().any(|s| s.entry == *listed));
        manifest.replace(disk)?;
    }
    let mut prepared = VecDeque::new();
    for entry in manifest.segments.iter().filter(|listed| listed.no > entry.no) {
        let name = entry.no.segment();
        let file = disk.open(&name, FileAccess::Write).map_err(failed("open", &name))?;
        prepared.push_back(Prepared { entry: *entry, file });
    }
    let at = (BLOCK + frames.len()) as u64;
    Ok(Reign {
        active: Active { entry, file, name, first: header.first, at, filled },
        journal: Journal {
            prepared,
            sealed,
            spares: empty.iter().map(|s| s.entry).chain(dropped).collect(),
            space: DiskSpace::Enough,
            failure: None,
        },
        books,
        parts,
        names,
        mem: replayed.mem,
        ledger: replayed.ledger,
        applied: replayed.applied,
        anchor: replayed.anchor,
        manifest,
        was_closed,
    })
}

/// The epoch of the next owner.
pub(crate) fn next_epoch(last: Epoch) -> Result<Epoch, Damage> {
    last.0.checked_add(1).map(Epoch).ok_or_else(|| Damage::new(MANIFEST, 16, "all epochs are used up"))
}

/// The content of a folder up to the last cut.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) books: Ledger,
    pub(crate) parts: Vec<LiveRun>,
}

/// Reads the state and opens the runs, up to `threads` of them side by side.
pub(crate) fn keep(
    disk: &dyn Disk,
    manifest: &Manifest,
    names: &Interner,
    threads: usize,
) -> Result<Kept, ReadFault> {
    let Some(entry) = manifest.states.last() else {
        return Ok(Kept { books: Ledger::default(), parts: Vec::new() });
    };
    let StateFile { ledger, mut lost, .. } = state::read(disk, &manifest.states)?;
    let mut removed = Vec::new();
    for run in &manifest.runs {
        let of_run = lost.iter().position(|lost| lost.no == run.no).map(|i| lost.swap_remove(i));
        let Some(lost) = of_run else {
            let what = format!("the state says nothing of {}", run.no.run());
            return Err(Damage::new(entry.no.state(), 0, what).into());
        };
        removed.push(lost);
    }
    let mut parts = Vec::new();
    let runs = open_runs(disk, manifest, names, threads)?;
    for (run, Lost { removed, gone, masks, .. }) in runs.into_iter().zip(removed) {
        let mut live = Live::without(&run, &removed, gone);
        for (queue, mask) in masks {
            live.mask(queue, mask);
        }
        parts.push(LiveRun { run: Arc::new(run), live: Arc::new(live) });
    }
    // The rest of `lost` names runs without live rows: they are unlisted without a new state.
    Ok(Kept { books: ledger, parts })
}

/// Opens runs. Of several that cannot be opened the first one counts, whichever thread met it.
fn open_runs(
    disk: &dyn Disk,
    manifest: &Manifest,
    names: &Interner,
    threads: usize,
) -> Result<Vec<Run>, ReadFault> {
    let (runs, hasher, next) = (&manifest.runs, manifest.hasher(), AtomicUsize::new(0));
    let open_some = || -> Vec<(usize, Result<Run, ReadFault>)> {
        let numbers = std::iter::repeat_with(|| next.fetch_add(1, Relaxed));
        numbers
            .map_while(|i| Some((i, runs.get(i)?)))
            .map(|(i, run)| (i, Run::open(disk, run, hasher, names)))
            .collect()
    };
    let mut opened = thread::scope(|scope| {
        // A thread that cannot be started is one less.
        let start = |_| thread::Builder::new().name("duewheel-open".into()).spawn_scoped(scope, open_some);
        let helpers: Vec<_> = (1..threads.min(runs.len())).map_while(|n| start(n).ok()).collect();
        let mut opened = open_some();
        for helper in helpers {
            opened.extend(helper.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        opened
    });
    opened.sort_unstable_by_key(|(i, _)| *i);
    opened.into_iter().map(|(_, run)| run).collect()
}

fn write_header(disk: &dyn Disk, entry: &SegmentEntry, header: &Header) -> Result<(), StoreError> {
    let name = entry.no.segment();
    let file = disk.open(&name, FileAccess::Write).map_err(failed("open", &name))?;
    file.write_at(&header.encode(entry), 0).map_err(failed("write", &name))?;
    file.sync_data().map_err(failed("sync", &name))
}

/// Starts a folder without a manifest, if it has no data either.
fn start_folder(disk: &dyn Disk) -> Result<Manifest, ReadFault> {
    for (dir, ending) in [(JOURNAL, ".log"), (RUNS, ".run"), (STATE, ".state")] {
        let names = disk.list(dir).map_err(failed("list", dir))?;
        if let Some(name) = names.iter().find(|name| name.ends_with(ending)) {
            let what = format!("the manifest is missing, and {dir}/{name} is there");
            return Err(Damage::new(MANIFEST, 0, what).into());
        }
    }
    let manifest = Manifest::drawn(disk)?;
    manifest.replace(disk).map_err(StoreError::from)?;
    Ok(manifest)
}

/// Removes incomplete and unlisted files of a crash.
fn remove_unlisted(disk: &dyn Disk, manifest: &Manifest) -> Result<(), StoreError> {
    let listed: Vec<String> = manifest.files().collect();
    let dirs = [(JOURNAL, [".log", ".tmp"]), (RUNS, [".run", ".tmp"]), (STATE, [".state", ".tmp"])];
    for (dir, endings) in dirs {
        for name in disk.list(dir).map_err(failed("list", dir))? {
            let path = format!("{dir}/{name}");
            if endings.iter().any(|ending| name.ends_with(ending)) && !listed.contains(&path) {
                disk.remove(&path).map_err(failed("remove", &path))?;
            }
        }
    }
    match disk.remove(MANIFEST_TEMP) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", MANIFEST_TEMP)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The segment that the new owner writes to, and those that are no longer listed.
struct Chosen {
    entry: SegmentEntry,
    file: Arc<dyn DiskFile>,
    /// Zeros were written to so many of its bytes.
    filled: u64,
    dropped: Vec<SegmentEntry>,
}

/// The size of a segment that is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SegmentSize {
    /// The size of all segments.
    Agreed,
    /// For the groups that are written again and a few removals: the disk is full.
    Least,
}

/// Bytes that a segment of the least size has for new groups.
const LEAST_ROOM: u64 = 16 * 1024;
/// Largest number of bytes of proven groups that are written again on a full disk.
const MOST_AGAIN: u64 = 1024 * 1024;

/// Chooses a prepared segment or creates one, and lists it in `manifest`.
fn choose(
    disk: &dyn Disk,
    options: &Options,
    manifest: &mut Manifest,
    replayed: &Replayed,
    size: SegmentSize,
) -> Result<Chosen, StoreError> {
    let least = (BLOCK + Rewritten::new(replayed).bytes + segment::MARK_BYTES) as u64;
    let mut prepared: VecDeque<SegmentEntry> = replayed.unused.iter().copied().collect();
    let mut dropped: Vec<SegmentEntry> = Vec::new();
    while let Some(entry) = prepared.front().filter(|entry| entry.bytes < least) {
        dropped.push(*entry);
        prepared.pop_front();
    }
    let (no, bytes, file, filled) = match prepared.pop_front() {
        Some(SegmentEntry { no, bytes, .. }) => {
            let name = no.segment();
            (no, bytes, disk.open(&name, FileAccess::Write).map_err(failed("open", &name))?, bytes)
        }
        None => {
            let no = manifest.next_file;
            manifest.next_file = no.next();
            let held = manifest.run_bytes() + replayed.used.iter().map(|s| s.frames).sum::<u64>();
            let agreed = options.segment_bytes_for(held);
            let bytes = match size {
                SegmentSize::Agreed => agreed,
                SegmentSize::Least => agreed.min(least + LEAST_ROOM),
            };
            let bytes = bytes.max(least).next_multiple_of(BLOCK as u64);
            let filled = options.filled_at_start.max(least).min(bytes);
            // A block more than those that are prepared: as a part of it has no zeros, it is never used again.
            let bytes = if filled < bytes { bytes + BLOCK as u64 } else { bytes };
            let (file, filled) = preparer::create(disk, no, bytes, filled, &|| false)?;
            (no, bytes, file, filled)
        }
    };
    let sizes = [options.small_segment_bytes, options.segment_bytes];
    let (fit, misfit): (Vec<_>, Vec<_>) =
        prepared.into_iter().partition(|entry| sizes.contains(&entry.bytes));
    dropped.extend(misfit);
    let entry = SegmentEntry { no, incarnation: Incarnation(disk.unique()), bytes };
    manifest.segments = replayed.used.iter().map(|s| s.entry).collect();
    manifest.segments.push(entry);
    manifest.segments.extend(fit);
    Ok(Chosen { entry, file, filled, dropped })
}

/// The unproven groups, as they will be written to the new segment.
struct Rewritten<'a> {
    groups: &'a [Unproven],
    watermark: Lsn,
    bytes: usize,
}

impl<'a> Rewritten<'a> {
    fn new(replayed: &'a Replayed) -> Self {
        let bytes =
            replayed.unproven.iter().map(|g| (segment::HEAD + g.payload.len()).next_multiple_of(8)).sum();
        Rewritten { groups: &replayed.unproven, watermark: replayed.proven, bytes }
    }

    fn frames(&self, incarnation: Incarnation) -> Vec<u8> {
        let mut frames = Vec::with_capacity(self.bytes);
        let mut buffer = Writer::default();
        for group in self.groups {
            segment::begin(&mut buffer);
            buffer.bytes.extend_from_slice(&group.payload);
            segment::finish(&mut buffer, FrameHead { incarnation, watermark: self.watermark, ..group.head });
            frames.extend_from_slice(&buffer.bytes);
        }
        frames
    }
}
