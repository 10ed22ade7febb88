//! The state: the books of all queues as of the last cut, and the removed rows of each run.
//!
//! The state is in one or several files, which never change: the first file has all of it, each further file, a
//! *delta*, what is different since the file before. Each flush and each merge writes a file ([`write`]). The manifest
//! lists the files in this order. Head of a file:
//!
//! | at | bytes | |
//! |---|---|---|
//! | 0 | 8 | `dw-state` |
//! | 8 | 4 | format version |
//! | 12 | 4 | crc32c of the other 60 bytes |
//! | 16 | 8 | number of the file |
//! | 24 | 8 | incarnation |
//! | 32 | 8 | the last cut |
//! | 40 | 8 | number of the file before, in a delta; else zero |
//! | 48 | 8 | its incarnation |
//! | 56 | 8 | zero |
//!
//! Then blocks, with a head as runs have it:
//!
//! | at | bytes | |
//! |---|---|---|
//! | 0 | 4 | crc32c of everything from byte 4 to the end of the block |
//! | 4 | 4 | length of the payload |
//! | 8 | 1 | kind: 1 books, 2 queues, 3 runs, 4 end; in deltas also 5 gone queues, 6 changed runs, 7 listed runs |
//! | 9 | 3 | zero |
//! | 12 | 4 | number of entries |
//! | 16 | 8 | incarnation of the file |
//! | 24 | 8 | where the block starts in the file |
//! | 32 | | payload: entries, each with its length in front; then zeros up to a multiple of 8 |

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use duewheel_core::record::{DecodeError, Reader};
use duewheel_core::store::{Ledger, QueueRow};
use duewheel_core::tally::{DueCounts, Tally};
use duewheel_core::{Lsn, MessageId};
use roaring::RoaringTreemap;

use crate::disk::{Disk, DiskFile};
use crate::fault::{Damage, ReadFault, failed};
use crate::format::{self, FORMAT, FileNo, align8, set_u32, set_u64, u32_at};
use crate::manifest::StateEntry;
use crate::run::Mask;

pub(crate) mod write;

#[cfg(test)]
mod tests;

const FILE_HEAD: usize = 64;
const HEAD: usize = 32;
const MAGIC: [u8; 8] = *b"duewstat";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum StateBlockKind {
    Books = 1,
    Queues = 2,
    Runs = 3,
    End = 4,
    GoneQueues = 5,
    ChangedRuns = 6,
    ListedRuns = 7,
}

/// The removed rows of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Lost {
    pub(crate) no: FileNo,
    pub(crate) removed: RoaringTreemap,
    /// Sum of the weights of the removed rows.
    pub(crate) gone: u64,
    /// Masks, by the run's number of the queue.
    pub(crate) masks: Vec<(u32, Mask)>,
}

/// The content of the state: of its first file, or of that and the deltas so far.
#[derive(Debug, Default)]
pub(crate) struct StateFile {
    pub(crate) ledger: Ledger,
    pub(crate) lost: Vec<Lost>,
    /// Runs of which more rows are removed than `lost` says, because a file that names them is not complete.
    pub(crate) doubtful: BTreeSet<FileNo>,
}

/// How much of the state a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateScope {
    /// The whole state.
    Whole = 0,
    /// The changes since the file before.
    Delta = 1,
}

impl StateScope {
    fn of(before: Option<&StateEntry>) -> Self {
        if before.is_none() { StateScope::Whole } else { StateScope::Delta }
    }
}

/// Number of entries of each kind in one file, and those that its end names.
#[derive(Debug, Default)]
pub(crate) struct StateEntries {
    books: u64,
    queues: u64,
    runs: u64,
    gone_queues: u64,
    changed_runs: u64,
    listed: BTreeSet<FileNo>,
    ends: u64,
    told: Option<(StateScope, [u64; 5])>,
}

/// Reads the state, all of its files.
pub(crate) fn read(disk: &dyn Disk, files: &[StateEntry]) -> Result<StateFile, ReadFault> {
    let mut state = StateFile::default();
    for (i, entry) in files.iter().enumerate() {
        let before = i.checked_sub(1).map(|before| &files[before]);
        read_file(disk, entry, before, &mut state)?;
    }
    Ok(state)
}

/// Reads a file of the state behind the files before.
fn read_file(
    disk: &dyn Disk,
    entry: &StateEntry,
    before: Option<&StateEntry>,
    state: &mut StateFile,
) -> Result<(), ReadFault> {
    let read = read_blocks(disk, entry, before, state)?;
    if state.end_file(&read.seen, StateScope::of(before)) { Ok(()) } else { Err(read.incomplete()) }
}

