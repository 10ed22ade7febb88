//! The waiting consumers of this node, a list for each queue. Sans I/O: calls come in, [`Action`]s go out, time is an
//! argument.
//!
//! However many consumers wait, the node has one waiter for each queue at each shard, with these states:
//!
//! ```text
//!          ┌────────── nothing left, or notified in vain (after a pause that grows) ◀──────────┐
//!          ▼                                                                                   │
//!        Idle ──a demand──▶ Armed ──"there is a message"──▶ Notified ──first demands──▶ Asking
//!               (reserve, max 0) │ error                       ▲                           │
//!                                ▼                             └── all got what they want ◀┘
//!                             Failed, armed again after a pause
//! ```
//!
//! While further consumers wait, the shard's waiter is armed again at once, right behind the request.
//!
//! When a shard has notified the node, the first demands of the list are *asked for* at that shard: as reserves that do
//! not wait, a few in one submission. During that time they are in no list, so a demand is at one shard at a time.
//! Demands that get nothing return to their positions. Waiters at shards stay armed for a while after the last demand
//! has left, because consumers come back.
//!
//! Demands are served in the order of arrival, with two exceptions: a demand may be overtaken while it is asked for at
//! a shard that has nothing after all (another node was faster), and by any reserve that does not wait.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use duewheel_core::engine::{Grant, Reserve, Reserved, WaiterId};
use duewheel_core::id::{SessionId, ShardId};
use duewheel_core::name::QueueName;
use duewheel_shard::error::CallError;
use duewheel_shard::inbox::Answers;
use duewheel_shard::random::{Jitter, doubled};
use tokio::sync::oneshot;

use crate::routing::sessions::MS;

/// How long a waiter stays at its shard before it is armed again, in ms.
pub(crate) const POST_WAIT_MS: u64 = 30_000;
/// How long a list without demands keeps its waiters at shards, in ns.
const LINGER: u64 = 5_000 * MS;
/// The largest number of demands in one submission. The number begins with one and doubles as long as all demands are
/// met.
const MOST: usize = 64;
/// A shard that cannot be reached says so within this time, in ns: most are known to be away at once.
const FAILS_WITHIN: u64 = 1_000 * MS;
/// The pause after two notifications in vain, doubled up to the longest. After the first one there is none: most likely
/// another node was faster.
const FIRST_REST: Duration = Duration::from_millis(1);
const LONGEST_REST: Duration = Duration::from_millis(64);
/// The pause after an error, doubled up to the longest, and up to a quarter shorter at random.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// An action for the caller to carry out. After each one but `Answer`, the caller calls the method that is named.
#[derive(Debug)]
pub(crate) enum Action {
    /// Wait at a shard until it has a message; then call [`Demands::notified`] or [`Demands::wait_failed`].
    Arm { queue: QueueName, shard: ShardId, waiter: WaiterId },
    /// End the wait at a shard; no call follows.
    Withdraw { shard: ShardId, waiter: WaiterId },
    /// Reserve for these demands; then call [`Demands::asked`].
    Ask { queue: QueueName, shard: ShardId, demands: Vec<(Arrival, Reserve)> },
    /// Ask the shards when the first lease of a session ends; then call [`Demands::looked`].
    Look { arrival: Arrival, session: SessionId },
    /// Answer a demand.
    Answer { to: oneshot::Sender<Answers>, with: Result<Reserved, CallError> },
}

/// The position of a demand among all demands of this node, by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Arrival(u64);

/// The grants of a shard for one demand.
pub(crate) type ShardGrants = (Arrival, Result<Vec<Grant>, CallError>);

/// All waiting demands. Times are [`duewheel_shard::clock::ClockSample::elapsed_ns`], except the pauses after errors
/// ([`Demands::at`]).
#[derive(Debug)]
pub(crate) struct Demands {
    shards: usize,
    max_demands: usize,
    demands: BTreeMap<Arrival, WaitingReserve>,
    by_name: BTreeMap<WaiterId, Arrival>,
    by_session: BTreeSet<(SessionId, Arrival)>,
    by_time: BTreeSet<(u64, Arrival)>,
    queues: BTreeMap<QueueName, QueueDemands>,
    /// When lists have been without demands for so long that their waiters are withdrawn.
    alarms: BTreeSet<(u64, QueueName)>,
    /// When pauses of waiters end, by the clock that runs even while a test holds the other one.
    rests: BTreeSet<(u64, QueueName)>,
    running: u64,
    arrivals: u64,
    next_waiter: u64,
    /// The jitter of pauses after errors, seeded by the names of waiters, which differ between nodes.
    jitter: Jitter,
}

