//! How many messages are due when: counts kept with every change, so that nobody scans for them.

use std::collections::BTreeMap;

use crate::time::{Class, Due, EngineMs, Now, WallMs};

/// Waiting messages (Scheduled and Ready) per column of the finest width, one map for each clock class.
#[derive(Debug, Default)]
pub(super) struct DueCounts([BTreeMap<u64, u64>; 2]);

impl DueCounts {
    pub(super) fn add(&mut self, due: Due, resolution_ms: u64) {
        *self.0[due.class() as usize].entry(due.raw() / resolution_ms).or_default() += 1;
    }

    pub(super) fn sub(&mut self, due: Due, resolution_ms: u64) {
        self.sub_many(due.class(), due.raw() / resolution_ms, 1);
    }

    /// Takes all of `other` away.
    pub(super) fn sub_all(&mut self, other: &DueCounts) {
        for class in [Class::At, Class::After] {
            for (&column, &n) in &other.0[class as usize] {
                self.sub_many(class, column, n);
            }
        }
    }

    fn sub_many(&mut self, class: Class, column: u64, n: u64) {
        let map = &mut self.0[class as usize];
        if let Some(count) = map.get_mut(&column) {
            *count -= n;
            if *count == 0 {
                map.remove(&column);
            }
        }
    }

    /// Start of each column by the present offset of the clocks, and its count.
    pub(super) fn columns(&self, now: Now, resolution_ms: u64) -> impl Iterator<Item = (WallMs, u64)> + '_ {
        let at = self.0[Class::At as usize].iter().map(move |(&c, &n)| (WallMs(c * resolution_ms), n));
        let after = self.0[Class::After as usize]
            .iter()
            .map(move |(&c, &n)| (now.wall_of_engine(EngineMs(c * resolution_ms)), n));
        at.chain(after)
    }
}
