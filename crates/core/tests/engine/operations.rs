//! The table of operations, and their typed forms.

use std::collections::BTreeSet;
use std::fmt::Debug;

use duewheel_core::engine::{
    Ask, Attempt, ChangeRefusal, DedupeId, Edit, Enqueue, Hold, IfExists, Named, OnLease, Op, Operation,
    Proof, Reply, Reserve, Reserved, Routing, SourceRow, Target, WaiterId, When,
};
use duewheel_core::history::HistoryStep;
use duewheel_core::id::{Epoch, LeaseToken, MessageId, SessionId, ShardId};
use duewheel_core::message::State;
use duewheel_core::name::{Key, QueueName};
use duewheel_core::policy::{Policy, QueueSettings};
use duewheel_core::time::WallMs;

use crate::harness::*;

const ID: MessageId = MessageId(7);
const PROOF: Proof = Proof::Session(SessionId(3));

fn keyed() -> Target {
    Target::Key(queue("q"), key("k"))
}

fn demand(max: usize) -> Reserve {
    reserve_of(&queue("q"), max)
}

fn reserve_of(name: &QueueName, max: usize) -> Reserve {
    Reserve {
        waiter: WaiterId(1),
        queues: vec![name.clone()],
        max,
        max_bytes: usize::MAX,
        wait_ms: 0,
        lease_ms: None,
        session: SessionId::NONE,
        max_of: Vec::new(),
        max_attempts: None,
        deadline_margin_ms: None,
    }
}

/// One of each kind, in the order in which they are declared.
fn one_of_each() -> Vec<Op> {
    each_operation(&queue("q"), &key("k"), ID, PROOF)
}

/// One of each kind about this queue, key and message, in the order in which they are declared.
pub fn each_operation(name: &QueueName, key: &Key, id: MessageId, proof: Proof) -> Vec<Op> {
    let (q, session) = (|| name.clone(), SessionId(3));
    let keyed = || Target::Key(q(), key.clone());
    let token = LeaseToken { epoch: Epoch(1), counter: 1 };
    vec![
        Op::Enqueue(Box::new(Enqueue { key: Some(key.clone()), ..Enqueue::new(q(), "body") })),
        Op::Reserve(reserve_of(name, 1)),
        Op::ReserveOne { id, session, lease_ms: None },
        Op::CancelReserve { waiter: WaiterId(1) },
        Op::Undelivered { leases: vec![(id, token)] },
        Op::Ack { id, proof, result: None },
        Op::Nack { id, proof, attempt: Attempt::Failed, delay_ms: None, priority: None, note: "".into() },
        Op::Bury { id, proof, priority: None, note: "".into() },
        Op::Delete { id, session },
        Op::Extend { id, proof, lease_ms: None },
        Op::Cancel { keep: None, target: keyed(), dedupe_id: DedupeId::Stays },
        Op::Postpone { target: keyed(), edit: Box::default(), if_generation: None },
        Op::Fire { target: keyed() },
        Op::FireMany { queue: q(), max: 1 },
        Op::Redrive { id, delay_ms: None, died: None },
        Op::RedriveMany { queue: q(), max: 1 },
        Op::Get { target: keyed() },
        Op::Outline { id },
        Op::Peek { queue: q(), state: State::Ready },
        Op::List { queue: q(), state: None, after: None, limit: 1, from: None },
        Op::Queue { queue: q() },
        Op::Queues { after: None, limit: 1 },
        Op::Histogram { queue: None, from: WallMs(0), to: WallMs(1), columns: 1 },
        Op::Wheel,
        Op::Stats,
        Op::Configure { queue: q(), settings: QueueSettings::default() },
        Op::Pause { queue: q(), for_ms: None },
        Op::Resume { queue: q() },
        Op::Purge { at_most: None, queue: q() },
        Op::Hold { queue: q(), how: Hold::Use },
        Op::LetGo { queue: q(), how: Hold::Use },
        Op::SessionClosed { session },
        Op::SessionDeadline { session },
        Op::NextDue,
        Op::Quotas,
        Op::Recall { target: keyed() },
        Op::Events { shard: ShardId(2), after: None, limit: 1, fired_after: None },
        Op::RemoveDead { keep: None, id, died: WallMs(1) },
        Op::Restore { id },
        Op::History { queue: None, from: WallMs(0), until: WallMs(1), step: HistoryStep::TenSeconds },
        Op::EraseHistory { queue: q() },
        Op::Confirm { source: q(), rows: vec!["7".into()] },
    ]
}

/// The names of those of which this is true, in their order.
fn those(is: impl Fn(&Operation) -> bool) -> String {
    let ops = one_of_each();
    let names: Vec<&str> = ops
        .iter()
        .map(Op::operation)
        .filter(|operation| is(operation))
        .map(|operation| operation.name)
        .collect();
    names.join(" ")
}

#[test]
fn every_operation_has_its_table_row() {
    let names: BTreeSet<&str> = one_of_each().iter().map(|op| op.operation().name).collect();
    assert_eq!(names.len(), 42);
}

