//! A disk that is full, on a small tmpfs: new messages are refused, everything else goes on, and service resumes by
//! itself.
//!
//! Each cycle fills the disk in another way and makes room in another way ([`CYCLES`]). Nothing else helps: after room
//! was made new messages are taken again, by the same process.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use duewheel_judge::checker::Fact;
use duewheel_judge::history::{Fault, Moment};
use duewheel_sim::http::Connection;
use duewheel_sim::permission::{NamespaceUser, on_a_small_disk, run};
use duewheel_sim::process::{self, Server};
use serde_json::{Value, json};

use crate::fill::{self, Shape, take_all};
use crate::stage::{Crew, PATIENCE, Play, Stage, env, perform, read};

const NAME: &str = "full_disk::full_disk_refuses_only_new_messages";
const SIZE: &str = "16m";
/// For as much as this at least there is room each time: nothing of what was removed stays.
const LEAST_BYTES: usize = 4 << 20;

/// A body of the size limit.
const LIMIT: usize = 256 * 1024;

const AT_THE_LIMIT: Shape =
    Shape { name: "bodies at the limit", queue: "bulk", body: LIMIT, batch: 4, delay: "1h" };
const SMALL: Shape = Shape { name: "many small ones", queue: "bulk", body: 1_000, batch: 500, delay: "1h" };
const COLD: Shape = Shape { name: "cold ones", queue: "bulk", body: 20_000, batch: 8, delay: "1h" };
const READY: Shape = Shape { name: "ready ones", queue: "bulk-ready", body: 20_000, batch: 8, delay: "0s" };
const SINGLE: Shape = Shape { name: "single ones", queue: "bulk", body: 60_000, batch: 1, delay: "1h" };
const TINY: Shape = Shape { name: "one byte", queue: "bulk", body: 1, batch: 1, delay: "1h" };

/// Rounds of postpones and nacks of messages that are on the disk alone.
const ROUNDS: usize = 3;
/// Messages that are nacked.
const READY_MESSAGES: usize = 40;
/// Messages that are postponed before the disk is full; many times what is in memory.
const COLD_MESSAGES: usize = 200;

/// How the disk becomes full, and how room is made.
#[derive(Clone, Copy, Debug)]
enum Cycle {
    /// Messages of this shape; a purge.
    Purged(Shape),
    /// Messages of this shape; each is cancelled by its id.
    Cancelled(Shape),
    /// Messages, which are then postponed and nacked again and again; a purge.
    Changed,
    /// Somebody else's file; it is removed.
    Neighbour,
}

/// One after the other.
const CYCLES: [Cycle; 5] = [
    Cycle::Purged(AT_THE_LIMIT),
    Cycle::Purged(SMALL),
    Cycle::Changed,
    Cycle::Neighbour,
    Cycle::Cancelled(SINGLE),
];

#[test]
fn full_disk_refuses_only_new_messages() {
    if let Some(mount) = on_a_small_disk("fulldisk", NAME, SIZE, NamespaceUser::Any) {
        cycles(&mount);
    }
}

fn cycles(mount: &Path) {
    let cycles = env("DUEWHEEL_CYCLES", CYCLES.len() as u64);
    let play = Play {
        name: "full_disk_refuses_only_new_messages",
        count: ("DUEWHEEL_CYCLES", cycles),
        data: Some(mount.join("data")),
        more: &[],
        slack_ms: None,
        facts: vec![
            (Fact::ExpiredLeasesGrantedAgain, cycles),
            (Fact::CancelsWon, cycles),
            (Fact::KillsServing, cycles / (2 * CYCLES.len() as u64)),
        ],
        crew: Crew::All,
    };
    let ballast = mount.join("ballast");
    let mut seen = Seen::default();
    perform(play, |stage, mut server| {
        seen.full_from_the_start += start_on_a_full_disk(stage, &ballast)?;
        let first = env("DUEWHEEL_FIRST_CYCLE", 0);
        for (number, cycle) in (0..first + cycles).zip(CYCLES.into_iter().cycle()) {
            if number < first {
                continue;
            }
            let what = format!("cycle {number}, {cycle:?}");
            stage.other(format!("{what}: full"));
            server = perform_cycle(stage, server, cycle, &ballast, &mut seen)
                .map_err(|e| format!("{what}: {e}; {}", what_takes_room(stage)))?;
            stage.other(format!("{what}: room again"));
        }
        println!("{seen:?}");
        if seen.full < cycles || seen.resumed < cycles {
            return Err(format!("the disk was not full each time: {seen:?}"));
        }
        Ok(server)
    });
}

