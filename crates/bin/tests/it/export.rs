//! `duewheel export` and `import FILE`: between servers and stores, repeated, cut off, and wrong.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use duewheel_redis_rig::{Redis, Settings};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::{BINARY, Process};
use crate::shell::Shell;

/// Another server, with everything in memory.
fn other() -> Shell {
    Shell::new()
}

impl Shell {
    fn export(&self) -> PathBuf {
        let file = self.dir.path().join("all.ndjson");
        let _ = std::fs::remove_file(&file);
        self.ok(&["export", file.to_str().expect("path")]);
        file
    }

    fn import(&self, file: &Path, more: &[&str]) -> Value {
        let file = file.to_str().expect("path");
        self.json(&[&["import", file, "--json"], more].concat())
    }

    /// All messages of a queue without what is a server's own, by body.
    fn messages(&self, queue: &str) -> BTreeMap<String, Value> {
        let listed = self.json(&["list", queue, "--limit", "10000", "--json"]);
        let mut found = BTreeMap::new();
        for mut message in listed["messages"].as_array().cloned().expect("messages") {
            for own in
                ["id", "due_in_ms", "enqueued_at", "attempt", "generation", "history", "dead_at", "forgiven"]
            {
                message.as_object_mut().expect("object").remove(own);
            }
            let body = message["body"].as_str().or(message["body_base64"].as_str()).expect("body").to_owned();
            assert!(found.insert(body, message).is_none(), "doubled");
        }
        found
    }
}

/// A queue with a message of each state and each property.
fn fill(shell: &Shell) {
    shell.ok(&["config", "q/1", "--lease", "1 min", "--priority", "7", "--dead-ttl", "2 days"]);
    let later = ["--at", "2099-01-01T00:00:00.123Z"];
    shell.ok(&[&["enqueue", "q/1", "later", "--key", "ü 1", "--priority", "3"], &later[..]].concat());
    shell.ok(&["enqueue", "q/1", "delayed", "--delay", "2h", "--backoff", "2s..9s", "--lease", "5s"]);
    // Over HTTP, because their order counts.
    let headers = r#"{"body": "headers", "delay": "2h", "headers": {"z": "1", "a": "2 3"}}"#;
    assert_eq!(shell.server.call("POST", "/v1/queues/q%2F1/messages", headers).0, 201);
    shell.ok_with(&["enqueue", "q/1", "--delay", "3h"], b"\xff\x00\n");
    shell.ok(&["enqueue", "q/1", "", "--allow-empty", "--delay", "4h"]);
    let lease = |args: &[&str]| {
        shell.ok(args);
        shell.json(&["reserve", "q/1", "--lease", "1h", "--json"])["messages"][0].take()
    };
    let text = |message: &Value, name: &str| message[name].as_str().expect("text").to_owned();
    for (body, key) in [("dead one", "k"), ("dead two", "k")] {
        let dead = lease(&["enqueue", "q/1", body, "--key", key]);
        shell.ok(&["nack", &text(&dead, "id"), &text(&dead, "lease_token"), "--dead", "--reason", "broken"]);
    }
    // It has used two attempts of five.
    let tried = lease(&["enqueue", "q/1", "tried", "--max-attempts", "5"]);
    shell.ok(&["nack", &text(&tried, "id"), &text(&tried, "lease_token"), "--delay", "0s"]);
    let again = shell.json(&["reserve", "q/1", "--lease", "1h", "--json"])["messages"][0].take();
    assert_eq!(again["attempt"], 2);
    shell.ok(&["enqueue", "q/1", "ready", "--key", "r"]);
    shell.ok(&["enqueue", "other", "o"]);
    shell.ok(&["pause", "other"]);
}

