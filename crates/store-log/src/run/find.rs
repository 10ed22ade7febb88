//! Finds single messages and answers.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use duewheel_core::message::Row;
use duewheel_core::record::{DedupeRow, Reader, StageKind, varint};
use duewheel_core::{Key, MessageId, QueueName};

use super::block::BlockKind;
use super::index::IndexScan;
use super::opened::{Run, payload};
use crate::fault::ReadFault;
use crate::run::block::Blocking;
use crate::run::filter;
use crate::run::opened::{self, BlockRows, Live};

/// The kind of an entry of the index of keys; the lower two bits of its first number.
pub(super) const HOLDER: u64 = 0;
pub(super) const DEAD: u64 = 1;
pub(super) const ANSWER: u64 = 2;

/// The state of one of a run's messages in tables newer than the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Newer {
    /// Nothing: it is as the run has it.
    Nothing,
    /// The message has changed.
    Changed,
    /// The message was removed.
    Gone,
}

/// The tables newer than a run.
pub(crate) struct NewerTables<'a> {
    /// Returns what they know of one message.
    pub(crate) says: &'a dyn Fn(MessageId) -> Newer,
    /// Whether a message that is dead in the run may have been revived.
    pub(crate) revived: bool,
}

impl NewerTables<'_> {
    /// No newer table.
    pub(crate) const NOTHING: NewerTables<'static> =
        NewerTables { says: &|_| Newer::Nothing, revived: false };
}

/// The bounds of a look-up's cost. Shared by the threads that read.
#[derive(Debug)]
pub(crate) struct ReadAllowance {
    /// Number of bytes of messages that may still be read.
    left: AtomicUsize,
    /// Whether it may wait for the medium.
    pub(crate) blocking: Blocking,
}

impl ReadAllowance {
    pub(crate) fn new(bytes: usize, blocking: Blocking) -> Arc<Self> {
        Arc::new(ReadAllowance { left: AtomicUsize::new(bytes), blocking })
    }

    /// # Errors
    /// [`ReadFault::TooMuch`] when it is used up. The message that uses it up may be read.
    pub(crate) fn charge(&self, bytes: usize) -> Result<(), ReadFault> {
        let before =
            self.left.fetch_update(Relaxed, Relaxed, |left| (left > 0).then(|| left.saturating_sub(bytes)));
        before.map(drop).map_err(|_| ReadFault::TooMuch)
    }
}

/// A key to find.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyLookup<'a> {
    /// [`NameHasher::key`](filter::NameHasher::key) of queue and key.
    pub(crate) hash: u64,
    pub(crate) queue: &'a QueueName,
    pub(crate) key: &'a Key,
}

/// A row that an index has named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CandidateRow {
    block: u64,
    id: MessageId,
    lookup: usize,
}

impl Run {
    /// Finds messages by id (ascending), live or not. Missing ones are left out; the order of `out` is that of the
    /// file.
    pub(crate) fn find_ids(
        &self,
        ids: &[MessageId],
        allowance: &ReadAllowance,
        out: &mut Vec<Row>,
    ) -> Result<(), ReadFault> {
        let mut index = IndexScan::with(allowance.blocking);
        let mut candidates = Vec::with_capacity(ids.len());
        for (lookup, &id) in ids.iter().enumerate().filter(|(_, id)| self.ids().contains(id.0)) {
            index.seek(&self.file, &self.by_id, &[id.0, 0])?;
            match index.next(&self.file, &self.by_id)? {
                Some([found, block]) if found == id.0 => {
                    candidates.push(CandidateRow { block: block.wrapping_mul(8), id, lookup });
                }
                Some(_) | None => {
                    let what = format!("message {id} is in the set of ids and not in their index");
                    return Err(self.file.problem(self.by_id.end(), what).into());
                }
            }
        }
        candidates.dedup();
        self.read(candidates, allowance.blocking, |_, row| {
            out.push(row.decode(allowance)?);
            Ok(())
        })
    }

