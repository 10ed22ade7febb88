//! A Redis that has lost everything under a node, and what a person does about it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use duewheel_redis_rig::{Appendonly, Redis, Settings, free_port};
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
    fn on(redis: &Redis, more: &[&str]) -> Self {
        let address = || (Ipv4Addr::LOCALHOST, free_port().expect("a port")).into();
        let member = Member {
            name: "node-0".into(),
            peers: address(),
            beanstalk: address(),
            store: redis.url(0),
            build: Build::This,
        };
        let mut system = DuewheelCluster::new(Door::Http, LEASE);
        system.more = more.iter().map(|word| (*word).to_owned()).collect();
        Node { system, member }
    }

    fn reset(&self, yes: &[&str]) -> Output {
        let mut command = Command::new(binary().expect("a binary"));
        command.args(["cluster", "reset", "--store", &self.member.store]).args(yes);
        command.args(["--shard-lease", "1s", "--shards", &self.system.shards.to_string()]);
        command.output().expect("it runs")
    }

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
    let mut last = Value::Null;
    until("health says so", PATIENCE, || {
        let (is, health) = ask(address, "GET", "/healthz", &Value::Null);
        let why = health["trouble"].as_str().unwrap_or_default();
        let says = is == status && why.contains(word);
        last = health;
        Ok(says.then_some(()))
    })
    .unwrap_or_else(|why| panic!("{status} and {word:?}: {why}: {last}"));
}

/// Waits until Redis knows that the cluster has been made: a node that begins then does not make another one.
fn knows(redis: &Redis) {
    until("the cluster knows", PATIENCE, || {
        let made =
            redis.command(&["HGET", "{duewheel:cluster}:cluster", "made"]).map_err(|e| e.to_string())?;
        Ok((made.text().as_deref() == Some("1")).then_some(()))
    })
    .expect("it is stored");
}

/// Story: after FLUSHALL health was green, and messages got the ids 1, 2, 3 again, which others had had.
#[test]
fn emptied_redis_is_reported_until_reset() {
    let mut redis = Redis::start(Settings::default()).expect("a redis-server");
    lose_everything(&mut redis, &[], |redis| {
        redis.command(&["FLUSHALL"]).expect("a reply");
    });
}

/// The same by a restart of a Redis that has no file, as of a pod without a volume.
#[test]
fn fileless_redis_restart_needs_reset() {
    let settings = Settings { appendonly: Appendonly::Off, ..Settings::default() };
    let mut redis = Redis::start(settings).expect("a redis-server");
    lose_everything(&mut redis, &["--redis-without-aof"], |redis| {
        redis.kill().expect("kill");
        redis.restart().expect("restart");
    });
}

#[test]
fn empty_redis_needs_explicit_creation() {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let folder = tempfile::tempdir().expect("a folder");
    let node = Node::on(&redis, &["--redis-create", "never"]);
    let mut server = node.system.node(&node.member, folder.path()).expect("a node");
    let mut code = None;
    until("it gives up", PATIENCE, || {
        code = server.ended().map_err(|e| e.to_string())?;
        Ok(code.map(drop))
    })
    .expect("it ends");
    assert_eq!(code.and_then(|status| status.code()), Some(1));
    let log = std::fs::read_to_string(folder.path().join("node-0.log")).expect("a log");
    assert!(log.contains("--redis-create never") && log.contains("duewheel cluster reset"), "{log}");
    assert_eq!(redis.command(&["DBSIZE"]).expect("a reply").number(), Some(0), "nothing was made");

    let done = node.reset(&["--yes"]);
    assert!(done.status.success(), "{done:?}");
    let (server, http) = node.start(folder.path());
    says(http, 200, "");
    let (status, first) = enqueue(http);
    assert_eq!(status, 201, "{first}");
    server.stop(PATIENCE).expect("it ends");
    // A cluster that is there is served as always.
    let (server, http) = node.start(folder.path());
    says(http, 200, "");
    server.stop(PATIENCE).expect("it ends");
}

/// A node serves, its Redis loses everything, and neither the node nor one that is started anew takes it for a new
/// cluster. `duewheel cluster reset` makes one, and no id is given again.
fn lose_everything(redis: &mut Redis, more: &[&str], lose: impl FnOnce(&mut Redis)) {
    let folder = tempfile::tempdir().expect("a folder");
    let node = Node::on(redis, more);
    let (server, http) = node.start(folder.path());
    says(http, 200, "");
    let (status, first) = enqueue(http);
    assert_eq!(status, 201, "{first}");
    // The node has seen that all shards were made, and has said so; it says so again in what is empty.
    knows(redis);
    lose(redis);
    knows(redis);
    says(http, 503, "is not there");
    let (status, refused) = enqueue(http);
    assert_eq!(status, 503, "{refused}");
    server.stop(PATIENCE).expect("it ends");

    // A node that is started anew does not take it for a new cluster either.
    let (server, http) = node.start(folder.path());
    says(http, 503, "is not there");
    let refused = node.reset(&["--yes"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("stop them first"), "{refused:?}");
    server.stop(PATIENCE).expect("it ends");
    assert_eq!(node.reset(&[]).status.code(), Some(2), "it is done by nobody who does not mean it");
    let done = node.reset(&["--yes"]);
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
