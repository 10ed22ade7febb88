//! What commands say: errors that name what was typed, JSON on both outputs, figures in the words of people.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::PATIENCE;
use crate::process::{BINARY, Process, run, text};
use crate::shell::Shell;

/// Story: `--delay -5s` was "unexpected argument '-5' found", and `--priority abc` an "invalid digit found in string".
#[test]
fn bad_option_values_name_their_option() {
    let shell = Shell::new();
    for (line, told) in [
        ("enqueue q b --delay -5s", "--delay \"-5s\": must not be negative"),
        ("enqueue q b --delay -5", "--delay \"-5\": must not be negative"),
        ("enqueue q b --lease -5s", "invalid value '-5s' for '--lease <TIME>': must not be negative"),
        ("enqueue q b --priority -1", "invalid value '-1' for '--priority <N>': -1 is not in 0..=4294967295"),
        ("enqueue q b --priority abc", "invalid value 'abc' for '--priority <N>': must be a whole number"),
        ("list q --limit -1", "invalid value '-1' for '--limit <N>': must not be negative"),
        ("clock advance -5s", "must not be negative"),
        ("histogram --from -1h", "--from \"-1h\": must be an instant"),
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        let stderr = shell.fails(&args, 2);
        assert!(stderr.contains(told), "{line}: {stderr}");
        let stderr = shell.fails(&[&args[..], &["--json"]].concat(), 2);
        let error: Value = serde_json::from_str(&stderr).unwrap_or_else(|error| panic!("{error}: {stderr}"));
        assert!(error["detail"].as_str().is_some_and(|detail| detail.contains(told)), "{line}: {stderr}");
    }
}

/// Story: errors of the server named its fields, and quoted what a value had become on its way, or nothing.
#[test]
fn server_errors_quote_typed_value() {
    let shell = Shell::new();
    for (args, told) in [
        (&["histogram", "--buckets", "0"][..], "--buckets 0: "),
        (&["histogram", "--from", "tomorrow 9:00", "--to", "today 9:00"], " \"today 9:00\": "),
        (&["tail", "--since", "abc"], "--since \"abc\": "),
        (
            &["enqueue", "q", "b", "--backoff", "1m..1s"],
            "--backoff \"1m..1s\": the shortest time must not be above the longest time",
        ),
        (&["config", "q", "--unset", "lease", "--lease", "5s"], "--unset lease: --lease is given, too"),
        (&["enqueue", "q", "b", "--delay", "200 years"], "--delay \"200 years\": "),
        (&["enqueue", "q", "b", "--at", "2020-01-01"], "--at \"2020-01-01\": "),
        (&["enqueue", "q", "b", "--priority", "4294967296"], "'--priority <N>': "),
        (&["enqueue", "q", "b", "--max-attempts", "0"], "--max-attempts 0: "),
        (&["schedule", "put", "s", "--queue", "rep", "b"], "say when it occurs: --cron, --every or --at"),
        (&["schedule", "preview"], "say when it occurs: --cron, --every or --at"),
        (&["schedule", "put", "s", "--queue", "q", "--cron", "at nine"], "--cron \"at nine\": "),
    ] {
        let stderr = shell.fails(args, 2);
        assert!(stderr.contains(told), "{args:?}: {stderr}");
    }
}

/// Each line of an output is an object.
fn objects(output: &[u8]) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    text(output).lines().map(parse).collect()
}

