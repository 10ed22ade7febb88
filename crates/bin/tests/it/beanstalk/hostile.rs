//! Clients that mean harm, or are broken: memory stays bounded and others are served.
//!
//! Memory is the peak of the resident set (`VmHWM`), so that nothing is missed between two looks.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::client::Client;
use super::{Both, start};
use crate::fixture::PATIENCE;
use crate::process::Process;

const MIB: u64 = 1024 * 1024;

/// The most memory that the process has had so far, in bytes.
fn peak(server: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
    line.trim().strip_suffix(" kB").expect("kB").trim().parse::<u64>().expect("number") * 1024
}

/// A real server, and how much memory it has had when nothing has happened yet.
struct Measured {
    server: Process,
    address: String,
    before: u64,
    _dir: TempDir,
}

impl Measured {
    fn start(more: &[&str]) -> Measured {
        let dir = TempDir::new().expect("dir");
        let (server, address) = start(dir.path(), more);
        Client::connect(&address).field("stats", "pid");
        let before = peak(&server);
        Measured { server, address, before, _dir: dir }
    }

    fn grown(&self) -> u64 {
        peak(&self.server) - self.before
    }

    fn client(&self) -> Client {
        Client::connect(&self.address)
    }

    /// A job goes through.
    fn serves(&self, client: &mut Client) {
        let id = client.put("put 0 0 60", "served");
        assert_eq!(client.ask(&format!("reserve-job {id}")), format!("RESERVED {id} 6\r\nserved"));
        assert_eq!(client.ask(&format!("delete {id}")), "DELETED");
    }
}

/// Sends and never reads, until the server takes no more.
struct Deaf {
    /// Closes when dropped.
    _stream: TcpStream,
    sent: usize,
}

impl Deaf {
    /// Sends `command` again and again, up to so many bytes; `between` is called when the server does not take more at
    /// once.
    fn flood(address: &str, before: &str, command: &str, most: usize, mut between: impl FnMut()) -> Deaf {
        let mut stream = TcpStream::connect(address).expect("connect");
        stream.write_all(before.as_bytes()).expect("write");
        stream.set_nonblocking(true).expect("nonblocking");
        let block = command.repeat(16 * 1024 / command.len() + 1);
        let (mut sent, mut refused) = (0, 0);
        // It takes no more: so many times in a row, between which it has served others.
        while sent < most && refused < 20 {
            match stream.write(&block.as_bytes()[sent % block.len()..]) {
                Ok(n) => {
                    sent += n;
                    refused = 0;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    between();
                    std::thread::sleep(Duration::from_millis(5));
                    refused += 1;
                }
                Err(e) => panic!("{command:?} after {sent}: {e}"),
            }
        }
        Deaf { _stream: stream, sent }
    }
}

