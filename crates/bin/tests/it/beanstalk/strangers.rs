//! Clients of other protocols at this port. A browser sends what any web page asks for, and nearly every byte of its
//! request is the page's: none of it may be a command.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::client::Client;
use super::{Both, DEFAULT_MAX_BODY};
use crate::fixture::PATIENCE;

const UNKNOWN: &str = "UNKNOWN_COMMAND\r\n";
const BAD: &str = "BAD_FORMAT\r\n";
const COMMANDS: &str =
    "put 0 0 60 4\r\nevil\r\nuse x\r\nput 0 0 60 4\r\nevil\r\nreserve-with-timeout 0\r\ndelete 1\r\n";

/// Everything that the server answers to these bytes until it closes; the client itself closes nothing before.
fn said(server: &Both, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(&server.address).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream.write_all(bytes).expect("write");
    let mut said = String::new();
    stream.read_to_string(&mut said).expect("an orderly end, and no reset");
    said
}

/// A server on which one job waits.
async fn with_a_job() -> (Both, Client) {
    let server = Both::start().await;
    let mut client = Client::connect(&server.address);
    client.put("put 0 0 60", "mine");
    (server, client)
}

/// Neither put nor reserved nor deleted.
fn is_untouched(client: &mut Client, what: &str) {
    assert_eq!(client.field("stats", "total-jobs").as_deref(), Some("1"), "{what}");
    assert_eq!(client.field("stats", "cmd-reserve-with-timeout").as_deref(), Some("0"), "{what}");
    assert_eq!(client.ask("peek 1"), "FOUND 1 4\r\nmine", "{what}");
    client.until("stats", "current-connections", "1");
}

/// Story: lines above the limit were dropped unseen. A page in Chromium put a job, and reserved and deleted others: with
/// a path of 300 bytes and a long host name no line before the body was recognised as one of HTTP.
#[tokio::test(flavor = "multi_thread")]
async fn browser_request_executes_no_command() {
    let (server, mut client) = with_a_job().await;
    for method in ["POST", "PUT", "post", "ODD"] {
        let (path, host, length) = ("a".repeat(300), "b.".repeat(120), COMMANDS.len());
        let request = format!(
            "{method} /{path} HTTP/1.1\r\nHost: {host}localhost:11300\r\nConnection: keep-alive\r\n\
             Content-Length: {length}\r\nUser-Agent: Mozilla/5.0\r\nContent-Type: text/plain;charset=UTF-8\r\n\
             Accept: */*\r\nOrigin: http://evil.example\r\n\r\n{COMMANDS}"
        );
        assert_eq!(said(&server, request.as_bytes()), UNKNOWN, "{method}");
        is_untouched(&mut client, method);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_hello_executes_no_command() {
    let (server, mut client) = with_a_job().await;
    for session_ticket in [100, 400] {
        let mut hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec();
        hello.extend(vec![0xa5; session_ticket]);
        hello.extend_from_slice(format!("\r\n{COMMANDS}").as_bytes());
        assert_eq!(said(&server, &hello), UNKNOWN);
        is_untouched(&mut client, "a first line");
        let later = [b"stats-tube no\r\n", &hello[..]].concat();
        assert_eq!(said(&server, &later), format!("NOT_FOUND\r\n{UNKNOWN}"));
        is_untouched(&mut client, "a later line");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_first_line_blocks_later_commands() {
    let (server, mut client) = with_a_job().await;
    for first in
        ["", "x", "get a", "set a 0 0 4", "PUT", "\0", "pu\0t", "putx 0 0 60 4", " put 0 0 60 4", "statz"]
    {
        assert_eq!(said(&server, format!("{first}\r\n{COMMANDS}").as_bytes()), UNKNOWN, "{first:?}");
        is_untouched(&mut client, first);
    }
    // Input that has arrived, or is on its way, does not take the answer with it.
    let much = COMMANDS.repeat(500);
    assert_eq!(said(&server, format!("x\r\n{much}").as_bytes()), UNKNOWN);
    is_untouched(&mut client, "much behind it");
}

#[tokio::test(flavor = "multi_thread")]
async fn overlong_first_line_closes_connection() {
    let (server, mut client) = with_a_job().await;
    for (first, length) in [("x", 223), ("x", 10_000), ("use ", 300), ("put-key ", 3_000)] {
        let line = first.to_owned() + &"x".repeat(length);
        assert_eq!(said(&server, format!("{line}\r\n{COMMANDS}").as_bytes()), BAD, "{first}");
        // The answer does not wait for the end of the line.
        assert_eq!(said(&server, line.as_bytes()), BAD, "{first}");
        is_untouched(&mut client, first);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_first_command_keeps_connection() {
    let server = Both::start().await;
    let big = format!("put 0 0 60 {}\r\n{}", DEFAULT_MAX_BODY + 1, "x".repeat(DEFAULT_MAX_BODY + 1));
    for (first, answer) in [
        ("use -", "BAD_FORMAT"),
        ("put 0 0 60", "BAD_FORMAT"),
        ("delete x", "BAD_FORMAT"),
        ("statsx", "BAD_FORMAT"),
        ("use a\0b", "BAD_FORMAT"),
        ("pause-tube a", "BAD_FORMAT"),
        ("peek-key ", "BAD_FORMAT"),
        ("put 0 0 60 1\r\nxyz", "EXPECTED_CRLF"),
        (&big, "JOB_TOO_BIG"),
    ] {
        let mut client = Client::connect(&server.address);
        assert_eq!(client.ask(first), answer, "{first}");
        if answer == "EXPECTED_CRLF" {
            // What is behind the body's size: a line of its own, which is unknown and not the first one.
            assert_eq!(client.reply(), "UNKNOWN_COMMAND");
        }
        assert_eq!(client.ask("list-tube-used"), "USING default", "{first}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn later_invalid_lines_keep_connection() {
    let server = Both::start().await;
    let mut client = Client::connect(&server.address);
    assert_eq!(client.ask("list-tube-used"), "USING default");
    let long = "x".repeat(300);
    for (line, answer) in [
        ("nonsense", "UNKNOWN_COMMAND"),
        ("", "UNKNOWN_COMMAND"),
        ("STATS", "UNKNOWN_COMMAND"),
        ("\x16", "UNKNOWN_COMMAND"),
        ("GET", "UNKNOWN_COMMAND"),
        (&long, "BAD_FORMAT"),
    ] {
        assert_eq!(client.ask(line), answer, "{line:?}");
        assert_eq!(client.ask("list-tube-used"), "USING default", "{line:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn later_foreign_line_closes_connection() {
    let (server, mut client) = with_a_job().await;
    for begin in ["POST /", "get /", "OPTIONS /", "Host: ", "HOST:", "\x16\x03\x01"] {
        for length in [0, 50, 300] {
            let line = begin.to_owned() + &"a".repeat(length);
            let bytes = format!("stats-tube no\r\n{line}\r\n{COMMANDS}");
            assert_eq!(said(&server, bytes.as_bytes()), format!("NOT_FOUND\r\n{UNKNOWN}"), "{begin:?}");
        }
        is_untouched(&mut client, begin);
    }
}
