//! Queues: their messages in order, their waiting consumers, the part of them that is in memory, their shares of the
//! memory, and the totals of those that have ended.
//!
//! A queue without settings that is empty leaves its totals: a queue of the name goes on with them within a day, and
//! longer if nobody needs their place.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;

use crate::growing::{SplitTable, StableSlab};
use crate::hash_key::HashKey;
use crate::id::IdSet;
use crate::id::{Lsn, MessageId};
use crate::name::QueueName;
use crate::policy::{QueueSettings, REST_MS};
use crate::record::{Pause, Totals};
use crate::store::Cursor;
use crate::tally::{DueCounts, Tally};
use crate::time::{EngineMs, Now};

use super::limits::GrantLimiter;
use super::points::OpenWindow;
use super::quota::Quotas;
use super::reply::{Attended, ExpiredCounts, LATENESS_MS, QueueLateness};
use super::rows::{GrantRank, QueueIdx, RowIdx, TenantIdx};

#[derive(Debug)]
pub(super) struct QueueState {
    pub(super) name: QueueName,
    /// The tenant whose quota applies, if any. Looked up once.
    pub(super) tenant: Option<TenantIdx>,
    pub(super) settings: QueueSettings,
    /// Limits on its grants, if its settings have any.
    pub(super) limiter: Option<Box<GrantLimiter>>,
    pub(super) pause: Pause,
    /// Whether its settings or its pause count for its tenant.
    pub(super) is_charged: bool,
    pub(super) totals: Totals,
    /// The counts of all its messages, in memory or not.
    pub(super) tally: Tally,
    /// Due times of the scheduled ones in memory.
    pub(super) near: DueCounts,
    /// How many of them are in memory.
    pub(super) resident: u64,
    /// Number of purged messages in memory: they are dropped when the engine reaches them.
    pub(super) purged_here: u64,
    pub(super) ready: BTreeMap<(GrantRank, MessageId), RowIdx>,
    /// How many of those are urgent ([`URGENT`]).
    pub(super) urgent: u64,
    /// Weight of all that is ready.
    pub(super) ready_weight: u64,
    pub(super) leased: IdSet,
    /// Weight of all leased messages.
    pub(super) leased_weight: u64,
    /// The position of the queue among those that wait because of leases.
    pub(super) starved: Option<(Scarce, u64)>,
    /// The queue's share of the memory for ready messages.
    pub(super) share: Share,
    /// Leased messages in due order, for each clock class.
    pub(super) leased_by_due: [BTreeSet<Cursor>; 2],
    /// For each clock class, the part of the queue that is in memory, if that is smaller than the horizon.
    pub(super) backlog: [Backlog; 2],
    /// Waiting reserves, longest first, by their arrival number.
    pub(super) waiters: BTreeSet<u64>,
    pub(super) attended: Attended,
    /// Whether [`super::Notice::Unattended`] was emitted already.
    pub(super) noticed_unattended: bool,
    /// Rows put before this record were purged, and are dropped later.
    pub(super) purged: Lsn,
    /// The number of holds of each `Hold`.
    pub(super) holds: [u32; 3],
    pub(super) window: OpenWindow,
    /// The lateness of grants; `None` until the queue grants a message, which most have not.
    pub(super) lateness: Option<Box<QueueLateness>>,
    pub(super) expired: ExpiredCounts,
    pub(super) dead_check: Option<EngineMs>,
    /// Whether it has the done messages of another queue.
    pub(super) is_done: bool,
}

/// Ready messages of a priority below this are urgent, as in beanstalkd.
pub(super) const URGENT: u32 = 1024;

