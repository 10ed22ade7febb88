//! What connection-bound front ends need: holders of queues, leases of a session, order by arrival, the order of the
//! dead, counts.

use duewheel_core::engine::{
    Attempt, ChangeRefusal, Config, Engine, Enqueue, Hold, InitialState, Limit, Op, Past, Proof, QueueView,
    Reply, Reserve, Reserved, SettleRefusal, Settled, Target, View, When,
};
use duewheel_core::id::{Epoch, MessageId, SessionId};
use duewheel_core::message::{Marks, MaxAttempts, Options, QueueLimit, State};
use duewheel_core::policy::{Lasting, Policy, QueueSettings, ReadyOrder};
use duewheel_core::record::Pause;
use duewheel_core::time::{EngineMs, WallMs};

use crate::harness::{Rig, key, message, queue};

const A: SessionId = SessionId(11);
const B: SessionId = SessionId(12);

fn rig() -> Rig {
    Rig::new(Policy { wheel_slots: 60, wheel_tick_ms: 1_000, ..Policy::default() })
}

impl Rig {
    /// As a client of beanstalkd puts.
    fn arrive(&mut self, name: &str, priority: u32, seconds: u32) -> MessageId {
        let e = Enqueue {
            priority: Some(priority),
            when: When::Seconds(seconds),
            order_if_new: Some(ReadyOrder::Arrival),
            ..message(name, 0)
        };
        match self.call(Op::Enqueue(Box::new(e))) {
            Reply::Enqueue(Ok(done)) => done.id,
            other => panic!("{other:?}"),
        }
    }

    fn take_as(&mut self, session: SessionId, names: &[&str], max: usize) -> Vec<u64> {
        let demand = Reserve { session, ..self.demand(names, max, 0) };
        match self.call(Op::Reserve(demand)) {
            Reply::Reserve(Reserved::Grants(grants)) => grants.iter().map(|g| g.message.id.0).collect(),
            other => panic!("{other:?}"),
        }
    }

    fn queue_view(&mut self, name: &str) -> Option<QueueView> {
        let Reply::Queues(mut views) = self.call(Op::Queue { queue: queue(name) }) else { panic!() };
        views.pop()
    }

    fn view(&mut self, id: MessageId) -> Option<Box<View>> {
        let Reply::View(view) = self.call(Op::Get { target: Target::Id(id) }) else { panic!() };
        view
    }

    fn release(&mut self, id: MessageId, session: SessionId, priority: u32, delay_ms: u64) -> Reply {
        self.call(Op::Nack {
            attempt: Attempt::Failed,
            id,
            proof: Proof::Session(session),
            delay_ms: Some(delay_ms),
            priority: Some(priority),
            note: "".into(),
        })
    }

    fn bury(&mut self, id: MessageId, session: SessionId) -> Reply {
        self.call(Op::Bury { id, proof: Proof::Session(session), priority: None, note: "".into() })
    }
}

#[test]
fn session_lease_requires_its_session() {
    let mut rig = rig();
    let id = rig.arrive("q", 1, 0);
    assert_eq!(rig.take_as(A, &["q"], 9), [id.0]);
    let lost = || Err(SettleRefusal::LeaseLost);
    assert_eq!(rig.call(Op::Delete { id, session: B }), Reply::Settle(lost()));
    assert_eq!(rig.call(Op::Delete { id, session: SessionId::NONE }), Reply::Settle(lost()));
    assert_eq!(rig.release(id, B, 1, 0), Reply::Settle(lost()));
    assert_eq!(rig.bury(id, B), Reply::Settle(lost()));
    let touch = |session| Op::Extend { id, proof: Proof::Session(session), lease_ms: None };
    assert_eq!(rig.call(touch(B)), Reply::Extend(Err(SettleRefusal::LeaseLost)));
    assert!(matches!(rig.call(touch(A)), Reply::Extend(Ok(_))));
    assert_eq!(rig.call(Op::Delete { id, session: A }), Reply::Settle(Ok(Settled::Acked.into())));
    assert_eq!(rig.view(id), None);
    assert_eq!(rig.call(Op::Delete { id, session: A }), Reply::Settle(lost()));
}

