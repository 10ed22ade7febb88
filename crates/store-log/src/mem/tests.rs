//! A memtable over nothing, and one over another, against the model.

use std::sync::Arc;

use duewheel_core::record::Writer;
use duewheel_core::store::conformance::{Dice, History};
use duewheel_core::store::{Table, Which, place_in};

use super::*;
use crate::run::tests::flood::{OLD_SEEDS, another, colliding, colliding_under};
use crate::run::tests::hasher;

/// Pushes a group as the store does.
fn push(mem: &mut Mem, history: &mut History, most: u64) {
    let group = history.group(most);
    for record in &group.records {
        let mut writer = Writer::default();
        writer.record(record);
        mem.push(record, &writer.bytes).unwrap();
    }
    mem.note_clock(group.clock);
}

/// The combined content of two tables.
fn together(old: &Mem, new: &Mem, id: MessageId) -> Option<Row> {
    let older = |patch: Option<Patch>| match (old.told(id), patch) {
        (MemAnswer::Row(mut row), patch) => {
            if let Some(patch) = patch {
                patch.apply(&mut row);
            }
            Some(row).filter(|row| !new.has_purged(id, &row.message.queue))
        }
        (MemAnswer::Patch(_), _) => panic!("{id}: the older table has everything"),
        (MemAnswer::Gone | MemAnswer::Nothing, _) => None,
    };
    match new.told(id) {
        MemAnswer::Row(row) => Some(row),
        MemAnswer::Gone => None,
        MemAnswer::Nothing => older(None),
        MemAnswer::Patch(patch) => older(Some(patch)),
    }
}

fn check(old: &Mem, new: &mut Mem, model: &Table) {
    for id in 1..=model.next_id() + 3 {
        let id = MessageId(id);
        assert_eq!(together(old, new, id).as_ref(), model.row(id).map(|(row, _)| row), "{id}");
        // Edits and replacements give a message another weight; a run has the one that it had before.
        if let (MemAnswer::Row(row), true) = (old.told(id), new.ids().any(|known| known == id.0)) {
            assert_eq!(new.weight_before(id), row.weight() as u64, "{id}");
        }
    }
    new.settle();
    for sequence in Sequence::ALL {
        let mut expected = model.rows();
        expected.retain(|row| place_in(sequence, row).is_some());
        expected.retain(|row| !matches!(new.told(row.message.id), MemAnswer::Nothing));
        expected.sort_by_key(|row| place_in(sequence, row));
        let expected: Vec<_> =
            expected.iter().map(|row| (row.message.id, row.message.queue.clone())).collect();
        let mut scan = new.scan(sequence, &Which::All, None);
        let mut seen = Vec::new();
        let mut last = None;
        while let Some(step) = scan.step(new) {
            let (ScanStep::Here(cursor, _) | ScanStep::Stale(cursor)) = step;
            assert!(last < Some(cursor), "in order, and each once");
            last = Some(cursor);
            if let ScanStep::Here((_, id), queue) = step {
                seen.push((id, queue));
            }
        }
        assert_eq!(seen, expected, "{sequence:?}");
    }
    // The size that it says is the sum over its messages, after purges, too.
    let (mut sum, whole) = (Extent::default(), new.extent());
    for id in new.ids() {
        sum.add(new.extent_of(MessageId(id)).unwrap_or_default());
    }
    assert_eq!((whole.rows, whole.least, whole.again), (sum.rows, sum.least, sum.again));
}

#[test]
fn two_memtables_match_record_model() {
    for seed in 0..30 {
        let mut history = History::new(seed);
        let mut old = Mem::new(hasher(), Lsn(0), (1, 1), None);
        for _ in 0..history.dice().below(60) {
            push(&mut old, &mut history, 9);
        }
        old.settle();
        let mut new = Mem::new(hasher(), old.last(), (history.model().next_id(), 1), old.clock());
        for round in 0..60 {
            push(&mut new, &mut history, 9);
            if round % 10 == 0 {
                check(&old, &mut new, history.model());
            }
        }
        check(&old, &mut new, history.model());
        assert_eq!(new.last(), history.model().applied());
        assert_eq!(new.clock(), history.model().clock());

        // All records come back in order, and memory that was used before makes no difference.
        let mut again = old.start(new.before(), (0, 1), None);
        let mut next = new.before().next();
        new.for_each(|lsn, record| {
            assert_eq!(lsn, next);
            next = next.next();
            let mut writer = Writer::default();
            let record = decode(record);
            writer.record(&record);
            again.push(&record, &writer.bytes).unwrap();
        });
        assert_eq!(again.last(), new.last());
        assert!(again.ids().eq(new.ids()));
        assert_eq!((again.bytes(), again.extent()), (new.bytes(), new.extent()));
    }
}

