//! The client commands that operate queues, settle leases, and describe themselves.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::PATIENCE;
use crate::process::{BINARY, Process};
use crate::shell::Shell;

#[test]
fn reserve_ack_nack_extend() {
    let shell = Shell::new();
    for body in ["one", "two", "three"] {
        shell.ok(&["enqueue", "q", body, "--quiet"]);
    }
    let reserved = shell.json(&["reserve", "q", "--max", "3", "--lease", "10 min", "--json"]);
    let lease = |n: usize| {
        let message = &reserved["messages"][n];
        (
            message["id"].as_str().expect("id").to_owned(),
            message["lease_token"].as_str().expect("token").to_owned(),
        )
    };
    let (id, token) = lease(0);
    let extended = shell.ok(&["extend", &id, &token, "--lease", "1h"]);
    assert!(extended.starts_with(&format!("{id}  leased until in 1 h (")), "{extended}");
    assert_eq!(shell.ok(&["ack", &id, &token]), format!("{id}  acked\n"));
    assert_eq!(shell.ok(&["ack", &id, &token]), format!("{id}  was acked already\n"));
    let (id, token) = lease(1);
    let again = shell.ok(&["nack", &id, &token, "--delay", "2 hours", "--reason", "later", "--not-yet"]);
    assert!(again.starts_with(&format!("{id}  again, due in 2 h (")), "{again}");
    let seen = shell.json(&["get", &id, "--json"]);
    assert_eq!((&seen["forgiven"], &seen["history"][0]["note"]), (&json!(1), &json!("later")));
    let lost = shell.fails(&["ack", &id, &token], 4);
    assert!(lost.contains("lease_lost"), "{lost}");
    let wrong = shell.fails(&["ack", &id, "1-1"], 2);
    assert!(wrong.contains("TOKEN \"1-1\": "), "{wrong}");
    let (id, token) = lease(2);
    assert_eq!(shell.ok(&["nack", &id, &token, "--dead"]), format!("{id}  dead: buried\n"));
    assert_eq!(shell.ok(&["reserve", "q"]), "no message\n");
    shell.ok(&["enqueue", "q", "four"]);
    let table = shell.ok(&["reserve", "q", "--wait", "10s"]);
    assert!(table.starts_with("ID") && table.contains("four"), "{table}");
}

#[test]
fn queues_are_configured_paused_purged_redriven() {
    let shell = Shell::new();
    let config = shell.ok(&["config", "q", "--lease", "1 min", "--backoff", "2s..1h", "--max-attempts", "1"]);
    assert!(
        config.contains("--lease           1m\n") && config.contains("--backoff         2s..1h\n"),
        "{config}"
    );
    // What is not named stays.
    let config = shell.json(&["config", "q", "--order", "arrival", "--json"]);
    assert_eq!(
        (&config["lease_ms"], &config["max_attempts"], &config["order"]),
        (&json!(60_000), &json!(1), &json!("arrival"))
    );
    let reset = shell.json(&["config", "q", "--reset", "--priority", "7", "--json"]);
    // What is not set is null, and the server's default counts.
    assert_eq!((&reset["lease_ms"], &reset["priority"]), (&json!(null), &json!(7)));
    let wrong = shell.fails(&["config", "q", "--lease", "0s"], 2);
    assert!(wrong.contains("--lease 0s: "), "{wrong}");

    shell.ok(&["enqueue", "q", "a", "--delay", "2h"]);
    shell.ok(&["enqueue", "q", "b"]);
    assert_eq!(shell.ok(&["pause", "q", "--for", "90"]), "q  paused for 1m30s\n");
    assert_eq!(shell.ok(&["reserve", "q"]), "no message\n");
    let shown = shell.ok(&["queue", "q"]);
    assert!(
        shown.contains("scheduled         1\n") && shown.contains("paused            yes, for "),
        "{shown}"
    );
    assert_eq!(shell.ok(&["resume", "q"]), "q  resumed\n");
    let lease = shell.json(&["reserve", "q", "--json"])["messages"][0].take();
    let (id, token) = (lease["id"].as_str().expect("id"), lease["lease_token"].as_str().expect("token"));
    shell.ok(&["nack", id, token, "--dead"]);
    assert_eq!(shell.ok(&["redrive", "q", "--max", "5"]), "q  1 message is ready again\n");
    let not_dead = shell.fails(&["redrive", "q", "--id", id], 4);
    assert!(not_dead.contains("not_dead"), "{not_dead}");

    let drawn = shell.ok(&["histogram", "q", "--buckets", "4"]);
    // The histogram begins now, and the message that is ready may have been due a moment before.
    let sums = ["2 messages; 0 due before, 0 after", "1 message; 1 due before, 0 after"];
    assert!(drawn.contains('█') && sums.iter().any(|sum| drawn.contains(sum)), "{drawn}");
    let all = shell.json(&["histogram", "--from", "in 1 hour", "--to", "in 3 hours", "--json"]);
    let buckets = all["buckets"].as_array().expect("buckets");
    assert!((2..=24).contains(&buckets.len()) && buckets.iter().any(|bucket| bucket["count"] == 1), "{all}");
    let refused = shell.fails(&["histogram", "q", "--to", "yesterday"], 2);
    assert!(refused.contains("--to \"yesterday\""), "{refused}");

    let asked = shell.fails(&["purge", "q"], 2);
    assert!(asked.contains("remove 2 messages of q") && asked.contains("--yes"), "{asked}");
    assert_eq!(shell.ok(&["purge", "q", "--yes"]), "q  2 messages removed\n");
}

