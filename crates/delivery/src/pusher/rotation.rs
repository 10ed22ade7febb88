//! The queues of a target take turns: a message waits for no backlog of another queue.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use duewheel::core::name::QueueName;

/// The queues that were granted messages in the current cycle.
#[derive(Debug, Default)]
pub(super) struct QueueRotation(Mutex<HashSet<QueueName>>);

/// The queues of a reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CyclePart {
    /// All queues of the target: a cycle begins.
    All,
    /// The queues without a message in this cycle. The reserve does not wait, because the others may have messages.
    Rest,
}

impl QueueRotation {
    /// The queues to reserve from.
    pub(super) fn next(&self, all: &[QueueName]) -> (Vec<QueueName>, CyclePart) {
        let mut served = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rest: Vec<_> = all.iter().filter(|queue| !served.contains(*queue)).cloned().collect();
        if rest.is_empty() {
            served.clear();
            return (all.to_vec(), CyclePart::All);
        }
        let part = if rest.len() == all.len() { CyclePart::All } else { CyclePart::Rest };
        (rest, part)
    }

    /// Notes the queues of granted messages; without one, the cycle ends.
    pub(super) fn granted<'a>(&self, queues: impl ExactSizeIterator<Item = &'a QueueName>) {
        let mut served = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if queues.len() == 0 {
            served.clear();
        }
        for queue in queues {
            if !served.contains(queue) {
                served.insert(queue.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_has_its_turn() {
        let names: Vec<_> = ["a", "b", "c"].map(|name| QueueName::new(name).unwrap()).into();
        let [a, b, c] = [&names[..1], &names[1..2], &names[2..]];
        let rotation = QueueRotation::default();
        assert_eq!(rotation.next(&names), (names.clone(), CyclePart::All));
        rotation.granted(a.iter());
        assert_eq!(rotation.next(&names), (names[1..].to_vec(), CyclePart::Rest));
        rotation.granted(c.iter());
        assert_eq!(rotation.next(&names), (b.to_vec(), CyclePart::Rest));
        rotation.granted(b.iter());
        assert_eq!(rotation.next(&names), (names.clone(), CyclePart::All), "all had one");
        rotation.granted(a.iter());
        rotation.granted([].iter());
        assert_eq!(rotation.next(&names), (names.clone(), CyclePart::All), "the others have none");
        // An edit leaves a queue out.
        rotation.granted(a.iter());
        assert_eq!(rotation.next(b), (b.to_vec(), CyclePart::All));
        assert_eq!(rotation.next(a), (a.to_vec(), CyclePart::All));
    }
}
