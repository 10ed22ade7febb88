//! The real binary as a server: settings in layers, ready lines, signals, clear failures.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::PATIENCE;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_duewheel");

/// A running server process on a folder of its own. Killed when dropped.
pub(crate) struct Process {
    child: Child,
    out: BufReader<ChildStdout>,
    pub(crate) url: String,
}

impl Process {
    pub(crate) fn start(data: &Path, more: &[&str]) -> Process {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--http", "127.0.0.1:0", "--data"]).arg(data).args(more);
        Process::spawn(command)
    }

    /// kill -9, and a new one on the same folder and address.
    pub(crate) fn killed_and_restarted(self, data: &Path, address: &str) -> Process {
        self.killed_and_restarted_with(data, address, &[])
    }

    /// The same, with more options.
    pub(crate) fn killed_and_restarted_with(mut self, data: &Path, address: &str, more: &[&str]) -> Process {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let mut command = Command::new(BINARY);
        command.args(["serve", "--http", address, "--data"]).arg(data).args(more);
        Process::spawn(command)
    }

    pub(crate) fn spawn(command: Command) -> Process {
        Process::spawn_logged(command, Stdio::null())
    }

    /// With a place for what it logs.
    pub(crate) fn spawn_logged(mut command: Command, log: Stdio) -> Process {
        // Two servers must not want beanstalkd's port; a flag wins over this.
        if std::env::var_os("DUEWHEEL_BEANSTALK").is_none() {
            command.env("DUEWHEEL_BEANSTALK", "off");
        }
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().expect("spawn");
        let mut out = BufReader::new(child.stdout.take().expect("stdout"));
        let mut line = String::new();
        out.read_line(&mut line).expect("line");
        let url = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line:?}")).to_owned();
        Process { child, out, url }
    }

    /// Where it listens for beanstalkd's protocol, if it was told to.
    pub(crate) fn beanstalk(&mut self) -> String {
        let line = self.line();
        line.strip_prefix("listening on beanstalk://").unwrap_or_else(|| panic!("{line:?}")).to_owned()
    }

    /// The next line that it prints.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("line");
        line.trim_end().to_owned()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let killed = Command::new("kill").args([name, &self.child.id().to_string()]).status().expect("kill");
        assert!(killed.success());
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait(&mut self.child)
    }

    pub(crate) fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// One request; status and JSON.
    pub(crate) fn call(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let mut stream = self.send(method, path, body);
        read(&mut stream)
    }

    /// One request with further headers; status and JSON.
    pub(crate) fn call_with(&self, method: &str, path: &str, head: &str, body: &str) -> (u16, Value) {
        let mut stream = self.send_with(method, path, head, body);
        read(&mut stream)
    }

    /// The body of an answer.
    pub(crate) fn text(&self, path: &str) -> String {
        let mut text = String::new();
        self.send("GET", path, "").read_to_string(&mut text).expect("read");
        let (head, body) = text.split_once("\r\n\r\n").expect("a body");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        body.to_owned()
    }

    /// Enqueues a message a line; a result each.
    pub(crate) fn lines(&self, queue: &str, body: &str) -> Vec<Value> {
        let path = format!("/v1/queues/{queue}/messages");
        let mut stream = self.send_as("POST", &path, "application/x-ndjson", body);
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("read");
        let lines = text.lines().filter(|line| line.starts_with('{'));
        lines.map(|line| serde_json::from_str(line).expect("line")).collect()
    }

    /// Begins to read an answer that does not end.
    pub(crate) fn follow(&self, path: &str) -> FollowedAnswer {
        FollowedAnswer { stream: self.send("GET", path, ""), told: String::new() }
    }

    fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        self.send_as(method, path, "application/json", body)
    }

    fn send_as(&self, method: &str, path: &str, content_type: &str, body: &str) -> TcpStream {
        self.send_with(method, path, &format!("content-type: {content_type}\r\n"), body)
    }

    /// One request with any headers, `name: value` with CRLF behind each.
    fn send_with(&self, method: &str, path: &str, head: &str, body: &str) -> TcpStream {
        let address = self.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{head}content-length: {length}\r\n\r\n"
        );
        stream.write_all(format!("{head}{body}").as_bytes()).expect("write");
        stream
    }

    pub(crate) fn until(&self, path: &str, so: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        let mut pause = Duration::from_millis(5);
        loop {
            let (_, seen) = self.call("GET", path, "");
            if so(&seen) {
                return seen;
            }
            assert!(begun.elapsed() < PATIENCE, "never: {path}: {seen}");
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }
}

