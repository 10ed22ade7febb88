//! A real server as a child process: found, started, awaited, stopped for a while, killed or asked to end.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long a test on real processes waits for anything that must happen. A wait that is over fails the test, and no other
/// length of time does: on a machine with too much to do a promised time is printed, and the simulation asserts it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Finds the binary `duewheel`: the one that `DUEWHEEL_BIN` names; else the one beside this test's executable; else it
/// is built there.
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

/// Sends a signal to a process; its name is as for `kill`, for example `-STOP`.
///
/// # Errors
///
/// There is no such process, or no `kill`.
pub fn signal(id: u32, name: &str) -> io::Result<()> {
    let sent = Command::new("kill").args([name, &id.to_string()]).status()?;
    if sent.success() { Ok(()) } else { Err(io::Error::other(format!("kill {name} {id}: {sent}"))) }
}

/// Stops a process with SIGSTOP, and waits for at most `patience` until none of its threads runs any more.
///
/// # Errors
///
/// There is no such process, or a thread still runs.
pub fn pause(id: u32, patience: Duration) -> Result<(), String> {
    signal(id, "-STOP").map_err(|e| e.to_string())?;
    until("all threads have stopped", patience, || Ok(threads_rest(id).then_some(())))
}

/// Lets a stopped process continue.
///
/// # Errors
///
/// There is no such process.
pub fn resume(id: u32) -> Result<(), String> {
    signal(id, "-CONT").map_err(|e| e.to_string())
}

/// Repeats a check until it succeeds, for at most `patience`; the last check may take longer.
///
/// # Errors
///
/// It never succeeded, or an error of the check itself.
pub fn until(
    what: &str,
    patience: Duration,
    mut so: impl FnMut() -> Result<Option<()>, String>,
) -> Result<(), String> {
    let deadline = Instant::now() + patience;
    while so()?.is_none() {
        if Instant::now() > deadline {
            return Err(format!("never: {what}"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Whether the system reports each thread as stopped.
fn threads_rest(id: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(Path::new("/proc").join(id.to_string()).join("task")) else {
        return false;
    };
    threads.flatten().all(|thread| {
        // The format is "id (name) state ...", and a name may contain any character.
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    })
}

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct Server {
    child: Child,
    word: &'static str,
    lines: Receiver<String>,
    started: Instant,
}

impl Server {
    /// The arguments of the duewheel server. It gets so little memory that runs are written and merged all the time,
    /// and most messages are on the disk alone.
    pub fn arguments(data: &Path) -> Vec<OsString> {
        let fixed = ["--http", "127.0.0.1:0", "--beanstalk", "off"];
        let little = ["--journal-bytes", "1048576", "--memory-messages", "100"];
        let mut all: Vec<OsString> = vec!["serve".into(), "--data".into(), data.into()];
        all.extend(fixed.iter().chain(&little).map(OsString::from));
        all
    }

    /// Starts a server, which prints its address behind a word. Its output goes to the log as well.
    pub fn spawn(mut command: Command, log: &Path, word: &'static str) -> io::Result<Self> {
        let mut log = OpenOptions::new().create(true).append(true).open(log)?;
        writeln!(log, "--- start")?;
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log.try_clone()?).spawn()?;
        let (sender, lines) = channel();
        if let Some(out) = child.stdout.take() {
            std::thread::spawn(move || forward(out, log, &sender));
        }
        Ok(Server { child, word, lines, started: Instant::now() })
    }

    /// Waits until it listens or ends, for at most `patience`.
    pub fn address(&mut self, patience: Duration) -> io::Result<SocketAddr> {
        let deadline = Instant::now() + patience;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Some(address) = address_in(&line, self.word) {
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

    /// Asks it to end with SIGTERM and waits until it is gone. An error if it had ended before, or does not end.
    pub fn stop(mut self, patience: Duration) -> io::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            return Err(io::Error::other(format!("the server had ended before: {status}")));
        }
        signal(self.child.id(), "-TERM")?;
        let deadline = Instant::now() + patience;
        while self.child.try_wait()?.is_none() {
            if Instant::now() >= deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the server does not end"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
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
        // The process may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn forward(out: impl io::Read, mut log: File, sender: &std::sync::mpsc::Sender<String>) {
    for line in BufReader::new(out).lines() {
        let Ok(line) = line else { return };
        let _ = writeln!(log, "{line}");
        // The receiver may be gone; the log is written all the same.
        let _ = sender.send(line);
    }
}

/// A listener's address in a line of the server's output.
fn address_in(line: &str, word: &str) -> Option<SocketAddr> {
    if !line.to_ascii_lowercase().contains(word) {
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
    fn address_is_found_in_line() {
        let at = |line| address_in(line, "http").map(|a| a.port());
        assert_eq!(at("listening on http://127.0.0.1:4567"), Some(4567));
        assert_eq!(at("http: 127.0.0.1:80 (data in ./x)"), Some(80));
        assert_eq!(at("HTTP listening on 127.0.0.1:9."), Some(9));
        assert_eq!(at("beanstalk on 127.0.0.1:11300"), None);
        assert_eq!(address_in("beanstalk on 127.0.0.1:11300", "beanstalk").map(|a| a.port()), Some(11300));
    }
}
