//! The files of a shard on a medium: the disk of its log store.
//!
//! | the log store | here |
//! |---|---|
//! | writes to a file | the bytes wait in memory, as pieces |
//! | syncs it | the pieces are written, if this owner still has the shard |
//! | renames it | it gets its name; only new files are renamed |
//! | reads it | pieces of the journal directly, blocks of other files through the cache |
//! | takes the lock | the shard has been acquired |

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use duewheel_core::Epoch;
use duewheel_core::mutant::{self, Mutant};
use duewheel_core::store::{ErrorKind, Level, StoreError};
use duewheel_store_log::disk::{Disk, DiskFile, FencedOut, FileAccess, HeldLock, LockKind, SEGMENT_HEADER};
use lru::LruCache;

use crate::fence::locked;
use crate::medium::{FileId, FileKind, Medium, NamedFile, Piece};

const JOURNAL: &str = "journal/";
/// Files of this name are read by their writer alone.
const SPILL: &str = ".spill.tmp";
/// Pieces of a blob are sent when so many bytes wait.
const SEND: usize = 4 * MAX_PIECE;
/// A read of more than this is not kept in the cache: it belongs to a merge.
const MAX_CACHED: usize = 512 * 1024;

/// How long the end of a store waits for calls under way, so that their outcome is known.
const PATIENCE: Duration = Duration::from_secs(2);

/// The files of a shard, for its owner.
pub(crate) struct MediumDisk(Arc<MediumDiskInner>);

struct MediumDiskInner {
    medium: Arc<dyn Medium>,
    cache: Arc<BlockCache>,
    shard: u32,
    /// Files that have no name on the medium yet, by the name they have here.
    unnamed: Mutex<BTreeMap<String, Arc<MediumFile>>>,
    names: Mutex<OpenNames>,
    /// Numbers of files: each is given once, in this epoch and over all epochs.
    given: AtomicU64,
    sent: Arc<JournalSent>,
}

/// Open files that never change. Others may still read one that is removed: it stays on the medium until they have ended,
/// or until the next owner removes what the manifest does not list.
#[derive(Default)]
struct OpenNames {
    open: BTreeMap<String, Vec<Weak<MediumFile>>>,
    /// Open files that have been removed.
    removed: BTreeMap<String, Vec<Weak<MediumFile>>>,
}

fn is_open(files: &[Weak<MediumFile>]) -> bool {
    files.iter().any(|file| file.strong_count() > 0)
}

/// How far the journal was sent, counted in writes to it.
#[derive(Debug, Default)]
pub(crate) struct JournalSent {
    /// Writes that wait or were sent.
    written: AtomicU64,
    /// Every write up to this one may be on the medium.
    sent: AtomicU64,
    /// The levels of calls that were not reported yet, each with the writes up to which it went.
    levels: Mutex<VecDeque<(u64, Level)>>,
    under_way: Mutex<CallsUnderWay>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct CallsUnderWay {
    /// Calls that have not ended.
    count: u64,
    /// A call has failed, and may have been carried out.
    is_unknown: bool,
}

impl JournalSent {
    /// Writes so far.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(SeqCst)
    }

