//! Puts the ready messages of a queue into a new order after a change of its settings, a bounded number of messages a
//! step. Until the change of the settings is answered, messages may be granted in the old order.

use std::ops::Bound::{Excluded, Unbounded};

use crate::id::{MessageId, ReplyTo};

use super::Engine;
use super::queue::QueueIdx;
use super::reply::Reply;
use super::rows::GrantRank;

impl Engine {
    /// Puts the ready messages of a queue into the order of its settings, and answers when that is done.
    pub(super) fn start_rerank(&mut self, idx: QueueIdx, to: ReplyTo, answer: Reply) {
        let is_first = self.reranks.is_empty();
        let rerank = self.reranks.entry(idx).or_default();
        rerank.seen = None;
        rerank.answers.push((to, answer));
        if is_first {
            self.continue_reranks();
        }
    }

    /// Continues with queues that are being put into another order.
    pub(super) fn continue_reranks(&mut self) {
        let mut budget = self.budget();
        while let Some((idx, mut rerank)) = self.reranks.pop_first() {
            while let Some((rank, id)) = self.next_ranked(idx, rerank.seen) {
                if !self.spend(&mut budget, 1) {
                    self.reranks.insert(idx, rerank);
                    return;
                }
                self.worked(1);
                rerank.seen = Some((rank, id));
                if let Some(slot) = self.live(id).filter(|&slot| self.rank(slot) != rank) {
                    self.take_out(slot);
                    self.put_in_place(slot);
                }
            }
            for (to, answer) in rerank.answers {
                self.respond(to, answer);
            }
            if self.queues.contains(idx) {
                self.release(idx);
            }
        }
    }

    fn next_ranked(
        &self,
        idx: QueueIdx,
        seen: Option<(GrantRank, MessageId)>,
    ) -> Option<(GrantRank, MessageId)> {
        if !self.queues.contains(idx) {
            return None;
        }
        let behind = (seen.map_or(Unbounded, Excluded), Unbounded);
        self.queues.get(idx).ready.range(behind).next().map(|(&place, _)| place)
    }
}
