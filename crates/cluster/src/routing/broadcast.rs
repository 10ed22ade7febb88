//! Operations that concern several shards: asked of all, and their answers merged ([`crate::routing::merge`]).
//!
//! | operation | when a shard fails |
//! |---|---|
//! | looks: queues, figures, histogram, ring, peek, list, next due | an error that names the shard, never a smaller answer |
//! | configure, pause, resume, purge | an error, outcome unknown: the others have done it. Each may be asked again |
//! | fire or redrive many | the same. Shards are asked one after the other, each in its own order, until there are as many as wanted |
//! | a session has closed | it is told in the background, for a bounded time; leases end by themselves |
//!
//! Asking for more than one shard is no transaction: a look shows each shard at a moment of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use duewheel_core::engine::{Op, Page, Reply, Stats};
use duewheel_core::id::{SessionId, ShardId};
use duewheel_core::message::State;
use duewheel_core::name::QueueName;
use duewheel_shard::error::{CallError, Outcome};
use duewheel_shard::inbox::Patience;
use duewheel_shard::listing::{ListPlace, ListPlaces, Listing, Merge};
use duewheel_shard::pending::Pending;
use tokio::sync::oneshot;

use crate::routing::merge::{self, Own};
use crate::routing::partition::by_shard;
use crate::routing::reserve::of_shard;
use crate::routing::router::Router;

/// Attempts to tell a shard that a session has closed: for about five minutes.
const TELL: u32 = 64;
/// Rows asked of each shard for a page, at least.
const LEAST_ROWS: usize = 16;
/// Rounds of asking for a page; then it is as short as it is.
const ROUNDS: usize = 16;

