//! The state file: the books of all queues as of the last cut, and the removed rows of each run.
//!
//! It is written whole, at each flush and at each merge, and never changed. Head of the file:
//!
//! | at | bytes | |
//! |---|---|---|
//! | 0 | 8 | `dw-state` |
//! | 8 | 4 | format version |
//! | 12 | 4 | crc32c of the other 60 bytes |
//! | 16 | 8 | number of the file |
//! | 24 | 8 | incarnation |
//! | 32 | 8 | the last cut |
//! | 40 | 24 | zero |
//!
//! Then blocks, with a head as runs have it:
//!
//! | at | bytes | |
//! |---|---|---|
//! | 0 | 4 | crc32c of everything from byte 4 to the end of the block |
//! | 4 | 4 | length of the payload |
//! | 8 | 1 | kind: 1 books, 2 queues, 3 runs, 4 end |
//! | 9 | 3 | zero |
//! | 12 | 4 | number of entries |
//! | 16 | 8 | incarnation of the file |
//! | 24 | 8 | where the block starts in the file |
//! | 32 | | payload: entries, each with its length in front; then zeros up to a multiple of 8 |

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use crc32c::{crc32c, crc32c_append};
use duewheel_core::record::{DecodeError, Reader, Writer};
use duewheel_core::store::{Ledger, QueueRow, StoreError};
use duewheel_core::tally::{DueCounts, Tally};
use duewheel_core::{Lsn, MessageId};
use roaring::RoaringTreemap;

use crate::disk::{Disk, DiskFile, FileAccess};
use crate::fault::{Damage, ReadFault, failed};
use crate::folder::{FileNo, Incarnation, STATE};
use crate::le::{align8, set_u32, set_u64, u32_at, u64_at};
use crate::manifest::{FORMAT, StateEntry, knows_format, unknown_format};
use crate::run::{Live, Mask, Run};

const FILE_HEAD: usize = 64;
const HEAD: usize = 32;
const MAGIC: [u8; 8] = *b"dw-state";
/// A block is closed when it has this many bytes.
const BLOCK: usize = 32 * 1024;
/// Blocks are written and synced together.
const PIECE: usize = 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum Kind {
    Books = 1,
    Queues = 2,
    Runs = 3,
    End = 4,
}

/// The removed rows of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Lost {
    pub(crate) no: FileNo,
    pub(crate) removed: RoaringTreemap,
    /// Sum of the weights of the removed rows; `None` in format 4 and older.
    pub(crate) gone: Option<u64>,
    /// Masks, by the run's number of the queue.
    pub(crate) masks: Vec<(u32, Mask)>,
}

/// The content of a state file.
#[derive(Debug, Default)]
pub(crate) struct StateFile {
    pub(crate) ledger: Ledger,
    pub(crate) lost: Vec<Lost>,
}

/// Writes a state file and makes it durable; no manifest lists it yet.
pub(crate) fn write(
    disk: &dyn Disk,
    no: FileNo,
    ledger: &Ledger,
    runs: &[(&Run, &Live)],
) -> Result<StateEntry, StoreError> {
    let temp = no.state_temp();
    let file = disk.create(&temp).map_err(failed("create", &temp))?;
    let entry = StateEntry { no, incarnation: Incarnation(disk.unique()), bytes: 0, last: ledger.applied() };
    let mut out = StateWriter {
        file,
        temp,
        entry,
        written: 0,
        ready: head(&entry, FORMAT),
        block: StateBlock::new(Kind::Books),
    };
    out.entry(Kind::Books, |w| {
        w.varint(ledger.next_id().0);
        match ledger.clock() {
            None => w.byte(0),
            Some(clock) => {
                w.byte(1);
                w.clock(clock);
            }
        }
        ledger.due().encode(w);
    })?;
    let mut queues = 0u64;
    for row in ledger.rows() {
        queues += 1;
        out.entry(Kind::Queues, |w| {
            w.blob(row.name.as_str().as_bytes());
            w.settings(&row.settings);
            w.pause(row.pause);
            w.totals(&row.totals);
            row.tally.encode(w);
        })?;
    }
    for (run, live) in runs {
        out.entry(Kind::Runs, |w| {
            w.varint(run.entry().no.0);
            let masks: Vec<_> = live.masks().collect();
            w.varint(masks.len() as u64);
            for (queue, mask) in masks {
                w.varint(u64::from(queue));
                w.varint(mask.before.0);
                w.varint(mask.keep.len() as u64);
                let mut last = 0;
                for id in &mask.keep {
                    w.varint(id.0.wrapping_sub(last));
                    last = id.0;
                }
            }
            let removed = run.ids() - &live.ids;
            let mut bytes = Vec::with_capacity(removed.serialized_size());
            removed.serialize_into(&mut bytes).expect("memory takes everything");
            w.blob(&bytes);
            w.varint(live.gone());
        })?;
    }
    out.entry(Kind::End, |w| {
        w.varint(queues);
        w.varint(runs.len() as u64);
    })?;
    out.close_block()?;
    out.flush()?;
    let (temp, name) = (out.temp, no.state());
    disk.rename(&temp, &name).map_err(failed("rename", &temp))?;
    disk.sync_dir(STATE).map_err(failed("sync the names of", STATE))?;
    Ok(StateEntry { bytes: out.written, ..entry })
}

