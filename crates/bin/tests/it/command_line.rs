//! The client commands against a real server process.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixture::PATIENCE;
use crate::process::{BINARY, Process};
use crate::shell::Shell;

#[test]
fn enqueue_get_postpone_fire_cancel() {
    let shell = Shell::new();
    let said = shell.ok(&["enqueue", "orders/close", "order 42", "--delay", "48h", "--key", "a/b c"]);
    assert!(said.starts_with("1  enqueued, due "), "{said}");
    let seen = shell.json(&["get", "orders/close", "--key", "a/b c", "--json"]);
    assert_eq!(
        (&seen["body"], &seen["state"], &seen["key"]),
        (&json!("order 42"), &json!("scheduled"), &json!("a/b c"))
    );
    let shown = shell.ok(&["get", "1"]);
    assert!(
        shown.contains("state        scheduled\n") && shown.contains("body         order 42\n"),
        "{shown}"
    );
    let taken = shell.fails(&["enqueue", "orders/close", "x", "--key", "a/b c"], 4);
    assert_eq!(taken.trim(), "duewheel: key_exists: another message has this key (id 1, scheduled)");
    let kept = shell.ok(&["enqueue", "orders/close", "x", "--key", "a/b c", "--if-exists", "keep"]);
    assert!(kept.starts_with("1  kept (scheduled), due "), "{kept}");
    let replaced = shell.ok(&[
        "enqueue",
        "orders/close",
        "x",
        "--delay",
        "1h",
        "--key",
        "a/b c",
        "--if-exists",
        "replace",
    ]);
    assert!(replaced.starts_with("2  enqueued in place of 1, due "), "{replaced}");
    shell.ok(&["enqueue", "sync", "5", "--key", "k"]);
    shell.ok(&["reserve", "sync"]);
    let newer = shell.ok(&["enqueue", "sync", "5", "--key", "k", "--if-exists", "supersede"]);
    assert!(newer.starts_with("4  enqueued; supersedes 3, which is leased, due "), "{newer}");
    assert!(shell.ok(&["get", "3"]).contains("superseded_by 4\n"));
    let exported = shell.ok(&["export", "-"]);
    assert!(!exported.contains(r#""id":"3""#) && exported.contains(r#""id":"4""#), "{exported}");
    let postponed = shell.json(&["postpone", "2", "--at", "2099-01-01T00:00:00Z", "--body", "-y", "--json"]);
    assert_eq!(postponed["due_at"], json!("2099-01-01T00:00:00.000Z"));
    assert_eq!(shell.json(&["get", "2", "--json"])["body"], json!("-y"));
    let wrong = shell.fails(&["postpone", "2", "--delay", "1h", "--if-generation", "77"], 4);
    assert!(wrong.contains("generation_mismatch"), "{wrong}");
    let fired = shell.ok(&["fire", "orders/close", "--key", "a/b c"]);
    assert!(fired.starts_with("2  fired, ready, due "), "{fired}");
    assert_eq!(shell.ok(&["cancel", "2"]), "2  cancelled\n");
    assert!(shell.fails(&["cancel", "2"], 3).contains("message_not_found"));
    assert!(shell.fails(&["get", "2"], 3).contains("message_not_found"));
}

/// Story: only options of `serve` and of the server's address had variables: `DUEWHEEL_DELAY=1h duewheel enqueue q x`
/// was due at once.
#[test]
fn options_override_environment_variables() {
    let shell = Shell::new();
    let run = |args: &[&str], variables: &[(&str, &str)]| {
        let mut command = shell.command(args);
        command.envs(variables.iter().copied()).stdin(Stdio::null()).output().expect("output")
    };
    let answer = |args: &[&str], variables: &[(&str, &str)]| -> Value {
        let output = run(args, variables);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let made = answer(&["enqueue", "q", "x"], &[("DUEWHEEL_JSON", "1"), ("DUEWHEEL_DELAY", "1h")]);
    let seen = shell.json(&["get", made["id"].as_str().expect("id"), "--json"]);
    assert_eq!(seen["state"], "scheduled", "{seen}");
    // A length of time and an instant conflict: the one that is typed counts.
    let args = ["enqueue", "q", "x", "--json", "--at", "2099-01-01T00:00:00Z"];
    let made = answer(&args, &[("DUEWHEEL_DELAY", "1h"), ("DUEWHEEL_LINES", "false")]);
    assert_eq!(made["due_at"], "2099-01-01T00:00:00.000Z", "{made}");
    let args = ["enqueue", "q", "x", "--json", "--key", "k"];
    let made =
        answer(&args, &[("DUEWHEEL_LINES", "true"), ("DUEWHEEL_LEASE", "90"), ("DUEWHEEL_KEY", "other")]);
    assert_eq!(
        (&made["key"], &made["notes"][0]),
        (&json!("k"), &json!("--lease \"90\": 90 is taken as 90 seconds"))
    );
    let wrong = run(&["enqueue", "q", "x"], &[("DUEWHEEL_PRIORITY", "abc"), ("DUEWHEEL_JSON", "true")]);
    assert_eq!(wrong.status.code(), Some(2));
    let told: Value = serde_json::from_slice(&wrong.stderr).expect("JSON");
    assert!(told["detail"].as_str().is_some_and(|text| text.contains("--priority")), "{told}");
    let both = run(&["enqueue", "q", "x"], &[("DUEWHEEL_DELAY", "1h"), ("DUEWHEEL_AT", "2099-01-01")]);
    assert_eq!(both.status.code(), Some(2), "nothing says which of them is meant");
    let strange = run(&["enqueue", "q", "x"], &[("DUEWHEEL_JSON", "perhaps")]);
    assert_eq!(strange.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&strange.stderr).contains("--json"), "{strange:?}");

    // What `work` tells its command of a message says nothing of the messages that this command makes.
    shell.ok(&["enqueue", "in", "x", "--priority", "5"]);
    let script = format!("{BINARY} enqueue out y --json");
    let worked =
        run(&["work", "in", "--until-empty", "--", "sh", "-c", &script], &[("DUEWHEEL_DELAY", "1h")]);
    let made: Value = serde_json::from_slice(&worked.stdout).expect("JSON");
    let seen = shell.json(&["get", made["id"].as_str().expect("id"), "--json"]);
    assert_eq!((&seen["priority"], &seen["state"]), (&json!(1024), &json!("scheduled")), "{seen}");
}

/// Story: of two headers with one name the first was dropped without a word.
#[test]
fn duplicate_header_is_refused() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "x", "--delay", "1h"]);
    let twice = ["--header", "a=b", "--header", "a=c"];
    for args in [
        &["enqueue", "q", "x"][..],
        &["postpone", "1"],
        &["list", "q"],
        &["bulk", "cancel", "q"],
        &["schedule", "put", "s", "--queue", "q", "--every", "1h"],
    ] {
        let refused = shell.fails(&[args, &twice].concat(), 2);
        assert!(refused.contains("--header a: occurs twice"), "{args:?}: {refused}");
    }
    let target =
        ["target", "put", "t", "https://a.example/", "--header", "X-Shop: 7", "--header", "x-shop: 8"];
    let refused = shell.fails(&target, 2);
    assert!(refused.contains("--header x-shop: occurs twice"), "{refused}");
}

