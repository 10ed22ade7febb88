//! The valid files of the damaged folder: by the manifest, or else by the files themselves.

use duewheel_core::store::StoreError;
use duewheel_core::{Epoch, Lsn};

use super::blocks::FILE_HEAD;
use super::read_only::ReadOnlyDisk;
use super::report::{SalvageReport, note};
use crate::disk::{Disk, FileAccess};
use crate::fault::{Damage, failed};
use crate::folder::{FileNo, Incarnation, JOURNAL, MANIFEST, RUNS, STATE};
use crate::le::u64_at;
use crate::manifest::{Manifest, RunEntry, SegmentEntry, StateEntry};

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
        if let Some(Some(manifest)) = note(Manifest::read(source), report)? {
            let Manifest { epoch, proven, segments, runs, states, .. } = manifest;
            return Ok(SalvageFiles { epoch, proven, segments, runs, states, by: ListingSource::Manifest });
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
            by: ListingSource::Files,
        };
        for (no, name) in numbered(source, JOURNAL, ".log")? {
            // A segment without a header is asked for its first frame.
            let head = head_of(source, &name, 4096 + 24)?;
            let own = head.bytes.len() >= 40 && u64_at(&head.bytes, 16) == no.0;
            let incarnation = match own {
                true => u64_at(&head.bytes, 24),
                false if head.bytes.len() >= 4096 + 24 => u64_at(&head.bytes, 4096 + 16),
                false => continue,
            };
            listing.segments.push(SegmentEntry {
                no,
                incarnation: Incarnation(incarnation),
                bytes: head.size,
            });
        }
        for (no, name) in numbered(source, RUNS, ".run")? {
            let head = head_of(source, &name, FILE_HEAD + 24)?;
            let Some((incarnation, last)) = head.block_file(no) else { continue };
            listing.runs.push(RunEntry { no, incarnation, bytes: head.size, last, tail: None });
        }
        listing.runs.sort_unstable_by_key(|run| (run.last, run.no));
        listing.states = states(source)?;
        Ok(listing)
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

/// The files of the state: the last one, and those that it continues, as far as they are there.
fn states(source: &ReadOnlyDisk<'_>) -> Result<Vec<StateEntry>, StoreError> {
    let mut states = Vec::new();
    let mut wanted = None;
    for (no, name) in numbered(source, STATE, ".state")?.into_iter().rev() {
        if wanted.is_some_and(|wanted| wanted != no) {
            continue;
        }
        let head = head_of(source, &name, FILE_HEAD + 24)?;
        let Some((incarnation, last)) = head.block_file(no) else { continue };
        states.push(StateEntry { no, incarnation, bytes: head.size, last });
        match head.continues(no) {
            Some(FileNo(0)) => break,
            before => wanted = before,
        }
    }
    states.reverse();
    Ok(states)
}

/// Start of the first block of a run or of a state.
const FIRST_BLOCK: usize = 64;

struct FileHead {
    size: u64,
    bytes: Vec<u8>,
}

impl FileHead {
    /// Incarnation and position of a run or of a state: from its head, or from its first block.
    fn block_file(&self, no: FileNo) -> Option<(Incarnation, Lsn)> {
        if self.bytes.len() < FIRST_BLOCK + 24 {
            return None;
        }
        if u64_at(&self.bytes, 16) == no.0 {
            return Some((Incarnation(u64_at(&self.bytes, 24)), Lsn(u64_at(&self.bytes, 32))));
        }
        Some((Incarnation(u64_at(&self.bytes, FIRST_BLOCK + 16)), Lsn(0)))
    }

    /// The file that a file of the state continues: 0 if none. `None` if its head is damaged.
    fn continues(&self, no: FileNo) -> Option<FileNo> {
        (u64_at(&self.bytes, 16) == no.0).then(|| FileNo(u64_at(&self.bytes, 40)))
    }
}

fn head_of(source: &ReadOnlyDisk<'_>, name: &str, bytes: u64) -> Result<FileHead, StoreError> {
    let file = source.open(name, FileAccess::Read).map_err(failed("open", name))?;
    let size = file.size().map_err(failed("measure", name))?;
    let mut head = vec![0; usize::try_from(size.min(bytes)).unwrap_or(0)];
    file.read_at(&mut head, 0).map_err(failed("read", name))?;
    Ok(FileHead { size, bytes: head })
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
