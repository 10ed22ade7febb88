//! duewheel's nodes: processes of their own, without a folder for data.

use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use duewheel_bench::process::processor_time_of;
use tempfile::TempDir;

/// The time limit of a node's start.
const START: Duration = Duration::from_secs(30);

/// A running node. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Node {
    child: Child,
    pub(crate) http: SocketAddr,
    pub(crate) beanstalk: SocketAddr,
    _dir: TempDir,
}

/// The cluster of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fellows {
    /// A store without nodes and shards.
    OwnLog,
    /// The only node, with this number of shards.
    Alone { shards: u32 },
    /// One of several nodes that share this number of shards.
    Several { number: usize, shards: u32 },
}

impl Node {
    /// Starts one on a Redis.
    pub(crate) fn start(store: &str, fellows: Fellows) -> io::Result<Self> {
        let dir = tempfile::tempdir()?;
        let mut command = Command::new(duewheel_bench::server::binary()?);
        command.current_dir(dir.path()).args(["serve", "--log", "error", "--store", store]);
        command.args(["--http", "127.0.0.1:0", "--beanstalk", "127.0.0.1:0"]);
        match fellows {
            Fellows::OwnLog => &mut command,
            Fellows::Alone { shards } => command.args(["--shards", &shards.to_string()]),
            Fellows::Several { number, shards } => {
                let port = duewheel_redis_rig::free_port()?;
                command
                    .args(["--shards", &shards.to_string(), "--node", &format!("n{number}")])
                    .args(["--advertise", &format!("127.0.0.1:{port}")])
            }
        };
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let out = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let nowhere = (Ipv4Addr::LOCALHOST, 0).into();
        let mut node = Node { child, http: nowhere, beanstalk: nowhere, _dir: dir };
        let (tell, told) = channel();
        // Also keeps the pipe open and empty as long as the node lives.
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        let until = Instant::now() + START;
        while node.http.port() == 0 || node.beanstalk.port() == 0 {
            node.hear(&told, until)?;
        }
        Ok(node)
    }

    fn hear(&mut self, told: &Receiver<String>, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        let line = told
            .recv_timeout(left)
            .map_err(|_| io::Error::other("duewheel has not said where it listens"))?;
        let address = line.rsplit('/').next().and_then(|address| address.trim().parse().ok());
        match (line.strip_prefix("listening on "), address) {
            (Some(rest), Some(address)) if rest.starts_with("http://") => self.http = address,
            (Some(rest), Some(address)) if rest.starts_with("beanstalk://") => self.beanstalk = address,
            _ => {}
        }
        Ok(())
    }

    /// Processor time so far, in steps of 10 ms.
    pub(crate) fn processor_time(&self) -> Duration {
        processor_time_of(self.child.id())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