#[test]
fn enqueue_body_from_argument_or_stdin() {
    let shell = Shell::new();
    shell.ok_with(&["enqueue", "q", "-"], b"from stdin\n");
    shell.ok_with(&["enqueue", "q"], b"\xff\x00");
    shell.ok(&["enqueue", "q", "--priority", "1", "-5 degrees", "--dedupe-id", "d"]);
    let listed = shell.json(&["list", "q", "--json"]);
    let messages = listed["messages"].as_array().expect("messages");
    assert_eq!(messages.len(), 3);
    assert_eq!(messages[0]["body"], "from stdin\n");
    assert_eq!(messages[1]["body_base64"], "/wA=");
    assert_eq!((&messages[2]["body"], &messages[2]["priority"]), (&json!("-5 degrees"), &json!(1)));
    let again = shell.ok(&["enqueue", "q", "--priority", "1", "-5 degrees", "--dedupe-id", "d"]);
    assert_eq!(again, "3  was enqueued before as 3; it is ready\n");
}

/// Story: `-` became the body of the message, and an empty variable emptied it.
#[test]
fn new_body_from_stdin_is_not_empty() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "old", "--delay", "1h"]);
    let body = || shell.json(&["get", "1", "--json"])["body"].clone();
    shell.ok_with(&["postpone", "1", "--body", "-"], b"from stdin");
    assert_eq!(body(), "from stdin");
    for empty in ["-", ""] {
        let refused = shell.fails(&["postpone", "1", "--body", empty], 2);
        assert!(refused.contains("--body: is empty; use --allow-empty"), "{refused}");
    }
    assert_eq!(body(), "from stdin");
    shell.ok(&["postpone", "1", "--body", "", "--allow-empty"]);
    assert_eq!(body(), "");
    let put = ["schedule", "put", "s", "--queue", "q", "--every", "1h"];
    assert!(shell.fails(&[&put[..], &["-"]].concat(), 2).contains("BODY: is empty; use \"\""));
    shell.ok(&[&put[..], &[""]].concat());
}

