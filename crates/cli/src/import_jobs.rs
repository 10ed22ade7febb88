//! Moves the jobs of a running beanstalkd to a running duewheel.
//!
//! The protocol cannot list jobs, so each id is queried. A pass queries the ids that were given since the last one, and
//! the jobs that workers had, and moves the jobs found, some hundred of a tube at a time: query their state, reserve
//! those that are ready, enqueue all, and delete in the source those that are durable. Passes end when one finds
//! nothing new. `import_marker` describes how an import is interrupted and run again.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use duewheel_client::{Code, Error, ErrorCode, segment};
use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::beanstalk_source::{BeanstalkSource, IN_FLIGHT, JobState, JobStats, MAX_BODY, SourceJob};
use super::failure::CommandFailure;
use super::failure::{refusal_in, with_words};
use super::import_marker::{ImportMarker, MARKER};
use super::remote::{Remote, may_pass};
use super::session::progress;

/// The number of times that all ids are queried again when the source counts more jobs than are known.
const RESCANS: u32 = 2;
/// The number of ids above all known ones that may be queried in vain when a draining source counts more jobs than were
/// found.
const MAX_MISSES: u64 = 10_000_000;
/// The approximate size of a request; the first job always fits.
const REQUEST_BYTES: usize = 4 * 1024 * 1024;
/// The approximate size of the bodies in memory, if all of them are of the largest size.
const BATCH_BYTES: u64 = 64 * 1024 * 1024;
/// How long duewheel may be unreachable or refuse everything before the import gives up.
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// The pause between two attempts, and between two queries of jobs that workers have.
const REST: Duration = Duration::from_millis(500);
/// The number of refused jobs that are named; the others are counted.
const MOST_NAMED: usize = 20;

/// The options of an import.
#[derive(Debug)]
pub(super) struct JobOptions {
    /// The tubes to import; empty for all.
    pub(super) tubes: BTreeSet<String>,
    /// The text in front of each tube's name in the queue's name.
    pub(super) prefix: String,
    /// Whether all jobs stay in the source, untouched.
    pub(super) is_copy: bool,
    /// How long to wait for jobs that workers have.
    pub(super) wait: Duration,
}

/// The result of an import.
#[derive(Debug, Default)]
pub(super) struct JobReport {
    /// For each tube the jobs that were moved ready, delayed and buried, are held, and were refused.
    pub(super) tubes: BTreeMap<String, [u64; 5]>,
    pub(super) refused: BTreeMap<u64, RefusedJob>,
    /// Jobs that an earlier run had copied.
    pub(super) before: u64,
    /// Copies that were cancelled, because a worker of the source had taken the job.
    pub(super) left_to_workers: u64,
    /// Copies that could not be cancelled any more.
    pub(super) may_run_twice: u64,
    /// Jobs that the source counts and that were not found.
    pub(super) not_found: u64,
    /// Jobs that the source counts at the end.
    pub(super) in_source: u64,
}

/// A job that duewheel refuses.
#[derive(Debug)]
pub(super) struct RefusedJob {
    tube: String,
    size: u64,
    reason: String,
}

impl JobReport {
    pub(super) fn moved(&self) -> u64 {
        self.tubes.values().flat_map(|tube| &tube[..3]).sum()
    }

    pub(super) fn held(&self) -> u64 {
        self.tubes.values().map(|tube| tube[JobState::Reserved as usize]).sum()
    }

    fn add(&mut self, tube: &str, column: usize) {
        self.tubes.entry(tube.to_owned()).or_default()[column] += 1;
    }

    fn refuse(&mut self, job: &MovingJob, reason: String) {
        self.add(&job.stats.tube, 4);
        let refused = RefusedJob { tube: job.stats.tube.clone(), size: job.job.size, reason };
        self.refused.insert(job.stats.id, refused);
    }

