//! The manifest lists the valid files; it is replaced as a whole, so that a change of several files is one change.

use duewheel_core::hash_key::HashKey;
use duewheel_core::store::{ErrorKind, StoreError};
use duewheel_core::{Epoch, Lsn};

use crate::disk::Disk;
use crate::fault::{Damage, ReadFault, failed};
use crate::format::{
    self, FORMAT, FileNo, Incarnation, MANIFEST, MANIFEST_TEMP, RESERVE, is_before_release, set_u32, set_u64,
    u32_at, u64_at,
};
use crate::run::filter::NameHasher;

pub(crate) const MAGIC: [u8; 8] = *b"duewmani";
const HEAD: usize = 72;
/// The flag of [`Manifest::is_closed`].
const CLOSED: u32 = 1;
const SEGMENT: usize = 24;
const RUN: usize = 40;
const STATE: usize = 32;
/// Stands for the start of a tail that is not known.
const UNKNOWN: u64 = 0;
/// A sanity bound of numbers of files and records; no real store reaches it.
const MOST: u64 = 1 << 62;

/// The list of a store's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// The highest epoch given so far.
    pub(crate) epoch: Epoch,
    /// The number of the next file.
    pub(crate) next_file: FileNo,
    /// The highest LSN known durable when this manifest was written: evidence outside of the journal.
    pub(crate) proven: Lsn,
    /// Whether the last owner closed the folder, or it is a whole copy.
    pub(crate) is_closed: bool,
    /// The secret seed of the hashes of keys and dedupe ids, drawn when the folder was made. It never changes, because
    /// runs hold such hashes; a copy of the folder has it, too.
    pub(crate) seed: HashKey,
    /// Segments, ascending; those that hold frames first, then those prepared for later.
    pub(crate) segments: Vec<SegmentEntry>,
    /// Runs, oldest first; not by number, because a merged run is newer than its position.
    pub(crate) runs: Vec<RunEntry>,
    /// The books as of the last cut, and the removed rows of the runs: a file with all of that, then those with what is
    /// different since the one before. Present after the first cut.
    pub(crate) states: Vec<StateEntry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentEntry {
    pub(crate) no: FileNo,
    pub(crate) incarnation: Incarnation,
    /// Size of the file.
    pub(crate) bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunEntry {
    pub(crate) no: FileNo,
    pub(crate) incarnation: Incarnation,
    /// Size of the file.
    pub(crate) bytes: u64,
    /// The last record that it includes.
    pub(crate) last: Lsn,
    /// Start of its tail; `None` if no manifest lists it, until it has been opened.
    pub(crate) tail: Option<u64>,
}

/// A file of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateEntry {
    pub(crate) no: FileNo,
    pub(crate) incarnation: Incarnation,
    /// Size of the file.
    pub(crate) bytes: u64,
    /// The last cut: with this file, every record up to here is in the runs and in the books.
    pub(crate) last: Lsn,
}

/// A manifest was not replaced, or its state is unknown.
#[derive(Debug)]
pub(crate) enum NotReplaced {
    /// The old one is valid.
    Kept(StoreError),
    /// A crash may leave either: no file that either needs may be touched any more.
    Unsure(StoreError),
}

impl Manifest {
    /// The manifest of a new folder with this seed.
    pub(crate) fn empty(seed: HashKey) -> Self {
        Manifest {
            epoch: Epoch(0),
            next_file: FileNo(1),
            proven: Lsn(0),
            is_closed: false,
            seed,
            segments: Vec::new(),
            runs: Vec::new(),
            states: Vec::new(),
        }
    }

    /// The manifest of a folder that is made on this disk, with a seed of its own.
    pub(crate) fn drawn(disk: &dyn Disk) -> Result<Self, StoreError> {
        let seed = disk.secret().map_err(failed("draw a seed for", MANIFEST))?;
        Ok(Manifest::empty(HashKey::new(seed)))
    }

    /// The hashes of keys and dedupe ids in this folder.
    pub(crate) fn hasher(&self) -> NameHasher {
        NameHasher::new(self.seed)
    }

    /// Bytes of the state, at least as many as one file with all of it would have.
    pub(crate) fn state_bytes(&self) -> u64 {
        self.states.iter().map(|state| state.bytes).fold(0, u64::saturating_add)
    }

