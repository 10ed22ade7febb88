//! Answers remembered for a `dedupe_id`: the store keeps them, this module holds those of the present batch, and the
//! number and size of all.
//!
//! Recent acks are remembered in memory, so that a consumer whose answer was lost learns that its message is done when
//! it acks again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use sha2::{Digest, Sha256};

use crate::answers::{AnswerLog, AnswerSpan};
use crate::growing::SplitTable;
use crate::hash_key::HashKey;
use crate::id::{LeaseToken, MessageId};
use crate::message::{Expiry, Options, is_of_the_try};
use crate::name::QueueName;
use crate::policy::Policy;
use crate::record::{DedupeRow, EnqueueDefaults};
use crate::time::EngineMs;

use super::input::{Enqueue, IfExists, InitialState, Past, When};
use super::rows::TenantIdx;

#[derive(Debug)]
pub(super) struct Dedupe {
    rows: HashMap<(QueueName, Box<str>), DedupeRow, HashKey>,
}

impl Dedupe {
    pub(super) fn new(key: HashKey) -> Self {
        Dedupe { rows: HashMap::with_hasher(key) }
    }

    /// The answer given for an id, unless it has expired.
    pub(super) fn find(&self, queue: &QueueName, id: &str, now: EngineMs) -> Option<&DedupeRow> {
        self.rows.get(&(queue.clone(), id.into())).filter(|row| row.until > now)
    }

    /// Whether the store need not be asked, because this batch has a newer answer.
    pub(super) fn knows(&self, queue: &QueueName, id: &str) -> bool {
        !self.rows.is_empty() && self.rows.contains_key(&(queue.clone(), id.into()))
    }

    pub(super) fn insert(&mut self, row: DedupeRow) {
        self.rows.insert((row.queue.clone(), row.dedupe_id.clone()), row);
    }

    /// Ends the batch.
    pub(super) fn clear(&mut self) {
        self.rows.clear();
    }
}

/// A fingerprint of the meaning of an enqueue: the same meaning gives the same number, however it is written. `defaults`
/// are those of the first decision. No part of it are the headers that name the try (each has a span, or a row, of its own),
/// and how long the answer is remembered.
///
/// Half of a SHA-256: with a hash that is not collision-resistant, a caller could get another content's answer. Texts
/// have their length in front and numbers a mark, and the number of headers comes before them, so that no two contents
/// are written alike.
pub(super) fn content(e: &Enqueue, defaults: &EnqueueDefaults) -> u128 {
    // Without `..`: a new field must be decided upon here.
    let Enqueue {
        queue: _,
        key,
        body,
        headers,
        when,
        due_words,
        if_exists,
        dedupe_id: _,
        dedupe_window_ms: _,
        priority,
        options: Options { lease_ms, max_attempts, queue_limit: _, backoff, spread_ms, expiry },
        begins,
        order_if_new: _,
    } = e;
    let mut h = ContentHash(Sha256::new());
    h.text(body);
    h.text(key.as_ref().map_or("", |k| k.as_str()).as_bytes());
    let headers = headers.iter().filter(|(name, _)| !is_of_the_try(name));
    let mut headers: Vec<(String, &str)> =
        headers.map(|(name, value)| (name.to_ascii_lowercase(), &**value)).collect();
    headers.sort_by(|(one, _), (other, _)| one.cmp(other)); // stable: repeated names keep their order
    h.number(Some(headers.len() as u64));
    for (name, value) in headers {
        h.text(name.as_bytes());
        h.text(value.as_bytes());
    }
    match (due_words, *when) {
        (Some(words), _) => {
            h.number(Some(u64::MAX)); // no instant
            h.text(words.as_bytes());
        }
        (None, When::After(ms)) => {
            h.number(None);
            h.number(Some(ms));
        }
        (None, When::Seconds(s)) => {
            h.number(None);
            h.number(Some(u64::from(s) * 1_000));
        }
        (None, When::At { due_at, past }) => {
            h.number(Some(due_at.0));
            h.number(Some(match past {
                Past::Refuse => 0,
                Past::Fire => 1,
                Past::Keep => 2,
            }));
        }
    }
    h.number(Some(match if_exists {
        IfExists::Reject => 0,
        IfExists::Keep => 1,
        IfExists::Replace => 2,
        IfExists::Supersede => 3,
    }));
    h.number(Some(u64::from(priority.unwrap_or(defaults.priority))));
    h.number(Some(lease_ms.unwrap_or(defaults.lease_ms)));
    h.number(Some(u64::from(max_attempts.unwrap_or(defaults.max_attempts).count())));
    let backoff = backoff.unwrap_or(defaults.backoff);
    h.number(Some(backoff.min_ms));
    h.number(Some(backoff.max_ms));
    h.number(Some(spread_ms.unwrap_or(0)));
    match expiry.or(defaults.expires_in_ms.map(Expiry::In)) {
        None => h.number(None),
        Some(Expiry::In(ms)) => {
            h.number(Some(0));
            h.number(Some(ms));
        }
        Some(Expiry::At(at)) => {
            h.number(Some(1));
            h.number(Some(at.0));
        }
    }
    h.number(Some(match begins {
        InitialState::Waiting => 0,
        InitialState::Dead => 1,
    }));
    h.end()
}