/// Removes an incomplete file.
pub(crate) fn discard(disk: &dyn Disk, no: FileNo) {
    let _ = disk.remove(&no.state_temp()); // or it is removed by the next owner
    let _ = disk.remove(&no.state());
}

#[derive(Debug)]
struct StateWriter {
    file: Arc<dyn DiskFile>,
    temp: String,
    entry: StateEntry,
    written: u64,
    /// Complete blocks.
    ready: Vec<u8>,
    block: StateBlock,
}

/// The present block.
#[derive(Debug)]
struct StateBlock {
    kind: Kind,
    entries: u32,
    bytes: Vec<u8>,
}

impl StateBlock {
    fn new(kind: Kind) -> Self {
        StateBlock { kind, entries: 0, bytes: vec![0; HEAD] }
    }
}

impl StateWriter {
    fn entry(&mut self, kind: Kind, write: impl FnOnce(&mut Writer)) -> Result<(), StoreError> {
        if kind != self.block.kind || self.block.bytes.len() >= BLOCK {
            self.close_block()?;
            self.block.kind = kind;
        }
        let mut entry = Writer::default();
        write(&mut entry);
        let mut block = Writer { bytes: std::mem::take(&mut self.block.bytes) };
        block.blob(&entry.bytes);
        self.block.bytes = block.bytes;
        self.block.entries += 1;
        Ok(())
    }

    fn close_block(&mut self) -> Result<(), StoreError> {
        let StateBlock { kind, entries, mut bytes } =
            std::mem::replace(&mut self.block, StateBlock::new(Kind::End));
        if entries == 0 {
            return Ok(());
        }
        let payload = u32::try_from(bytes.len() - HEAD).map_err(|_| {
            StoreError::new(duewheel_core::store::ErrorKind::Full, "the state has an entry of 4 GiB")
        })?;
        bytes.resize(align8(bytes.len()), 0);
        set_u32(&mut bytes, 4, payload);
        bytes[8] = kind as u8;
        set_u32(&mut bytes, 12, entries);
        set_u64(&mut bytes, 16, self.entry.incarnation.0);
        set_u64(&mut bytes, 24, self.written + self.ready.len() as u64);
        let crc = crc32c(&bytes[4..]);
        set_u32(&mut bytes, 0, crc);
        self.ready.extend_from_slice(&bytes);
        if self.ready.len() >= PIECE { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.file.write_at(&self.ready, self.written).map_err(failed("write", &self.temp))?;
        self.file.sync_data().map_err(failed("sync", &self.temp))?;
        self.written += self.ready.len() as u64;
        self.ready.clear();
        Ok(())
    }
}

/// Reads a state file, all of it.
pub(crate) fn read(disk: &dyn Disk, entry: &StateEntry) -> Result<StateFile, ReadFault> {
    let name = entry.no.state();
    let file = match disk.open(&name, FileAccess::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Damage::new(name, 0, "the manifest lists this state, which is missing").into());
        }
        Err(error) => return Err(failed("open", &name)(error).into()),
    };
    let size = file.size().map_err(failed("measure", &name))?;
    if size != entry.bytes || size < FILE_HEAD as u64 {
        let what = format!("the file has {size} bytes, and should have {}", entry.bytes);
        return Err(Damage::new(name, size.min(entry.bytes), what).into());
    }
    let mut bytes = [0; FILE_HEAD];
    file.read_at(&mut bytes, 0).map_err(failed("read", &name))?;
    if bytes[..8] != MAGIC {
        return Err(Damage::new(name, 0, "this is not a state of duewheel").into());
    }
    let version = u32_at(&bytes, 8);
    if bytes[..] != head(entry, version) || !knows_format(version) {
        let right = u32_at(&bytes, 12) == checksum(&bytes);
        let what = if right && !knows_format(version) {
            unknown_format(version)
        } else {
            "the head is damaged, or of another state than the manifest lists".into()
        };
        return Err(Damage::new(name, 0, what).into());
    }
    let mut reading = StateReader { file, name, entry: *entry, at: FILE_HEAD as u64, seen: [0; 4] };
    let mut state = StateFile::default();
    while reading.at < entry.bytes {
        reading.block(&mut state)?;
    }
    if !is_complete(&reading.seen, &state) {
        return Err(reading.problem(reading.at, "the state is not complete").into());
    }
    Ok(state)
}

