//! The damaged folder: its valid files, by the manifest or else by the files themselves, and their whole blocks.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use duewheel_core::store::StoreError;
use duewheel_core::{Epoch, Lsn};

use crate::disk::{Disk, DiskFile, FileAccess};
use crate::fault::{Damage, failed, lock, note};
use crate::format::{
    FileNo, Incarnation, JOURNAL, MANIFEST, RUNS, STATE, align8, check_block, checksum, u32_at, u64_at,
};
use crate::manifest::{Manifest, RunEntry, SegmentEntry, StateEntry};
use crate::salvage::report::SalvageReport;

/// The files to read.
#[derive(Debug)]
pub(super) struct SalvageFiles {
    pub(super) epoch: Epoch,
    pub(super) proven: Lsn,
    pub(super) segments: Vec<SegmentEntry>,
    /// Runs, oldest first.
    pub(super) runs: Vec<RunEntry>,
    /// The files of the state, as the manifest lists them.
    pub(super) states: Vec<StateEntry>,
    /// Runs and files of the state with damaged heads; not looked for if there is a manifest.
    headless: BTreeSet<FileNo>,
    /// The source of the list.
    pub(super) by: ListingSource,
}

/// The source of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListingSource {
    Manifest,
    Files,
}

impl SalvageFiles {
    pub(super) fn read(source: &ReadOnlyDisk<'_>, report: &mut SalvageReport) -> Result<Self, StoreError> {
        Manifest::known_format(source)?;
        if let Some(Some(manifest)) = note(Manifest::read(source), &mut report.damage)? {
            let Manifest { epoch, proven, segments, runs, states, .. } = manifest;
            let (headless, by) = (BTreeSet::new(), ListingSource::Manifest);
            return Ok(SalvageFiles { epoch, proven, segments, runs, states, headless, by });
        }
        if report.damage.is_empty() {
            report.damage.push(Damage::new(MANIFEST, 0, "the manifest is missing"));
        }
        let (epoch, proven) = (Epoch(0), Lsn(0));
        let mut listing = SalvageFiles {
            epoch,
            proven,
            segments: Vec::new(),
            runs: Vec::new(),
            states: Vec::new(),
            headless: BTreeSet::new(),
            by: ListingSource::Files,
        };
        for (no, name) in numbered(source, JOURNAL, ".log")? {
            // A segment without a header is asked for its first frame.
            let (head, bytes) = head_of(source, &name, 4096 + 24)?;
            let incarnation = match head.len() >= 40 && u64_at(&head, 16) == no.0 {
                true => u64_at(&head, 24),
                false if head.len() >= 4096 + 24 => u64_at(&head, 4096 + 16),
                false => continue,
            };
            listing.segments.push(SegmentEntry { no, incarnation: Incarnation(incarnation), bytes });
        }
        for (no, name) in numbered(source, RUNS, ".run")? {
            let StateEntry { incarnation, bytes, last, .. } =
                listing.block_file(source, no, &name, report)?.entry;
            listing.runs.push(RunEntry { no, incarnation, bytes, last, tail: None });
        }
        listing.runs.sort_unstable_by_key(|run| (run.last, run.no));
        listing.find_states(source, report)?;
        Ok(listing)
    }

    /// Finds the files of the state: the last one, and those that it continues. Missing files are also listed.
    fn find_states(
        &mut self,
        source: &ReadOnlyDisk<'_>,
        report: &mut SalvageReport,
    ) -> Result<(), StoreError> {
        let mut wanted: Option<StateEntry> = None;
        for (no, name) in numbered(source, STATE, ".state")?.into_iter().rev() {
            if wanted.is_some_and(|wanted| no > wanted.no) {
                continue; // no file continues it any more
            }
            // Instead of a missing file the next older one is read: what it says is old, but not wrong.
            self.states.extend(wanted.filter(|wanted| wanted.no != no));
            let head = self.block_file(source, no, &name, report)?;
            self.states.push(head.entry);
            wanted = head.continues;
            if head.is_right && wanted.is_none() {
                break;
            }
        }
        self.states.extend(wanted);
        self.states.reverse();
        Ok(())
    }

