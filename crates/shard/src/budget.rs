//! A budget for operations in progress, limited by count and bytes like an inbox.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use duewheel_core::engine::Op;
use duewheel_core::policy::Policy;

/// What may be under way at a time.
#[derive(Debug)]
pub struct CallBudget {
    requests: AtomicUsize,
    bytes: AtomicUsize,
    max_requests: usize,
    max_bytes: usize,
}

/// The share of the budget that operations in progress use; dropped when they are answered.
#[derive(Debug)]
pub struct CallBudgetShare {
    of: Arc<CallBudget>,
    requests: usize,
    bytes: usize,
}

impl CallBudget {
    /// The budget of a router: as large as that of an inbox.
    pub fn new(policy: &Policy) -> Arc<Self> {
        Arc::new(CallBudget {
            requests: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            max_requests: policy.max_inbox_requests,
            max_bytes: policy.max_inbox_bytes,
        })
    }

    /// Reserves a share for these operations; `None` when too much is in progress. One submission always fits, and so
    /// do operations that settle or return messages, because they free room.
    pub fn take(self: &Arc<Self>, ops: &[Op]) -> Option<CallBudgetShare> {
        let (requests, bytes) = (ops.len(), ops.iter().map(Op::weight).sum());
        let before = self.requests.fetch_add(requests, SeqCst);
        let bytes_before = self.bytes.fetch_add(bytes, SeqCst);
        let room = CallBudgetShare { of: self.clone(), requests, bytes };
        let full = before + requests > self.max_requests || bytes_before + bytes > self.max_bytes;
        (!full || before == 0 || ops.iter().all(|op| op.operation().settles)).then_some(room)
    }
}

impl Drop for CallBudgetShare {
    fn drop(&mut self) {
        self.of.requests.fetch_sub(self.requests, SeqCst);
        self.of.bytes.fetch_sub(self.bytes, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use duewheel_core::engine::Enqueue;
    use duewheel_core::{MessageId, QueueName, SessionId};

    use super::*;

    #[test]
    fn what_brings_messages_is_refused_when_too_much_is_under_way_and_what_settles_is_not() {
        let rooms = CallBudget::new(&Policy { max_inbox_requests: 3, ..Policy::default() });
        let put = || Op::Enqueue(Box::new(Enqueue::new(QueueName::new("q").unwrap(), "")));
        let first = rooms.take(&[put(), put()]).unwrap();
        let second = rooms.take(&[put()]).unwrap();
        assert!(rooms.take(&[put()]).is_none());
        let settling = Op::Delete { id: MessageId(1), session: SessionId(1) };
        let third = rooms.take(&[settling.clone(), settling]).unwrap();
        drop((first, second));
        assert!(rooms.take(&[put(), put()]).is_none());
        drop(third);
        let large: Vec<Op> = (0..10).map(|_| put()).collect();
        let alone = rooms.take(&large).unwrap();
        assert!(rooms.take(&[put()]).is_none());
        drop(alone);
        assert_eq!((rooms.requests.load(SeqCst), rooms.bytes.load(SeqCst)), (0, 0));
    }
}
