//! Remaining work of operations that take several steps.

use std::collections::{BTreeMap, VecDeque};

use crate::id::{LeaseToken, MessageId, ReplyTo, SessionId};

use super::index::{GrantRank, QueueIdx, RowIdx};
use super::reply::Reply;

/// Purged messages that were ready, to be dropped later. Those in the wheel are dropped when they are due.
#[derive(Debug)]
pub(super) struct PurgedMessages {
    pub(super) queue: QueueIdx,
    pub(super) ready: BTreeMap<(GrantRank, MessageId), RowIdx>,
}

/// Progress of the new order of a queue's ready messages.
#[derive(Debug, Default)]
pub(super) struct Rerank {
    /// Everything up to this rank has been visited. A message that is moved behind it is visited twice, and stays.
    pub(super) seen: Option<(GrantRank, MessageId)>,
    pub(super) answers: Vec<(ReplyTo, Reply)>,
}

/// Closed connections whose leases and waits have not ended.
#[derive(Debug, Default)]
pub(super) struct Closing {
    /// Closed sessions, and where to answer when everything of one has ended.
    pub(super) sessions: VecDeque<(SessionId, ReplyTo)>,
    /// Leases of connections of the former process.
    pub(super) leases: VecDeque<(MessageId, LeaseToken)>,
}

impl Closing {
    pub(super) fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.leases.is_empty()
    }
}
