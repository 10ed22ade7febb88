//! One measurement: a fresh server, a load, and the cost of both.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use duewheel_bench::process::processor_time;

use crate::beanstalk::commands::{Commands, Kind};
use crate::beanstalk::load::{Done, Limit, Load, Work};
use crate::beanstalk::servers::{Server, System};

/// Connections and depth of work that is not measured.
const FILL: (usize, usize) = (50, 100);
/// How long such work warms up a measurement.
const WARM_UP: Duration = Duration::from_millis(100);
/// The time limit of a drain, which is exceeded only if jobs are missing.
const DRAIN: Duration = Duration::from_secs(60);

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Run {
    /// Puts jobs that are ready at once
    Put,
    /// Puts jobs with an hour's delay
    Delayed,
    /// Reserves and deletes jobs that were put before
    Reserve,
    /// Puts, reserves and deletes
    Mixed,
    /// Puts a burst of jobs that are ready at once
    Burst,
    /// Puts a burst of jobs with an hour's delay
    BurstDelayed,
    /// Puts very many jobs, if --sustained says how many
    Sustained,
}

impl Run {
    fn kind(self) -> Kind {
        match self {
            Run::Delayed | Run::BurstDelayed => Kind::Delayed,
            Run::Put | Run::Reserve | Run::Mixed | Run::Burst | Run::Sustained => Kind::Ready,
        }
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Run::Put => "put",
            Run::Delayed => "put, delayed",
            Run::Reserve => "reserve + delete",
            Run::Mixed => "put + reserve + delete",
            Run::Burst => "burst",
            Run::BurstDelayed => "burst, delayed",
            Run::Sustained => "sustained",
        })
    }
}

/// A row of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Case {
    pub(crate) run: Run,
    pub(crate) connections: usize,
    pub(crate) depth: usize,
}

impl Case {
    /// Connections and depth.
    pub(crate) fn shape(self) -> String {
        format!("{} x {}", self.connections, self.depth)
    }
}

/// The result of a measurement.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) jobs: u64,
    pub(crate) seconds: f64,
    /// Reserves without a job.
    pub(crate) empty: u64,
    /// Of a group of puts, in microseconds: median, 90 %, 99 %.
    pub(crate) put_us: [f64; 3],
    /// Processor time of the server and of this program, in seconds.
    pub(crate) server_s: f64,
    pub(crate) generator_s: f64,
    /// When each tenth of the jobs was done, in seconds.
    pub(crate) tenths: Vec<f64>,
    pub(crate) resident_mib: u64,
}

impl Figure {
    pub(crate) fn rate(&self) -> f64 {
        self.jobs as f64 / self.seconds
    }

    /// Cores that the server kept busy.
    pub(crate) fn server_cores(&self) -> f64 {
        self.server_s / self.seconds
    }

    /// Cores that this program kept busy.
    pub(crate) fn generator_cores(&self) -> f64 {
        self.generator_s / self.seconds
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:9.0}/s of {:8} in {:5.2} s, cores: server {:.2}, load generator {:.2}",
            self.rate(),
            self.jobs,
            self.seconds,
            self.server_cores(),
            self.generator_cores()
        )?;
        if self.empty > 0 {
            write!(f, ", {} reserves got nothing", self.empty)?;
        }
        Ok(())
    }
}

/// The parameters of all measurements.
#[derive(Debug)]
pub(crate) struct Measure {
    pub(crate) dir: PathBuf,
    pub(crate) body: usize,
    pub(crate) time: Duration,
    pub(crate) burst: u64,
    pub(crate) burst_time: Duration,
    /// The number of jobs that each system drains in about this time; each round drains as many.
    pub(crate) drains: BTreeMap<(Case, System), u64>,
}

