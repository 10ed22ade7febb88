//! `duewheel work` leaves no process of a command behind that it has ended.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use serde_json::json;

use crate::fixture::PATIENCE;
use crate::process::{Process, serve};
use crate::shell::Shell;

/// A process that SIGTERM does not end. It ends by itself, so that a test that fails leaves nothing behind.
const STUBBORN: &str = "trap '' TERM; for i in $(seq 300); do sleep 1; done";

fn worker(shell: &Shell, more: &[&str], script: &str) -> Child {
    let args = [&["work", "q", "--count", "1"], more, &["--", "sh", "-c", script]].concat();
    let mut command = shell.command(&args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("spawn")
}

/// Waits for the worker and for all that its command has started: they have its standard output open. The time limit is
/// far less than [`STUBBORN`] runs.
fn ends_with_all(mut worker: Child, code: i32) {
    let mut stdout = worker.stdout.take().expect("stdout");
    let (send, closed) = channel();
    std::thread::spawn(move || send.send(stdout.read_to_end(&mut Vec::new())));
    assert_eq!(worker.wait().expect("wait").code(), Some(code));
    closed.recv_timeout(PATIENCE).expect("a process of the command runs on").expect("read");
}

fn history(shell: &Shell) -> serde_json::Value {
    shell.json(&["get", "1", "--json"])["history"][0].clone()
}

/// Story: a command that is not there used up an attempt of the first message, each time that it was tried.
#[test]
fn missing_command_takes_no_message() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "x"]);
    for command in ["/nonexistent", "no-such-command-of-duewheel", "./."] {
        let told = shell.fails(&["work", "q", "--", command], 1);
        assert!(told.contains(&format!("cannot run {command}: ")), "{told}");
    }
    let seen = shell.json(&["get", "1", "--json"]);
    assert_eq!((&seen["state"], &seen["attempt"]), (&json!("ready"), &json!(0)), "{seen}");
}

/// Story: with several jobs, the one that could not run its command told the others to stop, and the last of them ended
/// the process with exit code 0 and without a word.
#[test]
fn vanished_command_fails_multi_job_worker() {
    use std::os::unix::fs::PermissionsExt;
    let shell = Shell::new();
    let file = |name: &str| shell.dir.path().join(name);
    let until = |what: &str, done: &dyn Fn() -> bool| {
        let deadline = std::time::Instant::now() + PATIENCE;
        while !done() {
            assert!(std::time::Instant::now() < deadline, "waited in vain until {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let script =
        "#!/bin/sh\nrm job; touch gone; for i in $(seq 900); do test -e go && exit 0; sleep 0.1; done";
    std::fs::write(file("job"), script).expect("write");
    std::fs::set_permissions(file("job"), std::fs::Permissions::from_mode(0o700)).expect("chmod");
    let mut command = shell.command(&["work", "q", "--jobs", "2", "--", "./job"]);
    command.current_dir(shell.dir.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    shell.ok(&["enqueue", "q", "first"]);
    let worker = command.spawn().expect("spawn");
    until("the first has begun", &|| file("gone").exists());
    shell.ok(&["enqueue", "q", "second"]);
    until("the second has failed", &|| {
        let seen = shell.json(&["get", "2", "--json"]);
        seen["history"][0]["note"].as_str().is_some_and(|note| note.contains("cannot run ./job"))
    });
    std::fs::write(file("go"), "").expect("write");
    let ended = worker.wait_with_output().expect("wait");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot run ./job"), "{said}");
    assert_eq!(shell.run(&["get", "1"]).status.code(), Some(3), "the first was finished and acked");
}

/// Story: the shell of a command died at the SIGTERM of `--timeout`, what it had started ignored it, and the message came
/// again beside that: SIGKILL was only for commands whose first process still ran.
#[test]
fn time_limit_kills_child_processes() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "x"]);
    ends_with_all(worker(&shell, &["--timeout", "1s"], &format!("({STUBBORN}) & wait")), 0);
    let last = history(&shell);
    assert_eq!((&last["how"], &last["note"]), (&json!("nacked"), &json!("ran longer than 1s")));
}

#[test]
fn time_limit_kills_stubborn_command() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "x"]);
    ends_with_all(worker(&shell, &["--timeout", "1s"], STUBBORN), 0);
    assert_eq!(history(&shell)["note"], "ran longer than 1s");
}

#[test]
fn second_signal_kills_child_processes() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "x"]);
    let mut worker = worker(&shell, &[], &format!("({STUBBORN}) & echo begun >&2; wait"));
    let mut lines = BufReader::new(worker.stderr.take().expect("stderr")).lines();
    for awaited in ["begun", "finishing 1 message; once more to end the commands"] {
        assert_eq!(lines.next().expect("a line").expect("text"), awaited);
        let sent = Command::new("kill").args(["-INT", &worker.id().to_string()]).status();
        assert!(sent.expect("kill").success());
    }
    ends_with_all(worker, 1);
    let last = history(&shell);
    assert_eq!(last["how"], "nacked");
    assert!(last["note"].as_str().is_some_and(|note| note.starts_with("the worker was stopped")), "{last}");
}

/// Story: a worker whose terminal was closed died in the middle, and its message came again when the lease had run out.
#[test]
fn worker_finishes_after_terminal_closes() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "x"]);
    let script = "echo begun >&2; while [ ! -e go ]; do sleep 0.05; done";
    let mut worker = worker(&shell, &[], script);
    let mut lines = BufReader::new(worker.stderr.take().expect("stderr")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "begun");
    let sent = Command::new("kill").args(["-HUP", &worker.id().to_string()]).status();
    assert!(sent.expect("kill").success());
    let told = lines.next().expect("a line").expect("text");
    assert_eq!(told, "finishing 1 message; once more to end the commands");
    std::fs::write(shell.dir.path().join("go"), "").expect("write");
    ends_with_all(worker, 0);
    shell.fails(&["get", "1"], 3); // it was acked
}