#[test]
fn any_session_deletes_after_lease_expiry() {
    let mut rig = rig();
    let id = rig.arrive("q", 1, 0);
    rig.take_as(A, &["q"], 9);
    rig.pass(30_000);
    assert_eq!(rig.release(id, A, 1, 0), Reply::Settle(Err(SettleRefusal::LeaseLost)));
    assert_eq!(rig.view(id).unwrap().marks, Marks { timeouts: 1, losses: 1, ..Marks::default() });
    assert_eq!(rig.call(Op::Delete { id, session: B }), Reply::Settle(Ok(Settled::Acked.into())));
    let view = rig.call(Op::Stats);
    let Reply::Stats(stats) = view else { panic!() };
    assert_eq!((stats.totals.acked, stats.totals.cancelled, stats.counts.ready), (0, 1, 0));
}

#[test]
fn arrival_order_ignores_ready_time() {
    let mut rig = rig();
    let late = rig.arrive("q", 5, 2);
    let (first, second) = (rig.arrive("q", 5, 0), rig.arrive("q", 5, 0));
    let urgent = rig.arrive("q", 4, 0);
    rig.pass(3_000);
    assert_eq!(rig.take_as(A, &["q"], 9), [urgent.0, late.0, first.0, second.0]);
    // What comes back takes its old place.
    rig.release(second, A, 5, 0);
    rig.release(first, A, 5, 1_000);
    rig.release(late, A, 9, 0);
    rig.pass(1_000);
    assert_eq!(rig.take_as(B, &["q"], 9), [first.0, second.0, late.0]);
}

/// Story: a released message is due now, which is behind a backlog: it came after all that was put since (review).
#[test]
fn released_message_precedes_backlog() {
    let policy = Policy { ready_messages: 4, least_window: 4, load_rows: 4, ..Policy::default() };
    let mut rig = Rig::new(policy);
    let ids: Vec<u64> = (0..50).map(|_| rig.arrive("q", 5, 0).0).collect();
    assert_eq!(rig.take_as(A, &["q"], 1), ids[..1]);
    rig.pass(1_000);
    rig.release(MessageId(ids[0]), A, 5, 0);
    assert_eq!(rig.take_as(A, &["q"], 1), ids[..1]);
}

#[test]
fn mixed_orders_are_served_by_availability() {
    let mut rig = rig();
    let past = When::At { due_at: WallMs(5), past: Past::Keep };
    let arrived = rig.arrive("a", 1024, 0);
    rig.pass(10);
    let due = match rig.call(Op::Enqueue(Box::new(message("d", 0)))) {
        Reply::Enqueue(Ok(done)) => done.id,
        other => panic!("{other:?}"),
    };
    let Reply::Enqueue(Ok(overdue)) =
        rig.call(Op::Enqueue(Box::new(Enqueue { when: past, ..message("d", 0) })))
    else {
        panic!()
    };
    assert_eq!(rig.take_as(A, &["a", "d"], 9), [overdue.id.0, arrived.0, due.0]);
}