    /// Finds the live messages that have exactly these keys: for each key those that are not dead, and the newest
    /// `dead` ones that are and of which newer tables know nothing. Messages that newer tables have changed may be
    /// included, except removed ones, and all that were revived are. Returns them with the position of their look-up,
    /// in no particular order.
    pub(crate) fn find_keys(
        &self,
        lookups: &[KeyLookup<'_>],
        live: &Live,
        dead: usize,
        behind: &NewerTables<'_>,
        allowance: &ReadAllowance,
        out: &mut Vec<(usize, Row)>,
    ) -> Result<(), ReadFault> {
        let mut order: Vec<(u64, u32, usize)> = Vec::new();
        for (i, lookup) in lookups.iter().enumerate().filter(|(_, lookup)| self.may_have(lookup.hash)) {
            if let Some(queue) = self.queue_no(lookup.queue) {
                order.push((filter::short(lookup.hash), queue, i));
            }
        }
        order.sort_unstable();
        let mut index = IndexScan::with(allowance.blocking);
        let mut candidates = Vec::with_capacity(order.len());
        let mut again = Vec::new();
        for &(hash, queue, lookup) in &order {
            let (most, to) = (dead, &mut candidates);
            let cut = self.key_candidates(&mut index, hash, queue, live, most, behind, lookup, to)?;
            if cut {
                again.push((hash, queue, lookup));
            }
        }
        // Another key with the same short hash takes the place of a dead message that is wanted: so rare that it may
        // cost a second look.
        let mut strangers = Vec::new();
        self.read(candidates, allowance.blocking, |lookup, row| {
            if row.has(&lookups[lookup])? {
                out.push((lookup, row.decode(allowance)?));
            } else {
                strangers.push(lookup);
            }
            Ok(())
        })?;
        again.retain(|(_, _, lookup)| strangers.contains(lookup));
        for (hash, queue, lookup) in again {
            out.retain(|(of, _)| *of != lookup);
            let mut all = Vec::new();
            let (most, to) = (usize::MAX, &mut all);
            self.key_candidates(&mut index, hash, queue, live, most, behind, lookup, to)?;
            let mut rows = Vec::new();
            self.read(all, allowance.blocking, |lookup, row| {
                if row.has(&lookups[lookup])? {
                    rows.push((lookup, row.decode(allowance)?));
                }
                Ok(())
            })?;
            rows.sort_by_key(|(_, row)| std::cmp::Reverse(row.message.id));
            let mut left = dead;
            rows.retain(|(_, row)| {
                let counts = is_dead(row) && (behind.says)(row.message.id) == Newer::Nothing;
                let wanted = !counts || left > 0;
                left -= usize::from(counts && wanted);
                wanted
            });
            out.append(&mut rows);
        }
        Ok(())
    }

    /// Finds the messages of one key, as [`Run::find_keys`] does those of many.
    #[allow(clippy::too_many_arguments)] // those of find_keys
    pub(crate) fn find_key(
        &self,
        hash: u64,
        queue: &QueueName,
        key: &Key,
        live: &Live,
        dead: usize,
        behind: &NewerTables<'_>,
        allowance: &ReadAllowance,
    ) -> Result<Vec<Row>, ReadFault> {
        let mut out = Vec::new();
        self.find_keys(&[KeyLookup { hash, queue, key }], live, dead, behind, allowance, &mut out)?;
        Ok(out.into_iter().map(|(_, row)| row).collect())
    }

    /// Finds a remembered answer, expired or not.
    pub(crate) fn find_answer(
        &self,
        hash: u64,
        queue: &QueueName,
        dedupe_id: &str,
        blocking: Blocking,
    ) -> Result<Option<DedupeRow>, ReadFault> {
        if self.footer.answers == 0 || !self.may_have(hash) {
            return Ok(None);
        }
        let wanted = filter::short(hash) << 2 | ANSWER;
        let mut index = IndexScan::with(blocking);
        let mut buffer = Vec::new();
        index.seek(&self.file, &self.by_key, &[wanted, 0, 0])?;
        while let Some([found, _, block]) = index.next(&self.file, &self.by_key)? {
            if found != wanted {
                break;
            }
            let at = block.wrapping_mul(8);
            self.check_place(at, self.footer.messages_end, self.footer.answers_end)?;
            let end = self.footer.answers_end;
            let head = self.file.block_within(BlockKind::Answers, at, end, &mut buffer, blocking)?;
            let mut rest = payload(&buffer, head);
            while !rest.is_empty() {
                let entry =
                    text(&mut rest).ok_or_else(|| self.file.problem(at, "an answer cannot be read"))?;
                let mut names = entry;
                if text(&mut names) == Some(queue.as_str().as_bytes())
                    && text(&mut names) == Some(dedupe_id.as_bytes())
                {
                    let mut reader = Reader::new(Bytes::copy_from_slice(entry));
                    return Ok(Some(reader.dedupe().map_err(self.file.unreadable(at))?));
                }
            }
        }
        Ok(None)
    }

    /// Collects the entries of the index of keys for a hash; returns whether dead messages were left out.
    #[allow(clippy::too_many_arguments)] // one step of find_keys, in a function of its own to be read
    fn key_candidates(
        &self,
        index: &mut IndexScan<3>,
        hash: u64,
        queue: u32,
        live: &Live,
        dead: usize,
        behind: &NewerTables<'_>,
        lookup: usize,
        candidates: &mut Vec<CandidateRow>,
    ) -> Result<bool, ReadFault> {
        let (mut dead_left, mut cut) = (dead, false);
        index.seek(&self.file, &self.by_key, &[hash << 2 | HOLDER, 0, 0])?;
        while let Some([found, not_id, block]) = index.next(&self.file, &self.by_key)? {
            if found > hash << 2 | DEAD {
                break;
            }
            let id = MessageId(!not_id);
            if !live.has(id, queue) {
                continue;
            }
            if found == hash << 2 | DEAD {
                match (behind.says)(id) {
                    Newer::Gone => continue,
                    Newer::Changed => {}
                    Newer::Nothing if dead_left > 0 => dead_left -= 1,
                    // Behind it may still be one that was revived, and has the key.
                    Newer::Nothing if behind.revived => {
                        cut = true;
                        continue;
                    }
                    Newer::Nothing => return Ok(true),
                }
            }
            candidates.push(CandidateRow { block: block.wrapping_mul(8), id, lookup });
        }
        Ok(cut)
    }

    /// Reads the rows that an index has named, each block once.
    fn read(
        &self,
        mut candidates: Vec<CandidateRow>,
        blocking: Blocking,
        mut see: impl FnMut(usize, FoundRow<'_>) -> Result<(), ReadFault>,
    ) -> Result<(), ReadFault> {
        candidates.sort_unstable();
        let mut buffer = Vec::new();
        for wanted in candidates.chunk_by(|a, b| a.block == b.block) {
            let at = wanted[0].block;
            self.check_place(at, super::block::FILE_HEAD as u64, self.footer.messages_end)?;
            let head = self.file.block_within(
                BlockKind::Messages,
                at,
                self.footer.messages_end,
                &mut buffer,
                blocking,
            )?;
            let mut rows = BlockRows::new(payload(&buffer, head), head.entries);
            let mut seen = 0;
            while seen < wanted.len() {
                let Some(row) = rows.next().map_err(self.file.unreadable(at))? else {
                    let what = "an index names a message that is not in the block";
                    return Err(self.file.problem(at, what).into());
                };
                let from = wanted.partition_point(|candidate| candidate.id < row.head.id);
                for candidate in wanted[from..].iter().take_while(|candidate| candidate.id == row.head.id) {
                    see(candidate.lookup, FoundRow { run: self, row, at })?;
                    seen += 1;
                }
            }
        }
        Ok(())
    }

    /// Checks that a block that an index names lies in its part of the run.
    pub(super) fn check_place(&self, at: u64, from: u64, until: u64) -> Result<(), ReadFault> {
        if at < from || at >= until {
            return Err(self
                .file
                .problem(at, "an index names a block outside of its part of the run")
                .into());
        }
        Ok(())
    }
}

/// A row in a block that has been read.
struct FoundRow<'a> {
    run: &'a Run,
    row: opened::InBlock<'a>,
    at: u64,
}

impl FoundRow<'_> {
    fn queue(&self) -> Result<QueueName, ReadFault> {
        self.run.queue_name(self.row.queue, self.at)
    }

    fn has(&self, wanted: &KeyLookup<'_>) -> Result<bool, ReadFault> {
        Ok(self.row.head.key == wanted.key.as_str().as_bytes() && self.queue()? == *wanted.queue)
    }

    fn decode(&self, allowance: &ReadAllowance) -> Result<Row, ReadFault> {
        allowance.charge(self.row.bytes.len())?;
        let bytes = Bytes::copy_from_slice(self.row.bytes);
        opened::decode_row(bytes, self.queue()?).map_err(self.run.file.unreadable(self.at))
    }
}

fn is_dead(row: &Row) -> bool {
    matches!(row.life.stage, duewheel_core::message::Stage::Dead { .. })
}

/// The kind of a row in the index of keys.
pub(super) fn holder_or_dead(stands: StageKind) -> u64 {
    match stands {
        StageKind::Waiting | StageKind::Leased { .. } => HOLDER,
        StageKind::Dead { .. } => DEAD,
    }
}

/// Reads bytes with their length in front.
pub(super) fn text<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(varint(bytes).ok()?).ok()?;
    let (text, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(text)
}
