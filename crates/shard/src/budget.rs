//! Budgets for operations that wait or are in progress, limited by count and bytes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duewheel_core::engine::Op;
use duewheel_core::policy::Policy;

/// A load: a number of operations, and their weight in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpLoad {
    /// The number of operations.
    pub requests: usize,
    /// The weight of the operations in bytes.
    pub bytes: usize,
}

impl OpLoad {
    /// The load of these operations.
    pub fn of(ops: &[Op]) -> Self {
        OpLoad { requests: ops.len(), bytes: ops.iter().map(Op::weight).sum() }
    }
}

/// A budget of operations: the present load and the largest one that is accepted.
#[derive(Clone, Debug)]
pub struct OpBudget {
    used: OpLoad,
    max: OpLoad,
}

impl OpBudget {
    /// The budget of an inbox: [`Policy::max_inbox_requests`] and [`Policy::max_inbox_bytes`].
    pub fn new(policy: &Policy) -> Self {
        let max = OpLoad { requests: policy.max_inbox_requests, bytes: policy.max_inbox_bytes };
        OpBudget { used: OpLoad::default(), max }
    }

    /// Adds these operations, whose load is `load`; returns whether they fit. One submission always fits, and so do
    /// operations that settle or return messages: they free room, and losing one costs a redelivery.
    pub fn admit(&mut self, ops: &[Op], load: OpLoad) -> bool {
        let after =
            OpLoad { requests: self.used.requests + load.requests, bytes: self.used.bytes + load.bytes };
        let full = after.requests > self.max.requests || after.bytes > self.max.bytes;
        if full && self.used.requests > 0 && !ops.iter().all(|op| op.operation().settles) {
            return false;
        }
        self.used = after;
        true
    }

    /// Removes the load of operations that were admitted.
    pub fn release(&mut self, load: OpLoad) {
        self.used.requests -= load.requests;
        self.used.bytes -= load.bytes;
    }

    /// Removes the load of all operations.
    pub fn clear(&mut self) {
        self.used = OpLoad::default();
    }
}

/// The budget of a router, for operations that are in progress on many tasks.
#[derive(Debug)]
pub struct CallBudget(Mutex<OpBudget>);

/// The share of the budget that operations in progress use; dropped when they are answered.
#[derive(Debug)]
pub struct CallBudgetShare {
    of: Arc<CallBudget>,
    load: OpLoad,
}

impl CallBudget {
    /// A budget as large as that of an inbox.
    pub fn new(policy: &Policy) -> Arc<Self> {
        Arc::new(CallBudget(Mutex::new(OpBudget::new(policy))))
    }

    /// Reserves a share for these operations; `None` when too much is in progress, under the rules of
    /// [`OpBudget::admit`].
    pub fn take(self: &Arc<Self>, ops: &[Op]) -> Option<CallBudgetShare> {
        let load = OpLoad::of(ops);
        self.budget().admit(ops, load).then(|| CallBudgetShare { of: self.clone(), load })
    }

    fn budget(&self) -> MutexGuard<'_, OpBudget> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CallBudgetShare {
    fn drop(&mut self) {
        self.of.budget().release(self.load);
    }
}

#[cfg(test)]
mod tests {
    use duewheel_core::engine::Enqueue;
    use duewheel_core::{MessageId, QueueName, SessionId};

    use super::*;

    #[test]
    fn call_budget_refuses_enqueues_not_settlements() {
        let budget = CallBudget::new(&Policy { max_inbox_requests: 3, ..Policy::default() });
        let put = || Op::Enqueue(Box::new(Enqueue::new(QueueName::new("q").unwrap(), "")));
        let first = budget.take(&[put(), put()]).unwrap();
        let second = budget.take(&[put()]).unwrap();
        assert!(budget.take(&[put()]).is_none());
        let settling = Op::Delete { id: MessageId(1), session: SessionId(1) };
        let third = budget.take(&[settling.clone(), settling]).unwrap();
        drop((first, second));
        assert!(budget.take(&[put(), put()]).is_none());
        drop(third);
        let large: Vec<Op> = (0..10).map(|_| put()).collect();
        let alone = budget.take(&large).unwrap();
        assert!(budget.take(&[put()]).is_none());
        drop(alone);
        assert_eq!(budget.budget().used, OpLoad::default());
    }

    /// The limit of bytes is enforced like that of requests.
    #[test]
    fn byte_limit_is_enforced_and_returned() {
        let put = |bytes: usize| {
            Op::Enqueue(Box::new(Enqueue::new(QueueName::new("q").unwrap(), vec![b'x'; bytes])))
        };
        let mut budget = OpBudget::new(&Policy { max_inbox_bytes: 10_000, ..Policy::default() });
        let mut admit = |ops: &[Op]| {
            let load = OpLoad::of(ops);
            budget.admit(ops, load).then_some(load)
        };
        let small = admit(&[put(4_000), put(4_000)]).expect("8 kB fit");
        assert!(admit(&[put(4_000)]).is_none());
        let settling = Op::Delete { id: MessageId(1), session: SessionId(1) };
        let settled = admit(&[settling]).expect("it makes room");
        budget.release(small);
        budget.release(settled);
        let large = [put(20_000)];
        assert!(budget.admit(&large, OpLoad::of(&large)), "one submission always fits");
        assert!(!budget.admit(&large, OpLoad::of(&large)));
        budget.clear();
        assert_eq!(budget.used, OpLoad::default());
    }
}
