//! A disk that messages have filled: whatever they were, their removal makes room again, without a restart.

use std::sync::Arc;

use bytes::Bytes;
use duewheel_core::message::{Life, Message};
use duewheel_core::record::{Gone, Group, Record, Was};
use duewheel_core::store::conformance::{Dice, History};
use duewheel_core::store::{Room, Store};
use duewheel_core::{Due, EngineMs, MessageId, QueueName};
use duewheel_sim_disk::SimDisk;

use crate::rig::{Rig, by_hand};

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
    let message = Message {
        id,
        queue,
        key: None,
        body: Bytes::from(vec![b'x'; body]),
        headers: Vec::new().into(),
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
        if rig.store.room() != Room::Enough {
            refused += 1;
            turn(rig);
            continue;
        }
        let count = 1 + dice.below((2_600 / (body as u64 + 80)).max(1));
        let name = queue(dice.below(3));
        let records = (0..count).map(|n| put(rig, n, name.clone(), body)).collect();
        append(rig, records);
        puts += count as usize;
        if dice.once_in(2) {
            turn(rig);
        }
    }
    puts
}

fn purge(rig: &mut Rig, name: QueueName) {
    let purged = rig.history.model().rows().iter().filter(|row| row.message.queue == name).count();
    let before = MessageId(rig.history.model().next_id());
    append(rig, vec![Record::Purged { queue: name, keep: Vec::new(), before, purged: purged as u64 }]);
}

fn was(row: &duewheel_core::message::Row) -> Was {
    Was {
        queue: row.message.queue.clone(),
        kind: row.life.stage.kind(),
        due: row.life.due,
        weight: row.message.weight() as u64,
    }
}

#[track_caller]
fn room_comes_back(rig: &mut Rig, what: &str) {
    for _ in 0..ROUNDS {
        if rig.store.room() == Room::Enough {
            return;
        }
        turn(rig);
    }
    panic!("{what}: no room: {:?}", rig.store.figures());
}

/// Story: a disk was filled with messages until none was accepted any more, and everything was purged. The flush that was due
/// found no room; it had folded the books in before it failed, which barred merges; and the purge stood in the memtable behind
/// it. The runs, of which nothing counted any more, stayed for ever.
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

/// Story: groups were bounded by a count of records. With large bodies they were many times what the store had agreed to, and the
/// append failed on a disk that was nearly full, which ended the store.
#[test]
fn a_group_of_the_agreed_size_is_taken_whenever_there_is_room() {
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
                assert_eq!(rig.store.max_group_bytes(), agreed);
                let mut dice = Dice::new(seed + free);
                let mut refused = 0;
                while refused < 5 {
                    if rig.store.room() != Room::Enough {
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
