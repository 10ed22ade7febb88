//! Tokens at a real server: made by the command, read again at SIGHUP, refused when they are not as they should be.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use duewheel::Policy;
use duewheel_server::auth::Guard;
use duewheel_server::http::HttpLimits;
use serde_json::json;
use tempfile::TempDir;

use super::{Told, bearer, new_token, request, say, until, write_private};
use crate::fixture::{PATIENCE, Server};
use crate::process::{BINARY, Process, run, serve, text};

struct Guarded {
    dir: TempDir,
    server: Process,
}

impl Guarded {
    fn start(dir: TempDir) -> Guarded {
        let log = std::fs::File::create(dir.path().join("log")).expect("log");
        let mut command = serve();
        command.args(["--http", "127.0.0.1:0", "--durability", "memory", "--log", "trace", "--data"]);
        command.arg(dir.path().join("data")).arg("--tokens").arg(dir.path().join("tokens.toml"));
        let server = Process::spawn_logged(command, Stdio::from(log));
        Guarded { dir, server }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).expect("log")
    }

    fn call(&self, token: &str, method: &str, path: &str, body: &str) -> Told {
        let bytes = request(method, path, &bearer(token), body);
        say(self.server.url.trim_start_matches("http://"), bytes.as_bytes()).expect("an answer")
    }

    fn status(&self, token: &str) -> u16 {
        self.call(token, "GET", "/v1/queues", "").status
    }

    /// SIGHUP, until the log says so once more.
    fn hang_up(&self, says: &str) {
        let before = self.log().matches(says).count();
        self.server.signal("-HUP");
        until(says, || self.log().matches(says).count() > before);
    }
}

#[test]
fn tokens_reload_without_restart() {
    let dir = TempDir::new().expect("dir");
    let file = dir.path().join("tokens.toml");
    let first = new_token(&file, &["--name", "first", "--scope", "metrics"]);
    let guarded = Guarded::start(dir);
    assert_eq!(guarded.status(&first), 200);

    let second = new_token(&file, &["--name", "second", "--scope", "metrics", "--scope", "enqueue"]);
    guarded.hang_up("the tokens were read again");
    assert_eq!((guarded.status(&first), guarded.status(&second)), (200, 200));
    let enqueue =
        |token: &str| guarded.call(token, "POST", "/v1/queues/q/messages", r#"{"body": "a", "delay_ms": 0}"#);
    assert_eq!((enqueue(&first).status, enqueue(&second).status), (403, 201));

    // Revoked: the first one's block is taken out.
    let all = std::fs::read_to_string(&file).expect("file");
    let (_, rest) = all.split_once("\n\n").expect("two tokens");
    assert!(rest.contains("second") && !rest.contains("first"), "{rest}");
    write_private(&file, rest);
    guarded.hang_up("the tokens were read again");
    assert_eq!((guarded.status(&first), guarded.status(&second)), (401, 200));

    // A broken file, and one that others may read, change nothing.
    write_private(&file, &rest.replace("scopes", "scope"));
    guarded.hang_up("the tokens stay as they were");
    write_private(&file, "");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).expect("chmod");
    guarded.hang_up("the tokens stay as they were");
    std::fs::remove_file(&file).expect("remove");
    guarded.hang_up("the tokens stay as they were");
    assert_eq!((guarded.status(&first), guarded.status(&second)), (401, 200));
    // An empty file is none that is broken: everybody is out.
    write_private(&file, "");
    guarded.hang_up("the tokens were read again");
    assert_eq!((guarded.status(&first), guarded.status(&second)), (401, 401));
    let log = guarded.log();
    assert!(!log.contains(&first) && !log.contains(&second) && !log.contains("sha256:"), "{log}");
}

