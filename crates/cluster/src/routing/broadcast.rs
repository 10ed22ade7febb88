//! Operations that concern several shards: they are sent to all, and the answers are merged
//! ([`crate::routing::merge`]).
//!
//! | operation | when a shard fails |
//! |---|---|
//! | reads: queues, figures, histogram, ring, peek, list, next due | an error that names the shard, never an incomplete answer |
//! | configure, pause, resume, purge, confirm | an error, outcome unknown: the other shards have applied it. Each may be repeated |
//! | purge at most so many | the same. The messages of all shards are counted first; then one shard after the other may remove what is left of the number |
//! | fire or redrive many | the same. Shards are asked one after the other, each in its own order, until enough messages are done |
//! | a session has closed | the shard is notified in the background, for a bounded time; leases end by themselves |
//!
//! A broadcast is not a transaction: a read shows each shard at a different moment.
//!
//! Each shard has its own share of a quota, so one shard may refuse a message while others have some of the quota left.
//! A message that belongs to no particular shard is offered to the other shards, one after the other, but not to those
//! that have refused one of the same tenant lately: the requests of a tenant that keeps writing above its quota are not
//! multiplied.

use std::collections::BTreeMap;
use std::sync::Arc;

use duewheel_core::act::Act;
use duewheel_core::engine::{
    Applied, Ask, EnqueueRefusal, FromReply, Op, Page, QueueView, Reply, SettingsRefusal, Typed,
};
use duewheel_core::id::{SessionId, ShardId};
use duewheel_core::name::QueueName;
use duewheel_shard::client::Client;
use duewheel_shard::error::{CallError, Outcome};
use duewheel_shard::inbox::{Pending, WhenBusy};
use duewheel_shard::listing::{ListPosition, ListPositions, ListRequest, Listing, ListingMerge};
use tokio::sync::oneshot;

use crate::routing::merge::{self, Columns, LocalQueue};
use crate::routing::partition::by_shard;
use crate::routing::router::{NOT_ROUTED, Router};

/// The number of attempts to tell a shard that a session has closed; they take about five minutes.
const TELL: u32 = 64;
/// The smallest number of rows that each shard is asked for at a time.
const LEAST_ROWS: usize = 16;
/// The largest number of rounds in which shards are asked for one page; after them the page may be short.
const ROUNDS: usize = 16;