#[test]
fn operation_table_states_each_property() {
    let settles = "cancel_reserve undelivered ack nack bury delete extend cancel stats hold let_go \
                   session_closed quotas remove_dead";
    let repeatable = "cancel_reserve undelivered get outline peek list queue queues histogram wheel stats \
                      session_closed session_deadline next_due quotas recall events history confirm";
    let grows = "reserve reserve_one nack bury extend postpone fire fire_many redrive redrive_many configure \
                 pause resume restore erase_history confirm";
    assert_eq!(those(|o| o.settles), settles);
    assert_eq!(those(|o| o.repeatable), repeatable);
    assert_eq!(those(|o| o.grows), grows);
    assert_eq!(those(|o| o.revives), "reserve_one nack redrive restore");
    assert_eq!(those(|o| o.recalls), "recall");
    let surveys = "fire_many redrive redrive_many peek list queue queues stats purge";
    assert_eq!(those(|o| o.surveys), surveys);
    assert_eq!(those(|o| o.lease == OnLease::Begins), "reserve reserve_one");
    assert_eq!(those(|o| o.lease == OnLease::Extends), "extend");
    assert_eq!(those(|o| o.lease == OnLease::Ends), "ack nack bury");
    assert_eq!(those(|o| o.lease == OnLease::EndsOwn), "delete");
    assert_eq!(those(|o| o.routing == Routing::Leases), "undelivered");
    assert_eq!(those(|o| o.routing == Routing::Node), "cancel_reserve hold let_go");
    let message = "enqueue reserve_one ack nack bury delete extend cancel postpone fire redrive get outline recall remove_dead \
                   restore";
    assert_eq!(those(|o| o.routing == Routing::Shard), "events");
    assert_eq!(those(|o| o.routing == Routing::Message), message);
}

#[test]
fn routed_operation_names_its_message() {
    for op in one_of_each() {
        let named = match op.operation().routing {
            Routing::Message => op.names() != Named::Nothing,
            Routing::Leases => op.names() == Named::Nothing && !op.leases().is_empty(),
            Routing::All | Routing::Node | Routing::Shard => {
                op.names() == Named::Nothing && op.leases().is_empty()
            }
        };
        assert!(named, "{op:?}");
        assert_eq!(op.shard().is_some(), op.operation().routing == Routing::Shard, "{op:?}");
    }
    let by_key = Op::Fire { target: keyed() };
    assert_eq!(by_key.names(), Named::Key(&queue("q"), &key("k")));
    assert_eq!(Op::Get { target: Target::Id(ID) }.names(), Named::Id(ID));
    let new =
        |key, dedupe_id| Op::Enqueue(Box::new(Enqueue { key, dedupe_id, ..Enqueue::new(queue("q"), "") }));
    assert_eq!(new(Some(key("k")), None).names(), Named::Key(&queue("q"), &key("k")));
    let deduped = new(None, Some("d".into()));
    assert_eq!((deduped.names(), deduped.dedupe_id()), (Named::Nothing, Some((&queue("q"), "d"))));
    assert_eq!(new(None, None).dedupe_id(), None);
    let source = QueueName::system("#outbox").unwrap();
    let of_row = by_key.once(SourceRow { source: source.clone(), id: "7".into() });
    assert_eq!(of_row.row(), None, "no change of a producer");
    let of_row = new(Some(key("k")), None).once(SourceRow { source: source.clone(), id: "7".into() });
    assert_eq!((of_row.names(), of_row.row()), (Named::Key(&queue("q"), &key("k")), Some((&source, "7"))));
}

#[test]
fn reserve_of_zero_is_repeatable() {
    let reserve = |max| Op::Reserve(demand(max));
    assert!(reserve(0).is_repeatable() && !reserve(1).is_repeatable());
    assert!(one_of_each().iter().all(|op| op.is_repeatable() == op.operation().repeatable));
}

#[test]
fn an_operation_weighs_what_it_brings() {
    let own = Op::Stats.weight();
    let headers = vec![("name".into(), "value".into())];
    let put = Enqueue { key: Some(key("k")), headers: headers.clone(), ..Enqueue::new(queue("q"), "12345") };
    assert_eq!(Op::Enqueue(Box::new(put)).weight(), own + 5 + 9, "the key is not counted here");
    let edit = Edit { body: Some("123".into()), headers: Some(headers), ..Edit::default() };
    let postpone = Op::Postpone { target: keyed(), edit: Box::new(edit), if_generation: None };
    assert_eq!(postpone.weight(), own + 3 + 9);
    let brings_nothing = |op: &&Op| !matches!(op.operation().name, "enqueue" | "postpone");
    assert!(one_of_each().iter().filter(brings_nothing).all(|op| op.weight() == own));
}

/// Asks the engine, and takes what it answers for the answer to this; another answer is not taken for it.
fn ask<A: Ask>(rig: &mut Rig, asked: A) -> A::Reply
where
    A::Reply: Debug,
{
    let op = asked.into_op();
    let name = op.operation().name;
    let reply = rig.call(op);
    let other = if reply == Reply::Done { Reply::NextDue(None) } else { Reply::Done };
    let taken = A::reply(other);
    // Those that can be refused are answered with `Done` otherwise.
    assert!(taken.is_none() || matches!(reply, Reply::Configure(_)), "{name}: {taken:?}");
    A::reply(reply).unwrap_or_else(|| panic!("{name} has another answer"))
}