/// Waits until the server has done what it will do for those who do not read: its counters of commands stand still.
fn settle(client: &mut Client) {
    let begun = Instant::now();
    let (mut last, mut same) = (String::new(), 0);
    while same < 10 {
        let stats = client.ask("stats");
        let counters = stats.lines().filter(|l| l.starts_with("cmd-") && !l.starts_with("cmd-stats:"));
        let seen: String = counters.collect();
        same = if seen == last { same + 1 } else { 0 };
        last = seen;
        assert!(begun.elapsed() < PATIENCE, "it does not come to rest");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn endless_line_holds_no_memory() {
    let measured = Measured::start(&[]);
    let mut other = measured.client();
    for begin in ["x", "put-key ", "\r"] {
        let mut client = measured.client();
        assert_eq!(client.ask("list-tube-used"), "USING default", "{begin}");
        client.send(begin);
        let block = "%".repeat(64 * 1024);
        for _ in 0..512 {
            client.send(&block);
        }
        measured.serves(&mut other);
        assert_eq!(client.ask(""), "BAD_FORMAT", "{begin}");
        assert_eq!(client.ask("list-tube-used"), "USING default", "{begin}");
    }
    assert!(measured.grown() < 16 * MIB, "{} bytes for lines of 32 MiB", measured.grown());
}

#[test]
fn a_refused_body_holds_no_memory() {
    let measured = Measured::start(&[]);
    let mut client = measured.client();
    for size in [65_536, 64 * 1024 * 1024] {
        client.send(format!("put 0 0 60 {size}\r\n"));
        let block = "x".repeat(64 * 1024);
        for _ in 0..size / block.len() {
            client.send(&block);
        }
        assert_eq!(client.ask(""), "JOB_TOO_BIG");
    }
    measured.serves(&mut client);
    assert!(measured.grown() < 16 * MIB, "{} bytes for a body of 64 MiB", measured.grown());
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_put_body_enqueues_nothing() {
    let server = Both::start().await;
    let mut client = server.client("q");
    for sent in ["", "x", &"x".repeat(65_534), &"x".repeat(65_535), &format!("{}\r", "x".repeat(65_535))] {
        let mut closing = server.client("q");
        closing.send(format!("put 0 0 60 65535\r\n{sent}"));
        drop(closing);
        client.until("stats", "current-connections", "1");
    }
    assert_eq!(client.field("stats", "cmd-put").as_deref(), Some("5"));
    assert_eq!(client.field("stats", "current-producers").as_deref(), Some("0"));
    assert_eq!(client.field("stats", "total-jobs").as_deref(), Some("0"));
}

#[test]
fn half_sent_bodies_hold_their_size() {
    const CLIENTS: usize = 200;
    let measured = Measured::start(&[]);
    let body = "x".repeat(65_535);
    let (begin, end) = body.split_at(32_768);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| measured.client()).collect();
    for client in &mut clients {
        client.send(format!("put 0 0 60 65535\r\n{begin}"));
    }
    let mut other = measured.client();
    other.until("stats", "cmd-put", &CLIENTS.to_string());
    measured.serves(&mut other);
    // Some three times of what was announced.
    assert!(measured.grown() < 40 * MIB, "{} bytes", measured.grown());
    for client in &mut clients {
        client.send(end);
        assert!(client.ask("").starts_with("INSERTED "));
    }
    assert_eq!(other.field("stats", "current-jobs-ready").as_deref(), Some("200"));
}

/// Eight of each kind at a time. What a reply takes is counted before it is made.
#[test]
fn stalled_readers_hold_little_memory() {
    let measured = Measured::start(&[]);
    let mut other = measured.client();
    let mut owner = measured.client();
    owner.enter("big");
    let body = "x".repeat(65_535);
    let ready = owner.put("put 0 0 60", &body);
    let delayed = owner.put("put 0 100000 60", &body);
    for (command, most) in [
        // Each is a round trip to the engine, and their replies are so short that the server is not held up.
        ("reserve-with-timeout 0".to_owned(), 50_000),
        ("list-tubes-watched".to_owned(), 400_000),
        ("peek-ready".to_owned(), 2_000_000),
        (format!("peek {ready}"), 2_000_000),
        (format!("peek {delayed}"), 2_000_000),
        ("stats".to_owned(), 2_000_000),
        (format!("stats-job {ready}"), 200_000),
        ("list-tubes".to_owned(), 200_000),
    ] {
        let deaf = || {
            let command = format!("{command}\r\n");
            let before = "use big\r\nwatch idle\r\nignore default\r\n";
            Deaf::flood(&measured.address, before, &command, most, || measured.serves(&mut other))
        };
        let all: Vec<Deaf> = std::iter::repeat_with(deaf).take(8).collect();
        settle(&mut other);
        measured.serves(&mut other);
        assert!(measured.grown() < 96 * MIB, "{command}: {} bytes", measured.grown());
        assert!(all.iter().all(|deaf| deaf.sent > 2_000 * command.len()), "thousands of {command}");
        drop(all);
        other.until("stats", "current-connections", "2");
    }
}

/// Bodies of 8 MiB, asked for thousands of times.
#[test]
fn stalled_large_readers_hold_bounded_memory() {
    let measured = Measured::start(&["--beanstalk-max-job-size", "8388608"]);
    let mut other = measured.client();
    let mut owner = measured.client();
    owner.enter("big");
    let ids: Vec<String> = (0..4).map(|_| owner.put("put 0 0 60", &"x".repeat(8_388_608))).collect();
    let begun_with = measured.grown();
    for command in [format!("peek {}\r\n", ids[0]), "peek-ready\r\n".to_owned(), "reserve\r\n".to_owned()] {
        let deaf = || {
            let before = "use big\r\nwatch big\r\nignore default\r\n";
            Deaf::flood(&measured.address, before, &command, 100_000, || measured.serves(&mut other))
        };
        let all: Vec<Deaf> = std::iter::repeat_with(deaf).take(4).collect();
        settle(&mut other);
        measured.serves(&mut other);
        let grown = measured.grown() - begun_with;
        // A batch's megabyte and a body on top, and the room of a buffer that grows.
        assert!(grown < 128 * MIB, "{command}: {grown} bytes");
        drop(all);
        other.until("stats", "current-connections", "2");
    }
    other.until("stats", "current-jobs-reserved", "0");
    assert_eq!(other.field("stats-tube big", "current-jobs-ready").as_deref(), Some("4"));
}

#[test]
fn stalled_watchers_hold_little_memory() {
    let measured = Measured::start(&[]);
    let mut other = measured.client();
    let watch: String = (0..1_000).map(|n| format!("watch {n:0>200}\r\n")).collect();
    let deaf = || {
        Deaf::flood(&measured.address, &watch, "list-tubes-watched\r\n", 2_000_000, || {
            measured.serves(&mut other)
        })
    };
    let _all: Vec<Deaf> = std::iter::repeat_with(deaf).take(4).collect();
    settle(&mut other);
    assert!(measured.grown() < 64 * MIB, "{} bytes", measured.grown());
}

/// More commands in one read than are done together, and nothing comes behind them.
#[tokio::test(flavor = "multi_thread")]
async fn short_command_burst_is_fully_answered() {
    let server = Both::start().await;
    let mut client = server.client("q");
    client.send("x\r\n".repeat(5_000));
    for n in 0..5_000 {
        assert_eq!(client.reply(), "UNKNOWN_COMMAND", "{n}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_command_burst_is_fully_answered() {
    let server = Both::start().await;
    let mut client = server.client("q");
    client.send("touch 9\r\n".repeat(5_000));
    for n in 0..5_000 {
        assert_eq!(client.reply(), "NOT_FOUND", "{n}");
    }
}

#[test]
fn excess_connection_is_closed() {
    let measured = Measured::start(&["--max-connections", "5"]);
    let mut clients: Vec<Client> = (0..5).map(|_| until_served(&measured)).collect();
    for _ in 0..3 {
        measured.client().is_closed();
    }
    for client in &mut clients {
        assert_eq!(client.field("stats", "current-connections").as_deref(), Some("5"));
    }
    clients.pop();
    clients.push(until_served(&measured));
    measured.client().is_closed();
    for client in &mut clients {
        measured.serves(client);
    }
}

/// Connects again until it is not turned away: places of connections that have ended are free a little later.
fn until_served(measured: &Measured) -> Client {
    let begun = Instant::now();
    loop {
        let mut client = measured.client();
        if let Some(answer) = client.try_ask("list-tube-used") {
            assert_eq!(answer, "USING default");
            return client;
        }
        assert!(begun.elapsed() < PATIENCE, "no place gets free");
        std::thread::sleep(Duration::from_millis(2));
    }
}
