//! Moves jobs: queries their state, reserves them, enqueues them, and deletes those that duewheel has accepted.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use crate::api::{ApiError, HttpApi, ServerRefusal, segment};
use crate::error::ImportError;
use crate::lineage::Lineage;
use crate::reply::{JobState, JobStats};
use crate::report::{ImportReport, RefusedJob};
use crate::scan::commands;
use crate::source::{BeanstalkSource, Body, TubeHead};

/// The largest number of jobs of one request.
pub(crate) const BATCH: usize = 500;
/// The approximate size of the bodies of one request; the first job always fits.
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// How long duewheel may be unreachable or refuse everything before the import gives up.
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// The pause between two attempts.
const REST: Duration = Duration::from_millis(500);

/// Whether the jobs leave the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Jobs leave the source. Ready ones are reserved first, if the source can do that.
    Move {
        reserve: bool,
    },
    Copy,
}

/// The treatment of buried jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Buried {
    Take,
    /// Leave them for a later pass in the order in which they were buried.
    Later,
}

#[derive(Debug)]
pub(crate) struct Mover {
    pub(crate) source: BeanstalkSource,
    pub(crate) remote: Box<dyn HttpApi>,
    pub(crate) lineage: Lineage,
    pub(crate) mode: Mode,
    /// The text in front of each tube's name.
    pub(crate) prefix: String,
    pub(crate) report: ImportReport,
    /// Jobs that workers of the source had when they were last queried.
    pub(crate) held: BTreeSet<u64>,
    /// Jobs reserved by this connection.
    ours: BTreeSet<u64>,
    /// The number of jobs of the next request: fewer where bodies are large.
    size: usize,
}

/// A job with its body, on its way.
#[derive(Debug)]
struct MovingJob {
    stats: JobStats,
    /// When its remaining time was reported, or a little later.
    reported_at: Instant,
    body: Vec<u8>,
}

/// The outcome of copying a job to duewheel.
#[derive(Debug)]
enum CopyOutcome {
    /// The copy exists, under this id.
    There {
        copy: String,
        before: bool,
    },
    Refused(String),
}

impl Mover {
    pub(crate) fn new(
        source: BeanstalkSource,
        remote: Box<dyn HttpApi>,
        lineage: Lineage,
        mode: Mode,
        prefix: String,
    ) -> Mover {
        Mover {
            source,
            remote,
            lineage,
            mode,
            prefix,
            report: ImportReport::default(),
            held: BTreeSet::new(),
            ours: BTreeSet::new(),
            size: BATCH,
        }
    }

    /// Moves jobs of a tube, in this order. `moved` is called with the progress.
    pub(crate) fn tube(
        &mut self,
        tube: &str,
        ids: &[u64],
        mut moved: impl FnMut(&ImportReport),
    ) -> Result<(), ImportError> {
        // Without deleting, only the first of the buried jobs can be seen; then they are moved in the order of their
        // ids.
        let buried_jobs = if self.mode == Mode::Copy { Buried::Take } else { Buried::Later };
        let mut buried = Vec::new();
        self.batches(ids, buried_jobs, &mut buried, &mut moved)?;
        if buried.is_empty() {
            return Ok(());
        }
        let mut unseen: HashSet<u64> = buried.iter().copied().collect();
        self.source.use_tube(tube)?;
        while let Some((id, _)) = self.source.head(TubeHead::Buried)? {
            if self.report.is_refused(id) {
                break;
            }
            unseen.remove(&id);
            self.batch(&[id], Buried::Take, &mut Vec::new())?;
            moved(&self.report);
        }
        // Jobs that the loop did not reach: behind one that was refused, or kicked since they were found.
        buried.retain(|id| unseen.contains(id));
        self.batches(&buried, Buried::Take, &mut Vec::new(), &mut moved)
    }

