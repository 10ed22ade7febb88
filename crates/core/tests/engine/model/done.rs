//! What has ended, as the model knows it and as the engine shows it.

use duewheel_core::engine::*;
use duewheel_core::message::{DeadReason, State};

use super::messages::{DoneM, KEEP, S};
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
}
