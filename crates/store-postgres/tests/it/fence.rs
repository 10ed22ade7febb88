//! One owner at a time, whatever an earlier one does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use duewheel_core::store::conformance::History;
use duewheel_core::store::{Coordinator, ErrorKind, Ownership, Store, StoreError};

use duewheel_postgres_rig::{PgBouncer, Postgres};

use crate::place::{PATIENCE, SHARD, append, candidate, node, node_of, open, options, server, until};

#[test]
fn single_owner_hands_over_all_records() {
    let postgres = server();
    // Longer than `open` waits.
    let lease = Duration::from_secs(600);
    let node = |name, shards| node_of(options(&postgres.url()).lease(lease).expect("a lease"), name, shards);
    let (a, b) = (node("a", 2), node("b", 7));
    assert_eq!((a.1.shards, b.1.shards), (2, 2), "fixed by the first node");
    assert_ne!(a.1.node.number, b.1.node.number);
    let mut history = History::new(1);
    let mut first = open(&a);
    let before = first.recovered();
    for _ in 0..30 {
        append(&mut *first, &mut history, 20).expect("append");
    }
    let refused = b.0.open(&b.1.node, SHARD, Arc::new(|| {})).err().expect("it has an owner");
    assert_eq!(refused.kind(), ErrorKind::Fenced);
    let owners = b.0.owners().expect("owners");
    assert!(matches!(&owners[0], Ownership::Owned(owner) if *owner.node.name == *"a"), "{owners:?}");
    assert_eq!(owners[1], Ownership::Free);
    // A clean end gives the lease back.
    first.close(history.clock()).expect("close");
    let mut second = open(&b);
    let after = second.recovered();
    assert!(after.epoch > before.epoch && after.tokens > before.tokens);
    assert_eq!(after.next_lsn, history.model().applied().next());
    assert!(after.next_id >= history.model().next_id());
}

/// Story of every store that is shared: an owner sleeps, another takes over, and the first one wakes up.
#[test]
fn who_is_deposed_acknowledges_nothing() {
    let postgres = server();
    let (a, b) = (node(&postgres.url(), "a", 1), node(&postgres.url(), "b", 1));
    let mut history = History::new(2);
    let mut first = open(&a);
    first.recovered();
    append(&mut *first, &mut history, 20).expect("append");
    // The lease ends as far as others can see, and not as far as its owner knows, who may have renewed it a moment later.
    let mut second = until("open", || {
        postgres.query("UPDATE duewheel.lease SET until = 'epoch'").expect("update");
        b.0.open(&b.1.node, SHARD, Arc::new(|| {}))
    });
    let recovered = second.recovered();
    assert_eq!(recovered.next_lsn, history.model().applied().next());
    let durable = history.model().applied();
    let refused = append(&mut *first, &mut history, 20).expect_err("it is deposed");
    assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
    assert_eq!(first.progress().expect_err("for ever").kind(), ErrorKind::Fenced);
    history.forget_after(durable);
    append(&mut *second, &mut history, 20).expect("the new owner goes on");
    drop(second);
    let mut third = open(&b);
    assert_eq!(third.recovered().next_lsn, history.model().applied().next());
}

#[test]
fn lease_expires_by_owner_clock() {
    let postgres = server();
    let a = node(&postgres.url(), "a", 1);
    let mut store = open(&a);
    store.recovered();
    postgres.pause().expect("pause");
    let deadline = Instant::now() + PATIENCE;
    while store.progress().is_ok() {
        assert!(Instant::now() < deadline, "it answers for ever");
        std::thread::sleep(Duration::from_millis(10));
    }
    postgres.go_on().expect("go on");
}

/// Nodes of a new cluster start together: each finds no tables.
#[test]
fn nodes_create_tables_concurrently() {
    let postgres = server();
    let url = postgres.url();
    let shards: Vec<u32> = std::thread::scope(|scope| {
        let node = |n: usize| {
            let url = url.clone();
            scope.spawn(move || {
                let options = crate::place::options(&url);
                let nodes =
                    duewheel_store_postgres::PostgresCoordinator::new(options).expect("a coordinator");
                until("tables", || nodes.init());
                until("join", || nodes.join(&candidate(&format!("n{n}"), 4))).shards
            })
        };
        let nodes: Vec<_> = (0..6).map(node).collect();
        nodes.into_iter().map(|node| node.join().expect("it ends")).collect()
    });
    assert_eq!(shards, [4; 6]);
    assert_eq!(postgres.query("SELECT count(*) FROM duewheel.shard").expect("a count"), "4");
}