/// An answer that does not end, with its head.
pub(crate) struct FollowedAnswer {
    stream: TcpStream,
    told: String,
}

impl FollowedAnswer {
    /// Reads on until it is so; all that was read so far.
    pub(crate) fn until(&mut self, what: &str, so: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        while !so(&self.told) {
            assert!(begun.elapsed() < PATIENCE, "never: {what}: {}", self.told);
            let mut bytes = [0; 8 * 1024];
            let n = self.stream.read(&mut bytes).expect("more in time");
            assert!(n > 0, "it has ended: {}", self.told);
            self.told += &String::from_utf8_lossy(&bytes[..n]);
        }
        self.told.clone()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(stream: &mut TcpStream) -> (u16, Value) {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("read");
    let status = text.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("{text:?}"));
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("wait") {
            return status;
        }
        assert!(begun.elapsed() < PATIENCE, "the process does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs to the end; for commands that are expected to.
pub(crate) fn run(command: &mut Command) -> Output {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("spawn");
    wait(&mut child);
    child.wait_with_output().expect("output")
}

pub(crate) fn serve() -> Command {
    let mut command = Command::new(BINARY);
    command.arg("serve");
    command
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// An option, and what the file, the environment and the flag say of it.
type Layers = (&'static str, &'static str, &'static str, &'static str);

fn settings(command: &mut Command) -> toml::Table {
    let output = run(command.arg("--print-config"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).parse().expect("toml")
}

/// Each layer wins over the one below.
fn layers(options: &[Layers]) {
    let dir = TempDir::new().expect("dir");
    let file = dir.path().join("duewheel.toml");
    let lines: String = options.iter().map(|(name, in_file, ..)| format!("{name} = {in_file}\n")).collect();
    std::fs::write(&file, lines).expect("file");
    let value = |text: &str| -> toml::Value {
        text.parse::<i64>()
            .map(toml::Value::Integer)
            .or(text.parse::<bool>().map(toml::Value::Boolean))
            .unwrap_or_else(|_| toml::Value::String(text.trim_matches('"').to_owned()))
    };
    let from_file = settings(serve().arg("--config").arg(&file));
    for (name, in_file, in_env, as_flag) in options {
        let flag = format!("--{}", name.replace('_', "-"));
        let variable = format!("DUEWHEEL_{}", name.to_uppercase());
        assert_eq!(from_file[*name], value(in_file), "{name} from the file");
        let got = settings(serve().env("DUEWHEEL_CONFIG", &file).env(&variable, in_env));
        assert_eq!(got[*name], value(in_env), "{name} from the environment");
        let got = settings(serve().arg("--config").arg(&file).env(&variable, in_env).args([&flag, *as_flag]));
        assert_eq!(got[*name], value(as_flag), "{name} from the flag");
    }
}

#[test]
fn flags_override_environment_file_and_defaults() {
    let options = [
        ("data", "\"f\"", "e", "a"),
        ("http", "\"127.0.0.1:1\"", "127.0.0.1:2", "127.0.0.1:3"),
        ("beanstalk", "\"unix:/f\"", "unix:/e", "unix:/a"),
        ("beanstalk_max_job_size", "1", "2", "3"),
        ("durability", "\"buffered\"", "memory", "fsync"),
        ("journal_bytes", "2097152", "3145728", "4194304"),
        ("memory", "2097152", "3145728", "4194304"),
        ("memory_messages", "200", "300", "400"),
        ("tokens", "\"f\"", "e", "a"),
        ("tls_cert", "\"f\"", "e", "a"),
        ("tls_key", "\"f\"", "e", "a"),
        ("hosts", "\"f.example\"", "e.example", "a.example,b.example"),
        ("insecure", "\"http\"", "peer", "http,beanstalk"),
        ("drain_delay", "\"4s\"", "5s", "6s"),
        ("drain_timeout", "\"1s\"", "2s", "3s"),
        ("log", "\"warn\"", "error", "debug"),
        ("log_format", "\"json\"", "text", "json"),
        ("virtual_clock", "\"force\"", "off", "force"),
        ("wheel_slots", "1", "2", "3"),
        ("wheel_tick", "\"1ms\"", "2ms", "3ms"),
        ("max_body", "1", "2", "3"),
        ("max_messages", "1", "2", "3"),
        ("max_message_bytes", "1", "2", "3"),
        ("max_connections", "1", "2", "3"),
        ("header_timeout", "\"1s\"", "2s", "3s"),
        ("body_timeout", "\"1s\"", "2s", "3s"),
    ];
    let defaults = settings(&mut serve());
    assert_eq!(defaults["http"].as_str(), Some("127.0.0.1:7788"));
    assert_eq!(defaults["durability"].as_str(), Some("fsync"));
    assert_eq!(defaults["store"].as_str(), Some("log"));
    let without = ["tokens", "tls_cert", "tls_key"];
    for (name, ..) in options {
        assert_eq!(defaults.contains_key(name), !without.contains(&name), "{name}");
    }
    assert_eq!(defaults.len() + without.len(), options.len() + 1, "an option without a row above");
    layers(&options);
}

/// Connection settings from the environment, with defaults.
#[test]
fn m8_redis_settings_follow_layers() {
    let options = [
        ("store", "\"redis://f:1/1\"", "redis://e:2/2", "redis-cluster://a:3,b:4"),
        ("redis_user", "\"f\"", "e", "a"),
        ("redis_prefix", "\"f\"", "e", "a"),
        ("redis_wait", "1", "2", "3"),
        ("redis_wait_for", "\"synced\"", "received", "synced"),
        ("redis_without_aof", "true", "false", "true"),
        ("redis_create", "\"never\"", "always", "never"),
        ("redis_start_timeout", "\"1s\"", "2s", "3m"),
        ("redis_ca", "\"f\"", "e", "a"),
        ("redis_cert", "\"f\"", "e", "a"),
        ("redis_key", "\"f\"", "e", "a"),
        ("node", "\"f\"", "e", "a"),
        ("advertise", "\"f:1\"", "e:1", "a:1"),
        ("peer_cert", "\"f\"", "e", "a"),
        ("peer_key", "\"f\"", "e", "a"),
        ("peer_ca", "\"f\"", "e", "a"),
        ("peer_listen", "\"f:1\"", "e:1", "a:1"),
        ("shards", "3", "4", "5"),
        ("settle_delay", "\"1s\"", "2s", "3s"),
        ("shard_lease", "\"1s\"", "2s", "3s"),
    ];
    layers(&options);
    let url = "redis://me:hunter2@127.0.0.1:6379/0";
    let defaults = settings(serve().env("DUEWHEEL_STORE", url).env("DUEWHEEL_REDIS_PASSWORD", "hunter2"));
    let text = defaults.to_string();
    assert!(!text.contains("hunter2"), "{text}");
    for (name, value) in [
        ("store", "redis://me@127.0.0.1:6379/0"),
        ("redis_prefix", "duewheel"),
        ("node", "duewheel"),
        ("shard_lease", "5s"),
    ] {
        assert_eq!(defaults[name].as_str(), Some(value), "{name}");
    }
    assert_eq!((defaults["shards"].as_integer(), defaults["redis_wait"].as_integer()), (Some(1), Some(0)));
}

#[test]
fn wrong_settings_are_one_clear_line() {
    let dir = TempDir::new().expect("dir");
    let file = dir.path().join("duewheel.toml");
    std::fs::write(&file, "data = 'x'\nhtpp = 'off'\n").expect("file");
    let file = file.to_str().expect("path");
    let missing = dir.path().join("none.toml");
    for (args, code, says) in [
        (vec!["--config", file], 2, "htpp"),
        (vec!["--config", missing.to_str().expect("path")], 2, "cannot read"),
        (vec!["--http", "7788"], 2, "HOST:PORT"),
        (vec!["--durability", "maybe"], 2, "maybe"),
        (vec!["--nope"], 2, "--nope"),
        (vec!["--max-body", "0"], 2, "must not be 0"),
        (vec!["--journal-bytes", "1000"], 2, "at least 1048576"),
        (vec!["--journal-bytes", "1MB"], 2, "1MB"),
        (vec!["--memory-messages", "99"], 2, "at least 100"),
        (vec!["--log", "a=b=c"], 2, "--log"),
        (vec!["--http", "off", "--beanstalk", "off"], 2, "off"),
        (vec!["--http", "unix:/x"], 2, "HOST:PORT"),
        (vec!["--beanstalk", "11300"], 2, "unix:PATH"),
        (vec!["--beanstalk-max-job-size", "99999999"], 2, "at most"),
        (vec!["--beanstalk", "0.0.0.0:0", "--http", "127.0.0.1:0"], 2, "--insecure beanstalk"),
        (vec!["--insecure"], 2, "http, peer, beanstalk"),
        (vec!["--insecure", "--http", "0.0.0.0:0"], 2, "http, peer, beanstalk"),
        (vec!["--insecure", "http,all"], 2, "\"all\" is none of the listeners http, peer, beanstalk"),
        (vec!["--beanstalk-socket-mode", "640"], 2, "--beanstalk-socket-mode is for --beanstalk unix:PATH"),
        (vec!["--beanstalk-client-ca", "x"], 2, "--beanstalk-client-ca needs --tls-cert"),
        (vec!["--beanstalk-queues", "a b"], 2, "\"a b\""),
        (
            vec!["--beanstalk", "unix:/none/x", "--http", "127.0.0.1:0"],
            1,
            "--beanstalk unix:/none/x: cannot listen there: no such file",
        ),
        (vec!["--store", "mysql://me:hunter2@localhost"], 2, "--store: must be log, redis://"),
        (vec!["--node", "a"], 2, "--node is for --store redis://"),
        (vec!["--store", "redis://localhost", "--advertise", "127.0.0.1:0"], 2, "--advertise needs --node"),
        (vec!["--store", "redis://localhost:x"], 2, "--store"),
        (vec!["--http", "0.0.0.0:0"], 2, "--insecure http"),
        (
            vec!["--http", "192.0.2.1:7788", "--insecure", "http"],
            1,
            "--http 192.0.2.1:7788: this machine does not have this address",
        ),
        (vec!["--data", file], 1, "this is a file, or lies in one; name a folder"),
    ] {
        let mut command = serve();
        // The usual ports may be taken.
        command.env("DUEWHEEL_HTTP", "127.0.0.1:0").env("DUEWHEEL_BEANSTALK", "127.0.0.1:0");
        let output = run(command.current_dir(dir.path()).args(&args));
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(says) && !stderr.contains("panicked"), "{args:?}: {stderr}");
        assert_eq!(stderr.lines().filter(|l| l.starts_with("duewheel: ")).count(), 1, "{args:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{args:?} said it is ready");
    }
}

/// The folder was made and filled with segments before the address was looked at.
#[test]
fn taken_address_creates_no_data_folder() {
    let dir = TempDir::new().expect("dir");
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let taken = other.local_addr().expect("address").to_string();
    for (args, option) in [
        (["--http", &taken, "--beanstalk", "off"], "http"),
        (["--http", "127.0.0.1:0", "--beanstalk", &taken], "beanstalk"),
    ] {
        let data = dir.path().join("data");
        let output = run(serve().args(args).arg("--data").arg(&data));
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        let told = format!(
            "duewheel: --{option} {taken}: address in use; choose another with --{option}, or stop the server that has it\n"
        );
        assert!(stderr.ends_with(&told), "{stderr}");
        assert!(!data.exists(), "{args:?}");
    }
}

#[test]
fn second_process_on_folder_is_refused() {
    let dir = TempDir::new().expect("dir");
    let data = dir.path().join("data");
    let first = Process::start(&data, &[]);
    let output =
        run(serve().args(["--http", "127.0.0.1:0", "--beanstalk", "127.0.0.1:0", "--data"]).arg(&data));
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("cannot open") && stderr.contains("process"), "{stderr}");
    assert_eq!(first.call("GET", "/healthz", "").0, 200);
    let verify = run(Command::new(BINARY).arg("verify").arg(&data));
    assert_eq!(verify.status.code(), Some(1), "{}", text(&verify.stderr));
}

#[test]
fn signals_drain_and_exit_0() {
    for name in ["-TERM", "-INT"] {
        let dir = TempDir::new().expect("dir");
        let mut server = Process::start(&dir.path().join("data"), &[]);
        let (status, done) =
            server.call("POST", "/v1/queues/q/messages", r#"{"body": "a", "delay": "1h", "key": "k"}"#);
        assert_eq!((status, &done["durability"]), (201, &json!("fsync")));
        let mut waiting = server.send("POST", "/v1/queues/other/reserve", r#"{"wait_ms": 60000}"#);
        server.until("/v1/queues/other", |q| q["waiters"] == 1);
        let mut idle = TcpStream::connect(server.url.trim_start_matches("http://")).expect("connect");
        server.signal(name);
        assert_eq!(read(&mut waiting), (200, json!({"messages": []})), "{name}");
        assert_eq!(server.wait().code(), Some(0), "{name}");
        let mut rest = Vec::new();
        assert_eq!(
            idle.read_to_end(&mut rest).unwrap_or(0),
            0,
            "an idle connection does not hold the end up"
        );

        let again = Process::start(&dir.path().join("data"), &[]);
        let (status, seen) = again.call("GET", "/v1/queues/q/keys/k", "");
        assert_eq!((status, &seen["id"], &seen["due_at"]), (200, &done["id"], &seen["due_at"]));
    }
}

#[test]
fn what_was_accepted_survives_kill_9() {
    let dir = TempDir::new().expect("dir");
    let data = dir.path().join("data");
    let server = Process::start(&data, &[]);
    let lines: String =
        (0..500).map(|n| format!("{{\"body\": \"b{n}\", \"delay_ms\": 0, \"key\": \"k{n}\"}}\n")).collect();
    let length = lines.len();
    let mut stream = TcpStream::connect(server.url.trim_start_matches("http://")).expect("connect");
    let head = format!(
        "POST /v1/queues/q/messages HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/x-ndjson\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(format!("{head}{lines}").as_bytes()).expect("write");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("read");
    assert_eq!(answer.matches("\"status\":201").count(), 500);
    let (_, grants) = server.call("POST", "/v1/queues/q/reserve", r#"{"max": 100}"#);
    for grant in grants["messages"].as_array().expect("messages").iter().take(50) {
        let path = format!("/v1/messages/{}/ack", grant["id"].as_str().expect("id"));
        assert_eq!(
            server.call("POST", &path, &json!({"lease_token": grant["lease_token"]}).to_string()).0,
            200
        );
    }
    server.kill();
    let verify = run(Command::new(BINARY).args(["verify", "--json"]).arg(&data));
    let report: Value = serde_json::from_slice(&verify.stdout).expect("report");
    assert_eq!((verify.status.code(), &report["problems"]), (Some(0), &json!([])), "{report}");
    assert_eq!(report["messages"], 450);
    let server = Process::start(&data, &[]);
    // Until the first pages have come, they are estimated.
    server.until("/v1/queues/q", |queue| queue["counts"]["estimated"] == false);
    let (_, queue) = server.call("GET", "/v1/queues/q", "");
    assert_eq!(
        queue["counts"],
        json!({"scheduled": 0, "ready": 400, "leased": 50, "dead": 0, "estimated": false})
    );
}

#[test]
fn damaged_folder_is_refused_and_located() {
    let dir = TempDir::new().expect("dir");
    let data = dir.path().join("data");
    let mut server = Process::start(&data, &[]);
    for _ in 0..20 {
        server.call("POST", "/v1/queues/q/messages", r#"{"body": "0123456789", "delay": "1h"}"#);
    }
    // Killed, so that the messages are in the journal, which each start reads to its end.
    server.signal("-KILL");
    server.wait();
    let mut damaged = 0;
    for folder in ["journal", "runs"] {
        for entry in std::fs::read_dir(data.join(folder)).into_iter().flatten().flatten() {
            let mut bytes = std::fs::read(entry.path()).expect("read");
            if let Some(at) = bytes.windows(10).position(|w| w == b"0123456789") {
                bytes[at] ^= 1;
                std::fs::write(entry.path(), bytes).expect("write");
                damaged += 1;
            }
        }
    }
    assert!(damaged > 0, "no body found to damage");
    let verify = run(Command::new(BINARY).arg("verify").arg(&data));
    assert_eq!(verify.status.code(), Some(1));
    assert!(text(&verify.stdout).contains("at byte"), "{}", text(&verify.stdout));
    let serve =
        run(serve().args(["--http", "127.0.0.1:0", "--beanstalk", "127.0.0.1:0", "--data"]).arg(&data));
    assert_eq!(serve.status.code(), Some(1));
    assert!(text(&serve.stderr).contains("cannot open"), "{}", text(&serve.stderr));
}

/// Story: senders of NDJSON that were faster than the flush got 429 with a text about limits, of which none was
/// reached.
#[test]
fn fast_ndjson_senders_are_slowed() {
    let dir = TempDir::new().expect("dir");
    let server = Process::start(dir.path(), &["--journal-bytes", "1048576"]);
    let line = format!("{{\"body\": \"{}\", \"delay\": \"1h\"}}\n", "x".repeat(1_000));
    let body = line.repeat(1_000);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..4 {
                    let results = server.lines("q", &body);
                    assert_eq!(results.len(), 1_000, "{:?}", results.first());
                    let refused = results.iter().find(|result| result.get("id").is_none());
                    assert!(refused.is_none(), "{refused:?}");
                }
            });
        }
    });
    let (_, queue) = server.call("GET", "/v1/queues/q", "");
    assert_eq!(queue["counts"]["scheduled"], 16_000);
}
