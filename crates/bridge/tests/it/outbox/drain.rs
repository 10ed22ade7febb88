//! What has committed arrives: once, in order, never early.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use duewheel::core::QueueName;
use duewheel::core::engine::Quota;
use duewheel::core::message::ROW_HEADER;
use duewheel::core::store::{Capacity, MemoryDisk};
use duewheel::{Duewheel, Policy};
use duewheel_bridge::outbox::{OutboxFigures, OutboxService};
use tokio::task::JoinSet;

use super::place::Place;
use crate::until;

/// A figure by its name.
fn figure(service: &OutboxService, name: &str) -> u64 {
    let all = service.figures().flat_map(OutboxFigures::all);
    all.filter(|(of, ..)| *of == name)
        .map(|(.., value)| value.to_string().parse::<u64>().expect("whole"))
        .sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn committed_calls_arrive_as_made() {
    let place = Place::new().await;
    let app = place.connect().await;
    let id: String = place
        .psql(r#"SELECT duewheel.enqueue('q', 'one', '1 h', key => 'k', headers => '{"b": "2", "A": "1"}')"#);
    let at = place.psql("SELECT extract(epoch FROM due_at)::text FROM duewheel.outbox");
    app.client
        .batch_execute(
            "BEGIN; SELECT duewheel.enqueue('q', 'lost'); ROLLBACK; \
             BEGIN; SELECT duewheel.enqueue('q', 'two', due_at => '2100-01-01 00:00:00.0005+00'); \
             SELECT duewheel.enqueue('q', '\\x00ff'::bytea, due_at => '2001-01-01'); \
             SAVEPOINT s; SELECT duewheel.enqueue('q', 'lost'); ROLLBACK TO s; COMMIT",
        )
        .await
        .expect("committed");
    let service = place.drain(place.settings());
    place.drained().await;
    let messages = place.messages("q").await;
    let of = |view: &duewheel::View| (view.message.body.to_vec(), view.due_at.0);
    assert_eq!(messages.len(), 3, "{messages:?}");
    let (body, due) = of(&messages[0]);
    let asked = at.parse::<f64>().expect("a number") * 1_000.0;
    assert_eq!(body, b"one");
    assert!(due as f64 >= asked.floor() && (due as f64) < asked + 30_000.0, "{due} {asked}");
    let headers: Vec<(&str, &str)> = messages[0].message.headers.iter().map(|(n, v)| (&**n, &**v)).collect();
    assert_eq!(headers, [(ROW_HEADER, &*id), ("A", "1"), ("b", "2")]);
    assert_eq!(messages[0].message.key.as_ref().map(|key| key.as_str()), Some("k"));
    assert_eq!(of(&messages[1]), (b"two".to_vec(), 4_102_444_800_001), "rounded up");
    assert_eq!(of(&messages[2]).0, [0, 255]);
    assert!(of(&messages[2]).1 > 1_700_000_000_000, "an overdue one fires now");
    // A change of mind, and a caller's own dedupe id, in later transactions.
    place.psql(
        "SELECT duewheel.postpone('q', 'k', due_at => '2101-01-01+00'); SELECT duewheel.cancel('q', 'none')",
    );
    place.psql("SELECT duewheel.enqueue('d', 'x', '1 h', dedupe_id => 'mine')");
    place.drained().await;
    place.psql("SELECT duewheel.enqueue('d', 'x', '1 h', dedupe_id => 'mine')");
    place.drained().await;
    assert_eq!(of(&place.messages("q").await[0]).1, 4_133_980_800_000);
    assert_eq!(place.messages("d").await.len(), 1);
    place.psql("SELECT duewheel.cancel('q', 'k')");
    place.drained().await;
    assert_eq!(place.messages("q").await.len(), 2);
    until("all are counted", || async { figure(&service, "applied_total") == 8 }).await;
    assert_eq!((figure(&service, "rejected_total"), figure(&service, "errors_total")), (0, 0));
    assert_eq!(place.psql("SELECT drainer FROM duewheel.outbox_state"), "a");
    service.stop(Duration::from_secs(10)).await;
}

/// 10,000 transactions of eight connections, of which a third is rolled back; some enqueue, cancel and enqueue one key.
#[tokio::test(flavor = "multi_thread")]
async fn random_transactions_arrive_once_in_order() {
    const CONNECTIONS: u32 = 8;
    const EACH: u32 = 1_250;
    let place = Arc::new(Place::new().await);
    let service = place.drain(place.settings());
    let mut tasks = JoinSet::new();
    for connection in 0..CONNECTIONS {
        let place = Arc::clone(&place);
        tasks.spawn(async move {
            let app = place.connect().await;
            let mut random = 0x9e37_79b9_u32.wrapping_mul(connection + 1);
            let mut kept = Vec::new();
            for n in 0..EACH {
                random ^= random << 13;
                random ^= random >> 17;
                random ^= random << 5;
                let body = format!("{connection} {n}");
                let calls = match random % 4 {
                    0 => format!(
                        "SELECT duewheel.enqueue('keys', 'first', '1 h', key => '{body}'); \
                         SELECT duewheel.cancel('keys', '{body}'); \
                         SELECT duewheel.enqueue('keys', '{body}', '1 h', key => '{body}')"
                    ),
                    1 => format!("SELECT duewheel.enqueue('now', '{body}')"),
                    _ => format!("SELECT duewheel.enqueue('later', '{body}', '1 h')"),
                };
                let queue = ["keys", "now", "later", "later"][random as usize % 4];
                let end = if (random / 4).is_multiple_of(3) { "ROLLBACK" } else { "COMMIT" };
                if end == "COMMIT" {
                    kept.push((queue, body));
                }
                app.client.batch_execute(&format!("BEGIN; {calls}; {end}")).await.expect("made");
            }
            kept
        });
    }
    let mut expected: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    while let Some(kept) = tasks.join_next().await {
        for (queue, body) in kept.expect("no panic") {
            expected.entry(queue).or_default().push(body);
        }
    }
    place.drained().await;
    for (queue, mut expected) in expected {
        let found = place.bodies(queue).await;
        let mut sorted = found.clone();
        sorted.sort();
        expected.sort();
        assert_eq!(sorted, expected, "{queue}");
        // Calls of one connection, each begun after the commit of the one before.
        let mut last = BTreeMap::new();
        for body in found {
            let (connection, n) = body.split_once(' ').expect("two numbers");
            let n: u32 = n.parse().expect("a number");
            let before = last.insert(connection.to_owned(), n);
            assert!(before.is_none_or(|before| before < n), "{queue}: {before:?} {body}");
        }
    }
    assert_eq!((figure(&service, "rejected_total"), figure(&service, "replayed_total")), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn late_commit_is_met_later() {
    let place = Place::new().await;
    let service = place.drain(place.settings());
    let (slow, fast) = (place.connect().await, place.connect().await);
    slow.client.batch_execute("BEGIN; SELECT duewheel.enqueue('q', 'slow')").await.expect("open");
    fast.client.batch_execute("SELECT duewheel.enqueue('q', 'fast')").await.expect("committed");
    until("the later row is applied", || async { figure(&service, "applied_total") == 1 }).await;
    slow.client.batch_execute("COMMIT").await.expect("committed");
    place.drained().await;
    assert_eq!(place.bodies("q").await, ["fast", "slow"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_rows_block_nobody() {
    let place = Place::new().await;
    let allowed = ["shop/", "q"].map(|prefix| QueueName::new(prefix).expect("a name"));
    let service = place.drain(place.settings().prefixes(allowed.into()));
    place.psql(
        "SELECT duewheel.enqueue('q', 'holder', '1 h', key => 'k'); \
         SELECT duewheel.enqueue('q', 'second', '1 h', key => 'k'); \
         SELECT duewheel.enqueue('other', 'x'); \
         SELECT duewheel.enqueue('q', 'kept', '1 h', key => 'k', if_exists => 'keep'); \
         INSERT INTO duewheel.outbox (id, called_at, op, queue, body, headers, dedupe_id) \
         SELECT gen_random_uuid(), now(), 'enqueue', 'q', 'own', headers, dedupe_id FROM (VALUES \
         ('{\"Duewheel-Row\": \"1\"}'::jsonb, NULL), ('{\"duewheel-target-url\": \"https://a.example\"}', NULL), \
         ('{\"#result\": \"1\"}', NULL), (NULL, E'\\x01mine')) own (headers, dedupe_id); \
         SELECT duewheel.enqueue('q', 'a', dedupe_id => 'd'); SELECT duewheel.enqueue('q', 'b', dedupe_id => 'd'); \
         SELECT duewheel.enqueue(U&'qo\\0308', 'not in NFC'); \
         SELECT duewheel.enqueue('shop/a', 'last', '1 h')",
    );
    place.drained().await;
    assert_eq!(place.bodies("q").await, ["holder", "a"]);
    assert_eq!(place.bodies("shop/a").await, ["last"]);
    let rejected = place.psql("SELECT convert_from(body, 'UTF8'), code FROM duewheel.rejected ORDER BY seq");
    let expected =
        ["second|key_exists", "x|forbidden", "own|bad_request", "own|bad_request", "own|bad_request"];
    let expected =
        [&expected[..], &["own|bad_request", "b|dedupe_mismatch", "not in NFC|bad_request"]].concat();
    assert_eq!(rejected.lines().collect::<Vec<_>>(), expected);
    let reason = place.psql("SELECT reason FROM duewheel.rejected ORDER BY seq LIMIT 1");
    assert!(reason.contains("has this key, and is scheduled"), "{reason}");
    until("all are counted", || async { figure(&service, "rejected_total") == 8 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn used_up_quota_blocks_its_queue_only() {
    let mut place = Place::new().await;
    let quota = Quota { prefix: "full".into(), messages: Some(2), ..Quota::default() };
    place.wheel = Duewheel::builder().in_memory().quotas([quota]).open().await.expect("a wheel");
    let _service = place.drain(place.settings());
    place.psql(
        "SELECT duewheel.enqueue('full', n::text, '1 h', key => 'k' || n) FROM generate_series(1, 4) n; \
         SELECT duewheel.cancel('full', 'k4'); \
         SELECT duewheel.enqueue('other', n::text, '1 h') FROM generate_series(1, 5) n",
    );
    until("the other queue is drained", || async { place.messages("other").await.len() == 5 }).await;
    assert_eq!(place.bodies("full").await, ["1", "2"]);
    assert_eq!(place.psql("SELECT count(*), min(key) FROM duewheel.outbox"), "3|k3");
    // The cancel behind the fourth waits for it.
    assert!(matches!(place.wheel.queue("full").cancel_key("k1").await, Ok(duewheel::Cancel::Cancelled(_))));
    assert!(matches!(place.wheel.queue("full").cancel_key("k2").await, Ok(duewheel::Cancel::Cancelled(_))));
    place.drained().await;
    assert_eq!(place.bodies("full").await, ["3"]);
}

/// The database answers all the time, and is not connected to again and again.
#[tokio::test(flavor = "multi_thread")]
async fn full_disk_makes_rows_wait() {
    let disk = MemoryDisk::default();
    let place = Place::on(&disk).await;
    let service = place.drain(place.settings());
    place.psql("SELECT duewheel.enqueue('q', '1', '1 h')");
    place.drained().await;
    disk.set_room(Capacity::SettleOnly);
    place.psql("SELECT duewheel.enqueue('q', '2', '1 h')");
    until("it is noticed", || async { figure(&service, "errors_total") > 0 }).await;
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(service.figures().all(|figures| figures.is_up()));
    }
    disk.set_room(Capacity::Enough);
    place.drained().await;
    assert_eq!(place.bodies("q").await, ["1", "2"]);
    service.stop(Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_nodes_drains() {
    let place = Place::new().await;
    let node = |name: &str| OutboxService::start(&place.wheel, &Policy::default(), name, &[place.settings()]);
    let (first, second) = (node("a"), node("b"));
    let mut drainers = Vec::new();
    for n in 0..20 {
        place.psql(&format!("SELECT duewheel.enqueue('q', '{n}')"));
        place.drained().await;
        drainers.push(place.psql("SELECT drainer FROM duewheel.outbox_state"));
    }
    let drainer = drainers[19].clone();
    assert!(drainers.iter().all(|of| *of == drainer), "it stays: {drainers:?}");
    let (gone, other) = if drainer == "a" { (first, second) } else { (second, first) };
    gone.stop(Duration::from_secs(10)).await;
    place.psql("SELECT duewheel.enqueue('q', '20')");
    place.drained().await;
    assert_ne!(place.psql("SELECT drainer FROM duewheel.outbox_state"), drainer);
    assert_eq!(place.bodies("q").await, (0..=20).map(|n| n.to_string()).collect::<Vec<_>>());
    other.stop(Duration::from_secs(10)).await;
}

/// Prints how long a message takes from its commit until it is durable here, with an idle drain.
#[tokio::test(flavor = "multi_thread")]
async fn idle_drain_meets_single_commits() {
    let place = Place::new().await;
    let service = place.drain(place.settings());
    let app = place.connect().await;
    let mut times = Vec::new();
    for n in 1..=20 {
        tokio::time::sleep(Duration::from_millis(300 + n * 13)).await;
        app.client.batch_execute("SELECT duewheel.enqueue('q', 'x')").await.expect("committed");
        let since = Instant::now();
        until("it is applied", || async { figure(&service, "applied_total") == n }).await;
        times.push(since.elapsed());
    }
    times.sort();
    println!("from commit to durable: median {:?}, longest {:?}", times[10], times[19]);
}
