//! Operations on many shards: order within a submission, merged answers, and what a failing shard does to them.

use std::time::Duration;

use duewheel_core::engine::{Histogram, Hold, Op, QueueView, Reply, Stats, Target};
use duewheel_core::id::{MessageId, ShardId};
use duewheel_core::message::State;
use duewheel_core::policy::{Policy, QueueSettings};
use duewheel_core::time::WallMs;
use duewheel_shard::clock::VirtualClock;
use duewheel_shard::error::{CallError, Outcome};
use duewheel_shard::inbox::WhenBusy;

use super::rig::*;

async fn views(rig: &Rig, op: Op) -> Vec<QueueView> {
    match rig.call(op).await {
        Reply::Queues(views) => views,
        other => panic!("{other:?}"),
    }
}

async fn stats(rig: &Rig) -> Stats {
    match rig.call(Op::Stats).await {
        Reply::Stats(stats) => *stats,
        other => panic!("{other:?}"),
    }
}

fn keyed(name: &str) -> Op {
    let put = duewheel_core::engine::Enqueue { key: Some(key(name)), ..message("q", name) };
    Op::Enqueue(Box::new(put))
}

fn get(name: &str) -> Op {
    Op::Get { target: Target::Key(queue("q"), key(name)) }
}

#[tokio::test]
async fn submission_answers_keep_their_order() {
    let rig = rig(4);
    // The first shard is slow: what is for all must wait for it.
    rig.local.set(0, Mood::Slow(Duration::from_millis(50)));
    let mut ops: Vec<Op> = (0..20).map(|n| keyed(&format!("a{n}"))).collect();
    ops.push(Op::Queue { queue: queue("q") });
    ops.push(Op::Purge { at_most: None, queue: queue("q") });
    ops.extend((0..20).map(|n| get(&format!("a{n}"))));
    ops.push(keyed("late"));
    ops.push(get("late"));
    let mut answers = rig.client.submit(ops).unwrap().await.into_iter().map(Result::unwrap);
    for n in 0..20 {
        let id = match answers.next() {
            Some(Reply::Enqueue(Ok(done))) => done.id,
            other => panic!("{other:?}"),
        };
        let shard = crate::routing::partition::of_name(&queue("q"), &format!("a{n}"), 4);
        assert_eq!(ShardId::of(id, 4), shard);
    }
    assert!(matches!(answers.next(), Some(Reply::Queues(views)) if views[0].counts.ready == 20));
    assert_eq!(answers.next(), Some(Reply::Count(20.into())));
    for _ in 0..20 {
        assert_eq!(answers.next(), Some(Reply::View(None)));
    }
    assert!(matches!(answers.next(), Some(Reply::Enqueue(Ok(_)))));
    assert!(matches!(answers.next(), Some(Reply::View(Some(_)))));
    assert_eq!(answers.next(), None);
}

#[tokio::test]
async fn shard_error_affects_only_its_operations() {
    let rig = rig(4);
    let away = crate::routing::partition::of_name(&queue("q"), "a0", 4);
    rig.local.set(away.0, Mood::Away);
    let ops = (0..40).map(|n| keyed(&format!("a{n}"))).collect();
    let answers = rig.client.submit(ops).unwrap().await;
    let mut failed = 0;
    for (n, answer) in answers.iter().enumerate() {
        let shard = crate::routing::partition::of_name(&queue("q"), &format!("a{n}"), 4);
        assert_eq!(answer.is_err(), shard == away, "{n}: {answer:?}");
        failed += usize::from(answer.is_err());
    }
    assert!((1..40).contains(&failed));
}

#[tokio::test]
async fn keyless_enqueues_rotate_over_local_shards() {
    let rig = rig(4);
    rig.local.set_here(&[1, 3]);
    for n in 0..10 {
        rig.put("q", &n.to_string()).await;
    }
    assert_eq!(rig.local.asked_each("enqueue"), [0, 5, 0, 5]);
    rig.local.set_here(&[]);
    for n in 0..8 {
        rig.put("q", &n.to_string()).await;
    }
    assert_eq!(rig.local.asked_each("enqueue"), [2, 7, 2, 7]);
}

#[tokio::test]
async fn dedupe_id_returns_first_answer() {
    let rig = rig(8);
    for n in 0..20 {
        let put = || duewheel_core::engine::Enqueue {
            dedupe_id: Some(format!("d{n}").into()),
            ..message("q", &n.to_string())
        };
        assert_eq!(rig.enqueue(put()).await, rig.enqueue(put()).await);
    }
    assert_eq!(stats(&rig).await.counts.ready, 20);
}

