//! The servers under test: processes of their own.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A running server. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    _out: BufReader<ChildStdout>,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// The real server on a folder.
    pub(crate) fn duewheel(data: &Path, durability: &str) -> io::Result<Self> {
        Server::sharded(data, durability, 1)
    }

    /// The real server on a folder with several shards.
    pub(crate) fn sharded(data: &Path, durability: &str, shards: u32) -> io::Result<Self> {
        let mut command = Command::new(duewheel_bench::server::binary()?);
        command.args([
            "serve",
            "--http",
            "127.0.0.1:0",
            "--log",
            "error",
            "--durability",
            durability,
            "--shards",
            &shards.to_string(),
            "--data",
        ]);
        Server::start(command.arg(data))
    }

    /// The real server on a store that is no folder.
    pub(crate) fn on_medium(store: &str) -> io::Result<Self> {
        let mut command = Command::new(duewheel_bench::server::binary()?);
        Server::start(command.args(["serve", "--http", "127.0.0.1:0", "--log", "error", "--store", store]))
    }

    /// Starts this binary as a server that answers every request with the same few bytes by the same HTTP library.
    pub(crate) fn hello() -> io::Result<Self> {
        Server::start(Command::new(std::env::current_exe()?).arg("server").arg("--hello"))
    }

    fn start(command: &mut Command) -> io::Result<Self> {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut out = BufReader::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
        let mut line = String::new();
        out.read_line(&mut line)?;
        let address = line.trim().rsplit('/').next().and_then(|a| a.parse().ok());
        let address = address.ok_or_else(|| io::Error::other(format!("no address in {line:?}")))?;
        Ok(Server { child, _out: out, address })
    }

    /// Processor time used so far by each kind of thread.
    pub(crate) fn by_thread(&self) -> BTreeMap<String, Duration> {
        duewheel_bench::process::processor_time_by_thread(self.child.id())
    }

    /// Processor time used so far, in seconds.
    pub(crate) fn processor_s(&self) -> f64 {
        duewheel_bench::process::processor_time_of(self.child.id()).as_secs_f64()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
