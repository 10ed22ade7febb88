//! No listener beyond loopback unless clients are asked who they are and nobody can listen in, or it is named by
//! `--insecure`: every combination, with the real binary.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::tls::Authority;
use super::{new_token, request, say, until};
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
        std::fs::write(dir.path().join("ca.pem"), authority.pem()).expect("authority");
        let token = new_token(&dir.path().join("tokens.toml"), &["--name", "n", "--scope", "metrics"]);
        Secrets { dir, authority, token }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn command(&self, data: &str, tokens: bool, tls: bool, insecure: &str) -> Command {
        let mut command = serve();
        command.current_dir(self.path()).args(["--durability", "memory", "--data", data]);
        if tokens {
            command.args(["--tokens", "tokens.toml"]);
        }
        if tls {
            command.args(["--tls-cert", "cert.pem", "--tls-key", "key.pem"]);
        }
        if !insecure.is_empty() {
            command.args(["--insecure", insecure]);
        }
        command
    }
}

const BOTH: [bool; 2] = [false, true];
/// What may be said, the listener itself and the others.
const WORDS: [&str; 4] = ["", "http", "beanstalk", "peer"];

fn refused(command: &mut Command, at: &str) -> String {
    let output = run(command);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{at}: {stderr}");
    assert!(output.stdout.is_empty(), "{at}: said that it is ready");
    assert!(stderr.contains("other machines reach this address"), "{at}: {stderr}");
    stderr
}