/// What a content is written to.
struct ContentHash(Sha256);

impl ContentHash {
    fn text(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    fn number(&mut self, n: Option<u64>) {
        match n {
            None => self.0.update([0]),
            Some(n) => {
                self.0.update([1]);
                self.0.update(n.to_le_bytes());
            }
        }
    }

    fn end(self) -> u128 {
        let hash = self.0.finalize();
        hash.iter().take(16).rev().fold(0, |number, byte| number << 8 | u128::from(*byte))
    }
}

/// Why answers were forgotten before the end of their window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgottenFor {
    /// A limit of the tenant.
    Quota = 0,
    /// A limit of the server.
    Limit = 1,
    /// Room in the store.
    Room = 2,
    /// A purge or the removal of a queue.
    Purge = 3,
}

/// Remembered answers of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AnswerCounts {
    /// Answers that are remembered now, of all queues.
    pub kept: u64,
    /// The size of these answers in bytes.
    pub bytes: u64,
    /// Answers that were forgotten before the end of their window since the engine was made, by [`ForgottenFor`].
    pub forgotten: [u64; 4],
}

/// The logs of all queues that remember answers.
#[derive(Debug, Default)]
pub(super) struct AnswerLogs {
    pub(super) logs: BTreeMap<QueueName, QueueAnswers>,
    /// The logs of each tenant by the time of their oldest span.
    pub(super) by_age: BTreeMap<Option<TenantIdx>, BTreeSet<(EngineMs, QueueName)>>,
    /// When to look for expired spans of each log.
    pub(super) ends: BTreeSet<(EngineMs, QueueName)>,
    pub(super) counts: AnswerCounts,
}

#[derive(Debug, Default)]
pub(super) struct QueueAnswers {
    pub(super) log: AnswerLog,
    pub(super) tenant: Option<TenantIdx>,
    /// The place in `by_age`, and the one in `ends`.
    pub(super) age: Option<EngineMs>,
    end: Option<EngineMs>,
}

impl AnswerLogs {
    pub(super) fn counts(&self) -> AnswerCounts {
        self.counts
    }

    /// The number and the size of a queue's answers.
    pub(super) fn of(&self, name: &QueueName) -> (u64, u64) {
        self.logs.get(name).map_or((0, 0), |of| (of.log.count(), of.log.bytes()))
    }

    /// The tenant for which the log of a queue counts.
    pub(super) fn tenant_of(&self, name: &QueueName) -> Option<TenantIdx> {
        self.logs.get(name)?.tenant
    }

    pub(super) fn remembers(&self, row: &DedupeRow) -> bool {
        let Some(position) = row.position else { return true };
        self.logs.get(&row.queue).is_some_and(|of| of.log.remembers(position.nth))
    }

    /// The oldest span of the answers of a tenant, or of all tenants, and its queue.
    pub(super) fn oldest(&self, whose: Whose) -> Option<(&QueueName, &AnswerSpan)> {
        let (_, name) = match whose {
            Whose::Tenant(tenant) => self.by_age.get(&Some(tenant))?.first()?,
            Whose::All => self.by_age.values().filter_map(BTreeSet::first).min()?,
        };
        Some((name, self.logs.get(name)?.log.spans().first()?))
    }