#[test]
fn health_and_quotas_commands_print_status() {
    let shell = Shell::new();
    let health = shell.ok(&["health"]);
    assert!(health.contains("status                ok\n"), "{health}");
    assert_eq!(shell.json(&["health", "--json"])["status"], "ok");
    assert_eq!(shell.ok(&["quotas"]), "PREFIX  RESOURCE  LIMIT  USED  REFUSED\n");
    assert!(shell.fails(&["cluster", "show"], 3).contains("not_found"));
}

#[test]
fn quotas_command_prints_row_per_limit() {
    let folder = TempDir::new().expect("folder");
    let config = folder.path().join("duewheel.toml");
    let quotas = "[[quota]]\nprefix = 'acme.'\nmessages = 2\nleases = 7\n\n\
                  [[quota]]\nprefix = 'b'\nbytes = 1000000\nenqueues_per_second = 50\n";
    std::fs::write(&config, quotas).expect("write");
    let shell = Shell::with(&["--durability", "memory", "--config", config.to_str().expect("path")]);
    let rows = || -> Vec<Vec<String>> {
        let shown = shell.ok(&["quotas"]);
        // Columns are two spaces apart or more; the name of a resource may have single ones.
        let cells = |line: &str| {
            line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
        };
        shown.lines().map(cells).collect()
    };
    let expected = |messages: [&'static str; 2]| {
        let [used, refused] = messages;
        vec![
            vec!["PREFIX", "RESOURCE", "LIMIT", "USED", "REFUSED"],
            vec!["acme.", "messages", "2", used, refused],
            vec!["acme.", "leases", "7", "0", "0"],
            vec!["b", "bytes", "1000000", "0", "0"],
            vec!["b", "enqueues per second", "50", "0", "0"],
        ]
    };
    assert_eq!(rows(), expected(["0", "0"]));
    for body in ["one", "two"] {
        shell.ok(&["enqueue", "acme.q", body]);
    }
    assert!(!shell.run(&["enqueue", "acme.q", "three"]).status.success(), "above the quota");
    assert_eq!(rows(), expected(["2", "1"]));
    let answer = shell.json(&["quotas", "--json"]);
    assert_eq!(answer["quotas"][0]["messages"], json!({"limit": 2, "used": 2, "refused": 1}));
}

#[test]
fn tokens_are_listed_and_revoked() {
    let folder = tempfile::TempDir::new().expect("folder");
    let tokens = folder.path().join("tokens.toml");
    let run = |args: &[&str]| {
        let output =
            Command::new(BINARY).args(args).env("DUEWHEEL_TOKENS", &tokens).output().expect("output");
        (output.status.code(), String::from_utf8(output.stdout).expect("text"))
    };
    let token = |name: &str, scope: &str| {
        let (code, token) = run(&["token", "new", "--name", name, "--scope", scope]);
        assert_eq!(code, Some(0));
        token.trim().to_owned()
    };
    std::fs::write(&tokens, "# ours, by hand\n").expect("write");
    std::fs::set_permissions(&tokens, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("mode");
    let admin = token("ops", "admin,metrics");
    token("worker", "consume");
    let shell = Shell::with(&["--durability", "memory", "--tokens", tokens.to_str().expect("path")]);
    let listed = shell.ok(&["token", "list", "--token", &admin]);
    let rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1], ["ops", "admin,metrics", "all", "-"]);
    assert_eq!(rows[2][..2], ["worker", "consume"]);
    assert!(!shell.fails(&["token", "list"], 6).is_empty(), "without a token");
    // As a command leaves it that was killed.
    std::fs::write(folder.path().join("tokens.toml.new"), "").expect("write");
    assert_eq!(run(&["token", "revoke", "worker"]).0, Some(0));
    assert_eq!(run(&["token", "revoke", "worker"]).0, Some(3));
    let text = std::fs::read_to_string(&tokens).expect("read");
    assert!(
        text.starts_with("# ours, by hand\n") && text.contains("ops") && !text.contains("worker"),
        "{text}"
    );
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&tokens).expect("file").permissions());
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(folder.path()).expect("folder").count(), 1, "nothing is left beside it");
}

