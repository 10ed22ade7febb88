//! Makes a data folder from a damaged one: everything that can be proved, and a list of the losses.
//!
//! The damaged folder is only read. Everything that a checksum proves is folded as an owner would fold it: rows of
//! runs, newest first, under the records of the journal behind the last cut. The result is written through a separate
//! [`crate::LogStore`], so it is a valid folder by construction. Memory holds sets of ids and the journal's state of
//! each message, but no bodies.
//!
//! | module | noun |
//! |---|---|
//! | `files` | the damaged folder, which is never written to: its valid files, and their whole blocks |
//! | `books` | the content of the whole blocks: of the state, and of one run |
//! | `journal` | the whole frames of the journal, and its state of each message |
//! | `target` | the new folder |
//! | `report` | damage and losses, as they are found |

pub(crate) mod books;
mod files;
pub(crate) mod journal;
mod report;
mod target;

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;

use books::{RunContents, RunItem, SalvagedBooks};
use duewheel_core::message::Row;
use duewheel_core::record::{ClockPair, Record};
use duewheel_core::store::{ErrorKind, Store, StoreError};
use duewheel_core::{Epoch, MessageId};
use roaring::RoaringTreemap;

use crate::backup::{empty, empty_folder};
use crate::disk::{Disk, RealDisk};
use crate::fault::ReadFault;
use crate::format::lock_if_any;
use crate::manifest::{Manifest, RunEntry};
use crate::options::{Options, WorkMode};
use crate::shards;
use crate::store::LogStore;
use crate::verify::{SoundCopy, epoch_ahead};
use files::{ReadOnlyDisk, SalvageFiles};
use journal::{JournalFrames, Overlay};
use target::{ExistingAnswer, SalvageTarget};

pub use report::{Loss, SalvageReport};

/// Number of ids that are skipped behind the greatest one found, if anything is damaged: a completely lost message may
/// have had one of them.
const IDS_AHEAD: u64 = 1 << 32;

/// Makes a data folder in `dir`, which must not exist, from everything in `src` that can be proved.
///
/// `src` is never written to. The epochs of the new folder start far above those of `src`, as after a restore. If the
/// process is killed before the end, `dir` is not complete: remove it.
///
/// # Errors
/// [`ErrorKind::Fenced`] if another process has `src` open, [`ErrorKind::Corrupt`] if it has nothing to start from,
/// [`ErrorKind::Full`] or [`ErrorKind::Unavailable`] if a disk returns an error, or if `dir` exists. Damage is not an
/// error: [`SalvageReport::losses`] lists it.
pub fn salvage(src: impl AsRef<Path>, dir: impl AsRef<Path>) -> Result<SalvageReport, StoreError> {
    let (src, dir) = (src.as_ref(), dir.as_ref());
    let disk = RealDisk::new(src);
    let Some(count) = shards::count(&disk).map_err(|error| shards::named(src, error))? else {
        shards::alone(&disk).map_err(|error| shards::named(src, error))?;
        return salvage_from(&disk, dir);
    };
    let shards = count.shards;
    let _lock = lock_if_any(&disk)?;
    // A shard in the place of another one would give its ids again.
    if let Some(other) = shards::strangers(&disk, &count).into_iter().find(|other| other.is_another) {
        return Err(shards::named(src, other.into()));
    }
    let disks: Vec<_> = shards::disks(src, shards).into_iter().map(|(_, disk)| disk).collect();
    salvage_shards(&disks, dir)
}

/// Salvages the folders of all shards of a store, wherever they lie, as [`salvage`] does one. A single shard becomes a
/// data folder without shards. A folder without a file becomes an empty shard, and is a [`Loss::Shard`].
///
/// # Errors
/// See [`salvage`].
pub fn salvage_shards(disks: &[Arc<dyn Disk>], dir: &Path) -> Result<SalvageReport, StoreError> {
    let (shards, mut report) = (u32::try_from(disks.len()).unwrap_or(u32::MAX), SalvageReport::default());
    if let [disk] = disks {
        return salvage_shard(disk, dir);
    }
    let to = empty(dir)?;
    for (shard, disk) in (0..).zip(disks) {
        let name = shards::name(shard, shards);
        let inside = |error: StoreError| ReadFault::from(error).inside(&name);
        let of_shard = salvage_shard(disk, &dir.join(&name)).map_err(inside)?;
        report.add(&name, of_shard);
    }
    shards::establish(to.disk(), shards)?;
    Ok(report)
}

