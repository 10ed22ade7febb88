//! The server on a real PostgreSQL: tables, restarts, a secret that is replaced.

use std::process::Command;

use duewheel_postgres_rig::{Postgres, Settings};

use crate::process::{BINARY, Process, run, text};

fn serve(url: &str) -> Process {
    let mut command = Command::new(BINARY);
    command.args(["serve", "--http", "127.0.0.1:0", "--store", url, "--shards", "3", "--shard-lease", "1s"]);
    Process::spawn(command)
}

#[test]
fn postgres_messages_survive_kill_9() {
    let postgres = Postgres::start(Settings::default()).expect("a server of PostgreSQL");
    postgres.query("CREATE TABLE theirs (n int)").expect("a table");
    let first = serve(&postgres.url());
    let mut ids = Vec::new();
    for n in 0..30 {
        let body = format!(r#"{{"body": "{n}", "delay": "1h", "key": "order-{n}"}}"#);
        let (status, answer) = first.call("POST", "/v1/queues/q/messages", &body);
        assert_eq!((status, answer["durability"].as_str()), (201, Some("fsync")), "{answer}");
        ids.push(answer["id"].as_str().expect("an id").to_owned());
    }
    let (status, _) = first.call("DELETE", "/v1/queues/q/keys/order-7", "");
    assert_eq!(status, 200);
    drop(first); // killed

    let second = serve(&postgres.url());
    for (n, id) in ids.iter().enumerate() {
        let (status, answer) = second.call("GET", &format!("/v1/messages/{id}"), "");
        assert_eq!(status, if n == 7 { 404 } else { 200 }, "{n}: {answer}");
    }
    let (status, answer) = second.call("POST", "/v1/queues/q/keys/order-3/fire", "");
    assert_eq!(status, 200, "{answer}");
    let (_, granted) = second.call("POST", "/v1/queues/q/reserve", r#"{"wait_ms": 20000}"#);
    assert_eq!(granted["messages"][0]["key"], "order-3", "{granted}");
    assert_eq!(postgres.query("SELECT count(*) FROM theirs").expect("a count"), "0");
}

#[test]
fn tables_are_printed_and_made() {
    let postgres = Postgres::start(Settings::default()).expect("a server of PostgreSQL");
    let printed = run(Command::new(BINARY).args(["store", "init", "--print", "--postgres-schema", "wheel"]));
    let printed = text(&printed.stdout);
    assert!(printed.contains("CREATE TABLE IF NOT EXISTS wheel.piece"), "{printed}");
    let refused = run(Command::new(BINARY).args(["store", "init", "--print", "--role", "a;b"]));
    assert!(text(&refused.stderr).contains("--role") && refused.stdout.is_empty());
    let made = run(Command::new(BINARY).args([
        "store",
        "init",
        "--store",
        &postgres.url(),
        "--postgres-schema",
        "wheel",
    ]));
    assert_eq!(text(&made.stdout), "the tables are there, in schema wheel\n", "{}", text(&made.stderr));
    assert_eq!(postgres.query("SELECT count(*) FROM wheel.cluster").expect("a table"), "0");
    let rotated = run(Command::new(BINARY).args(["cluster", "rotate-secret", "--store", &postgres.url()]));
    assert!(text(&rotated.stderr).contains("duewheel store init"), "{}", text(&rotated.stderr));
}