#[test]
fn exposed_http_needs_tokens_and_tls() {
    let secrets = Secrets::new();
    let mut seen = 0;
    for host in ["127.0.0.1", "0.0.0.0"] {
        for (tokens, tls, insecure) in
            BOTH.into_iter().flat_map(|a| BOTH.into_iter().flat_map(move |b| WORDS.map(|c| (a, b, c))))
        {
            let at = format!("{host}, tokens {tokens}, TLS {tls}, insecure {insecure}");
            let mut command = secrets.command(&at.replace([',', ' '], ""), tokens, tls, insecure);
            command.args(["--http", &format!("{host}:0")]);
            if host == "0.0.0.0" && insecure != "http" && !(tokens && tls) {
                let stderr = refused(&mut command, &at);
                assert!(stderr.contains("--insecure http "), "{at}: {stderr}");
                assert_eq!(stderr.contains("--tokens"), !tokens, "{at}: {stderr}");
                assert_eq!(stderr.contains("--tls-cert"), !tls, "{at}: {stderr}");
                seen += 1;
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
    assert_eq!(seen, 9, "without both, and three other words");
}

/// The protocol has no word for a token, so tokens and the certificate of the server do not help.
#[test]
fn exposed_beanstalk_needs_client_certificates() {
    let secrets = Secrets::new();
    for (tokens, tls, insecure) in
        BOTH.into_iter().flat_map(|a| BOTH.into_iter().flat_map(move |b| WORDS.map(|c| (a, b, c))))
    {
        let at = format!("tokens {tokens}, TLS {tls}, insecure {insecure}");
        let mut command = secrets.command(&at.replace([',', ' '], ""), tokens, tls, insecure);
        command.args(["--http", "127.0.0.1:0", "--beanstalk", "0.0.0.0:0"]);
        if insecure == "beanstalk" {
            let mut server = Process::spawn(command);
            assert!(server.beanstalk().starts_with("0.0.0.0:"), "{at}");
            continue;
        }
        let stderr = refused(&mut command, &at);
        assert!(
            stderr.contains("--beanstalk 0.0.0.0:0") && stderr.contains("--insecure beanstalk "),
            "{at}: {stderr}"
        );
    }
    let mut command = secrets.command("clients", true, true, "");
    command.args(["--http", "127.0.0.1:0", "--beanstalk", "0.0.0.0:0", "--beanstalk-client-ca", "ca.pem"]);
    assert!(Process::spawn(command).beanstalk().starts_with("0.0.0.0:"));
}

/// Nothing listens for other nodes before Redis is there, so the refusal is all there is to see.
#[test]
fn exposed_peer_port_needs_option() {
    let secrets = Secrets::new();
    let redis = ["--store", "redis://127.0.0.1:1", "--redis-start-timeout", "0s", "--node", "a"];
    let start = |insecure: &str, more: &[&str]| {
        let mut command = secrets.command("peers", true, true, insecure);
        // Of the log store alone.
        let mut args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        let at = args.iter().position(|arg| arg == "--durability").expect("durability");
        args.drain(at..at + 2);
        command = Command::new(BINARY);
        command.current_dir(secrets.path()).args(args).args(["--http", "127.0.0.1:0"]).args(redis).args(more);
        command
    };
    for (option, more) in [
        ("--advertise 0.0.0.0:7800", &["--advertise", "0.0.0.0:7800"][..]),
        ("--peer-listen 0.0.0.0:7800", &["--advertise", "127.0.0.1:7800", "--peer-listen", "0.0.0.0:7800"]),
    ] {
        for insecure in ["", "http", "beanstalk"] {
            let stderr = refused(&mut start(insecure, more), option);
            assert!(stderr.contains(option) && stderr.contains("--insecure peer "), "{stderr}");
        }
        let output = run(&mut start("peer", more));
        let stderr = text(&output.stderr);
        assert!(
            stderr.contains("cannot open the store in Redis") && !stderr.contains("--insecure"),
            "{stderr}"
        );
    }
}

#[test]
fn tokens_disable_unnamed_beanstalk_listener() {
    let secrets = Secrets::new();
    for (tokens, named, listens) in [(false, false, true), (true, false, false), (true, true, true)] {
        let mut command = secrets.command("x", tokens, false, "");
        // Whether it listens at the usual port cannot be tried beside other tests: the settings say it.
        command.arg("--print-config").env_remove("DUEWHEEL_BEANSTALK");
        if named {
            command.args(["--beanstalk", "127.0.0.1:11300"]);
        }
        let settings: toml::Table = text(&run(&mut command).stdout).parse().expect("toml");
        let at = if listens { "127.0.0.1:11300" } else { "off" };
        assert_eq!(settings["beanstalk"].as_str(), Some(at), "tokens {tokens}, named {named}");
    }
    // A running one says where it listens, and nothing of this.
    let mut command = secrets.command("running", true, false, "");
    command.args(["--http", "127.0.0.1:0", "--beanstalk", "unix:socket"]);
    let mut server = Process::spawn(command);
    assert_eq!(server.line(), "listening on beanstalk+unix:socket");
}

/// The protocol itself is tested elsewhere; here the option has to reach the listener.
#[test]
fn beanstalk_queues_option_limits_listener() {
    let secrets = Secrets::new();
    let mut command = secrets.command("limited", false, false, "");
    command.args(["--http", "127.0.0.1:0", "--beanstalk", "127.0.0.1:0", "--beanstalk-queues", "shop/"]);
    let mut server = Process::spawn(command);
    let mut stream = BufReader::new(super::connect(&server.beanstalk()));
    let mut ask = |line: &str| {
        stream.get_mut().write_all(format!("{line}\r\n").as_bytes()).expect("write");
        let mut reply = String::new();
        stream.read_line(&mut reply).expect("a reply");
        reply.trim_end().to_owned()
    };
    let (status, said) =
        server.call("POST", "/v1/queues/bank/messages", r#"{"body": "gold", "delay_ms": 0}"#);
    assert_eq!(status, 201, "HTTP is not limited: {said}");
    let gold = said["id"].as_str().expect("an id");
    assert_eq!(ask("use bank"), "FORBIDDEN");
    assert_eq!(ask("watch bank"), "FORBIDDEN");
    assert_eq!(ask("put 0 0 60 1\r\na"), "FORBIDDEN", "into the queue that a client begins with");
    assert_eq!(ask(&format!("delete {gold}")), "NOT_FOUND");
    assert_eq!(ask("use shop/a"), "USING shop/a");
    assert!(ask("put 0 0 60 1\r\na").starts_with("INSERTED "));
    assert_eq!(server.call("GET", "/v1/queues/bank", "").1["counts"]["ready"], 1);
    assert_eq!(server.call("GET", "/v1/queues/shop%2Fa", "").1["counts"]["ready"], 1);
}

/// A socket in the file system is governed by the rights of its file, whatever the umask is.
#[test]
fn socket_file_mode_defaults_to_owner() {
    let secrets = Secrets::new();
    for (n, (umask, option, mode)) in
        [("022", "", 0o600), ("000", "", 0o600), ("077", "--beanstalk-socket-mode 660", 0o660)]
            .into_iter()
            .enumerate()
    {
        let mut command = Command::new("sh");
        let line = format!(
            r#"umask {umask}; exec "$0" serve --tokens tokens.toml --http 127.0.0.1:0 --beanstalk unix:s{n} {option} --data d{n} --durability memory"#
        );
        command.current_dir(secrets.path()).args(["-c", &line]).arg(BINARY).env("DUEWHEEL_BEANSTALK", "off");
        let mut server = Process::spawn(command);
        assert_eq!(server.line(), format!("listening on beanstalk+unix:s{n}"));
        let meta = std::fs::metadata(secrets.path().join(format!("s{n}"))).expect("socket");
        assert_eq!(meta.permissions().mode() & 0o777, mode, "umask {umask} {option}");
    }
}

#[test]
fn tls_beanstalk_requires_client_certificate() {
    let (secrets, strangers) = (Secrets::new(), Authority::new());
    let log = std::fs::File::create(secrets.path().join("log")).expect("log");
    let mut command = secrets.command("data", true, true, "");
    command.args(["--http", "127.0.0.1:0", "--beanstalk", "127.0.0.1:0", "--beanstalk-client-ca", "ca.pem"]);
    let mut server = Process::spawn_logged(command, Stdio::from(log));
    let address = server.beanstalk();
    let hear = |signer: Option<&Authority>| {
        let mut stream = secrets.authority.connect_as(&address, signer)?;
        stream.write_all(b"put 0 0 60 1\r\na\r\n")?;
        let mut reply = [0; 10];
        stream.read_exact(&mut reply).map(|()| text(&reply))
    };
    assert_eq!(hear(Some(&secrets.authority)).expect("a reply"), "INSERTED 1");
    assert!(hear(Some(&strangers)).is_err() && hear(None).is_err());
    // In the clear there is no answer, either.
    let mut stream = super::connect(&address);
    stream.write_all(b"stats\r\n").expect("write");
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    assert!(!text(&heard).contains("OK"), "{heard:?}");
    // An authority that is exchanged counts for those who come.
    std::fs::write(secrets.path().join("ca.pem"), strangers.pem()).expect("authority");
    server.signal("-HUP");
    until("the new authority", || hear(Some(&strangers)).is_ok());
    assert!(hear(Some(&secrets.authority)).is_err());
    let log = std::fs::read_to_string(secrets.path().join("log")).expect("log");
    assert!(!log.contains("has no tokens"), "{log}");
}
