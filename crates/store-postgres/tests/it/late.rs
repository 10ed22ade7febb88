//! What comes late: statements that were given up, rows that others lock, clocks that go back, settings that change.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use duewheel_core::ShardId;
use duewheel_core::store::conformance::History;
use duewheel_core::store::{Coordinator, ErrorKind, Level, Store, StoreError};
use duewheel_postgres_rig::Postgres;
use duewheel_store_medium::{FileId, FileKind, Piece};

use crate::place::{LEASE, SHARD, append, candidate, node, open, server, until};

fn not_yet() -> StoreError {
    StoreError::new(ErrorKind::Unavailable, "not yet")
}

/// Story: a statement that named the manifest was held up in a proxy, repeated, and followed by a newer one. Then the
/// server came to the first one: the manifest was one whose bytes were gone, and the shard never opened again.
#[test]
fn late_name_change_undoes_nothing() {
    let postgres = server();
    let a = node(&postgres.url(), "a", 1);
    let (medium, _) = a.0.acquire(&a.1.node, SHARD, Arc::new(|| {})).expect("acquire");
    let file = |no: u64| FileId((u64::from(medium.epoch().0) << 31) + no);
    let name = |no: u64| medium.give_name("MANIFEST", file(no), FileKind::Blob, 8);
    for no in 1..=3 {
        let bytes = vec![u8::try_from(no).expect("small"); 8];
        medium.write(file(no), FileKind::Blob, vec![Piece { at: 0, bytes }]).expect("write");
        name(no).expect("a name");
    }
    // The same statement, and later than the newest one.
    name(1).expect_err("it is not the newest");
    let reader = a.0.read(SHARD).expect("a reader");
    let named = reader.find("MANIFEST").expect("an answer").expect("it is there");
    assert_eq!(named.id, file(3));
    assert_eq!(reader.read(named.id, 0, 8).expect("read"), [3; 8], "its bytes stay");
}

/// An owner whose newest changes are lost would remove what the manifest lists again.
#[test]
fn owner_stops_behind_gap() {
    let postgres = server();
    let a = node(&postgres.url(), "a", 1);
    let losses = [
        ("a name", "DELETE FROM duewheel.file WHERE name = 'b'; UPDATE duewheel.turn SET n = n - 1"),
        (
            "a name, before a write",
            "DELETE FROM duewheel.file WHERE name = 'b'; UPDATE duewheel.turn SET n = n - 1",
        ),
        ("a removal", "UPDATE duewheel.turn SET n = n - 1"),
        ("a row of the journal", "DELETE FROM duewheel.piece WHERE body = '\\x07'"),
        ("a piece", "DELETE FROM duewheel.piece WHERE body = '\\x09'"),
    ];
    for (what, loses) in losses {
        let (medium, _) = until("acquire", || a.0.acquire(&a.1.node, SHARD, Arc::new(|| {})));
        let file = |no: u64| FileId((u64::from(medium.epoch().0) << 31) + no);
        let write = |no, kind, byte| medium.write(file(no), kind, vec![Piece { at: 0, bytes: vec![byte] }]);
        for (no, name) in [(1, "a"), (2, "b"), (3, "c")] {
            write(no, FileKind::Blob, 1).expect("write");
            medium.give_name(name, file(no), FileKind::Blob, 1).expect("a name");
        }
        write(4, FileKind::Journal, 7).expect("write");
        write(5, FileKind::Blob, 9).expect("write");
        assert!(medium.remove("c").expect("a removal"));
        postgres.query(loses).expect("a loss");
        // Either is the next change of the owner.
        let refused = match what {
            "a name, before a write" => write(4, FileKind::Journal, 7).map(drop),
            "a piece" => medium.give_name("d", file(5), FileKind::Blob, 1).map(drop),
            _ => medium.remove("a").map(drop),
        };
        let refused = refused.expect_err(what);
        assert!(refused.to_string().contains("lost the newest changes"), "{what}: {refused}");
        assert!(medium.check().is_err(), "for ever");
        let reader = a.0.read(SHARD).expect("a reader");
        assert!(reader.find("a").expect("an answer").is_some(), "{what}: nothing was removed");
        medium.ended(StoreError::new(ErrorKind::Closed, "the test goes on"));
    }
}

