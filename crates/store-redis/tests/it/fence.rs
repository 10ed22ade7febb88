//! An owner whose reign is over can do nothing, whatever clocks and copies say.

use std::sync::Arc;
use std::time::{Duration, Instant};

use duewheel_core::Lsn;
use duewheel_core::store::conformance::History;
use duewheel_core::store::{ErrorKind, Found, Load, Lookups, Sequence, Store, StoreRequest, Which};
use duewheel_redis_rig::{Redis, Value};
use duewheel_store_medium::MediumStore;
use duewheel_store_redis::Options;

use crate::place::{SHARD, kind, open, options, server, until};

fn ask(redis: &Redis, words: &[&str]) -> Value {
    let reply = redis.command(words).expect("a reply");
    assert!(!matches!(reply, Value::Error(_)), "{words:?}: {reply:?}");
    reply
}

const OWNER: &str = "{duewheel:3}:owner";

/// As if the lease had run out on the server, by a step of its clock.
fn end_lease(redis: &Redis) {
    ask(redis, &["HSET", OWNER, "until", "0"]);
}

fn wait_for_error(store: &mut MediumStore) -> ErrorKind {
    let mut found = None;
    until("the store has ended", || {
        found = kind(store.progress());
        found.is_some()
    });
    found.expect("an error")
}

fn is_silent(store: &mut MediumStore, history: &mut History, kind_of_all: ErrorKind) {
    let load = Load {
        ticket: 1,
        sequence: Sequence::At,
        which: Which::All,
        after: None,
        until: u64::MAX,
        rows: 1,
        bytes: 1,
    };
    let clock = history.tick();
    let mut found = Found::default();
    for got in [
        kind(store.append(&History::new(1).group(1))),
        kind(store.sync()),
        kind(store.progress()),
        kind(store.find_many(&history.lookups(), &mut found)),
        kind(store.find_many(&Lookups::default(), &mut found)),
        kind(store.ask(StoreRequest::Load(load))),
        kind(store.idle(clock, None)),
        kind(store.close(clock)),
    ] {
        assert_eq!(got, Some(kind_of_all));
    }
    assert!(found.rows.is_empty());
}

fn durable(store: &mut MediumStore, last: Lsn) {
    until("the group is durable", || store.progress().expect("it lives").durable >= last);
}

/// An owner looks at its lease after a third of it: not while a test runs, however slow the machine is.
fn long_lease(redis: &Redis) -> Options {
    options(redis).lease(Duration::from_secs(600)).expect("a good lease")
}

#[test]
fn an_older_owner_is_fenced() {
    let redis = server();
    let options = long_lease(&redis);
    let mut history = History::new(1);
    let mut old = open(&options);
    let first = history.group(9);
    old.append(&first).unwrap();
    durable(&mut old, first.last());
    let refused = duewheel_store_redis::open(&options, SHARD, Arc::new(|| {}));
    assert_eq!(kind(refused), Some(ErrorKind::Fenced), "its lease runs");
    end_lease(&redis);
    let mut new = open(&options);
    assert!(new.recovered().epoch > old.recovered().epoch);
    // Both send the next group; one of them may.
    let next = history.group(9);
    let late = {
        history.forget_after(first.last());
        history.group(9)
    };
    let learnt = old.append(&late).err().map(|error| error.kind());
    assert!(matches!(learnt, None | Some(ErrorKind::Fenced)), "it may not know yet: {learnt:?}");
    assert_eq!(wait_for_error(&mut old), ErrorKind::Fenced);
    is_silent(&mut old, &mut history, ErrorKind::Fenced);
    new.append(&next).unwrap();
    durable(&mut new, next.last());
    let mut found = Found::default();
    new.find_many(&history.lookups(), &mut found).unwrap();
    history.forget_after(first.last());
    history.adopt(next);
    let mut expected = Found::default();
    history.model().find_many(&history.lookups(), &mut expected);
    found.rows.sort_by_key(|row| row.message.id);
    assert_eq!(found.rows, expected.rows);
}

#[test]
fn stalled_server_ends_reign() {
    let redis = server();
    let lease = Duration::from_millis(500);
    let options = options(&redis).lease(lease).unwrap();
    let mut history = History::new(2);
    let mut store = open(&options);
    let group = history.group(9);
    store.append(&group).unwrap();
    durable(&mut store, group.last());
    redis.pause().unwrap();
    let paused = Instant::now();
    let next = history.group(9);
    store.append(&next).unwrap();
    assert_eq!(wait_for_error(&mut store), ErrorKind::Fenced);
    assert!(paused.elapsed() >= lease / 2, "it was sure of its lease for a while");
    is_silent(&mut store, &mut history, ErrorKind::Fenced);
    redis.resume().unwrap();
    drop(store);
    let recovered = open(&options).recovered();
    assert!(
        [group.last().next(), next.last().next()].contains(&recovered.next_lsn),
        "the last group is there as a whole or not at all"
    );
}

