//! Recent acks, so that a consumer whose answer was lost learns that its message is done when it acks again.
//!
//! They are in memory only, bounded by number and by age. A forgotten ack is answered like any lost lease.

use std::collections::VecDeque;
use std::hash::BuildHasher;

use foldhash::fast::FixedState;

use crate::growing::SplitTable;
use crate::id::{LeaseToken, MessageId};
use crate::name::QueueName;
use crate::policy::Policy;
use crate::time::EngineMs;

/// Number of old acks that are forgotten with each new one: more than one, so that a burst does not stay; few, so that
/// a step is bounded.
const FORGOTTEN: usize = 4;

/// The acks that are remembered; see the [module](self).
#[derive(Debug)]
pub(super) struct Acked {
    /// Acks in order of time, oldest first.
    order: VecDeque<(EngineMs, MessageId)>,
    /// An id is acked at most once, because ids are never used again.
    by_id: SplitTable<PastAck>,
    hasher: FixedState,
}

#[derive(Debug)]
struct PastAck {
    id: MessageId,
    token: LeaseToken,
    queue: QueueName,
    at: EngineMs,
}

impl Acked {
    pub(super) fn new(seed: u64) -> Self {
        let hasher = FixedState::with_seed(seed ^ 0xacced);
        Acked { order: VecDeque::new(), by_id: SplitTable::new(), hasher }
    }

    /// Records an ack.
    pub(super) fn insert(
        &mut self,
        policy: &Policy,
        now: EngineMs,
        id: MessageId,
        token: LeaseToken,
        queue: QueueName,
    ) {
        for _ in 0..FORGOTTEN {
            let Some(&(at, old)) = self.order.front() else { break };
            if self.order.len() < policy.max_acked && is_recent(policy, now, at) {
                break;
            }
            self.order.pop_front();
            self.by_id.remove(self.hasher.hash_one(old), |ack| ack.id == old);
        }
        if self.order.len() < policy.max_acked {
            self.order.push_back((now, id));
            let (hasher, ack) = (&self.hasher, PastAck { id, token, queue, at: now });
            self.by_id.insert(hasher.hash_one(id), ack, |ack| hasher.hash_one(ack.id));
        }
    }

    /// The queue of the message, if this lease acked it recently.
    pub(super) fn queue_of(
        &self,
        policy: &Policy,
        now: EngineMs,
        id: MessageId,
        token: LeaseToken,
    ) -> Option<&QueueName> {
        let done = self.by_id.find(self.hasher.hash_one(id), |ack| ack.id == id)?;
        (done.token == token && is_recent(policy, now, done.at)).then_some(&done.queue)
    }
}

fn is_recent(policy: &Policy, now: EngineMs, at: EngineMs) -> bool {
    now.0.saturating_sub(at.0) < policy.acked_ms
}
