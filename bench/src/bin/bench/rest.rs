//! What a server costs while it has nothing to do: the real server as a process, on an empty folder.
//!
//! `bench/run rest [--seconds 10] [--messages 175000] [--pending 0] [--queues 100] [--viewers 3]`. It is measured new, after messages
//! that were enqueued and acked, and after the rest that follows. With `--pending` another server is killed with so many
//! messages pending, and its next start is measured, and then what it costs that people look at its dashboard. Exits with
//! 1 if a target is missed, and names it.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use duewheel_bench::process::{processor_time_of, resident_mib_of};
use duewheel_bench::server::{ADDRESS, ANSWER, Connection, Server};
use serde_json::{Value, json};

/// Measures a server that has nothing to do.
#[derive(Debug, Parser)]
struct Args {
    /// How long the idle server is measured, each time.
    #[arg(long, value_name = "N", default_value_t = 10)]
    seconds: u64,
    /// Messages that are enqueued and acked between the measurements.
    #[arg(long, value_name = "N", default_value_t = 175_000)]
    messages: u64,
    /// Messages that are pending at the start that is measured last; none: no such start. The figure of the design is
    /// 100000000, a run of several minutes with some 20 GB of disk.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pending: u64,
    /// Queues that these messages are in.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    queues: u64,
    /// Viewers of the dashboard's overview while messages are pending: each reads the stream of figures, and asks for the
    /// histogram of all queues every five seconds and for all queues every three.
    #[arg(long, value_name = "N", default_value_t = 3)]
    viewers: usize,
    /// Where the folder is made; give a folder on the disk that counts.
    #[arg(long, value_name = "DIR", default_value = "bench/out")]
    dir: PathBuf,
}

const MIB: u64 = 1024 * 1024;
/// The targets.
const START_MS: f64 = 50.0;
const FOLDER_MIB: f64 = 64.0;
const RESIDENT_MIB: f64 = 30.0;
const PROCESSOR_PERCENT: f64 = 0.3;
/// The targets with messages pending: of the start, and of all viewers together.
const PENDING_START_MS: f64 = 1_000.0;
const VIEWERS_PERCENT: f64 = 1.0;
/// What the overview asks for again and again, and how often; of more than 1,000 queues it asks page by page, and seldom.
const LOOKS: [(&str, Duration); 2] =
    [("/v1/histogram?buckets=48", Duration::from_secs(5)), ("/v1/queues?limit=1000", Duration::from_secs(3))];

/// Longest time until a folder is small again: the server's rest is a minute.
const REST: Duration = Duration::from_secs(150);
/// Messages of one batch.
const BATCH: u64 = 1_000;

