//! Connections and servers that end, in order and otherwise.

use serde_json::json;
use tempfile::TempDir;

use super::client::Client;
use super::{Both, start};

#[tokio::test(flavor = "multi_thread")]
async fn closed_waiting_connection_leaves_nothing() {
    let server = Both::start().await;
    let mut client = server.client("q");
    let mut waiting = server.client("q");
    waiting.send("reserve\r\n");
    client.until("stats-tube q", "current-waiting", "1");
    drop(waiting);
    client.until("stats-tube q", "current-waiting", "0");
    client.until("stats-tube q", "current-watching", "1");
    client.until("stats-tube q", "current-using", "1");
    client.until("stats", "current-connections", "1");
    assert_eq!(client.field("stats", "current-workers").as_deref(), Some("0"));
    let id = client.put("put 0 0 60", "a");
    assert_eq!(client.ask("reserve"), format!("RESERVED {id} 1\r\na"));
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_connection_returns_reserved_jobs() {
    let server = Both::start().await;
    let mut client = server.client("q");
    let ids = ["a", "b", "c"].map(|body| client.put("put 0 0 60", body));
    let kept = client.put("put 0 0 60", "kept");
    let mut other = server.client("q");
    for id in &ids {
        assert_eq!(other.ask("reserve"), format!("RESERVED {id} 1\r\n{}", other_body(&ids, id)));
    }
    assert_eq!(client.ask("reserve"), format!("RESERVED {kept} 4\r\nkept"));
    let mut waiting = server.client("q");
    waiting.send("reserve\r\n");
    client.until("stats-tube q", "current-waiting", "1");
    drop(other);
    assert_eq!(waiting.reply(), format!("RESERVED {} 1\r\na", ids[0]));
    let grants = server.http.reserve("q", r#"{"max": 10}"#).await;
    let got: Vec<_> = grants.iter().map(|g| (g["id"].clone(), g["attempt"].clone())).collect();
    assert_eq!(got, [(json!(ids[1]), json!(2)), (json!(ids[2]), json!(2))]);
    assert_eq!(client.ask(&format!("touch {kept}")), "TOUCHED", "those of others stay");
}

/// Jobs that are kept as done are shown over HTTP, and are no jobs.
#[tokio::test(flavor = "multi_thread")]
async fn done_job_is_not_found() {
    let server = Both::start().await;
    server.http.ok("PATCH", "/v1/queues/q/config", r#"{"keep_done": "1h"}"#).await;
    let mut client = server.client("q");
    let id = client.put("put 0 0 60", "a");
    assert_eq!(client.ask("reserve"), format!("RESERVED {id} 1\r\na"));
    assert_eq!(client.ask(&format!("delete {id}")), "DELETED");
    assert_eq!(server.http.ok("GET", &format!("/v1/messages/{id}"), "").await["outcome"], "acked");
    for command in ["peek", "delete", "kick-job", "stats-job", "reserve-job", "touch"] {
        assert_eq!(client.ask(&format!("{command} {id}")), "NOT_FOUND", "{command}");
    }
    for command in ["peek-ready", "peek-delayed", "peek-buried"] {
        assert_eq!(client.ask(command), "NOT_FOUND", "{command}");
    }
    assert_eq!(client.ask("kick 10"), "KICKED 0");
    assert_eq!(client.field("stats-tube q", "current-jobs-buried").as_deref(), Some("0"));
}

fn other_body(ids: &[String; 3], id: &str) -> &'static str {
    ["a", "b", "c"][ids.iter().position(|i| i == id).expect("id")]
}

#[test]
fn stopping_server_answers_waiting_reserves() {
    for signal in ["-TERM", "-INT"] {
        let dir = TempDir::new().expect("dir");
        let (mut server, address) = start(dir.path(), &[]);
        let mut idle = Client::connect(&address);
        let mut worker = Client::connect(&address);
        worker.enter("q");
        let id = worker.put("put 0 0 600", "a");
        assert_eq!(worker.ask("reserve"), format!("RESERVED {id} 1\r\na"));
        let mut waiting = ["reserve\r\n", "reserve-with-timeout 1000\r\n"].map(|line| {
            let mut client = Client::connect(&address);
            client.enter("q");
            client.send(line);
            client
        });
        idle.until("stats-tube q", "current-waiting", "2");
        server.signal(signal);
        for client in &mut waiting {
            assert_eq!(client.reply(), "TIMED_OUT", "{signal}");
            client.is_closed();
        }
        worker.is_closed();
        idle.is_closed();
        assert_eq!(server.wait().code(), Some(0), "{signal}");

        let (_server, address) = start(dir.path(), &[]);
        let mut client = Client::connect(&address);
        client.enter("q");
        assert_eq!(client.ask("reserve-with-timeout 0"), format!("RESERVED {id} 1\r\na"), "{signal}");
    }
}

#[test]
fn what_was_answered_survives_kill_9() {
    let dir = TempDir::new().expect("dir");
    let (mut server, mut address) = start(dir.path(), &[]);
    for n in 0..3 {
        let mut client = Client::connect(&address);
        let id = client.put("put 0 0 60", &format!("body {n}"));
        server.kill();
        (server, address) = start(dir.path(), &[]);
        let mut client = Client::connect(&address);
        assert_eq!(client.ask("reserve-with-timeout 0"), format!("RESERVED {id} 6\r\nbody {n}"));
        assert_eq!(client.ask(&format!("delete {id}")), "DELETED");
    }
    server.kill();
    let (_server, address) = start(dir.path(), &[]);
    assert_eq!(Client::connect(&address).ask("reserve-with-timeout 0"), "TIMED_OUT");
}

/// The server is killed in the middle of answering: what was answered is there, in full.
#[test]
fn answered_puts_survive_kill_9() {
    const PUTS: usize = 3_000;
    const READ: usize = 100;
    let dir = TempDir::new().expect("dir");
    let (server, address) = start(dir.path(), &[]);
    let mut client = Client::connect(&address);
    let puts: String = (0..PUTS).map(|n| format!("put 0 0 60 4\r\n{n:04}\r\n")).collect();
    client.send(puts);
    let inserted: Vec<String> = (0..READ).map(|_| client.reply()).collect();
    server.kill();
    let (_server, address) = start(dir.path(), &[]);
    let mut client = Client::connect(&address);
    for (n, answer) in inserted.iter().enumerate() {
        let id = answer.strip_prefix("INSERTED ").expect("id");
        assert_eq!(client.ask(&format!("peek {id}")), format!("FOUND {id} 4\r\n{n:04}"));
    }
}

/// beanstalkd answers what it was asked before it looks at the end of the input.
#[tokio::test(flavor = "multi_thread")]
async fn half_close_answers_earlier_commands() {
    let server = Both::start().await;
    let mut watcher = server.client("other");
    let mut client = server.client("q");
    client.send("reserve\r\n");
    watcher.until("stats-tube q", "current-waiting", "1");
    client.send("list-tube-used\r\nput 0 0 60 1\r\na\r\npeek-ready\r\nreserve\r\nreserve\r\nput 0 0 60 1\r\nb\r\nput 0 0 60 100\r\nhalf");
    client.half_close();
    assert_eq!(client.reply(), "TIMED_OUT");
    assert_eq!(client.reply(), "USING q");
    let id = client.reply().strip_prefix("INSERTED ").expect("id").to_owned();
    assert_eq!(client.reply(), format!("FOUND {id} 1\r\na"));
    assert_eq!(client.reply(), format!("RESERVED {id} 1\r\na"));
    assert_eq!(client.reply(), "TIMED_OUT");
    assert!(client.reply().starts_with("INSERTED "));
    client.is_closed();
    watcher.until("stats-tube q", "current-jobs-ready", "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelined_commands_survive_half_close() {
    let server = Both::start().await;
    let mut client = server.client("q");
    client.send("list-tube-used\r\n".repeat(5_000));
    client.half_close();
    for n in 0..5_000 {
        assert_eq!(client.reply(), "USING q", "{n}");
    }
    client.is_closed();
}

/// More than is read ahead while a reserve waits.
#[tokio::test(flavor = "multi_thread")]
async fn commands_behind_reserve_are_answered_later() {
    let server = Both::start().await;
    let mut client = server.client("q");
    client.send("reserve\r\n");
    let mut other = server.client("q");
    other.until("stats-tube q", "current-waiting", "1");
    client.send("list-tube-used\r\n".repeat(5_000));
    client.half_close();
    let id = other.put("put 0 0 60", "a");
    let first = client.reply();
    assert!(first == format!("RESERVED {id} 1\r\na") || first == "TIMED_OUT", "{first}");
    for n in 0..5_000 {
        assert_eq!(client.reply(), "USING q", "{n}");
    }
    client.is_closed();
}
