//! A running server: Debian's beanstalkd or ours, each a private process that dies with the test.

use std::io::{BufRead, BufReader, ErrorKind};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::wire::{Address, Connection, Heard};
use crate::beanstalkd::free_address;
use crate::fixture::PATIENCE;
use crate::process::BINARY;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Theirs,
    Ours,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Setup {
    Tcp,
    Unix,
    /// Over TCP, with bodies of at most 10 bytes.
    SmallJobs,
}

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) kind: Kind,
    setup: Setup,
    child: Child,
    address: Address,
    folder: TempDir,
    /// For the test's own questions, so that they are not mixed with the transcript's.
    control: Connection,
    pub(crate) asked: Asked,
}

/// How often the test itself has asked; the server counts these too.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) stats: u64,
    pub(crate) stats_tube: u64,
}

/// By `answers`.
const ASKED_FIRST: Asked = Asked { stats: 1, stats_tube: 0 };

impl Server {
    pub(crate) fn start(kind: Kind, setup: Setup) -> Server {
        let folder = TempDir::new().expect("folder");
        let (child, address, control) = spawn(kind, setup, folder.path());
        Server { kind, setup, child, address, folder, control, asked: ASKED_FIRST }
    }

    pub(crate) fn connect(&self) -> Connection {
        Connection::open(&self.address).expect("connect")
    }

    /// A signal by name, `-USR1`.
    pub(crate) fn signal(&self, name: &str) {
        let killed = Command::new("kill").args([name, &self.child.id().to_string()]).status().expect("kill");
        assert!(killed.success());
    }

    /// Ends it by this signal and starts it again on the same folder.
    pub(crate) fn restart(&mut self, signal: &str) {
        self.signal(signal);
        let begun = Instant::now();
        while self.child.try_wait().expect("wait").is_none() {
            assert!(begun.elapsed() < PATIENCE, "the process does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        (self.child, self.address, self.control) = spawn(self.kind, self.setup, self.folder.path());
        self.asked = ASKED_FIRST;
    }

    /// A field of `stats`, or of `stats-tube` if a tube is named; none if there is no such tube.
    pub(crate) fn field(&mut self, tube: Option<&str>, field: &str) -> Option<String> {
        let question = match tube {
            Some(tube) => format!("stats-tube {tube}\r\n"),
            None => "stats\r\n".to_owned(),
        };
        self.control.send(question.as_bytes());
        let reply = match self.control.receive(PATIENCE) {
            Heard::Reply(reply) => String::from_utf8(reply).expect("text"),
            other => panic!("{:?} answers {question:?} with {other:?}", self.kind),
        };
        match tube {
            // A refused question is counted as well.
            Some(_) => self.asked.stats_tube += 1,
            None => self.asked.stats += 1,
        }
        let value = reply.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(": "));
        value.map(str::to_owned)
    }

    /// Asks again until the field has this value.
    pub(crate) fn until(&mut self, tube: Option<&str>, field: &str, value: &str) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            let seen = self.field(tube, field);
            if seen.as_deref() == Some(value) {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("{:?}: {tube:?} {field} is {seen:?} and not {value}", self.kind));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(kind: Kind, setup: Setup, folder: &Path) -> (Child, Address, Connection) {
    match kind {
        Kind::Theirs => spawn_theirs(setup, folder),
        Kind::Ours => spawn_ours(setup, folder),
    }
}

/// beanstalkd cannot choose a port and does not say when it is ready. So a free one is looked for, and the process that
/// answers there must be the one that was started.
fn spawn_theirs(setup: Setup, folder: &Path) -> (Child, Address, Connection) {
    let socket = folder.join("theirs.sock");
    let program = std::env::var("DUEWHEEL_BEANSTALKD").unwrap_or_else(|_| "beanstalkd".to_owned());
    for _ in 0..20 {
        let mut command = Command::new(&program);
        let address = match setup {
            Setup::Tcp | Setup::SmallJobs => {
                let free = free_address();
                command.args(["-l", &free.ip().to_string(), "-p", &free.port().to_string()]);
                Address::Tcp(free.to_string())
            }
            Setup::Unix => {
                command.arg("-l").arg(format!("unix:{}", socket.display()));
                Address::Unix(socket.clone())
            }
        };
        if let Setup::SmallJobs = setup {
            command.args(["-z", "10"]);
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                panic!("no {program}: install the Debian package beanstalkd; scripts/test does it")
            }
            Err(e) => panic!("{program}: {e}"),
        };
        if let Some(control) = answers(&mut child, &address) {
            return (child, address, control);
        }
        let _ = child.kill();
        let _ = child.wait();
    }
    panic!("{program} does not get to answer");
}

/// Waits until this process answers, and keeps the connection; none if it has ended or another one has its port.
fn answers(child: &mut Child, address: &Address) -> Option<Connection> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Ok(mut connection) = Connection::open(address) {
            connection.send(b"stats\r\n");
            let Heard::Reply(reply) = connection.receive(PATIENCE) else { return None };
            let pid = format!("\npid: {}\n", child.id());
            if !String::from_utf8_lossy(&reply).contains(&pid) {
                return None;
            }
            // So that the test's own connection does not hold the tube `default`.
            connection.send(b"use control\r\nwatch control\r\nignore default\r\n");
            let heard = (0..3).all(|_| matches!(connection.receive(PATIENCE), Heard::Reply(_)));
            return heard.then_some(connection);
        }
        if child.try_wait().expect("wait").is_some() {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    None
}

fn spawn_ours(setup: Setup, folder: &Path) -> (Child, Address, Connection) {
    let listen = match setup {
        Setup::Tcp | Setup::SmallJobs => "127.0.0.1:0".to_owned(),
        Setup::Unix => format!("unix:{}", folder.join("ours.sock").display()),
    };
    let mut limit: &[&str] = &[];
    if let Setup::SmallJobs = setup {
        limit = &["--beanstalk-max-job-size", "10"];
    }
    let mut child = Command::new(BINARY)
        .args(["serve", "--http", "127.0.0.1:0", "--beanstalk", &listen, "--data"])
        .arg(folder.join("data"))
        .args(limit)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("spawn");
    let out = BufReader::new(child.stdout.take().expect("stdout"));
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for line in out.lines().map_while(Result::ok) {
            let _ = tell.send(line);
        }
    });
    let until = Instant::now() + PATIENCE;
    let address = loop {
        let left = until.saturating_duration_since(Instant::now());
        let Ok(line) = told.recv_timeout(left) else {
            let _ = child.kill();
            let _ = child.wait();
            panic!("no line `listening on beanstalk…` in time");
        };
        if let Some(at) = line.strip_prefix("listening on beanstalk://") {
            break Address::Tcp(at.to_owned());
        }
        if let Some(path) = line.strip_prefix("listening on beanstalk+unix:") {
            break Address::Unix(path.into());
        }
    };
    let control =
        answers(&mut child, &address).unwrap_or_else(|| panic!("not our own server at {address:?}"));
    (child, address, control)
}
