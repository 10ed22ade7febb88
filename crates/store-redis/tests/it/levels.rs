//! What a change has really reached, what is refused at the start, and what Redis refuses before it begins.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use duewheel_core::record::{ClockPair, Group};
use duewheel_core::store::{ErrorKind, Level, Store, StoreError};
use duewheel_core::{Lsn, ShardId};
use duewheel_redis_rig::{Appendonly, Redis, RedisCluster, Settings, Value};
use duewheel_store_medium::MediumStore;
use duewheel_store_redis::{Options, RedisCoordinator, WaitFor, Weight};

use crate::place::{LITTLE, PATIENCE, of_cluster, open, options, server, until};
use crate::shard::{Shard, ask, put, queue};

fn long(redis: &Redis) -> Options {
    options(redis).lease(Duration::from_secs(3)).expect("good options")
}

/// The level of one more change.
fn level(shard: &mut Shard) -> Level {
    let id = shard.next.0;
    shard.append(vec![put(&queue("q"), id, None, Bytes::new())]);
    let last = Lsn(shard.next.0 - 1);
    let mut level = None;
    until("it is durable", || {
        let progress = shard.store.progress().expect("it lives");
        level = (progress.durable >= last).then_some(progress.level);
        level.is_some()
    });
    level.expect("a level")
}

fn follow(redis: &Redis, copy: &Redis) {
    ask(copy, &["REPLICAOF", "127.0.0.1", &redis.port().to_string()]);
    until("it follows", || {
        let known = ask(redis, &["INFO", "replication"]).text().unwrap_or_default();
        known.contains("state=online") && known.contains(",lag=0") || known.contains(",lag=1")
    });
}

/// Story: every answer said `best_effort_replicated`, with one Redis that kept everything in memory, too.
#[test]
fn each_change_reports_reached_level() {
    let redis = server();
    let mut shard = Shard::open(&long(&redis));
    assert_eq!(shard.store.progress().unwrap().level, Level::Fsync, "before the first one");
    assert_eq!(level(&mut shard), Level::Fsync);
    for (setting, value, reached) in [
        ("appendfsync", "everysec", Level::Buffered),
        ("appendfsync", "always", Level::Fsync),
        ("no-appendfsync-on-rewrite", "yes", Level::Buffered),
        ("no-appendfsync-on-rewrite", "no", Level::Fsync),
        ("appendonly", "no", Level::Memory),
        ("appendonly", "yes", Level::Fsync),
    ] {
        ask(&redis, &["CONFIG", "SET", setting, value]);
        until(&format!("{setting} {value} shows"), || level(&mut shard) == reached);
    }
    drop(shard);

    let mut copy = server();
    follow(&redis, &copy);
    let mut shard = Shard::open(&long(&redis));
    until("a replica counts", || level(&mut shard) == Level::BestEffortReplicated);
    // Without an append-only file the master comes back empty, and its replica empties itself after it.
    ask(&redis, &["CONFIG", "SET", "appendonly", "no"]);
    until("a replica does not make up for it", || level(&mut shard) == Level::Memory);
    ask(&redis, &["CONFIG", "SET", "appendonly", "yes"]);
    until("both again", || level(&mut shard) == Level::BestEffortReplicated);
    // Nobody has closed the connection.
    copy.pause().unwrap();
    until("a replica that is not heard of does not count", || level(&mut shard) == Level::Fsync);
    copy.resume().unwrap();
    until("it is heard of again", || level(&mut shard) == Level::BestEffortReplicated);
    copy.kill().unwrap();
    until("a replica that is gone does not count", || level(&mut shard) == Level::Fsync);
}

