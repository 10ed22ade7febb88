//! Metrics of several nodes: what each counts adds up to the truth, and no counter falls when a shard moves.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use duewheel_redis_rig::{Redis, RedisCluster, Settings};
use serde_json::{Value, json};

use crate::fixture::PATIENCE;
use crate::process::{BINARY, Process};

/// Lines of a page by name and labels, and the names of its counters.
struct Page {
    lines: BTreeMap<String, f64>,
    counters: Vec<String>,
}

impl Page {
    fn of(node: &Process) -> Page {
        let text = node.text("/metrics");
        assert!(!text.contains("A figure of the store."), "each has a text of its own: {text}");
        let mut page = Page { lines: BTreeMap::new(), counters: Vec::new() };
        for line in text.lines() {
            if let Some(family) = line.strip_prefix("# TYPE ") {
                let (name, kind) = family.split_once(' ').expect("a kind");
                match kind {
                    "counter" => page.counters.push(name.to_owned()),
                    "histogram" => {
                        page.counters
                            .extend(["_bucket", "_sum", "_count"].map(|part| format!("{name}{part}")));
                    }
                    _ => {}
                }
            } else if !line.starts_with('#') {
                let (series, value) = line.rsplit_once(' ').expect("a value");
                let twice = page.lines.insert(series.to_owned(), value.parse().expect("a number"));
                assert!(twice.is_none(), "{series} twice");
            }
        }
        page
    }

    fn is_counter(&self, series: &str) -> bool {
        let name = series.split('{').next().unwrap_or_default();
        self.counters.iter().any(|counter| counter == name)
    }

    fn sum(&self, name: &str) -> f64 {
        let of_name = |series: &&String| series.split('{').next() == Some(name);
        self.lines.iter().filter(|(series, _)| of_name(series)).map(|(_, value)| value).sum()
    }

    /// The value of a shard's line, 0 where there is none.
    fn of_shard(&self, name: &str, shard: &str) -> f64 {
        self.lines.get(&format!("{name}{{shard=\"{shard}\"}}")).copied().unwrap_or_default()
    }

    /// Sums over shards of some of them mean nothing, so no line of a store is about more than one shard.
    fn names_the_shard_of_each_figure_of_a_store(&self) {
        for series in self.lines.keys().filter(|series| series.starts_with("duewheel_store_")) {
            let labels = series.split_once('{').map(|(_, labels)| labels);
            assert!(labels.is_some_and(|labels| labels.starts_with("shard=\"")), "{series}");
        }
        for name in ["epoch", "lease_left_ms", "server_memory_bytes"].map(|of| format!("duewheel_store_{of}"))
        {
            let lines = self.lines.keys().filter(|series| series.split('{').next() == Some(&name));
            assert_eq!(lines.count(), self.owned().len(), "{name}: a line for each shard that it owns");
        }
    }

    /// The shards that the node owns.
    fn owned(&self) -> Vec<String> {
        let epochs =
            self.lines.keys().filter_map(|series| series.strip_prefix("duewheel_store_epoch{shard=\""));
        epochs.map(|rest| rest.trim_end_matches("\"}").to_owned()).collect()
    }
}

const SHARDS: [&str; 6] = ["0", "1", "2", "3", "4", "5"];

struct Nodes<'a> {
    redis: &'a Redis,
    all: Vec<Process>,
    before: Vec<Page>,
}