/// Copies the folder of a shard without damage, which may have no record at all, and salvages another one.
fn salvage_shard(disk: &Arc<dyn Disk>, dir: &Path) -> Result<SalvageReport, StoreError> {
    if disk.list("").is_ok_and(|names| names.is_empty()) {
        let to = empty_folder(dir)?;
        let epoch = epoch_ahead(Epoch::default())?;
        Manifest { epoch, is_closed: true, ..Manifest::drawn(&to)? }.replace(&to)?;
        let options = Options { workers: WorkMode::ByHand, ..Options::default() };
        LogStore::open(dir, options, Arc::new(|| {}))?.close(ClockPair::default())?;
        // A shard that never had an owner looks the same as one that has lost everything.
        return Ok(SalvageReport { losses: vec![Loss::Shard], ..SalvageReport::default() });
    }
    match SoundCopy::check(Arc::clone(disk), String::new()) {
        Ok(whole) => {
            whole.copy_to(empty(dir)?.disk())?;
            let (messages, pending) = (whole.report.messages, whole.report.pending);
            Ok(SalvageReport { messages, pending, ..SalvageReport::default() })
        }
        Err(ReadFault::Damaged(_)) => salvage_from(&**disk, dir),
        Err(fault @ (ReadFault::Failed(_) | ReadFault::TooMuch | ReadFault::NotAtHand)) => Err(fault.into()),
    }
}

/// Salvages from a disk of the caller's own, as [`salvage`] does from a folder.
///
/// # Errors
/// See [`salvage`].
pub fn salvage_from(disk: &dyn Disk, dir: &Path) -> Result<SalvageReport, StoreError> {
    let _lock = lock_if_any(disk)?;
    let source = ReadOnlyDisk::new(disk);
    let mut report = SalvageReport::default();
    let mut listing = SalvageFiles::read(&source, &mut report)?;
    let mut books = SalvagedBooks::read(&source, &listing, &mut report)?;
    listing.add_missing(books.runs());
    let frames = JournalFrames::open(&source, &listing, &mut report)?;
    let overlay = Overlay::fold(&frames, &mut books, &mut report)?;
    let Some(clock) = books.clock() else {
        if listing.is_empty() {
            let what = "there is no record in this folder";
            return Err(StoreError::new(ErrorKind::Corrupt, what));
        }
        let what = "neither the state nor the journal tells the time: no due time can be kept";
        return Err(StoreError::new(ErrorKind::Corrupt, what));
    };
    let epoch = epoch_ahead(listing.epoch.max(frames.epoch))?;
    let mut runs = Vec::new();
    for entry in listing.runs.iter().rev().filter(|run| books.lists(run.no, listing.by)) {
        runs.extend(RunContents::open(&source, entry, &books, &mut report)?.map(|pieces| (*entry, pieces)));
    }
    if !report.damage.is_empty() || !report.losses.is_empty() {
        let found = runs.iter().filter_map(|(_, pieces)| pieces.greatest_id()).max().unwrap_or(0);
        books.leave_out_ids(MessageId(found), IDS_AHEAD);
    }
    let mut salvage = Salvage {
        target: SalvageTarget::create(dir, &books, epoch, clock)?,
        books: &books,
        overlay,
        seen: RoaringTreemap::new(),
        missing: RoaringTreemap::new(),
        stretches: Vec::new(),
        hidden: HashSet::new(),
        hasher: RandomState::new(),
        report,
    };
    salvage.journal(&frames)?;
    for (entry, pieces) in runs {
        salvage.run(&source, &entry, &pieces)?;
    }
    salvage.finish(&source)
}

struct Salvage<'a> {
    target: SalvageTarget,
    books: &'a SalvagedBooks,
    overlay: Overlay,
    /// Ids whose newest row was found.
    seen: RoaringTreemap,
    /// Ids whose newest row cannot be read.
    missing: RoaringTreemap,
    /// For each damaged run, some of its missing ids, and their due times.
    stretches: Vec<(RoaringTreemap, Vec<Loss>)>,
    /// Hashes of the names of answers that have expired or were freed: older ones of a name are not valid.
    hidden: HashSet<u64>,
    hasher: RandomState,
    report: SalvageReport,
}