/// A pooler gives each transaction another connection of the server.
#[test]
fn a_pooler_may_stand_in_between() {
    let postgres = server();
    let pooler = PgBouncer::start(&postgres).expect("pgbouncer");
    let a = node(&postgres.url_at(pooler.port()), "a", 2);
    let mut history = History::new(7);
    for _ in 0..2 {
        let mut store = open(&a);
        assert_eq!(store.recovered().next_lsn, history.model().applied().next());
        for _ in 0..30 {
            append(&mut *store, &mut history, 20).expect("append");
        }
        store.close(history.clock()).expect("close");
    }
    a.0.leave(&a.1.node).expect("leave");
}

/// A transaction that is open for long keeps old versions of rows, and nothing else: it holds up nobody.
#[test]
fn long_transaction_blocks_nothing() {
    let postgres = server();
    let a = node(&postgres.url(), "a", 1);
    let other = postgres.url();
    let reader = std::thread::spawn(move || {
        let port: u16 = other.rsplit([':', '/']).find_map(|part| part.parse().ok()).expect("a port");
        Postgres::query_at(
            port,
            "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM duewheel.piece; SELECT pg_sleep(4); COMMIT",
        )
    });
    let mut history = History::new(8);
    let mut store = open(&a);
    store.recovered();
    for _ in 0..60 {
        append(&mut *store, &mut history, 20).expect("append");
    }
    reader.join().expect("it ends").expect("it answers");
    let versions = postgres.query("SELECT pg_relation_size('duewheel.shard')").expect("a size");
    assert!(versions.parse::<u64>().expect("a number") <= 16 * 1024, "{versions} bytes for one row");
    store.close(history.clock()).expect("close");
}

/// The printed statements give a role what the server needs, and the server needs no more.
#[test]
fn the_least_role_is_enough() {
    let postgres = server();
    let statements = duewheel_store_postgres::schema("wheel");
    postgres.query("CREATE ROLE app LOGIN PASSWORD 'secret'").expect("a role");
    postgres.query(&statements).expect("tables");
    postgres.query(&duewheel_store_postgres::role("wheel", "app").expect("a name")).expect("rights");
    postgres.query(&statements).expect("they may be repeated");
    let url = postgres.url().replace("postgres@", "app:secret@");
    let options = crate::place::options(&url).schema("wheel").expect("a name");
    let nodes = duewheel_store_postgres::PostgresCoordinator::new(options).expect("a coordinator");
    assert!(nodes.has_tables().expect("an answer"));
    assert_eq!(nodes.inspect().expect("an answer"), None);
    let joined = nodes.join(&candidate("a", 1)).expect("join");
    let mut history = History::new(9);
    let mut store = open(&(nodes, joined));
    store.recovered();
    for _ in 0..40 {
        append(&mut *store, &mut history, 20).expect("append");
    }
    store.close(history.clock()).expect("close");
    let refused = postgres.query("SET ROLE app; CREATE TABLE wheel.other (n int)");
    assert!(refused.is_err(), "it may make no tables");
}

/// Story: a role with a schema of its own, and no right to make others, was refused.
#[test]
fn role_creates_tables_in_own_schema() {
    let postgres = server();
    postgres.query("CREATE ROLE own LOGIN; CREATE SCHEMA wheel AUTHORIZATION own").expect("a role");
    let nodes = |schema: &str| {
        let url = postgres.url().replace("postgres@", "own@");
        let options = options(&url).schema(schema).expect("a name");
        duewheel_store_postgres::PostgresCoordinator::new(options).expect("a coordinator")
    };
    let own = nodes("wheel");
    own.init().expect("tables");
    own.init().expect("they may be repeated");
    assert!(own.has_tables().expect("an answer"));
    let refused = nodes("other").init().expect_err("it may make no schema");
    assert!(refused.to_string().contains("duewheel store init --print --role"), "{refused}");
}

