//! A drain of an outbox. Its rows enqueue, cancel and postpone messages of few keys, in a queue that no other client uses. When
//! the process or the drain is killed before a batch is confirmed, all rows of the batch come again. After each batch the
//! queue must be as if every row so far had been applied once, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::task::{Context, Poll, Waker};

use duewheel_core::engine::{
    Ask as _, ChangeRefusal, Edit, Enqueue, EnqueueRefusal, IfExists, Op, Page, Reply, RowOutcome,
    RowRefusal, SourceRow, Target, When,
};
use duewheel_core::{Key, QueueName};
use duewheel_judge::rng::Rng;
use duewheel_shard::inbox::{Answers, Pending};

use super::clients::Stage;
use super::{Action, Sim};

/// Behind all other queues.
const QUEUE: &str = "zz-outbox";
const KEYS: [&str; 3] = ["a", "b", "c"];
/// The largest number of rows of a batch.
const BATCH: u64 = 9;
/// Nobody else sees the messages, so they are never due. In ms.
const FAR_MS: u64 = 300_000_000_000;

/// The message of a key: the row that brought it, and its generation.
type KeyState = BTreeMap<&'static str, (u64, u32)>;

#[derive(Clone, Copy, Debug)]
enum Change {
    Enqueue(IfExists),
    Cancel,
    Postpone,
}

#[derive(Debug)]
struct Row {
    id: u64,
    key: &'static str,
    change: Change,
    is_refused: bool,
}

#[derive(Debug)]
pub(super) struct Outbox {
    rng: Rng,
    rows: u64,
    batch: Vec<Row>,
    /// The number of rows of the batch that are decided.
    decided: usize,
    /// Whether the delete of the rows is confirmed to the drain.
    is_deleted: bool,
    asked: Option<(usize, Pending)>,
    /// Whether there is none, so that nothing but time wakes a shard without other clients.
    is_absent: bool,
    messages: KeyState,
    /// Rows that were recorded and came again.
    replayed: u64,
}

impl Outbox {
    pub(super) fn new(seed: u64) -> Self {
        Outbox {
            rng: Rng::new(seed ^ 0x00b0_0000_0000_0000),
            rows: 0,
            batch: Vec::new(),
            decided: 0,
            is_deleted: false,
            asked: None,
            is_absent: !seed.is_multiple_of(2),
            messages: KeyState::new(),
            replayed: 0,
        }
    }

    /// Whether a batch is not confirmed.
    pub(super) fn is_open(&self) -> bool {
        !self.batch.is_empty()
    }

    /// The number of messages behind the last batch.
    pub(super) fn messages(&self) -> u64 {
        self.messages.len() as u64
    }

    pub(super) fn replayed(&self) -> u64 {
        self.replayed
    }

    /// The process is gone: rows that are not deleted come again. Returns whether something was asked for.
    pub(super) fn forget(&mut self) -> bool {
        self.decided = 0;
        self.asked.take().is_some()
    }

    /// Draws the next batch, and what it leaves.
    fn draw(&mut self) {
        for _ in 0..self.rng.range(1, BATCH) {
            self.rows += 1;
            let (id, key) = (self.rows, *self.rng.pick(&KEYS).unwrap_or(&KEYS[0]));
            let change = match self.rng.below(10) {
                0..=1 => Change::Enqueue(IfExists::Reject),
                2..=3 => Change::Enqueue(IfExists::Keep),
                4..=5 => Change::Enqueue(IfExists::Replace),
                6..=8 => Change::Cancel,
                _ => Change::Postpone,
            };
            let held = self.messages.get(key).copied();
            let mut is_refused = false;
            match (change, held) {
                (Change::Enqueue(_), None) => drop(self.messages.insert(key, (id, 1))),
                (Change::Enqueue(IfExists::Replace), Some((_, generation))) => {
                    self.messages.insert(key, (id, generation + 1));
                }
                (Change::Enqueue(IfExists::Reject), Some(_)) => is_refused = true,
                (Change::Enqueue(_), Some(_)) => {}
                (Change::Cancel, _) => drop(self.messages.remove(key)),
                (Change::Postpone, Some((row, generation))) => {
                    self.messages.insert(key, (row, generation + 1));
                }
                (Change::Postpone, None) => {}
            }
            self.batch.push(Row { id, key, change, is_refused });
        }
        (self.decided, self.is_deleted) = (0, false);
    }