impl QueueState {
    fn new(name: QueueName, tenant: Option<TenantIdx>) -> Self {
        QueueState {
            tenant,
            settings: QueueSettings::default(),
            limiter: None,
            pause: Pause::Running,
            is_charged: false,
            totals: Totals::default(),
            tally: Tally::default(),
            near: DueCounts::default(),
            resident: 0,
            purged_here: 0,
            ready: BTreeMap::new(),
            urgent: 0,
            ready_weight: 0,
            leased: IdSet::default(),
            leased_weight: 0,
            starved: None,
            share: Share::default(),
            leased_by_due: Default::default(),
            backlog: Default::default(),
            waiters: BTreeSet::new(),
            attended: Attended::No,
            noticed_unattended: false,
            purged: Lsn(0),
            holds: [0; 3],
            window: OpenWindow::default(),
            lateness: None,
            expired: ExpiredCounts::default(),
            dead_check: None,
            is_done: name.done_of().is_some(),
            name,
        }
    }

    pub(super) fn is_paused(&self, now: Now) -> bool {
        match self.pause {
            Pause::Running => false,
            Pause::Paused => true,
            Pause::Until { end, .. } => now.engine < end,
        }
    }

    /// Whether the store has ready messages of it that memory does not hold.
    pub(super) fn has_backlog(&self) -> bool {
        self.backlog.iter().any(|b| b.limit.is_some())
    }

    /// Whether a page of its backlog may be requested, because none is loading.
    pub(super) fn lacks_a_page(&self) -> bool {
        self.backlog.iter().any(Backlog::lacks_a_page)
    }

    /// Whether every message of it is in memory.
    pub(super) fn is_all_here(&self) -> bool {
        self.resident == self.tally.count()
    }

    /// Whether the queue exists: it has messages, waiters, holders or settings.
    pub(super) fn is_there(&self) -> bool {
        self.is_used() || self.is_configured()
    }

    /// Whether settings or a pause keep it in existence.
    pub(super) fn is_configured(&self) -> bool {
        self.settings.keep_a_queue() || self.pause != Pause::Running
    }

    fn is_used(&self) -> bool {
        self.tally.count() > 0 || !self.waiters.is_empty() || self.holds != [0; 3]
    }

    /// Whether the queue no longer exists and its store must be notified, because its settings end with it.
    pub(super) fn may_leave(&self) -> bool {
        !self.is_there() && self.settings != QueueSettings::default()
    }
}

/// Behind all names of the server's own queues, and before all others.
const BEHIND_SYSTEM: &str = "#\u{10ffff}";

/// The first possible name of a queue of done messages, and the first one behind all of these.
const DONE_NAMES: [&str; 2] = ["#done/", "#done0"];

/// An index is passed around only while its queue exists.
const KNOWN: &str = "a queue that exists";

/// All queues.
#[derive(Debug)]
pub(super) struct Queues {
    all: StableSlab<QueueState>,
    /// The index of each name.
    by_name: SplitTable<(QueueName, QueueIdx)>,
    hasher: HashKey,
    /// Queues in order of names.
    in_order: BTreeMap<QueueName, QueueIdx>,
    quotas: Quotas,
    /// Totals of those that have ended.
    pub(super) resting: RestingTotals,
    /// Largest number of queues.
    max: usize,
    /// Number of queues of done messages.
    with_done: u64,
    /// Number of those that keep messages of acts.
    pub(super) of_acts: usize,
    /// Number of times that a quota was looked up by a queue's name.
    #[cfg(test)]
    pub(super) looked_up: u64,
}

impl Queues {
    pub(super) fn new(key: HashKey, max: usize) -> Self {
        Queues {
            all: StableSlab::new(),
            by_name: SplitTable::new(),
            hasher: key,
            in_order: BTreeMap::new(),
            quotas: Quotas::default(),
            resting: RestingTotals::default(),
            max,
            with_done: 0,
            of_acts: 0,
            #[cfg(test)]
            looked_up: 0,
        }
    }

    /// Replaces the quotas. Every queue is looked up again.
    pub(super) fn renew_quotas(&mut self, quotas: Quotas) {
        self.quotas = quotas;
        for queue in self.all.iter_mut() {
            queue.tenant = self.quotas.of(&queue.name);
        }
        self.resting.renew(|name| self.quotas.of(name));
    }

