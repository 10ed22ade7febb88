//! The command line as a client that has a token and speaks https.

use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use super::tls::Authority;
use super::{new_token, write_private};
use crate::process::{BINARY, Process, run, serve, text};

struct Setup {
    dir: TempDir,
    server: Process,
    token: String,
}

fn start(tls: bool) -> Setup {
    let dir = TempDir::new().expect("dir");
    let authority = Authority::new();
    let (cert, key) = authority.write(dir.path());
    std::fs::write(dir.path().join("ca.pem"), authority.pem()).expect("ca");
    let token = new_token(&dir.path().join("tokens.toml"), &["--name", "n", "--scope", "enqueue,cancel"]);
    write_private(&dir.path().join("token"), &format!("{token}\n"));
    let mut command = serve();
    command.current_dir(dir.path()).args([
        "--http",
        "127.0.0.1:0",
        "--durability",
        "memory",
        "--tokens",
        "tokens.toml",
    ]);
    if tls {
        command.arg("--tls-cert").arg(cert).arg("--tls-key").arg(key);
    }
    Setup { server: Process::spawn(command), dir, token }
}

impl Setup {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.args(args).env("DUEWHEEL_SERVER", &self.server.url).current_dir(self.dir.path());
        command
    }

    fn run(&self, command: &mut Command) -> Output {
        let output = run(command);
        let said = text(&output.stderr) + &text(&output.stdout);
        assert!(!said.contains(&self.token), "the token is shown: {said}");
        assert!(!said.contains("panicked"), "{said}");
        output
    }
}

#[test]
fn token_from_option_variable_or_file() {
    let setup = start(false);
    let enqueue = ["enqueue", "q", "a", "--delay", "1h"];
    let without = setup.run(&mut setup.command(&enqueue));
    assert_eq!(without.status.code(), Some(6));
    assert!(
        text(&without.stderr).contains("unauthorized: this server asks for a token"),
        "{}",
        text(&without.stderr)
    );
    for (args, variable) in [
        (vec!["--token", setup.token.as_str()], None),
        (vec![], Some(("DUEWHEEL_TOKEN", setup.token.as_str()))),
        (vec!["--token-file", "token"], None),
        (vec![], Some(("DUEWHEEL_TOKEN_FILE", "token"))),
    ] {
        let mut command = setup.command(&[&enqueue[..], &args].concat());
        command.envs(variable);
        let output = setup.run(&mut command);
        assert!(output.status.success(), "{variable:?}: {}", text(&output.stderr));
    }
    assert!(setup.run(&mut setup.command(&["cancel", "1", "--token-file", "token"])).status.success());
    let refused = setup.run(&mut setup.command(&["queues", "--token-file", "token"]));
    assert_eq!(refused.status.code(), Some(6));
    assert!(
        text(&refused.stderr).contains("forbidden: this token does not have the scope metrics"),
        "{}",
        text(&refused.stderr)
    );

    for (args, says) in [
        (vec!["--token", "dw_short"], "--token: this is not a token"),
        (vec!["--token-file", "none"], "--token-file none: "),
        (vec!["--token-file", "ca.pem"], "--token-file ca.pem: this is not a token"),
        (vec!["--ca-cert", "none"], "--ca-cert none: "),
        (vec!["--ca-cert", "token"], "--ca-cert token: there is no certificate"),
    ] {
        let output = setup.run(&mut setup.command(&[&enqueue[..], &args].concat()));
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(says) && !stderr.contains("dw_short"), "{args:?}: {stderr}");
    }
    let help = setup.run(setup.command(&["enqueue", "--help"]).env("DUEWHEEL_TOKEN", &setup.token));
    assert!(text(&help.stdout).contains("DUEWHEEL_TOKEN"));
}

#[test]
fn https_client_accepts_private_authority() {
    let setup = start(true);
    assert!(setup.server.url.starts_with("https://127.0.0.1:"), "{}", setup.server.url);
    let enqueue = ["enqueue", "q", "a", "--token-file", "token"];
    let unknown = setup.run(&mut setup.command(&enqueue));
    assert_eq!(unknown.status.code(), Some(5), "nobody knows this authority");
    assert!(text(&unknown.stderr).contains("certificate"), "{}", text(&unknown.stderr));
    let output = setup.run(&mut setup.command(&[&enqueue[..], &["--ca-cert", "ca.pem"]].concat()));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let by_name = setup.server.url.replace("127.0.0.1", "localhost");
    let output = setup
        .run(&mut setup.command(&[&enqueue[..], &["--ca-cert", "ca.pem", "--server", &by_name]].concat()));
    assert!(output.status.success(), "{}", text(&output.stderr));
    // The right authority, and another name than the certificate's.
    let other = setup.server.url.replace("127.0.0.1", "127.0.0.2");
    let output =
        setup.run(&mut setup.command(&[&enqueue[..], &["--ca-cert", "ca.pem", "--server", &other]].concat()));
    assert_eq!(output.status.code(), Some(5));
}

/// Nobody is called at all: the addresses are of networks that are for documentation.
#[test]
fn token_requires_tls_to_remote_hosts() {
    let dir = TempDir::new().expect("dir");
    let token = new_token(&dir.path().join("tokens.toml"), &["--name", "n", "--scope", "enqueue"]);
    for server in [
        "http://192.0.2.1:7788",
        "http://localhost@192.0.2.1:7788",
        "http://[2001:db8::1]:7788",
        "http://queue.invalid",
    ] {
        let mut command = Command::new(BINARY);
        command.args(["get", "1", "--server", server]).env("DUEWHEEL_TOKEN", &token);
        let output = run(&mut command);
        assert_eq!(output.status.code(), Some(2), "{server}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains("in the clear"), "{server}: {}", text(&output.stderr));
    }
    // If that is meant it is tried.
    let mut command = Command::new(BINARY);
    command
        .args(["get", "1", "--insecure", "--server", "http://queue.invalid"])
        .env("DUEWHEEL_TOKEN", &token);
    let output = run(command.stdin(Stdio::null()));
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    assert!(!text(&output.stderr).contains("in the clear"), "{}", text(&output.stderr));
}
