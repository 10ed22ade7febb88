//! Remembered answers in the log store: forgotten ones free their space, and stay forgotten.

use duewheel_core::answers::AnswerPosition;
use duewheel_core::record::{ClockPair, Created, DedupeRow, Group, Record};
use duewheel_core::store::{Found, Lookups, Store};
use duewheel_core::{EngineMs, Lsn, MessageId, QueueName, WallMs};
use duewheel_sim_disk::SimDisk;
use duewheel_store_log::{LogStore, Options};

use crate::rig::{by_hand, figure, open, work_all};

const FLOOD: u64 = 5_000;

fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a good name")
}

pub(crate) fn answer(name: &str, nth: u64) -> DedupeRow {
    DedupeRow {
        defaults: None,
        queue: queue(name),
        dedupe_id: format!("{nth:0>250}").into(),
        content: u128::from(nth) << 70,
        until: EngineMs(1 << 40),
        id: MessageId(1),
        key: None,
        due_at: WallMs(1),
        generation: 1,
        created: Created::New,
        kept: None,
        position: Some(AnswerPosition { nth: Lsn(nth), at: EngineMs(nth) }),
    }
}

/// Appends a group behind all others.
pub(crate) fn append(store: &mut LogStore, next: &mut u64, records: Vec<Record>) {
    let clock = ClockPair { engine: EngineMs(*next), wall: WallMs(*next) };
    let group = Group { first: Lsn(*next), clock, records };
    *next = group.last().0 + 1;
    store.append(&group).expect("append");
}

fn finds(store: &mut LogStore, row: &DedupeRow) -> bool {
    let answers = vec![(row.queue.clone(), row.dedupe_id.clone())];
    let mut found = Found::default();
    store.find_many(&Lookups { answers, ..Lookups::default() }, &mut found).expect("find");
    found.answers == [row.clone()]
}

/// Fills a store with the answers of one queue and a few of another; returns the next position.
fn flooded(store: &mut LogStore) -> u64 {
    let (hands, mut next) = (store.hands(), 1);
    while next <= FLOOD {
        let name = if next % 500 == 0 { "quiet" } else { "flood" };
        let row = answer(name, next);
        append(store, &mut next, vec![Record::Deduped(row)]);
        if next % 10 == 0 {
            work_all(&hands);
        }
    }
    next
}

fn run_bytes(store: &LogStore) -> u64 {
    figure(store, "run_bytes")
}

/// Story: a purge, an empty window and a restart freed nothing of a disk that was full of remembered answers.
#[test]
fn forgotten_answers_free_their_space() {
    let disk = SimDisk::new(1);
    let options = || Options { journal_bytes: 0, ..by_hand() };
    let mut store = open(&disk, options()).expect("open");
    let mut next = flooded(&mut store);
    let full = run_bytes(&store);
    assert!(full > FLOOD * 250, "{full}");
    let upto = Lsn(next - 1);
    append(&mut store, &mut next, vec![Record::AnswersForgotten { queue: queue("flood"), upto }]);
    for _ in 0..40 {
        let row = answer("quiet", next);
        append(&mut store, &mut next, vec![Record::Deduped(row)]);
        work_all(&store.hands());
    }
    assert!(run_bytes(&store) < full / 10, "{} of {full}", run_bytes(&store));
    for reopened in [false, true] {
        if reopened {
            drop(store);
            store = open(&disk, options()).expect("open");
        }
        for nth in (500..=FLOOD).step_by(500) {
            assert!(finds(&mut store, &answer("quiet", nth)), "{nth}");
        }
        assert!(!finds(&mut store, &answer("flood", 1)) && !finds(&mut store, &answer("flood", 3_001)));
    }
    let recovered = store.recovered().queues;
    let logs: Vec<(&str, u64)> =
        recovered.iter().map(|row| (row.name.as_str(), row.answers.count())).collect();
    assert_eq!(logs, [("quiet", 50)]);
}

#[test]
fn answer_log_survives_crash() {
    let disk = SimDisk::new(2);
    let mut store = open(&disk, by_hand()).expect("open");
    let mut next = flooded(&mut store);
    let upto = Lsn(1_000);
    append(&mut store, &mut next, vec![Record::AnswersForgotten { queue: queue("flood"), upto }]);
    drop(store);
    let mut store = open(&disk, by_hand()).expect("open");
    let recovered = store.recovered().queues;
    let log = &recovered.iter().find(|row| row.name == queue("flood")).expect("the queue").answers;
    assert!(!log.remembers(Lsn(1_000)) && log.remembers(Lsn(1_001)));
    assert!((FLOOD - 1_010..=FLOOD - 800).contains(&log.count()), "{}", log.count());
}
