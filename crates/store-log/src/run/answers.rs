//! Reads all remembered answers of a run, by hash.

use std::sync::Arc;

use bytes::Bytes;
use duewheel_core::record::{DedupeRow, Reader};

use super::block::BlockKind;
use super::file::Blocking;
use super::find::text;
use super::opened::{Run, payload};
use crate::fault::ReadFault;

/// Returns a run's answers one by one, expired or not, in order of their hashes.
#[derive(Debug)]
pub(crate) struct AnswerScan {
    run: Arc<Run>,
    /// The present block, its start, and the position in it.
    block: Bytes,
    at: u64,
    next: u64,
    last: u64,
}

impl AnswerScan {
    pub(crate) fn new(run: Arc<Run>) -> Self {
        let start = run.footer.messages_end;
        AnswerScan { run, block: Bytes::new(), at: start, next: start, last: 0 }
    }

    /// The next answer and its hash.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, DedupeRow)>, ReadFault> {
        while self.block.is_empty() {
            let end = self.run.footer.answers_end;
            if self.next == end {
                return Ok(None);
            }
            let mut buffer = Vec::new();
            self.at = self.next;
            let head = self.run.file.block_within(
                BlockKind::Answers,
                self.at,
                end,
                &mut buffer,
                Blocking::Allowed,
            )?;
            self.next += head.length as u64;
            self.block = Bytes::copy_from_slice(payload(&buffer, head));
        }
        let mut rest = &self.block[..];
        let Some(entry) = text(&mut rest) else {
            return Err(self.run.file.problem(self.at, "an answer cannot be read").into());
        };
        let entry = self.block.slice_ref(entry);
        self.block = self.block.slice_ref(rest);
        let mut reader = Reader::new(entry);
        let row = reader.dedupe().map_err(self.run.file.unreadable(self.at))?;
        let hash = self.run.hasher.answer(&row.queue, &row.dedupe_id);
        if !reader.is_empty() || hash < self.last {
            return Err(self.run.file.problem(self.at, "the answers are out of order").into());
        }
        self.last = hash;
        Ok(Some((hash, row)))
    }
}
