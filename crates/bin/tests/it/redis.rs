//! The real binary on a real Redis: what it asks of it, what its answers say, and a cluster that is backed up and
//! restored.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use duewheel_redis_rig::{Appendonly, Proxy, Redis, RedisCluster, Settings, Transport, free_port};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::PATIENCE;
use crate::process::{BINARY, Process, run, text};

#[test]
fn redis_client_certificate_is_required() {
    let settings = Settings { transport: Transport::TlsBothWays, ..Settings::default() };
    let redis = Redis::start(settings).expect("a redis-server");
    let certificates = redis.certificates().expect("certificates");
    let serve = || {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--http", "127.0.0.1:0", "--store", &redis.url(0), "--redis-ca"]);
        command.arg(certificates.authority());
        command
    };
    let [certificate, key] = certificates.client_files();
    let mut with = serve();
    with.arg("--redis-cert").arg(&certificate).arg("--redis-key").arg(&key);
    let server = Process::spawn(with);
    assert_eq!(server.call("POST", "/v1/queues/q/messages", r#"{"body": "a", "delay": "1h"}"#).0, 201);
    server.kill();

    // It tries for as long as it is told, and says why in vain.
    let mut without = serve();
    without.env("DUEWHEEL_BEANSTALK", "off").stdout(Stdio::null()).stderr(Stdio::piped());
    let mut server = without.spawn().expect("spawn");
    let log = BufReader::new(server.stderr.take().expect("stderr"));
    let said = log.lines().map_while(Result::ok).any(|line| line.contains("tls-auth-clients"));
    let _ = server.kill();
    let _ = server.wait();
    assert!(said, "nothing of a certificate in the log");
}

/// A node of a cluster of four shards, each on an address of its own: where it listens for the others, and what they
/// call it.
pub(crate) fn node(redis: &Redis, name: &str, host: &str, peers: &[&str]) -> Process {
    let mut command = Command::new(BINARY);
    command.args(["serve", "--http", &format!("{host}:0"), "--store", &redis.url(0), "--node", name]);
    command.args(["--shards", "4", "--shard-lease", "1s", "--settle-delay", "0s"]).args(peers);
    Process::spawn(command)
}

/// Waits until two nodes have two shards each, and both know it.
pub(crate) fn until_each_has_two_shards(nodes: [&Process; 2]) {
    until("each has two shards", || {
        nodes.iter().all(|server| {
            let view = server.call("GET", "/v1/cluster", "").1;
            let nodes = view["nodes"].as_array().cloned().unwrap_or_default();
            nodes.len() == 2 && nodes.iter().all(|node| node["shards"] == 2)
        })
    });
}

pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// As in containers: a node listens at one address, and others reach it at another one, which is not its own.
#[test]
fn node_listens_and_advertises_different_addresses() {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let inside = format!("127.0.0.2:{}", free_port().expect("port"));
    let relay = Proxy::start(inside.parse().expect("address")).expect("relay");
    let outside = relay.address().to_string();
    let a = node(&redis, "a", "127.0.0.2", &["--advertise", &outside, "--peer-listen", &inside]);
    let b = node(&redis, "b", "127.0.0.3", &["--advertise", "127.0.0.3:0"]);
    let view = |server: &Process| server.call("GET", "/v1/cluster", "").1;
    until_each_has_two_shards([&a, &b]);
    let shown = view(&b)["nodes"][0]["advertise"].clone();
    assert_eq!(shown, Value::from(outside), "others are told the address where they reach it");
    // Enough for all shards; each node reaches those of the other.
    for (server, name) in [(&a, "a"), (&b, "b")] {
        let line = |n| format!("{{\"body\": \"x\", \"delay_ms\": 0, \"key\": \"{name}{n}\"}}\n");
        let lines: String = (0..32).map(line).collect();
        let results = server.lines("q", &lines);
        let shards: BTreeSet<u64> = results
            .iter()
            .map(|result| result["id"].as_str().expect("id").parse::<u64>().expect("number") % 4)
            .collect();
        assert_eq!((results.len(), shards.len()), (32, 4), "{results:?}");
        assert!(results.iter().all(|result| result["status"] == 201), "{results:?}");
    }
}

/// Story: with one health for two probes, a Redis that was away for longer than a lease had all nodes killed, again and
/// again.
#[test]
fn hung_redis_leaves_nodes_ready() {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let server = node(&redis, "a", "127.0.0.2", &[]);
    redis.pause().expect("pause");
    until("health is red", || server.call("GET", "/healthz", "").0 == 503);
    for path in ["/livez", "/readyz"] {
        assert_eq!(server.call("GET", path, "").0, 200, "{path}");
    }
    redis.resume().expect("resume");
    until("all is well", || server.call("GET", "/healthz", "").1["shards_without_owner"] == 0);
    until("all is well", || server.call("GET", "/healthz", "").0 == 200);
}

/// A server on this Redis.
pub(crate) fn serve(redis: &Redis, more: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["serve", "--http", "127.0.0.1:0", "--store", &redis.url(0)]).args(more);
    command
}

const MESSAGE: &str = r#"{"body": "a", "delay": "1h"}"#;

fn durability(server: &Process) -> Value {
    let (status, said) = server.call("POST", "/v1/queues/q/messages", MESSAGE);
    assert_eq!(status, 201, "{said}");
    said["durability"].clone()
}

/// Story: with one Redis without a replica every answer said `best_effort_replicated`.
#[test]
fn redis_answers_report_reached_durability() {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let server = Process::spawn(serve(&redis, &["--shard-lease", "1s", "--shards", "3"]));
    assert_eq!(durability(&server), "fsync");
    let lines = server.lines("q", &format!("{MESSAGE}\n").repeat(5));
    assert!(lines.iter().all(|line| line["durability"] == "fsync"), "{lines:?}");
    redis.command(&["CONFIG", "SET", "appendfsync", "everysec"]).expect("a reply");
    // As soon as the lease has been renewed.
    let until = |level: &str| {
        let deadline = Instant::now() + PATIENCE;
        while (0..6).any(|_| durability(&server) != level) {
            assert!(Instant::now() < deadline, "no answer says {level}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    until("buffered");
    redis.command(&["CONFIG", "SET", "appendonly", "no"]).expect("a reply");
    until("memory");
    let (status, said) = server.call("POST", "/v1/queues/q/purge", "");
    assert_eq!((status, &said["durability"]), (200, &json!("memory")), "of three shards: {said}");
    let deadline = Instant::now() + PATIENCE;
    while server.call("GET", "/healthz", "").1["durability"] != "memory" {
        assert!(Instant::now() < deadline, "health says another level");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn redis_without_aof_needs_option() {
    let redis = Redis::start(Settings { appendonly: Appendonly::Off, ..Settings::default() })
        .expect("a redis-server");
    let refused = serve(&redis, &[]).env("DUEWHEEL_BEANSTALK", "off").output().expect("output");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("--redis-without-aof"), "{said}");
    let keys = redis.command(&["DBSIZE"]).expect("a reply");
    assert_eq!(keys.number(), Some(0), "nothing was made there");
    let log = tempfile::NamedTempFile::new().expect("file");
    let server =
        Process::spawn_logged(serve(&redis, &["--redis-without-aof"]), log.reopen().expect("file").into());
    assert_eq!(durability(&server), "memory");
    server.kill();
    let said = std::fs::read_to_string(log.path()).expect("log");
    assert!(said.contains("appendonly no") && said.contains("maxmemory 0"), "{said}");
}

/// Story: a cluster kept its number of shards and nothing said that the one in the options was ignored.
#[test]
fn other_number_of_shards_is_logged() {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let mut first = Process::spawn(serve(&redis, &["--shards", "2"]));
    first.signal("-TERM");
    assert_eq!(first.wait().code(), Some(0));
    let log = tempfile::NamedTempFile::new().expect("file");
    let _server =
        Process::spawn_logged(serve(&redis, &["--shards", "3"]), log.reopen().expect("file").into());
    let said = std::fs::read_to_string(log.path()).expect("log");
    assert!(said.contains("this one keeps its number") && said.contains("has=2"), "{said}");
}

/// Redis sets no limit of its own; the server's is in force, also after another node has taken the messages over.
#[test]
fn byte_limit_holds_on_unlimited_redis() {
    const LIMIT: usize = 200_000;
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    assert_eq!(redis.command(&["CONFIG", "GET", "maxmemory"]).expect("a reply").list()[1].number(), Some(0));
    let limit = LIMIT.to_string();
    let options = ["--max-message-bytes", &limit, "--shards", "2", "--shard-lease", "1s"];
    let body = format!(r#"{{"body": "{}", "delay": "1h"}}"#, "x".repeat(10_000));
    let server = Process::spawn(serve(&redis, &options));
    let mut taken = 0;
    let fill = |server: &Process, taken: &mut usize| {
        let mut refusals = 0;
        // Each shard has its part.
        while refusals < 20 {
            match server.call("POST", "/v1/queues/q/messages", &body) {
                (201, _) => (*taken, refusals) = (*taken + 1, 0),
                (429, said) => {
                    assert_eq!(said["code"], "overloaded", "{said}");
                    refusals += 1;
                }
                (status, said) => panic!("{status} {said}"),
            }
            assert!(*taken <= LIMIT / 10_000, "{taken} messages of 10,000 bytes were taken");
        }
    };
    fill(&server, &mut taken);
    assert!(taken >= LIMIT / 10_000 - 4, "{taken} messages of 10,000 bytes fit");
    server.kill();
    let server = Process::spawn(serve(&redis, &options));
    fill(&server, &mut taken);
    // What is settled makes room.
    assert_eq!(server.call("POST", "/v1/queues/q/purge", "").0, 200);
    assert_eq!(server.call("POST", "/v1/queues/q/messages", &body).0, 201);
}

/// Story: a body larger than a word of a command may be made Redis end the connection, and the outcome was unknown each
/// time it was tried. No word is longer than a block of a file now.
#[test]
fn body_may_exceed_redis_bulk_limit() {
    let extra = ["--proto-max-bulk-len", "1mb"].map(str::to_owned).to_vec();
    let redis = Redis::start(Settings { extra, ..Settings::default() }).expect("a redis-server");
    let server = Process::spawn(serve(&redis, &["--max-body", "4000000"]));
    for bytes in [900_000, 2_000_000, 3_900_000] {
        let body = format!(r#"{{"body": "{}", "delay": "1h"}}"#, "x".repeat(bytes));
        let (status, said) = server.call("POST", "/v1/queues/q/messages", &body);
        assert_eq!(status, 201, "{said}");
        let id = said["id"].as_str().expect("an id");
        let (_, seen) = server.call("GET", &format!("/v1/messages/{id}"), "");
        assert_eq!(seen["body"].as_str().map(str::len), Some(bytes));
    }
}

/// What became of the messages that were sent.
#[derive(Clone, Copy, Default)]
struct Filled {
    taken: u64,
    /// For want of room.
    refused: u64,
}

/// Enqueues batches of large messages until it is enough. Of each message it is known whether it was taken.
fn fill(server: &Process, name: &str, is_enough: impl Fn(Filled) -> bool) -> Filled {
    const AT_ONCE: usize = 8;
    let body = "x".repeat(100_000);
    let begun = Instant::now();
    let mut filled = Filled::default();
    for batch in 0.. {
        if is_enough(filled) {
            break;
        }
        assert!(begun.elapsed() < 3 * PATIENCE, "{} taken, {} refused", filled.taken, filled.refused);
        let message = |n| json!({"body": body, "key": format!("{name}-{batch}-{n}"), "delay": "1h"});
        let lines: String = (0..AT_ONCE).map(|n| message(n).to_string() + "\n").collect();
        let results = server.lines("q", &lines);
        assert_eq!(results.len(), AT_ONCE, "{results:?}");
        for result in results {
            match result["status"].as_u64() {
                Some(201) => filled.taken += 1,
                Some(507) => {
                    assert_eq!(result["code"], "disk_full", "{result}");
                    filled.refused += 1;
                }
                // Of a server that is behind, or a shard that is opened again.
                Some(429) => assert_eq!(result["code"], "overloaded", "{result}"),
                _ => assert_eq!(result["outcome"], "not_applied", "{result}"),
            }
        }
    }
    filled
}

/// Two nodes fill one server side by side, and neither knows what the other one has under way.
#[test]
fn full_redis_refuses_only_new_messages() {
    let settings = Settings { maxmemory: Some(100_000_000), ..Settings::default() };
    let redis = Redis::start(settings).expect("a redis-server");
    let start = |name: &str| {
        // A lease that a busy machine does not lose.
        let more = ["--node", name, "--advertise", "127.0.0.1:0", "--shards", "4", "--shard-lease", "10s"];
        Process::spawn(serve(&redis, &more))
    };
    let nodes = [start("a"), start("b")];
    until_each_has_two_shards([&nodes[0], &nodes[1]]);
    let mut known = Known::default();
    known.enqueue(&nodes[0], "settled", 80);
    let mut leased = known.reserve(&nodes[1], 40);
    assert_eq!(leased.len(), 40);
    let mut waiting: Vec<String> =
        known.bodies.keys().filter(|id| leased.iter().all(|(leased, _)| leased != *id)).cloned().collect();
    let mut settle = |server: &Process| {
        let (status, answer) = ack(server, &leased.pop().expect("a lease"));
        assert_eq!(status, 200, "an ack: {answer}");
        let id = waiting.pop().expect("a message");
        let (status, answer) = server.call("DELETE", &format!("/v1/messages/{id}"), "");
        assert_eq!(status, 200, "a cancel: {answer}");
    };
    let refused = [const { AtomicU64::new(0) }; 2];
    let are_refused = |more: u64| {
        let before = [0, 1].map(|n| refused[n].load(SeqCst));
        until("both nodes refuse", || (0..2).all(|n| refused[n].load(SeqCst) >= before[n] + more));
    };
    let is_over = AtomicBool::new(false);
    let taken: u64 = std::thread::scope(|scope| {
        let fillers = [0, 1].map(|n| {
            let (server, refused, is_over) = (&nodes[n], &refused[n], &is_over);
            scope.spawn(move || {
                fill(server, &format!("first-{n}"), |filled| {
                    refused.store(filled.refused, SeqCst);
                    is_over.load(SeqCst)
                })
            })
        });
        for n in 0..20 {
            settle(&nodes[n % 2]);
        }
        are_refused(40);
        for n in 0..20 {
            settle(&nodes[n % 2]);
        }
        are_refused(1);
        is_over.store(true, SeqCst);
        fillers.map(|filler| filler.join().expect("no answer is odd").taken).iter().sum()
    });
    assert!((400..1_000).contains(&taken), "{taken} messages of 100,000 bytes are in 100 MB");
    let (status, said) = nodes[0].call("POST", "/v1/queues/q/purge", "");
    assert_eq!((status, &said["purged"]), (200, &json!(taken)), "what was refused is not there: {said}");
    // Not all of the room comes back at once: a part of each log holds settled records until that part is full.
    for (n, server) in nodes.iter().enumerate() {
        fill(server, &format!("again-{n}"), |filled| filled.taken >= 40);
    }
}

/// The commands that a section of `docs/cluster.md` tells to run, one list for each block.
fn documented(section: &str) -> Vec<Vec<String>> {
    let page = include_str!("../../../../docs/cluster.md");
    let (_, text) = page.split_once(&format!("\n## {section}\n")).expect("the section");
    let text = text.split("\n## ").next().unwrap_or_default();
    let blocks =
        text.split("```console\n").skip(1).map(|block| block.split("```").next().unwrap_or_default());
    let command = |line: &str| line.strip_prefix("$ ").map(str::to_owned);
    blocks.map(|block| block.lines().filter_map(command).collect()).collect()
}

/// Runs documented commands for one master.
fn perform(commands: &[String], redis: &Redis, backups: &Path) {
    let copy = backups.join(redis.port().to_string());
    for command in commands {
        let command = command
            .replace("-h r1", &format!("-p {}", redis.port()))
            .replace("/var/lib/redis", redis.folder().to_str().expect("path"))
            .replace("/backups/r1", copy.to_str().expect("path"));
        let begun = Instant::now();
        loop {
            let output = run(Command::new("sh").arg("-c").arg(&command));
            if output.status.success() {
                break;
            }
            let again = command.contains("grep") && begun.elapsed() < PATIENCE;
            assert!(again, "{command}: {}{}", text(&output.stdout), text(&output.stderr));
        }
    }
}

/// What the runbook tells to look at when a node dies, and what it says of it.
#[test]
fn dead_node_runbook_matches_behaviour() {
    let page = include_str!("../../../../docs/cluster.md");
    let (_, entry) = page.split_once("\n### A node dies\n").expect("the entry");
    let entry = entry.split("\n### ").next().unwrap_or_default();
    let looks: Vec<&str> = entry.split('`').filter_map(|words| words.strip_prefix("curl -s NODE")).collect();
    let [view] = looks[..] else { panic!("{looks:?}") };
    assert!(entry.contains("`shards_without_owner` is 0, and the dead node is not in `nodes`"), "{entry}");
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let start = |name| node(&redis, name, "127.0.0.1", &["--advertise", "127.0.0.1:0"]);
    let (a, b) = (start("a"), start("b"));
    let is = |server: &Process, nodes: &[(&str, u64)]| {
        let shown = server.call("GET", view, "").1;
        let of = |node: &Value| Some((node["name"].as_str()?.to_owned(), node["shards"].as_u64()?));
        let all: Option<Vec<_>> = shown["nodes"].as_array().and_then(|all| all.iter().map(of).collect());
        let wanted = nodes.iter().map(|(name, shards)| ((*name).to_owned(), *shards));
        shown["shards_without_owner"] == 0 && all.is_some_and(|all| wanted.eq(all))
    };
    until("each has two shards", || is(&a, &[("a", 2), ("b", 2)]));
    b.kill();
    until("the other serves all of them", || is(&a, &[("a", 4)]));
    // It is started again under its name with the same command.
    let b = start("b");
    until("it has its shards again", || is(&a, &[("a", 2), ("b", 2)]) && is(&b, &[("a", 2), ("b", 2)]));
}

/// What clients were told.
#[derive(Default)]
pub(crate) struct Known {
    bodies: BTreeMap<String, String>,
    tokens: BTreeSet<String>,
}

impl Known {
    /// Ids of new messages, none of which was given before.
    pub(crate) fn enqueue(&mut self, server: &Process, name: &str, count: usize) -> Vec<String> {
        let body = |n: usize| format!("{name}-{n}");
        let line = |n| json!({"body": body(n), "key": body(n), "delay_ms": 0}).to_string() + "\n";
        let results = server.lines("q", &(0..count).map(line).collect::<String>());
        let ids: Vec<String> =
            results.iter().map(|r| r["id"].as_str().unwrap_or_else(|| panic!("{r}")).to_owned()).collect();
        assert_eq!(ids.len(), count);
        for (n, id) in ids.iter().enumerate() {
            assert_eq!(self.bodies.insert(id.clone(), body(n)), None, "{id} was given before");
        }
        ids
    }

    /// So many grants, or all there are, whose tokens were not given before, of messages that are known.
    pub(crate) fn reserve(&mut self, server: &Process, max: usize) -> Vec<(String, String)> {
        let mut granted = Vec::new();
        while granted.len() < max {
            // One answer is of one shard.
            let ask =
                json!({"max": max - granted.len(), "lease_ms": 3_600_000, "wait_ms": 1_000}).to_string();
            let (status, answer) = server.call("POST", "/v1/queues/q/reserve", &ask);
            assert_eq!(status, 200, "{answer}");
            let grants = answer["messages"].as_array().expect("messages");
            if grants.is_empty() {
                break;
            }
            for grant in grants {
                let text = |name: &str| grant[name].as_str().expect("text").to_owned();
                assert_eq!(self.bodies.get(&text("id")), Some(&text("body")), "{grant}");
                assert!(self.tokens.insert(text("lease_token")), "the token was given before: {grant}");
                granted.push((text("id"), text("lease_token")));
            }
        }
        granted
    }

    /// Under each id that was ever given is its own message or none.
    fn check(&self, server: &Process) -> BTreeSet<String> {
        let mut there = BTreeSet::new();
        for (id, body) in &self.bodies {
            let (status, found) = server.call("GET", &format!("/v1/messages/{id}"), "");
            match status {
                200 => {
                    assert_eq!((&found["body"], &found["key"]), (&json!(body), &json!(body)), "{id}");
                    there.insert(id.clone());
                }
                status => assert_eq!((status, &found["code"]), (404, &json!("message_not_found"))),
            }
        }
        there
    }
}

pub(crate) fn ack(server: &Process, (id, token): &(String, String)) -> (u16, Value) {
    let body = json!({ "lease_token": token }).to_string();
    server.call("POST", &format!("/v1/messages/{id}/ack"), &body)
}

/// The commands are those of `docs/cluster.md`, word for word.
#[test]
fn documented_cluster_restore_revives_nothing() {
    let blocks = documented("Back up and restore");
    let [back_up, put_back] = &blocks[..] else { panic!("{blocks:?}") };
    let backups = TempDir::new().expect("dir");
    let mut redis = RedisCluster::start(3, 0, Settings::default()).expect("a cluster");
    let store = redis.url();
    let serve = || {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--http", "127.0.0.1:0", "--shards", "8", "--shard-lease", "1s"]);
        command.args(["--store", &store]);
        let server = Process::spawn(command);
        let begun = Instant::now();
        while server.call("GET", "/v1/queues", "").0 != 200 {
            assert!(begun.elapsed() < PATIENCE, "the shards have no owner");
        }
        server
    };
    let mut server = serve();
    let mut known = Known::default();
    known.enqueue(&server, "first", 90);
    let mut leased = known.reserve(&server, 40);
    assert_eq!(leased.len(), 40);
    let mut settled: BTreeSet<String> = BTreeSet::new();
    for lease in leased.split_off(20) {
        assert_eq!(ack(&server, &lease).0, 200);
        settled.insert(lease.0);
    }
    let cancelled = known.enqueue(&server, "cancelled", 20);
    let asked = json!({ "ids": cancelled }).to_string();
    assert_eq!(server.call("POST", "/v1/queues/q/cancel", &asked).0, 200);
    settled.extend(cancelled);
    let mut waiting: BTreeSet<String> =
        known.bodies.keys().filter(|id| !settled.contains(*id)).cloned().collect();

    // The masters are copied one after the other; in between and afterwards everything goes on.
    let mut lost = Vec::new();
    for number in 0..3 {
        perform(back_up, redis.node(number), backups.path());
        known.enqueue(&server, &format!("after-{number}"), 40);
        for lease in known.reserve(&server, 10) {
            assert_eq!(ack(&server, &lease).0, 200);
            lost.push(lease);
        }
    }
    // These leases are in no copy.
    lost.extend(known.reserve(&server, 15));
    assert_eq!(lost.len(), 45);
    server.signal("-TERM");
    assert!(server.wait().success());
    redis.kill_all().expect("killed");
    for number in 0..3 {
        perform(put_back, redis.node(number), backups.path());
    }
    redis.restart_all().expect("restarted");
    redis.wait_until_well(PATIENCE).expect("well");

    let server = serve();
    let there = known.check(&server);
    for (id, _) in &lost {
        // Settled before its master was copied, or since.
        waiting.remove(id);
    }
    assert!(waiting.len() > 20, "{} have waited all the time", waiting.len());
    assert!(settled.is_disjoint(&there), "what was settled before the copies stays settled");
    assert!(waiting.is_subset(&there), "what waited is there: {:?}", waiting.difference(&there));
    assert!(there.len() < known.bodies.len() - settled.len(), "what came after the copies is gone");
    let again = lost.iter().filter(|(id, _)| there.contains(id)).count();
    assert!(again > 0, "what was settled since is pending again");
    for lease in &lost {
        let (status, answer) = ack(&server, lease);
        assert!(status == 409 || status == 404, "a token that was given since the copies: {answer}");
    }
    // Ids and tokens are new ones, so no old one is about anything else.
    known.enqueue(&server, "new", 200);
    let granted = known.reserve(&server, 1_000);
    assert!(granted.len() >= 200 && granted.iter().any(|(id, _)| there.contains(id)), "{}", granted.len());
    assert!(known.check(&server).is_superset(&there));
    for lease in &leased {
        assert_eq!(ack(&server, lease).0, 200, "a lease of before the copies goes on");
    }
}
