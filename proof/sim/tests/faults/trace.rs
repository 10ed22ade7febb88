//! The system calls of the real store fail, by `strace -e inject`.
//!
//! strace counts by thread: `when=3` fails the third call of *each* thread, those of the store that is opened after the
//! failure included, until strace is gone. So one case can fail several times, and opening again can fail, too.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use duewheel_judge::checker::Fact;
use duewheel_judge::history::{Fault, Moment};
use duewheel_sim::blackbox::System as _;
use duewheel_sim::blackbox::crew::QUEUES;
use duewheel_sim::permission::{not_permitted, run};
use duewheel_sim::process::{self, Server};
use serde_json::{Value, json};

use crate::stage::{Crew, PATIENCE, Play, SYSTEM, Stage, env, perform, read};

/// Everything that the store asks of the system (`strace -c` says so; it never truncates), but `preadv2`: what that call
/// does not read is read by `pread64`.
const CALLS: [&str; 11] = [
    "fdatasync",
    "pwrite64",
    "renameat",
    "fallocate",
    "openat",
    "fsync",
    "unlinkat",
    "pread64",
    "statx",
    "statfs",
    "getdents64",
];
const ERRORS: [&str; 2] = ["EIO", "ENOSPC"];

/// What is looked at besides when a sync fails.
const SYNC: &str = "fdatasync,openat,pwrite64";

/// For how long a call is waited for that may never be made.
const RARE: Duration = Duration::from_secs(2);

/// What has happened to the cases of one system call.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    /// Calls that were made to fail while the server served.
    injected: u64,
    /// Starts with a failing call.
    starts: u64,
    /// Of these, refused.
    refused: u64,
}

#[test]
fn system_calls_may_fail() {
    let most = env("DUEWHEEL_INJECTIONS", 1);
    if let Err(why) = permitted() {
        return not_permitted("syscalls", &why);
    }
    let play = Play {
        name: "system_calls_may_fail",
        count: ("DUEWHEEL_INJECTIONS", most),
        data: None,
        more: &[],
        // Over a restart the clocks are rounded, by up to 2 ms; and messages wait over many.
        slack_ms: Some(SYSTEM.rules().slack_ms + 2 * 8 * CALLS.len() as u64 * most),
        facts: vec![
            (Fact::UnknownOutcomes, most),
            (Fact::KillsServing, most),
            (Fact::ExpiredLeasesGrantedAgain, most),
            (Fact::CancelsWon, most),
        ],
        crew: Crew::All,
    };
    perform(play, |stage, mut server| {
        let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
        for call in CALLS {
            for n in 1..=most {
                for error in ERRORS {
                    let tally = tallies.entry(call).or_default();
                    tally.injected += serving(stage, &mut server, &Case { call, error, n })?;
                }
            }
            // A server with too much to do makes few calls in the time that each case has.
            let tally = tallies.entry(call).or_default();
            let again = Case { call, error: ERRORS[0], n: 1 };
            process::until(call, PATIENCE, || {
                if is_rare(call) || tally.injected >= most {
                    return Ok(Some(()));
                }
                tally.injected += serving(stage, &mut server, &again)?;
                Ok(None)
            })?;
        }
        let _ = stage.run.until_left(&QUEUES, 1_000, PATIENCE);
        for call in CALLS {
            for error in ERRORS {
                for folder in [Folder::Old, Folder::New] {
                    let (mut n, mut met) = (1, 0);
                    while met < most {
                        let case = Case { call, error, n };
                        n += 1;
                        let began = match folder {
                            Folder::Old => {
                                let began;
                                (server, began) = starting(stage, server, &case)?;
                                began
                            }
                            Folder::New => founding(stage, &case)?,
                        };
                        let tally = tallies.entry(call).or_default();
                        match began {
                            Began::Not => continue,
                            Began::Untouched => break,
                            Began::Serving => {}
                            Began::Refused => tally.refused += 1,
                        }
                        tally.starts += 1;
                        met += 1;
                    }
                }
            }
        }
        for (call, Tally { injected, starts, refused }) in &tallies {
            println!(
                "{call:<12}{injected:>5} failed while it served,{starts:>4} at starts, which {refused} refused"
            );
        }
        for call in CALLS {
            let tally = tallies.get(call).copied().unwrap_or_default();
            let least = most.min(2); // a start makes few calls of a kind
            if tally.starts < least {
                return Err(format!("too few failures of {call}: {tally:?}"));
            }
        }
        Ok(server)
    });
}

/// Whether a server that serves may never make this call. Room for a file is asked for when it is made, which is rare
/// later on.
fn is_rare(call: &str) -> bool {
    matches!(call, "fallocate" | "unlinkat" | "statfs" | "statx" | "getdents64")
}

struct Case {
    call: &'static str,
    error: &'static str,
    n: u64,
}

impl Case {
    fn name(&self) -> String {
        format!("{} {} at call {}", self.error, self.call, self.n)
    }