    /// The tenant of a queue, whether the queue exists or not.
    pub(super) fn tenant_of(&mut self, name: &QueueName) -> Option<TenantIdx> {
        match self.find(name) {
            Some(idx) => self.get(idx).tenant,
            None => self.look_up_tenant(name),
        }
    }

    fn look_up_tenant(&mut self, name: &QueueName) -> Option<TenantIdx> {
        #[cfg(test)]
        {
            self.looked_up += 1;
        }
        self.quotas.of(name)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn find(&self, name: &QueueName) -> Option<QueueIdx> {
        let found = self.by_name.find(self.hasher.hash_one(name), |(known, _)| known == name);
        found.map(|(_, idx)| *idx)
    }

    pub(super) fn find_or_make(&mut self, name: &QueueName) -> QueueIdx {
        if let Some(idx) = self.find(name) {
            return idx;
        }
        let totals = self.resting.take(name).unwrap_or_default();
        let queue = QueueState { totals, ..QueueState::new(name.clone(), self.look_up_tenant(name)) };
        let idx = self.all.insert(queue).expect("fewer than 2^32 queues");
        let hasher = &self.hasher;
        self.by_name.insert(hasher.hash_one(name), (name.clone(), idx), |(name, _)| hasher.hash_one(name));
        self.in_order.insert(name.clone(), idx);
        self.with_done += u64::from(self.get(idx).is_done);
        self.of_acts += usize::from(name.is_of_act());
        self.make_way();
        idx
    }

    pub(super) fn get(&self, idx: QueueIdx) -> &QueueState {
        self.all.get(idx).expect(KNOWN)
    }

    pub(super) fn get_mut(&mut self, idx: QueueIdx) -> &mut QueueState {
        self.all.get_mut(idx).expect(KNOWN)
    }

    pub(super) fn contains(&self, idx: QueueIdx) -> bool {
        self.all.get(idx).is_some()
    }

    /// Whether nothing refers to the queue: no message, waiter, setting or purged row in memory.
    pub(super) fn is_over(&self, idx: QueueIdx) -> bool {
        self.has_ended(idx) && {
            let queue = self.get(idx);
            queue.resident + queue.purged_here == 0
        }
    }

    /// Whether nothing holds the queue but rows that are still in memory, and its store knows that it has ended.
    pub(super) fn has_ended(&self, idx: QueueIdx) -> bool {
        let Some(queue) = self.all.get(idx) else { return false };
        !queue.is_there() && queue.settings == QueueSettings::default()
    }

    /// Drops a queue to which nothing refers. Its totals stay for a day.
    pub(super) fn drop(&mut self, now: Now, idx: QueueIdx) {
        if let Some(queue) = self.all.remove(idx) {
            if queue.totals.enqueued > 0 && !queue.name.is_system() {
                self.resting.add(now, queue.name.clone(), queue.tenant, queue.totals);
                self.make_way();
            }
            self.by_name.remove(self.hasher.hash_one(&queue.name), |(_, known)| *known == idx);
            self.in_order.remove(&queue.name);
            self.with_done -= u64::from(queue.is_done);
            self.of_acts -= usize::from(queue.name.is_of_act());
        }
    }

    /// Queues come before the totals of those that have ended.
    fn make_way(&mut self) {
        while self.all.len() + self.resting.len() > self.max && self.resting.pop_first() {}
    }

    /// Existing queues that callers have named, behind a name, in order of names.
    pub(super) fn named_after<'a>(
        &'a self,
        name: Option<&'a QueueName>,
    ) -> impl Iterator<Item = &'a QueueState> + 'a {
        use std::ops::Bound::{Excluded, Unbounded};
        // Every other name is behind those of the server.
        let from = name.map_or(BEHIND_SYSTEM, QueueName::as_str).max(BEHIND_SYSTEM);
        let range = self.in_order.range::<str, _>((Excluded(from), Unbounded));
        range.map(|(_, &i)| self.get(i)).filter(|q| q.is_there())
    }