/// Story: what was accepted was not said when standard output was closed or full, and was sent again.
#[test]
fn output_errors_say_what_is_done() {
    let shell = Shell::new();
    let mut lines = shell.command(&["enqueue", "q", "--lines", "--delay", "1h"]);
    let mut lines =
        lines.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("spawn");
    drop(lines.stdout.take());
    let mut stdin = lines.stdin.take().expect("stdin");
    // The command ends before it has read all.
    let _ = std::io::Write::write_all(&mut stdin, "x\n".repeat(100_000).as_bytes());
    drop(stdin);
    let ended = lines.wait_with_output().expect("output");
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{told}");
    let count = shell.json(&["queues", "--json"])["queues"][0]["counts"]["scheduled"].clone();
    let said = format!("standard output: broken pipe; {count} of the first {count} lines were accepted");
    assert!(told.contains(&said) && count.as_u64() < Some(100_000), "{told}");

    let full = std::fs::File::options().write(true).open("/dev/full");
    let Ok(full) = full else { return }; // only Linux has it
    let on_full = |args: &[&str]| {
        let mut command = shell.command(args);
        let output = command.stdout(full.try_clone().expect("file")).output().expect("output");
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let why = "duewheel: it is done, but standard output cannot take the answer: no space left on device\n";
    assert_eq!(on_full(&["enqueue", "other", "x"]), why);
    assert_eq!(on_full(&["queue", "set", "other", "--lease", "1m"]), why);
    for args in [
        &["bulk", "cancel", "q", "--all", "--keep", "1h", "--yes"][..],
        &["purge", "other", "--keep", "1h", "--yes"],
    ] {
        let told = on_full(args);
        assert!(told.starts_with("undo: duewheel bulk restore ") && told.ends_with(why), "{told}");
    }
}

/// Story: a repeated enqueue whose message was cancelled said "enqueued, due in 1 h", and nothing was pending. A calendar
/// delay a second later was another content.
#[test]
fn a_repeated_enqueue_says_so() {
    let shell = Shell::new();
    let enqueue = |words: &str| shell.ok(&["enqueue", "q", "a", "--delay", words, "--dedupe-id", "d"]);
    assert!(enqueue("1 month").starts_with("1  enqueued, due "));
    let first = shell.json(&["get", "1", "--json"])["due_at"].clone();
    std::thread::sleep(std::time::Duration::from_millis(5)); // another instant
    assert!(enqueue("in 1 month").starts_with("1  was enqueued before as 1, due "));
    assert_eq!(shell.json(&["get", "1", "--json"])["due_at"], first);
    shell.fails(&["enqueue", "q", "a", "--delay", "2 months", "--dedupe-id", "d"], 4);

    shell.ok(&["cancel", "1"]);
    assert_eq!(enqueue("1 month"), "1  was enqueued before as 1; it is not pending any more\n");
    let body = ["enqueue", "q", "a", "--delay", "1h", "--dedupe-id", "e", "--key", "k"];
    shell.ok(&body);
    shell.ok(&["cancel", "q", "--key", "k", "--forget-dedupe"]);
    assert!(shell.ok(&body).starts_with("3  enqueued, due "), "its id is free");
}

#[test]
fn each_line_becomes_a_message() {
    let shell = Shell::new();
    let lines: String = (0..2_500).map(|n| format!("line {n}\n")).collect();
    let ids = shell.ok_with(&["enqueue", "q", "--lines", "--delay", "1h"], lines.as_bytes());
    assert_eq!(ids.lines().collect::<Vec<_>>(), (1..=2_500).map(|id| id.to_string()).collect::<Vec<_>>());
    let queue = shell.json(&["queues", "--json"]);
    assert_eq!(queue["queues"][0]["counts"]["scheduled"], 2_500);
    let listed = shell.json(&["list", "q", "--limit", "2500", "--json"]);
    let bodies: Vec<&str> =
        listed["messages"].as_array().expect("messages").iter().filter_map(|m| m["body"].as_str()).collect();
    assert_eq!((bodies.len(), bodies[0], bodies[2_499]), (2_500, "line 0", "line 2499"));
    let large = format!("short\n{}\nshort\n", "x".repeat(300_000));
    let output = shell.run_with(&["enqueue", "q", "--lines"], large.as_bytes());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("line 2: body_too_large") && stderr.contains("1 line was refused"), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "2501\n2502\n");
    assert_eq!(shell.ok_with(&["enqueue", "q", "--lines", "--quiet"], b"a\nb"), "2 enqueued\n");
    let summary = shell.ok_with(&["enqueue", "q", "--lines", "--quiet", "--json"], b"a\nb");
    assert_eq!(serde_json::from_str::<Value>(&summary).expect("json"), json!({"accepted": 2, "failed": 0}));
    let answers = shell.ok_with(&["enqueue", "q", "--lines", "--json"], b"a\nb");
    let answers: Vec<Value> = answers.lines().map(|line| serde_json::from_str(line).expect("json")).collect();
    assert_eq!((&answers[1]["line"], &answers[1]["id"]), (&json!(2), &json!("2508")));
    let empty = shell.run_with(&["enqueue", "q", "--lines", "--quiet"], b"a\n\nb\n");
    let stderr = String::from_utf8_lossy(&empty.stderr).into_owned();
    assert!(empty.status.code() == Some(1) && stderr.contains("line 2: is empty"), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&empty.stdout), "2 enqueued\n");
}

