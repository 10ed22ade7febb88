//! Filtered lists and jobs: over HTTP, by tokens, by the command line, and over kill -9.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Stdio};

use duewheel::Policy;
use duewheel_server::auth::{Guard, Hosts};
use duewheel_server::http::HttpLimits;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::Server;
use crate::process::{Process, serve, wait};
use crate::security::{bearer, new_token};
use crate::shell::Shell;

async fn put(server: &Server, queue: &str, key: &str, delay: &str) -> String {
    let message = json!({"body": key, "key": key, "delay": delay, "headers": {"region": &key[..2]}});
    server.enqueue(queue, &message.to_string()).await
}

/// The keys of a filtered list.
async fn keys(server: &Server, query: &str) -> Vec<String> {
    let page = server.ok("GET", &format!("/v1/queues/orders/messages?{query}"), "").await;
    let key = |message: &Value| message["key"].as_str().expect("key").to_owned();
    page["messages"].as_array().expect("messages").iter().map(key).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn list_filters_by_message_attributes() {
    let server = Server::start().await;
    for (key, delay) in [("eu-1", "1h"), ("eu-2", "2h"), ("us-1", "3h"), ("us-2", "0s")] {
        put(&server, "orders", key, delay).await;
    }
    let due = server.ok("GET", "/v1/queues/orders/keys/eu-2", "").await["due_at"].clone();
    let due = due.as_str().expect("instant");
    assert_eq!(keys(&server, "key_prefix=eu-").await, ["eu-1", "eu-2"]);
    assert_eq!(keys(&server, "header.Region=us").await, ["us-2", "us-1"]);
    assert_eq!(keys(&server, "header.region=us&state=scheduled").await, ["us-1"]);
    assert_eq!(keys(&server, &format!("due_from={due}")).await, ["eu-2", "us-1"]);
    assert_eq!(keys(&server, &format!("due_to={due}&state=scheduled")).await, ["eu-1"]);
    assert_eq!(keys(&server, &format!("due_from={due}&due_to={due}")).await, [] as [&str; 0]);
    for (query, field) in [
        ("due_from=soon", "due_from"),
        ("state=gone", "state"),
        ("header.=x", "header."),
        ("key=a", "key"),
        ("header.a=1&header.a=2", "header.a"),
    ] {
        let refused = server.call("GET", &format!("/v1/queues/orders/messages?{query}"), "").await;
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!(field)), "{query}");
    }
}

