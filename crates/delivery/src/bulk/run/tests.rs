//! Tests of the steps of a job.

use duewheel::core::Policy;
use duewheel::core::engine::{Attempt, InitialState, Past};
use duewheel::core::id::SessionId;
use duewheel::core::message::State;
use duewheel::core::name::Key;
use duewheel::{Client, Duewheel, VirtualClock};

use super::super::action::BulkMove;
use super::super::filter::BulkFilter;
use super::super::moves::{MoveFailure, enter_copies, remove_moved};
use super::super::record::{BulkCounts, BulkTenant};
use super::*;
use crate::records::StoredRecord;

impl BulkPlace {
    /// A place for one run alone.
    fn alone() -> Self {
        BulkPlace { all: Arc::new(Semaphore::new(1)), taken: None, waiting: Arc::default() }
    }
}

#[tokio::test]
async fn waiting_run_releases_its_slot() {
    let wheel = Duewheel::builder().in_memory().clock(VirtualClock::at_2026()).open().await.unwrap();
    let jobs = BulkJobs::new(&wheel, &Policy::default()).unwrap();
    let (filter, action) = (BulkFilter::default(), BulkAction::Cancel);
    let record = BulkRecord::new(BulkTenant::Common, "orders".into(), filter, action, None, 0);
    let (stop, stopped) = watch::channel(false);
    let BulkPlace { all, .. } = BulkPlace::alone();
    let taken = Some(all.clone().acquire_owned().await.unwrap());
    let place = BulkPlace { all: all.clone(), taken, waiting: Arc::default() };
    let mut run = BulkRun::new(&jobs, "job", (MessageId(1), 1), record, place, stopped);
    let mut resting = Box::pin(run.rest(Instant::now() + BULK_TURN_LOOK));
    tokio::select! {
        biased;
        _ = &mut resting => panic!("it does not wait"),
        () = std::future::ready(()) => assert_eq!(all.available_permits(), 1),
    }
    stop.send(true).unwrap();
    resting.await.unwrap();
    assert_eq!(all.available_permits(), 0);
}

fn at(ms: u64) -> When {
    When::At { due_at: WallMs(ms), past: Past::Fire }
}

/// A node has written that a part is done with, and dies before it has removed it.
#[tokio::test]
async fn finished_part_of_dead_node_removed() {
    let wheel = Duewheel::builder().in_memory().clock(VirtualClock::at_2026()).open().await.unwrap();
    let jobs = BulkJobs::new(&wheel, &Policy::default()).unwrap();
    for phase in [BulkPhase::Running, BulkPhase::Cancelled] {
        let (filter, action) = (BulkFilter::default(), BulkAction::Cancel);
        let mut record =
            BulkRecord::new(BulkTenant::Common, "orders".into(), filter, action, None, jobs.jobs.now());
        (record.phase, record.parts, record.at) = (phase, 2, (1, 0));
        record.ended = phase.is_end().then(|| jobs.jobs.now());
        let id = phase.as_str();
        assert!(jobs.jobs.create(id, record.bytes()).await.unwrap());
        for part in 0..2 {
            let walk = PartWalk { position: None, leased: 0 };
            jobs.put_part(id, part, JobPart { walk, entries: Vec::new() }).await.unwrap();
        }
        let StoredRecord { id: row, generation, .. } = jobs.jobs.read(id).await.unwrap().unwrap();
        let (_keep, stop) = watch::channel(false);
        let end = BulkRun::new(&jobs, id, (row, generation), record, BulkPlace::alone(), stop).go().await;
        assert!(matches!(end, RunEnd::Over), "{end:?}");
        assert!(jobs.get(id).await.unwrap().ended_ms.is_some());
        for part in 0..2 {
            assert_eq!(jobs.read_part(id, part).await.unwrap(), None, "{id}, part {part}");
        }
    }
}

