//! A disk that is full, on a small tmpfs: new messages are refused, everything else goes on, and it ends by itself.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use duewheel_judge::checker::Fact;
use duewheel_judge::history::{Fault, Moment};
use duewheel_sim::http::Connection;
use duewheel_sim::process::{Listens, Server};
use serde_json::{Value, json};

use crate::stage::{Crew, PATIENCE, Play, Stage, env, not_run, perform, read, run};

const NAME: &str = "full_disk::a_full_disk_refuses_new_messages_and_nothing_else";
const INSIDE: &str = "DUEWHEEL_TMPFS";
const SIZE: &str = "size=16m";

#[test]
fn a_full_disk_refuses_new_messages_and_nothing_else() {
    match std::env::var_os(INSIDE) {
        None => in_a_namespace(),
        Some(mount) => cycles(Path::new(&mount)),
    }
}

/// Runs this test again where it may mount: in a namespace of its own, which takes the mount with it when it ends.
fn in_a_namespace() {
    let folder = tempfile::Builder::new().prefix("duewheel-tmpfs-").tempdir().expect("a temporary folder");
    let mount = folder.path().to_owned();
    let try_out = format!("mount -t tmpfs -o {SIZE} none '{}'", mount.display());
    let permitted = |options: &str| run(Command::new("unshare").args([options, "sh", "-c", &try_out]));
    let options = match permitted("-rm").map(|_| "-rm").or_else(|_| permitted("-m").map(|_| "-m")) {
        Ok(options) => options,
        Err(why) => return not_run("a_full_disk_refuses_new_messages_and_nothing_else (tmpfs)", &why),
    };
    let test = std::env::current_exe().expect("this test");
    let script = format!("{try_out} && exec '{}' --exact --nocapture {NAME}", test.display());
    let status = Command::new("unshare").args([options, "sh", "-c", &script]).env(INSIDE, &mount).status();
    assert!(status.expect("unshare").success(), "see above");
}

fn cycles(mount: &Path) {
    let cycles = env("DUEWHEEL_CYCLES", 2);
    let play = Play {
        name: "a_full_disk_refuses_new_messages_and_nothing_else",
        count: ("DUEWHEEL_CYCLES", cycles),
        data: Some(mount.join("data")),
        more: &[],
        slack_ms: None,
        facts: vec![
            (Fact::ExpiredLeasesGrantedAgain, cycles),
            (Fact::CancelsWon, cycles),
            (Fact::KillsServing, cycles / 2),
        ],
        crew: Crew::All,
    };
    let ballast = mount.join("ballast");
    let mut seen = Seen::default();
    perform(play, |stage, mut server| {
        seen.full_from_the_start += start_on_a_full_disk(stage, &ballast)?;
        for cycle in 0..cycles {
            let what = format!("cycle {cycle}");
            stage.other(format!("{what}: full"));
            server = match cycle % 2 {
                0 => by_others(stage, server, &ballast, &mut seen),
                _ => by_messages(stage, server, &mount.join("beside"), &mut seen),
            }
            .map_err(|e| format!("{what}: {e}"))?;
            stage.other(format!("{what}: room again"));
        }
        println!("{seen:?}");
        if seen.refused < cycles || seen.resumed < cycles {
            return Err(format!("the disk was not full each time: {seen:?}"));
        }
        if seen.helped > cycles.div_ceil(8) {
            return Err(format!("room came back by itself too seldom: {seen:?}"));
        }
        Ok(server)
    });
}

#[derive(Debug, Default)]
struct Seen {
    /// Enqueues that got 507.
    refused: u64,
    /// Times that new messages were taken again, without a restart.
    resumed: u64,
    /// Starts on a full disk that served.
    started: u64,
    /// Starts on a full disk that said why not.
    not_started: u64,
    full_from_the_start: u64,
    /// Times that room came back only when somebody else gave some.
    helped: u64,
}

/// A new folder on a full disk: refused with the reason, or it serves.
fn start_on_a_full_disk(stage: &Stage<'_>, ballast: &Path) -> Result<u64, String> {
    fill(ballast)?;
    let logged = read(&stage.log()).len();
    let data = ballast.with_file_name("second");
    let mut command = Command::new(&stage.binary);
    command.args(Server::arguments(&data));
    let mut server =
        Server::spawn(command, &stage.log(), Listens::Says("listening on")).map_err(|e| e.to_string())?;
    if server.address(PATIENCE).is_ok() {
        return Err("a new folder was made on a full disk".into());
    }
    let said = read(&stage.log())[logged..].to_owned();
    let code = server.ended().map_err(|e| e.to_string())?.and_then(|status| status.code());
    if code != Some(1) || !said.contains("No space left") {
        return Err(format!("a start on a full disk ended with {code:?}, and says: {said}"));
    }
    let removed = std::fs::remove_file(ballast).and_then(|()| std::fs::remove_dir_all(&data));
    removed.map_err(|e| e.to_string())?;
    Ok(1)
}

/// Takes all the room there is.
fn fill(ballast: &Path) -> Result<(), String> {
    let mut file = OpenOptions::new().append(true).create(true).open(ballast).map_err(|e| e.to_string())?;
    let piece = vec![1; 64 * 1024];
    let mut size = piece.len();
    while size > 0 {
        match file.write(&piece[..size]) {
            Ok(n) if n == size => {}
            Ok(_) | Err(_) => size /= 2,
        }
    }
    Ok(())
}

