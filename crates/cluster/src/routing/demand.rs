//! Lines of this node's consumers, one for each queue. Sans I/O: calls in, [`Action`]s out, time is an argument.
//!
//! However many consumers wait, the node waits once for a queue at each shard: there it has a *post*.
//!
//! ```text
//!          ┌──────────────── dry, or told in vain (after a pause that grows) ◀───────────────┐
//!          ▼                                                                                 │
//!        Bare ──somebody waits──▶ Armed ──"there is something"──▶ Told ──first in line──▶ Asking
//!                (reserve, max 0)  │ error                          ▲                        │
//!                                  ▼                                └── everybody got all ◀──┘
//!                               Failed, armed again after a pause
//! ```
//!
//! While others wait behind them, the post is armed again at once, right behind what was asked.
//!
//! The first demands in line are *asked for* at a shard that has told: as reserves that do not wait, a few in one submission. Meanwhile they stand in no
//! line, so a demand is at one shard at a time. Those that get nothing come back to their old places. Posts stay armed for a while after the last
//! demand has left: consumers come again.
//!
//! First come, first served; but one that is asked for at a shard which turns out to have nothing (another node was faster) may be overtaken
//! meanwhile, and so may any by a reserve that does not wait.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use duewheel_core::engine::{Grant, Reserve, Reserved, WaiterId};
use duewheel_core::id::{SessionId, ShardId};
use duewheel_core::name::QueueName;
use duewheel_shard::backoff::{Jitter, doubled};
use duewheel_shard::error::CallError;
use duewheel_shard::inbox::Answers;
use tokio::sync::oneshot;

use crate::routing::sessions::MS;

/// How long a post waits at its shard before it is armed again, in ms.
pub(crate) const POST_WAIT_MS: u64 = 30_000;
/// How long a line without demands keeps its posts, in ns.
const LINGER: u64 = 5_000 * MS;
/// Demands of one submission, at most. It begins with one and doubles as long as all get what they want.
const MOST: usize = 64;
/// The pause after being told in vain twice; doubled up to the longest. The first time another node has been faster, most likely.
const FIRST_REST: Duration = Duration::from_millis(1);
const LONGEST_REST: Duration = Duration::from_millis(64);
/// The pause after an error; doubled up to the longest, and up to a quarter shorter at random.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// An action for the caller to carry out. After each one but `Answer`, the caller calls the method that is named.
#[derive(Debug)]
pub(crate) enum Action {
    /// Wait at a shard until it has something; then [`Demands::told`] or [`Demands::not_told`].
    Arm { queue: QueueName, shard: ShardId, waiter: WaiterId },
    /// End the wait at a shard; no call follows.
    Withdraw { shard: ShardId, waiter: WaiterId },
    /// Reserve for these; then [`Demands::asked`].
    Ask { queue: QueueName, shard: ShardId, demands: Vec<(Arrival, Reserve)> },
    /// Find out when the first lease of a session really ends; then [`Demands::looked`].
    Look { arrival: Arrival, session: SessionId },
    /// Answer a demand.
    Answer { to: oneshot::Sender<Answers>, with: Result<Reserved, CallError> },
}

/// The position of a demand among all demands of this node, by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Arrival(u64);

/// The grants of a shard for one demand.
pub(crate) type ShardGrants = (Arrival, Result<Vec<Grant>, CallError>);

/// All lines. Times are [`duewheel_shard::clock::Reading::elapsed_ns`], but for the pauses of posts ([`Demands::at`]).
#[derive(Debug)]
pub(crate) struct Demands {
    shards: usize,
    max_demands: usize,
    demands: BTreeMap<Arrival, WaitingReserve>,
    by_name: BTreeMap<WaiterId, Arrival>,
    by_session: BTreeSet<(SessionId, Arrival)>,
    by_time: BTreeSet<(u64, Arrival)>,
    lines: BTreeMap<QueueName, QueueDemands>,
    /// When lines have been idle for long.
    alarms: BTreeSet<(u64, QueueName)>,
    /// When posts have rested: by the clock that runs even where a test holds the other one.
    rests: BTreeSet<(u64, QueueName)>,
    running: u64,
    arrivals: u64,
    next_waiter: u64,
    /// Of pauses after errors, out of the names of waiters: nodes have different ones.
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
    pub(crate) stand: DemandState,
}