    fn options(&self, out: &Path) -> Vec<String> {
        let Case { call, error, n } = self;
        let out = out.display();
        // With names of files, so that a sync can be told from another.
        ["-f", "-y", "-qq", "-o", &out.to_string()]
            .into_iter()
            .map(str::to_owned)
            .chain(["-e".into(), format!("trace={}", if call == &"fdatasync" { SYNC } else { call })])
            .chain(["-e".into(), format!("inject={call}:error={error}:when={n}")])
            .collect()
    }
}

/// What a server is started on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Folder {
    Old,
    New,
}

/// How a start went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Began {
    /// The call was the loader's, which says for itself what is missing.
    Not,
    /// The call was not made.
    Untouched,
    Serving,
    /// It said why, and ended.
    Refused,
}

/// Whether processes may be traced here.
fn permitted() -> Result<(), String> {
    let traced = run(Command::new("strace").args(["-f", "-qq", "-o", "/dev/null", "true"]));
    traced.map(drop).map_err(|why| format!("strace does not work here: {why}"))
}

/// strace on a process that runs; ended, and the process let go, when it is dropped.
struct Tracer(Child);

impl Tracer {
    fn attach(id: u32, options: &[String]) -> Result<Self, String> {
        let mut command = Command::new("strace");
        command.args(options).args(["-p", &id.to_string()]);
        let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(|e| e.to_string())?;
        let mut tracer = Tracer(child);
        let deadline = Instant::now() + PATIENCE;
        while !traced(id) {
            if let Ok(Some(status)) = tracer.0.try_wait() {
                return Err(format!("strace could not attach: {status}"));
            }
            if Instant::now() > deadline {
                return Err("strace does not attach".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(tracer)
    }

    /// Ends it: nothing fails any more.
    fn detach(mut self, id: u32) -> Result<(), String> {
        process::signal(self.0.id(), "-INT").map_err(|e| e.to_string())?;
        let deadline = Instant::now() + PATIENCE;
        while traced(id) || self.0.try_wait().map_err(|e| e.to_string())?.is_none() {
            if Instant::now() > deadline {
                return Err("strace does not let go".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn traced(id: u32) -> bool {
    let status = read(&PathBuf::from(format!("/proc/{id}/status")));
    status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|pid| pid.trim() != "0"))
}

fn injected(out: &Path) -> u64 {
    read(out).lines().filter(|line| line.contains("(INJECTED)")).count() as u64
}

/// A call fails under a server that serves. It goes on, or opens its store again by itself; afterwards it is well.
fn serving(stage: &mut Stage<'_>, server: &mut Server, case: &Case) -> Result<u64, String> {
    let name = case.name();
    stage.other(&name);
    let out = stage.folder.join(format!("{}.strace", name.replace(' ', "-")));
    let tracer = Tracer::attach(server.id(), &case.options(&out))?;
    // Files are opened for copies, too, and that is asked for here: lists, lengths and reads are rare otherwise.
    let copy = stage.folder.join("copy");
    let begun = Instant::now();
    while injected(&out) == 0 && begun.elapsed() < RARE {
        let _ = stage.call("POST", "/v1/backup", &json!({ "dest": copy }));
        let _ = std::fs::remove_dir_all(&copy);
        std::thread::sleep(Duration::from_millis(20));
    }
    // What the failure has led to happens under strace, too.
    std::thread::sleep(Duration::from_millis(150));
    tracer.detach(server.id())?;
    stage.other(format!("{name}: no more"));
    if let Some(status) = server.ended().map_err(|e| e.to_string())? {
        return Err(format!("{name}: the server ended: {status}: {}", read(&stage.log())));
    }
    stage.until_healthy().map_err(|e| format!("{name}: {e}"))?;
    accepts(stage).map_err(|e| format!("{name}: {e}"))?;
    // strace makes the server slow; some of what has piled up is worked off first.
    let _ = stage.run.until_left(&QUEUES, 1_000, RARE);
    let lines = read(&out);
    if case.call == "fdatasync" {
        synced_again(&lines).map_err(|e| format!("{name}: {e}"))?;
    }
    Ok(injected(&out))
}

/// After a failure new messages are taken by itself.
fn accepts(stage: &Stage<'_>) -> Result<(), String> {
    let mut last = Value::Null;
    stage
        .until("new messages are accepted", |stage| {
            let (status, said) =
                stage.call("POST", "/v1/queues/after/messages", &json!({"body": "x", "delay_ms": 0}))?;
            last = said;
            Ok((status == 201).then_some(()))
        })
        .map_err(|e| format!("{e}: {last}"))
}

/// A journal file whose sync has failed is not synced again by its owner: the kernel may have dropped what was not
/// written, and a sync that succeeds would be a lie. A new owner may use the file again, and then writes to it before
/// it syncs. (A file that is being filled with zeros goes by another name, and is made anew.)
fn synced_again(trace: &str) -> Result<(), String> {
    /// What has happened to a file since its sync failed.
    #[derive(Clone, Copy, PartialEq)]
    enum Since {
        Nothing,
        Opened,
        Written,
    }
    let mut failed: BTreeMap<&str, Since> = BTreeMap::new();
    for line in trace.lines() {
        let journal = |name: &&str| name.contains("/journal/") && name.ends_with(".log");
        let mut names = line.split(['<', '>', '"']).filter(journal);
        let Some(name) = names.next() else { continue };
        let since = failed.get(name).copied();
        if line.contains(" openat(") && since.is_some() {
            failed.insert(name, Since::Opened);
        } else if line.contains(" pwrite64(") && since == Some(Since::Opened) {
            failed.insert(name, Since::Written);
        } else if line.contains(" fdatasync(") {
            if matches!(since, Some(Since::Nothing | Since::Opened)) {
                return Err(format!("synced again after a failure: {line}"));
            }
            if line.contains("(INJECTED)") {
                failed.insert(name, Since::Nothing);
            }
        }
    }
    Ok(())
}

#[test]
fn retried_sync_is_noticed() {
    let sync = "7 fdatasync(9</d/journal/0000000001.log>)";
    let failed = format!("{sync} = -1 EIO (Input/output error) (INJECTED)\n");
    let done = format!("{sync} = 0\n");
    let open = "7 openat(AT_FDCWD</>, \"/d/journal/0000000001.log\", O_RDWR|O_CLOEXEC) = 9</d/journal/0000000001.log>\n";
    let write = "7 pwrite64(9</d/journal/0000000001.log>, \"x\"..., 1, 4096) = 1\n";
    let noticed = |lines: &[&str]| synced_again(&lines.concat()).is_err();
    assert!(noticed(&[&failed, &done]));
    assert!(noticed(&[&failed, write, &done]), "by the same owner");
    assert!(noticed(&[&failed, open, &done]), "without a write");
    assert!(!noticed(&[&failed, open, write, &done]));
    assert!(!noticed(&[&done, &done, &failed]));
    assert!(noticed(&[&failed, open, write, &done, &failed, &done]));
}

/// A call fails while the server starts: it says why and ends, or it serves. Then it is started without.
fn starting(stage: &mut Stage<'_>, server: Server, case: &Case) -> Result<(Server, Began), String> {
    let name = format!("{} of a start", case.name());
    stage.kill(server)?;
    stage.other(&name);
    let data = stage.data.clone();
    let began = begin(stage, case, &data).map_err(|e| format!("{name}: {e}"))?;
    // Nobody has asked anything of it.
    stage.fault(Fault::Killed(Moment::Recovering));
    let server = stage.start().map_err(|e| format!("{name}, and again without: {e}"))?;
    stage.until_healthy().map_err(|e| format!("{name}: {e}"))?;
    Ok((server, began))
}

/// The same for a folder that is made by this start, beside the history.
fn founding(stage: &Stage<'_>, case: &Case) -> Result<Began, String> {
    let name = format!("{} of the first start", case.name());
    let data = stage.folder.join("new");
    let began = begin(stage, case, &data).map_err(|e| format!("{name}: {e}"))?;
    let mut command = Command::new(&stage.binary);
    command.args(Server::arguments(&data));
    let mut server = Server::spawn(command, &stage.log(), "listening on").map_err(|e| e.to_string())?;
    server.address(PATIENCE).map_err(|e| format!("{name}, and again without: {e}"))?;
    server.kill().map_err(|e| e.to_string())?;
    std::fs::remove_dir_all(&data).map_err(|e| e.to_string())?;
    Ok(began)
}

/// Starts a server whose call fails, until it listens or ends.
fn begin(stage: &Stage<'_>, case: &Case, data: &Path) -> Result<Began, String> {
    let out = stage.folder.join("start.strace");
    let logged = read(&stage.log()).len();
    // strace as a grandchild, so that the server is the child, which is killed.
    let mut command = Command::new("strace");
    command.arg("-D").args(case.options(&out)).arg(&stage.binary).args(Server::arguments(data));
    let mut young = Server::spawn(command, &stage.log(), "listening on").map_err(|e| e.to_string())?;
    let address = young.address(PATIENCE);
    let injected = injected(&out);
    if address.is_ok() {
        young.kill().map_err(|e| e.to_string())?;
        return Ok(if injected > 0 { Began::Serving } else { Began::Untouched });
    }
    let code = young.ended().map_err(|e| e.to_string())?.and_then(|status| status.code());
    let said = read(&stage.log())[logged..].to_lowercase();
    let is_clear = said.contains("input/output error") || said.contains("no space left");
    if said.contains("error while loading shared libraries") {
        Ok(Began::Not)
    } else if code == Some(1) && said.contains("duewheel: ") && is_clear && injected > 0 {
        Ok(Began::Refused)
    } else {
        Err(format!("ended with {code:?}, and it says: {said}"))
    }
}
