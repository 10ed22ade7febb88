//! Writes a file of the state: a delta as long as the deltas together are shorter than the first file, else all of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use duewheel_core::QueueName;
use duewheel_core::record::Writer;
use duewheel_core::store::{ErrorKind, Ledger, QueueRow, StoreError};
use roaring::RoaringTreemap;

use super::{FILE_HEAD, HEAD, StateBlockKind, StateScope, head};
use crate::disk::{Disk, DiskFile};
use crate::fault::failed;
use crate::format::{FileNo, Incarnation, STATE, align8, seal_block};
use crate::manifest::StateEntry;
use crate::run::Mask;
use crate::view::LiveRun;

/// A block is closed when it has this many bytes.
const BLOCK: usize = 32 * 1024;
/// Blocks are written and synced together.
const PIECE: usize = 1024 * 1024;
/// Largest number of files of a state: each is read when the folder is opened.
const MOST_FILES: usize = 64;

/// A state, and what is different since the one before.
#[derive(Debug)]
pub(crate) struct StateChange<'a> {
    pub(crate) ledger: &'a Ledger,
    /// The queues whose books may be different.
    pub(crate) queues: BTreeSet<&'a QueueName>,
    /// The runs of the state before; more than it names, or with other live rows, they never are.
    pub(crate) before: &'a [LiveRun],
    /// The runs, in the manifest's order.
    pub(crate) parts: &'a [LiveRun],
}

/// Writes the next file of a state that has these files, and makes it durable; no manifest lists it yet. Returns the
/// files that the manifest must list: the same and a delta, or a new one that has all of it.
///
/// # Errors
/// Those of the disk. What was written is no file of a state; [`discard`] removes it.
pub(crate) fn write(
    disk: &dyn Disk,
    no: FileNo,
    files: &[StateEntry],
    change: &StateChange<'_>,
) -> Result<Vec<StateEntry>, StoreError> {
    if let (Some(first), Some(last)) = (files.first(), files.last())
        && files.len() < MOST_FILES
    {
        // Each byte of a whole state is paid for by a byte of deltas.
        let of_deltas: u64 = files[1..].iter().map(|delta| delta.bytes).sum();
        let most = first.bytes.saturating_sub(of_deltas);
        if let Some(delta) = write_delta(disk, no, last, change, most)? {
            return Ok(files.iter().copied().chain([delta]).collect());
        }
    }
    Ok(vec![write_whole(disk, no, change.ledger, change.parts)?])
}

/// Writes all of a state to one file, and makes it durable; no manifest lists it yet.
pub(crate) fn write_whole(
    disk: &dyn Disk,
    no: FileNo,
    ledger: &Ledger,
    parts: &[LiveRun],
) -> Result<StateEntry, StoreError> {
    let mut out = StateWriter::create(disk, no, ledger, None)?;
    out.books(ledger)?;
    let mut queues = 0u64;
    for row in ledger.rows() {
        queues += 1;
        out.queue(&row)?;
    }
    for part in parts {
        out.run(part)?;
    }
    out.end(StateScope::Whole, [queues, parts.len() as u64, 0, 0, 0])?;
    out.finish(disk)
}

/// Writes what is different. `None` if that has more than `most` bytes: the file is not complete then.
fn write_delta(
    disk: &dyn Disk,
    no: FileNo,
    last: &StateEntry,
    change: &StateChange<'_>,
    most: u64,
) -> Result<Option<StateEntry>, StoreError> {
    let StateChange { ledger, queues, before, parts } = change;
    if most <= FILE_HEAD as u64 {
        return Ok(None);
    }
    let mut out = StateWriter::create(disk, no, ledger, Some(last))?;
    out.books(ledger)?;
    let mut counts = [0u64; 5];
    let mut gone = Vec::new();
    for name in queues {
        match ledger.row(name) {
            Some(row) => {
                counts[0] += 1;
                out.queue(&row)?;
            }
            None => gone.push(*name),
        }
        if out.bytes() > most {
            return Ok(None);
        }
    }
    for name in &gone {
        out.entry(StateBlockKind::GoneQueues, |w| w.blob(name.as_str().as_bytes()))?;
    }
    counts[2] = gone.len() as u64;
    let known = |part: &LiveRun| before.iter().find(|known| Arc::ptr_eq(&known.run, &part.run));
    for part in parts.iter().filter(|part| known(part).is_none()) {
        counts[1] += 1;
        out.run(part)?;
    }
    for part in *parts {
        let Some(known) = known(part) else { continue };
        counts[3] += u64::from(out.changed_run(known, part)?);
        if out.bytes() > most {
            return Ok(None);
        }
    }
    for part in *parts {
        out.entry(StateBlockKind::ListedRuns, |w| w.varint(part.run.entry().no.0))?;
    }
    counts[4] = parts.len() as u64;
    out.end(StateScope::Delta, counts)?;
    out.close_block()?;
    if out.bytes() > most {
        return Ok(None);
    }
    out.finish(disk).map(Some)
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
    kind: StateBlockKind,
    entries: u32,
    bytes: Vec<u8>,
}