    pub(super) fn json(&self) -> Value {
        let tubes = self.tubes.iter().map(|(tube, [ready, delayed, buried, held, refused])| {
            json!({"tube": tube, "ready": ready, "delayed": delayed, "buried": buried, "held": held,
                   "refused": refused})
        });
        let named = self.refused.iter().take(MOST_NAMED);
        let named = named
            .map(|(id, job)| json!({"id": id, "tube": job.tube, "size": job.size, "reason": job.reason}));
        json!({"moved": self.moved(), "before": self.before, "held": self.held(), "refused": self.refused.len(),
               "not_found": self.not_found, "in_source": self.in_source, "left_to_workers": self.left_to_workers,
               "may_run_twice": self.may_run_twice, "tubes": tubes.collect::<Vec<_>>(),
               "refusals": named.collect::<Vec<_>>()})
    }

    /// Lines about jobs that duewheel refuses. Parts of them come from the source.
    pub(super) fn refusals(&self) -> Vec<String> {
        let line = |(id, job): (&u64, &RefusedJob)| {
            format!("job {id} of tube {}, {} bytes, stays: {}", job.tube, job.size, job.reason)
        };
        let mut lines: Vec<String> = self.refused.iter().take(MOST_NAMED).map(line).collect();
        if let Some(more) = self.refused.len().checked_sub(MOST_NAMED + 1) {
            lines.push(format!("and {} more", more + 1));
        }
        lines
    }
}

/// Moves the jobs of the beanstalkd at `address`. Shows its progress on standard error, if that is a terminal.
pub(super) fn run(address: &str, remote: &Remote, options: JobOptions) -> Result<JobReport, CommandFailure> {
    let mut source = BeanstalkSource::connect(address)?;
    let stats = source.stats()?;
    remote.get("/healthz")?;
    let (marker, upper) = ImportMarker::begin(&mut source, remote, options.is_copy, &stats)?;
    let reserves = !options.is_copy && source.knows_reserve_job()?;
    let template = "{bar:30} {human_pos}/{human_len} {msg}, {per_sec}, {eta} left";
    let bar = progress(ProgressBar::new(0), template);
    let batch = BATCH_BYTES / stats.max_job_size.clamp(1, MAX_BODY);
    let mut mover = JobMover {
        source,
        remote,
        marker,
        options,
        upper,
        reserves,
        batch: usize::try_from(batch).unwrap_or(IN_FLIGHT).clamp(1, IN_FLIGHT),
        held: BTreeSet::new(),
        report: JobReport::default(),
        bar,
    };
    let moved = mover.all();
    mover.bar.finish_and_clear();
    let advice = "; nothing is lost, run the import again";
    moved.map_err(|failure| match failure {
        CommandFailure::Failed(what) => CommandFailure::Failed(what + advice),
        CommandFailure::Unreachable(what) => CommandFailure::Unreachable(what + advice),
        CommandFailure::Refused(refusal) => CommandFailure::Refused(with_words(refusal, "", advice)),
        CommandFailure::Usage(_) | CommandFailure::NotFound(_) | CommandFailure::Said(_) => failure,
    })?;
    mover.end()
}

/// Jobs to move, by tube: ids of buried ones, and of the others.
type FoundJobs = BTreeMap<String, [BTreeSet<u64>; 2]>;

/// An import in progress.
#[derive(Debug)]
struct JobMover<'a> {
    source: BeanstalkSource,
    remote: &'a Remote,
    marker: ImportMarker,
    options: JobOptions,
    /// Ids below it have been queried once a pass is complete. `None` if the source accepts no job that would show it.
    upper: Option<u64>,
    /// Whether ready jobs are reserved before they are moved.
    reserves: bool,
    /// The number of jobs moved together.
    batch: usize,
    /// Jobs that workers of the source had when they were last queried.
    held: BTreeSet<u64>,
    report: JobReport,
    bar: ProgressBar,
}

/// A job with its body, on its way.
#[derive(Debug)]
struct MovingJob {
    stats: JobStats,
    job: SourceJob,
}