/// Story: a note in words stood in front of the error in JSON, and `--quiet` printed it, too.
#[test]
fn with_json_both_outputs_are_json() {
    let shell = Shell::new();
    let ninety = json!(["--delay \"90\": 90 is taken as 90 seconds"]);
    let enqueue = ["enqueue", "k", "b", "--key", "a", "--delay", "90", "--json"];
    let first = shell.run(&enqueue);
    assert!(first.stderr.is_empty(), "{}", text(&first.stderr));
    assert_eq!(objects(&first.stdout)[0]["notes"], ninety);
    let taken = shell.run(&enqueue);
    let errors = objects(&taken.stderr);
    assert_eq!((taken.status.code(), errors.len()), (Some(4), 1), "{errors:?}");
    assert_eq!((&errors[0]["code"], &errors[0]["notes"]), (&json!("key_exists"), &ninety));
    let quiet = shell.run(&["enqueue", "k", "b", "--delay", "90", "--quiet"]);
    assert!(quiet.status.success() && quiet.stderr.is_empty() && quiet.stdout.is_empty(), "{quiet:?}");

    let lines = shell.run_with(&["enqueue", "k", "--lines", "--json", "--delay", "90"], b"a\n\nb\n");
    let errors = objects(&lines.stderr);
    assert_eq!((lines.status.code(), &errors[0]["line"]), (Some(1), &json!(2)), "{errors:?}");
    assert!(
        errors[0]["detail"].as_str().is_some_and(|detail| detail.contains("--allow-empty")),
        "{errors:?}"
    );
    assert_eq!((&errors[1]["accepted"], &errors[1]["notes"]), (&json!(2), &ninety));
    assert_eq!(errors[2]["detail"], "1 line was refused");
    let large =
        shell.run_with(&["enqueue", "k", "--lines", "--json"], &[&b"a\n"[..], &vec![b'x'; 300_000]].concat());
    let errors = objects(&large.stderr);
    assert_eq!((&errors[0]["line"], &errors[0]["code"]), (&json!(2), &json!("body_too_large")), "{errors:?}");
}

#[test]
fn token_commands_print_json() {
    let dir = TempDir::new().expect("dir");
    let token = |args: &[&str], input: &str| {
        let mut command = Command::new(BINARY);
        command.arg("token").args(args).arg("--json").current_dir(dir.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("spawn");
        // It may end without reading.
        let _ = child.stdin.take().expect("stdin").write_all(input.as_bytes());
        child.wait_with_output().expect("output")
    };
    let new = ["new", "--name", "shop", "--scope", "enqueue"];
    let shown = token(&new, "");
    assert!(shown.stderr.is_empty(), "{}", text(&shown.stderr));
    let shown = objects(&shown.stdout);
    let block = shown[0]["block"].as_str().expect("a block");
    assert!(
        block.contains("name = \"shop\"") && block.contains(shown[0]["hash"].as_str().expect("hash")),
        "{block}"
    );
    let kept = objects(&token(&[&new[..], &["--tokens", "tokens.toml"]].concat(), "").stdout);
    let made = kept[0]["token"].as_str().expect("a token");
    assert!(kept[0]["notes"][0].as_str().is_some_and(|note| note.contains("kill -HUP")), "{kept:?}");
    let hash = objects(&token(&["hash"], made).stdout);
    assert_eq!(hash[0], json!({"hash": kept[0]["hash"]}));
    let revoke = ["revoke", "shop", "--tokens", "tokens.toml"];
    assert_eq!(objects(&token(&revoke, "").stdout)[0]["revoked"], "shop");
    let again = token(&revoke, "");
    assert_eq!((again.status.code(), &objects(&again.stderr)[0]["code"]), (Some(3), &json!("not_found")));
}

/// Story: `restore SRC DIR --store URL` restored to the folder, and said that all was well. A variable is not typed: it does
/// not count beside a folder.
#[test]
fn data_folder_and_store_are_exclusive() {
    let dir = TempDir::new().expect("dir");
    let [data, copy] = ["data", "copy"].map(|name| dir.path().join(name).display().to_string());
    let server = Process::start(dir.path().join("data").as_path(), &[]);
    server.kill();
    let away = "redis://127.0.0.1:1/0";
    for line in [&["restore", &data, &copy][..], &["verify", &data], &["salvage", &data, &copy]] {
        let both = run(Command::new(BINARY).args(line).args(["--store", away]));
        assert_eq!(both.status.code(), Some(2), "{line:?}: {}", text(&both.stderr));
        assert!(text(&both.stderr).contains("--store"), "{}", text(&both.stderr));
        assert!(!dir.path().join("copy").exists());
    }
    let verified = run(Command::new(BINARY).args(["verify", &data]).env("DUEWHEEL_STORE", away));
    assert_eq!(verified.status.code(), Some(0), "{}", text(&verified.stderr));
}

/// An option of the store that has a bad value is a wrong use, whichever command finds it out.
#[test]
fn bad_store_address_is_usage_error() {
    for address in ["redis://127.0.0.1:6379/x", "redis-cluster://a,b/3", "redis://h:99999/0", "mysql://h/x"] {
        for command in ["serve", "inspect", "verify"] {
            let refused = run(Command::new(BINARY).args([command, "--store", address]));
            let told = text(&refused.stderr);
            assert_eq!(refused.status.code(), Some(2), "{command} {address}: {told}");
            assert!(told.contains("--store") && told.lines().count() == 1, "{told}");
        }
    }
}

/// Answers everything on a port with these bytes.
fn stranger(answer: &'static str) -> String {
    counted_stranger(answer).0
}

/// The same, and the number of its answers.
fn counted_stranger(answer: &'static str) -> (String, Arc<AtomicUsize>) {
    let socket = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = socket.local_addr().expect("address").to_string();
    let answers = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&answers);
    std::thread::spawn(move || {
        for stream in socket.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 4_096]);
            let _ = stream.write_all(answer.as_bytes());
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    (address, answers)
}

