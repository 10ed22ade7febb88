//! What the first packet of every other protocol does to each listener: it is answered or the connection is closed, by
//! the server; nothing is carried out, and nothing stays open.

use std::fs::read_to_string;
use std::io::{ErrorKind, Read, Write};
use std::thread::scope;

use duewheel_redis_rig::{Redis, Settings};
use serde_json::Value;
use tempfile::TempDir;

use super::tls::Authority;
use super::{connect, request, until};
use crate::process::{Process, serve};

const COMMANDS: &str = "put 0 0 60 4\r\nevil\r\nuse q\r\nput 0 0 60 4\r\nevil\r\ndelete-key k\r\nkick 9\r\n";

/// A protocol, and what its client sends first; behind it comes what each listener would carry out.
fn packets() -> Vec<(&'static str, Vec<u8>)> {
    let enqueue = request("POST", "/v1/queues/q/messages", "", r#"{"body": "evil", "delay_ms": 0}"#);
    let tail = format!("\r\n{COMMANDS}{enqueue}");
    let http = |method, path: &str| request(method, path, "content-type: text/plain\r\n", &tail).into_bytes();
    let long = format!("/{}", "a".repeat(300));
    let raw = |begin: &[u8]| [begin, tail.as_bytes()].concat();
    let hello = [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], &[0xa5; 300]].concat();
    vec![
        ("HTTP GET", http("GET", "/")),
        ("HTTP POST", http("POST", &long)),
        ("h2c", raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")),
        ("TLS", raw(&hello)),
        ("RESP", raw(b"*1\r\n$4\r\nPING")),
        ("AMQP", b"AMQP\0\0\x09\x01".to_vec()),
        ("AMQP and more", raw(b"AMQP\0\0\x09\x01")),
        ("SSH", raw(b"SSH-2.0-OpenSSH_9.6")),
        ("memcached", raw(b"set k 0 0 4\r\nevil")),
        ("PROXY 1", raw(b"PROXY TCP4 127.0.0.1 127.0.0.1 40000 11300")),
        ("PROXY 2", raw(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x7f\0\0\x01\x7f\0\0\x01\x9c\x40\x2c\x24")),
        ("MQTT", b"\x10\x0d\0\x04MQTT\x04\x02\0\x3c\0\x01a".to_vec()),
        ("PostgreSQL", b"\0\0\0\x08\x04\xd2\x16\x2f".to_vec()),
    ]
}

/// Sends it, and waits until the server closes the connection.
fn send(listener: &str, address: &str, protocol: &str, packet: &[u8]) {
    let mut stream = connect(address);
    // A server that refuses early may close before all is written.
    let _ = stream.write_all(packet);
    if let Err(error) = stream.read_to_end(&mut Vec::new()) {
        let timed_out = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        assert!(!timed_out, "{listener} neither answers nor closes: {protocol}");
    }
}

/// Number of connections that a process holds at a port.
fn open(address: &str) -> usize {
    let port = address.rsplit(':').next().and_then(|port| port.parse::<u16>().ok()).expect("port");
    let local = format!("0100007F:{port:04X}");
    let table = read_to_string("/proc/net/tcp").expect("table");
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row[1] == local && row[3] != "0A" && row[9] != "0").count()
}

/// Everything that was ever done with messages, by queue.
fn done(queues: &Value) -> Vec<String> {
    let queues = queues["queues"].as_array().expect("queues");
    queues.iter().map(|queue| format!("{}: {}", queue["name"], queue["totals"])).collect()
}

/// Every packet to every listener; `queues` asks the server for its queues.
fn all_pairs(listeners: &[(&str, &str)], queues: impl Fn() -> Value) {
    let before = done(&queues());
    assert!(before.iter().any(|queue| queue.contains("\"enqueued\":1")), "{before:?}");
    let packets = packets();
    for (listener, address) in listeners {
        scope(|scope| {
            for (protocol, packet) in &packets {
                scope.spawn(move || send(listener, address, protocol, packet));
            }
        });
        assert_eq!(done(&queues()), before, "{listener}");
        until(&format!("{listener} holds no connection"), || open(address) == 0);
    }
}

const MESSAGE: &str = r#"{"body": "a", "key": "k", "delay": "1h"}"#;

#[test]
fn foreign_first_packets_change_nothing() {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let mut command = serve();
    command.args(["--http", "127.0.0.1:0", "--beanstalk", "127.0.0.1:0", "--header-timeout", "1s"]);
    command.args(["--store", &redis.url(0), "--node", "a", "--advertise", "127.0.0.1:0"]);
    let mut server = Process::spawn(command);
    let beanstalk = server.beanstalk();
    let http = server.url.strip_prefix("http://").expect("http").to_owned();
    server.until("/v1/cluster", |seen| seen["shards_without_owner"] == 0);
    let nodes = server.call("GET", "/v1/cluster", "").1["nodes"][0]["advertise"]
        .as_str()
        .expect("address")
        .to_owned();
    assert_eq!(server.call("POST", "/v1/queues/q/messages", MESSAGE).0, 201);
    all_pairs(&[("HTTP", &http), ("beanstalkd's", &beanstalk), ("the nodes'", &nodes)], || {
        server.call("GET", "/v1/queues", "").1
    });
}

#[test]
fn first_packets_change_nothing_behind_tls() {
    let dir = TempDir::new().expect("dir");
    let authority = Authority::new();
    let (cert, key) = authority.write(dir.path());
    let ca = dir.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).expect("ca");
    let mut command = serve();
    command.args(["--http", "127.0.0.1:0", "--beanstalk", "127.0.0.1:0", "--header-timeout", "1s"]);
    command.args(["--durability", "memory", "--data"]).arg(dir.path().join("data"));
    command.arg("--tls-cert").arg(cert).arg("--tls-key").arg(key).arg("--beanstalk-client-ca").arg(ca);
    let mut server = Process::spawn(command);
    let beanstalk = server.beanstalk();
    let https = server.url.strip_prefix("https://").expect("https").to_owned();
    let ask =
        |method, path, body| authority.say(&https, request(method, path, "", body).as_bytes()).expect("TLS");
    assert_eq!(ask("POST", "/v1/queues/q/messages", MESSAGE).status, 201);
    all_pairs(&[("HTTPS", &https), ("beanstalkd's", &beanstalk)], || ask("GET", "/v1/queues", "").json());
}
