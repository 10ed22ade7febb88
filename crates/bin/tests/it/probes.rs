//! What those rely on who start, watch and stop servers: probes, the delay before a drain, files that change, and
//! SIGHUP.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use duewheel::testing::MemoryCoordinator;
use duewheel::{Duewheel, NodeOptions, Policy, VirtualClock};
use duewheel_redis_rig::{Redis, Settings, free_port};
use duewheel_server::http::HttpLimits;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::{PATIENCE, Server};
use crate::process::{Process, run, serve, text};

const NOW: &str = r#"{"body": "a", "delay_ms": 0}"#;

fn logged(dir: &Path, more: &[&str]) -> Process {
    let log = std::fs::File::create(dir.join("log")).expect("log");
    let mut command = serve();
    command
        .args(["--http", "127.0.0.1:0", "--durability", "memory", "--data"])
        .arg(dir.join("data"))
        .args(more);
    Process::spawn_logged(command, Stdio::from(log))
}

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn log(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("log")).expect("log")
}

/// Story: a server without tokens, TLS and configuration was ended by the signal that others take for "read your files
/// again".
#[test]
fn sighup_never_ends_running_server() {
    let dir = TempDir::new().expect("dir");
    let mut server = logged(dir.path(), &[]);
    for _ in 0..3 {
        server.signal("-HUP");
        assert_eq!(server.call("POST", "/v1/queues/q/messages", NOW).0, 201);
    }
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0));
}

/// A server that waits for its store at the start has handlers already, and is stopped by the other signal.
#[test]
fn sighup_keeps_server_waiting_for_store() {
    let dir = TempDir::new().expect("dir");
    let log_file = std::fs::File::create(dir.path().join("log")).expect("log");
    let mut command = serve();
    command.args(["--http", "127.0.0.1:0", "--beanstalk", "off", "--store", "redis://127.0.0.1:1/0"]);
    command.args(["--redis-start-timeout", "1h"]).stdout(Stdio::null()).stderr(log_file);
    let mut child = command.spawn().expect("spawn");
    until("it waits", || log(dir.path()).contains("trying again"));
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &child.id().to_string()]).status().expect("kill");
        assert!(sent.success());
    };
    signal("-HUP");
    let tries = log(dir.path()).matches("trying again").count();
    until("it waits on", || log(dir.path()).matches("trying again").count() > tries);
    signal("-TERM");
    assert_eq!(crate::process::wait(&mut child).code(), Some(0));
    assert!(log(dir.path()).contains("stopped while starting"), "{}", log(dir.path()));
}

/// One request to an address at which a server may be starting; the answer's status, headers and body.
fn ask(address: &str, method: &str, path: &str, body: &str) -> Option<(u16, String, Value)> {
    ask_as("x", address, method, path, body)
}

fn ask_as(host: &str, address: &str, method: &str, path: &str, body: &str) -> Option<(u16, String, Value)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, head.to_lowercase(), serde_json::from_str(body).ok()?))
}

