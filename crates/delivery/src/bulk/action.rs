//! What is done to the messages of a job, and what the answers say.

use duewheel::core::Policy;
use duewheel::core::engine::{ChangeRefusal, EnqueueRefusal};
use duewheel::core::message::State;
use duewheel::core::name::{BadName, QueueName};
use duewheel::{CallError, Outcome};
use serde::{Deserialize, Serialize};

use super::filter::BulkFilter;
use super::moves::{MoveFailure, MovedDead};
use crate::limits::MAX_BULK_RATE;

/// What is done to each message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum BulkAction {
    /// The message is cancelled; a dead one is removed, if the filter asks for dead ones.
    Cancel,
    /// The message is due at another time.
    Postpone(BulkMove),
    /// The message is due now.
    Fire,
    /// A dead message is ready again.
    Redrive {
        /// The delay of the messages from the beginning of the job, in ms.
        #[serde(skip_serializing_if = "Option::is_none")]
        delay_ms: Option<u64>,
        /// The queue in which each message becomes a new one.
        #[serde(skip_serializing_if = "Option::is_none")]
        to_queue: Option<String>,
    },
    /// Every message that is not leased is removed, dead ones included.
    Purge,
    /// The messages that an act has removed and kept are put back.
    Restore {
        /// The id of the act.
        act: String,
    },
}

/// The other due time of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BulkMove {
    /// The message is due this many ms after the beginning of the job.
    Delay(u64),
    /// This many ms after the time at which it was due; before it, if negative. What is past is due now.
    Shift(i64),
}

/// Whether a redrive into another queue moves messages that have URLs of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UrlMoves {
    /// Messages with URLs stay where they are and are counted as refused: the caller may send no messages to URLs, or
    /// nobody would send those of the other queue.
    #[default]
    Refused,
    /// Messages with URLs move like others.
    Allowed,
}

impl UrlMoves {
    pub(super) fn is_default(&self) -> bool {
        *self == UrlMoves::default()
    }
}

/// What is wrong with a request for a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {what}")]
pub struct BadBulk {
    /// The field.
    pub field: &'static str,
    /// The problem of the field.
    pub what: String,
}

fn bad(field: &'static str, what: impl Into<String>) -> BadBulk {
    BadBulk { field, what: what.into() }
}