impl Router {
    /// Asks several shards and merges their answers: for all operations with [`Routing::All`] or [`Routing::Leases`] in
    /// the table.
    ///
    /// [`Routing::All`]: duewheel_core::engine::Routing::All
    /// [`Routing::Leases`]: duewheel_core::engine::Routing::Leases
    pub(super) async fn many(self: &Arc<Self>, op: Op, patience: WhenBusy) -> Result<Reply, CallError> {
        let (act, op) = op.apart();
        let act = act.as_ref();
        match op {
            Op::Reserve(reserve) => {
                let (to, answers) = oneshot::channel();
                self.reserve(reserve, to, None);
                let answer = Pending::new(answers, 1).await.pop();
                answer.unwrap_or(Err(CallError::NO_ANSWER))
            }
            Op::Undelivered { leases } => {
                let of_shard = |(shard, leases)| {
                    let undelivered = Op::undelivered(leases);
                    self.sessions.watch(undelivered.op(), shard);
                    (shard, undelivered)
                };
                let asked = by_shard(&leases, self.count()).into_iter().map(of_shard).collect();
                self.ask_shards(asked, patience).await.map(|_| Reply::Done)
            }
            Op::FireMany { queue, max } => {
                self.until_enough(max, |max| Op::fire_many(queue.clone(), max).of_act(act)).await
            }
            Op::RedriveMany { queue, max } => {
                self.until_enough(max, |max| Op::redrive_many(queue.clone(), max).of_act(act)).await
            }
            Op::Peek { queue, state } => {
                let views = self.all(Op::peek(queue, state), patience).await?;
                Ok(Reply::View(merge::first(state, views.into_iter().flatten())))
            }
            Op::List { queue, state, after: None, limit, from } => {
                let listing = self.pages(ListRequest { queue, state, after: None, limit, from }).await?;
                match listing.next {
                    // The position is not one within a single shard.
                    Some(_) => Err(CallError::WRONG_POSITIONS),
                    None => Ok(Reply::Page(Page { views: listing.views, ..Page::default() })),
                }
            }
            Op::List { after: Some(_), .. } => Err(CallError::WRONG_POSITIONS),
            Op::Queue { queue } => {
                let views = self.all(Op::queue(queue.clone()), patience).await?;
                Ok(Reply::Queues(self.merged(queue, views)))
            }
            Op::Queues { after, limit } => self.queues(after, limit).await,
            Op::Histogram { queue, from, to, columns } => {
                self.histogram(queue, Columns { from, to, columns }).await
            }
            Op::Wheel => {
                let wheel = merge::wheel(self.all(Op::wheel(), patience).await?);
                Ok(Reply::Wheel(Box::new(wheel.ok_or(CallError::NO_ANSWER)?)))
            }
            Op::Stats => {
                let mut stats = merge::stats(self.all(Op::stats(), patience).await?);
                stats.waiters = self.with_demands(|demands, _, _| demands.len() as u64);
                stats.queues = stats.queues.max(self.holds().len() as u64);
                Ok(Reply::Stats(Box::new(stats)))
            }
            Op::Configure { queue, settings } => {
                let asked = Op::configure(queue.clone(), settings).of_act(act);
                self.configure(queue, asked, patience).await
            }
            Op::Pause { queue, for_ms } => {
                let applied = self.all(Op::pause(queue, for_ms).of_act(act), patience).await?;
                let applied = applied.into_iter().collect::<Result<Vec<_>, _>>();
                Ok(applied.map_or_else(Reply::Configure, |applied| switched(&applied)))
            }
            Op::Resume { queue } => Ok(switched(&self.all(Op::resume(queue).of_act(act), patience).await?)),
            Op::Purge { queue, at_most: Some(most) } => self.purge_at_most(&queue, most, act, patience).await,
            Op::Purge { queue, at_most } => {
                let purged = self.all(Op::purge(queue, at_most).of_act(act), patience).await?;
                Ok(Reply::Count(merge::sum(purged)))
            }
            Op::SessionClosed { session } => {
                self.close(session).await;
                Ok(Reply::Done)
            }
            Op::SessionDeadline { session } => self.session_deadline(session).await.map(Reply::Deadline),
            Op::Quotas => Ok(Reply::Quotas(merge::quotas(self.all(Op::quotas(), patience).await?))),
            Op::NextDue => {
                let dues = self.all(Op::next_due(), patience).await?;
                Ok(Reply::NextDue(dues.into_iter().flatten().min()))
            }
            Op::History { queue, from, until, step } => {
                let all = self.all(Op::history(queue, from, until, step), patience).await?;
                let sum = all.into_iter().reduce(|mut sum, one| {
                    sum.add(&one);
                    sum
                });
                Ok(sum.ok_or(CallError::NO_ANSWER)?.into())
            }
            Op::Confirm { source, rows } => {
                Ok(Reply::Count(merge::sum(self.all(Op::confirm(source, rows), patience).await?)))
            }
            Op::EraseHistory { queue } => Ok(switched(&self.all(Op::erase_history(queue), patience).await?)),
            // The test `operations_are_routed_as_declared` calls each of these.
            _ => Err(NOT_ROUTED),
        }
    }

    /// State of a queue at this node, if any. It is read after the shards are asked, so consumers that have received
    /// something since are not counted as waiting.
    fn own(&self, queue: &QueueName) -> Option<LocalQueue> {
        let holds = self.holds().get(queue).copied().unwrap_or_default();
        let (waiting, total) = self.with_demands(|demands, _, _| demands.count(queue));
        let own = LocalQueue { holds, waiting, total };
        (own != LocalQueue::default()).then_some(own)
    }