#[test]
fn cli_times_use_local_zone() {
    let shell = Shell::new();
    let run = |args: &[&str]| {
        let output = shell.command(args).env("TZ", "Asia/Kolkata").output().expect("output");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (text(output.stdout), text(output.stderr))
    };
    let (answer, note) = run(&["enqueue", "q", "a", "--at", "2099-01-31 9:00", "--key", "k"]);
    assert!(answer.contains("(2099-01-31 09:00 IST)"), "{answer}");
    assert_eq!(note, "--at \"2099-01-31 9:00\": taken as 2099-01-31 09:00:00 +05:30 of Asia/Kolkata\n");
    assert_eq!(shell.json(&["get", "q", "--key", "k", "--json"])["due_at"], "2099-01-31T03:30:00.000Z");
    let (answer, note) = run(&["enqueue", "q", "b", "--delay", "90"]);
    assert!(answer.contains("due in 1 min 30 s ("), "{answer}");
    assert_eq!(note, "--delay \"90\": 90 is taken as 90 seconds\n");
    let (answer, note) = run(&["postpone", "q", "--key", "k", "--delay", "in 2 days"]);
    assert!(answer.contains("due in 2 days (") && note.is_empty(), "{answer}{note}");
    let asks = shell.fails(&["enqueue", "q", "c", "--at", "9:00"], 2);
    assert!(asks.contains("which day"), "{asks}");
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn work_runs_jobs_concurrently_until_empty() {
    let shell = Shell::new();
    for queue in ["a", "b", "a", "b"] {
        shell.ok(&["enqueue", queue, "x"]);
    }
    shell.ok(&["enqueue", "a", "later", "--delay", "1h"]);
    // Each waits until all four run.
    let script = "touch run.$DUEWHEEL_ID; while [ $(ls run.* | wc -l) -lt 4 ]; do sleep 0.01; done";
    shell.ok(&["work", "a", "b", "--jobs", "4", "--until-empty", "--", "sh", "-c", script]);
    let queues = shell.json(&["queues", "--json"]);
    let counts: Vec<Value> = queues["queues"]
        .as_array()
        .expect("queues")
        .iter()
        .map(|queue| queue["counts"]["ready"].clone())
        .collect();
    assert!(counts.iter().all(|ready| ready == 0), "{queues}");
    assert_eq!(shell.json(&["queue", "a", "--json"])["counts"]["scheduled"], 1);
    // Nothing is there: it ends at once, and runs nothing.
    shell.ok(&["work", "a", "b", "--until-empty", "--", "false"]);
}

#[test]
fn work_honours_exit_75_and_timeout() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "x", "--backoff", "1h..1h"]);
    shell.ok(&["work", "q", "--count", "1", "--", "sh", "-c", "exit 75"]);
    let seen = shell.json(&["get", "1", "--json"]);
    assert_eq!((&seen["forgiven"], &seen["attempt"]), (&json!(1), &json!(1)));

    shell.ok(&["fire", "1"]);
    // The child of the shell would go on for an hour.
    let script = "sleep 3600 & echo $! > pid; wait";
    shell.ok(&["work", "q", "--count", "1", "--timeout", "3s", "--", "sh", "-c", script]);
    let seen = shell.json(&["get", "1", "--json"]);
    assert_eq!(seen["history"][1]["note"], json!("ran longer than 3s"));
    let pid = std::fs::read_to_string(shell.dir.path().join("pid")).expect("pid");
    let is_running = || {
        // A zombie without a parent that waits for it has ended as well.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
    };
    wait_for("the child of the command ends", || !is_running());
}

