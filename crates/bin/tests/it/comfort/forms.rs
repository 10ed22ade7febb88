//! Forms of values that people write, errors of one line, and paths with slashes.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::Server;
use crate::process::{Process, run, serve, text};
use crate::shell::Shell;

#[test]
fn addresses_need_no_host_and_scheme() {
    let dir = TempDir::new().expect("dir");
    let file = dir.path().join("duewheel.toml");
    std::fs::write(&file, "http = ':0'\ndurability = 'memory'\n").expect("file");
    let mut command = serve();
    command.args(["--beanstalk", ":0", "--config"]).arg(&file).current_dir(dir.path());
    let mut server = Process::spawn(command);
    assert!(server.url.starts_with("http://127.0.0.1:"), "{}", server.url);
    assert!(server.beanstalk().starts_with("127.0.0.1:"));
    let port = server.url.rsplit(':').next().expect("port").to_owned();
    let shell = Shell { server, dir };
    for address in [format!("localhost:{port}"), format!(":{port}"), format!("127.0.0.1:{port}/")] {
        shell.ok(&["queues", "--server", &address]);
    }
    let elsewhere = shell.fails(&["queues", "--server", "db1.example:7788"], 2);
    assert!(
        elsewhere.contains("--server db1.example:7788: say http:// or https:// before it"),
        "{elsewhere}"
    );
}

#[test]
fn instants_are_now_or_seconds_since_1970() {
    let shell = Shell::new();
    let due = |at: &str| shell.json(&["enqueue", "q", "b", "--at", at, "--json"])["due_at"].take();
    let seconds = due("4102444800");
    assert_eq!(seconds, "2100-01-01T00:00:00.000Z");
    assert_eq!((due("@4102444800"), due("4102444800000")), (seconds.clone(), seconds));
    // Story: `now` was an instant of this machine, which had passed when the request arrived.
    let id = shell.json(&["enqueue", "q", "b", "--at", "now", "--json"]);
    assert_eq!(shell.json(&["get", id["id"].as_str().expect("id"), "--json"])["state"], "ready");
    shell.ok(&["postpone", id["id"].as_str().expect("id"), "--at", "now"]);
    shell.ok(&["enqueue", "q", "b", "--at", "now", "--past", "refuse"]);
    let told = shell.run(&["enqueue", "q", "b", "--expires-at", "now"]).stderr;
    assert!(!text(&told).contains("must be an instant"), "{}", text(&told));
    for wrong in ["410244480000", "@4102444800000"] {
        let told = shell.fails(&["enqueue", "q", "b", "--at", wrong], 2);
        assert!(told.starts_with(&format!("duewheel: --at {wrong:?}: ")), "{told}");
    }
    // HTTP takes instants by RFC 3339 alone.
    let body = r#"{"body": "b", "due_at": "4102444800"}"#;
    assert_eq!(shell.server.call("POST", "/v1/queues/q/messages", body).0, 400);
}

