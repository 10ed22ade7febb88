//! Servers that die, that lose their newest changes, and that come back empty.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use duewheel_core::store::conformance::History;
use duewheel_core::store::{Coordinator, ErrorKind, Level, Store, StoreError};
use duewheel_postgres_rig::{Postgres, Settings};
use duewheel_store_log::Options as LogOptions;
use duewheel_store_postgres::{Options, PostgresCoordinator};

use crate::place::{LEASE, SHARD, append, candidate, node, open, options, server, until};

#[test]
fn killed_server_loses_nothing_durable() {
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

/// A standby that is promoted lacks what had not reached it. The owner goes on to write, to the standby, and is refused.
#[test]
fn lagging_promoted_standby_is_noticed() {
    let primary = server();
    let mut standby = None;
    let mut history = History::new(4);
    let first = {
        let a = node(&primary.url(), "a", 1);
        let mut store = open(&a);
        append(&mut *store, &mut history, 20).expect("append");
        standby.replace(Postgres::standby(&primary, "s", Settings::default()).expect("a standby"));
        store.recovered()
    };
    let mut standby = standby.expect("it was made");
    let url = format!(
        "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres?target_session_attrs=read-write",
        primary.port(),
        standby.port()
    );
    let a = until("it joins", || {
        let nodes = PostgresCoordinator::new(options(&url).lease(Duration::from_secs(20)).expect("a lease"))?;
        let joined = nodes.join(&candidate("b", 1))?;
        Ok((nodes, joined))
    });
    let mut store = open(&a);
    store.recovered();
    append(&mut *store, &mut history, 20).expect("append");
    assert_eq!(a.0.level(), Level::BestEffortReplicated, "an asynchronous standby may be promoted");
    let kept = history.model().applied();
    until("the standby has it", || {
        let behind = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn < pg_current_wal_lsn()";
        match primary.query(behind).expect("a count").as_str() {
            "0" => Ok(()),
            _ => Err(StoreError::new(ErrorKind::Unavailable, "not yet")),
        }
    });
    // From here on it gets nothing.
    standby.stop().expect("stop");
    for _ in 0..5 {
        append(&mut *store, &mut history, 20).expect("append");
    }
    let durable = history.model().applied();
    drop(primary);
    standby.start_again().expect("start");
    standby.promote().expect("promote");
    let refused = append(&mut *store, &mut history, 20).expect_err("what is before it is lost");
    assert!(refused.to_string().contains("lost the newest changes"), "{refused}");
    drop(store);
    // The process that had it knows what is lost, and goes on without it.
    let mut store = open(&a);
    let recovered = store.recovered();
    assert_eq!(recovered.next_lsn, kept.next(), "what it had");
    assert!(recovered.epoch > first.epoch && recovered.tokens > first.tokens);
    assert!(recovered.next_id > first.next_id + (1 << 20), "no id is given again");
    assert_eq!(figure(&*store, "lost_changes_total"), durable.0 - kept.0);
}

/// A figure of a store by its name.
fn figure(store: &dyn Store, name: &str) -> u64 {
    store.figures().into_iter().find(|(named, _)| *named == name).expect("it has it").1
}

/// What was durable at a quorum is lost only when somebody has promoted the wrong server, or has restored an old copy: an
/// operator decides.
#[test]
fn quorum_loss_needs_operator() {
    let primary = server();
    let _standby = Postgres::standby(&primary, "s", Settings::default()).expect("a standby");
    primary.query("ALTER SYSTEM SET synchronous_standby_names = 's'").expect("set");
    primary.query("SELECT pg_reload_conf()").expect("reload");
    let (a, b) = (node(&primary.url(), "a", 1), node(&primary.url(), "b", 1));
    let mut history = History::new(12);
    let of_journal =
        "FROM duewheel.piece p JOIN duewheel.file f ON f.id = p.file WHERE f.name LIKE 'journal/%'";
    let newest = || primary.query(&format!("SELECT max(p.seq) {of_journal}")).expect("a number");
    let lose_from = |seq: &str| {
        let lost =
            format!("DELETE FROM duewheel.piece WHERE seq IN (SELECT p.seq {of_journal} AND p.seq >= {seq})");
        primary.query(&lost).expect("delete");
    };
    for is_noticed_by_its_owner in [true, false] {
        let mut store = open(&a);
        store.recovered();
        until("a quorum", || {
            append(&mut *store, &mut history, 5)?;
            match store.progress()?.level {
                Level::Quorum => Ok(()),
                _ => Err(StoreError::new(ErrorKind::Unavailable, "not yet")),
            }
        });
        // A manifest that is written later would prove what is lost, and the loss would be no suffix.
        until("segments are prepared", || {
            let turn = || primary.query("SELECT n FROM duewheel.turn").expect("a number");
            let before = turn();
            std::thread::sleep(Duration::from_millis(500));
            if turn() == before { Ok(()) } else { Err(StoreError::new(ErrorKind::Unavailable, "not yet")) }
        });
        append(&mut *store, &mut history, 5).expect("append");
        let seq = newest();
        if is_noticed_by_its_owner {
            // A mark of the clocks may have been on its way beside the loss.
            let refused = until("it is refused", || {
                lose_from(&seq);
                match append(&mut *store, &mut history, 5) {
                    Ok(()) => Err(StoreError::new(ErrorKind::Unavailable, "not yet")),
                    Err(refused) => Ok(refused),
                }
            });
            assert!(refused.to_string().contains("level quorum"), "{refused}");
            drop(store);
            lose_from(&seq);
        } else {
            drop(store);
            lose_from(&seq);
            let refused = a.0.open(&a.1.node, SHARD, Arc::new(|| {})).err().expect("it knows what is lost");
            assert!(refused.to_string().contains("changes were durable at the level quorum"), "{refused}");
        }
        let kept = history.model().applied();
        // Nor does a node that did not have it.
        let refused = until("its lease is over", || match b.0.open(&b.1.node, SHARD, Arc::new(|| {})) {
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(error),
            Err(error) => Err(error),
            Ok(_) => panic!("it is opened"),
        });
        assert!(refused.to_string().contains("duewheel cluster reset"), "{refused}");
        assert_eq!(b.0.give_up_lost().expect("an answer"), [SHARD]);
        assert_eq!(b.0.give_up_lost().expect("an answer"), [], "once");
        let last = open(&b).recovered().next_lsn;
        assert!(last <= kept.next(), "{last:?}");
        history.forget_after(duewheel_core::Lsn(last.0 - 1));
    }
}

/// The journal of an owner goes on behind a gap: what it acknowledges then would be lost at the next start.
#[test]
fn journal_gap_is_not_continued() {
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
    assert_eq!(open(&a).terms().level, Level::Fsync);
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

/// A commit whose wait for the standby is cancelled is on one machine alone. It is not acknowledged, and made again. When
/// the server does not wait for standbys any more, the commit that waits returns without a warning; it is no quorum.
#[test]
fn cancelled_standby_wait_misses_level() {
    let primary = server();
    let options = options(&primary.url()).lease(Duration::from_secs(30)).expect("a lease");
    let nodes = PostgresCoordinator::new(options).expect("a coordinator");
    nodes.init().expect("tables");
    let joined = nodes.join(&candidate("a", 1)).expect("join");
    let mut store = open(&(nodes, joined));
    store.recovered();
    let names = |change: &str| {
        primary.query(change).expect("set");
        primary.query("SELECT pg_reload_conf()").expect("reload");
    };
    names("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    until("it counts", || {
        match primary.query("SHOW synchronous_standby_names").expect("an answer").as_str() {
            "nobody" => Ok(()),
            _ => Err(StoreError::new(ErrorKind::Unavailable, "not yet")),
        }
    });
    let group = History::new(10).group(5);
    store.append(&group).expect("append");
    let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    let mut cancelled = 0;
    until("three waits are cancelled", || {
        cancelled += primary.query(cancel).expect("an answer").parse::<u64>().expect("a number");
        assert!(store.progress().expect("progress").durable < group.last(), "it is on one machine");
        if cancelled >= 3 { Ok(()) } else { Err(StoreError::new(ErrorKind::Unavailable, "not yet")) }
    });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    until("it waits again", || match primary.query(waits).expect("an answer").as_str() {
        "0" => Err(StoreError::new(ErrorKind::Unavailable, "not yet")),
        _ => Ok(()),
    });
    names("ALTER SYSTEM RESET synchronous_standby_names");
    let level = until("it is durable", || match store.progress()? {
        progress if progress.durable >= group.last() => Ok(progress.level),
        _ => Err(StoreError::new(ErrorKind::Unavailable, "not yet")),
    });
    assert_eq!(level, Level::Fsync);
}

/// Story: a node that had joined after the last change that a standby knew was told that another one had its name, and
/// ended.
#[test]
fn forgotten_node_continues() {
    let postgres = server();
    let a = node(&postgres.url(), "a", 1);
    for lost in ["DELETE FROM duewheel.node", "UPDATE duewheel.node SET number = 1, advertise = 'old:1'"] {
        postgres.query(lost).expect("it is lost");
        assert_eq!(a.0.beat(&a.1.node).expect("a beat"), std::slice::from_ref(&a.1.node), "{lost}");
        assert_eq!(a.0.beat(&a.1.node).expect("another"), std::slice::from_ref(&a.1.node));
    }
    postgres.query("UPDATE duewheel.node SET number = number + 1").expect("another start has its name");
    assert_eq!(a.0.beat(&a.1.node).expect_err("a later start").kind(), ErrorKind::Fenced);
}

/// Story: the shard was begun anew, and what was left of its files was removed.
#[test]
fn shard_without_names_is_not_recreated() {
    let postgres = server();
    let a = node(&postgres.url(), "a", 1);
    let mut history = History::new(12);
    for round in 0..2 {
        let mut store = open(&a);
        append(&mut *store, &mut history, 20).expect("append");
        store.close(history.clock()).expect("close");
        postgres.query("CREATE TABLE kept AS TABLE duewheel.file; DELETE FROM duewheel.file").expect("lost");
        let pieces = || postgres.query("SELECT count(*) FROM duewheel.piece").expect("a count");
        let before = pieces();
        let refused = a.0.open(&a.1.node, SHARD, Arc::new(|| {})).err().expect("it has had files");
        assert_eq!((refused.kind(), pieces()), (ErrorKind::Corrupt, before), "{refused}");
        assert!(refused.to_string().contains("duewheel cluster reset"), "{refused}");
        if round == 0 {
            // They come back.
            postgres.query("INSERT INTO duewheel.file TABLE kept; DROP TABLE kept").expect("restored");
            assert_eq!(open(&a).recovered().next_lsn, history.model().applied().next());
        }
    }
    assert_eq!(a.0.give_up_lost().expect("an answer"), [SHARD]);
    assert_eq!(a.0.give_up_lost().expect("an answer"), [], "once");
    assert_eq!(open(&a).recovered().next_lsn, duewheel_core::Lsn(1));
}

/// A server that was set back has an earlier epoch. This process gives none again, within the same second either.
#[test]
fn lost_epoch_is_not_reused() {
    let postgres = server();
    let a = node(&postgres.url(), "a", 1);
    let mut last = duewheel_core::Epoch(0);
    for _ in 0..5 {
        let (medium, _) = a.0.acquire(&a.1.node, SHARD, Arc::new(|| {})).expect("it is free");
        assert!(medium.epoch() > last, "{:?}", medium.epoch());
        last = medium.epoch();
        postgres.query("UPDATE duewheel.shard SET epoch = 0; DELETE FROM duewheel.lease").expect("set back");
    }
}

/// The time between two owners is taken from the server's clock, whatever the calendar of the first one said.
#[test]
fn unowned_time_uses_server_clock() {
    let postgres = server();
    let a = node(&postgres.url(), "a", 1);
    let mut history = History::new(11);
    let mut store = open(&a);
    store.recovered();
    let begun = SystemTime::now();
    append(&mut *store, &mut history, 5).expect("append");
    drop(store);
    drop(open(&a)); // it ends in its takeover, which has written clocks of the owner before again
    std::thread::sleep(Duration::from_millis(700));
    drop(open(&a));
    let recovered = open(&a).recovered();
    let wall = Duration::from_millis(recovered.clock.expect("a clock").wall.0);
    let away = SystemTime::now().duration_since(UNIX_EPOCH + wall).expect("it is past");
    assert!(away >= Duration::from_millis(650), "{away:?}");
    assert!(away <= begun.elapsed().expect("a while") + Duration::from_secs(5), "{away:?}");
}

/// Story: the first groups of a segment went to the server in one row with its header. The next owner wrote the header
/// again, which replaced the row: what was durable was gone for the owner after it.
#[test]
fn groups_survive_header_rewrite() {
    let postgres = server();
    let size = 512 * 1024;
    let log = LogOptions {
        segment_bytes: size,
        small_segment_bytes: size,
        max_group_bytes: size / 2,
        ..LogOptions::default()
    };
    let options = Options::parse(&postgres.url()).expect("a URL").lease(LEASE).expect("a lease").log(log);
    let nodes = PostgresCoordinator::new(options).expect("a coordinator");
    nodes.init().expect("tables");
    let joined = until("it joins", || nodes.join(&candidate("a", 1)));
    let (a, mut history) = ((nodes, joined), History::new(7));
    for round in 0..4 {
        let mut store = open(&a);
        assert_eq!(store.recovered().next_lsn, history.model().applied().next(), "round {round}");
        // One behind the other: a header waits together with the groups behind it.
        for _ in 0..900 {
            store.append(&history.group(60)).expect("append");
        }
        store.sync().expect("sync");
        until("all is durable", || match store.progress()?.durable {
            durable if durable == history.model().applied() => Ok(()),
            _ => Err(StoreError::new(ErrorKind::Unavailable, "not yet")),
        });
    }
    let files = "SELECT count(*) FROM duewheel.file WHERE name LIKE 'journal/%'";
    let files: u64 = postgres.query(files).expect("a count").parse().expect("a number");
    assert!(files > 3, "the journal has several segments: {files}");
}