    /// The number of writes from which on certainly nothing is on the medium, once it takes no more; `None`: that is not
    /// known. Waits for a while until the calls under way have ended.
    pub(crate) fn nothing_from(&self) -> Option<u64> {
        let under_way = locked(&self.under_way);
        let waited = self.ended.wait_timeout_while(under_way, PATIENCE, |calls| calls.count > 0);
        let (calls, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_known = calls.count == 0 && !calls.is_unknown;
        is_known.then(|| self.sent.load(SeqCst))
    }

    /// The common level of the writes before this one that were not reported yet; `None` if all were.
    pub(crate) fn level_before(&self, write: u64) -> Option<Level> {
        let mut levels = locked(&self.levels);
        let mut common: Option<Level> = None;
        let mut and = |level: Level| common = Some(common.map_or(level, |common| common.and(level)));
        while levels.front().is_some_and(|(upto, _)| *upto <= write)
            && let Some((_, level)) = levels.pop_front()
        {
            and(level);
        }
        // A call may have taken more along than was waited for.
        if let Some((_, level)) = levels.front() {
            and(*level);
        }
        common
    }

    /// Makes a call that sends all writes so far of one file.
    fn send(&self, upto: u64, call: impl FnOnce() -> Result<Level, StoreError>) -> Result<(), StoreError> {
        locked(&self.under_way).count += 1;
        let level = call();
        if let Ok(level) = &level {
            locked(&self.levels).push_back((upto, *level));
            self.sent.fetch_max(upto, SeqCst);
        }
        let mut calls = locked(&self.under_way);
        calls.count -= 1;
        calls.is_unknown |= level.as_ref().is_err_and(|error| error.nothing_from().is_none());
        self.ended.notify_all();
        level.map(drop)
    }
}

/// The way in which a file is kept.
enum KeptAs {
    /// The file was opened by its name: a blob that never changes.
    Whole,
    /// The file is written.
    Pieces(FileKind),
    /// A file of this machine, for its writer alone.
    Here(File),
}

struct MediumFile {
    files: Arc<MediumDiskInner>,
    id: FileId,
    kept: KeptAs,
    /// The length of the file.
    bytes: AtomicU64,
    waiting: Mutex<Pieces>,
}

#[derive(Debug)]
struct MediumLock;

impl HeldLock for MediumLock {}

/// As the log store expects errors of its disk.
fn io_error(error: &StoreError) -> io::Error {
    match error.kind() {
        ErrorKind::Fenced => io::Error::other(FencedOut(error.to_string())),
        ErrorKind::Full => io::Error::new(io::ErrorKind::StorageFull, error.to_string()),
        ErrorKind::Unavailable | ErrorKind::Corrupt | ErrorKind::Closed => {
            io::Error::other(error.to_string())
        }
    }
}

fn kind_of(name: &str) -> FileKind {
    if name.starts_with(JOURNAL) { FileKind::Journal } else { FileKind::Blob }
}

impl MediumDisk {
    pub(crate) fn new(medium: Arc<dyn Medium>, cache: Arc<BlockCache>, shard: u32) -> Self {
        let given = AtomicU64::new(u64::from(medium.epoch().0) << 31);
        let (unnamed, names, sent) = (Mutex::default(), Mutex::default(), Arc::default());
        MediumDisk(Arc::new(MediumDiskInner { medium, cache, shard, unnamed, names, given, sent }))
    }

    pub(crate) fn sent(&self) -> Arc<JournalSent> {
        Arc::clone(&self.0.sent)
    }
}

impl MediumDiskInner {
    fn next(&self) -> FileId {
        FileId(self.given.fetch_add(1, SeqCst) + 1)
    }

    fn file(self: &Arc<Self>, id: FileId, kept: KeptAs, bytes: u64) -> Arc<MediumFile> {
        let bytes = AtomicU64::new(bytes);
        let waiting = Mutex::new(match kept {
            KeptAs::Pieces(FileKind::Journal) => Pieces::with_head(SEGMENT_HEADER as u64),
            KeptAs::Pieces(FileKind::Blob) | KeptAs::Whole | KeptAs::Here(_) => Pieces::default(),
        });
        Arc::new(MediumFile { files: Arc::clone(self), id, kept, bytes, waiting })
    }

    fn opened(&self, name: &str, file: &Arc<MediumFile>) {
        let mut names = locked(&self.names);
        let files = names.open.entry(name.to_owned()).or_default();
        files.retain(|file| file.strong_count() > 0);
        files.push(Arc::downgrade(file));
    }

