//! Ways to a server: TLS, users, a cluster whose shards move, and nobody there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use duewheel_core::MessageId;
use duewheel_core::ShardId;
use duewheel_core::store::conformance::History;
use duewheel_core::store::{Candidate, Coordinator, ErrorKind, Found, Lookups, Ownership, Store};
use duewheel_redis_rig::{Certificates, Login, Redis, RedisCluster, Settings, Transport, Value, free_port};
use duewheel_store_redis::{Options, RedisCoordinator};

use crate::place::{LITTLE, PATIENCE, SHARD, kind, of_cluster, open, options, server, small, until};
use crate::shard::{Shard, put, queue};

fn works(options: &Options) {
    let mut history = History::new(1);
    let mut store = open(options);
    for _ in 0..20 {
        store.append(&history.group(20)).expect("append");
    }
    let last = history.model().applied();
    until("it is durable", || store.progress().expect("it lives").durable >= last);
    store.close(history.tick()).expect("close");
    assert_eq!(open(options).recovered().next_lsn, last.next());
}

/// Appends until there are runs of several blocks.
fn large_runs(shard: &mut Shard) {
    until("there are large runs", || {
        let id = shard.next.0;
        shard.append(vec![put(&queue("q"), id, None, Bytes::from(vec![7; 100_000]))]);
        shard.settle();
        shard.store.room();
        shard.figure("run_bytes") > 4 << 20
    });
}

#[test]
fn over_tls_as_a_user() {
    let login = Login::User { name: "wheel".into(), password: "s3:c/r@t".into() };
    let settings = Settings { login, transport: Transport::Tls, ..Settings::default() };
    let redis = Redis::start(settings).expect("a server");
    let authority = redis.certificates().expect("certificates").authority();
    let bare = format!("rediss://{}/0", redis.address());
    let options = Options::parse(&bare).unwrap().user("wheel").password("s3:c/r@t");
    let trusting = options.clone().tls_authority(&authority).unwrap();
    works(&trusting);
    let whole = Options::parse(&redis.url(0)).unwrap().tls_authority(&authority).unwrap();
    works(&whole.prefix("second").unwrap());
    // Who does not know the authority does not talk to it, and a wrong password is said to be one.
    assert_eq!(
        kind(duewheel_store_redis::open(&options, SHARD, Arc::new(|| {}))),
        Some(ErrorKind::Unavailable)
    );
    // Story: a start tried a wrong password again for a minute.
    let nobody = Options::parse(&bare).unwrap().tls_authority(&authority).unwrap();
    for wrong in [trusting.clone().password("hunter2"), nobody] {
        let wrong = RedisCoordinator::new(wrong).inspect().expect_err("a wrong login");
        assert_eq!(wrong.kind(), ErrorKind::Corrupt, "{wrong}");
        assert!(wrong.to_string().contains("--redis-password"), "{wrong}");
    }
    let wrong = duewheel_store_redis::open(&trusting.password("hunter2"), SHARD, Arc::new(|| {})).map(drop);
    let wrong = wrong.expect_err("a wrong password");
    assert!(!wrong.to_string().contains("hunter2"), "{wrong}");
}

/// The server asks its clients for a certificate, too (`tls-auth-clients yes`).
#[test]
fn server_connects_over_tls_with_certificate() {
    let settings = Settings { transport: Transport::TlsBothWays, ..Settings::default() };
    let redis = Redis::start(settings).expect("a server");
    let own = redis.certificates().expect("certificates");
    let nobody = Options::parse(&redis.url(0)).unwrap().tls_authority(own.authority()).unwrap();
    let shows = |by: &Certificates| {
        let [certificate, key] = by.client_files();
        nobody.clone().tls_client(certificate, key).unwrap()
    };
    works(&shows(own));
    // None, and one by an authority that the server does not know.
    let folder = tempfile::tempdir().unwrap();
    let strangers = shows(&Certificates::make(folder.path()).unwrap());
    let says = "certificate, or another one, of its clients (tls-auth-clients)";
    for options in [nobody, strangers] {
        let refused =
            duewheel_store_redis::open(&options, SHARD, Arc::new(|| {})).map(drop).expect_err("a stranger");
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        assert!(refused.to_string().contains(says), "{refused}");
        let refused = RedisCoordinator::new(options).owners().expect_err("a stranger");
        assert!(refused.to_string().contains(says), "{refused}");
    }
}

/// The same with a cluster, whose nodes say at which ports they speak TLS.
#[test]
fn cluster_connects_over_tls_with_certificate() {
    let settings = Settings { transport: Transport::TlsBothWays, ..Settings::default() };
    let cluster = RedisCluster::start(3, 0, settings).expect("a cluster");
    let own = cluster.node(0).certificates().expect("certificates");
    let [certificate, key] = own.client_files();
    let seed = cluster.addresses()[0];
    let options = Options::parse(&format!("rediss-cluster://{seed}")).unwrap();
    works(&options.tls_authority(own.authority()).unwrap().tls_client(certificate, key).unwrap());
}