#[tokio::test]
async fn failed_read_names_its_shard() {
    let rig = rig(4);
    rig.put("q", "x").await;
    rig.local.set(2, Mood::Away);
    let histogram = Op::Histogram { queue: None, from: WallMs(0), to: WallMs(1), columns: 1 };
    let looks = [
        Op::Stats,
        Op::Wheel,
        Op::NextDue,
        histogram,
        Op::Queue { queue: queue("q") },
        Op::Queues { after: None, limit: 10 },
        Op::Peek { queue: queue("q"), state: State::Ready },
    ];
    for op in looks {
        let error = rig.client.call(op.clone()).await.unwrap_err();
        assert!(error.to_string().contains("shard 2"), "{op:?}: {error}");
        assert_eq!(error.outcome(), Outcome::NotApplied);
    }
    let error = rig.client.list(queue("q"), None, None, 10).await.unwrap_err();
    assert!(error.to_string().contains("shard 2"), "{error}");
}

#[tokio::test]
async fn partial_queue_change_has_unknown_outcome() {
    let rig = rig(4);
    let settings = QueueSettings { priority: Some(7), ..QueueSettings::default() };
    let changes = [
        Op::Configure { queue: queue("q"), settings: settings.clone() },
        Op::Pause { queue: queue("q"), for_ms: Some(1_000) },
        Op::Purge { at_most: None, queue: queue("q") },
        Op::Resume { queue: queue("q") },
    ];
    for op in changes {
        rig.local.set(1, Mood::Away);
        let error = rig.client.call(op.clone()).await.unwrap_err();
        assert_eq!(error.outcome(), Outcome::Unknown, "{op:?}");
        rig.local.set(1, Mood::Well);
        rig.call(op).await;
    }
    let view = views(&rig, Op::Queue { queue: queue("q") }).await.remove(0);
    assert_eq!((view.settings, view.totals.paused), (settings, 1));
    assert_eq!(view.pause, duewheel_core::record::Pause::Running);
}

/// Messages arrive between the count and the purge of a shard: no more than were expected are removed.
#[tokio::test]
async fn purge_over_shards_keeps_its_limit() {
    let rig = rig(4);
    for n in 0..8 {
        rig.put_at(n % 4, "q", "x").await;
    }
    let purge = |most| Op::Purge { queue: queue("q"), at_most: Some(most) };
    assert_eq!(rig.call(purge(7)).await, Reply::Count(8.into()));
    let left = views(&rig, Op::Queue { queue: queue("q") }).await.remove(0).counts.ready;
    assert_eq!(left, 8, "nothing is removed");
    rig.local.set(2, Mood::Slow(Duration::from_millis(200)));
    let race = async {
        // The shards were counted 200 ms after the beginning, and the third one purges later.
        tokio::time::sleep(Duration::from_millis(300)).await;
        for _ in 0..5 {
            rig.put_at(3, "q", "x").await;
        }
    };
    let (reply, ()) = tokio::join!(rig.call(purge(8)), race);
    let left = views(&rig, Op::Queue { queue: queue("q") }).await.remove(0).counts.ready;
    match reply {
        Reply::Count(count) if count.what > 8 => assert!((5..=13).contains(&left), "{left}"),
        Reply::Count(count) => assert_eq!((count.what, left), (8, 5)),
        other => panic!("{other:?}"),
    }
    assert_eq!(rig.call(purge(13)).await, Reply::Count(left.into()));
}

#[tokio::test]
async fn pages_of_queues_are_exact() {
    let policy = Policy { max_page: 7, ..Policy::default() };
    let rig = rig_with(4, policy, VirtualClock::at_2026());
    let mut names: Vec<String> = (0..60).map(|n| format!("q{n:02}")).collect();
    for (n, name) in names.iter().enumerate() {
        match n % 3 {
            // In one shard, in all, and in none: only held.
            0 => drop(rig.put_at(n as u32 / 3 % 4, name, "x").await),
            1 => drop(rig.call(Op::Pause { queue: queue(name), for_ms: None }).await),
            _ => drop(rig.call(Op::Hold { queue: queue(name), how: Hold::Watch }).await),
        }
    }
    for limit in [1, 2, 5, 7, 100] {
        let mut found: Vec<String> = Vec::new();
        loop {
            let after = found.last().map(|name| queue(name));
            let page = views(&rig, Op::Queues { after, limit }).await;
            assert!(page.len() <= limit.min(7));
            if page.is_empty() {
                break;
            }
            found.extend(page.iter().map(|view| view.name.to_string()));
        }
        assert_eq!(found, names, "{limit} at a time");
    }
    // What is let go is gone.
    for n in (2..60).step_by(3) {
        rig.call(Op::LetGo { queue: queue(&names[n]), how: Hold::Watch }).await;
    }
    names.retain(|name| name[1..].parse::<usize>().unwrap() % 3 != 2);
    let all = views(&rig, Op::Queues { after: None, limit: 7 }).await;
    assert_eq!(all.iter().map(|v| v.name.to_string()).collect::<Vec<_>>(), names[..7]);
}