/// A reserve that waits for a message.
#[derive(Debug)]
pub(crate) struct WaitingReserve {
    pub(crate) reserve: Reserve,
    pub(crate) answer: oneshot::Sender<Answers>,
    /// When its wait ends.
    pub(crate) deadline: u64,
    /// When the reserve ends early because a lease of its session is about to run out.
    pub(crate) soon: Option<u64>,
    pub(crate) state: DemandState,
}

/// The state of a demand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DemandState {
    /// The demand is in the lists of its queues.
    #[default]
    Waiting,
    /// A shard was asked on its behalf, and has not answered yet.
    Away,
    /// A shard was asked, and the wait has ended since then: the demand does not return to its lists.
    Leaving,
}

#[derive(Debug)]
struct QueueDemands {
    waiting: BTreeSet<Arrival>,
    /// The number of demands in `waiting` and of those that are being asked for.
    total: usize,
    shard_waiters: Vec<ShardWaiter>,
    /// The shard at which the search for messages begins.
    turn: usize,
    /// Since when the list has been without demands.
    idle: Option<u64>,
}

#[derive(Clone, Debug)]
struct ShardWaiter {
    state: ShardWaiterState,
    /// How many times in a row the shard has notified the node and then had nothing.
    misses: u32,
    failures: u32,
    /// The last error of a wait at the shard, until a wait succeeds.
    failing: Option<CallError>,
    /// The largest number of demands in the next submission.
    most: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShardWaiterState {
    Idle,
    Armed {
        waiter: WaiterId,
        since: u64,
    },
    Notified,
    Asking,
    /// The shard had nothing after all, or failed; the wait there begins again after a pause.
    Resting {
        until: u64,
    },
}

impl Demands {
    /// Creates it without demands, for this number of shards. Waiters at shards get names behind `names`.
    pub(crate) fn new(shards: u32, max_demands: usize, names: u64) -> Self {
        Demands {
            shards: usize::try_from(shards).unwrap_or(1),
            max_demands,
            demands: BTreeMap::new(),
            by_name: BTreeMap::new(),
            by_session: BTreeSet::new(),
            by_time: BTreeSet::new(),
            queues: BTreeMap::new(),
            alarms: BTreeSet::new(),
            rests: BTreeSet::new(),
            running: 0,
            arrivals: 0,
            next_waiter: names,
            jitter: Jitter::seeded(names),
        }
    }

    /// Sets the time of [`duewheel_shard::clock::Clock::running`], in ns. To be called before any other method.
    pub(crate) fn at(&mut self, running: u64) {
        self.running = running;
    }

    /// Adds a demand behind the others.
    pub(crate) fn join(&mut self, now: u64, demand: WaitingReserve, out: &mut Vec<Action>) {
        if self.demands.len() >= self.max_demands {
            return out.push(Action::Answer { to: demand.answer, with: Ok(Reserved::Overloaded) });
        }
        self.arrivals += 1;
        let arrival = Arrival(self.arrivals);
        let Reserve { waiter, session, queues, .. } = &demand.reserve;
        // A name that is used twice belongs to the later demand.
        self.by_name.insert(*waiter, arrival);
        if *session != SessionId::NONE {
            self.by_session.insert((*session, arrival));
        }
        let queues = queues.clone();
        self.demands.insert(arrival, WaitingReserve { state: DemandState::Away, ..demand });
        for queue in &queues {
            let shards = self.shards;
            let demands = self.queues.entry(queue.clone()).or_insert_with(|| QueueDemands::new(shards));
            demands.total += 1;
            demands.idle = None;
        }
        self.come_back(now, arrival, out);
        for queue in &queues {
            self.arm_all(now, queue, out);
            self.pump(now, queue, out);
        }
    }