    /// Queries the jobs again that workers had: they may be done, or given back.
    pub(crate) fn held_again(&mut self, mut moved: impl FnMut(&ImportReport)) -> Result<(), ImportError> {
        let ids: Vec<u64> = self.held.iter().copied().collect();
        let mut tubes: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for group in ids.chunks(BATCH) {
            self.source.send(commands("stats-job", group));
            for id in group {
                match self.source.read_stats_job(*id)? {
                    None => {
                        self.held.remove(id);
                    }
                    Some(job) if job.state == JobState::Reserved => {}
                    Some(job) => tubes.entry(job.tube).or_default().push(*id),
                }
            }
        }
        for (tube, ids) in tubes {
            self.held.retain(|id| ids.binary_search(id).is_err());
            self.tube(&tube, &ids, &mut moved)?;
        }
        Ok(())
    }

    fn batches(
        &mut self,
        ids: &[u64],
        buried_jobs: Buried,
        buried: &mut Vec<u64>,
        moved: &mut impl FnMut(&ImportReport),
    ) -> Result<(), ImportError> {
        let mut waiting: VecDeque<u64> = ids.iter().copied().collect();
        while !waiting.is_empty() {
            let batch: Vec<u64> = waiting.drain(..waiting.len().min(self.size)).collect();
            let rest = self.batch(&batch, buried_jobs, buried)?;
            // The excess was fetched in vain: the next request asks for less.
            let fetched = batch.len() - rest.len();
            self.size = if rest.is_empty() { self.size * 2 } else { fetched }.clamp(4, BATCH);
            rest.into_iter().rev().for_each(|id| waiting.push_front(id));
            moved(&self.report);
        }
        Ok(())
    }

    /// Moves some jobs of one tube. Returns those that were too many bytes, and collects the buried ones.
    fn batch(
        &mut self,
        ids: &[u64],
        buried_jobs: Buried,
        buried: &mut Vec<u64>,
    ) -> Result<Vec<u64>, ImportError> {
        let looked = self.look(ids, buried_jobs, buried)?;
        let (jobs, rest) = self.take(looked)?;
        let outcomes = self.enqueue(&jobs)?;
        let mut there = Vec::with_capacity(jobs.len());
        for (job, outcome) in jobs.into_iter().zip(outcomes) {
            match outcome {
                CopyOutcome::There { copy, before } => there.push((job.stats, copy, before)),
                CopyOutcome::Refused(reason) => self.refuse(&job.stats, job.body.len() as u64, reason)?,
            }
        }
        if let Mode::Move { .. } = self.mode {
            self.delete(there)?;
        } else {
            there.iter().for_each(|(job, _, before)| self.report.moved(&job.tube, job.state, *before));
        }
        Ok(rest)
    }

