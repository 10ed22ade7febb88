//! Messages that their consumers have lost.

use duewheel_core::engine::Op;
use duewheel_core::id::SessionId;
use duewheel_core::time::Due;

use super::Case;
use super::messages::{M, S};

impl Case {
    /// Ends a message whose lease ends without an ack, if another one has taken its key; returns whether it did.
    pub(super) fn ends_superseded(&mut self, at: usize) -> bool {
        let M { superseded, stage, .. } = self.model.live[at];
        let S::Leased(token, ..) = stage else { return false };
        if superseded {
            self.model.end_superseded(at, token, self.rig.now);
        }
        superseded
    }

    /// Ends those whose session is over.
    pub(super) fn end_superseded_of(&mut self, is_over: impl Fn(SessionId) -> bool) {
        for at in (0..self.model.live.len()).rev() {
            if matches!(self.model.live[at].stage, S::Leased(_, _, session) if is_over(session)) {
                self.ends_superseded(at);
            }
        }
    }

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

    pub(super) fn undelivered(&mut self) {
        let Some((id, token)) = self.a_token() else { return };
        self.rig.call(Op::Undelivered { leases: vec![(id, token)] });
        if let Some((at, true)) = self.held(id, token)
            && !self.ends_superseded(at)
        {
            self.model.live[at].attempt -= 1;
            let before = self.model.live[at].before;
            self.model.place(at, self.rig.now);
            let stage = &mut self.model.live[at].stage;
            *stage = match *stage {
                S::Ready(rank, _) => S::Ready(rank, before),
                S::Scheduled(_) => S::Scheduled(before),
                stage => stage,
            };
        }
    }

    pub(super) fn session_closed(&mut self) {
        let session = SessionId(1 + self.rng.below(2));
        self.rig.call(Op::SessionClosed { session });
        let now = self.rig.now;
        self.end_superseded_of(|of| of == session);
        for at in 0..self.model.live.len() {
            let m = &mut self.model.live[at];
            if !matches!(m.stage, S::Leased(_, _, s) if s == session) {
                continue;
            }
            m.lose(session, None);
            if m.attempt - m.forgiven >= m.max {
                m.stage = S::Dead(now.engine.0, None);
                self.model.died += 1;
            } else {
                self.model.place(at, now);
            }
        }
        self.learn();
    }

    /// Since when it is dead, if it is.
    pub(super) fn died(&self, at: usize) -> Option<u64> {
        match self.model.live[at].stage {
            S::Dead(died, _) => Some(died),
            S::Scheduled(_) | S::Ready(..) | S::Leased(..) => None,
        }
    }
}