/// Story: `work` waited for ever for a server at `https://` of an HTTP port, and for one that is none of duewheel.
#[test]
fn work_exits_on_permanent_connection_errors() {
    let shell = Shell::new();
    let https = shell.server.url.replace("http://", "https://");
    let page = "HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno";
    let other = format!("http://{}", stranger(page));
    for (url, told) in [(&https, "this is an HTTP port"), (&other, "but not as a duewheel server does")] {
        let stderr = shell.fails(&["work", "q", "--server", url, "--", "true"], 5);
        assert!(stderr.contains(told) && stderr.lines().count() == 1, "{stderr}");
    }
    // A proxy says so while the server behind it is away.
    let away = "HTTP/1.1 502 Bad Gateway\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno";
    let (proxy, asked) = counted_stranger(away);
    let proxy = format!("http://{proxy}");
    let mut waiting = shell.command(&["work", "q", "--jobs", "4", "--server", &proxy, "--", "true"]);
    let mut waiting = waiting.stderr(Stdio::piped()).spawn().expect("spawn");
    // It asks again and again.
    let begun = Instant::now();
    while asked.load(Ordering::Relaxed) < 5 {
        assert!(begun.elapsed() < PATIENCE, "the worker does not ask again");
        std::thread::sleep(Duration::from_millis(10));
    }
    let sent = Command::new("kill").args(["-TERM", &waiting.id().to_string()]).status();
    assert!(sent.expect("kill").success());
    assert_eq!(waiting.wait().expect("wait").code(), Some(0));
    let mut told = String::new();
    waiting.stderr.take().expect("stderr").read_to_string(&mut told).expect("text");
    assert!(
        told.starts_with("duewheel: waiting for the server: ") && told.lines().count() == 1,
        "once: {told}"
    );
}

#[test]
fn queue_shows_target_and_effective_settings() {
    let shell = Shell::new();
    shell.ok(&["target", "put", "shop", "http://127.0.0.1:9/", "--networks", "any"]);
    shell.ok(&["config", "q", "--lease", "45s", "--target", "shop"]);
    for command in ["queue", "config"] {
        let shown = shell.ok(&[command, "q"]);
        let value = |name: &str| {
            let line = shown.lines().find_map(|line| line.strip_prefix(&format!("--{name} ")));
            line.unwrap_or_else(|| panic!("{name}: {shown}")).trim().to_owned()
        };
        for (name, says) in [
            ("target", "shop"),
            ("lease", "45s"),
            ("max-attempts", "20  (default)"),
            ("rate", "no limit  (default)"),
            ("burst", "no limit  (default)"),
            ("catchup-rate", "no limit  (default)"),
            ("concurrency", "no limit  (default)"),
            ("dead-ttl", "never  (default)"),
            ("expires-in", "never  (default)"),
            ("keep-done", "not kept  (default)"),
        ] {
            assert_eq!(value(name), says, "{command} {name}");
        }
    }
}

