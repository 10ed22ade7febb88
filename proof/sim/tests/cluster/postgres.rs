//! Nodes that share a PostgreSQL: nodes that are killed, stopped and cut off, a server that is killed and stopped, and
//! one that a synchronous standby replaces.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use duewheel_judge::checker::Fact;
use duewheel_judge::history::{Blow, Fault};
use duewheel_postgres_rig::{PgBouncer, Postgres, Settings};
use duewheel_redis_rig::{Mode, Proxy};
use duewheel_sim::blackbox::cluster::{Door, DuewheelCluster};
use duewheel_sim::permission::{NamespaceUser, on_a_small_disk};

use crate::stage::{PATIENCE, Play, Stage, in_runs, ms, perform};

const NODES: usize = 3;
const KILLS: &str = "DUEWHEEL_NODE_KILLS";
const FAULTS: &str = "DUEWHEEL_STORE_FAULTS";
const FAILOVERS: &str = "DUEWHEEL_FAILOVERS";

fn server() -> Postgres {
    Postgres::start(Settings::default()).expect("a server")
}

fn play(
    name: &'static str,
    count: (&'static str, u64),
    lease: u64,
    stores: Vec<String>,
    facts: Vec<(Fact, u64)>,
) -> Play {
    let system = DuewheelCluster::new(Door::Http, Duration::from_secs(lease));
    Play { name, count, system, nodes: stores.len(), stores, facts }
}

/// Half of the killed nodes come back at once, and the others when somebody else has their shards. Others are stopped
/// until somebody else has their shards: they must find that out before they write or grant anything.
///
/// Two nodes reach the server through a pooler, and a transaction beside them is open for all the time, as that of a
/// report or of a backup is.
#[test]
fn killed_or_paused_node_is_replaced() {
    in_runs(KILLS, 2, 25, killed_or_stopped);
}

fn killed_or_stopped(kills: u64) {
    let postgres = server();
    let facts = vec![
        (Fact::Struck(Blow::NodeKilled), kills),
        (Fact::Struck(Blow::NodePaused), kills),
        (Fact::UnknownOutcomes, kills),
        (Fact::DelayedByABlow, kills),
        (Fact::ExpiredLeasesGrantedAgain, kills),
        (Fact::CancelsWon, kills),
        (Fact::Replaced, kills),
    ];
    let pooler = PgBouncer::start(&postgres).expect("a pooler");
    let mut stores = vec![postgres.url_at(pooler.port()); NODES];
    stores[0] = postgres.url();
    let name = "postgres::killed_or_paused_node_is_replaced";
    perform(play(name, (KILLS, kills), 2, stores, facts), |stage| {
        let report = postgres.long_transaction("SELECT count(*) FROM duewheel.piece");
        let report = report.map_err(|e| format!("a long transaction: {e}"))?;
        let worst = stage.until_it_bites(kills, "after a kill", |stage, round| {
            stage.sleep(500, 1_500);
            let node = stage.any();
            let since = stage.strike(Blow::NodeKilled);
            stage.kill(node)?;
            let gone = Instant::now();
            if round % 2 == 1 {
                stage.start(node)?;
            }
            let took = stage.probe()?.until_whole(gone, PATIENCE)?;
            if round % 2 == 0 {
                stage.start(node)?;
            }
            stage.heal(since)?;
            let node = stage.any();
            let since = stage.strike(Blow::NodePaused);
            stage.pause(node)?;
            stage.probe()?.until_whole(Instant::now(), PATIENCE)?;
            stage.resume(node)?;
            stage.heal(since)?;
            Ok(took)
        })?;
        drop(report);
        stage.say_longest("shards of a killed node served again", worst);
        Ok(())
    });
}

/// A server alone that syncs its log loses nothing, however it ends.
#[test]
fn killed_or_paused_server_loses_nothing() {
    in_runs(FAULTS, 1, 10, server_killed);
}

fn server_killed(rounds: u64) {
    let mut postgres = server();
    let facts = vec![
        (Fact::Struck(Blow::StoreKilled), 2 * rounds),
        (Fact::Struck(Blow::StorePaused), 2 * rounds),
        (Fact::UnknownOutcomes, rounds),
        (Fact::StorageUnavailable, rounds),
        (Fact::DelayedByABlow, rounds),
    ];
    let stores = vec![postgres.url(); NODES];
    let name = "postgres::killed_or_paused_server_loses_nothing";
    perform(play(name, (FAULTS, rounds), 3, stores, facts), |stage| {
        let worst = stage.worst_of(rounds, |stage, _| {
            let mut worst = Duration::ZERO;
            for immediately in [false, true] {
                stage.sleep(500, 1_500);
                let since = stage.strike(Blow::StoreKilled);
                let ended = if immediately { postgres.stop_immediately() } else { postgres.kill() };
                ended.map_err(|e| format!("end of PostgreSQL: {e}"))?;
                stage.sleep(0, 1_500);
                postgres.start_again().map_err(|e| format!("restart of PostgreSQL: {e}"))?;
                worst = worst.max(stage.heal(since)?);
            }
            // Once within the lease, and once for longer.
            for (from, until) in [(200, 1_500), (3_500, 5_000)] {
                stage.sleep(500, 1_500);
                let since = stage.strike(Blow::StorePaused);
                postgres.pause().map_err(|e| format!("stop of PostgreSQL: {e}"))?;
                stage.sleep(from, until);
                postgres.go_on().map_err(|e| format!("PostgreSQL goes on: {e}"))?;
                worst = worst.max(stage.heal(since)?);
            }
            Ok(worst)
        })?;
        stage.say(format!("served again within {} ms of each fault", ms(worst)));
        Ok(())
    });
}

/// A disk that is full: PostgreSQL refuses what needs a new page, and ends when its log needs a new file. Nobody helps
/// but with room, and with a start of a server that has ended.
#[test]
fn full_disk_server_loses_nothing() {
    let name = "postgres::full_disk_server_loses_nothing";
    if let Some(mount) = on_a_small_disk("postgres-fulldisk", name, "320m", NamespaceUser::Root) {
        in_runs(FAULTS, 2, 10, |rounds| server_full(name, &mount, rounds));
    }
}

fn server_full(name: &'static str, mount: &Path, rounds: u64) {
    let settings =
        Settings::default().within(mount).with("max_wal_size", "64MB").with("min_wal_size", "32MB");
    let mut postgres = Postgres::start(settings).expect("a server");
    let facts = vec![(Fact::Struck(Blow::StoreFull), rounds), (Fact::DelayedByABlow, rounds)];
    let stores = vec![postgres.url(); NODES];
    let ballast = mount.join("ballast");
    perform(play(name, (FAULTS, rounds), 3, stores, facts), |stage| {
        let mut ends = 0;
        let worst = stage.worst_of(rounds, |stage, round| {
            stage.sleep(500, 1_500);
            let since = stage.strike(Blow::StoreFull);
            fill(&ballast).map_err(|e| format!("{}: {e}", ballast.display()))?;
            stage.sleep(500, 1_500);
            if round % 2 == 1 {
                // Its log uses up the files that it has made in advance, and begins one for which there is no room: it
                // ends before it answers.
                let next = "SELECT pg_logical_emit_message(true, 'next', 'file'); SELECT pg_switch_wal()";
                let _ = (0..32).try_for_each(|_| postgres.query(next).map(drop));
            }
            stage.sleep(2_000, 5_000);
            fs::remove_file(&ballast).map_err(|e| format!("{}: {e}", ballast.display()))?;
            ends += u64::from(until_it_answers(&mut postgres)?);
            stage.heal(since)
        })?;
        let log = postgres.log();
        if !log.contains("No space left on device") {
            return Err(format!("the disk was never full: {log}"));
        }
        stage.say(format!("served again within {} ms of room; the server had ended {ends} times", ms(worst)));
        Ok(())
    });
}

/// Waits until a server answers, and starts it again if it has ended: whether it had.
fn until_it_answers(postgres: &mut Postgres) -> Result<bool, String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if postgres.has_ended().map_err(|e| format!("PostgreSQL: {e}"))? {
            postgres.start_again().map_err(|e| format!("restart of PostgreSQL: {e}"))?;
            return Ok(true);
        }
        match postgres.query("SELECT 1") {
            Ok(_) => return Ok(false),
            Err(error) if Instant::now() >= deadline => return Err(format!("PostgreSQL: {error}")),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Writes a file until the disk is full.
fn fill(path: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    let mut piece = 1024 * 1024;
    while piece > 0 {
        match file.write(&vec![1; piece]) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::StorageFull => piece /= 2,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Connections are cut at any byte, also in the middle of a commit; what had no answer is asked for again.
#[test]
fn isolated_node_loses_only_its_shards() {
    in_runs(FAULTS, 1, 10, cut_off);
}

fn cut_off(rounds: u64) {
    let postgres = server();
    let at = (std::net::Ipv4Addr::LOCALHOST, postgres.port()).into();
    let proxies: Vec<Proxy> = (0..NODES).map(|_| Proxy::start(at).expect("a proxy")).collect();
    let stores = proxies.iter().map(|proxy| postgres.url_at(proxy.address().port())).collect();
    let facts = vec![
        (Fact::Struck(Blow::NodeCut), 2 * rounds),
        (Fact::ExpiredLeasesGrantedAgain, rounds),
        (Fact::UnknownOutcomes, rounds),
    ];
    let name = "postgres::isolated_node_loses_only_its_shards";
    perform(play(name, (FAULTS, rounds), 2, stores, facts), |stage| {
        let worst = stage.until_it_bites(2 * rounds, "after a cut", |stage, round| {
            // Short cuts first: a commit whose answer is lost is made again.
            for proxy in &proxies {
                stage.sleep(100, 400);
                proxy.set(Mode::Cut);
                proxy.heal();
            }
            let node = stage.any();
            let since = stage.strike(Blow::NodeCut);
            stage.probe()?.leave(node);
            proxies[node].set(if round % 2 == 0 { Mode::Cut } else { Mode::Stall });
            let gone = Instant::now();
            let took = stage.probe()?.until_whole(gone, PATIENCE)?;
            stage.sleep(0, 1_000);
            proxies[node].heal();
            stage.probe()?.set_node(node, Some(stage.http(node)?));
            stage.heal(since)?;
            Ok(took)
        })?;
        stage.say_longest("shards of a node that was cut off served again", worst);
        Ok(())
    });
}

/// With `synchronous_standby_names` what was acknowledged is on the standby; nothing is lost when that takes over.
#[test]
fn synchronous_standby_takeover_loses_nothing() {
    in_runs(FAILOVERS, 1, 5, fail_over);
}

fn fail_over(rounds: u64) {
    let (mut primary, mut standby) = pair();
    let url = |first: &Postgres, second: &Postgres| {
        let (a, b) = (first.port(), second.port());
        format!("postgres://postgres@127.0.0.1:{a},127.0.0.1:{b}/postgres?target_session_attrs=read-write")
    };
    // A quick promotion delays nothing, and a pair cannot fail over again to prove more.
    let facts = vec![(Fact::Struck(Blow::MasterKilled), 1)];
    let stores = vec![url(&primary, &standby); NODES];
    let name = "postgres::synchronous_standby_takeover_loses_nothing";
    // A pair fails over once; more rounds are more runs.
    for _ in 0..rounds {
        let play = play(name, (FAILOVERS, 1), 3, stores.clone(), facts.clone());
        perform(play, |stage| {
            let worst = stage.worst_of(1, |stage, _| promote(stage, &mut primary, &standby))?;
            stage.say(format!("all served again after at most {} ms", ms(worst)));
            Ok(())
        });
        if rounds > 1 {
            (primary, standby) = pair();
        }
    }
}

fn pair() -> (Postgres, Postgres) {
    let primary = server();
    let standby = Postgres::standby(&primary, "second", Settings::default()).expect("a standby");
    primary.query("ALTER SYSTEM SET synchronous_standby_names = 'second'").expect("set");
    primary.query("SELECT pg_reload_conf()").expect("reload");
    (primary, standby)
}

fn promote(stage: &mut Stage<'_>, primary: &mut Postgres, standby: &Postgres) -> Result<Duration, String> {
    stage.sleep(1_500, 2_500);
    let since = stage.strike(Blow::MasterKilled);
    primary.kill().map_err(|e| format!("kill of the primary: {e}"))?;
    // It waits for a standby of its own no longer: there is none.
    standby.promote().map_err(|e| format!("promotion: {e}"))?;
    stage.heal(since)
}

/// Without it the last changes are lost: that is counted and said, and everything else holds.
#[test]
fn rolled_back_server_revives_no_owner() {
    in_runs(FAILOVERS, 1, 5, set_back);
}

fn set_back(rounds: u64) {
    for _ in 0..rounds {
        let mut primary = server();
        let mut standby = Postgres::standby(&primary, "second", Settings::default()).expect("a standby");
        let (a, b) = (primary.port(), standby.port());
        let url = format!(
            "postgres://postgres@127.0.0.1:{a},127.0.0.1:{b}/postgres?target_session_attrs=read-write"
        );
        let facts = vec![(Fact::Struck(Blow::StoreSetBack), 1), (Fact::FailedOver, 1), (Fact::Forgotten, 1)];
        let name = "postgres::rolled_back_server_revives_no_owner";
        let play = play(name, (FAILOVERS, 1), 2, vec![url; NODES], facts);
        perform(play, |stage| {
            let worst = stage.worst_of(1, |stage, _| {
                stage.sleep(1_000, 1_500);
                // What was answered before this moment is not forgotten.
                let kept = Instant::now();
                until_it_has_all(stage, &primary, &standby)?;
                standby.stop().map_err(|e| format!("stop of the standby: {e}"))?;
                stage.sleep(500, 1_000);
                let since = stage.strike(Blow::StoreSetBack);
                stage.system.may_forget(kept.elapsed());
                primary.kill().map_err(|e| format!("kill of the primary: {e}"))?;
                stage.run.fault(Fault::FailedOver);
                standby.start_again().map_err(|e| format!("start of the standby: {e}"))?;
                standby.promote().map_err(|e| format!("promotion: {e}"))?;
                stage.heal(since)
            })?;
            stage.say(format!("all served again after at most {} ms", ms(worst)));
            Ok(())
        });
    }
}

/// Waits until a standby has received what its primary has written by now.
fn until_it_has_all(stage: &Stage<'_>, primary: &Postgres, standby: &Postgres) -> Result<(), String> {
    let written = primary.query("SELECT pg_current_wal_lsn()").map_err(|e| format!("the primary: {e}"))?;
    let received = format!("SELECT pg_last_wal_receive_lsn() >= '{written}'::pg_lsn");
    stage.until("the standby has all", |_| {
        let answer = standby.query(&received).map_err(|e| format!("the standby: {e}"))?;
        Ok((answer == "t").then_some(()))
    })
}