    /// Handles the answer of a shard at which the node waited: it has a message, or the wait there is over.
    pub(crate) fn notified(
        &mut self,
        now: u64,
        queue: &QueueName,
        shard: ShardId,
        waiter: WaiterId,
        out: &mut Vec<Action>,
    ) {
        let Some(shard_waiter) = self.shard_waiter(queue, shard) else { return };
        let ShardWaiterState::Armed { waiter: armed, since } = shard_waiter.state else { return };
        if armed != waiter {
            return;
        }
        (shard_waiter.failures, shard_waiter.failing) = (0, None);
        if now.saturating_sub(since) >= POST_WAIT_MS * MS {
            // An armed waiter notifies at once if there is a message.
            return self.arm(now, queue, shard, out);
        }
        shard_waiter.state = ShardWaiterState::Notified;
        self.pump(now, queue, out);
    }

    /// Handles the failure of a wait at a shard.
    pub(crate) fn wait_failed(
        &mut self,
        now: u64,
        queue: &QueueName,
        shard: ShardId,
        waiter: WaiterId,
        error: CallError,
        out: &mut Vec<Action>,
    ) {
        let armed = self.shard_waiter(queue, shard).map(|shard_waiter| shard_waiter.state);
        if matches!(armed, Some(ShardWaiterState::Armed { waiter: armed, .. }) if armed == waiter) {
            self.fail(now, queue, shard, error, out);
        }
    }

    /// Handles the answer of a shard that was asked for these demands.
    pub(crate) fn asked(
        &mut self,
        now: u64,
        queue: &QueueName,
        shard: ShardId,
        asked: Vec<ShardGrants>,
        out: &mut Vec<Action>,
    ) {
        let mut gave = ShardOutcome::Full;
        let mut got = 0;
        let mut queues: Vec<QueueName> = Vec::new();
        for (arrival, answer) in asked {
            let Some(demand) = self.demands.get(&arrival) else { continue };
            match answer {
                Ok(grants) if !grants.is_empty() => {
                    got += 1;
                    if grants.len() < demand.reserve.max {
                        gave = gave.or(ShardOutcome::Dry);
                    }
                    self.answer(now, arrival, Ok(Reserved::Grants(grants)), out);
                    continue;
                }
                Ok(_) => gave = gave.or(ShardOutcome::Dry),
                Err(error) => gave = ShardOutcome::Failed(error),
            }
            queues.extend(demand.reserve.queues.iter().cloned());
            self.come_back(now, arrival, out);
        }
        if let Some(shard_waiter) = self.shard_waiter(queue, shard) {
            shard_waiter.misses = if got > 0 { 0 } else { shard_waiter.misses.saturating_add(1) };
            shard_waiter.most =
                if matches!(gave, ShardOutcome::Full) { (shard_waiter.most * 2).min(MOST) } else { 1 };
            match (shard_waiter.state, gave) {
                (ShardWaiterState::Asking, ShardOutcome::Failed(error)) => {
                    self.fail(now, queue, shard, error, out)
                }
                (ShardWaiterState::Asking, ShardOutcome::Full) => {
                    shard_waiter.state = ShardWaiterState::Notified
                }
                (ShardWaiterState::Asking, ShardOutcome::Dry) => match shard_waiter.misses.checked_sub(2) {
                    None => self.arm(now, queue, shard, out),
                    Some(times) => self.rest(doubled(FIRST_REST, LONGEST_REST, times), queue, shard),
                },
                // The waiter was armed behind the request, and its notification decides.
                (
                    ShardWaiterState::Idle
                    | ShardWaiterState::Armed { .. }
                    | ShardWaiterState::Notified
                    | ShardWaiterState::Resting { .. },
                    ShardOutcome::Failed(_) | ShardOutcome::Full | ShardOutcome::Dry,
                ) => {}
            }
        }
        queues.push(queue.clone());
        queues.sort_unstable();
        queues.dedup();
        for queue in &queues {
            self.pump(now, queue, out);
        }
    }

    /// Handles the answer to [`Action::Look`]: when the first lease of a demand's session ends, according to the
    /// shards.
    pub(crate) fn looked(&mut self, now: u64, arrival: Arrival, soon: Option<u64>, out: &mut Vec<Action>) {
        let Some(demand) = self.demands.get_mut(&arrival) else { return };
        if demand.state != DemandState::Leaving && soon.is_some_and(|soon| soon <= now) {
            return self.answer(now, arrival, Ok(Reserved::DeadlineSoon), out);
        }
        demand.soon = soon;
        let queues = demand.reserve.queues.clone();
        self.come_back(now, arrival, out);
        for queue in &queues {
            self.pump(now, queue, out);
        }
    }