impl Nodes<'_> {
    fn start(&mut self, name: &str) {
        // Free a moment ago.
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
        let mut command = Command::new(BINARY);
        command.args(["serve", "--http", "127.0.0.1:0", "--store", &self.redis.url(0), "--shards", "6"]);
        command.args(["--shard-lease", "2s", "--node", name, "--advertise", &format!("127.0.0.1:{port}")]);
        self.all.push(Process::spawn(command));
    }

    /// New pages; no counter is less than it was.
    fn pages(&mut self) -> &[Page] {
        let pages: Vec<Page> = self.all.iter().map(Page::of).collect();
        for (now, before) in pages.iter().zip(&self.before) {
            for (series, was) in &before.lines {
                if before.is_counter(series) {
                    let is = now.lines.get(series);
                    // What a queue has counted goes with its shard.
                    let may_go = series.starts_with("duewheel_queue_");
                    assert!(is.map_or(may_go, |is| is >= was), "{series} was {was} and is {is:?}");
                }
            }
        }
        self.before = pages;
        &self.before
    }

    /// Waits until each shard has one owner, and each node so many of them, by the pages that are kept as the last.
    fn until_shared(&mut self, most: usize) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut owned: Vec<Vec<String>> = self.pages().iter().map(Page::owned).collect();
            let even = owned.iter().all(|shards| (1..=most).contains(&shards.len()));
            let mut all = owned.concat();
            all.sort();
            if even && all == SHARDS {
                return;
            }
            assert!(Instant::now() < deadline, "{owned:?}");
            owned.clear();
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn call(&self, turn: usize, method: &str, path: &str, body: &Value) -> Value {
        let (status, said) = self.all[turn % self.all.len()].call(method, path, &body.to_string());
        assert!((200..300).contains(&status), "{method} {path}: {status} {said}");
        said
    }

    /// Enqueues, cancels, grants and acks over all nodes.
    fn work(&self, truth: &mut Truth) {
        for n in 0..60 {
            let key = format!("{}-{}", truth.name, truth.enqueued);
            let delay = if n % 3 == 0 { 3_600_000 } else { 0 };
            let said = self.call(
                n,
                "POST",
                "/v1/queues/q/messages",
                &json!({"body": "a", "key": key, "delay_ms": delay}),
            );
            assert_eq!(said["durability"], "fsync", "whichever node owns the shard");
            if n % 6 == 0 {
                let said = self.call(n + 1, "DELETE", &format!("/v1/queues/q/keys/{key}"), &json!({}));
                assert_eq!(said["durability"], "fsync", "also over the nodes' protocol");
                truth.cancelled += 1;
            }
            truth.enqueued += 1;
        }
        let mut granted = 0;
        let deadline = Instant::now() + PATIENCE;
        while granted < 40 {
            assert!(Instant::now() < deadline, "{granted} granted");
            let said = self.call(granted, "POST", "/v1/queues/q/reserve", &json!({"max": 7, "wait_ms": 100}));
            for message in said["messages"].as_array().expect("messages") {
                let id = message["id"].as_str().expect("an id");
                let token = json!({"lease_token": message["lease_token"]});
                let said = self.call(granted + 1, "POST", &format!("/v1/messages/{id}/ack"), &token);
                assert_eq!(said["durability"], "fsync", "also over the nodes' protocol");
                granted += 1;
            }
        }
        truth.acked += granted;
    }

    fn agree(&mut self, truth: &Truth) {
        let redis = self.redis;
        let pages = self.pages();
        let sum = |name: &str| pages.iter().map(|page| page.sum(name)).sum::<f64>();
        let acked = truth.acked as f64;
        for (name, truth) in [
            ("duewheel_enqueued_total", truth.enqueued as f64),
            ("duewheel_cancelled_total", truth.cancelled as f64),
            ("duewheel_granted_total", acked),
            ("duewheel_acked_total", acked),
            ("duewheel_lateness_seconds_count", acked),
            ("duewheel_died_total", 0.0),
            ("duewheel_lease_expired_total", 0.0),
            ("duewheel_messages", (truth.enqueued - truth.cancelled - truth.acked) as f64),
            ("duewheel_queue_messages", (truth.enqueued - truth.cancelled - truth.acked) as f64),
            ("duewheel_store_messages", (truth.enqueued - truth.cancelled - truth.acked) as f64),
        ] {
            assert_eq!(sum(name), truth, "{name}");
        }
        pages.iter().for_each(Page::names_the_shard_of_each_figure_of_a_store);
        // A record at least for each thing that has happened.
        let records = sum("duewheel_store_records_total");
        assert!(records >= (truth.enqueued + truth.cancelled + 2 * truth.acked) as f64, "{records}");
        assert!(sum("duewheel_store_append_seconds_total") > 0.0);
        for shard in SHARDS {
            let of_shard = |name: &str| pages.iter().map(|page| page.of_shard(name, shard)).sum::<f64>();
            let [records, groups, bytes] = ["records_total", "groups_total", "journal_written_bytes_total"]
                .map(|name| of_shard(&format!("duewheel_store_{name}")));
            assert!(
                groups >= 1.0 && groups <= records,
                "shard {shard}: {groups} groups of {records} records"
            );
            assert!(bytes >= records, "shard {shard}: {bytes} bytes of {records} records");
            // Redis numbers the writes to the journal of a shard from 1.
            let head = redis.command(&["HGET", &format!("{{duewheel:{shard}}}:head"), "journal"]);
            let number = head.expect("a reply").number().expect("a number");
            let writes = of_shard("duewheel_store_appends_answered_total");
            // The last write of an owner that has ended may be told to nobody.
            let untold = number as f64 - writes;
            assert!(
                writes > 0.0 && (0.0..=10.0).contains(&untold),
                "shard {shard}: {writes} writes of {number}"
            );
        }
    }
}

