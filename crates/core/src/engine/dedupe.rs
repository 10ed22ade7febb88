//! Answers remembered for a `dedupe_id`: the store keeps them, this module holds those of the present batch.

use hashbrown::HashMap;
use sha2::{Digest, Sha256};

use crate::hash_key::HashKey;
use crate::message::{Expiry, is_of_a_trace};
use crate::name::QueueName;
use crate::record::DedupeRow;
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

/// A fingerprint of the content of an enqueue: the same content gives the same number, in every version. The headers that
/// name a trace are no content: each try has a span of its own.
///
/// Half of a SHA-256: with a hash that is not collision-resistant, a caller could get another content's answer. Texts
/// have their length in front and numbers a mark, and the number of headers comes before them, so that no two contents
/// are written alike.
pub(super) fn content(e: &Enqueue) -> u128 {
    let mut h = ContentHash(Sha256::new());
    h.text(&e.body);
    h.text(e.key.as_ref().map_or("", |k| k.as_str()).as_bytes());
    let headers = || e.headers.iter().filter(|(name, _)| !is_of_a_trace(name));
    h.number(Some(headers().count() as u64));
    for (name, value) in headers() {
        h.text(name.as_bytes());
        h.text(value.as_bytes());
    }
    match e.when {
        When::After(ms) => {
            h.number(None);
            h.number(Some(ms));
        }
        When::Seconds(s) => {
            h.number(None);
            h.number(Some(u64::from(s) * 1_000));
        }
        When::At { due_at, past } => {
            h.number(Some(due_at.0));
            h.number(Some(match past {
                Past::Refuse => 0,
                Past::Fire => 1,
                Past::Keep => 2,
            }));
        }
    }
    h.number(Some(match e.if_exists {
        IfExists::Reject => 0,
        IfExists::Keep => 1,
        IfExists::Replace => 2,
    }));
    h.number(e.priority.map(u64::from));
    h.number(e.options.lease_ms);
    h.number(e.options.max_attempts.map(|n| u64::from(n.count())));
    h.number(e.options.backoff.map(|b| b.min_ms));
    h.number(e.options.backoff.map(|b| b.max_ms));
    // Without them the number is that of a version that did not have them.
    if let Some(ms) = e.options.spread_ms {
        h.option("spread", Some(ms));
    }
    match e.options.expiry {
        None => {}
        Some(Expiry::In(ms)) => h.option("expires in", Some(ms)),
        Some(Expiry::At(at)) => h.option("expires at", Some(at.0)),
    }
    if e.begins == InitialState::Dead {
        h.option("dead", None);
    }
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

    /// An option that earlier versions did not have.
    fn option(&mut self, name: &str, value: Option<u64>) {
        self.text(name.as_bytes());
        self.number(value);
    }

    fn end(self) -> u128 {
        let hash = self.0.finalize();
        hash.iter().take(16).rev().fold(0, |number, byte| number << 8 | u128::from(*byte))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::message::Options;
    use crate::name::Key;
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

    /// The halves of two SHA-256, computed by another program from the bytes that `docs/format.md` describes. Story: it
    /// was an xxh3, of which everybody can make two contents with one number.
    #[test]
    fn a_content_has_this_fingerprint() {
        assert_eq!(content(&enqueue()), 0x3e04_d3b7_84f4_9938_5b0a_bcfa_78f5_4ecf);
        let options = Options { spread_ms: Some(7), expiry: Some(Expiry::In(9)), ..Options::default() };
        let full = Enqueue { options, begins: InitialState::Dead, ..enqueue() };
        assert_eq!(content(&full), 0x6123_c50d_9c08_cbbb_dffb_6bd0_d8ba_a68a);
    }

    #[test]
    fn other_contents_have_other_fingerprints() {
        let e = enqueue;
        let options = |options: Options| Enqueue { options, ..e() };
        let headers = |of: &[(&str, &str)]| Enqueue {
            headers: of.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            ..e()
        };
        let all = [
            e(),
            Enqueue { body: "bod".into(), key: Key::new("yk").ok(), ..e() },
            Enqueue { key: None, ..e() },
            headers(&[]),
            headers(&[("ab", "")]),
            headers(&[("a", "b"), ("", "")]),
            headers(&[("a", ""), ("b", "")]),
            Enqueue { when: When::After(1), ..e() },
            Enqueue { when: When::At { due_at: WallMs(1_000), past: Past::Fire }, ..e() },
            Enqueue { if_exists: IfExists::Keep, ..e() },
            Enqueue { priority: Some(1_000), ..e() },
            options(Options { lease_ms: Some(1_000), ..Options::default() }),
            options(Options { spread_ms: Some(1_000), ..Options::default() }),
            options(Options { expiry: Some(Expiry::In(1_000)), ..Options::default() }),
            options(Options { expiry: Some(Expiry::At(WallMs(1_000))), ..Options::default() }),
            Enqueue { begins: InitialState::Dead, ..e() },
        ];
        assert_eq!(all.iter().map(content).collect::<BTreeSet<_>>().len(), all.len());
        let traced = headers(&[("a", "b"), ("traceparent", "00-1-2-01")]);
        assert_eq!(content(&traced), content(&e()), "each try has a span of its own");
    }
}
