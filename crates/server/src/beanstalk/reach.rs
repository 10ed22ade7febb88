//! The queues that a session may use at a limited listener. Other queues do not exist for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use duewheel::core::engine::Reply;
use duewheel::core::{MessageId, QueueName};

use super::batch::{Brings, brings, is_alone, sees_what_follows};
use super::codec::{Command, DecodedInput};
use super::replies::EngineAnswer;
use super::replies::no_answer;
use crate::auth::Prefixes;
use crate::error::ErrorCode;

const NOT_FOUND: &str = "NOT_FOUND\r\n";

/// The permitted queues, and what is known of the messages that commands name.
#[derive(Debug)]
pub(super) struct PermittedQueues {
    /// The prefixes of the permitted queues; `None`: all.
    prefixes: Option<Arc<Prefixes>>,
    /// The verdicts for the next commands. The queue of an id never changes, so a verdict is still right when the
    /// command is decided.
    verdicts: BTreeMap<MessageId, Verdict>,
}

/// Whether a message is in a permitted queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Reached,
    OutOfReach,
    /// The engine could not answer; the reply in this case.
    Unknown(&'static str),
}

impl PermittedQueues {
    pub(super) fn new(prefixes: Option<Arc<Prefixes>>) -> Self {
        PermittedQueues { prefixes, verdicts: BTreeMap::new() }
    }

    /// Whether this queue is permitted.
    pub(super) fn has(&self, queue: &QueueName) -> bool {
        self.prefixes.as_ref().is_none_or(|prefixes| prefixes.reach(queue))
    }

    /// The messages that the next batch of commands names, at most `most` but at least one, if their queues are
    /// unknown. As many commands are examined as are handed to the engine together.
    pub(super) fn unseen<'a>(
        &self,
        decoded: impl Iterator<Item = &'a DecodedInput>,
        most: usize,
    ) -> Option<Vec<MessageId>> {
        self.prefixes.as_ref()?;
        let (mut ids, mut batch) = (Vec::new(), Brings::Either);
        for (at, decoded) in decoded.enumerate() {
            let Ok(command) = &decoded.what else { continue };
            let brings = brings(command);
            let goes_along = brings == Brings::Either || batch == Brings::Either || brings == batch;
            if at > 0 && (is_alone(command) || !goes_along) {
                break;
            }
            if batch == Brings::Either {
                batch = brings;
            }
            ids.extend(named(command));
            if is_alone(command) || sees_what_follows(command) || ids.len() >= most {
                break;
            }
        }
        ids.iter().any(|id| !self.verdicts.contains_key(id)).then_some(ids)
    }

    /// Whether a command names a message of an unknown queue.
    pub(super) fn is_unseen(&self, command: &Command) -> bool {
        self.prefixes.is_some() && named(command).is_some_and(|id| !self.verdicts.contains_key(&id))
    }

    /// Records the engine's answer about a message.
    pub(super) fn learn(&mut self, id: MessageId, answer: EngineAnswer) {
        let verdict = match answer {
            Ok(Reply::View(Some(view))) if self.has(&view.message.queue) => Verdict::Reached,
            Ok(Reply::View(_)) => Verdict::OutOfReach,
            answer => Verdict::Unknown(no_answer(Some(answer))),
        };
        self.verdicts.insert(id, verdict);
    }

    /// Forgets the verdicts after the commands were handed on.
    pub(super) fn forget(&mut self) {
        self.verdicts.clear();
    }

    /// The reply to a command about a queue that is not permitted: by its name, by a job's id, or because it is the
    /// used one.
    pub(super) fn refusal(
        &self,
        command: &Command,
        used: &QueueName,
        watched: &[QueueName],
    ) -> Option<&'static str> {
        self.prefixes.as_ref()?;
        let forbidden = ErrorCode::Forbidden.beanstalk();
        let unless = |queue: &QueueName, refusal| (!self.has(queue)).then_some(refusal);
        match command {
            Command::Put(_) | Command::Kick(_) => unless(used, forbidden),
            Command::PeekReady
            | Command::PeekDelayed
            | Command::PeekBuried
            | Command::PeekKey(_)
            | Command::DeleteKey(_) => unless(used, NOT_FOUND),
            Command::Use(queue) => unless(queue, forbidden),
            // The initial queue may be named again.
            Command::Watch(queue) if watched.contains(queue) => None,
            Command::Watch(queue) => unless(queue, forbidden),
            Command::StatsTube(queue) | Command::PauseTube { queue, .. } => unless(queue, NOT_FOUND),
            // The figures of the tube are those of all queues together.
            Command::Stats => Some(forbidden),
            Command::Peek(id)
            | Command::StatsJob(id)
            | Command::Delete(id)
            | Command::ReserveJob(id)
            | Command::KickJob(id) => match self.verdicts.get(id) {
                Some(Verdict::Reached) => None,
                Some(Verdict::Unknown(text)) => Some(text),
                Some(Verdict::OutOfReach) | None => Some(NOT_FOUND),
            },
            // These commands concern the session itself and its own leases, or leave out queues that are not permitted.
            Command::Release { .. }
            | Command::Bury { .. }
            | Command::Touch(_)
            | Command::Ignore(_)
            | Command::Reserve(_)
            | Command::ListTubes
            | Command::ListTubeUsed
            | Command::ListTubesWatched
            | Command::BeginPut
            | Command::MissPut
            | Command::Quit => None,
        }
    }
}

/// The message that a command names, and that need not be leased to the session.
fn named(command: &Command) -> Option<MessageId> {
    match command {
        Command::Peek(id)
        | Command::StatsJob(id)
        | Command::Delete(id)
        | Command::ReserveJob(id)
        | Command::KickJob(id) => Some(*id),
        _ => None,
    }
}
