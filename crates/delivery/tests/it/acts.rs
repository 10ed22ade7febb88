//! Acts on many messages that expect a number and keep what they remove, and their undoing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use duewheel::View;
use duewheel::core::MessageId;
use duewheel::core::engine::{Op, Quota, Target};
use duewheel::core::message::{MessageContent, State};
use duewheel::core::store::{Capacity, MemoryDisk};
use duewheel_delivery::{
    BulkAction, BulkCounts, BulkError, BulkFilter, BulkPhase, BulkRequest, BulkView, BulkWorker,
};

use crate::bulk::{Rig, queue, request};

const LONG: Duration = Duration::from_secs(60);
const KEEP: Duration = Duration::from_secs(3_600);

/// Messages without what differs after they were put back: their ids, and the time that has passed.
fn as_they_were(all: BTreeMap<String, View>) -> BTreeMap<String, View> {
    let view = |view: View| {
        let content = MessageContent { id: MessageId(0), ..(*view.message).clone() };
        View { message: content.into(), due_in_ms: 0, ..view }
    };
    all.into_iter().map(|(key, one)| (key, view(one))).collect()
}

fn all_of(action: BulkAction) -> BulkRequest {
    request(BulkFilter::default(), action)
}

fn purge() -> BulkRequest {
    BulkRequest { keep: Some(KEEP), ..all_of(BulkAction::Purge) }
}

fn restore(act: &BulkView) -> BulkRequest {
    all_of(BulkAction::Restore { act: act.id.clone() })
}