    /// Records that a shard has no more messages of these queues: a reserve that does not wait has taken them.
    pub(crate) fn dry(&mut self, now: u64, queues: &[QueueName], shard: ShardId, out: &mut Vec<Action>) {
        for queue in queues {
            if self
                .shard_waiter(queue, shard)
                .is_some_and(|shard_waiter| shard_waiter.state == ShardWaiterState::Notified)
            {
                self.arm(now, queue, shard, out);
            }
        }
    }

    /// Ends the wait of this demand.
    pub(crate) fn cancel(&mut self, now: u64, waiter: WaiterId, out: &mut Vec<Action>) {
        if let Some(&arrival) = self.by_name.get(&waiter) {
            self.send_away(now, arrival, out);
        }
    }

    /// Ends the waits of a session.
    pub(crate) fn close(&mut self, now: u64, session: SessionId, out: &mut Vec<Action>) {
        let of = (session, Arrival(0))..=(session, Arrival(u64::MAX));
        let all: Vec<Arrival> = self.by_session.range(of).map(|&(_, arrival)| arrival).collect();
        for arrival in all {
            self.send_away(now, arrival, out);
        }
    }

    /// Ends all waits.
    pub(crate) fn end_all(&mut self, now: u64, out: &mut Vec<Action>) {
        let all: Vec<Arrival> = self.demands.keys().copied().collect();
        for arrival in all {
            self.send_away(now, arrival, out);
        }
    }

    /// Handles everything that is due by now.
    pub(crate) fn tick(&mut self, now: u64, out: &mut Vec<Action>) {
        while let Some(&(time, arrival)) = self.by_time.first()
            && time <= now
        {
            self.by_time.pop_first();
            // Demands that are being asked for are checked when they return.
            if let Some(demand) = self.demands.get(&arrival)
                && demand.state == DemandState::Waiting
            {
                self.step_out(arrival);
                self.come_back(now, arrival, out);
            }
        }
        while let Some(&(time, _)) = self.alarms.first()
            && time <= now
            && let Some((_, queue)) = self.alarms.pop_first()
        {
            self.leave_alone(now, &queue, out);
        }
        while let Some(&(time, _)) = self.rests.first()
            && time <= self.running
            && let Some((_, queue)) = self.rests.pop_first()
        {
            self.arm_rested(now, &queue, out);
        }
    }

    /// The time in ns until [`Demands::tick`] is to be called.
    pub(crate) fn next_wakeup(&self, now: u64) -> Option<u64> {
        let time = self.by_time.first().map(|(time, _)| time.saturating_sub(now));
        let alarm = self.alarms.first().map(|(time, _)| time.saturating_sub(now));
        let rest = self.rests.first().map(|(time, _)| time.saturating_sub(self.running));
        [time, alarm, rest].into_iter().flatten().min()
    }

    /// The number of demands in a queue's list, and of all demands that want it.
    pub(crate) fn count(&self, queue: &QueueName) -> (usize, usize) {
        self.queues.get(queue).map_or((0, 0), |demands| (demands.waiting.len(), demands.total))
    }

    /// How much before the end of a lease a demand is to be answered, in ms.
    pub(crate) fn margin(&self, arrival: Arrival) -> Option<u64> {
        self.demands.get(&arrival)?.reserve.deadline_margin_ms
    }

    /// The number of demands.
    pub(crate) fn len(&self) -> usize {
        self.demands.len()
    }