impl StateBlock {
    fn new(kind: StateBlockKind) -> Self {
        StateBlock { kind, entries: 0, bytes: vec![0; HEAD] }
    }
}

impl StateWriter {
    fn create(
        disk: &dyn Disk,
        no: FileNo,
        ledger: &Ledger,
        before: Option<&StateEntry>,
    ) -> Result<Self, StoreError> {
        let temp = no.state_temp();
        let file = disk.create(&temp).map_err(failed("create", &temp))?;
        let entry =
            StateEntry { no, incarnation: Incarnation(disk.unique()), bytes: 0, last: ledger.applied() };
        Ok(StateWriter {
            file,
            temp,
            entry,
            written: 0,
            ready: head(&entry, before),
            block: StateBlock::new(StateBlockKind::Books),
        })
    }

    /// Bytes so far.
    fn bytes(&self) -> u64 {
        let block = if self.block.entries == 0 { 0 } else { self.block.bytes.len() };
        self.written + (self.ready.len() + block) as u64
    }

    fn books(&mut self, ledger: &Ledger) -> Result<(), StoreError> {
        self.entry(StateBlockKind::Books, |w| {
            w.varint(ledger.next_id().0);
            match ledger.clock() {
                None => w.byte(0),
                Some(clock) => {
                    w.byte(1);
                    w.clock(&clock);
                }
            }
            ledger.due().encode(w);
        })
    }

    fn queue(&mut self, row: &QueueRow) -> Result<(), StoreError> {
        self.entry_with_section(StateBlockKind::Queues, |w| {
            w.blob(row.name.as_str().as_bytes());
            w.settings(&row.settings);
            w.pause(&row.pause);
            w.totals(&row.totals);
            row.tally.encode(w);
            w.answer_log(&row.answers);
        })
    }

    /// A run, with all that is removed of it.
    fn run(&mut self, part: &LiveRun) -> Result<(), StoreError> {
        let (run, live) = (&part.run, &part.live);
        self.entry(StateBlockKind::Runs, |w| {
            w.varint(run.entry().no.0);
            masks(w, live.masks().collect());
            ids(w, &(run.ids() - &live.ids));
            w.varint(live.gone());
        })
    }

    /// Writes the rows of a run that were removed since `before`; returns false if there are none.
    fn changed_run(&mut self, before: &LiveRun, now: &LiveRun) -> Result<bool, StoreError> {
        if Arc::ptr_eq(&before.live, &now.live) {
            return Ok(false);
        }
        let removed = &before.live.ids - &now.live.ids;
        let is_masked = !before.live.masks().eq(now.live.masks());
        if removed.is_empty() && !is_masked && before.live.gone() == now.live.gone() {
            return Ok(false);
        }
        self.entry(StateBlockKind::ChangedRuns, |w| {
            w.varint(now.run.entry().no.0);
            w.byte(u8::from(is_masked));
            if is_masked {
                masks(w, now.live.masks().collect());
            }
            ids(w, &removed);
            w.varint(now.live.gone());
        })?;
        Ok(true)
    }

    fn end(&mut self, scope: StateScope, counts: [u64; 5]) -> Result<(), StoreError> {
        self.entry(StateBlockKind::End, |w| {
            w.byte(scope as u8);
            counts.iter().for_each(|n| w.varint(*n));
        })
    }

    fn entry(&mut self, kind: StateBlockKind, write: impl FnOnce(&mut Writer)) -> Result<(), StoreError> {
        self.entry_with_section(kind, |w| {
            write(w);
            w.no_fields();
        })
    }

    /// Adds an entry that ends with a section of its own.
    fn entry_with_section(
        &mut self,
        kind: StateBlockKind,
        write: impl FnOnce(&mut Writer),
    ) -> Result<(), StoreError> {
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
            std::mem::replace(&mut self.block, StateBlock::new(StateBlockKind::End));
        if entries == 0 {
            return Ok(());
        }
        let payload = u32::try_from(bytes.len() - HEAD)
            .map_err(|_| StoreError::new(ErrorKind::Full, "the state has an entry of 4 GiB"))?;
        bytes.resize(align8(bytes.len()), 0);
        let at = self.written + self.ready.len() as u64;
        seal_block(&mut bytes, payload, kind as u8, entries, (self.entry.incarnation, at));
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

    /// Makes the file durable under its name.
    fn finish(mut self, disk: &dyn Disk) -> Result<StateEntry, StoreError> {
        self.close_block()?;
        self.flush()?;
        let name = self.entry.no.state();
        disk.rename(&self.temp, &name).map_err(failed("rename", &self.temp))?;
        disk.sync_dir(STATE).map_err(failed("sync the names of", STATE))?;
        Ok(StateEntry { bytes: self.written, ..self.entry })
    }
}

fn masks(w: &mut Writer, masks: Vec<(u32, &Mask)>) {
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
}

fn ids(w: &mut Writer, ids: &RoaringTreemap) {
    let mut bytes = Vec::with_capacity(ids.serialized_size());
    ids.serialize_into(&mut bytes).expect("memory takes everything");
    w.blob(&bytes);
}