struct StateReader {
    file: Arc<dyn DiskFile>,
    name: String,
    entry: StateEntry,
    at: u64,
    /// Number of entries of each kind.
    seen: [u64; 4],
}

impl StateReader {
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
        if u32_at(&bytes, 0) != crc32c(&bytes[4..]) {
            return Err(self.problem(at, "the block's checksum does not match").into());
        }
        let own = u64_at(&bytes, 16) == self.entry.incarnation.0 && u64_at(&bytes, 24) == at;
        if !own || bytes[9..12] != [0; 3] {
            return Err(self.problem(at, "the block belongs to another place").into());
        }
        let payload = HEAD + u32_at(&bytes, 4) as usize;
        let (kind, entries) = (bytes[8], u32_at(&bytes, 12));
        self.at += length as u64;
        let payload = Bytes::from(bytes).slice(HEAD..payload);
        take(kind, entries, payload, self.entry.last, &mut self.seen, state)
            .map_err(|what| self.problem(at, what).into())
    }
}

/// Adds the payload of a block. `last` is the cut of the state; `seen` counts the entries that were read, and those
/// that the end names.
pub(crate) fn take(
    kind: u8,
    entries: u32,
    payload: Bytes,
    last: Lsn,
    seen: &mut [u64; 4],
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

/// Whether the state is complete.
pub(crate) fn is_complete(seen: &[u64; 4], state: &StateFile) -> bool {
    let [books, queues, runs, ends] = *seen;
    (books, ends) == (1, 1) && state.lost.len() as u64 == runs && state.ledger.len() as u64 == queues
}

fn take_entry(
    kind: u8,
    r: &mut Reader,
    last: Lsn,
    seen: &mut [u64; 4],
    state: &mut StateFile,
) -> Result<(), DecodeError> {
    match kind {
        1 => {
            seen[0] += 1;
            let next_id = r.varint()?;
            let clock = match r.byte()? {
                0 => None,
                1 => Some(r.clock()?),
                _ => return Err(DecodeError::Unknown("presence byte")),
            };
            state.ledger = Ledger::resume(last, next_id, clock, DueCounts::decode(r)?);
        }
        2 => {
            let (name, settings) = (r.queue_name()?, r.settings()?);
            let (pause, totals) = (r.pause()?, r.totals()?);
            state.ledger.restore(QueueRow { name, settings, pause, totals, tally: Tally::decode(r)? });
        }
        3 => {
            let no = FileNo(r.varint()?);
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
            let bytes = r.blob()?;
            let mut rest = &bytes[..];
            let removed = RoaringTreemap::deserialize_from(&mut rest).ok().filter(|_| rest.is_empty());
            let removed = removed.ok_or(DecodeError::Unknown("set of ids"))?;
            let gone = if r.is_empty() { None } else { Some(r.varint()?) };
            state.lost.push(Lost { no, removed, gone, masks });
        }
        4 => {
            seen[3] += 1;
            seen[1] = r.varint()?;
            seen[2] = r.varint()?;
        }
        _ => return Err(DecodeError::Unknown("kind of a block")),
    }
    Ok(())
}

fn head(entry: &StateEntry, version: u32) -> Vec<u8> {
    let mut head = vec![0; FILE_HEAD];
    head[..8].copy_from_slice(&MAGIC);
    set_u32(&mut head, 8, version);
    set_u64(&mut head, 16, entry.no.0);
    set_u64(&mut head, 24, entry.incarnation.0);
    set_u64(&mut head, 32, entry.last.0);
    let crc = checksum(&head);
    set_u32(&mut head, 12, crc);
    head
}

fn checksum(head: &[u8]) -> u32 {
    crc32c_append(crc32c(&head[..12]), &head[16..])
}
