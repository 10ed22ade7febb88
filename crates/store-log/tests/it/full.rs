//! A disk that messages have filled: whatever they were, their removal makes room again, without a restart.

use std::sync::Arc;

use bytes::Bytes;
use duewheel_core::id::{LeaseToken, SessionId};
use duewheel_core::message::{Ended, Lease, Life, MessageContent, PastAttempt};
use duewheel_core::record::{Gone, Group, Record, Was};
use duewheel_core::store::conformance::{Dice, History};
use duewheel_core::store::{Capacity, Store};
use duewheel_core::{Due, EngineMs, MessageId, QueueName};
use duewheel_sim_disk::{Plan, SimDisk};
use duewheel_store_log::{Options, Worked};

use crate::rig::{Rig, by_hand, figure};

/// Rounds of background work after which room must have come back.
const ROUNDS: usize = 60;

fn queue(n: u64) -> QueueName {
    QueueName::new(&format!("q{n}")).expect("a good name")
}

fn append(rig: &mut Rig, records: Vec<Record>) {
    let first = rig.history.model().applied().next();
    let group = Group { first, clock: rig.history.tick(), records };
    rig.store.append(&group).unwrap_or_else(|e| panic!("append: {e:?}: {:?}", rig.store.figures()));
    rig.history.adopt(group);
}

fn put(rig: &Rig, n: u64, queue: QueueName, body: usize) -> Record {
    let id = MessageId(rig.history.model().next_id() + n);
    let message = MessageContent {
        dedupe_id: None,
        id,
        queue,
        key: None,
        body: Bytes::from(vec![b'x'; body]),
        headers: Vec::new(),
        options: Default::default(),
        enqueued_at: rig.history.clock().wall,
    };
    let due = Due::After(EngineMs(3_600_000 + id.0));
    Record::Put { message: Arc::new(message), life: Life::new(due, None), was: None }
}

/// One turn of all workers. What they say is of no interest: they try again.
fn turn(rig: &mut Rig) {
    let hands = rig.store.hands();
    let _ = rig.store.room();
    let _ = hands.prepare();
    let _ = hands.flush();
    let _ = hands.merge();
}

/// New messages until there is no room for any.
fn fill(rig: &mut Rig, dice: &mut Dice, body: usize) -> usize {
    let mut puts = 0;
    let mut refused = 0;
    while refused < 20 {
        if rig.store.room() != Capacity::Enough {
            refused += 1;
            turn(rig);
            continue;
        }
        let count = 1 + dice.below((2_600 / (body as u64 + 80)).max(1));
        let name = queue(dice.below(3));
        let records = (0..count).map(|n| put(rig, n, name.clone(), body)).collect();
        append(rig, records);
        puts += usize::try_from(count).expect("a small number");
        if dice.once_in(2) {
            turn(rig);
        }
    }
    puts
}

fn purge(rig: &mut Rig, name: QueueName) {
    let purged = rig.history.model().rows().iter().filter(|row| row.message.queue == name).count();
    let before = MessageId(rig.history.model().next_id());
    append(rig, vec![Record::Purged { queue: name, keep: Vec::new().into(), before, purged: purged as u64 }]);
}

fn was(row: &duewheel_core::message::Row) -> Was {
    Was::of(&row.message, &row.life)
}

#[track_caller]
fn room_comes_back(rig: &mut Rig, what: &str) {
    for _ in 0..ROUNDS {
        if rig.store.room() == Capacity::Enough {
            return;
        }
        turn(rig);
    }
    panic!("{what}: no room: {:?}", rig.store.figures());
}

/// Story: a disk was filled with messages until none was accepted any more, and everything was purged. The flush that
/// was due found no room; it had folded the books in before it failed, which barred merges; and the purge stood in the
/// memtable behind it. The runs, of which nothing counted any more, stayed for ever.
#[test]
fn a_purge_of_everything_makes_room() {
    let mut full = 0;
    for (seed, body) in [(1, 2_400), (2, 2_400), (3, 700), (4, 700), (5, 60), (6, 60), (7, 10)] {
        for free in [120_000, 200_000, 260_001, 333_333] {
            let what = format!("seed {seed}, bodies of {body} bytes, {free} bytes free");
            let disk = SimDisk::new(seed);
            disk.set_free(free);
            let mut rig = Rig::open(&disk, by_hand(), History::new(seed));
            let mut dice = Dice::new(seed);
            for _ in 0..2 {
                full += usize::from(fill(&mut rig, &mut dice, body) > 0);
                for n in 0..3 {
                    purge(&mut rig, queue(n));
                }
                room_comes_back(&mut rig, &what);
            }
            rig.assert_reopens(&disk, by_hand());
        }
    }
    assert!(full > 40, "{full}");
}