/// A session of an administrator, or what a node has left that lost its power in the middle of a transaction.
#[test]
fn locked_row_blocks_no_other_shard() {
    let postgres = server();
    let a = node(&postgres.url(), "a", 3);
    let mut store = open(&a);
    store.recovered();
    let port = postgres.port();
    let locker = thread::spawn(move || {
        Postgres::query_at(
            port,
            "BEGIN; SELECT 1 FROM duewheel.shard WHERE shard > 0 FOR UPDATE; SELECT pg_sleep(10); COMMIT",
        )
    });
    let locked =
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'BEGIN; SELECT 1 FROM duewheel.shard%'";
    until("it is locked", || match postgres.query(locked).expect("a count").as_str() {
        "0" => Err(not_yet()),
        _ => Ok(()),
    });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    let (begun, mut history, mut most) = (Instant::now(), History::new(1), 0);
    thread::scope(|scope| {
        for shard in [1, 2] {
            let a = &a;
            scope.spawn(move || {
                while begun.elapsed() < 4 * LEASE {
                    let refused = a.0.open(&a.1.node, ShardId(shard), Arc::new(|| {})).err();
                    assert!(refused.is_some(), "its row is locked");
                }
            });
        }
        while begun.elapsed() < 4 * LEASE {
            append(&mut *store, &mut history, 3).expect("the other shard goes on");
            a.0.beat(&a.1.node).expect("so does the node");
            most = most.max(postgres.query(waiting).expect("a count").parse::<u32>().expect("a number"));
            thread::sleep(Duration::from_millis(50));
        }
    });
    assert!(most <= 3, "{most} sessions of the server wait for locks at a time");
    locker.join().expect("it ends").expect("it answers");
    for shard in [1, 2] {
        until("open", || a.0.open(&a.1.node, ShardId(shard), Arc::new(|| {})));
    }
}

/// A lease that ends an hour from now is one that a clock has made, not its owner.
#[test]
fn backward_clock_step_frees_dead_node() {
    let postgres = server();
    let (a, b) = (node(&postgres.url(), "a", 1), node(&postgres.url(), "b", 1));
    let mut history = History::new(2);
    let mut store = open(&a);
    store.recovered();
    append(&mut *store, &mut history, 10).expect("append");
    // The same as a step of the clock: what is stored lies far ahead. The node is dead by then.
    drop(store);
    drop(a);
    for table in ["lease", "node"] {
        let ahead = format!("UPDATE duewheel.{table} SET until = clock_timestamp() + interval '1 hour'");
        postgres.query(&ahead).expect("update");
    }
    let living = until("the dead one is dead", || {
        let living = b.0.beat(&b.1.node)?;
        match living.len() {
            1 => Ok(living),
            _ => Err(not_yet()),
        }
    });
    assert_eq!(&*living[0].name, "b");
    until("open", || b.0.open(&b.1.node, SHARD, Arc::new(|| {})));
    until("its name is free", || b.0.join(&candidate("a", 1)));
}

#[test]
fn answer_level_follows_own_commit() {
    let postgres = server();
    let a = node(&postgres.url(), "a", 1);
    let mut history = History::new(3);
    let mut store = open(&a);
    store.recovered();
    append(&mut *store, &mut history, 10).expect("append");
    assert_eq!(store.progress().expect("progress").level, Level::Fsync);
    for (setting, level) in [("off", Level::Buffered), ("on", Level::Fsync)] {
        postgres.query(&format!("ALTER SYSTEM SET synchronous_commit = {setting}")).expect("set");
        postgres.query("SELECT pg_reload_conf()").expect("reload");
        // The sessions that there are take it, each before its next statement.
        until("it is told", || {
            append(&mut *store, &mut history, 3)?;
            match store.progress()?.level {
                now if now == level => Ok(()),
                _ => Err(not_yet()),
            }
        });
    }
}
