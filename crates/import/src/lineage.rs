//! Identifies jobs across interruptions of the import and restarts of the source.
//!
//! An import that is interrupted between duewheel's answer and the delete in the source finds those jobs again. Their
//! `dedupe_id` shows that the copy exists already, so it must identify the same job as before, and never another one: a
//! false match would delete a job that was not copied.
//!
//! - Ids of jobs alone do not suffice: a beanstalkd without a binlog starts at 1 again, and one with a binlog may go
//!   back to an id whose records are gone.
//! - The instance id of `stats` changes when a beanstalkd with a binlog restarts, although its jobs stay.
//!
//! So the import puts a job of its own into the source, the *marker*: delayed for 136 years, in a tube of its own, with
//! a random name in its body. It exists exactly as long as the other jobs of that source. While it exists, new ids are
//! greater than its own, and only jobs with lower ids are moved: so the name and the job's id identify one job. The
//! marker is removed when an import is complete, because no job is in doubt then; the next import has a new name. The
//! marker also shows the highest id.
//!
//! A draining source accepts no marker. Then the random name is kept in duewheel, under the instance id. If such an
//! import is interrupted *and* the source is restarted before the next one, the batch in doubt may be imported twice.
//!
//! `--copy` leaves no marker behind: its copies are identified by the instance id, in a form that a moving import never
//! uses.
//!
//! # Notes
//!
//! If a worker of the source takes a job while it is copied, the job is left to the worker, and the copy is cancelled.
//! If the worker gives the job back, it must be copied again, although its `dedupe_id` is known: the answer would be
//! the cancelled copy. So its dedupe id has a number that grows with each cancelled copy. A note in duewheel keeps this
//! number across an interruption; it is written before the copy is cancelled.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;

use serde_json::{Value, json};

use crate::api::{ApiError, HttpApi, segment};
use crate::error::ImportError;
use crate::reply::{BadReply, SourceStats};
use crate::source::{BeanstalkSource, Body, PutAnswer, TubeHead};

/// The marker's tube in the source, and the queue of names in duewheel.
pub(crate) const MARKER: &str = "duewheel-import";
/// The beginning of the marker's body.
const WORDS: &str = "duewheel import ";
/// The longest delay that duewheel accepts.
const NEVER: &str = "36500d";

/// The name of an import in progress.
#[derive(Debug)]
pub(crate) struct Lineage {
    name: String,
    place: MarkerLocation,
    /// For each job that a worker took, the number of its copies that were cancelled.
    cancelled: HashMap<u64, u32>,
    notes: bool,
}

#[derive(Debug)]
enum MarkerLocation {
    /// The marker's id.
    Source(u64),
    /// The id of a message.
    Duewheel(String),
    Copy,
}

impl Lineage {
    /// Continues an interrupted import, or begins a new one. Returns an id above those of all jobs, if it can.
    pub(crate) fn begin(
        source: &mut BeanstalkSource,
        remote: &dyn HttpApi,
        stats: &SourceStats,
    ) -> Result<(Lineage, Option<u64>), ImportError> {
        source.use_tube(MARKER)?;
        let old = old_marker(source)?;
        let name = match &old {
            Some((_, name)) => name.clone(),
            None => random_name()?,
        };
        let (place, name, upper) = match (source.put_asleep(&format!("{WORDS}{name}"))?, old) {
            (PutAnswer::Inserted(id), _) => {
                if is_here(remote, id, &format!("{WORDS}{name}"))? {
                    source.delete(id)?;
                    return Err(itself());
                }
                // The old marker is deleted last, so that there is a marker at every moment.
                while let Some((older, _)) = old_marker(source)?.filter(|(older, _)| *older != id) {
                    source.delete(older)?;
                }
                (MarkerLocation::Source(id), name, Some(id))
            }
            (PutAnswer::Refused(_), Some((id, name))) => (MarkerLocation::Source(id), name, None),
            (PutAnswer::Refused(_), None) => {
                let (id, name) = name_in_duewheel(remote, stats, &name)?;
                (MarkerLocation::Duewheel(id), name, None)
            }
        };
        let mut lineage = Lineage { name, place, cancelled: HashMap::new(), notes: false };
        lineage.read_notes(remote)?;
        Ok((lineage, upper))
    }