/// Story: nothing listened while a start waited for Redis: a probe could not tell it from a process that is dead, and
/// killed it.
#[test]
fn start_waiting_for_redis_is_live() {
    let mut redis = Redis::start(Settings::default()).expect("a redis-server");
    redis.stop().expect("stop");
    let address = format!("127.0.0.1:{}", free_port().expect("a port"));
    let mut command = serve();
    command.args(["--http", &address, "--beanstalk", "off", "--store", &redis.url(0)]);
    command.args(["--redis-start-timeout", "1h", "--shard-lease", "1s"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("spawn");
    until("it listens", || TcpStream::connect(&address).is_ok());
    let get = |path| ask(&address, "GET", path, "").unwrap_or_else(|| panic!("no answer: {path}"));
    let words = format!("starting: waiting for Redis at {}", redis.address());
    let says = |said: &Value, field: &str| said[field].as_str().is_some_and(|why| why.starts_with(&words));
    until("it says what it waits for", || says(&get("/healthz").2, "trouble"));
    let (status, head, said) = get("/readyz");
    assert_eq!((status, said), (503, json!({"status": "starting"})));
    assert!(head.contains("retry-after: 1"), "{head}");
    let (status, _, said) = get("/healthz");
    assert_eq!((status, &said["status"]), (503, &json!("starting")));
    let (status, _, said) = ask_as("page.example", &address, "GET", "/healthz", "").expect("an answer");
    assert_eq!((status, &said["trouble"]), (503, &json!("starting: the store is not open yet")));
    let (status, _, said) = get("/livez");
    assert_eq!((status, said), (200, json!({"status": "ok"})));
    let (status, head, said) = ask(&address, "POST", "/v1/queues/q/messages", NOW).expect("an answer");
    assert_eq!((status, &said["code"]), (503, &json!("storage_unavailable")));
    assert_eq!(said["outcome"], "not_applied");
    assert!(says(&said, "detail") && head.contains("retry-after: 1"), "{head} {said}");
    // The socket is handed on: whoever asks in between is answered by the one or by the other.
    redis.restart().expect("restart");
    let begun = Instant::now();
    loop {
        assert_eq!(get("/livez").0, 200);
        if get("/readyz").0 == 200 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "never ready");
    }
    let (status, _, said) = ask(&address, "POST", "/v1/queues/q/messages", NOW).expect("an answer");
    assert_eq!(status, 201, "{said}");
    let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill");
    assert!(sent.success());
    assert_eq!(crate::process::wait(&mut child).code(), Some(0));
}

/// A process that is killed when it is dropped.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Story: a worker ended with an error when its server was restarted and had to wait for its store: it tried again
/// while nothing listened, and took the 503 of a server that starts for a final answer.
#[test]
fn worker_survives_restart_waiting_for_store() {
    let dir = TempDir::new().expect("dir");
    let mut redis = Redis::start(Settings::default()).expect("a redis-server");
    let address = format!("127.0.0.1:{}", free_port().expect("a port"));
    let start = |store: &str| {
        let mut command = serve();
        command.args(["--http", &address, "--beanstalk", "off", "--store", store, "--shard-lease", "1s"]);
        command.args(["--redis-start-timeout", "1h"]).stdout(Stdio::null()).stderr(Stdio::null());
        Killed(command.spawn().expect("spawn"))
    };
    let put = || {
        let asked = || ask(&address, "POST", "/v1/queues/q/messages", NOW);
        until("a message is accepted", || asked().is_some_and(|(status, _, _)| status == 201));
    };
    let server = start(&redis.url(0));
    put();
    let (log_path, done) = (dir.path().join("log"), dir.path().join("done"));
    let url = format!("http://{address}");
    let script = format!("echo one >> {}", done.display());
    let mut worker = Command::new(env!("CARGO_BIN_EXE_duewheel"));
    worker.args(["work", "q", "--count", "2", "--server", &url, "--", "sh", "-c", &script]);
    worker.stderr(std::fs::File::create(&log_path).expect("log"));
    let mut worker = Killed(worker.spawn().expect("spawn"));
    let handled = || std::fs::read_to_string(&done).map_or(0, |text| text.lines().count());
    until("the first message is handled", || handled() == 1);
    // Only then is the worker idle for certain, and no ack of its is lost.
    until("it is acked", || {
        let counts = ask(&address, "GET", "/v1/queues/q", "").map(|(_, _, said)| said["counts"].clone());
        counts.is_some_and(|counts| counts["leased"] == 0 && counts["ready"] == 0)
    });
    // In this order: a server without its Redis refuses with the code of one that starts, and a code is told once.
    drop(server);
    redis.stop().expect("stop");
    let _server = start(&redis.url(0));
    until("the worker is told that the server starts", || {
        let told = std::fs::read_to_string(&log_path).expect("log");
        // The words behind it depend on the moment, and are told once.
        told.contains("waiting for the server: ") && told.contains("starting: ")
            || worker.0.try_wait().expect("wait").is_some()
    });
    assert_eq!(worker.0.try_wait().expect("wait"), None, "{:?}", std::fs::read_to_string(&log_path));
    redis.restart().expect("restart");
    put();
    assert_eq!(crate::process::wait(&mut worker.0).code(), Some(0));
    assert_eq!(handled(), 2);
}

#[test]
fn redis_start_timeout_is_respected() {
    let mut command = serve();
    command.args(["--http", "127.0.0.1:0", "--beanstalk", "off", "--store", "redis://127.0.0.1:1/0"]);
    let output = run(command.args(["--redis-start-timeout", "0s"]));
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("cannot open the store in Redis") && !stderr.contains("trying again"),
        "{stderr}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_answer_with_status_alone() {
    let server = Server::start().await;
    for path in ["/livez", "/readyz"] {
        let answer = server.call("GET", path, "").await;
        assert_eq!((answer.status, answer.json()), (200, json!({"status": "ok"})), "{path}");
    }
    // Told to stop, and serving: nobody is to send it anything new, and nobody is to kill it.
    server.app.set_leaving();
    let ready = server.call("GET", "/readyz", "").await;
    assert_eq!((ready.status, ready.json()), (503, json!({"status": "draining"})));
    assert_eq!(server.call("GET", "/livez", "").await.status, 200);
    assert_eq!(server.call("GET", "/healthz", "").await.status, 200);
    server.enqueue("q", NOW).await;
    server.app.set_draining();
    assert_eq!(server.call("GET", "/livez", "").await.status, 200);
    // After a bug only a restart helps. What it was is said to those who may know.
    server.app.set_failing("a bug in duewheel: a thread has panicked");
    for path in ["/livez", "/readyz"] {
        let answer = server.call("GET", path, "").await;
        assert_eq!((answer.status, answer.json()), (503, json!({"status": "failing"})), "{path}");
    }
}

/// The balancer in front needs a while to see that the server is not ready any more; until then it sends requests, and
/// they are served.
#[test]
fn drain_waits_for_delay_or_signal() {
    let dir = TempDir::new().expect("dir");
    let mut server = logged(dir.path(), &["--drain-delay", "1h"]);
    assert_eq!(server.call("GET", "/readyz", "").0, 200);
    server.signal("-TERM");
    server.until("/readyz", |said| said["status"] == "draining");
    let (status, done) = server.call("POST", "/v1/queues/q/messages", NOW);
    assert_eq!(status, 201, "{done}");
    let (status, granted) = server.call("POST", "/v1/queues/q/reserve", "{}");
    assert_eq!((status, &granted["messages"][0]["id"]), (200, &done["id"]));
    assert_eq!(server.call("GET", "/livez", "").0, 200);
    assert_eq!(server.call("GET", "/healthz", "").1["status"], "ok");
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn short_drain_delay_ends_by_itself() {
    for delay in [None, Some("50ms")] {
        let dir = TempDir::new().expect("dir");
        let more: Vec<&str> = delay.iter().flat_map(|delay| ["--drain-delay", delay]).collect();
        let mut server = logged(dir.path(), &more);
        server.signal("-TERM");
        assert_eq!(server.wait().code(), Some(0), "{delay:?}");
        assert_eq!(log(dir.path()).contains("the drain begins later"), delay.is_some());
    }
}

/// A real server whose driver stops for good in one of its next rounds.
fn stalled(dir: &Path) -> Process {
    let flag = dir.join("now");
    let mut command = serve();
    command.args(["--http", "127.0.0.1:0", "--durability", "memory", "--data"]).arg(dir.join("data"));
    command.env("DUEWHEEL_TEST_PANIC", format!("nowhere,stuck:{}", flag.display()));
    let server = Process::spawn(command);
    assert_eq!(server.call("POST", "/v1/queues/q/messages", NOW).0, 201);
    std::fs::write(&flag, "").expect("flag");
    server
}

#[test]
fn stalled_thread_fails_readyz_and_healthz() {
    let dir = TempDir::new().expect("dir");
    let server = stalled(dir.path());
    until("it is said", || server.call("GET", "/readyz", "").1["status"] == "stalled");
    let (status, said) = server.call("GET", "/healthz", "");
    assert_eq!((status, &said["status"]), (503, &json!("stalled")), "{said}");
    assert_eq!(server.call("GET", "/livez", "").0, 200, "it may come round yet");
    server.kill();
}

/// The one thing for which a restart is right.
#[test]
#[ignore = "a thread is given two minutes; ./scripts/test --full runs it"]
fn stalled_thread_fails_livez_after_minutes() {
    let dir = TempDir::new().expect("dir");
    let server = stalled(dir.path());
    let begun = Instant::now();
    while server.call("GET", "/livez", "").1["status"] != "stalled" {
        assert!(begun.elapsed() < 5 * PATIENCE, "it is never red");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(server.call("GET", "/livez", "").0, 503);
    server.kill();
}

/// Quotas of a mounted configuration: Kubernetes exchanges a link, and nobody sends a signal.
#[test]
fn changed_config_reloads_without_signal() {
    let dir = TempDir::new().expect("dir");
    let write = |version: &str, limit: u32| {
        let folder = dir.path().join(version);
        std::fs::create_dir(&folder).expect("folder");
        let quota = format!("[[quota]]\nprefix = 'a'\nmessages = {limit}\n");
        std::fs::write(folder.join("duewheel.toml"), quota).expect("file");
        let next = dir.path().join("next");
        std::os::unix::fs::symlink(version, &next).expect("link");
        std::fs::rename(next, dir.path().join("..data")).expect("rename");
    };
    write("..1", 5);
    std::os::unix::fs::symlink("..data/duewheel.toml", dir.path().join("duewheel.toml")).expect("link");
    let file = dir.path().join("duewheel.toml");
    let server = logged(dir.path(), &["--config", file.to_str().expect("path")]);
    let limit = |limit: u32| {
        server.until("/v1/quotas", |shown| shown["quotas"][0]["messages"]["limit"] == json!(limit));
    };
    limit(5);
    write("..2", 7);
    limit(7);
    write("..3", 3);
    limit(3);
}

/// A restart gives back neither the store nor an owner for its shards, so nobody is to restart it for want of them.
#[tokio::test(flavor = "multi_thread")]
async fn missing_owners_fail_health_not_probes() {
    let coordinator = MemoryCoordinator::new(Duration::from_secs(1));
    coordinator.hold_open();
    let options = NodeOptions::new("a").shards_if_new(4);
    let open = Duewheel::builder().cluster(Arc::new(coordinator.for_a_node()), options).open();
    let wheel = open.await.expect("wheel");
    let server = Server::over(wheel, VirtualClock::at_2026(), Policy::default(), HttpLimits::default()).await;
    let health = async |so: &dyn Fn(&Value) -> bool| {
        let begun = Instant::now();
        loop {
            let answer = server.call("GET", "/healthz", "").await;
            if so(&answer.json()) {
                return answer;
            }
            assert!(begun.elapsed() < PATIENCE, "never: {answer:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let probes = async || {
        for path in ["/livez", "/readyz"] {
            let answer = server.call("GET", path, "").await;
            assert_eq!((answer.status, answer.json()), (200, json!({"status": "ok"})), "{path}");
        }
    };
    // Each shard is named when it has been without an owner for long enough.
    let names_all = |said: &Value| {
        said["trouble"].as_str().is_some_and(|why| why.contains("shards have had no owner: 0, 1, 2, 3"))
    };
    let said = health(&|said| said["status"] == "failing" && names_all(said)).await;
    assert_eq!((said.status, &said.json()["shards_without_owner"]), (503, &json!(4)));
    probes().await;
    coordinator.let_open();
    let said = health(&|said| said["status"] == "ok" && said["shards_without_owner"] == 0).await;
    assert_eq!(said.status, 200);
    coordinator.go_away();
    let said = health(&|said| said["status"] == "failing").await;
    assert!(said.json()["trouble"].as_str().is_some_and(|why| why.contains("is not available")), "{said:?}");
    probes().await;
    coordinator.come_back();
    health(&|said| said["status"] == "ok").await;
}
