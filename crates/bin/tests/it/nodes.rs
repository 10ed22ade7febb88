//! Two real nodes on a real Redis: what they show each other, and how their secret is replaced.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use duewheel_redis_rig::{Certificates, Redis, Settings, Value};

use crate::fixture::PATIENCE;
use crate::process::{BINARY, Process, run, text, wait};

const SECRET: [&str; 4] = ["HMGET", "{duewheel:cluster}:cluster", "secret", "former_secret"];

fn node(redis: &Redis, name: &str) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["serve", "--http", "127.0.0.1:0", "--store", &redis.url(0), "--node", name]);
    command.args(["--advertise", "127.0.0.1:0", "--shards", "8", "--shard-lease", "1s"]);
    command.env("DUEWHEEL_BEANSTALK", "off");
    command
}

fn with_certificates<'a>(command: &'a mut Command, folder: &Path) -> &'a mut Command {
    command.arg("--peer-cert").arg(folder.join("cert.pem"));
    command.arg("--peer-key").arg(folder.join("key.pem"));
    command.arg("--peer-ca").arg(folder.join("ca.pem"))
}

/// Waits until each of two nodes has half of the shards, as both see it.
fn shared_out(nodes: &[Process]) {
    for node in nodes {
        node.until("/v1/cluster", |seen| {
            let owned =
                seen["nodes"].as_array().map(|nodes| nodes.iter().map(|node| node["shards"].as_u64()));
            owned.is_some_and(|owned| owned.eq([Some(4), Some(4)])) && seen["shards_without_owner"] == 0
        });
    }
}

/// Puts messages into all shards by way of a node, each under a key of its own.
fn put(node: &Process, round: &str) {
    for n in 0..24 {
        let body = format!(r#"{{"body": "x", "delay": "1h", "key": "{round}-{n}"}}"#);
        let (status, answer) = node.call("POST", "/v1/queues/q/messages", &body);
        assert_eq!(status, 201, "{round}, {n}: {answer}");
    }
}

#[test]
fn tls_nodes_rotate_secret_while_running() {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let folder = tempfile::tempdir().expect("a folder");
    Certificates::make(folder.path()).expect("certificates");
    set_permissions(folder.path().join("key.pem"), Permissions::from_mode(0o600)).expect("chmod");
    let nodes = ["a", "b"].map(|name| {
        let mut command = node(&redis, name);
        with_certificates(&mut command, folder.path());
        Process::spawn(command)
    });
    shared_out(&nodes);
    put(&nodes[0], "before");
    let secrets =
        || redis.command(&SECRET).expect("secrets").list().iter().map(Value::text).collect::<Vec<_>>();
    let before = secrets();
    assert!(before[0].is_some() && before[1].is_none());

    let mut command = Command::new(BINARY);
    command.args(["cluster", "rotate-secret", "--store", &redis.url(0)]);
    let mut rotation = command.stdout(Stdio::piped()).spawn().expect("spawn");
    let mut rounds = 0;
    while rotation.try_wait().expect("wait").is_none() {
        put(&nodes[rounds % 2], &format!("during-{rounds}"));
        rounds += 1;
    }
    assert!(wait(&mut rotation).success() && rounds > 1);
    let said = text(&rotation.wait_with_output().expect("output").stdout);
    assert!(said.contains("for 2.0 s") && said.contains("the former secret is no longer valid"), "{said}");
    let after = secrets();
    assert!(after[0].is_some() && after[0] != before[0] && after[1].is_none());
    // Connections that the former one has made end within a lease; nobody notices.
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(2) {
        put(&nodes[rounds % 2], &format!("after-{rounds}"));
        rounds += 1;
    }
}

/// Story: what nodes show each other was read at the start alone, so each renewal was a rolling restart.
#[test]
fn peer_certificates_reload_on_change() {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let folder = tempfile::tempdir().expect("a folder");
    let renew = || Certificates::make(folder.path()).expect("certificates");
    renew();
    set_permissions(folder.path().join("key.pem"), Permissions::from_mode(0o600)).expect("chmod");
    let start = |name| {
        let mut command = node(&redis, name);
        with_certificates(&mut command, folder.path());
        Process::spawn(command)
    };
    let nodes = ["a", "b"].map(start);
    shared_out(&nodes);
    put(&nodes[0], "before");
    // Of another authority. One is told so, the other one sees it by itself.
    renew();
    nodes[0].signal("-HUP");
    // It owns nothing at first, and shows the new one: whoever has the old ones does not talk with it.
    let newcomer = start("c");
    let all_by_way_of_it = |round: usize| {
        (0..24).all(|n| {
            let body = format!(r#"{{"body": "x", "delay": "1h", "key": "after-{round}-{n}"}}"#);
            newcomer.call("POST", "/v1/queues/q/messages", &body).0 == 201
        })
    };
    let begun = Instant::now();
    let mut round = 0;
    while !all_by_way_of_it(round) {
        round += 1;
        assert!(begun.elapsed() < PATIENCE, "the others do not talk with a node that shows the new ones");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Those two have talked all the time.
    put(&nodes[1], "after");
}

#[test]
fn unusable_peer_certificates_fail_start() {
    let folder = tempfile::tempdir().expect("a folder");
    Certificates::make(folder.path()).expect("certificates");
    let redis = "redis://127.0.0.1:1/0";
    let refused = || {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--store", redis, "--node", "a", "--advertise", "127.0.0.1:0"]);
        command.args(["--http", "127.0.0.1:0"]);
        command.env("DUEWHEEL_BEANSTALK", "off");
        let output = run(with_certificates(&mut command, folder.path()));
        assert!(!output.status.success());
        text(&output.stderr)
    };
    let key = folder.path().join("key.pem");
    set_permissions(&key, Permissions::from_mode(0o644)).expect("chmod");
    let said = refused();
    assert!(said.contains("--peer-key") && said.contains("chmod 600"), "{said}");
    set_permissions(&key, Permissions::from_mode(0o600)).expect("chmod");
    std::fs::write(&key, "no key").expect("write");
    let said = refused();
    assert!(said.contains("--peer-key") && said.contains("no private key"), "{said}");
    std::fs::remove_file(folder.path().join("ca.pem")).expect("remove");
    let said = refused();
    assert!(said.contains("--peer-ca") && said.contains("ca.pem"), "{said}");
}