#[test]
fn tables_for_people() {
    let shell = Shell::new();
    // The minutes are rounded, so a slow machine shows the same time.
    shell.ok(&["enqueue", "alpha", "one\nline", "--delay", "90m", "--key", "k"]);
    shell.ok(&["enqueue", "beta", "two"]);
    let listed = shell.ok(&["list", "alpha"]);
    let rows: Vec<Vec<&str>> = listed.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["ID", "STATE", "DUE", "KEY", "ATTEMPT", "BODY"]);
    let row = &rows[1];
    assert_eq!(row[..7], ["1", "scheduled", "in", "1", "h", "30", "min"], "{row:?}");
    assert_eq!(&row[row.len() - 3..], ["k", "0", "one\\nline"]);
    assert_eq!(shell.ok(&["list", "alpha", "--state", "dead"]).lines().count(), 1);
    assert!(shell.ok(&["list", "beta", "--limit", "1"]).contains("two"));
    let queues = shell.ok(&["queues"]);
    let rows: Vec<Vec<&str>> = queues.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..5], ["QUEUE", "SCHEDULED", "READY", "LEASED", "DEAD"]);
    assert_eq!(
        (&rows[1][..5], &rows[2][..5]),
        (&["alpha", "1", "0", "0", "0"][..], &["beta", "0", "1", "0", "0"][..])
    );
}