/// The same, message by message.
#[test]
fn cancels_of_everything_make_room() {
    for (seed, body) in [(1, 2_400), (2, 700), (3, 60)] {
        for free in [120_000, 200_000, 260_001] {
            let what = format!("seed {seed}, bodies of {body} bytes, {free} bytes free");
            let disk = SimDisk::new(seed);
            disk.set_free(free);
            let mut rig = Rig::open(&disk, by_hand(), History::new(seed));
            let mut dice = Dice::new(seed);
            fill(&mut rig, &mut dice, body);
            let rows = rig.history.model().rows();
            for some in rows.chunks(10) {
                let gone = some.iter().map(|row| Record::Removed {
                    id: row.message.id,
                    why: Gone::Cancelled,
                    was: was(row),
                });
                append(&mut rig, gone.collect());
                turn(&mut rig);
            }
            room_comes_back(&mut rig, &what);
            rig.assert_reopens(&disk, by_hand());
        }
    }
}

/// Story: each run had some large messages, which were purged or cancelled, and as many small ones, which stayed. By the
/// number of its rows most of a run counted, so it was never rewritten; after some rounds the disk was full of large
/// messages that were gone.
#[test]
fn dead_large_messages_free_space() {
    for by_purge in [true, false] {
        for (seed, free) in [(1, 200_000), (2, 260_001), (3, 400_000)] {
            let what = format!("seed {seed}, {free} bytes free, purge {by_purge}");
            let disk = SimDisk::new(seed);
            disk.set_free(free);
            let mut rig = Rig::open(&disk, by_hand(), History::new(seed));
            let mut filled = Vec::new();
            for _ in 0..4 {
                let large = fill_with_large_and_small(&mut rig);
                filled.push(large.len());
                if by_purge {
                    purge(&mut rig, queue(1));
                } else {
                    cancel(&mut rig, &large);
                }
                room_comes_back(&mut rig, &what);
                while rig.store.hands().merge() == Worked::Done {}
            }
            let least = filled.iter().min().expect("rounds");
            assert!(least * 2 >= filled[0], "{what}: {filled:?}: {:?}", rig.store.figures());
            rig.assert_reopens(&disk, by_hand());
        }
    }
}

/// A large message and two small ones with each group, until there is no room; the ids of the large ones.
fn fill_with_large_and_small(rig: &mut Rig) -> Vec<MessageId> {
    let (mut large, mut refused) = (Vec::new(), 0);
    while refused < 20 {
        if rig.store.room() == Capacity::Enough {
            let records =
                vec![put(rig, 0, queue(1), 2_200), put(rig, 1, queue(2), 1), put(rig, 2, queue(2), 1)];
            large.push(MessageId(rig.history.model().next_id()));
            append(rig, records);
        } else {
            refused += 1;
            while rig.store.hands().merge() == Worked::Done {}
        }
        turn(rig);
    }
    large
}

/// Cancels these messages, each with a group of its own: what was removed some time ago is told by a flush.
fn cancel(rig: &mut Rig, ids: &[MessageId]) {
    let rows = rig.history.model().rows();
    for row in rows.iter().filter(|row| ids.contains(&row.message.id)) {
        append(rig, vec![Record::Removed { id: row.message.id, why: Gone::Cancelled, was: was(row) }]);
        turn(rig);
    }
}

/// Story: groups were bounded by a count of records. With large bodies they were many times what the store had agreed
/// to, and the append failed on a disk that was nearly full, which ended the store.
#[test]
fn agreed_group_size_fits_available_room() {
    let agreed = 3 * 1024;
    let (mut taken, mut full) = (0, 0);
    for (seed, bytes) in
        (0..).zip([agreed, agreed - 1, agreed - 7, agreed / 2 + 1, agreed / 2, agreed / 3, 1])
    {
        for messages in [1, 2, 7, 30] {
            for free in [110_000, 117_001, 131_071, 190_000] {
                let disk = SimDisk::new(seed);
                disk.set_free(free);
                let mut rig = Rig::open(&disk, by_hand(), History::new(seed));
                assert_eq!(rig.store.terms().group_bytes, agreed);
                let mut dice = Dice::new(seed + free);
                let mut refused = 0;
                while refused < 5 {
                    if rig.store.room() != Capacity::Enough {
                        refused += 1;
                        full += 1;
                        turn(&mut rig);
                        continue;
                    }
                    let group = rig.history.puts(bytes.max(messages), messages);
                    rig.store.append(&group).unwrap_or_else(|e| {
                        panic!("{messages} of {bytes} bytes, {free} free: {e:?}: {:?}", rig.store.figures())
                    });
                    taken += 1;
                    if dice.once_in(4) {
                        turn(&mut rig);
                    }
                }
                rig.assert_reopens(&disk, by_hand());
            }
        }
    }
    assert!(taken > 1_000 && full > 500, "{taken} {full}");
}

