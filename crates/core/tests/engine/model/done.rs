//! What has ended, as the model knows it and as the engine shows it.

use duewheel_core::MessageId;
use duewheel_core::engine::*;
use duewheel_core::message::{DeadReason, DoneOutcome, State};
use duewheel_core::name::QueueName;

use super::messages::{DoneM, KEEP, KEEP_ACT, S};
use super::{Case, KEYS, QUEUES};
use crate::harness::*;

impl Case {
    /// A recall shows what a look shows, or else what has ended; of a dead and a done message of one key the newer one.
    pub(super) fn recall(&mut self, target: Target) {
        let Reply::View(view) = self.rig.call(Op::Recall { target: target.clone() }) else { panic!() };
        let found = self.model.resolve(&target).map(|at| (at, self.model.live[at].stage));
        match (found, self.model.recall(&target, self.rig.now).cloned()) {
            (Some((at, S::Dead(died, _))), Some(done)) => {
                let view = view.expect("it is there");
                // Within a millisecond either may be the newer one.
                if view.state == State::Done {
                    assert!(done.engine >= died);
                    self.compare_done(&done, &view);
                } else {
                    assert!(done.engine <= died);
                    self.compare_view(&self.model.live[at], &view);
                }
            }
            (Some((at, _)), _) => self.compare_view(&self.model.live[at], &view.expect("it is there")),
            (None, Some(done)) => self.compare_done(&done, &view.expect("it is kept")),
            (None, None) => assert_eq!(view, None),
        }
    }

    fn compare_done(&self, done: &DoneM, view: &View) {
        let m = &done.m;
        assert_eq!((view.message.id, view.message.queue.as_str()), (m.id, QUEUES[m.queue]));
        assert_eq!(view.message.key.as_ref().map(|key| key.as_str()), m.key.map(|key| KEYS[key]));
        assert_eq!((view.state, &view.message.body[..]), (State::Done, &[m.body][..]));
        assert!(view.message.headers.is_empty(), "as they were");
        assert_eq!((view.attempt, view.generation, view.priority), (m.attempt, m.generation, m.priority));
        let (reason, at) = view.dead.expect("how and when it ended");
        assert_eq!(reason, DeadReason::Done(done.outcome));
        // A clock that goes back by less than an hour does not change the order.
        assert!(at.0 >= done.wall);
    }

    /// What has ended, by id, by key and as a list, and nothing else.
    pub(super) fn compare_all_done(&mut self) {
        for done in self.model.done.clone() {
            self.recall(Target::Id(done.m.id));
            if let Some(key_at) = done.m.key {
                self.recall(Target::Key(queue(QUEUES[done.m.queue]), key(KEYS[key_at])));
            }
        }
        for done in self.model.kept.clone() {
            self.recall(Target::Id(done.m.id));
        }
        for (q, name) in QUEUES.iter().enumerate() {
            let (state, limit) = (Some(State::Done), usize::MAX);
            let list = Op::List { queue: queue(name), state, after: None, limit, from: None };
            let Reply::Page(page) = self.rig.call(list) else { panic!() };
            assert_eq!(page.next, None);
            let now = self.rig.now.engine.0;
            let kept = self.model.done.iter().filter(|done| done.m.queue == q && done.engine + KEEP > now);
            let mut kept: Vec<&DoneM> = kept.collect();
            assert_eq!(page.views.len(), kept.len(), "{:?}", page.views);
            kept.sort_by_key(|done| done.m.id);
            let mut views: Vec<&View> = page.views.iter().collect();
            views.sort_by_key(|view| view.message.id);
            views.iter().zip(kept).for_each(|(view, done)| self.compare_done(done, view));
        }
    }
    /// The queue that keeps what the act has removed from this one.
    fn of_act(q: usize) -> QueueName {
        queue(QUEUES[q]).of_act("a1").unwrap()
    }

    pub(super) fn cancel_kept(&mut self) {
        let id = MessageId(self.rng.below(self.model.issued + 2));
        let (target, keep) = (Target::Id(id), Some(KeptFor { act: "a1".into(), keep_ms: KEEP_ACT }));
        let reply = self.change(Op::Cancel { target, dedupe_id: DedupeId::Stays, keep });
        let Some(at) = self.model.by_id(id) else { return assert_eq!(reply, Err(ChangeRefusal::NotFound)) };
        if matches!(self.model.live[at].stage, S::Leased(..)) {
            return assert_eq!(reply, Err(ChangeRefusal::Leased));
        }
        assert_eq!(reply.expect("cancelled").id, id);
        let (m, now) = (self.model.live.remove(at), self.rig.now);
        let outcome = DoneOutcome::Cancelled;
        self.model.kept.push(DoneM { m, outcome, wall: now.wall.0, engine: now.engine.0 });
    }

    /// Puts back one of the messages that the act keeps, which can be done once.
    pub(super) fn restore(&mut self) {
        let q = self.rng.below(2) as usize;
        let (state, limit) = (Some(State::Done), usize::MAX);
        let list = Op::List { queue: Self::of_act(q), state, after: None, limit, from: None };
        let Reply::Page(page) = self.rig.call(list) else { panic!() };
        let now = self.rig.now;
        let mut kept: Vec<MessageId> =
            self.model.kept(now).filter(|done| done.m.queue == q).map(|done| done.m.id).collect();
        let origin = |view: &View| {
            let text = &view.message.headers.last().expect("where it was").1;
            MessageId(text.split(' ').next().unwrap().parse().unwrap())
        };
        let mut listed: Vec<MessageId> = page.views.iter().map(origin).collect();
        kept.sort();
        listed.sort();
        assert_eq!(listed, kept);
        if page.views.is_empty() {
            return;
        }
        let view = &page.views[self.rng.below(page.views.len() as u64) as usize];
        let id = view.message.id;
        let at = self.model.kept.iter().position(|done| done.m.id == origin(view)).unwrap();
        let reply = self.change(Op::Restore { id });
        let m = self.model.kept[at].m.clone();
        let holder = m.key.filter(|_| !matches!(m.stage, S::Dead(..))).and_then(|k| self.model.holder(q, k));
        if let Some(holder) = holder {
            let Err(ChangeRefusal::KeyExists(taken)) = reply else { panic!("{reply:?}") };
            return assert!(self.is_holder(&self.model.live[holder], taken), "{taken:?}");
        }
        let restored = reply.expect("restored");
        assert!(restored.id.0 > self.model.issued, "an id of its own");
        self.model.issued = restored.id.0;
        self.model.kept.remove(at);
        self.model.live.push(super::messages::M { id: restored.id, ..m });
        let last = self.model.live.len() - 1;
        match m.stage {
            S::Dead(died, _) => self.model.live[last].stage = S::Dead(died, None),
            S::Scheduled(_) | S::Ready(..) | S::Leased(..) => self.model.place(last, now),
        }
        assert!(self.same_state(&self.model.live[last], restored.state), "{restored:?}");
        assert_eq!(self.change(Op::Restore { id }), Err(ChangeRefusal::NotDead), "once");
    }
}