    /// Removes files from the medium that nobody reads any more.
    fn sweep(&self) -> io::Result<()> {
        let unread: Vec<String> = {
            let names = locked(&self.names);
            if names.removed.is_empty() {
                return Ok(());
            }
            let unread = names.removed.iter().filter(|(_, files)| !is_open(files));
            unread.map(|(name, _)| name.clone()).collect()
        };
        for name in unread {
            self.medium.remove(&name).map_err(|error| io_error(&error))?;
            locked(&self.names).removed.remove(&name);
        }
        Ok(())
    }

    /// Whether all blocks of these bytes are in memory.
    fn is_cached(&self, file: FileId, at: u64, length: usize) -> bool {
        let (first, last) = (at / BLOCK, (at + length as u64 - 1) / BLOCK);
        (first..=last).all(|no| self.cache.has(self.shard, file, no))
    }

    /// Reads through the cache, in whole blocks.
    fn read_cached(&self, file: FileId, at: u64, length: usize, size: u64) -> Result<Vec<u8>, StoreError> {
        let (first, last) = (at / BLOCK, (at + length as u64 - 1) / BLOCK);
        let known: Vec<Option<Bytes>> =
            (first..=last).map(|no| self.cache.get(self.shard, file, no)).collect();
        let from = first * BLOCK;
        let whole = if let Some(blocks) = known.into_iter().collect::<Option<Vec<Bytes>>>() {
            blocks.concat()
        } else {
            let end = ((last + 1) * BLOCK).min(size);
            let whole = self.medium.read(file, from, usize::try_from(end - from).unwrap_or(usize::MAX))?;
            for (no, block) in (first..).zip(whole.chunks(usize::try_from(BLOCK).unwrap_or(usize::MAX))) {
                self.cache.put(self.shard, file, no, Bytes::copy_from_slice(block));
            }
            whole
        };
        let skip = usize::try_from(at - from).unwrap_or(usize::MAX);
        Ok(whole[skip..skip + length].to_vec())
    }
}

impl Disk for MediumDisk {
    fn make_dir(&self, _dir: &str) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let folder = if dir.is_empty() { String::new() } else { format!("{dir}/") };
        let inside = |name: &str| name.strip_prefix(&*folder).map(str::to_owned);
        let unnamed: Vec<String> = locked(&self.0.unnamed).keys().filter_map(|name| inside(name)).collect();
        let named = self.0.medium.list(&folder).map_err(|error| io_error(&error))?;
        let removed = &locked(&self.0.names).removed;
        let named = named.iter().filter(|name| !removed.contains_key(*name));
        let mut names: Vec<String> = named.filter_map(|name| inside(name)).chain(unnamed).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn lock(&self, _name: &str, _hold: LockKind) -> io::Result<Box<dyn HeldLock>> {
        self.0.medium.check().map_err(|error| io_error(&error))?;
        Ok(Box::new(MediumLock))
    }