/// Story: with segments smaller than `max_group_bytes` a group of the agreed size got a segment made to its measure,
/// inside the append, and on a disk that was nearly full the append failed, although there was `Capacity::Enough`.
#[test]
fn agreed_size_fits_one_segment() {
    let (mut taken, mut full) = (0, 0);
    for (seed, segment) in (0..).zip([8_192, 12_288, 20_000, 65_536]) {
        let options = Options { segment_bytes: segment, max_group_bytes: 16 << 20, ..by_hand() };
        for free in [8 * segment, 12 * segment + 1, 30 * segment] {
            let disk = SimDisk::new(seed);
            disk.set_free(free + 150_000);
            let mut rig = Rig::open(&disk, options.clone(), History::new(seed));
            let agreed = rig.store.terms().group_bytes;
            let mut refused = 0;
            while refused < 5 {
                if rig.store.room() != Capacity::Enough {
                    refused += 1;
                    full += 1;
                    turn(&mut rig);
                    continue;
                }
                let made =
                    figure(&rig.store, "segments_made_total") + figure(&rig.store, "segments_reused_total");
                let group = rig.history.puts(agreed - taken % 3, 1 + taken % 2);
                rig.store.append(&group).unwrap_or_else(|e| panic!("{segment}, {free} free: {e:?}"));
                let now =
                    figure(&rig.store, "segments_made_total") + figure(&rig.store, "segments_reused_total");
                assert_eq!(now, made, "a segment of {segment} bytes was made inside an append of {agreed}");
                taken += 1;
                if taken % 4 == 0 {
                    turn(&mut rig);
                }
            }
            rig.assert_reopens(&disk, options.clone());
        }
    }
    assert!(taken > 20 && full >= 60, "{taken} {full}");
}

fn changed(row: &duewheel_core::message::Row) -> Record {
    let due = Due::After(EngineMs(7_200_000 + row.message.id.0));
    let life = Life { due, generation: row.life.generation + 1, ..row.life.clone() };
    Record::Changed { id: row.message.id, life, was: was(row) }
}

/// Puts that are in runs by the time that it returns.
fn cold(rig: &mut Rig, count: usize, body: usize) {
    for _ in 0..count {
        let record = put(rig, 0, queue(1), body);
        append(rig, vec![record]);
        turn(rig);
    }
    let hands = rig.store.hands();
    while figure(&rig.store, "run_messages_live") < count as u64 / 2 {
        let record = put(rig, 0, queue(2), 900);
        append(rig, vec![record]);
        turn(rig);
    }
    while hands.flush() == Worked::Done {}
}

/// Story: a change of a message that is in a run is a record of some bytes, and its flush writes the whole body again;
/// nothing reckoned with that. Messages that were cold and large were postponed until no flush could ever be written.
#[test]
fn cold_changes_cannot_exceed_room() {
    let (mut bounded, mut changes) = (0, 0);
    for seed in 1..6 {
        let disk = SimDisk::new(seed);
        disk.set_free(600_000);
        let mut rig = Rig::open(&disk, by_hand(), History::new(seed));
        cold(&mut rig, 80, 2_400);
        disk.set_free(30_000 + 7_000 * seed);
        turn(&mut rig);
        // Everything is changed again and again, as long as the store takes changes.
        for row in rig.history.model().rows().iter().cycle().take(600) {
            turn(&mut rig);
            match rig.store.room() {
                Capacity::RemoveOnly => bounded += 1,
                _ => {
                    let row = rig.history.model().row(row.message.id).expect("it is there").0.clone();
                    append(&mut rig, vec![changed(&row)]);
                    changes += 1;
                }
            }
        }
        for row in rig.history.model().rows() {
            append(&mut rig, vec![Record::Removed { id: row.message.id, why: Gone::Acked, was: was(&row) }]);
            turn(&mut rig);
        }
        room_comes_back(&mut rig, &format!("seed {seed}"));
        rig.assert_reopens(&disk, by_hand());
    }
    assert!(bounded > 100 && changes > 100, "{bounded} {changes}");
}