#[tokio::test]
async fn queue_view_shows_local_holds() {
    let rig = rig(4);
    for how in [Hold::Use, Hold::Watch, Hold::Watch, Hold::Keep] {
        rig.call(Op::Hold { queue: queue("q"), how }).await;
    }
    let view = views(&rig, Op::Queue { queue: queue("q") }).await.remove(0);
    assert_eq!((view.using, view.watching, view.waiters), (1, 2, 0));
    for how in [Hold::Use, Hold::Watch, Hold::Watch, Hold::Keep] {
        rig.call(Op::LetGo { queue: queue("q"), how }).await;
    }
    assert!(views(&rig, Op::Queue { queue: queue("q") }).await.is_empty());
}

#[tokio::test]
async fn histogram_merges_shards_of_different_resolution() {
    // Most of the messages are not in memory, where each minute is counted.
    let policy = Policy { near_messages: 20, ..Policy::default() };
    let rig = rig_with(4, policy, VirtualClock::at_2026());
    let start = match rig.client.now().wall {
        WallMs(ms) => ms / 3_600_000 * 3_600_000,
    };
    // So many columns in one shard that they get wider; a few messages in the others.
    for n in 0..5_000u64 {
        let op = Op::Enqueue(Box::new(later("q", "x", n * 60_000)));
        drop(rig.local.client(0).submit(vec![op]).unwrap());
    }
    for shard in 1..4 {
        let op = Op::Enqueue(Box::new(later("q", "x", 30 * 60_000)));
        rig.local.client(shard).call(op).await.unwrap();
    }
    let op = |columns| Op::Histogram {
        queue: Some(queue("q")),
        from: WallMs(start),
        to: WallMs(start + 86_400_000),
        columns,
    };
    let ask = |client: duewheel_shard::client::Client, columns| async move {
        match client.call(op(columns)).await.unwrap() {
            Reply::Histogram(histogram) => histogram,
            other => panic!("{other:?}"),
        }
    };
    let all = |h: &Histogram| h.counts.iter().sum::<u64>() + h.before + h.after;
    for columns in [1, 7, 24, 48, 1_440] {
        let coarse = ask(rig.local.client(0), columns).await;
        let fine = ask(rig.local.client(1), columns).await;
        assert!(coarse.resolution_ms > fine.resolution_ms);
        let merged = ask(rig.client.clone(), columns).await;
        assert_eq!(all(&merged), 5_003);
        let wanted = (coarse.from, coarse.width_ms, coarse.counts.len(), coarse.resolution_ms);
        assert_eq!((merged.from, merged.width_ms, merged.counts.len(), merged.resolution_ms), wanted);
        let due = rig.client.now().wall.0 + 30 * 60_000;
        let column = ((due - merged.from.0) / merged.width_ms) as usize;
        assert_eq!(merged.counts[column], coarse.counts[column] + 3, "{columns} columns");
    }
}

#[tokio::test]
async fn fire_and_redrive_honour_their_maximum() {
    let rig = rig(4);
    for n in 0..20 {
        rig.enqueue(later("q", &n.to_string(), 60_000)).await;
    }
    let fire = |max| Op::FireMany { queue: queue("q"), max };
    assert_eq!(rig.call(fire(7)).await, Reply::Count(7.into()));
    assert_eq!(rig.call(fire(0)).await, Reply::Count(0.into()));
    assert_eq!(rig.call(fire(usize::MAX)).await, Reply::Count(13.into()));
    for grant in rig.reserve(demand("q", 20, 0)).await {
        let proof = grant.token.into();
        rig.call(Op::Bury { id: grant.message.id, proof, priority: None, note: "".into() }).await;
    }
    let redrive = |max| Op::RedriveMany { queue: queue("q"), max };
    assert_eq!(rig.call(redrive(9)).await, Reply::Count(9.into()));
    assert_eq!(rig.call(redrive(usize::MAX)).await, Reply::Count(11.into()));
    assert_eq!(stats(&rig).await.counts.ready, 20);
}

