//! duewheel on Redis compared with the usual home-made queue and BullMQ on the same Redis; one node compared with three
//! on a Redis Cluster.
//!
//! One load generator of one thread drives all systems but BullMQ, whose library has processes of Node; all of it runs
//! on the cores of the servers. The systems take turns in each round, each measurement has a fresh Redis with an
//! append-only file, and a figure is the median of the rounds. Rates of a busy machine mean little, their ratios more,
//! and the processor time of a message is the basis of models.

mod backend;
mod bullmq;
mod consumer;
mod homemade;
mod line;
mod load;
mod measure;
mod node;
mod parts;
mod producer;
mod report;
mod resp;
mod store;
mod system;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use clap::Parser;

use backend::{Backend, Fsync};
use bullmq::Bullmq;
use measure::{Case, Figure, Measure};
use node::{Fellows, Node};
use producer::{DUE_DIGITS, NUMBER_DIGITS};
use system::{Run, System};

/// Compares duewheel on Redis with the usual home-made queue and with BullMQ.
#[derive(Clone, Debug, Parser)]
struct Args {
    /// One round of short runs, to see that it works
    #[arg(long)]
    quick: bool,
    /// Rounds; figures are medians of them [default: 3]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Seconds of a measurement of enqueues [default: 3]
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// When Redis syncs its append-only file
    #[arg(long, value_name = "WHEN", value_delimiter = ',', default_values = ["everysec", "always"])]
    fsync: Vec<Fsync>,
    /// Bytes of a body
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    body: usize,
    /// Connections of the run with one message at a time
    #[arg(long, value_name = "N", default_value_t = 50)]
    singles: usize,
    /// Consumers
    #[arg(long, value_name = "N", default_value_t = 4)]
    consumers: usize,
    /// Messages from end to end; BullMQ gets a tenth of them [default: 200000]
    #[arg(long, value_name = "N")]
    messages: Option<u64>,
    /// Messages that come due a second in the run of lateness
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    due_rate: u64,
    /// Only these runs
    #[arg(long, value_name = "RUN", value_delimiter = ',')]
    only: Vec<Run>,
    /// Only these systems
    #[arg(long, value_name = "SYSTEM", value_delimiter = ',')]
    system: Vec<System>,
    /// Where the data of Redis lies, on a disk, and BullMQ is installed [default: beside this program]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

impl Args {
    fn measure(&self, bullmq: Option<Bullmq>) -> io::Result<Measure> {
        let messages = self.messages.unwrap_or(if self.quick { 20_000 } else { 200_000 });
        let seconds = self.seconds.unwrap_or(if self.quick { 0.5 } else { 3.0 });
        Ok(Measure {
            time: Duration::try_from_secs_f64(seconds).map_err(io::Error::other)?,
            body: self.body,
            singles: self.singles,
            consumers: self.consumers,
            messages,
            jobs: messages / 10,
            due_rate: self.due_rate,
            due_time: Duration::from_secs(if self.quick { 2 } else { 10 }),
            bullmq,
        })
    }

