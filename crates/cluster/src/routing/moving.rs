//! New messages that any shard may take move on when the share of a quota is used up at one.
//!
//! Each shard keeps its own share of a quota, so one may refuse while others have some left. A message that belongs to no shard is offered to
//! the others, one after the other, but not to those that have refused one of the same tenant lately: a tenant that goes on against its quota
//! does not multiply.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use duewheel_core::engine::{EnqueueRefusal, Op, Reply};
use duewheel_core::id::ShardId;
use duewheel_shard::error::{CallError, Outcome};
use duewheel_shard::inbox::Patience;

use crate::routing::router::Router;

/// How long a shard is not asked that has refused.
const LATELY: Duration = Duration::from_millis(100);
/// More refusals than these are not kept in mind.
const MOST: usize = 10_000;

/// Which shards have refused messages of which tenant, and until when they are not asked.
#[derive(Debug, Default)]
pub(crate) struct UsedUp(Mutex<BTreeMap<(Box<str>, ShardId), u64>>);

impl UsedUp {
    fn note(&self, quota: &str, shard: ShardId, now: u64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            all.retain(|_, until| *until > now);
        }
        if all.len() < MOST {
            let until = now.saturating_add(u64::try_from(LATELY.as_nanos()).unwrap_or(u64::MAX));
            all.insert((quota.into(), shard), until);
        }
    }

    fn has(&self, quota: &str, shard: ShardId, now: u64) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&(quota.into(), shard)).is_some_and(|until| *until > now)
    }
}

impl Router {
    /// Offers what `first` has refused for a quota to the other shards. `movable` are places among the answers, and operations.
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
            let (places, ops): (Vec<usize>, Vec<Op>) = offered.into_iter().unzip();
            let answers = self.shards.submit(asked, ops, Patience::None).await;
            let now = self.running();
            for (at, answer) in places.into_iter().zip(answers) {
                match &answer {
                    Ok(Reply::Enqueue(Ok(_))) => came[at] = answer,
                    // Nobody knows whether it was taken: that is the news.
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

/// The quota for which an enqueue was refused, if that is why.
fn refused_by(answer: &Result<Reply, CallError>) -> Option<&str> {
    match answer {
        Ok(Reply::Enqueue(Err(EnqueueRefusal::OverQuota(over)))) => Some(&over.quota),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_has_refused_is_not_asked_for_a_while_and_others_are() {
        let (used_up, lately) = (UsedUp::default(), 100_000_000);
        used_up.note("a", ShardId(1), 1_000);
        assert!(used_up.has("a", ShardId(1), 1_000) && used_up.has("a", ShardId(1), 999 + lately));
        assert!(!used_up.has("a", ShardId(1), 1_000 + lately));
        assert!(!used_up.has("a", ShardId(2), 1_000) && !used_up.has("b", ShardId(1), 1_000));
        for n in 0..2 * MOST {
            used_up.note(&format!("{n}"), ShardId(0), 1_000);
        }
        assert_eq!(used_up.0.lock().unwrap().len(), MOST, "bounded");
        used_up.note("late", ShardId(0), 1_000 + lately);
        assert!(used_up.has("late", ShardId(0), 1_000 + lately), "old ones make room");
    }
}