#[test]
fn queue_order_lasts_while_used() {
    let mut rig = rig();
    let hold = |how| Op::Hold { queue: queue("q"), how };
    let let_go = |how| Op::LetGo { queue: queue("q"), how };
    rig.call(hold(Hold::Use));
    rig.call(hold(Hold::Watch));
    let id = rig.arrive("q", 1, 0);
    let view = rig.queue_view("q").unwrap();
    assert_eq!((view.settings.order, view.settings.lasting), (Some(ReadyOrder::Arrival), Lasting::WhileUsed));
    assert_eq!((view.using, view.watching, view.urgent), (1, 1, 1));
    rig.call(Op::Delete { id, session: A });
    rig.call(let_go(Hold::Use));
    let view = rig.queue_view("q").unwrap();
    assert_eq!((view.totals.enqueued, view.totals.cancelled, view.using), (1, 1, 0), "it is watched");
    assert_eq!(rig.table.recovered(Epoch(9)).queues.len(), 1);
    rig.call(let_go(Hold::Watch));
    assert_eq!(rig.queue_view("q"), None);
    assert!(rig.table.recovered(Epoch(9)).queues.is_empty(), "the store has been told");

    // One that has messages, or a chosen order, is not changed.
    rig.put("old", 60_000, None);
    rig.arrive("old", 1, 0);
    assert_eq!(rig.queue_view("old").unwrap().settings, QueueSettings::default());
    let due = QueueSettings { order: Some(ReadyOrder::Due), ..QueueSettings::default() };
    rig.call(Op::Configure { queue: queue("set"), settings: due.clone() });
    let id = rig.arrive("set", 1, 0);
    rig.call(Op::Delete { id, session: A });
    assert_eq!(rig.queue_view("set").unwrap().settings, due, "settings of an owner keep their queue");
}

#[test]
fn restart_ends_holds_of_queues() {
    let mut rig = rig();
    for name in ["empty", "full"] {
        rig.call(Op::Hold { queue: queue(name), how: Hold::Watch });
        let id = rig.arrive(name, 1, 0);
        rig.call(Op::Delete { id, session: A });
    }
    rig.arrive("full", 1, 0);
    rig.restart();
    assert_eq!(rig.queue_view("empty"), None);
    let view = rig.queue_view("full").unwrap();
    assert_eq!((view.totals.enqueued, view.totals.cancelled, view.watching), (2, 1, 0));
    assert_eq!(view.settings.order, Some(ReadyOrder::Arrival));
    assert_eq!(rig.table.recovered(Epoch(9)).queues.len(), 1);
}

#[test]
fn replacement_engine_inherits_queue_holds() {
    let mut rig = rig();
    rig.call(Op::Hold { queue: queue("q"), how: Hold::Keep });
    rig.call(Op::Hold { queue: queue("q"), how: Hold::Use });
    let config = Config { holds: rig.engine.holds(), seed: 7, ..Config::default() };
    let next = Engine::new(config, rig.table.recovered(Epoch(2)), rig.now).unwrap();
    assert_eq!(next.holds(), [(queue("q"), [1, 0, 1])]);
}

#[test]
fn dead_are_redriven_in_death_order() {
    let mut rig = rig();
    let ids: Vec<_> = (0..6).map(|_| rig.arrive("q", 1, 0)).collect();
    rig.take_as(A, &["q"], 9);
    // All in one ms, and then the wall clock goes back.
    let order = [3, 0, 5, 1];
    for n in order {
        rig.bury(ids[n], A);
    }
    rig.now.wall = WallMs(rig.now.wall.0 - 1_000);
    rig.bury(ids[4], A);
    let peek = |rig: &mut Rig| match rig.call(Op::Peek { queue: queue("q"), state: State::Dead }) {
        Reply::View(view) => view.map(|v| v.message.id),
        other => panic!("{other:?}"),
    };
    for n in [3, 0] {
        assert_eq!(peek(&mut rig), Some(ids[n]));
        assert_eq!(rig.call(Op::RedriveMany { queue: queue("q"), max: 1 }), Reply::Count(1.into()));
    }
    rig.restart();
    for n in [5, 1, 4] {
        assert_eq!(peek(&mut rig), Some(ids[n]));
        assert_eq!(rig.call(Op::RedriveMany { queue: queue("q"), max: 1 }), Reply::Count(1.into()));
    }
    assert_eq!(rig.view(ids[3]).unwrap().marks, Marks { burials: 1, fires: 1, ..Marks::default() });
}

