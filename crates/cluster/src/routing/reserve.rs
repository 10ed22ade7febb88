//! Reserves over many shards.
//!
//! * A reserve that does not wait asks one shard after the other until it gets something: first those that have
//!   announced messages, then those of this node, then the others, starting with a different one each time. A shard
//!   that fails, or does not answer within a second, is left out, and is not asked again for a second. When a shard
//!   does not answer within 100 ms, all others are sent a probe at the same time, and those that do not answer the
//!   probe are left out as well: the answer takes no longer when many shards hang than when one does. A probe takes
//!   nothing, so nothing has to be returned. If the reserve got nothing, its answer is empty when at least one shard
//!   has said so, and an error when no shard has answered or when one may have granted something that did not arrive.
//! * A reserve that waits joins the waiting list ([`crate::routing::demand`]), and is sent to shards that have
//!   messages. A reserve whose wait is shorter than that takes is first served as if it did not wait, and then waits
//!   for the rest of its time.
//! * Once a reserve has something and its consumer wants more, only shards that have announced more are asked, and
//!   those of this node if the reserve does not wait: no message waits for a round through the cluster.
//!
//! Everything that is granted is either answered or returned.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use duewheel_core::engine::{Grant, Op, Reply, Reserve, Reserved, WaiterId};
use duewheel_core::id::{SessionId, ShardId};
use duewheel_core::name::{Key, QueueName};
use duewheel_core::store::{ErrorKind, StoreError};
use duewheel_shard::client::Client;
use duewheel_shard::error::{CallError, Outcome};
use duewheel_shard::inbox::{Answers, CallBudgetShare, Pending, WhenBusy};
use tokio::sync::oneshot;

use crate::routing::demand::{Action, Arrival, DemandState, POST_WAIT_MS, ShardGrants, WaitingReserve};
use crate::routing::router::Router;
use crate::routing::sessions::MS;

/// How long a shard may take to grant. After that the answer is not awaited any more, and its grants are returned.
const TIME_LIMIT: Duration = Duration::from_secs(1);
/// How long one shard is awaited before the others are probed.
const ALONE: Duration = Duration::from_millis(100);
/// A reserve that waits for less than this, in ns, asks the shards first: until they have announced their messages its wait
/// might be over.
const SHORT_WAIT: u64 = 200 * MS;
/// How long a shard that did not answer is left out, in ns.
const AWAY: u64 = 1_000 * MS;

impl Router {
    /// Serves a reserve of a consumer.
    pub(super) fn reserve(
        &self,
        mut reserve: Reserve,
        to: oneshot::Sender<Answers>,
        share: Option<CallBudgetShare>,
    ) {
        self.sessions.open(reserve.session);
        reserve.max = reserve.max.min(self.policy.max_reserve);
        reserve.max_bytes = reserve.max_bytes.min(self.policy.max_reserve_bytes);
        reserve.lease_ms = reserve.lease_ms.map(|ms| ms.min(self.policy.max_lease_ms));
        let mut seen = BTreeSet::new();
        reserve.queues.retain(|queue| seen.insert(queue.clone()));
        let now = self.now();
        let soon = self.soon(&reserve, now);
        let deadline = now.saturating_add(reserve.wait_ms.saturating_mul(MS));
        let demand = WaitingReserve { reserve, answer: to, deadline, soon, state: DemandState::Waiting };
        let waits = demand.deadline > now.saturating_add(SHORT_WAIT) && !self.has_ended();
        if waits && soon.is_none_or(|soon| soon > now) {
            return self.with_demands(|demands, now, out| demands.join(now, demand, out));
        }
        let Some(me) = self.me.upgrade() else { return };
        self.spawn(async move {
            me.take_or_leave(demand).await;
            drop(share);
        });
    }

    /// When a lease of the session is about to run out, as far as this node knows.
    fn soon(&self, reserve: &Reserve, now: u64) -> Option<u64> {
        let margin = reserve.deadline_margin_ms?.saturating_mul(MS);
        Some(self.sessions.first_end(reserve.session, now)?.saturating_sub(margin))
    }

