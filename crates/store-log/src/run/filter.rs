//! Hashes of keys and dedupe ids, and the filter over them.
//!
//! The filter excludes keys that a run does not have: "no" is always right, "perhaps" is wrong in one of 65,536 cases.
//!
//! Sixteen bits, because every run is asked about every new key: with twenty runs, eight bits would cost a read for
//! each twelfth key.
//!
//! A binary fuse filter (Graf and Lemire 2022) over short hashes, in parts by their upper bits, so that a part is built
//! in little memory. Its bytes are used as they were read.
//!
//! | at | bytes | |
//! |---|---|---|
//! | 0 | 8 | number of upper bits of a short hash that select the part, *b* |
//! | 8 | 28 × 2^*b* | of each part: seed (8), segment length, its mask, segments' length (4 each), start (8) of its fingerprints |
//! | … | | fingerprints, two bytes each |

use std::fmt;

use duewheel_core::hash_key::HashKey;
use duewheel_core::{Key, QueueName};
use xorf::{BinaryFuse16, BinaryFuse16Ref, DmaSerializable, Filter as _, FilterRef as _};

use crate::format::{u32_at, u64_at};

/// Number of bits of a short hash.
const BITS: u32 = 40;
/// Approximate number of keys of a part.
const PART: u64 = 200_000;
const DESCRIPTOR: usize = BinaryFuse16::DESCRIPTOR_LEN;
const ENTRY: usize = DESCRIPTOR + 8;

/// Builds a filter from short hashes in ascending order.
#[derive(Debug)]
pub(crate) struct FilterWriter {
    bits: u32,
    table: Vec<u8>,
    fingerprints: Vec<u8>,
    part: u64,
    keys: Vec<u64>,
}

/// A filter as it is stored in a run.
#[derive(Debug)]
pub(crate) struct Filter {
    /// The block with its head.
    bytes: Vec<u8>,
    from: usize,
    bits: u32,
}

/// A part of a filter.
enum FilterPart<'a> {
    /// There are no keys of this part.
    Nothing,
    /// There may be every key of this part.
    All,
    Keys(BinaryFuse16Ref<'a>),
}

impl FilterPart<'_> {
    #[inline]
    fn may_have(&self, hash: u64) -> bool {
        match self {
            FilterPart::Nothing => false,
            FilterPart::All => true,
            FilterPart::Keys(keys) => keys.contains(&hash),
        }
    }
}

impl FilterWriter {
    /// A writer for about this many keys.
    pub(crate) fn new(keys: u64) -> Self {
        let parts = keys.div_ceil(PART).max(1).next_power_of_two();
        FilterWriter {
            bits: parts.trailing_zeros().min(16),
            table: Vec::new(),
            fingerprints: Vec::new(),
            part: 0,
            keys: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, hash: u64) {
        let part = part(hash, self.bits);
        while self.part < part {
            self.close();
        }
        if self.keys.last() != Some(&hash) {
            self.keys.push(hash);
        }
    }

    pub(crate) fn write(mut self, out: &mut Vec<u8>) -> u32 {
        while self.part < 1 << self.bits {
            self.close();
        }
        out.extend_from_slice(&u64::from(self.bits).to_le_bytes());
        out.extend_from_slice(&self.table);
        out.extend_from_slice(&self.fingerprints);
        1 << self.bits
    }

    fn close(&mut self) {
        let mut descriptor = [0; DESCRIPTOR];
        let start = self.fingerprints.len() as u64;
        if !self.keys.is_empty() {
            match BinaryFuse16::try_from(&self.keys) {
                Ok(filter) => {
                    filter.dma_copy_descriptor_to(&mut descriptor);
                    self.fingerprints.extend_from_slice(filter.dma_fingerprints());
                }
                // Keys that defeat every seed: this part says "perhaps" to all.
                Err(_) => descriptor[..8].copy_from_slice(&u64::MAX.to_le_bytes()),
            }
        }
        self.table.extend_from_slice(&descriptor);
        self.table.extend_from_slice(&start.to_le_bytes());
        self.keys.clear();
        self.part += 1;
    }
}

impl Filter {
    /// Takes a block's bytes, of which the payload starts at `from`, and checks that no look-up can leave them.
    pub(crate) fn read(bytes: Vec<u8>, from: usize, parts: u32) -> Option<Self> {
        let payload = bytes.get(from..)?;
        if payload.len() < 8
            || !parts.is_power_of_two()
            || u64_at(payload, 0) != u64::from(parts.trailing_zeros())
        {
            return None;
        }
        let (bytes, from) = aligned(bytes, from);
        let filter = Filter { bits: parts.trailing_zeros(), bytes, from };
        if filter.bits > BITS || filter.payload().len() < filter.fingerprints_at() {
            return None;
        }
        let mut start = 0;
        for part in 0..parts as usize {
            let entry = filter.entry(part);
            let length = filter.end(part).checked_sub(start)?;
            let segment = u64::from(u32_at(entry, 8));
            let (mask, segments) = (u64::from(u32_at(entry, 12)), u64::from(u32_at(entry, 16)));
            let fits = segment == 0 && mask == 0 && segments == 0 && length == 0
                || segment.is_power_of_two()
                    && mask == segment - 1
                    && segments > 0
                    && segments.is_multiple_of(segment)
                    && 2 * (segments + 2 * segment) == length;
            if u64_at(entry, DESCRIPTOR) != start || !fits {
                return None;
            }
            start += length;
        }
        Some(filter)
    }