    /// The server's own queues but those of done messages.
    pub(super) fn system_but_done(&self) -> impl Iterator<Item = &QueueState> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let [done, behind] = DONE_NAMES;
        let parts = [(Unbounded, Excluded(done)), (Included(behind), Excluded(BEHIND_SYSTEM))];
        let range = |part| self.in_order.range::<str, _>(part);
        parts.into_iter().flat_map(range).map(|(_, &i)| self.get(i)).filter(|q| q.is_there())
    }

    /// The number of queues of done messages.
    pub(super) fn with_done(&self) -> u64 {
        self.with_done
    }

    /// The first queue that has done messages.
    pub(super) fn first_with_done(&self) -> Option<QueueName> {
        use std::ops::Bound::{Excluded, Included};
        let [done, behind] = DONE_NAMES;
        let range = self.in_order.range::<str, _>((Included(done), Excluded(behind)));
        let mut queues = range.map(|(_, &i)| self.get(i));
        queues.find(|queue| queue.tally.count() > 0).map(|queue| queue.name.clone())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &QueueState> {
        self.in_order.values().map(|&i| self.get(i))
    }
}

/// The part of a queue with a backlog that is in memory, in one clock class.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backlog {
    /// Everything up to here is in memory. `None`: the horizon applies.
    pub(super) limit: Option<Cursor>,
    /// The end time and ticket of the page that is loading.
    pub(super) catching: Option<(u64, u64)>,
    /// The lowest position of a message that was turned away while that page was loading.
    pub(super) dropped: Option<Cursor>,
}

impl Backlog {
    /// Moves the limit back to before a message that is not in memory. Without a limit everything up to `known` is.
    pub(super) fn move_back(&mut self, known: Cursor, before: Cursor) {
        self.limit = Some(self.limit.unwrap_or(known).min(before));
        if self.catching.is_some() {
            self.dropped = Some(self.dropped.map_or(before, |dropped| dropped.min(before)));
        }
    }

    /// Whether a page of it may be requested, because none is loading.
    pub(super) fn lacks_a_page(&self) -> bool {
        self.limit.is_some() && self.catching.is_none()
    }
}

/// The totals of queues that have ended, in memory alone. They count as queues, of all and of their owner, and the
/// oldest make way.
#[derive(Debug, Default)]
pub(super) struct RestingTotals {
    all: BTreeMap<QueueName, RestingQueue>,
    /// The number of each: those that have ended earlier have lower ones.
    order: BTreeMap<u64, QueueName>,
    of_owner: BTreeSet<(TenantIdx, u64)>,
    counts: BTreeMap<TenantIdx, u64>,
    last: u64,
}

#[derive(Debug)]
struct RestingQueue {
    number: u64,
    totals: Totals,
    tenant: Option<TenantIdx>,
    until: EngineMs,
}

impl RestingTotals {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// The number of those of an owner.
    pub(super) fn count_of(&self, tenant: TenantIdx) -> u64 {
        self.counts.get(&tenant).copied().unwrap_or(0)
    }

    pub(super) fn of(&self, name: &QueueName) -> Option<Totals> {
        self.all.get(name).map(|queue| queue.totals)
    }

    /// Keeps the totals of a queue that ends now.
    pub(super) fn add(&mut self, now: Now, name: QueueName, tenant: Option<TenantIdx>, totals: Totals) {
        self.take(&name);
        self.last += 1;
        let number = self.last;
        self.order.insert(number, name.clone());
        let until = EngineMs(now.engine.0.saturating_add(REST_MS));
        self.all.insert(name, RestingQueue { number, totals, tenant, until });
        self.own(tenant, number);
    }