/// How Redis keeps what it is told is read once a second, and not with each renewal of each shard.
#[test]
fn redis_settings_are_polled_each_second() {
    let redis = server();
    let options = options(&redis).lease(Duration::from_millis(600)).expect("good options");
    let open = |shard| duewheel_store_redis::open(&options, ShardId(shard), Arc::new(|| {})).unwrap();
    let mut shards: Vec<MediumStore> = (0..6).map(open).collect();
    let read = || {
        let stats = ask(&redis, &["INFO", "commandstats"]).text().unwrap_or_default();
        let line = stats.lines().find(|line| line.starts_with("cmdstat_config|get:")).map(str::to_owned);
        let calls = line.as_deref().and_then(|line| line.split(['=', ',']).nth(1));
        calls.and_then(|calls| calls.parse::<u64>().ok()).expect("it was read when the shards were opened")
    };
    let renewed = |shards: &[MediumStore]| -> u64 {
        let figures = shards.iter().flat_map(Store::figures);
        figures.filter(|(name, _)| *name == "renewals_total").map(|(_, n)| n).sum()
    };
    let (before, begun) = (read(), std::time::Instant::now());
    until("it is read again and again", || read() >= before + 3);
    until("leases are renewed much more often", || renewed(&shards) >= 60);
    let (times, seconds) = (read() - before, begun.elapsed().as_secs());
    assert!(times <= seconds + 2, "read {times} times in {seconds} s");
    for shard in &mut shards {
        shard.close(ClockPair::default()).unwrap();
    }
}

/// What was told in one go is as safe as the weakest of it.
#[test]
fn joint_changes_report_weakest_level() {
    let redis = server();
    let options = long(&redis);
    let mut shard = Shard::open(&options);
    // Another shard on the same master: what it has seen of the settings, the first one has.
    let other = duewheel_store_redis::open(&options, ShardId(4), Arc::new(|| {})).unwrap();
    let mut other = Shard { store: other, next: Lsn(1), clock: shard.clock };
    let first = shard.next;
    for (setting, reached) in [("no", Level::Memory), ("yes", Level::Fsync)] {
        ask(&redis, &["CONFIG", "SET", "appendonly", setting]);
        until(&format!("appendonly {setting} shows"), || level(&mut other) == reached);
        let (id, answered) = (shard.next.0, shard.figure("appends_answered_total"));
        shard.append(vec![put(&queue("q"), id, None, Bytes::new())]);
        until("it is answered", || shard.figure("appends_answered_total") > answered);
    }
    // The second one may be told with the first, or alone.
    let mut told = None;
    until("the first is told", || {
        told = shard.store.progress().ok().filter(|told| told.durable >= first);
        told.is_some()
    });
    let told = told.expect("a progress");
    assert_eq!(told.level, Level::Memory);
    assert_eq!(level(&mut shard), Level::Fsync, "told before");
}

/// A newer server than the one on the path: `DUEWHEEL_VALKEY`, which scripts/test sets.
fn valkey() -> Option<OsString> {
    std::env::var_os("DUEWHEEL_VALKEY").filter(|path| !path.is_empty())
}

#[test]
fn synced_replicas_are_waited_for() {
    let Some(program) = valkey() else {
        // Redis 7.0 has no WAITAOF: then this refusal is what there is to show.
        let redis = server();
        let nodes = RedisCoordinator::new(options(&redis).wait_for(WaitFor::Synced));
        match nodes.inspect() {
            Ok(_) => synced(&redis, &server()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                assert!(error.to_string().contains("--redis-wait-for synced needs WAITAOF"), "{error}");
            }
        }
        return;
    };
    let settings = Settings { program: Some(program), ..Settings::default() };
    synced(&Redis::start(settings.clone()).unwrap(), &Redis::start(settings).unwrap());
}

/// On servers with `WAITAOF`.
fn synced(redis: &Redis, copy: &Redis) {
    let base = long(redis).lease(Duration::from_secs(60)).expect("good options").wait_for(WaitFor::Synced);
    RedisCoordinator::new(base.clone()).inspect().expect("it is taken");
    // The master's own disk is waited for, whatever it does by itself.
    ask(redis, &["CONFIG", "SET", "appendfsync", "everysec"]);
    let patient = base.clone().wait_replicas(0, PATIENCE).expect("good options");
    let mut shard = Shard::open(&patient);
    assert_eq!(level(&mut shard), Level::Fsync);
    drop(shard);
    follow(redis, copy);
    let mut shard = Shard::open(&base.clone().wait_replicas(1, PATIENCE).expect("good options"));
    assert_eq!(level(&mut shard), Level::BestEffortReplicated);
    drop(shard);
    // The start of a shard writes, too, and its replica may be a slow one: the wait is long, and what the start has begun is
    // through before the replica changes.
    let wait = Duration::from_secs(5);
    let mut shard = Shard::open(&base.wait_replicas(1, wait).expect("good options"));
    let id = shard.next.0;
    shard.append(vec![put(&queue("q"), id, None, Bytes::new())]);
    shard.settle();
    // A replica without a file has it in memory alone.
    ask(copy, &["CONFIG", "SET", "appendonly", "no"]);
    let failed = |shard: &Shard| shard.figure("wait_failures_total");
    assert_eq!(failed(&shard), 0);
    let id = shard.next.0;
    shard.append(vec![put(&queue("q"), id, None, Bytes::new())]);
    let mut error = None;
    until("it is unknown", || {
        error = shard.store.progress().err();
        error.is_some()
    });
    let error = error.expect("an error");
    assert_eq!((error.kind(), error.nothing_from()), (ErrorKind::Unavailable, None), "{error}");
    assert_eq!(failed(&shard), 1);
}