    /// Queries the present state of the jobs.
    fn look(
        &mut self,
        ids: &[u64],
        buried_jobs: Buried,
        buried: &mut Vec<u64>,
    ) -> Result<Vec<(JobStats, Instant)>, ImportError> {
        self.source.send(commands("stats-job", ids));
        let mut looked = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(mut job) = self.source.read_stats_job(*id)? else { continue };
            let reported_at = Instant::now();
            match job.state {
                JobState::Reserved if self.ours.contains(id) => job.state = JobState::Ready,
                JobState::Reserved => {
                    self.held.insert(*id);
                    continue;
                }
                JobState::Buried if buried_jobs == Buried::Later => {
                    buried.push(*id);
                    continue;
                }
                JobState::Ready | JobState::Delayed | JobState::Buried => {}
            }
            looked.push((job, reported_at));
        }
        Ok(looked)
    }

    /// Fetches the bodies, and reserves those that are ready.
    fn take(&mut self, looked: Vec<(JobStats, Instant)>) -> Result<(Vec<MovingJob>, Vec<u64>), ImportError> {
        let reserve = self.mode == Mode::Move { reserve: true };
        let mut requests = Vec::new();
        let mut words = Vec::with_capacity(looked.len());
        for (job, _) in &looked {
            let (command, word) = if reserve && job.state == JobState::Ready && !self.ours.contains(&job.id) {
                ("reserve-job", "RESERVED")
            } else {
                ("peek", "FOUND")
            };
            requests.extend(commands(command, &[job.id]));
            words.push(word);
        }
        self.source.send(requests);
        let (mut jobs, mut rest, mut bytes) = (Vec::with_capacity(looked.len()), Vec::new(), 0);
        for ((stats, reported_at), word) in looked.into_iter().zip(words) {
            let Some((_, body)) = self.source.read_job(word)? else {
                // A worker was faster. If the job still exists it is queried again.
                self.held.insert(stats.id);
                continue;
            };
            if word == "RESERVED" {
                self.ours.insert(stats.id);
            }
            match body {
                // No other job may overtake one that was put back.
                Body::Kept(body)
                    if jobs.is_empty() || (rest.is_empty() && bytes + body.len() <= BATCH_BYTES) =>
                {
                    bytes += body.len();
                    jobs.push(MovingJob { stats, reported_at, body });
                }
                Body::Kept(_) => rest.push(stats.id),
                // The refusal comes between two answers: commands to the source must wait for the rest of them.
                Body::Skipped(size) => {
                    let reason = "larger than an import takes".to_owned();
                    self.report.refused(RefusedJob { id: stats.id, tube: stats.tube, size, reason });
                }
            }
        }
        let refused: Vec<u64> = self.ours.iter().copied().filter(|id| self.report.is_refused(*id)).collect();
        for id in refused {
            self.give_back(id, None)?;
        }
        Ok((jobs, rest))
    }

    /// Enqueues the jobs of a tube. Returns when each is durable or refused.
    fn enqueue(&mut self, jobs: &[MovingJob]) -> Result<Vec<CopyOutcome>, ImportError> {
        let Some(first) = jobs.first() else { return Ok(Vec::new()) };
        let path =
            format!("/v1/queues/{}/messages", segment(&format!("{}{}", self.prefix, first.stats.tube)));
        let mut outcomes: Vec<Option<CopyOutcome>> = jobs.iter().map(|_| None).collect();
        let mut since = Instant::now();
        loop {
            let open: Vec<usize> = (0..jobs.len()).filter(|n| outcomes[*n].is_none()).collect();
            if open.is_empty() {
                return Ok(outcomes.into_iter().flatten().collect());
            }
            let mut request = Vec::new();
            for n in &open {
                request.extend_from_slice(self.line(&jobs[*n]).to_string().as_bytes());
                request.push(b'\n');
            }
            match self.remote.post_lines(&path, request) {
                Ok(results) if results.len() == open.len() => {
                    for (n, result) in open.into_iter().zip(results) {
                        outcomes[n] = outcome(&result)?;
                        if outcomes[n].is_some() {
                            since = Instant::now();
                        }
                    }
                }
                // The connection broke before the last result.
                Ok(_) => {}
                Err(trouble @ ApiError::Unreachable(_)) if since.elapsed() >= TIME_LIMIT => {
                    return Err(trouble.into());
                }
                Err(ApiError::Unreachable(_)) => {}
                Err(trouble @ ApiError::Mistaken(_)) => return Err(trouble.into()),
                Err(ApiError::Refused(refusal)) if is_passing(&refusal) => {
                    if since.elapsed() >= TIME_LIMIT {
                        return Err(ApiError::Refused(refusal).into());
                    }
                }
                Err(ApiError::Refused(refusal)) if is_about_the_server(&refusal) => {
                    return Err(ApiError::Refused(refusal).into());
                }
                Err(ApiError::Refused(refusal)) => {
                    open.into_iter()
                        .for_each(|n| outcomes[n] = Some(CopyOutcome::Refused(refusal.to_string())));
                }
            }
            if outcomes.iter().any(Option::is_none) {
                if since.elapsed() >= TIME_LIMIT {
                    return Err(ImportError::failed("the server accepts no more messages at present"));
                }
                std::thread::sleep(REST);
            }
        }
    }

    fn line(&self, job: &MovingJob) -> Value {
        let stats = &job.stats;
        let mut line = Map::new();
        put_body(&mut line, &job.body);
        // The remaining time was rounded down, and reported at `reported_at` at the latest: with one second more it is never
        // too early.
        let delay_ms = match stats.state {
            JobState::Delayed => {
                let left = (stats.time_left.saturating_add(1)).saturating_mul(1000);
                let gone = u64::try_from(job.reported_at.elapsed().as_millis()).unwrap_or(u64::MAX);
                left.saturating_sub(gone)
            }
            JobState::Ready | JobState::Reserved | JobState::Buried => 0,
        };
        line.insert("delay_ms".into(), delay_ms.into());
        line.insert("priority".into(), stats.priority.into());
        line.insert("lease_ms".into(), stats.ttr.max(1).saturating_mul(1000).into());
        line.insert("max_attempts".into(), u32::MAX.into());
        line.insert("dedupe_id".into(), self.lineage.dedupe_id(stats.id).into());
        if stats.state == JobState::Buried {
            line.insert("state".into(), "dead".into());
        }
        Value::Object(line)
    }

    fn refuse(&mut self, job: &JobStats, size: u64, reason: String) -> Result<(), ImportError> {
        self.report.refused(RefusedJob { id: job.id, tube: job.tube.clone(), size, reason });
        self.give_back(job.id, Some(job.priority))
    }

    /// Releases a job that this connection has reserved.
    fn give_back(&mut self, id: u64, priority: Option<u32>) -> Result<(), ImportError> {
        if !self.ours.remove(&id) {
            return Ok(());
        }
        let priority = match priority {
            Some(priority) => Some(priority),
            None => self.source.stats_job(id)?.map(|job| job.priority),
        };
        if let Some(priority) = priority {
            self.source.send(format!("release {id} {priority} 0\r\n").into_bytes());
            // The job was not found: its time has run out, and it is ready again.
            self.source.read_done("RELEASED")?;
        }
        Ok(())
    }

    /// Deletes jobs whose copies are durable.
    fn delete(&mut self, there: Vec<(JobStats, String, bool)>) -> Result<(), ImportError> {
        let ids: Vec<u64> = there.iter().map(|(job, ..)| job.id).collect();
        self.source.send(commands("delete", &ids));
        let mut lost = Vec::new();
        for (job, copy, before) in there {
            self.ours.remove(&job.id);
            if self.source.read_done("DELETED")? {
                self.report.moved(&job.tube, job.state, before);
            } else {
                lost.push((job, copy, before));
            }
        }
        for (job, copy, before) in lost {
            self.taken(job, &copy, before)?;
        }
        Ok(())
    }

    /// Handles a job that a worker of the source took while it was copied.
    fn taken(&mut self, job: JobStats, copy: &str, before: bool) -> Result<(), ImportError> {
        // The worker may have given the job back by now.
        for _ in 0..3 {
            match self.source.stats_job(job.id)? {
                Some(now) if now.state != JobState::Reserved => {
                    if self.source.delete(job.id)? {
                        self.report.moved(&job.tube, job.state, before);
                        return Ok(());
                    }
                }
                Some(_) => {
                    self.lineage.note(&*self.remote, job.id, copy)?;
                    self.held.insert(job.id);
                    if !self.cancel(copy)? {
                        self.lineage.withdraw(&*self.remote, job.id)?;
                    }
                    return Ok(());
                }
                None => {
                    self.cancel(copy)?;
                    return Ok(());
                }
            }
        }
        // The job changes hands all the time: a later pass may succeed. The copy stays, and is found again then.
        self.held.insert(job.id);
        Ok(())
    }

    fn cancel(&mut self, copy: &str) -> Result<bool, ImportError> {
        match self.remote.delete(&format!("/v1/messages/{copy}")) {
            Ok(_) => {
                self.report.left_to_workers += 1;
                Ok(true)
            }
            Err(ApiError::Refused(refusal)) if matches!(&*refusal.code, "leased" | "message_not_found") => {
                self.report.may_run_twice += 1;
                Ok(false)
            }
            Err(trouble) => Err(trouble.into()),
        }
    }
}