    /// The queues with demands, behind a name, with the numbers of [`Demands::count`].
    pub(crate) fn queues<'a>(
        &'a self,
        after: Option<&QueueName>,
    ) -> impl Iterator<Item = (&'a QueueName, usize, usize)> + 'a {
        use std::ops::Bound;
        let from = after.map_or(Bound::Unbounded, |name| Bound::Excluded(name.clone()));
        let queues = self.queues.range((from, Bound::Unbounded));
        queues.filter(|(_, demands)| demands.total > 0).map(|(name, l)| (name, l.waiting.len(), l.total))
    }

    /// The shards that have notified the node of messages of one of these queues.
    pub(crate) fn notified_shards(&self, queues: &[QueueName]) -> Vec<ShardId> {
        let notified = |shard: &ShardId| {
            let shard_waiter = |queue| {
                self.queues.get(queue).and_then(|demands| demands.shard_waiters.get(shard.0 as usize))
            };
            queues
                .iter()
                .filter_map(shard_waiter)
                .any(|shard_waiter| shard_waiter.state == ShardWaiterState::Notified)
        };
        (0..u32::try_from(self.shards).unwrap_or(u32::MAX)).map(ShardId).filter(notified).collect()
    }

    /// The shards that have announced more, without those whose messages a demand waits for.
    pub(crate) fn shards_with_more(&self, queues: &[QueueName]) -> Vec<ShardId> {
        let waits = |queue| self.queues.get(queue).is_some_and(|demands| !demands.waiting.is_empty());
        if queues.iter().any(waits) { Vec::new() } else { self.notified_shards(queues) }
    }

    fn shard_waiter(&mut self, queue: &QueueName, shard: ShardId) -> Option<&mut ShardWaiter> {
        self.queues.get_mut(queue)?.shard_waiters.get_mut(shard.0 as usize)
    }

    /// Asks for the first demands of a list, at the shards that have messages.
    fn pump(&mut self, now: u64, queue: &QueueName, out: &mut Vec<Action>) {
        loop {
            let Some(demands) = self.queues.get_mut(queue) else { return };
            let Some(at) = demands.next_notified().filter(|_| !demands.waiting.is_empty()) else { return };
            let most = demands.shard_waiters[at].most;
            let first: Vec<Arrival> = demands.waiting.iter().copied().take(most).collect();
            let mut demands = Vec::with_capacity(first.len());
            for arrival in first {
                let Some(demand) = self.demands.get(&arrival) else { continue };
                if demand.answer.is_closed() {
                    self.leave(now, arrival);
                } else if demand.reserve.max == 0 {
                    // A demand for no message waits only for the notification.
                    self.answer(now, arrival, Ok(Reserved::Grants(Vec::new())), out);
                } else {
                    demands.push((arrival, demand.reserve.clone()));
                    self.step_out(arrival);
                }
            }
            if demands.is_empty() {
                continue;
            }
            let shard = ShardId(u32::try_from(at).unwrap_or(0));
            out.push(Action::Ask { queue: queue.clone(), shard, demands });
            let Some(demands) = self.queues.get_mut(queue) else { return };
            demands.shard_waiters[at].state = ShardWaiterState::Asking;
            // If the shard has more, its waiter says so at once, and the next demands are not asked for in vain. After
            // a notification in vain the waiter is armed only when the shard has answered.
            if !demands.waiting.is_empty() && demands.shard_waiters[at].misses == 0 {
                self.arm(now, queue, shard, out);
            }
        }
    }

    /// Takes a demand out of its lists while it is asked for.
    fn step_out(&mut self, arrival: Arrival) {
        let Some(demand) = self.demands.get_mut(&arrival) else { return };
        demand.state = DemandState::Away;
        self.by_time.remove(&(demand.wakeup(), arrival));
        for queue in &demand.reserve.queues {
            if let Some(demands) = self.queues.get_mut(queue) {
                demands.waiting.remove(&arrival);
            }
        }
    }

    /// Returns a demand to its lists, unless its wait has ended.
    fn come_back(&mut self, now: u64, arrival: Arrival, out: &mut Vec<Action>) {
        let Some(demand) = self.demands.get_mut(&arrival) else { return };
        if demand.state != DemandState::Leaving && demand.soon.is_some_and(|soon| soon <= now) {
            demand.soon = None;
            return out.push(Action::Look { arrival, session: demand.reserve.session });
        }
        if demand.state == DemandState::Leaving {
            return self.answer(now, arrival, Ok(Reserved::Grants(Vec::new())), out);
        }
        if demand.deadline <= now {
            let queues = demand.reserve.queues.clone();
            let outcome = self.failure_of(now, &queues).map_or_else(|| Ok(Reserved::Grants(Vec::new())), Err);
            return self.answer(now, arrival, outcome, out);
        }
        demand.state = DemandState::Waiting;
        self.by_time.insert((demand.wakeup(), arrival));
        for queue in &demand.reserve.queues {
            if let Some(demands) = self.queues.get_mut(queue) {
                demands.waiting.insert(arrival);
            }
        }
    }

    /// The error of a shard, if all shards fail: then it is not known whether these queues have a message. A wait that
    /// began again and goes on for a while is at a shard that works again.
    fn failure_of(&self, now: u64, queues: &[QueueName]) -> Option<CallError> {
        let fails = |waiter: &ShardWaiter| match waiter.state {
            ShardWaiterState::Resting { .. } => true,
            ShardWaiterState::Armed { since, .. } => now.saturating_sub(since) < FAILS_WITHIN,
            ShardWaiterState::Idle | ShardWaiterState::Notified | ShardWaiterState::Asking => false,
        };
        let failing = |waiter: &ShardWaiter| waiter.failing.clone().filter(|_| fails(waiter));
        let lists = queues.iter().filter_map(|queue| self.queues.get(queue));
        let mut shard_waiters = lists.flat_map(|demands| &demands.shard_waiters);
        let first = failing(shard_waiters.next()?)?;
        shard_waiters.all(|waiter| failing(waiter).is_some()).then_some(first)
    }

    fn send_away(&mut self, now: u64, arrival: Arrival, out: &mut Vec<Action>) {
        match self.demands.get_mut(&arrival) {
            Some(demand) if demand.state == DemandState::Waiting => {
                self.answer(now, arrival, Ok(Reserved::Grants(Vec::new())), out);
            }
            Some(demand) => demand.state = DemandState::Leaving,
            None => {}
        }
    }

    fn answer(
        &mut self,
        now: u64,
        arrival: Arrival,
        with: Result<Reserved, CallError>,
        out: &mut Vec<Action>,
    ) {
        if let Some(demand) = self.leave(now, arrival) {
            out.push(Action::Answer { to: demand.answer, with });
        }
    }

    /// Removes a demand.
    fn leave(&mut self, now: u64, arrival: Arrival) -> Option<WaitingReserve> {
        self.step_out(arrival);
        let demand = self.demands.remove(&arrival)?;
        if self.by_name.get(&demand.reserve.waiter) == Some(&arrival) {
            self.by_name.remove(&demand.reserve.waiter);
        }
        self.by_session.remove(&(demand.reserve.session, arrival));
        for queue in &demand.reserve.queues {
            let Some(demands) = self.queues.get_mut(queue) else { continue };
            demands.total -= 1;
            if demands.total == 0 {
                demands.idle = Some(now);
                self.alarms.insert((now.saturating_add(LINGER), queue.clone()));
            }
        }
        Some(demand)
    }

    /// Begins a wait at each shard where none is in progress.
    fn arm_all(&mut self, now: u64, queue: &QueueName, out: &mut Vec<Action>) {
        let Some(demands) = self.queues.get(queue) else { return };
        let idle = |(at, shard_waiter): (usize, &ShardWaiter)| {
            (shard_waiter.state == ShardWaiterState::Idle).then_some(at)
        };
        let idle: Vec<usize> = demands.shard_waiters.iter().enumerate().filter_map(idle).collect();
        for at in idle {
            self.arm(now, queue, ShardId(u32::try_from(at).unwrap_or(0)), out);
        }
    }

    /// Begins a wait at a shard, if the list has demands.
    fn arm(&mut self, now: u64, queue: &QueueName, shard: ShardId, out: &mut Vec<Action>) {
        let Some(demands) = self.queues.get_mut(queue) else { return };
        let total = demands.total;
        let Some(shard_waiter) = demands.shard_waiters.get_mut(shard.0 as usize) else { return };
        if total == 0 {
            shard_waiter.state = ShardWaiterState::Idle;
            return;
        }
        self.next_waiter += 1;
        let waiter = WaiterId(self.next_waiter);
        shard_waiter.state = ShardWaiterState::Armed { waiter, since: now };
        out.push(Action::Arm { queue: queue.clone(), shard, waiter });
    }

    fn rest(&mut self, length: Duration, queue: &QueueName, shard: ShardId) {
        let until = self.running.saturating_add(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX));
        if let Some(shard_waiter) = self.shard_waiter(queue, shard) {
            shard_waiter.state = ShardWaiterState::Resting { until };
            self.rests.insert((until, queue.clone()));
        }
    }

