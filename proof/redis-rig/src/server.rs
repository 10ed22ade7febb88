//! One redis-server as a child process.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::port::free_port;
use crate::resp::{Value, Wire};
use crate::settings::{Clustered, Login, Settings, Transport};
use crate::tls::Certificates;

/// The time limit of a start, a load, an end or a command.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time limit of a check whether the server is ready, which is repeated.
const QUESTION: Duration = Duration::from_secs(3);
/// The folder of the append-only file.
const APPENDONLY: &str = "appendonlydir";
const STEP: Duration = Duration::from_millis(5);

/// A redis-server on 127.0.0.1 with a port and a folder of its own. Dropping it kills it and removes the folder.
#[derive(Debug)]
pub struct Redis {
    settings: Settings,
    clustered: Option<Clustered>,
    folder: TempDir,
    port: u16,
    certificates: Option<Certificates>,
    child: Option<Child>,
}

impl Redis {
    /// Starts a server on an empty folder and waits until it answers.
    ///
    /// # Errors
    ///
    /// It cannot be started, or does not answer within a minute; the error has the end of its log.
    pub fn start(settings: Settings) -> io::Result<Self> {
        Redis::start_of(&settings, None, None)
    }

    /// Starts a server. A node of a cluster has a timeout, and over TLS the certificates of its first node.
    pub(crate) fn start_of(
        settings: &Settings,
        node_timeout_ms: Option<u64>,
        certificates: Option<&Certificates>,
    ) -> io::Result<Self> {
        let mut last = io::Error::other("never tried");
        // Another process may have taken the port between our check and the server's start.
        for _ in 0..10 {
            let clustered = match node_timeout_ms {
                Some(node_timeout_ms) => Some(Clustered { bus: free_port()?, node_timeout_ms }),
                None => None,
            };
            let folder =
                tempfile::Builder::new().prefix("duewheel-redis-").tempdir_in(settings.medium.above())?;
            let certificates = match (settings.transport, certificates) {
                (Transport::Plain, _) => None,
                (Transport::Tls | Transport::TlsBothWays, None) => Some(Certificates::make(folder.path())?),
                (Transport::Tls | Transport::TlsBothWays, Some(others)) => Some(others.copy(folder.path())?),
            };
            let settings = settings.clone();
            let mut redis =
                Redis { settings, clustered, folder, port: free_port()?, certificates, child: None };
            match redis.spawn_and_wait() {
                Ok(()) => return Ok(redis),
                Err(e) if e.kind() == ErrorKind::AddrInUse => last = e,
                Err(e) => return Err(e),
            }
        }
        Err(last)
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The port of [`Redis::address`].
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port of its cluster's bus, if it is a node of one.
    pub(crate) fn bus(&self) -> Option<u16> {
        self.clustered.map(|c| c.bus)
    }

    /// The server as a URL with user and password: `redis://…/db`, or `rediss://…/db` over TLS.
    pub fn url(&self, db: u32) -> String {
        let scheme = match self.settings.transport {
            Transport::Plain => "redis",
            Transport::Tls | Transport::TlsBothWays => "rediss",
        };
        let login = match &self.settings.login {
            Login::Nobody => String::new(),
            Login::Password(password) => format!(":{password}@"),
            Login::User { name, password } => format!("{name}:{password}@"),
        };
        format!("{scheme}://{login}{}/{db}", self.address())
    }

    /// Its folder, with the append-only file.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The file of its log since the first start.
    pub fn log(&self) -> PathBuf {
        self.folder.path().join("redis.log")
    }

    /// The certificates of a server over TLS.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// Its process id, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// A connection that has logged in.
    ///
    /// # Errors
    ///
    /// See [`Wire::open`] and [`Wire::login`].
    pub fn connect(&self, patience: Duration) -> io::Result<Wire> {
        let mut wire = match &self.certificates {
            None => Wire::open(self.address(), patience)?,
            Some(by) => Wire::open_tls(self.address(), patience, by)?,
        };
        wire.login(&self.settings.login)?;
        Ok(wire)
    }

    /// Sends one command over a connection of its own, and returns its reply. A refusal of the server is a
    /// [`Value::Error`].
    ///
    /// # Errors
    ///
    /// The server cannot be reached, or does not answer within a minute.
    pub fn command(&self, words: &[&str]) -> io::Result<Value> {
        self.connect(PATIENCE)?.command(words)
    }

    pub(crate) fn quick(&self, words: &[&str]) -> io::Result<Value> {
        self.connect(QUESTION)?.command(words)
    }

    /// Kills it with SIGKILL and waits until it is gone.
    ///
    /// # Errors
    ///
    /// It does not run, or had ended by itself.
    pub fn kill(&mut self) -> io::Result<()> {
        let mut child = self.child.take().ok_or_else(not_running)?;
        if let Some(status) = child.try_wait()? {
            return Err(io::Error::other(format!("redis-server had ended before: {status}")));
        }
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Asks it to end with SIGTERM and waits until it is gone.
    ///
    /// # Errors
    ///
    /// It does not run, or does not end within a minute; then it is killed.
    pub fn stop(&mut self) -> io::Result<()> {
        self.signal(Signal::TERM)?;
        let mut child = self.child.take().ok_or_else(not_running)?;
        let deadline = Instant::now() + PATIENCE;
        while child.try_wait()?.is_none() {
            if Instant::now() >= deadline {
                child.kill()?;
                child.wait()?;
                return Err(io::Error::new(ErrorKind::TimedOut, "redis-server does not end"));
            }
            std::thread::sleep(STEP);
        }
        Ok(())
    }

    /// Stops it with SIGSTOP: it keeps its connections and answers nothing.
    ///
    /// # Errors
    ///
    /// It does not run.
    pub fn pause(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it continue after [`Redis::pause`].
    ///
    /// # Errors
    ///
    /// It does not run.
    pub fn resume(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Starts it again on the same folder and port, after stopping it if it runs, and waits until it has loaded and
    /// answers.
    ///
    /// # Errors
    ///
    /// It does not end, cannot be started, or does not answer within a minute.
    pub fn restart(&mut self) -> io::Result<()> {
        if self.child.is_some() {
            self.stop()?;
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.spawn_and_wait() {
                // The new process checks whether the port is free.
                Err(e) if e.kind() == ErrorKind::AddrInUse && Instant::now() < deadline => {
                    std::thread::sleep(STEP);
                }
                other => return other,
            }
        }
    }

    /// Copies the present append-only file, also of a running server: then its last command may be cut, which Redis
    /// tolerates.
    ///
    /// # Errors
    ///
    /// The file does not exist, or cannot be copied.
    pub fn copy(&self) -> io::Result<TempDir> {
        let to = tempfile::Builder::new()
            .prefix("duewheel-redis-copy-")
            .tempdir_in(self.settings.medium.above())?;
        copy_files(&self.folder.path().join(APPENDONLY), to.path())?;
        Ok(to)
    }

    /// Starts a server that does not run with a copy in place of its data.
    ///
    /// # Errors
    ///
    /// It runs, or the copy cannot be put there; otherwise see [`Redis::restart`].
    pub fn restart_from(&mut self, copy: &TempDir) -> io::Result<()> {
        if self.child.is_some() {
            return Err(io::Error::other("it runs"));
        }
        let own = self.folder.path().join(APPENDONLY);
        fs::remove_dir_all(&own)?;
        fs::create_dir(&own)?;
        copy_files(copy.path(), &own)?;
        self.restart()
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        let child = self.child.as_ref().ok_or_else(not_running)?;
        Ok(kill_process(Pid::from_child(child), signal)?)
    }

    fn spawn_and_wait(&mut self) -> io::Result<()> {
        let mut command = self.settings.command_of(self.folder.path(), self.port, self.clustered)?;
        let log = OpenOptions::new().create(true).append(true).open(self.log())?;
        let began = log.metadata()?.len();
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().map_err(|e| {
            io::Error::new(e.kind(), format!("{}: {e}", command.get_program().to_string_lossy()))
        })?;
        let (pid, address, log) = (child.id(), self.address(), self.log());
        let child = self.child.insert(child);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ended = child.try_wait()?;
            if ended.is_some() || Instant::now() >= deadline {
                let _ = child.kill();
                let _ = child.wait();
                self.child = None;
                let said = fs::read(log).unwrap_or_default();
                let from = usize::try_from(began).unwrap_or(0).min(said.len());
                let said = String::from_utf8_lossy(&said[from..]).into_owned();
                let kind = if said.contains("in use") { ErrorKind::AddrInUse } else { ErrorKind::TimedOut };
                return Err(io::Error::new(kind, format!("redis-server does not start: {said}")));
            }
            // Each check has a connection of its own: a server that loads answers `LOADING` and nothing else.
            let asked = match &self.certificates {
                None => Wire::open(address, QUESTION),
                Some(by) => Wire::open_tls(address, QUESTION, by),
            };
            let ready = asked.and_then(|mut wire| {
                wire.login(&self.settings.login)?;
                is_process(&mut wire, pid)
            });
            match ready {
                Ok(true) => return Ok(()),
                Ok(false) | Err(_) => std::thread::sleep(STEP),
            }
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // The process may be gone already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    for file in fs::read_dir(from)? {
        let file = file?;
        fs::copy(file.path(), to.join(file.file_name()))?;
    }
    Ok(())
}

fn not_running() -> io::Error {
    io::Error::new(ErrorKind::NotConnected, "redis-server does not run")
}

/// Whether the process with this id answers at this address, and has loaded its data. For servers without a password
/// that are children of other processes.
///
/// # Errors
///
/// No server answers within the time.
pub fn answers(address: SocketAddr, pid: u32, patience: Duration) -> io::Result<bool> {
    is_process(&mut Wire::open(address, patience.min(QUESTION))?, pid)
}

/// A server listens before it has read its log, and answers `LOADING` until then.
fn is_process(wire: &mut Wire, pid: u32) -> io::Result<bool> {
    let pong = wire.command(&["PING"])?;
    let info = wire.command(&["INFO", "server"])?;
    let ours = info.text().is_some_and(|text| text.contains(&format!("process_id:{pid}\r\n")));
    Ok(pong.text().as_deref() == Some("PONG") && ours)
}
