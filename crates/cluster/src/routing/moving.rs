//! Moves new messages without a shard of their own to another shard when a quota is used up at the first one.
//!
//! Each shard has its own share of a quota, so one shard may refuse a message while others have some of the quota left.
//! A message that belongs to no particular shard is offered to the other shards, one after the other, but not to those
//! that have refused one of the same tenant lately: the requests of a tenant that keeps writing above its quota are not
//! multiplied.

use duewheel_core::engine::{EnqueueRefusal, Op, Reply};
use duewheel_core::id::ShardId;
use duewheel_shard::error::{CallError, Outcome};
use duewheel_shard::inbox::WhenBusy;

use crate::routing::router::Router;

impl Router {
    /// Offers the operations that `first` has refused for a quota to the other shards. `movable` holds operations with
    /// their indexes among the answers.
    pub(super) async fn move_on(
        &self,
        first: ShardId,
        mut movable: Vec<(usize, Op)>,
        came: &mut [Result<Reply, CallError>],
    ) {
        let count = self.count();
        let mut asked = first;
        for step in 0..count {
            movable.retain(|(at, _)| came.get(*at).and_then(refused_by).is_some());
            let now = self.running();
            for quota in movable.iter().filter_map(|(at, _)| refused_by(&came[*at])) {
                if step == 0 {
                    self.used_up.note(quota, asked, now);
                }
            }
            asked = ShardId((first.0 + step + 1) % count);
            if movable.is_empty() || asked == first {
                return;
            }
            let may_have =
                |at: usize| refused_by(&came[at]).is_some_and(|q| !self.used_up.has(q, asked, now));
            let offered: Vec<(usize, Op)> = movable.iter().filter(|(at, _)| may_have(*at)).cloned().collect();
            if offered.is_empty() {
                continue;
            }
            let (indexes, ops): (Vec<usize>, Vec<Op>) = offered.into_iter().unzip();
            let answers = self.shards.submit(asked, ops, WhenBusy::Refuse).await;
            let now = self.running();
            for (at, answer) in indexes.into_iter().zip(answers) {
                match &answer {
                    Ok(Reply::Enqueue(Ok(_))) => came[at] = answer,
                    // The outcome of the second offer is unknown, and so is the answer.
                    Err(error) if error.outcome() == Outcome::Unknown => came[at] = answer,
                    answer => {
                        if let Some(quota) = refused_by(answer) {
                            self.used_up.note(quota, asked, now);
                        }
                    }
                }
            }
        }
    }
}

/// The quota for which an enqueue was refused, if that is the reason.
fn refused_by(answer: &Result<Reply, CallError>) -> Option<&str> {
    match answer {
        Ok(Reply::Enqueue(Err(EnqueueRefusal::OverQuota(over)))) => Some(&over.quota),
        _ => None,
    }
}
