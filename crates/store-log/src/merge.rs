//! Merges runs into one, in slices, so that the worker can do more urgent work in between; the worker's own state.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use duewheel_core::mutant::{self, Mutant};
use duewheel_core::record::DedupeRow;
use duewheel_core::store::{Ledger, Sequence, Which};
use duewheel_core::{EngineMs, Lsn, MessageId};

use crate::disk::Disk;
use crate::fault::ReadFault;
use crate::format::{FileNo, Incarnation};
use crate::manifest::{RunEntry, StateEntry};
use crate::run::filter::NameHasher;
use crate::run::opened::Interner;
use crate::run::{AnswerScan, Live, RawRow, Run, RunScan, RunWriter};

pub(crate) mod policy;

#[cfg(test)]
mod tests;

/// A merge in progress. It reads the rows of its inputs that were live when it began; rows that were removed since are
/// subtracted when the output is installed ([`Live::of_merged`]).
#[derive(Debug)]
pub(crate) struct Merge {
    inputs: Vec<MergeInput>,
    out: RunWriter,
    /// Runs that are older than all inputs.
    older: Vec<Arc<Run>>,
    now: EngineMs,
    stage: MergeStage,
}

#[derive(Debug)]
struct MergeInput {
    run: Arc<Run>,
    live: Arc<Live>,
    /// The output's numbers of the inputs' queues.
    queues: Vec<Option<u32>>,
}

#[derive(Debug)]
enum MergeStage {
    /// The rows of one class: first those due at an instant, then those due after a delay.
    Rows(Sequence, MergedRows),
    Answers(MergedAnswers),
    Finish,
}

/// The heads of all inputs.
#[derive(Debug)]
struct MergedRows {
    scans: Vec<(RunScan, Option<RawRow>)>,
    order: BinaryHeap<Reverse<(u64, MessageId, usize)>>,
}

#[derive(Debug)]
struct MergedAnswers {
    scans: Vec<(AnswerScan, Option<(u64, DedupeRow)>)>,
}

/// An answer takes about as long as this many bytes of rows.
const BYTES_OF_ANSWER: u64 = 512;

impl Merge {
    /// Starts to merge `inputs`, oldest first, into a run with this number. Answers that are expired at `now` are left
    /// out, unless one of the `older` runs may have one that they hide.
    pub(crate) fn new(
        disk: &Arc<dyn Disk>,
        no: FileNo,
        incarnation: Incarnation,
        inputs: Vec<(Arc<Run>, Arc<Live>)>,
        older: Vec<Arc<Run>>,
        now: EngineMs,
        hasher: NameHasher,
    ) -> Result<Self, ReadFault> {
        let last = inputs.iter().map(|(run, _)| run.entry().last).max().unwrap_or(Lsn(0));
        let inputs: Vec<MergeInput> = inputs
            .into_iter()
            .map(|(run, live)| MergeInput { queues: vec![None; run.queues().len()], run, live })
            .collect();
        let stage = MergeStage::Rows(Sequence::AllAt, MergedRows::new(&inputs, Sequence::AllAt)?);
        let out = RunWriter::create(disk, no, incarnation, last, hasher)?;
        Ok(Merge { inputs, out, older, now, stage })
    }

    /// Continues for about this many bytes. Returns the new run's entry when the merge is complete; no manifest lists
    /// the run yet.
    /// Answers that are forgotten, says `remembers`, are left out; what it says may change between two steps.
    pub(crate) fn step(
        &mut self,
        bytes: u64,
        remembers: &dyn Fn(&DedupeRow) -> bool,
    ) -> Result<Option<RunEntry>, ReadFault> {
        let mut left = bytes;
        while left > 0 {
            let whole = match &mut self.stage {
                MergeStage::Rows(_, rows) => rows.copy(&mut self.inputs, &mut self.out, &mut left)?,
                MergeStage::Answers(answers) => {
                    answers.copy(&mut self.out, self.now, &self.older, remembers, &mut left)?
                }
                MergeStage::Finish => return Ok(self.out.finish_step(left)?),
            };
            if whole {
                self.stage = match &self.stage {
                    MergeStage::Rows(Sequence::AllAt, _) => MergeStage::Rows(
                        Sequence::AllAfter,
                        MergedRows::new(&self.inputs, Sequence::AllAfter)?,
                    ),
                    MergeStage::Rows(..) => MergeStage::Answers(MergedAnswers::new(&self.inputs)?),
                    MergeStage::Answers(_) | MergeStage::Finish => MergeStage::Finish,
                };
            }
        }
        Ok(None)
    }

    /// The runs that are merged, oldest first, and their live rows when the merge began.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = (&Arc<Run>, &Arc<Live>)> {
        self.inputs.iter().map(|input| (&input.run, &input.live))
    }

    /// Sets another length of spans: for tests and the example `runs`.
    #[allow(dead_code)]
    pub(crate) fn set_span(&mut self, bytes: usize) {
        self.out.set_span(bytes);
    }
}