/// Story: a message that was fired, or postponed to an earlier time, while the job collected went from ahead of the walk
/// to behind it, and the job never met it.
#[tokio::test]
async fn second_walk_meets_moved_messages() {
    for shards in [1, 3] {
        let memory = Duewheel::builder().in_memory().clock(VirtualClock::at_2026()).shards(shards);
        let wheel = memory.open().await.unwrap();
        let (client, jobs) = (wheel.client(), BulkJobs::new(&wheel, &Policy::default()).unwrap());
        let now = client.now().wall.0;
        let queue = QueueName::new("orders").unwrap();
        let mut ids = Vec::new();
        for n in 0..6_000 {
            let when = at(now + 3_600_000 + n);
            let order = Enqueue { when, ..Enqueue::new(queue.clone(), b"".to_vec()) };
            ids.push(client.ask(order).await.unwrap().unwrap().id);
        }
        let record = BulkRecord::new(
            BulkTenant::Common,
            "orders".into(),
            BulkFilter::default(),
            BulkAction::Postpone(BulkMove::Delay(9_000_000)),
            None,
            jobs.jobs.now(),
        );
        assert!(jobs.jobs.create("job", record.bytes()).await.unwrap());
        let StoredRecord { id: row, generation, .. } = jobs.jobs.read("job").await.unwrap().unwrap();
        let (_keep, stop) = watch::channel(false);
        let mut run = BulkRun::new(&jobs, "job", (row, generation), record, BulkPlace::alone(), stop.clone());
        run.collect().await.unwrap();
        let (walk, met) = (run.record.walk, run.record.counts.matched);
        assert!(walk == BulkWalk::First && (1_000..5_000).contains(&met), "{met}");
        let [.., soon, earlier, later, leased] = ids[..] else { unreachable!() };
        let postpone = |id, ms| Op::postpone(Target::Id(id), Box::new(Edit::due(at(ms))), None);
        for op in [postpone(soon, now), postpone(earlier, now + 1_000), postpone(later, now + 8_000_000)] {
            client.ask(op).await.unwrap().unwrap();
        }
        // A consumer has one where the walk comes later, and gives it back at once; and one that was met is moved.
        let lease = |id| Op::reserve_one(id, duewheel::core::id::SessionId::NONE, None);
        let grant = client.ask(lease(leased)).await.unwrap().unwrap();
        client.ask(postpone(ids[0], now + 8_500_000)).await.unwrap().unwrap();
        let ((row, generation), record) = (run.row, run.record.clone());
        drop(run);
        // Another node goes on.
        let mut run = BulkRun::new(&jobs, "job", (row, generation), record, BulkPlace::alone(), stop);
        while run.record.walk == BulkWalk::First {
            run.collect().await.unwrap();
        }
        let back = Op::nack(leased, grant.token, Attempt::NotYet, Some(0), "");
        client.ask(back).await.unwrap().unwrap();
        assert!(matches!(run.go().await, RunEnd::Over));
        let counts = jobs.get("job").await.unwrap().counts;
        let expected = BulkCounts { matched: 5_999, done: 5_998, leased: 1, changed: 1, refused: 0 };
        assert_eq!(counts, expected, "over {shards} shards");
        for id in [soon, earlier, later] {
            let view = client.ask(Op::get(Target::Id(id))).await.unwrap().unwrap();
            assert_eq!(view.due_at.0, now + 9_000_000, "{id}");
        }
    }
}

/// Dead messages of the queue `orders`, of an in-memory library. Every other one has a key.
async fn some_dead(client: &Client, n: usize) -> Vec<MessageId> {
    let mut ids = Vec::new();
    for n in 0..n {
        let order = Enqueue::new(QueueName::new("orders").unwrap(), b"".to_vec());
        let key = Key::new(&format!("k-{n}")).ok().filter(|_| !n.is_multiple_of(2));
        let order = Enqueue { key, begins: InitialState::Dead, ..order };
        ids.push(client.ask(order).await.unwrap().unwrap().id);
    }
    ids
}

/// Lets a message die once more.
async fn bury(client: &Client, id: MessageId) {
    let grant = client.ask(Op::reserve_one(id, SessionId::NONE, None)).await.unwrap().unwrap();
    client.ask(Op::bury(id, grant.token, "no use")).await.unwrap().unwrap();
}

