//! What one kind of work may do in a step: so many rows, and so many bytes of records. What is left is done in the next step.

use super::Engine;

/// Kinds of work share the bytes of a step: none keeps the others waiting.
const SHARES: usize = 4;

/// What is left of a step for one kind of work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    rows: usize,
    /// How much may have been decided when it ends.
    until: u64,
}

impl Engine {
    pub(super) fn budget(&self) -> Budget {
        Budget { rows: self.policy.max_step, until: self.decided.saturating_add(self.share_of_step()) }
    }

    /// Bytes of records that one kind of work may decide in a step.
    pub(super) fn share_of_step(&self) -> u64 {
        (self.policy.max_step_bytes / SHARES).max(1) as u64
    }

    /// Takes so many rows of a budget, if anything is left of it. If not, the step is unfinished.
    pub(super) fn spend(&mut self, budget: &mut Budget, rows: usize) -> bool {
        let is_left = budget.rows > 0 && self.decided < budget.until;
        budget.rows = budget.rows.saturating_sub(rows);
        self.unfinished |= !is_left;
        is_left
    }
}
