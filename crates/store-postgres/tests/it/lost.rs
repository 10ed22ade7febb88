//! Servers that die, that lose their newest changes, and that come back empty.

use std::sync::Arc;

use duewheel_core::store::conformance::History;
use duewheel_core::store::{Coordinator, ErrorKind, Level, Store};
use duewheel_postgres_rig::{Postgres, Settings};

use crate::place::{SHARD, append, node, open, server, until};

#[test]
fn nothing_durable_is_lost_when_the_server_is_killed() {
    let mut postgres = server();
    let mut history = History::new(3);
    for round in 0..4 {
        let a = node(&postgres.url(), &format!("a{round}"), 1);
        let mut store = open(&a);
        let recovered = store.recovered();
        assert_eq!(recovered.next_lsn, history.model().applied().next(), "round {round}");
        for _ in 0..40 {
            append(&mut *store, &mut history, 30).expect("append");
        }
        if round % 2 == 0 { postgres.kill() } else { postgres.stop_immediately() }.expect("it ran");
        postgres.start_again().expect("start");
        // A write that had no answer is made again, as long as the lease runs.
        let goes_on = append(&mut *store, &mut history, 5);
        if goes_on.is_err() {
            // The lease ran out meanwhile; what became of the group is unknown.
            drop(store);
            let last = until("open", || a.0.open(&a.1.node, SHARD, Arc::new(|| {}))).recovered().next_lsn;
            history.forget_after(duewheel_core::Lsn(last.0 - 1));
        }
    }
}

/// A standby that is promoted lacks what had not reached it.
#[test]
fn a_promoted_standby_that_lacks_the_end_is_noticed_before_anything_is_acknowledged() {
    let primary = server();
    let a = node(&primary.url(), "a", 1);
    let mut history = History::new(4);
    let mut store = open(&a);
    let first = store.recovered();
    append(&mut *store, &mut history, 20).expect("append");
    let mut standby = Postgres::standby(&primary, "s", Settings::default()).expect("a standby");
    let kept = history.model().applied();
    // The connection of another call finds the standby.
    let asked = node(&primary.url(), "c", 1);
    assert_eq!(asked.0.level(), Level::BestEffortReplicated, "an asynchronous standby may be promoted");
    // From here on it gets nothing.
    standby.stop().expect("stop");
    append(&mut *store, &mut history, 20).expect("append");
    drop(store);
    drop(primary);
    standby.start_again().expect("start");
    standby.promote().expect("promote");
    let b = node(&standby.url(), "b", 1);
    let mut store = open(&b);
    let recovered = store.recovered();
    assert_eq!(recovered.next_lsn, kept.next(), "what it had");
    assert!(recovered.epoch > first.epoch && recovered.tokens > first.tokens);
    assert!(recovered.next_id > first.next_id + (1 << 20), "no id is given again");
}

/// The journal of an owner goes on behind a gap: what it acknowledges then would be lost at the next start.
#[test]
fn a_journal_with_a_gap_is_not_continued() {
    let postgres = server();
    let a = node(&postgres.url(), "a", 1);
    let mut history = History::new(5);
    let mut store = open(&a);
    store.recovered();
    for _ in 0..3 {
        append(&mut *store, &mut history, 2).expect("append");
    }
    // As a failover that took the last change back.
    postgres
        .query(
            "DELETE FROM duewheel.piece WHERE seq = (SELECT max(p.seq) FROM duewheel.piece p JOIN duewheel.file f \
             ON f.id = p.file WHERE f.name LIKE 'journal/%')",
        )
        .expect("delete");
    let refused = append(&mut *store, &mut history, 2).expect_err("the row before is gone");
    assert!(refused.to_string().contains("lost the newest changes"), "{refused}");
    assert!(store.progress().is_err(), "for ever");
}

#[test]
fn an_emptied_database_is_refused() {
    let postgres = server();
    let a = node(&postgres.url(), "a", 1);
    drop(open(&a));
    postgres.query("DELETE FROM duewheel.shard").expect("delete");
    let refused = a.0.open(&a.1.node, SHARD, Arc::new(|| {})).err().expect("it is gone");
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
    postgres.query("DELETE FROM duewheel.cluster").expect("delete");
    assert_eq!(a.0.beat(&a.1.node).expect_err("it is gone").kind(), ErrorKind::Corrupt);
    postgres.query("DROP SCHEMA duewheel CASCADE").expect("drop");
    let refused = a.0.beat(&a.1.node).expect_err("no tables");
    assert!(refused.to_string().contains("duewheel store init"), "{refused}");
    assert!(!a.0.has_tables().expect("an answer"));
}

#[test]
fn a_synchronous_standby_is_a_quorum() {
    let settings = Settings::default();
    let primary = Postgres::start(settings).expect("a server");
    let a = node(&primary.url(), "a", 1);
    assert_eq!(open(&a).level(), Level::Fsync);
    assert_eq!(a.0.inspect().expect("an answer"), None);
    let _standby = Postgres::standby(&primary, "s", Settings::default()).expect("a standby");
    primary.query("ALTER SYSTEM SET synchronous_standby_names = 's'").expect("set");
    primary.query("SELECT pg_reload_conf()").expect("reload");
    let b = node(&primary.url(), "b", 1);
    let mut history = History::new(6);
    let mut store = open(&b);
    store.recovered();
    append(&mut *store, &mut history, 20).expect("append");
    assert_eq!(store.progress().expect("progress").level, Level::Quorum);
}
