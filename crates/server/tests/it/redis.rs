//! The real binary on a real Redis that asks its clients for a certificate.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use duewheel_redis_rig::{Proxy, Redis, Settings, Transport, free_port};
use serde_json::Value;

use crate::fixture::PATIENCE;
use crate::process::{BINARY, Process};

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

/// A node of a cluster of four shards, each on an address of its own: where it listens for the others, and what they call it.
fn node(redis: &Redis, name: &str, host: &str, peers: &[&str]) -> Process {
    let mut command = Command::new(BINARY);
    command.args(["serve", "--http", &format!("{host}:0"), "--store", &redis.url(0), "--node", name]);
    command.args(["--shards", "4", "--shard-lease", "1s", "--settle-delay", "0s"]).args(peers);
    Process::spawn(command)
}

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// As in containers: a node listens at one address, and others reach it at another one, which is not its own.
#[test]
fn a_node_listens_at_one_address_and_is_reached_at_another() {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let inside = format!("127.0.0.2:{}", free_port().expect("port"));
    let relay = Proxy::start(inside.parse().expect("address")).expect("relay");
    let outside = relay.address().to_string();
    let a = node(&redis, "a", "127.0.0.2", &["--advertise", &outside, "--peer-listen", &inside]);
    let b = node(&redis, "b", "127.0.0.3", &["--advertise", "127.0.0.3:0"]);
    let view = |server: &Process| server.call("GET", "/v1/cluster", "").1;
    until("each has two shards", || {
        [&a, &b].iter().all(|server| {
            let nodes = view(server)["nodes"].as_array().cloned().unwrap_or_default();
            nodes.len() == 2 && nodes.iter().all(|node| node["shards"] == 2)
        })
    });
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

/// Story: with one health for two probes, a Redis that was away for longer than a lease had all nodes killed, again and again.
#[test]
fn a_redis_that_hangs_for_longer_than_a_lease_leaves_its_nodes_alive_and_ready() {
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