/// Story: with the key of the first dead message taken, a redrive of one did nothing, and never came to the next
/// (review).
#[test]
fn redrive_skips_messages_with_taken_keys() {
    let mut rig = rig();
    let mut dead = Vec::new();
    for n in 0..20 {
        dead.push(rig.put("q", 0, Some(&format!("k{n}"))));
        rig.take_as(A, &["q"], 1);
        rig.bury(dead[n], A);
    }
    for n in 0..18 {
        rig.put("q", 60_000, Some(&format!("k{n}")));
    }
    assert_eq!(rig.call(Op::RedriveMany { queue: queue("q"), max: 1 }), Reply::Count(1.into()));
    assert_eq!(rig.view(dead[18]).unwrap().state, State::Ready);
    assert_eq!(rig.call(Op::RedriveMany { queue: queue("q"), max: 9 }), Reply::Count(1.into()));
}

#[test]
fn a_message_may_begin_dead() {
    let mut rig = rig();
    let e = Enqueue { begins: InitialState::Dead, key: Some(key("k")), ..message("q", 0) };
    let holder = rig.put("q", 60_000, Some("k"));
    let Reply::Enqueue(Ok(done)) = rig.call(Op::Enqueue(Box::new(e))) else { panic!() };
    rig.call(Op::Delete { id: holder, session: A }); // which had the key: the dead hold none
    assert_eq!(rig.view(done.id).unwrap().state, State::Dead);
    assert!(rig.reserve("q", 1).is_empty());
    rig.restart();
    assert_eq!(rig.queue_view("q").unwrap().counts.dead, 1);
    assert!(matches!(
        rig.call(Op::Redrive { id: done.id, delay_ms: None, died: None }),
        Reply::Change(Ok(_))
    ));
    assert_eq!(rig.reserve("q", 1).len(), 1);
}

#[test]
fn early_reserved_message_returns_as_ready() {
    let mut rig = rig();
    let id = rig.arrive("q", 1, 1_000);
    let one = Op::ReserveOne { id, session: A, lease_ms: Some(1_000) };
    assert!(matches!(rig.call(one.clone()), Reply::ReserveOne(Ok(_))));
    assert_eq!(rig.call(one), Reply::ReserveOne(Err(ChangeRefusal::Leased)));
    rig.pass(1_000);
    let view = rig.view(id).unwrap();
    assert_eq!((view.state, view.delay_ms, view.attempt), (State::Ready, 1_000_000, 1));
}

#[test]
fn reserve_one_respects_lease_limit() {
    let mut rig = Rig::new(Policy { max_leased: 1, ..Policy::default() });
    let (first, second) = (rig.arrive("q", 1, 0), rig.arrive("q", 1, 0));
    let one = |id| Op::ReserveOne { id, session: A, lease_ms: None };
    assert!(matches!(rig.call(one(first)), Reply::ReserveOne(Ok(_))));
    assert_eq!(rig.call(one(second)), Reply::ReserveOne(Err(ChangeRefusal::Overloaded(Limit::Leases))));
}

#[test]
fn view_shows_last_requested_delay() {
    let mut rig = rig();
    let id = rig.arrive("q", 1, 7);
    assert_eq!(rig.view(id).unwrap().delay_ms, 7_000);
    rig.pass(7_000);
    assert_eq!(rig.view(id).unwrap().delay_ms, 7_000, "when it is ready, too");
    rig.take_as(A, &["q"], 1);
    rig.release(id, A, 1, 90_000);
    assert_eq!(rig.view(id).unwrap().delay_ms, 90_000);
    rig.call(Op::Fire { target: Target::Id(id) });
    let view = rig.view(id).unwrap();
    assert_eq!((view.delay_ms, view.state), (90_000, State::Ready));
    assert_eq!(view.marks, Marks { releases: 1, fires: 1, delay_ms: Some(90_000), ..Marks::default() });
    rig.restart();
    assert_eq!(rig.view(id).unwrap().marks, view.marks);
}