/// The state of a demand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DemandState {
    /// The demand waits in the lines of its queues.
    #[default]
    InLine,
    /// A shard was asked on its behalf, and has not answered yet.
    Away,
    /// A shard was asked, and the wait ended meanwhile: the demand does not return to its lines.
    Leaving,
}

#[derive(Debug)]
struct QueueDemands {
    waiting: BTreeSet<Arrival>,
    /// Those, and the ones that are away.
    standing: usize,
    posts: Vec<ShardWaiter>,
    /// Where to look first for something.
    turn: usize,
    /// Since when the line has no demands.
    idle: Option<u64>,
}

#[derive(Clone, Debug)]
struct ShardWaiter {
    state: ShardWaiterState,
    /// How often in a row it told, and then had nothing.
    misses: u32,
    failures: u32,
    /// Why it could not be waited there last, until it could.
    failing: Option<CallError>,
    /// Demands of the next submission.
    most: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShardWaiterState {
    Bare,
    Armed {
        waiter: WaiterId,
        since: u64,
    },
    Told,
    Asking,
    /// The shard had nothing after all, or failed; the wait there begins again after a pause.
    Resting {
        until: u64,
    },
}

impl Demands {
    /// No lines, at so many shards. Waiters at shards get names behind `names`.
    pub(crate) fn new(shards: u32, max_demands: usize, names: u64) -> Self {
        Demands {
            shards: usize::try_from(shards).unwrap_or(1),
            max_demands,
            demands: BTreeMap::new(),
            by_name: BTreeMap::new(),
            by_session: BTreeSet::new(),
            by_time: BTreeSet::new(),
            lines: BTreeMap::new(),
            alarms: BTreeSet::new(),
            rests: BTreeSet::new(),
            running: 0,
            arrivals: 0,
            next_waiter: names,
            jitter: Jitter::seeded(names),
        }
    }

    /// What [`crate::Clock::running`] shows, in ns. To be told before anything else.
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
        // A name that is given twice belongs to the later one.
        self.by_name.insert(*waiter, arrival);
        if *session != SessionId::NONE {
            self.by_session.insert((*session, arrival));
        }
        let queues = queues.clone();
        self.demands.insert(arrival, WaitingReserve { stand: DemandState::Away, ..demand });
        for queue in &queues {
            let shards = self.shards;
            let line = self.lines.entry(queue.clone()).or_insert_with(|| QueueDemands::new(shards));
            line.standing += 1;
            line.idle = None;
        }
        self.come_back(now, arrival, out);
        for queue in &queues {
            self.arm_all(now, queue, out);
            self.pump(now, queue, out);
        }
    }

    /// Handles the answer of a shard that was waited at: it has a message, or the wait there is over.
    pub(crate) fn told(
        &mut self,
        now: u64,
        queue: &QueueName,
        shard: ShardId,
        waiter: WaiterId,
        out: &mut Vec<Action>,
    ) {
        let Some(post) = self.post(queue, shard) else { return };
        let ShardWaiterState::Armed { waiter: armed, since } = post.state else { return };
        if armed != waiter {
            return;
        }
        (post.failures, post.failing) = (0, None);
        if now.saturating_sub(since) >= POST_WAIT_MS * MS {
            // Armed anew it tells at once if there is something.
            return self.arm(now, queue, shard, out);
        }
        post.state = ShardWaiterState::Told;
        self.pump(now, queue, out);
    }

