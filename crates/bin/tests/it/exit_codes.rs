//! The exit codes of the client commands: what a script can do about a failure.

use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::process::BINARY;
use crate::security::new_token;
use crate::shell::Shell;

/// A port of this machine on which nobody listens.
fn nobody() -> String {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    format!("http://{}", socket.local_addr().expect("address"))
}

/// Story: `enqueue --lines` and imports made every failure of the connection a 1. `work` waits for the server, and
/// `import FILE` does so for half a minute.
#[test]
fn commands_without_server_exit_5() {
    let dir = TempDir::new().expect("dir");
    let server = nobody();
    for line in [
        "enqueue q body",
        "enqueue q --lines",
        "get 1",
        "cancel q --key k",
        "postpone 1 --delay 1h",
        "fire 1",
        "replay 1",
        "list q",
        "queues",
        "queue q",
        "queue rm q --yes",
        "config q",
        "config q --lease 1m",
        "pause q",
        "resume q",
        "purge q --yes",
        "redrive q",
        "dead q",
        "redrive q --note x --yes",
        "bulk cancel q --all --yes",
        "bulk cancel q --all --dry-run",
        "job list",
        "job get 1",
        "job cancel 1",
        "histogram",
        "histogram q",
        "top --json",
        "tail",
        "reserve q",
        "ack 1 1-1",
        "nack 1 1-1",
        "extend 1 1-1 --lease 1m",
        "export all.ndjson",
        "backup copy",
        "schedule put s --queue q --every 1h",
        "schedule get s",
        "schedule list",
        "schedule preview --every 1h",
        "schedule trigger s",
        "schedule pause s",
        "schedule resume s",
        "schedule backfill s --from 2026-01-01T00:00:00Z --to 2026-01-02T00:00:00Z",
        "schedule rm s",
        "target put t http://127.0.0.1/",
        "target get t",
        "target list",
        "target pause t",
        "target resume t",
        "target test t",
        "target rm t",
        "quotas",
        "health",
        "clock advance 1h",
        "cluster show",
        "token list",
    ] {
        let mut command = Command::new(BINARY);
        command.args(line.split(' ')).env("DUEWHEEL_SERVER", &server).current_dir(dir.path());
        command.env("DUEWHEEL_WAIT", "0");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("spawn");
        let mut stdin = child.stdin.take().expect("stdin");
        // Some do not read it.
        let _ = std::io::Write::write_all(&mut stdin, b"a line\n");
        drop(stdin);
        let output = child.wait_with_output().expect("output");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(5), "{line}: {stderr}");
        assert!(stderr.contains("no server at http://"), "{line}: {stderr}");
    }
}

#[test]
fn unauthorized_lines_and_imports_exit_6() {
    let dir = TempDir::new().expect("dir");
    let tokens = dir.path().join("tokens.toml");
    let token = new_token(&tokens, &["--name", "reader", "--scope", "metrics"]);
    let from = Shell::new();
    from.ok(&["enqueue", "q", "x"]);
    from.ok(&["export", "all.ndjson"]);
    let file = from.dir.path().join("all.ndjson");
    let to = Shell::with(&["--durability", "memory", "--tokens", tokens.to_str().expect("path")]);
    let refused = |args: &[&str], input: &[u8]| {
        let output = to.run_with(&[args, &["--token", &token]].concat(), input);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(6), "{args:?}: {stderr}");
        assert!(stderr.contains("forbidden: "), "{args:?}: {stderr}");
        stderr
    };
    let lines = refused(&["enqueue", "q", "--lines"], b"a\nb\n");
    // Story: it said that this was not known.
    assert!(lines.contains("; 0 accepted; nothing was accepted from line 1 on"), "{lines}");
    let import = refused(&["import", file.to_str().expect("path")], b"");
    assert!(import.contains("; 0 messages are here. Import the file again"), "{import}");
}
