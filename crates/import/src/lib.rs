//! Moves the jobs of a running beanstalkd to a running duewheel.
//!
//! A job is deleted in the source only after duewheel has answered that its copy is durable, and its `dedupe_id` makes
//! the copy of a second attempt the same message: an import may be interrupted at any moment and run again. `lineage`
//! describes the method. `duewheel import` is the command.

// Each public function that can fail lists its errors.
#![warn(clippy::missing_errors_doc)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::api::HttpApi;
pub use crate::error::ImportError;
use crate::lineage::{Lineage, MARKER};
use crate::mover::{Mode, Mover};
pub use crate::reply::is_name;
use crate::reply::{BadReply, TubeCounts};
use crate::report::jobs;
use crate::scan::{FoundJobs, ScanLimit, scan};
use crate::source::BeanstalkSource;

pub mod api;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod lineage;
mod mover;
mod reply;
mod report;
mod scan;
mod source;

/// The number of times that all ids are queried again when the source counts more jobs than are known.
const RESCANS: u32 = 2;
/// The pause between two queries of jobs that workers of the source have.
const LOOK: Duration = Duration::from_millis(500);

/// The options of an import.
#[derive(Clone, Debug)]
pub struct ImportPlan {
    /// The running beanstalkd, `HOST:PORT` or `unix:PATH`.
    pub beanstalk: String,
    /// The tubes to import; empty for all.
    pub tubes: BTreeSet<String>,
    /// The text in front of each tube's name in the queue's name.
    pub prefix: String,
    /// Whether all jobs stay in the source, untouched.
    pub copies: bool,
    /// How long to wait for jobs that workers have.
    pub wait: Duration,
}

/// The result of an import.
#[derive(Debug)]
pub struct Summary {
    /// The whole result as JSON.
    pub json: Value,
    /// A row for each tube: name, ready, delayed, buried, held, refused.
    pub rows: Vec<Vec<String>>,
    /// The result in sentences, for people.
    pub lines: Vec<String>,
    /// Jobs that duewheel refuses, one a line. Parts of the lines come from the source.
    pub refusals: Vec<String>,
    /// Sentences about jobs that remain in the source, with the reason; empty when everything was imported.
    pub left: Vec<String>,
}

/// Moves the jobs of a beanstalkd to the duewheel behind `api`, which the summary calls `to`. Shows its progress on
/// standard error, if that is a terminal.
///
/// # Errors
/// See [`ImportError`].
pub fn run(plan: ImportPlan, api: impl HttpApi + 'static, to: &str) -> Result<Summary, ImportError> {
    let source = BeanstalkSource::connect(&plan.beanstalk);
    let mut source = source.map_err(|error| ImportError::Unreachable(error.to_string()))?;
    let stats = source.stats()?;
    api.get("/healthz")?;
    let (lineage, upper, mode) = if plan.copies {
        let (lineage, upper) = Lineage::copy(&mut source, &api, &stats)?;
        (lineage, upper, Mode::Copy)
    } else {
        let (lineage, upper) = Lineage::begin(&mut source, &api, &stats)?;
        (lineage, upper, Mode::Move { reserve: source.knows_reserve_job()? })
    };
    let mut run = ImportRun {
        mover: Mover::new(source, Box::new(api), lineage, mode, plan.prefix),
        tubes: plan.tubes,
        upper,
        bar: ProgressBar::hidden(),
    };
    let moved = run.all(plan.wait);
    run.bar.finish_and_clear();
    let advice = "; nothing is lost, run the import again";
    let not_found = moved.map_err(|error| match error {
        ImportError::Failed(what) => ImportError::Failed(format!("{what}{advice}")),
        ImportError::Api(trouble) => ImportError::Api(trouble.with_words("", advice)),
        ImportError::Usage(_) | ImportError::Unreachable(_) => error,
    })?;
    run.end(not_found, &plan.beanstalk, to)
}