    /// Handles the failure of a wait at a shard.
    pub(crate) fn not_told(
        &mut self,
        now: u64,
        queue: &QueueName,
        shard: ShardId,
        waiter: WaiterId,
        error: CallError,
        out: &mut Vec<Action>,
    ) {
        let armed = self.post(queue, shard).map(|post| post.state);
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
        let mut lines: Vec<QueueName> = Vec::new();
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
            lines.extend(demand.reserve.queues.iter().cloned());
            self.come_back(now, arrival, out);
        }
        if let Some(post) = self.post(queue, shard) {
            post.misses = if got > 0 { 0 } else { post.misses.saturating_add(1) };
            post.most = if matches!(gave, ShardOutcome::Full) { (post.most * 2).min(MOST) } else { 1 };
            match (post.state, gave) {
                (ShardWaiterState::Asking, ShardOutcome::Failed(error)) => {
                    self.fail(now, queue, shard, error, out)
                }
                (ShardWaiterState::Asking, ShardOutcome::Full) => post.state = ShardWaiterState::Told,
                (ShardWaiterState::Asking, ShardOutcome::Dry) => match post.misses.checked_sub(2) {
                    None => self.arm(now, queue, shard, out),
                    Some(times) => self.rest(doubled(FIRST_REST, LONGEST_REST, times), queue, shard),
                },
                // It was armed behind what was asked, and tells how it goes on.
                (
                    ShardWaiterState::Bare
                    | ShardWaiterState::Armed { .. }
                    | ShardWaiterState::Told
                    | ShardWaiterState::Resting { .. },
                    ShardOutcome::Failed(_) | ShardOutcome::Full | ShardOutcome::Dry,
                ) => {}
            }
        }
        lines.push(queue.clone());
        lines.sort_unstable();
        lines.dedup();
        for queue in &lines {
            self.pump(now, queue, out);
        }
    }

    /// When the first lease of a demand's session ends, as the shards have it.
    pub(crate) fn looked(&mut self, now: u64, arrival: Arrival, soon: Option<u64>, out: &mut Vec<Action>) {
        let Some(demand) = self.demands.get_mut(&arrival) else { return };
        if demand.stand != DemandState::Leaving && soon.is_some_and(|soon| soon <= now) {
            return self.answer(now, arrival, Ok(Reserved::DeadlineSoon), out);
        }
        demand.soon = soon;
        let queues = demand.reserve.queues.clone();
        self.come_back(now, arrival, out);
        for queue in &queues {
            self.pump(now, queue, out);
        }
    }

    /// A shard has nothing of these queues any more: somebody took it who did not stand in line.
    pub(crate) fn dry(&mut self, now: u64, queues: &[QueueName], shard: ShardId, out: &mut Vec<Action>) {
        for queue in queues {
            if self.post(queue, shard).is_some_and(|post| post.state == ShardWaiterState::Told) {
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
            // Those that are away are looked at when they come back.
            if let Some(demand) = self.demands.get(&arrival)
                && demand.stand == DemandState::InLine
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

    /// In how many ns to call [`Demands::tick`].
    pub(crate) fn next_wakeup(&self, now: u64) -> Option<u64> {
        let time = self.by_time.first().map(|(time, _)| time.saturating_sub(now));
        let alarm = self.alarms.first().map(|(time, _)| time.saturating_sub(now));
        let rest = self.rests.first().map(|(time, _)| time.saturating_sub(self.running));
        [time, alarm, rest].into_iter().flatten().min()
    }

    /// How many wait in a queue's line, and how many stand there altogether.
    pub(crate) fn count(&self, queue: &QueueName) -> (usize, usize) {
        self.lines.get(queue).map_or((0, 0), |line| (line.waiting.len(), line.standing))
    }

    /// How much before the end of a lease a demand wants to know of it, in ms.
    pub(crate) fn margin(&self, arrival: Arrival) -> Option<u64> {
        self.demands.get(&arrival)?.reserve.deadline_margin_ms
    }

    /// How many demands there are.
    pub(crate) fn len(&self) -> usize {
        self.demands.len()
    }

    /// The queues that somebody waits for, behind a name.
    pub(crate) fn queues<'a>(
        &'a self,
        after: Option<&QueueName>,
    ) -> impl Iterator<Item = (&'a QueueName, usize, usize)> + 'a {
        use std::ops::Bound;
        let from = after.map_or(Bound::Unbounded, |name| Bound::Excluded(name.clone()));
        let lines = self.lines.range((from, Bound::Unbounded));
        lines.filter(|(_, line)| line.standing > 0).map(|(name, l)| (name, l.waiting.len(), l.standing))
    }

    /// Shards that have something of one of these queues.
    pub(crate) fn have_told(&self, queues: &[QueueName]) -> Vec<ShardId> {
        let told = |shard: &ShardId| {
            let post = |queue| self.lines.get(queue).and_then(|line| line.posts.get(shard.0 as usize));
            queues.iter().filter_map(post).any(|post| post.state == ShardWaiterState::Told)
        };
        (0..u32::try_from(self.shards).unwrap_or(u32::MAX)).map(ShardId).filter(told).collect()
    }

    /// The same, if nobody waits for what they have.
    pub(crate) fn have_more(&self, queues: &[QueueName]) -> Vec<ShardId> {
        let waits = |queue| self.lines.get(queue).is_some_and(|line| !line.waiting.is_empty());
        if queues.iter().any(waits) { Vec::new() } else { self.have_told(queues) }
    }

    fn post(&mut self, queue: &QueueName, shard: ShardId) -> Option<&mut ShardWaiter> {
        self.lines.get_mut(queue)?.posts.get_mut(shard.0 as usize)
    }

    /// Asks for the first demands in line, at the shards that have something.
    fn pump(&mut self, now: u64, queue: &QueueName, out: &mut Vec<Action>) {
        loop {
            let Some(line) = self.lines.get_mut(queue) else { return };
            let Some(at) = line.next_told().filter(|_| !line.waiting.is_empty()) else { return };
            let most = line.posts[at].most;
            let first: Vec<Arrival> = line.waiting.iter().copied().take(most).collect();
            let mut demands = Vec::with_capacity(first.len());
            for arrival in first {
                let Some(demand) = self.demands.get(&arrival) else { continue };
                if demand.answer.is_closed() {
                    self.leave(now, arrival);
                } else if demand.reserve.max == 0 {
                    // It only wants to be told, too.
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
            let Some(line) = self.lines.get_mut(queue) else { return };
            line.posts[at].state = ShardWaiterState::Asking;
            // The next in line is not asked for in vain: the shard says at once if there is more. One that has told in vain does not get to
            // say so again before it has answered.
            if !line.waiting.is_empty() && line.posts[at].misses == 0 {
                self.arm(now, queue, shard, out);
            }
        }
    }

    /// Takes a demand out of its lines, for a while.
    fn step_out(&mut self, arrival: Arrival) {
        let Some(demand) = self.demands.get_mut(&arrival) else { return };
        demand.stand = DemandState::Away;
        self.by_time.remove(&(demand.wakeup(), arrival));
        for queue in &demand.reserve.queues {
            if let Some(line) = self.lines.get_mut(queue) {
                line.waiting.remove(&arrival);
            }
        }
    }

    /// Returns a demand to its lines, unless its wait has ended.
    fn come_back(&mut self, now: u64, arrival: Arrival, out: &mut Vec<Action>) {
        let Some(demand) = self.demands.get_mut(&arrival) else { return };
        if demand.stand != DemandState::Leaving && demand.soon.is_some_and(|soon| soon <= now) {
            demand.soon = None;
            return out.push(Action::Look { arrival, session: demand.reserve.session });
        }
        if demand.stand == DemandState::Leaving || demand.deadline <= now {
            return self.answer(now, arrival, Ok(Reserved::Grants(Vec::new())), out);
        }
        demand.stand = DemandState::InLine;
        self.by_time.insert((demand.wakeup(), arrival));
        for queue in &demand.reserve.queues {
            if let Some(line) = self.lines.get_mut(queue) {
                line.waiting.insert(arrival);
            }
        }
    }

    fn send_away(&mut self, now: u64, arrival: Arrival, out: &mut Vec<Action>) {
        match self.demands.get_mut(&arrival) {
            Some(demand) if demand.stand == DemandState::InLine => {
                self.answer(now, arrival, Ok(Reserved::Grants(Vec::new())), out);
            }
            Some(demand) => demand.stand = DemandState::Leaving,
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
            let Some(line) = self.lines.get_mut(queue) else { continue };
            line.standing -= 1;
            if line.standing == 0 {
                line.idle = Some(now);
                self.alarms.insert((now.saturating_add(LINGER), queue.clone()));
            }
        }
        Some(demand)
    }

    /// Begins a wait at each shard where none is in progress.
    fn arm_all(&mut self, now: u64, queue: &QueueName, out: &mut Vec<Action>) {
        let Some(line) = self.lines.get(queue) else { return };
        let bare = |(at, post): (usize, &ShardWaiter)| (post.state == ShardWaiterState::Bare).then_some(at);
        let bare: Vec<usize> = line.posts.iter().enumerate().filter_map(bare).collect();
        for at in bare {
            self.arm(now, queue, ShardId(u32::try_from(at).unwrap_or(0)), out);
        }
    }

    /// Begins a wait at a shard, if the line has demands.
    fn arm(&mut self, now: u64, queue: &QueueName, shard: ShardId, out: &mut Vec<Action>) {
        let Some(line) = self.lines.get_mut(queue) else { return };
        let standing = line.standing;
        let Some(post) = line.posts.get_mut(shard.0 as usize) else { return };
        if standing == 0 {
            post.state = ShardWaiterState::Bare;
            return;
        }
        self.next_waiter += 1;
        let waiter = WaiterId(self.next_waiter);
        post.state = ShardWaiterState::Armed { waiter, since: now };
        out.push(Action::Arm { queue: queue.clone(), shard, waiter });
    }

    fn rest(&mut self, length: Duration, queue: &QueueName, shard: ShardId) {
        let until = self.running.saturating_add(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX));
        if let Some(post) = self.post(queue, shard) {
            post.state = ShardWaiterState::Resting { until };
            self.rests.insert((until, queue.clone()));
        }
    }

    /// Handles the failure of a shard. When all shards have failed, the demands in line are answered with the error.
    fn fail(&mut self, now: u64, queue: &QueueName, shard: ShardId, error: CallError, out: &mut Vec<Action>) {
        let Some(line) = self.lines.get_mut(queue) else { return };
        let Some(post) = line.posts.get_mut(shard.0 as usize) else { return };
        let pause = doubled(FIRST_PAUSE, LONGEST_PAUSE, post.failures);
        post.failures = post.failures.saturating_add(1);
        post.failing = Some(error.clone());
        let all_fail = line.posts.iter().all(|post| post.failing.is_some());
        let waiting: Vec<Arrival> = if all_fail { line.waiting.iter().copied().collect() } else { vec![] };
        self.rest(self.jitter.of(pause), queue, shard);
        for arrival in waiting {
            self.answer(now, arrival, Err(error.clone()), out);
        }
    }

    /// Ends the waits at shards for a line that has been empty for long.
    fn leave_alone(&mut self, now: u64, queue: &QueueName, out: &mut Vec<Action>) {
        let Some(line) = self.lines.get(queue) else { return };
        if line.idle.is_none_or(|since| now < since.saturating_add(LINGER)) {
            return;
        }
        let Some(line) = self.lines.remove(queue) else { return };
        for (post, shard) in line.posts.iter().zip((0..).map(ShardId)) {
            if let ShardWaiterState::Armed { waiter, .. } = post.state {
                out.push(Action::Withdraw { shard, waiter });
            }
        }
    }

    /// Begins the waits again whose pause is over.
    fn arm_rested(&mut self, now: u64, queue: &QueueName, out: &mut Vec<Action>) {
        let Some(line) = self.lines.get(queue) else { return };
        let running = self.running;
        let rested = |(at, post): (usize, &ShardWaiter)| match post.state {
            ShardWaiterState::Resting { until } if until <= running => Some(at),
            ShardWaiterState::Resting { .. }
            | ShardWaiterState::Bare
            | ShardWaiterState::Armed { .. }
            | ShardWaiterState::Told
            | ShardWaiterState::Asking => None,
        };
        let rested: Vec<usize> = line.posts.iter().enumerate().filter_map(rested).collect();
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
        let post =
            ShardWaiter { state: ShardWaiterState::Bare, misses: 0, failures: 0, failing: None, most: 1 };
        QueueDemands { waiting: BTreeSet::new(), standing: 0, posts: vec![post; shards], turn: 0, idle: None }
    }

    /// A shard that has told; each in its turn.
    fn next_told(&mut self) -> Option<usize> {
        let n = self.posts.len();
        let at =
            (0..n).map(|i| (self.turn + i) % n).find(|&at| self.posts[at].state == ShardWaiterState::Told)?;
        self.turn = (at + 1) % n;
        Some(at)
    }
}

#[cfg(test)]
#[path = "demand_tests.rs"]
pub(crate) mod tests;