#[test]
fn exit_codes_separate_usage_from_connection() {
    let shell = Shell::new();
    for args in [
        &["get", "not-an-id"][..],
        &["get"],
        &["postpone", "1"],
        &["postpone", "1", "--delay", "1h", "--at", "2099-01-01T00:00:00Z"],
        &["enqueue", "q", "b", "--if-exists", "keep"],
        &["enqueue", "q", "b", "--lines"],
        &["enqueue", "q", "--lines", "--key", "k"],
        &["list", "q", "--state", "pending"],
        &["work", "q"],
        &["backup"],
        &["restore", "one"],
        &["unknown"],
        &["get", "1", "--server", "ftp://localhost"],
        &["get", "1", "--server", "db1.example:7788"],
        &["enqueue", "q", ""],
        &["enqueue", "no queue", "b"],
        &["nack", "1", "token", "--dead", "--delay", "1h"],
        &["work", "q", "--jobs", "0", "--", "true"],
        &["completions", "tcl"],
        &["tail", "--since", "yesterday"],
        &["tail", "no queue"],
    ] {
        shell.fails(args, 2);
    }
    // Its standard output is no terminal.
    let top = shell.fails(&["top"], 2);
    assert!(top.contains("top draws in a terminal"), "{top}");
    let bad = shell.fails(&["enqueue", "q", "b", "--delay", "1 fortnight"], 2);
    assert!(bad.contains("--delay \"1 fortnight\": must be a length of time"), "{bad}");
    let past = shell.fails(&["enqueue", "q", "b", "--at", "2020-01-01T00:00:00Z"], 2);
    assert!(past.contains("in_the_past") && past.contains("--at \"2020-01-01T00:00:00Z\""), "{past}");
    let many = shell.fails(&["enqueue", "q", "b", "--max-attempts", "0"], 2);
    assert!(many.contains("--max-attempts 0: "), "{many}");
    let key = shell.fails(&["enqueue", "q", "b", "--key", ""], 2);
    assert!(key.contains("--key \"\": "), "{key}");
    let gone = shell.fails(&["cancel", "q", "--key", ""], 2);
    assert!(gone.contains("bad_request: --key \"\": "), "{gone}");
    shell.ok(&["enqueue", "q", "b", "--at", "2020-01-01T00:00:00Z", "--past", "fire"]);
    let nobody = shell.fails(&["queues", "--wait", "0", "--server", "http://127.0.0.1:9"], 5);
    assert!(nobody.contains("duewheel serve") && nobody.lines().count() == 1, "{nobody}");
    let json = |args: &[&str], code: i32| {
        serde_json::from_str::<Value>(&shell.fails(args, code)).expect("an error as JSON")
    };
    let nobody = json(&["queues", "--json", "--wait", "0", "--server", "http://127.0.0.1:9"], 5);
    assert_eq!((&nobody["code"], &nobody["exit_code"]), (&json!("unreachable"), &json!(5)));
    for args in [
        &["get", "--json"][..],
        &["get", "1", "--json", "--no-such-option"],
        &["postpone", "1", "--json"],
        &["enqueue", "q", "b", "--lease", "soon", "--json"],
        &["list", "q", "--json", "--state", "pending"],
        &["schedule", "--json"],
        &["enqueue", "q", "", "--json"],
    ] {
        let wrong = json(args, 2);
        assert_eq!((&wrong["code"], &wrong["exit_code"]), (&json!("usage"), &json!(2)), "{args:?}");
        assert!(wrong["detail"].as_str().is_some_and(|detail| !detail.contains('\n')), "{wrong}");
    }
    let wrong = json(&["enqueue", "q", "b", "--lease", "soon", "--json"], 2);
    let detail = wrong["detail"].as_str().expect("detail");
    assert!(detail.starts_with("invalid value 'soon' for '--lease <TIME>'"), "{detail}");
    // What follows -- is another command's.
    let plain = shell.fails(&["work", "--jobs", "0", "q", "--", "curl", "--json"], 2);
    assert!(plain.starts_with("duewheel: invalid value '0' for '--jobs <N>'"), "{plain}");
    for args in [
        &["verify", "none", "--json"][..],
        &["restore", "none", "new", "--json"],
        &["salvage", "none", "new", "--json"],
    ] {
        assert_eq!(json(args, 1)["code"], "failed", "{args:?}");
    }
    let missing = json(&["get", "q", "--key", "none", "--json"], 3);
    assert_eq!(missing["code"], "message_not_found");
    shell.ok(&["enqueue", "q", "b", "--key", "k"]);
    let taken = json(&["enqueue", "q", "b", "--key", "k", "--json"], 4);
    assert_eq!((&taken["code"], &taken["exit_code"]), (&json!("key_exists"), &json!(4)));
    assert_eq!((&taken["existing_id"], &taken["state"]), (&json!("2"), &json!("ready")));
}