    /// The next operations, and of how many rows they are: no two of one key, as a refusal that may pass stops only the
    /// next ones; and behind the last row the confirmation, with a look.
    fn next(&self) -> (usize, Vec<Op>) {
        let mut keys = BTreeSet::new();
        let rest = self.batch.iter().skip(if self.is_deleted { self.batch.len() } else { self.decided });
        let ops: Vec<Op> = rest.take_while(|row| keys.insert(row.key)).map(Row::op).collect();
        if !ops.is_empty() {
            return (ops.len(), ops);
        }
        let ids = self.batch.iter().map(|row| row.id.to_string().into()).collect();
        let list = Op::List { queue: queue(), state: None, after: None, limit: 10, from: None };
        (0, vec![Op::confirm(source(), ids).into_op(), list])
    }

    /// Takes the answers for so many rows.
    fn hear(&mut self, rows: usize, answers: Answers) -> Result<(), String> {
        if rows == 0 {
            if let [Ok(Reply::Count(_)), Ok(Reply::Page(page))] = &answers[..] {
                self.compare(page)?;
                self.batch.clear();
            }
            return Ok(());
        }
        for (row, answer) in self.batch.iter().skip(self.decided).zip(&answers) {
            let is_refused = match answer {
                Ok(
                    Reply::Enqueue(Ok(_))
                    | Reply::Change(Ok(_) | Err(ChangeRefusal::NotFound))
                    | Reply::Recorded(RowOutcome::Applied),
                ) => false,
                Ok(
                    Reply::Enqueue(Err(EnqueueRefusal::KeyExists(_)))
                    | Reply::Recorded(RowOutcome::Refused(RowRefusal::KeyExists)),
                ) => true,
                // It may pass, or the outcome is unknown: all come again.
                _ => {
                    self.decided = 0;
                    return Ok(());
                }
            };
            self.replayed += u64::from(matches!(answer, Ok(Reply::Recorded(_))));
            if is_refused != row.is_refused {
                return Err(format!("a row of the outbox has another outcome: {row:?}, {answer:?}"));
            }
        }
        self.decided += rows;
        if self.decided == self.batch.len() {
            self.is_deleted = self.rng.percent(60);
            self.decided = 0;
        }
        Ok(())
    }

    fn compare(&self, page: &Page) -> Result<(), String> {
        let found = page.views.iter().map(|view| {
            let key = view.message.key.as_ref().map_or("", |key| key.as_str()).to_owned();
            (key, (String::from_utf8_lossy(&view.message.body).into_owned(), view.generation))
        });
        let found: BTreeMap<_, _> = found.collect();
        let wanted = self.messages.iter().map(|(key, (row, n))| ((*key).to_owned(), (row.to_string(), *n)));
        let wanted: BTreeMap<_, _> = wanted.collect();
        if found == wanted {
            return Ok(());
        }
        Err(format!("rows of the outbox were not applied once: {found:?}, not {wanted:?}"))
    }
}

impl Row {
    fn op(&self) -> Op {
        let key = Key::new(self.key).expect("a good key");
        let row = SourceRow { source: source(), id: self.id.to_string().into() };
        let (when, target) = (When::After(FAR_MS), Target::Key(queue(), key.clone()));
        match self.change {
            Change::Enqueue(if_exists) => {
                let body = self.id.to_string();
                let enqueue = Enqueue { key: Some(key), when, if_exists, ..Enqueue::new(queue(), body) };
                Op::Enqueue(Box::new(enqueue)).once(row)
            }
            Change::Cancel => Op::cancel(target).once(row),
            Change::Postpone => Op::postpone(target, Box::new(Edit::due(when)), None).once(row),
        }
    }
}

fn queue() -> QueueName {
    QueueName::new(QUEUE).expect("a good name")
}

fn source() -> QueueName {
    QueueName::system("#outbox/sim").expect("a good name")
}

impl Sim {
    /// Goes on with the batch of the outbox, or begins the next one.
    pub(super) fn drain_outbox(&mut self) {
        if self.outbox.asked.is_some() || self.outbox.is_absent {
            return;
        }
        let Some(client) = self.serving().filter(|_| self.manager.is_ready()) else {
            return self.soon(4_000, 20_000, Action::Drain);
        };
        if !self.outbox.is_open() {
            if self.stage != Stage::Work {
                return;
            }
            self.outbox.draw();
        }
        let (rows, ops) = self.outbox.next();
        match client.submit(ops) {
            Ok(pending) => self.outbox.asked = Some((rows, pending)),
            Err(_) => self.soon(4_000, 20_000, Action::Drain),
        }
    }

    /// Looks whether the answers for the outbox are there.
    pub(super) fn hear_outbox(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        let Some((rows, pending)) = &mut self.outbox.asked else { return };
        let (rows, Poll::Ready(answers)) = (*rows, std::pin::Pin::new(pending).poll(&mut context)) else {
            return;
        };
        self.outbox.asked = None;
        if let Err(what) = self.outbox.hear(rows, answers) {
            self.broken.get_or_insert(what);
        }
        self.soon(500, 20_000, Action::Drain);
    }
}