#[derive(Debug, Default)]
struct Seen {
    /// Times the disk was so full that enqueues got 507.
    full: u64,
    /// Times that new messages were taken again, without a restart and without help.
    resumed: u64,
    /// The longest that this took.
    longest: Duration,
    /// Times that postpones or nacks were refused for want of room.
    unchanged: u64,
    /// Cycles with a neighbour. The server is killed in the first one, and in every other one after that.
    neighbours: u64,
    /// Starts on a full disk that served.
    started: u64,
    /// Starts on a full disk that said why not.
    not_started: u64,
    full_from_the_start: u64,
}

fn perform_cycle(
    stage: &mut Stage<'_>,
    server: Server,
    cycle: Cycle,
    ballast: &Path,
    seen: &mut Seen,
) -> Result<Server, String> {
    let own = prepare(stage)?;
    match cycle {
        Cycle::Purged(shape) => {
            let ids = fill_up(stage, shape, 0, seen)?;
            goes_on(stage, &own)?;
            purge(stage, shape, ids.len())?;
            until_accepted(stage, shape, seen)?;
        }
        Cycle::Cancelled(shape) => {
            let ids = fill_up(stage, shape, 0, seen)?;
            goes_on(stage, &own)?;
            cancel(stage, &ids)?;
            until_accepted(stage, shape, seen)?;
        }
        Cycle::Changed => changed(stage, &own, seen)?,
        Cycle::Neighbour => return neighbour(stage, server, &own, ballast, seen),
    }
    Ok(server)
}

/// Fills the disk with messages; with the bytes that are held already there was room for many.
fn fill_up(stage: &Stage<'_>, shape: Shape, held: usize, seen: &mut Seen) -> Result<Vec<String>, String> {
    let ids = fill::until_full(stage, shape)?;
    seen.full += 1;
    let bytes = held + ids.len() * shape.body;
    if bytes < LEAST_BYTES {
        return Err(format!("there was room for {bytes} bytes of {} alone", shape.name));
    }
    Ok(ids)
}

/// Messages that are on the disk alone are postponed, and granted and nacked, again and again: each change of state is
/// small, and what it is about is not. It goes on, before the disk is full and then, or is refused from some point on;
/// acks and cancels are not.
fn changed(stage: &Stage<'_>, own: &[String], seen: &mut Seen) -> Result<(), String> {
    let mut ready = some(stage, READY, READY_MESSAGES)?.len();
    let mut ids = some(stage, COLD, COLD_MESSAGES)?;
    ready -= change_again(stage, &ids, ready, seen)?;
    let held = ids.len() * COLD.body + ready * READY.body;
    ids.extend(fill_up(stage, COLD, held, seen)?);
    goes_on(stage, own)?;
    ready -= change_again(stage, &ids, ready, seen)?;
    let (some, rest) = ids.split_at(ids.len() / 8);
    cancel(stage, some)?;
    purge(stage, READY, ready)?;
    purge(stage, COLD, rest.len())?;
    until_accepted(stage, COLD, seen)
}

/// So many messages, one by one.
fn some(stage: &Stage<'_>, shape: Shape, count: usize) -> Result<Vec<String>, String> {
    let mut ids = Vec::new();
    stage.until(shape.name, |stage| {
        while ids.len() < count {
            let Some(id) = fill::one(stage, shape)? else { return Ok(None) };
            ids.push(id);
        }
        Ok(Some(()))
    })?;
    Ok(ids)
}

/// Postpones and nacks, until it is refused; returns how many of the ready messages were acked for that.
fn change_again(stage: &Stage<'_>, ids: &[String], ready: usize, seen: &mut Seen) -> Result<usize, String> {
    for _ in 0..ROUNDS {
        let postpone = |id: &String| ("PATCH", format!("/v1/messages/{id}"), json!({"delay": "2h"}));
        let postponed = fill::change(stage, ids.iter().map(postpone))?;
        let acked = nack_all(stage, ready)?;
        if postponed.refused || acked > 0 {
            seen.unchanged += 1;
            return Ok(acked);
        }
    }
    Ok(0)
}