#[test]
fn what_travels_arrives() {
    let (from, to) = (Shell::new(), other());
    fill(&from);
    let file = from.export();
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).expect("file").permissions());
    assert_eq!(mode & 0o777, 0o600, "bodies are nobody else's business");
    let text = std::fs::read_to_string(&file).expect("text");
    for exported in
        [r#""attempt":2"#, r#""dead_reason":"buried""#, r#""headers":{"z":"1","a":"2 3"}"#, "broken"]
    {
        assert!(text.contains(exported), "{exported}: {text}");
    }
    assert!(text.ends_with("{\"type\":\"end\",\"queues\":2,\"schedules\":0,\"messages\":10}\n"), "{text}");
    let done = to.import(&file, &[]);
    assert_eq!(
        (&done["imported"], &done["refused"], &done["leased"], &done["durability"]),
        (&json!(10), &json!(0), &json!(1), &json!(["memory"])),
        "{done}"
    );
    let (mut before, after) = (from.messages("q/1"), to.messages("q/1"));
    // The consumer of the source has it no more, and two of its five attempts are used up.
    let tried = before.get_mut("tried").expect("tried");
    tried["state"] = json!("ready");
    tried.as_object_mut().expect("object").remove("lease_until");
    tried["max_attempts"] = json!(3);
    tried["own"]["max_attempts"] = json!(3);
    assert_eq!(before, after);
    let config = |shell: &Shell, queue: &str| shell.json(&["queue", queue, "--json"])["config"].take();
    assert_eq!(config(&from, "q/1"), config(&to, "q/1"));
    assert_eq!(to.json(&["queue", "other", "--json"])["paused"], true);
    // Their order is that of their deaths, which `redrive --max` goes by.
    to.ok(&["redrive", "q/1", "--max", "1"]);
    assert_eq!(to.messages("q/1")["dead one"]["state"], "ready");
    assert_eq!(to.messages("q/1")["dead two"]["state"], "dead");
    assert!(to.fails(&["enqueue", "q/1", "x", "--key", "r"], 4).contains("key_exists"), "keys hold");
}

/// Story: an export left out which target a queue has, so its messages came and were delivered nowhere.
#[test]
fn import_keeps_queue_target_or_explains() {
    let from = Shell::new();
    for target in ["shop", "shop-2"] {
        from.ok(&["target", "put", target, "https://shop.example/hook"]);
    }
    for (queue, target) in [("a", "shop"), ("b", "shop-2")] {
        from.ok(&["enqueue", queue, "x", "--delay", "1h"]);
        from.ok(&["config", queue, "--target", target, "--lease", "1 min"]);
    }
    let file = from.export();
    let to = other();
    to.ok(&["target", "put", "shop", "https://shop.example/hook"]);
    let config = |queue: &str| to.json(&["config", queue, "--json"]);
    let path = file.to_str().expect("path");
    let missing = to.fails(&["import", path], 1);
    assert!(
        missing.contains("the target of b") && missing.contains("there is no target of this name"),
        "{missing}"
    );
    assert_eq!((&config("a")["target"], &config("b")["target"]), (&json!("shop"), &Value::Null));
    assert_eq!(config("b")["lease_ms"], 60_000, "the other settings are set");
    assert_eq!((to.messages("a").len(), to.messages("b").len()), (1, 1));
    // It is put, and the file is imported again.
    to.ok(&["target", "put", "shop-2", "https://shop.example/hook"]);
    assert_eq!(to.import(&file, &[])["settings_failed"], 0);
    assert_eq!(config("b")["target"], "shop-2");
    // Another one that is here stays.
    to.ok(&["config", "b", "--target", "shop"]);
    assert_eq!(to.import(&file, &[])["settings_left"], json!(["b"]));
    assert_eq!(config("b")["target"], "shop");
}

#[test]
fn repeated_import_creates_no_duplicates() {
    let (from, to) = (Shell::new(), other());
    fill(&from);
    let file = from.export();
    let first = to.import(&file, &["--prefix", "copy/"]);
    let before = to.messages("copy/q/1");
    assert_eq!(to.import(&file, &["--prefix", "copy/"])["imported"], first["imported"]);
    // What was done since does not come again, and a later file has the same messages.
    let lease = to.json(&["reserve", "copy/q/1", "--json"])["messages"][0].take();
    to.ok(&["ack", lease["id"].as_str().expect("id"), lease["lease_token"].as_str().expect("token")]);
    let later = from.export();
    to.import(&later, &["--prefix", "copy/"]);
    let after = to.messages("copy/q/1");
    assert_eq!(after.len(), before.len() - 1);
    // After a purge the same messages come only if that is meant.
    to.ok(&["purge", "copy/q/1", "--yes"]);
    to.import(&file, &["--prefix", "copy/", "--again", "--queue", "q/1"]);
    assert_eq!(to.messages("copy/q/1").len(), before.len());
}

