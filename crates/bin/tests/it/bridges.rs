//! `[[bridge]]`, `/v1/bridges` and `duewheel bridge …` while the broker is away. `crates/bridge/tests/it` has brokers.

use serde_json::json;
use tempfile::TempDir;

use crate::process::{run, serve, text};
use crate::shell::Shell;

/// A bridge to a port that nothing listens at.
fn config() -> String {
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").expect("port").local_addr().expect("address");
    format!(
        "[[bridge]]\nname = 'shop'\nkind = 'rabbitmq'\nurl = 'amqp://me:hunter2@{nowhere}/%2f'\nqueue = 'shop-due'\n\
         exchange = 'delayed'\n"
    )
}

#[test]
fn bridge_commands_without_a_broker() {
    let folder = TempDir::new().expect("folder");
    let file = folder.path().join("duewheel.toml");
    std::fs::write(&file, config()).expect("file");
    let shell = Shell::with(&["--durability", "memory", "--config", file.to_str().expect("path")]);
    let begun = std::time::Instant::now();
    let bridge = || shell.json(&["bridge", "list", "--json"])["bridges"][0].clone();
    while bridge()["state"] != "open" {
        assert!(begun.elapsed() < crate::fixture::PATIENCE, "{}", bridge());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(bridge()["last_error"].as_str().expect("an error").contains("cannot connect"), "{}", bridge());
    assert!(!bridge().to_string().contains("hunter2"));
    // Messages wait, and use up no attempt.
    shell.ok(&["enqueue", "shop-due", "hello"]);
    assert_eq!(shell.json(&["list", "shop-due", "--json"])["messages"][0]["attempt"], 0);
    let paused = shell.json(&["bridge", "pause", "shop", "--reason", "the broker moves", "--json"]);
    assert_eq!((&paused["state"], &paused["reason"]), (&json!("paused"), &json!("the broker moves")));
    assert!(shell.ok(&["bridge", "list"]).contains("the broker moves"));
    assert_ne!(shell.json(&["bridge", "resume", "shop", "--json"])["state"], "paused");
    let acts = shell.ok(&["audit"]);
    assert!(acts.contains("pauseBridge") && acts.contains("resumeBridge"), "{acts}");
    let plan = shell.ok(&["bridge", "plan", "shop"]);
    assert!(plan.contains("rabbitmqadmin declare exchange name=delayed type=fanout durable=true"), "{plan}");
    assert!(shell.ok(&["bridge", "plan", "shop", "--definitions"]).contains("\"delayed.due\""));
    let test = shell.run(&["bridge", "test", "shop"]);
    assert_eq!(test.status.code(), Some(1));
    assert!(text(&test.stdout).contains("connect   failed"), "{}", text(&test.stdout));
    assert!(shell.fails(&["bridge", "pause", "nobody"], 3).contains("not_found"));
}

#[test]
fn wrong_bridges_are_refused_at_start() {
    let folder = TempDir::new().expect("folder");
    let file = folder.path().join("duewheel.toml");
    let good = config();
    for (config, says) in [
        (good.replace("amqp://", "http://"), "bridge \"shop\": url: must be amqp://"),
        (good.replace("'shop-due'", "'-'"), "bridge \"shop\": queue: must not start with '-'"),
        (format!("{good}exchange_type = 'x-delayed-message'\n"), "exchange_type: must be one of direct"),
        (format!("{good}{good}"), "name: another bridge has it"),
        (format!("{good}{}", good.replace("'shop'", "'other'")), "\"other\": queue: another bridge has it"),
    ] {
        std::fs::write(&file, config).expect("file");
        let mut command = serve();
        command.arg("--config").arg(&file).arg("--data").arg(folder.path().join("data"));
        let ended = run(&mut command);
        let told = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{told}");
        assert!(told.contains(says) && !told.contains("hunter2"), "{told}");
    }
}