/// The server of these tests runs no worker; a real one does.
#[tokio::test(flavor = "multi_thread")]
async fn dry_run_counts_and_job_cancels() {
    let server = Server::start().await;
    for key in ["eu-1", "eu-2", "us-1"] {
        put(&server, "orders", key, "1h").await;
    }
    put(&server, "orders", "eu-3", "0s").await;
    server.reserve("orders", "{}").await;
    let bulk = "/v1/queues/orders/bulk";
    let asked = json!({"action": "cancel", "filter": {"key_prefix": "eu-"}, "dry_run": true});
    let count = server.ok("POST", bulk, &asked.to_string()).await;
    assert_eq!(count, json!({"matched": 2, "leased": 1}));
    assert_eq!(server.ok("GET", "/v1/jobs", "").await, json!({"jobs": []}));
    let begun = server.call("POST", bulk, r#"{"action": "fire", "all": true, "rate": 5}"#).await;
    assert_eq!(begun.status, 202, "{}", begun.json());
    let job = begun.json();
    assert_eq!(
        (&job["state"], &job["rate"], &job["queue"]),
        (&json!("waiting"), &json!(5), &json!("orders"))
    );
    let path = format!("/v1/jobs/{}", job["id"].as_str().expect("id"));
    assert_eq!(server.ok("GET", &path, "").await, job);
    assert_eq!(server.ok("GET", "/v1/jobs", "").await["jobs"], json!([job]));
    let cancelled = server.ok("DELETE", &path, "").await;
    assert_eq!(cancelled["state"], "cancelled");
    assert!(cancelled["ended_at"].is_string());
    assert_eq!(server.ok("DELETE", &path, "").await, cancelled);
    assert_eq!(server.call("GET", "/v1/jobs/none", "").await.json()["code"], "not_found");
    let far = json!({"action": "postpone", "all": true, "delay_ms": u64::MAX});
    let refused = server.call("POST", bulk, &far.to_string()).await;
    assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("delay_ms")));
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_messages_are_selected_by_reason() {
    let server = Server::start().await;
    let dead = "/v1/queues/orders/dead";
    assert_eq!(server.ok("GET", dead, "").await, json!({"reasons": [], "counted": 0, "next": null}));
    let once = json!({"body": "x", "key": "eu-9", "delay": "0s", "max_attempts": 1}).to_string();
    let nacks = [("eu-1", "lost"), ("eu-2", "lost"), ("us-1", "broken <b>")];
    for (key, reason) in nacks {
        put(&server, "orders", key, "0s").await;
        let lease = server.reserve("orders", "{}").await[0].clone();
        let nack = json!({"lease_token": lease["lease_token"], "dead": true, "reason": reason});
        let path = format!("/v1/messages/{}/nack", lease["id"].as_str().expect("id"));
        server.ok("POST", &path, &nack.to_string()).await;
    }
    server.enqueue("orders", &once).await;
    let lease = server.reserve("orders", "{}").await[0].clone();
    let path = format!("/v1/messages/{}/nack", lease["id"].as_str().expect("id"));
    server
        .ok("POST", &path, &json!({"lease_token": lease["lease_token"], "reason": "lost"}).to_string())
        .await;
    put(&server, "orders", "eu-5", "1h").await;
    let one =
        |reason: &str, note: &str, n: u64| json!({"dead_reason": reason, "dead_note": note, "messages": n});
    let reasons = [one("buried", "lost", 2), one("buried", "broken <b>", 1), one("max_attempts", "lost", 1)];
    assert_eq!(server.ok("GET", dead, "").await, json!({"reasons": reasons, "counted": 4, "next": null}));
    assert_eq!(keys(&server, "dead_reason=buried&dead_note=lost").await, ["eu-1", "eu-2"]);
    assert_eq!(keys(&server, "dead_reason=max_attempts").await, ["eu-9"]);
    assert_eq!(keys(&server, "dead_note=broken%20%3Cb%3E&state=dead").await, ["us-1"]);
    for (action, filter, matched) in [
        ("redrive", json!({"dead_reason": "buried"}), 3),
        ("redrive", json!({"dead_note": "lost", "key_prefix": "eu-"}), 3),
        ("cancel", json!({"dead_reason": "max_attempts"}), 1),
    ] {
        let asked = json!({"action": action, "filter": filter, "dry_run": true}).to_string();
        let count = server.ok("POST", "/v1/queues/orders/bulk", &asked).await;
        assert_eq!(count, json!({"matched": matched, "leased": 0}), "{asked}");
    }
    for (query, field) in [
        ("dead_reason=lost", "dead_reason"),
        ("dead_reason=buried&state=ready", "dead_reason"),
        ("dead_note=x&state=done", "dead_note"),
    ] {
        let refused = server.call("GET", &format!("/v1/queues/orders/messages?{query}"), "").await;
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!(field)), "{query}");
    }
    let refused = server.call("GET", &format!("{dead}?after=x"), "").await;
    assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("after")));
    let alive = json!({"action": "fire", "filter": {"dead_reason": "buried"}}).to_string();
    let refused = server.call("POST", "/v1/queues/orders/bulk", &alive).await;
    assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("filter.dead_reason")));
}

/// A token has the jobs of its queues, if it reaches the queue that their messages go to as well.
#[tokio::test(flavor = "multi_thread")]
async fn token_reaches_jobs_of_its_queues() {
    let dir = TempDir::new().expect("dir");
    let file = dir.path().join("tokens.toml");
    let all = new_token(&file, &["--name", "all", "--scope", "admin"]);
    let shop = new_token(&file, &["--name", "shop", "--scope", "admin", "--queue", "shop/"]);
    let guard = std::sync::Arc::new(Guard::of(file).expect("tokens"));
    let server =
        Server::start_guarded(Policy::default(), HttpLimits::default(), guard, Hosts::default()).await;
    let call = async |token: &str, method: &str, path: &str, body: &Value| {
        server.call_by(token, method, path, &body.to_string()).await
    };
    let (mine, theirs) = ("/v1/queues/shop%2Fq/bulk", "/v1/queues/other%2Fq/bulk");
    let fire = json!({"action": "fire", "all": true});
    let away = json!({"action": "redrive", "all": true, "to_queue": "other/q"});
    assert_eq!(call(&shop, "POST", theirs, &fire).await.0, 403);
    assert_eq!(call(&shop, "POST", mine, &away).await.0, 403);
    let mut ids = Vec::new();
    for (token, path, body) in [(&shop, mine, &fire), (&all, theirs, &fire), (&all, mine, &away)] {
        let (status, job) = call(token, "POST", path, body).await;
        assert_eq!(status, 202, "{job}");
        ids.push(job["id"].as_str().expect("id").to_owned());
    }
    for (id, status) in ids.iter().zip([200, 404, 404]) {
        for method in ["GET", "DELETE"] {
            let (answered, job) = call(&shop, method, &format!("/v1/jobs/{id}"), &json!({})).await;
            assert_eq!(answered, status, "{method}: {job}");
        }
        assert_eq!(call(&all, "GET", &format!("/v1/jobs/{id}"), &json!({})).await.0, 200);
    }
    let count = async |token: &str| {
        let (_, list) = call(token, "GET", "/v1/jobs", &json!({})).await;
        list["jobs"].as_array().expect("jobs").len()
    };
    assert_eq!((count(&shop).await, count(&all).await), (1, 3));
}