impl BulkAction {
    /// The name of the action.
    pub fn as_str(&self) -> &'static str {
        match self {
            BulkAction::Cancel => "cancel",
            BulkAction::Postpone(_) => "postpone",
            BulkAction::Fire => "fire",
            BulkAction::Redrive { .. } => "redrive",
            BulkAction::Purge => "purge",
            BulkAction::Restore { .. } => "restore",
        }
    }

    /// Whether messages are removed, which an act may keep.
    pub(super) fn removes(&self) -> bool {
        matches!(self, BulkAction::Cancel | BulkAction::Purge)
    }

    /// Whether messages move into another queue.
    pub(super) fn moves(&self) -> bool {
        matches!(self, BulkAction::Redrive { to_queue: Some(_), .. })
    }

    /// The queue in which the messages are, for a job of `queue`.
    pub(super) fn walks(&self, queue: QueueName) -> Result<QueueName, BadName> {
        match self {
            BulkAction::Restore { act } => queue.of_act(act),
            _ => Ok(queue),
        }
    }

    /// The state whose messages are listed; `None`: all states.
    pub(super) fn lists(&self, filter: &BulkFilter) -> Option<State> {
        match self {
            BulkAction::Redrive { .. } => Some(State::Dead),
            BulkAction::Restore { .. } => Some(State::Done),
            _ => filter.only(),
        }
    }

    /// Whether messages in this state are changed, if the filter means them.
    pub(super) fn takes(&self, state: State, filter: &BulkFilter) -> bool {
        match (self, state) {
            (_, State::Leased) => false,
            (BulkAction::Redrive { .. }, state) => state == State::Dead,
            (BulkAction::Purge | BulkAction::Restore { .. }, _) => true,
            // Dead letters are removed by those alone who ask for them.
            (BulkAction::Cancel, State::Dead) => filter.only() == Some(State::Dead),
            (_, state) => state != State::Dead,
        }
    }

    pub(super) fn check(
        &self,
        policy: &Policy,
        filter: &BulkFilter,
        rate: Option<u32>,
    ) -> Result<(), BadBulk> {
        let max = policy.max_delay_ms;
        let delay = match self {
            BulkAction::Postpone(BulkMove::Delay(ms)) => Some(*ms),
            BulkAction::Redrive { delay_ms, .. } => *delay_ms,
            _ => None,
        };
        if delay.is_some_and(|ms| ms > max) {
            return Err(bad("delay_ms", format!("must be at most {max}")));
        }
        if let BulkAction::Postpone(BulkMove::Shift(ms)) = self
            && ms.unsigned_abs() > max
        {
            return Err(bad("shift_ms", format!("must be from -{max} to {max}")));
        }
        if let BulkAction::Redrive { to_queue: Some(queue), .. } = self {
            QueueName::new(queue).map_err(|what| bad("to_queue", what.to_string()))?;
        }
        if let BulkAction::Restore { act } = self {
            let queue = QueueName::new("q").and_then(|queue| queue.of_act(act));
            queue.map_err(|what| bad("act", format!("is the id of no act: {what}")))?;
            if !filter.is_empty() {
                return Err(bad("filter", "is not for restore: act names the messages"));
            }
        }
        if rate.is_some_and(|rate| rate == 0 || rate > MAX_BULK_RATE) {
            return Err(bad("rate", format!("must be a whole number from 1 to {MAX_BULK_RATE}")));
        }
        if filter.key_prefix.as_deref() == Some("") {
            return Err(bad("key_prefix", "must not be empty: it would match every key"));
        }
        let reason = match (filter.dead_reason, &filter.note) {
            (Some(_), _) => "dead_reason",
            (None, Some(_)) => "note",
            (None, None) => "dead_note",
        };
        if filter.asks_for_dead() && filter.state.is_some_and(|state| state != State::Dead) {
            return Err(bad(reason, "is for dead messages alone"));
        }
        match filter.only() {
            Some(State::Leased) => Err(bad("state", "leased messages are left to their consumers")),
            Some(state) if !self.takes(state, filter) => {
                let (word, action) = (state.as_str(), self.as_str());
                let field = if filter.state.is_some() { "state" } else { reason };
                Err(bad(field, format!("a job that says {action} changes no {word} messages")))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// The result for one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BulkOutcome {
    Done,
    Leased,
    Changed,
    Refused,
}

/// What an answer says: the outcome, or why the same is to be tried again.
pub(super) type Judged = Result<BulkOutcome, BulkOpen>;

/// Why a message is asked for again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BulkOpen {
    /// The change was refused for now: it was not made before.
    Refused(ChangeRefusal),
    /// Nothing was tried with the message, for this reason.
    Untried(String),
    /// The change may have been made, or not.
    Unknown(String),
}

impl BulkOpen {
    /// An error before the change of the message.
    pub(super) fn untried(error: &CallError) -> Self {
        BulkOpen::Untried(error.to_string())
    }

    /// Whether the change may have been made, given whether that was so before.
    pub(super) fn is_unsure(&self, was_unsure: bool) -> bool {
        match self {
            BulkOpen::Refused(_) => false,
            BulkOpen::Untried(_) => was_unsure,
            BulkOpen::Unknown(_) => true,
        }
    }
}

impl From<CallError> for BulkOpen {
    fn from(error: CallError) -> Self {
        match error.outcome() {
            Outcome::NotApplied => BulkOpen::untried(&error),
            Outcome::Unknown => BulkOpen::Unknown(error.to_string()),
        }
    }
}

/// What the answer to a removal says: what is still there was not removed before.
pub(super) fn of_removal(answer: Result<(), ChangeRefusal>, unsure: bool) -> Judged {
    let is_gone = matches!(answer, Err(ChangeRefusal::NotFound));
    of_change(answer, unsure && is_gone)
}

/// What the answer to a restore says: what is not kept any more was put back before, or is lost.
pub(super) fn of_restore(answer: Result<(), ChangeRefusal>, unsure: bool) -> Judged {
    let is_back = matches!(answer, Err(ChangeRefusal::NotDead));
    of_change(answer, unsure && is_back)
}

/// The outcome of a message that moves into another queue.
pub(super) fn of_move(end: Result<MovedDead, MoveFailure>) -> Judged {
    match end {
        Ok(_) => Ok(BulkOutcome::Done),
        Err(MoveFailure::Copy(refusal)) => of_enqueue(refusal),
        Err(MoveFailure::Removal(ChangeRefusal::NotFound | ChangeRefusal::NotDead)) => {
            Ok(BulkOutcome::Changed)
        }
        // Its copy has entered.
        Err(MoveFailure::Removal(refusal)) => Err(BulkOpen::Unknown(format!("{refusal:?}"))),
        Err(MoveFailure::Call(error)) => Err(error.into()),
    }
}

/// What the answer to a change says. `unsure`: this change may have been made before.
pub(super) fn of_change(answer: Result<(), ChangeRefusal>, unsure: bool) -> Judged {
    match answer {
        Ok(()) => Ok(BulkOutcome::Done),
        Err(ChangeRefusal::NotFound | ChangeRefusal::NotDead | ChangeRefusal::GenerationMismatch(_))
            if unsure =>
        {
            Ok(BulkOutcome::Done)
        }
        Err(ChangeRefusal::Leased) => Ok(BulkOutcome::Leased),
        Err(
            ChangeRefusal::NotFound
            | ChangeRefusal::NotDead
            | ChangeRefusal::Dead
            | ChangeRefusal::GenerationMismatch(_),
        ) => Ok(BulkOutcome::Changed),
        Err(refusal @ (ChangeRefusal::DiskFull | ChangeRefusal::Overloaded(_) | ChangeRefusal::Busy)) => {
            Err(BulkOpen::Refused(refusal))
        }
        Err(_) => Ok(BulkOutcome::Refused),
    }
}

/// What the refusal of a copy says.
pub(super) fn of_enqueue(refusal: EnqueueRefusal) -> Judged {
    match refusal {
        EnqueueRefusal::DiskFull
        | EnqueueRefusal::Overloaded(_)
        | EnqueueRefusal::Busy
        | EnqueueRefusal::OverQuota(_) => Err(BulkOpen::Untried(format!("{refusal:?}"))),
        _ => Ok(BulkOutcome::Refused),
    }
}

#[cfg(test)]
mod tests {
    use duewheel::core::MessageId;
    use duewheel::core::engine::{KeyHolder, Limit};

    use super::*;

    #[test]
    fn transient_refusals_are_retried_others_counted() {
        for refusal in
            [ChangeRefusal::DiskFull, ChangeRefusal::Busy, ChangeRefusal::Overloaded(Limit::Leases)]
        {
            assert!(of_change(Err(refusal.clone()), false).is_err(), "{refusal:?}");
        }
        for refusal in
            [EnqueueRefusal::DiskFull, EnqueueRefusal::Busy, EnqueueRefusal::Overloaded(Limit::Leases)]
        {
            assert!(of_enqueue(refusal.clone()).is_err(), "{refusal:?}");
        }
        let gone = [ChangeRefusal::NotFound, ChangeRefusal::NotDead, ChangeRefusal::GenerationMismatch(3)];
        for refusal in gone {
            assert_eq!(of_change(Err(refusal.clone()), false), Ok(BulkOutcome::Changed));
            assert_eq!(of_change(Err(refusal), true), Ok(BulkOutcome::Done), "before a crash");
        }
        assert_eq!(of_change(Err(ChangeRefusal::Leased), true), Ok(BulkOutcome::Leased));
        let holder = KeyHolder { id: MessageId(1), state: State::Ready };
        assert_eq!(of_change(Err(ChangeRefusal::KeyExists(holder)), true), Ok(BulkOutcome::Refused));
        assert_eq!(of_enqueue(EnqueueRefusal::KeyExists(holder)), Ok(BulkOutcome::Refused));
    }
}
