//! The servers.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use duewheel_client::{BlockingClient, Options};
use serde_json::Value;

/// A process that ends with this.
pub(crate) struct Process {
    child: Child,
    pub(crate) url: String,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("DUEWHEEL_BIN") {
        return named.into();
    }
    let here = std::env::current_exe().unwrap();
    here.parent().unwrap().parent().unwrap().join("duewheel")
}

pub(crate) fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients")
}

fn start(command: &mut Command) -> Process {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = |line: String| Some(line.strip_prefix("listening on ").unwrap_or(&line).to_owned());
    let url = lines.map_while(Result::ok).filter_map(address).find(|line| line.starts_with("http:"));
    Process { child, url: url.expect("the server listens") }
}

/// The server, with a clock that `advance` moves.
pub(crate) fn real() -> Process {
    let options = ["--http", "127.0.0.1:0", "--beanstalk", "off", "--log", "error", "--virtual-clock"];
    start(Command::new(binary()).arg("serve").args(options))
}

/// The server that answers as a list says.
pub(crate) fn scripted() -> Process {
    start(Command::new("python3").arg(clients().join("scripted_server.py")))
}

impl Process {
    /// What was wrong with the requests of a case so far, and whether all have come.
    pub(crate) fn verdict(&self, case: &str) -> (Vec<Value>, bool) {
        let client = BlockingClient::new(&self.url, Options::default()).unwrap();
        let verdict: Value =
            client.call(duewheel_client::ApiCall::get(format!("/_/{case}"))).expect("a verdict");
        (verdict["failures"].as_array().unwrap().clone(), verdict["complete"] == true)
    }
}

/// Waits until something holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
