//! The messages that a job concerns, in parts that each have a record; and when they are due once they are moved.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use duewheel::core::MessageId;
use duewheel::core::engine::{Past, When};
use duewheel::core::name::Key;
use duewheel::core::time::WallMs;
use serde::{Deserialize, Serialize};

use super::action::{BulkAction, BulkMove};

/// Bytes of one message in a part, without its key.
const ENTRY: usize = 22;
/// Bytes of a record that are kept free for what stands before the messages: a position of 1,000 shards fits.
const HEAD: usize = 64 * 1024;

/// The messages that one step of a job's walk has found, and where the next step begins.
///
/// It is created once. A node that repeats the step, because another one has died or was slow, takes what is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobPart {
    pub(super) walk: PartWalk,
    pub(super) entries: Vec<PartEntry>,
}

/// How far a walk has come with a part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PartWalk {
    /// Where the next step begins; `None`: nothing follows.
    pub(super) position: Option<String>,
    /// Messages of this step that a consumer had.
    pub(super) leased: u64,
}

/// One message that a job has met, as it was when the job collected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartEntry {
    pub(super) id: MessageId,
    /// The generation of the message; [`LEASED`] if a consumer had it.
    pub(super) generation: u32,
    /// When it was due, or has died if it was dead, in ms since 1970.
    pub(super) at: u64,
    /// The key of a message that is to move: with it a copy is found when the message is gone.
    pub(super) key: Option<Key>,
}

/// Stands for the generation of a message that a consumer had: it is not changed, also when another walk meets it without
/// a lease. Generations begin at 1.
pub(super) const LEASED: u32 = 0;

impl PartEntry {
    /// Whether the message is to be changed.
    pub(super) fn is_meant(&self) -> bool {
        self.generation != LEASED
    }
}

/// The number of messages of a part whose record has at most this many bytes. With `keys` each may have the longest key.
pub(super) fn entries_within(bytes: usize, keys: bool) -> usize {
    let entry = if keys { ENTRY + Key::MAX } else { ENTRY };
    (bytes.saturating_sub(HEAD.min(bytes / 2)) / entry).clamp(2, crate::limits::BULK_PART)
}

/// The name of a part's record.
pub(super) fn part_name(job: &str, part: u32) -> String {
    format!("{job}/{part}")
}

impl JobPart {
    pub(super) fn bytes(&self) -> Bytes {
        // Its types have text keys and finite numbers only, so this cannot fail.
        let walk = serde_json::to_vec(&self.walk).unwrap_or_default();
        let mut bytes = BytesMut::with_capacity(4 + walk.len() + self.entries.len() * ENTRY);
        bytes.put_u32_le(u32::try_from(walk.len()).unwrap_or(u32::MAX));
        bytes.put_slice(&walk);
        for entry in &self.entries {
            bytes.put_u64_le(entry.id.0);
            bytes.put_u32_le(entry.generation);
            bytes.put_u64_le(entry.at);
            let key = entry.key.as_ref().map_or("", Key::as_str);
            bytes.put_u16_le(u16::try_from(key.len()).unwrap_or(u16::MAX));
            bytes.put_slice(key.as_bytes());
        }
        bytes.freeze()
    }

    /// `None`: it is no part.
    pub(super) fn read(mut bytes: &[u8]) -> Option<JobPart> {
        let head = usize::try_from(bytes.try_get_u32_le().ok()?).ok()?;
        let (walk, mut rest) = bytes.split_at_checked(head)?;
        let walk = serde_json::from_slice(walk).ok()?;
        let mut entries = Vec::with_capacity(rest.len() / ENTRY);
        while rest.has_remaining() {
            let (id, generation) = (MessageId(rest.try_get_u64_le().ok()?), rest.try_get_u32_le().ok()?);
            let (at, length) = (rest.try_get_u64_le().ok()?, rest.try_get_u16_le().ok()?);
            let (key, behind) = rest.split_at_checked(length.into())?;
            let key = if key.is_empty() { None } else { Some(Key::new(str::from_utf8(key).ok()?).ok()?) };
            entries.push(PartEntry { id, generation, at, key });
            rest = behind;
        }
        Some(JobPart { walk, entries })
    }
}

/// When each message of a slice is due, for the actions that move due times. `created` is the beginning of the job.
///
/// Messages that are shifted into the past are due now. Messages of one millisecond are granted in the order of their
/// ids, so the due time is a millisecond later wherever the former order differs from that.
pub(super) fn due_times(action: &BulkAction, created: u64, entries: &[PartEntry], now: u64) -> Vec<When> {
    let instant = |entry: &PartEntry| match action {
        BulkAction::Postpone(BulkMove::Delay(ms)) => created.saturating_add(*ms),
        BulkAction::Postpone(BulkMove::Shift(ms)) => entry.at.saturating_add_signed(*ms),
        // An instant that has passed: the message is fired, whatever its expiry says.
        BulkAction::Cancel
        | BulkAction::Fire
        | BulkAction::Redrive { .. }
        | BulkAction::Purge
        | BulkAction::Restore { .. } => 0,
    };
    let at = |entry| When::At { due_at: WallMs(instant(entry)), past: Past::Fire };
    let mut all: Vec<When> = entries.iter().map(at).collect();
    if let BulkAction::Postpone(BulkMove::Shift(_)) = action {
        let mut past: Vec<usize> = (0..entries.len()).filter(|n| instant(&entries[*n]) < now).collect();
        past.sort_by_key(|n| (entries[*n].at, entries[*n].id));
        let mut later = 0;
        for pair in past.windows(2) {
            later += u64::from(entries[pair[1]].id < entries[pair[0]].id);
            if later > 0 {
                all[pair[1]] = When::After(later);
            }
        }
    }
    all
}

/// The longest delay among these due times, in ms.
pub(super) fn last_delay(all: &[When]) -> Option<u64> {
    let delay = |when: &When| match when {
        When::After(ms) => Some(*ms),
        When::Seconds(_) | When::At { .. } => None,
    };
    all.iter().filter_map(delay).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_comes_back() {
        let key = |n: u64| Key::new(&"ü".repeat(usize::try_from(n * 128).unwrap())).ok();
        let entry = |n: u64| PartEntry { id: MessageId(n), generation: 7, at: u64::MAX - n, key: key(n) };
        for position in [None, Some("5.7_-".to_owned())] {
            let walk = PartWalk { position, leased: 3 };
            let part = JobPart { walk, entries: (0..3).map(entry).collect() };
            let bytes = part.bytes();
            assert_eq!(JobPart::read(&bytes), Some(part));
            for cut in 0..bytes.len() {
                assert_ne!(JobPart::read(&bytes[..cut]).map(|part| part.entries.len()), Some(3));
            }
        }
        let within = |bytes| (entries_within(bytes, false), entries_within(bytes, true));
        let most = crate::limits::BULK_PART;
        assert_eq!([0, 256 << 10, 4 << 20].map(within), [(2, 2), (most, 368), (most, most)]);
    }
}