    /// Reads the head of a run or of a file of the state, or else its first block. Damage is noted.
    fn block_file(
        &mut self,
        source: &ReadOnlyDisk<'_>,
        no: FileNo,
        name: &str,
        report: &mut SalvageReport,
    ) -> Result<BlockFileHead, StoreError> {
        let (head, bytes) = head_of(source, name, FILE_HEAD + HEAD as u64)?;
        let is_right = head.len() >= FIRST_BLOCK
            && checksum(&head[..FIRST_BLOCK]) == u32_at(&head, 12)
            && u64_at(&head, 16) == no.0;
        let is_block = head.len() >= FIRST_BLOCK + HEAD && u64_at(&head, FIRST_BLOCK + 24) == FILE_HEAD;
        let incarnation = Incarnation(match head.len() {
            length if length < FIRST_BLOCK => 0,
            _ if is_block && !is_right => u64_at(&head, FIRST_BLOCK + 16),
            _ => u64_at(&head, 24),
        });
        if !is_right {
            self.headless.insert(no);
            let what = match head.len() {
                length if length < FIRST_BLOCK => format!("the file has only {length} bytes"),
                _ => "the head is damaged".into(),
            };
            report.damage.push(Damage::new(name, 0, what));
            let entry = StateEntry { no, incarnation, bytes, last: Lsn(0) };
            return Ok(BlockFileHead { is_right, entry, continues: None });
        }
        let (before, its) = (FileNo(u64_at(&head, 40)), Incarnation(u64_at(&head, 48)));
        let continues = StateEntry { no: before, incarnation: its, bytes: 0, last: Lsn(0) };
        Ok(BlockFileHead {
            is_right,
            entry: StateEntry { no, incarnation, bytes, last: Lsn(u64_at(&head, 32)) },
            continues: Some(continues).filter(|before| before.no.0 > 0),
        })
    }

    /// Whether the files of the state are all that there were, including the newest. The manifest proves that, or else
    /// the runs do: all that the state names are there, and no run is newer than the state. (An older run that the
    /// state does not name was merged, or is the output of a merge whose inputs are all there.)
    pub(super) fn proves_state(&self, named: &BTreeSet<FileNo>) -> bool {
        if self.by == ListingSource::Manifest {
            return true;
        }
        let last = self.states.last().map_or(Lsn(0), |state| state.last);
        let found: BTreeSet<FileNo> = self.runs.iter().map(|run| run.no).collect();
        let is_old = |run: &RunEntry| {
            run.last <= last && (named.contains(&run.no) || !self.headless.contains(&run.no))
        };
        named.is_subset(&found)
            && self.runs.iter().all(is_old)
            && !self.states.iter().any(|state| self.headless.contains(&state.no))
    }

    /// Lists the runs that the state names and that are missing, as if a manifest listed them.
    pub(super) fn add_missing(&mut self, named: impl Iterator<Item = FileNo>) {
        let found: BTreeSet<FileNo> = self.runs.iter().map(|run| run.no).collect();
        let missing = named.filter(|no| !found.contains(no));
        let entry = |no| RunEntry { no, incarnation: Incarnation(0), bytes: 0, last: Lsn(0), tail: None };
        self.runs.splice(0..0, missing.map(entry));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.runs.is_empty() && self.states.is_empty()
    }

    /// The last cut, as far as it is known: every record up to here is in the runs and in the books.
    pub(super) fn cut(&self) -> Lsn {
        let runs = self.runs.iter().map(|run| run.last);
        runs.chain(self.states.iter().map(|state| state.last)).max().unwrap_or(Lsn(0))
    }
}

/// Start of the first block of a run or of a state.
const FIRST_BLOCK: usize = 64;

/// The head of a run or of a file of the state.
struct BlockFileHead {
    /// Whether this is from a whole head. If not, only the incarnation is known, if that.
    is_right: bool,
    entry: StateEntry,
    /// The file that a file of the state continues.
    continues: Option<StateEntry>,
}

/// The first bytes of a file, and its size.
fn head_of(source: &ReadOnlyDisk<'_>, name: &str, bytes: u64) -> Result<(Vec<u8>, u64), StoreError> {
    let file = source.open(name, FileAccess::Read).map_err(failed("open", name))?;
    let size = file.size().map_err(failed("measure", name))?;
    let mut head = vec![0; usize::try_from(size.min(bytes)).unwrap_or(0)];
    file.read_at(&mut head, 0).map_err(failed("read", name))?;
    Ok((head, size))
}

/// The files of a folder by their numbers.
fn numbered(source: &ReadOnlyDisk<'_>, dir: &str, ending: &str) -> Result<Vec<(FileNo, String)>, StoreError> {
    let mut files = Vec::new();
    for name in source.list(dir).map_err(failed("list", dir))? {
        let no = name.strip_suffix(ending).and_then(|no| no.parse().ok());
        files.extend(no.map(|no| (FileNo(no), format!("{dir}/{name}"))));
    }
    files.sort_unstable();
    Ok(files)
}

// The damaged folder: nothing is written to it, and a place that cannot be read is read as zeros.

/// Number of bytes that are given up together when the disk cannot read them.
const PAGE: usize = 4096;

/// A disk that refuses to write. Unreadable bytes are read as zeros, which no checksum accepts.
#[derive(Debug)]
pub(super) struct ReadOnlyDisk<'a> {
    disk: &'a dyn Disk,
    unreadable: Arc<Mutex<Vec<(String, u64)>>>,
}

impl<'a> ReadOnlyDisk<'a> {
    pub(super) fn new(disk: &'a dyn Disk) -> Self {
        ReadOnlyDisk { disk, unreadable: Arc::default() }
    }