#[test]
fn errors_are_one_line_with_advice() {
    let shell = Shell::new();
    std::fs::write(shell.dir.path().join("file"), "").expect("file");
    std::fs::create_dir(shell.dir.path().join("folder")).expect("folder");
    std::fs::write(shell.dir.path().join("wrong.toml"), "data = 'd'\ndrain-delay = '5s'\n").expect("file");
    for (args, code, told) in [
        ("serve --data file --http :0 --beanstalk off", 1, "this is a file, or lies in one; name a folder"),
        (
            "serve --config wrong.toml",
            2,
            "wrong.toml, line 2: there is no key `drain-delay` here; did you mean `drain_delay`?",
        ),
        ("serve --config none.toml", 2, "cannot read the configuration none.toml: no such file or directory"),
        ("serve --dta x", 2, "unexpected argument '--dta' found; a similar argument exists: '--data'"),
        ("verify file", 1, "cannot check file: this is a file, or lies in one; name a folder"),
        ("export none/x", 2, "FILE none/x: there is no folder none; make it first"),
        ("import none", 2, "FILE none: there is no such file or folder; is the name right?"),
        ("import folder", 2, "FILE folder: is a directory"),
        ("man none", 1, "DIR none: there is no such file or folder; is the name right?"),
        ("queues --token-file none/x", 2, "--token-file none/x: there is no folder none; make it first"),
        ("queues --ca-cert none", 2, "--ca-cert none: there is no such file or folder; is the name right?"),
        (
            "target put t http://h --secrets none",
            2,
            "--secrets none: there is no such file or folder; is the name right?",
        ),
        (
            "token new --name a --scope admin --tokens none/x",
            1,
            "none/x: there is no folder none; make it first",
        ),
        (
            "enqueue",
            2,
            "the following required arguments were not provided: <QUEUE>; usage: duewheel enqueue ",
        ),
        ("nonsense", 2, "unrecognized subcommand 'nonsense'; usage: duewheel [COMMAND]"),
        (
            "enqueue q b --lease soon",
            2,
            "invalid value 'soon' for '--lease <TIME>': must be a length of time",
        ),
    ] {
        let args: Vec<&str> = args.split(' ').collect();
        let output = run(&mut shell.command(&args));
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        let lines = || stderr.lines().filter(|line| !line.contains(" WARN "));
        assert_eq!(lines().count(), 1, "{args:?}: {stderr}");
        let line = lines().next().expect("line");
        assert!(
            line.starts_with("duewheel: ") && line.contains(told) && !line.contains("os error"),
            "{line}"
        );
    }
    let refused = shell.run_with(&["enqueue", "q", "--lines"], b"a\n\n");
    assert!(text(&refused.stderr).contains("duewheel: line 2: is empty; "), "{}", text(&refused.stderr));
}

#[test]
fn notes_of_nacks_are_found_by_parts() {
    let shell = Shell::new();
    for (body, note) in [("a", "exit status 1: 550 No such user"), ("b", "550 no such domain"), ("c", "")] {
        shell.ok(&["enqueue", "mail", body]);
        let leased = shell.json(&["reserve", "mail", "--wait", "10s", "--json"]);
        let text = |name: &str| leased["messages"][0][name].as_str().expect("text").to_owned();
        shell.ok(&["nack", &text("id"), &text("lease_token"), "--dead", "--note", note]);
    }
    let bodies = |args: &[&str]| -> Vec<String> {
        let listed = shell.json(&[&["list", "mail", "--json"], args].concat());
        let messages = listed["messages"].as_array().expect("messages").iter();
        messages.map(|message| message["body"].as_str().expect("body").to_owned()).collect()
    };
    assert_eq!(bodies(&["--note", "no such user"]), ["a"]);
    assert_eq!(bodies(&["--note", "550", "--reason", "buried"]), ["a", "b"]);
    assert_eq!(bodies(&["--note", ""]), ["c"]);
    // `--dead-note` compares the whole note, as it always did.
    assert_eq!(bodies(&["--dead-note", "550 no such domain", "--dead-reason", "buried"]), ["b"]);
    assert!(bodies(&["--dead-note", "550"]).is_empty());
    shell.fails(&["list", "mail", "--dead-note", "550", "--note", "550"], 2);
    shell.fails(&["redrive", "mail", "--id", "1", "--dead-note", "550"], 2);
    let listed = shell.command(&["list", "mail"]).env("DUEWHEEL_NOTE", "none").output().expect("output");
    assert!(text(&listed.stdout).contains("dead"), "{}", text(&listed.stderr));
    assert!(bodies(&["--reason", "expired"]).is_empty());
    let counted = shell.json(&["dead", "mail", "--note", "SUCH", "--json"]);
    assert_eq!((&counted["counted"], counted["reasons"].as_array().map(Vec::len)), (&json!(2), Some(2)));
    let (status, page) = shell.server.call("GET", "/v1/queues/mail/messages?note=domain&reason=buried", "");
    assert_eq!((status, page["messages"].as_array().map(Vec::len)), (200, Some(1)), "{page}");
    for (query, field) in [
        ("reason=lost", "reason"),
        ("note=x&state=ready", "note"),
        ("reason=buried&dead_reason=buried", "reason"),
    ] {
        let (status, refused) = shell.server.call("GET", &format!("/v1/queues/mail/messages?{query}"), "");
        assert_eq!((status, &refused["field"]), (400, &json!(field)), "{refused}");
    }
    let count = |filter: Value| {
        let asked = json!({"action": "redrive", "filter": filter, "dry_run": true}).to_string();
        shell.server.call("POST", "/v1/queues/mail/bulk", &asked)
    };
    assert_eq!(count(json!({"note": "Such U"})), (200, json!({"matched": 1, "leased": 0})));
    assert_eq!(count(json!({"reason": "buried", "dead_note": "550 no such domain"})).1["matched"], 1);
    assert_eq!(count(json!({"reason": "buried", "dead_reason": "buried"})).1["field"], "filter.reason");
    let wrong = shell.fails(&["bulk", "fire", "mail", "--note", "550", "--yes"], 2);
    assert!(wrong.starts_with("duewheel: bad_request: --note 550: "), "{wrong}");
    let again = shell.ok(&["redrive", "mail", "--note", "550 no such user", "--yes"]);
    assert_eq!(again, "mail  1 message is ready again\n");
    let gone =
        shell.ok(&["bulk", "cancel", "mail", "--reason", "buried", "--note", "550", "--yes", "--wait"]);
    assert!(gone.contains("done      1"), "{gone}");
}

