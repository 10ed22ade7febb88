//! Clients that mean harm, or are broken, over HTTP: memory stays bounded, and a client that does no harm is served all
//! the while.
//!
//! Memory is the peak of the resident set (`VmHWM`), so that nothing is missed between two looks. How late the others
//! are served is no matter of a test: `bench/run hostile`.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{MIB, Told, connect, listen, peak, request, say, until};
use crate::fixture::PATIENCE;
use crate::process::{BINARY, Process};

/// A real server, a client of it that does no harm, and how much memory the server has had when nothing else has
/// happened yet.
struct Attacked {
    server: Process,
    address: String,
    healthy: Healthy,
    before: u64,
    _dir: TempDir,
}

impl Attacked {
    fn start(more: &[&str]) -> Attacked {
        let dir = TempDir::new().expect("dir");
        let server = Process::start(&dir.path().join("data"), more);
        Attacked::of(server, dir)
    }

    fn of(server: Process, dir: TempDir) -> Attacked {
        let address = server.url.trim_start_matches("http://").to_owned();
        let mut healthy = Healthy { stream: connect(&address), address: address.clone(), rounds: 0 };
        healthy.round();
        let before = peak(&server);
        Attacked { server, address, healthy, before, _dir: dir }
    }

    fn grown(&self) -> u64 {
        peak(&self.server) - self.before
    }

    fn say(&self, bytes: &[u8]) -> Option<Told> {
        say(&self.address, bytes)
    }
}

/// Enqueues, reserves and acks, over one connection that it keeps.
struct Healthy {
    address: String,
    stream: TcpStream,
    rounds: u64,
}