    /// Whether the run may have a key with this short hash.
    #[inline]
    pub(crate) fn may_have(&self, hash: u64) -> bool {
        usize::try_from(part(hash, self.bits)).map_or(true, |part| self.part(part).may_have(hash))
    }

    /// Calls `hit` with the position of each short hash of which the run may have a key. Between two probes there is
    /// little to compute, so that the processor waits for the memory of many at a time.
    pub(crate) fn probe(&self, hashes: impl ExactSizeIterator<Item = u64>, mut hit: impl FnMut(usize)) {
        let parts = 1 << self.bits;
        // To read the heads of all parts pays only if there are fewer of them.
        let parts: Vec<FilterPart<'_>> =
            if hashes.len() <= parts { Vec::new() } else { (0..parts).map(|part| self.part(part)).collect() };
        for (i, hash) in hashes.enumerate() {
            let known = usize::try_from(part(hash, self.bits)).ok().and_then(|part| parts.get(part));
            if known.map_or_else(|| self.may_have(hash), |part| part.may_have(hash)) {
                hit(i);
            }
        }
    }

    fn part(&self, part: usize) -> FilterPart<'_> {
        let entry = self.entry(part);
        if u32_at(entry, 8) == 0 {
            return if u64_at(entry, 0) == u64::MAX { FilterPart::All } else { FilterPart::Nothing };
        }
        let from = self.fingerprints_at();
        let (Ok(start), Ok(end)) =
            (usize::try_from(u64_at(entry, DESCRIPTOR)), usize::try_from(self.end(part)))
        else {
            return FilterPart::All;
        };
        let fingerprints = &self.payload()[from + start..from + end];
        FilterPart::Keys(BinaryFuse16Ref::from_dma(&entry[..DESCRIPTOR], fingerprints))
    }

    fn payload(&self) -> &[u8] {
        &self.bytes[self.from..]
    }

    fn entry(&self, part: usize) -> &[u8] {
        &self.payload()[8 + part * ENTRY..8 + (part + 1) * ENTRY]
    }

    fn fingerprints_at(&self) -> usize {
        8 + (ENTRY << self.bits)
    }

    /// The end of the fingerprints of a part.
    fn end(&self, part: usize) -> u64 {
        if part + 1 < 1 << self.bits {
            u64_at(self.entry(part + 1), DESCRIPTOR)
        } else {
            (self.payload().len() - self.fingerprints_at()) as u64
        }
    }
}

/// Moves bytes to an even address: fingerprints have two bytes. Everything before them has an even length.
fn aligned(bytes: Vec<u8>, from: usize) -> (Vec<u8>, usize) {
    let is_even = |bytes: &[u8]| bytes.as_ptr().align_offset(2) == 0;
    if is_even(&bytes[from..]) {
        return (bytes, from);
    }
    let mut moved = Vec::with_capacity(bytes.len() + 1);
    let pad = usize::from(is_even(&moved) != from.is_multiple_of(2));
    moved.resize(pad, 0);
    moved.extend_from_slice(&bytes);
    (moved, from + pad)
}

/// The part of a short hash.
fn part(hash: u64, bits: u32) -> u64 {
    hash >> (BITS - bits)
}

// The hashes by which keys and dedupe ids are found, in memory and in runs. They are stored on the disk: the function
// never changes, and the seed is that of the data folder.
//
// Callers choose keys and ids. Under a hash that they know they could make thousands that share one, each of which
// every look-up would examine; so each folder draws a secret seed (see [`Manifest`](crate::manifest::Manifest)).

/// The hashes of one data folder.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct NameHasher {
    keys: HashKey,
    answers: HashKey,
}

/// The hashes of one queue's keys and dedupe ids: those of another queue are unrelated.
#[derive(Clone, Copy)]
pub(crate) struct QueueHash {
    keys: HashKey,
    answers: HashKey,
}