impl Router {
    /// Asks several shards, and makes one answer of theirs.
    pub(super) async fn many(self: &Arc<Self>, op: Op, patience: Patience) -> Result<Reply, CallError> {
        match op {
            Op::Reserve(reserve) => {
                let (to, answers) = oneshot::channel();
                self.reserve(reserve, to, None);
                let answer = Pending::new(answers, 1).await.pop();
                answer.unwrap_or(Err(CallError::WRONG_ANSWER))
            }
            Op::Undelivered { leases } => {
                let parts = by_shard(&leases, self.count());
                let send = |(shard, leases)| {
                    let op = Op::Undelivered { leases };
                    self.sessions.watch(&op, shard);
                    (shard, self.shards.submit(shard, vec![op], patience))
                };
                let sent = parts.into_iter().map(send).collect();
                received(sent).await.map(|_| Reply::Done)
            }
            Op::FireMany { queue, max } => {
                self.until_enough(max, |max| Op::FireMany { queue: queue.clone(), max }).await
            }
            Op::RedriveMany { queue, max } => {
                self.until_enough(max, |max| Op::RedriveMany { queue: queue.clone(), max }).await
            }
            Op::Peek { state, .. } => {
                let views = self.all(&op, patience, |reply| match reply {
                    Reply::View(view) => Some(view),
                    _ => None,
                });
                Ok(Reply::View(merge::first(state, views.await?.into_iter().flatten())))
            }
            Op::List { queue, state, after: None, limit } => {
                let listing = self.pages(queue, state, None, limit).await?;
                match listing.next {
                    // Its place is not one of a single shard.
                    Some(_) => Err(CallError::WRONG_PLACES),
                    None => Ok(Reply::Page(Page { views: listing.views, ..Page::default() })),
                }
            }
            Op::List { after: Some(_), .. } => Err(CallError::WRONG_PLACES),
            Op::Queue { ref queue } => {
                let views = self.all(&op, patience, |reply| match reply {
                    Reply::Queues(views) => Some(views),
                    _ => None,
                });
                let views = views.await?;
                let own = self.own(queue).map(|own| (queue.clone(), own));
                Ok(Reply::Queues(merge::queues(views, own.into_iter().collect())))
            }
            Op::Queues { after, limit } => self.queues(after, limit).await,
            Op::Histogram { .. } => self.histogram(op).await,
            Op::Wheel => {
                let wheels = self.all(&op, patience, |reply| match reply {
                    Reply::Wheel(wheel) => Some(*wheel),
                    _ => None,
                });
                let wheel = merge::wheel(wheels.await?).ok_or(CallError::WRONG_ANSWER)?;
                Ok(Reply::Wheel(Box::new(wheel)))
            }
            Op::Stats => {
                let stats = self.all(&op, patience, |reply| match reply {
                    Reply::Stats(stats) => Some(*stats),
                    _ => None,
                });
                let stats = merge::stats(stats.await?);
                let waiters = self.with_lines(|lines, _, _| lines.len() as u64);
                let queues = stats.queues.max(self.holds().len() as u64);
                Ok(Reply::Stats(Box::new(Stats { waiters, queues, ..stats })))
            }
            Op::Configure { .. } => self.configure(op, patience).await,
            Op::Pause { .. } | Op::Resume { .. } => {
                let told = |reply| matches!(reply, Reply::Done | Reply::Configure(_)).then_some(reply);
                let replies = self.everywhere(&op, patience, told).await?;
                Ok(replies.into_iter().find(|reply| *reply != Reply::Done).unwrap_or(Reply::Done))
            }
            Op::Purge { .. } => {
                let counts = self.everywhere(&op, patience, |reply| match reply {
                    Reply::Count(n) => Some(n),
                    _ => None,
                });
                Ok(Reply::Count(merge::sum(counts.await?)))
            }
            Op::SessionClosed { session } => {
                self.close(session).await;
                Ok(Reply::Done)
            }
            Op::SessionDeadline { session } => self.session_deadline(session).await.map(Reply::Deadline),
            Op::Quotas => {
                let uses = self.all(&op, patience, |reply| match reply {
                    Reply::Quotas(uses) => Some(uses),
                    _ => None,
                });
                Ok(Reply::Quotas(merge::quotas(uses.await?)))
            }
            Op::NextDue => {
                let dues = self.all(&op, patience, |reply| match reply {
                    Reply::NextDue(due) => Some(due),
                    _ => None,
                });
                Ok(Reply::NextDue(dues.await?.into_iter().flatten().min()))
            }
            // Those of one shard, or of none.
            Op::Enqueue(_)
            | Op::ReserveOne { .. }
            | Op::CancelReserve { .. }
            | Op::Ack { .. }
            | Op::Nack { .. }
            | Op::Bury { .. }
            | Op::Delete { .. }
            | Op::Extend { .. }
            | Op::Cancel { .. }
            | Op::Postpone { .. }
            | Op::Fire { .. }
            | Op::Redrive { .. }
            | Op::Get { .. }
            | Op::Outline { .. }
            | Op::Hold { .. }
            | Op::LetGo { .. } => Err(CallError::WRONG_ANSWER),
        }
    }

    /// What this node knows of a queue, if anything. Asked after the shards: who has been given something since does not wait.
    fn own(&self, queue: &QueueName) -> Option<Own> {
        let holds = self.holds().get(queue).copied().unwrap_or_default();
        let (waiting, standing) = self.with_lines(|lines, _, _| lines.count(queue));
        let own = Own { holds, waiting, standing };
        (own != Own::default()).then_some(own)
    }