/// Grants and nacks each of the ready messages. What may not be nacked is acked; returns how many.
fn nack_all(stage: &Stage<'_>, ready: usize) -> Result<usize, String> {
    let path = format!("/v1/queues/{}/reserve", READY.queue);
    let mut leases = Vec::new();
    stage.until("grants, or none for want of room", |stage| {
        let reserve = json!({"max": READY_MESSAGES, "wait_ms": 200, "lease_ms": 60_000});
        let (status, said) = stage.call("POST", &path, &reserve)?;
        match (status, said["messages"].as_array()) {
            (200, Some(messages)) => leases.extend(messages.iter().cloned()),
            (503, _) if said["code"] == "storage_unavailable" && said["outcome"] == "not_applied" => {
                return Ok(Some(()));
            }
            _ => return Err(format!("a reserve on a full disk: {status} {said}")),
        }
        Ok((leases.len() >= ready).then_some(()))
    })?;
    let settle = |verb: &'static str, more: Value| {
        move |lease: &Value| {
            let path = format!("/v1/messages/{}/{verb}", lease["id"].as_str().unwrap_or_default());
            let mut body = json!({"lease_token": lease["lease_token"]});
            if let (Some(body), Some(more)) = (body.as_object_mut(), more.as_object()) {
                body.extend(more.clone());
            }
            ("POST", path, body)
        }
    };
    let nacked = fill::change(stage, leases.iter().map(settle("nack", json!({"delay_ms": 0}))))?;
    let left = &leases[nacked.made..];
    let acked = fill::change(stage, left.iter().map(settle("ack", json!({}))))?;
    match acked.refused {
        false => Ok(left.len()),
        true => Err("an ack was refused for want of room".into()),
    }
}

fn cancel(stage: &Stage<'_>, ids: &[String]) -> Result<(), String> {
    let each = ids.iter().map(|id| ("DELETE", format!("/v1/messages/{id}"), Value::Null));
    match fill::change(stage, each)?.refused {
        false => Ok(()),
        true => Err("a cancel was refused for want of room".into()),
    }
}

fn purge(stage: &Stage<'_>, shape: Shape, accepted: usize) -> Result<(), String> {
    let said = stage.done("POST", &format!("/v1/queues/{}/purge", shape.queue), &json!({}))?;
    match said["purged"].as_u64() {
        Some(purged) if purged == accepted as u64 => Ok(()),
        purged => Err(format!("{accepted} of {} were held, and {purged:?} purged", shape.name)),
    }
}

/// Somebody else fills the disk; every other time the server is killed and started meanwhile.
fn neighbour(
    stage: &mut Stage<'_>,
    mut server: Server,
    own: &[String],
    ballast: &Path,
    seen: &mut Seen,
) -> Result<Server, String> {
    take_all(ballast)?;
    until_noticed(stage, ballast)?;
    seen.full += 1;
    goes_on(stage, own)?;
    seen.neighbours += 1;
    if !seen.neighbours.is_multiple_of(2) {
        server = restarted(stage, server, ballast, seen)?;
    }
    // All of it at once.
    std::fs::remove_file(ballast).map_err(|e| e.to_string())?;
    until_accepted(stage, SINGLE, seen)?;
    Ok(server)
}

/// The server is killed, and started on the full disk: it serves, or says why not.
fn restarted(
    stage: &mut Stage<'_>,
    server: Server,
    ballast: &Path,
    seen: &mut Seen,
) -> Result<Server, String> {
    stage.kill(server)?;
    let logged = read(&stage.log()).len();
    let again = stage.start();
    let server = match again {
        Ok(server) => {
            seen.started += 1;
            stage.until_healthy()?;
            server
        }
        Err(why) => {
            let said = read(&stage.log())[logged..].to_owned();
            if !said.to_lowercase().contains("no space left") && !said.contains("no room") {
                return Err(format!("started on the full disk: {why}: {said}"));
            }
            seen.not_started += 1;
            stage.fault(Fault::Killed(Moment::Recovering));
            std::fs::remove_file(ballast).map_err(|e| e.to_string())?;
            let server = stage.start()?;
            take_all(ballast)?;
            server
        }
    };
    until_noticed(stage, ballast)?;
    Ok(server)
}

/// A message of one byte is refused, although nothing was written meanwhile that would have met the end of the disk.
/// What the server itself gives back is taken again.
fn until_noticed(stage: &Stage<'_>, ballast: &Path) -> Result<(), String> {
    stage.until("507 disk_full", |stage| {
        take_all(ballast)?;
        Ok(fill::one(stage, TINY)?.is_none().then_some(()))
    })?;
    // It may have been 429; and a merge may have given something back since, after a restart above all.
    stage.until("507 disk_full", |stage| {
        take_all(ballast)?;
        let path = format!("/v1/queues/{}/messages", TINY.queue);
        let (status, said) = stage.call("POST", &path, &json!({"body": "x", "delay_ms": 0}))?;
        Ok((status == 507 && said["code"] == "disk_full").then_some(()))
    })
}

