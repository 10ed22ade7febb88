//! Everything may end between any two steps: the drain, its connection, the server, the answer to a commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use duewheel_bridge::outbox::{DrainStep, OutboxSettings};
use duewheel_postgres_rig::{Postgres, Settings};
use duewheel_redis_rig::{Mode, Proxy};

use super::place::Place;
use crate::until;

const STEPS: [DrainStep; 6] = [
    DrainStep::Read,
    DrainStep::Intended,
    DrainStep::Applied,
    DrainStep::Deleted,
    DrainStep::Committed,
    DrainStep::Released,
];

/// Rows that a replay must not apply again: a repeated cancel would remove the message of the third.
const CHANGE_OF_MIND: &str = "SELECT duewheel.enqueue('q', 'first', '1 h', key => 'k'); \
    SELECT duewheel.cancel('q', 'k'); SELECT duewheel.enqueue('q', 'third', '1 h', key => 'k'); \
    SELECT duewheel.enqueue('q', 'moved', '1 h', key => 'm'); \
    SELECT duewheel.postpone('q', 'm', due_at => '2100-01-01+00'); \
    SELECT duewheel.enqueue('free', 'without a key')";

async fn check(place: &Place, what: &str) {
    place.drained().await;
    // Ids of several shards have no order.
    let mut found: Vec<_> = place
        .messages("q")
        .await
        .into_iter()
        .map(|view| (view.message.body.clone(), view.due_at.0))
        .collect();
    found.sort();
    let bodies: Vec<_> = found.iter().map(|(body, _)| &body[..]).collect();
    assert_eq!(bodies, [&b"moved"[..], b"third"], "{what}");
    assert_eq!(found[0].1, 4_102_444_800_000, "{what}");
    assert_eq!(place.messages("free").await.len(), 1, "{what}");
    assert_eq!(place.psql("SELECT count(*) FROM duewheel.rejected"), "0", "{what}");
    // Later changes of the same keys count again.
    place.psql("SELECT duewheel.cancel('q', 'k'); SELECT duewheel.cancel('q', 'm')");
    place.drained().await;
    assert_eq!(place.messages("q").await.len(), 0, "{what}");
}

/// Runs a drain in which `fault` happens at the first three times of a step, over one shard or several.
async fn with_fault(step: DrainStep, what: &str, fault: impl Fn(&Place, usize) + Send + Sync + 'static) {
    let shards = if STEPS.iter().position(|one| *one == step).is_some_and(|at| at % 2 == 0) { 3 } else { 1 };
    let place = Arc::new(Place::over(shards).await);
    place.psql(CHANGE_OF_MIND);
    let (theirs, times) = (Arc::clone(&place), AtomicUsize::new(0));
    let settings = place.settings().on_step(move |now| {
        if now == step {
            let n = times.fetch_add(1, SeqCst);
            if n < 3 {
                fault(&theirs, n);
            }
        }
    });
    let service = place.drain(settings);
    check(&place, &format!("{what} at {step:?}")).await;
    service.stop(Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_that_ends_at_any_step_replays_nothing() {
    for step in STEPS {
        with_fault(step, "a bug", |_, _| panic!("a bug, for a test")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_that_ends_at_any_step_replays_nothing() {
    for step in STEPS {
        let end =
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'duewheel'";
        with_fault(step, "the end of a connection", |place, _| drop(place.psql(end))).await;
    }
}

/// The answer to a commit is lost: the outcome is unknown, and the commit has happened, or it has not.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_commits_replay_nothing() {
    for mode in [Mode::LoseReply("COMMIT"), Mode::Cut] {
        let place = Place::new().await;
        place.psql(CHANGE_OF_MIND);
        let proxy = Arc::new(Proxy::start(([127, 0, 0, 1], place.postgres.port()).into()).expect("a proxy"));
        let (theirs, times) = (Arc::clone(&proxy), AtomicUsize::new(0));
        let url = place.postgres.url_at(proxy.address().port());
        let settings = OutboxSettings::new("shop", &url).expect("settings").on_step(move |step| {
            if step == DrainStep::Deleted && times.fetch_add(1, SeqCst) == 0 {
                theirs.set(mode);
                let theirs = Arc::clone(&theirs);
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(500));
                    theirs.heal();
                });
            }
        });
        let service = place.drain(settings);
        check(&place, &format!("{mode:?}")).await;
        service.stop(Duration::from_secs(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_server_is_drained_when_it_is_back() {
    let mut place = Place::new().await;
    let service = place.drain(place.settings());
    let up = || service.figures().map(|of| of.all()[6].3).sum::<f64>() > 0.0;
    until("it is drained", || async { up() }).await;
    for round in 0..3 {
        place.psql(CHANGE_OF_MIND);
        place.postgres.kill().expect("killed");
        until("that is noticed", || async { !up() }).await;
        tokio::task::block_in_place(|| place.postgres.start_again()).expect("started");
        check(&place, &format!("round {round}")).await;
        place.wheel.queue("free").purge().await.expect("purged");
    }
}

/// A standby that has every commit takes over while the application and the drain are busy: nothing is lost, nothing comes
/// twice, and what was rolled back does not come.
#[tokio::test(flavor = "multi_thread")]
async fn promoted_synchronous_standby_is_drained() {
    let mut place = Place::new().await;
    let standby =
        tokio::task::block_in_place(|| Postgres::standby(&place.postgres, "s", Settings::default()));
    let mut standby = standby.expect("a standby");
    place.psql("ALTER SYSTEM SET synchronous_standby_names = 's'");
    place.psql("SELECT pg_reload_conf()");
    let synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    until("the standby counts", || async { place.psql(synchronous) == "1" }).await;
    let ports = [place.postgres.port(), standby.port()];
    let url = format!(
        "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres?target_session_attrs=read-write",
        ports[0], ports[1]
    );
    let service = place.drain(OutboxSettings::new("shop", &url).expect("settings"));
    let mut committed = Vec::new();
    for n in 0..40 {
        let end = if n % 4 == 3 { "ROLLBACK" } else { "COMMIT" };
        place.psql(&format!(
            "BEGIN; SELECT duewheel.enqueue('q', 'first', '1 h', key => '{n}'); SELECT duewheel.cancel('q', '{n}'); \
             SELECT duewheel.enqueue('q', '{n}', '1 h', key => '{n}'); {end}"
        ));
        if end == "COMMIT" {
            committed.push(n.to_string());
        }
    }
    place.postgres.kill().expect("killed");
    tokio::task::block_in_place(|| standby.promote()).expect("promoted");
    std::mem::swap(&mut place.postgres, &mut standby);
    place.psql("ALTER SYSTEM RESET synchronous_standby_names");
    place.psql("SELECT pg_reload_conf()");
    place.drained().await;
    assert_eq!(place.bodies("q").await, committed);
    service.stop(Duration::from_secs(10)).await;
}