    fn open(&self, name: &str, _access: FileAccess) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(file) = locked(&self.0.unnamed).get(name) {
            return Ok(Arc::clone(file) as Arc<dyn DiskFile>);
        }
        if locked(&self.0.names).removed.contains_key(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        match self.0.medium.find(name).map_err(|error| io_error(&error))? {
            Some(NamedFile { id, bytes }) => {
                let kept = match kind_of(name) {
                    FileKind::Journal => KeptAs::Pieces(FileKind::Journal),
                    FileKind::Blob => KeptAs::Whole,
                };
                let file = self.0.file(id, kept, bytes);
                if matches!(file.kept, KeptAs::Whole) {
                    self.0.opened(name, &file);
                }
                Ok(file)
            }
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let _ = self.0.sweep(); // it is tried again at the next removal
        let kept = match name.ends_with(SPILL) {
            true => KeptAs::Here(tempfile::tempfile()?),
            false => KeptAs::Pieces(kind_of(name)),
        };
        let file = self.0.file(self.0.next(), kept, 0);
        locked(&self.0.unnamed).insert(name.to_owned(), Arc::clone(&file));
        Ok(file)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        // The only names that change are those of new files.
        let unnamed = locked(&self.0.unnamed).get(from).cloned();
        let file = unnamed.ok_or(io::ErrorKind::NotFound)?;
        file.sync_data()?;
        let named = self.0.medium.give_name(to, file.id, kind_of(to), file.bytes.load(SeqCst));
        named.map_err(|error| io_error(&error))?;
        locked(&self.0.unnamed).remove(from);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let unnamed = locked(&self.0.unnamed).remove(name);
        if let Some(file) = unnamed {
            return match file.kept {
                KeptAs::Here(_) => Ok(()),
                KeptAs::Pieces(_) | KeptAs::Whole => {
                    self.0.medium.discard(file.id).map_err(|error| io_error(&error))
                }
            };
        }
        self.0.sweep()?;
        {
            let mut names = locked(&self.0.names);
            if names.removed.contains_key(name) {
                return Err(io::ErrorKind::NotFound.into());
            }
            if let Some(files) = names
                .open
                .remove(name)
                .filter(|files| is_open(files) && !mutant::is(Mutant::RemovedWhileRead))
            {
                names.removed.insert(name.to_owned(), files);
                return Ok(());
            }
        }
        match self.0.medium.remove(name).map_err(|error| io_error(&error))? {
            true => Ok(()),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn sync_dir(&self, _dir: &str) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.0.medium.free_bytes())
    }

    fn unique(&self) -> u64 {
        // Without random bytes a number of this owner's own: it can be guessed, and is given once.
        self.0.medium.unique().unwrap_or_else(|_| self.0.next().0)
    }

    fn secret(&self) -> io::Result<[u64; 2]> {
        let draw = || self.0.medium.unique().map_err(io::Error::other);
        Ok([draw()?, draw()?])
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn least_epoch(&self) -> Epoch {
        self.0.medium.epoch()
    }
}

impl MediumFile {
    /// Sends what waits.
    fn send(&self, kind: FileKind) -> io::Result<()> {
        let sent = &self.files.sent;
        let (pieces, upto) = {
            let mut waiting = locked(&self.waiting);
            (waiting.take(), sent.written())
        };
        if pieces.is_empty() {
            return Ok(());
        }
        let write = || self.files.medium.write(self.id, kind, pieces);
        let written = match kind {
            FileKind::Journal => sent.send(upto, write),
            FileKind::Blob => write().map(drop),
        };
        written.map_err(|error| io_error(&error))
    }
}

impl DiskFile for MediumFile {
    fn size(&self) -> io::Result<u64> {
        match &self.kept {
            KeptAs::Here(file) => Ok(file.metadata()?.len()),
            KeptAs::Pieces(_) | KeptAs::Whole => Ok(self.bytes.load(SeqCst)),
        }
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        if let KeptAs::Here(file) = &self.kept {
            return file.read_exact_at(buffer, at);
        }
        let size = self.bytes.load(SeqCst);
        if at.saturating_add(buffer.len() as u64) > size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if buffer.is_empty() {
            return Ok(());
        }
        let (files, length) = (&self.files, buffer.len());
        let read = if matches!(self.kept, KeptAs::Whole) && length <= MAX_CACHED {
            files.read_cached(self.id, at, length, size)
        } else {
            files.medium.read(self.id, at, length)
        };
        buffer.copy_from_slice(&read.map_err(|error| io_error(&error))?);
        locked(&self.waiting).lay_over(buffer, at);
        Ok(())
    }

    fn read_at_hand(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        let whole = matches!(self.kept, KeptAs::Whole) && !buffer.is_empty() && buffer.len() <= MAX_CACHED;
        match self.kept {
            KeptAs::Here(_) => self.read_at(buffer, at),
            _ if whole && self.files.is_cached(self.id, at, buffer.len()) => self.read_at(buffer, at),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        if let KeptAs::Here(file) = &self.kept {
            return file.write_all_at(bytes, at);
        }
        self.bytes.fetch_max(at + bytes.len() as u64, SeqCst);
        let waiting = {
            let mut waiting = locked(&self.waiting);
            waiting.write(at, bytes);
            if matches!(self.kept, KeptAs::Pieces(FileKind::Journal)) {
                self.files.sent.written.fetch_add(1, SeqCst);
            }
            waiting.bytes()
        };
        // A journal is sent when it is synced: at once if at all.
        match self.kept {
            KeptAs::Pieces(kind @ FileKind::Blob) if waiting >= SEND => self.send(kind),
            _ => Ok(()),
        }
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.bytes.fetch_max(bytes, SeqCst);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        match self.kept {
            KeptAs::Pieces(kind) => self.send(kind),
            KeptAs::Whole => self.send(FileKind::Blob),
            KeptAs::Here(_) => Ok(()),
        }
    }
}

impl fmt::Debug for MediumDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MediumDisk").field("medium", &self.0.medium).finish_non_exhaustive()
    }
}

impl fmt::Debug for MediumFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MediumFile")
            .field("shard", &self.files.shard)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Size of a block.
pub(crate) const BLOCK: u64 = 64 * 1024;
/// Number of blocks of a process: 32 MiB.
const BLOCKS: usize = 512;

/// The blocks that the stores of a process share, by shard, file and number.
pub struct BlockCache(Mutex<LruCache<(u32, FileId, u64), Bytes>>);

impl BlockCache {
    pub(crate) fn get(&self, shard: u32, file: FileId, no: u64) -> Option<Bytes> {
        self.blocks().get(&(shard, file, no)).cloned()
    }

