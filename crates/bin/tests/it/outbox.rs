//! The real server with an outbox in a database: `[[postgres]]`, `duewheel pg`, kill -9, figures.

use std::process::Command;
use std::time::{Duration, Instant};

use duewheel_postgres_rig::{Postgres, Settings};
use serde_json::Value;

use crate::fixture::PATIENCE;
use crate::process::{BINARY, Process, run, text};

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn drained(postgres: &Postgres) {
    let left = || postgres.query("SELECT count(*) FROM duewheel.outbox").expect("a count");
    until("the outbox is empty", || left() == "0");
}

#[test]
fn killed_server_takes_each_row_once() {
    let postgres = Postgres::start(Settings::default()).expect("a server of PostgreSQL");
    let folder = tempfile::tempdir().expect("a folder");
    let (config, data) = (folder.path().join("duewheel.toml"), folder.path().join("data"));
    let table = format!("[[postgres]]\nname = 'shop'\nurl = '{}'\nqueues = ['orders']\n", postgres.url());
    std::fs::write(&config, table).expect("written");
    let config = config.to_str().expect("a path");
    let pg = |words: &[&str]| run(Command::new(BINARY).arg("pg").args(words).args(["--config", config]));
    let status = || serde_json::from_slice::<Value>(&pg(&["status", "--json"]).stdout).expect("JSON");

    let refused = pg(&["status"]);
    assert!(text(&refused.stderr).contains("`duewheel pg install` installs it"), "{}", text(&refused.stderr));
    for _ in 0..2 {
        let made = pg(&["install", "--database", "shop"]);
        assert!(text(&made.stdout).starts_with("the outbox is installed"), "{}", text(&made.stderr));
    }
    assert!(
        text(&pg(&["install", "--print"]).stdout).contains("CREATE OR REPLACE FUNCTION duewheel.enqueue(")
    );
    assert_eq!(pg(&["status", "--database", "other"]).status.code(), Some(2));

    // Three rows a round; a cancel that is applied again would remove the message of the third.
    let mut server = Process::start(&data, &["--config", config]);
    let address = server.url.strip_prefix("http://").expect("an address").to_owned();
    let rounds = 20;
    for round in 0..rounds {
        let calls = format!(
            "SELECT duewheel.enqueue('orders', 'first', '1 h', key => 'k{round}'); \
             SELECT duewheel.cancel('orders', 'k{round}'); \
             SELECT duewheel.enqueue('orders', '{round}', '1 h', key => 'k{round}')"
        );
        postgres.query(&calls).expect("called");
        std::thread::sleep(Duration::from_millis(round * 17));
        server = server.killed_and_restarted_with(&data, &address, &["--config", config]);
    }
    postgres.query("SELECT duewheel.enqueue('secrets', 'x')").expect("called");
    drained(&postgres);
    for round in 0..rounds {
        let (code, message) = server.call("GET", &format!("/v1/queues/orders/keys/k{round}"), "");
        assert_eq!((code, message["body"].as_str()), (200, Some(&*round.to_string())), "{message}");
    }
    let (_, queue) = server.call("GET", "/v1/queues/orders", "");
    assert_eq!(queue["counts"]["scheduled"], rounds, "{queue}");
    let shown = status();
    assert_eq!((&shown["waiting"], &shown["rejected"]), (&0.into(), &1.into()), "{shown}");
    assert_eq!(shown["drainer"], "duewheel", "{shown}");
    let said = text(&pg(&["status"]).stdout);
    assert!(said.contains("rejected  1\n") && said.contains("drainer   duewheel, since 2"), "{said}");
    let metrics = server.text("/metrics");
    for line in ["duewheel_outbox_up{database=\"shop\"} 1", "# TYPE duewheel_outbox_applied_total counter"] {
        assert!(metrics.contains(line), "{line} in\n{metrics}");
    }

    // A database that is away does not make the server unready.
    drop(postgres);
    until("that is noticed", || server.text("/metrics").contains("duewheel_outbox_up{database=\"shop\"} 0"));
    assert_eq!(server.call("GET", "/readyz", "").0, 200);
    let (_, status) = server.call("GET", "/v1/status", "");
    let shop = &status["databases"][0];
    assert_eq!(
        (&shop["name"], &shop["up"], &shop["rejected"]),
        (&"shop".into(), &false.into(), &1.into()),
        "{status}"
    );
    assert!(shop["last_error"].is_string(), "{status}");
}