    fn cases(&self, left_out: impl Fn(System) -> bool) -> Vec<Case> {
        let mut cases = Vec::new();
        for run in Run::ALL.into_iter().filter(|run| self.only.is_empty() || self.only.contains(run)) {
            for &fsync in &self.fsync {
                // Its own log is synced before each answer, whatever Redis does.
                let systems = run.systems().iter().copied();
                let systems = systems.filter(|s| *s != System::NdjsonLog || fsync == Fsync::Always);
                let wanted = systems.filter(|s| self.system.is_empty() || self.system.contains(s));
                cases.extend(wanted.filter(|s| !left_out(*s)).map(|system| Case { run, fsync, system }));
            }
        }
        cases
    }
}

pub(crate) fn main() -> io::Result<()> {
    let args = crate::arguments::<Args>();
    if args.body < DUE_DIGITS + NUMBER_DIGITS {
        return Err(io::Error::other(format!("--body: at least {}", DUE_DIGITS + NUMBER_DIGITS)));
    }
    let dir = args.dir.clone().map_or_else(beside_this, Ok)?;
    on_a_disk(&dir)?;
    // The rig creates the folders of its servers there.
    tempfile::env::override_temp_dir(&dir)
        .map_err(|other| io::Error::other(format!("the folder is {} already", other.display())))?;
    println!("{}", duewheel_bench::machine::describe());

    let all = args.cases(|_| false);
    let bullmq = if all.iter().any(|case| case.system.is_bullmq()) {
        Bullmq::install(&dir).inspect_err(|error| println!("BULLMQ IS LEFT OUT: {error}")).ok()
    } else {
        None
    };
    let ours = if all.iter().any(|case| case.system.is_duewheel()) {
        starts().inspect_err(|error| println!("DUEWHEEL IS LEFT OUT: {error}")).is_ok()
    } else {
        false
    };
    let cases = args.cases(|system| {
        system.is_bullmq() && bullmq.is_none() || system.is_duewheel() && system != System::NdjsonLog && !ours
    });
    let versions = bullmq.as_ref().map(|bullmq| format!("; {}", bullmq.versions())).unwrap_or_default();
    println!("versions {}{versions}", redis_version());
    let measure = args.measure(bullmq)?;
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { 3 }).max(1);
    println!(
        "settings {rounds} rounds of {} s, bodies of {} bytes; pipelined {} connections x {}, one by one {} connections; \
         end to end {} messages ({} for BullMQ) after {} ms; {} due/s for {} s",
        measure.time.as_secs_f64(),
        measure.body,
        measure::PIPELINED.connections,
        measure::PIPELINED.depth,
        measure.singles,
        measure.messages,
        measure.jobs,
        measure::DELAY_MS,
        measure.due_rate,
        measure.due_time.as_secs(),
    );

    let mut figures: BTreeMap<Case, Vec<Figure>> = BTreeMap::new();
    let mut failed = Vec::new();
    for round in 0..rounds {
        for turn in 0..cases.len() {
            // The order of the systems changes from round to round.
            let case = cases[if round % 2 == 0 { turn } else { cases.len() - 1 - turn }];
            let what = format!("round {} {:18} {:8} {:31}", round + 1, case.run, case.fsync, case.system);
            match measure.measure(case) {
                Ok(figure) => {
                    eprintln!("{what} {figure}");
                    figures.entry(case).or_default().push(figure);
                }
                Err(error) => {
                    eprintln!("{what} FAILED: {error}");
                    failed.push(format!("{what} {error}"));
                }
            }
        }
    }
    report::print(&figures);
    for failure in &failed {
        println!("\nFAILED: {failure}");
    }
    if failed.is_empty() { Ok(()) } else { Err(io::Error::other("not every measurement came to its end")) }
}

/// Whether the server of this version has Redis as a store.
fn starts() -> io::Result<()> {
    duewheel_bench::server::build()?;
    let backend = Backend::one(Fsync::Everysec)?;
    Node::start(&backend.url(), Fellows::Alone { shards: 1 }).map(|_| ())
}

fn beside_this() -> io::Result<PathBuf> {
    let dir = std::env::current_exe()?.with_file_name("redis-data");
    std::fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// In memory, a sync costs nothing.
fn on_a_disk(dir: &std::path::Path) -> io::Result<()> {
    const TMPFS: i64 = 0x0102_1994;
    if rustix::fs::statfs(dir)?.f_type == TMPFS {
        return Err(io::Error::other(format!("{} is in memory; see --dir", dir.display())));
    }
    Ok(())
}

fn redis_version() -> String {
    let output = Command::new(duewheel_redis_rig::program()).arg("--version").output();
    let text = output.map_or_else(|_| "none".into(), |o| String::from_utf8_lossy(&o.stdout).into_owned());
    text.split(" sha=").next().unwrap_or_default().to_owned()
}
