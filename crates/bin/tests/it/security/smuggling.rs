//! Requests that a proxy in front might understand otherwise than we do: what stands behind them must not become a
//! request of its own.

use super::{Told, say};
use crate::process::Process;
use tempfile::TempDir;

const INNER: &str = "POST /v1/queues/smuggled/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 28\r\n\r\n{\"body\": \"a\", \"delay_ms\": 0}";
const OUTER: &str = r#"{"body": "a", "delay_ms": 0}"#;

struct Server {
    server: Process,
    _dir: TempDir,
}

impl Server {
    fn start() -> Server {
        let dir = TempDir::new().expect("dir");
        let server = Process::start(&dir.path().join("data"), &["--durability", "memory"]);
        Server { server, _dir: dir }
    }

    fn say(&self, bytes: &str) -> Option<Told> {
        say(self.server.url.trim_start_matches("http://"), bytes.as_bytes())
    }

    fn enqueued(&self, queue: &str) -> u64 {
        self.server.call("GET", &format!("/v1/queues/{queue}"), "").1["totals"]["enqueued"]
            .as_u64()
            .expect("n")
    }
}

fn post(head: &str, body: &str) -> String {
    format!("POST /v1/queues/q/messages HTTP/1.1\r\nhost: x\r\n{head}\r\n{body}{INNER}")
}

#[test]
fn ambiguous_request_is_refused_unread() {
    let server = Server::start();
    let chunks = |size: &str| format!("{size}\r\n{OUTER}\r\n0\r\n\r\n");
    for (what, bytes) in [
        ("a header that goes on in the next line", post("x-a: b\r\n c\r\ncontent-length: 28\r\n", OUTER)),
        ("a length in the next line", post("content-length:\r\n 28\r\n", OUTER)),
        ("a space before the colon", post("content-length : 28\r\n", OUTER)),
        ("two lengths", post("content-length: 28\r\ncontent-length: 0\r\n", OUTER)),
        ("two lengths in one", post("content-length: 28, 0\r\n", OUTER)),
        ("a sign", post("content-length: +28\r\n", OUTER)),
        ("a negative length", post("content-length: -1\r\n", OUTER)),
        ("a hexadecimal length", post("content-length: 0x1c\r\n", OUTER)),
        ("an empty length", post("content-length: \r\n", OUTER)),
        (
            "a length that is too long to be one",
            post("content-length: 99999999999999999999999999999999\r\n", OUTER),
        ),
        ("an unknown coding", post("transfer-encoding: xchunked\r\n", &chunks("1c"))),
        ("a coding behind chunked", post("transfer-encoding: chunked, identity\r\n", &chunks("1c"))),
        ("gzip as the coding of the transfer", post("transfer-encoding: gzip\r\n", &chunks("1c"))),
        ("a chunk without a size", post("transfer-encoding: chunked\r\n", &chunks(""))),
        ("a chunk of a negative size", post("transfer-encoding: chunked\r\n", &chunks("-1"))),
        ("a chunk with 0x", post("transfer-encoding: chunked\r\n", &chunks("0x1c"))),
        ("a chunk of 2^64", post("transfer-encoding: chunked\r\n", &chunks("1000000000000001c"))),
        ("a chunk that is longer than said", post("transfer-encoding: chunked\r\n", &chunks("1b"))),
        ("a chunk of words", post("transfer-encoding: chunked\r\n", &chunks("ten"))),
        ("a chunk ended by LF", post("transfer-encoding: chunked\r\n", &format!("1c\n{OUTER}\n0\n\n"))),
        (
            "chunks in HTTP/1.0",
            post("transfer-encoding: chunked\r\n", &chunks("1c"))
                .replace("HTTP/1.1\r\nhost: x\r\ntransfer", "HTTP/1.0\r\nhost: x\r\ntransfer"),
        ),
        ("a zero byte in a header", post("x-a: b\0c\r\ncontent-length: 28\r\n", OUTER)),
        ("a lone CR", post("x-a: b\rcontent-length: 0\r\ncontent-length: 28\r\n", OUTER)),
        ("a line without a colon", post("nonsense\r\ncontent-length: 28\r\n", OUTER)),
        (
            "two hosts",
            post("host: y\r\ncontent-length: 28\r\n", OUTER).replace(
                "content-length: 28\r\n\r\n{\"body\": \"a\", \"delay_ms\": 0}POST",
                "content-length: 28\r\nconnection: close\r\n\r\n{\"body\": \"a\", \"delay_ms\": 0}POST",
            ),
        ),
    ] {
        let told = server.say(&bytes);
        let status = told.as_ref().map(|told| told.status);
        assert_eq!(status, Some(400), "{what}: {told:?}");
        assert_eq!((server.enqueued("smuggled"), server.enqueued("q")), (0, 0), "{what}");
    }
    // The inner request is one, and the outer one is, when they are clear.
    let good = server.say(&post("content-length: 28\r\n", OUTER).replace(
        "content-length: 28\r\n\r\n{\"body\": \"a\", \"delay_ms\": 0}",
        &format!("connection: close\r\ncontent-length: 28\r\n\r\n{OUTER}"),
    ));
    assert_eq!(good.expect("an answer").status, 201);
}

/// RFC 9112, 6.3: chunks count, the length does not, and the connection is closed after the answer, so that nothing
/// behind it is read.
#[test]
fn chunked_with_length_closes_connection() {
    let server = Server::start();
    let chunks = format!("1c\r\n{OUTER}\r\n0\r\n\r\n");
    let mut applied = 0;
    for head in [
        "content-length: 3\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 3\r\n",
        "content-length: 300\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 0\r\n",
    ] {
        let told = server.say(&post(head, &chunks)).expect("an answer");
        assert_eq!(told.status, 201, "{head}: {told:?}");
        assert!(told.head.contains("connection: close"), "{head}: {}", told.head);
        applied += 1;
        assert_eq!((server.enqueued("q"), server.enqueued("smuggled")), (applied, 0), "{head}");
    }
}

#[test]
fn a_packed_body_is_not_unpacked() {
    let server = Server::start();
    for (coding, status) in
        [("gzip", 415), ("deflate", 415), ("br", 415), ("identity, gzip", 415), ("identity", 201)]
    {
        let head =
            format!("connection: close\r\ncontent-encoding: {coding}\r\ncontent-length: {}\r\n", OUTER.len());
        let bytes = format!("POST /v1/queues/q/messages HTTP/1.1\r\nhost: x\r\n{head}\r\n{OUTER}");
        let told = server.say(&bytes).expect("an answer");
        assert_eq!(told.status, status, "{coding}: {told:?}");
    }
    assert_eq!(server.enqueued("q"), 1, "the last one");
}

/// The answers of good requests were lost when what came behind them in the same packet was none, or more than was
/// asked for: they waited in a buffer for the next one's.
#[test]
fn applied_requests_are_answered_before_errors() {
    let server = Server::start();
    let good = format!("POST /v1/queues/q/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 28\r\n\r\n{OUTER}");
    for (behind, status) in [
        ("nonsense\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\na b: c\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\nGET", "200"),
    ] {
        let told = server.say(&format!("{good}{good}{good}{behind}")).expect("answers");
        let whole = format!("{}\r\n\r\n{}", told.head, told.body.to_lowercase());
        assert_eq!(whole.matches("http/1.1 201").count(), 3, "{behind}: {whole}");
        assert_eq!(whole.matches(&format!("http/1.1 {status}")).count(), 1, "{behind}: {whole}");
    }
    assert_eq!(server.enqueued("q"), 9);
}
