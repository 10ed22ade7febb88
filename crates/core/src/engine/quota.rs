//! Quotas: how much the queues of a tenant may hold, lease and take in.
//!
//! A tenant is all queues whose names begin with a prefix; of several prefixes the longest counts. Each shard of a
//! cluster keeps its own share of a quota, so the sum over all shards holds without communication:
//!
//! | limit | share of a shard |
//! |---|---|
//! | messages, bytes, leases, answers | the limit divided by the number of shards; the first shards have one more until the rest is used up |
//! | enqueues a second | the exact fraction |
//! | burst | the exact fraction, but at least one message, and at least the enqueues of one millisecond |
//!
//! Use is the sum of the queues' tallies. It is added up once when quotas are set, and then moves with each record.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::message::Kind;
use crate::name::{QueueName, named_enum};
use crate::policy::{Policy, SECONDS_PER_HOUR};
use crate::record::TallyState;
use crate::tally::Tally;
use crate::time::{EngineMs, Now};

use super::limits::{TokenBucket, share};
use super::rows::{QueueIdx, TenantIdx};
use crate::id::Ids;

/// The limits of the queues of one tenant together. `None`: no limit of this kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Quota {
    /// The prefix of the names of the tenant's queues. Empty: all queues without a longer matching prefix.
    pub prefix: Box<str>,
    /// Unsettled messages: Scheduled, Ready, Leased and Dead.
    pub messages: Option<u64>,
    /// Weight of those, in bytes: bodies, keys and headers; and the size of remembered answers.
    pub bytes: Option<u64>,
    /// Concurrent leases.
    pub leases: Option<u64>,
    /// Accepted enqueues a second, over time.
    pub enqueues_per_second: Option<u64>,
    /// Enqueues that may come at once; `None`: as many as one second of the rate.
    pub burst: Option<u64>,
    /// Remembered answers (`dedupe_id`); `None`: [`ANSWERS_PER_MESSAGE`] times `messages`.
    pub answers: Option<u64>,
}

/// A quota without a limit of answers has that of its messages times this.
pub const ANSWERS_PER_MESSAGE: u64 = 10;

impl Quota {
    /// The limit of one kind.
    pub fn limit(&self, resource: Resource) -> Option<u64> {
        match resource {
            Resource::Messages => self.messages,
            Resource::Bytes => self.bytes,
            Resource::Leases => self.leases,
            Resource::Enqueues => self.enqueues_per_second,
            Resource::Answers => {
                let usual = self.messages.map(|messages| messages.saturating_mul(ANSWERS_PER_MESSAGE));
                self.answers.or(usual)
            }
        }
    }
}

named_enum! {
/// A resource that a quota limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Resource {
    /// Number of unsettled messages.
    Messages = 0 => "messages",
    /// The weight of unsettled messages, in bytes.
    Bytes = 1 => "bytes",
    /// Leases.
    Leases = 2 => "leases",
    /// Enqueues a second.
    Enqueues = 3 => "enqueues_per_second",
    /// Remembered answers.
    Answers = 4 => "answers",
}
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A refusal by a quota, although the server as a whole has room. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct OverQuota {
    /// The prefix of the quota.
    pub quota: Box<str>,
    /// The exhausted limit.
    pub resource: Resource,
    /// The limit at the shard that has refused. For enqueues: the whole rate a second.
    pub limit: u64,
    /// The use of it at that shard. For enqueues: the same as the limit.
    pub used: u64,
    /// When a retry makes sense, in ms; `None`: after something was settled or removed.
    pub retry_ms: Option<u64>,
}

/// The use of a quota.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct QuotaUse {
    /// The quota, as it was set.
    pub quota: Quota,
    /// Present messages, bytes, leases and answers, in the order of [`Resource`]; of enqueues: the used part of the
    /// burst.
    pub used: [u64; 5],
    /// Refusals since this engine was made, in the same order; of leases: reserves that were held back.
    pub refused: [u64; 5],
}

/// Why a list of quotas is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadQuota {
    /// The prefix of the invalid quota.
    pub prefix: Box<str>,
    /// The invalid field of the quota.
    pub field: &'static str,
    /// The reason.
    pub what: Box<str>,
}

impl fmt::Display for BadQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "quota {:?}: {}: {}", self.prefix, self.field, self.what)
    }
}