    /// All shards, in their order.
    fn each(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.count()).map(ShardId)
    }

    /// Asks all shards for what can be read.
    async fn all<T>(
        &self,
        op: &Op,
        patience: Patience,
        take: impl Fn(Reply) -> Option<T>,
    ) -> Result<Vec<T>, CallError> {
        let send = |shard| (shard, self.shards.submit(shard, vec![op.clone()], patience));
        let replies = received(self.each().map(send).collect()).await?;
        replies.into_iter().map(|reply| take(reply).ok_or(CallError::WRONG_ANSWER)).collect()
    }

    /// Asks all shards to change something: when one fails, others may have done it.
    async fn everywhere<T>(
        &self,
        op: &Op,
        patience: Patience,
        take: impl Fn(Reply) -> Option<T>,
    ) -> Result<Vec<T>, CallError> {
        self.all(op, patience, take).await.map_err(|error| match error {
            CallError::Store { error, .. } => CallError::Store { error, outcome: Outcome::Unknown },
            CallError::Overloaded | CallError::Draining | CallError::Closed(_) | CallError::Lost(_) => {
                CallError::Lost("a shard has refused what others may have done")
            }
        })
    }

    /// Asks one shard after the other until as many are done as wanted.
    async fn until_enough(&self, max: usize, op: impl Fn(usize) -> Op) -> Result<Reply, CallError> {
        let max = max.min(self.policy.max_step);
        let (mut done, mut counts) = (0_usize, Vec::new());
        for shard in self.each() {
            let left = max.saturating_sub(done);
            if left == 0 {
                break;
            }
            let asked = self.shards.submit(shard, vec![op(left)], Patience::None);
            match received(vec![(shard, asked)]).await {
                Ok(replies) => match replies.as_slice() {
                    [Reply::Count(n)] => {
                        done = done.saturating_add(usize::try_from(n.what).unwrap_or(left));
                        counts.push(*n);
                    }
                    _ => return Err(CallError::WRONG_ANSWER),
                },
                Err(CallError::Store { error, .. }) if done > 0 => {
                    return Err(CallError::Store { error, outcome: Outcome::Unknown });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Reply::Count(merge::sum(counts)))
    }

    /// Settings count everywhere; a refusal of one shard is the answer.
    async fn configure(&self, op: Op, patience: Patience) -> Result<Reply, CallError> {
        let replies = self.everywhere(&op, patience, Some).await?;
        let (mut views, mut refused) = (Vec::new(), None);
        for reply in replies {
            match reply {
                Reply::Queues(found) => views.push(found),
                Reply::Configure(refusal) => refused = Some(refusal),
                _ => return Err(CallError::WRONG_ANSWER),
            }
        }
        if let Some(refusal) = refused {
            return Ok(Reply::Configure(refusal));
        }
        let Op::Configure { queue, .. } = op else { return Err(CallError::WRONG_ANSWER) };
        let own = self.own(&queue).map(|own| (queue.clone(), own));
        let mut merged = merge::queues(views, own.into_iter().collect());
        if merged.is_empty() {
            // It is answered although nothing of it stays, as one engine does.
            merged.push(merge::empty_queue(queue));
        }
        Ok(Reply::Queues(merged))
    }

    /// Queues by name. A shard's page is complete up to its last name, so the merged one is up to the first of those.
    async fn queues(&self, mut after: Option<QueueName>, limit: usize) -> Result<Reply, CallError> {
        let limit = limit.min(self.policy.max_page);
        let mut found = Vec::new();
        while found.len() < limit {
            let op = Op::Queues { after: after.clone(), limit };
            let pages = self.all(&op, Patience::None, |reply| match reply {
                Reply::Queues(views) => Some(views),
                _ => None,
            });
            let mut pages = pages.await?;
            let full = pages.iter().filter(|page| page.len() >= limit);
            let known = full.filter_map(|page| page.last().map(|view| view.name.clone())).min();
            let is_known = |name: &QueueName| known.as_ref().is_none_or(|known| name <= known);
            for page in &mut pages {
                page.retain(|view| is_known(&view.name));
            }
            let mut own = self.own_queues(after.as_ref());
            own.retain(|name, _| is_known(name));
            found.extend(merge::queues(pages, own));
            after = known;
            if after.is_none() {
                break;
            }
        }
        found.truncate(limit);
        Ok(Reply::Queues(found))
    }

    fn own_queues(&self, after: Option<&QueueName>) -> BTreeMap<QueueName, Own> {
        use std::ops::Bound;
        let from = after.map_or(Bound::Unbounded, |name| Bound::Excluded(name.clone()));
        let mut own: BTreeMap<QueueName, Own> = BTreeMap::new();
        for (name, &holds) in self.holds().range((from, Bound::Unbounded)) {
            own.insert(name.clone(), Own { holds, ..Own::default() });
        }
        self.with_lines(|lines, _, _| {
            for (name, waiting, standing) in lines.queues(after) {
                let of = own.entry(name.clone()).or_default();
                (of.waiting, of.standing) = (waiting, standing);
            }
        });
        own
    }

    async fn histogram(&self, mut op: Op) -> Result<Reply, CallError> {
        // Twice is enough unless a resolution changes meanwhile.
        for _ in 0..3 {
            let all = self.all(&op, Patience::None, |reply| match reply {
                Reply::Histogram(histogram) => Some(histogram),
                _ => None,
            });
            let all = all.await?;
            let (Some(common), Op::Histogram { from, to, columns, .. }) =
                (merge::common_columns(&all), &mut op)
            else {
                return merge::histogram(all).map(Reply::Histogram).ok_or(CallError::WRONG_ANSWER);
            };
            if (*from, *to, *columns) == (common.from, common.to, common.columns) {
                return merge::histogram(all).map(Reply::Histogram).ok_or(CallError::WRONG_ANSWER);
            }
            (*from, *to, *columns) = (common.from, common.to, common.columns);
        }
        let all = self.all(&op, Patience::None, |reply| match reply {
            Reply::Histogram(histogram) => Some(histogram),
            _ => None,
        });
        merge::histogram(all.await?).map(Reply::Histogram).ok_or(CallError::WRONG_ANSWER)
    }

    /// When the first lease of a session runs out, in ms from now.
    pub(super) async fn session_deadline(&self, session: SessionId) -> Result<Option<u64>, CallError> {
        let ask = |shard| {
            let op = Op::SessionDeadline { session };
            (shard, self.shards.submit(shard, vec![op], Patience::None))
        };
        let asked = self.sessions.shards(session).into_iter().map(ask).collect();
        let mut first = None;
        for reply in received(asked).await? {
            match reply {
                Reply::Deadline(left) => first = [first, left].into_iter().flatten().min(),
                _ => return Err(CallError::WRONG_ANSWER),
            }
        }
        Ok(first)
    }

    /// A connection is gone: the shards at which it may have leases are told. Those that cannot be told at once hear of it later.
    async fn close(self: &Arc<Self>, session: SessionId) {
        self.with_lines(|lines, now, out| lines.close(now, session, out));
        let tell =
            |shard| (shard, self.shards.submit(shard, vec![Op::SessionClosed { session }], Patience::None));
        let told: Vec<(ShardId, Pending)> = self.sessions.close(session).into_iter().map(tell).collect();
        for (shard, pending) in told {
            if !matches!(pending.await.as_slice(), [Ok(_)]) {
                let me = self.clone();
                let op = Op::SessionClosed { session };
                self.spawn(async move { me.insist(shard, op, TELL).await });
            }
        }
    }

    /// A page of a listing over all shards.
    pub(super) async fn pages(
        &self,
        queue: QueueName,
        state: Option<State>,
        after: Option<ListPlaces>,
        limit: usize,
    ) -> Result<Listing, CallError> {
        let shards = self.count() as usize;
        let places = after.unwrap_or_else(|| ListPlaces::new(vec![ListPlace::START; shards]));
        if places.as_slice().len() != shards {
            return Err(CallError::WRONG_PLACES);
        }
        let limit = limit.clamp(1, self.policy.max_page);
        // Each has about its share of the page; who has more is asked again.
        let rows = (limit / shards * 2).max(LEAST_ROWS).min(limit);
        let mut merge = Merge::new(state, places, limit, self.policy.load_bytes);
        for _ in 0..ROUNDS {
            let wants = merge.wants();
            if wants.is_empty() {
                break;
            }
            let ask = |&(at, place): &(usize, _)| {
                let shard = ShardId(u32::try_from(at).unwrap_or(0));
                let op = Op::List { queue: queue.clone(), state, after: Some(place), limit: rows };
                (shard, self.shards.submit(shard, vec![op], Patience::None))
            };
            let replies = received(wants.iter().map(ask).collect()).await?;
            for (&(at, _), reply) in wants.iter().zip(replies) {
                let Reply::Page(page) = reply else { return Err(CallError::WRONG_ANSWER) };
                merge.give(at, page);
            }
            merge.take();
        }
        Ok(merge.end())
    }
}

/// What shards have answered, in their order; the first error if there is one.
async fn received(sent: Vec<(ShardId, Pending)>) -> Result<Vec<Reply>, CallError> {
    let mut replies = Vec::with_capacity(sent.len());
    let mut failed = None;
    for (shard, pending) in sent {
        match pending.await.pop() {
            Some(Ok(reply)) => replies.push(reply),
            Some(Err(error)) => failed = failed.or(Some(of_shard(shard, error))),
            None => failed = failed.or(Some(CallError::WRONG_ANSWER)),
        }
    }
    failed.map_or(Ok(replies), Err)
}
