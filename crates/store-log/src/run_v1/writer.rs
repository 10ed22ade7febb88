//! Writes a run, from its start to its end.

use std::sync::Arc;

use duewheel_core::Lsn;
use duewheel_core::message::Row;
use duewheel_core::record::{ClockPair, DedupeRow, Writer};
use duewheel_core::store::{QueueRow, StoreError};

use super::block::{self, Kind};
use crate::disk::{Disk, DiskFile};
use crate::fault::failed;
use crate::folder::{FileNo, Incarnation, RUNS};
use crate::manifest::RunEntry;

/// A block is closed when it has so many bytes.
const BLOCK: usize = 64 * 1024;
/// Blocks are written together.
const WRITE: usize = 1024 * 1024;
/// Synced in pieces, so that a sync of the journal never queues behind a whole run.
const PIECE: u64 = 2 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct RunWriter<'a> {
    disk: &'a dyn Disk,
    file: Arc<dyn DiskFile>,
    temp: String,
    run: RunEntry,
    /// Bytes before `ready`.
    written: u64,
    synced: u64,
    /// Blocks that are complete.
    ready: Vec<u8>,
    /// The block that is being filled, its head included.
    block: Vec<u8>,
    kind: Kind,
    entries: u32,
    counts: Counts,
    scratch: Writer,
}

/// How many entries of each kind a run has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) queues: u64,
    pub(crate) messages: u64,
    pub(crate) answers: u64,
}

impl<'a> RunWriter<'a> {
    pub(crate) fn create(
        disk: &'a dyn Disk,
        no: FileNo,
        incarnation: Incarnation,
        last: Lsn,
    ) -> Result<Self, StoreError> {
        let temp = no.run_temp();
        let file = disk.create(&temp).map_err(failed("create", &temp))?;
        let run = RunEntry { no, incarnation, bytes: 0, last };
        Ok(RunWriter {
            disk,
            file,
            temp,
            run,
            written: 0,
            synced: 0,
            ready: block::file_head(&run),
            block: vec![0; block::HEAD],
            kind: Kind::Queues,
            entries: 0,
            counts: Counts::default(),
            scratch: Writer::default(),
        })
    }

    /// Queues come first, by name. `messages` is the number of its messages in this run.
    pub(crate) fn queue(&mut self, row: &QueueRow, messages: u64) -> Result<(), StoreError> {
        self.counts.queues += 1;
        self.entry(Kind::Queues, |w| {
            w.blob(row.name.as_str().as_bytes());
            w.settings(&row.settings);
            w.pause(row.pause);
            w.totals(&row.totals);
            w.varint(messages);
        })
    }

    /// Then messages, by id.
    pub(crate) fn row(&mut self, row: &Row) -> Result<(), StoreError> {
        self.counts.messages += 1;
        self.entry(Kind::Messages, |w| w.row(row))
    }

    /// A message as another run holds it.
    pub(crate) fn row_bytes(&mut self, row: &[u8]) -> Result<(), StoreError> {
        self.counts.messages += 1;
        self.entry(Kind::Messages, |w| w.bytes.extend_from_slice(row))
    }

    /// Then remembered answers, by queue and id.
    pub(crate) fn answer(&mut self, row: &DedupeRow) -> Result<(), StoreError> {
        self.counts.answers += 1;
        self.entry(Kind::Answers, |w| w.dedupe(row))
    }

    /// Completes the run, makes it durable and gives it its name.
    pub(crate) fn finish(
        mut self,
        next_id: u64,
        clock: Option<ClockPair>,
    ) -> Result<(RunEntry, Counts), StoreError> {
        let counts = self.counts;
        self.entry(Kind::End, |w| {
            w.varint(next_id);
            match clock {
                None => w.byte(0),
                Some(clock) => {
                    w.byte(1);
                    w.clock(clock);
                }
            }
            for n in [counts.queues, counts.messages, counts.answers] {
                w.varint(n);
            }
        })?;
        self.close_block()?;
        self.flush()?;
        self.sync()?;
        let name = self.run.no.run();
        self.disk.rename(&self.temp, &name).map_err(failed("rename", &self.temp))?;
        self.disk.sync_dir(RUNS).map_err(failed("sync the names of", RUNS))?;
        Ok((RunEntry { bytes: self.written, ..self.run }, counts))
    }

    /// Gives the attempt up.
    pub(crate) fn discard(disk: &dyn Disk, no: FileNo) {
        let _ = disk.remove(&no.run_temp()); // or it is removed by the next owner
        let _ = disk.remove(&no.run());
    }

    fn entry(&mut self, kind: Kind, write: impl FnOnce(&mut Writer)) -> Result<(), StoreError> {
        debug_assert!(kind >= self.kind, "sections have an order");
        if kind != self.kind || self.block.len() >= BLOCK {
            self.close_block()?;
            self.kind = kind;
        }
        self.scratch.bytes.clear();
        write(&mut self.scratch);
        let mut block = Writer { bytes: std::mem::take(&mut self.block) };
        block.blob(&self.scratch.bytes);
        self.block = block.bytes;
        self.entries += 1;
        Ok(())
    }

    fn close_block(&mut self) -> Result<(), StoreError> {
        if self.entries == 0 {
            return Ok(());
        }
        let at = self.written + self.ready.len() as u64;
        block::finish(&mut self.block, self.kind, self.entries, self.run.incarnation, at);
        self.ready.extend_from_slice(&self.block);
        self.block.clear();
        self.block.resize(block::HEAD, 0);
        self.entries = 0;
        if self.ready.len() >= WRITE { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.file.write_at(&self.ready, self.written).map_err(failed("write", &self.temp))?;
        self.written += self.ready.len() as u64;
        self.ready.clear();
        if self.written - self.synced >= PIECE { self.sync() } else { Ok(()) }
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.synced = self.written;
        self.file.sync_data().map_err(failed("sync", &self.temp))
    }
}
