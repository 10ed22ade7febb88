//! The log store compared with a bare `write` + `fdatasync` of the same bytes.
//!
//! | contender | does |
//! |---|---|
//! | bare append | one `write` at the end of a growing file and one `fdatasync` for each group, the usual way |
//! | bare preallocated | the same into a file that has its size and has been written before |
//! | log, one by one | appends a group, requests a sync, waits until it is durable |
//! | log, pipelined | appends the next groups while the former one is being synced, with a limit in flight |
//!
//! The bare contenders write as many bytes as the journal does. All take turns in each round, each with a folder of its
//! own; the result is the median of the rounds. The log also puts every message into its table, as a server does.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use duewheel_bench::median;
use duewheel_bench::message::put;
use duewheel_core::record::{ClockPair, Group, Record};
use duewheel_core::store::Store;
use duewheel_core::store::conformance::Dice;
use duewheel_core::{Due, EngineMs, Lsn, MessageId, QueueName, WallMs};
use duewheel_store_log::{LogStore, Options};

/// Compares the log store with a bare write and fdatasync.
#[derive(Debug, Parser)]
struct Args {
    /// Messages in a group; may be given several times [default: 1, 100 and 1000]
    #[arg(long, value_name = "N")]
    group: Vec<usize>,
    /// Bytes of a message's body
    #[arg(long, value_name = "BYTES", default_value_t = 150)]
    body: usize,
    /// Each number is the median of so many rounds
    #[arg(long, value_name = "N", default_value_t = 9)]
    rounds: usize,
    /// Groups that may be appended and not yet durable
    #[arg(long, value_name = "N", default_value_t = 4)]
    in_flight: usize,
    /// Messages that each round appends at most; at most 4000 groups
    #[arg(long, value_name = "N", default_value_t = 400_000)]
    messages: usize,
    /// Messages that are pending before a round starts
    #[arg(long, value_name = "N", default_value_t = 0)]
    backlog: usize,
    /// Where the files are made; give a folder on the disk that counts
    #[arg(long, value_name = "DIR", default_value = "bench/out")]
    dir: PathBuf,
    /// Only the contenders whose name contains this
    #[arg(long, value_name = "NAME", default_value = "")]
    only: String,
}

const CONTENDERS: [&str; 4] = ["bare append", "bare preallocated", "log, one by one", "log, pipelined"];

pub(crate) fn main() {
    let args = crate::arguments::<Args>();
    std::fs::create_dir_all(&args.dir).expect("the folder can be made");
    println!("{}", duewheel_bench::machine::describe());
    println!(
        "settings bodies of {} bytes, due times random, {} pending at the start, median of {} rounds, {} groups in flight",
        args.body, args.backlog, args.rounds, args.in_flight
    );
    println!("folder   {}", args.dir.display());
    let groups = if args.group.is_empty() { vec![1, 100, 1000] } else { args.group.clone() };
    for size in groups {
        compare(&args, size);
    }
}

