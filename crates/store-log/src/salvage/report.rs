//! The report of a salvage: damage and losses, as they are found.

use duewheel_core::store::StoreError;

use super::loss::Loss;
use crate::fault::{Damage, ReadFault};

/// The result of a salvage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SalvageReport {
    /// Messages in the new folder, those included that have ended and are kept, and the server's own.
    pub messages: u64,
    /// Pending messages: those of these that have not ended, in queues of users.
    pub pending: u64,
    /// Remembered answers in the new folder.
    pub answers: u64,
    /// Places of the old folder that could not be read.
    pub damage: Vec<Damage>,
    /// The losses. Empty: nothing is lost.
    pub losses: Vec<Loss>,
}

impl SalvageReport {
    /// Adds the report of a folder of this name.
    pub(super) fn add(&mut self, folder: &str, other: SalvageReport) {
        let SalvageReport { messages, pending, answers, damage, losses } = other;
        self.messages += messages;
        self.pending += pending;
        self.answers += answers;
        self.damage.extend(damage.into_iter().map(|damage| damage.inside(folder)));
        let of_shard = |loss| Loss::InShard { folder: folder.to_owned(), loss: Box::new(loss) };
        self.losses.extend(losses.into_iter().map(of_shard));
    }
}

/// Records damage and continues; any other error ends the salvage.
pub(super) fn note<T>(
    result: Result<T, ReadFault>,
    report: &mut SalvageReport,
) -> Result<Option<T>, StoreError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(ReadFault::Damaged(problem)) => {
            report.damage.push(problem);
            Ok(None)
        }
        Err(error @ (ReadFault::Failed(_) | ReadFault::TooMuch | ReadFault::NotAtHand)) => Err(error.into()),
    }
}