#[test]
fn import_key_conflicts_follow_option() {
    let (from, to) = (Shell::new(), other());
    from.ok(&["enqueue", "q", "theirs", "--key", "k", "--delay", "1h"]);
    from.ok(&["enqueue", "q", "more", "--delay", "1h"]);
    let file = from.export();
    let path = file.to_str().expect("path");
    to.ok(&["config", "q", "--lease", "9s"]);
    to.ok(&["enqueue", "q", "ours", "--key", "k", "--delay", "2h"]);
    let refused = to.fails(&["import", path], 1);
    assert!(refused.contains("line 3: key_exists: "), "{refused}");
    assert!(refused.contains("1 message was refused"), "{refused}");
    assert_eq!(to.messages("q").keys().collect::<Vec<_>>(), ["more", "ours"]);
    assert_eq!(to.import(&file, &["--if-exists", "keep"])["kept"], 1);
    assert_eq!(to.messages("q").keys().collect::<Vec<_>>(), ["more", "ours"]);
    let third = other();
    third.ok(&["enqueue", "q", "ours", "--key", "k", "--delay", "2h"]);
    assert_eq!(third.import(&file, &["--if-exists", "replace"])["imported"], 2);
    assert_eq!(third.messages("q").keys().collect::<Vec<_>>(), ["more", "theirs"]);
    // The queue's settings here stay.
    assert_eq!(to.json(&["queue", "q", "--json"])["config"]["lease_ms"], 9_000);
}

#[test]
fn damaged_export_file_changes_nothing() {
    let (from, to) = (Shell::new(), other());
    fill(&from);
    let file = from.export();
    let text = std::fs::read_to_string(&file).expect("text");
    let broken = to.dir.path().join("broken.ndjson");
    let path = broken.to_str().expect("path");
    let is_empty = || assert_eq!(to.json(&["queues", "--json"])["queues"], json!([]));
    std::fs::write(&broken, &text[..text.len() / 2]).expect("write");
    let cut = to.fails(&["import", path], 2);
    assert!(cut.contains("is cut off behind line"), "{cut}");
    is_empty();
    std::fs::write(&broken, text.replacen("\"scheduled\"", "\"soon\"", 1)).expect("write");
    let wrong = to.fails(&["import", path], 2);
    assert!(wrong.contains(": state: unknown variant `soon`") && wrong.contains("line "), "{wrong}");
    is_empty();
    assert!(to.fails(&["import", "missing"], 2).contains("FILE missing: "));
    assert!(to.fails(&["import"], 2).contains("FILE"), "neither a file nor a server");
    assert!(to.fails(&["import", path, "--tube", "t"], 2).contains("--tube"));
    let whole = file.to_str().expect("path");
    assert!(to.ok(&["import", whole, "--check"]).contains("the file is whole: 10 messages of 2 queues"));
    is_empty();

    // Standard input is taken as it comes: what was right is here, and the whole comes to the same as once.
    let half = &text.as_bytes()[..text.len() / 2];
    let output = to.run_with(&["import", "-"], half);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("is cut off") && said.contains("nothing doubles"), "{said}");
    let here = to.messages("q/1").len();
    assert!((1..9).contains(&here), "{here}");
    to.ok_with(&["import", "-"], text.as_bytes());
    assert_eq!(to.messages("q/1").len(), 9);
}

#[test]
fn refused_import_line_is_named() {
    let from = Shell::new();
    from.ok(&["enqueue", "q", &"x".repeat(2_000), "--delay", "1h"]);
    from.ok(&["enqueue", "q", "small", "--delay", "1h"]);
    let file = from.export();
    let to = Shell::with(&["--durability", "memory", "--max-body", "1000"]);
    let refused = to.fails(&["import", file.to_str().expect("path")], 1);
    assert!(refused.contains("line 3: body_too_large: "), "{refused}");
    assert_eq!(to.messages("q").len(), 1);
}

#[test]
fn failed_export_changes_no_files() {
    let shell = Shell::new();
    let file = shell.dir.path().join("f");
    std::fs::write(&file, "mine").expect("write");
    assert!(shell.fails(&["export", "f"], 2).contains("exists already"));
    assert_eq!(std::fs::read_to_string(&file).expect("read"), "mine");
    let url = shell.server.url.clone();
    shell.server.kill();
    let folder = shell.dir;
    let output =
        Command::new(BINARY).args(["export", "g", "--server", &url]).current_dir(folder.path()).output();
    assert_eq!(output.expect("output").status.code(), Some(5));
    let left: Vec<_> =
        std::fs::read_dir(folder.path()).expect("dir").flatten().map(|e| e.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with('g')), "{left:?}");
}

