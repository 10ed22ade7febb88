//! The page of errors, and ids of requests.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use serde_json::json;
use tempfile::TempDir;

use crate::fixture::{Answer, PATIENCE, Server};
use crate::process::{Process, serve};

#[tokio::test(flavor = "multi_thread")]
async fn problem_type_leads_to_errors_page() {
    let server = Server::start().await;
    for (method, path, code) in [
        ("GET", "/nowhere", "not_found"),
        ("PUT", "/v1/quotas", "method_not_allowed"),
        ("GET", "/v1/messages/1", "message_not_found"),
        ("GET", "/v1/messages/x", "bad_request"),
    ] {
        let problem = server.call(method, path, "").await;
        assert_eq!(problem.json()["type"], format!("/errors#{code}"), "{method} {path}");
    }
    let page = server.call("GET", "/errors", "").await;
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let text = String::from_utf8(page.body).expect("text");
    for code in ["not_found", "method_not_allowed", "message_not_found", "bad_request"] {
        assert!(text.contains(&format!("<h2 id=\"{code}\"><code>{code}</code> (4")), "{code}");
    }
    assert!(!text.contains("](") && !text.contains('`'), "it is no Markdown");
}

async fn identified(server: &Server, method: &str, path: &str, head: &str, body: &str) -> Answer {
    let head = format!("content-length: {}\r\n{head}", body.len());
    server.raw(method, path, &head, body.as_bytes()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_echo_request_id() {
    let server = Server::start().await;
    let id = "4bf92f3577b34da6a3ce929d0e0e4736/!~";
    let head = format!("X-Request-Id: {id}\r\n");
    let enqueue = r#"{"body": "a", "delay_ms": 0}"#;
    for (method, path, body, status) in [
        ("POST", "/v1/queues/q/messages", enqueue, 201),
        ("POST", "/v1/queues/q/messages", "{}", 400),
        ("POST", "/v1/queues/q/reserve", "", 200),
        ("GET", "/v1/messages/77", "", 404),
        ("GET", "/nowhere", "", 404),
        ("PUT", "/v1/quotas", "", 405),
        ("GET", "/", "", 200),
        ("GET", "/errors", "", 200),
        ("GET", "/ui/style.css", "", 200),
        ("GET", "/metrics", "", 200),
        ("GET", "/readyz", "", 200),
    ] {
        let answer = identified(&server, method, path, &head, body).await;
        assert_eq!((answer.status, answer.header("x-request-id")), (status, Some(id)), "{method} {path}");
        let without = identified(&server, method, path, "", body).await;
        assert_eq!(without.header("x-request-id"), None, "{method} {path}");
    }
    let longest = "x".repeat(128);
    let answer = identified(&server, "GET", "/livez", &format!("x-request-id: {longest}\r\n"), "").await;
    assert_eq!((answer.status, answer.header("x-request-id")), (200, Some(&*longest)));
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_request_id_is_refused() {
    let server = Server::start().await;
    let long = "x".repeat(129);
    for value in ["", "a b", "a\tb", "ä", &long, "a\r\nx-request-id: a"] {
        let head = format!("x-request-id: {value}\r\n");
        let enqueue = r#"{"body": "a", "delay_ms": 0}"#;
        let answer = identified(&server, "POST", "/v1/queues/q/messages", &head, enqueue).await;
        let field = answer.json()["field"].clone();
        assert_eq!((answer.status, field), (400, json!("X-Request-Id")), "{value:?}");
        assert_eq!(answer.header("x-request-id"), None, "{value:?}");
    }
    assert_eq!(server.ok("GET", "/v1/queues/q", "").await["totals"]["enqueued"], 0);
}

/// Sends bytes on a connection of their own; what comes back until its end.
fn exchange(address: &str, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream.write_all(bytes).expect("write");
    let mut heard = String::new();
    stream.read_to_string(&mut heard).expect("read");
    heard
}

/// The log lines of a request have its id: here that of a backup, which the server always logs, and the last one of
/// each request at the level `debug`.
#[test]
fn request_log_lines_carry_its_id() {
    let dir = TempDir::new().expect("dir");
    let log = std::fs::File::create(dir.path().join("log")).expect("log");
    let mut command = serve();
    command.args(["--http", "127.0.0.1:0", "--log", "duewheel=debug", "--data"]).arg(dir.path().join("data"));
    let server = Process::spawn_logged(command, Stdio::from(log));
    let dest = dir.path().join("copy");
    std::fs::create_dir(&dest).expect("folder");
    std::fs::set_permissions(&dest, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("mode");
    let ask = |id: &str, method: &str, path: &str, body: &str| {
        let length = body.len();
        let text = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-request-id: {id}\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        exchange(server.url.trim_start_matches("http://"), text.as_bytes())
    };
    let backup = json!({"dest": dest}).to_string();
    assert!(ask("backup-7", "POST", "/v1/backup", &backup).starts_with("HTTP/1.1 200 "));
    assert!(ask("unknown-8", "GET", "/v1/messages/1", "").starts_with("HTTP/1.1 404 "));
    let log = std::fs::read_to_string(dir.path().join("log")).expect("log");
    let line = |says: &[&str]| log.lines().any(|line| says.iter().all(|one| line.contains(one)));
    assert!(line(&["request{id=\"backup-7\"}", "backup made"]), "{log}");
    assert!(line(&["request{id=\"unknown-8\"}", "answered", "method=GET", "status=404"]), "{log}");
}