impl MergedRows {
    fn new(inputs: &[MergeInput], sequence: Sequence) -> Result<Self, ReadFault> {
        let mut rows = MergedRows { scans: Vec::new(), order: BinaryHeap::new() };
        for (i, input) in inputs.iter().enumerate() {
            let mut scan = input.run.scan(&input.live, sequence, &Which::All, None, u64::MAX)?;
            let head = scan.next()?;
            rows.order.extend(head.as_ref().map(|row| Reverse((row.due.raw(), row.id, i))));
            rows.scans.push((scan, head));
        }
        Ok(rows)
    }

    /// Copies rows until the budget is used up; returns true when there are no more.
    fn copy(
        &mut self,
        inputs: &mut [MergeInput],
        out: &mut RunWriter,
        left: &mut u64,
    ) -> Result<bool, ReadFault> {
        let newest = inputs.len() - 1;
        while let Some(mut top) = self.order.peek_mut() {
            let Reverse((_, _, i)) = *top;
            let (scan, head) = &mut self.scans[i];
            let Some(row) = head.take() else {
                PeekMut::pop(top);
                continue;
            };
            let input = &mut inputs[i];
            let queue = match input.queues[row.queue as usize] {
                Some(queue) => queue,
                None => {
                    let queue = out.queue(&input.run.queues()[row.queue as usize].name);
                    *input.queues[row.queue as usize].insert(queue)
                }
            };
            if !(mutant::is(Mutant::MergeDropsNewest) && i == newest && row.id.0.is_multiple_of(3)) {
                out.raw(queue, &row)?;
            }
            *left = left.saturating_sub(row.bytes.len() as u64);
            drop(row); // the scan uses the memory again
            *head = scan.next()?;
            match head {
                Some(next) => *top = Reverse((next.due.raw(), next.id, i)),
                None => drop(PeekMut::pop(top)),
            }
            if *left == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl MergedAnswers {
    fn new(inputs: &[MergeInput]) -> Result<Self, ReadFault> {
        let mut answers = MergedAnswers { scans: Vec::new() };
        for input in inputs {
            let mut scan = AnswerScan::new(Arc::clone(&input.run));
            let head = scan.next()?;
            answers.scans.push((scan, head));
        }
        Ok(answers)
    }

    /// Copies answers until the budget is used up; returns true when there are no more.
    fn copy(
        &mut self,
        out: &mut RunWriter,
        now: EngineMs,
        older: &[Arc<Run>],
        remembers: &dyn Fn(&DedupeRow) -> bool,
        left: &mut u64,
    ) -> Result<bool, ReadFault> {
        while *left > 0 {
            let heads = self.scans.iter().filter_map(|(_, head)| head.as_ref().map(|(hash, _)| *hash));
            let Some(hash) = heads.min() else { return Ok(true) };
            // All answers with one hash; that of the newest run is last.
            let mut rows: Vec<DedupeRow> = Vec::new();
            for (scan, head) in &mut self.scans {
                while let Some((_, row)) = head.take_if(|(of, _)| *of == hash) {
                    *left = left.saturating_sub(BYTES_OF_ANSWER);
                    rows.retain(|known| known.queue != row.queue || known.dedupe_id != row.dedupe_id);
                    rows.push(row);
                    *head = scan.next()?;
                }
            }
            // An older answer that has expired itself need not be hidden.
            let hides = older.iter().any(|run| run.answers_until() > now.0 && run.may_have(hash));
            // One that is forgotten hides none: an older one is forgotten, too.
            for row in rows.iter().filter(|row| (row.until > now || hides) && remembers(row)) {
                out.answer_in_order(hash, row)?;
            }
        }
        Ok(false)
    }
}

// State that only the background worker uses.

/// The state of the background worker.
pub(crate) struct Work {
    /// The books as of the last cut that was flushed.
    pub(crate) ledger: Ledger,
    pub(crate) names: Interner,
    /// The files of the state, as the manifest lists them.
    pub(crate) states: Vec<StateEntry>,
    pub(crate) merging: Option<Merging>,
    /// Number of failed merges when a flush last found no room.
    pub(crate) merge_failures: u64,
}

/// A merge in progress.
#[derive(Debug)]
pub(crate) struct Merging {
    pub(crate) no: FileNo,
    pub(crate) merge: Merge,
    pub(crate) why: MergePurpose,
    pub(crate) began: Instant,
}

/// The purpose of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MergePurpose {
    /// The merge makes fewer and fuller runs, and leaves space for the next flushes.
    Order,
    /// The merge frees space on a full disk: it takes less than it frees, or fails for lack of space itself.
    Room,
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("states", &self.states).finish_non_exhaustive()
    }
}