/// Story: a shard whose inbox was full answered that nothing was applied, when the shards before it had fired messages; a
/// caller that asked again had more of them ready than it wanted.
#[tokio::test]
async fn part_of_a_fire_is_unknown() {
    let rig = rig(2);
    for n in 0..3 {
        let later = Op::Enqueue(Box::new(later("q", &n.to_string(), 60_000)));
        assert!(matches!(rig.local.client(0).call(later).await, Ok(Reply::Enqueue(Ok(_)))));
    }
    let fire = || rig.client.call(Op::FireMany { queue: queue("q"), max: 10 });
    rig.local.set(1, Mood::Full);
    assert_eq!(fire().await.unwrap_err().outcome(), Outcome::Unknown);
    let again = fire().await.unwrap_err();
    assert!(matches!(again, CallError::Overloaded), "nothing was left to fire: {again:?}");
}

#[tokio::test]
async fn excess_submissions_are_refused_immediately() {
    let policy = Policy { max_inbox_requests: 10, ..Policy::default() };
    let rig = rig_with(2, policy, VirtualClock::at_2026());
    for shard in 0..2 {
        rig.local.set(shard, Mood::Silent);
    }
    let puts = |n: usize| (0..n).map(|n| keyed(&n.to_string())).collect::<Vec<_>>();
    let pending = rig.client.submit(puts(8)).unwrap();
    let (error, ops) = rig.client.offer(puts(8), WhenBusy::Refuse).unwrap_err();
    assert!(matches!(error, CallError::Overloaded));
    assert_eq!(ops, puts(8));
    let settling = vec![Op::Delete { id: MessageId(1), session: duewheel_core::SessionId(1) }];
    assert!(rig.client.offer(settling, WhenBusy::Refuse).is_ok(), "it makes room");
    drop(pending);
}

#[tokio::test]
async fn settling_survives_refusal_of_neighbours() {
    let rig = rig(2);
    let put = rig.put_at(0, "q", "x").await;
    rig.local.set(0, Mood::Full);
    let ops = vec![
        Op::Get { target: Target::Id(put) },
        Op::Cancel { keep: None, dedupe_id: duewheel_core::engine::DedupeId::Stays, target: Target::Id(put) },
        Op::Cancel { keep: None, dedupe_id: duewheel_core::engine::DedupeId::Stays, target: Target::Id(put) },
    ];
    let answers = rig.client.submit(ops).unwrap().await;
    assert!(matches!(answers[0], Err(CallError::Overloaded)));
    assert!(matches!(answers[1], Ok(Reply::Change(Ok(_)))));
    assert!(matches!(answers[2], Ok(Reply::Change(Err(_)))));
}

#[tokio::test]
async fn draining_router_admits_settling() {
    let rig = rig(2);
    let id = rig.put("q", "x").await;
    rig.inbox.close_door(duewheel_shard::inbox::Admission::Draining);
    assert!(matches!(rig.client.call(keyed("k")).await, Err(CallError::Draining)));
    assert!(matches!(
        rig.call(Op::Cancel {
            keep: None,
            dedupe_id: duewheel_core::engine::DedupeId::Stays,
            target: Target::Id(id)
        })
        .await,
        Reply::Change(Ok(_))
    ));
    assert_eq!(stats(&rig).await.counts.ready, 0);
}

#[tokio::test]
async fn with_one_shard_everything_goes_straight() {
    let rig = rig(1);
    let client = rig.client.clone();
    let waiting = tokio::spawn(async move { client.reserve(demand("q", 1, 3_600_000)).await });
    until("it waits at the shard", || rig.local.asked("reserve") == 1).await;
    assert_eq!(rig.local.asked("wait"), 0);
    rig.call(Op::Hold { queue: queue("q"), how: Hold::Use }).await;
    assert_eq!(views(&rig, Op::Queue { queue: queue("q") }).await[0].using, 1);
    let id = rig.put("q", "x").await;
    let granted = waiting.await.unwrap().unwrap();
    assert!(matches!(granted, duewheel_core::engine::Reserved::Grants(g) if g[0].message.id == id));
}
