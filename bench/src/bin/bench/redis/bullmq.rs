//! BullMQ: its library runs in processes of Node, which `bench/peers/bullmq` describes.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use duewheel_redis_rig::Redis;
use serde::Deserialize;

use crate::redis::load::Outcome;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/bullmq");
const FILES: [&str; 3] = ["package.json", "package-lock.json", "bench.mjs"];
/// Jobs that a worker has in progress: 50 and 500 were not faster.
const CONCURRENCY: u64 = 200;

/// The library, installed.
#[derive(Clone, Debug)]
pub(crate) struct Bullmq {
    folder: PathBuf,
}

/// The output of a process, with its own processor time.
#[derive(Debug, Deserialize)]
struct ProcessReport {
    processor_s: f64,
    #[serde(default)]
    messages: u64,
    #[serde(default)]
    all: u64,
    #[serde(default)]
    seconds: f64,
    #[serde(default)]
    p50: f64,
    #[serde(default)]
    p99: f64,
    #[serde(default)]
    started_ms: f64,
    #[serde(default)]
    ended_ms: f64,
}

impl Bullmq {
    /// Installs the pinned versions below this folder, if they are not there.
    ///
    /// # Errors
    /// There is no npm, or no registry that it reaches.
    pub(crate) fn install(below: &Path) -> io::Result<Self> {
        let folder = below.join("bullmq");
        fs::create_dir_all(&folder)?;
        let lock = fs::read(Path::new(SOURCE).join("package-lock.json"))?;
        for file in FILES {
            fs::copy(Path::new(SOURCE).join(file), folder.join(file))?;
        }
        let done = folder.join("done");
        if fs::read(&done).ok().as_ref() != Some(&lock) {
            // `npm ci` refuses a lock file that leaves out what other systems would install.
            let npm = ["install", "--no-audit", "--no-fund", "--silent", "--ignore-scripts"];
            let status = Command::new("npm").args(npm).current_dir(&folder).stdout(Stdio::null()).status()?;
            if !status.success() {
                return Err(io::Error::other("npm install has failed"));
            }
            fs::write(done, lock)?;
        }
        Ok(Bullmq { folder })
    }

    /// Versions of the library, its client and Node.
    pub(crate) fn versions(&self) -> String {
        let of = |name: &str| {
            let text =
                fs::read_to_string(self.folder.join(format!("node_modules/{name}/package.json"))).ok()?;
            let package: serde_json::Value = serde_json::from_str(&text).ok()?;
            Some(package.get("version")?.as_str()?.to_owned())
        };
        let node = Command::new("node").arg("--version").output();
        let node =
            node.map_or_else(|_| "none".into(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned());
        let [bullmq, ioredis] = ["bullmq", "ioredis"].map(|name| of(name).unwrap_or_default());
        format!("bullmq {bullmq}, ioredis {ioredis}, node {node}")
    }

    /// Jobs due within an hour: so many calls under way, each for so many jobs. Also the processor time of its process.
    pub(crate) fn add(
        &self,
        redis: &Redis,
        (calls, bulk): (usize, usize),
        (time, body): (Duration, usize),
    ) -> io::Result<(Outcome, Duration)> {
        let seconds = time.as_secs_f64();
        let settings = format!(r#"{{"seconds":{seconds},"calls":{calls},"bulk":{bulk},"body":{body}}}"#);
        let said = last_line(self.start(redis, "add", &settings)?)?;
        let outcome = Outcome {
            messages: said.messages,
            seconds: said.seconds,
            all: said.all,
            p50_ms: said.p50,
            p99_ms: said.p99,
            seen: None,
        };
        Ok((outcome, Duration::from_secs_f64(said.processor_s)))
    }

    /// So many jobs, due after a while, while a worker completes them: from the first add to the last completion.
    pub(crate) fn through(
        &self,
        redis: &Redis,
        (calls, bulk): (usize, usize),
        (messages, delay_ms): (u64, u64),
        body: usize,
    ) -> io::Result<(Outcome, Duration)> {
        let settings = format!(r#"{{"messages":{messages},"concurrency":{CONCURRENCY},"body":{body}}}"#);
        let mut worker = self.start(redis, "work", &settings)?;
        let mut line = String::new();
        worker.out.read_line(&mut line)?;
        if line.trim() != "ready" {
            return Err(io::Error::other(format!("the worker said {line:?}")));
        }
        let settings = format!(
            r#"{{"messages":{messages},"calls":{calls},"bulk":{bulk},"delay_ms":{delay_ms},"body":{body}}}"#
        );
        let producer = last_line(self.start(redis, "produce", &settings)?)?;
        let worker = last_line(worker)?;
        let seconds = (worker.ended_ms - producer.started_ms) / 1e3;
        let outcome = Outcome { messages, seconds, all: messages, ..Outcome::default() };
        Ok((outcome, Duration::from_secs_f64(producer.processor_s + worker.processor_s)))
    }

    fn start(&self, redis: &Redis, what: &str, settings: &str) -> io::Result<Process> {
        let mut command = Command::new("node");
        command.current_dir(&self.folder).args(["bench.mjs", &redis.port().to_string(), what, settings]);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let out = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Process { child, out: BufReader::new(out) })
    }
}

/// A running process. Killed when dropped.
struct Process {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for its end.
fn last_line(mut process: Process) -> io::Result<ProcessReport> {
    let mut text = String::new();
    process.out.read_to_string(&mut text)?;
    let status = process.child.wait()?;
    let line = text.lines().last().unwrap_or_default();
    if !status.success() {
        return Err(io::Error::other(format!("node has ended with {status}: {line}")));
    }
    serde_json::from_str(line).map_err(|error| io::Error::other(format!("{error} in {line:?}")))
}
