//! Manners of the command line: servers that are not there yet, mistyped names, words of other systems, completions.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::{BINARY, Process};
use crate::security::new_token;
use crate::shell::Shell;

/// An address of this machine on which no server listens.
fn free_address() -> String {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
    socket.local_addr().expect("address").to_string()
}

fn run(args: &[&str]) -> Output {
    Command::new(BINARY).args(args).stdin(Stdio::null()).output().expect("output")
}

fn stderr_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Story: each guide began with a race between `duewheel serve &` and the first command.
#[test]
fn a_command_waits_for_its_server() {
    let dir = TempDir::new().expect("dir");
    let address = free_address();
    let url = format!("http://{address}");
    let mut client = Command::new(BINARY);
    client.args(["enqueue", "q", "x", "--wait", "5 min", "--server", &url]).stdout(Stdio::piped());
    let mut client = client.stderr(Stdio::piped()).spawn().expect("spawn");
    let mut line = String::new();
    let mut said = BufReader::new(client.stderr.take().expect("stderr"));
    said.read_line(&mut line).expect("a line");
    assert_eq!(line, format!("waiting for a server at {url}\n"));
    let mut server = Command::new(BINARY);
    server
        .args(["serve", "--durability", "memory", "--http", &address, "--data"])
        .arg(dir.path().join("data"));
    let server = Process::spawn(server);
    let output = client.wait_with_output().expect("output");
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stdout.starts_with(b"1  enqueued"), "{output:?}");
    let (_, queue) = server.call("GET", "/v1/queues/q", "");
    assert_eq!(queue["counts"]["ready"], 1, "nothing is done twice");
}

#[test]
fn without_a_wait_the_answer_comes_at_once() {
    let url = format!("http://{}", free_address());
    for args in [&["queues", "--wait", "0"][..], &["status"], &["health"], &["top", "--json"]] {
        let output = run(&[args, &["--server", &url]].concat());
        let told = stderr_of(&output);
        assert_eq!((output.status.code(), told.lines().count()), (Some(5), 1), "{args:?}: {told}");
    }
    let wrong = run(&["queues", "--wait", "soon", "--server", &url]);
    assert_eq!(wrong.status.code(), Some(2), "{}", stderr_of(&wrong));
    // Their own --wait means something else, so the variable is for the server.
    let mut command = Command::new(BINARY);
    command.args(["bulk", "cancel", "q", "--all", "--yes", "--server", &url]);
    let output = command.env("DUEWHEEL_WAIT", "0").output().expect("output");
    assert_eq!(output.status.code(), Some(5), "{}", stderr_of(&output));
    let shell = Shell::new();
    let mut reserve = shell.command(&["reserve", "q"]);
    let output = reserve.env("DUEWHEEL_WAIT", "300 days").output().expect("output");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "no message\n", "{}", stderr_of(&output));
    let output = command.env("DUEWHEEL_WAIT", "soon").output().expect("output");
    assert!(output.status.code() == Some(2) && stderr_of(&output).contains("DUEWHEEL_WAIT"), "{output:?}");
}

/// Story: `duewheel pause smss` paused a queue without messages, and the SMS went out.
#[test]
fn a_mistyped_queue_is_not_paused() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "sms", "x"]);
    let acts =
        [&["pause", "smss"][..], &["purge", "smss", "--yes"], &["redrive", "smss"], &["queue", "rm", "smss"]];
    for args in acts {
        let told = shell.fails(args, 3);
        assert!(told.starts_with("duewheel: no queue \"smss\"; did you mean \"sms\"?"), "{args:?}: {told}");
        let told: Value = serde_json::from_str(&shell.fails(&[args, &["--json"]].concat(), 3)).expect("JSON");
        assert_eq!((&told["code"], &told["exit_code"]), (&json!("not_found"), &json!(3)));
    }
    assert!(shell.fails(&["pause", "mail"], 3).starts_with("duewheel: no queue \"mail\"; --create "));
    assert_eq!(shell.json(&["queues", "--json"])["queues"].as_array().map(Vec::len), Some(1));

    assert_eq!(shell.ok(&["pause", "mail", "--create"]), "mail  paused until it is resumed\n");
    shell.ok(&["pause", "mail", "--for", "1h"]); // it exists now
    for args in [
        &["resume", "smss"][..],
        &["bulk", "cancel", "smss", "--all", "--yes"],
        &["dead", "smss"],
        &["queue", "smss"],
        &["list", "smss"],
        &["work", "smss", "--until-empty", "--", "true"],
        &["config", "smss"],
        &["queue", "set", "smss", "--lease", "1m"],
    ] {
        let output = shell.run(args);
        let told = stderr_of(&output);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {told}");
        assert!(told.starts_with("no queue \"smss\"; did you mean \"sms\"?"), "{args:?}: {told}");
    }
    assert_eq!(stderr_of(&shell.run(&["queue", "smss"])), "", "its settings made it");
    // Story: a queue without messages could not be paused.
    shell.ok(&["work", "sms", "--until-empty", "--", "true"]);
    let (purge, remove) = (["purge", "sms", "--yes"], ["queue", "rm", "sms", "--yes"]);
    for args in [&purge[..], &["redrive", "sms"], &["pause", "sms"], &remove] {
        shell.ok(args);
    }
    let quiet = shell.run(&["queue", "set", "later", "--lease", "1m", "--create"]);
    assert_eq!((quiet.status.code(), stderr_of(&quiet)), (Some(0), String::new()));
}

