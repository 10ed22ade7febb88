//! Identifies jobs across interruptions of an import and restarts of the source.
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
//! A draining source accepts no marker, and no other job until its end: there the instance id and the job's id identify
//! one job. If such an import is interrupted *and* the source is restarted before the next one, the batch in doubt may
//! be imported twice. `--copy` leaves no marker behind, and uses the instance id in a form of its own.
//!
//! # Notes
//!
//! If a worker of the source takes a job while it is copied, the job is left to the worker, and the copy is cancelled.
//! If the worker gives the job back, it must be copied again, although its `dedupe_id` is known: the answer would be
//! the cancelled copy. So its dedupe id contains the id of the last cancelled copy. A note in duewheel, a message that
//! is never due, keeps that id across an interruption; it is written before the copy is cancelled.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;

use duewheel_client::{Code, Error, ErrorCode};
use serde_json::json;

use super::beanstalk_source::{BeanstalkSource, SourceStats};
use super::failure::CommandFailure;
use super::failure::is_refusal;
use super::remote::Remote;

/// The marker's tube in the source. Queues of notes in duewheel begin with it.
pub(super) const MARKER: &str = "duewheel-import";
/// The beginning of the marker's body.
const WORDS: &str = "duewheel import ";
/// The longest delay that duewheel accepts.
const NEVER: &str = "36500d";

/// The identity of a source's jobs in an import.
#[derive(Debug)]
pub(super) struct ImportMarker {
    is_copy: bool,
    /// The beginning of dedupe ids.
    name: String,
    body: String,
    /// The id of the marker in the source.
    job: Option<u64>,
    /// For each job that a worker took, the last of its copies that was cancelled.
    cancelled: HashMap<u64, String>,
    has_notes: bool,
}

impl ImportMarker {
    /// Continues an interrupted import, or begins a new one. Returns an id above those of all jobs, if the source
    /// accepts a job that shows it.
    pub(super) fn begin(
        source: &mut BeanstalkSource,
        remote: &Remote,
        is_copy: bool,
        stats: &SourceStats,
    ) -> Result<(ImportMarker, Option<u64>), CommandFailure> {
        source.use_tube(MARKER)?;
        let old = if is_copy { None } else { oldest(source)? };
        let token = old.as_ref().map_or_else(random, |(_, token)| Ok(token.clone()))?;
        let body = format!("{WORDS}{token}");
        let put = source.put_asleep(&body)?;
        if let Some(id) = put {
            let is_itself = is_here(remote, id, &body);
            if is_copy || matches!(is_itself, Ok(true)) {
                source.delete(id)?;
            }
            if is_itself? {
                let what = "--beanstalk names the server itself, not the beanstalkd to move from";
                return Err(CommandFailure::Usage(what.into()));
            }
        }
        let job = if is_copy { None } else { put.or(old.map(|(id, _)| id)) };
        let instance = || {
            stats.instance.as_ref().ok_or_else(|| {
                let what = "the source has no `id` in its stats; an import needs beanstalkd 1.10 or later";
                CommandFailure::Failed(what.into())
            })
        };
        let name = match (is_copy, job) {
            (true, _) => format!("copy:{}", instance()?),
            (false, Some(_)) => token,
            (false, None) => format!("draining-{}", instance()?),
        };
        let mut marker =
            ImportMarker { is_copy, name, body, job, cancelled: HashMap::new(), has_notes: false };
        // The old marker is deleted last, so that there is a marker at every moment.
        while let Some(newest) = job
            && let Some((older, _)) = oldest(source)?.filter(|(id, _)| *id != newest)
        {
            source.delete(older)?;
        }
        if !is_copy {
            marker.read_notes(remote)?;
        }
        Ok((marker, put))
    }

    /// An id above those of all jobs that were put by now. `None` if the source accepts no job.
    pub(super) fn renew(&mut self, source: &mut BeanstalkSource) -> Result<Option<u64>, CommandFailure> {
        if self.job.is_none() && !self.is_copy {
            return Ok(None);
        }
        source.use_tube(MARKER)?;
        let Some(id) = source.put_asleep(&self.body)? else { return Ok(None) };
        let old = if self.is_copy { id } else { self.job.replace(id).unwrap_or(id) };
        match source.delete(old)? {
            true => Ok(Some(id)),
            false => {
                let what = "another import from this source is under way; run one at a time";
                Err(CommandFailure::Failed(what.into()))
            }
        }
    }

    /// The dedupe id of this job's copy.
    pub(super) fn dedupe_id(&self, job: u64) -> String {
        format!("beanstalk:{}:{job}:{}", self.name, self.cancelled.get(&job).map_or("", String::as_str))
    }

