//! Copies of the data folder while it is in use.
//!
//! The log store copies the files. This module determines which store handle is current (the store may be opened again
//! after a failure), where a copy may be written, and that only one copy runs at a time.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use std::{fs, io, thread};

use duewheel_core::engine::Ids;
use duewheel_core::id::{LeaseToken, MessageId, ShardId};
use duewheel_core::message::{Lease, Life, MessageContent, Row, Stage};
use duewheel_core::name::QueueName;
use duewheel_core::record::{ClockPair, Gone, Group, Record, Was};
use duewheel_core::store::{
    Capacity, ErrorKind, Load, Loaded, More, Recovered, Sequence, Store, StoreArrival, StoreError,
    StoreRequest, Which,
};
use duewheel_core::{Due, EngineMs, Epoch, Lsn, WallMs};
use duewheel_shard::clock::{Clock, SystemClock};
use duewheel_shard::shared::EndOnPanic;
use duewheel_shard::testing;
use duewheel_shard::timekeeper::Timekeeper;
use duewheel_store_log::disk::{Disk, RealDisk};
use duewheel_store_log::{
    Backup, BackupReport, Destination, EmptyFolder, FolderProblem, LogStore, Options, SalvageReport,
};

/// The reason why no copy was made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The messages are in memory only ([`Durability::Memory`](crate::Durability::Memory)), or in a store that has
    /// backups of its own.
    #[error("the messages are not in a data folder; there is none to copy")]
    InMemory,
    /// Another copy is in progress. Try again when it is done.
    #[error("another backup is under way")]
    Busy,
    /// The copy cannot be written to this folder. Choose another one.
    #[error("{}: {what}", folder.display())]
    Folder {
        /// The requested folder.
        folder: PathBuf,
        /// The problem of the folder.
        what: FolderProblem,
    },
    /// The wheel was shut down before or during the copy.
    #[error("the wheel was shut down and makes no backup")]
    Closed,
    /// A disk is full or failing, or the data is damaged: see [`StoreError::kind`].
    #[error("{0}")]
    Store(StoreError),
}

/// The handle of the currently open store of each shard. It is held by the opener, so it ends with the driver's thread.
#[derive(Debug)]
pub(crate) struct Newest {
    handles: Mutex<Vec<Option<Backup>>>,
    /// Whether a copy is in progress.
    busy: AtomicBool,
}

/// Makes copies, if there is a data folder to copy.
#[derive(Debug)]
pub(crate) enum Copier {
    None,
    Of { newest: Weak<Newest>, data: PathBuf },
}

/// The single permit to copy; no other copy can start until it is dropped.
struct CopyPermit(Arc<Newest>);

impl Newest {
    pub(crate) fn of(shards: u32) -> Self {
        Newest { handles: Mutex::new(vec![None; shards as usize]), busy: AtomicBool::new(false) }
    }

    pub(crate) fn set(&self, shard: ShardId, handle: Option<Backup>) {
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = handles.get_mut(shard.0 as usize) {
            *place = handle;
        }
    }

    /// `None`: a store is not open.
    fn all(&self) -> Option<Vec<Backup>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

impl CopyPermit {
    fn take(newest: Arc<Newest>) -> Result<CopyPermit, BackupError> {
        match newest.busy.swap(true, Ordering::AcqRel) {
            true => Err(BackupError::Busy),
            false => Ok(CopyPermit(newest)),
        }
    }
}

impl Drop for CopyPermit {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

impl Copier {
    pub(crate) fn of(newest: &Arc<Newest>, data: &Path) -> Copier {
        Copier::Of { newest: Arc::downgrade(newest), data: data.to_owned() }
    }