/// Somebody else fills the disk; every other time the server is killed and started meanwhile.
fn by_others(
    stage: &mut Stage<'_>,
    mut server: Server,
    ballast: &Path,
    seen: &mut Seen,
) -> Result<Server, String> {
    let own = prepare(stage)?;
    until_refused(stage, seen, || fill(ballast))?;
    goes_on(stage, &own)?;
    stage.kill(server)?;
    let logged = read(&stage.log()).len();
    let again = stage.start();
    server = match again {
        Ok(server) => {
            seen.started += 1;
            stage.until_healthy()?;
            until_refused(stage, seen, || fill(ballast))?;
            server
        }
        Err(why) => {
            let said = read(&stage.log())[logged..].to_owned();
            if !said.contains("No space left") && !said.contains("no room") {
                return Err(format!("started on the full disk: {why}: {said}"));
            }
            seen.not_started += 1;
            stage.fault(Fault::Killed(Moment::Recovering));
            std::fs::remove_file(ballast).map_err(|e| e.to_string())?;
            let server = stage.start()?;
            until_refused(stage, seen, || fill(ballast))?;
            server
        }
    };
    // All of it at once.
    std::fs::remove_file(ballast).map_err(|e| e.to_string())?;
    until_accepted(stage, seen)?;
    Ok(server)
}

/// Messages fill the disk, and their removal makes room.
///
/// Not always, yet: what was removed takes room until a flush or a merge has been written, and now and then the last
/// messages have left too little for that. So there is something beside the folder that may be removed then; that is counted.
fn by_messages(
    stage: &mut Stage<'_>,
    server: Server,
    beside: &Path,
    seen: &mut Seen,
) -> Result<Server, String> {
    let own = prepare(stage)?;
    // Or as much of it as there is room for.
    let _ = std::fs::write(beside, vec![1; 2 << 20]);
    let body = "x".repeat(60_000);
    let mut accepted = 0u64;
    stage.until("507 disk_full", |stage| {
        let (status, said) =
            stage.call("POST", "/v1/queues/bulk/messages", &json!({"body": body, "delay": "1h"}))?;
        match (status, said["code"].as_str()) {
            (201, _) => accepted += 1,
            (507, Some("disk_full")) => {
                seen.refused += 1;
                return Ok(Some(()));
            }
            // The store is behind with a flush.
            (429, _) => {}
            _ => return Err(format!("an enqueue on a disk that fills: {status} {said}")),
        }
        Ok(None)
    })?;
    goes_on(stage, &own)?;
    let purged = stage.done("POST", "/v1/queues/bulk/purge", &json!({}))?["purged"].as_u64();
    if purged != Some(accepted) {
        return Err(format!("{accepted} were accepted, and {purged:?} purged"));
    }
    let alone = until_accepted(stage, seen);
    std::fs::remove_file(beside).map_err(|e| e.to_string())?;
    if let Err(why) = alone {
        println!("KNOWN: no room by itself after a purge: {}", why.lines().next().unwrap_or_default());
        seen.helped += 1;
        until_accepted(stage, seen)?;
    }
    Ok(server)
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

/// Cancel, reserve, ack, nack, extend and purge, each answered with success; and the server says that it is well.
fn goes_on(stage: &Stage<'_>, own: &[String]) -> Result<(), String> {
    let (cancelled, _) = own.split_first().ok_or("no messages of our own")?;
    stage.done("DELETE", &format!("/v1/messages/{cancelled}"), &Value::Null)?;
    for verb in ["ack", "nack", "extend"] {
        let mut lease = json!({});
        stage.until("a grant", |stage| {
            let reserve = json!({"max": 1, "wait_ms": 1_000, "lease_ms": 20_000});
            lease = stage.done("POST", "/v1/queues/own/reserve", &reserve)?["messages"][0].clone();
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

/// Enqueues until it is refused because of the disk, whose room `fill` takes again and again.
fn until_refused(
    stage: &Stage<'_>,
    seen: &mut Seen,
    fill: impl Fn() -> Result<(), String>,
) -> Result<(), String> {
    let body = "x".repeat(60_000);
    stage.until("507 disk_full", |stage| {
        fill()?;
        let (status, said) =
            stage.call("POST", "/v1/queues/bulk/messages", &json!({"body": body, "delay_ms": 0}))?;
        match (status, said["code"].as_str()) {
            (507, Some("disk_full")) => {
                seen.refused += 1;
                Ok(Some(()))
            }
            (201 | 429, _) => Ok(None),
            _ => Err(format!("an enqueue on a disk that fills: {status} {said}")),
        }
    })
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

fn until_accepted(stage: &Stage<'_>, seen: &mut Seen) -> Result<(), String> {
    stage
        .until("new messages are taken again", |stage| {
            let (status, said) =
                stage.call("POST", "/v1/queues/bulk/messages", &json!({"body": "x", "delay_ms": 0}))?;
            match status {
                201 => Ok(Some(())),
                429 | 507 => Ok(None),
                _ => Err(format!("an enqueue after the disk was full: {status} {said}")),
            }
        })
        .map_err(|e| format!("{e}; {}", what_takes_room(stage)))?;
    seen.resumed += 1;
    stage.done("POST", "/v1/queues/bulk/purge", &json!({}))?;
    stage.until_healthy()
}

#[test]
fn filling_takes_all_the_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let full = folder.path().join("full");
    // /dev/full says "no space left" to every write: filling it ends at once.
    std::os::unix::fs::symlink("/dev/full", &full).expect("a link");
    fill(&full).expect("filled");
    assert!(File::open(&full).is_ok());
}
