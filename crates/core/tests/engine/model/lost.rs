//! Messages that their consumers have lost.

use duewheel_core::time::Due;

use super::Case;
use super::messages::S;

impl Case {
    /// Takes the due times that the engine has drawn for messages which are lost too often.
    pub(super) fn learn(&mut self) {
        let now = self.rig.now;
        let held_off: Vec<usize> =
            (0..self.model.live.len()).filter(|&at| self.model.live[at].held_off.is_some()).collect();
        for at in held_off {
            let m = &mut self.model.live[at];
            let token = m.held_off.take().unwrap();
            let row = self.rig.table.rows().into_iter().find(|row| row.message.id == m.id).unwrap();
            assert_eq!(row.life.marks.losses, m.losses);
            let Due::After(due) = row.life.due else { panic!("{:?}", row.life) };
            let waits = row.life.marks.delay_ms.unwrap();
            assert!((1_000..=3_600_000).contains(&waits) && due.0 <= now.engine.0 + waits, "{waits}");
            m.due = row.life.due;
            self.model.place(at, now);
            let m = &mut self.model.live[at];
            m.stage = match m.stage {
                S::Ready(rank, _) => S::Ready(rank, token),
                S::Scheduled(_) => S::Scheduled(token),
                stage => stage,
            };
        }
    }

    /// Since when it is dead, if it is.
    pub(super) fn died(&self, at: usize) -> Option<u64> {
        match self.model.live[at].stage {
            S::Dead(died, _) => Some(died),
            S::Scheduled(_) | S::Ready(..) | S::Leased(..) => None,
        }
    }
}