/// The result of a line; `None` if the line is to be sent again.
fn outcome(result: &Value) -> Result<Option<CopyOutcome>, ImportError> {
    if let Some(id) = result.get("id").and_then(Value::as_str) {
        return Ok(Some(CopyOutcome::There { copy: id.to_owned(), before: false }));
    }
    let refusal = ServerRefusal::from_json(result);
    // Only its due time, priority or state can differ: the copy was made before.
    if let ("dedupe_mismatch", Some(copy)) = (&*refusal.code, &refusal.existing_id) {
        return Ok(Some(CopyOutcome::There { copy: copy.clone(), before: true }));
    }
    if is_passing(&refusal) {
        return Ok(None);
    }
    if is_about_the_server(&refusal) {
        return Err(ApiError::Refused(refusal).into());
    }
    Ok(Some(CopyOutcome::Refused(refusal.to_string())))
}

/// Whether the same line may be accepted a little later. An unknown outcome is asked again with the same dedupe id.
fn is_passing(refusal: &ServerRefusal) -> bool {
    refusal.is_passing()
        || matches!(&*refusal.code, "storage_unavailable" | "unknown" | "disk_full" | "request_timeout")
}

/// Whether another job would be refused as well.
fn is_about_the_server(refusal: &ServerRefusal) -> bool {
    !matches!(&*refusal.code, "bad_request" | "body_too_large" | "too_large")
}