fn inspected(options: &Options) -> Result<Vec<(Weight, String)>, StoreError> {
    let findings = RedisCoordinator::new(options.clone()).inspect()?;
    Ok(findings.into_iter().map(|finding| (finding.weight, finding.what)).collect())
}

#[track_caller]
fn says(options: &Options, weight: Weight, what: &str) {
    let findings = inspected(options).expect("it is taken");
    let said = findings.iter().any(|(w, said)| *w == weight && said.contains(what));
    assert!(said, "{weight:?} {what:?} in {findings:?}");
}

/// Story: a Redis that was starting said that it had no append-only file, because it writes none while it reads it. A server
/// that waited for this Redis took that for a setting, and ended.
#[test]
fn loading_master_is_not_refused() {
    let extra = ["--key-load-delay", "200"].map(String::from).to_vec(); // microseconds
    let mut redis = Redis::start(Settings { extra, ..Settings::default() }).unwrap();
    let fill = "for n = 1, 10000 do redis.call('SET', n, n) end";
    ask(&redis, &["EVAL", fill, "0"]);
    redis.stop().unwrap();
    let options = options(&redis);
    let restarted = std::thread::spawn(move || redis.restart().map(|()| redis));
    let mut loading = 0;
    until("it is there", || match inspected(&options) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            loading += u32::from(error.to_string().contains("loading its data"));
            false
        }
    });
    assert!(loading > 0, "it was asked while it loaded");
    drop(restarted.join().unwrap().unwrap());
}

#[test]
fn master_without_aof_is_refused() {
    let redis = Redis::start(Settings { appendonly: Appendonly::Off, ..Settings::default() }).unwrap();
    let error = inspected(&options(&redis)).expect_err("it must be refused");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let text = error.to_string();
    assert!(text.contains("appendonly is no") && text.contains("--redis-without-aof"), "{text}");
    assert!(text.contains(&redis.port().to_string()), "{text}");
    says(&options(&redis).without_aof(), Weight::Danger, "answers say \"memory\"");
    // One master of several is enough.
    let cluster = RedisCluster::start(3, 0, Settings::default()).unwrap();
    inspected(&of_cluster(&cluster)).unwrap();
    ask(cluster.node(1), &["CONFIG", "SET", "appendonly", "no"]);
    let text = inspected(&of_cluster(&cluster)).expect_err("it must be refused").to_string();
    assert!(text.contains(&cluster.node(1).port().to_string()), "{text}");
}

/// A master that is away when a node starts is no reason to refuse the others' settings.
#[test]
fn unreachable_master_is_reported_not_refused() {
    let mut cluster = RedisCluster::start(3, 0, Settings::default()).unwrap();
    cluster.pause(1).unwrap();
    let options = of_cluster(&cluster).lease(Duration::from_secs(1)).unwrap();
    let away = format!("127.0.0.1:{}: how safely it keeps changes is not known", cluster.node(1).port());
    // Until the others take it for dead, they name it as a master; then nobody has its slots.
    says(&options, Weight::Danger, &away);
    says(&options, Weight::Note, "appendfsync always");
    cluster.resume(1).unwrap();
}

