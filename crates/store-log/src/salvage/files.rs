//! The valid files of the damaged folder: by the manifest, or else by the files themselves.

use std::collections::BTreeSet;

use crc32c::{crc32c, crc32c_append};
use duewheel_core::store::StoreError;
use duewheel_core::{Epoch, Lsn};

use super::blocks::{FILE_HEAD, HEAD};
use super::read_only::ReadOnlyDisk;
use super::report::{SalvageReport, note};
use crate::disk::{Disk, FileAccess};
use crate::fault::{Damage, failed};
use crate::folder::{FileNo, Incarnation, JOURNAL, MANIFEST, RUNS, STATE};
use crate::le::{u32_at, u64_at};
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
        if let Some(Some(manifest)) = note(Manifest::read(source), report)? {
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
            let head = head_of(source, &name, FILE_HEAD + HEAD as u64)?;
            let stated = listing.block_file(&head, no, &name, report);
            let (incarnation, last) = (stated.incarnation, stated.last);
            listing.runs.push(RunEntry { no, incarnation, bytes: head.size, last, tail: None });
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
            let head = head_of(source, &name, FILE_HEAD + HEAD as u64)?;
            let stated = self.block_file(&head, no, &name, report);
            self.states.push(StateEntry {
                no,
                incarnation: stated.incarnation,
                bytes: head.size,
                last: stated.last,
            });
            wanted = stated.continues;
            if stated.is_right && wanted.is_none() {
                break;
            }
        }
        self.states.extend(wanted);
        self.states.reverse();
        Ok(())
    }

    /// Reads the head of a run or of a file of the state; damage is noted.
    fn block_file(
        &mut self,
        head: &FileHead,
        no: FileNo,
        name: &str,
        report: &mut SalvageReport,
    ) -> BlockFileHead {
        let stated = head.block_file(no);
        if !stated.is_right {
            self.headless.insert(no);
            let what = match head.bytes.len() {
                bytes if bytes < FIRST_BLOCK => format!("the file has only {bytes} bytes"),
                _ => "the head is damaged".into(),
            };
            report.damage.push(Damage::new(name, 0, what));
        }
        stated
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

struct FileHead {
    size: u64,
    bytes: Vec<u8>,
}

/// The head of a run or of a file of the state.
struct BlockFileHead {
    /// Whether this is from a whole head. If not, only the incarnation is known, if that.
    is_right: bool,
    incarnation: Incarnation,
    last: Lsn,
    /// The file that a file of the state continues.
    continues: Option<StateEntry>,
}

impl FileHead {
    /// Decodes the head of a run or of a state, or else its first block.
    fn block_file(&self, no: FileNo) -> BlockFileHead {
        let bytes = &self.bytes;
        let (mut incarnation, mut last, mut continues) = (Incarnation(0), Lsn(0), None);
        let is_right = bytes.len() >= FIRST_BLOCK
            && head_checksum(bytes) == u32_at(bytes, 12)
            && u64_at(bytes, 16) == no.0;
        if is_right {
            (incarnation, last) = (Incarnation(u64_at(bytes, 24)), Lsn(u64_at(bytes, 32)));
            let before = FileNo(u64_at(bytes, 40));
            let its = Incarnation(u64_at(bytes, 48));
            let entry = StateEntry { no: before, incarnation: its, bytes: 0, last: Lsn(0) };
            continues = Some(entry).filter(|_| before.0 > 0);
        } else if bytes.len() >= FIRST_BLOCK + HEAD && u64_at(bytes, FIRST_BLOCK + 24) == FIRST_BLOCK as u64 {
            incarnation = Incarnation(u64_at(bytes, FIRST_BLOCK + 16));
        } else if bytes.len() >= FIRST_BLOCK {
            incarnation = Incarnation(u64_at(bytes, 24));
        }
        BlockFileHead { is_right, incarnation, last, continues }
    }
}

/// The checksum of the head of a run or of a state.
fn head_checksum(bytes: &[u8]) -> u32 {
    crc32c_append(crc32c(&bytes[..12]), &bytes[16..FIRST_BLOCK])
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