/// A durable copy of a job: its id, and whether an earlier run had made it. Or why the job is refused.
type JobOutcome = Result<(String, bool), String>;

impl JobMover<'_> {
    /// Moves jobs until there are no new ones.
    fn all(&mut self) -> Result<(), CommandFailure> {
        let deadline = Instant::now() + self.options.wait;
        let (mut rescans, mut found) = (0, self.search_all(false)?);
        loop {
            let is_new = !found.is_empty();
            for (tube, [buried, others]) in found {
                self.tube(&tube, buried, others)?;
            }
            found = self.search_new()?;
            if is_new || !found.is_empty() {
                continue;
            }
            self.report.not_found = self.missing()?;
            if self.report.not_found > 0 && rescans < RESCANS && !self.options.is_copy {
                rescans += 1;
                found = self.search_all(true)?;
                if !found.is_empty() {
                    continue;
                }
            }
            if self.held.is_empty() || Instant::now() >= deadline {
                return Ok(());
            }
            thread::sleep(REST);
        }
    }

    /// Queries ids from the highest one down, until all jobs that the source counts are found.
    fn search_all(&mut self, is_again: bool) -> Result<FoundJobs, CommandFailure> {
        let (jobs, mut found) = (self.count()?, FoundJobs::new());
        let top = match self.upper {
            Some(upper) => upper.saturating_sub(1),
            None => self.highest()?,
        };
        let seen = self.search((1..=top).rev(), top, jobs, &mut found)?;
        if is_again && self.upper.is_none() && seen < jobs {
            self.search(top.saturating_add(1)..=u64::MAX, MAX_MISSES, jobs - seen, &mut found)?;
        }
        Ok(found)
    }

    /// A draining source does not show how far its ids go. Without a binlog they go a little beyond the number of jobs
    /// that it has ever been given; with one, that number began at 0 with the last start, but the heads of the tubes are
    /// known. Ids above both are searched later, if the count shows that jobs are missing.
    fn highest(&mut self) -> Result<u64, CommandFailure> {
        let mut highest = self.source.stats()?.total_jobs;
        for tube in self.source.tubes()? {
            self.source.use_tube(&tube)?;
            for head in ["peek-ready", "peek-delayed", "peek-buried"] {
                highest = self.source.head(head)?.map_or(highest, |job| highest.max(job.id));
            }
        }
        Ok(highest)
    }

    /// Queries the jobs again that workers had, and the ids that were given since the last pass.
    fn search_new(&mut self) -> Result<FoundJobs, CommandFailure> {
        let (held, mut found) = (self.held.clone(), FoundJobs::new());
        self.search(held.iter().copied(), held.len() as u64, u64::MAX, &mut found)?;
        if let Some(upper) = self.marker.renew(&mut self.source)? {
            let from = self.upper.replace(upper).map_or(1, |old| old.saturating_add(1));
            self.search((from..upper).rev(), upper.saturating_sub(from), u64::MAX, &mut found)?;
        }
        Ok(found)
    }

    /// Queries ids until `enough` jobs were seen, or the source has no job of too many ids in a row. Returns the number
    /// of jobs seen.
    fn search(
        &mut self,
        mut ids: impl Iterator<Item = u64>,
        most_misses: u64,
        enough: u64,
        found: &mut FoundJobs,
    ) -> Result<u64, CommandFailure> {
        self.show(most_misses, "ids");
        let (mut seen, mut misses) = (0, 0);
        while seen < enough && misses <= most_misses {
            let group: Vec<u64> = ids.by_ref().take(IN_FLIGHT).collect();
            if group.is_empty() {
                break;
            }
            let jobs = self.source.stats_jobs(&group)?;
            for (id, job) in group.into_iter().zip(jobs) {
                self.held.remove(&id);
                misses += 1;
                let Some(job) = job.filter(|job| self.wants(&job.tube)) else { continue };
                (seen, misses) = (seen + 1, 0);
                if job.state == JobState::Reserved {
                    self.held.insert(id);
                } else if !self.report.refused.contains_key(&id) {
                    let is_other = usize::from(job.state != JobState::Buried);
                    found.entry(job.tube).or_default()[is_other].insert(id);
                }
                self.bar.set_message(format!("ids, {seen} jobs found"));
            }
            self.bar.inc(IN_FLIGHT as u64);
        }
        Ok(seen)
    }

    /// Whether jobs of this tube are moved: without a choice all but our own.
    fn wants(&self, tube: &str) -> bool {
        if self.options.tubes.is_empty() { tube != MARKER } else { self.options.tubes.contains(tube) }
    }

    /// Jobs of the wanted tubes that the source counts now.
    fn count(&mut self) -> Result<u64, CommandFailure> {
        if self.options.tubes.is_empty() {
            // A single answer for all tubes: no job can move between two questions. Our own jobs are subtracted.
            let all = self.source.stats()?.jobs;
            return Ok(all.saturating_sub(self.source.jobs_in(MARKER)?));
        }
        let source = &mut self.source;
        self.options.tubes.iter().try_fold(0, |sum: u64, tube| Ok(sum.saturating_add(source.jobs_in(tube)?)))
    }

    /// Jobs that the source counts and that were not found.
    fn missing(&mut self) -> Result<u64, CommandFailure> {
        let copied = if self.options.is_copy { self.report.moved() } else { 0 };
        let known = self.held.len() as u64 + self.report.refused.len() as u64 + copied;
        Ok(self.count()?.saturating_sub(known))
    }

    fn show(&self, length: u64, what: &'static str) {
        self.bar.reset();
        self.bar.set_length(length);
        self.bar.set_message(what);
    }

    /// Moves jobs of a tube: buried ones in the order in which they were buried, the others in that of their ids.
    fn tube(
        &mut self,
        tube: &str,
        mut buried: BTreeSet<u64>,
        mut others: BTreeSet<u64>,
    ) -> Result<(), CommandFailure> {
        self.show((buried.len() + others.len()) as u64, "jobs");
        // Only the first of the buried jobs is visible, so a copy, which deletes nothing, has them in order of ids.
        if !buried.is_empty() && !self.options.is_copy {
            self.source.use_tube(tube)?;
            while let Some(first) = self.source.head("peek-buried")?
                && !self.report.refused.contains_key(&first.id)
            {
                buried.remove(&first.id);
                self.move_some(&[first.id])?;
            }
        }
        // Jobs that were kicked since they were found, or are behind one that was refused.
        others.append(&mut buried);
        let ids: Vec<u64> = others.into_iter().collect();
        ids.chunks(self.batch).try_for_each(|ids| self.move_some(ids))
    }

    fn move_some(&mut self, ids: &[u64]) -> Result<(), CommandFailure> {
        let (jobs, asked_at) = self.take(ids)?;
        let outcomes = self.enqueue(&jobs, asked_at)?;
        let mut there = Vec::with_capacity(jobs.len());
        for (job, outcome) in jobs.into_iter().zip(outcomes) {
            match outcome {
                Ok((copy, before)) => there.push((job.stats, copy, before)),
                Err(reason) => {
                    self.report.refuse(&job, reason);
                    if job.job.is_reserved {
                        let JobStats { id, priority, .. } = job.stats;
                        self.source.send(&format!("release {id} {priority} 0\r\n"))?;
                        // The job was not found: its time has run out, and it is ready again.
                        self.source.is_done("RELEASED")?;
                    }
                }
            }
        }
        if !self.options.is_copy {
            let deletes = there.iter().map(|(job, ..)| format!("delete {}\r\n", job.id));
            self.source.send(&deletes.collect::<String>())?;
        }
        let mut taken = Vec::new();
        for (job, copy, before) in there {
            if self.options.is_copy || self.source.is_done("DELETED")? {
                self.moved(&job, before);
            } else {
                taken.push((job, copy, before));
            }
        }
        self.bar.inc(ids.len() as u64);
        taken.into_iter().try_for_each(|(job, copy, before)| self.taken(job, &copy, before))
    }

    fn moved(&mut self, job: &JobStats, before: bool) {
        self.report.add(&job.tube, job.state as usize);
        self.report.before += u64::from(before);
    }

    /// Queries the jobs again, fetches their bodies, and reserves those that are ready. Returns when the remaining times
    /// were known.
    fn take(&mut self, ids: &[u64]) -> Result<(Vec<MovingJob>, Instant), CommandFailure> {
        let mut wanted: Vec<JobStats> = self.source.stats_jobs(ids)?.into_iter().flatten().collect();
        let asked_at = Instant::now();
        let held = wanted.extract_if(.., |job| job.state == JobState::Reserved);
        self.held.extend(held.map(|job| job.id));
        let command = |job: &JobStats| match job.state {
            JobState::Ready if self.reserves => format!("reserve-job {}\r\n", job.id),
            JobState::Ready | JobState::Delayed | JobState::Buried | JobState::Reserved => {
                format!("peek {}\r\n", job.id)
            }
        };
        let commands: String = wanted.iter().map(command).collect();
        self.source.send(&commands)?;
        let mut jobs = Vec::with_capacity(wanted.len());
        for stats in wanted {
            match self.source.job()? {
                Some(job) => jobs.push(MovingJob { stats, job }),
                // A worker was faster. If the job still exists it is queried again.
                None => drop(self.held.insert(stats.id)),
            }
        }
        Ok((jobs, asked_at))
    }

    /// Enqueues jobs of a tube. Returns when each is durable or refused.
    fn enqueue(&mut self, jobs: &[MovingJob], asked_at: Instant) -> Result<Vec<JobOutcome>, CommandFailure> {
        let Some(first) = jobs.first() else { return Ok(Vec::new()) };
        let queue = format!("{}{}", self.options.prefix, first.stats.tube);
        let path = format!("/v1/queues/{}/messages", segment(&queue));
        let too_large = |job: &MovingJob| (job.job.size > MAX_BODY).then(|| Err(TOO_LARGE.to_owned()));
        let mut outcomes: Vec<Option<JobOutcome>> = jobs.iter().map(too_large).collect();
        let mut since = Instant::now();
        loop {
            let (mut request, mut sent) = (String::new(), Vec::new());
            for (n, job) in jobs.iter().enumerate().filter(|(n, _)| outcomes[*n].is_none()) {
                let line = self.line(job, asked_at).to_string();
                if !sent.is_empty() && request.len() + line.len() > REQUEST_BYTES {
                    break;
                }
                request.push_str(&line);
                request.push('\n');
                sent.push(n);
            }
            if sent.is_empty() {
                return Ok(outcomes.into_iter().flatten().collect());
            }
            let mut trouble = None;
            match self.remote.post_lines(&path, request.lines()) {
                Ok(results) => {
                    for (n, result) in sent.iter().zip(results) {
                        match outcome(&result) {
                            Ok(outcome) => outcomes[*n] = Some(outcome),
                            Err(refusal) => trouble = Some(refusal),
                        }
                    }
                }
                Err(refusal) if is_about_the_job(&refusal) => {
                    sent.iter().for_each(|n| outcomes[*n] = Some(Err(refusal.to_string())));
                }
                Err(failed) => trouble = Some(failed),
            }
            if sent.iter().any(|n| outcomes[*n].is_some()) {
                since = Instant::now();
            }
            match trouble {
                Some(trouble) if since.elapsed() >= TIME_LIMIT || !may_pass(&trouble) => {
                    return Err(trouble.into());
                }
                Some(_) => thread::sleep(REST),
                None => {}
            }
        }
    }

    fn line(&self, job: &MovingJob, asked_at: Instant) -> Value {
        let stats = &job.stats;
        // The remaining time was rounded down, and asked for before `asked_at`: with one second more it is never too
        // early.
        let left = match stats.state {
            JobState::Delayed => Duration::from_secs(stats.time_left.saturating_add(1)),
            JobState::Ready | JobState::Reserved | JobState::Buried => Duration::ZERO,
        };
        let delay = left.saturating_sub(asked_at.elapsed()).as_micros().div_ceil(1000);
        let mut line = json!({
            "body_base64": STANDARD.encode(&job.job.body),
            "delay_ms": u64::try_from(delay).unwrap_or(u64::MAX),
            "priority": stats.priority,
            "lease_ms": stats.ttr.max(1).saturating_mul(1000),
            "max_attempts": u32::MAX,
            "dedupe_id": self.marker.dedupe_id(stats.id),
        });
        if stats.state == JobState::Buried {
            line["state"] = "dead".into();
        }
        line
    }

    /// Handles a job that a worker of the source took while it was copied.
    fn taken(&mut self, job: JobStats, copy: &str, before: bool) -> Result<(), CommandFailure> {
        // The worker may have given the job back by now.
        while self.source.stats_job(job.id)?.is_some_and(|now| now.state != JobState::Reserved) {
            if self.source.delete(job.id)? {
                self.moved(&job, before);
                return Ok(());
            }
        }
        self.held.insert(job.id);
        match self.marker.cancel(self.remote, job.id, copy)? {
            true => self.report.left_to_workers += 1,
            false => self.report.may_run_twice += 1,
        }
        Ok(())
    }

    fn end(mut self) -> Result<JobReport, CommandFailure> {
        for id in std::mem::take(&mut self.held) {
            if let Some(job) = self.source.stats_job(id)? {
                self.report.add(&job.tube, JobState::Reserved as usize);
            }
        }
        self.report.in_source = self.count()?;
        self.marker.end(&mut self.source, self.remote)?;
        Ok(self.report)
    }
}