pub(crate) fn main() -> ExitCode {
    match run(&crate::arguments::<Args>()) {
        Ok(missed) if missed.is_empty() => ExitCode::SUCCESS,
        Ok(missed) => {
            for target in missed {
                eprintln!("missed: {target}");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("the measurement failed: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures, prints the table, and returns the targets that are missed.
fn run(args: &Args) -> io::Result<Vec<String>> {
    duewheel_bench::server::build()?;
    std::fs::create_dir_all(&args.dir)?;
    println!("{}", duewheel_bench::machine::describe());
    println!("idle for {} s each; resident: memory of its own, without pages of the program\n", args.seconds);
    println!("| server | start to ready ms | folder MiB | resident MiB | % of a core |");
    println!("|---|--:|--:|--:|--:|");
    let mut missed = Vec::new();
    let folder = tempfile::tempdir_in(&args.dir)?;
    let data = folder.path().join("data");
    let idle = Duration::from_secs(args.seconds);

    let (mut server, start) = start_on(&data, ADDRESS)?;
    let new = Seen { start: Some(start), ..Seen::of(&server, &data, idle)? };
    new.report("new, idle", &mut missed);
    if args.messages > 0 {
        enqueue(&mut server, args.messages, 800, 0, 1)?;
        ack(&mut server, args.messages)?;
        let what = format!("after {} messages were enqueued and acked", args.messages);
        println!("{}", Seen::of(&server, &data, Duration::ZERO)?.row(&what));
        let deadline = Instant::now() + REST;
        while folder_mib(&data)? > FOLDER_MIB && Instant::now() < deadline {
            thread::sleep(Duration::from_secs(1));
        }
        Seen::of(&server, &data, idle)?.report("after the rest, idle", &mut missed);
    }
    server.kill();
    if args.pending > 0 {
        let data = folder.path().join("pending");
        let (mut server, _) = start_on(&data, ADDRESS)?;
        enqueue(&mut server, args.pending, 100, 24 * 3_600_000, args.queues)?;
        server.kill();
        let limit = ADDRESS + Duration::from_millis(args.pending / 10);
        let (server, start) = start_on(&data, limit)?;
        let seen = Seen { start: Some(start), ..Seen::of(&server, &data, idle)? };
        let what = format!("killed and started again with {} pending", args.pending);
        println!("{}", seen.row(&what));
        miss(&mut missed, &what, &[("start to ready, ms", 1e3 * start.as_secs_f64(), PENDING_START_MS)]);
        if args.viewers > 0 {
            let viewers: Vec<Viewer> =
                (0..args.viewers).map(|_| Viewer::begin(server.address)).collect::<io::Result<_>>()?;
            let seen = Seen::of(&server, &data, idle)?;
            let what = format!("the same, {} viewers of the dashboard", args.viewers);
            println!("{}", seen.row(&what));
            miss(&mut missed, &what, &[("% of a core", seen.percent.unwrap_or(0.0), VIEWERS_PERCENT)]);
            let events = viewers.into_iter().map(Viewer::end).collect::<io::Result<Vec<u64>>>()?;
            // A stream that is silent costs nothing, and would be no measurement.
            if events.iter().any(|events| *events < args.seconds / 2) {
                return Err(io::Error::other(format!("the streams had only {events:?} events")));
            }
        }
    }
    Ok(missed)
}

/// What a server costs.
#[derive(Clone, Copy, Debug)]
struct Seen {
    start: Option<Duration>,
    folder_mib: f64,
    resident_mib: f64,
    /// Of a core, if it was measured.
    percent: Option<f64>,
}

impl Seen {
    /// Measured for so long.
    fn of(server: &Server, data: &Path, time: Duration) -> io::Result<Self> {
        let (began, before) = (Instant::now(), processor_time_of(server.process()));
        thread::sleep(time);
        let used = processor_time_of(server.process()).saturating_sub(before);
        let percent = 100.0 * used.as_secs_f64() / began.elapsed().as_secs_f64();
        Ok(Seen {
            start: None,
            folder_mib: folder_mib(data)?,
            resident_mib: resident_mib_of(server.process()) as f64,
            percent: (!time.is_zero()).then_some(percent),
        })
    }

    fn row(&self, what: &str) -> String {
        let or_none = |value: Option<f64>, digits| value.map_or(String::new(), |v| format!("{v:.digits$}"));
        format!(
            "| {what} | {} | {:.1} | {:.0} | {} |",
            or_none(self.start.map(|start| 1e3 * start.as_secs_f64()), 0),
            self.folder_mib,
            self.resident_mib,
            or_none(self.percent, 2),
        )
    }

    /// Prints the row, and adds the targets that it misses.
    fn report(&self, what: &str, missed: &mut Vec<String>) {
        println!("{}", self.row(what));
        let start_ms = self.start.map_or(0.0, |start| 1e3 * start.as_secs_f64());
        let measured = [
            ("start to ready, ms", start_ms, START_MS),
            ("folder, MiB", self.folder_mib, FOLDER_MIB),
            ("resident, MiB", self.resident_mib, RESIDENT_MIB),
            ("% of a core", self.percent.unwrap_or(0.0), PROCESSOR_PERCENT),
        ];
        miss(missed, what, &measured);
    }
}

/// Adds the targets that are missed, of triples of a name, a value and the most that it may be.
fn miss(missed: &mut Vec<String>, what: &str, measured: &[(&str, f64, f64)]) {
    let over = measured.iter().filter(|(_, value, most)| value > most);
    missed.extend(over.map(|(name, value, most)| format!("{what}: {name}: {value:.2}, target {most}")));
}

/// The overview of the dashboard in a browser: reads the stream of figures, and asks for the rest now and then.
struct Viewer {
    stream: TcpStream,
    reader: thread::JoinHandle<u64>,
    looks: thread::JoinHandle<io::Result<()>>,
    is_over: Arc<AtomicBool>,
}

impl Viewer {
    fn begin(address: SocketAddr) -> io::Result<Viewer> {
        let mut stream = TcpStream::connect_timeout(&address, ANSWER)?;
        stream.write_all(
            b"GET /v1/stats/stream HTTP/1.1\r\nhost: bench\r\naccept: text/event-stream\r\n\r\n",
        )?;
        let lines = BufReader::new(stream.try_clone()?);
        // It ends with the stream.
        let reader = thread::spawn(move || {
            let lines = lines.lines().map_while(Result::ok);
            lines.filter(|line| line.starts_with("data: ")).count() as u64
        });
        let is_over = Arc::new(AtomicBool::new(false));
        let looks = thread::spawn({
            let is_over = is_over.clone();
            move || {
                let mut client = Connection::new(address);
                let mut next = LOOKS.map(|_| Instant::now());
                while !is_over.load(Ordering::Relaxed) {
                    for ((path, pause), next) in LOOKS.iter().zip(&mut next) {
                        if Instant::now() >= *next {
                            let (status, _) = client.call("GET", path, "", "")?;
                            if status != 200 {
                                return Err(io::Error::other(format!("{path} is answered {status}")));
                            }
                            *next += *pause;
                        }
                    }
                    thread::sleep(Duration::from_millis(100));
                }
                Ok(())
            }
        });
        Ok(Viewer { stream, reader, looks, is_over })
    }

    /// Closes it; the number of events that it has read.
    fn end(self) -> io::Result<u64> {
        self.is_over.store(true, Ordering::Relaxed);
        let lost = |_| io::Error::other("a viewer has panicked");
        self.looks.join().map_err(lost)??;
        self.stream.shutdown(Shutdown::Both)?;
        self.reader.join().map_err(lost)
    }
}

/// Bytes that the disk has allocated for a folder, in MiB.
fn folder_mib(dir: &Path) -> io::Result<f64> {
    Ok(allocated(dir)? as f64 / MIB as f64)
}

fn allocated(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        match entry.metadata() {
            Ok(of) if of.is_dir() => bytes += allocated(&entry.path())?,
            Ok(of) => bytes += of.blocks() * 512,
            // The server has removed it meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// Starts a server on a data folder.
fn start_on(data: &Path, limit: Duration) -> io::Result<(Server, Duration)> {
    Server::start([OsStr::new("--data"), data.as_os_str()], limit)
}

/// Messages with bodies of so many bytes, due after so many ms, spread over so many queues. `rest` is the first one.
fn enqueue(server: &mut Server, messages: u64, body: usize, delay_ms: u64, queues: u64) -> io::Result<()> {
    let most = BATCH.min(messages.div_ceil(queues));
    let (mut left, mut queue) = (messages, 0);
    while left > 0 {
        let batch = left.min(most);
        let line = json!({ "body": "x".repeat(body), "delay_ms": delay_ms }).to_string() + "\n";
        let lines = line.repeat(usize::try_from(batch).expect("few"));
        let name = if queue == 0 { "rest".to_owned() } else { format!("rest-{queue}") };
        server.ask(&format!("/v1/queues/{name}/messages"), "application/x-ndjson", &lines)?;
        queue = (queue + 1) % queues;
        left -= batch;
    }
    Ok(())
}

/// Reserves and acks so many messages.
fn ack(server: &mut Server, messages: u64) -> io::Result<()> {
    let (mut left, mut empty) = (messages, 0);
    while left > 0 {
        let wanted = json!({ "max": BATCH, "wait_ms": 1_000 }).to_string();
        let answer = server.ask("/v1/queues/rest/reserve", "application/json", &wanted)?;
        let answer: Value = serde_json::from_str(&answer)?;
        let granted = answer["messages"].as_array().map_or(&[][..], Vec::as_slice);
        empty = if granted.is_empty() { empty + 1 } else { 0 };
        if empty > 30 {
            return Err(io::Error::other(format!("{left} messages are not granted")));
        }
        let acks: Vec<_> = granted
            .iter()
            .map(|message| json!({ "id": message["id"], "lease_token": message["lease_token"] }))
            .collect();
        if !acks.is_empty() {
            server.ask("/v1/ack", "application/json", &json!({ "messages": acks }).to_string())?;
        }
        left = left.saturating_sub(granted.len() as u64);
    }
    Ok(())
}