    /// Cancels the copy of a job that a worker of the source has taken. Returns whether there was time for it.
    pub(super) fn cancel(&mut self, remote: &Remote, job: u64, copy: &str) -> Result<bool, CommandFailure> {
        let before = self.cancelled.get(&job).cloned().unwrap_or_default();
        self.note(remote, job, copy, &before)?;
        match remote.delete(&format!("/v1/messages/{copy}")) {
            Ok(_) => Ok(true),
            Err(Error { code: Code::Server(ErrorCode::Leased | ErrorCode::MessageNotFound), .. }) => {
                self.note(remote, job, &before, "")?;
                Ok(false)
            }
            Err(trouble) => Err(trouble.into()),
        }
    }

    /// Ends a complete import, in which no job is in doubt. Notes about a draining source stay until it is empty,
    /// because the next import has the same name.
    pub(super) fn end(self, source: &mut BeanstalkSource, remote: &Remote) -> Result<(), CommandFailure> {
        match self.job {
            Some(id) => drop(source.delete(id)?),
            None if !self.has_notes || source.stats()?.jobs > 0 => return Ok(()),
            None => {}
        }
        if self.has_notes {
            remote.post(&format!("/v1/queues/{}/purge", self.notes()), &json!({}))?;
        }
        Ok(())
    }

    /// The queue of the notes.
    fn notes(&self) -> String {
        format!("{MARKER}-{}", self.name)
    }

    /// Notes that a copy is cancelled, or is about to be, and the one before it; nothing if there is none.
    fn note(&mut self, remote: &Remote, job: u64, copy: &str, before: &str) -> Result<(), Error> {
        self.has_notes = true;
        if copy.is_empty() {
            self.cancelled.remove(&job);
            return remote.delete(&format!("/v1/queues/{}/keys/{job}", self.notes())).map(drop);
        }
        let note = json!({
            "key": job.to_string(), "if_exists": "replace", "delay": NEVER, "max_attempts": u32::MAX,
            "body": format!("{copy} {before}"),
        });
        remote.post(&format!("/v1/queues/{}/messages", self.notes()), &note)?;
        self.cancelled.insert(job, copy.to_owned());
        Ok(())
    }

    /// Reads the notes of an interrupted import. It may not have cancelled the last copies.
    fn read_notes(&mut self, remote: &Remote) -> Result<(), CommandFailure> {
        for note in remote.list(&format!("/v1/queues/{}/messages?limit=1000", self.notes()), "messages")? {
            let job = note["key"].as_str().and_then(|key| key.parse().ok());
            let copies = note["body"].as_str().and_then(|body| body.split_once(' '));
            let (Some(job), Some((copy, before))) = (job, copies) else { continue };
            self.has_notes = true;
            self.cancelled.insert(job, copy.to_owned());
            match remote.delete(&format!("/v1/messages/{copy}")) {
                Ok(_) => {}
                Err(refusal) if refusal.code == ErrorCode::MessageNotFound => {}
                Err(refusal) if is_refusal(&refusal) => self.note(remote, job, before, "")?,
                Err(trouble) => return Err(trouble.into()),
            }
        }
        Ok(())
    }
}

/// The marker that is due first: its id and name.
fn oldest(source: &mut BeanstalkSource) -> Result<Option<(u64, String)>, CommandFailure> {
    let Some(job) = source.head("peek-delayed")? else { return Ok(None) };
    match std::str::from_utf8(&job.body).ok().and_then(token_of) {
        Some(token) => Ok(Some((job.id, token.to_owned()))),
        None => Err(CommandFailure::Failed(format!(
            "job {} of tube {MARKER} is not of an import; that tube is needed, delete the job",
            job.id
        ))),
    }
}

fn token_of(body: &str) -> Option<&str> {
    let token = body.strip_prefix(WORDS)?;
    (token.len() == 32 && token.bytes().all(|b| b.is_ascii_hexdigit())).then_some(token)
}

/// Whether the source is this duewheel, whose server also speaks beanstalkd's protocol, perhaps at the same port.
fn is_here(remote: &Remote, id: u64, body: &str) -> Result<bool, Error> {
    match remote.get(&format!("/v1/messages/{id}")) {
        Ok(message) => Ok(message["queue"] == MARKER && message["body"] == body),
        Err(Error { code: Code::Server(ErrorCode::MessageNotFound | ErrorCode::BadRequest), .. }) => {
            Ok(false)
        }
        Err(trouble) => Err(trouble),
    }
}

fn random() -> Result<String, CommandFailure> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes))?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_is_recognised_by_its_words() {
        let name = random().unwrap();
        assert_eq!(token_of(&format!("{WORDS}{name}")), Some(&*name));
        assert_ne!(name, random().unwrap());
        for body in ["", "x", WORDS, &format!("{WORDS}{name}0"), &format!("{WORDS}{}", "x".repeat(32))] {
            assert_eq!(token_of(body), None, "{body}");
        }
    }
}