/// Checks a file of the state by itself, whatever the files before say.
pub(crate) fn verify_file(
    disk: &dyn Disk,
    entry: &StateEntry,
    before: Option<&StateEntry>,
) -> Result<(), ReadFault> {
    let read = read_blocks(disk, entry, before, &mut StateFile::default())?;
    if read.seen.are_told(StateScope::of(before)) { Ok(()) } else { Err(read.incomplete()) }
}

fn read_blocks(
    disk: &dyn Disk,
    entry: &StateEntry,
    before: Option<&StateEntry>,
    state: &mut StateFile,
) -> Result<StateReader, ReadFault> {
    let name = entry.no.state();
    let file = format::open_listed(disk, &name, "state", entry.bytes, |size| size >= FILE_HEAD as u64)?;
    let mut bytes = [0; FILE_HEAD];
    file.read_at(&mut bytes, 0).map_err(failed("read", &name))?;
    if let Err((at, what)) = format::check(&bytes[..12], MAGIC, "a state") {
        return Err(Damage::new(name, at, what).into());
    }
    if bytes[..] != head(entry, before) {
        let what = "the head is damaged, or of another state than the manifest lists";
        return Err(Damage::new(name, 0, what).into());
    }
    let seen = StateEntries::default();
    let mut reading = StateReader { file, name, entry: *entry, at: FILE_HEAD as u64, seen };
    while reading.at < entry.bytes {
        reading.block(state)?;
    }
    Ok(reading)
}

struct StateReader {
    file: Arc<dyn DiskFile>,
    name: String,
    entry: StateEntry,
    at: u64,
    seen: StateEntries,
}

impl StateReader {
    fn incomplete(&self) -> ReadFault {
        self.problem(self.at, "the state is not complete").into()
    }

    fn problem(&self, at: u64, what: impl Into<String>) -> Damage {
        Damage::new(&*self.name, at, what)
    }

    fn block(&mut self, state: &mut StateFile) -> Result<(), ReadFault> {
        let (at, left) = (self.at, self.entry.bytes - self.at);
        if left < HEAD as u64 {
            return Err(self.problem(at, "the file ends in the middle of a block").into());
        }
        let mut head = [0; HEAD];
        self.file.read_at(&mut head, at).map_err(failed("read", &self.name))?;
        let length = align8(HEAD + u32_at(&head, 4) as usize);
        if length as u64 > left {
            return Err(self.problem(at, "the block's length points behind the end of the file").into());
        }
        let mut bytes = vec![0; length];
        self.file.read_at(&mut bytes, at).map_err(failed("read", &self.name))?;
        let checked = format::check_block(&bytes, self.entry.incarnation, at);
        let (kind, entries) = checked.map_err(|what| self.problem(at, what))?;
        let payload = HEAD + u32_at(&bytes, 4) as usize;
        self.at += length as u64;
        let payload = Bytes::from(bytes).slice(HEAD..payload);
        take(kind, entries, payload, self.entry.last, &mut self.seen, state)
            .map_err(|what| self.problem(at, what).into())
    }
}

/// Adds the payload of a block. `last` is the cut of the file.
pub(crate) fn take(
    kind: u8,
    entries: u32,
    payload: Bytes,
    last: Lsn,
    seen: &mut StateEntries,
    state: &mut StateFile,
) -> Result<(), String> {
    let mut reader = Reader::new(payload);
    let taken = (0..entries).try_for_each(|_| {
        let mut one = Reader::new(reader.blob()?);
        take_entry(kind, &mut one, last, seen, state)?;
        if one.is_empty() { Ok(()) } else { Err(DecodeError::Unknown("end of an entry")) }
    });
    match taken {
        Ok(()) if reader.is_empty() => Ok(()),
        Ok(()) => Err("bytes are left behind the last entry".into()),
        Err(error) => Err(format!("an entry cannot be read: {error}")),
    }
}

impl StateEntries {
    /// Whether they are those that the end of the file names.
    pub(crate) fn are_told(&self, scope: StateScope) -> bool {
        let listed = self.listed.len() as u64;
        let counted = [self.queues, self.runs, self.gone_queues, self.changed_runs, listed];
        (self.books, self.ends) == (1, 1) && self.told == Some((scope, counted))
    }
}

impl StateFile {
    /// Ends a file. False if it is not complete: then what it does not say of the runs that were known before is in
    /// doubt.
    pub(crate) fn end_file(&mut self, seen: &StateEntries, scope: StateScope) -> bool {
        let is_told = seen.are_told(scope);
        if scope == StateScope::Delta && is_told {
            self.lost.retain(|lost| seen.listed.contains(&lost.no));
            self.doubtful.retain(|no| seen.listed.contains(no));
        }
        let is_complete = is_told
            && match scope {
                StateScope::Whole => {
                    (self.ledger.len(), self.lost.len()) == (len(seen.queues), len(seen.runs))
                }
                StateScope::Delta => self.lost.len() == seen.listed.len() && self.doubtful.is_empty(),
            };
        if !is_told && scope == StateScope::Delta {
            self.doubt_runs();
        }
        is_complete
    }