    /// Makes the copy; `end` is called if copying panics.
    pub(crate) async fn copy_to(
        &self,
        destination: Destination,
        end: EndOnPanic,
    ) -> Result<BackupReport, BackupError> {
        let Copier::Of { newest, data } = self else { return Err(BackupError::InMemory) };
        let turn = CopyPermit::take(newest.upgrade().ok_or(BackupError::Closed)?)?;
        let data = data.clone();
        // The permit belongs to the copy, not to the caller, who may stop waiting.
        let copying = tokio::task::spawn_blocking(move || {
            let _end = end;
            testing::place("backup");
            copy(&turn.0, &data, &destination)
        });
        copying.await.unwrap_or(Err(BackupError::Closed))
    }
}

fn copy(newest: &Newest, data: &Path, destination: &Destination) -> Result<BackupReport, BackupError> {
    let Some(handles) = newest.all() else {
        let what = "the store has failed and is not open again yet";
        return Err(BackupError::Store(StoreError::new(ErrorKind::Unavailable, what)));
    };
    let dir = path_of(destination);
    let failed = |kind, what: &dyn std::fmt::Display| match kind {
        ErrorKind::Closed => BackupError::Closed,
        ErrorKind::Fenced | ErrorKind::Unavailable | ErrorKind::Full | ErrorKind::Corrupt => {
            BackupError::Store(StoreError::new(kind, format_args!("backup to {}: {what}", dir.display())))
        }
    };
    let folder = open(data, destination).map_err(|what| match what {
        FolderProblem::Unusable(error) if error.kind() == io::ErrorKind::StorageFull => {
            failed(ErrorKind::Full, &error)
        }
        what => BackupError::Folder { folder: dir.clone(), what },
    })?;
    let copied = match handles.as_slice() {
        [one] => one.copy_into(folder),
        several => Backup::copy_shards(several, &folder),
    };
    copied.map_err(|error| failed(error.kind(), &error))
}

/// Opens the folder for the copy. Problems with it are reported before anything is copied, and nothing is created in
/// the data folder.
fn open(data: &Path, destination: &Destination) -> Result<EmptyFolder, FolderProblem> {
    if real(&path_of(destination))?.starts_with(data.canonicalize()?) {
        return Err(FolderProblem::Inside);
    }
    let folder = EmptyFolder::open(destination)?;
    // The name may refer to another folder by then.
    match folder.is_inside(data)? {
        true => Err(FolderProblem::Inside),
        false => Ok(folder),
    }
}

fn path_of(destination: &Destination) -> PathBuf {
    match destination {
        Destination::Prepared(dir) | Destination::Made(dir) => dir.clone(),
        Destination::Below { root, name } => root.join(name),
    }
}

/// The path with links and dots resolved, also for a folder that does not exist yet.
fn real(dir: &Path) -> io::Result<PathBuf> {
    let dir = std::path::absolute(dir)?;
    let mut there = dir.as_path();
    loop {
        match there.canonicalize() {
            Ok(mut path) => {
                for part in dir.strip_prefix(there).unwrap_or(Path::new("")).components() {
                    match part {
                        Component::ParentDir => {
                            path.pop();
                        }
                        part => path.push(part),
                    }
                }
                return Ok(path);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => match there.parent() {
                Some(parent) => there = parent,
                None => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
}

/// The queue of what tells a store apart from its copies: a restore and a salvage remove its messages. Only the server
/// itself can have messages in it.
pub const STORE_QUEUE: &str = "#store";

/// The result of a restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// The pending messages: scheduled, ready, leased and dead. Those that have ended and are kept are not counted.
    pub messages: u64,
    /// How many of these had a lease token, which is no longer accepted.
    pub tokens_ended: u64,
    /// The number of files of the copy.
    pub files: u64,
    /// The total size of the files, in bytes.
    pub bytes: u64,
    /// The number of records in the copy's journal.
    pub records: u64,
}

/// The number of messages processed at a time.
const ROWS: usize = 1_024;
/// The bytes of bodies read at a time.
const BYTES: usize = 4 * 1024 * 1024;
/// Number of ids that are left out if the clock shows no later time than that of the last known id.
const IDS_AHEAD: u64 = 1 << 32;
/// Segments can be small, because little is written here.
const SEGMENT_BYTES: u64 = 4 * 1024 * 1024;

/// Makes a data folder in `dir` from a copy: of a [`Duewheel::backup`](crate::Duewheel::backup), or of a folder that no
/// process has open. `dir` is created if it is missing, and must be empty otherwise. The copy is not changed.
///
/// Everything is checked before anything is copied. Due times, keys, attempts and settings are those of the copy, and
/// the time since then counts: messages whose due time has passed are due at once. No lease token of the original is
/// accepted: a message that was leased is delivered again when its lease has run out. No token and no id is ever given
/// again, neither one of the original nor one of another restore.
///
/// This reads everything three times and blocks the calling thread. [`Duewheel::backup`](crate::Duewheel::backup) has
/// an example.
///
/// # Errors
/// [`Corrupt`](duewheel_core::store::ErrorKind::Corrupt) if the copy is damaged (run
/// [`verify`](duewheel_store_log::verify()) for all damaged places),
/// [`Fenced`](duewheel_core::store::ErrorKind::Fenced) if a process has it open,
/// [`Full`](duewheel_core::store::ErrorKind::Full) or [`Unavailable`](duewheel_core::store::ErrorKind::Unavailable) if
/// a disk returns an error, or if `dir` is not empty. After an error, or if the process was killed before the end,
/// nothing opens `dir`: remove it.
pub fn restore(src: impl AsRef<Path>, dir: impl AsRef<Path>) -> Result<Restored, StoreError> {
    let (report, tokens_ended) = duewheel_store_log::restore_then(src, dir, end_tokens)?;
    Ok(Restored {
        messages: report.pending,
        tokens_ended,
        files: report.files,
        bytes: report.bytes,
        records: report.records,
    })
}

/// Makes every lease invalid, forgets the tokens of leases that have run out, and leaves out the ids that others may have
/// given. Returns how many tokens there were.
fn end_tokens(folders: &[PathBuf]) -> Result<u64, StoreError> {
    let shards = u32::try_from(folders.len()).unwrap_or(u32::MAX);
    let of_shard = |(shard, folder): (u32, &PathBuf)| {
        end_tokens_of(folder, Ids::of(ShardId(shard), shards))
            .map_err(|error| StoreError::new(error.kind(), format_args!("{}: {error}", folder.display())))
    };
    (0..).zip(folders).map(of_shard).sum()
}

fn end_tokens_of(dir: &Path, ids: Ids) -> Result<u64, StoreError> {
    let thread = thread::current();
    let options = Options { segment_bytes: SEGMENT_BYTES, ..Options::default() };
    let disk = Arc::new(RealDisk::new(dir));
    let mut store = LogStore::open_on(disk, options, Arc::new(move || thread.unpark()))?;
    let recovered = store.recovered();
    // A store without a clock has no records.
    let clock = recovered.clock.unwrap_or_else(|| ClockPair { engine: EngineMs(0), wall: wall() });
    end_all(&mut store, &recovered, clock, ids)
}

/// Makes every lease of a store invalid to which a copy was restored, as [`restore`] does, and closes it. The time
/// since the copy counts: the store continues from the clocks of this machine, whatever the clock of its medium says of
/// when it was written. `ids` are those of its shard.
///
/// Returns how many messages had a lease token.
///
/// # Errors
/// As of the store.
pub fn close_restored(store: &mut dyn Store, ids: Ids) -> Result<u64, StoreError> {
    let (recovered, clock) = (store.recovered(), SystemClock);
    let keeper = Timekeeper::resume(None, &recovered, &clock);
    let now = ClockPair::of(keeper.now(clock.read()));
    if let Some(anchor) = keeper.anchor(&clock) {
        store.idle(now, Some(anchor))?;
    }
    end_all(store, &recovered, now, ids)
}

/// The wall clock of this machine.
fn wall() -> WallMs {
    WallMs(SystemClock.read().wall_ns / 1_000_000)
}

/// The first id of a shard that goes on with data of an earlier time. The original may have given ids since, and so may
/// another store that was made of the same data: ids go on by the time, or far behind the last known one if the clock has
/// gone back.
fn next_id(ids: Ids, known: u64) -> MessageId {
    let MessageId(by_time) = MessageId::by_time(wall());
    MessageId(ids.at_least(if by_time > known { by_time } else { known.saturating_add(IDS_AHEAD) }))
}

/// Makes every lease of a store invalid, leaves ids out, and closes it.
fn end_all(
    store: &mut dyn Store,
    recovered: &Recovered,
    clock: ClockPair,
    ids: Ids,
) -> Result<u64, StoreError> {
    let mut ending = Ending { epoch: recovered.epoch, next: recovered.next_lsn, clock, ended: 0 };
    for sequence in [Sequence::AllAt, Sequence::AllAfter] {
        let mut after = None;
        loop {
            let which = Which::All;
            let until = u64::MAX;
            let load = Load { ticket: 0, sequence, which, after, until, rows: ROWS, bytes: BYTES };
            store.ask(StoreRequest::Load(load))?;
            let page = loaded(store)?;
            ending.end(store, page.rows)?;
            match page.more {
                More::No => break,
                More::Yes => after = page.upto,
            }
        }
    }
    ending.leave_out(store, next_id(ids, recovered.next_id))?;
    store.close(clock)?;
    Ok(ending.ended)
}

struct Ending {
    /// The epoch of this run, which grants no other leases.
    epoch: Epoch,
    next: Lsn,
    clock: ClockPair,
    ended: u64,
}

impl Ending {
    fn end(&mut self, store: &mut dyn Store, rows: Vec<Row>) -> Result<(), StoreError> {
        let records = rows.into_iter().filter_map(|row| self.record(row)).collect();
        self.append(store, records)
    }

    fn append(&mut self, store: &mut dyn Store, records: Vec<Record>) -> Result<(), StoreError> {
        if records.is_empty() {
            return Ok(());
        }
        while store.room() == Capacity::Busy {
            store.progress()?;
            thread::park_timeout(Duration::from_millis(10));
        }
        let group = Group { first: self.next, clock: self.clock, records };
        self.next = group.last().next();
        store.append(&group)
    }

    /// Gives this id to a message and removes it, so that the store goes on behind it.
    fn leave_out(&mut self, store: &mut dyn Store, id: MessageId) -> Result<(), StoreError> {
        let queue = QueueName::system(STORE_QUEUE);
        let queue = queue.map_err(|bad| StoreError::new(ErrorKind::Unavailable, bad))?;
        let message = MessageContent::new(id, queue, self.clock.wall);
        let life = Life::new(Due::After(self.clock.engine), None);
        let was = Was::of(&message, &life);
        let put = Record::Put { message: Arc::new(message), life, was: None };
        self.append(store, vec![put, Record::Removed { id, why: Gone::Cancelled, was }])
    }

    fn record(&mut self, Row { message, mut life }: Row) -> Option<Record> {
        let was = Was::of(&message, &life);
        if message.queue.as_str() == STORE_QUEUE {
            return Some(Record::Removed { id: message.id, why: Gone::Cancelled, was });
        }
        life.stage = match life.stage {
            Stage::Leased(lease) => {
                self.ended += 1;
                let token = LeaseToken { epoch: self.epoch, counter: self.ended };
                Stage::Leased(Lease { token, ..lease })
            }
            Stage::Waiting { token: Some(_) } => {
                self.ended += 1;
                Stage::Waiting { token: None }
            }
            Stage::Dead { reason, at, token: Some(_) } => {
                self.ended += 1;
                Stage::Dead { reason, at, token: None }
            }
            Stage::Waiting { token: None } | Stage::Dead { token: None, .. } => return None,
        };
        Some(Record::Changed { id: message.id, life, was })
    }
}

fn loaded(store: &mut dyn Store) -> Result<Loaded, StoreError> {
    loop {
        if let Some(page) = store.arrived().transpose()?.and_then(StoreArrival::page) {
            return Ok(page);
        }
        thread::park_timeout(Duration::from_millis(100));
    }
}

/// The result of a salvage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Salvaged {
    /// The content of the new folder, and the losses.
    pub report: SalvageReport,
    /// The number of messages that had a lease token, which is no longer accepted.
    pub tokens_ended: u64,
}

/// Makes a data folder in `dir`, which must not exist, from everything in a damaged one that can be proved.
///
/// `src` is never written to. [`SalvageReport::losses`] lists what is lost, and what may be delivered again because the
/// record of its settlement is lost. The folder is made under the name `dir` with the suffix `.partial`, and renamed
/// when it is complete: after a crash, remove the partial folder.
///
/// # Errors
/// [`Fenced`](ErrorKind::Fenced) if a process has `src` open, [`Corrupt`](ErrorKind::Corrupt) if there is nothing in it
/// to start from, [`Full`](ErrorKind::Full) or [`Unavailable`](ErrorKind::Unavailable) if a disk returns an error, or
/// if `dir` or its partial folder exists. Damage is not an error.
pub fn salvage(src: impl AsRef<Path>, dir: impl AsRef<Path>) -> Result<Salvaged, StoreError> {
    let (src, dir) = (src.as_ref(), dir.as_ref());
    let above = dir.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let (Ok(above), Ok(src)) = (above.canonicalize(), src.canonicalize())
        && above.starts_with(&src)
    {
        let what = format!("{} is inside of {}, which is not written to", dir.display(), src.display());
        return Err(StoreError::new(ErrorKind::Unavailable, what));
    }
    salvage_to(dir, |partial| duewheel_store_log::salvage(src, partial))
}

/// Salvages like [`salvage`], from the folders of all shards of a store, wherever they lie: those of Redis or
/// PostgreSQL, for example. No process may own a shard until this has returned.
///
/// # Errors
/// See [`salvage`].
pub fn salvage_shards(shards: &[Arc<dyn Disk>], dir: impl AsRef<Path>) -> Result<Salvaged, StoreError> {
    salvage_to(dir.as_ref(), |partial| duewheel_store_log::salvage_shards(shards, partial))
}

/// Makes a folder under another name, and gives it its name when it is complete.
fn salvage_to(
    dir: &Path,
    make: impl FnOnce(&Path) -> Result<SalvageReport, StoreError>,
) -> Result<Salvaged, StoreError> {
    let failed = |doing: &str, error: std::io::Error| {
        let what = format!("cannot {doing} {}: {error}", dir.display());
        StoreError::new(ErrorKind::Unavailable, what)
    };
    if dir.symlink_metadata().is_ok() {
        return Err(StoreError::new(ErrorKind::Unavailable, format!("{} exists", dir.display())));
    }
    let partial = partial(dir);
    let report = make(&partial)?;
    let tokens_ended = end_tokens(&duewheel_store_log::folders_in(&partial)?)?;
    fs::rename(&partial, dir).map_err(|error| failed("make", error))?;
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    RealDisk::new(parent).sync_dir("").map_err(|error| failed("sync the name of", error))?;
    Ok(Salvaged { report, tokens_ended })
}

/// The name of the folder until it is complete.
fn partial(dir: &Path) -> PathBuf {
    let mut name: OsString = dir.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backups_run_one_by_one() {
        let newest = Arc::new(Newest::of(1));
        let turn = CopyPermit::take(newest.clone()).unwrap_or_else(|_| panic!("nobody else copies"));
        assert!(matches!(CopyPermit::take(newest.clone()), Err(BackupError::Busy)));
        drop(turn);
        assert!(CopyPermit::take(newest).is_ok());
    }

    #[test]
    fn backup_inside_data_folder_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        std::fs::create_dir(&data).unwrap();
        std::os::unix::fs::symlink(&data, dir.path().join("link")).unwrap();
        for inside in ["data", "data/copy", "link/copy/of", "new/../data/copy", "./data/."] {
            let opened = open(&data, &Destination::Made(dir.path().join(inside)));
            assert!(matches!(opened, Err(FolderProblem::Inside)), "{inside}: {opened:?}");
        }
        assert!(!data.join("copy").exists(), "nothing was made");
        for beside in ["data2", "link2/copy", "data/../copy"] {
            open(&data, &Destination::Made(dir.path().join(beside))).unwrap();
        }
        std::fs::write(dir.path().join("file"), "x").unwrap();
        for bad in ["file", "file/copy", "."] {
            assert!(open(&data, &Destination::Made(dir.path().join(bad))).is_err(), "{bad}");
        }
    }
}