/// Somebody else fills the disk: it is noticed without a change of segments, and when he leaves, service goes on.
#[test]
fn external_disk_usage_is_noticed() {
    let disk = SimDisk::new(1);
    disk.set_free(400_000);
    let mut rig = Rig::open(&disk, by_hand(), History::new(1));
    for round in 0..5 {
        room_comes_back(&mut rig, &format!("round {round}"));
        let group = rig.history.puts(300, 1);
        rig.store.append(&group).expect("there is room");
        disk.set_free(1_000 * round);
        assert_eq!(rig.store.hands().prepare(), Worked::Later, "no segment is missing");
        assert_eq!(rig.store.room(), Capacity::SettleOnly);
        let row = rig.history.model().rows().pop().expect("some");
        append(&mut rig, vec![changed(&row)]);
        append(&mut rig, vec![Record::Removed { id: row.message.id, why: Gone::Acked, was: was(&row) }]);
        turn(&mut rig);
        disk.set_free(400_000);
    }
    rig.assert_reopens(&disk, by_hand());
}

/// Story: a flush had folded the books in and then failed; merges waited for its next attempt, for ever on a disk that
/// only they could have emptied. And what it had folded in must not be in what a merge writes meanwhile.
#[test]
fn failed_flush_blocks_no_merge() {
    let (mut failed, mut merged) = (0, 0);
    for call in 0..40 {
        let disk = SimDisk::new(call);
        let mut rig = Rig::open(&disk, by_hand(), History::new(call));
        let hands = rig.store.hands();
        while figure(&rig.store, "runs") < 6 {
            rig.append(9);
            hands.prepare();
            hands.flush();
        }
        while figure(&rig.store, "cuts_total") == figure(&rig.store, "flushes_total") {
            rig.append(9);
            hands.prepare();
        }
        disk.plan(Plan::FullAt(disk.calls() + call));
        if hands.flush() != Worked::Later {
            continue;
        }
        failed += 1;
        disk.plan(Plan::Fine);
        let before = figure(&rig.store, "merges_total");
        while hands.merge() == Worked::Done {}
        merged += u64::from(figure(&rig.store, "merges_total") > before);
        let model = rig.history.model_at(rig.history.model().applied()).expect("the end");
        crate::rig::assert_rows(&mut rig.store, &rig.history, &model, "after the merges");
        if call % 2 == 0 {
            while hands.flush() == Worked::Done {}
        }
        rig.assert_reopens(&disk, by_hand());
    }
    assert!(failed > 3 && merged > 3, "{failed} {merged}");
}

/// A flush of more than a run may hold makes several.
#[test]
fn large_flush_makes_several_runs() {
    for seed in 0..8 {
        let options = Options { run_bytes: 2_000, small_runs: 100, ..by_hand() };
        let disk = SimDisk::new(seed);
        let mut rig = Rig::open(&disk, options.clone(), History::new(seed));
        let hands = rig.store.hands();
        while figure(&rig.store, "flushes_total") < 3 {
            rig.append(9);
            hands.prepare();
            hands.flush();
        }
        assert!(figure(&rig.store, "runs") > 6, "{:?}", rig.store.figures());
        let model = rig.history.model_at(rig.history.model().applied()).expect("the end");
        crate::rig::assert_rows(&mut rig.store, &rig.history, &model, "after the flushes");
        rig.assert_reopens(&disk, options);
    }
}

/// While a flush finds no room, what is in memory has a bound; removals go on behind it.
#[test]
fn memory_is_bounded_without_flush_room() {
    let options = Options { segment_bytes: 200_000, ..by_hand() };
    let disk = SimDisk::new(3);
    let mut rig = Rig::open(&disk, options.clone(), History::new(3));
    let hands = rig.store.hands();
    while hands.prepare() == Worked::Done {}
    let records: Vec<Record> = (0..40).map(|n| put(&rig, n, queue(1), 400)).collect();
    append(&mut rig, records);
    disk.set_free(2_000);
    while rig.store.room() != Capacity::RemoveOnly {
        let row = rig.history.model().rows().pop().expect("some");
        append(&mut rig, vec![changed(&row)]);
        turn(&mut rig);
        assert!(figure(&rig.store, "memory_records") < 1_000, "{:?}", rig.store.figures());
    }
    for row in rig.history.model().rows() {
        append(&mut rig, vec![Record::Removed { id: row.message.id, why: Gone::Acked, was: was(&row) }]);
    }
    disk.set_free(2_000);
    for _ in 0..ROUNDS {
        turn(&mut rig);
    }
    assert!(figure(&rig.store, "memory_records") < 100, "{:?}", rig.store.figures());
    disk.set_free(900_000);
    rig.assert_reopens(&disk, options);
}