    /// Notes that more may be removed of all runs than is known.
    pub(crate) fn doubt_runs(&mut self) {
        self.doubtful.extend(self.lost.iter().map(|lost| lost.no));
    }

    /// The place of what is known of a run, which is nothing yet if there was no such place.
    fn lost_of(&mut self, no: FileNo) -> &mut Lost {
        let place = self.lost.iter().position(|lost| lost.no == no).unwrap_or_else(|| {
            self.doubtful.insert(no);
            self.lost.push(Lost { no, ..Lost::default() });
            self.lost.len() - 1
        });
        &mut self.lost[place]
    }
}

fn len(entries: u64) -> usize {
    usize::try_from(entries).unwrap_or(usize::MAX)
}

fn take_entry(
    kind: u8,
    r: &mut Reader,
    last: Lsn,
    seen: &mut StateEntries,
    state: &mut StateFile,
) -> Result<(), DecodeError> {
    match kind {
        1 => {
            seen.books += 1;
            let next_id = r.varint()?;
            let clock = match r.byte()? {
                0 => None,
                1 => Some(r.clock()?),
                _ => return Err(DecodeError::Unknown("presence byte")),
            };
            state.ledger.go_on(last, next_id, clock, DueCounts::decode(r)?);
        }
        2 => {
            seen.queues += 1;
            let (name, settings) = (r.queue_name()?, r.settings()?);
            let (pause, totals) = (r.pause()?, r.totals()?);
            let (tally, answers) = (Tally::decode(r)?, r.answer_log()?);
            state.ledger.restore(QueueRow { name, settings, pause, totals, tally, answers });
            return Ok(());
        }
        3 => {
            seen.runs += 1;
            let no = FileNo(r.varint()?);
            let (masks, removed) = (masks(r)?, ids(r)?);
            let gone = r.varint()?;
            state.lost.push(Lost { no, removed, gone, masks });
        }
        4 => {
            seen.ends += 1;
            let scope = match r.byte()? {
                0 => StateScope::Whole,
                1 => StateScope::Delta,
                _ => return Err(DecodeError::Unknown("scope of a state")),
            };
            let mut stated = [0; 5];
            for n in &mut stated {
                *n = r.varint()?;
            }
            seen.told = Some((scope, stated));
        }
        5 => {
            seen.gone_queues += 1;
            state.ledger.forget(&r.queue_name()?);
        }
        6 => {
            seen.changed_runs += 1;
            let lost = state.lost_of(FileNo(r.varint()?));
            match r.byte()? {
                0 => {}
                1 => lost.masks = masks(r)?,
                _ => return Err(DecodeError::Unknown("presence byte")),
            }
            lost.removed |= ids(r)?;
            lost.gone = r.varint()?;
        }
        7 => {
            seen.listed.insert(FileNo(r.varint()?));
        }
        _ => return Err(DecodeError::Unknown("kind of a block")),
    }
    r.no_fields("state")
}

/// The purges of a run.
fn masks(r: &mut Reader) -> Result<Vec<(u32, Mask)>, DecodeError> {
    let mut masks = Vec::new();
    for _ in 0..r.varint()? {
        let queue = u32::try_from(r.varint()?).map_err(|_| DecodeError::Unknown("queue"))?;
        let before = MessageId(r.varint()?);
        let (mut keep, mut id) = (Vec::new(), 0u64);
        for _ in 0..r.varint()? {
            id = id.wrapping_add(r.varint()?);
            keep.push(MessageId(id));
        }
        masks.push((queue, Mask { before, keep }));
    }
    Ok(masks)
}

fn ids(r: &mut Reader) -> Result<RoaringTreemap, DecodeError> {
    let bytes = r.blob()?;
    let mut rest = &bytes[..];
    let ids = RoaringTreemap::deserialize_from(&mut rest).ok().filter(|_| rest.is_empty());
    ids.ok_or(DecodeError::Unknown("set of ids"))
}

/// The head of a file; of a delta if there is one before.
fn head(entry: &StateEntry, before: Option<&StateEntry>) -> Vec<u8> {
    let mut head = vec![0; FILE_HEAD];
    head[..8].copy_from_slice(&MAGIC);
    set_u32(&mut head, 8, FORMAT);
    set_u64(&mut head, 16, entry.no.0);
    set_u64(&mut head, 24, entry.incarnation.0);
    set_u64(&mut head, 32, entry.last.0);
    if let Some(before) = before {
        set_u64(&mut head, 40, before.no.0);
        set_u64(&mut head, 48, before.incarnation.0);
    }
    let crc = format::checksum(&head);
    set_u32(&mut head, 12, crc);
    head
}
