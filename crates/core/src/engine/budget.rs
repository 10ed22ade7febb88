//! The limits of one kind of work in a step: a number of rows, and bytes of records. The rest is done in the next step.

use super::Engine;

/// Number of shares into which the bytes of a step are divided, so that no kind of work delays the others.
const SHARES: usize = 4;

/// The remaining budget of one kind of work in a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    rows: usize,
    /// The value of the decided bytes at which the budget ends.
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

    /// Takes rows out of a budget, if anything is left of it. Otherwise the step is unfinished.
    pub(super) fn spend(&mut self, budget: &mut Budget, rows: usize) -> bool {
        let is_left = budget.rows > 0 && self.decided < budget.until;
        budget.rows = budget.rows.saturating_sub(rows);
        self.unfinished |= !is_left;
        is_left
    }
}