    /// Prepares an import that only copies. A probe job shows the highest id, and is deleted at once.
    pub(crate) fn copy(
        source: &mut BeanstalkSource,
        remote: &dyn HttpApi,
        stats: &SourceStats,
    ) -> Result<(Lineage, Option<u64>), ImportError> {
        let instance = instance(stats)?;
        let lineage = Lineage {
            name: format!("copy:{instance}"),
            place: MarkerLocation::Copy,
            cancelled: HashMap::new(),
            notes: false,
        };
        source.use_tube(MARKER)?;
        let body = format!("duewheel probe {}", random_name()?);
        let PutAnswer::Inserted(id) = source.put_asleep(&body)? else { return Ok((lineage, None)) };
        let itself_too = is_here(remote, id, &body);
        source.delete(id)?;
        if itself_too? { Err(itself()) } else { Ok((lineage, Some(id))) }
    }

    /// An id above those of all jobs that were put by now. `None` if the source accepts no job.
    pub(crate) fn renew(&mut self, source: &mut BeanstalkSource) -> Result<Option<u64>, ImportError> {
        source.use_tube(MARKER)?;
        let old = match self.place {
            MarkerLocation::Source(old) => old,
            MarkerLocation::Duewheel(_) => return Ok(None),
            MarkerLocation::Copy => {
                let PutAnswer::Inserted(id) = source.put_asleep("duewheel probe")? else { return Ok(None) };
                source.delete(id)?;
                return Ok(Some(id));
            }
        };
        match source.put_asleep(&format!("{WORDS}{}", self.name))? {
            PutAnswer::Refused(_) => Ok(None),
            PutAnswer::Inserted(id) => {
                self.place = MarkerLocation::Source(id);
                if source.delete(old)? {
                    return Ok(Some(id));
                }
                Err(ImportError::failed("another import from this source is under way; run one at a time"))
            }
        }
    }

    /// The dedupe id of this job's copy.
    pub(crate) fn dedupe_id(&self, job: u64) -> String {
        let cancelled = self.cancelled.get(&job).copied().unwrap_or(0);
        format!("beanstalk:{}:{job}:{cancelled}", self.name)
    }

    /// Notes that a copy is about to be cancelled while its job is still in the source.
    pub(crate) fn note(&mut self, remote: &dyn HttpApi, job: u64, copy: &str) -> Result<(), ApiError> {
        let cancelled = self.cancelled.get(&job).copied().unwrap_or(0).saturating_add(1);
        let note = json!({
            "key": job.to_string(), "if_exists": "replace", "delay": NEVER, "max_attempts": u32::MAX,
            "body": format!("{cancelled} {copy}"),
        });
        self.notes = true;
        remote.post(&format!("/v1/queues/{}/messages", self.notes_queue()), &note)?;
        self.cancelled.insert(job, cancelled);
        Ok(())
    }

    /// Withdraws the note, because the copy could not be cancelled and stays valid.
    pub(crate) fn withdraw(&mut self, remote: &dyn HttpApi, job: u64) -> Result<(), ApiError> {
        match self.cancelled.get(&job).copied() {
            None | Some(0) => return Ok(()),
            Some(1) => self.cancelled.remove(&job),
            Some(n) => self.cancelled.insert(job, n - 1),
        };
        let path = format!("/v1/queues/{}/keys/{job}", self.notes_queue());
        match (self.cancelled.get(&job), remote.delete(&path)) {
            (None, Ok(_)) => Ok(()),
            (Some(n), Ok(_)) => {
                let note = json!({
                    "key": job.to_string(), "delay": NEVER, "max_attempts": u32::MAX, "body": format!("{n} -"),
                });
                remote.post(&format!("/v1/queues/{}/messages", self.notes_queue()), &note).map(drop)
            }
            (_, Err(trouble)) => Err(trouble),
        }
    }

    /// Ends a complete import, in which no job is in doubt: the next one has another name.
    pub(crate) fn end(self, source: &mut BeanstalkSource, remote: &dyn HttpApi) -> Result<(), ImportError> {
        match &self.place {
            MarkerLocation::Source(id) => {
                source.delete(*id)?;
            }
            MarkerLocation::Duewheel(id) => {
                remote.delete(&format!("/v1/messages/{id}"))?;
            }
            MarkerLocation::Copy => {}
        }
        if self.notes {
            remote.post(&format!("/v1/queues/{}/purge", self.notes_queue()), &json!({}))?;
        }
        Ok(())
    }

    fn notes_queue(&self) -> String {
        format!("{MARKER}-{}", self.name)
    }