impl Salvage<'_> {
    /// Writes the messages that the journal holds completely, and its answers.
    fn journal(&mut self, frames: &JournalFrames<'_>) -> Result<(), StoreError> {
        let from = self.books.fold_from();
        let engine = self.target.clock().engine;
        let Salvage { target, overlay, report, books, hidden, hasher, .. } = self;
        // The damage was reported when the journal was folded.
        frames.visit(&mut SalvageReport::default(), |lsn, record| match record {
            Record::Put { message, life, .. } if lsn > from => match overlay.life_of(message.id, lsn, life) {
                Some(life) => target.put(message, life, report),
                None => Ok(()),
            },
            Record::Deduped(row) if lsn > from && books.remembers(&row) => {
                if row.until <= engine {
                    hidden.insert(hasher.hash_one((&row.queue, &row.dedupe_id)));
                }
                target.answer(row, ExistingAnswer::Replaces, report)
            }
            _ => Ok(()),
        })?;
        self.target.flush(&mut self.report)
    }

    /// Writes the live rows of a run. Runs come newest first.
    fn run(
        &mut self,
        source: &ReadOnlyDisk<'_>,
        entry: &RunEntry,
        pieces: &RunContents,
    ) -> Result<(), StoreError> {
        let mut read = RoaringTreemap::new();
        let engine = self.target.clock().engine;
        pieces.visit(source, entry, |piece| match piece {
            RunItem::Message(queue, row) => {
                read.insert(row.message.id.0);
                self.message(row, pieces, queue)
            }
            RunItem::Answer(answer) if self.books.remembers(&answer) => {
                let name = self.hasher.hash_one((&answer.queue, &answer.dedupe_id));
                if answer.until <= engine {
                    self.hidden.insert(name);
                }
                if self.hidden.contains(&name) {
                    return Ok(());
                }
                self.target.answer(answer, ExistingAnswer::Yields, &mut self.report)
            }
            RunItem::Answer(_) => Ok(()),
        })?;
        self.target.flush(&mut self.report)?;
        let lost = &pieces.unread(&read) - &self.seen;
        let lost: RoaringTreemap = lost.iter().filter(|id| !self.overlay.replaces(MessageId(*id))).collect();
        self.missing.extend(&lost);
        self.stretches.push((lost, pieces.unread_spans(&entry.no.run())));
        Ok(())
    }

    fn message(&mut self, row: Row, pieces: &RunContents, queue: u32) -> Result<(), StoreError> {
        let id = row.message.id;
        if self.overlay.replaces(id) || self.overlay.purges(id, &row.message.queue) {
            return Ok(());
        }
        // A message whose newest row cannot be read is alive: an older row of it is better than none.
        let is_stale = self.missing.remove(id.0) && !pieces.is_purged(id, queue);
        if !(is_stale || pieces.counts(id, queue)) || !self.seen.insert(id.0) {
            return Ok(());
        }
        if is_stale {
            self.report.losses.push(Loss::Stale { id, queue: row.message.queue.clone() });
        }
        let life = self.overlay.changed(id, row.life);
        self.target.put(row.message, life, &mut self.report)
    }

    fn finish(mut self, source: &ReadOnlyDisk<'_>) -> Result<SalvageReport, StoreError> {
        for (id, queue, due) in self.overlay.left_over() {
            self.missing.remove(id.0);
            self.report.losses.push(Loss::Message { id, queue, due });
        }
        self.report.losses.extend(Loss::of_ids(&self.missing));
        for (ids, stretches) in std::mem::take(&mut self.stretches) {
            if !ids.is_disjoint(&self.missing) {
                self.report.losses.extend(stretches);
            }
        }
        let written = self.target.close()?;
        (self.report.messages, self.report.answers) = (written.messages, written.answers);
        let of_users = written.per_queue.iter().filter(|(queue, _)| !queue.is_system());
        self.report.pending = of_users.map(|(_, count)| count).sum();
        for (queue, should) in self.books.counts() {
            let is = written.per_queue.get(&queue).copied().unwrap_or(0);
            if is < should {
                self.report.losses.push(Loss::Missing { queue, messages: should - is });
            } else if is > should {
                self.report.losses.push(Loss::Surplus { queue, messages: is - should });
            }
        }
        self.report.damage.extend(source.unreadable());
        Ok(self.report)
    }
}
