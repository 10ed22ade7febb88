//! The real beanstalkd, a private one for each test, and a small client of it.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::fixture::PATIENCE;

/// A running beanstalkd. Killed when dropped.
pub(crate) struct Beanstalkd {
    child: Child,
    pub(crate) address: String,
}

/// A connection to it.
pub(crate) struct Client {
    reader: BufReader<TcpStream>,
}

/// A free address that no other test is given, because beanstalkd cannot choose one itself.
///
/// Story: two tests found the same free port; the one whose beanstalkd could not have it looked whether its own answers,
/// and the statistics of the other one counted that.
pub(crate) fn free_address() -> SocketAddr {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    // Each process has an address of its own on the loopback interface, and never gives a port twice.
    let [.., high, low] = std::process::id().to_be_bytes();
    let own = Ipv4Addr::new(127, high, low, 1);
    loop {
        let free = TcpListener::bind((own, 0)).expect("bind").local_addr().expect("address");
        if GIVEN.lock().expect("ports").insert(free.port()) {
            return free;
        }
    }
}

impl Beanstalkd {
    pub(crate) fn start() -> Beanstalkd {
        Beanstalkd::start_with(&[])
    }

    /// With a binlog in this folder: its jobs survive a restart.
    pub(crate) fn start_on(binlog: &Path) -> Beanstalkd {
        Beanstalkd::start_with(&["-b", binlog.to_str().expect("path")])
    }

    /// Story: its port is open before it handles signals and has read its binlog. On a busy machine the signal of
    /// [`drain`](Self::drain) came between, and ended the process. So an answer is waited for.
    pub(crate) fn start_with(options: &[&str]) -> Beanstalkd {
        let begun = Instant::now();
        loop {
            let free = free_address();
            let spawned = Command::new("beanstalkd")
                .args(["-l", &free.ip().to_string(), "-p", &free.port().to_string()])
                .args(options)
                .stderr(Stdio::null())
                .spawn();
            let mut child = spawned.expect("install the Debian package beanstalkd; scripts/test does it");
            while child.try_wait().expect("wait").is_none() {
                if let Ok(stream) = TcpStream::connect(free) {
                    let mut client = Client::of(stream);
                    assert!(client.ask("list-tube-used").starts_with("USING "), "it answers");
                    return Beanstalkd { child, address: free.to_string() };
                }
                assert!(begun.elapsed() < PATIENCE, "beanstalkd does not listen");
                std::thread::sleep(Duration::from_millis(2));
            }
            assert!(begun.elapsed() < PATIENCE, "beanstalkd does not start with {options:?}");
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.address)
    }

    /// It takes nothing new from now on.
    pub(crate) fn drain(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-USR1", &pid]).status().expect("kill").success());
        let mut client = self.client();
        let begun = Instant::now();
        // Versions before 1.12 do not tell it in their stats.
        loop {
            let answer = client.ask("put 0 1000 1 0\r\n");
            if answer == "DRAINING" {
                return;
            }
            let id = answer.strip_prefix("INSERTED ").expect("id");
            assert_eq!(client.ask(&format!("delete {id}")), "DELETED");
            assert!(begun.elapsed() < PATIENCE, "it does not drain");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Jobs in any state.
    pub(crate) fn jobs(&self) -> u64 {
        let mut client = self.client();
        ["ready", "reserved", "delayed", "buried"]
            .iter()
            .map(|state| client.stats(&format!("current-jobs-{state}")).parse::<u64>().expect("number"))
            .sum()
    }
}

impl Drop for Beanstalkd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Client {
    pub(crate) fn connect(address: &str) -> Client {
        Client::of(TcpStream::connect(address).expect("connect"))
    }

    fn of(stream: TcpStream) -> Client {
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        Client { reader: BufReader::new(stream) }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).expect("write");
    }

    /// A line of an answer.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).expect("read");
        line.trim_end_matches("\r\n").to_owned()
    }

    /// A command that is answered by a line.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.send(format!("{command}\r\n").as_bytes());
        self.line()
    }

    /// The data behind the answer's line; none for `NOT_FOUND`.
    pub(crate) fn data(&mut self, command: &str) -> Option<Vec<u8>> {
        let line = self.ask(command);
        let size = line.rsplit(' ').next().and_then(|n| n.parse::<usize>().ok())?;
        let mut bytes = vec![0; size + 2];
        self.reader.read_exact(&mut bytes).expect("data");
        bytes.truncate(size);
        Some(bytes)
    }

    pub(crate) fn put(&mut self, tube: &str, priority: u32, delay: u32, ttr: u32, body: &[u8]) -> u64 {
        assert_eq!(self.ask(&format!("use {tube}")), format!("USING {tube}"));
        self.send(format!("put {priority} {delay} {ttr} {}\r\n", body.len()).as_bytes());
        self.send(body);
        let line = self.ask("");
        line.strip_prefix("INSERTED ").and_then(|id| id.parse().ok()).unwrap_or_else(|| panic!("{line}"))
    }

    /// Puts many into one tube, with the bodies `{what}{n}`.
    pub(crate) fn put_many(&mut self, tube: &str, delay: u32, what: &str, n: usize) -> Vec<u64> {
        self.ask(&format!("use {tube}"));
        let mut ids = Vec::new();
        for group in (0..n).collect::<Vec<_>>().chunks(500) {
            let put = |n: &usize| {
                let body = format!("{what}{n}");
                format!("put 100 {delay} 60 {}\r\n{body}\r\n", body.len())
            };
            self.send(group.iter().map(put).collect::<String>().as_bytes());
            for _ in group {
                let line = self.line();
                ids.push(line.strip_prefix("INSERTED ").and_then(|id| id.parse().ok()).expect("id"));
            }
        }
        ids
    }

    pub(crate) fn stats(&mut self, name: &str) -> String {
        let data = self.data("stats").expect("stats");
        member(&data, name).expect("member")
    }

    /// A member of a job's stats; none if there is no such job.
    pub(crate) fn job(&mut self, id: u64, name: &str) -> Option<String> {
        let data = self.data(&format!("stats-job {id}"))?;
        Some(member(&data, name).expect("member"))
    }
}

fn member(data: &[u8], name: &str) -> Option<String> {
    let text = std::str::from_utf8(data).expect("text");
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::to_owned)
}