async fn job(jobs: &BulkJobs, filter: BulkFilter, action: BulkAction) -> (MessageId, u32, BulkRecord) {
    let record = BulkRecord::new(BulkTenant::Common, "orders".into(), filter, action, None, jobs.jobs.now());
    assert!(jobs.jobs.create("job", record.bytes()).await.unwrap());
    let StoredRecord { id, generation, .. } = jobs.jobs.read("job").await.unwrap().unwrap();
    (id, generation, record)
}

/// Story: a job that was to remove dead messages removed those, too, that were redriven after it had collected
/// them, and counted them as done.
#[tokio::test]
async fn redriven_dead_message_is_skipped() {
    let move_to = BulkAction::Redrive { delay_ms: None, to_queue: Some("others".into()) };
    for action in [BulkAction::Cancel, move_to] {
        let clock = VirtualClock::at_2026();
        let memory = Duewheel::builder().in_memory().clock(clock.clone());
        let wheel = memory.open().await.unwrap();
        let (client, jobs) = (wheel.client(), BulkJobs::new(&wheel, &Policy::default()).unwrap());
        let ids = some_dead(client, 3).await;
        let dead = BulkFilter { state: Some(State::Dead), ..BulkFilter::default() };
        let (row, generation, record) = job(&jobs, dead, action.clone()).await;
        let (_keep, stop) = watch::channel(false);
        let mut run = BulkRun::new(&jobs, "job", (row, generation), record, BulkPlace::alone(), stop);
        run.collect().await.unwrap();
        assert_eq!((run.record.phase, run.record.counts.matched), (BulkPhase::Running, 3));
        clock.advance(Duration::from_secs(1));
        for id in &ids[..2] {
            client.ask(Op::redrive(*id)).await.unwrap().unwrap();
        }
        // Dead as it is now, it is another matter.
        bury(client, ids[1]).await;
        // Also where a node that has died may have come so far.
        run.unsure = 3;
        assert!(matches!(run.go().await, RunEnd::Over));
        let counts = jobs.get("job").await.unwrap().counts;
        assert_eq!((counts.done, counts.changed), (1, 2), "{action:?}");
        let mut states = Vec::new();
        for id in ids {
            states.push(client.ask(Op::get(Target::Id(id))).await.unwrap().map(|view| view.state));
        }
        assert_eq!(states, [Some(State::Ready), Some(State::Dead), None], "{action:?}");
    }
}

/// Story: a dead message that was redriven between its copy and its removal was removed, or, with a consumer by then,
/// lived twice.
#[tokio::test]
async fn copy_of_redriven_message_is_removed() {
    let wheel = Duewheel::builder().in_memory().clock(VirtualClock::at_2026()).open().await.unwrap();
    let (client, jobs) = (wheel.client(), BulkJobs::new(&wheel, &Policy::default()).unwrap());
    let ids = some_dead(client, 3).await;
    let action = BulkAction::Redrive { delay_ms: None, to_queue: Some("others".into()) };
    let (row, generation, record) = job(&jobs, BulkFilter::default(), action).await;
    let (_keep, stop) = watch::channel(false);
    let run = BulkRun::new(&jobs, "job", (row, generation), record, BulkPlace::alone(), stop);
    let moves = moves_of(&run, &ids).await;
    let entered = enter_copies(client, &moves).await;
    let copies: Vec<MessageId> = entered.iter().map(|copy| copy.clone().unwrap().unwrap()).collect();
    for id in &ids[..2] {
        client.ask(Op::redrive(*id)).await.unwrap().unwrap();
    }
    let lease = |id| Op::reserve_one(id, SessionId::NONE, None);
    client.ask(lease(ids[0])).await.unwrap().unwrap();
    // The copy of the second one has a consumer already.
    client.ask(lease(copies[1])).await.unwrap().unwrap();
    let ends = remove_moved(client, &moves, entered).await;
    let judged: Vec<_> = ends.into_iter().map(of_move).collect();
    assert_eq!(judged, [BulkOutcome::Changed, BulkOutcome::Done, BulkOutcome::Done].map(Ok));
    let there = are_there(client, ids.into_iter().chain(copies)).await;
    assert_eq!(there, [true, true, false, false, true, true], "the messages, and their copies");
}

