//! Names that callers can make to share a hash, and what these cost.
//!
//! Story: keys and dedupe ids were hashed by xxh3 with seeds that everybody could read. Ten thousand ids with one hash
//! took 42 s, in which nothing else of the shard was answered.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::*;

/// The seeds of earlier builds: those of keys and of dedupe ids.
pub(crate) const OLD_SEEDS: [u64; 2] = [u64::from_le_bytes(*b"duewheel"), u64::from_le_bytes(*b"answers.")];

/// Other folders than the one of [`hasher`].
pub(crate) fn another(seed: u64) -> NameHasher {
    NameHasher::new(HashKey::seeded(seed))
}

/// Names of eight letters with equal upper 40 bits of their xxh3: the function is computed backwards.
pub(crate) fn colliding(queue: &QueueName, old_seed: u64, count: usize) -> Vec<String> {
    let seed = xxh3_64_with_seed(queue.as_str().as_bytes(), old_seed);
    let lower = u32::try_from(seed & 0xffff_ffff).unwrap();
    let seed = seed ^ u64::from(lower.swap_bytes()) << 32;
    let flip = (0x1cad_21f7_2c81_017c_u64 ^ 0xdb97_9083_e96d_d4de).wrapping_sub(seed);
    let name = |hash: u64| {
        let bytes = (before_mixing(hash) ^ flip).rotate_left(32).to_le_bytes();
        let is_text = bytes.iter().all(u8::is_ascii_graphic);
        is_text.then(|| String::from_utf8(bytes.to_vec()).unwrap())
    };
    let names: Vec<String> = (0..1 << 24).filter_map(|n| name(0x00c0_ffee << 32 | n)).take(count).collect();
    let seed = xxh3_64_with_seed(queue.as_str().as_bytes(), old_seed);
    assert_eq!(names.len(), count);
    assert!(names.iter().all(|name| xxh3_64_with_seed(name.as_bytes(), seed) >> 24 == 0x00c0_ffee << 8));
    names
}

/// The end of xxh3 for eight bytes, backwards.
fn before_mixing(hash: u64) -> u64 {
    // The inverse of the multiplier 0x9fb2_1c65_1e98_df25, by Newton's method.
    let times = 0x9fb2_1c65_1e98_df25_u64;
    let inverse = (0..6).fold(times, |x, _| x.wrapping_mul(2u64.wrapping_sub(times.wrapping_mul(x))));
    let h = (hash ^ hash >> 28 ^ hash >> 56).wrapping_mul(inverse);
    let h = (h ^ ((h >> 35) + 8)).wrapping_mul(inverse);
    // The step h ^ rotl(h, 49) ^ rotl(h, 24) is undone by doing it 63 times: 64 times change nothing.
    (0..6).fold(h, |h, power| h ^ h.rotate_left(49 << power & 63) ^ h.rotate_left(24 << power & 63))
}

/// Ids that share 32 bits of their hashes with another one in a folder of which the seed is known, by search.
pub(crate) fn colliding_under(known: NameHasher, queue: &QueueName) -> Vec<String> {
    let mut ids: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    let id = |n: u32| format!("{n:x}");
    let of = known.queue(queue);
    for n in 0..1 << 18 {
        ids.entry(of.answer(&id(n)) >> 32).or_default().push(n);
    }
    ids.into_values().filter(|same| same.len() > 1).flatten().map(id).collect()
}

#[test]
fn colliding_ids_share_no_run_entries() {
    let mut model = Model::default();
    for id in colliding(&queue(0), OLD_SEEDS[1], 400) {
        model.answers.push(DedupeRow { dedupe_id: id.into(), ..answer(0, "", 9) });
    }
    let (disk, entry) = written(&model, Shape::default());
    let run = open(&disk, &entry);
    for answer in &model.answers {
        let before = disk.reads();
        let hash = hasher().answer(&queue(0), &answer.dedupe_id);
        let found = run.find_answer(hash, &queue(0), &answer.dedupe_id, Blocking::Allowed).unwrap();
        assert_eq!(found.as_ref(), Some(answer));
        // A leaf of the index, perhaps the next one, and the block of the answer.
        assert!(disk.reads() - before <= 3, "{} reads", disk.reads() - before);
    }
}

/// The index of another folder's run finds nothing, and says so as damage.
#[test]
fn another_seed_does_not_verify() {
    let mut model = Model::default();
    model
        .rows
        .insert(MessageId(1), row(1, 0, Due::At(WallMs(1)), Stage::Waiting { token: None }, Some("k"), 1));
    let (disk, entry) = written(&model, Shape::default());
    assert!(verify(&*disk, &entry, hasher()).is_ok());
    assert!(matches!(verify(&*disk, &entry, another(2)), Err(ReadFault::Damaged(_))));
}