    /// Changes a log; returns its former and its present number and size.
    pub(super) fn change(
        &mut self,
        name: &QueueName,
        tenant: Option<TenantIdx>,
        change: impl FnOnce(&mut AnswerLog),
    ) -> [(u64, u64); 2] {
        let of = self
            .logs
            .entry(name.clone())
            .or_insert_with(|| QueueAnswers { tenant, ..QueueAnswers::default() });
        let was = (of.log.count(), of.log.bytes());
        change(&mut of.log);
        let is = (of.log.count(), of.log.bytes());
        self.counts.kept = (self.counts.kept + is.0).saturating_sub(was.0);
        self.counts.bytes = (self.counts.bytes + is.1).saturating_sub(was.1);
        self.place(name);
        [was, is]
    }

    /// Renews the places of a log in the orders, and drops it if it is empty.
    pub(super) fn place(&mut self, name: &QueueName) {
        // Done ids are the server's own, and are forgotten by their own limit.
        let is_done = *name == QueueName::done_ids();
        let Some(of) = self.logs.get_mut(name) else { return };
        let spans = of.log.spans();
        let age = spans.first().filter(|_| !is_done).map(|span| span.last.at);
        let end = spans.iter().map(|span| span.until).min();
        if age != of.age {
            let order = self.by_age.entry(of.tenant).or_default();
            if let Some(age) = std::mem::replace(&mut of.age, age) {
                order.remove(&(age, name.clone()));
            }
            order.extend(age.map(|age| (age, name.clone())));
            if order.is_empty() {
                self.by_age.remove(&of.tenant);
            }
        }
        if end != of.end {
            if let Some(end) = std::mem::replace(&mut of.end, end) {
                self.ends.remove(&(end, name.clone()));
            }
            self.ends.extend(end.map(|end| (end, name.clone())));
        }
        if of.log.is_empty() {
            self.logs.remove(name);
        }
    }
}

/// The tenants of which answers are forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    Tenant(TenantIdx),
    All,
}

/// Number of old acks that are forgotten with each new one: more than one, so that a burst does not stay; few, so that
/// a step is bounded.
const FORGOTTEN: usize = 4;

/// The acks that are remembered, bounded by number and by age. A forgotten ack is answered like any lost lease.
#[derive(Debug)]
pub(super) struct Acked {
    /// Acks in order of time, oldest first.
    order: VecDeque<(EngineMs, MessageId)>,
    /// An id is acked at most once, because ids are never used again.
    by_id: SplitTable<PastAck>,
    hasher: FixedState,
}

#[derive(Debug)]
struct PastAck {
    id: MessageId,
    token: LeaseToken,
    queue: QueueName,
    at: EngineMs,
}

impl Acked {
    pub(super) fn new(seed: u64) -> Self {
        let hasher = FixedState::with_seed(seed ^ 0xacced);
        Acked { order: VecDeque::new(), by_id: SplitTable::new(), hasher }
    }

    /// Records an ack.
    pub(super) fn insert(
        &mut self,
        policy: &Policy,
        now: EngineMs,
        id: MessageId,
        token: LeaseToken,
        queue: QueueName,
    ) {
        for _ in 0..FORGOTTEN {
            let Some(&(at, old)) = self.order.front() else { break };
            if self.order.len() < policy.max_acked && is_recent(policy, now, at) {
                break;
            }
            self.order.pop_front();
            self.by_id.remove(self.hasher.hash_one(old), |ack| ack.id == old);
        }
        if self.order.len() < policy.max_acked {
            self.order.push_back((now, id));
            let (hasher, ack) = (&self.hasher, PastAck { id, token, queue, at: now });
            self.by_id.insert(hasher.hash_one(id), ack, |ack| hasher.hash_one(ack.id));
        }
    }

    /// The queue of the message, if this lease acked it recently.
    pub(super) fn queue_of(
        &self,
        policy: &Policy,
        now: EngineMs,
        id: MessageId,
        token: LeaseToken,
    ) -> Option<&QueueName> {
        let done = self.by_id.find(self.hasher.hash_one(id), |ack| ack.id == id)?;
        (done.token == token && is_recent(policy, now, done.at)).then_some(&done.queue)
    }
}