/// The moves of these dead messages into the queue `others`.
async fn moves_of(run: &BulkRun<'_>, ids: &[MessageId]) -> Vec<DeadMove> {
    let mut moves = Vec::new();
    for id in ids {
        let view = run.jobs.jobs.client.ask(Op::get(Target::Id(*id))).await.unwrap().unwrap();
        let copy = run.copy(&view, &QueueName::new("others").unwrap(), None);
        moves.push(DeadMove { id: *id, died: WallMs(died(&view).unwrap()), copy, enters: true });
    }
    moves
}

/// Whether each of these messages is still there.
async fn are_there(client: &Client, ids: impl IntoIterator<Item = MessageId>) -> Vec<bool> {
    let mut there = Vec::new();
    for id in ids {
        there.push(client.ask(Op::get(Target::Id(id))).await.unwrap().is_some());
    }
    there
}

/// Story: a node died between the copies and the removals, and another one left the copies of those that had been
/// redriven in their own queue since; later those alone of messages that were gone, which it counted as moved.
#[tokio::test]
async fn copy_of_earlier_try_is_removed() {
    for shards in [1, 3] {
        let memory = Duewheel::builder().in_memory().clock(VirtualClock::at_2026()).shards(shards);
        let wheel = memory.open().await.unwrap();
        let (client, jobs) = (wheel.client(), BulkJobs::new(&wheel, &Policy::default()).unwrap());
        let ids = some_dead(client, 8).await;
        let action = BulkAction::Redrive { delay_ms: None, to_queue: Some("others".into()) };
        let (row, generation, record) = job(&jobs, BulkFilter::default(), action).await;
        let (_keep, stop) = watch::channel(false);
        let mut run = BulkRun::new(&jobs, "job", (row, generation), record, BulkPlace::alone(), stop.clone());
        run.collect().await.unwrap();
        let moves = moves_of(&run, &ids).await;
        let entered = enter_copies(client, &moves).await;
        let copies: Vec<MessageId> = entered.iter().map(|copy| copy.clone().unwrap().unwrap()).collect();
        // The last one is moved by then.
        remove_moved(client, &moves[7..], entered[7..].to_vec()).await.pop().unwrap().unwrap();
        let (row, record) = (run.row, run.record.clone());
        drop(run);
        client.ask(Op::redrive(ids[0])).await.unwrap().unwrap();
        for id in &ids[1..6] {
            client.ask(Op::cancel(Target::Id(*id))).await.unwrap().unwrap();
        }
        // Another node goes on.
        let mut run = BulkRun::new(&jobs, "job", row, record, BulkPlace::alone(), stop);
        assert!(matches!(run.go().await, RunEnd::Over));
        let (there, copied) = (are_there(client, ids).await, are_there(client, copies).await);
        assert_eq!(there, [true, false, false, false, false, false, false, false], "the messages");
        assert_eq!(copied, [false, false, false, false, false, false, true, true], "their copies");
        let counts = jobs.get("job").await.unwrap().counts;
        assert_eq!((counts.done, counts.changed), (2, 6), "over {shards} shards");
    }
}

/// Story: a message that was cancelled between its copy and its removal was counted as moved, and its copy delivered.
#[tokio::test]
async fn copy_of_cancelled_message_is_removed() {
    let wheel = Duewheel::builder().in_memory().clock(VirtualClock::at_2026()).open().await.unwrap();
    let (client, jobs) = (wheel.client(), BulkJobs::new(&wheel, &Policy::default()).unwrap());
    let ids = some_dead(client, 1).await;
    let action = BulkAction::Redrive { delay_ms: None, to_queue: Some("others".into()) };
    let (row, generation, record) = job(&jobs, BulkFilter::default(), action).await;
    let (_keep, stop) = watch::channel(false);
    let run = BulkRun::new(&jobs, "job", (row, generation), record, BulkPlace::alone(), stop);
    let moves = moves_of(&run, &ids).await;
    let entered = enter_copies(client, &moves).await;
    let copy = entered[0].clone().unwrap().unwrap();
    client.ask(Op::cancel(Target::Id(ids[0]))).await.unwrap().unwrap();
    let ends = remove_moved(client, &moves, entered).await;
    assert!(matches!(ends[..], [Err(MoveFailure::Removal(ChangeRefusal::NotFound))]), "{ends:?}");
    assert_eq!(are_there(client, [copy]).await, [false]);
}