#[test]
fn node_name_belongs_to_one_node() {
    let postgres = server();
    let a = node(&postgres.url(), "a", 1);
    let refused = a.0.join(&candidate("a", 1)).expect_err("it lives");
    assert_eq!(refused.kind(), ErrorKind::Fenced);
    let names =
        |nodes: Vec<duewheel_core::store::Node>| nodes.into_iter().map(|node| node.name).collect::<Vec<_>>();
    assert_eq!(names(a.0.beat(&a.1.node).expect("beat")), ["a".into()]);
    a.0.leave(&a.1.node).expect("leave");
    assert_eq!(a.0.beat(&a.1.node).expect_err("it has left").kind(), ErrorKind::Fenced);
    let again = until("join", || a.0.join(&candidate("a", 1)));
    assert!(again.node.number > a.1.node.number);
    let rotation = a.0.begin_rotation().expect("begin");
    let secrets = a.0.secrets().expect("secrets");
    assert!(rotation.is_new && secrets.former == Some(again.secret) && secrets.current != again.secret);
    assert!(!a.0.begin_rotation().expect("again").is_new, "an interrupted one goes on");
    a.0.end_rotation().expect("end");
    assert_eq!(a.0.secrets().expect("secrets").former, None);
}

/// A lease that has run out stays so, whoever asks: another node may have seen that it had.
#[test]
fn expired_lease_is_not_renewed() {
    let postgres = server();
    let url = postgres.url();
    let options = options(&url).lease(Duration::from_secs(30)).expect("a lease");
    let nodes = duewheel_store_postgres::PostgresCoordinator::new(options).expect("a coordinator");
    nodes.init().expect("tables");
    let joined = nodes.join(&candidate("a", 1)).expect("join");
    let mut store = open(&(nodes, joined));
    store.recovered();
    postgres.query("UPDATE duewheel.lease SET until = clock_timestamp() - interval '1 s'").expect("over");
    let refused = until("it is told", || match store.progress() {
        Ok(_) => Err(StoreError::new(ErrorKind::Unavailable, "not yet")),
        Err(refused) => Ok(refused),
    });
    assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
}

/// Story: an owner was killed in a merge. The next one removed what the merge had written before it renewed its lease,
/// which ran out: nobody served the shard.
#[test]
fn leftovers_delay_no_acquisition() {
    let postgres = server();
    let a = node(&postgres.url(), "a", 1);
    drop(a.0.acquire(&a.1.node, SHARD, Arc::new(|| {})).expect("it is free"));
    postgres
        .query(
            "INSERT INTO duewheel.piece (shard, file, at, seq, body) \
               SELECT 0, 1, n, n, '\\x01' FROM generate_series(1, 500) n; \
             CREATE TABLE gate (n int); \
             CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS \
               'BEGIN WHILE NOT EXISTS (SELECT 1 FROM gate) LOOP PERFORM pg_sleep(0.01); END LOOP; RETURN OLD; END'; \
             CREATE TRIGGER waits BEFORE DELETE ON duewheel.piece FOR EACH ROW EXECUTE FUNCTION waits()",
        )
        .expect("rows that cannot be removed yet");
    let (medium, _) = until("acquire", || a.0.acquire(&a.1.node, SHARD, Arc::new(|| {})));
    let left = || postgres.query("SELECT count(*) FROM duewheel.piece").expect("a count");
    assert_eq!(left(), "500");
    postgres.query("INSERT INTO gate VALUES (1)").expect("they can be removed");
    until("they are gone", || match left().as_str() {
        "0" => Ok(()),
        _ => Err(StoreError::new(ErrorKind::Unavailable, "not yet")),
    });
    medium.check().expect("its lease was renewed");
}

/// A renewal that nobody could see when another node looked, because its commit waited, counts.
#[test]
fn pending_renewal_blocks_acquire() {
    let postgres = server();
    let url = postgres.url();
    let (a, b) = (node(&url, "a", 1), node(&url, "b", 1));
    let medium = a.0.acquire(&a.1.node, SHARD, Arc::new(|| {})).expect("it is free");
    postgres.query("UPDATE duewheel.lease SET until = clock_timestamp() - interval '1 ms'").expect("over");
    let port = postgres.port();
    let renewal = std::thread::spawn(move || {
        Postgres::query_at(
            port,
            "BEGIN; UPDATE duewheel.lease SET until = clock_timestamp() + interval '20 s'; SELECT pg_sleep(1); COMMIT",
        )
    });
    let waits =
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(1)%' AND wait_event = 'PgSleep'";
    until("it is not seen yet", || match postgres.query(waits).expect("a count").as_str() {
        "1" => Ok(()),
        _ => Err(StoreError::new(ErrorKind::Unavailable, "not yet")),
    });
    let refused = b.0.acquire(&b.1.node, SHARD, Arc::new(|| {})).map(drop).expect_err("it was renewed");
    assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
    renewal.join().expect("it ends").expect("it commits");
    drop(medium);
}