    /// Pages that the disk could not read.
    pub(super) fn unreadable(&self) -> Vec<Damage> {
        let mut places = lock(&self.unreadable).clone();
        places.sort_unstable();
        places.dedup();
        places.into_iter().map(|(file, at)| Damage::new(file, at, "the disk cannot read this page")).collect()
    }
}

#[derive(Debug)]
struct ReadOnlyFile {
    file: Arc<dyn DiskFile>,
    name: String,
    unreadable: Arc<Mutex<Vec<(String, u64)>>>,
}

impl Disk for ReadOnlyDisk<'_> {
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        match self.disk.list(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            other => other,
        }
    }

    fn open(&self, name: &str, _: FileAccess) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.disk.open(name, FileAccess::Read)?;
        Ok(Arc::new(ReadOnlyFile { file, name: name.into(), unreadable: self.unreadable.clone() }))
    }
}

impl DiskFile for ReadOnlyFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        if self.file.read_at(buffer, at).is_ok() {
            return Ok(());
        }
        // Page by page as the disk has them, so that a bad one costs no other.
        let mut page_at = at;
        let first = usize::try_from(at % PAGE as u64).map_or(PAGE, |into| PAGE - into).min(buffer.len());
        let (first, others) = buffer.split_at_mut(first);
        for page in std::iter::once(first).chain(others.chunks_mut(PAGE)) {
            if self.file.read_at(page, page_at).is_err() {
                page.fill(0);
                let mut unreadable = lock(&self.unreadable);
                unreadable.push((self.name.clone(), page_at));
            }
            page_at += page.len() as u64;
        }
        Ok(())
    }
}

// The whole blocks of a run or of a state, wherever they are in the file.

/// Length of the head, before the blocks, in both kinds of files.
pub(super) const FILE_HEAD: u64 = 64;
/// Length of the head of a block.
pub(super) const HEAD: usize = 32;
const PIECE: usize = 1024 * 1024;

/// A block with a correct checksum, at the place that it names.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) at: u64,
    pub(super) kind: u8,
    pub(super) entries: u32,
    pub(super) payload: Bytes,
}

/// Reads a file forward. Bytes that are in no block are skipped, and their position is recorded.
#[derive(Debug)]
pub(super) struct Blocks {
    file: Arc<dyn DiskFile>,
    name: String,
    size: u64,
    incarnation: Incarnation,
    at: u64,
    piece: Bytes,
    piece_at: u64,
    /// Ranges without a whole block.
    pub(super) gaps: Vec<(u64, u64)>,
}

impl Blocks {
    pub(super) fn new(
        file: Arc<dyn DiskFile>,
        name: String,
        incarnation: Incarnation,
    ) -> Result<Self, StoreError> {
        let size = file.size().map_err(failed("measure", &name))?;
        let (piece, gaps) = (Bytes::new(), Vec::new());
        Ok(Blocks { file, name, size, incarnation, at: FILE_HEAD, piece, piece_at: 0, gaps })
    }

    pub(super) fn next(&mut self) -> Result<Option<Block>, StoreError> {
        let from = self.at;
        while self.at + HEAD as u64 <= self.size {
            if let Some(block) = self.block()? {
                if from < self.at {
                    self.gaps.push((from, self.at));
                }
                self.at += align8(HEAD + block.payload.len()) as u64;
                return Ok(Some(block));
            }
            self.at += 8;
        }
        if from < self.size {
            self.gaps.push((from, self.size));
        }
        self.at = self.size;
        Ok(None)
    }

    fn block(&mut self) -> Result<Option<Block>, StoreError> {
        let at = self.at;
        let head = self.bytes(HEAD)?;
        if u64_at(&head, 16) != self.incarnation.0 || u64_at(&head, 24) != at || head[9..12] != [0; 3] {
            return Ok(None);
        }
        let payload = u32_at(&head, 4) as usize;
        let length = align8(HEAD + payload);
        if length as u64 > self.size - at {
            return Ok(None);
        }
        let bytes = self.bytes(length)?;
        let Ok((kind, entries)) = check_block(&bytes, self.incarnation, at) else { return Ok(None) };
        let payload = bytes.slice(HEAD..HEAD + payload);
        Ok(Some(Block { at, kind, entries, payload }))
    }

    /// Reads bytes at the present position; the file must have them.
    fn bytes(&mut self, length: usize) -> Result<Bytes, StoreError> {
        let skip = self.at.checked_sub(self.piece_at).and_then(|skip| usize::try_from(skip).ok());
        if let Some(skip) = skip.filter(|skip| skip + length <= self.piece.len()) {
            return Ok(self.piece.slice(skip..skip + length));
        }
        let left = usize::try_from(self.size - self.at).unwrap_or(usize::MAX);
        let mut piece = vec![0; PIECE.max(length).min(left)];
        self.file.read_at(&mut piece, self.at).map_err(failed("read", &self.name))?;
        (self.piece, self.piece_at) = (piece.into(), self.at);
        Ok(self.piece.slice(..length))
    }
}