/// Story: of two requests for one move the second one found the message gone, and would have taken the copy back that the
/// first one had answered.
#[tokio::test]
async fn repeated_move_keeps_its_copy() {
    let wheel = Duewheel::builder().in_memory().clock(VirtualClock::at_2026()).open().await.unwrap();
    let (client, jobs) = (wheel.client(), BulkJobs::new(&wheel, &Policy::default()).unwrap());
    let ids = some_dead(client, 1).await;
    let action = BulkAction::Redrive { delay_ms: None, to_queue: Some("others".into()) };
    let (row, generation, record) = job(&jobs, BulkFilter::default(), action).await;
    let (_keep, stop) = watch::channel(false);
    let run = BulkRun::new(&jobs, "job", (row, generation), record, BulkPlace::alone(), stop);
    let moves = moves_of(&run, &ids).await;
    // Both have entered their copy, which is one, before either removes the message.
    let entered = [enter_copies(client, &moves).await, enter_copies(client, &moves).await];
    let mut ends = Vec::new();
    for entered in entered {
        ends.extend(
            remove_moved(client, &moves, entered).await.into_iter().map(|end| end.unwrap().id.unwrap()),
        );
    }
    assert_eq!(ends[0], ends[1]);
    assert_eq!(are_there(client, [ids[0], ends[0]]).await, [false, true]);
}

/// Story: an enqueue without an answer counted as not tried, so that nobody looked for the copy later.
#[test]
fn unanswered_copy_may_have_entered() {
    let lost = of_move(Err(MoveFailure::Call(CallError::NO_ANSWER)));
    assert!(lost.unwrap_err().is_unsure(false));
    let refused = of_move(Err(MoveFailure::Call(CallError::Overloaded)));
    assert!(!refused.unwrap_err().is_unsure(false));
    // The copy has entered, and the removal is tried again.
    let busy = of_move(Err(MoveFailure::Removal(ChangeRefusal::Busy)));
    assert!(busy.unwrap_err().is_unsure(false));
}

/// Story: a redrive that was made before a crash was made again when the message had died once more, and so was one of
/// a message that somebody else had redriven.
#[tokio::test]
async fn dead_again_message_is_not_redriven() {
    let clock = VirtualClock::at_2026();
    let wheel = Duewheel::builder().in_memory().clock(clock.clone()).open().await.unwrap();
    let (client, jobs) = (wheel.client(), BulkJobs::new(&wheel, &Policy::default()).unwrap());
    let ids = some_dead(client, 2).await;
    let action = BulkAction::Redrive { delay_ms: None, to_queue: None };
    let (row, generation, record) = job(&jobs, BulkFilter::default(), action).await;
    let (_keep, stop) = watch::channel(false);
    let mut run = BulkRun::new(&jobs, "job", (row, generation), record, BulkPlace::alone(), stop);
    run.collect().await.unwrap();
    // The first one by the node that has died, the second one by hand.
    clock.advance(Duration::from_secs(1));
    for id in &ids {
        client.ask(Op::redrive(*id)).await.unwrap().unwrap();
        bury(client, *id).await;
    }
    run.unsure = 1;
    assert!(matches!(run.go().await, RunEnd::Over));
    for id in ids {
        let view = client.ask(Op::get(Target::Id(id))).await.unwrap().unwrap();
        assert_eq!((view.state, view.attempt), (State::Dead, 1), "{id}");
    }
    let counts = jobs.get("job").await.unwrap().counts;
    assert_eq!((counts.done, counts.changed), (1, 1));
}