/// Writes the body as text where it is valid text and that is shorter, else in base64: a control character takes six
/// letters in JSON.
fn put_body(line: &mut Map<String, Value>, body: &[u8]) {
    let escaped = body.iter().filter(|b| **b < 0x20 || matches!(b, b'"' | b'\\')).count();
    match std::str::from_utf8(body) {
        Ok(text) if escaped <= body.len() / 15 => line.insert("body".into(), text.into()),
        Ok(_) | Err(_) => line.insert("body_base64".into(), STANDARD.encode(body).into()),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_body_never_grows_beyond_base64() {
        for body in [&b"plain"[..], b"", &[0; 100], "ü\n".as_bytes(), &[0xff; 10], &[b'"'; 50]] {
            let mut line = Map::new();
            put_body(&mut line, body);
            let length = Value::Object(line).to_string().len();
            assert!(
                length <= r#"{"body_base64":""}"#.len() + body.len().div_ceil(3) * 4,
                "{body:?}: {length}"
            );
        }
    }

    #[test]
    fn results_of_lines() {
        let there = |value: Value| match outcome(&value) {
            Ok(Some(CopyOutcome::There { copy, before })) => (copy, before),
            other => panic!("{value}: {other:?}"),
        };
        assert_eq!(there(json!({"id": "7", "status": 201})), ("7".into(), false));
        assert_eq!(
            there(json!({"status": 409, "code": "dedupe_mismatch", "existing_id": "5"})),
            ("5".into(), true)
        );
        for code in ["overloaded", "over_quota", "draining", "storage_unavailable"] {
            assert!(matches!(outcome(&json!({"status": 503, "code": code})), Ok(None)), "{code}");
        }
        let refused = outcome(&json!({"status": 413, "code": "body_too_large", "detail": "at most 5"}));
        assert!(
            matches!(refused, Ok(Some(CopyOutcome::Refused(what))) if what == "body_too_large: at most 5")
        );
        assert!(outcome(&json!({"status": 500, "code": "internal"})).is_err());
    }
}