fn is_recent(policy: &Policy, now: EngineMs, at: EngineMs) -> bool {
    now.0.saturating_sub(at.0) < policy.acked_ms
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::message::MaxAttempts;
    use crate::name::Key;
    use crate::policy::Backoff;
    use crate::time::WallMs;

    use super::*;

    fn enqueue() -> Enqueue {
        Enqueue {
            key: Key::new("k").ok(),
            headers: vec![("a".into(), "b".into())],
            when: When::After(1_000),
            ..Enqueue::new(QueueName::new("q").unwrap(), "body")
        }
    }

    fn defaults() -> EnqueueDefaults {
        EnqueueDefaults {
            priority: 1_024,
            lease_ms: 30_000,
            max_attempts: MaxAttempts::new(20).unwrap(),
            backoff: Backoff { min_ms: 1_000, max_ms: 3_600_000 },
            expires_in_ms: None,
        }
    }

    fn of(e: &Enqueue) -> u128 {
        content(e, &defaults())
    }

    fn with_headers(of: &[(&str, &str)]) -> Enqueue {
        let headers = of.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Enqueue { headers, ..enqueue() }
    }

    /// The half of a SHA-256, computed by another program from the bytes that `docs/format.md` describes. Story: it was an
    /// xxh3, of which a caller can make two contents with one number.
    #[test]
    fn a_content_has_this_fingerprint() {
        assert_eq!(of(&enqueue()), 0x5d3d_9f33_5269_2768_7379_572f_e18c_02c1);
    }

    /// Story: another order of the headers, another case of their names or a default that was written out were another
    /// content, and the retry of a client with hash tables was refused.
    #[test]
    fn one_meaning_has_one_fingerprint() {
        let two = with_headers(&[("a", "1"), ("b", "2")]);
        for same in [with_headers(&[("b", "2"), ("a", "1")]), with_headers(&[("A", "1"), ("b", "2")])] {
            assert_eq!(of(&same), of(&two));
        }
        let one_name = |values: [&str; 2]| with_headers(&[("x", values[0]), ("X", values[1])]);
        assert_ne!(of(&one_name(["1", "2"])), of(&one_name(["2", "1"])), "their order is kept");

        let left_out = defaults();
        let options = Options {
            lease_ms: Some(left_out.lease_ms),
            max_attempts: Some(left_out.max_attempts),
            backoff: Some(left_out.backoff),
            spread_ms: Some(0),
            expiry: Some(Expiry::In(5)),
            ..Options::default()
        };
        let written = Enqueue { priority: Some(left_out.priority), options, ..enqueue() };
        let of_queue = EnqueueDefaults { expires_in_ms: Some(5), ..left_out };
        assert_eq!(content(&written, &of_queue), content(&enqueue(), &of_queue));

        let at = |due_at| When::At { due_at: WallMs(due_at), past: Past::Refuse };
        let said = |when| Enqueue { due_words: Some("1 month".into()), when, ..enqueue() };
        assert_eq!(of(&said(at(5))), of(&said(at(6))), "calendar delays count by their words");
        assert_ne!(of(&said(at(5))), of(&Enqueue { when: at(5), ..enqueue() }));
    }

    #[test]
    fn other_contents_have_other_fingerprints() {
        let e = enqueue;
        let options = |options: Options| Enqueue { options, ..e() };
        let all = [
            e(),
            Enqueue { body: "bod".into(), key: Key::new("yk").ok(), ..e() },
            Enqueue { key: None, ..e() },
            with_headers(&[]),
            with_headers(&[("ab", "")]),
            with_headers(&[("a", "b"), ("", "")]),
            with_headers(&[("a", ""), ("b", "")]),
            Enqueue { when: When::After(1), ..e() },
            Enqueue { when: When::At { due_at: WallMs(1_000), past: Past::Fire }, ..e() },
            Enqueue { if_exists: IfExists::Keep, ..e() },
            Enqueue { priority: Some(1_000), ..e() },
            Enqueue { due_words: Some("x".into()), ..e() },
            options(Options { lease_ms: Some(1_000), ..Options::default() }),
            options(Options { spread_ms: Some(1_000), ..Options::default() }),
            options(Options { expiry: Some(Expiry::In(1_000)), ..Options::default() }),
            options(Options { expiry: Some(Expiry::At(WallMs(1_000))), ..Options::default() }),
            Enqueue { begins: InitialState::Dead, ..e() },
        ];
        assert_eq!(all.iter().map(of).collect::<BTreeSet<_>>().len(), all.len());
        let traced = with_headers(&[("a", "b"), ("traceparent", "00-1-2-01")]);
        assert_eq!(of(&traced), of(&e()), "each try has a span of its own");
    }
}
