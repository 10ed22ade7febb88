//! No listener beyond loopback unless clients are asked who they are and nobody can listen in, or `--insecure` is spelled out: every
//! combination, with the real binary.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::tls::Authority;
use super::{new_token, request, say};
use crate::process::{BINARY, Process, run, serve, text};

struct Secrets {
    dir: TempDir,
    authority: Authority,
    token: String,
}

impl Secrets {
    fn new() -> Secrets {
        let dir = TempDir::new().expect("dir");
        let authority = Authority::new();
        authority.write(dir.path());
        let token = new_token(&dir.path().join("tokens.toml"), &["--name", "n", "--scope", "metrics"]);
        Secrets { dir, authority, token }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn command(&self, data: &str, tokens: bool, tls: bool, insecure: bool) -> Command {
        let mut command = serve();
        command.current_dir(self.path()).args(["--durability", "memory", "--data", data]);
        if tokens {
            command.args(["--tokens", "tokens.toml"]);
        }
        if tls {
            command.args(["--tls-cert", "cert.pem", "--tls-key", "key.pem"]);
        }
        if insecure {
            command.arg("--insecure");
        }
        command
    }
}

const BOTH: [bool; 2] = [false, true];

#[test]
fn http_beyond_loopback_needs_tokens_and_tls_or_the_word() {
    let secrets = Secrets::new();
    let mut refused = 0;
    for host in ["127.0.0.1", "0.0.0.0"] {
        for (tokens, tls, insecure) in
            BOTH.into_iter().flat_map(|a| BOTH.into_iter().flat_map(move |b| BOTH.map(|c| (a, b, c))))
        {
            let at = format!("{host}, tokens {tokens}, TLS {tls}, insecure {insecure}");
            let mut command = secrets.command(&at.replace([',', ' '], ""), tokens, tls, insecure);
            command.args(["--http", &format!("{host}:0")]);
            if host == "0.0.0.0" && !insecure && !(tokens && tls) {
                let output = run(&mut command);
                let stderr = text(&output.stderr);
                assert_eq!(output.status.code(), Some(1), "{at}: {stderr}");
                assert!(output.stdout.is_empty(), "{at}: said that it is ready");
                assert!(stderr.contains("other machines reach this address"), "{at}: {stderr}");
                assert!(stderr.contains("--insecure"), "{at}: {stderr}");
                assert_eq!(stderr.contains("--tokens"), !tokens, "{at}: {stderr}");
                assert_eq!(stderr.contains("--tls-cert"), !tls, "{at}: {stderr}");
                refused += 1;
                continue;
            }
            let server = Process::spawn(command);
            let (scheme, address) = server.url.split_once("://").expect("url");
            assert_eq!(scheme, if tls { "https" } else { "http" }, "{at}");
            let address = address.replace("0.0.0.0", "127.0.0.1");
            let ask = |head: &str| {
                let bytes = request("GET", "/v1/queues", head, "");
                match tls {
                    true => secrets.authority.say(&address, bytes.as_bytes()).expect("TLS"),
                    false => say(&address, bytes.as_bytes()).expect("an answer"),
                }
            };
            assert_eq!(ask("").status, if tokens { 401 } else { 200 }, "{at}");
            assert_eq!(ask(&super::bearer(&secrets.token)).status, 200, "{at}");
        }
    }
    assert_eq!(refused, 3);
}

/// The protocol has no word for a token, so nothing but the word helps.
#[test]
fn beanstalkds_protocol_beyond_loopback_needs_the_word_whatever_else_there_is() {
    let secrets = Secrets::new();
    for (tokens, tls, insecure) in
        BOTH.into_iter().flat_map(|a| BOTH.into_iter().flat_map(move |b| BOTH.map(|c| (a, b, c))))
    {
        let at = format!("tokens {tokens}, TLS {tls}, insecure {insecure}");
        let mut command = secrets.command(&at.replace([',', ' '], ""), tokens, tls, insecure);
        command.args(["--http", "127.0.0.1:0", "--beanstalk", "0.0.0.0:0"]);
        if insecure {
            let mut server = Process::spawn(command);
            assert!(server.beanstalk().starts_with("0.0.0.0:"), "{at}");
            continue;
        }
        let output = run(&mut command);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{at}: {stderr}");
        assert!(output.stdout.is_empty(), "{at}: said that it is ready");
        assert!(stderr.contains("--beanstalk 0.0.0.0:0") && stderr.contains("--insecure"), "{at}: {stderr}");
    }
    // A socket in the file system is governed by the rights of its file: with the usual umask its owner may connect, and nobody else.
    let mut command = Command::new("sh");
    let line = r#"umask 022; exec "$0" serve --http 127.0.0.1:0 --beanstalk unix:socket --data unix"#;
    command.current_dir(secrets.path()).args(["-c", line]).arg(BINARY).env("DUEWHEEL_BEANSTALK", "off");
    let mut server = Process::spawn(command);
    assert_eq!(server.line(), "listening on beanstalk+unix:socket");
    let meta = std::fs::metadata(secrets.path().join("socket")).expect("socket");
    assert_eq!(meta.permissions().mode() & 0o777, 0o755);
}
