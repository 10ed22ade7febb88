//! Reads a run, block by block, and believes nothing.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use duewheel_core::record::{ClockPair, DecodeError, DedupeRow, Reader};
use duewheel_core::store::{QueueRow, Table};
use duewheel_core::{Lsn, MessageId, QueueName};

use super::block::{self, Kind};
use super::writer::Counts;
use crate::disk::{Access, Disk, DiskFile};
use crate::fault::{Problem, Trouble, failed};
use crate::manifest::RunEntry;

/// An entry of a run.
#[derive(Debug)]
pub(crate) enum Entry {
    Queue { row: QueueRow, messages: u64 },
    Message(RawRow),
    Answer(DedupeRow),
    End(End),
}

/// A message that is not decoded yet.
#[derive(Debug)]
pub(crate) struct RawRow {
    pub(crate) id: MessageId,
    /// As the codec writes a row.
    pub(crate) bytes: Bytes,
}

/// What the end of a run says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) next_id: u64,
    pub(crate) clock: Option<ClockPair>,
    pub(crate) counts: Counts,
}

#[derive(Debug)]
pub(crate) struct RunReader {
    file: Arc<dyn DiskFile>,
    name: String,
    run: RunEntry,
    /// Where the next block starts.
    at: u64,
    /// The block that is being read, its start, and how many entries are left.
    block: Reader,
    block_at: u64,
    kind: Kind,
    left: u32,
    counts: Counts,
    last_id: Option<MessageId>,
    ended: bool,
}

impl RunReader {
    pub(crate) fn open(disk: &dyn Disk, run: &RunEntry) -> Result<Self, Trouble> {
        let name = run.no.run();
        let file = match disk.open(&name, Access::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Problem::new(name, 0, "the manifest lists this run, and it is not there").into());
            }
            Err(error) => return Err(failed("open", &name)(error).into()),
        };
        let size = file.size().map_err(failed("measure", &name))?;
        if size != run.bytes || size < block::FILE_HEAD as u64 {
            let what = format!("the file has {size} bytes, and should have {}", run.bytes);
            return Err(Problem::new(name, size.min(run.bytes), what).into());
        }
        let mut head = [0; block::FILE_HEAD];
        file.read_at(&mut head, 0).map_err(failed("read", &name))?;
        block::check_file_head(&head, run).map_err(|what| Problem::new(&*name, 0, what))?;
        Ok(RunReader {
            file,
            name,
            run: *run,
            at: block::FILE_HEAD as u64,
            block: Reader::new(Bytes::new()),
            block_at: 0,
            kind: Kind::Queues,
            left: 0,
            counts: Counts::default(),
            last_id: None,
            ended: false,
        })
    }

    /// The next entry; `None` behind the end.
    pub(crate) fn entry(&mut self) -> Result<Option<Entry>, Trouble> {
        if self.ended {
            return Ok(None);
        }
        while self.left == 0 {
            self.next_block()?;
        }
        self.left -= 1;
        let decoded = self.decode();
        let entry = decoded.map_err(|error| self.problem(&format!("an entry cannot be read: {error}")))?;
        if self.left == 0 && !self.block.is_empty() {
            return Err(self.problem("bytes are left behind the last entry").into());
        }
        match &entry {
            Entry::Queue { .. } => self.counts.queues += 1,
            Entry::Message(row) => {
                self.counts.messages += 1;
                if self.last_id >= Some(row.id) {
                    return Err(self.problem("the messages are out of order").into());
                }
                self.last_id = Some(row.id);
            }
            Entry::Answer(_) => self.counts.answers += 1,
            Entry::End(end) => {
                self.ended = true;
                if self.left > 0 || self.at != self.run.bytes || end.counts != self.counts {
                    return Err(self.problem("the end does not fit what is before it").into());
                }
            }
        }
        Ok(Some(entry))
    }

    fn next_block(&mut self) -> Result<(), Trouble> {
        let left = self.run.bytes - self.at;
        self.block_at = self.at;
        let mut head = [0; block::HEAD];
        if left < head.len() as u64 {
            return Err(self.problem("the run ends without its end block").into());
        }
        self.file.read_at(&mut head, self.at).map_err(failed("read", &self.name))?;
        let length = block::length(&head);
        if length as u64 > left {
            return Err(self.problem("the block's length points behind the end of the file").into());
        }
        let mut bytes = vec![0; length];
        self.file.read_at(&mut bytes, self.at).map_err(failed("read", &self.name))?;
        let head = block::check(&bytes, self.run.incarnation, self.at).map_err(|what| self.problem(what))?;
        if head.kind < self.kind || head.entries == 0 {
            return Err(self.problem("the block is out of order").into());
        }
        self.at += length as u64;
        self.kind = head.kind;
        self.left = head.entries;
        self.block = Reader::new(Bytes::from(bytes).slice(block::HEAD..block::HEAD + head.payload));
        Ok(())
    }

    fn decode(&mut self) -> Result<Entry, DecodeError> {
        let bytes = self.block.blob()?;
        let mut reader = Reader::new(bytes.clone());
        let entry = match self.kind {
            Kind::Queues => Entry::Queue {
                row: QueueRow {
                    name: reader.queue_name()?,
                    settings: reader.settings()?,
                    pause: reader.pause()?,
                    totals: reader.totals()?,
                },
                messages: reader.varint()?,
            },
            // The rest of it is decoded when it is wanted.
            Kind::Messages => return Ok(Entry::Message(RawRow { id: MessageId(reader.varint()?), bytes })),
            Kind::Answers => Entry::Answer(reader.dedupe()?),
            Kind::End => Entry::End(End {
                next_id: reader.varint()?,
                clock: match reader.byte()? {
                    0 => None,
                    1 => Some(reader.clock()?),
                    _ => return Err(DecodeError::Unknown("presence byte")),
                },
                counts: Counts {
                    queues: reader.varint()?,
                    messages: reader.varint()?,
                    answers: reader.varint()?,
                },
            }),
        };
        if reader.is_empty() { Ok(entry) } else { Err(DecodeError::Unknown("end of an entry")) }
    }

    /// Damage in the block that is being read.
    pub(crate) fn problem(&self, what: &str) -> Problem {
        Problem::new(&*self.name, self.block_at, what)
    }
}