    /// Whether a block is here. That alone does not keep it.
    pub(crate) fn has(&self, shard: u32, file: FileId, no: u64) -> bool {
        self.blocks().contains(&(shard, file, no))
    }

    pub(crate) fn put(&self, shard: u32, file: FileId, no: u64, block: Bytes) {
        self.blocks().put((shard, file, no), block);
    }

    fn blocks(&self) -> MutexGuard<'_, LruCache<(u32, FileId, u64), Bytes>> {
        locked(&self.0)
    }
}

impl Default for BlockCache {
    fn default() -> Self {
        BlockCache(Mutex::new(LruCache::new(NonZeroUsize::new(BLOCKS).unwrap_or(NonZeroUsize::MIN))))
    }
}

impl std::fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockCache").field("blocks", &self.blocks().len()).finish()
    }
}

// Pieces of files that wait to be written, and pieces that were read.

/// Largest size of a piece, in bytes.
pub const MAX_PIECE: usize = 1024 * 1024;

/// Bytes that wait to be written.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    rows: Vec<(u64, Vec<u8>)>,
    bytes: usize,
    /// No piece begins before this offset and ends behind it; 0: any may.
    apart: u64,
}

impl Pieces {
    /// No pieces, of a file whose first bytes, up to this offset, are written again: they are a piece of their own.
    pub(crate) fn with_head(apart: u64) -> Self {
        Pieces { apart, ..Pieces::default() }
    }