#[test]
fn second_signal_kills_and_nacks() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "x", "--backoff", "1h..1h"]);
    let args = ["work", "q", "--", "sh", "-c", "touch begun; sleep 3600"];
    let mut worker = shell.command(&args).stderr(Stdio::piped()).spawn().expect("spawn");
    wait_for("it begins", || shell.dir.path().join("begun").exists());
    let id = worker.id().to_string();
    let signal = || assert!(Command::new("kill").args(["-INT", &id]).status().expect("kill").success());
    signal();
    let mut line = String::new();
    let mut said = std::io::BufReader::new(worker.stderr.take().expect("stderr"));
    std::io::BufRead::read_line(&mut said, &mut line).expect("a line");
    assert!(line.starts_with("finishing 1 message; once more"), "{line}");
    signal();
    assert_eq!(worker.wait().expect("wait").code(), Some(1));
    let seen = shell.json(&["get", "1", "--json"]);
    assert_eq!(
        (&seen["state"], &seen["history"][0]["note"]),
        (&json!("scheduled"), &json!("the worker was stopped"))
    );
}

#[test]
fn completions_and_man_pages_list_commands() {
    let run = |args: &[&str]| {
        let output = Command::new(BINARY).args(args).output().expect("output");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let help = run(&["--help"]);
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| *line != "Start:")
        .take_while(|line| *line != "Options:")
        .filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(commands.len() > 25, "{commands:?}");
    let folder = tempfile::TempDir::new().expect("folder");
    run(&["man", folder.path().to_str().expect("path")]);
    for shell in ["bash", "zsh", "fish"] {
        assert!(run(&["completions", shell]).contains("DUEWHEEL_COMPLETE"), "{shell}");
        for command in &commands {
            assert!(folder.path().join(format!("duewheel-{command}.1")).exists(), "{command}");
        }
    }
}