#[test]
fn work_runs_command_per_message() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "hello", "--key", "k", "--header", "trace-id=7f"]);
    let script = "cat > body; echo $DUEWHEEL_ID $DUEWHEEL_KEY $DUEWHEEL_QUEUE $DUEWHEEL_ATTEMPT $DUEWHEEL_HEADER_TRACE_ID > env";
    shell.ok(&["work", "q", "--count", "1", "--", "sh", "-c", script]);
    let file = |name: &str| std::fs::read_to_string(shell.dir.path().join(name)).expect(name);
    assert_eq!((file("body").as_str(), file("env").as_str()), ("hello", "1 k q 1 7f\n"));
    assert!(shell.fails(&["get", "1"], 3).contains("message_not_found"), "acked");

    shell.ok(&["enqueue", "q", "bad"]);
    shell.ok(&["work", "q", "--count", "1", "--", "sh", "-c", "echo no such order >&2; exit 3"]);
    let seen = shell.json(&["get", "2", "--json"]);
    assert_eq!(
        (&seen["history"][0]["how"], &seen["history"][0]["note"]),
        (&json!("nacked"), &json!("exit status 3: no such order"))
    );

    shell.ok(&["enqueue", "q", "never"]);
    shell.ok(&["work", "q", "--count", "1", "--", "sh", "-c", "grep -q never && exit 100"]);
    let seen = shell.json(&["get", "3", "--json"]);
    assert_eq!(
        (&seen["state"], &seen["dead_reason"], &seen["history"][0]["note"]),
        (&json!("dead"), &json!("buried"), &json!("exit status 100"))
    );

    shell.ok(&["enqueue", "other", "x"]);
    let none = shell.fails(&["work", "other", "--", "./no-such-command"], 1);
    assert!(none.contains("cannot run ./no-such-command"), "{none}");
}