    /// Handles the failure of a shard. When all shards have failed, the demands in the list are answered with the
    /// error.
    fn fail(&mut self, now: u64, queue: &QueueName, shard: ShardId, error: CallError, out: &mut Vec<Action>) {
        let Some(demands) = self.queues.get_mut(queue) else { return };
        let Some(shard_waiter) = demands.shard_waiters.get_mut(shard.0 as usize) else { return };
        let pause = doubled(FIRST_PAUSE, LONGEST_PAUSE, shard_waiter.failures);
        shard_waiter.failures = shard_waiter.failures.saturating_add(1);
        shard_waiter.failing = Some(error.clone());
        let all_fail = demands.shard_waiters.iter().all(|shard_waiter| shard_waiter.failing.is_some());
        let waiting: Vec<Arrival> = if all_fail { demands.waiting.iter().copied().collect() } else { vec![] };
        self.rest(self.jitter.of(pause), queue, shard);
        for arrival in waiting {
            self.answer(now, arrival, Err(error.clone()), out);
        }
    }

    /// Ends the waits at shards for a list that has been without demands for long.
    fn leave_alone(&mut self, now: u64, queue: &QueueName, out: &mut Vec<Action>) {
        let Some(demands) = self.queues.get(queue) else { return };
        if demands.idle.is_none_or(|since| now < since.saturating_add(LINGER)) {
            return;
        }
        let Some(demands) = self.queues.remove(queue) else { return };
        for (shard_waiter, shard) in demands.shard_waiters.iter().zip((0..).map(ShardId)) {
            if let ShardWaiterState::Armed { waiter, .. } = shard_waiter.state {
                out.push(Action::Withdraw { shard, waiter });
            }
        }
    }