impl Healthy {
    fn round(&mut self) {
        self.rounds += 1;
        let (status, _) = self.ask("/v1/queues/healthy/messages", r#"{"body": "a", "delay_ms": 0}"#);
        assert_eq!(status, 201, "round {}", self.rounds);
        let (status, granted) = self.ask("/v1/queues/healthy/reserve", r#"{"wait_ms": 10000}"#);
        assert_eq!(status, 200, "round {}", self.rounds);
        let message = &granted["messages"][0];
        let ack = json!({"messages": [{"id": message["id"], "lease_token": message["lease_token"]}]});
        let (status, done) = self.ask("/v1/ack", &ack.to_string());
        assert_eq!((status, &done["results"][0]["result"]), (200, &json!("acked")), "round {}", self.rounds);
    }

    fn ask(&mut self, path: &str, body: &str) -> (u16, Value) {
        let bytes = request("POST", path, "", body).replace("connection: close\r\n", "");
        if let Some(answer) = self.try_ask(&bytes) {
            return answer;
        }
        // It was idle for too long; that may happen to everybody, once.
        self.stream = connect(&self.address);
        self.try_ask(&bytes).expect("the second connection is served")
    }

    /// Nothing when the server has hung up before it has said anything.
    fn try_ask(&mut self, bytes: &str) -> Option<(u16, Value)> {
        self.stream.write_all(bytes.as_bytes()).ok()?;
        let mut read = Vec::new();
        loop {
            let mut some = [0; 4_096];
            let n = match self.stream.read(&mut some) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => panic!("no answer in time to {bytes}"),
                read => read.unwrap_or(0),
            };
            if n == 0 {
                assert!(read.is_empty(), "closed in the middle: {}", String::from_utf8_lossy(&read));
                return None;
            }
            read.extend_from_slice(&some[..n]);
            let text = String::from_utf8_lossy(&read);
            let Some((head, rest)) = text.split_once("\r\n\r\n") else { continue };
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("length");
            if rest.len() == length.parse::<usize>().expect("length") {
                let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("status");
                return Some((status, serde_json::from_str(rest).expect("json")));
            }
        }
    }
}

/// What the server has said on a connection so far, and whether it has hung up.
fn heard(stream: &mut TcpStream, so_far: &mut Vec<u8>) -> bool {
    stream.set_nonblocking(true).expect("nonblocking");
    let mut some = [0; 4_096];
    loop {
        match stream.read(&mut some) {
            Ok(0) => return true,
            Ok(n) => so_far.extend_from_slice(&some[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return false,
            Err(_) => return true,
        }
    }
}

/// Sends a byte to each from time to time, until the server has hung up on all of them. What it has said to each.
fn drip(attacked: &mut Attacked, mut streams: Vec<TcpStream>) -> Vec<String> {
    let mut said = vec![Vec::new(); streams.len()];
    let mut over = vec![false; streams.len()];
    let begun = Instant::now();
    while over.contains(&false) {
        for ((stream, said), over) in streams.iter_mut().zip(&mut said).zip(&mut over) {
            if !*over {
                *over = heard(stream, said)
                    || stream.write(b"a").is_err_and(|e| e.kind() != ErrorKind::WouldBlock);
            }
        }
        attacked.healthy.round();
        std::thread::sleep(Duration::from_millis(50));
        assert!(begun.elapsed() < PATIENCE * 2, "they go on");
    }
    said.into_iter().map(|said| String::from_utf8_lossy(&said).into_owned()).collect()
}

#[test]
fn trickled_headers_are_cut_off() {
    let mut attacked = Attacked::start(&["--header-timeout", "2s"]);
    let streams = (0..500).map(|n| {
        let mut stream = connect(&attacked.address);
        let begin = ["", "GET /", "POST /v1/queues/q/messages HTTP/1.1\r\nhost: x\r\nx-slow: "][n % 3];
        stream.write_all(begin.as_bytes()).expect("write");
        stream
    });
    let streams = streams.collect();
    for said in drip(&mut attacked, streams) {
        assert!(
            said.is_empty() || said.starts_with("HTTP/1.1 408") || said.starts_with("HTTP/1.1 400"),
            "{said}"
        );
    }
    assert!(attacked.grown() < 32 * MIB, "{} bytes for 500 connections", attacked.grown());
}

/// Each announces as much as there may be; nothing is set aside for what has not come.
#[test]
fn trickled_bodies_are_cut_off() {
    let mut attacked = Attacked::start(&["--body-timeout", "2s"]);
    let streams = (0..300).map(|n| {
        let mut stream = connect(&attacked.address);
        let head = [
            "content-length: 262144\r\n",
            "content-type: application/x-ndjson\r\ncontent-length: 16777216\r\n",
            "transfer-encoding: chunked\r\n",
        ][n % 3];
        let begin = if n % 3 == 2 { "ffffff\r\n{" } else { "{" };
        let text = format!("POST /v1/queues/q/messages HTTP/1.1\r\nhost: x\r\n{head}\r\n{begin}");
        stream.write_all(text.as_bytes()).expect("write");
        stream
    });
    let streams = streams.collect();
    for said in drip(&mut attacked, streams) {
        assert!(said.starts_with("HTTP/1.1 408") && said.contains("request_timeout"), "{said}");
    }
    assert!(attacked.grown() < 48 * MIB, "{} bytes for 300 connections", attacked.grown());
}

/// So many connections of this process as it may have.
fn raise_limit() -> usize {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
        .expect("one may always raise it so far");
    maximum.map_or(usize::MAX, |n| usize::try_from(n).expect("fits"))
}

#[test]
fn idle_connections_use_little_memory() {
    const WANTED: usize = 10_000;
    // Other tests run beside this one, and the server needs some files of its own.
    let many = WANTED.min(raise_limit().saturating_sub(2_000));
    if many < WANTED {
        let left_out = std::env::var("DUEWHEEL_LEAVE_OUT").unwrap_or_default();
        assert!(
            left_out.split(',').any(|name| name.trim() == "connections"),
            "this process may have {many} connections, not {WANTED}: raise `ulimit -Hn`, or set DUEWHEEL_LEAVE_OUT=connections"
        );
    }
    let places = many.to_string();
    let mut attacked = Attacked::start(&["--max-connections", &places, "--header-timeout", "10m"]);
    let mut idle = Vec::with_capacity(many);
    // The healthy client has the first place.
    for n in 1..many {
        let mut stream = connect(&attacked.address);
        if n % 2 == 0 {
            stream.write_all(b"GET / HTTP/1.1\r\nhost").expect("write");
        }
        idle.push(stream);
        if n % 1_000 == 0 {
            attacked.healthy.round();
        }
    }
    until("all are accepted", || {
        attacked.healthy.round();
        refused(&attacked.address)
    });
    for _ in 0..200 {
        assert!(refused(&attacked.address), "one more than there may be");
    }
    attacked.healthy.round();
    let grown = attacked.grown();
    assert!(grown < 32 * 1024 * many as u64, "{grown} bytes for {many} idle connections");
    drop(idle);
    until("places are free", || !refused(&attacked.address));
    attacked.healthy.round();
}

/// Whether a new connection is turned away: told so, or closed.
fn refused(address: &str) -> bool {
    let told = say(address, request("GET", "/healthz", "", "").as_bytes());
    match told {
        None => true,
        Some(told) => {
            assert!(told.status == 200 || (told.status == 429 && told.code() == "overloaded"), "{told:?}");
            told.status == 429
        }
    }
}

/// Without room for files the store could not write, either. A tenth of all have no more than this.
#[test]
fn connections_leave_files_for_store() {
    raise_limit();
    let dir = TempDir::new().expect("dir");
    let mut command = Command::new("sh");
    let line = r#"ulimit -Sn 700; ulimit -Hn 1000; exec "$0" serve --http 127.0.0.1:0 --journal-bytes 1048576 --memory-messages 100 --data data"#;
    let server = Process::spawn({
        command.current_dir(dir.path()).args(["-c", line, BINARY]);
        command
    });
    let mut attacked = Attacked::of(server, dir);
    let idle: Vec<TcpStream> = (0..2_000).map(|_| connect(&attacked.address)).collect();
    // Enough for segments and runs to be made meanwhile.
    let body = "x".repeat(50_000);
    let text = json!({"body": body, "delay": "1h"}).to_string();
    let begun = Instant::now();
    for n in 0..100 {
        let answer = loop {
            let (status, answer) = attacked.healthy.ask("/v1/queues/q/messages", &text);
            // With so little memory a slow disk is behind now and then.
            if status != 429 || begun.elapsed() > PATIENCE {
                break (status, answer);
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(answer.0, 201, "{n}: {}", answer.1);
    }
    attacked.healthy.round();
    drop(idle);
}

#[test]
fn deep_nesting_is_refused_with_limit() {
    let mut attacked = Attacked::start(&["--durability", "memory"]);
    for depth in [33, 10_000, 1_000_000] {
        let arrays = "[".repeat(depth);
        let objects = r#"{"a":"#.repeat(depth);
        for (path, text) in [
            // A single message may have some 1.6 MB.
            ("/v1/queues/q/messages", arrays.clone()),
            ("/v1/queues/q/messages", format!(r#"{{"delay_ms": 0, "body": {arrays}"#)),
            ("/v1/ack", format!(r#"{{"messages": {arrays}{}}}"#, "]".repeat(depth))),
            ("/v1/ack", format!("{arrays}{}", "]".repeat(depth))),
            ("/v1/queues/q/cancel", format!("{objects}1{}", "}".repeat(depth))),
            ("/v1/queues/q/config", format!(r#"{{"backoff": {objects}1{}}}"#, "}".repeat(depth))),
        ] {
            let method = if path.ends_with("config") { "PUT" } else { "POST" };
            let told = attacked.say(request(method, path, "", &text).as_bytes()).expect("an answer");
            assert_eq!((told.status, told.code().as_str()), (400, "bad_request"), "{depth} {path}: {told:?}");
            assert!(told.body.contains("deeper than 32 levels"), "{depth} {path}: {told:?}");
        }
        let lines = format!("{{\"body\": \"a\", \"delay_ms\": 0}}\n{{\"body\": {arrays}\n");
        let ndjson = "content-type: application/x-ndjson\r\n";
        let told = attacked
            .say(request("POST", "/v1/queues/q/messages", ndjson, &lines).as_bytes())
            .expect("an answer");
        assert_eq!(told.status, 200, "{told:?}");
        assert!(
            told.body.contains("\"status\":201") && told.body.contains("deeper than 32 levels"),
            "{told:?}"
        );
        attacked.healthy.round();
    }
    assert!(attacked.grown() < 64 * MIB, "{} bytes", attacked.grown());
}

#[test]
fn oversized_length_is_refused_before_body() {
    let mut attacked = Attacked::start(&["--durability", "memory"]);
    for length in [
        "1687553",
        "16777217",
        "4294967296",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551613",
    ] {
        for path in ["/v1/queues/q/messages", "/v1/queues/q/reserve", "/v1/ack", "/v1/queues/q/cancel"] {
            if length.len() < 8 && path.ends_with("/ack") || length == "1687553" && path.ends_with("/cancel")
            {
                continue;
            }
            let text = format!(
                "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
            );
            // Nothing of the body is ever sent.
            let mut stream = connect(&attacked.address);
            stream.write_all(text.as_bytes()).expect("write");
            let mut said = Vec::new();
            let begun = Instant::now();
            while !said.windows(14).any(|w| w == b"body_too_large") {
                let over = heard(&mut stream, &mut said);
                let text = String::from_utf8_lossy(&said).into_owned();
                assert!(
                    (!over || text.contains("body_too_large")) && begun.elapsed() < PATIENCE,
                    "{length} {path}: {text:?}"
                );
            }
            assert!(said.starts_with(b"HTTP/1.1 413"), "{length} {path}");
        }
        attacked.healthy.round();
    }
    let over =
        attacked.say(b"POST /v1/ack HTTP/1.1\r\nhost: x\r\ncontent-length: 18446744073709551616\r\n\r\n");
    assert_eq!(over.expect("an answer").status, 400, "no number of 64 bits");
    assert!(attacked.grown() < 16 * MIB, "{} bytes", attacked.grown());
}

#[test]
fn endless_chunks_stop_at_limit() {
    let mut attacked = Attacked::start(&["--durability", "memory"]);
    let block = format!("10000\r\n{}\r\n", "x".repeat(65_536));
    let address = attacked.address.clone();
    let endless: Vec<_> = (0..8)
        .map(|n| {
            let (block, address) = (block.clone(), address.clone());
            std::thread::spawn(move || {
                let kind = if n % 2 == 0 { "content-type: application/x-ndjson\r\n" } else { "" };
                let mut stream = connect(&address);
                let head = format!("POST /v1/queues/q/messages HTTP/1.1\r\nhost: x\r\n{kind}transfer-encoding: chunked\r\n\r\n");
                stream.write_all(head.as_bytes()).expect("write");
                let (mut said, mut sent) = (Vec::new(), 0);
                while sent < 2_000 && stream.write_all(block.as_bytes()).is_ok() {
                    sent += 1;
                }
                let _ = stream.read_to_end(&mut said);
                (sent, String::from_utf8_lossy(&said).into_owned())
            })
        })
        .collect();
    while endless.iter().any(|attack| !attack.is_finished()) {
        attacked.healthy.round();
    }
    for attack in endless {
        let (sent, said) = attack.join().expect("no panic");
        assert!(sent < 2_000, "125 MiB were taken");
        // It may be lost when the server hangs up on a client that goes on and on.
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 413"), "{said}");
    }
    // The four batches hold 16 MiB each at the most, twice while a buffer grows.
    assert!(attacked.grown() < 192 * MIB, "{} bytes", attacked.grown());
}

#[test]
fn headers_above_their_limit_are_refused() {
    let mut attacked = Attacked::start(&["--durability", "memory"]);
    let many: String = (0..500).map(|n| format!("x-{n}: 1\r\n")).collect();
    for (what, head) in [
        ("17 KiB", format!("x: {}\r\n", "a".repeat(17 * 1024))),
        ("60 KiB", format!("x: {}\r\n", "a".repeat(60 * 1024))),
        ("a long name", format!("{}: 1\r\n", "a".repeat(17 * 1024))),
        ("500 headers", many),
    ] {
        let told = attacked.say(request("GET", "/healthz", &head, "").as_bytes()).expect("an answer");
        assert_eq!(told.status, 431, "{what}: {told:?}");
        attacked.healthy.round();
    }
    let path = format!("/v1/queues/{}", "a".repeat(60 * 1024));
    let told = attacked.say(request("GET", &path, "", "").as_bytes()).expect("an answer");
    assert!(matches!(told.status, 400 | 414), "{told:?}");
    // Without end: at some point the server hangs up.
    let mut endless: Vec<TcpStream> = (0..50).map(|_| connect(&attacked.address)).collect();
    let block = "a".repeat(64 * 1024);
    for stream in &mut endless {
        stream.write_all(b"GET / HTTP/1.1\r\nx: ").expect("write");
        let sent = (0..1_000).take_while(|_| stream.write_all(block.as_bytes()).is_ok()).count();
        assert!(sent < 1_000, "62 MiB of headers were taken");
        attacked.healthy.round();
    }
    assert!(attacked.grown() < 32 * MIB, "{} bytes", attacked.grown());
}

#[test]
fn giant_json_values_name_their_field() {
    let mut attacked = Attacked::start(&["--durability", "memory"]);
    let digits = "9".repeat(1_000_000);
    let text = "k".repeat(1_000_000);
    let map: String = (0..60_000).map(|n| format!("\"h{n}\": \"\",")).collect();
    for (fields, field) in [
        (format!("\"delay_ms\": {digits}"), "delay_ms"),
        (format!("\"delay_ms\": 1e{}", "9".repeat(10)), "delay_ms"),
        (format!("\"delay_ms\": 0, \"priority\": -{digits}"), "priority"),
        (format!("\"delay_ms\": 0.{digits}"), "delay_ms"),
        (format!("\"delay\": \"{digits}d\""), "delay"),
        (format!("\"delay\": \"{}\"", "1d".repeat(100_000)), "delay"),
        (format!("\"due_at\": \"{digits}\""), "due_at"),
        (format!("\"delay_ms\": 0, \"key\": \"{text}\""), "key"),
        (format!("\"delay_ms\": 0, \"dedupe_id\": \"{text}\""), "dedupe_id"),
        (format!("\"delay_ms\": 0, \"headers\": {{{map} \"last\": \"\"}}"), "headers"),
        (format!("\"delay_ms\": 0, \"{text}\": 1"), ""),
    ] {
        let shown = &fields[..fields.len().min(60)];
        let body = format!("{{\"body\": \"a\", {fields}}}");
        let told =
            attacked.say(request("POST", "/v1/queues/q/messages", "", &body).as_bytes()).expect("an answer");
        assert_eq!((told.status, told.code().as_str()), (400, "bad_request"), "{shown}: {told:?}");
        let named = told.json()["field"].as_str().unwrap_or_default().to_owned();
        assert!(
            named == field || field.is_empty() || told.body.contains("number out of range"),
            "{shown}: {}",
            &told.body[..told.body.len().min(500)]
        );
        attacked.healthy.round();
    }
    let name = "q".repeat(1_000);
    let told =
        attacked.say(request("GET", &format!("/v1/queues/{name}"), "", "").as_bytes()).expect("an answer");
    assert_eq!((told.status, &told.json()["field"]), (400, &json!("queue")));
    assert!(attacked.grown() < 64 * MIB, "{} bytes", attacked.grown());
}

/// Looking, reserving, and settings that set nothing leave no queue behind.
#[test]
fn unused_queue_names_use_no_memory() {
    let mut attacked = Attacked::start(&["--durability", "memory"]);
    // A queue of each would be more than the bound below.
    const NAMES: u64 = 6_000;
    const STATUS: &str = "HTTP/1.1 ";
    let tail = "q".repeat(180);
    let mut stream = connect(&attacked.address);
    for calls in (0..NAMES).collect::<Vec<_>>().chunks(100) {
        let mut text = String::new();
        for n in calls {
            let name = format!("{n}-{tail}");
            for (method, path, body) in [
                ("GET", format!("/v1/queues/{name}"), ""),
                ("POST", format!("/v1/queues/{name}/reserve"), "{}"),
                ("GET", format!("/v1/queues/{name}/keys/k"), ""),
                ("POST", format!("/v1/queues/{name}/resume"), ""),
            ] {
                text += &request(method, &path, "", body).replace("connection: close\r\n", "");
            }
        }
        stream.write_all(text.as_bytes()).expect("write");
        let (mut read, mut answers) = (Vec::new(), 0);
        while !read.ends_with(b"}\n") || answers < calls.len() * 4 {
            let mut some = [0; 65_536];
            let n = stream.read(&mut some).expect("answers in time");
            assert!(n > 0);
            // A status line may begin in what was read before.
            let from = read.len().saturating_sub(STATUS.len() - 1);
            read.extend_from_slice(&some[..n]);
            answers += String::from_utf8_lossy(&read[from..]).matches(STATUS).count();
        }
        attacked.healthy.round();
    }
    let (_, all) = attacked.server.call("GET", "/v1/queues", "");
    let names: Vec<&str> =
        all["queues"].as_array().expect("queues").iter().filter_map(|q| q["queue"].as_str()).collect();
    assert!(names.iter().all(|name| *name == "healthy"), "{} queues", names.len());
    assert!(attacked.grown() < 16 * MIB, "{} bytes for {NAMES} names", attacked.grown());
}

/// Each holds a large body back that is nearly there. All together may hold 256 MiB: the others wait, and are told so;
/// the many small requests of others go on.
#[test]
fn large_bodies_do_not_starve_small() {
    const SENDERS: usize = 40;
    let mut attacked = Attacked::start(&["--durability", "memory"]);
    let (refused, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let send = |address: &str| {
        let mut stream = connect(address);
        let head = "POST /v1/queues/q/messages HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-ndjson\r\ncontent-length: 16777216\r\n\r\n";
        stream.write_all(head.as_bytes()).expect("write");
        let block = vec![b'x'; 1024 * 1024];
        // A sender that waits is stuck here, until it is read from or refused.
        let _ = (0..15).all(|_| stream.write_all(&block).is_ok());
        stream.set_read_timeout(Some(Duration::from_millis(50))).expect("timeout");
        let mut said = [0; 12];
        let begun = Instant::now();
        while !is_over.load(Ordering::Relaxed) && begun.elapsed() < 4 * PATIENCE {
            match stream.read(&mut said) {
                Ok(12) => {
                    refused.fetch_add(usize::from(&said == b"HTTP/1.1 429"), Ordering::Relaxed);
                    return;
                }
                Ok(_) => return,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => return,
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..SENDERS {
            let address = attacked.address.clone();
            let send = &send;
            scope.spawn(move || send(&address));
        }
        let begun = Instant::now();
        // 256 MiB are 17 of these bodies.
        while refused.load(Ordering::Relaxed) < SENDERS / 2 {
            if begun.elapsed() > 3 * PATIENCE {
                break;
            }
            attacked.healthy.round();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let refused = refused.into_inner();
    assert!(refused >= SENDERS / 2, "{refused} were refused");
    let grown = attacked.grown();
    println!("{} MiB for {SENDERS} bodies of 15 MiB", grown / MIB);
    assert!(grown < 448 * MIB, "{grown} bytes");
    until("large ones are taken again", || {
        let lines = format!("{}\n", json!({"body": "a".repeat(100_000), "delay": "1h"})).repeat(20);
        let ndjson = "content-type: application/x-ndjson\r\n";
        attacked
            .say(request("POST", "/v1/queues/q/messages", ndjson, &lines).as_bytes())
            .is_some_and(|told| told.status == 200)
    });
}

/// Each asks for a page of 16 MiB and does not read it.
#[test]
fn unread_answers_are_bounded_and_cut() {
    let mut attacked = Attacked::start(&["--body-timeout", "3s"]);
    let lines = format!("{}\n", json!({"body": "a".repeat(200_000), "delay": "1h"})).repeat(80);
    let ndjson = "content-type: application/x-ndjson\r\n";
    let told = attacked
        .say(request("POST", "/v1/queues/large/messages", ndjson, &lines).as_bytes())
        .expect("an answer");
    assert_eq!(told.body.matches("\"status\":201").count(), 80);
    let before = peak(&attacked.server);
    let page =
        request("GET", "/v1/queues/large/messages?limit=1000", "", "").replace("connection: close\r\n", "");
    let mut deaf: Vec<TcpStream> = (0..150)
        .map(|_| {
            let mut stream = connect(&attacked.address);
            stream.write_all(page.as_bytes()).expect("write");
            stream
        })
        .collect();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        attacked.healthy.round();
    }
    let grown = peak(&attacked.server) - before;
    assert!(grown < 640 * MIB, "{grown} bytes for 150 pages of 16 MiB");
    // Those who were not told that there is no room are given up.
    until("they are given up", || {
        attacked.healthy.round();
        let told = attacked.say(request("GET", "/v1/queues/large/messages?limit=1000", "", "").as_bytes());
        told.is_some_and(|told| told.status == 200)
    });
    let mut cut = 0;
    for stream in &mut deaf {
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        let mut rest = Vec::new();
        if stream.read_to_end(&mut rest).is_err()
            || (rest.starts_with(b"HTTP/1.1 200") && rest.len() < 16_000_000)
        {
            cut += 1;
        }
    }
    assert!(cut > 0, "somebody's answer was cut off");
    assert!(listen(&mut connect_and_ask(&attacked.address)).is_some_and(|told| told.status == 200));
}

fn connect_and_ask(address: &str) -> TcpStream {
    let mut stream = connect(address);
    stream.write_all(request("GET", "/healthz", "", "").as_bytes()).expect("write");
    stream
}
