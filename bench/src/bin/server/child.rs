//! The servers under test: processes of their own.

use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

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
        let mut command = Command::new(binary()?);
        command.args([
            "serve",
            "--http",
            "127.0.0.1:0",
            "--log",
            "error",
            "--durability",
            durability,
            "--data",
        ]);
        Server::start(command.arg(data))
    }

    /// This binary, answering every request with the same few bytes by the same HTTP library.
    pub(crate) fn hello() -> io::Result<Self> {
        Server::start(Command::new(std::env::current_exe()?).arg("--hello"))
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

    /// Processor time used so far, in seconds.
    pub(crate) fn processor_s(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // The name in parentheses may hold spaces; user and system time are fields 14 and 15 of all.
        let after = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
        let ticks: u64 =
            after.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
        ticks as f64 / 100.0
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Builds the server and says where it lies: beside this binary.
pub(crate) fn build() -> io::Result<()> {
    let status = Command::new("cargo")
        .args(["build", "--release", "--quiet", "--package", "duewheel-server"])
        .status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other("the server does not build")) }
}

fn binary() -> io::Result<PathBuf> {
    let here = std::env::current_exe()?;
    Ok(here.with_file_name("duewheel"))
}