    /// Serves a demand that does not wait, or not for long.
    async fn take_or_leave(self: Arc<Self>, mut demand: WaitingReserve) {
        let asked = self.sweep(&demand).await;
        let is_empty = matches!(&asked, Ok(Reserved::Grants(grants)) if grants.is_empty());
        if is_empty && demand.soon.is_some_and(|soon| soon <= self.now()) {
            let session = demand.reserve.session;
            let soon = self.look(session, demand.reserve.deadline_margin_ms).await;
            if soon.is_some_and(|soon| soon <= self.now()) {
                return self.answer_demand(demand.answer, Ok(Reserved::DeadlineSoon));
            }
            // A lease was extended or settled elsewhere.
            demand.soon = soon;
        }
        if is_empty && demand.deadline > self.now() && !self.has_ended() {
            return self.with_demands(|demands, now, out| demands.join(now, demand, out));
        }
        self.answer_demand(demand.answer, asked);
    }

    /// Asks one shard after the other; when one hangs, probes the others at the same time.
    async fn sweep(&self, demand: &WaitingReserve) -> Result<Reserved, CallError> {
        let reserve = &demand.reserve;
        let notified = self.with_demands(|demands, _, _| demands.notified_shards(&reserve.queues));
        let mut near = notified.clone();
        near.extend(self.in_turn(self.shards.here()));
        let all = (0..self.count()).map(ShardId).collect();
        let mut order = near.clone();
        order.extend(self.in_turn(all));
        let mut seen = BTreeSet::new();
        order.retain(|shard| seen.insert(*shard));
        self.leave_out_away(&mut order);

        let mut got: Vec<Grant> = Vec::new();
        let (mut answered, mut failed) = (false, None);
        let (mut probes, mut is_probed) = (BTreeMap::new(), false);
        for (at, shard) in order.iter().copied().enumerate() {
            if demand.answer.is_closed() || !self.has_room(reserve, &got) {
                break;
            }
            if !got.is_empty() && !near.contains(&shard) {
                continue;
            }
            if let Some(probe) = probes.remove(&shard)
                && let Err(error) = self.is_there(shard, probe).await
            {
                failed = failed.or(Some(error));
                continue;
            }
            let mut asked = pin!(self.ask_more(shard, reserve, &mut got));
            let answer = match tokio::time::timeout(ALONE, &mut asked).await {
                Ok(answer) => answer,
                Err(_) => {
                    if !is_probed {
                        is_probed = true;
                        probes = order[at + 1..].iter().map(|other| (*other, self.probe(*other))).collect();
                    }
                    asked.await
                }
            };
            match answer {
                Ok(()) => answered = true,
                // A shard that may have granted something decides the error: callers rely on "not applied".
                Err(error) if error.outcome() == Outcome::Unknown => failed = Some(error),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            Some(error) if !answered || (got.is_empty() && error.outcome() == Outcome::Unknown) => Err(error),
            Some(_) | None => Ok(Reserved::Grants(got)),
        }
    }

    fn in_turn(&self, mut shards: Vec<ShardId>) -> Vec<ShardId> {
        if !shards.is_empty() {
            let turn = self.next_turn() % shards.len();
            shards.rotate_left(turn);
        }
        shards
    }

    /// Leaves out the shards that did not answer lately, if others are left.
    fn leave_out_away(&self, order: &mut Vec<ShardId>) {
        let mut away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        if away.is_empty() {
            return;
        }
        let now = self.running();
        away.retain(|_, until| *until > now);
        if order.iter().any(|shard| !away.contains_key(shard)) {
            order.retain(|shard| !away.contains_key(shard));
        }
    }

    /// Whether the reserve may take another message of any size without exceeding its limits.
    fn has_room(&self, reserve: &Reserve, got: &[Grant]) -> bool {
        let bytes: usize = got.iter().map(|grant| grant.message.weight()).sum();
        let largest = self.policy.max_body + self.policy.max_headers + Key::MAX;
        got.len() < reserve.max && (got.is_empty() || bytes.saturating_add(largest) <= reserve.max_bytes)
    }

    /// Sends a shard a request that changes nothing; the future returns the answer.
    fn probe(&self, shard: ShardId) -> Probe {
        tokio::time::timeout(TIME_LIMIT, self.shards.submit(shard, vec![Op::NextDue], WhenBusy::Refuse))
    }

    /// Whether a shard has answered a probe.
    async fn is_there(&self, shard: ShardId, probe: Probe) -> Result<(), CallError> {
        let Ok(mut answers) = probe.await else {
            self.is_away(shard);
            let error =
                StoreError::new(ErrorKind::Unavailable, format!("shard {shard} did not answer in time"));
            return Err(CallError::Store { error, outcome: Outcome::NotApplied });
        };
        match answers.pop() {
            // A shard that is overloaded is alive.
            Some(Ok(_) | Err(CallError::Overloaded)) => Ok(()),
            Some(Err(error)) => {
                self.is_away(shard);
                let error = StoreError::new(ErrorKind::Unavailable, format!("shard {shard}: {error}"));
                Err(CallError::Store { error, outcome: Outcome::NotApplied })
            }
            None => Err(CallError::NO_ANSWER),
        }
    }

    /// Asks a shard for the number of messages that is still missing.
    async fn ask_more(
        &self,
        shard: ShardId,
        reserve: &Reserve,
        got: &mut Vec<Grant>,
    ) -> Result<(), CallError> {
        let bytes: usize = got.iter().map(|grant| grant.message.weight()).sum();
        let max = reserve.max - got.len();
        let mut more = Reserve { max, max_bytes: reserve.max_bytes.saturating_sub(bytes), ..reserve.clone() };
        // The grants of each queue so far count against its limit.
        for (queue, left) in &mut more.max_of {
            *left = left.saturating_sub(got.iter().filter(|grant| grant.message.queue == *queue).count());
        }
        more.queues.retain(|queue| !more.max_of.iter().any(|(full, left)| full == queue && *left == 0));
        more.max_of.retain(|(_, left)| *left > 0);
        if more.queues.is_empty() {
            return Ok(());
        }
        let queues = more.queues.clone();
        let answer = self.ask(shard, vec![more]).await.pop();
        let grants = answer.unwrap_or(Err(CallError::NO_ANSWER))?;
        if grants.len() < max {
            self.with_demands(|demands, now, out| demands.dry(now, &queues, shard, out));
        }
        got.extend(grants);
        Ok(())
    }

    /// Asks a shard for messages for these demands, without waiting. The request is sent at once; the future returns
    /// the answers.
    fn ask(
        &self,
        shard: ShardId,
        demands: Vec<Reserve>,
    ) -> impl Future<Output = Vec<Result<Vec<Grant>, CallError>>> + Send + use<> {
        let whose: Vec<(SessionId, Option<u64>)> = demands.iter().map(|d| (d.session, d.lease_ms)).collect();
        for (session, _) in &whose {
            self.sessions.asks(*session, shard);
        }
        let op = |demand: Reserve| {
            Op::Reserve(Reserve { wait_ms: 0, deadline_margin_ms: None, waiter: WaiterId(0), ..demand })
        };
        let asked = self.now();
        let ops = demands.into_iter().map(op).collect();
        let pending = self.shards.submit(shard, ops, WhenBusy::Refuse);
        let me = self.me.clone();
        async move {
            // When the receiver is dropped, the grants are returned.
            let answers = tokio::time::timeout(TIME_LIMIT, pending).await;
            let (Ok(answers), Some(me)) = (answers, me.upgrade()) else {
                let error = unavailable(shard, "did not answer in time");
                if let Some(me) = me.upgrade() {
                    me.is_away(shard);
                }
                return whose.iter().map(|_| Err(error.clone())).collect();
            };
            let whose = answers.into_iter().zip(whose);
            whose
                .map(|(answer, (session, wished))| me.granted(shard, answer, session, wished, asked))
                .collect()
        }
    }

    fn granted(
        &self,
        shard: ShardId,
        answer: Result<Reply, CallError>,
        session: SessionId,
        wished: Option<u64>,
        asked: u64,
    ) -> Result<Vec<Grant>, CallError> {
        match Client::answer_to::<Reserve>(Some(answer)) {
            Ok(Reserved::Grants(grants)) => {
                self.sessions.granted(session, wished, &grants, asked);
                Ok(grants)
            }
            // The request had no margin, so no lease can be about to run out.
            Ok(Reserved::HeldBack(_) | Reserved::DeadlineSoon) => Ok(Vec::new()),
            Ok(Reserved::Overloaded | Reserved::TooManyQueues) => Err(CallError::Overloaded),
            Err(CallError::Overloaded) => Err(CallError::Overloaded),
            Err(error) => {
                self.is_away(shard);
                Err(error.of_shard(shard))
            }
        }
    }

    fn is_away(&self, shard: ShardId) {
        let until = self.running().saturating_add(AWAY);
        self.away.lock().unwrap_or_else(PoisonError::into_inner).insert(shard, until);
    }

    /// Carries out the actions of the waiting lists.
    pub(super) fn act(self: &Arc<Self>, action: Action) {
        match action {
            Action::Answer { to, with } => self.answer_demand(to, with),
            Action::Withdraw { shard, waiter } => {
                drop(self.shards.submit(shard, vec![Op::CancelReserve { waiter }], WhenBusy::Refuse));
            }
            Action::Arm { queue, shard, waiter } => {
                let shard_waiter = shard_waiter(queue.clone(), waiter);
                let pending = self.shards.submit(shard, vec![Op::Reserve(shard_waiter)], WhenBusy::Refuse);
                let me = self.me.clone();
                self.spawn(async move {
                    let answer = pending.await.pop();
                    if let Some(me) = me.upgrade() {
                        me.post_answered(&queue, shard, waiter, answer);
                    }
                });
            }
            Action::Ask { queue, shard, demands } => {
                let answers = self.ask(shard, demands.iter().map(|(_, reserve)| reserve.clone()).collect());
                let me = self.clone();
                self.spawn(async move { me.serve(queue, shard, demands, answers.await).await });
            }
            Action::Look { arrival, session } => {
                let me = self.clone();
                self.spawn(async move {
                    let margin = me.with_demands(|demands, _, _| demands.margin(arrival));
                    let soon = me.look(session, margin).await;
                    me.with_demands(|demands, now, out| demands.looked(now, arrival, soon, out));
                });
            }
        }
    }

    fn post_answered(
        &self,
        queue: &QueueName,
        shard: ShardId,
        waiter: WaiterId,
        answer: Option<Result<Reply, CallError>>,
    ) {
        let error = match Client::answer_to::<Reserve>(answer) {
            Ok(Reserved::Grants(_) | Reserved::HeldBack(_) | Reserved::DeadlineSoon) => {
                return self
                    .with_demands(|demands, now, out| demands.notified(now, queue, shard, waiter, out));
            }
            Ok(Reserved::Overloaded | Reserved::TooManyQueues) => CallError::Overloaded,
            Err(error) => error.of_shard(shard),
        };
        self.with_demands(|demands, now, out| demands.wait_failed(now, queue, shard, waiter, error, out));
    }

    /// Adds messages of other shards to the answers of a shard, and answers the demands.
    async fn serve(
        self: Arc<Self>,
        queue: QueueName,
        shard: ShardId,
        demands: Vec<(Arrival, Reserve)>,
        mut answers: Vec<Result<Vec<Grant>, CallError>>,
    ) {
        for (answer, (_, reserve)) in answers.iter_mut().zip(&demands) {
            let Ok(grants) = answer else { continue };
            if grants.is_empty() || !self.has_room(reserve, grants) {
                continue;
            }
            for more in self.with_demands(|demands, _, _| demands.shards_with_more(&reserve.queues)) {
                if more == shard || !self.has_room(reserve, grants) {
                    continue;
                }
                // Grants are answered at once, without waiting for a shard that hangs.
                if self.ask_more(more, reserve, grants).await.is_err() {
                    break;
                }
            }
        }
        let asked: Vec<ShardGrants> = demands.into_iter().map(|(arrival, _)| arrival).zip(answers).collect();
        self.with_demands(|demands, now, out| demands.asked(now, &queue, shard, asked, out));
    }

    /// When a lease of the session is about to run out, according to the shards; if they cannot be asked, as far as
    /// this node knows.
    async fn look(&self, session: SessionId, margin_ms: Option<u64>) -> Option<u64> {
        let margin = margin_ms?.saturating_mul(MS);
        let asked = self.now();
        let end = match self.session_deadline(session).await {
            Ok(left) => asked.saturating_add(left?.saturating_mul(MS)),
            Err(_) => self.sessions.first_end(session, self.now())?,
        };
        Some(end.saturating_sub(margin))
    }

    /// Answers a demand; grants that cannot be delivered are returned.
    fn answer_demand(&self, to: oneshot::Sender<Answers>, with: Result<Reserved, CallError>) {
        if let Err(unsent) = to.send(vec![with.map(Reply::Reserve)]) {
            self.take_back(unsent);
        }
    }
}

/// A probe of a shard, with its time-out.
type Probe = tokio::time::Timeout<Pending>;

/// A reserve that waits for a message of one queue and takes none.
fn shard_waiter(queue: QueueName, waiter: WaiterId) -> Reserve {
    Reserve { waiter, max: 0, max_bytes: 0, wait_ms: POST_WAIT_MS, ..Reserve::new(queue) }
}

fn unavailable(shard: ShardId, what: &str) -> CallError {
    let error = StoreError::new(ErrorKind::Unavailable, format!("shard {shard} {what}"));
    CallError::Store { error, outcome: Outcome::Unknown }
}
