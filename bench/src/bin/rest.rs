//! What a server costs while it has nothing to do: how soon it is ready, its processor time, its memory, and its folder.
//!
//! `bench/run rest [--seconds 60] [--pending 10000000]`. The server is a process of its own on a new folder; then it
//! takes 175,000 messages, purges them, and rests for a minute. With `--pending` it is started once more on a folder
//! with so many messages that are due within 30 days.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use duewheel::Duewheel;
use duewheel::core::engine::{Enqueue, Op, When};
use duewheel::core::name::QueueName;
use duewheel_bench::process::{processor_time_of, resident_mib_of};
use duewheel_bench::submit::put_all;
use duewheel_judge::rng::scatter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc; // the server's

const DAYS_30: u64 = 30 * 24 * 3_600_000;
/// Messages that come and are purged.
const EMPTIED: u64 = 175_000;
/// Starts on a new folder; the median counts.
const STARTS: usize = 9;
/// Longest time until a server is ready.
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(Parser)]
struct Args {
    /// How long the server rests while its processor time is measured.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Messages that are pending at one more start; 0 leaves it out.
    #[arg(long, default_value_t = 0)]
    pending: u64,
    /// Where the folders are made.
    #[arg(long, default_value = "bench/out")]
    dir: PathBuf,
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    duewheel_bench::server::build()?;
    println!("{}", duewheel_bench::machine::describe());
    fs::create_dir_all(&args.dir)?;
    let folder = tempfile::tempdir_in(&args.dir)?;
    empty(&args, folder.path())?;
    emptied(&args, &folder.path().join("emptied"))?;
    if args.pending > 0 {
        pending(&args, &folder.path().join("pending"))?;
    }
    Ok(())
}

/// A server on a folder, which is killed when this is dropped.
struct Server {
    process: Child,
    address: String,
    /// From its start until it was ready.
    took: Duration,
}

impl Server {
    fn start(data: &Path) -> io::Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let began = Instant::now();
        let process = Command::new(duewheel_bench::server::binary()?)
            .arg("serve")
            .arg("--data")
            .arg(data)
            .args(["--http", &address, "--beanstalk", "off", "--log", "error"])
            .stdout(Stdio::null())
            .spawn()?;
        let mut server = Server { process, address, took: Duration::ZERO };
        while !matches!(server.request("GET", "/readyz"), Ok(200)) {
            if began.elapsed() > PATIENCE || server.process.try_wait()?.is_some() {
                return Err(io::Error::other("the server does not become ready"));
            }
            thread::sleep(Duration::from_micros(500));
        }
        server.took = began.elapsed();
        Ok(server)
    }

    /// Sends a request without a body, and returns the status of the answer.
    fn request(&self, method: &str, path: &str) -> io::Result<u16> {
        let mut stream = TcpStream::connect(&self.address)?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.address
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        status.ok_or_else(|| io::Error::other("an answer without a status"))
    }

    /// Rests for a while, and prints what that has cost.
    fn rest(&self, what: &str, seconds: u64) {
        let process = self.process.id();
        thread::sleep(Duration::from_secs(2)); // what follows a start is over
        let before = processor_time_of(process);
        thread::sleep(Duration::from_secs(seconds));
        let used = processor_time_of(process).saturating_sub(before);
        let percent = 100.0 * used.as_secs_f64() / seconds.max(1) as f64;
        let (own, all) = (resident_mib_of(process), resident_of(process));
        println!("{what:<22} {percent:.2} % of a core at rest, {own} MiB of its own and {all} MiB resident");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn empty(args: &Args, folder: &Path) -> io::Result<()> {
    let mut took = Vec::new();
    for n in 0..STARTS {
        took.push(Server::start(&folder.join(format!("start-{n}")))?.took);
    }
    took.sort_unstable();
    let (median, most) = (took[STARTS / 2].as_secs_f64() * 1e3, took[STARTS - 1].as_secs_f64() * 1e3);
    println!("{:<22} ready after {median:.0} ms (median of {STARTS}), {most:.0} ms at most", "empty folder");
    let data = folder.join("empty");
    let server = Server::start(&data)?;
    server.rest("empty folder", args.seconds);
    println!("{:<22} {:.1} MiB on the disk", "empty folder", on_disk(&data)?);
    Ok(())
}

fn emptied(args: &Args, data: &Path) -> io::Result<()> {
    fill(data, EMPTIED)?;
    let server = Server::start(data)?;
    println!("{:<22} {:.1} MiB on the disk", format!("{EMPTIED} messages"), on_disk(data)?);
    let status = server.request("POST", "/v1/queues/close-review/purge")?;
    if status != 200 {
        return Err(io::Error::other(format!("the purge was answered {status}")));
    }
    server.rest("purged", args.seconds.max(70));
    println!("{:<22} {:.1} MiB on the disk", "purged", on_disk(data)?);
    Ok(())
}

fn pending(args: &Args, data: &Path) -> io::Result<()> {
    let began = Instant::now();
    fill(data, args.pending)?;
    println!("{:<22} put in {:.0} s", format!("{} pending", args.pending), began.elapsed().as_secs_f64());
    for how in ["after a stop", "after a kill"] {
        let server = Server::start(data)?;
        let what = format!("{} pending", args.pending);
        println!("{what:<22} ready after {:.0} ms, {how}", server.took.as_secs_f64() * 1e3);
        server.rest(&what, args.seconds);
    }
    println!("{:<22} {:.1} MiB on the disk", "", on_disk(data)?);
    Ok(())
}

/// Puts messages of 150 bytes that are due within 30 days, and closes the folder.
fn fill(data: &Path, messages: u64) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let wheel = Duewheel::open(data).await.map_err(io::Error::other)?;
        let queue = QueueName::new("close-review").map_err(io::Error::other)?;
        let put = |n: u64| {
            let when = When::After(3_600_000 + scatter(n) % DAYS_30);
            Op::Enqueue(Box::new(Enqueue { when, ..Enqueue::new(queue.clone(), vec![b'.'; 150]) }))
        };
        put_all(wheel.client(), messages, put).await;
        wheel.shutdown(Duration::from_secs(60)).await.map_err(io::Error::other)
    })?;
    Ok(())
}

/// Resident memory of a process in MiB, with the pages of its binary.
fn resident_of(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

/// MiB that the disk has allocated for a folder.
fn on_disk(folder: &Path) -> io::Result<f64> {
    let mut bytes = 0.0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let of = entry.metadata()?;
        bytes += if of.is_dir() { on_disk(&entry.path())? } else { of.blocks() as f64 / 2_048.0 };
    }
    Ok(bytes)
}
