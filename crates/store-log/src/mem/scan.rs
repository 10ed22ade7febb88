//! A memtable in the order of a sequence.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use duewheel_core::message::{Kind, Stage};
use duewheel_core::store::{Cursor, Sequence, Which};
use duewheel_core::time::Class;
use duewheel_core::{Due, MessageId, QueueName};

use super::{Mem, MemAnswer, Patch, RecordNode, StageAfter};
use crate::mem::arena::Merged;

/// A position in a sequence of a memtable that does not change.
#[derive(Debug)]
pub(crate) struct MemScan {
    sequence: Sequence,
    wanted: QueueFilter,
    merged: Merged,
    /// Entries that were taken from `merged` already.
    ahead: VecDeque<(u64, u64)>,
    reach: usize,
}

#[derive(Debug)]
enum QueueFilter {
    All,
    None,
    One(u32),
    /// All except these, with a cache of whether each queue is wanted.
    AllBut(Arc<[QueueName]>, HashMap<u32, bool>),
}

impl QueueFilter {
    fn has(&mut self, mem: &Mem, queue: u32) -> bool {
        match self {
            QueueFilter::All => true,
            QueueFilter::None => false,
            QueueFilter::One(one) => *one == queue,
            QueueFilter::AllBut(queues, known) => *known
                .entry(queue)
                .or_insert_with(|| queues.binary_search(&mem.names[queue as usize]).is_err()),
        }
    }
}

/// A step of a scan.
#[derive(Debug)]
pub(crate) enum ScanStep {
    /// A message, and the name of its queue.
    Here(Cursor, QueueName),
    /// An outdated entry at this position.
    Stale(Cursor),
}

impl MemScan {
    /// Examines the next entry; `None` behind the last one. `mem` must be the same, unchanged table.
    pub(crate) fn step(&mut self, mem: &Mem) -> Option<ScanStep> {
        if matches!(self.wanted, QueueFilter::None) {
            return None;
        }
        if self.ahead.is_empty() {
            self.look_ahead(mem);
        }
        let (time, id) = self.ahead.pop_front()?;
        let cursor = (time, MessageId(id));
        Some(match mem.node(MessageId(id)).filter(|node| self.is_at(mem, node, cursor)) {
            Some(node) if self.wanted.has(mem, node.queue) => {
                ScanStep::Here(cursor, mem.names[node.queue as usize].clone())
            }
            Some(_) | None => ScanStep::Stale(cursor),
        })
    }

    /// Takes several entries at once and touches their records: in due order each is somewhere else in memory, and the
    /// processor fetches them in parallel if nothing else is in between.
    fn look_ahead(&mut self, mem: &Mem) {
        self.reach = (self.reach * 2).clamp(4, 64);
        let order = mem.order(self.sequence);
        while self.ahead.len() < self.reach
            && let Some(next) = self.merged.next(order)
        {
            self.ahead.push_back(next);
        }
        let mut touched = 0;
        for (_, id) in &self.ahead {
            let place = mem.ids.get(*id);
            if place != 0 {
                let head = mem.arena.at(place);
                touched ^= head[0] ^ head.get(64).unwrap_or(&0) ^ head.get(128).unwrap_or(&0);
            }
        }
        std::hint::black_box(touched);
    }

    fn is_at(&self, mem: &Mem, node: &RecordNode, (time, id): Cursor) -> bool {
        let StageAfter::Is(kind) = node.stands else { return false };
        match self.sequence {
            Sequence::At => node.due == Due::from_raw(Class::At, time) && kind == Kind::Waiting,
            Sequence::After => node.due == Due::from_raw(Class::After, time) && kind == Kind::Waiting,
            Sequence::AllAt => node.due == Due::from_raw(Class::At, time),
            Sequence::AllAfter => node.due == Due::from_raw(Class::After, time),
            Sequence::Leased => kind == Kind::Leased && mem.stage_time(id, node) == Some(time),
            Sequence::Dead => kind == Kind::Dead && mem.stage_time(id, node) == Some(time),
        }
    }
}

impl Mem {
    /// The messages of the table in a sequence, behind a position. The table must be settled.
    pub(crate) fn scan(&self, sequence: Sequence, which: &Which, after: Option<Cursor>) -> MemScan {
        let wanted = match which {
            Which::All => QueueFilter::All,
            Which::One(queue) => {
                self.numbers.get(queue).map_or(QueueFilter::None, |no| QueueFilter::One(*no))
            }
            Which::AllBut(queues) => QueueFilter::AllBut(Arc::clone(queues), HashMap::new()),
        };
        let order = self.order(sequence);
        let merged = order.scan(after.map(|(time, id)| (time, id.0)));
        MemScan { sequence, wanted, merged, ahead: VecDeque::new(), reach: 0 }
    }

    /// The deadline of a lease, or the time of death.
    fn stage_time(&self, id: MessageId, node: &RecordNode) -> Option<u64> {
        let stage = match self.tell(id, node) {
            MemAnswer::Row(row) => row.life.stage,
            MemAnswer::Patch(Patch { grant: Some((_, lease)), .. }) => Stage::Leased(lease),
            MemAnswer::Patch(Patch { life: Some(life), .. }) => life.stage,
            MemAnswer::Patch(_) | MemAnswer::Nothing | MemAnswer::Gone => return None,
        };
        match stage {
            Stage::Leased(lease) => Some(lease.until.0),
            Stage::Dead { at, .. } => Some(at.raw()),
            Stage::Waiting { .. } => None,
        }
    }
}