    /// Reads the notes of an interrupted import. It may not have cancelled the last copies.
    fn read_notes(&mut self, remote: &dyn HttpApi) -> Result<(), ImportError> {
        let mut after: Option<String> = None;
        loop {
            let mut path = format!("/v1/queues/{}/messages?limit=1000", self.notes_queue());
            if let Some(after) = &after {
                path.push_str(&format!("&after={}", segment(after)));
            }
            let page = remote.get(&path)?;
            for note in page["messages"].as_array().into_iter().flatten() {
                let body = note["body"].as_str().and_then(|body| body.split_once(' '));
                let job: Option<u64> = note["key"].as_str().and_then(|key| key.parse().ok());
                let (Some(job), Some((cancelled, copy))) = (job, body) else { continue };
                let Ok(cancelled) = cancelled.parse() else { continue };
                self.notes = true;
                self.cancelled.insert(job, cancelled);
                if copy == "-" {
                    continue;
                }
                match remote.delete(&format!("/v1/messages/{copy}")) {
                    Ok(_) => {}
                    Err(ApiError::Refused(refusal)) if refusal.code == "message_not_found" => {}
                    Err(ApiError::Refused(_)) => self.withdraw(remote, job)?,
                    Err(trouble) => return Err(trouble.into()),
                }
            }
            after = page["next"].as_str().map(str::to_owned);
            if after.is_none() {
                return Ok(());
            }
        }
    }
}

/// The marker that is due first: its id and name.
fn old_marker(source: &mut BeanstalkSource) -> Result<Option<(u64, String)>, BadReply> {
    match source.head(TubeHead::Delayed)? {
        None => Ok(None),
        Some((id, Body::Kept(body))) => match std::str::from_utf8(&body).ok().and_then(marker_name) {
            Some(name) => Ok(Some((id, name.to_owned()))),
            None => Err(foreign(id)),
        },
        Some((id, Body::Skipped(_))) => Err(foreign(id)),
    }
}

fn foreign(id: u64) -> BadReply {
    BadReply(format!("job {id} of tube {MARKER} is not of an import; that tube is needed, delete the job"))
}

fn marker_name(body: &str) -> Option<&str> {
    let name = body.strip_prefix(WORDS)?;
    (name.len() == 32 && name.bytes().all(|b| b.is_ascii_hexdigit())).then_some(name)
}

/// Whether the source is this duewheel, whose server also speaks beanstalkd's protocol, perhaps at the same port.
fn is_here(remote: &dyn HttpApi, id: u64, body: &str) -> Result<bool, ImportError> {
    match remote.get(&format!("/v1/messages/{id}")) {
        Ok(message) => Ok(message["queue"] == MARKER && message["body"] == body),
        Err(ApiError::Refused(refusal)) if matches!(&*refusal.code, "message_not_found" | "bad_request") => {
            Ok(false)
        }
        Err(trouble) => Err(trouble.into()),
    }
}

fn itself() -> ImportError {
    ImportError::Usage("--beanstalk names the server itself, not the beanstalkd to move from".into())
}

/// The message that keeps the name of an import from this instance: its id and the name.
fn name_in_duewheel(
    remote: &dyn HttpApi,
    stats: &SourceStats,
    fresh: &str,
) -> Result<(String, String), ImportError> {
    let message = json!({
        "key": instance(stats)?, "if_exists": "keep", "delay": NEVER, "max_attempts": u32::MAX,
        "body": format!("{WORDS}{fresh}"),
    });
    let done = remote.post(&format!("/v1/queues/{MARKER}/messages"), &message)?;
    let id = done["id"].as_str().unwrap_or_default().to_owned();
    let kept = remote.get(&format!("/v1/messages/{id}"))?;
    match kept.get("body").and_then(Value::as_str).and_then(marker_name) {
        Some(name) => Ok((id, name.to_owned())),
        None => {
            Err(ImportError::failed(format!("message {id} of queue {MARKER} is not of an import; cancel it")))
        }
    }
}

fn instance(stats: &SourceStats) -> Result<&str, ImportError> {
    let none = || {
        ImportError::failed("the source tells no `id` in its stats; import needs beanstalkd 1.10 or later")
    };
    stats.instance.as_deref().ok_or_else(none)
}

fn random_name() -> Result<String, ImportError> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes))?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_is_recognised_by_its_words() {
        let name = random_name().unwrap();
        assert_eq!(marker_name(&format!("{WORDS}{name}")), Some(&*name));
        assert_ne!(name, random_name().unwrap());
        for body in ["", "x", WORDS, &format!("{WORDS}{name}0"), &format!("{WORDS}{}", "x".repeat(32))] {
            assert_eq!(marker_name(body), None, "{body}");
        }
    }
}