/// Story: one redrive by ids was refused message by message, while a job of the same token moved them all.
#[tokio::test(flavor = "multi_thread")]
async fn redriving_url_needs_scope_and_target() {
    let dir = TempDir::new().expect("dir");
    let file = dir.path().join("tokens.toml");
    let any = new_token(&file, &["--name", "any", "--scope", "admin,enqueue,push-any"]);
    let plain = new_token(&file, &["--name", "plain", "--scope", "admin"]);
    let guard = std::sync::Arc::new(Guard::of(file).expect("tokens"));
    let server =
        Server::start_guarded(Policy::default(), HttpLimits::default(), guard, Hosts::default()).await;
    server.app.set_sealing(duewheel_delivery::Sealing::Open);
    server.app.start_jobs();
    let call = async |token: &str, method: &str, path: &str, body: Value| {
        let (status, answer) = server.call_by(token, method, path, &body.to_string()).await;
        assert!(status < 300, "{path}: {answer}");
        answer
    };
    call(&any, "PUT", "/v1/targets/shop", json!({"url": "https://shop.example/"})).await;
    call(&any, "POST", "/v1/targets/shop/pause", json!({})).await;
    for queue in ["orders", "us"] {
        call(&any, "PATCH", &format!("/v1/queues/{queue}/config"), json!({"target": "shop"})).await;
    }
    let dead =
        json!({"body": "x", "delay": "0s", "state": "dead", "target_url": "https://customer.example/"});
    let id = call(&any, "POST", "/v1/queues/orders/messages", dead).await["id"].clone();
    for (token, to, moved) in [(&plain, "us", false), (&any, "bare", false), (&any, "us", true)] {
        let asked = json!({"action": "redrive", "filter": {"state": "dead"}, "to_queue": to});
        let job = call(token, "POST", "/v1/queues/orders/bulk", asked).await;
        let job = server.ended(&job, &bearer(token)).await;
        let (done, refused) = if moved { (1, 0) } else { (0, 1) };
        assert_eq!((&job["done"], &job["refused"]), (&json!(done), &json!(refused)), "{to}: {job}");
        if !moved {
            let asked = json!({"ids": [id], "to_queue": to});
            let answer = call(token, "POST", "/v1/queues/orders/redrive", asked).await;
            assert_eq!(answer["redriven"], 0, "{answer}");
        }
    }
}