/// The answers tell what is durable: a server that is killed right after the import has all of it.
#[test]
fn what_is_imported_survives_kill_9() {
    let (from, to) = (Shell::new(), Shell::with(&[]));
    let lines: String = (0..3_000).map(|n| format!("{n}\n")).collect();
    from.ok_with(&["enqueue", "q", "--lines", "--quiet", "--delay", "1h"], lines.as_bytes());
    let file = from.export();
    let done = to.import(&file, &[]);
    assert_eq!((&done["imported"], &done["durability"]), (&json!(3_000), &json!(["fsync"])), "{done}");
    let data = to.dir.path().join("data");
    to.server.kill();
    let again = Process::start(&data, &[]);
    assert_eq!(again.call("GET", "/v1/queues/q", "").1["counts"]["scheduled"], 3_000);
}

/// A server on Redis, reached by the same commands.
fn on_redis(redis: &Redis) -> Shell {
    let mut command = Command::new(BINARY);
    command.args(["serve", "--http", "127.0.0.1:0", "--store", &redis.url(0)]).stderr(Stdio::null());
    Shell { server: Process::spawn(command), dir: TempDir::new().expect("dir") }
}

#[test]
fn export_moves_between_log_and_redis() {
    let log = Shell::with(&[]);
    fill(&log);
    let file = log.export();
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let middle = on_redis(&redis);
    assert_eq!(middle.import(&file, &[])["imported"], 10);
    let file = middle.export();
    let kept = middle.messages("q/1");
    middle.server.kill();
    // Back to a log, and, as from a copy, to another Redis.
    let back = Shell::with(&[]);
    assert_eq!(back.import(&file, &[])["imported"], 10);
    assert_eq!(back.messages("q/1"), kept);
    let fresh = Redis::start(Settings::default()).expect("a redis-server");
    let restored = on_redis(&fresh);
    assert_eq!(restored.import(&file, &[])["imported"], 10);
    assert_eq!(restored.messages("q/1"), kept);
}

