//! `duewheel restore SRC --store URL`: a backup of a data folder becomes a store that nodes share.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use duewheel_postgres_rig::{Postgres, Settings as PgSettings};
use duewheel_redis_rig::{Redis, RedisCluster, Settings};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::backup::{CLOCKS_MS, duewheel, listed, ms, ok, runs};
use crate::fixture::PATIENCE;
use crate::hook::Hook;
use crate::process::{BINARY, Process, run, text};

const QUEUES: [&str; 4] = ["orders", "mails", "broken", "now"];
/// What a message is, beside its due time and what depends on the moment.
const FIELDS: [&str; 7] = ["id", "key", "body", "state", "attempt", "generation", "priority"];

/// A server on a data folder that was backed up, and what it held then.
struct Original {
    dir: TempDir,
    server: Process,
    hook: Hook,
    /// A lease of it that runs on.
    held: (String, String),
    messages: BTreeMap<&'static str, BTreeMap<u64, Value>>,
    /// The store's part of the id of what it has pushed.
    pushed_as: String,
}

fn call(server: &Process, method: &str, path: &str, body: &Value) -> Value {
    let begun = Instant::now();
    loop {
        let (status, answer) = server.call(method, path, &body.to_string());
        if status < 300 {
            return answer;
        }
        // A node acquires its shards, one after the other.
        let is_early = [503, 429].contains(&status) && begun.elapsed() < PATIENCE;
        assert!(is_early, "{method} {path}: {status}: {answer}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Original {
    /// Messages of every kind; then a backup.
    fn new(shards: &str) -> Original {
        let (dir, hook) = (TempDir::new().expect("a folder"), Hook::well());
        // Small enough that a part of it is in runs, and not in the journal.
        let options = ["--shards", shards, "--journal-bytes", "1048576"];
        let server = Process::start(&dir.path().join("data"), &options);
        let filler = "x".repeat(1_000);
        let line = |n| json!({"body": format!("{n} {filler}"), "delay": "48h", "key": format!("order-{n}")});
        let lines: String = (0..3_000).map(|n| format!("{}\n", line(n))).collect();
        assert!(server.lines("orders", &lines).iter().all(|result| result["status"] == 201));
        call(&server, "DELETE", "/v1/queues/orders/keys/order-7", &json!({}));
        let at = json!({"body": "at", "due_at": "2099-01-01T00:00:00.000Z", "priority": 3});
        call(&server, "POST", "/v1/queues/orders/messages", &at);
        call(&server, "PUT", "/v1/queues/orders/config", &json!({"max_attempts": 7, "lease_ms": 12_345}));
        call(&server, "POST", "/v1/queues/mails/messages", &json!({"body": "held back", "delay_ms": 0}));
        call(&server, "POST", "/v1/queues/mails/pause", &json!({}));
        call(&server, "POST", "/v1/queues/broken/messages", &json!({"body": "no good", "delay_ms": 0}));
        let (id, token) = grant(&server, "broken");
        let nack = json!({"lease_token": token, "dead": true, "reason": "it is broken"});
        call(&server, "POST", &format!("/v1/messages/{id}/nack"), &nack);
        call(&server, "POST", "/v1/queues/now/messages", &json!({"body": "leased", "delay_ms": 0}));
        let held = grant(&server, "now");
        let target = json!({"url": hook.url(), "networks": ["127.0.0.1/32"]});
        call(&server, "PUT", "/v1/targets/shop", &target);
        call(&server, "PATCH", "/v1/queues/pushes/config", &json!({"target": "shop"}));
        let pushed_as = push(&server, &hook, "first");
        let messages = QUEUES.map(|queue| (queue, listed(&server, queue))).into();
        ok(duewheel(dir.path()).args(["backup", "copy", "--server", &server.url]));
        assert!(runs(&dir.path().join("copy")) > 0, "a part of the copy is in runs");
        // A copy has nothing of this.
        call(&server, "DELETE", "/v1/queues/orders/keys/order-8", &json!({}));
        Original { dir, server, hook, held, messages, pushed_as }
    }

    fn copy(&self) -> PathBuf {
        self.dir.path().join("copy")
    }

    fn pending(&self) -> u64 {
        self.messages.values().map(|queue| queue.len() as u64).sum()
    }

    /// A node on the restored store has what the original had at its backup.
    fn is_served(&self, node: &Process) {
        let everything = || QUEUES.map(|queue| (queue, listed(node, queue)));
        serves_all(node);
        for (queue, found) in everything() {
            let expected = &self.messages[queue];
            let ids = |some: &BTreeMap<u64, Value>| some.keys().copied().collect::<Vec<_>>();
            assert_eq!(ids(&found), ids(expected), "{queue}");
            for (id, was) in expected {
                let is = &found[id];
                for field in FIELDS {
                    assert_eq!(is[field], was[field], "{queue}: {field} of {id}");
                }
                let due = |message: &Value| ms(message["due_at"].as_str().expect("an instant"));
                assert!((due(is) - due(was)).abs() < CLOCKS_MS, "{queue}: {is}, and before {was}");
            }
        }
        let config = call(node, "GET", "/v1/queues/orders/config", &json!({}));
        assert_eq!(
            (&config["config"]["max_attempts"], &config["config"]["lease_ms"]),
            (&json!(7), &json!(12_345))
        );
        assert_eq!(call(node, "GET", "/v1/queues/mails", &json!({}))["paused"], true);
        let again = json!({"body": "", "delay": "1h", "key": "order-9"});
        let (status, refused) = node.call("POST", "/v1/queues/orders/messages", &again.to_string());
        assert_eq!((status, &refused["code"]), (409, &json!("key_exists")));
        // The tokens of the original are its own.
        let (id, token) = &self.held;
        let ack = json!({ "lease_token": token }).to_string();
        assert_eq!(node.call("POST", &format!("/v1/messages/{id}/ack"), &ack).1["code"], "lease_lost");
        assert_eq!(self.server.call("POST", &format!("/v1/messages/{id}/ack"), &ack).0, 200);
        // It works on: a new message has an id that the original never gives, and what is pushed is another store's.
        let mut given: BTreeSet<u64> = self.messages.values().flat_map(BTreeMap::keys).copied().collect();
        for server in [&self.server, node] {
            for _ in 0..12 {
                let new = json!({"body": "new", "delay": "1h"});
                let new = call(server, "POST", "/v1/queues/orders/messages", &new);
                let new: u64 = new["id"].as_str().and_then(|id| id.parse().ok()).expect("an id");
                assert!(given.insert(new), "{new} of {given:?}");
            }
        }
        assert_ne!(push(node, &self.hook, "second"), self.pushed_as);
        call(node, "POST", "/v1/queues/orders/keys/order-9/fire", &json!({}));
        let (id, token) = grant(node, "orders");
        call(node, "POST", &format!("/v1/messages/{id}/ack"), &json!({ "lease_token": token }));
    }
}

/// Delivers a message to the hook; the part of its id that names the store.
fn push(server: &Process, hook: &Hook, body: &str) -> String {
    call(server, "POST", "/v1/queues/pushes/messages", &json!({"body": body, "delay_ms": 0}));
    let got = hook.until("it is delivered", |got| got.iter().any(|got| got.body() == body));
    let push = got.iter().find(|got| got.body() == body).expect("it");
    push.header("webhook-id").split('_').nth(1).expect("a store").to_owned()
}

/// A lease of a message, for an hour: its id and token.
fn grant(server: &Process, queue: &str) -> (String, String) {
    let ask = json!({"wait_ms": 20_000, "lease_ms": 3_600_000});
    let granted = call(server, "POST", &format!("/v1/queues/{queue}/reserve"), &ask);
    let word =
        |name: &str| granted["messages"][0][name].as_str().unwrap_or_else(|| panic!("{granted}")).to_owned();
    (word("id"), word("lease_token"))
}

fn node(url: &str) -> Process {
    let mut command = Command::new(BINARY);
    // The number of shards is that of the store.
    command.args(["serve", "--http", "127.0.0.1:0", "--store", url, "--shards", "5", "--shard-lease", "1s"]);
    Process::spawn(command)
}

/// Waits until the node has opened all shards.
fn serves_all(node: &Process) {
    node.until("/v1/cluster", |seen| {
        let shards = seen["shards"].as_array().map_or(&[][..], Vec::as_slice);
        !shards.is_empty() && shards.iter().all(|shard| shard["here"] == "serving")
    });
}

fn restore_command(copy: &Path, url: &str) -> Command {
    let mut command = Command::new(BINARY);
    command.arg("restore").arg(copy).args(["--store", url, "--shard-lease", "1s", "--json"]);
    command
}

fn restore(copy: &Path, url: &str) -> Output {
    run(&mut restore_command(copy, url))
}

fn is_refused(output: &Output, says: &str) {
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains(says), "{told}");
}

/// No node serves a store that was restored in part, and it says why.
fn is_not_served(url: &str) {
    let serve = ["serve", "--http", "127.0.0.1:0", "--beanstalk", "off", "--store", url];
    let refused = run(Command::new(BINARY).args(serve));
    assert!(!refused.status.success());
    for command in ["verify", "inspect"] {
        let refused = run(Command::new(BINARY).args([command, "--store", url]));
        assert!(text(&refused.stderr).contains("has not ended"), "{command}: {}", text(&refused.stderr));
    }
    let told = text(&refused.stderr);
    assert!(told.contains("has not ended") && told.contains("duewheel restore"), "{told}");
}

/// Restores when the lease of a restore that was killed has run out.
fn restored_in_the_end(copy: &Path, url: &str) -> Output {
    let begun = Instant::now();
    loop {
        let done = restore(copy, url);
        if done.status.success() {
            return done;
        }
        let told = text(&done.stderr);
        assert!(told.contains("another process restores the store") && begun.elapsed() < PATIENCE, "{told}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn becomes_a_store(original: &Original, url: &str, shards: u64) {
    let done = restore(&original.copy(), url);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let told: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert!(told["shards"] == json!(shards) && told["tokens_ended"].as_u64() >= Some(1), "{told}");
    assert!(told["messages"].as_u64() >= Some(original.pending()), "{told}");
    let whole = run(Command::new(BINARY).args(["verify", "--store", url]));
    assert!(whole.status.success(), "{}{}", text(&whole.stdout), text(&whole.stderr));
    let first = node(url);
    original.is_served(&first);
    is_refused(&restore(&original.copy(), url), "there is a store already");
    first.kill();
    // Nor when no node lives; and nothing was changed.
    is_refused(&restore(&original.copy(), url), "there is a store already");
    let second = node(url);
    serves_all(&second);
    assert_eq!(call(&second, "GET", "/v1/queues/orders/keys/order-10", &json!({}))["key"], "order-10");
}

#[test]
fn a_backup_becomes_a_redis() {
    let (redis, original) = (Redis::start(Settings::default()).expect("a redis-server"), Original::new("3"));
    becomes_a_store(&original, &redis.url(0), 3);
}

/// The shards lie on three masters.
#[test]
fn a_backup_becomes_a_redis_cluster() {
    let redis = RedisCluster::start(3, 0, Settings::default()).expect("a cluster");
    becomes_a_store(&Original::new("3"), &redis.url(), 3);
    let master = |shard| redis.master_of_key(&format!("{{duewheel:{shard}}}:files")).expect("a master");
    assert_eq!((0..3).map(master).collect::<BTreeSet<_>>().len(), 3, "each shard has a master of its own");
}

#[test]
fn a_backup_becomes_a_postgres() {
    let postgres = Postgres::start(PgSettings::default()).expect("a server of PostgreSQL");
    becomes_a_store(&Original::new("3"), &postgres.url(), 3);
}

#[test]
fn single_shard_backup_restores_to_redis() {
    let (redis, original) = (Redis::start(Settings::default()).expect("a redis-server"), Original::new("1"));
    becomes_a_store(&original, &redis.url(0), 1);
}

/// Shard 2 cannot be acquired: the restore ends when the others are complete.
#[test]
fn partially_restored_redis_is_not_served() {
    let (redis, original) = (Redis::start(Settings::default()).expect("a redis-server"), Original::new("3"));
    let (url, key) = (redis.url(0), "{duewheel:2}:owner");
    let until = "9999999999999";
    let words =
        ["HSET", key, "epoch", "1", "incarnation", "x", "until", until, "node", "other", "lease", until];
    redis.command(&words).expect("a lease");
    is_refused(&restore(&original.copy(), &url), "has the shard");
    is_not_served(&url);
    is_refused(&restore(&original.copy(), &url), "has the shard");
    redis.command(&["DEL", key]).expect("the lease is gone");
    let done = restored_in_the_end(&original.copy(), &url);
    assert!(done.status.success(), "{}", text(&done.stderr));
    original.is_served(&node(&url));
}

/// The restore is killed while it writes the files of shard 1.
#[test]
fn killed_postgres_restore_is_not_served() {
    let postgres = Postgres::start(PgSettings::default()).expect("a server of PostgreSQL");
    let (url, original) = (postgres.url(), Original::new("3"));
    assert!(run(Command::new(BINARY).args(["store", "init", "--store", &url])).status.success());
    let slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS \
                $$ BEGIN IF new.shard = 1 THEN PERFORM pg_sleep(2); END IF; RETURN new; END $$; \
                CREATE TRIGGER slow BEFORE INSERT ON duewheel.file FOR EACH ROW EXECUTE FUNCTION slow()";
    postgres.query(slow).expect("a trigger");
    let mut command = restore_command(&original.copy(), &url);
    let mut killed = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("spawn");
    let begun = Instant::now();
    while postgres.query("SELECT count(*) FROM duewheel.lease WHERE shard = 1").expect("leases") != "1" {
        assert!(begun.elapsed() < PATIENCE, "it never comes to shard 1");
        std::thread::sleep(Duration::from_millis(10));
    }
    killed.kill().expect("kill");
    killed.wait().expect("its end");
    let manifests = "SELECT count(*) FROM duewheel.file WHERE name = 'MANIFEST'";
    assert_eq!(postgres.query(manifests).expect("manifests"), "1", "shard 0 alone is complete");
    is_not_served(&url);
    postgres.query("DROP TRIGGER slow ON duewheel.file").expect("no trigger");
    restored_in_the_end(&original.copy(), &url);
    original.is_served(&node(&url));
}

/// Story: a restore to a folder was killed before its last step. The folder was served, with the tokens of the original.
#[test]
fn killed_folder_restore_is_not_served() {
    let (original, begun) = (Original::new("1"), Instant::now());
    let new = original.dir.path().join("new");
    loop {
        let mut command = Command::new(BINARY);
        command.arg("restore").args([&original.copy(), &new]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut killed = command.spawn().expect("spawn");
        // With the manifest there is a folder that a server could open.
        while !new.join("MANIFEST").exists() && killed.try_wait().expect("a child").is_none() {
            std::thread::yield_now();
        }
        killed.kill().expect("kill");
        if !killed.wait().expect("its end").success() && new.join("UNFINISHED").exists() {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "it always ends before it is killed");
        std::fs::remove_dir_all(&new).expect("remove");
    }
    let serve = ["serve", "--http", "127.0.0.1:0", "--beanstalk", "off", "--data"];
    is_refused(&run(Command::new(BINARY).args(serve).arg(&new)), "has not ended: remove it");
    is_refused(&run(Command::new(BINARY).args(["verify"]).arg(&new)), "has not ended: remove it");
}

#[test]
fn damaged_copy_leaves_store_unchanged() {
    let (redis, original) = (Redis::start(Settings::default()).expect("a redis-server"), Original::new("3"));
    std::fs::write(original.copy().join("2-of-3/MANIFEST"), b"no manifest").expect("a damage");
    is_refused(&restore(&original.copy(), &redis.url(0)), "MANIFEST");
    assert_eq!(redis.command(&["DBSIZE"]).expect("a number").number(), Some(0));
    let usage = run(Command::new(BINARY).arg("restore").arg(original.copy()));
    assert_eq!(usage.status.code(), Some(2), "{}", text(&usage.stderr));
}