fn compare(args: &Args, size: usize) {
    let mut rates: [Vec<f64>; 4] = Default::default();
    let count = (args.messages / size).clamp(1, 4_000);
    let frame = frame_bytes(args, size);
    for round in 0..args.rounds {
        for turn in 0..CONTENDERS.len() {
            let who = (round + turn) % CONTENDERS.len();
            if !CONTENDERS[who].contains(&args.only) {
                continue;
            }
            let folder = tempfile::tempdir_in(&args.dir).expect("a folder");
            let took = match who {
                0 => bare(&folder.path().join("file"), frame, count, Prepared::Not),
                1 => bare(&folder.path().join("file"), frame, count, Prepared::Filled),
                2 => log(folder.path(), args, size, count, 1),
                _ => log(folder.path(), args, size, count, args.in_flight),
            };
            rates[who].push((size * count) as f64 / took.as_secs_f64());
        }
    }
    println!("\n{count} groups of {size}, {frame} bytes each");
    println!(
        "{:<20} {:>12} {:>12} {:>14} {:>20}",
        "", "messages/s", "us/group", "of bare append", "of bare preallocated"
    );
    let rates = rates.map(median);
    for (name, rate) in CONTENDERS.iter().zip(rates).filter(|(_, rate)| *rate > 0.0) {
        println!(
            "{name:<20} {:>12.0} {:>12.1} {:>14} {:>20}",
            rate,
            1e6 * size as f64 / rate,
            percent(rate, rates[0]),
            percent(rate, rates[1]),
        );
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Prepared {
    Not,
    Filled,
}

/// Writes and syncs `count` times.
fn bare(path: &Path, bytes: usize, count: usize, prepared: Prepared) -> Duration {
    let file = OpenOptions::new().create_new(true).write(true).open(path).expect("a file");
    if prepared == Prepared::Filled {
        fill(&file, bytes * count);
    }
    let frame: Vec<u8> = (0..=250).cycle().take(bytes).collect();
    let mut at = 0;
    let began = Instant::now();
    for _ in 0..count {
        file.write_all_at(&frame, at).expect("write");
        file.sync_data().expect("sync");
        at += bytes as u64;
    }
    began.elapsed()
}

fn fill(file: &File, bytes: usize) {
    let zeros = vec![0; 1 << 20];
    for at in (0..bytes).step_by(zeros.len()) {
        file.write_all_at(&zeros, at as u64).expect("fill");
    }
    file.sync_all().expect("sync");
}

/// Appends `count` groups of `size` messages, with at most `in_flight` of them not durable.
fn log(dir: &Path, args: &Args, size: usize, count: usize, in_flight: usize) -> Duration {
    let owner = thread::current();
    let waker = Arc::new(move || owner.unpark());
    let mut store = LogStore::open(dir.join("data"), Options::default(), waker).expect("open");
    let mut messages = Messages::new(args.body);
    for _ in 0..args.backlog.div_ceil(1000) {
        store.append(&messages.group(1000)).expect("append");
    }
    let groups: Vec<Group> = (0..count).map(|_| messages.group(size)).collect();
    wait(&mut store, groups[0].first.0 - 1);
    // The next segments are prepared in the background; those of a server are ready before it is busy.
    while figure(&store, "segments_made_total") + figure(&store, "segments_reused_total") < 2 {
        thread::sleep(Duration::from_millis(1));
    }
    let began = Instant::now();
    for (n, group) in groups.iter().enumerate() {
        store.append(group).expect("append");
        store.sync().expect("sync");
        if let Some(oldest) = (n + 1).checked_sub(in_flight) {
            wait(&mut store, groups[oldest].last().0);
        }
    }
    wait(&mut store, groups[count - 1].last().0);
    began.elapsed()
}

fn wait(store: &mut LogStore, lsn: u64) {
    store.sync().expect("sync");
    while store.progress().expect("progress").durable < Lsn(lsn) {
        thread::park();
    }
}

/// Bytes that the journal writes for a group.
fn frame_bytes(args: &Args, size: usize) -> usize {
    let folder = tempfile::tempdir_in(&args.dir).expect("a folder");
    let mut store = LogStore::open(folder.path(), Options::default(), Arc::new(|| {})).expect("open");
    store.append(&Messages::new(args.body).group(size)).expect("append");
    usize::try_from(figure(&store, "journal_written_bytes_total")).expect("small")
}

fn figure(store: &LogStore, name: &str) -> u64 {
    store.figures().into_iter().find(|(n, _)| *n == name).map_or(0, |(_, value)| value)
}

/// Makes messages with random due times within 48 hours.
struct Messages {
    dice: Dice,
    queue: QueueName,
    body: usize,
    lsn: u64,
}

impl Messages {
    fn new(body: usize) -> Self {
        Messages {
            dice: Dice::new(1),
            queue: QueueName::new("close-review").expect("a good name"),
            body,
            lsn: 1,
        }
    }

    fn group(&mut self, size: usize) -> Group {
        let clock = ClockPair { engine: EngineMs(self.lsn), wall: WallMs(1_700_000_000_000 + self.lsn) };
        let first = Lsn(self.lsn);
        let records = (0..size).map(|_| self.put(clock)).collect();
        Group { first, clock, records }
    }

    fn put(&mut self, clock: ClockPair) -> Record {
        let id = MessageId(self.lsn);
        self.lsn += 1;
        let due = Due::After(EngineMs(clock.engine.0 + self.dice.below(48 * 3_600_000)));
        put(id, &self.queue, self.body, due, clock.wall)
    }
}

fn percent(rate: f64, of: f64) -> String {
    if of > 0.0 { format!("{:.0} %", 100.0 * rate / of) } else { "-".into() }
}