#[test]
fn start_reports_meaning_of_settings() {
    let redis = server();
    let options = options(&redis);
    let set = |name: &str, value: &str| drop(ask(&redis, &["CONFIG", "SET", name, value]));
    says(&options, Weight::Note, "appendfsync always");
    says(&options, Weight::Note, "no replica follows");
    says(&options, Weight::Danger, "maxmemory 0");
    set("maxmemory", "1gb");
    says(&options, Weight::Note, "maxmemory 1073741824");
    set("appendfsync", "everysec");
    says(&options, Weight::Danger, "up to two seconds");
    set("appendfsync", "no");
    says(&options, Weight::Danger, "appendfsync no");
    set("no-appendfsync-on-rewrite", "yes");
    says(&options, Weight::Danger, "no-appendfsync-on-rewrite yes");
    set("maxmemory-policy", "allkeys-lru");
    says(&options, Weight::Danger, "may throw messages away");
    let wait = options.clone().wait_replicas(1, Duration::from_secs(1)).unwrap();
    says(&wait, Weight::Danger, "0 replicas follow and --redis-wait is 1");
    let copy = server();
    follow(&redis, &copy);
    says(&wait, Weight::Note, "1 replicas follow, 1 are waited for");
    says(&options, Weight::Note, "a failover takes what they had not received");
    says(&options, Weight::Note, "min-replicas-to-write 0");
}

/// Where `CONFIG` is forbidden `INFO` says whether there is a file; when it is synced is not known, and that is said.
#[test]
fn forbidden_config_falls_back_to_info() {
    let start = |appendonly| {
        let redis = Redis::start(Settings { appendonly, ..Settings::default() }).unwrap();
        let mut words = vec!["ACL", "SETUSER", "wheel", "on", ">pw", "resetchannels"];
        words.extend(LITTLE.split(' '));
        ask(&redis, &words);
        redis
    };
    let redis = start(Appendonly::Always);
    let wheel = |redis: &Redis| long(redis).user("wheel").password("pw");
    says(&wheel(&redis), Weight::Note, "appendfsync is not known");
    assert_eq!(level(&mut Shard::open(&wheel(&redis))), Level::Buffered);
    let redis = start(Appendonly::Off);
    let error = inspected(&wheel(&redis)).expect_err("it must be refused");
    assert!(error.to_string().contains("--redis-without-aof"), "{error}");
}

/// Story: a refusal of the whole group was told as *unknown*, so that callers had to ask what had become of it.
#[test]
fn early_redis_refusal_is_not_applied() {
    // Each on a server of its own, with what is refused and how that comes about.
    type Bring<'a> = &'a dyn Fn(&Redis);
    let no_replicas: Bring<'_> = &|redis| drop(ask(redis, &["CONFIG", "SET", "min-replicas-to-write", "1"]));
    let read_only: Bring<'_> = &|redis| drop(ask(redis, &["REPLICAOF", "127.0.0.1", "1"]));
    let no_disk: Bring<'_> = &|redis| {
        ask(redis, &["CONFIG", "SET", "save", "3600 1"]);
        std::fs::create_dir(redis.folder().join("dump.rdb")).unwrap();
        ask(redis, &["BGSAVE"]);
        until("the snapshot has failed", || {
            ask(redis, &["INFO", "persistence"])
                .text()
                .is_some_and(|info| info.contains("last_bgsave_status:err"))
        });
    };
    let no_right: Bring<'_> = &|redis| drop(ask(redis, &["ACL", "SETUSER", "default", "-eval"]));
    for (code, bring, expected) in [
        ("NOREPLICAS", no_replicas, ErrorKind::Unavailable),
        ("READONLY", read_only, ErrorKind::Unavailable),
        ("MISCONF", no_disk, ErrorKind::Unavailable),
        ("NOPERM", no_right, ErrorKind::Unavailable),
    ] {
        let redis = server();
        // Renewals are refused, too: the lease must not be what ends it.
        let mut shard = Shard::open(&options(&redis).lease(Duration::from_secs(600)).unwrap());
        level(&mut shard);
        let writes = || redis.command(&["HGET", "{duewheel:3}:head", "journal"]).unwrap().number();
        let before = writes();
        bring(&redis);
        let (error, first) = refused(&mut shard);
        assert_eq!((error.kind(), error.nothing_from()), (expected, Some(first)), "{code}: {error}");
        assert!(error.to_string().contains(code), "{code}: {error}");
        assert_eq!(writes(), before, "{code}");
    }
}