#[test]
fn consumers_say_that_they_wait_for_their_queue() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "orders", "x", "--delay", "1h"]);
    let mut reserve = shell.command(&["reserve", "order", "--wait", "5 min"]);
    let mut reserve = reserve.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("spawn");
    let mut line = String::new();
    BufReader::new(reserve.stderr.take().expect("stderr")).read_line(&mut line).expect("a line");
    assert_eq!(line, "no queue \"order\"; did you mean \"orders\"? Waiting for it\n");
    shell.ok(&["enqueue", "order", "came"]);
    let output = reserve.wait_with_output().expect("output");
    assert!(String::from_utf8_lossy(&output.stdout).contains("came"), "{output:?}");
}

/// Tokens for some queues may not look at all: their commands go on without.
#[test]
fn commands_go_on_where_looking_is_forbidden() {
    let dir = TempDir::new().expect("dir");
    let tokens = dir.path().join("tokens.toml");
    let token = new_token(&tokens, &["--name", "ops", "--scope", "admin,consume", "--queue", "shop/"]);
    let shell = Shell::with(&["--durability", "memory", "--tokens", tokens.to_str().expect("path")]);
    let ok = |args: &[&str]| shell.ok(&[args, &["--token", &token]].concat());
    assert_eq!(ok(&["pause", "shop/sms"]), "shop/sms  paused until it is resumed\n");
    assert_eq!(ok(&["reserve", "shop/other"]), "no message\n");
}

#[test]
fn other_words_for_commands_are_known() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "x", "--delay", "1h", "--key", "k"]);
    assert_eq!(shell.json(&["ls", "--json"]), shell.json(&["queues", "--json"]));
    assert_eq!(shell.json(&["ls", "q", "--json"])["messages"][0]["key"], "k");
    shell.fails(&["list", "--state", "dead"], 2);
    assert_eq!(shell.json(&["stats", "--json"])["version"], shell.json(&["status", "--json"])["version"]);
    assert_eq!(shell.ok(&["rm", "q", "--key", "k"]), "1  cancelled\n");
    shell.ok(&["enqueue", "q", "x"]);
    shell.ok(&["consume", "q", "--until-empty", "--", "true"]);
    let set = shell.json(&["queue", "set", "q", "--create", "--lease", "1m", "--json"]);
    assert_eq!(set, shell.json(&["config", "q", "--json"]));

    for (args, hint) in [
        (&["enque", "q"][..], "'enqueue'"),
        (&["publish", "q"], "'duewheel enqueue'"),
        (&["send", "q"], "'duewheel enqueue'"),
        (&["push", "q"], "'duewheel enqueue'"),
        (&["delete", "1"], "'duewheel cancel'"),
        (&["kick", "q"], "'duewheel redrive'"),
        (&["schedules"], "'duewheel schedule list'"),
        (&["enqueue", "q", "x", "--after", "5s"], "'--delay'"),
        (&["enqueue", "q", "x", "--dely", "5s"], "'--delay'"),
        (&["help", "subscribe"], "'duewheel work'"),
    ] {
        let told = shell.fails(args, 2);
        assert!(told.contains(hint), "{args:?}: {told}");
    }
    let help = String::from_utf8(run(&["help", "enqueue"]).stdout).expect("text");
    assert!(help.contains("Examples:\n  duewheel enqueue orders "), "{help}");
}

/// What the script of a shell asks for at a Tab behind these words; the last one is not finished.
fn completed(words: &[&str], server: &str) -> Vec<String> {
    let mut command = Command::new(BINARY);
    command.arg("--").arg("duewheel").args(words).env("DUEWHEEL_COMPLETE", "bash");
    command.env("DUEWHEEL_SERVER", server).env("_CLAP_COMPLETE_INDEX", words.len().to_string());
    let output = command.env("_CLAP_IFS", "\n").output().expect("output");
    assert_eq!((output.status.code(), stderr_of(&output)), (Some(0), String::new()), "{words:?}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn names_of_the_server_complete() {
    let shell = Shell::new();
    for queue in ["orders", "orders/close", "orders$(id)", "sms"] {
        shell.ok(&["enqueue", queue, "x"]);
    }
    shell.ok(&["target", "put", "shop", "https://shop.example/"]);
    shell.ok(&["schedule", "put", "report", "--queue", "sms", "--every", "1h"]);
    let url = &shell.server.url;
    assert_eq!(completed(&["pause", "ord"], url), ["orders", "orders/close"]);
    assert_eq!(completed(&["work", "sms", "or"], url), ["orders", "orders/close"]);
    assert_eq!(completed(&["target", "test", "s"], url), ["shop"]);
    assert_eq!(completed(&["schedule", "rm", ""], url).first().map(String::as_str), Some("report"));
    assert_eq!(completed(&["queue", "set", "sms", "--target", ""], url), ["shop"]);
    assert!(completed(&["enq"], url).contains(&"enqueue".to_owned()));
    let nobody = format!("http://{}", free_address());
    assert_eq!(completed(&["pause", "ord"], &nobody), Vec::<String>::new());

    // The whole way, where there is bash: the script, and what it finds.
    let bin = std::path::Path::new(BINARY).parent().expect("folder");
    let script = r#"eval "$(duewheel completions bash)"; COMP_WORDS=(duewheel pause sm); COMP_CWORD=2
        _clap_complete_duewheel duewheel sm pause; echo "${COMPREPLY[@]}""#;
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let mut bash = Command::new("bash");
    let bash = bash.args(["-c", script]).env("PATH", path).env("DUEWHEEL_SERVER", url).output();
    if let Ok(output) = bash {
        assert_eq!(String::from_utf8_lossy(&output.stdout), "sms\n", "{}", stderr_of(&output));
    }
}