/// The commands that `docs/redis.md` names are enough. Story: they were not for a run that fills a whole block.
#[test]
fn a_user_that_may_do_little() {
    let redis = server();
    let mut words = vec!["ACL", "SETUSER", "wheel", "on", ">pw", "resetchannels"];
    words.extend(LITTLE.split(' '));
    let reply = redis.command(&words).expect("a reply");
    assert!(!matches!(reply, Value::Error(_)), "{reply:?}");
    let options = options(&redis).user("wheel").password("pw");
    works(&options);
    let mut shard = Shard::open(&small(options.clone().prefix("duewheel:large").unwrap()));
    large_runs(&mut shard);
    drop(shard);
    let nodes = RedisCoordinator::new(options);
    let candidate = Candidate {
        name: "a".into(),
        advertise: "a:1".into(),
        shards_if_new: 2,
        settle_delay: Duration::ZERO,
    };
    let joined = nodes.join(&candidate).unwrap();
    assert_eq!(nodes.beat(&joined.node).unwrap(), vec![joined.node.clone()]);
    assert_eq!(nodes.owners().unwrap(), vec![Ownership::Free; 2]);
    nodes.leave(&joined.node).unwrap();
}

/// Whoever waits for a look-up is told as soon as the lease is not sure, not when the answer is overdue.
#[test]
fn lookup_waits_at_most_lease() {
    let redis = server();
    let lease = Duration::from_secs(2);
    let timeout = Duration::from_secs(300);
    let options = options(&redis).lease(lease).unwrap().response_timeout(timeout).unwrap();
    // Messages in runs, which are in Redis alone, and so large that opening them does not read all.
    let mut shard = Shard::open(&small(options.clone()));
    large_runs(&mut shard);
    let ids = (1..shard.next.0).map(MessageId).collect();
    drop(shard);
    // As another process would: it has read nothing.
    let lookups = Lookups { ids, ..Lookups::default() };
    let again =
        Options::parse(&redis.url(0)).unwrap().lease(lease).unwrap().response_timeout(timeout).unwrap();
    let mut store = open(&small(again));
    redis.pause().unwrap();
    let started = Instant::now();
    let found = store.find_many(&lookups, &mut Found::default());
    assert_eq!(kind(found), Some(ErrorKind::Fenced));
    assert!(started.elapsed() < PATIENCE);
    redis.resume().unwrap();
}

#[test]
fn databases_are_apart() {
    let redis = server();
    for db in [0, 5] {
        works(&Options::parse(&redis.url(db)).unwrap());
    }
}

#[test]
fn nobody_there_is_known_in_time() {
    let port = free_port().expect("a free port");
    let options = Options::parse(&format!("redis://127.0.0.1:{port}")).unwrap();
    let started = Instant::now();
    let error =
        duewheel_store_redis::open(&options, SHARD, Arc::new(|| {})).map(drop).expect_err("nobody is there");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains(&port.to_string()), "{error}");
    // A server that takes connections and says nothing.
    let redis = server();
    redis.pause().unwrap();
    let short = Duration::from_millis(200);
    let options =
        crate::place::options(&redis).connect_timeout(short).unwrap().response_timeout(short).unwrap();
    assert_eq!(
        kind(duewheel_store_redis::open(&options, SHARD, Arc::new(|| {}))),
        Some(ErrorKind::Unavailable)
    );
    assert_eq!(kind(RedisCoordinator::new(options).owners()), Some(ErrorKind::Unavailable));
    assert!(started.elapsed() < PATIENCE);
    redis.resume().unwrap();
}

/// The master of a shard dies, and its replica takes over.
#[test]
fn a_failover_is_another_reign() {
    let mut cluster = RedisCluster::start(3, 1, Settings::default()).expect("a cluster");
    let options = of_cluster(&cluster).lease(Duration::from_secs(2)).unwrap();
    let nodes = RedisCoordinator::new(options);
    let candidate = Candidate {
        name: "a".into(),
        advertise: "a:1".into(),
        shards_if_new: 6,
        settle_delay: Duration::ZERO,
    };
    let joined = nodes.join(&candidate).unwrap();
    let mut history = History::new(3);
    let mut store = nodes.open(&joined.node, SHARD, Arc::new(|| {})).unwrap();
    let others: Vec<_> = (0..6)
        .filter(|shard| *shard != SHARD.0)
        .map(|shard| nodes.open(&joined.node, ShardId(shard), Arc::new(|| {})).unwrap())
        .collect();
    assert!(nodes.owners().unwrap().iter().all(|owner| owner.owner().is_some()));
    let epoch = store.recovered().epoch;
    let group = history.group(20);
    store.append(&group).unwrap();
    until("it is durable", || store.progress().unwrap().durable >= group.last());
    let key = format!("{{duewheel:{SHARD}}}:owner");
    let (slot, master) = (cluster.slot_of_key(&key).unwrap(), cluster.master_of_key(&key).unwrap());
    cluster.kill(master).unwrap();
    cluster.wait_for_failover(slot, master, PATIENCE).unwrap();
    let mut error = None;
    until("the reign is over", || {
        error = kind(store.progress());
        error.is_some()
    });
    assert!(matches!(error, Some(ErrorKind::Fenced | ErrorKind::Unavailable)), "{error:?}");
    drop(store);
    let mut again = None;
    until("it is taken again", || {
        again = nodes.open(&joined.node, SHARD, Arc::new(|| {})).ok();
        again.is_some()
    });
    let mut again = again.expect("a store");
    let recovered = again.recovered();
    assert!(recovered.epoch > epoch);
    let next = recovered.next_lsn;
    assert!(history.model_at(duewheel_core::Lsn(next.0 - 1)).is_some(), "whole groups are there");
    drop(others);
}