/// Story: a failover that loses writes may bring back an owner that others have replaced, with a lease that runs. Here
/// the server itself is set back to an earlier state while the old owner's connection stays.
#[test]
fn rolled_back_owner_is_fenced() {
    let (redis, copy) = (server(), server());
    let options = long_lease(&redis);
    let mut history = History::new(3);
    let follow = |who: &Redis, whom: Option<&Redis>| {
        let port = whom.map_or("ONE".into(), |redis| redis.port().to_string());
        ask(who, &["REPLICAOF", whom.map_or("NO", |_| "127.0.0.1"), &port]);
        if whom.is_some() {
            until("it follows", || {
                let info = ask(who, &["INFO", "replication"]).text().unwrap_or_default();
                info.contains("master_link_status:up")
            });
        }
    };
    // The first replica changes the replication id, so it comes before the owner.
    follow(&copy, Some(&redis));
    let mut old = open(&options);
    let old_epoch = old.recovered().epoch;
    let group = history.group(9);
    old.append(&group).unwrap();
    durable(&mut old, group.last());
    let at = ask(&redis, &["HGET", "{duewheel:3}:head", "journal"]).number();
    until("the copy has it", || ask(&copy, &["HGET", "{duewheel:3}:head", "journal"]).number() == at);
    follow(&copy, None);

    end_lease(&redis);
    let mut new = open(&options);
    let new_epoch = new.recovered().epoch;
    assert!(new_epoch > old_epoch);
    let lost = history.group(9);
    new.append(&lost).unwrap();
    durable(&mut new, lost.last());

    follow(&redis, Some(&copy));
    follow(&redis, None);
    let named = ask(&redis, &["HGET", OWNER, "epoch"]).number();
    assert_eq!(named, Some(u64::from(old_epoch.0)), "the state names the old owner again");
    let ends = ask(&redis, &["HGET", OWNER, "until"]).number().expect("a time");
    let now = ask(&redis, &["TIME"]).list()[0].number().expect("a time") * 1000;
    assert!(ends > now, "with a lease that runs");

    history.forget_after(group.last());
    let next = history.group(9);
    // It may have learnt it before, by a mark that it wrote at rest.
    let learnt = old.append(&next).err().map_or_else(|| wait_for_error(&mut old), |error| error.kind());
    assert!(matches!(learnt, ErrorKind::Fenced | ErrorKind::Unavailable), "{learnt:?}");
    is_silent(&mut old, &mut history, learnt);
    let after = {
        let mut model = History::new(3);
        model.adopt(group.clone());
        model.adopt(lost);
        model.group(3)
    };
    let _ = new.append(&after); // the lease may have been found lost already
    // A mark that it wrote at rest may have met a copy, which takes no writes.
    assert!(matches!(wait_for_error(&mut new), ErrorKind::Fenced | ErrorKind::Unavailable));

    let mut newest = open(&options);
    let recovered = newest.recovered();
    assert!(recovered.epoch > new_epoch, "no epoch comes again");
    assert_eq!(recovered.next_lsn, group.last().next(), "what was lost is lost, and nothing else");
    newest.append(&next).unwrap();
    durable(&mut newest, next.last());
}

/// This process remembers its epochs; another one has only the server. So what counts here is that an epoch is the time
/// at which it was given: each reign is longer than a second, so none is ahead of the clock, and what is set back is
/// behind it.
#[test]
fn restored_copy_repeats_no_epoch() {
    const FIRST_EPOCH: u64 = 1_577_836_800;
    let mut redis = server();
    let options = long_lease(&redis).prefix("restored").unwrap();
    let now = |redis: &Redis| ask(redis, &["TIME"]).list()[0].number().expect("seconds") - FIRST_EPOCH;
    let reign = |redis: &Redis| {
        let before = now(redis);
        let mut store = open(&options);
        let epoch = u64::from(store.recovered().epoch.0);
        assert!((before..=now(redis)).contains(&epoch), "an epoch is the time at which it was given");
        until("a second has passed", || now(redis) > epoch);
        store.close(History::new(1).tick()).expect("close");
        epoch
    };
    let stored = |redis: &Redis| ask(redis, &["HGET", "{restored:3}:owner", "epoch"]).number();
    let mut seen = vec![reign(&redis)];
    redis.stop().unwrap();
    let copy = tempfile::tempdir().unwrap();
    copy_folder(redis.folder(), copy.path());
    redis.restart().unwrap();
    seen.extend((0..2).map(|_| reign(&redis)));
    redis.stop().unwrap();
    std::fs::remove_dir_all(redis.folder().join("appendonlydir")).unwrap();
    copy_folder(copy.path(), redis.folder());
    redis.restart().unwrap();
    assert_eq!(stored(&redis), Some(seen[0]), "it was set back");
    let epoch = reign(&redis);
    assert!(seen.iter().all(|before| *before < epoch), "{seen:?} {epoch}");
}

