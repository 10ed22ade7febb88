//! The servers under test: processes of their own, each on a fresh folder.

use std::fmt;
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use duewheel_bench::process::{processor_time_of, resident_mib_of};
use tempfile::TempDir;

const BEANSTALKD: &str = "beanstalkd";
const DUEWHEEL_LINE: &str = "listening on beanstalk://";
/// The time limit of a server's start.
const START: Duration = Duration::from_secs(5);

/// The systems that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum System {
    /// beanstalkd that keeps nothing on the disk
    Beanstalkd,
    /// beanstalkd with a log that it syncs at each write (-f 0)
    BeanstalkdFsync,
    /// duewheel as it is by default
    Duewheel,
}

impl System {
    pub(crate) const ALL: [System; 3] = [System::Beanstalkd, System::BeanstalkdFsync, System::Duewheel];
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            System::Beanstalkd => "beanstalkd",
            System::BeanstalkdFsync => "beanstalkd fsync",
            System::Duewheel => "duewheel",
        })
    }
}

/// A running server. Killed when dropped, and its folder with it.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    // After the child: it is removed when nobody writes into it any more.
    _dir: TempDir,
}

impl Server {
    /// Starts one whose data lies below `dir`.
    pub(crate) fn start(system: System, dir: &Path) -> io::Result<Self> {
        let dir = TempDir::with_prefix_in("beanstalk-", dir)?;
        match system {
            System::Beanstalkd => Server::beanstalkd(dir, &[]),
            System::BeanstalkdFsync => Server::beanstalkd(dir, &["-f", "0", "-b", "."]),
            System::Duewheel => Server::duewheel(dir),
        }
    }

    fn beanstalkd(dir: TempDir, options: &[&str]) -> io::Result<Self> {
        // beanstalkd does not report a port that it has chosen, so it gets one that was free a moment ago.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let child = Command::new(BEANSTALKD)
            .args(["-l", &address.ip().to_string(), "-p", &address.port().to_string()])
            .args(options)
            .current_dir(dir.path())
            .spawn()
            .map_err(|error| io::Error::other(format!("cannot start {BEANSTALKD}: {error}")))?;
        let mut server = Server { child, address, _dir: dir };
        let since = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = server.child.try_wait()? {
                return Err(io::Error::other(format!("{BEANSTALKD} has ended: {status}")));
            }
            if since.elapsed() > START {
                return Err(io::Error::other(format!("{BEANSTALKD} does not listen")));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    fn duewheel(dir: TempDir) -> io::Result<Self> {
        let mut child = Command::new(duewheel_bench::server::binary()?)
            .args([
                "serve",
                "--log",
                "error",
                "--http",
                "127.0.0.1:0",
                "--beanstalk",
                "127.0.0.1:0",
                "--data",
            ])
            .arg(dir.path().join("data"))
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut server = Server { child, address: (Ipv4Addr::LOCALHOST, 0).into(), _dir: dir };
        let (tell, told) = channel();
        // Also keeps the pipe open and empty as long as the server lives.
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        server.address = beanstalk_address(&told)?;
        Ok(server)
    }

    /// Processor time so far, in steps of 10 ms.
    pub(crate) fn processor_time(&self) -> Duration {
        processor_time_of(self.child.id())
    }

    /// Memory of its own, in MiB.
    pub(crate) fn resident_mib(&self) -> u64 {
        resident_mib_of(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn beanstalk_address(lines: &Receiver<String>) -> io::Result<SocketAddr> {
    let until = Instant::now() + START;
    loop {
        let line = lines
            .recv_timeout(until.saturating_duration_since(Instant::now()))
            .map_err(|_| io::Error::other(format!("duewheel has not said {DUEWHEEL_LINE:?}")))?;
        if let Some(address) = line.strip_prefix(DUEWHEEL_LINE) {
            let address = address.trim().parse();
            return address.map_err(|_| io::Error::other(format!("no address in {line:?}")));
        }
    }
}

/// What `beanstalkd -v` says.
pub(crate) fn beanstalkd_version() -> String {
    let output = Command::new(BEANSTALKD).arg("-v").output();
    output.map_or_else(|_| "none".into(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
}

/// What `duewheel --version` says.
pub(crate) fn duewheel_version() -> String {
    let output =
        duewheel_bench::server::binary().and_then(|binary| Command::new(binary).arg("--version").output());
    output.map_or_else(|_| "none".into(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
}