/// Story: a manifest that found no room took the blocks that were kept aside, and the store went on counting on them:
/// it said that there was room for a state file of which nobody kept any.
#[test]
fn manifest_use_reduces_counted_reserve() {
    let mut taken = 0;
    for n in 1..60 {
        let disk = SimDisk::new(n);
        let mut rig = Rig::open(&disk, by_hand(), History::new(1));
        let hands = rig.store.hands();
        while hands.prepare() == Worked::Done {}
        assert!(hands.reserved() > 0 && disk.names("").iter().any(|name| name == "RESERVE"));
        while rig.store.figures().iter().all(|(name, n)| *name != "cuts_total" || *n == 0)
            && rig.history.model().applied().0 < 400
        {
            rig.append(9);
        }
        rig.sync();
        disk.plan(Plan::FullAt(disk.calls() + n));
        let _ = hands.flush();
        let is_there = disk.names("").iter().any(|name| name == "RESERVE");
        assert!(is_there || hands.reserved() == 0, "{} bytes are counted on at call {n}", hands.reserved());
        taken += u64::from(!is_there);
    }
    assert!(taken > 0, "no call of a flush took it");
}

/// Story: each start on a full disk took a prepared segment. When there was none left, the store did not open, and nobody
/// could remove anything.
#[test]
fn full_disk_survives_restarts() {
    let options = Options { segment_bytes: 200_000, ..by_hand() };
    for is_clean in [true, false] {
        let disk = SimDisk::new(7);
        let mut rig = Rig::open(&disk, options.clone(), History::new(7));
        let hands = rig.store.hands();
        while hands.prepare() == Worked::Done {}
        let records: Vec<Record> = (0..100).map(|n| put(&rig, n, queue(1), 400)).collect();
        append(&mut rig, records);
        disk.set_free(8_000);
        for round in 0..40 {
            let row = rig.history.model().rows().pop().expect("some");
            append(&mut rig, vec![Record::Removed { id: row.message.id, why: Gone::Acked, was: was(&row) }]);
            turn(&mut rig);
            let Rig { mut store, history, .. } = rig;
            if is_clean {
                let clock = history.clock();
                store.close(clock).unwrap_or_else(|e| panic!("close {round}: {e:?}"));
            }
            drop(store);
            rig = Rig::open(&disk, options.clone(), history);
            rig.assert_is(&format!("clean: {is_clean}, start {round}"));
            assert!(disk.names("journal").len() < 8, "{:?}", disk.names("journal"));
        }
        disk.set_free(900_000);
        rig.assert_reopens(&disk, options.clone());
    }
}

/// Story: the reserve left out the history of a message that was granted again, so that new messages were accepted until
/// no flush fitted.
#[test]
fn reserve_covers_past_attempts() {
    for cuts in [false, true] {
        let disk = SimDisk::new(9);
        let options = Options { segment_bytes: 300_000, journal_bytes: 200_000, ..by_hand() };
        let mut rig = Rig::open(&disk, options, History::new(9));
        let flush = |rig: &mut Rig| {
            let before = figure(&rig.store, "flushes_total");
            while figure(&rig.store, "flushes_total") == before {
                let record = put(rig, 0, queue(2), 900);
                append(rig, vec![record]);
                turn(rig);
            }
            assert_eq!(figure(&rig.store, "flushes_over_reserve_total"), 0, "cuts: {cuts}");
        };
        for _ in 0..40 {
            let record = put(&rig, 0, queue(1), 40);
            append(&mut rig, vec![record]);
        }
        for row in rig.history.model().rows() {
            let past = |attempt| PastAttempt {
                attempt,
                granted_at: rig.history.clock().wall,
                ended_at: rig.history.clock().wall,
                how: Ended::Nacked,
                note: "n".repeat(250).into(),
            };
            let life = Life { history: (1..=8).map(past).collect(), attempt: 8, ..row.life.clone() };
            append(&mut rig, vec![Record::Changed { id: row.message.id, life, was: was(&row) }]);
        }
        if cuts {
            flush(&mut rig);
        }
        for row in rig.history.model().rows().into_iter().filter(|row| row.life.attempt > 0) {
            let token = LeaseToken { epoch: rig.recovered.epoch, counter: row.message.id.0 };
            let clock = rig.history.clock();
            let until = EngineMs(clock.engine.0 + 30_000);
            let lease = Lease { token, until, session: SessionId::NONE, granted_at: clock.wall };
            append(&mut rig, vec![Record::Granted { id: row.message.id, attempt: 9, lease, was: was(&row) }]);
        }
        flush(&mut rig);
    }
}
