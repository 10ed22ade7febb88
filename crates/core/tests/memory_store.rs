//! The memory store keeps the obligations of a store, and a table sorts as it should.

use std::collections::BTreeSet;
use std::sync::Arc;

use duewheel_core::message::Life;
use duewheel_core::record::{Gone, Record};
use duewheel_core::store::conformance::{self, Dice, Fixture, Hook, Space};
use duewheel_core::store::{
    ErrorKind, Load, MemoryDisk, MemoryStore, More, Room, Sequence, StoreError, Table, Waker,
};
use duewheel_core::time::{Due, WallMs};
use duewheel_core::{Lsn, Message, MessageId, QueueName};

#[derive(Default)]
struct Memory(MemoryDisk);

impl Fixture for Memory {
    type Store = MemoryStore;

    fn clear(&mut self) {
        self.0 = MemoryDisk::default();
    }

    fn open(&mut self, waker: Waker) -> Result<MemoryStore, StoreError> {
        Ok(MemoryStore::open(&self.0, waker))
    }

    fn lose_power(&mut self) -> Hook {
        self.0.lose_power();
        Hook::Done
    }

    fn fail(&mut self) -> Hook {
        self.0.fail(StoreError::new(ErrorKind::Unavailable, "the test wants it"));
        Hook::Done
    }

    fn space(&mut self, space: Space) -> Hook {
        self.0.set_room(match space {
            Space::Full => Room::SettleOnly,
            Space::Free => Room::Enough,
        });
        Hook::Done
    }
}

#[test]
fn memory_store_conforms() {
    conformance::run(&mut Memory::default());
}

/// Story: the order was rebuilt by every load after a change, so that a backlog of millions made each load a full sort.
/// Now lists are merged as they come, and must give the same order as one sorted set.
#[test]
fn loads_follow_changes_like_one_sorted_set() {
    let mut dice = Dice::new(7);
    let mut table = Table::default();
    let mut set: BTreeSet<(u64, MessageId)> = BTreeSet::new();
    let mut due = std::collections::BTreeMap::new();
    let mut lsn = 0;
    for round in 0..300 {
        for _ in 0..dice.below(200) {
            lsn += 1;
            let at = 1 + dice.below(5_000);
            let known = MessageId(1 + dice.below(table.next_id()));
            let record = match dice.below(5) {
                0 if due.contains_key(&known) => {
                    set.remove(&(due.remove(&known).unwrap(), known));
                    Record::Removed { id: known, why: Gone::Acked }
                }
                1 if due.contains_key(&known) => {
                    set.remove(&(due.insert(known, at).unwrap(), known));
                    set.insert((at, known));
                    Record::Changed { id: known, life: Life::new(Due::At(WallMs(at)), None) }
                }
                _ => {
                    let id = MessageId(table.next_id());
                    due.insert(id, at);
                    set.insert((at, id));
                    put(id, at)
                }
            };
            table.apply_record(Lsn(lsn), &record);
        }
        if round % 3 == 0 {
            let after = set.iter().nth(usize::try_from(dice.below(set.len() as u64 + 1)).unwrap()).copied();
            let load = Load {
                sequence: Sequence::At,
                queue: None,
                after,
                until: u64::MAX,
                rows: 1 + usize::try_from(dice.below(500)).unwrap(),
                bytes: usize::MAX,
            };
            let rows = load.rows;
            let page = table.load(load);
            let is: Vec<_> = page.rows.iter().map(|r| (r.life.due.raw(), r.message.id)).collect();
            let behind: Vec<_> =
                set.iter().filter(|c| after.is_none_or(|after| **c > after)).copied().collect();
            assert_eq!(is, behind[..rows.min(behind.len())], "round {round}");
            assert_eq!(page.more == More::Yes, behind.len() > rows, "round {round}");
        }
    }
}

fn put(id: MessageId, at: u64) -> Record {
    let message = Message {
        id,
        queue: QueueName::new("q").expect("a good name"),
        key: None,
        body: bytes::Bytes::new(),
        headers: vec![],
        options: Default::default(),
        enqueued_at: WallMs(0),
    };
    Record::Put { message: Arc::new(message), life: Life::new(Due::At(WallMs(at)), None) }
}
