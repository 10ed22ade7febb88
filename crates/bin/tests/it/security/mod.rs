//! What strangers, tenants, browsers and broken clients can do, and what they cannot. `SECURITY.md` says it for people.

mod backups;
mod browsers;
mod client;
mod exposure;
mod first_packets;
mod folder;
mod hostile;
mod ids;
mod logs;
mod memory;
mod mounted;
mod smuggling;
mod tls;
mod tokens;

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::fixture::PATIENCE;
use crate::process::{BINARY, Process, run, text};

const MIB: u64 = 1024 * 1024;

/// What a server has answered.
#[derive(Debug)]
struct Told {
    status: u16,
    head: String,
    body: String,
}

impl Told {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream
}

/// Sends bytes as they are, and reads to the end; nothing when the server just hangs up.
fn say(address: &str, bytes: &[u8]) -> Option<Told> {
    let mut stream = connect(address);
    // A server that refuses early may close before all is written.
    let _ = stream.write_all(bytes);
    listen(&mut stream)
}

fn listen(stream: &mut impl Read) -> Option<Told> {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        let timed_out = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        assert!(!timed_out, "no end after {:?}", String::from_utf8_lossy(&bytes));
    }
    let whole = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = whole.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("status");
    Some(Told { status, head: head.to_lowercase(), body: body.to_owned() })
}

/// A request with these headers, `name: value` with CRLF behind each, on a connection of its own.
fn request(method: &str, path: &str, head: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n{head}\r\n{body}"
    )
}

pub(crate) fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}\r\n")
}

/// Writes a file that only its owner may read.
fn write_private(file: &Path, text: &str) {
    let mut options = OpenOptions::new();
    let mut opened = options.write(true).create(true).truncate(true).mode(0o600).open(file).expect("open");
    opened.write_all(text.as_bytes()).expect("write");
}

/// `duewheel token new` with these arguments, into this file; the token.
pub(crate) fn new_token(file: &Path, args: &[&str]) -> String {
    let mut command = Command::new(BINARY);
    let output = run(command.args(["token", "new"]).args(args).arg("--tokens").arg(file));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let token = text(&output.stdout).trim_end().to_owned();
    assert!(token.starts_with("dw_") && !token.contains('\n'), "{token}");
    assert!(!text(&output.stderr).contains(&token));
    token
}

/// The most memory that the process has had so far, in bytes.
fn peak(server: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
    line.trim().strip_suffix(" kB").expect("kB").trim().parse::<u64>().expect("number") * 1024
}

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