/// An import in progress.
#[derive(Debug)]
struct ImportRun {
    mover: Mover,
    /// The tubes to import; empty for all.
    tubes: BTreeSet<String>,
    /// Ids below it have been queried once a pass is complete. `None` if the source accepts no job that would show it.
    upper: Option<u64>,
    bar: ProgressBar,
}

impl ImportRun {
    /// Moves jobs until there are no new ones. Returns the number of jobs that the source counts and that were not
    /// found.
    fn all(&mut self, wait: Duration) -> Result<u64, ImportError> {
        let deadline = Instant::now() + wait;
        let mut found = self.first_look()?;
        let mut rescans = 0;
        loop {
            let news = found.jobs > 0;
            self.transfer(found)?;
            self.held_again()?;
            found = self.look_at_new()?;
            if news || found.jobs > 0 {
                continue;
            }
            let missing = self.missing()?;
            if missing > 0 && rescans < RESCANS && self.mover.mode != Mode::Copy {
                rescans += 1;
                found = self.look_at_all(missing)?;
                if found.jobs > 0 {
                    continue;
                }
            }
            if self.mover.held.is_empty() || Instant::now() >= deadline {
                return Ok(missing);
            }
            std::thread::sleep(LOOK);
        }
    }

    fn first_look(&mut self) -> Result<FoundJobs, ImportError> {
        let jobs = self.count()?.total();
        let mut found = FoundJobs::default();
        if jobs > 0 {
            self.look_down(jobs, &mut found)?;
        }
        Ok(found)
    }

    /// Queries all ids again for the number of jobs that the source counts and that were not found.
    fn look_at_all(&mut self, missing: u64) -> Result<FoundJobs, ImportError> {
        let mut found = FoundJobs::default();
        let top = self.look_down(missing, &mut found)?;
        if found.jobs < missing && self.upper.is_none() {
            let enough = ScanLimit { jobs: Some(missing), misses: Some(scan::MAX_MISSES) };
            self.look(top.saturating_add(1)..u64::MAX, scan::MAX_MISSES, enough, &mut found)?;
        }
        Ok(found)
    }

    /// Queries ids from the highest one down, until the number of jobs is found. Returns the highest id found.
    fn look_down(&mut self, jobs: u64, found: &mut FoundJobs) -> Result<u64, ImportError> {
        let top = match self.upper {
            Some(upper) => upper.saturating_sub(1),
            // A draining source does not show how far its ids go. Without a binlog they go a little beyond the number
            // of jobs that it has ever been given; with one, that number began at 0 with the last start, but the heads
            // of the tubes are known. Ids above both are searched later, if the count shows that jobs are missing.
            None => {
                let source = &mut self.mover.source;
                let tubes = source.tubes()?;
                scan::highest_head(source, &tubes)?.max(source.stats()?.total_jobs)
            }
        };
        let enough = ScanLimit { jobs: Some(jobs), misses: None };
        self.look((1..=top).rev(), top, enough, found)?;
        Ok(top)
    }

    /// Looks at the ids that were given since the last look.
    fn look_at_new(&mut self) -> Result<FoundJobs, ImportError> {
        let mut found = FoundJobs::default();
        let Some(upper) = self.mover.lineage.renew(&mut self.mover.source)? else { return Ok(found) };
        let from = self.upper.map_or(1, |old| old.saturating_add(1));
        self.upper = Some(upper);
        self.look((from..upper).rev(), upper.saturating_sub(from), ScanLimit::default(), &mut found)?;
        Ok(found)
    }

    fn look(
        &mut self,
        ids: impl Iterator<Item = u64>,
        length: u64,
        enough: ScanLimit,
        found: &mut FoundJobs,
    ) -> Result<(), ImportError> {
        self.show("{bar:30} {human_pos}/{human_len} ids looked at, {msg}, {eta} left", length);
        let ImportRun { mover: Mover { source, held, report, .. }, tubes, bar, .. } = self;
        let wanted =
            |tube: &str, id: u64| is_wanted(tubes, tube) && !held.contains(&id) && !report.is_refused(id);
        bar.set_message("0 jobs found");
        let mut shown_at = Instant::now();
        scan(source, ids, wanted, enough, found, |looked, found| {
            bar.inc(looked);
            if shown_at.elapsed() > Duration::from_millis(100) {
                shown_at = Instant::now();
                bar.set_message(format!("{} jobs found", found.jobs));
            }
        })?;
        Ok(())
    }