    /// Bytes of the runs.
    pub(crate) fn run_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes).fold(0, u64::saturating_add)
    }

    /// The names of all files that it lists.
    pub(crate) fn files(&self) -> impl Iterator<Item = String> + '_ {
        let segments = self.segments.iter().map(|s| s.no.segment());
        segments
            .chain(self.runs.iter().map(|run| run.no.run()))
            .chain(self.states.iter().map(|s| s.no.state()))
    }

    fn numbers(&self) -> impl Iterator<Item = FileNo> + '_ {
        let segments = self.segments.iter().map(|segment| segment.no);
        segments.chain(self.runs.iter().map(|run| run.no)).chain(self.states.iter().map(|state| state.no))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let files = self.runs.len() * RUN + self.states.len() * STATE;
        let mut bytes = vec![0; HEAD + self.segments.len() * SEGMENT + files];
        bytes[..8].copy_from_slice(&MAGIC);
        set_u32(&mut bytes, 8, FORMAT);
        set_u32(&mut bytes, 16, self.epoch.0);
        set_u32(&mut bytes, 20, count(self.segments.len()));
        set_u32(&mut bytes, 24, count(self.runs.len()));
        set_u32(&mut bytes, 28, count(self.states.len()));
        set_u64(&mut bytes, 32, self.next_file.0);
        set_u64(&mut bytes, 40, self.proven.0);
        for (at, n) in [48, 56].into_iter().zip(self.seed.numbers()) {
            set_u64(&mut bytes, at, n);
        }
        set_u32(&mut bytes, 64, if self.is_closed { CLOSED } else { 0 });
        let mut at = HEAD;
        for segment in &self.segments {
            for n in [segment.no.0, segment.incarnation.0, segment.bytes] {
                set_u64(&mut bytes, at, n);
                at += 8;
            }
        }
        let of_run = |run: &RunEntry| {
            [run.no.0, run.incarnation.0, run.bytes, run.last.0, run.tail.unwrap_or(UNKNOWN)]
        };
        let of_state = |state: &StateEntry| [state.no.0, state.incarnation.0, state.bytes, state.last.0];
        for n in self.runs.iter().flat_map(of_run).chain(self.states.iter().flat_map(of_state)) {
            set_u64(&mut bytes, at, n);
            at += 8;
        }
        let crc = format::checksum(&bytes);
        set_u32(&mut bytes, 12, crc);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Damage> {
        let bad = |offset, what: &str| Err(Damage::new(MANIFEST, offset, what));
        let short = "the file is shorter than a manifest's head";
        let Some(begin) = bytes.get(..12) else { return bad(0, short) };
        if let Err((at, what)) = format::check(begin, MAGIC, "a manifest") {
            return bad(at, &what);
        }
        if bytes.len() < HEAD {
            return bad(0, short);
        }
        if u32_at(bytes, 12) != format::checksum(bytes) {
            return bad(12, "the checksum does not match");
        }
        if u32_at(bytes, 64) > CLOSED || u32_at(bytes, 68) != 0 {
            return bad(64, "a flag is unknown");
        }
        let (segments, runs) = (u32_at(bytes, 20) as usize, u32_at(bytes, 24) as usize);
        let states = u32_at(bytes, 28) as usize;
        let files = runs.saturating_mul(RUN).saturating_add(states.saturating_mul(STATE));
        let fits = segments.saturating_mul(SEGMENT).saturating_add(files).saturating_add(HEAD);
        if fits != bytes.len() || (runs > 0 && states == 0) {
            return bad(20, "the length of the file does not match its counts");
        }
        let (entries, files) = bytes[HEAD..].split_at(segments * SEGMENT);
        let (runs, states_of) = files.split_at(runs * RUN);
        let manifest = Manifest {
            epoch: Epoch(u32_at(bytes, 16)),
            next_file: FileNo(u64_at(bytes, 32)),
            proven: Lsn(u64_at(bytes, 40)),
            is_closed: u32_at(bytes, 64) == CLOSED,
            seed: HashKey::new([48, 56].map(|at| u64_at(bytes, at))),
            segments: entries
                .chunks_exact(SEGMENT)
                .map(|e| SegmentEntry {
                    no: FileNo(u64_at(e, 0)),
                    incarnation: Incarnation(u64_at(e, 8)),
                    bytes: u64_at(e, 16),
                })
                .collect(),
            runs: runs
                .chunks_exact(RUN)
                .map(|e| RunEntry {
                    no: FileNo(u64_at(e, 0)),
                    incarnation: Incarnation(u64_at(e, 8)),
                    bytes: u64_at(e, 16),
                    last: Lsn(u64_at(e, 24)),
                    tail: Some(u64_at(e, 32)).filter(|tail| *tail != UNKNOWN),
                })
                .collect(),
            states: states_of
                .chunks_exact(STATE)
                .map(|e| StateEntry {
                    no: FileNo(u64_at(e, 0)),
                    incarnation: Incarnation(u64_at(e, 8)),
                    bytes: u64_at(e, 16),
                    last: Lsn(u64_at(e, 24)),
                })
                .collect(),
        };
        if manifest.runs.iter().any(|run| run.tail.is_some_and(|tail| tail >= run.bytes)) {
            return bad(HEAD as u64, "the tail of a run starts behind its end");
        }
        if !manifest.segments.is_sorted_by(|a, b| a.no < b.no) {
            return bad(HEAD as u64, "the segments are out of order");
        }
        if !manifest.states.is_sorted_by(|a, b| a.no < b.no && a.last <= b.last) {
            return bad(HEAD as u64, "the files of the state are out of order");
        }
        // Each number is given once: otherwise the next files would take the places of these.
        if manifest.next_file.0 > MOST || manifest.numbers().any(|no| no >= manifest.next_file) {
            return bad(32, "the number of the next file cannot be that");
        }
        let positions =
            manifest.runs.iter().map(|run| run.last).chain(manifest.states.iter().map(|state| state.last));
        if positions.chain([manifest.proven]).any(|lsn| lsn.0 > MOST) {
            return bad(40, "no record has such a position");
        }
        let mut numbers: Vec<FileNo> = manifest.numbers().collect();
        numbers.sort_unstable();
        if !numbers.is_sorted_by(|a, b| a < b) {
            return bad(HEAD as u64, "two files have one number");
        }
        Ok(manifest)
    }

    /// Reads the manifest of a folder; `None` if it has none.
    pub(crate) fn read(disk: &dyn Disk) -> Result<Option<Self>, ReadFault> {
        Self::bytes(disk)?.map(|bytes| Self::decode(&bytes)).transpose().map_err(ReadFault::from)
    }

    /// Refuses a folder of another format: nothing of it can be read, although it may be undamaged.
    pub(crate) fn known_format(disk: &dyn Disk) -> Result<(), StoreError> {
        let Some(bytes) = Self::bytes(disk)?.filter(|bytes| bytes.len() >= 16) else { return Ok(()) };
        let is_whole = u32_at(&bytes, 12) == format::checksum(&bytes);
        if !(is_before_release(&bytes) || is_whole && bytes[..8] == MAGIC) {
            return Ok(());
        }
        format::check(&bytes[..12], MAGIC, "a manifest")
            .map_err(|(_, what)| StoreError::new(ErrorKind::Corrupt, format_args!("{MANIFEST}: {what}")))
    }

    fn bytes(disk: &dyn Disk) -> Result<Option<Vec<u8>>, ReadFault> {
        let Some(file) = format::open_if_any(disk, MANIFEST)? else { return Ok(None) };
        let size = file.size().map_err(failed("measure", MANIFEST))?;
        let size =
            usize::try_from(size).map_err(|_| Damage::new(MANIFEST, 0, "the file is absurdly long"))?;
        let mut bytes = vec![0; size];
        file.read_at(&mut bytes, 0).map_err(failed("read", MANIFEST))?;
        Ok(Some(bytes))
    }

    /// Replaces the former manifest, in a folder whose reserve is not needed yet.
    pub(crate) fn replace(&self, disk: &dyn Disk) -> Result<(), NotReplaced> {
        self.replace_with(disk, || disk.remove(RESERVE).is_ok())
    }

    /// Replaces the former manifest. `give_up` gives up the reserve; it returns false if there is none.
    pub(crate) fn replace_with(
        &self,
        disk: &dyn Disk,
        give_up: impl FnOnce() -> bool,
    ) -> Result<(), NotReplaced> {
        match self.write_temp(disk) {
            Ok(()) => {}
            // That little has been set aside.
            Err(error) if error.kind() == ErrorKind::Full && give_up() => {
                self.write_temp(disk).map_err(NotReplaced::Kept)?;
            }
            Err(error) => return Err(NotReplaced::Kept(error)),
        }
        disk.rename(MANIFEST_TEMP, MANIFEST)
            .map_err(failed("replace", MANIFEST))
            .map_err(NotReplaced::Unsure)?;
        disk.sync_dir("").map_err(failed("sync the names of", "")).map_err(NotReplaced::Unsure)
    }

    fn write_temp(&self, disk: &dyn Disk) -> Result<(), StoreError> {
        let file = disk.create(MANIFEST_TEMP).map_err(failed("create", MANIFEST_TEMP))?;
        file.write_at(&self.encode(), 0).map_err(failed("write", MANIFEST_TEMP))?;
        file.sync_data().map_err(failed("sync", MANIFEST_TEMP))
    }
}

