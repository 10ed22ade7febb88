//! Keys: however many dead messages had one, its holder is found.

use std::sync::Arc;

use duewheel_core::message::{
    DeadReason, Died, Kind, Life, MessageContent, Options as MessageOptions, Stage,
};
use duewheel_core::record::{Gone, Group, Record, Was};
use duewheel_core::store::conformance::History;
use duewheel_core::store::{Found, Lookups, Store};
use duewheel_core::{Due, EngineMs, Key, MessageId, QueueName, WallMs};

use crate::rig::{Rig, assert_rows, by_hand, figure, work_all};
use duewheel_sim_disk::SimDisk;

/// More than anybody looks at without a reason.
const MANY: u64 = 400;

fn queue() -> QueueName {
    QueueName::new("q").expect("a good name")
}

fn key() -> Key {
    Key::new("k").expect("a good key")
}

fn due() -> Due {
    Due::After(EngineMs(1))
}

fn life(stage: Stage) -> Life {
    Life { stage, ..Life::new(due(), None) }
}

fn was(kind: Kind) -> Was {
    Was { queue: queue(), kind, due: due(), weight: 1, detail: 0, past: 0, unweighed: 0 }
}

fn append(rig: &mut Rig, record: Record) {
    let group = Group {
        first: rig.history.model().applied().next(),
        clock: rig.history.tick(),
        records: vec![record],
    };
    rig.history.adopt(group.clone());
    rig.store.append(&group).expect("append");
}

/// Messages of one key that are dead, all in one run.
fn dead_in_a_run() -> (SimDisk, Rig) {
    let disk = SimDisk::new(1);
    let options =
        duewheel_store_log::Options { journal_records: 2 * MANY, journal_bytes: 1 << 20, ..by_hand() };
    let mut rig = Rig::open(&disk, options, History::new(1));
    for id in (1..=MANY).map(MessageId) {
        let message = Arc::new(MessageContent {
            dedupe_id: None,
            id,
            queue: queue(),
            key: Some(key()),
            body: Default::default(),
            headers: Vec::new(),
            options: MessageOptions::default(),
            enqueued_at: WallMs(id.0),
        });
        let dead = Stage::Dead { reason: DeadReason::Buried, at: Died::at(WallMs(id.0)), token: None };
        append(&mut rig, Record::Put { message, life: life(dead), was: None });
    }
    rig.sync();
    work_all(&rig.store.hands());
    assert!(figure(&rig.store, "runs") >= 1, "{:?}", rig.store.figures());
    (disk, rig)
}

fn found(rig: &mut Rig) -> Vec<(u64, Kind)> {
    let lookups = Lookups { keys: vec![(queue(), key())], ..Lookups::default() };
    let (mut found, mut expected) = (Found::default(), Found::default());
    rig.store.find_many(&lookups, &mut found).expect("find");
    rig.history.model().find_many(&lookups, &mut expected);
    for found in [&mut found, &mut expected] {
        found.rows.sort_by_key(|row| row.message.id);
    }
    assert_eq!(found.rows, expected.rows);
    found.rows.iter().map(|row| (row.message.id.0, row.life.stage.kind())).collect()
}

/// Story: of the dead messages of a key in a run the newest 128 were looked at when something newer might hide some.
/// One behind them that was redriven, and whose change was still in memory, was not seen: its key looked free, and a
/// second message got it.
#[test]
fn redriven_message_keeps_its_key() {
    let (_disk, mut rig) = dead_in_a_run();
    for id in [1, 2, MANY / 2, MANY] {
        let id = MessageId(id);
        append(
            &mut rig,
            Record::Changed { id, life: life(Stage::Waiting { token: None }), was: was(Kind::Dead) },
        );
        assert!(found(&mut rig).contains(&(id.0, Kind::Waiting)), "{id} holds the key");
        append(&mut rig, Record::Removed { id, why: Gone::Cancelled, was: was(Kind::Waiting) });
        assert!(!found(&mut rig).iter().any(|(_, kind)| *kind == Kind::Waiting));
    }
    assert_rows(&mut rig.store, &rig.history, rig.history.model(), "in the end");
}

/// Story: and when the newest 128 were gone, none was found, although older ones were there.
#[test]
fn newest_remaining_dead_are_found() {
    let (_disk, mut rig) = dead_in_a_run();
    for id in (20..=MANY).rev().map(MessageId) {
        append(&mut rig, Record::Removed { id, why: Gone::Expired, was: was(Kind::Dead) });
    }
    let last: Vec<u64> = found(&mut rig).into_iter().map(|(id, _)| id).collect();
    assert_eq!(last, (12..20).collect::<Vec<u64>>());
}