    /// Begins the waits again whose pause is over.
    fn arm_rested(&mut self, now: u64, queue: &QueueName, out: &mut Vec<Action>) {
        let Some(demands) = self.queues.get(queue) else { return };
        let running = self.running;
        let rested = |(at, shard_waiter): (usize, &ShardWaiter)| match shard_waiter.state {
            ShardWaiterState::Resting { until } if until <= running => Some(at),
            ShardWaiterState::Resting { .. }
            | ShardWaiterState::Idle
            | ShardWaiterState::Armed { .. }
            | ShardWaiterState::Notified
            | ShardWaiterState::Asking => None,
        };
        let rested: Vec<usize> = demands.shard_waiters.iter().enumerate().filter_map(rested).collect();
        for at in rested {
            self.arm(now, queue, ShardId(u32::try_from(at).unwrap_or(0)), out);
        }
    }
}

/// The result of asking a shard for several demands.
enum ShardOutcome {
    /// All demands got all they wanted: the shard may have more messages.
    Full,
    /// The shard has no more messages.
    Dry,
    Failed(CallError),
}

impl ShardOutcome {
    fn or(self, other: ShardOutcome) -> ShardOutcome {
        if matches!(self, ShardOutcome::Failed(_)) { self } else { other }
    }
}

impl WaitingReserve {
    fn wakeup(&self) -> u64 {
        self.soon.map_or(self.deadline, |soon| soon.min(self.deadline))
    }
}

impl QueueDemands {
    fn new(shards: usize) -> Self {
        let shard_waiter =
            ShardWaiter { state: ShardWaiterState::Idle, misses: 0, failures: 0, failing: None, most: 1 };
        QueueDemands {
            waiting: BTreeSet::new(),
            total: 0,
            shard_waiters: vec![shard_waiter; shards],
            turn: 0,
            idle: None,
        }
    }

    /// The next shard that has notified the node, in turn.
    fn next_notified(&mut self) -> Option<usize> {
        let n = self.shard_waiters.len();
        let at = (0..n)
            .map(|i| (self.turn + i) % n)
            .find(|&at| self.shard_waiters[at].state == ShardWaiterState::Notified)?;
        self.turn = (at + 1) % n;
        Some(at)
    }
}

#[cfg(test)]
#[path = "demand_tests.rs"]
pub(crate) mod tests;