#[test]
fn keys_and_answers_are_found() {
    for seed in 0..10 {
        let mut history = History::new(seed);
        let mut mem = Mem::new(hasher(), Lsn(0), (1, 1), None);
        for _ in 0..80 {
            push(&mut mem, &mut history, 9);
        }
        let lookups = history.lookups();
        for (queue, key) in &lookups.keys {
            let mut ids = Vec::new();
            mem.find_key(hasher().key(queue, key), (queue, key), &NewerTables::NOTHING, &mut ids);
            ids.retain(|id| matches!(mem.told(*id), MemAnswer::Row(_)));
            ids.sort_unstable();
            ids.dedup();
            let mut expected = history.model().rows();
            expected.retain(|row| row.message.queue == *queue && row.message.key.as_ref() == Some(key));
            assert!(ids.iter().eq(expected.iter().map(|row| &row.message.id)));
        }
        let answers: Vec<DedupeRow> = mem.answers().collect();
        for expected in history.model().answers() {
            let hash = hasher().answer(&expected.queue, &expected.dedupe_id);
            let found = mem.find_answer(hash, &expected.queue, &expected.dedupe_id);
            assert_eq!(found.as_ref(), Some(&expected));
            assert_eq!(answers.iter().filter(|row| **row == expected).count(), 1);
        }
    }
}

/// A key that is taken again and again leaves no residue.
#[test]
fn a_busy_key_takes_one_place() {
    let mut mem = Mem::new(hasher(), Lsn(0), (1, 1), None);
    let queue = QueueName::new("q").unwrap();
    let key = Key::new("k").unwrap();
    let mut dice = Dice::new(1);
    for id in 1..=2_000 {
        let due = Due::from_raw(Class::After, dice.below(100));
        let message = duewheel_core::MessageContent {
            dedupe_id: None,
            id: MessageId(id),
            queue: queue.clone(),
            key: Some(key.clone()),
            body: Bytes::new(),
            headers: Vec::new(),
            options: Default::default(),
            enqueued_at: duewheel_core::WallMs(0),
        };
        let put = Record::Put { message: Arc::new(message), life: Life::new(due, None), was: None };
        let was = duewheel_core::record::Was {
            queue: queue.clone(),
            kind: Kind::Waiting,
            due,
            weight: 1,
            detail: 0,
            past: 0,
            unweighed: 0,
        };
        let removed = Record::Removed { id: MessageId(id), why: duewheel_core::record::Gone::Replaced, was };
        for record in [put, removed] {
            let mut writer = Writer::default();
            writer.record(&record);
            mem.push(&record, &writer.bytes).unwrap();
        }
    }
    assert_eq!(mem.keys.len(), 1);
    assert_eq!(mem.extent(), Extent::default());
}

/// What happens to the messages of one key, and which of them a look-up names.
struct OneKey {
    mem: Mem,
    queue: QueueName,
    key: Key,
}

impl OneKey {
    fn push(&mut self, record: Record) {
        let mut writer = Writer::default();
        writer.record(&record);
        self.mem.push(&record, &writer.bytes).unwrap();
    }

    fn put(&mut self, id: u64, stage: Stage) {
        let message = duewheel_core::MessageContent {
            dedupe_id: None,
            id: MessageId(id),
            queue: self.queue.clone(),
            key: Some(self.key.clone()),
            body: Bytes::new(),
            headers: Vec::new(),
            options: Default::default(),
            enqueued_at: duewheel_core::WallMs(0),
        };
        let life = Life { stage, ..Life::new(Due::from_raw(Class::After, 1), None) };
        self.push(Record::Put { message: Arc::new(message), life, was: None });
    }

    fn was(&self, kind: Kind) -> duewheel_core::record::Was {
        let due = Due::from_raw(Class::After, 1);
        duewheel_core::record::Was {
            queue: self.queue.clone(),
            kind,
            due,
            weight: 1,
            detail: 0,
            past: 0,
            unweighed: 0,
        }
    }

    fn change(&mut self, id: u64, was: Kind, stage: Stage) {
        let life = Life { stage, ..Life::new(Due::from_raw(Class::After, 1), None) };
        self.push(Record::Changed { id: MessageId(id), life, was: self.was(was) });
    }

    fn remove(&mut self, id: u64, was: Kind) {
        let (why, was) = (duewheel_core::record::Gone::Expired, self.was(was));
        self.push(Record::Removed { id: MessageId(id), why, was });
    }

    /// The ids that a look-up names, ascending, and how many it has examined.
    fn find(&self) -> (Vec<u64>, usize) {
        let mut ids = Vec::new();
        let hash = hasher().key(&self.queue, &self.key);
        let looks = self.mem.find_key(hash, (&self.queue, &self.key), &NewerTables::NOTHING, &mut ids);
        let mut ids: Vec<u64> = ids.into_iter().map(|id| id.0).collect();
        ids.sort_unstable();
        (ids, looks)
    }
}