#[test]
fn health_and_openapi_need_no_token() {
    let dir = TempDir::new().expect("dir");
    new_token(&dir.path().join("tokens.toml"), &["--name", "n", "--scope", "admin"]);
    let guarded = Guarded::start(dir);
    let address = guarded.server.url.trim_start_matches("http://").to_owned();
    let ask = |method: &str, path: &str| {
        say(&address, request(method, path, "", "").as_bytes()).expect("an answer")
    };
    let health = ask("GET", "/healthz");
    assert_eq!(health.status, 200);
    let members: Vec<String> = health.json().as_object().expect("object").keys().cloned().collect();
    assert_eq!(members, ["drain_mode", "durability", "status", "tick_age_ms"]);
    assert_eq!((ask("GET", "/openapi.json").status, ask("GET", "/").status), (200, 200));
    let metrics = ask("GET", "/metrics");
    assert_eq!((metrics.status, metrics.code().as_str()), (401, "unauthorized"));
    assert!(metrics.head.contains("www-authenticate: bearer"), "{}", metrics.head);
    // A path that is nothing, and a method that is none, tell no more than openapi.json.
    assert_eq!((ask("GET", "/v2").status, ask("DELETE", "/v1/queues").status), (404, 405));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_ends_by_the_clock() {
    let dir = TempDir::new().expect("dir");
    let file = dir.path().join("tokens.toml");
    let token = new_token(&file, &["--name", "n", "--scope", "metrics"]);
    let text = std::fs::read_to_string(&file).expect("file");
    // The clock of the test begins with the year 2026.
    write_private(&file, &format!("{text}expires = \"2026-01-01T01:00:00Z\"\n"));
    let guard = Arc::new(Guard::of(file).expect("tokens"));
    let hosts = "".parse().expect("none");
    let server = Server::start_guarded(Policy::default(), HttpLimits::default(), guard, hosts).await;
    for (wait_ms, status) in [(0, 200), (3_599_999, 200), (1, 401), (1_000_000, 401)] {
        server.advance(wait_ms);
        let answer = server.raw("GET", "/v1/queues", &bearer(&token), b"").await;
        assert_eq!(answer.status, status, "{answer:?}");
        if status == 401 {
            assert_eq!(answer.json()["detail"], "this token has expired");
        }
    }
}

/// Story: a consumer whose token had been revoked got the next message of its queue nine minutes later.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_reserve_ends_with_its_token() {
    let dir = TempDir::new().expect("dir");
    let file = dir.path().join("tokens.toml");
    let token = new_token(&file, &["--name", "n", "--scope", "consume"]);
    let text = std::fs::read_to_string(&file).expect("file");
    write_private(&file, &format!("{text}expires = \"2026-01-01T00:00:01Z\"\n"));
    let guard = Arc::new(Guard::of(file).expect("tokens"));
    let hosts = "".parse().expect("none");
    let server = Server::start_guarded(Policy::default(), HttpLimits::default(), guard, hosts).await;
    let ends = async {
        let begun = std::time::Instant::now();
        while server.wheel.stats().await.expect("figures").waiters == 0 {
            assert!(begun.elapsed() < PATIENCE, "it waits");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        server.advance(1_000);
    };
    let waits = server.call_by(&token, "POST", "/v1/queues/q/reserve", r#"{"wait": "10m"}"#);
    let ((status, answer), ()) = tokio::join!(waits, ends);
    assert_eq!((status, &answer["code"]), (401, &json!("unauthorized")), "{answer}");
    server.wheel.queue("q").body("b").enqueue().await.expect("a message");
    assert_eq!(server.wheel.stats().await.expect("figures").counts.ready, 1, "nobody waits");
}

#[test]
fn token_new_prints_token_once() {
    let dir = TempDir::new().expect("dir");
    let new =
        |args: &[&str]| run(Command::new(BINARY).current_dir(dir.path()).args(["token", "new"]).args(args));
    let all = [
        "--name",
        "shop \"1\"",
        "--scope",
        "enqueue",
        "--scope",
        "consume,cancel",
        "--queue",
        "shop/",
        "--queue",
        "sms",
        "--expires",
        "90d",
    ];
    let output = new(&all);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let (token, block) = said.split_once("\n\n").expect("token and block");
    assert!(token.starts_with("dw_") && token.len() == 46, "{token}");
    assert_eq!(said.matches(token).count(), 1);
    assert!(!text(&output.stderr).contains(token));
    for line in [
        "[[token]]",
        "name = 'shop \"1\"'",
        r#"scopes = ["enqueue", "consume", "cancel"]"#,
        r#"queues = ["shop/", "sms"]"#,
    ] {
        assert!(block.lines().any(|found| found == line), "{line}: {block}");
    }
    assert!(block.contains("expires = \"20") && block.contains("hash = \"sha256:"), "{block}");
    // What the server would keep of it is told of the token, too.
    let mut command = Command::new(BINARY);
    let mut child =
        command.args(["token", "hash"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("spawn");
    std::io::Write::write_all(&mut child.stdin.take().expect("stdin"), format!("{token}\n").as_bytes())
        .expect("write");
    let hash = text(&child.wait_with_output().expect("output").stdout);
    assert!(block.contains(hash.trim()) && hash.starts_with("sha256:"), "{hash}");

    for (args, says) in [
        (vec!["--name", "n"], "--scope"),
        (vec!["--scope", "enqueue"], "--name"),
        (vec!["--name", "n", "--scope", "everything"], "everything"),
        (vec!["--name", "", "--scope", "enqueue"], "--name"),
        (vec!["--name", "n", "--scope", "enqueue", "--queue", "a b"], "--queue"),
        (vec!["--name", "n", "--scope", "enqueue", "--expires", "soon"], "--expires"),
        (vec!["--name", "n", "--scope", "enqueue", "--expires", "4000000d"], "--expires"),
    ] {
        let output = new(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output.stderr));
        assert!(
            text(&output.stderr).contains(says) && output.stdout.is_empty(),
            "{args:?}: {}",
            text(&output.stderr)
        );
    }
}

#[test]
fn token_file_is_private_and_atomic() {
    let dir = TempDir::new().expect("dir");
    let file = dir.path().join("tokens.toml");
    new_token(&file, &["--name", "one", "--scope", "enqueue"]);
    let mode = |file: &PathBuf| std::fs::metadata(file).expect("meta").permissions().mode() & 0o777;
    assert_eq!(mode(&file), 0o600);
    let before = std::fs::read_to_string(&file).expect("file");
    let again = |name: &str| {
        let args = ["token", "new", "--name", name, "--scope", "enqueue", "--tokens"];
        run(Command::new(BINARY).args(args).arg(&file))
    };
    let output = again("one");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("another token has it") && output.stdout.is_empty());
    assert_eq!(std::fs::read_to_string(&file).expect("file"), before);

    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).expect("chmod");
    let output = again("two");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("chmod 600") && output.stdout.is_empty(),
        "{}",
        text(&output.stderr)
    );
    let start = |file: &PathBuf| {
        run(serve().current_dir(dir.path()).args(["--http", "127.0.0.1:0", "--tokens"]).arg(file))
    };
    let output = start(&file);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).contains("mode 644") && output.stdout.is_empty(),
        "{}",
        text(&output.stderr)
    );
    let output = start(&dir.path().join("none"));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot read the tokens in"), "{}", text(&output.stderr));
    write_private(&file, "[[token]]\nname = 'x'\n");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("chmod");
    let output = start(&file);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("line 1: token[0]: missing field `hash`"),
        "{}",
        text(&output.stderr)
    );
}