    /// Takes what waits, in the order in which it was written.
    pub(crate) fn take(&mut self) -> Vec<Piece> {
        self.bytes = 0;
        std::mem::take(&mut self.rows).into_iter().map(|(at, bytes)| Piece { at, bytes }).collect()
    }

    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds bytes at an offset: behind the last piece if they follow it, and in place of what waits at the same offset.
    pub(crate) fn write(&mut self, mut at: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = self.write_some(at, bytes);
            at += taken as u64;
            bytes = &bytes[taken..];
        }
    }

    fn write_some(&mut self, at: u64, mut bytes: &[u8]) -> usize {
        if at < self.apart {
            let before = usize::try_from(self.apart - at).unwrap_or(usize::MAX);
            bytes = &bytes[..bytes.len().min(before)];
        }
        if let Some((from, row)) = self.rows.last_mut()
            && *from + row.len() as u64 == at
            && row.len() < MAX_PIECE
            && at != self.apart
        {
            let taken = bytes.len().min(MAX_PIECE - row.len());
            row.extend_from_slice(&bytes[..taken]);
            self.bytes += taken;
            return taken;
        }
        let taken = bytes.len().min(MAX_PIECE);
        let bytes = &bytes[..taken];
        // No write may have two pieces at one offset.
        if let Some((_, row)) = self.rows.iter_mut().find(|(from, _)| *from == at) {
            let kept = row.len().min(taken);
            row[..kept].copy_from_slice(&bytes[..kept]);
            row.extend_from_slice(&bytes[kept..]);
            self.bytes += taken - kept;
        } else {
            self.rows.push((at, bytes.to_vec()));
            self.bytes += taken;
        }
        taken
    }

    /// Puts what waits over what was read.
    pub(crate) fn lay_over(&self, buffer: &mut [u8], at: u64) {
        for (from, row) in &self.rows {
            lay_over(buffer, at, *from, row);
        }
    }
}

/// Copies the part of a piece at `from` that a buffer, of the bytes from `at` on, covers.
pub fn lay_over(buffer: &mut [u8], at: u64, from: u64, row: &[u8]) {
    let end = at + buffer.len() as u64;
    let (begin, stop) = (from.max(at), (from + row.len() as u64).min(end));
    if begin >= stop {
        return;
    }
    let index = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    buffer[index(begin - at)..index(stop - at)]
        .copy_from_slice(&row[index(begin - from)..index(stop - from)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_pieces_join_within_limit() {
        let mut pieces = Pieces::default();
        pieces.write(0, &[1; 10]);
        pieces.write(10, &vec![2; MAX_PIECE]);
        pieces.write(4_000_000, &[3; 5]);
        pieces.write(0, &[4; 12]);
        assert_eq!(pieces.bytes(), 10 + MAX_PIECE + 5);
        let mut read = vec![9; 20];
        pieces.lay_over(&mut read, 0);
        assert_eq!(read, [&[4; 12][..], &[2; 8]].concat());
        let pieces = pieces.take();
        let lengths: Vec<_> = pieces.iter().map(|piece| (piece.at, piece.bytes.len())).collect();
        assert_eq!(lengths, [(0, MAX_PIECE), (MAX_PIECE as u64, 10), (4_000_000, 5)]);
    }

    /// Story: a header and the groups behind it were one piece. When the header was written again, PostgreSQL replaced
    /// the whole piece.
    #[test]
    fn head_is_separate_piece() {
        let mut pieces = Pieces::with_head(100);
        let lengths = |pieces: &mut Pieces| {
            pieces.take().iter().map(|piece| (piece.at, piece.bytes.len())).collect::<Vec<_>>()
        };
        pieces.write(0, &[1; 100]);
        pieces.write(100, &[2; 30]);
        pieces.write(130, &[3; 30]);
        assert_eq!(lengths(&mut pieces), [(0, 100), (100, 60)]);
        pieces.write(0, &[1; 130]);
        assert_eq!((lengths(&mut pieces), pieces.bytes()), (vec![(0, 100), (100, 30)], 0));
        pieces.write(130, &[1; 30]);
        assert_eq!(lengths(&mut pieces), [(130, 30)]);
    }

    #[test]
    fn parts_of_rows_are_laid_over() {
        let mut buffer = [0; 10];
        lay_over(&mut buffer, 100, 95, &[1; 7]);
        lay_over(&mut buffer, 100, 108, &[2; 7]);
        lay_over(&mut buffer, 100, 110, &[3; 7]);
        lay_over(&mut buffer, 100, 10, &[3; 90]);
        assert_eq!(buffer, [1, 1, 0, 0, 0, 0, 0, 0, 2, 2]);
    }
}