impl From<NotReplaced> for StoreError {
    fn from(not: NotReplaced) -> Self {
        match not {
            NotReplaced::Kept(error) | NotReplaced::Unsure(error) => error,
        }
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).expect("there are never 2^32 files")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Story: a manifest of which everything was right, but that it gave the number of a listed file once more. It was
    /// opened, and replaced by one that nobody could read.
    #[test]
    fn manifest_with_unreadable_successor_is_refused() {
        let segment = |no| SegmentEntry { no: FileNo(no), incarnation: Incarnation(1), bytes: 8_192 };
        let file = |no| StateEntry { no: FileNo(no), incarnation: Incarnation(1), bytes: 100, last: Lsn(1) };
        let healthy = Manifest {
            next_file: FileNo(9),
            segments: vec![segment(3), segment(8)],
            states: vec![file(7)],
            ..Manifest::empty(HashKey::new([1, 2]))
        };
        assert_eq!(Manifest::decode(&healthy.encode()), Ok(healthy.clone()));
        let far = vec![StateEntry { last: Lsn(u64::MAX), ..file(7) }];
        for (what, bad) in [
            ("given already", Manifest { next_file: FileNo(8), ..healthy.clone() }),
            ("given already", Manifest { states: vec![file(9)], ..healthy.clone() }),
            ("absurd", Manifest { next_file: FileNo(u64::MAX), ..healthy.clone() }),
            ("twice", Manifest { states: vec![file(3)], ..healthy.clone() }),
            ("out of order", Manifest { states: vec![file(7), file(6)], ..healthy.clone() }),
            ("absurd", Manifest { proven: Lsn(u64::MAX), ..healthy.clone() }),
            ("absurd", Manifest { states: far, ..healthy.clone() }),
        ] {
            assert!(Manifest::decode(&bad.encode()).is_err(), "{what}: {bad:?}");
        }
    }

