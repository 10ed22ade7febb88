//! Answers remembered for a `dedupe_id`: the store keeps them, this module holds those of the present batch.

use hashbrown::HashMap;
use sha2::{Digest, Sha256};

use crate::hash_key::HashKey;
use crate::message::{Expiry, Options, is_of_a_trace};
use crate::name::QueueName;
use crate::record::{DedupeRow, EnqueueDefaults};
use crate::time::EngineMs;

use super::input::{Enqueue, IfExists, InitialState, Past, When};

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
/// are those of the first decision. No part of it are the headers that name a trace (each try has a span of its own),
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
    let headers = headers.iter().filter(|(name, _)| !is_of_a_trace(name));
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