fn counts(matched: u64, done: u64, refused: u64) -> BulkCounts {
    BulkCounts { matched, done, refused, ..BulkCounts::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn purged_messages_come_back_once() {
    for shards in [1, 3] {
        let rig = Rig::over(shards).await;
        rig.put("order", 50).await;
        rig.clock.advance(Duration::from_millis(3_600_000 + 8_500));
        rig.kill(3).await;
        let before = as_they_were(rig.all("orders").await);
        let act = rig.jobs.begin(purge()).await.unwrap();
        assert_eq!(rig.run(&act.id).await.counts, counts(50, 50, 0), "dead ones as well");
        assert!(rig.all("orders").await.is_empty());
        rig.clock.advance(Duration::from_secs(60));
        assert_eq!(rig.jobs.count(&restore(&act)).await.unwrap().matched, 50);
        // One key is taken since.
        let taken = duewheel::core::engine::Enqueue {
            key: duewheel::core::name::Key::new("order-49").ok(),
            ..duewheel::core::engine::Enqueue::new(queue(), "newer")
        };
        let taken = rig.wheel.client().ask(taken).await.unwrap().unwrap().id;
        let undo = rig.jobs.begin(restore(&act)).await.unwrap();
        assert_eq!(rig.run(&undo.id).await.counts, counts(50, 49, 1), "over {shards} shards");
        rig.wheel.client().ask(Op::cancel(Target::Id(taken))).await.unwrap().unwrap();
        for (restored, again) in [(1, "refused before"), (0, "all are back")] {
            let undo = rig.jobs.begin(restore(&act)).await.unwrap();
            assert_eq!(rig.run(&undo.id).await.counts, counts(restored, restored, 0), "{again}");
        }
        let now = as_they_were(rig.all("orders").await);
        // Some have become ready.
        let states = |all: &BTreeMap<String, View>, state| all.values().filter(|v| v.state == state).count();
        assert_eq!((states(&now, State::Dead), now.len()), (3, 50));
        for (key, was) in before {
            assert_eq!(View { state: now[&key].state, ..was }, now[&key], "{key}");
        }
        assert!(rig.all("orders").await.values().all(|view| view.message.id > taken || shards > 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn act_without_keep_offers_nothing() {
    let rig = Rig::over(2).await;
    rig.put("order", 9).await;
    let act = rig.jobs.begin(all_of(BulkAction::Cancel)).await.unwrap();
    rig.run(&act.id).await;
    let undo = rig.jobs.begin(restore(&act)).await.unwrap();
    assert_eq!(rig.run(&undo.id).await.counts, BulkCounts::default());
    // What is kept is kept for its time.
    rig.put("order", 9).await;
    let act = rig.jobs.begin(BulkRequest { keep: Some(KEEP), ..all_of(BulkAction::Cancel) }).await.unwrap();
    rig.run(&act.id).await;
    rig.clock.advance(KEEP);
    assert_eq!(rig.jobs.count(&restore(&act)).await.unwrap().matched, 0);
}

/// A node dies while it restores: what it has done since its last note is not done again.
#[tokio::test(flavor = "multi_thread")]
async fn restore_goes_on_after_crash_once() {
    let rig = Rig::over(2).await;
    rig.put("order", 1_000).await;
    let before = as_they_were(rig.all("orders").await);
    let act = rig.jobs.begin(purge()).await.unwrap();
    rig.run(&act.id).await;
    let slow = BulkRequest { rate: Some(200), ..restore(&act) };
    let undo = rig.jobs.begin(slow).await.unwrap();
    let node = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let worker = {
        let _of_it = node.enter();
        BulkWorker::start(&rig.jobs)
    };
    let deadline = Instant::now() + LONG;
    while rig.jobs.get(&undo.id).await.unwrap().counts.done == 0 {
        assert!(Instant::now() < deadline, "it does not begin");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    node.shutdown_background();
    drop(worker);
    let died = rig.jobs.get(&undo.id).await.unwrap();
    assert!(died.ended_ms.is_none(), "the worker was too fast for this test: {died:?}");
    // As long as the node that has died holds the job.
    rig.clock.advance(Duration::from_secs(10));
    let ended = rig.run(&undo.id).await;
    assert_eq!((ended.counts.matched, ended.counts.done), (1_000, 1_000));
    assert_eq!(as_they_were(rig.all("orders").await), before);
    assert_eq!(rig.jobs.count(&restore(&act)).await.unwrap().matched, 0);
}

/// Story: messages that were not put back for want of room, and whose time was over when there was room again, were counted
/// as put back.
#[tokio::test(flavor = "multi_thread")]
async fn restore_counts_lost_messages_as_changed() {
    for is_disk_full in [false, true] {
        let disk = MemoryDisk::default();
        let rig = Rig::on(&disk).await;
        rig.put("order", 9).await;
        let keep = Some(Duration::from_secs(5));
        let act = rig.jobs.begin(BulkRequest { keep, ..all_of(BulkAction::Purge) }).await.unwrap();
        assert_eq!(rig.run(&act.id).await.counts, counts(9, 9, 0));
        rig.wheel.set_quotas(vec![quota(1)]).unwrap();
        let undo = rig.jobs.begin(restore(&act)).await.unwrap();
        let worker = BulkWorker::start(&rig.jobs);
        let deadline = Instant::now() + LONG;
        while rig.all("orders").await.is_empty() {
            assert!(Instant::now() < deadline, "it does not begin");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if is_disk_full {
            disk.set_room(Capacity::SettleOnly);
            rig.wheel.set_quotas(Vec::new()).unwrap();
            // The record of the job is due again.
            rig.clock.advance(Duration::from_secs(11));
            tokio::time::sleep(Duration::from_millis(2_500)).await;
            disk.set_room(Capacity::Enough);
        } else {
            rig.clock.advance(Duration::from_secs(5));
        }
        let ended = rig.ended(&undo.id).await;
        worker.stop(LONG).await;
        assert_eq!(ended.counts, BulkCounts { changed: 8, ..counts(9, 1, 0) }, "disk full: {is_disk_full}");
        assert_eq!(rig.all("orders").await.len(), 1);
    }
}

/// Story: a node restored one message, had no room for the others, and died. Their time was over when another node went
/// on, and it counted them as put back.
#[tokio::test(flavor = "multi_thread")]
async fn taken_over_restore_counts_lost_as_changed() {
    let rig = Rig::on(&MemoryDisk::default()).await;
    rig.put("order", 9).await;
    let keep = Some(Duration::from_secs(5));
    let act = rig.jobs.begin(BulkRequest { keep, ..all_of(BulkAction::Purge) }).await.unwrap();
    assert_eq!(rig.run(&act.id).await.counts, counts(9, 9, 0));
    rig.wheel.set_quotas(vec![quota(1)]).unwrap();
    let undo = rig.jobs.begin(restore(&act)).await.unwrap();
    let node = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let worker = {
        let _of_it = node.enter();
        BulkWorker::start(&rig.jobs)
    };
    let deadline = Instant::now() + LONG;
    while rig.all("orders").await.is_empty() {
        assert!(Instant::now() < deadline, "it does not begin");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    node.shutdown_background();
    drop(worker);
    rig.clock.advance(Duration::from_secs(11));
    rig.wheel.set_quotas(Vec::new()).unwrap();
    let ended = rig.run(&undo.id).await;
    assert_eq!(ended.counts, BulkCounts { changed: 8, ..counts(9, 1, 0) });
    assert_eq!(rig.all("orders").await.len(), 1);
}

fn quota(messages: u64) -> Quota {
    let (prefix, messages) = ("orders".into(), Some(messages));
    Quota {
        prefix,
        messages,
        bytes: None,
        leases: None,
        enqueues_per_second: None,
        burst: None,
        answers: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn job_never_exceeds_its_expectation() {
    for shards in [1, 3] {
        let rig = Rig::over(shards).await;
        rig.put("order", 30).await;
        let expect = |n| BulkRequest { expect: Some(n), ..all_of(BulkAction::Cancel) };
        let refused = rig.jobs.begin(expect(29)).await.unwrap_err();
        assert!(matches!(refused, BulkError::Changed { expect: 29, matched: 30 }), "{refused:?}");
        assert!(rig.jobs.list().await.unwrap().is_empty());
        // The set grows after the count, and the clock stands still: the job meets the new ones as well.
        let job = rig.jobs.begin(expect(30)).await.unwrap();
        rig.put("late", 5).await;
        let ended = rig.run(&job.id).await;
        assert_eq!((ended.phase, ended.counts.done), (BulkPhase::Cancelled, 0));
        assert!(ended.counts.matched > 30, "{ended:?}");
        assert_eq!(rig.all("orders").await.len(), 35, "nothing was done");
        let job = rig.jobs.begin(expect(35)).await.unwrap();
        assert_eq!(rig.run(&job.id).await.counts, counts(35, 35, 0));
    }
}
