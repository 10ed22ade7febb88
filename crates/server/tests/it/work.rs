//! `duewheel work` leaves no process of a command behind that it has ended.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use serde_json::json;

use crate::shell::Shell;

/// A process that SIGTERM does not end. It ends by itself, so that a test that fails leaves nothing behind.
const STUBBORN: &str = "trap '' TERM; for i in $(seq 90); do sleep 1; done";
/// Far more than a process that was killed needs, and far less than [`STUBBORN`] runs.
const GONE_WITHIN: Duration = Duration::from_secs(20);

fn worker(shell: &Shell, more: &[&str], script: &str) -> Child {
    let args = [&["work", "q", "--count", "1"], more, &["--", "sh", "-c", script]].concat();
    let mut command = shell.command(&args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("spawn")
}

/// Waits for the worker and for all that its command has started: they have its standard output open.
fn ends_with_all(mut worker: Child, code: i32) {
    let mut stdout = worker.stdout.take().expect("stdout");
    let (send, closed) = channel();
    std::thread::spawn(move || send.send(stdout.read_to_end(&mut Vec::new())));
    assert_eq!(worker.wait().expect("wait").code(), Some(code));
    closed.recv_timeout(GONE_WITHIN).expect("a process of the command runs on").expect("read");
}

fn history(shell: &Shell) -> serde_json::Value {
    shell.json(&["get", "1", "--json"])["history"][0].clone()
}

/// Story: the shell of a command died at the SIGTERM of `--timeout`, what it had started ignored it, and the message came
/// again beside that: SIGKILL was only for commands whose first process still ran.
#[test]
fn a_time_limit_ends_what_the_command_has_started() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "x"]);
    ends_with_all(worker(&shell, &["--timeout", "1s"], &format!("({STUBBORN}) & wait")), 0);
    let last = history(&shell);
    assert_eq!((&last["how"], &last["note"]), (&json!("nacked"), &json!("ran longer than 1s")));
}

#[test]
fn a_time_limit_ends_a_command_that_ignores_sigterm() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "x"]);
    ends_with_all(worker(&shell, &["--timeout", "1s"], STUBBORN), 0);
    assert_eq!(history(&shell)["note"], "ran longer than 1s");
}

#[test]
fn a_second_signal_ends_what_the_command_has_started() {
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
fn a_worker_whose_terminal_is_gone_finishes_its_message() {
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

/// What a command leaves in the background on purpose is none of the worker's business.
#[test]
fn a_command_that_ends_by_itself_may_leave_processes() {
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
fn a_reason_is_told_though_the_background_keeps_standard_error() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "x"]);
    let script = "sleep 5 & echo 'no such order' >&2; exit 1";
    let mut worker = worker(&shell, &[], script);
    assert_eq!(worker.wait().expect("wait").code(), Some(0));
    assert_eq!(history(&shell)["note"], "exit status 1: no such order");
}

/// Story: the last of many lines was cut off by the server, and the first began in its middle.
#[test]
fn a_reason_ends_with_the_last_line() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "x"]);
    let script = "for n in $(seq 100); do echo line number $n >&2; done; exit 3";
    shell.ok(&["work", "q", "--count", "1", "--", "sh", "-c", script]);
    let last = history(&shell)["note"].clone();
    let note = last.as_str().expect("a note");
    assert!(note.starts_with("exit status 3: line number ") && note.ends_with("line number 100"), "{note}");
}