#[test]
fn typed_operations_return_typed_answers() {
    let mut rig = Rig::new(Policy { max_queues: 2, ..Policy::default() });
    let q = || queue("q");
    let put = |name| Enqueue { key: Some(key(name)), if_exists: IfExists::Reject, ..Enqueue::new(q(), "x") };
    let id = ask(&mut rig, put("k")).unwrap().id;
    let key_exists = ask(&mut rig, put("k")).is_err();
    assert!(key_exists);
    assert_eq!(ask(&mut rig, Op::next_due()), None);
    let Reserved::Grants(grants) = ask(&mut rig, demand(1)) else { panic!() };
    let token = grants[0].token;
    assert_eq!(Reply::Reserve(Reserved::Grants(grants)).leases(), [(id, token)]);
    ask(&mut rig, Op::extend(id, token, Some(5_000))).unwrap();
    ask(&mut rig, Op::nack(id, token, Attempt::NotYet, None, "later")).unwrap();
    ask(&mut rig, Op::fire(Target::Id(id))).unwrap();
    let Reserved::Grants(grants) = ask(&mut rig, demand(1)) else { panic!() };
    ask(&mut rig, Op::undelivered(vec![(id, grants[0].token)]));
    let grant = ask(&mut rig, Op::reserve_one(id, SessionId(3), None)).unwrap();
    assert_eq!(Reply::ReserveOne(Ok(grant.clone())).leases(), [(id, grant.token)]);
    assert_eq!(Reply::Done.leases(), []);
    assert_eq!(ask(&mut rig, Op::session_deadline(SessionId(3))), Some(grant.lease_ms));
    ask(&mut rig, Op::bury(id, grant.token, "no use")).unwrap();
    assert_eq!(ask(&mut rig, Op::peek(q(), State::Dead)).unwrap().message.id, id);
    assert_eq!(ask(&mut rig, Op::remove_dead(id, WallMs(1), None)), Err(ChangeRefusal::NotDead));
    ask(&mut rig, Op::redrive(id)).unwrap();
    assert_eq!(ask(&mut rig, Op::redrive_many(q(), 9)).what, 0);
    assert_eq!(ask(&mut rig, Op::fire_many(q(), 9)).what, 0);
    let edit = Box::new(Edit::due(When::After(60_000)));
    ask(&mut rig, Op::postpone(keyed(), edit, None)).unwrap();
    assert!(ask(&mut rig, Op::next_due()).is_some());
    assert_eq!(ask(&mut rig, Op::get(keyed())).unwrap().message.id, id);
    assert_eq!(ask(&mut rig, Op::outline(id)).unwrap().id, id);
    assert_eq!(ask(&mut rig, Op::list(q(), None, None, 10, None)).views.len(), 1);
    assert_eq!(ask(&mut rig, Op::queue(q())).unwrap().name, q());
    assert_eq!(ask(&mut rig, Op::queue(queue("nothing"))), None);
    assert_eq!(ask(&mut rig, Op::queues(None, 10)).len(), 1);
    assert_eq!(ask(&mut rig, Op::histogram(None, WallMs(WALL), WallMs(WALL + 60_000), 1)).counts.len(), 1);
    assert_eq!(ask(&mut rig, Op::wheel()).messages, 1);
    assert_eq!(ask(&mut rig, Op::stats()).counts.scheduled, 1);
    assert_eq!(ask(&mut rig, Op::quotas()), []);
    ask(&mut rig, Op::cancel(keyed())).unwrap();
    let settings = QueueSettings { priority: Some(5), ..QueueSettings::default() };
    assert_eq!(ask(&mut rig, Op::configure(q(), settings.clone())).unwrap().settings, settings);
    ask(&mut rig, Op::pause(q(), None)).unwrap();
    ask(&mut rig, Op::resume(q()));
    ask(&mut rig, Op::hold(queue("second"), Hold::Keep)).unwrap();
    let third = || queue("third");
    assert!(ask(&mut rig, Op::hold(third(), Hold::Keep)).is_err());
    assert!(ask(&mut rig, Op::pause(third(), None)).is_err());
    assert!(ask(&mut rig, Op::configure(third(), settings)).is_err());
    assert_eq!(ask(&mut rig, Op::purge(q(), None)).what, 0);
    let history = Op::history(Some(q()), WallMs(0), WallMs(10_001), HistoryStep::TenSeconds);
    assert_eq!(ask(&mut rig, history).points, [None, None]);
    ask(&mut rig, Op::erase_history(q()));
    assert_eq!(ask(&mut rig, Op::confirm(q(), vec!["7".into()])).what, 0);
    ask(&mut rig, Op::session_closed(SessionId(3)));
    let ack = ask(&mut rig, Op::ack(id, token));
    assert!(ack.is_err(), "the message is gone");
}