/// A test of a timeout of 48 hours, as it is written in any language.
#[test]
fn virtual_clock_advance_delivers_due_message() {
    let shell = Shell::on_virtual_clock();
    shell.ok(&["enqueue", "orders", "close order 42", "--delay", "48h", "--key", "order-42"]);
    shell.ok(&["clock", "advance", "47h59m"]);
    assert_eq!(shell.ok(&["reserve", "orders"]), "no message\n");
    let (status, answer) = shell.server.call("POST", "/v1/clock/advance", r#"{"by": "1m"}"#);
    assert_eq!(status, 200, "{answer}");
    let reserved = shell.json(&["reserve", "orders", "--json"]);
    let message = &reserved["messages"][0];
    assert_eq!((&message["body"], &message["lateness_ms"]), (&json!("close order 42"), &json!(0)));
    assert_eq!(message["due_at"], answer["now"]);
    // Time stands: the lease does not run out by itself.
    shell.ok(&["clock", "advance", "29s"]);
    assert_eq!(shell.ok(&["reserve", "orders"]), "no message\n");
    shell.ok(&["clock", "advance", "10 min"]);
    assert_eq!(shell.json(&["reserve", "orders", "--json"])["messages"][0]["attempt"], 2);

    for body in ["{}", r#"{"by": "1h", "by_ms": 1}"#, r#"{"by": "-1h"}"#] {
        let (status, answer) = shell.server.call("POST", "/v1/clock/advance", body);
        assert_eq!((status, &answer["field"]), (400, &json!("by")), "{body}: {answer}");
    }
    let ordinary = Shell::new();
    assert!(ordinary.fails(&["clock", "advance", "1h"], 3).contains("--virtual-clock"));
    let told = shell.run(&["clock", "advance", "90"]);
    let note = String::from_utf8_lossy(&told.stderr).into_owned();
    assert_eq!(note, "TIME \"90\": 90 is taken as 90 seconds\n");
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let (here, exact) = told.split_once(" for the server (").expect("both");
    assert!(here.starts_with("it is 20") && here.contains(' '), "{told}");
    assert!(exact.ends_with("Z)\n"), "{told}");
    let answer = shell.json(&["clock", "advance", "90", "--json"]);
    assert_eq!(answer["notes"], json!(["TIME \"90\": 90 is taken as 90 seconds"]));
}

/// Story: an advance passed over all occurrences but one.
#[test]
fn clock_advance_enters_each_occurrence() {
    let shell = Shell::on_virtual_clock();
    let schedule = r#"{"queue": "reports", "every": "1h"}"#;
    assert_eq!(shell.server.call("PUT", "/v1/schedules/hourly", schedule).0, 200);
    shell.ok(&["clock", "advance", "48h"]);
    let (_, queue) = shell.server.call("GET", "/v1/queues/reports", "");
    assert_eq!(
        (&queue["counts"]["ready"], &queue["counts"]["scheduled"]),
        (&json!(48), &json!(1)),
        "{queue}"
    );
}

/// Story: a folder that was named was left alone in silence, and what was thought to be kept was gone.
#[test]
fn virtual_clock_refused_with_durable_store() {
    let folder = "--data: is not used with --virtual-clock";
    let kept = "--virtual-clock: would deliver messages that are kept before their time";
    for (args, variable, says) in [
        (&["--data", "d"][..], None, folder),
        (&[], Some("d"), folder),
        (&["--durability", "fsync"], None, kept),
        (&["--store", "redis://127.0.0.1:1"], None, kept),
        (&["--store", "postgres://duewheel@127.0.0.1:1/duewheel"], None, kept),
    ] {
        let dir = TempDir::new().expect("dir");
        let mut command = Command::new(BINARY);
        command
            .args(["serve", "--virtual-clock", "--http", "127.0.0.1:0"])
            .args(args)
            .current_dir(dir.path());
        if let Some(folder) = variable {
            command.env("DUEWHEEL_DATA", folder);
        }
        let refused = command.output().expect("output");
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{told}");
        assert!(told.contains(says), "{args:?}: {told}");
        assert_eq!(std::fs::read_dir(dir.path()).expect("folder").count(), 0, "nothing was made");
    }
}

/// `force` is for a test that ends a server and looks what is left: the folder keeps what was accepted, and time stands.
#[test]
fn forced_virtual_clock_opens_data_folder() {
    let dir = TempDir::new().expect("dir");
    let start = || Process::start(&dir.path().join("data"), &["--virtual-clock", "force"]);
    let process = start();
    let put = r#"{"body": "close order 42", "delay": "48h", "key": "order-42"}"#;
    assert_eq!(process.call("POST", "/v1/queues/orders/messages", put).0, 201);
    process.kill();

    let process = start();
    let reserved = || process.call("POST", "/v1/queues/orders/reserve", "").1["messages"].clone();
    assert_eq!(process.call("POST", "/v1/clock/advance", r#"{"by": "46h"}"#).0, 200);
    assert_eq!(reserved(), json!([]));
    // The clock of this process began later than that of the other one, if anything.
    assert_eq!(process.call("POST", "/v1/clock/advance", r#"{"by": "2h"}"#).0, 200);
    let granted = reserved();
    assert_eq!((&granted[0]["body"], &granted[0]["key"]), (&json!("close order 42"), &json!("order-42")));
    process.kill();
}

/// Story: the result was kept as a text, whatever it was, and `get` did not show it.
#[test]
fn ack_takes_its_result_as_json() {
    let shell = Shell::new();
    shell.ok(&["config", "q", "--keep-done", "1h"]);
    shell.ok(&["enqueue", "q", "x"]);
    let leased = shell.json(&["reserve", "q", "--json"])["messages"][0].take();
    let text = |name: &str| leased[name].as_str().expect("text");
    let ack = |result: &'static str| ["ack", text("id"), text("lease_token"), "--result", result];
    let refused = shell.fails(&ack("not json"), 2);
    assert!(refused.contains("must be JSON"), "{refused}");
    let result = r#"{"charge":90071992547409931234567,"ratio":1.10}"#;
    assert!(shell.ok(&ack(result)).ends_with("  acked\n"));
    let kept = shell.server.text(&format!("/v1/messages/{}", text("id")));
    assert!(kept.contains(&format!(r#""result":{result}"#)), "{kept}");
    assert!(shell.ok(&["get", text("id")]).contains("result       {\"charge\":"));
}

/// Story: schedules, targets and bridges were an object a line, and none of them was no output at all.
#[test]
fn lists_are_one_json_document() {
    let shell = Shell::new();
    let list = |of: &str| shell.json(&[of, "list", "--json"])[format!("{of}s")].as_array().map(Vec::len);
    for of in ["schedule", "target", "bridge", "job"] {
        assert_eq!(list(of), Some(0), "{of}");
    }
    for name in ["a", "b"] {
        shell.ok(&["schedule", "put", name, "--queue", "q", "--every", "1h"]);
        shell.ok(&["target", "put", name, "https://shop.example/"]);
    }
    assert_eq!((list("schedule"), list("target")), (Some(2), Some(2)));
}