fn dead(at: u64) -> Stage {
    let at = duewheel_core::message::Died::from_raw(at);
    Stage::Dead { reason: duewheel_core::message::DeadReason::Buried, at, token: None }
}

/// Story: 10,000 dead messages of one constant key were compared and looked at one by one for each enqueue with that
/// key.
#[test]
fn crowded_key_lookup_is_cheap() {
    const MANY: u64 = 10_000;
    let (queue, key) = (QueueName::new("q").unwrap(), Key::new("k").unwrap());
    let mut one = OneKey { mem: Mem::new(hasher(), Lsn(0), (1, 1), None), queue, key };
    for id in 1..=MANY {
        one.put(id, Stage::Waiting { token: None });
        let (ids, looks) = one.find();
        assert!(ids.contains(&id) && looks <= 64, "{looks} steps at {id}");
        one.change(id, Kind::Waiting, dead(id));
    }
    let newest: Vec<u64> = (MANY - 7..=MANY).collect();
    assert_eq!(one.find().0, newest);
    // One of the oldest comes back and has the key; the newest go.
    one.change(3, Kind::Dead, Stage::Waiting { token: None });
    for id in (100..=MANY).rev() {
        one.remove(id, Kind::Dead);
        let (_, looks) = one.find();
        assert!(looks <= 64, "{looks} steps after {id} has gone");
    }
    assert_eq!(one.find().0, [&[3][..], &(92..100).collect::<Vec<_>>()].concat());
    let (keep, before) = (vec![MessageId(3), MessageId(95)], MessageId(MANY + 1));
    one.push(Record::Purged { queue: one.queue.clone(), keep: keep.into(), before, purged: 97 });
    assert_eq!(one.find().0, [3, 95]);
    one.put(MANY + 1, dead(1));
    assert_eq!(one.find().0, [3, 95, MANY + 1]);
}

/// A table of a folder with these ids.
fn with_answers(hasher: NameHasher, queue: &QueueName, ids: &[String]) -> Mem {
    let mut mem = Mem::new(hasher, Lsn(0), (1, 1), None);
    for id in ids {
        let record = Record::Deduped(DedupeRow {
            defaults: None,
            queue: queue.clone(),
            dedupe_id: id.as_str().into(),
            content: 1,
            until: duewheel_core::EngineMs(9),
            id: MessageId(1),
            key: None,
            due_at: duewheel_core::WallMs(1),
            generation: 1,
            created: duewheel_core::record::Created::New,
            kept: None,
            position: None,
        });
        let mut writer = Writer::default();
        writer.record(&record);
        mem.push(&record, &writer.bytes).unwrap();
    }
    mem
}

/// The number of answers that are compared byte by byte when each of these ids is looked up.
fn examined(mem: &Mem, queue: &QueueName, ids: &[String]) -> usize {
    let of = |id: &String| {
        let short = short(mem.hasher.answer(queue, id));
        mem.answers.iter_hash(spread(short)).filter(|(known, _)| *known == short).count()
    };
    ids.iter().map(of).sum()
}

#[test]
fn colliding_ids_are_not_compared() {
    let queue = QueueName::new("q").unwrap();
    let ids = colliding(&queue, OLD_SEEDS[1], 2_000);
    let mem = with_answers(hasher(), &queue, &ids);
    assert_eq!(examined(&mem, &queue, &ids), ids.len());
    for id in &ids {
        let found = mem.find_answer(hasher().answer(&queue, id), &queue, id);
        assert_eq!(found.map(|row| row.dedupe_id), Some(id.as_str().into()));
    }
}

#[test]
fn collisions_depend_on_seed() {
    let queue = QueueName::new("q").unwrap();
    let ids = colliding_under(hasher(), &queue);
    assert!(ids.len() >= 4, "a search finds some: {}", ids.len());
    let attacked = with_answers(hasher(), &queue, &ids);
    assert!(examined(&attacked, &queue, &ids) >= 2 * ids.len());
    for seed in 2..5 {
        let mem = with_answers(another(seed), &queue, &ids);
        assert_eq!(examined(&mem, &queue, &ids), ids.len());
    }
}

#[test]
fn colliding_keys_are_not_compared() {
    let queue = QueueName::new("q").unwrap();
    let names = colliding(&queue, OLD_SEEDS[0], 1_000);
    let key = Key::new(&names[0]).unwrap();
    let mut one = OneKey { mem: Mem::new(hasher(), Lsn(0), (1, 1), None), queue, key };
    let mut looks = 0;
    for (id, name) in (1..).zip(&names) {
        one.key = Key::new(name).unwrap();
        one.put(id, Stage::Waiting { token: None });
        let (ids, examined) = one.find();
        assert_eq!(ids, [id]);
        looks += examined;
    }
    assert_eq!(looks, names.len());
}