    /// Hands them over to a queue of the name.
    pub(super) fn take(&mut self, name: &QueueName) -> Option<Totals> {
        let queue = self.all.remove(name)?;
        self.order.remove(&queue.number);
        if let Some(tenant) = queue.tenant
            && self.of_owner.remove(&(tenant, queue.number))
            && let Some(count) = self.counts.get_mut(&tenant)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&tenant);
            }
        }
        Some(queue.totals)
    }

    /// Forgets the oldest.
    pub(super) fn pop_first(&mut self) -> bool {
        let name = self.order.first_key_value().map(|(_, name)| name.clone());
        name.is_some_and(|name| self.take(&name).is_some())
    }

    /// Forgets the oldest of an owner.
    pub(super) fn pop_first_of(&mut self, tenant: TenantIdx) -> bool {
        let number = self.of_owner.range((tenant, 0)..).next().filter(|(of, _)| *of == tenant);
        let name = number.and_then(|(_, number)| self.order.get(number)).cloned();
        name.is_some_and(|name| self.take(&name).is_some())
    }

    /// Forgets the oldest if its day is over.
    pub(super) fn pop_over(&mut self, now: Now) -> bool {
        let first = self.order.first_key_value().and_then(|(_, name)| self.all.get(name));
        first.is_some_and(|queue| queue.until <= now.engine) && self.pop_first()
    }

    /// Looks the owners up again.
    pub(super) fn renew(&mut self, owner: impl Fn(&QueueName) -> Option<TenantIdx>) {
        self.of_owner.clear();
        self.counts.clear();
        let mut all = std::mem::take(&mut self.all);
        for (name, queue) in &mut all {
            queue.tenant = owner(name);
            self.own(queue.tenant, queue.number);
        }
        self.all = all;
    }

    fn own(&mut self, tenant: Option<TenantIdx>, number: u64) {
        if let Some(tenant) = tenant {
            self.of_owner.insert((tenant, number));
            *self.counts.entry(tenant).or_default() += 1;
        }
    }
}

/// A queue's share of the memory for ready messages.
#[derive(Debug, Default)]
pub(super) struct Share {
    pub(super) demand: HasDemand,
    pub(super) ends: Option<EngineMs>,
    /// The magnitude under which it is listed among the holders of memory.
    pub(super) magnitude: Option<u32>,
    pub(super) is_busy: bool,
    /// The largest page of its backlog: less than this size fitted last time.
    pub(super) page_rows: Option<usize>,
    pub(super) load_order: Option<(LoadOrder, u64)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum HasDemand {
    #[default]
    No,
    Yes,
}

/// The orders in which backlogs are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadOrder {
    /// Queues in demand that have little in memory, and for which there is memory.
    Served,
    /// All other queues: they get the rest.
    Idle,
}

/// The exhausted limit of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scarce {
    Leases,
    Bytes,
}

/// The shares of all queues, and the next queues to load.
#[derive(Debug, Default)]
pub(super) struct ReadyMemory {
    pub(super) rows: usize,
    pub(super) weight: u64,
    /// Queues with ready messages in memory, by the magnitude of what they hold: without demand, and with demand.
    pub(super) holders: [BTreeSet<(u32, QueueIdx)>; 2],
    /// Queues in demand that have a backlog.
    pub(super) busy: usize,
    /// When demand ends, unless a reserve waits then.
    pub(super) ends: BTreeSet<(EngineMs, QueueIdx)>,
    pub(super) to_load: [BTreeSet<(u64, QueueIdx)>; 2],
    pub(super) places: u64,
    /// Rows and bytes that loading pages of backlogs may bring.
    pub(super) coming_rows: usize,
    pub(super) coming_weight: u64,
    /// Number of queues that were examined, to serve or to load them.
    pub(super) visited: u64,
}

/// Counts since the engine was made.
#[derive(Debug, Default)]
pub(super) struct GrantFigures {
    pub(super) lease_expired: u64,
    pub(super) lease_lost: u64,
    pub(super) held_back: u64,
    pub(super) expired: ExpiredCounts,
    /// Grants by their lateness; the last column is for all above the greatest bound.
    pub(super) lateness: [u64; LATENESS_MS.len() + 1],
    pub(super) lateness_sum_ms: u64,
}
