//! What a schedule missed while its worker or its store was away.

use std::path::Path;
use std::time::Duration;

use duewheel::core::engine::{Op, Reserved};
use duewheel::core::name::QueueName;
use duewheel::core::policy::QueueSettings;
use duewheel::{Duewheel, Policy, VirtualClock};
use duewheel_delivery::{ScheduleSettings, ScheduleWorker, Schedules};
use duewheel_shard::client::Reserve;

use crate::scheduled::{LONG, MINUTE, Rig, every, until};

/// A wheel in a folder, without a worker.
async fn open(folder: &Path, clock: &VirtualClock) -> Rig {
    let wheel = Duewheel::builder().data(folder).clock(clock.clone()).seed(1).open().await.unwrap();
    let schedules = Schedules::new(&wheel, &Policy::default()).unwrap();
    Rig { wheel, clock: clock.clone(), schedules, worker: None }
}

impl Rig {
    /// Reserves what is ready now, and returns how many there were.
    async fn reserved(&self) -> usize {
        let demand = Reserve { max: 100, ..Reserve::new(QueueName::new("q").unwrap()) };
        match self.wheel.client().reserve(demand).await.unwrap() {
            Reserved::Grants(grants) => grants.len(),
            other => panic!("{other:?}"),
        }
    }
}

/// Missed occurrences follow the policy and are counted: nobody looked for five hours and a half.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_missed_follows_the_policy() {
    for (missed, entered, counted) in [("none", 0, 5), ("last", 1, 4), ("all", 5, 0)] {
        let mut rig = Rig::new().await;
        let settings =
            ScheduleSettings { missed: Some(missed.into()), overlap: Some("skip".into()), ..every("1h") };
        let settings =
            if missed == "all" { ScheduleSettings { overlap: None, ..settings } } else { settings };
        rig.stop_worker().await;
        rig.schedules.put("report", settings, None).await.unwrap();
        rig.clock.advance(330 * MINUTE);
        rig.start_worker();
        until("it has caught up", async || {
            rig.clock.advance(Duration::from_millis(100));
            let counts = rig.get("report").await.record.state.counts;
            let ahead = u64::from(missed == "all");
            counts.missed == counted && counts.entered == entered + ahead
        })
        .await;
        assert_eq!(rig.messages().await.len() as u64, entered + u64::from(missed == "all"), "{missed}");
        rig.stop_worker().await;
    }
}

/// Story: `every: 40s` was killed and started 185 s later. The occurrence that was put ahead was granted whatever
/// `missed` and `catchup` said, and what was caught up came out of order, because it was due at the start.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_put_ahead_can_be_missed() {
    for (missed, catchup, entered) in [
        ("none", "24h", &[160, 200][..]),
        ("last", "24h", &[160, 200]),
        ("all", "1s", &[160, 200]),
        ("all", "24h", &[40, 80, 120, 160, 200]),
    ] {
        let (folder, clock) = (tempfile::tempdir().unwrap(), VirtualClock::at_2026());
        let mut rig = open(folder.path(), &clock).await;
        rig.start_worker();
        let start = rig.now();
        let (missed, catchup) = (Some(missed.into()), Some(catchup.into()));
        rig.schedules
            .put("report", ScheduleSettings { missed, catchup, ..every("40s") }, None)
            .await
            .unwrap();
        rig.entered("report", 1).await;
        rig.stop_worker().await;
        rig.wheel.shutdown(LONG).await.unwrap();
        clock.advance(Duration::from_secs(185));
        let mut rig = open(folder.path(), &clock).await;
        assert_eq!(rig.reserved().await, 0, "withheld until the worker has looked");
        rig.start_worker();
        rig.entered("report", entered.len() as u64).await;
        let due: Vec<u64> = rig
            .messages()
            .await
            .iter()
            .map(|view| view.due_at.to_system_time().duration_since(start).unwrap().as_secs())
            .collect();
        assert_eq!(due, entered, "{:?}", rig.get("report").await.record.settings);
        assert_eq!(rig.get("report").await.counts.missed, 5 - entered.len() as u64);
        assert_eq!(rig.reserved().await, entered.len() - 1, "all but the one that is put ahead");
        rig.stop_worker().await;
        rig.wheel.shutdown(LONG).await.unwrap();
    }
}

/// No worker runs after downtime: what was put ahead is granted after five seconds, and has entered. So is at once what
/// was ready before the store was closed.
#[tokio::test(flavor = "multi_thread")]
async fn occurrences_wait_briefly_for_a_dead_scheduler() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), VirtualClock::at_2026());
    let mut rig = open(folder.path(), &clock).await;
    rig.start_worker();
    let missed = Some("none".into());
    rig.schedules.put("report", ScheduleSettings { missed, ..every("40s") }, None).await.unwrap();
    rig.entered("report", 1).await;
    clock.advance(Duration::from_secs(40));
    rig.entered("report", 2).await;
    rig.stop_worker().await;
    rig.wheel.shutdown(LONG).await.unwrap();
    clock.advance(Duration::from_secs(185));
    let mut rig = open(folder.path(), &clock).await;
    assert_eq!(rig.reserved().await, 1, "the first was ready");
    clock.advance(Duration::from_millis(4_999));
    assert_eq!(rig.reserved().await, 0);
    clock.advance(Duration::from_millis(1));
    until("the second is granted", async || rig.reserved().await == 1).await;
    rig.start_worker();
    rig.entered("report", 4).await;
    assert_eq!(rig.get("report").await.counts.missed, 2, "the third and the fourth");
    rig.stop_worker().await;
    rig.wheel.shutdown(LONG).await.unwrap();
}