impl std::error::Error for BadQuota {}

/// A validated list of quotas. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    /// By prefix.
    list: Arc<[Quota]>,
    /// The lengths of the prefixes, longest first.
    lengths: Arc<[usize]>,
}

impl Quotas {
    /// Checks a list of quotas.
    ///
    /// ```
    /// use duewheel_core::{Policy, engine::{Quota, Quotas}};
    /// let acme = Quota { prefix: "acme.".into(), messages: Some(1_000_000), ..Quota::default() };
    /// assert!(Quotas::new(vec![acme.clone()], &Policy::default()).is_ok());
    /// assert!(Quotas::new(vec![acme.clone(), acme], &Policy::default()).is_err());
    /// ```
    ///
    /// # Errors
    /// [`BadQuota`] when a prefix occurs twice or cannot begin a name, or a limit is 0 or too large, with the name of
    /// the field.
    pub fn new(mut list: Vec<Quota>, policy: &Policy) -> Result<Self, BadQuota> {
        list.sort_by(|a, b| a.prefix.cmp(&b.prefix));
        for (n, quota) in list.iter().enumerate() {
            check(quota, policy).map_err(|(field, what)| BadQuota {
                prefix: quota.prefix.clone(),
                field,
                what,
            })?;
            let bad =
                |what: String| BadQuota { prefix: quota.prefix.clone(), field: "prefix", what: what.into() };
            if n > 0 && list[n - 1].prefix == quota.prefix {
                return Err(bad("occurs twice".to_owned()));
            }
            if n >= policy.max_quotas {
                return Err(bad(format!("there may be at most {} quotas", policy.max_quotas)));
            }
        }
        let lengths: BTreeSet<usize> = list.iter().map(|quota| quota.prefix.len()).collect();
        Ok(Quotas { list: list.into(), lengths: lengths.into_iter().rev().collect() })
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// All quotas, by prefix.
    pub fn iter(&self) -> impl Iterator<Item = &Quota> {
        self.list.iter()
    }

    /// The index of the quota that applies to a queue: the one with the longest prefix of its name. None applies to the
    /// server's own queues, or one tenant at its limit would stop the schedules of all.
    pub fn of(&self, queue: &QueueName) -> Option<usize> {
        if queue.is_system() {
            return None;
        }
        let name = queue.as_str();
        let prefixes = self.lengths.iter().filter_map(|&length| name.get(..length));
        prefixes
            .filter_map(|prefix| self.list.binary_search_by(|quota| (*quota.prefix).cmp(prefix)).ok())
            .next()
    }
}

fn check(quota: &Quota, policy: &Policy) -> Result<(), (&'static str, Box<str>)> {
    if !quota.prefix.is_empty()
        && let Err(bad) = QueueName::new(&quota.prefix)
    {
        return Err(("prefix", bad.to_string().into()));
    }
    let most = policy.max_quota;
    for (field, limit, most) in [
        ("messages", quota.messages, most),
        ("bytes", quota.bytes, most),
        ("leases", quota.leases, most),
        ("answers", quota.answers, most),
        ("enqueues_per_second", quota.enqueues_per_second, policy.max_quota_rate),
        ("burst", quota.burst, policy.max_quota_rate),
    ] {
        if limit.is_some_and(|limit| limit == 0 || limit > most) {
            return Err((field, format!("must be from 1 to {most}").into()));
        }
    }
    if quota.burst.is_some() && quota.enqueues_per_second.is_none() {
        return Err(("burst", "needs enqueues_per_second".into()));
    }
    Ok(())
}

/// Limits and use of all tenants.
#[derive(Debug, Default)]
pub(super) struct Tenants {
    list: Vec<TenantUse>,
    /// Whether at least one tenant has a rate.
    rated: bool,
    /// Tenants that may lease again and have queues that wait for it. The set may contain others.
    freed: BTreeSet<TenantIdx>,
    /// Queues that have begun to wait for a lease so far.
    waits: u64,
}

/// The limits and use of one tenant at this shard.
#[derive(Debug)]
struct TenantUse {
    quota: Quota,
    /// This shard's share of each limit; none for enqueues.
    limits: [Option<u64>; 5],
    used: [u64; 5],
    /// The part of the used bytes that is of answers.
    answer_bytes: u64,
    /// Queues with settings or a pause.
    configured: u64,
    tokens: Option<TokenBucket>,
    refused: [u64; 5],
    /// Queues with ready messages and waiting consumers while the tenant may lease no more; by the time they began to
    /// wait.
    starved: BTreeMap<u64, QueueIdx>,
    /// When each queue began to wait.
    since: BTreeMap<QueueIdx, u64>,
}

impl Tenants {
    /// Counters at zero for these quotas. Buckets and refusals of prefixes that existed before are kept.
    pub(super) fn renew(&mut self, quotas: &Quotas, ids: Ids, now: Now) -> BTreeSet<QueueIdx> {
        let mut starved = BTreeSet::new();
        let mut before = std::mem::take(&mut self.list);
        self.freed.clear();
        for quota in quotas.iter() {
            let old = before.iter_mut().find(|tenant| tenant.quota.prefix == quota.prefix);
            let share = |limit: Option<u64>| limit.map(|limit| share(limit, ids));
            let old_tokens = old.as_ref().and_then(|tenant| tenant.tokens.clone());
            let tokens = quota.enqueues_per_second.map(|rate| {
                TokenBucket::new(
                    rate.saturating_mul(SECONDS_PER_HOUR),
                    quota.burst.unwrap_or(rate),
                    ids,
                    now.engine,
                )
                .filled_as(old_tokens)
            });
            self.list.push(TenantUse {
                limits: Resource::ALL.map(|resource| match resource {
                    Resource::Enqueues => None,
                    of => share(quota.limit(of)),
                }),
                used: [0; 5],
                answer_bytes: 0,
                configured: 0,
                tokens,
                refused: old.map_or([0; 5], |tenant| tenant.refused),
                starved: BTreeMap::new(),
                since: BTreeMap::new(),
                quota: quota.clone(),
            });
        }
        self.rated = self.list.iter().any(|tenant| tenant.tokens.is_some());
        for tenant in before {
            starved.extend(tenant.starved.into_values());
        }
        starved
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether any enqueue can be refused for its rate.
    pub(super) fn has_rates(&self) -> bool {
        self.rated
    }

    /// Counts all messages of a queue.
    pub(super) fn count_queue(&mut self, tenant: Option<TenantIdx>, tally: &Tally) {
        if let Some(tenant) = self.get_mut(tenant) {
            let add = [tally.count(), tally.weight(), tally.part(Kind::Leased).count];
            for (used, add) in tenant.used.iter_mut().zip(add) {
                *used = used.saturating_add(add);
            }
        }
    }

    /// Counts a queue with settings or a pause.
    pub(super) fn count_settings(&mut self, tenant: Option<TenantIdx>, was: bool, is: bool) {
        if let Some(tenant) = self.get_mut(tenant) {
            tenant.configured = tenant.configured.saturating_sub(u64::from(was)) + u64::from(is);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether a tenant has more queues with settings than it may have, with this many others.
    pub(super) fn lacks_room_for(&self, tenant: TenantIdx, others: u64) -> bool {
        let Some(tenant) = self.list.get(tenant) else { return false };
        tenant.quota.messages.is_some_and(|limit| tenant.configured.saturating_add(others) > limit)
    }

    /// Whether one more queue may have settings or a pause.
    ///
    /// # Errors
    /// [`OverQuota`] when it may not.
    pub(super) fn configure(&mut self, tenant: Option<TenantIdx>) -> Result<(), Box<OverQuota>> {
        let Some(tenant) = self.get_mut(tenant) else { return Ok(()) };
        match tenant.quota.messages {
            Some(limit) if tenant.configured >= limit => {
                Err(tenant.refuse(Resource::Messages, limit, tenant.configured, None))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Counts the answers of a queue: their former and their present number and size.
    pub(super) fn count_answers(&mut self, tenant: Option<TenantIdx>, [was, is]: [(u64, u64); 2]) {
        if let Some(tenant) = self.get_mut(tenant) {
            let moved = |used: u64, was: u64, is: u64| used.saturating_sub(was).saturating_add(is);
            let [bytes, answers] = [Resource::Bytes as usize, Resource::Answers as usize];
            tenant.used[answers] = moved(tenant.used[answers], was.0, is.0);
            tenant.used[bytes] = moved(tenant.used[bytes], was.1, is.1);
            tenant.answer_bytes = moved(tenant.answer_bytes, was.1, is.1);
        }
    }

    /// Counts the messages that a purge has removed from a queue; none of them was leased.
    pub(super) fn count_purge(&mut self, tenant: Option<TenantIdx>, gone: &Tally) {
        if let Some(tenant) = self.get_mut(tenant) {
            tenant.used[0] = tenant.used[0].saturating_sub(gone.count());
            tenant.used[1] = tenant.used[1].saturating_sub(gone.weight());
        }
    }

    /// Counts a record about a message.
    pub(super) fn count(
        &mut self,
        at: Option<TenantIdx>,
        (was, is): (Option<TallyState>, Option<TallyState>),
    ) {
        let Some(tenant) = self.get_mut(at) else { return };
        let was_full = tenant.is_lease_full();
        if let Some(was) = was {
            tenant.used[0] = tenant.used[0].saturating_sub(1);
            tenant.used[1] = tenant.used[1].saturating_sub(was.weight);
            tenant.used[2] = tenant.used[2].saturating_sub(u64::from(was.kind == Kind::Leased));
        }
        if let Some(is) = is {
            tenant.used[0] += 1;
            tenant.used[1] = tenant.used[1].saturating_add(is.weight);
            tenant.used[2] += u64::from(is.kind == Kind::Leased);
        }
        if was_full && !tenant.is_lease_full() {
            self.freed.extend(at);
        }
    }

    /// Removes and returns the queue that has waited longest for its tenant to be able to lease again, if the tenant
    /// can.
    pub(super) fn next_starved(&mut self) -> Option<QueueIdx> {
        while let Some(&at) = self.freed.first() {
            let tenant = self.list.get_mut(at).filter(|tenant| !tenant.is_lease_full());
            if let Some(tenant) = tenant
                && let Some((_, queue)) = tenant.starved.pop_first()
            {
                tenant.since.remove(&queue);
                return Some(queue);
            }
            self.freed.remove(&at);
        }
        None
    }

    /// Whether a message of this weight may be accepted, in place of one of weight `replaced` if there is one, with an
    /// answer of size `answer` if it is remembered. If so, takes one enqueue off the rate: call it last.
    ///
    /// # Errors
    /// [`OverQuota`] names the exhausted resource. Only the rate can refuse a replacement that does not increase use.
    pub(super) fn accept(
        &mut self,
        tenant: Option<TenantIdx>,
        now: Now,
        weight: u64,
        replaced: Option<u64>,
        answer: Option<u64>,
    ) -> Result<(), Box<OverQuota>> {
        let Some(tenant) = self.get_mut(tenant) else { return Ok(()) };
        if replaced.is_none() {
            tenant.need(Resource::Messages, 1)?;
        }
        tenant.need(Resource::Answers, u64::from(answer.is_some()))?;
        let more = weight.saturating_sub(replaced.unwrap_or(0));
        tenant.need(Resource::Bytes, more.saturating_add(answer.unwrap_or(0)))?;
        tenant.take_token(now)
    }

    /// Whether an answer of this size may be remembered.
    ///
    /// # Errors
    /// [`OverQuota`] when it may not.
    pub(super) fn accept_answer(
        &mut self,
        tenant: Option<TenantIdx>,
        size: u64,
    ) -> Result<(), Box<OverQuota>> {
        let Some(tenant) = self.get_mut(tenant) else { return Ok(()) };
        tenant.need(Resource::Answers, 1)?;
        tenant.need(Resource::Bytes, size)
    }

    /// Whether an answer of size `answer`, or `more` bytes, are beyond a limit and would not be without some or all of
    /// the tenant's answers.
    pub(super) fn gains_by_forgetting(&self, tenant: TenantIdx, answer: Option<u64>, more: u64) -> bool {
        let Some(tenant) = self.list.get(tenant) else { return false };
        let [bytes, answers] = [Resource::Bytes as usize, Resource::Answers as usize];
        let is_over = |at: usize, more: u64, less: u64| {
            let used = tenant.used[at].saturating_sub(less).saturating_add(more);
            more > 0 && tenant.limits[at].is_some_and(|limit| used > limit)
        };
        let more = more.saturating_add(answer.unwrap_or(0));
        if is_over(bytes, more, tenant.answer_bytes) {
            return false;
        }
        is_over(answers, u64::from(answer.is_some()), 0) || is_over(bytes, more, 0)
    }

    /// Whether a message may grow by this weight.
    ///
    /// # Errors
    /// [`OverQuota`] when it may not.
    pub(super) fn grow(&mut self, tenant: Option<TenantIdx>, more: u64) -> Result<(), Box<OverQuota>> {
        self.get_mut(tenant).map_or(Ok(()), |tenant| tenant.need(Resource::Bytes, more))
    }

    /// Whether one more message may be leased.
    ///
    /// # Errors
    /// [`OverQuota`] when it may not.
    pub(super) fn lease(&mut self, tenant: Option<TenantIdx>) -> Result<(), Box<OverQuota>> {
        self.get_mut(tenant).map_or(Ok(()), |tenant| tenant.need(Resource::Leases, 1))
    }

    /// Whether nothing more may be leased.
    pub(super) fn is_lease_full(&self, tenant: Option<TenantIdx>) -> bool {
        tenant.and_then(|idx| self.list.get(idx)).is_some_and(TenantUse::is_lease_full)
    }

    /// Adds the queue to those that wait for leases of its tenant, at the end.
    pub(super) fn wait_for_lease(&mut self, tenant: Option<TenantIdx>, queue: QueueIdx) {
        let wait = self.waits;
        if let Some(tenant) = self.get_mut(tenant)
            && !tenant.since.contains_key(&queue)
        {
            tenant.since.insert(queue, wait);
            tenant.starved.insert(wait, queue);
            self.waits += 1;
        }
    }

    /// Counts a reserve that was held back.
    pub(super) fn count_held_back(&mut self, tenant: Option<TenantIdx>) {
        if let Some(tenant) = self.get_mut(tenant) {
            tenant.refused[Resource::Leases as usize] += 1;
        }
    }

    /// How many enqueues the rate allows now, and when it allows the next one. `None`: the tenant has no rate.
    pub(super) fn pace(&mut self, tenant: TenantIdx, now: Now) -> Option<Pace> {
        let tokens = self.list.get_mut(tenant)?.tokens.as_mut()?;
        tokens.refill(now.engine);
        let next = EngineMs(now.engine.0.saturating_add(tokens.next_ms()));
        Some(Pace { left: tokens.left(), next })
    }

    pub(super) fn uses(&mut self, now: Now) -> Vec<QuotaUse> {
        let using = |tenant: &mut TenantUse| {
            let [messages, bytes, leases, _, answers] = tenant.used;
            let tokens = tenant.tokens.as_mut().map_or(0, |tokens| {
                tokens.refill(now.engine);
                tokens.spent()
            });
            let used = [messages, bytes, leases, tokens, answers];
            QuotaUse { quota: tenant.quota.clone(), used, refused: tenant.refused }
        };
        self.list.iter_mut().map(using).collect()
    }

    fn get_mut(&mut self, tenant: Option<TenantIdx>) -> Option<&mut TenantUse> {
        tenant.and_then(|idx| self.list.get_mut(idx))
    }
}

impl TenantUse {
    fn is_lease_full(&self) -> bool {
        let at = Resource::Leases as usize;
        self.limits[at].is_some_and(|limit| self.used[at] >= limit)
    }

    /// Refuses an increase of use above the limit.
    fn need(&mut self, resource: Resource, more: u64) -> Result<(), Box<OverQuota>> {
        let at = resource as usize;
        match self.limits[at] {
            Some(limit) if more > 0 && self.used[at].saturating_add(more) > limit => {
                Err(self.refuse(resource, limit, self.used[at], None))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn take_token(&mut self, now: Now) -> Result<(), Box<OverQuota>> {
        let Some(tokens) = &mut self.tokens else { return Ok(()) };
        tokens.refill(now.engine);
        if tokens.take() {
            return Ok(());
        }
        let (rate, retry_ms) = (self.quota.enqueues_per_second.unwrap_or(0), tokens.next_ms());
        Err(self.refuse(Resource::Enqueues, rate, rate, Some(retry_ms)))
    }

    fn refuse(&mut self, resource: Resource, limit: u64, used: u64, retry_ms: Option<u64>) -> Box<OverQuota> {
        self.refused[resource as usize] += 1;
        Box::new(OverQuota { quota: self.quota.prefix.clone(), resource, limit, used, retry_ms })
    }
}

/// The number of operations that a rate allows at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Enqueues that are accepted now.
    pub left: u64,
    /// When the next one is accepted; now if `left` is not 0.
    pub next: EngineMs,
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Effects, Engine, Enqueue, Input, Op};
    use super::*;
    use crate::id::{Lsn, ReplyTo};
    use crate::store::Recovered;

    fn quota(prefix: &str) -> Quota {
        Quota { prefix: prefix.into(), ..Quota::default() }
    }

    fn queue(name: &str) -> QueueName {
        QueueName::new(name).unwrap()
    }

    #[test]
    fn longest_matching_prefix_wins() {
        let list = ["a.", "", "a.b.c", "a.b"].map(quota).to_vec();
        let quotas = Quotas::new(list, &Policy::default()).unwrap();
        let prefix =
            |name: &str| quotas.iter().nth(quotas.of(&queue(name)).unwrap()).unwrap().prefix.to_string();
        for (name, longest) in
            [("a", ""), ("a.", "a."), ("a.x", "a."), ("a.b", "a.b"), ("a.b.cd", "a.b.c"), ("z", "")]
        {
            assert_eq!(prefix(name), longest, "{name}");
        }
        let one = Quotas::new(vec![quota("b")], &Policy::default()).unwrap();
        assert_eq!(
            (one.of(&queue("a")), one.of(&queue("b")), one.of(&queue("bb"))),
            (None, Some(0), Some(0))
        );
    }

    #[test]
    fn invalid_quota_names_its_field() {
        let bad = |quotas: Vec<Quota>, says: &str| {
            let policy = Policy { max_quotas: 2, ..Policy::default() };
            let error = Quotas::new(quotas, &policy).unwrap_err().to_string();
            assert!(error.contains(says), "{error}: {says}");
        };
        let max = 1 << 53;
        bad(vec![quota("a"), quota("a")], r#"quota "a": prefix: occurs twice"#);
        bad(vec![quota("a b")], "prefix: may hold only");
        bad(vec![quota("a"), quota("b"), quota("c")], "at most 2 quotas");
        bad(vec![Quota { messages: Some(0), ..quota("a") }], r#"quota "a": messages: must be from 1 to"#);
        bad(vec![Quota { bytes: Some(max + 1), ..quota("a") }], "bytes: must be");
        bad(vec![Quota { leases: Some(0), ..quota("a") }], "leases: must be");
        bad(vec![Quota { enqueues_per_second: Some(0), ..quota("a") }], "enqueues_per_second: must be");
        bad(vec![Quota { burst: Some(1), ..quota("a") }], "burst: needs enqueues_per_second");
        bad(
            vec![Quota { enqueues_per_second: Some(1), burst: Some(1_000_000_001), ..quota("a") }],
            "burst: must be",
        );
        let most = Quota {
            messages: Some(max),
            bytes: Some(1),
            enqueues_per_second: Some(1_000_000_000),
            ..quota("")
        };
        assert!(Quotas::new(vec![most], &Policy::default()).is_ok());
    }

    #[test]
    fn quota_lookup_is_once_per_queue() {
        let now = Now::whole(0, 0);
        let recovered = Recovered { next_lsn: Lsn(1), next_id: 1, ..Recovered::default() };
        let mut engine = Engine::new(Config::default(), recovered, now).unwrap();
        let quotas = vec![Quota { messages: Some(1_000), ..quota("q") }];
        let mut fx = Effects::new();
        engine.handle(now, Input::Quotas(Quotas::new(quotas, &Policy::default()).unwrap()), &mut fx);
        for n in 0..300 {
            let e = Enqueue::new(queue(["q1", "q2", "z"][n % 3]), "body");
            engine.handle(now, Input::Request { to: ReplyTo(1), op: Op::Enqueue(Box::new(e)) }, &mut fx);
        }
        assert_eq!(fx.len(), 600, "a record and an answer each");
        // Once before the queue exists, and once when it is created.
        assert!(engine.queues.looked_up <= 6, "{}", engine.queues.looked_up);
    }
}