/// Story: what moves no position was told as a group is when Redis refused it, as if nothing behind it could be
/// applied. A group behind it may be, when the refusal passes in between.
#[test]
fn refused_clock_note_leaves_groups_unknown() {
    let redis = server();
    let mut shard = Shard::open(&options(&redis).lease(Duration::from_secs(600)).unwrap());
    level(&mut shard);
    ask(&redis, &["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let mut error = None;
    until("it is refused", || {
        shard.clock.engine.0 += 10_000;
        error = shard.store.idle(shard.clock, None).err().or_else(|| shard.store.progress().err());
        error.is_some()
    });
    let error = error.expect("an error");
    assert!(error.to_string().contains("NOREPLICAS"), "{error}");
    assert_eq!(error.nothing_from(), None, "{error}");
}

/// A cluster that has lost a master's slots refuses everything.
#[test]
fn cluster_down_refusal_is_not_applied() {
    let mut cluster = RedisCluster::start(3, 0, Settings::default()).unwrap();
    let options = of_cluster(&cluster).lease(Duration::from_secs(600)).unwrap();
    let mut shard = Shard::open(&options);
    level(&mut shard);
    let slot = cluster.slot_of_key("{duewheel:3}:owner").unwrap();
    let mine = cluster.master_of_slot(slot).unwrap();
    cluster.kill((mine + 1) % 3).unwrap();
    until("the cluster is down", || {
        let info = cluster.node(mine).command(&["CLUSTER", "INFO"]).ok().and_then(|info| info.text());
        info.is_some_and(|info| info.contains("cluster_state:fail"))
    });
    let (error, first) = refused(&mut shard);
    assert_eq!((error.kind(), error.nothing_from()), (ErrorKind::Unavailable, Some(first)), "{error}");
    assert!(error.to_string().contains("CLUSTERDOWN"), "{error}");
}

/// A server that reads its data answers nothing else.
#[test]
fn loading_refusal_is_not_applied() {
    let redis = Redis::start(Settings {
        extra: [
            "--enable-debug-command",
            "local",
            "--key-load-delay",
            "2000",
            "--loading-process-events-interval-bytes",
            "1024",
        ]
        .map(str::to_owned)
        .to_vec(),
        ..Settings::default()
    })
    .unwrap();
    let mut shard = Shard::open(&options(&redis).lease(Duration::from_secs(600)).unwrap());
    let many =
        (1..=20_000).map(|id| put(&queue("q"), id, None, Bytes::from_static(b"a body of some length")));
    shard.append(many.collect());
    shard.settle();
    // Small keys of others, for each of which loading takes its time.
    for n in 0..50 {
        let mut words = vec!["MSET".to_owned()];
        words.extend((0..200).map(|at| format!("other:{n}:{at}")));
        let words: Vec<&str> = words.iter().flat_map(|word| [word.as_str(), "x"]).collect();
        ask(&redis, &[&["MSET"], &words[2..]].concat());
    }
    let loading = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut wire = redis.connect(Duration::from_secs(60)).unwrap();
            wire.command(&["DEBUG", "RELOAD"]).unwrap();
        });
        until(
            "it loads",
            || matches!(redis.command(&["GET", "other:0:0"]), Ok(Value::Error(said)) if said.starts_with("LOADING")),
        );
        refused(&mut shard)
    });
    let (error, first) = loading;
    assert_eq!((error.kind(), error.nothing_from()), (ErrorKind::Unavailable, Some(first)), "{error}");
    assert!(error.to_string().contains("LOADING"), "{error}");
}

/// The error of one more change, and the change's position.
fn refused(shard: &mut Shard) -> (StoreError, Lsn) {
    let first = shard.next;
    let records = vec![put(&queue("q"), first.0, None, Bytes::new())];
    let group = Group { first, clock: shard.clock, records };
    // What the store does beside may have met the refusal before.
    let mut error = shard.store.append(&group).err();
    until("it is refused", || {
        error = error.take().or_else(|| shard.store.progress().err());
        error.is_some()
    });
    (error.expect("an error"), first)
}

/// What is answered at the end of a reign has a level, too.
#[test]
fn last_change_reports_reached_level() {
    let redis = server();
    let mut store = open(&long(&redis));
    let clock = store.recovered().clock.unwrap_or_default();
    assert_eq!(store.close(clock).unwrap().level, Level::Fsync);
}
