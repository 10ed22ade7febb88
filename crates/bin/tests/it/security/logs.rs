//! What a server writes about its clients, however much it is told to write.

use std::io::Write;
use std::process::Stdio;

use serde_json::json;
use tempfile::TempDir;

use super::{bearer, connect, listen, new_token, request, say};
use crate::process::{Process, serve};

#[test]
fn bodies_and_tokens_are_never_logged() {
    let dir = TempDir::new().expect("dir");
    let tokens = dir.path().join("tokens.toml");
    let token = new_token(&tokens, &["--name", "n", "--scope", "enqueue,consume,cancel,admin,metrics"]);
    let log = std::fs::File::create(dir.path().join("log")).expect("log");
    let mut command = serve();
    command.args(["--http", "127.0.0.1:0", "--beanstalk", "127.0.0.1:0", "--log", "trace", "--data"]);
    command.arg(dir.path().join("data")).arg("--tokens").arg(&tokens);
    let mut server = Process::spawn_logged(command, Stdio::from(log));
    let address = server.url.trim_start_matches("http://").to_owned();
    let beanstalk = server.beanstalk();
    let ask = |token: &str, method: &str, path: &str, head: &str, body: &str| {
        let head = format!("{}{head}", bearer(token));
        say(&address, request(method, path, &head, body).as_bytes()).expect("an answer")
    };

    const BODY: &str = "s3cret-body";
    const WRONG: &str = "dw_s3cret-wrong-token";
    let message = json!({"body": BODY, "delay_ms": 0, "headers": {"h": "s3cret-header"}}).to_string();
    assert_eq!(ask(&token, "POST", "/v1/queues/q/messages", "", &message).status, 201);
    let lines = format!("{message}\n{message}\n");
    let ndjson = "content-type: application/x-ndjson\r\n";
    assert_eq!(ask(&token, "POST", "/v1/queues/q/messages", ndjson, &lines).status, 200);
    let granted = ask(&token, "POST", "/v1/queues/q/reserve", "", "").json();
    let (id, lease) = (
        granted["messages"][0]["id"].as_str().expect("id"),
        granted["messages"][0]["lease_token"].as_str().expect("lease"),
    );
    let with_lease = json!({"lease_token": lease}).to_string();
    // What goes well, and what does not: wrong tokens, broken texts, what was settled before.
    assert_eq!(ask(WRONG, "POST", "/v1/queues/q/messages", "", &message).status, 401);
    assert_eq!(ask(&token, "POST", &format!("/v1/messages/{id}/extend"), "", &with_lease).status, 200);
    assert_eq!(
        ask(
            &token,
            "POST",
            &format!("/v1/messages/{id}/nack"),
            "",
            &json!({"lease_token": lease, "reason": "s3cret-reason"}).to_string()
        )
        .status,
        200
    );
    assert_eq!(ask(&token, "POST", &format!("/v1/messages/{id}/ack"), "", &with_lease).status, 409);
    assert_eq!(ask(&token, "PATCH", &format!("/v1/messages/{id}"), "", &message).status, 200);
    assert_eq!(ask(&token, "POST", "/v1/queues/q/messages", "", &message[..message.len() - 1]).status, 400);
    assert_eq!(ask(&token, "GET", "/v1/queues/q/messages", "", "").status, 200);
    // Cut off in the middle, and no HTTP at all.
    let mut cut = connect(&address);
    let whole = request("POST", "/v1/queues/q/messages", &bearer(&token), &message);
    cut.write_all(&whole.as_bytes()[..whole.len() - 5]).expect("write");
    drop(cut);
    say(&address, format!("{BODY} {token}\r\n\r\n").as_bytes());
    say(&address, format!("GET / HTTP/1.1\r\n{} {BODY}\x01: x\r\n\r\n", bearer(&token)).as_bytes());
    let mut other = connect(&beanstalk);
    let put = format!(
        "put 0 0 60 {}\r\n{BODY}\r\nreserve\r\n{BODY}\r\nput 0 0 60 2\r\n{BODY}\r\nquit\r\n",
        BODY.len()
    );
    other.write_all(put.as_bytes()).expect("write");
    listen(&mut other);
    server.signal("-HUP");
    server.signal("-TERM");
    assert!(server.wait().success());

    let log = std::fs::read_to_string(dir.path().join("log")).expect("log");
    assert!(log.contains("DEBUG") || log.contains("TRACE"), "it is told to write everything: {log}");
    for secret in ["s3cret", &token, &token[3..], lease, "sha256:"] {
        assert!(!log.contains(secret), "{secret} is in the log: {log}");
    }
}