/// Story: a worker that was started a moment before its server gave up, though it waits for one that comes back.
#[test]
fn work_waits_for_server_to_start() {
    let shell = Shell::new();
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = socket.local_addr().expect("address").to_string();
    drop(socket);
    let url = format!("http://{address}");
    let args = ["work", "q", "--count", "1", "--server", &url, "--", "touch", "worked"];
    let mut worker = shell.command(&args).stderr(Stdio::piped()).spawn().expect("spawn");
    let mut said = std::io::BufReader::new(worker.stderr.take().expect("stderr"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).expect("a line");
    assert!(line.starts_with("duewheel: waiting for the server: no server at "), "{line}");
    let data = shell.dir.path().join("late");
    let mut server = Command::new(BINARY);
    server.args(["serve", "--durability", "memory", "--http", &address, "--data"]).arg(&data);
    let _server = Process::spawn(server);
    shell.ok(&["enqueue", "q", "x", "--server", &url]);
    assert_eq!(worker.wait().expect("wait").code(), Some(0));
    assert!(shell.dir.path().join("worked").exists());
}

#[test]
fn work_extends_lease_while_command_runs() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "slow"]);
    // A queue without messages vanishes with its totals.
    shell.ok(&["enqueue", "q", "later", "--delay", "1h"]);
    // More than two leases long; without extending, the message would come again and be at attempt 2 or lost.
    shell.ok(&["work", "q", "--count", "1", "--lease", "2s", "--", "sleep", "5"]);
    assert!(shell.fails(&["get", "1"], 3).contains("message_not_found"), "acked under the first lease");
    let (_, queue) = shell.server.call("GET", "/v1/queues/q", "");
    assert_eq!((&queue["totals"]["granted"], &queue["totals"]["acked"]), (&json!(1), &json!(1)));
}

#[test]
fn signal_lets_current_message_finish() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "a"]);
    let script = "touch begun; sleep 0.5; touch finished";
    let mut worker =
        shell.command(&["work", "q", "--", "sh", "-c", script]).stderr(Stdio::null()).spawn().expect("spawn");
    let begun = Instant::now();
    while !shell.dir.path().join("begun").exists() {
        assert!(begun.elapsed() < PATIENCE, "it does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    Command::new("kill").args(["-INT", &worker.id().to_string()]).status().expect("kill");
    assert_eq!(worker.wait().expect("wait").code(), Some(0));
    assert!(shell.dir.path().join("finished").exists());
    assert!(shell.fails(&["get", "1"], 3).contains("message_not_found"), "acked");

    let mut idle = shell.command(&["work", "q", "--", "true"]).spawn().expect("spawn");
    let begun = Instant::now();
    while shell.server.call("GET", "/v1/queues/q", "").1["waiters"] != 1 {
        assert!(begun.elapsed() < PATIENCE, "it does not wait");
        std::thread::sleep(Duration::from_millis(5));
    }
    Command::new("kill").args(["-TERM", &idle.id().to_string()]).status().expect("kill");
    assert_eq!(idle.wait().expect("wait").code(), Some(0), "at once when nothing is under way");
}

#[test]
fn version_command_matches_version_option() {
    let said = |args: &[&str]| Command::new(BINARY).args(args).output().expect("output");
    let version = said(&["version"]);
    assert!(version.status.success(), "{version:?}");
    assert_eq!(version.stdout, said(&["--version"]).stdout);
    assert!(version.stdout.starts_with(b"duewheel "));
    let nothing = said(&[]);
    assert_eq!(nothing.status.code(), Some(0));
    let told = String::from_utf8_lossy(&nothing.stdout).into_owned();
    assert!(told.contains("duewheel serve") && told.contains("duewheel enqueue"), "{told}");
}

/// The two told different numbers of bytes of one folder without a word, and counted links and problems wrongly.
#[test]
fn backup_and_verify_report_byte_counts() {
    let shell = Shell::with(&[]);
    shell.ok(&["enqueue", "q", "one", "--delay", "1h"]);
    let copied = shell.ok(&["backup", "copy"]);
    let first = copied.lines().next().expect("a line");
    assert!(
        first.ends_with(" bytes without the unused space of journal segments"),
        "no word of links: {first}"
    );
    let verified = shell.ok(&["verify", "copy"]);
    assert!(verified.contains(" bytes with the unused space of journal segments, 1 record"), "{verified}");
    std::fs::remove_file(shell.dir.path().join("copy/MANIFEST")).expect("remove");
    let damaged = shell.fails(&["verify", "copy"], 1);
    assert!(damaged.contains("is damaged: 1 problem\n"), "{damaged}");
}