/// Story: the server was away for two seconds when the command ended: its result was sent once, and the command ran
/// again, or its message was dead.
#[test]
fn a_result_outlives_a_restart_of_the_server() {
    let mut shell = Shell::with(&[]);
    shell.ok(&["enqueue", "q", "x", "--max-attempts", "1", "--lease", "10m"]);
    let script = "echo begun >&2; while [ ! -e go ]; do sleep 0.05; done";
    let mut worker = worker(&shell, &[], script);
    let mut lines = BufReader::new(worker.stderr.take().expect("stderr")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "begun");
    let address = shell.server.url.replace("http://", "");
    shell.server.kill();
    std::fs::write(shell.dir.path().join("go"), "").expect("write");
    let told = lines.next().expect("a line").expect("text");
    assert!(told.starts_with("duewheel: waiting for the server"), "{told}");
    let mut again = serve();
    again.args(["--http", &address, "--data"]).arg(shell.dir.path().join("data"));
    shell.server = Process::spawn(again);
    ends_with_all(worker, 0);
    shell.fails(&["get", "1"], 3); // it was acked
}

/// Story: `work` was killed, and its command ran on beside the next run of its message.
#[test]
fn a_killed_worker_leaves_no_command_behind() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "x"]);
    let mut worker = worker(&shell, &[], "echo begun >&2; exec sleep 300");
    let mut lines = BufReader::new(worker.stderr.take().expect("stderr")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "begun");
    let mut stdout = worker.stdout.take().expect("stdout");
    worker.kill().expect("kill");
    worker.wait().expect("wait");
    let (send, closed) = channel();
    std::thread::spawn(move || send.send(stdout.read_to_end(&mut Vec::new())));
    closed.recv_timeout(PATIENCE).expect("the command runs on").expect("read");
}

/// Another consumer has the message: two commands would work on it.
#[test]
fn a_lost_lease_ends_the_command() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "x"]);
    let mut worker = worker(&shell, &["--lease", "1s"], "echo begun >&2; exec sleep 300");
    let mut lines = BufReader::new(worker.stderr.take().expect("stderr")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "begun");
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &worker.id().to_string()]).status();
        assert!(sent.expect("kill").success());
    };
    signal("-STOP");
    let other = shell.json(&["reserve", "q", "--wait", "1m", "--lease", "10m", "--json"]);
    assert_eq!(other["messages"][0]["attempt"], 2, "{other}");
    signal("-CONT");
    let told = lines.next().expect("a line").expect("text");
    assert!(told.starts_with("duewheel: message 1: lease_lost: "), "{told}");
    ends_with_all(worker, 0);
    assert_eq!(shell.json(&["get", "1", "--json"])["state"], "leased");
}

/// What a command leaves in the background on purpose is none of the worker's business.
#[test]
fn command_may_leave_background_processes() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "x"]);
    let script = "(sleep 2; echo done > later) >/dev/null 2>&1 & exit 0";
    shell.ok(&["work", "q", "--count", "1", "--", "sh", "-c", script]);
    let begun = std::time::Instant::now();
    while !shell.dir.path().join("later").exists() {
        assert!(begun.elapsed() < crate::fixture::PATIENCE, "it was ended");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Story: the reason was empty, because standard error was read to its end, which a process in the background kept away.
#[test]
fn background_process_does_not_hide_reason() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "x"]);
    let script = "sleep 5 & echo 'no such order' >&2; exit 1";
    let mut worker = worker(&shell, &[], script);
    assert_eq!(worker.wait().expect("wait").code(), Some(0));
    assert_eq!(history(&shell)["note"], "exit status 1: no such order");
}

/// Story: the last of many lines was cut off by the server, and the first began in its middle.
#[test]
fn failure_reason_ends_with_last_line() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "x"]);
    let script = "for n in $(seq 100); do echo line number $n >&2; done; exit 3";
    shell.ok(&["work", "q", "--count", "1", "--", "sh", "-c", script]);
    let last = history(&shell)["note"].clone();
    let note = last.as_str().expect("a note");
    assert!(note.starts_with("exit status 3: line number ") && note.ends_with("line number 100"), "{note}");
}

/// Story: each message lost an attempt to a script whose interpreter was missing: its exit code 126 counted as the
/// command's.
#[test]
fn missing_interpreter_ends_the_worker() {
    use std::os::unix::fs::PermissionsExt;
    let shell = Shell::new();
    let job = shell.dir.path().join("job");
    std::fs::write(&job, "#!/nosuch/interpreter\n").expect("write");
    std::fs::set_permissions(&job, std::fs::Permissions::from_mode(0o700)).expect("chmod");
    shell.ok_with(&["enqueue", "q", "--lines"], b"one\ntwo\n");
    let told = shell.fails(&["work", "q", "--until-empty", "--", "./job"], 1);
    assert!(told.ends_with("duewheel: cannot run ./job: its interpreter is not there\n"), "{told}");
    assert_eq!(shell.json(&["get", "1", "--json"])["attempt"], 1);
    assert_eq!(shell.json(&["get", "2", "--json"])["attempt"], 0);
    // The command's own 126 is one of its exit codes.
    shell.ok(&["work", "q", "--count", "1", "--", "sh", "-c", "echo cannot run: no >&2; exit 126"]);
    assert_eq!(shell.json(&["get", "2", "--json"])["history"][0]["note"], "exit status 126: cannot run: no");
}