    fn transfer(&mut self, found: FoundJobs) -> Result<(), ImportError> {
        if found.jobs == 0 {
            return Ok(());
        }
        let done = self.mover.report.moved;
        self.show("{bar:30} {human_pos}/{human_len} jobs, {per_sec}, {eta} left", found.jobs);
        let bar = self.bar.clone();
        for (tube, ids) in found.into_tubes() {
            self.mover.tube(&tube, &ids, |report| bar.set_position(report.moved.saturating_sub(done)))?;
        }
        Ok(())
    }

    fn held_again(&mut self) -> Result<(), ImportError> {
        self.mover.held_again(|_| {})
    }

    /// Jobs of the wanted tubes that the source counts now.
    fn count(&mut self) -> Result<TubeCounts, BadReply> {
        let source = &mut self.mover.source;
        let mut counts = TubeCounts::default();
        if self.tubes.is_empty() {
            // A single answer for all tubes: no job can move between two questions. Our own jobs are subtracted.
            counts = source.stats()?.counts;
            let own = source.stats_tube(MARKER)?.unwrap_or_default();
            counts.delayed = counts.delayed.saturating_sub(own.delayed);
            return Ok(counts);
        }
        for tube in &self.tubes {
            counts = counts.plus(source.stats_tube(tube)?.unwrap_or_default());
        }
        Ok(counts)
    }

    /// Jobs that the source counts and that were not found.
    fn missing(&mut self) -> Result<u64, ImportError> {
        let counted = self.count()?.total();
        let report = &self.mover.report;
        let copied = if self.mover.mode == Mode::Copy { report.moved } else { 0 };
        Ok(counted.saturating_sub(self.mover.held.len() as u64 + report.refusals() + copied))
    }

    fn show(&mut self, template: &str, length: u64) {
        self.bar.finish_and_clear();
        // Draws only when standard error is a terminal.
        self.bar = ProgressBar::new(length);
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style);
        }
    }

    fn end(mut self, not_found: u64, from: &str, to: &str) -> Result<Summary, ImportError> {
        let mut by_tube: BTreeMap<String, u64> = BTreeMap::new();
        let mut held = 0_u64;
        for id in std::mem::take(&mut self.mover.held) {
            if let Some(job) = self.mover.source.stats_job(id)? {
                held += 1;
                *by_tube.entry(job.tube).or_default() += 1;
            }
        }
        by_tube.iter().for_each(|(tube, n)| self.mover.report.held(tube, *n));
        let counted = self.count()?.total();
        let Mover { mut source, remote, lineage, mode, report, .. } = self.mover;
        lineage.end(&mut source, &*remote)?;

        let verb = if mode == Mode::Copy { "copied" } else { "moved" };
        let mut left = Vec::new();
        if held > 0 {
            left.push(format!(
                "workers have {}: stop the workers or let them finish, and run it again, or say --wait 10m",
                jobs(held)
            ));
        }
        if report.refusals() > 0 {
            left.push(format!("{} refused, and left in the source", jobs(report.refusals())));
        }
        if not_found > 0 {
            left.push(format!(
                "the source counts {} more than were found: run it again while no client puts or takes jobs",
                jobs(not_found)
            ));
        }
        Ok(Summary {
            json: report.json(held, not_found, counted),
            rows: report.rows(),
            lines: report.lines(&format!("{verb} from {from} to {to}; {counted} are in the source now")),
            refusals: report.refusal_lines(),
            left,
        })
    }
}

/// Whether jobs of this tube are moved: without a choice all but our own.
fn is_wanted(tubes: &BTreeSet<String>, tube: &str) -> bool {
    if tubes.is_empty() { tube != MARKER } else { tubes.contains(tube) }
}