#[test]
fn timed_pause_survives_restart() {
    let mut rig = rig();
    rig.arrive("q", 1, 0);
    rig.call(Op::Pause { queue: queue("q"), for_ms: Some(5_000) });
    rig.restart();
    let view = rig.queue_view("q").unwrap();
    assert_eq!((view.totals.paused, view.pause_left_ms), (1, Some(5_000)));
    assert!(matches!(view.pause, Pause::Until { length_ms: 5_000, .. }));
    assert!(rig.take_as(A, &["q"], 1).is_empty());
    rig.pass(5_000);
    assert_eq!(rig.take_as(A, &["q"], 1).len(), 1);
    assert_eq!(rig.table.recovered(Epoch(9)).queues[0].pause, Pause::Running);
    // Of length 0: one that is over at once.
    rig.call(Op::Pause { queue: queue("q"), for_ms: Some(0) });
    let view = rig.queue_view("q").unwrap();
    assert_eq!((view.totals.paused, view.pause), (2, Pause::Running));
}

#[test]
fn longest_delay_in_seconds_is_kept() {
    let mut rig = rig();
    let id = rig.arrive("q", 1, u32::MAX);
    let due_in = u64::from(u32::MAX) * 1_000;
    assert_eq!(rig.view(id).unwrap().due_in_ms, due_in);
    rig.now.engine = EngineMs(due_in - 1);
    assert!(rig.take_as(A, &["q"], 1).is_empty());
    rig.pass(1);
    assert_eq!(rig.take_as(A, &["q"], 1), [id.0]);
    rig.release(id, A, 1, due_in);
    assert_eq!(rig.view(id).unwrap().due_in_ms, due_in);
}

#[test]
fn unlimited_wait_ends_before_lease_end() {
    let mut rig = rig();
    rig.arrive("q", 1, 0);
    rig.take_as(A, &["q"], 1);
    let demand = Reserve {
        session: A,
        max_of: Vec::new(),
        max_attempts: None,
        deadline_margin_ms: Some(1_000),
        wait_ms: u64::MAX,
        ..rig.demand(&["q"], 1, 0)
    };
    let (to, _) = rig.raw(Op::Reserve(demand));
    rig.pass(28_999);
    rig.timeout();
    assert_eq!(rig.reply(to), None);
    rig.pass(1);
    rig.timeout();
    assert_eq!(rig.reply(to), Some(Reply::Reserve(Reserved::DeadlineSoon)));
}

/// Story: the wait and the safety margin ended in one ms, and the wait won (review); beanstalkd looks at the margin
/// first.
#[test]
fn lease_deadline_precedes_wait_end() {
    let mut rig = rig();
    rig.arrive("q", 1, 0);
    rig.take_as(A, &["q"], 1);
    let demand = Reserve { session: A, deadline_margin_ms: Some(1_000), ..rig.demand(&["q"], 1, 29_000) };
    let (to, _) = rig.raw(Op::Reserve(demand));
    rig.pass(29_000);
    rig.timeout();
    assert_eq!(rig.reply(to), Some(Reply::Reserve(Reserved::DeadlineSoon)));
}

#[test]
fn urgent_count_follows_every_change() {
    let mut rig = rig();
    let ids: Vec<_> = (0..5).map(|n| rig.arrive("q", 1_022 + n, 0)).collect();
    let urgent = |rig: &mut Rig| rig.queue_view("q").map(|view| view.urgent);
    assert_eq!(urgent(&mut rig), Some(2));
    rig.take_as(A, &["q"], 1);
    assert_eq!(urgent(&mut rig), Some(1));
    rig.release(ids[0], A, 2_000, 0);
    assert_eq!(urgent(&mut rig), Some(1));
    let settings = QueueSettings { priority: Some(1), ..QueueSettings::default() };
    rig.call(Op::Configure { queue: queue("q"), settings });
    assert_eq!(urgent(&mut rig), Some(1), "they have priorities of their own");
    rig.put("q", 0, None);
    assert_eq!(urgent(&mut rig), Some(2), "this one has its queue's");
    rig.call(Op::Hold { queue: queue("q"), how: Hold::Keep });
    rig.call(Op::Purge { at_most: None, queue: queue("q") });
    assert_eq!(urgent(&mut rig), Some(0));
}