    /// All shards, in their order.
    fn each(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.count()).map(ShardId)
    }

    /// Asks these shards at the same time and returns their answers in this order, or the first error.
    async fn ask_shards<A: Ask>(
        &self,
        asked: Vec<(ShardId, A)>,
        patience: WhenBusy,
    ) -> Result<Vec<A::Reply>, CallError> {
        let send = |(shard, asked): (ShardId, A)| {
            (shard, self.shards.submit(shard, vec![asked.into_op()], patience))
        };
        let sent: Vec<(ShardId, Pending)> = asked.into_iter().map(send).collect();
        let mut answers = Vec::with_capacity(sent.len());
        let mut failed = None;
        for (shard, pending) in sent {
            match Client::answer_to::<A>(pending.await.pop()) {
                Ok(answer) => answers.push(answer),
                Err(error) => failed = failed.or(Some(error.of_shard(shard))),
            }
        }
        failed.map_or(Ok(answers), Err)
    }

    /// Asks all shards. If one of them fails to apply a change, others may have applied it.
    async fn all<R: FromReply>(&self, asked: Typed<R>, patience: WhenBusy) -> Result<Vec<R>, CallError> {
        let is_repeatable = asked.op().is_repeatable();
        let answers =
            self.ask_shards(self.each().map(|shard| (shard, asked.clone())).collect(), patience).await;
        answers.map_err(|error| if is_repeatable { error } else { error.of_one_of_several() })
    }

    /// Asks one shard after the other until enough messages are done.
    async fn until_enough(
        &self,
        max: usize,
        asked: impl Fn(usize) -> Typed<Applied<u64>>,
    ) -> Result<Reply, CallError> {
        let max = max.min(self.policy.max_step);
        let (mut done, mut counts) = (0_usize, Vec::new());
        for shard in self.each() {
            let left = max.saturating_sub(done);
            if left == 0 {
                break;
            }
            match self.ask_shards(vec![(shard, asked(left))], WhenBusy::Refuse).await {
                Ok(more) => {
                    for n in &more {
                        done = done.saturating_add(usize::try_from(n.what).unwrap_or(left));
                    }
                    counts.extend(more);
                }
                Err(error) if done > 0 => return Err(error.of_one_of_several()),
                Err(error) => return Err(error),
            }
        }
        Ok(Reply::Count(merge::sum(counts)))
    }

    /// Purges a queue in all shards unless it has more than `max` messages to remove. Where messages arrive between the count
    /// and a shard's purge, that shard and those behind it may refuse; no more than `max` are removed in that case.
    async fn purge_at_most(
        &self,
        queue: &QueueName,
        max: u64,
        act: Option<&Arc<Act>>,
        patience: WhenBusy,
    ) -> Result<Reply, CallError> {
        let views = self.all(Op::queue(queue.clone()), patience).await?;
        let counts = views.into_iter().flatten().map(|view| view.counts);
        let there: u64 = counts.map(|counts| counts.scheduled + counts.ready + counts.dead).sum();
        if there > max {
            return Ok(Reply::Count(there.into()));
        }
        let (mut seen, mut shards) = (0, Vec::new());
        for shard in self.each() {
            let asked = Op::purge(queue.clone(), Some(max - seen)).of_act(act);
            let purged = self.ask_shards(vec![(shard, asked)], patience).await;
            let purged = purged.map_err(CallError::of_one_of_several)?;
            seen += purged.iter().map(|count| count.what).sum::<u64>();
            shards.extend(purged);
            if seen > max {
                break;
            }
        }
        Ok(Reply::Count(merge::sum(shards)))
    }

    /// The view of one queue, merged from the views of the shards and the knowledge of this node.
    fn merged(&self, queue: QueueName, views: Vec<Option<QueueView>>) -> Vec<QueueView> {
        let own = self.own(&queue).map(|own| (queue, own));
        merge::one_queue(views.into_iter().flatten().collect(), own.into_iter().collect())
    }

    /// Applies settings in all shards; if a shard refuses, its refusal is the answer.
    async fn configure(
        &self,
        queue: QueueName,
        asked: Typed<Result<Applied<Box<QueueView>>, SettingsRefusal>>,
        patience: WhenBusy,
    ) -> Result<Reply, CallError> {
        let answers = self.all(asked, patience).await?;
        let answers: Vec<Applied<Box<QueueView>>> = match answers.into_iter().collect() {
            Ok(answers) => answers,
            Err(refusal) => return Ok(Reply::Configure(refusal)),
        };
        let level = merge::reached(answers.iter().map(|answer| answer.level));
        let views = answers.into_iter().map(|answer| Some(*answer.what)).collect();
        // The change is answered although no setting stays, as one engine answers it.
        let view = self.merged(queue.clone(), views).pop().unwrap_or_else(|| QueueView::empty(queue));
        Ok(Reply::Configured(Applied { what: Some(Box::new(view)), level }))
    }

    /// Lists queues by name. A shard's page is complete up to its last name, so the merged page is complete up to the
    /// smallest of these names.
    async fn queues(&self, mut after: Option<QueueName>, limit: usize) -> Result<Reply, CallError> {
        let limit = limit.min(self.policy.max_page);
        let mut found = Vec::new();
        while found.len() < limit {
            let mut pages = self.all(Op::queues(after.clone(), limit), WhenBusy::Refuse).await?;
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

    /// Queues that sessions of this node hold or wait for, behind this one. The server's own workers also wait, for
    /// queues that nobody else sees.
    fn own_queues(&self, after: Option<&QueueName>) -> BTreeMap<QueueName, LocalQueue> {
        use std::ops::Bound;
        let from = after.map_or(Bound::Unbounded, |name| Bound::Excluded(name.clone()));
        let mut own: BTreeMap<QueueName, LocalQueue> = BTreeMap::new();
        for (name, &holds) in self.holds().range((from, Bound::Unbounded)) {
            own.insert(name.clone(), LocalQueue { holds, ..LocalQueue::default() });
        }
        self.with_demands(|demands, _, _| {
            for (name, waiting, total) in demands.queues(after) {
                let of = own.entry(name.clone()).or_default();
                (of.waiting, of.total) = (waiting, total);
            }
        });
        own.retain(|name, _| !name.is_system());
        own
    }

    async fn histogram(&self, queue: Option<QueueName>, mut columns: Columns) -> Result<Reply, CallError> {
        // A single round is enough unless a resolution changes during it.
        let mut again = 3;
        loop {
            let asked = Op::histogram(queue.clone(), columns.from, columns.to, columns.columns);
            let all = self.all(asked, WhenBusy::Refuse).await?;
            match merge::common_columns(&all) {
                Some(common) if common != columns && again > 0 => (columns, again) = (common, again - 1),
                Some(_) | None => {
                    return merge::histogram(all).map(Reply::Histogram).ok_or(CallError::NO_ANSWER);
                }
            }
        }
    }

    /// When the first lease of a session runs out, in ms from now.
    pub(super) async fn session_deadline(&self, session: SessionId) -> Result<Option<u64>, CallError> {
        let ask = |shard| (shard, Op::session_deadline(session));
        let asked = self.sessions.shards(session).into_iter().map(ask).collect();
        Ok(self.ask_shards(asked, WhenBusy::Refuse).await?.into_iter().flatten().min())
    }

    /// Notifies the shards at which a connection may have leases that it has closed. Shards that cannot be reached at
    /// once are notified later.
    async fn close(self: &Arc<Self>, session: SessionId) {
        self.with_demands(|demands, now, out| demands.close(now, session, out));
        let tell =
            |shard| (shard, self.shards.submit(shard, vec![Op::SessionClosed { session }], WhenBusy::Refuse));
        let pending: Vec<(ShardId, Pending)> = self.sessions.close(session).into_iter().map(tell).collect();
        for (shard, pending) in pending {
            if !matches!(pending.await.as_slice(), [Ok(_)]) {
                let me = self.clone();
                let op = Op::SessionClosed { session };
                self.spawn(async move { me.retry_until_applied(shard, op, TELL).await });
            }
        }
    }

    /// A page of a listing over all shards.
    pub(super) async fn pages(&self, asked: ListRequest) -> Result<Listing, CallError> {
        let ListRequest { queue, state, after, limit, from } = asked;
        let shards = self.count() as usize;
        let positions = after.unwrap_or_else(|| ListPositions::new(vec![ListPosition::START; shards]));
        if positions.as_slice().len() != shards {
            return Err(CallError::WRONG_POSITIONS);
        }
        let limit = limit.clamp(1, self.policy.max_page);
        // Each shard is asked for about its share of the page; those with more messages are asked again.
        let rows = (limit / shards * 2).max(LEAST_ROWS).min(limit);
        let mut merge = ListingMerge::new(state, positions, limit, self.policy.load_bytes);
        for _ in 0..ROUNDS {
            let wants = merge.wants();
            if wants.is_empty() {
                break;
            }
            let ask = |&(at, position): &(usize, _)| {
                let shard = ShardId(u32::try_from(at).unwrap_or(0));
                (shard, Op::list(queue.clone(), state, Some(position), rows, from))
            };
            let pages = self.ask_shards(wants.iter().map(ask).collect(), WhenBusy::Refuse).await?;
            for (&(at, _), page) in wants.iter().zip(pages) {
                merge.give(at, page);
            }
            merge.take();
        }
        Ok(merge.end())
    }
}

/// The answer to a pause or a resume that all shards have applied.
fn switched(applied: &[Applied<()>]) -> Reply {
    let level = merge::reached(applied.iter().map(|shard| shard.level));
    Reply::Configured(Applied { what: None, level })
}

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