impl Measure {
    /// Runs a case on a system.
    pub(crate) fn measure(&mut self, case: Case, system: System) -> io::Result<Figure> {
        let server = Server::start(system, &self.dir)?;
        let commands = Commands::new(case.run.kind(), self.body, case.depth);
        let mut load = Load::open(server.address, case.connections, case.depth, &commands)?;
        let timed = Limit { jobs: u64::MAX, time: self.time };
        let burst = Limit { jobs: self.burst, time: self.burst_time };
        let (work, limit) = match case.run {
            Run::Put | Run::Delayed => (Work::Put, timed),
            Run::Mixed => (Work::Cycle, timed),
            Run::Burst | Run::BurstDelayed | Run::Sustained => (Work::Put, burst),
            Run::Reserve => {
                let jobs = match self.drains.get(&(case, system)) {
                    Some(jobs) => *jobs,
                    None => self.calibrate(&server, case, &mut load)?,
                };
                self.drains.insert((case, system), jobs);
                self.fill(&server, jobs)?;
                (Work::Reserve, Limit { jobs, time: DRAIN })
            }
        };
        if matches!(case.run, Run::Put | Run::Delayed | Run::Mixed) {
            load.run(work, Limit { time: WARM_UP, ..limit })?;
        }
        let figure = timed_run(&server, &mut load, work, limit)?;
        if work == Work::Reserve && figure.jobs < limit.jobs {
            return Err(io::Error::other(format!("{} jobs were put, {} came", limit.jobs, figure.jobs)));
        }
        Ok(figure)
    }

    /// Puts many jobs into duewheel.
    pub(crate) fn sustained(&self, kind: Kind, jobs: u64) -> io::Result<Figure> {
        let server = Server::start(System::Duewheel, &self.dir)?;
        let (connections, depth) = FILL;
        let commands = Commands::new(kind, self.body, depth);
        let mut load = Load::open(server.address, connections, depth, &commands)?;
        timed_run(&server, &mut load, Work::Put, Limit { jobs, time: Duration::MAX })
    }

    /// The number of jobs that a system drains in the time of a measurement.
    fn calibrate(&self, server: &Server, case: Case, load: &mut Load<'_>) -> io::Result<u64> {
        let group = (case.connections * case.depth) as u64;
        let trial = 1000.max(2 * group);
        self.fill(server, trial)?;
        let done = load.run(Work::Reserve, Limit { jobs: trial, time: self.time.min(WARM_UP * 3) })?;
        let rate = done.jobs as f64 / done.time.as_secs_f64();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some millions")]
        let jobs = (rate * self.time.as_secs_f64()) as u64;
        Ok(jobs.next_multiple_of(group).max(group))
    }

    fn fill(&self, server: &Server, jobs: u64) -> io::Result<()> {
        let (connections, depth) = FILL;
        let commands = Commands::new(Kind::Ready, self.body, depth);
        let mut load = Load::open(server.address, connections, depth, &commands)?;
        load.run(Work::Put, Limit { jobs, time: Duration::MAX })?;
        Ok(())
    }
}

fn timed_run(server: &Server, load: &mut Load<'_>, work: Work, limit: Limit) -> io::Result<Figure> {
    let (server_before, own_before) = (server.processor_time(), processor_time());
    let done = load.run(work, limit)?;
    let (server_after, own_after) = (server.processor_time(), processor_time());
    Ok(Figure {
        jobs: done.jobs,
        seconds: done.time.as_secs_f64(),
        empty: done.empty,
        put_us: [500, 900, 990].map(|per_mille| at(&done, per_mille)),
        server_s: (server_after.saturating_sub(server_before)).as_secs_f64(),
        generator_s: (own_after.saturating_sub(own_before)).as_secs_f64(),
        tenths: done.tenths.iter().map(Duration::as_secs_f64).collect(),
        resident_mib: server.resident_mib(),
    })
}

fn at(done: &Done, per_mille: usize) -> f64 {
    let last = done.put_ns.len().saturating_sub(1);
    done.put_ns.get(last * per_mille / 1000).map_or(0.0, |ns| *ns as f64 / 1000.0)
}
