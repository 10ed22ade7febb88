//! The journal's state of each message: its last record takes precedence over any run.

use std::collections::BTreeMap;

use duewheel_core::message::{Lease, Life, Stage};
use duewheel_core::record::Record;
use duewheel_core::store::StoreError;
use duewheel_core::{Due, Lsn, MessageId, QueueName};

use super::frames::JournalFrames;
use super::report::{Loss, SalvageReport};
use super::state::SalvagedBooks;
use crate::run::Mask;

/// The fold of the journal, without bodies.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    fates: BTreeMap<MessageId, Fate>,
    purges: Vec<(QueueName, Mask)>,
}

#[derive(Debug)]
struct Fate {
    queue: QueueName,
    due: Due,
    /// The record that holds the message, if the journal does.
    put: Option<Lsn>,
    life: Option<Life>,
    /// A later grant.
    grant: Option<(u32, Lease)>,
    end: MessageFate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageFate {
    /// The message is alive, and was not written yet.
    Open,
    /// The message is alive, and was written.
    Written,
    /// The message is settled.
    Gone,
}

impl Overlay {
    /// Reads the whole journal.
    pub(super) fn fold(
        frames: &JournalFrames<'_>,
        books: &mut SalvagedBooks,
        report: &mut SalvageReport,
    ) -> Result<Self, StoreError> {
        let mut overlay = Overlay::default();
        let from = books.fold_from();
        let visited = frames.visit(report, |lsn, record| {
            books.apply(lsn, &record);
            if lsn > from {
                overlay.apply(lsn, record);
            }
            Ok(())
        })?;
        books.note(visited.next, visited.clocks, visited.anchor);
        if report.losses.iter().any(|loss| matches!(loss, Loss::Records { .. })) {
            books.doubt();
        }
        Ok(overlay)
    }

    fn apply(&mut self, lsn: Lsn, record: Record) {
        let fate = |queue: &QueueName, due| Fate {
            queue: queue.clone(),
            due,
            put: None,
            life: None,
            grant: None,
            end: MessageFate::Open,
        };
        match record {
            Record::Put { message, life, .. } => {
                let fate = Fate { put: Some(lsn), ..fate(&message.queue, life.due) };
                self.fates.insert(message.id, fate);
            }
            Record::Changed { id, life, was } => {
                let fate = self.fates.entry(id).or_insert_with(|| fate(&was.queue, was.due));
                (fate.due, fate.life, fate.grant) = (life.due, Some(life), None);
            }
            Record::Granted { id, attempt, lease, was } => {
                let fate = self.fates.entry(id).or_insert_with(|| fate(&was.queue, was.due));
                fate.grant = Some((attempt, lease));
            }
            Record::Removed { id, was, .. } => {
                self.fates.insert(id, Fate { end: MessageFate::Gone, ..fate(&was.queue, was.due) });
            }
            Record::Purged { queue, keep, before, .. } => {
                let mask = Mask { before, keep: keep.iter().collect() };
                let of_queue = self.fates.range_mut(..before).filter(|(_, fate)| fate.queue == queue);
                for (_, fate) in of_queue.filter(|(id, _)| mask.keep.binary_search(id).is_err()) {
                    (fate.end, fate.life, fate.put) = (MessageFate::Gone, None, None);
                }
                self.purges.push((queue, mask));
            }
            Record::Queue { .. } | Record::Deduped(_) | Record::AnswersForgotten { .. } => {}
        }
    }

    /// The life of a message that this record holds; `None` if a later one holds it, or if it is settled.
    pub(super) fn life_of(&mut self, id: MessageId, lsn: Lsn, put: Life) -> Option<Life> {
        let fate = self.fates.get_mut(&id)?;
        if fate.put != Some(lsn) || fate.end != MessageFate::Open {
            return None;
        }
        Some(fate.write(put))
    }

    /// The life of a message that a run holds.
    pub(super) fn changed(&mut self, id: MessageId, life: Life) -> Life {
        match self.fates.get_mut(&id) {
            Some(fate) => fate.write(life),
            None => life,
        }
    }

    /// Whether the row of a message in a run is outdated.
    pub(super) fn replaces(&self, id: MessageId) -> bool {
        self.fates.get(&id).is_some_and(|fate| fate.end != MessageFate::Open || fate.put.is_some())
    }

    /// Whether a purge removed the message from its run.
    pub(super) fn purges(&self, id: MessageId, queue: &QueueName) -> bool {
        let takes = |mask: &Mask| id < mask.before && mask.keep.binary_search(&id).is_err();
        self.purges.iter().any(|(of, mask)| of == queue && takes(mask))
    }

    /// Live messages of which only changes were found.
    pub(super) fn left_over(&self) -> Vec<(MessageId, QueueName, Due)> {
        let open = self.fates.iter().filter(|(_, fate)| fate.end == MessageFate::Open);
        open.map(|(id, fate)| (*id, fate.queue.clone(), fate.due)).collect()
    }
}

impl Fate {
    fn write(&mut self, base: Life) -> Life {
        self.end = MessageFate::Written;
        let mut life = self.life.take().unwrap_or(base);
        if let Some((attempt, lease)) = self.grant.take() {
            (life.attempt, life.stage) = (attempt, Stage::Leased(lease));
        }
        life
    }
}
