//! A Redis that has lost what it had, and a cluster that is not the one that a node knows.

use std::sync::Arc;
use std::time::Duration;

use duewheel_core::ShardId;
use duewheel_core::record::ClockPair;
use duewheel_core::store::conformance::History;
use duewheel_core::store::{Candidate, Coordinator, ErrorKind, Node, Store, StoreError};
use duewheel_redis_rig::{Redis, Value};
use duewheel_store_redis::{Create, Options, RedisCoordinator};

use crate::place::{SHARD, kind, open, options, server, until};

const SHARDS: u32 = 4;
const CLUSTER: &str = "{duewheel:cluster}:cluster";
const NODES: &str = "{duewheel:cluster}:nodes";

fn ask(redis: &Redis, words: &[&str]) -> Value {
    let reply = redis.command(words).expect("a reply");
    assert!(!matches!(reply, Value::Error(_)), "{words:?}: {reply:?}");
    reply
}

fn candidate(name: &str) -> Candidate {
    let advertise = format!("{name}.example:7600").into();
    Candidate { name: name.into(), advertise, shards_if_new: SHARDS, settle_delay: Duration::ZERO }
}

/// As another process would be: it remembers nothing.
fn process(redis: &Redis, create: Create) -> RedisCoordinator {
    RedisCoordinator::new(options(redis).lease(Duration::from_secs(60)).expect("a good lease").create(create))
}

fn take(nodes: &RedisCoordinator, me: &Node, shard: u32) -> Result<Box<dyn Store>, StoreError> {
    nodes.open(me, ShardId(shard), Arc::new(|| {}))
}

fn refusal<T>(result: Result<T, StoreError>) -> String {
    let error = result.map(drop).expect_err("a refusal");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    error.to_string()
}

/// Serves all shards until everybody knows that they were made.
fn serve_once(nodes: &RedisCoordinator, me: &Node) {
    let mut stores: Vec<_> = (0..SHARDS).map(|shard| take(nodes, me, shard).expect("open")).collect();
    assert!(nodes.owners().expect("owners").iter().all(|owner| owner.owner().is_some()));
    nodes.beat(me).expect("a beat");
    for store in &mut stores {
        store.close(ClockPair::default()).expect("close");
    }
}

/// Story: FLUSHALL, or a Redis without an append-only file that was started anew. The node took its shards again at
/// position 0, its health was green, and ids 1, 2, 3 came again: an old cancel by an id took a stranger back.
#[test]
fn emptied_redis_is_not_new() {
    let redis = server();
    let known = options(&redis);
    let mut store = open(&known);
    store.append(&History::new(1).group(9)).unwrap();
    let last = store.recovered().next_lsn;
    until("it is written", || store.progress().expect("it lives").durable >= last);
    ask(&redis, &["FLUSHALL"]);
    let _ = store.append(&History::new(1).group(9)); // it may have found out already
    until("its reign is over", || store.progress().is_err());
    drop(store);
    let said = refusal(duewheel_store_redis::open(&known, SHARD, Arc::new(|| {})));
    assert!(said.contains("epoch") && said.contains("cluster reset"), "{said}");
    assert_eq!(ask(&redis, &["DBSIZE"]).number(), Some(0), "nothing was written");
    // A process that knows nothing can only be told.
    let never = options(&redis).create(Create::Never);
    let said = refusal(duewheel_store_redis::open(&never, SHARD, Arc::new(|| {})));
    assert!(said.contains("--redis-create never"), "{said}");
    assert_eq!(ask(&redis, &["DBSIZE"]).number(), Some(0));
}

/// The nodes that live put the cluster's key back, as after a failover that has lost it; what was in the shards they
/// cannot give back.
#[test]
fn new_nodes_notice_lost_shards() {
    let redis = server();
    let a = process(&redis, Create::Always);
    let me = a.join(&candidate("a")).unwrap().node;
    serve_once(&a, &me);
    let id = ask(&redis, &["HGET", CLUSTER, "id"]).text().expect("an id");
    ask(&redis, &["FLUSHALL"]);
    a.beat(&me).unwrap();
    assert_eq!(ask(&redis, &["HGET", CLUSTER, "id"]).text(), Some(id));
    for shard in 0..SHARDS {
        assert!(refusal(take(&a, &me, shard)).contains("not there"));
    }
    let b = process(&redis, Create::Always);
    let joined = b.join(&Candidate { shards_if_new: 9, ..candidate("b") }).unwrap();
    assert_eq!(joined.shards, SHARDS);
    assert!(refusal(take(&b, &joined.node, 1)).contains("have been made before"));
    assert_eq!(kind(b.reset(SHARDS)), Some(ErrorKind::Fenced), "nodes take part");
}