#[derive(Default)]
struct Truth {
    /// How its keys begin.
    name: &'static str,
    enqueued: usize,
    cancelled: usize,
    acked: usize,
}

/// Story: each node told the figures of the whole cluster, so that their sum was three times the truth, and a shard
/// that moved took its counters back to 0.
#[test]
fn node_counters_survive_shard_moves() {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let mut nodes = Nodes { redis: &redis, all: Vec::new(), before: Vec::new() };
    let mut truth = Truth::default();
    nodes.start("a");
    nodes.start("b");
    nodes.until_shared(4);
    nodes.work(&mut truth);
    nodes.agree(&truth);
    // Shards of both move to the third.
    nodes.start("c");
    nodes.until_shared(3);
    nodes.agree(&truth);
    nodes.work(&mut truth);
    nodes.agree(&truth);
    let moves: f64 = nodes.pages().iter().map(|page| page.sum("duewheel_cluster_shard_moves_total")).sum();
    assert!((1.0..=6.0).contains(&moves), "each move is counted by one node: {moves}");
    for page in nodes.pages() {
        let forwards =
            |(series, _): &(&String, &f64)| series.starts_with("duewheel_cluster_forwarded_total{peer=");
        let forwards: Vec<_> = page.lines.iter().filter(forwards).collect();
        assert_eq!(forwards.len(), 2, "to each of the others: {forwards:?}");
        assert!(forwards.iter().all(|(_, count)| **count > 0.0), "{forwards:?}");
    }
    // They move back, and the counters of the third go on at the others.
    let third = nodes.all.pop().expect("a node");
    let last = nodes.before.pop().expect("a page");
    let mut third = third;
    third.signal("-TERM");
    assert!(third.wait().success());
    nodes.until_shared(6);
    let mut rest = Truth { name: "rest", ..Truth::default() };
    nodes.work(&mut rest);
    let enqueued: f64 = nodes.pages().iter().map(|page| page.sum("duewheel_enqueued_total")).sum();
    assert_eq!(enqueued + last.sum("duewheel_enqueued_total"), (truth.enqueued + rest.enqueued) as f64);
    let deadline = Instant::now() + PATIENCE;
    while nodes.pages().iter().any(|page| page.sum("duewheel_store_renewals_total") == 0.0) {
        assert!(Instant::now() < deadline, "a lease is renewed");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A shard whose owner is killed has none until its lease has run out and another node takes it.
#[test]
fn unowned_time_is_counted_by_successor() {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let mut nodes = Nodes { redis: &redis, all: Vec::new(), before: Vec::new() };
    nodes.start("a");
    nodes.start("b");
    nodes.until_shared(4);
    let name = "duewheel_shard_unowned_seconds_total";
    // Of the same moment: what the second node owned there the first one takes later.
    let last = nodes.before.pop().expect("a page");
    let counted =
        |page: &Page| last.owned().iter().map(|shard| page.of_shard(name, shard)).collect::<Vec<_>>();
    let before = counted(&nodes.before[0]);
    nodes.all.pop().expect("a node").kill();
    nodes.until_shared(6);
    // A shard is open before its node looks who owns it, and counts.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = counted(&nodes.pages()[0]);
        if now.iter().zip(&before).all(|(now, before)| now > before) {
            return;
        }
        assert!(Instant::now() < deadline, "shards {:?}: {now:?} s after {before:?} s", last.owned());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A reign that Redis ends is counted by its reason, and the shard goes on with the next one.
#[test]
fn fences_are_counted_by_reason() {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let mut command = Command::new(BINARY);
    command.args(["serve", "--http", "127.0.0.1:0", "--store", &redis.url(0), "--shards", "2"]);
    command.args(["--shard-lease", "60s"]);
    let node = Process::spawn(command);
    let deadline = Instant::now() + PATIENCE;
    let until = |what: &str, so: &dyn Fn(&Page) -> bool| loop {
        let page = Page::of(&node);
        if so(&page) {
            return page;
        }
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let before = until("the node owns both shards", &|page| page.owned() == ["0", "1"]);
    assert_eq!(before.sum("duewheel_store_fences_total"), 0.0);
    // As if the lease had run out on the server, by a step of its clock.
    redis.command(&["HSET", "{duewheel:0}:owner", "until", "0"]).expect("a reply");
    let lines: String = (0..32)
        .map(|n| json!({"body": "a", "key": n.to_string(), "delay": "1h"}).to_string() + "\n")
        .collect();
    let results = node.lines("q", &lines);
    assert!(
        results.iter().all(|result| result["status"] == 201),
        "nothing was applied by the old reign: {results:?}"
    );
    let epoch = |page: &Page, shard: &str| page.of_shard("duewheel_store_epoch", shard);
    let after = until("the shard is open again", &|page| epoch(page, "0") > epoch(&before, "0"));
    assert_eq!(epoch(&after, "1"), epoch(&before, "1"), "the other shard goes on");
    let fences = |labels: &str| after.lines[&format!("duewheel_store_fences_total{{{labels}}}")];
    assert_eq!(fences(r#"shard="0",reason="lease_ran_out""#), 1.0);
    assert_eq!(after.sum("duewheel_store_fences_total"), 1.0, "for no other reason");
    assert_eq!(after.sum("duewheel_messages"), 32.0, "none is there twice");
}

/// Story: with one shard away `/metrics` had figures of none.
#[test]
fn unavailable_shard_hides_no_other_metrics() {
    let mut cluster = RedisCluster::start(3, 0, Settings::default()).expect("a cluster");
    let mut command = Command::new(BINARY);
    command.args(["serve", "--http", "127.0.0.1:0", "--store", &cluster.url()]);
    command.args(["--shards", "12", "--shard-lease", "60s"]);
    let node = Process::spawn(command);
    for n in 0..24 {
        let message = json!({"body": "a", "key": n.to_string(), "delay": "1h"});
        let (status, said) = node.call("POST", "/v1/queues/q/messages", &message.to_string());
        assert_eq!(status, 201, "{said}");
    }
    let whole = Page::of(&node);
    assert_eq!((whole.sum("duewheel_enqueued_total"), whole.owned().len()), (24.0, 12));
    cluster.pause(1).expect("it stops");
    let page = Page::of(&node);
    assert_eq!(page.owned().len(), 12);
    assert_eq!((page.sum("duewheel_enqueued_total"), page.sum("duewheel_messages")), (24.0, 24.0));
    assert!(page.sum("duewheel_queue_messages") > 0.0, "those of the other masters are there");
    cluster.resume(1).expect("it goes on");
}
