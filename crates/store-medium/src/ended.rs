//! Owners of this process that have ended.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use crate::fence::locked;

/// Number of owners that are remembered.
const REMEMBERED: usize = 4096;

/// Marks of owners of this process that have certainly ended, so that none of them answers any more: the next owner need
/// not wait for their leases.
#[derive(Debug)]
pub struct EndedOwners<Mark>(Mutex<VecDeque<Mark>>);

impl<Mark: Clone + PartialEq> EndedOwners<Mark> {
    /// Records that an owner of this process has ended.
    pub fn note(&self, mark: Mark) {
        let mut marks = self.marks();
        if !marks.contains(&mark) {
            marks.push_back(mark);
        }
        if marks.len() > REMEMBERED {
            marks.pop_front();
        }
    }

    /// Whether an owner has ended.
    pub fn contains(&self, mark: &Mark) -> bool {
        self.marks().contains(mark)
    }

    /// All that are remembered.
    pub fn all(&self) -> Vec<Mark> {
        self.marks().iter().cloned().collect()
    }

    fn marks(&self) -> MutexGuard<'_, VecDeque<Mark>> {
        locked(&self.0)
    }
}

impl<Mark> Default for EndedOwners<Mark> {
    fn default() -> Self {
        EndedOwners(Mutex::default())
    }
}
