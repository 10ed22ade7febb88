//! Targets from outside: over HTTP and on the command line, and over crashes of real processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use duewheel::Policy;
use duewheel_delivery::{Sealing, SigningSecret};
use duewheel_redis_rig::{Redis, Settings};
use duewheel_server::auth::{Guard, Hosts};
use duewheel_server::http::HttpLimits;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::{PATIENCE, Server};
use crate::hook::Hook;
use crate::process::{BINARY, Process, run};
use crate::security::new_token;
use crate::shell::Shell;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const LOCAL: [&str; 1] = ["127.0.0.1/32"];

async fn server() -> Server {
    let server = Server::start().await;
    server.app.set_sealing(Sealing::Open);
    server.app.start_delivery();
    server
}

/// A target that delivers to this receiver.
fn to(hook: &Hook) -> Value {
    json!({"url": hook.url(), "networks": LOCAL})
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_is_delivered_to_its_target() {
    let (server, hook) = (server().await, Hook::well());
    let mut target = to(&hook);
    target["secrets"] = json!([SECRET]);
    target["headers"] = json!({"x-shop": "hunter2"});
    target["url"] = json!(format!("{}?token=swordfish", hook.url()));
    let made = server.ok("PUT", "/v1/targets/shop", &target.to_string()).await;
    assert_eq!((&made["state"], &made["delivers"]), (&json!("active"), &json!([])));
    let settings = &made;
    assert_eq!(settings["url"], format!("{}?…", hook.url()));
    assert_eq!((&settings["headers"], &settings["secrets"]), (&json!(["x-shop"]), &json!(["…LaSw"])));
    assert_eq!(settings["retry"]["delays"], json!(["5s", "5m", "30m", "2h", "5h", "10h"]));

    let set = server.ok("PATCH", "/v1/queues/orders/config", r#"{"target": "shop"}"#).await;
    assert_eq!((&set["queue"], &set["config"]["target"]), (&json!("orders"), &json!("shop")));
    let id = server
        .enqueue("orders", r#"{"delay": "0s", "body": "close", "key": "order 42", "headers": {"a": "b"}}"#)
        .await;
    let got = hook.until("it is delivered", |got| !got.is_empty()).remove(0);
    assert_eq!(got.body(), "close");
    assert_eq!((got.header("x-shop"), got.header("duewheel-h-a")), ("hunter2", "b"));
    assert_eq!((got.header("duewheel-queue"), got.header("duewheel-key")), ("orders", "order%2042"));
    assert_eq!(got.header("duewheel-attempt"), "1");
    assert!(got.header("webhook-id").ends_with(&format!("_{id}_1")), "{got:?}");
    let at = got.header("webhook-timestamp").parse().expect("seconds");
    let signature =
        SigningSecret::new(SECRET).expect("a secret").sign(got.header("webhook-id"), at, b"close");
    assert_eq!(got.header("webhook-signature"), signature);
    let path = format!("/v1/messages/{id}");
    let begun = Instant::now();
    while server.call("GET", &path, "").await.status != 404 {
        assert!(begun.elapsed() < PATIENCE, "never acked");
    }
    server.until("it is counted", "/v1/targets/shop", |seen| seen["counts"]["delivered"] == 1).await;
    // The target has its newest attempts, also where a success is not kept with its message; lists have none.
    let shown = server.ok("GET", "/v1/targets/shop", "").await;
    let attempt = &shown["attempts"][0];
    assert_eq!((&attempt["message"], &attempt["queue"]), (&json!(id), &json!("orders")), "{shown}");
    assert_eq!((&attempt["attempt"], &attempt["class"]), (&json!(1), &json!("status_200")), "{shown}");
    assert_eq!(server.ok("GET", "/v1/targets", "").await["targets"][0].get("attempts"), None);

    let config = server.ok("GET", "/v1/queues/orders/config", "").await;
    assert_eq!(config["config"]["target"], "shop");
    let refused = server.call("DELETE", "/v1/targets/shop", "").await;
    assert_eq!((refused.status, &refused.json()["code"]), (409, &json!("in_use")));
    assert_eq!(server.call("DELETE", "/v1/queues/orders", "").await.json()["code"], "in_use");
    // Settings that are replaced as a whole have no target any more.
    server.ok("PUT", "/v1/queues/orders/config", r#"{"lease_ms": 60000}"#).await;
    assert_eq!(server.ok("GET", "/v1/targets/shop", "").await["delivers"], json!([]));
    server.ok("DELETE", "/v1/targets/shop", "").await;
    assert_eq!(server.call("GET", "/v1/targets/shop", "").await.status, 404);
    assert_eq!(server.ok("GET", "/v1/queues", "").await["queues"][0]["queue"], "orders");
}

/// Attempts are shown with their message; a pause and a resume.
#[tokio::test(flavor = "multi_thread")]
async fn failed_attempts_survive_pause_and_resume() {
    let well = Arc::new(AtomicBool::new(false));
    let told = well.clone();
    let hook = Hook::new(move |_, _| match told.load(Ordering::SeqCst) {
        true => "200".to_owned(),
        false => "500".to_owned(),
    });
    let server = server().await;
    let mut target = to(&hook);
    target["retry"] = json!({"delays": ["1s"]});
    server.ok("PUT", "/v1/targets/shop", &target.to_string()).await;
    server.ok("PATCH", "/v1/queues/orders/config", r#"{"target": "shop"}"#).await;
    let id = server.enqueue("orders", r#"{"delay": "0s", "body": "close"}"#).await;
    let path = format!("/v1/messages/{id}");
    let failed = |seen: &Value| seen["deliveries"].as_array().is_some_and(|all| !all.is_empty());
    server.until("the attempt is kept", &path, failed).await;
    let seen = server.ok("GET", &path, "").await;
    let attempt = &seen["deliveries"][0];
    assert_eq!((&attempt["status"], &attempt["class"]), (&json!(500), &json!("status_500")), "{seen}");
    assert_eq!(attempt["answer"], "ok");

    let paused = server.ok("POST", "/v1/targets/shop/pause", r#"{"reason": "the shop moves"}"#).await;
    assert_eq!((&paused["state"], &paused["reason"]), (&json!("paused"), &json!("the shop moves")));
    // A pause keeps what there is to read.
    let shown = server.ok("GET", "/v1/targets/shop", "").await;
    assert_eq!(
        (&shown["attempts"][0]["status"], &shown["attempts"][0]["answer"]),
        (&json!(500), &json!("ok"))
    );
    let again = server.ok("POST", "/v1/targets/shop/pause", "").await;
    assert_eq!(again["reason"], "the shop moves", "none was given");
    let other = server.ok("POST", "/v1/targets/shop/pause", r#"{"reason": "it burns"}"#).await;
    assert_eq!((&other["reason"], &other["since"]), (&json!("it burns"), &paused["since"]));
    well.store(true, Ordering::SeqCst);
    assert_eq!(server.ok("POST", "/v1/targets/shop/resume", "").await["state"], "active");
    let begun = Instant::now();
    while !hook.requests().iter().any(|got| got.header("duewheel-attempt") != "1") {
        assert!(begun.elapsed() < PATIENCE, "never delivered");
        server.advance(1_000);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let ids: BTreeSet<_> = hook.requests().iter().map(|got| got.header("webhook-id").to_owned()).collect();
    assert_eq!(ids.len(), 1, "all attempts have one id: {ids:?}");
}

/// Story: a resume of a target whose breaker was open changed nothing, and it and an edit answered the state before.
#[tokio::test(flavor = "multi_thread")]
async fn resume_and_edit_close_breaker() {
    let hook = Hook::new(|_, _| "500".to_owned());
    let server = server().await;
    let target = to(&hook).to_string();
    server.ok("PUT", "/v1/targets/shop", &target).await;
    server.ok("PATCH", "/v1/queues/orders/config", r#"{"target": "shop"}"#).await;
    for (method, path, body) in
        [("POST", "/v1/targets/shop/resume", ""), ("PUT", "/v1/targets/shop", &*target)]
    {
        for _ in 0..3 {
            server.enqueue("orders", r#"{"delay": "0s", "body": "close"}"#).await;
        }
        server.until("it is open", "/v1/targets/shop", |seen| seen["state"] == "open").await;
        let changed = server.ok(method, path, body).await;
        assert_eq!((&changed["state"], &changed["reason"]), (&json!("active"), &Value::Null), "{changed}");
        server.until("the worker begins anew", "/v1/targets/shop", |seen| seen["state"] == "active").await;
    }
}

/// `null` stands for the default, as in a queue's settings.
#[tokio::test(flavor = "multi_thread")]
async fn null_target_fields_mean_default() {
    let (server, hook) = (server().await, Hook::well());
    let plain = server.ok("PUT", "/v1/targets/shop", &to(&hook).to_string()).await;
    let mut nulls = to(&hook);
    for field in [
        "method",
        "headers",
        "secrets",
        "timeout_ms",
        "concurrency",
        "rate",
        "retry",
        "max_attempts",
        "dead_on",
        "ca_pem",
        "client_pem",
        "queues",
    ] {
        nulls[field] = Value::Null;
    }
    assert_eq!(server.ok("PUT", "/v1/targets/shop", &nulls.to_string()).await, plain);
    let bad = json!({"url": hook.url(), "secrets": 7}).to_string();
    let refused = server.call("PUT", "/v1/targets/shop", &bad).await;
    assert_eq!(refused.json()["detail"], "secrets: must be a list of texts");
}

/// Also without a collector, and in a test, each request belongs to a trace.
#[tokio::test(flavor = "multi_thread")]
async fn attempts_and_tests_carry_traceparent() {
    let hook = Hook::new(|n, _| if n < 3 { "500" } else { "200" }.to_owned());
    let server = server().await;
    let mut target = to(&hook);
    target["retry"] = json!({"delays": ["1s"]});
    server.ok("PUT", "/v1/targets/shop", &target.to_string()).await;
    let tested = server.ok("POST", "/v1/targets/shop/test", "").await;
    assert_eq!((&tested["status"], &tested["delivered"]), (&json!(500), &json!(false)), "{tested}");
    assert!(tested["at"].as_str().is_some_and(|at| at.ends_with('Z')), "{tested}");
    server.ok("PATCH", "/v1/queues/orders/config", r#"{"target": "shop"}"#).await;
    server.enqueue("orders", r#"{"delay": "0s", "body": "close"}"#).await;
    let begun = Instant::now();
    while hook.requests().len() < 3 {
        assert!(begun.elapsed() < PATIENCE, "never delivered");
        server.advance(1_000);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let parents: BTreeSet<_> =
        hook.requests().iter().map(|got| got.header("traceparent").to_owned()).collect();
    assert!(parents.len() >= 3, "{parents:?}");
    for parent in parents {
        assert!(parent.len() == 55 && parent.starts_with("00-") && parent.ends_with("-00"), "{parent}");
    }
    server.ok("PUT", "/v1/targets/gone", r#"{"url": "http://gone.invalid/"}"#).await;
    let tested = server.ok("POST", "/v1/targets/gone/test", "").await;
    assert_eq!((&tested["status"], &tested["class"]), (&Value::Null, &json!("dns_error")), "{tested}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_target_errors_hide_secrets() {
    let server = server().await;
    let url = "https://example.com/";
    for (body, field) in [
        (json!({}), "url"),
        (json!({"url": 7}), "url"),
        (json!({"url": "ftp://example.com/"}), "url"),
        (json!({"url": "https://me:hunter2@example.com/"}), "url"),
        (json!({"url": "http://127.0.0.1/"}), "url"),
        (json!({"url": url, "method": "GET"}), "method"),
        (json!({"url": url, "headers": {"host": "hunter2"}}), "headers.host"),
        (json!({"url": url, "headers": "hunter2"}), "headers"),
        (json!({"url": url, "secrets": ["hunter2"]}), "secrets[0]"),
        (json!({"url": url, "secrets": "hunter2"}), "secrets"),
        (json!({"url": url, "client_pem": "hunter2"}), "client_pem"),
        (json!({"url": url, "client_pem": ["hunter2"]}), "client_pem"),
        (json!({"url": url, "timeout_ms": 0}), "timeout_ms"),
        (json!({"url": url, "retry": {"delays": ["soon"]}}), "retry.delays[0]"),
        (json!({"url": url, "networks": ["10.0.0.0/99"]}), "networks"),
        (json!({"url": url, "queues": ["a b"]}), "queues[0]"),
        (json!({"url": url, "dead_on": [200]}), "dead_on[0]"),
        (json!({"url": url, "secret": "hunter2"}), "secret"),
    ] {
        let answer = server.call("PUT", "/v1/targets/t", &body.to_string()).await;
        let seen = answer.json();
        assert_eq!((answer.status, &seen["field"]), (400, &json!(field)), "{body}: {seen}");
        assert!(!seen.to_string().contains("hunter2"), "{seen}");
    }
    let answer = server.call("PUT", "/v1/targets/a%20b", &json!({"url": url}).to_string()).await;
    assert_eq!((answer.status, &answer.json()["field"]), (400, &json!("name")));
    assert_eq!(server.ok("GET", "/v1/targets", "").await["targets"], json!([]));

    for (body, field) in [(json!({"target": "nobody"}), "target"), (json!({"target": 7}), "target")] {
        for method in ["PUT", "PATCH"] {
            let answer = server.call(method, "/v1/queues/q/config", &body.to_string()).await;
            assert_eq!((answer.status, &answer.json()["field"]), (400, &json!(field)), "{}", answer.json());
        }
    }
    let own = json!({"url": url, "queues": ["shop/"]}).to_string();
    server.ok("PUT", "/v1/targets/t", &own).await;
    let answer = server.call("PATCH", "/v1/queues/q/config", r#"{"target": "t", "lease_ms": 7000}"#).await;
    assert_eq!((answer.status, &answer.json()["field"]), (400, &json!("target")));
    let config = server.ok("GET", "/v1/queues/q/config", "").await;
    assert!(config["config"]["lease_ms"].is_null(), "nothing of it was applied: {config}");
    let long = json!({"reason": "x".repeat(1_025)}).to_string();
    assert_eq!(server.call("POST", "/v1/targets/t/pause", &long).await.json()["field"], "reason");
    assert_eq!(server.call("POST", "/v1/targets/nobody/test", "").await.status, 404);
}

/// Targets have secrets: only who may use all queues sees them. Others may choose those that are meant for their queues.
#[tokio::test(flavor = "multi_thread")]
async fn limited_token_chooses_only_permitted_targets() {
    let dir = TempDir::new().expect("dir");
    let file = dir.path().join("tokens.toml");
    let all = new_token(&file, &["--name", "all", "--scope", "admin"]);
    let shop = new_token(&file, &["--name", "shop", "--scope", "admin", "--queue", "shop/"]);
    let guard = Arc::new(Guard::of(file).expect("tokens"));
    let server =
        Server::start_guarded(Policy::default(), HttpLimits::default(), guard, Hosts::default()).await;
    server.app.set_sealing(Sealing::Open);
    let call = async |token: &str, method: &str, path: &str, body: &str| {
        server.call_by(token, method, path, body).await
    };
    let target = |queues: Value| json!({"url": "https://example.com/", "queues": queues}).to_string();
    for (name, queues) in
        [("ours", Value::Null), ("theirs", json!(["shop/"])), ("others", json!(["warehouse/"]))]
    {
        assert_eq!(call(&all, "PUT", &format!("/v1/targets/{name}"), &target(queues)).await.0, 200);
    }
    for name in ["ours", "others", "nobody"] {
        let body = json!({"target": name}).to_string();
        let (status, answer) = call(&shop, "PATCH", "/v1/queues/shop%2Fq/config", &body).await;
        assert_eq!((status, &answer["field"]), (400, &json!("target")), "{name}: {answer}");
        assert_eq!(answer["detail"], "target: there is no target of this name", "{name}");
    }
    // What somebody else has chosen may be set again with the rest.
    assert_eq!(call(&all, "PATCH", "/v1/queues/shop%2Fq/config", r#"{"target": "ours"}"#).await.0, 200);
    let config = call(&shop, "GET", "/v1/queues/shop%2Fq/config", "").await.1["config"].take();
    assert_eq!(call(&shop, "PUT", "/v1/queues/shop%2Fq/config", &config.to_string()).await.0, 200);
    let chosen = call(&shop, "PATCH", "/v1/queues/shop%2Fq/config", r#"{"target": "theirs"}"#).await;
    assert_eq!((chosen.0, &chosen.1["config"]["target"]), (200, &json!("theirs")));
    assert_eq!(call(&shop, "PATCH", "/v1/queues/other/config", r#"{"target": "theirs"}"#).await.0, 403);
    for (method, path) in
        [("GET", "/v1/targets"), ("GET", "/v1/targets/theirs"), ("POST", "/v1/targets/theirs/test")]
    {
        assert_eq!(call(&shop, method, path, "").await.0, 403, "{method} {path}");
    }
}

/// Which of these texts a file of the folder holds.
fn held<'a>(folder: &Path, texts: &[&'a str]) -> BTreeSet<&'a str> {
    let mut held = BTreeSet::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            held.append(&mut self::held(&path, texts));
            continue;
        }
        let bytes = fs::read(&path).expect("a file");
        let content = String::from_utf8_lossy(&bytes);
        held.extend(texts.iter().filter(|text| content.contains(**text)));
    }
    held
}

fn key_file(dir: &Path, name: &str, text: &str) -> String {
    let file = dir.join(name);
    fs::write(&file, text).expect("write");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("chmod");
    file.to_str().expect("path").to_owned()
}

/// Secrets are in no file, log, figure, export or answer. Without their key nothing is delivered, and nothing is lost; what
/// is kept without a key is found, so that this test can fail.
#[test]
fn secrets_are_sealed_and_nowhere_else() {
    let dir = TempDir::new().expect("dir");
    let data = dir.path().join("data");
    let first = key_file(dir.path(), "first", "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=\n");
    let log = dir.path().join("log");
    let start = |more: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--http", "127.0.0.1:0", "--log", "debug", "--data"]).arg(&data).args(more);
        let opened = fs::OpenOptions::new().create(true).append(true).open(&log).expect("log");
        Process::spawn_logged(command, Stdio::from(opened))
    };
    let hook = Hook::well();
    let client = rcgen::generate_simple_self_signed(["duewheel".to_owned()]).expect("a certificate");
    let client_key = client.signing_key.serialize_pem();
    let key_line = client_key.lines().nth(1).expect("a line of the key");
    let secrets = ["MfKQ9r8GKYqrTwjUPD8ILPZIo2", "hunter2", "swordfish", key_line];
    let process = start(&["--secrets-key", &first]);
    let target = json!({
        "url": format!("{}?token=swordfish", hook.url()), "networks": LOCAL, "secrets": [SECRET],
        "headers": {"authorization": "Bearer hunter2"},
    });
    let (status, seen) = process.call("PUT", "/v1/targets/shop", &target.to_string());
    assert_eq!(status, 200, "{seen}");
    let client_pem = client.cert.pem() + &client_key;
    let mutual = json!({"url": "https://mutual.example/", "client_pem": client_pem}).to_string();
    let (status, seen) = process.call("PUT", "/v1/targets/mutual", &mutual);
    assert_eq!((status, &seen["client_certificate"]), (200, &json!(true)), "{seen}");
    process.call("PATCH", "/v1/queues/orders/config", r#"{"target": "shop"}"#);
    process.call("POST", "/v1/queues/orders/messages", r#"{"delay": "0s", "body": "1"}"#);
    let got = hook.until("it is delivered", |got| !got.is_empty());
    assert_eq!(got[0].header("authorization"), "Bearer hunter2");
    let file = dir.path().join("export");
    let export = run(Command::new(BINARY).args(["export", "--server", &process.url]).arg(&file));
    assert!(export.status.success(), "{}", String::from_utf8_lossy(&export.stderr));
    let mut told = vec![process.text("/metrics")];
    let paths =
        ["/v1/targets", "/v1/targets/shop", "/v1/targets/mutual", "/v1/queues/orders/config", "/v1/queues"];
    for path in paths {
        told.push(process.text(path));
    }
    process.kill();
    // Without the key, and with another one.
    let other = key_file(dir.path(), "other", "CAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAg=\n");
    for more in [&[][..], &["--secrets-key", &other]] {
        let process = start(more);
        process.call("POST", "/v1/queues/orders/messages", r#"{"delay": "0s", "body": "2"}"#);
        let (_, seen) = process.call("GET", "/v1/targets/shop", "");
        assert!(seen["error"].as_str().is_some_and(|why| why.contains("--secrets-key")), "{seen}");
        assert_eq!(process.call("POST", "/v1/targets/shop/test", "").0, 409);
        told.push(seen.to_string());
        process.kill();
    }
    let both = key_file(
        dir.path(),
        "both",
        "CAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAg=\nBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=\n",
    );
    let process = start(&["--secrets-key", &both]);
    hook.until("what waited is delivered", |got| got.len() >= 3);
    process.kill();
    for secret in secrets {
        assert!(told.iter().all(|told| !told.contains(secret)), "{secret} is told: {told:?}");
    }
    // Data, log and export.
    assert_eq!(held(dir.path(), &secrets), BTreeSet::new());
    let process = start(&[]);
    assert_eq!(process.call("PUT", "/v1/targets/open", &target.to_string()).0, 200);
    assert_eq!(process.call("PUT", "/v1/targets/open-mutual", &mutual).0, 200);
    process.kill();
    assert_eq!(held(&data, &secrets), BTreeSet::from(secrets));
    // Each start says so.
    let before = fs::read_to_string(&log).expect("log").len();
    let process = start(&[]);
    let deadline = std::time::Instant::now() + crate::fixture::PATIENCE;
    while !fs::read_to_string(&log).expect("log")[before..]
        .contains("secrets of targets are kept in the clear")
    {
        assert!(
            std::time::Instant::now() < deadline,
            "the log does not say that secrets are kept in the clear"
        );
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    process.kill();
}

/// Errors of a client may repeat the URL that they are about: what fails is told by its class, in the log and in events.
#[test]
fn delivery_failures_reveal_no_secret() {
    let dir = TempDir::new().expect("dir");
    let keys = key_file(dir.path(), "keys", "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=\n");
    let log = dir.path().join("log");
    let mut command = Command::new(BINARY);
    command.args(["serve", "--http", "127.0.0.1:0", "--log", "debug", "--secrets-key", &keys]);
    command.arg("--data").arg(dir.path().join("data"));
    let process = Process::spawn_logged(command, Stdio::from(fs::File::create(&log).expect("log")));
    let hook = Hook::new(|_, _| "500".to_owned());
    // Nobody listens there any more.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("bind");
    let failing = [
        ("refuses", hook.url(), "status_500"),
        ("closed", format!("http://{closed}/hook"), "connection_refused"),
        ("nowhere", "http://nowhere.invalid/hook".to_owned(), "dns_error"),
    ];
    let mut events = process.follow("/v1/events");
    events.until("its head", |told| told.contains("\r\n\r\n"));
    let mut messages = Vec::new();
    for (name, url, _) in &failing {
        let target = json!({
            "url": format!("{url}?token=swordfish"), "networks": LOCAL, "secrets": [SECRET],
            "headers": {"authorization": "Bearer hunter2"}, "max_attempts": 1,
        });
        assert_eq!(process.call("PUT", &format!("/v1/targets/{name}"), &target.to_string()).0, 200);
        let config = json!({"target": name}).to_string();
        assert_eq!(process.call("PATCH", &format!("/v1/queues/{name}/config"), &config).0, 200);
        let path = format!("/v1/queues/{name}/messages");
        let (status, put) = process.call("POST", &path, r#"{"delay": "0s", "body": "1"}"#);
        assert_eq!(status, 201, "{put}");
        messages.push(format!("/v1/messages/{}", put["id"].as_str().expect("an id")));
    }
    // An attempt that reached nobody is forgiven, and its message comes again.
    let has_failed = |told: &str, name: &str| {
        let of_queue = format!("\"queue\":\"{name}\"");
        let is_end =
            |line: &str| line.contains(r#""event":"dead""#) || line.contains(r#""event":"returned""#);
        told.lines().any(|line| line.contains(&of_queue) && is_end(line))
    };
    let events =
        events.until("all have failed", |told| failing.iter().all(|(name, ..)| has_failed(told, name)));
    let mut told = vec![events, process.text("/metrics")];
    for ((name, _, class), message) in failing.iter().zip(&messages) {
        process.until(message, |seen| seen["deliveries"][0]["class"] == *class);
        told.extend([process.text(message), process.text(&format!("/v1/targets/{name}"))]);
    }
    process.kill();
    let logged = fs::read_to_string(&log).expect("log");
    for (name, _, class) in &failing {
        let is_of = |line: &&str| line.contains(name) && line.contains(class);
        assert!(logged.lines().any(|line| is_of(&line)), "nothing is logged of {name}: {logged}");
    }
    told.push(logged);
    for secret in ["MfKQ9r8GKYqrTwjUPD8ILPZIo2", "hunter2", "swordfish"] {
        let tells = told.iter().find(|told| told.contains(secret));
        assert!(tells.is_none(), "{secret} is told: {tells:?}");
    }
}

#[test]
fn invalid_secrets_key_file_aborts_start() {
    let dir = TempDir::new().expect("dir");
    let started = |file: &str| {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--http", "127.0.0.1:0", "--beanstalk", "off", "--secrets-key", file]);
        let output = run(command.arg("--data").arg(dir.path().join("data")));
        assert!(!output.status.success());
        String::from_utf8(output.stderr).expect("text")
    };
    let none = key_file(dir.path(), "none", "hunter2\n");
    let told = started(&none);
    assert!(told.contains("--secrets-key") && told.contains("line 1 has no key"), "{told}");
    assert!(!told.contains("hunter2"), "{told}");
    fs::set_permissions(&none, fs::Permissions::from_mode(0o644)).expect("chmod");
    assert!(started(&none).contains("may be read by others"));
    assert!(started("/nowhere").contains("/nowhere"));
}

/// kill -9 again and again while messages are delivered: each arrives, under one id over all attempts. What a message
/// shows of its attempts is what was recorded of their effect.
#[test]
fn kill_9_keeps_deliveries_and_ids() {
    const MESSAGES: usize = 600;
    let dir = TempDir::new().expect("dir");
    // Some answers are late, and some attempts fail, so that each step of a delivery is hit.
    let hook = Hook::new(|n, _| {
        std::thread::sleep(Duration::from_millis(if n % 7 == 0 { 40 } else { 4 }));
        (if n % 11 == 0 { "500" } else { "200" }).to_owned()
    });
    let mut process = Process::start(dir.path(), &[]);
    let address = process.url.trim_start_matches("http://").to_owned();
    let mut target = to(&hook);
    target["retry"] = json!({"min_ms": 1, "max_ms": 5});
    target["max_attempts"] = json!(1_000);
    assert_eq!(process.call("PUT", "/v1/targets/shop", &target.to_string()).0, 200);
    assert_eq!(
        process
            .call(
                "PATCH",
                "/v1/queues/orders/config",
                r#"{"target": "shop", "lease_ms": 1000, "keep_done": "1h"}"#
            )
            .0,
        200
    );
    let lines: String =
        (0..MESSAGES).map(|n| format!("{{\"delay\": \"0s\", \"body\": \"m{n}\"}}\n")).collect();
    let accepted: BTreeMap<String, String> = process
        .lines("orders", &lines)
        .iter()
        .enumerate()
        .map(|(n, line)| (line["id"].as_str().expect("an id").to_owned(), format!("m{n}")))
        .collect();
    assert_eq!(accepted.len(), MESSAGES);
    for round in 1..=6 {
        hook.until("some are delivered", |got| got.len() >= round * 40);
        process = process.killed_and_restarted(dir.path(), &address);
    }
    process.until("/v1/queues/orders", |seen| {
        ["scheduled", "ready", "leased", "dead"].iter().all(|state| seen["counts"][state] == 0)
    });
    let mut ids: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut stores = BTreeSet::new();
    for got in hook.requests() {
        let id = got.header("webhook-id").to_owned();
        let mut parts = id.rsplitn(3, '_');
        let (generation, message) = (parts.next().expect("a generation"), parts.next().expect("an id"));
        assert_eq!((generation, accepted.get(message).map(String::as_str)), ("1", Some(got.body())), "{id}");
        stores.insert(parts.next().expect("a store").to_owned());
        ids.entry(got.body().to_owned()).or_default().insert(id);
    }
    assert_eq!(ids.len(), MESSAGES, "each has arrived");
    assert!(ids.values().all(|ids| ids.len() == 1), "one id over all attempts: {ids:?}");
    assert_eq!(stores.len(), 1, "{stores:?}");
    let mut failed = 0;
    for id in accepted.keys() {
        let seen: Value = serde_json::from_str(&process.text(&format!("/v1/messages/{id}"))).expect("JSON");
        let of = |list: &str, field: &str, word: &str| {
            let all = seen[list].as_array().expect("a list");
            all.iter().filter(|one| one[field] == word).count()
        };
        let returned = of("history", "how", "nacked");
        assert_eq!(of("deliveries", "class", "status_500"), returned, "{seen}");
        assert_eq!(of("deliveries", "class", "status_200"), 1, "{seen}");
        failed += returned;
    }
    assert!(failed > 0, "some have failed");
}

/// Variables that name proxies are not read: a push would go where its addresses are not judged.
#[test]
fn environment_proxies_are_ignored() {
    let (dir, hook, proxy) = (TempDir::new().expect("dir"), Hook::well(), Hook::well());
    let mut command = Command::new(BINARY);
    command
        .args(["serve", "--http", "127.0.0.1:0", "--beanstalk", "off", "--data"])
        .arg(dir.path().join("data"));
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
        command.env(name, format!("http://{}", proxy.address));
    }
    command.env("NO_PROXY", "").env("no_proxy", "");
    let process = Process::spawn(command);
    assert_eq!(process.call("PUT", "/v1/targets/shop", &to(&hook).to_string()).0, 200);
    assert_eq!(process.call("PATCH", "/v1/queues/orders/config", r#"{"target": "shop"}"#).0, 200);
    assert_eq!(process.call("POST", "/v1/queues/orders/messages", r#"{"delay": "0s", "body": "1"}"#).0, 201);
    let got = hook.until("it is delivered", |got| !got.is_empty());
    assert_eq!(got[0].path, "/hook", "a proxy gets the whole URL");
    assert_eq!(process.call("POST", "/v1/targets/shop/test", "").0, 200);
    assert_eq!(proxy.requests().len(), 0);
    process.kill();
}

/// Pull and push from one queue: each message has one taker.
#[test]
fn pulled_and_pushed_messages_are_disjoint() {
    let (shell, hook) = (Shell::new(), Hook::well());
    let process = &shell.server;
    assert_eq!(process.call("PUT", "/v1/targets/shop", &to(&hook).to_string()).0, 200);
    assert_eq!(process.call("PATCH", "/v1/queues/orders/config", r#"{"target": "shop"}"#).0, 200);
    let mut pulled = BTreeSet::new();
    for round in 0..20 {
        let lines: String =
            (0..20).map(|n| format!("{{\"delay\": \"0s\", \"body\": \"m{round}.{n}\"}}\n")).collect();
        process.lines("orders", &lines);
        let (_, got) = process.call("POST", "/v1/queues/orders/reserve", r#"{"max": 5}"#);
        for message in got["messages"].as_array().into_iter().flatten() {
            let settled = json!({"lease_token": message["lease_token"]}).to_string();
            let id = message["id"].as_str().expect("an id");
            assert_eq!(process.call("POST", &format!("/v1/messages/{id}/ack"), &settled).0, 200);
            assert!(pulled.insert(message["body"].as_str().expect("a body").to_owned()));
        }
    }
    process.until("/v1/queues/orders", |seen| {
        ["scheduled", "ready", "leased", "dead"].iter().all(|state| seen["counts"][state] == 0)
    });
    let pushed: Vec<String> = hook.requests().iter().map(|got| got.body().to_owned()).collect();
    let both: BTreeSet<&String> = pushed.iter().collect();
    assert_eq!((both.len(), pushed.len() + pulled.len()), (pushed.len(), 400));
    assert!(pushed.iter().all(|body| !pulled.contains(body)));
}

/// Nodes on Redis: edits at one reach the other, a dead node's pushes go on, and no secret goes there in the clear.
#[test]
fn nodes_share_targets_and_take_over() {
    let (redis, hook, dir) = (
        Redis::start(Settings::default()).expect("a redis-server"),
        Hook::well(),
        TempDir::new().expect("dir"),
    );
    let keys = key_file(dir.path(), "keys", "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=\n");
    let node = |name: &str, more: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--http", "127.0.0.1:0", "--store", &redis.url(0), "--node", name]);
        command.args(["--advertise", "127.0.0.1:0", "--shards", "4", "--shard-lease", "1s"]).args(more);
        Process::spawn(command)
    };
    let served = |process: &Process| process.until("/v1/cluster", |seen| seen["shards_without_owner"] == 0);
    let insist = |process: &Process, method: &str, path: &str, body: &str| {
        let begun = Instant::now();
        loop {
            let (status, answer) = process.call(method, path, body);
            if ![503, 429].contains(&status) {
                return (status, answer);
            }
            assert!(begun.elapsed() < PATIENCE, "{status}: {answer}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let mut target = to(&hook);
    target["secrets"] = json!([SECRET]);
    let open = node("open", &[]);
    served(&open);
    let (status, refused) = insist(&open, "PUT", "/v1/targets/shop", &target.to_string());
    assert_eq!((status, &refused["field"]), (400, &json!("secrets")), "{refused}");
    open.kill();

    let (first, second) = (node("n0", &["--secrets-key", &keys]), node("n1", &["--secrets-key", &keys]));
    served(&first);
    served(&second);
    assert_eq!(insist(&first, "PUT", "/v1/targets/shop", &target.to_string()).0, 200);
    assert_eq!(insist(&second, "PATCH", "/v1/queues/orders/config", r#"{"target": "shop"}"#).0, 200);
    assert_eq!(
        insist(&second, "POST", "/v1/queues/orders/messages", r#"{"delay": "0s", "body": "1"}"#).0,
        201
    );
    hook.until("one is delivered", |got| got.iter().any(|got| got.body() == "1"));
    // Each node is the one that is killed, in turn: one of them has pushed.
    first.kill();
    let third = node("n2", &["--secrets-key", &keys]);
    served(&second);
    assert_eq!(
        insist(&second, "POST", "/v1/queues/orders/messages", r#"{"delay": "0s", "body": "2"}"#).0,
        201
    );
    hook.until("it goes on without the first", |got| got.iter().any(|got| got.body() == "2"));
    second.kill();
    served(&third);
    assert_eq!(
        insist(&third, "POST", "/v1/queues/orders/messages", r#"{"delay": "0s", "body": "3"}"#).0,
        201
    );
    hook.until("it goes on without the second", |got| got.iter().any(|got| got.body() == "3"));
    let stores: BTreeSet<_> = hook
        .requests()
        .iter()
        .map(|got| got.header("webhook-id").split('_').nth(1).expect("a store").to_owned())
        .collect();
    assert_eq!(stores.len(), 1, "all nodes have one id: {stores:?}");
    assert_eq!(held(redis.folder(), &["MfKQ9r8GKYqrTwjUPD8ILPZIo2"]), BTreeSet::new());
}

#[test]
fn the_command_line_of_targets() {
    let (shell, hook) = (Shell::new(), Hook::new(|n, _| if n == 2 { "503" } else { "200" }.to_owned()));
    let url = hook.url();
    let made = shell.ok_with(
        &[
            "target",
            "put",
            "shop",
            &url,
            "--secrets",
            "-",
            "--header",
            "x-a: 7",
            "--networks",
            LOCAL[0],
            "--timeout",
            "5s",
        ],
        format!("{SECRET}\n").as_bytes(),
    );
    assert!(made.contains("state           active") && made.contains("secrets         …LaSw"), "{made}");
    assert!(made.contains("timeout_ms      5000") && made.contains("headers         x-a"), "{made}");
    let tested = shell.ok(&["target", "test", "shop"]);
    assert!(tested.contains("class           status_200"), "{tested}");
    let failed = shell.fails(&["target", "test", "shop"], 1);
    assert!(failed.contains("the target did not take the message"), "{failed}");
    let config = shell.ok(&["config", "orders", "--target", "shop"]);
    assert!(config.contains("--target          shop"), "{config}");
    shell.ok(&["enqueue", "orders", "hello"]);
    hook.until("it is delivered", |got| got.iter().any(|got| got.body == b"hello"));
    let listed = shell.ok(&["target", "list"]);
    assert!(listed.contains("shop") && listed.contains("orders") && listed.contains("active"), "{listed}");
    let paused = shell.ok(&["target", "pause", "shop", "--reason", "it moves"]);
    assert!(
        paused.contains("state           paused") && paused.contains("reason          it moves"),
        "{paused}"
    );
    assert!(shell.ok(&["target", "resume", "shop"]).contains("active"));
    assert!(shell.fails(&["target", "rm", "shop"], 4).contains("orders"));
    shell.ok(&["config", "orders", "--unset", "target"]);
    assert_eq!(shell.ok(&["target", "rm", "shop"]), "removed shop\n");
    shell.fails(&["target", "get", "shop"], 3);
    let wrong = shell.fails(&["target", "put", "shop", "http://127.0.0.1/"], 2);
    assert!(wrong.contains("bad_request: URL: "), "{wrong}");
}
