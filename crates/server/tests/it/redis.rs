//! The real binary on a real Redis: one that asks its clients for a certificate, and a cluster that is backed up and restored.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use duewheel_redis_rig::{Redis, RedisCluster, Settings, Transport};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::PATIENCE;
use crate::process::{BINARY, Process, run, text};

#[test]
fn redis_that_wants_a_certificate_is_shown_one_and_is_understood_without() {
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

    // It tries for a minute, and says why in vain.
    let mut without = serve();
    without.env("DUEWHEEL_BEANSTALK", "off").stdout(Stdio::null()).stderr(Stdio::piped());
    let mut server = without.spawn().expect("spawn");
    let log = BufReader::new(server.stderr.take().expect("stderr"));
    let said = log.lines().map_while(Result::ok).any(|line| line.contains("tls-auth-clients"));
    let _ = server.kill();
    let _ = server.wait();
    assert!(said, "nothing of a certificate in the log");
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

/// What clients were told.
#[derive(Default)]
struct Known {
    bodies: BTreeMap<String, String>,
    tokens: BTreeSet<String>,
}

impl Known {
    /// Ids of new messages, none of which was given before.
    fn enqueue(&mut self, server: &Process, name: &str, count: usize) -> Vec<String> {
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
    fn reserve(&mut self, server: &Process, max: usize) -> Vec<(String, String)> {
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

fn ack(server: &Process, (id, token): &(String, String)) -> (u16, Value) {
    let body = json!({ "lease_token": token }).to_string();
    server.call("POST", &format!("/v1/messages/{id}/ack"), &body)
}

/// The commands are those of `docs/cluster.md`, word for word.
#[test]
fn a_cluster_that_was_restored_as_documented_revives_nothing_and_gives_no_id_or_token_again() {
    let blocks = documented("Back up and restore");
    let [back_up, put_back] = &blocks[..] else { panic!("{blocks:?}") };
    let backups = TempDir::new().expect("dir");
    let mut redis = RedisCluster::start(3, 0, Settings::default()).expect("a cluster");
    let addresses: Vec<String> = redis.addresses().iter().map(ToString::to_string).collect();
    let store = format!("redis-cluster://{}", addresses.join(","));
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