#[test]
fn reset_creates_only_missing_keys() {
    let redis = server();
    // Nothing is there.
    let never = process(&redis, Create::Never);
    assert!(refusal(never.join(&candidate("a"))).contains("--redis-create never"));
    assert_eq!(ask(&redis, &["DBSIZE"]).number(), Some(0));
    let done = never.reset(SHARDS).unwrap();
    assert_eq!((done.kept.len(), done.made.len()), (0, SHARDS as usize));
    let me = never.join(&candidate("a")).unwrap().node;
    let first = take(&never, &me, 2).unwrap().recovered().next_id;
    assert!(first >= 1 << 26, "{first}: a lost shard may have given any below");
    serve_once(&never, &me);
    never.leave(&me).unwrap();

    // One shard is not there any more, as after the loss of one master.
    let keys = ask(&redis, &["KEYS", "{duewheel:2}:*"]);
    let keys: Vec<String> = keys.list().iter().filter_map(Value::text).collect();
    let words: Vec<&str> = ["DEL"].into_iter().chain(keys.iter().map(String::as_str)).collect();
    ask(&redis, &words);
    let again = process(&redis, Create::Always);
    let me = again.join(&candidate("a")).unwrap().node;
    assert!(refusal(take(&again, &me, 2)).contains("have been made before"));
    drop(take(&again, &me, 1).unwrap());
    again.leave(&me).unwrap();
    // The cluster's key is gone, too: the shards that are left say which it was.
    let secret = ask(&redis, &["HGET", CLUSTER, "secret"]).text();
    let id = ask(&redis, &["HGET", CLUSTER, "id"]).text();
    ask(&redis, &["DEL", CLUSTER]);
    let done = again.reset(SHARDS).unwrap();
    assert_eq!((done.kept, done.made), ([0, 1, 3].map(ShardId).to_vec(), vec![ShardId(2)]));
    assert_eq!(ask(&redis, &["HGET", CLUSTER, "id"]).text(), id);
    assert_ne!(ask(&redis, &["HGET", CLUSTER, "secret"]).text(), secret, "nobody knew it any more");
    let after = process(&redis, Create::Always);
    let me = after.join(&candidate("a")).unwrap().node;
    drop(take(&after, &me, 2).unwrap());
    assert!(
        refusal(process(&redis, Create::Always).join(&candidate("b")).and_then(|b| {
            ask(&redis, &["HSET", "{duewheel:1}:head", "placement", "77"]);
            take(&after, &b.node, 1)
        }))
        .contains("placement 77")
    );
}

/// Story: the cluster's key was lost by a failover before a replica had it. The next node made another cluster, with
/// another number of shards, over the same keys: cancels missed their messages, and a key was had by two.
#[test]
fn shards_of_another_cluster_are_refused() {
    let redis = server();
    let a = process(&redis, Create::Always);
    let me = a.join(&candidate("a")).unwrap().node;
    let mut store = take(&a, &me, 1).unwrap();
    store.close(ClockPair::default()).unwrap();
    ask(&redis, &["DEL", CLUSTER, NODES]);
    let b = process(&redis, Create::Always);
    let of_b = b.join(&Candidate { shards_if_new: 8, ..candidate("b") }).unwrap();
    assert_eq!(of_b.shards, 8, "it cannot know");
    let said = refusal(take(&b, &of_b.node, 1));
    assert!(said.contains("4 shards"), "{said}");
    assert!(refusal(a.beat(&me)).contains("made anew"));
}

#[test]
fn different_leases_cannot_join() {
    let redis = server();
    let of = |ms| RedisCoordinator::new(options(&redis).lease(Duration::from_millis(ms)).unwrap());
    let (a, b) = (of(60_000), of(30_000));
    let me = a.join(&candidate("a")).unwrap().node;
    assert!(refusal(b.join(&candidate("b"))).contains("60000ms"));
    a.leave(&me).unwrap();
    b.join(&candidate("b")).unwrap();
}

#[test]
fn join_waits_for_configured_replicas() {
    let redis = server();
    let short = Duration::from_millis(100);
    let waits = RedisCoordinator::new(options(&redis).wait_replicas(1, short).unwrap());
    assert_eq!(kind(waits.join(&candidate("a"))), Some(ErrorKind::Unavailable));
    assert_eq!(ask(&redis, &["HLEN", NODES]).number(), Some(0), "its name is free");
    let copy = server();
    ask(&copy, &["REPLICAOF", "127.0.0.1", &redis.port().to_string()]);
    until("the replica follows", || waits.join(&candidate("a")).is_ok());
    let known = Options::parse(&copy.url(0)).is_ok() && ask(&copy, &["EXISTS", CLUSTER]).number() == Some(1);
    assert!(known, "the replica has it when the node is told");
}