const TOO_LARGE: &str = "larger than an import takes";

/// The outcome of a line. An error is of the server, not of the job.
fn outcome(result: &Value) -> Result<JobOutcome, Error> {
    if let Some(id) = result["id"].as_str() {
        return Ok(Ok((id.to_owned(), result["replayed"] == true)));
    }
    let refusal = refusal_in(result);
    match refusal.text("existing_id") {
        // Only its due time, priority or state can differ: the copy was made before.
        Some(copy) if refusal.code == ErrorCode::DedupeMismatch => Ok(Ok((copy.to_owned(), true))),
        Some(_) | None if is_about_the_job(&refusal) => Ok(Err(refusal.to_string())),
        Some(_) | None => Err(refusal),
    }
}

/// Whether another job might be accepted.
fn is_about_the_job(refusal: &Error) -> bool {
    matches!(refusal.code, Code::Server(ErrorCode::BadRequest | ErrorCode::BodyTooLarge))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_lines() {
        let copied = |id: &str, before| Ok((id.to_owned(), before));
        assert_eq!(outcome(&json!({"id": "7", "status": 201})).unwrap(), copied("7", false));
        let mismatch = json!({"status": 409, "code": "dedupe_mismatch", "existing_id": "5"});
        assert_eq!(outcome(&mismatch).unwrap(), copied("5", true));
        let refused = outcome(&json!({"status": 413, "code": "body_too_large", "detail": "at most 5"}));
        assert_eq!(refused.unwrap(), Err("body_too_large: at most 5".to_owned()));
        for (code, passes) in [
            ("overloaded", true),
            ("over_quota", true),
            ("draining", true),
            ("storage_unavailable", true),
            ("disk_full", true),
            ("unknown", true),
            ("internal", false),
        ] {
            let refusal = outcome(&json!({"status": 503, "code": code})).unwrap_err();
            assert_eq!(may_pass(&refusal), passes, "{code}");
        }
    }
}