/// Story: a file had no schedules, and one that was made again put its next occurrence a second time.
#[test]
fn schedules_import_without_duplicate_occurrences() {
    let (from, to) = (Shell::new(), other());
    let holds = |shell: &Shell, queue: &str, count: u64| {
        let of = |seen: &Value, state: &str| seen["counts"][state].as_u64().unwrap_or(0);
        shell
            .server
            .until(&format!("/v1/queues/{queue}"), |seen| of(seen, "scheduled") + of(seen, "ready") == count);
    };
    let put = |name: &str, settings: Value| {
        let (status, answer) =
            from.server.call("PUT", &format!("/v1/schedules/{name}"), &settings.to_string());
        assert_eq!(status, 200, "{answer}");
        // Its next occurrence is put ahead.
        holds(&from, settings["queue"].as_str().expect("queue"), 1);
    };
    put(
        "daily",
        json!({"queue": "reports", "every": "24h", "remaining": 5, "headers": {"a": "b"}, "note": "n"}),
    );
    put("soon", json!({"queue": "soon", "at": [in_seconds(3), in_seconds(7_200)]}));
    from.ok(&["pause", "soon"]);
    from.server.call("POST", "/v1/schedules/daily/trigger", r#"{"dedupe_id": "once"}"#);
    let file = from.export();
    let text = std::fs::read_to_string(&file).expect("text");
    assert!(text.ends_with("{\"type\":\"end\",\"queues\":2,\"schedules\":2,\"messages\":3}\n"), "{text}");
    // What was put ahead is due before it arrives.
    from.server.until("/v1/queues/soon", |seen| seen["counts"]["ready"].as_u64() >= Some(1));

    let done = to.import(&file, &[]);
    assert_eq!(
        [&done["imported"], &done["occurrences"], &done["schedules"], &done["schedules_failed"]],
        [&json!(2), &json!(1), &json!(2), &json!(0)],
        "{done}"
    );
    holds(&to, "reports", 2);
    holds(&to, "soon", 2);
    let schedule =
        |shell: &Shell, name: &str| shell.server.call("GET", &format!("/v1/schedules/{name}"), "").1;
    let (before, after) = (schedule(&from, "daily"), schedule(&to, "daily"));
    for same in ["queue", "every", "remaining", "headers", "note"] {
        assert_eq!(before[same], after[same], "{same}");
    }
    let next = |schedule: &Value| {
        schedule["next"].as_array().expect("next").iter().map(|next| next["at"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(next(&before), next(&after));
    // The trigger's message and one occurrence; the overdue occurrence and the next one.
    for queue in ["reports", "soon"] {
        let keys = |shell: &Shell| {
            let listed = shell.server.call("GET", &format!("/v1/queues/{queue}/messages"), "").1;
            let messages = listed["messages"].as_array().cloned().expect("messages");
            let mut keys: Vec<String> = messages.iter().map(|message| message["key"].to_string()).collect();
            keys.sort();
            keys
        };
        holds(&from, "soon", 2);
        assert_eq!((keys(&to).len(), keys(&to)), (2, keys(&from)), "{queue}");
    }
    assert_eq!(to.json(&["queue", "soon", "--json"])["paused"], true);

    // Once more: the same. Another schedule of a name stays.
    let done = to.import(&file, &[]);
    assert_eq!(
        [&done["imported"], &done["repeated"], &done["occurrences"]],
        [&json!(2), &json!(2), &json!(1)],
        "{done}"
    );
    assert_eq!(to.server.call("PATCH", "/v1/schedules/daily", r#"{"every": "48h"}"#).0, 200);
    let done = to.import(&file, &["--again", "--if-exists", "keep"]);
    assert_eq!((&done["schedules_left"], &done["occurrences"]), (&json!(["daily"]), &json!(0)), "{done}");
    assert_eq!(schedule(&to, "daily")["every"], "48h");
}

fn in_seconds(seconds: i64) -> String {
    format!("{:.3}", jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds))
}

/// Story: settings that were refused were counted, and the messages of a paused queue went into one that ran.
#[test]
fn unsettable_pause_aborts_import() {
    let from = Shell::new();
    from.ok(&["enqueue", "q", "held back"]);
    from.ok(&["pause", "q"]);
    let file = from.export();
    let path = file.to_str().expect("path");
    let tokens = from.dir.path().join("tokens.toml");
    let tokens = tokens.to_str().expect("path");
    let token =
        from.ok(&["token", "new", "--name", "writer", "--scope", "enqueue,metrics", "--tokens", tokens]);
    let to = Shell::with(&["--durability", "memory", "--tokens", tokens]);
    let token = token.trim();
    let refused = to.fails(&["import", path, "--token", token], 6);
    assert!(
        refused.contains("line 2: q is paused in the file") && refused.contains("--no-settings"),
        "{refused}"
    );
    let done: Value =
        serde_json::from_str(&to.ok(&["import", path, "--json", "--no-settings", "--token", token]))
            .expect("JSON");
    assert_eq!(done["imported"], 1);
}

/// How long a queue remembers dedupe ids is set behind its messages, and a repeat is told apart.
#[test]
fn import_repeats_despite_short_dedupe_window() {
    let (from, to) = (Shell::new(), other());
    from.ok(&["config", "q", "--dedupe-window", "0s"]);
    from.ok(&["enqueue", "q", "once", "--delay", "1h"]);
    let file = from.export();
    // As if it had been interrupted behind the first messages.
    let part: String =
        std::fs::read_to_string(&file).expect("text").lines().take(3).map(|l| format!("{l}\n")).collect();
    assert_eq!(to.run_with(&["import", "-"], part.as_bytes()).status.code(), Some(2));
    let done = to.import(&file, &[]);
    assert_eq!((&done["imported"], &done["repeated"]), (&json!(1), &json!(1)), "{done}");
    assert_eq!(to.messages("q").len(), 1);
    assert_eq!(to.json(&["queue", "q", "--json"])["config"]["dedupe_window_ms"], 0);
    // What is in use keeps its settings, and the command says what became of the pause.
    from.ok(&["pause", "q"]);
    to.ok(&["config", "q", "--lease", "9s"]);
    let file = from.export();
    let told = to.ok(&["import", file.to_str().expect("path")]);
    assert!(told.contains("q has settings of its own here, which stay, and was not paused"), "{told}");
}