/// Story: a run on real servers in which two nodes had a shard within one second, and Redis was set back in between:
/// the second one had the first one's epoch, and gave its lease tokens and its ids again.
#[test]
fn same_second_reigns_share_nothing() {
    let redis = server();
    // As another process does: it remembers nothing of earlier reigns.
    let reign = || {
        end_lease(&redis);
        let recovered = open(&long_lease(&redis)).recovered();
        (recovered.epoch, recovered.tokens, recovered.next_id)
    };
    let mut store = open(&long_lease(&redis));
    let mut history = History::new(3);
    let group = history.group(9);
    store.append(&group).unwrap();
    durable(&mut store, group.last());
    drop(store);
    let keys: Vec<String> =
        ask(&redis, &["KEYS", "{duewheel:3}:*"]).list().iter().filter_map(Value::text).collect();
    for key in &keys {
        ask(&redis, &["COPY", key, &format!("{key}:copy"), "REPLACE"]);
    }
    let mut same = 0;
    until("two reigns began in one second", || {
        let lost = reign();
        for key in &keys {
            ask(&redis, &["COPY", &format!("{key}:copy"), key, "REPLACE"]);
        }
        let next = reign();
        assert!(next.1 > lost.1 && next.2 > lost.2, "{lost:?}, then {next:?}");
        same += u32::from(next.0 == lost.0);
        same > 2
    });
}

fn copy_folder(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("a copy");
        }
    }
}

#[test]
fn server_restart_ends_reign() {
    let mut redis = server();
    let options = long_lease(&redis);
    let mut history = History::new(4);
    let mut store = open(&options);
    let group = history.group(9);
    store.append(&group).unwrap();
    durable(&mut store, group.last());
    redis.kill().unwrap();
    redis.restart().unwrap();
    let _ = store.append(&history.group(9));
    let error = wait_for_error(&mut store);
    assert!(matches!(error, ErrorKind::Unavailable | ErrorKind::Fenced), "{error:?}");
    // The same process may go on at once; the lease of a minute is its own.
    let recovered = open(&options).recovered();
    assert_eq!(recovered.next_lsn, group.last().next());
}

#[test]
fn flushed_scripts_are_no_matter() {
    let redis = server();
    let options = options(&redis);
    let mut history = History::new(5);
    let mut store = open(&options);
    for _ in 0..50 {
        store.append(&history.group(9)).unwrap();
        ask(&redis, &["SCRIPT", "FLUSH", "SYNC"]);
    }
    durable(&mut store, history.model().applied());
}

/// Story: the owner renews, and the renewal is lost with the master that had it. The state that is left says that the
/// lease has run out; the owner is still sure of it.
#[test]
fn uncertain_lease_renewal_is_awaited() {
    let redis = server();
    let lease = Duration::from_millis(700);
    let options = options(&redis).lease(lease).unwrap();
    let other = ["epoch", "7", "incarnation", "other", "node", "b", "number", "1", "lease", "700"];
    let set = |until: &str| {
        let last = ["replid", "of-another-master", "until", until];
        let words: Vec<&str> = ["HSET", OWNER].into_iter().chain(other).chain(last).collect();
        ask(&redis, &words);
    };
    set("1000");
    let asked = Instant::now();
    let error =
        duewheel_store_redis::open(&options, SHARD, Arc::new(|| {})).map(drop).expect_err("it must wait");
    assert_eq!(error.kind(), ErrorKind::Fenced);
    assert!(error.to_string().contains("\"b\""), "{error}");
    let epoch = open(&options).recovered().epoch;
    assert!(asked.elapsed() >= lease, "a whole lease from when it was seen");
    assert!(epoch.0 > 7);
    // A lease that was given back is over for sure.
    set("0");
    assert!(duewheel_store_redis::open(&options, SHARD, Arc::new(|| {})).is_ok());
}

/// A history that the old owner goes on with while a new one has the shard changes nothing, in whatever order their
/// requests come.
#[test]
fn of_two_owners_one_writes() {
    let redis = server();
    let options = long_lease(&redis);
    let mut history = History::new(6);
    let mut old: Option<MediumStore> = None;
    for _ in 0..20 {
        end_lease(&redis);
        let mut new = open(&options);
        let group = history.group(5);
        assert_eq!(new.recovered().next_lsn, group.first);
        if let Some(old) = &mut old {
            // The last owner believes in its lease of a minute, and has the same next position; unless a mark that it
            // wrote at rest has told it better.
            let learnt = old.append(&group).err().map(|error| error.kind());
            assert!(matches!(learnt, None | Some(ErrorKind::Fenced)), "{learnt:?}");
        }
        new.append(&group).unwrap();
        durable(&mut new, group.last());
        if let Some(old) = &mut old {
            assert_eq!(wait_for_error(old), ErrorKind::Fenced);
        }
        old = Some(new);
    }
    let mut last = old.expect("an owner");
    let (mut found, mut expected) = (Found::default(), Found::default());
    last.find_many(&history.lookups(), &mut found).unwrap();
    history.model().find_many(&history.lookups(), &mut expected);
    found.rows.sort_by_key(|row| row.message.id);
    assert_eq!(found.rows, expected.rows);
}