#[test]
fn message_shows_expiry_and_deliveries() {
    let shell = Shell::new();
    let refusing = format!(
        "http://{}/",
        stranger("HTTP/1.1 500 Oops\r\ncontent-length: 4\r\nconnection: close\r\n\r\nbusy")
    );
    shell.ok(&["target", "put", "shop", &refusing, "--networks", "any", "--delays", "1h"]);
    shell.ok(&["config", "q", "--target", "shop"]);
    shell.ok(&["enqueue", "q", "x", "--key", "k", "--expires-in", "2h"]);
    let begun = std::time::Instant::now();
    let shown = loop {
        let shown = shell.ok(&["get", "q", "--key", "k"]);
        if shown.contains("\ndelivery") {
            break shown;
        }
        assert!(begun.elapsed() < crate::fixture::PATIENCE, "{shown}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    };
    let delivery = shown.lines().find(|line| line.starts_with("delivery")).expect("a line");
    assert!(delivery.contains(" ms status_500 busy"), "{shown}");
    let expiry = shown.lines().find(|line| line.starts_with("expires_at")).expect("a line");
    assert!(expiry.contains("  in 2 h ("), "{shown}");
}

/// Story: both ended with 0, and a name that was mistyped looked like an empty queue.
#[test]
fn missing_queue_transfer_exits_3() {
    let shell = Shell::new();
    let told = shell.fails(&["export", "none.ndjson", "--queue", "nosuch"], 3);
    assert!(told.contains("--queue nosuch: there is no such queue"), "{told}");
    assert!(!shell.dir.path().join("none.ndjson").exists());
    assert!(shell.fails(&["export", "-", "--queue", "nosuch"], 3).contains("nosuch"));
    shell.ok(&["enqueue", "q", "x"]);
    shell.ok(&["config", "set", "--lease", "5s"]);
    shell.ok(&["schedule", "put", "s", "--queue", "planned", "--every", "10000h"]);
    shell.ok(&["export", "all.ndjson", "--queue", "q", "--queue", "set", "--queue", "planned"]);
    let told = shell.fails(&["import", "all.ndjson", "--queue", "q", "--queue", "nosuch"], 3);
    assert!(told.contains("--queue nosuch: is not in the file"), "{told}");
    let file = std::fs::read(shell.dir.path().join("all.ndjson")).expect("read");
    let piped = shell.run_with(&["import", "-", "--queue", "nosuch"], &file);
    assert_eq!(piped.status.code(), Some(3), "{}", text(&piped.stderr));
    assert!(shell.fails(&["import", "all.ndjson", "--check", "--queue", "nosuch"], 3).contains("nosuch"));
}

#[test]
fn unreachable_import_source_exits_5() {
    let shell = Shell::new();
    let told = shell.fails(&["import", "--beanstalk", "127.0.0.1:1"], 5);
    assert!(told.contains("cannot reach a beanstalkd at 127.0.0.1:1"), "{told}");
}

/// Story: the last line of a server in memory said that everything was in the store.
#[test]
fn memory_server_stop_reports_nothing_kept() {
    for (durability, says) in [
        ("memory", "stopped: nothing was kept, because the messages were in memory only"),
        ("buffered", "stopped: everything that was accepted is in the store"),
    ] {
        let dir = TempDir::new().expect("dir");
        let log = dir.path().join("log");
        let mut command = crate::process::serve();
        command
            .args(["--http", "127.0.0.1:0", "--durability", durability, "--data"])
            .arg(dir.path().join("data"));
        let file = std::fs::File::create(&log).expect("file");
        let mut server = Process::spawn_logged(command, file.into());
        server.signal("-TERM");
        assert!(server.wait().success());
        let log = std::fs::read_to_string(&log).expect("read");
        assert!(log.contains(says), "{log}");
    }
}

#[test]
fn unknown_serve_option_logs_its_area() {
    let refused = run(crate::process::serve().args(["--nonsense", "--log-format", "json"]));
    assert_eq!(objects(&refused.stderr)[0]["area"], "duewheel::serve");
}
