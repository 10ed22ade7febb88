//! The listener for beanstalkd's protocol compared with beanstalkd: the cost of a job, the duration of a put, and the
//! rate of a burst.
//!
//! One load generator of one thread drives all systems, on the cores of the servers; its cost is in the tables. The
//! systems take turns in each round, each measurement has a fresh server on a fresh folder, and a figure is the median
//! of the rounds. A figure alone means little; the ratios of one run are meaningful.

mod commands;
mod load;
mod measure;
mod replies;
mod report;
mod servers;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;

use commands::{Kind, NUMBER};
use measure::{Case, Figure, Measure, Run};
use servers::{Server, System};

/// Compares the listener for beanstalkd's protocol with beanstalkd.
#[derive(Clone, Debug, Parser)]
struct Args {
    /// One round of short runs, to see that it works
    #[arg(long)]
    quick: bool,
    /// Connections
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 50], value_parser = positive)]
    connections: Vec<usize>,
    /// Commands that a connection writes before it reads the replies
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 100], value_parser = positive)]
    depth: Vec<usize>,
    /// Bytes of a body
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    body: usize,
    /// Rounds; figures are medians of them [default: 3]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Seconds of a measurement [default: 1.5]
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Jobs of a burst, over 50 connections 100 deep
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    burst: u64,
    /// A burst that takes longer is cut off; its rate is that of the jobs it got to [default: 12]
    #[arg(long, value_name = "S")]
    burst_seconds: Option<f64>,
    /// Puts so many jobs into duewheel alone, over 50 connections 100 deep
    #[arg(long, value_name = "N")]
    sustained: Option<u64>,
    /// Only these runs
    #[arg(long, value_name = "RUN", value_delimiter = ',')]
    only: Vec<Run>,
    /// Only these systems
    #[arg(long, value_name = "SYSTEM", value_delimiter = ',')]
    system: Vec<System>,
    /// Where the servers' data lies, on a disk [default: beside this program]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

impl Args {
    fn wants(&self, run: Run) -> bool {
        self.only.is_empty() || self.only.contains(&run)
    }

    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 1 } else { 3 }).max(1)
    }

    fn measure(&self, dir: PathBuf) -> io::Result<Measure> {
        let time = |given: Option<f64>, quick: f64, full: f64| {
            let seconds = given.unwrap_or(if self.quick { quick } else { full });
            Duration::try_from_secs_f64(seconds).map_err(io::Error::other)
        };
        Ok(Measure {
            dir,
            body: self.body,
            time: time(self.seconds, 0.25, 1.5)?,
            burst: self.burst,
            burst_time: time(self.burst_seconds, 2.0, 12.0)?,
            drains: BTreeMap::new(),
        })
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for run in [Run::Put, Run::Delayed, Run::Reserve, Run::Mixed] {
            for &connections in &self.connections {
                let depths = self.depth.iter().map(|&depth| Case { run, connections, depth });
                cases.extend(depths.filter(|case| self.wants(case.run)));
            }
        }
        for run in [Run::Burst, Run::BurstDelayed] {
            cases.extend(self.wants(run).then_some(Case { run, connections: 50, depth: 100 }));
        }
        cases
    }
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "a number from 1 up".into())
}

pub(crate) fn main() -> io::Result<()> {
    let args = crate::arguments::<Args>();
    // A body has its number; a reply of beanstalkd has at most 65535 bytes of body.
    if !(NUMBER..=65_535).contains(&args.body) {
        return Err(io::Error::other(format!("--body: from {NUMBER} to 65535")));
    }
    let dir = args.dir.clone().map_or_else(beside_this, Ok)?;
    on_a_disk(&dir)?;
    let systems = systems(&args, &dir)?;
    println!("{}", duewheel_bench::machine::describe());
    println!("versions {}, {}", servers::beanstalkd_version(), servers::duewheel_version());
    let mut measure = args.measure(dir)?;
    println!(
        "settings {} rounds of {} s, bodies of {} bytes, data on disk; a burst ends after {} s; \
         load generator on the same machine, one thread\n",
        args.rounds(),
        measure.time.as_secs_f64(),
        args.body,
        measure.burst_time.as_secs_f64(),
    );

    let mut figures: BTreeMap<(Case, System), Vec<Figure>> = BTreeMap::new();
    let mut failed = Vec::new();
    for round in 0..args.rounds() {
        for case in args.cases() {
            for turn in 0..systems.len() {
                // The order of the systems changes from round to round.
                let system = systems[(turn + round) % systems.len()];
                let what = format!("round {} {system:16} {:22} {:8}", round + 1, case.run, case.shape());
                match measure.measure(case, system) {
                    Ok(figure) => {
                        eprintln!("{what} {figure}");
                        figures.entry((case, system)).or_default().push(figure);
                    }
                    Err(error) => {
                        eprintln!("{what} FAILED: {error}");
                        failed.push(format!("{what} {error}"));
                    }
                }
            }
        }
    }
    report::print(&figures, &systems, args.burst);

    if let Some(jobs) = args.sustained.filter(|_| args.wants(Run::Sustained))
        && systems.contains(&System::Duewheel)
    {
        let [ready, delayed] = [Kind::Ready, Kind::Delayed].map(|kind| measure.sustained(kind, jobs));
        report::print_sustained(jobs, &[("ready", ready?), ("delayed", delayed?)]);
    }
    for failure in &failed {
        println!("\nFAILED: {failure}");
    }
    if failed.is_empty() { Ok(()) } else { Err(io::Error::other("not every measurement came to its end")) }
}

/// The requested systems that start.
fn systems(args: &Args, dir: &Path) -> io::Result<Vec<System>> {
    let mut systems = System::ALL.to_vec();
    systems.retain(|system| args.system.is_empty() || args.system.contains(system));
    if systems.contains(&System::Duewheel) {
        duewheel_bench::server::build()?;
        if let Err(error) = Server::start(System::Duewheel, dir) {
            println!("DUEWHEEL IS LEFT OUT: {error}. Is the beanstalkd listener in this version?\n");
            systems.retain(|system| *system != System::Duewheel);
        }
    }
    Ok(systems)
}

fn beside_this() -> io::Result<PathBuf> {
    let dir = std::env::current_exe()?.with_file_name("beanstalk-data");
    std::fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// In memory, a sync costs nothing.
fn on_a_disk(dir: &Path) -> io::Result<()> {
    const TMPFS: i64 = 0x0102_1994;
    if rustix::fs::statfs(dir)?.f_type == TMPFS {
        return Err(io::Error::other(format!(
            "{} is in memory, so nothing there is durable; see --dir",
            dir.display()
        )));
    }
    Ok(())
}
