//! The real server as a child process: found, started, awaited, killed.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Finds the binary `duewheel`: the one that `DUEWHEEL_BIN` names; else the one beside this test's executable; else builds
/// it there.
pub fn binary() -> io::Result<PathBuf> {
    if let Some(named) = std::env::var_os("DUEWHEEL_BIN") {
        return Ok(named.into());
    }
    // <target>/<profile>/deps/<test>
    let test = std::env::current_exe()?;
    let profile =
        test.ancestors().nth(2).ok_or_else(|| io::Error::other("a test without a target folder"))?;
    let binary = profile.join(format!("duewheel{}", std::env::consts::EXE_SUFFIX));
    if !binary.exists() {
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build.args(["build", "-p", "duewheel-server"]);
        if profile.ends_with("release") {
            build.arg("--release");
        }
        if let Some(target) = profile.parent() {
            build.env("CARGO_TARGET_DIR", target);
        }
        let status = build.status()?;
        if !status.success() {
            return Err(io::Error::other(format!("building duewheel-server: {status}")));
        }
    }
    Ok(binary)
}

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct Server {
    child: Child,
    lines: Receiver<String>,
    started: Instant,
}

impl Server {
    /// Starts a server on a data folder, with a port of its own choice. What it prints goes to the log as well.
    pub fn spawn(binary: &Path, data: &Path, log: &Path) -> io::Result<Self> {
        let mut command = Command::new(binary);
        command.args(Self::arguments(data));
        Self::run(command, log)
    }

    /// What the binary is told. So little memory that runs are written and merged all the time, and most messages are on the
    /// disk alone.
    pub fn arguments(data: &Path) -> Vec<OsString> {
        let fixed = ["--http", "127.0.0.1:0", "--beanstalk", "off"];
        let little = ["--journal-bytes", "1048576", "--memory-messages", "100"];
        let mut all: Vec<OsString> = vec!["serve".into(), "--data".into(), data.into()];
        all.extend(fixed.iter().chain(&little).map(OsString::from));
        all
    }

    /// Starts a server with a command line of the caller's own.
    pub fn run(mut command: Command, log: &Path) -> io::Result<Self> {
        let mut log = OpenOptions::new().create(true).append(true).open(log)?;
        writeln!(log, "--- start")?;
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log.try_clone()?).spawn()?;
        let (sender, lines) = channel();
        if let Some(out) = child.stdout.take() {
            std::thread::spawn(move || forward(out, log, &sender));
        }
        Ok(Server { child, lines, started: Instant::now() })
    }

    /// Waits until it says where it listens, or for `patience`, or until it ends.
    pub fn address(&mut self, patience: Duration) -> io::Result<SocketAddr> {
        let deadline = Instant::now() + patience;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Some(address) = address_in(&line) {
                        return Ok(address);
                    }
                }
                Err(RecvTimeoutError::Timeout) => return Err(io::ErrorKind::TimedOut.into()),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait()?;
                    return Err(io::Error::other(format!("the server ended by itself: {status}")));
                }
            }
        }
    }

    /// Time since it was started.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether it has ended by itself.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it with SIGKILL and waits until it is gone. An error if it had ended before.
    pub fn kill(mut self) -> io::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            return Err(io::Error::other(format!("the server had ended before: {status}")));
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn forward(out: impl io::Read, mut log: File, sender: &std::sync::mpsc::Sender<String>) {
    for line in BufReader::new(out).lines() {
        let Ok(line) = line else { return };
        let _ = writeln!(log, "{line}");
        // Nobody may be waiting any more; the log is written all the same.
        let _ = sender.send(line);
    }
}

/// The HTTP listener's address in a line of the server's output.
fn address_in(line: &str) -> Option<SocketAddr> {
    if !line.to_ascii_lowercase().contains("http") {
        return None;
    }
    line.split(|c: char| !(c.is_ascii_digit() || c == '.' || c == ':')).find_map(|word| {
        word.trim_matches(|c| c == ':' || c == '.').parse::<SocketAddr>().ok().filter(|a| a.port() != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_a_line() {
        let at = |line| address_in(line).map(|a| a.port());
        assert_eq!(at("listening on http://127.0.0.1:4567"), Some(4567));
        assert_eq!(at("http: 127.0.0.1:80 (data in ./x)"), Some(80));
        assert_eq!(at("HTTP listening on 127.0.0.1:9."), Some(9));
        assert_eq!(at("beanstalk on 127.0.0.1:11300"), None);
    }
}
