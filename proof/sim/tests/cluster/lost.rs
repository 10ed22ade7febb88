//! A Redis that has lost everything under a node, and what a person does about it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use duewheel_redis_rig::{Redis, Settings, free_port};
use duewheel_sim::blackbox::cluster::{Build, Door, DuewheelCluster, Member};
use duewheel_sim::http;
use duewheel_sim::process::{Server, binary, until};
use serde_json::{Value, json};

use crate::stage::PATIENCE;

const LEASE: Duration = Duration::from_secs(1);

struct Node {
    system: DuewheelCluster,
    member: Member,
}

impl Node {
    fn start(&self, folder: &Path) -> (Server, SocketAddr) {
        let mut server = self.system.node(&self.member, folder).expect("a node");
        let address = server.address(PATIENCE).expect("it listens");
        (server, address)
    }
}

fn ask(address: SocketAddr, method: &str, path: &str, body: &Value) -> (u16, Value) {
    http::ask(address, PATIENCE, method, path, body).expect("an answer")
}

fn enqueue(address: SocketAddr) -> (u16, Value) {
    ask(address, "POST", "/v1/queues/q/messages", &json!({"body": "x", "delay_ms": 86_400_000}))
}

fn says(address: SocketAddr, status: u16, word: &str) {
    until("health says so", PATIENCE, || {
        let (is, health) = ask(address, "GET", "/healthz", &Value::Null);
        let why = health["trouble"].as_str().unwrap_or_default();
        Ok((is == status && why.contains(word)).then_some(()))
    })
    .expect("it is said");
}

/// Story: after FLUSHALL health was green, and messages got the ids 1, 2, 3 again, which others had had.
#[test]
fn a_node_says_that_redis_is_empty_until_a_person_resets_the_cluster() {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let folder = tempfile::tempdir().expect("a folder");
    let address = || (Ipv4Addr::LOCALHOST, free_port().expect("a port")).into();
    let member = Member {
        name: "node-0".into(),
        peers: address(),
        beanstalk: address(),
        store: redis.url(0),
        build: Build::This,
    };
    let node = Node { system: DuewheelCluster::new(Door::Http, LEASE), member };
    let (server, http) = node.start(folder.path());
    says(http, 200, "");
    let (status, first) = enqueue(http);
    assert_eq!(status, 201, "{first}");
    // The node has seen that all shards were made, and has said so.
    until("the cluster knows", PATIENCE, || {
        let made =
            redis.command(&["HGET", "{duewheel:cluster}:cluster", "made"]).map_err(|e| e.to_string())?;
        Ok((made.text().as_deref() == Some("1")).then_some(()))
    })
    .expect("it is stored");
    redis.command(&["FLUSHALL"]).expect("a reply");
    says(http, 503, "is not there");
    let (status, refused) = enqueue(http);
    assert_eq!(status, 503, "{refused}");
    server.stop(PATIENCE).expect("it ends");

    // A node that is started anew does not take it for a new cluster either.
    let (server, http) = node.start(folder.path());
    says(http, 503, "is not there");
    let reset = |yes: &[&str]| {
        let mut command = Command::new(binary().expect("a binary"));
        command.args(["cluster", "reset", "--store", &node.member.store]).args(yes);
        command.args(["--shard-lease", "1s", "--shards", &node.system.shards.to_string()]);
        command.output().expect("it runs")
    };
    let refused = reset(&["--yes"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("stop them first"), "{refused:?}");
    server.stop(PATIENCE).expect("it ends");
    assert_eq!(reset(&[]).status.code(), Some(2), "it is done by nobody who does not mean it");
    let done = reset(&["--yes"]);
    assert!(
        done.status.success() && String::from_utf8_lossy(&done.stdout).contains("6 shards made anew"),
        "{done:?}"
    );

    let (server, http) = node.start(folder.path());
    says(http, 200, "");
    let (status, again) = enqueue(http);
    assert_eq!(status, 201, "{again}");
    let id =
        |of: &Value| of["id"].as_str().and_then(|id| id.parse::<u64>().ok()).or_else(|| of["id"].as_u64());
    assert!(id(&again) > Some(1 << 26), "{again}: an id that was given");
    server.stop(PATIENCE).expect("it ends");
}