#[test]
fn secrets_are_shown_by_their_end() {
    let shell = Shell::new();
    let put = ["target", "put", "shop", "https://shop.example/hook", "--secrets", "-"];
    let shown = shell.ok_with(&put, b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n");
    assert!(shown.contains("secrets         …LaSw\n"), "{shown}");
    assert_eq!(shell.server.call("GET", "/v1/targets/shop", "").1["secrets"], json!(["…LaSw"]));
}

/// Story: an empty file removed the secrets that the target had.
#[test]
fn empty_secrets_leave_the_target() {
    let shell = Shell::new();
    let put = ["target", "put", "shop", "https://shop.example/hook", "--secrets", "-"];
    shell.ok_with(&put, b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n");
    let refused = shell.run_with(&put, b"\n");
    let told = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{told}");
    assert!(told.contains("--secrets -: has no secret"), "{told}");
    assert_eq!(shell.server.call("GET", "/v1/targets/shop", "").1["secrets"], json!(["…LaSw"]));
}

/// Story: the prompt of a shell stood behind the last brace of an answer, and a queue with a slash was just not there.
#[tokio::test(flavor = "multi_thread")]
async fn answers_end_lines_and_explain_slashes() {
    let server = Server::start().await;
    server.enqueue("shop%2Fmail", r#"{"body": "x", "delay_ms": 0, "key": "a/b"}"#).await;
    for (method, path, body, status) in [
        ("GET", "/v1/queues", "", 200),
        ("GET", "/v1/queues/shop%2Fmail/keys/a%2Fb", "", 200),
        ("GET", "/v1/queues/shop%2Fmail/messages", "", 200),
        ("GET", "/v1/queues/shop%2Fmail/dead", "", 200),
        ("POST", "/v1/queues/shop%2Fmail/reserve", "{}", 200),
        ("POST", "/v1/queues/q/reserve", "{}", 200),
        ("POST", "/v1/queues/q/messages", r#"{"body": "y", "delay_ms": 0}"#, 201),
        ("GET", "/openapi.json", "", 200),
        ("GET", "/healthz", "", 200),
        ("GET", "/livez", "", 200),
        ("GET", "/v1/messages/none", "", 400),
        ("PUT", "/v1/queues", "", 405),
    ] {
        let answer = server.call(method, path, body).await;
        assert_eq!(answer.status, status, "{path}: {}", text(&answer.body));
        assert!(answer.body.ends_with(b"}\n") && !answer.body.ends_with(b"\n\n"), "{path}");
        let length = answer.header("content-length").map(str::to_owned);
        assert_eq!(length, Some(answer.body.len().to_string()), "{path}");
        assert!(answer.json().is_object());
    }
    for (method, path, meant) in [
        ("POST", "/v1/queues/shop/mail/messages", "shop%2Fmail/messages"),
        ("GET", "/v1/queues/shop/mail/messages", "shop%2Fmail/messages"),
        ("DELETE", "/v1/queues/shop/mail/keys/a/b", "shop%2Fmail/keys/a%2Fb"),
    ] {
        let unknown = server.call(method, path, "").await;
        assert_eq!((unknown.status, &unknown.json()["code"]), (404, &json!("not_found")), "{path}");
        let told = unknown.json()["detail"].as_str().expect("detail").to_owned();
        assert!(told.ends_with(&format!("is written %2F: /v1/queues/{meant}")), "{told}");
    }
}