/// What was ready without a consumer has entered: a worker that was away withdraws nothing, and what it catches up
/// lives as long as any message of the queue.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_ready_is_not_withdrawn() {
    let mut rig = Rig::new().await;
    let expires = QueueSettings { expires_in_ms: Some(86_400_000), ..QueueSettings::default() };
    let queue = QueueName::new("q").unwrap();
    rig.wheel.client().ask(Op::configure(queue, expires)).await.unwrap().unwrap();
    let missed = Some("last".into());
    rig.schedules.put("report", ScheduleSettings { missed, ..every("3h") }, None).await.unwrap();
    rig.entered("report", 1).await;
    let first = rig.messages().await[0].message.id;
    rig.stop_worker().await;
    rig.clock.advance(570 * MINUTE + Duration::from_secs(1));
    rig.start_worker();
    rig.entered("report", 3).await;
    let found = rig.messages().await;
    assert!(found.iter().any(|view| view.message.id == first), "{found:?}");
    let expiries: Vec<bool> = found.iter().map(|view| view.message.options.expiry.is_some()).collect();
    assert_eq!(expiries, [false, true, false], "put ahead, caught up, put ahead: {found:?}");
}

/// Story: with a jitter the last look was later than the instant of the message that was put ahead, which was granted
/// half an hour late although `missed` was `none`; and nobody looked before the next instant.
#[tokio::test(flavor = "multi_thread")]
async fn jittered_occurrence_can_be_missed() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), VirtualClock::at_2026());
    let mut rig = open(folder.path(), &clock).await;
    rig.start_worker();
    let start = rig.now();
    let mut settings = ScheduleSettings { missed: Some("none".into()), ..every("1h") };
    settings.recurrence.jitter = Some("30m".into());
    rig.schedules.put("jittered", settings, None).await.unwrap();
    rig.entered("jittered", 1).await;
    let due = rig.messages().await[0].due_at.to_system_time().duration_since(start).unwrap();
    assert!(due > 60 * MINUTE, "{due:?}");
    clock.advance(60 * MINUTE);
    rig.entered("jittered", 2).await;
    rig.stop_worker().await;
    rig.wheel.shutdown(LONG).await.unwrap();
    clock.advance(50 * MINUTE);
    let mut rig = open(folder.path(), &clock).await;
    assert_eq!(rig.reserved().await, 0, "withheld until the worker has looked");
    rig.start_worker();
    until("it is missed", async || rig.get("jittered").await.record.state.counts.missed == 1).await;
    rig.entered("jittered", 1).await;
    clock.advance(Duration::from_secs(5));
    assert_eq!(rig.reserved().await, 0);
    rig.stop_worker().await;
    rig.wheel.shutdown(LONG).await.unwrap();
}

/// Story: no occurrence followed the last one, so nobody looked at it before thirty days had passed.
#[tokio::test(flavor = "multi_thread")]
async fn last_occurrence_can_be_missed() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), VirtualClock::at_2026());
    let mut rig = open(folder.path(), &clock).await;
    rig.start_worker();
    let settings = ScheduleSettings { missed: Some("none".into()), ..every("1h") };
    rig.schedules.put("once", settings, Some(1)).await.unwrap();
    rig.entered("once", 1).await;
    rig.stop_worker().await;
    rig.wheel.shutdown(LONG).await.unwrap();
    clock.advance(62 * MINUTE);
    let mut rig = open(folder.path(), &clock).await;
    rig.start_worker();
    until("it is missed", async || rig.get("once").await.record.state.counts.missed == 1).await;
    rig.stop_worker().await;
    rig.wheel.shutdown(LONG).await.unwrap();
}

/// Story: the worker repeated a refused reserve without a pause, and the clock waited for it for ever.
#[tokio::test(flavor = "multi_thread")]
async fn refused_worker_does_not_hold_the_clock() {
    let clock = VirtualClock::at_2026();
    let policy = Policy { max_waiters: 0, ..Policy::default() };
    let builder = Duewheel::builder().in_memory().clock(clock.clone()).policy(policy.clone());
    let wheel = builder.open().await.unwrap();
    let schedules = Schedules::new(&wheel, &policy).unwrap();
    let worker = ScheduleWorker::start(&schedules);
    tokio::time::timeout(LONG, wheel.advance(&clock, 60 * MINUTE)).await.unwrap().unwrap();
    worker.stop(LONG).await;
}