/// A job whose server is killed again and again moves each message once, and the counts say so.
#[test]
fn kill_9_moves_no_message_twice() {
    const MESSAGES: u64 = 30_000;
    let virtual_clock = ["--virtual-clock", "force"];
    let dir = TempDir::new().expect("dir");
    let mut server = Process::start(dir.path(), &virtual_clock);
    let address = server.url.trim_start_matches("http://").to_owned();
    let due = "2031-05-01T10:00:00.000Z";
    for chunk in 0..MESSAGES / 1_000 {
        let line = |n: u64| {
            format!("{{\"body\": \"x\", \"key\": \"k{}\", \"due_at\": \"{due}\"}}\n", chunk * 1_000 + n)
        };
        let lines: String = (0..1_000).map(line).collect();
        assert!(server.lines("orders", &lines).iter().all(|answer| answer["created"] == true));
    }
    let asked = json!({"action": "postpone", "all": true, "shift": "1d"});
    let (status, job) = server.call("POST", "/v1/queues/orders/bulk", &asked.to_string());
    assert_eq!(status, 202, "{job}");
    let path = format!("/v1/jobs/{}", job["id"].as_str().expect("id"));
    let mut kills = 0;
    // The first kill comes before it has changed anything, others in the middle.
    for at in [0, MESSAGES / 3] {
        server.until(&path, |job| job["done"].as_u64().expect("done") >= at);
        server = server.killed_and_restarted_with(dir.path(), &address, &virtual_clock);
        // The node that has died does not hold the job any more.
        assert_eq!(server.call("POST", "/v1/clock/advance", r#"{"by": "10s"}"#).0, 200);
        kills += 1;
    }
    let job = server.until(&path, |job| job["ended_at"].is_string());
    assert_eq!(
        (&job["matched"], &job["done"], &job["changed"]),
        (&json!(MESSAGES), &json!(MESSAGES), &json!(0))
    );
    let from = "due_from=2031-05-02T10:00:00.000Z&due_to=2031-05-02T10:00:00.001Z";
    let (mut found, mut after) = (0, String::new());
    loop {
        let (_, page) =
            server.call("GET", &format!("/v1/queues/orders/messages?limit=1000&{from}{after}"), "");
        found += page["messages"].as_array().expect("messages").len() as u64;
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(found, MESSAGES, "after {kills} kills");
    assert_eq!(server.call("GET", "/v1/queues/orders", "").1["counts"]["scheduled"], MESSAGES);
}

#[test]
fn bulk_commands_count_change_and_wait() {
    let shell = Shell::new();
    for key in ["order-1", "order-2", "sms-1"] {
        shell.ok(&["enqueue", "orders", "x", "--key", key, "--delay", "1h", "--header", "shop=eu"]);
    }
    let listed =
        shell.ok(&["list", "orders", "--key-prefix", "order-", "--header", "shop=eu", "--due-to", "in 2h"]);
    assert!(
        listed.contains("order-1") && listed.contains("order-2") && !listed.contains("sms-1"),
        "{listed}"
    );
    let counted = shell.ok(&["bulk", "cancel", "orders", "--key-prefix", "order-", "--dry-run"]);
    assert!(counted.contains("would cancel 2 messages"), "{counted}");
    let moved =
        shell.ok(&["bulk", "postpone", "orders", "--all", "--shift", "-30m", "--yes", "--wait", "--json"]);
    let job: Value = serde_json::from_str(&moved).expect("JSON");
    assert_eq!((&job["state"], &job["done"]), (&json!("done"), &json!(3)));
    let gone = shell.ok(&["bulk", "cancel", "orders", "--key-prefix", "order-", "--yes", "--wait"]);
    assert!(gone.contains("done      2"), "{gone}");
    let jobs = shell.ok(&["job", "list"]);
    assert!(jobs.contains("cancel") && jobs.contains("postpone"), "{jobs}");
    assert!(shell.ok(&["job", "get", job["id"].as_str().expect("id")]).contains("matched   3"));
    assert!(!shell.ok(&["list", "orders"]).contains("order-"));
}

#[test]
fn dead_messages_are_redriven_by_reason() {
    let shell = Shell::new();
    for (body, reason) in [("a", "lost"), ("b", "lost"), ("c", "broken")] {
        shell.ok(&["enqueue", "orders", body]);
        let leased = shell.ok(&["reserve", "orders", "--wait", "10s", "--json"]);
        let leased: Value = serde_json::from_str(&leased).expect("JSON");
        let text = |name: &str| leased["messages"][0][name].as_str().expect("text").to_owned();
        shell.ok(&["nack", &text("id"), &text("lease_token"), "--dead", "--reason", reason]);
    }
    let counted = shell.ok(&["dead", "orders"]);
    let lines: Vec<Vec<&str>> =
        counted.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines, [["2", "buried", "lost"], ["1", "buried", "broken"]], "{counted}");
    let json: Value = serde_json::from_str(&shell.ok(&["dead", "orders", "--json"])).expect("JSON");
    assert_eq!((&json["counted"], &json["reasons"][0]["dead_note"]), (&json!(3), &json!("lost")));
    let unasked = shell.fails(&["redrive", "orders", "--note", "lost"], 2);
    assert!(unasked.contains("redrive 2 messages of orders") && unasked.contains("--yes"), "{unasked}");
    let again = shell.ok(&["redrive", "orders", "--reason", "buried", "--note", "lost", "--yes"]);
    assert_eq!(again, "orders  2 messages are ready again\n");
    let listed = shell.ok(&["list", "orders", "--dead-reason", "buried"]);
    assert!(listed.contains("dead") && listed.contains(" c") && !listed.contains("ready"), "{listed}");
    let gone = shell.ok(&["bulk", "cancel", "orders", "--dead-note", "broken", "--yes", "--wait"]);
    assert!(gone.contains("done      1"), "{gone}");
}

/// A queue of so many messages.
fn filled(shell: &Shell, messages: u64) {
    let lines = "x\n".repeat(usize::try_from(messages).expect("a number"));
    shell.ok_with(&["enqueue", "orders", "--lines", "--quiet", "--delay", "1h"], lines.as_bytes());
}

/// Begins a slow job and waits for it; the command and the first line of its standard error.
fn waiting(shell: &Shell, more: &[&str]) -> (Child, BufReader<ChildStderr>, String) {
    let args = ["bulk", "cancel", "orders", "--all", "--yes", "--wait", "--rate", "100"];
    let mut command = shell.command(&[&args, more].concat());
    let mut command = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("spawn");
    let mut said = BufReader::new(command.stderr.take().expect("stderr"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    (command, said, line)
}

/// Story: the wait ended with exit code 5 when the server was restarted, and without the id of the job, which went on.
#[test]
fn wait_outlives_a_restart_of_the_server() {
    let mut shell = Shell::with(&[]);
    filled(&shell, 300);
    let (mut command, mut said, line) = waiting(&shell, &["--json"]);
    let told: Value = serde_json::from_str(&line).expect("JSON");
    let path = format!("/v1/jobs/{}", told["job"].as_str().expect("id"));
    shell.server.until(&path, |job| job["done"].as_u64() > Some(0));
    let address = shell.server.url.replace("http://", "");
    shell.server.signal("-TERM");
    assert!(shell.server.wait().success());
    let mut again = serve();
    again.args(["--http", &address, "--data"]).arg(shell.dir.path().join("data"));
    shell.server = Process::spawn(again);
    let (ended, mut rest) = (wait(&mut command), String::new());
    said.read_to_string(&mut rest).expect("text");
    assert_eq!(ended.code(), Some(0), "{rest}");
    let job: Value = serde_json::from_reader(command.stdout.take().expect("stdout")).expect("JSON");
    assert_eq!((&job["state"], &job["done"]), (&json!("done"), &json!(300)), "{job}");
}

/// Story: these had exit code 0, though a part of the work was not done.
#[test]
fn unfinished_jobs_exit_1() {
    let shell = Shell::new();
    filled(&shell, 2_000);
    let (mut command, mut said, line) = waiting(&shell, &[]);
    let id = line.trim_end().strip_prefix("job ").expect("an id");
    shell.server.until(&format!("/v1/jobs/{id}"), |job| job["done"].as_u64() > Some(0));
    assert!(shell.ok(&["job", "cancel", id]).contains("cancelled"));
    let (ended, mut rest) = (wait(&mut command), String::new());
    said.read_to_string(&mut rest).expect("text");
    assert_eq!(ended.code(), Some(1), "{rest}");
    assert!(rest.contains("the job was cancelled: ") && rest.contains(" of 2000 done"), "{rest}");

    shell.ok(&["enqueue", "mail", "x", "--key", "k"]);
    let leased = shell.json(&["reserve", "mail", "--json"])["messages"][0].take();
    let text = |name: &str| leased[name].as_str().expect("text");
    shell.ok(&["nack", text("id"), text("lease_token"), "--dead"]);
    shell.ok(&["enqueue", "mail", "y", "--key", "k"]);
    let redrive = ["redrive", "mail", "--reason", "buried", "--yes"];
    assert!(shell.fails(&redrive, 1).contains("1 message was refused"));
    let bulk = ["bulk", "redrive", "mail", "--all", "--yes"];
    assert!(shell.fails(&[&bulk[..], &["--wait"]].concat(), 1).contains("1 message was refused"));
    shell.ok(&bulk); // it waits for nothing
}

/// Story: an undo with a wrong digit in the act said `done`.
#[test]
fn restoring_nothing_exits_3() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "orders", "x", "--delay", "1h"]);
    let cancel = ["bulk", "cancel", "orders", "--all", "--keep", "1h", "--yes", "--wait", "--json"];
    let act = shell.json(&cancel)["id"].as_str().expect("id").to_owned();
    let last = if act.ends_with('0') { "1" } else { "0" };
    let wrong = format!("{}{last}", &act[..act.len() - 1]);
    for more in [&["--yes"][..], &["--yes", "--wait"], &["--dry-run"], &[]] {
        let told = shell.fails(&[&["bulk", "restore", "orders", "--act", &wrong], more].concat(), 3);
        assert!(told.contains("no message of orders is kept that this act has removed"), "{told}");
    }
    shell.ok(&["bulk", "restore", "orders", "--act", &act, "--yes", "--wait"]);
    assert_eq!(shell.json(&["list", "orders", "--json"])["messages"].as_array().map(Vec::len), Some(1));
}
