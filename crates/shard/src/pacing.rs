//! New messages that wait for the rate limit of their tenant's quota.
//!
//! Callers that cannot handle a refusal ([`WhenBusy::Paced`](crate::inbox::WhenBusy)) are slowed down to the rate
//! instead. A waiting message has not been decided: it is looked up and decided when the rate allows it, in order of
//! arrival for each tenant.

use std::collections::{BTreeMap, VecDeque};

use duewheel_core::engine::{Engine, Op};
use duewheel_core::id::ReplyTo;
use duewheel_core::policy::Policy;
use duewheel_core::time::{EngineMs, Now};

/// Operations of a batch, and where their answers go.
pub(crate) type PacedBatch = VecDeque<(ReplyTo, Op)>;

/// Waiting new messages, by tenant, in order.
#[derive(Debug)]
pub(crate) struct Pacing {
    lines: BTreeMap<usize, VecDeque<Paced>>,
    /// Messages whose tenant is no longer known, because the quotas were replaced.
    loose: Vec<Paced>,
    /// The rest of each tenant's rate in this batch.
    left: BTreeMap<usize, u64>,
    arrivals: u64,
    bytes: usize,
    max_bytes: usize,
    max_wait_ms: u64,
    /// When a message may be decided, or has waited for the longest allowed time.
    wake: Option<EngineMs>,
    waits: MayWait,
}

/// Whether messages may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MayWait {
    Allowed,
    /// A shutdown has begun: nothing waits any more.
    Over,
}

#[derive(Debug)]
struct Paced {
    to: ReplyTo,
    op: Op,
    arrival: u64,
    until: EngineMs,
}

impl Pacing {
    pub(crate) fn new(policy: &Policy) -> Self {
        Pacing {
            lines: BTreeMap::new(),
            loose: Vec::new(),
            left: BTreeMap::new(),
            arrivals: 0,
            bytes: 0,
            // The same limit as for messages that wait for the store.
            max_bytes: policy.max_inbox_bytes,
            max_wait_ms: policy.max_pace_wait_ms,
            wake: None,
            waits: MayWait::Allowed,
        }
    }

    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.loose.is_empty()
    }

    /// Begins a batch with the messages that may go: at most `most` of each tenant.
    pub(crate) fn begin(&mut self, now: Now, engine: &mut Engine, most: usize, batch: &mut PacedBatch) {
        self.left.clear();
        if self.is_empty() {
            return;
        }
        let loose = std::mem::take(&mut self.loose);
        for paced in loose {
            self.line_up(now, engine, paced, batch);
        }
        let tenants: Vec<usize> = self.lines.keys().copied().collect();
        for tenant in tenants {
            let Some(mut line) = self.lines.remove(&tenant) else { continue };
            let mut taken = 0;
            while let Some(first) = line.front() {
                let name = queue_of(&first.op);
                let rate = name.and_then(|name| self.left(now, engine, name));
                let is_free = rate.is_none_or(|(_, left)| left > 0);
                let goes = is_free || first.until <= now.engine || self.waits == MayWait::Over;
                if taken == most || !goes {
                    break;
                }
                if let Some((tenant, left)) = rate {
                    self.left.insert(tenant, left.saturating_sub(1));
                }
                let Some(first) = line.pop_front() else { break };
                self.let_go(first, batch);
                taken += 1;
            }
            if !line.is_empty() {
                self.lines.insert(tenant, line);
            }
        }
    }

    /// Adds an operation to the batch; one that waits for a rate is added to a later batch.
    pub(crate) fn add(
        &mut self,
        now: Now,
        engine: &mut Engine,
        to: ReplyTo,
        op: Op,
        paced: bool,
        batch: &mut PacedBatch,
    ) {
        let rate = queue_of(&op).and_then(|name| self.left(now, engine, name));
        let Some((tenant, left)) = rate else { return batch.push_back((to, op)) };
        let waits = left == 0 || self.lines.contains_key(&tenant);
        let bytes = op.weight();
        let has_room = self.bytes.saturating_add(bytes) <= self.max_bytes && self.waits == MayWait::Allowed;
        if !paced || !waits || !has_room {
            self.left.insert(tenant, left.saturating_sub(1));
            return batch.push_back((to, op));
        }
        self.bytes += bytes;
        self.arrivals += 1;
        let until = EngineMs(now.engine.0.saturating_add(self.max_wait_ms));
        let paced = Paced { to, op, arrival: self.arrivals, until };
        self.lines.entry(tenant).or_default().push_back(paced);
    }

    /// Ends the step: from now on [`Pacing::next_wakeup`] returns the time of the next work.
    pub(crate) fn plan(&mut self, now: Now, engine: &mut Engine) {
        let loose = (!self.loose.is_empty()).then_some(now.engine);
        let wakeup = |first: &Paced| {
            let rate = queue_of(&first.op).and_then(|name| engine.pace(now, name));
            rate.map_or(now.engine, |(_, pace)| pace.next.min(first.until))
        };
        let lines = self.lines.values().filter_map(VecDeque::front).map(wakeup);
        self.wake = lines.chain(loose).min();
    }

    pub(crate) fn next_wakeup(&self) -> Option<EngineMs> {
        self.wake
    }

    /// Notes that the quotas were replaced.
    pub(crate) fn renew(&mut self) {
        self.loose.extend(std::mem::take(&mut self.lines).into_values().flatten());
        self.loose.sort_by_key(|paced| paced.arrival);
    }

    /// Ends all waiting: everything is decided in the next step.
    pub(crate) fn end_waits(&mut self) {
        self.waits = MayWait::Over;
    }

    /// Removes all waiting messages: they were not decided.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = ReplyTo> {
        self.renew();
        self.bytes = 0;
        std::mem::take(&mut self.loose).into_iter().map(|paced| paced.to)
    }

    /// The tenant of a queue, and the rest of its rate in this batch, if it has a rate limit.
    fn left(&self, now: Now, engine: &mut Engine, queue: &duewheel_core::QueueName) -> Option<(usize, u64)> {
        let (tenant, pace) = engine.pace(now, queue)?;
        Some((tenant, self.left.get(&tenant).copied().unwrap_or(pace.left)))
    }

    fn line_up(&mut self, now: Now, engine: &mut Engine, paced: Paced, batch: &mut PacedBatch) {
        match queue_of(&paced.op).and_then(|name| engine.pace(now, name)) {
            Some((tenant, _)) => self.lines.entry(tenant).or_default().push_back(paced),
            None => self.let_go(paced, batch),
        }
    }

    fn let_go(&mut self, paced: Paced, batch: &mut PacedBatch) {
        self.bytes = self.bytes.saturating_sub(paced.op.weight());
        batch.push_back((paced.to, paced.op));
    }
}

/// The queue that a new message goes to.
fn queue_of(op: &Op) -> Option<&duewheel_core::QueueName> {
    match op {
        Op::Enqueue(e) => Some(&e.queue),
        _ => None,
    }
}