    #[test]
    fn manifest_round_trips_detecting_flips() {
        let manifest = Manifest {
            epoch: Epoch(7),
            next_file: FileNo(19),
            proven: Lsn(120),
            is_closed: true,
            seed: HashKey::new([0x0123_4567_89ab_cdef, 7]),
            segments: (3..9)
                .map(|no| SegmentEntry { no: FileNo(no), incarnation: Incarnation(no * 7919), bytes: 65_536 })
                .collect(),
            runs: (1..3)
                .map(|no| RunEntry {
                    no: FileNo(no),
                    incarnation: Incarnation(5),
                    bytes: 4_711,
                    last: Lsn(99),
                    tail: (no > 1).then_some(4_096),
                })
                .collect(),
            states: (16..18)
                .map(|no| StateEntry {
                    no: FileNo(no),
                    incarnation: Incarnation(6),
                    bytes: 815,
                    last: Lsn(119),
                })
                .collect(),
        };
        let bytes = manifest.encode();
        assert_eq!(Manifest::decode(&bytes), Ok(manifest));
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&bytes).is_err(), "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert!(Manifest::decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        let mut newer = bytes.clone();
        newer[8] = 2;
        assert!(Manifest::decode(&newer).unwrap_err().what.contains("format version 2 is unknown"));
    }

    #[test]
    fn a_manifest_shows_no_seed() {
        let shown = format!("{:?}", Manifest::empty(HashKey::new([4_711, 4_711])));
        assert!(shown.contains("seed: HashKey(..)") && !shown.contains("4711"), "{shown}");
    }
}