#[test]
fn reserve_respects_max_bytes() {
    let mut rig = rig();
    for _ in 0..5 {
        rig.arrive("q", 1, 0); // "body"
    }
    let take = |rig: &mut Rig, max_bytes| {
        let demand = Reserve { max_bytes, ..rig.demand(&["q"], 9, 0) };
        let Reply::Reserve(Reserved::Grants(grants)) = rig.call(Op::Reserve(demand)) else { panic!() };
        grants.len()
    };
    assert_eq!(take(&mut rig, 0), 1, "the first always fits");
    assert_eq!(take(&mut rig, 8), 2);
    assert_eq!(take(&mut rig, usize::MAX), 2);
}

impl Rig {
    fn put_over(&mut self, name: &str) -> MessageId {
        let options = Options {
            max_attempts: Some(MaxAttempts::UNLIMITED),
            queue_limit: QueueLimit::Wins,
            ..Options::default()
        };
        let e = Enqueue { options, order_if_new: Some(ReadyOrder::Arrival), ..message(name, 0) };
        let Reply::Enqueue(Ok(done)) = self.call(Op::Enqueue(Box::new(e))) else { panic!() };
        done.id
    }

    fn lose(&mut self, id: MessageId) -> (State, u64) {
        assert_eq!(self.take_as(A, &["q"], 1), [id.0]);
        self.call(Op::SessionClosed { session: A });
        let view = self.view(id).unwrap();
        (view.state, view.due_in_ms)
    }
}

/// Story: a job whose consumer died came again at once and for ever, sixty times in 0.2 s.
#[test]
fn jobs_lost_in_a_row_wait_the_backoff() {
    let mut rig = rig();
    let id = rig.put_over("q");
    for ends in ["release", "kick"] {
        assert_eq!([rig.lose(id), rig.lose(id)], [(State::Ready, 0); 2]);
        let mut least = 1_000;
        for _ in 0..3 {
            let (state, waits) = rig.lose(id);
            assert_eq!(state, State::Scheduled);
            assert!(waits >= least, "{waits} of {least}");
            least *= 2;
            rig.restart();
            rig.pass(waits);
        }
        // The end of a TTR is a loss as well.
        assert_eq!(rig.take_as(A, &["q"], 1), [id.0]);
        rig.pass(30_000);
        rig.timeout();
        assert_eq!(rig.view(id).unwrap().state, State::Scheduled);
        if ends == "kick" {
            rig.call(Op::Fire { target: Target::Id(id) });
        } else {
            rig.pass(3_600_000);
            assert_eq!(rig.take_as(A, &["q"], 1), [id.0]);
            rig.release(id, A, 1, 0);
        }
    }
    assert_eq!(rig.lose(id), (State::Ready, 0), "from the beginning");
}

#[test]
fn a_set_limit_also_buries_lost_jobs() {
    let mut rig = rig();
    let id = rig.put_over("q");
    let settings = QueueSettings { max_attempts: MaxAttempts::new(3), ..QueueSettings::default() };
    let capped = Op::Configure { queue: queue("q"), settings };
    for _ in 0..25 {
        rig.lose(id);
        rig.call(Op::Fire { target: Target::Id(id) });
    }
    assert_eq!(rig.view(id).unwrap().state, State::Ready, "the default is no limit for it");
    assert_eq!(rig.take_as(A, &["q"], 1), [id.0]);
    rig.bury(id, A);
    rig.call(Op::Redrive { id, delay_ms: None, died: None });
    rig.call(capped);
    for _ in 0..5 {
        assert_eq!(rig.take_as(A, &["q"], 1), [id.0]);
        rig.release(id, A, 1, 0);
    }
    assert_eq!([rig.lose(id), rig.lose(id)], [(State::Ready, 0); 2], "a release does not count");
    assert_eq!(rig.lose(id).0, State::Dead);
}