impl NameHasher {
    /// The hashes under a folder's seed. Those of keys and of dedupe ids are unrelated.
    pub(crate) fn new(seed: HashKey) -> Self {
        NameHasher { keys: seed.derive(b"keys"), answers: seed.derive(b"answers") }
    }

    pub(crate) fn queue(&self, queue: &QueueName) -> QueueHash {
        let name = queue.as_str().as_bytes();
        QueueHash { keys: self.keys.derive(name), answers: self.answers.derive(name) }
    }

    /// The hash of a queue's name.
    pub(crate) fn name(&self, queue: &QueueName) -> u64 {
        self.keys.hash(queue.as_str().as_bytes())
    }

    /// The hash of a message's key.
    pub(crate) fn key(&self, queue: &QueueName, key: &Key) -> u64 {
        self.keys.derive(queue.as_str().as_bytes()).hash(key.as_str().as_bytes())
    }

    /// The hash of a dedupe id.
    pub(crate) fn answer(&self, queue: &QueueName, dedupe_id: &str) -> u64 {
        self.answers.derive(queue.as_str().as_bytes()).hash(dedupe_id.as_bytes())
    }
}

impl QueueHash {
    /// The hash of a message's key in this queue.
    pub(crate) fn key(&self, key: &[u8]) -> u64 {
        self.keys.hash(key)
    }

    /// The hash of a dedupe id in this queue.
    pub(crate) fn answer(&self, dedupe_id: &str) -> u64 {
        self.answers.hash(dedupe_id.as_bytes())
    }
}

impl fmt::Debug for NameHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NameHasher(..)")
    }
}

impl fmt::Debug for QueueHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QueueHash(..)")
    }
}

/// The part of a hash that an index and the filter keep: its upper 40 bits.
pub(crate) fn short(hash: u64) -> u64 {
    hash >> 24
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Short hashes, ascending.
    fn hashes(count: u64) -> Vec<u64> {
        let mut hashes: Vec<u64> = (0..count).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24).collect();
        hashes.sort_unstable();
        hashes
    }

    fn filter(keys: &[u64], parts_of: u64) -> Filter {
        let mut writer = FilterWriter::new(parts_of);
        keys.iter().for_each(|key| writer.push(*key));
        let mut bytes = Vec::new();
        let parts = writer.write(&mut bytes);
        Filter::read(bytes, 0, parts).expect("as it was written")
    }

    /// No seed was found for the keys of the part.
    #[test]
    fn filterless_part_may_have_every_key() {
        let mut bytes = 0u64.to_le_bytes().to_vec();
        bytes.extend_from_slice(&u64::MAX.to_le_bytes());
        bytes.resize(8 + ENTRY, 0);
        let filter = Filter::read(bytes, 0, 1).expect("a filter");
        let mut hits = Vec::new();
        filter.probe(hashes(5).into_iter(), |i| hits.push(i));
        assert_eq!(hits, [0, 1, 2, 3, 4]);
        assert!(filter.may_have(7));
    }

    #[test]
    fn batch_probe_equals_single_probes() {
        let all = hashes(4_000);
        let half = |from| all.iter().skip(from).step_by(2).copied().collect::<Vec<u64>>();
        let (even, odd) = (half(0), half(1));
        // One part, and sixteen, some of which have no keys.
        for (keys, parts_of) in [(&even[..], 1), (&even, 16 * PART), (&even[..100], 16 * PART), (&[][..], 1)]
        {
            let filter = filter(keys, parts_of);
            for asked in [&all[..], &odd, &all[..10], &[]] {
                let mut hits = Vec::new();
                filter.probe(asked.iter().copied(), |i| hits.push(i));
                let alone: Vec<usize> = (0..asked.len()).filter(|i| filter.may_have(asked[*i])).collect();
                assert_eq!(hits, alone, "{} of {}", asked.len(), keys.len());
                assert!(keys.iter().all(|key| filter.may_have(*key)));
            }
            let wrong = odd.iter().filter(|key| filter.may_have(**key)).count();
            assert!(wrong < 10, "{wrong} of {} that are not there", odd.len());
        }
    }
}

#[cfg(test)]
mod hash_tests {
    use super::*;

    /// Computed by another program from what `docs/format.md` says.
    #[test]
    fn names_have_these_hashes() {
        let hasher = NameHasher::new(HashKey::new([1, 2]));
        let (queue, key) = (QueueName::new("q").unwrap(), Key::new("k").unwrap());
        assert_eq!(hasher.key(&queue, &key), 0x08b2_db6b_b77b_f55f);
        assert_eq!(hasher.answer(&queue, "k"), 0x6681_3af3_0fc6_1d14);
        assert_eq!(hasher.queue(&queue).key(b"k"), hasher.key(&queue, &key));
        assert_eq!(hasher.queue(&queue).answer("k"), hasher.answer(&queue, "k"));
    }
}
