//! The newest attempts to each target, in the memory of the node that has made them, for people to read.
//!
//! A message has its own attempts; this list has those of a target, whatever their message. The list is not stored: it
//! begins anew with the process, and an entry costs no write.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duewheel::core::MessageId;
use duewheel::core::engine::Grant;
use duewheel::core::name::QueueName;
use duewheel::core::time::WallMs;

use super::attempts::DeliveryAttempt;
use crate::client::PushOutcome;
use crate::limits::{LATEST_ATTEMPTS, LATEST_EXCERPT};

/// An attempt to deliver a message, in the list of its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetAttempt {
    /// The message.
    pub id: MessageId,
    /// The queue of the message.
    pub queue: QueueName,
    /// Which attempt of the message it was, from 1 on.
    pub number: u32,
    /// When and how it has ended. In the list of a target its answer is cut off behind 200 bytes.
    pub attempt: DeliveryAttempt,
}

impl TargetAttempt {
    /// The attempt of a grant whose request began at `at`.
    pub(crate) fn of(grant: &Grant, at: WallMs, outcome: &PushOutcome) -> Self {
        let (id, queue) = (grant.message.id, grant.message.queue.clone());
        TargetAttempt { id, queue, number: grant.attempt, attempt: DeliveryAttempt::of(at, outcome) }
    }
}

/// The newest attempts to one target. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct LatestAttempts(Arc<Mutex<VecDeque<TargetAttempt>>>);

impl LatestAttempts {
    /// Adds one that has ended; the oldest of too many is dropped.
    pub(crate) fn add(&self, mut attempt: TargetAttempt) {
        let answer = &mut attempt.attempt.answer;
        let end = (0..=LATEST_EXCERPT.min(answer.len())).rev().find(|end| answer.is_char_boundary(*end));
        answer.truncate(end.unwrap_or(0));
        let mut all = self.lock();
        if all.len() >= LATEST_ATTEMPTS {
            all.pop_front();
        }
        all.push_back(attempt);
    }

    /// The attempts, the one that has ended last first.
    pub(crate) fn newest_first(&self) -> Vec<TargetAttempt> {
        self.lock().iter().rev().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<TargetAttempt>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lists of all targets, by name. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct LatestOfTargets(Arc<Mutex<BTreeMap<String, LatestAttempts>>>);

impl LatestOfTargets {
    /// The list of a target, which is made if there is none.
    pub(crate) fn list_of(&self, name: &str) -> LatestAttempts {
        self.lock().entry(name.to_owned()).or_default().clone()
    }

    /// The attempts to a target, newest first.
    pub(crate) fn of(&self, name: &str) -> Vec<TargetAttempt> {
        self.lock().get(name).map(LatestAttempts::newest_first).unwrap_or_default()
    }

    /// Forgets all targets but these.
    pub(crate) fn keep(&self, names: &BTreeSet<&str>) {
        self.lock().retain(|name, _| names.contains(name.as_str()));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, LatestAttempts>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(at_ms: u64) -> TargetAttempt {
        let (class, answer) = ("status_200".into(), String::new());
        TargetAttempt {
            id: "1".parse().unwrap(),
            queue: QueueName::new("q").unwrap(),
            number: 1,
            attempt: DeliveryAttempt { at_ms, ms: 1, status: Some(200), class, answer },
        }
    }

    #[test]
    fn newest_fifty_attempts_are_kept() {
        let all = LatestOfTargets::default();
        let (shop, depot) = (all.list_of("shop"), all.list_of("depot"));
        for at_ms in 0..60 {
            shop.add(attempt(at_ms));
        }
        depot.add(attempt(7));
        let at = |name: &str| all.of(name).iter().map(|one| one.attempt.at_ms).collect::<Vec<_>>();
        assert_eq!(at("shop"), (10..60).rev().collect::<Vec<_>>());
        assert_eq!(at("depot"), [7]);
        assert_eq!(at("nothing"), [0; 0]);
        // A target that begins anew goes on with its list; one that is removed has none.
        all.list_of("depot").add(attempt(8));
        assert_eq!(at("depot"), [8, 7]);
        all.keep(&BTreeSet::from(["depot"]));
        assert_eq!((at("shop"), at("depot")), (vec![], vec![8, 7]));
    }
}