impl RawRow {
    /// The queue it is in, without decoding the rest.
    pub(crate) fn queue(&self) -> Result<QueueName, DecodeError> {
        let mut reader = Reader::new(self.bytes.clone());
        reader.varint()?;
        reader.queue_name()
    }

    pub(crate) fn decode(&self) -> Result<duewheel_core::message::Row, DecodeError> {
        let mut reader = Reader::new(self.bytes.clone());
        let row = reader.row()?;
        if reader.is_empty() { Ok(row) } else { Err(DecodeError::Unknown("end of a message")) }
    }
}

/// Takes a whole run into an empty table, and returns the number of its messages.
pub(crate) fn restore(disk: &dyn Disk, run: &RunEntry, table: &mut Table) -> Result<u64, Trouble> {
    let mut reader = RunReader::open(disk, run)?;
    table.restore_counters(run.last, 1, None);
    let mut messages = 0;
    let mut promised = 0;
    while let Some(entry) = reader.entry()? {
        match entry {
            Entry::Queue { row, messages } => {
                promised += messages;
                table.restore_queue(row);
            }
            Entry::Message(raw) => {
                let row =
                    raw.decode().map_err(|e| reader.problem(&format!("a message cannot be read: {e}")))?;
                table.restore_row(row);
                messages += 1;
            }
            Entry::Answer(row) => table.restore_dedupe(row),
            Entry::End(end) => table.restore_counters(run.last, end.next_id, end.clock),
        }
    }
    if promised != messages {
        return Err(reader.problem("the queues do not count as many messages as there are").into());
    }
    Ok(messages)
}

/// The position that a run includes.
pub(crate) fn last(run: Option<&RunEntry>) -> Lsn {
    run.map_or(Lsn(0), |run| run.last)
}
