//! `duewheel demo`: it shows what it promises, and leaves nothing behind.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::process::{BINARY, run, text};

fn demo(folder: &TempDir, seconds: &str) -> Command {
    let mut command = Command::new(BINARY);
    // The options of the user's own server are none of its business.
    command
        .args(["demo", "--seconds", seconds])
        .env("TMPDIR", folder.path())
        .env("DUEWHEEL_TOKENS", "/nowhere");
    command.env("DUEWHEEL_STORE", "redis://127.0.0.1:1");
    command
}

/// The address that it has told, without the scheme.
fn address(line: &str) -> String {
    let (_, rest) = line.split_once("http://").unwrap_or_else(|| panic!("{line}"));
    rest.split(' ').next().expect("an address").to_owned()
}

fn assert_nothing_is_left(folder: &TempDir, address: &str) {
    assert_eq!(std::fs::read_dir(folder.path()).expect("folder").count(), 0, "a folder is left");
    assert!(TcpStream::connect(address).is_err(), "a server is left");
}

#[test]
fn demo_runs_stories_and_cleans_up() {
    let folder = TempDir::new().expect("dir");
    let output = run(&mut demo(&folder, "10"));
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    let mut rest = said.as_str();
    for words in [
        "in a browser shows it",
        "order 42 is placed",
        "200 SMS are written",
        "order 43 is paid: its timeout is cancelled",
        "kill -9: the server is gone",
        "it is started again, which took ",
        " ms: 201 messages are there",
        "close order 42: it was not paid; ",
        "200 of 200 SMS are sent: half of them at most ",
        "order 43 was never closed. Nothing was early, lost or doubled",
        "Next: duewheel serve",
    ] {
        let (_, behind) = rest.split_once(words).unwrap_or_else(|| panic!("{words}: {said}"));
        rest = behind;
    }
    assert_nothing_is_left(&folder, &address(&said));
}

/// Without options, as a new user types it: half a minute, and exit code 0.
#[test]
fn without_options_it_ends_well() {
    let folder = TempDir::new().expect("dir");
    let mut command = Command::new(BINARY);
    let output = run(command.arg("demo").env("TMPDIR", folder.path()));
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    assert!(said.contains("Nothing was early, lost or doubled"), "{said}");
    assert_nothing_is_left(&folder, &address(&said));
}

#[test]
fn demo_cleans_up_when_interrupted() {
    for signal in ["-INT", "-TERM"] {
        let folder = TempDir::new().expect("dir");
        let mut command = demo(&folder, "600");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("spawn");
        let mut out = BufReader::new(child.stdout.take().expect("stdout"));
        let mut line = String::new();
        out.read_line(&mut line).expect("line");
        let id = child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().expect("kill").success());
        let mut said = String::new();
        child.stderr.take().expect("stderr").read_to_string(&mut said).expect("read");
        assert_eq!(child.wait().expect("wait").code(), Some(1), "{said}");
        assert!(said.contains("interrupted: the server is stopped"), "{said}");
        assert_nothing_is_left(&folder, &address(&line));
    }
}