/// A new folder on a full disk: refused with the reason, or it serves.
fn start_on_a_full_disk(stage: &Stage<'_>, ballast: &Path) -> Result<u64, String> {
    take_all(ballast)?;
    let logged = read(&stage.log()).len();
    let data = ballast.with_file_name("second");
    let mut command = Command::new(&stage.binary);
    command.args(Server::arguments(&data));
    let mut server = Server::spawn(command, &stage.log(), "listening on").map_err(|e| e.to_string())?;
    if server.address(PATIENCE).is_ok() {
        return Err("a new folder was made on a full disk".into());
    }
    let said = read(&stage.log())[logged..].to_owned();
    let code = server.ended().map_err(|e| e.to_string())?.and_then(|status| status.code());
    if code != Some(1) || !said.to_lowercase().contains("no space left") {
        return Err(format!("a start on a full disk ended with {code:?}, and says: {said}"));
    }
    let removed = std::fs::remove_file(ballast).and_then(|()| std::fs::remove_dir_all(&data));
    removed.map_err(|e| e.to_string())?;
    Ok(1)
}

/// Messages for what must go on when the disk is full.
fn prepare(stage: &Stage<'_>) -> Result<Vec<String>, String> {
    for queue in ["own", "junk"] {
        for _ in 0..8 {
            stage.until("a message before the disk is full", |stage| {
                let path = format!("/v1/queues/{queue}/messages");
                let (status, _) = stage.call("POST", &path, &json!({"body": "x", "delay_ms": 0}))?;
                Ok((status == 201).then_some(()))
            })?;
        }
    }
    let page = stage.done("GET", "/v1/queues/own/messages?state=ready&limit=8", &Value::Null)?;
    let ids = page["messages"].as_array().into_iter().flatten();
    Ok(ids.filter_map(|message| message["id"].as_str().map(str::to_owned)).collect())
}

/// Cancel, ack, nack, extend, purge and reserve succeed on a full disk: what waits to be written is far from its bound.
/// The server says that it is well.
fn goes_on(stage: &Stage<'_>, own: &[String]) -> Result<(), String> {
    let (cancelled, _) = own.split_first().ok_or("no messages of our own")?;
    stage.done("DELETE", &format!("/v1/messages/{cancelled}"), &Value::Null)?;
    for verb in ["ack", "nack", "extend"] {
        let mut lease = json!({});
        stage.until("a grant on a full disk", |stage| {
            let reserve = json!({"max": 1, "wait_ms": 1_000, "lease_ms": 20_000});
            let said = stage.done("POST", "/v1/queues/own/reserve", &reserve)?;
            lease = said["messages"][0].clone();
            Ok(lease["id"].is_string().then_some(()))
        })?;
        let path = format!("/v1/messages/{}/{verb}", lease["id"].as_str().unwrap_or_default());
        let mut body = json!({"lease_token": lease["lease_token"]});
        if verb == "extend" {
            body["lease_ms"] = 1_000.into();
        }
        stage.done("POST", &path, &body)?;
    }
    let purged = stage.done("POST", "/v1/queues/junk/purge", &json!({}))?;
    if purged["purged"] != 8 {
        return Err(format!("8 messages were to be purged: {purged}"));
    }
    stage.done("POST", "/v1/queues/own/purge", &json!({}))?;
    stage.done("GET", "/healthz", &Value::Null).map(drop)
}

/// The files of the data folder and the store's figures, for people.
fn what_takes_room(stage: &Stage<'_>) -> String {
    let listed = run(Command::new("ls").arg("-lR").arg(stage.data.parent().unwrap_or(&stage.data)));
    let metrics = stage.address.ok_or_else(|| "no server".to_owned()).and_then(|address| {
        let mut connection = Connection::open(address, PATIENCE).map_err(|e| e.to_string())?;
        connection.request("GET", "/metrics", "text/plain", b"").map_err(|e| e.to_string())
    });
    let metrics = metrics.map(|answer| String::from_utf8_lossy(&answer.body).into_owned());
    let is_store = |line: &&str| line.starts_with("duewheel_store");
    let figures: Vec<String> =
        metrics.unwrap_or_default().lines().filter(is_store).map(str::to_owned).collect();
    format!("{}\n{}", listed.unwrap_or_default(), figures.join("\n"))
}

/// A message like those that filled the disk is taken again, by the same process and without help. A quick machine needs
/// one or two seconds for that.
fn until_accepted(stage: &Stage<'_>, shape: Shape, seen: &mut Seen) -> Result<(), String> {
    let begun = Instant::now();
    process::until("new messages are taken again", PATIENCE, || Ok(fill::one(stage, shape)?.map(drop)))?;
    seen.resumed += 1;
    seen.longest = seen.longest.max(begun.elapsed());
    stage.done("POST", &format!("/v1/queues/{}/purge", shape.queue), &json!({}))?;
    stage.until_healthy()
}
