//! Queues whose names are of any script.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;

use crate::fixture::{PATIENCE, Server};
use crate::process::{BINARY, Process};
use crate::shell::Shell;

/// `größe:заказ/1`, percent-encoded.
const ENCODED: &str = "gr%C3%B6%C3%9Fe%3A%D0%B7%D0%B0%D0%BA%D0%B0%D0%B7%2F1";
const NAME: &str = "größe:заказ/1";

#[tokio::test(flavor = "multi_thread")]
async fn queue_name_may_use_any_script() {
    let server = Server::start().await;
    let done = server
        .ok("POST", &format!("/v1/queues/{ENCODED}/messages"), r#"{"body": "a", "delay_ms": 0, "key": "k"}"#)
        .await;
    assert_eq!(done["queue"], NAME);
    assert_eq!(server.ok("GET", &format!("/v1/queues/{ENCODED}/keys/k"), "").await["queue"], NAME);
    let queues = server.ok("GET", "/v1/queues", "").await;
    assert_eq!(queues["queues"][0]["queue"], NAME);
    let metrics = server.call("GET", "/metrics?queue=gr%C3%B6*", "").await;
    let label = format!("queue=\"{NAME}\"");
    assert!(String::from_utf8_lossy(&metrics.body).contains(&label), "{metrics:?}");
    assert_eq!(server.reserve(ENCODED, "{}").await[0]["queue"], NAME);
    for (path, says) in [
        ("cafe%CC%81", "queue: must be in Unicode's normalization form C (NFC)"),
        ("%23targets", "queue: may hold only letters, marks, digits and - + / : ; . $ _ ( )"),
        ("a%20b", "queue: may hold only letters"),
        ("a%E2%80%AEb", "queue: may hold only letters"),
    ] {
        let refused = server.call("GET", &format!("/v1/queues/{path}"), "").await;
        assert_eq!((refused.status, refused.json()["field"].as_str()), (400, Some("queue")), "{path}");
        assert!(refused.json()["detail"].as_str().expect("detail").starts_with(says), "{path}: {refused:?}");
    }
}

/// Data folders have the bytes of a name; a server that is killed finds the queue again.
#[test]
fn unicode_queue_survives_kill_9() {
    let dir = TempDir::new().expect("dir");
    let data = dir.path().join("data");
    let server = Process::start(&data, &[]);
    let address = server.url.trim_start_matches("http://").to_owned();
    let enqueue = r#"{"body": "a", "delay": "1h", "key": "k"}"#;
    assert_eq!(server.call("POST", &format!("/v1/queues/{ENCODED}/messages"), enqueue).0, 201);
    assert_eq!(server.call("POST", "/v1/queues/plain/messages", enqueue).0, 201);
    let limits = json!({"lease_ms": 7_000}).to_string();
    assert_eq!(server.call("PUT", &format!("/v1/queues/{ENCODED}/config"), &limits).0, 200);
    let mut server = server.killed_and_restarted_with(&data, &address, &["--beanstalk", "127.0.0.1:0"]);
    let (status, found) = server.call("GET", &format!("/v1/queues/{ENCODED}"), "");
    assert_eq!((status, &found["queue"], &found["config"]["lease_ms"]), (200, &json!(NAME), &json!(7_000)));
    assert_eq!(server.call("GET", &format!("/v1/queues/{ENCODED}/keys/k"), "").0, 200);

    let mut client = TcpStream::connect(server.beanstalk()).expect("connect");
    client.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let say = format!("list-tubes\r\nuse {NAME}\r\nstats-tube a:b\r\nquit\r\n");
    client.write_all(say.as_bytes()).expect("write");
    let mut heard = String::new();
    client.read_to_string(&mut heard).expect("read");
    let list = "---\n- default\n- plain\n";
    let expected = format!("OK {}\r\n{list}\r\nBAD_FORMAT\r\nBAD_FORMAT\r\n", list.len());
    assert_eq!(heard, expected);
}

#[test]
fn cli_and_tokens_accept_unicode_queues() {
    let shell = Shell::new();
    shell.ok(&["enqueue", NAME, "hello", "--key", "k"]);
    assert!(shell.ok(&["queues"]).contains(NAME));
    assert_eq!(shell.json(&["get", NAME, "--key", "k", "--json"])["body"], "hello");
    let refused = shell.fails(&["enqueue", "cafe\u{301}", "hello"], 2);
    assert!(refused.contains("NFC"), "{refused}");

    let tokens = shell.dir.path().join("tokens.toml");
    let mut command = Command::new(BINARY);
    command.args(["token", "new", "--name", "n", "--scope", "consume", "--queue", "größe:", "--tokens"]);
    assert!(command.arg(&tokens).status().expect("run").success());
    let text = std::fs::read_to_string(&tokens).expect("tokens");
    assert!(text.contains("größe:"), "{text}");
}
