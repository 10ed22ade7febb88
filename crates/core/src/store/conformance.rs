//! The suite that every store runs; see [`super::Store`] for the obligations it checks.
//!
//! Implement [`Fixture`] for your store and call [`run`] in a test. It appends random but valid [`History`]s, ends the
//! owner midway, and compares with a [`Table`]. A failure names the obligation and the seed.
//!
//! ```
//! use duewheel_core::store::{conformance, MemoryDisk, MemoryStore, StoreError, Waker};
//!
//! #[derive(Default)]
//! struct Memory(MemoryDisk);
//!
//! impl conformance::Fixture for Memory {
//!     type Store = MemoryStore;
//!     fn clear(&mut self) {
//!         self.0 = MemoryDisk::default();
//!     }
//!     fn open(&mut self, waker: Waker) -> Result<MemoryStore, StoreError> {
//!         Ok(MemoryStore::open(&self.0, waker))
//!     }
//! }
//!
//! conformance::run(&mut Memory::default());
//! ```

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the suite waits for stores with threads of their own"
)]

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{
    Capacity, ErrorKind, FOUND_AHEAD, Found, Level, Load, Loaded, Lookups, More, Progress, Recovered,
    Sequence, Store, StoreError, StoreRequest, Table, Waker, Which, place_in,
};
use crate::id::{Epoch, Lsn, MessageId};
use crate::message::{Headers, Life, MessageContent, Options, Row};
use crate::name::{Key, QueueName};
use crate::record::{Group, Record};
use crate::time::{Due, WallMs};

mod events;
mod history;

use events::EventProbe;
pub use history::{Dice, History};

/// A place where stores are opened, and the faults that a test can inject there.
pub trait Fixture {
    /// The store under test.
    type Store: Store;

    /// Replaces the place by a new, empty one; no store is open.
    fn clear(&mut self);

    /// Opens the store on what earlier ones have left.
    ///
    /// # Errors
    /// The error of the store under test, when it refuses to open.
    fn open(&mut self, waker: Waker) -> Result<Self::Store, StoreError>;

    /// Ends the owner as `kill -9` does: nothing is closed, nothing more is written.
    fn kill(&mut self, store: Self::Store) {
        drop(store);
    }

    /// Loses everything that was not durable, as a power loss does. No store is open.
    fn lose_power(&mut self) -> Hook {
        Hook::Unsupported
    }

    /// Damages something below the durable watermark. No store is open, and the last one was closed.
    fn damage(&mut self) -> Hook {
        Hook::Unsupported
    }

    /// Makes the next write or sync of the open store fail.
    fn fail(&mut self) -> Hook {
        Hook::Unsupported
    }

    /// Leaves no room for new messages ([`FixtureSpace::Full`]), or restores it. A store is open.
    fn space(&mut self, space: FixtureSpace) -> Hook {
        let _ = space;
        Hook::Unsupported
    }
}

/// Whether a fixture has done what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// The work is done.
    Done,
    /// The store has no such fault, or the test no means for it; the check is left out.
    Unsupported,
}

/// The room in the place of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FixtureSpace {
    /// No room for new messages.
    Full,
    /// Enough room again.
    Free,
}

/// Number of histories for each obligation.
const SEEDS: u64 = 12;
/// Longest time that a store may take to make something durable or to load a page.
const PATIENCE: Duration = Duration::from_secs(20);

/// Checks all obligations.
///
/// # Panics
/// If one is violated, with its number and the seed.
pub fn run<F: Fixture>(fixture: &mut F) {
    for seed in 0..SEEDS {
        let case = |obligation| Case { obligation, seed };
        prefix_after_kill(fixture, case(1));
        durable_survives(fixture, case(2));
        reads_see_appends(fixture, case(3));
        loads_are_snapshots(fixture, case(4));
        events_are_of_durable_records(fixture, case(8));
    }
    look_ups_are_bounded(fixture, Case { obligation: 3, seed: 0 });
    epochs_grow(fixture, Case { obligation: 5, seed: 0 });
    two_owners(fixture, Case { obligation: 5, seed: 0 });
    closed_is_closed(fixture, Case { obligation: 6, seed: 0 });
    damage_is_refused(fixture, Case { obligation: 6, seed: 0 });
    failure_is_final(fixture, Case { obligation: 6, seed: 0 });
    room_is_known(fixture, Case { obligation: 7, seed: 0 });
}

#[derive(Clone, Copy, Debug)]
struct Case {
    obligation: u8,
    seed: u64,
}

impl Case {
    fn history(self) -> History {
        History::new((self.seed << 8) | u64::from(self.obligation))
    }

    #[track_caller]
    fn check(self, holds: bool, what: &str) {
        assert!(holds, "obligation {}, seed {}: {what}", self.obligation, self.seed);
    }

    #[track_caller]
    fn ok<T>(self, result: Result<T, StoreError>, what: &str) -> T {
        match result {
            Ok(value) => value,
            Err(error) => panic!("obligation {}, seed {}: {what}: {error:?}", self.obligation, self.seed),
        }
    }

    #[track_caller]
    fn refused<T>(self, result: Result<T, StoreError>, what: &str) -> StoreError {
        match result {
            Ok(_) => panic!("obligation {}, seed {}: {what} must fail", self.obligation, self.seed),
            Err(error) => error,
        }
    }
}

/// Signalled by the store's waker.
#[derive(Debug, Default)]
struct WakerSignal {
    rung: Mutex<bool>,
    ring: Condvar,
}

impl WakerSignal {
    fn waker(self: &Arc<Self>) -> Waker {
        let bell = Arc::clone(self);
        Arc::new(move || {
            *bell.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
            bell.ring.notify_all();
        })
    }

    /// Waits for the next signal, up to a limit: a store need not signal what was done at once.
    fn wait(&self) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.ring.wait_timeout_while(rung, Duration::from_millis(100), |rung| !*rung);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

/// A store, its state when it was opened, and its bell.
struct OpenedStore<S> {
    store: S,
    recovered: Recovered,
    bell: Arc<WakerSignal>,
    case: Case,
}

impl<S: Store> OpenedStore<S> {
    fn open<F: Fixture<Store = S>>(fixture: &mut F, case: Case) -> Self {
        let bell = Arc::new(WakerSignal::default());
        let mut store = case.ok(fixture.open(bell.waker()), "open");
        let recovered = store.recovered();
        OpenedStore { store, recovered, bell, case }
    }

    fn append(&mut self, group: &Group) {
        self.case.ok(self.store.append(group), "append");
    }

    fn progress(&mut self) -> Progress {
        self.case.ok(self.store.progress(), "progress")
    }

    /// Waits until a record is written; a store writes without being asked.
    fn wait_until_written(&mut self, lsn: Lsn) {
        let deadline = Instant::now() + PATIENCE;
        while self.progress().written != lsn {
            self.case.check(Instant::now() < deadline, "written follows append");
            self.bell.wait();
        }
    }

    fn make_durable(&mut self, lsn: Lsn) {
        self.case.ok(self.store.sync(), "sync");
        let deadline = Instant::now() + PATIENCE;
        while self.progress().durable < lsn {
            self.case.check(Instant::now() < deadline, "a sync that was asked for completes");
            self.bell.wait();
        }
    }

    fn load(&mut self, load: Load) -> Loaded {
        self.case.ok(self.store.ask(StoreRequest::Load(load)), "load");
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(arrival) = self.store.arrived()
                && let Some(page) = self.case.ok(arrival, "loaded").page()
            {
                return page;
            }
            self.case.check(Instant::now() < deadline, "a page that was asked for comes");
            self.bell.wait();
        }
    }

    fn events<T>(&mut self, use_it: impl FnOnce(&mut EventProbe<'_, S>) -> T) -> T {
        let (case, bell, deadline) = (self.case, &self.bell, Instant::now() + PATIENCE);
        let mut wait = || {
            case.check(Instant::now() < deadline, "events that were asked for come");
            bell.wait();
        };
        let check = |holds: bool, what: &str| case.check(holds, what);
        use_it(&mut EventProbe { store: &mut self.store, wait: &mut wait, check: &check })
    }

    /// Compares everything that can be read with the model.
    fn compare(&mut self, history: &History, model: &Table) {
        let lookups = history.lookups();
        let (mut found, mut expected) = (Found::default(), Found::default());
        self.case.ok(self.store.find_many(&lookups, &mut found), "find_many");
        model.find_many(&lookups, &mut expected);
        self.same(history, model, found, expected, "find_many gives what was appended");
        let mut dice = Dice::new(lookups.ids.len() as u64);
        for _ in 0..3 {
            let mut some = Lookups::default();
            some.ids.extend(lookups.ids.iter().filter(|_| dice.once_in(20)));
            some.keys.extend(lookups.keys.iter().filter(|_| dice.once_in(20)).cloned());
            some.answers.extend(lookups.answers.iter().filter(|_| dice.once_in(20)).cloned());
            let (mut found, mut expected) = (Found::default(), Found::default());
            self.case.ok(self.store.find_many(&some, &mut found), "find_many");
            model.find_many(&some, &mut expected);
            self.same(history, model, found, expected, "find_many gives what was asked for");
        }
    }

    #[track_caller]
    fn same(&self, history: &History, model: &Table, mut found: Found, mut expected: Found, what: &str) {
        for f in [&mut found, &mut expected] {
            // An answer whose time is over, or that is forgotten, may be found or not.
            f.answers.retain(|row| row.until > history.clock().engine && model.ledger().remembers(row));
            f.rows.sort_unstable_by_key(|row| row.message.id);
            f.answers.sort_unstable_by(|a, b| (&a.queue, &a.dedupe_id).cmp(&(&b.queue, &b.dedupe_id)));
        }
        let ids = |f: &Found| f.rows.iter().map(|r| r.message.id).collect::<Vec<_>>();
        self.case.check(
            found == expected,
            &format!(
                "{what}: found ids {:?}, expected {:?}, answers {} and {}",
                ids(&found),
                ids(&expected),
                found.answers.len(),
                expected.answers.len()
            ),
        );
    }

    fn compare_recovered(&self, model: &Table) {
        let (is, should) = (&self.recovered, model.recovered(self.recovered.epoch));
        self.case.check(is.next_lsn == should.next_lsn, "next_lsn");
        self.case.check(is.next_id >= should.next_id, "no id is given again");
        self.case.check(is.queues == should.queues, "queues");
        self.case.check(is.due == should.due, "the histogram of all queues");
        self.case.check(
            is.clock.map(|c| c.engine) >= should.clock.map(|c| c.engine),
            "the clock pair is not older than that of the last group",
        );
    }
}

fn events_are_of_durable_records<F: Fixture>(fixture: &mut F, case: Case) {
    fixture.clear();
    let mut history = case.history();
    let mut groups: Vec<Group> = Vec::new();
    for _ in 0..3 {
        let mut opened = OpenedStore::open(fixture, case);
        opened.make_durable(history.model().applied());
        let page = opened.events(|events| events.page(1, None));
        let nothing = page.events.is_empty() && page.more == More::No && page.from == page.upto;
        case.check(nothing && page.upto == history.model().applied(), "without a position: from now on");
        opened.events(|events| events.follow(&groups, Lsn(0)));
        for _ in 0..30 {
            let group = history.group(9);
            opened.append(&group);
            groups.push(group);
            if history.dice().once_in(4) {
                let applied = history.model().applied().0;
                let after = history.dice().below(applied + 1);
                opened.events(|events| events.follow(&groups, Lsn(after)));
            }
        }
        opened.make_durable(history.model().applied());
        opened.events(|events| events.follow(&groups, page.upto));
        let ahead = Lsn(history.model().applied().0 + 1_000);
        let page = opened.events(|events| events.page(1, Some(ahead)));
        case.check(page.from == history.model().applied(), "a position that is not one of the store");
        fixture.kill(opened.store);
    }
}

fn prefix_after_kill<F: Fixture>(fixture: &mut F, case: Case) {
    fixture.clear();
    let mut history = case.history();
    let mut before = Epoch(0);
    for _ in 0..5 {
        let mut opened = OpenedStore::open(fixture, case);
        let last = Lsn(opened.recovered.next_lsn.0 - 1);
        case.check(opened.recovered.epoch > before, "the epoch has grown");
        before = opened.recovered.epoch;
        case.check(last == history.model().applied(), "kill -9 loses nothing that was appended");
        opened.compare_recovered(history.model());
        opened.compare(&history, history.model());
        for _ in 0..history.dice().below(40) {
            let group = history.group(9);
            opened.append(&group);
            match history.dice().below(8) {
                0 => case.ok(opened.store.sync(), "sync"),
                1 => opened.make_durable(group.last()),
                2 => case.ok(opened.store.idle(group.clock, None), "idle"),
                _ => {}
            }
        }
        opened.wait_until_written(history.model().applied());
        let progress = opened.progress();
        case.check(progress.durable <= progress.written, "durable follows written");
        fixture.kill(opened.store);
    }
}

fn durable_survives<F: Fixture>(fixture: &mut F, case: Case) {
    fixture.clear();
    let mut history = case.history();
    for _ in 0..4 {
        let mut opened = OpenedStore::open(fixture, case);
        let last = Lsn(opened.recovered.next_lsn.0 - 1);
        case.check(history.model_at(last).is_some(), "whole groups are there");
        history.forget_after(last);
        opened.compare_recovered(history.model());
        opened.compare(&history, history.model());
        for _ in 0..1 + history.dice().below(20) {
            let group = history.group(9);
            opened.append(&group);
            if history.dice().once_in(3) {
                opened.make_durable(group.last());
            }
        }
        let durable = opened.progress().durable;
        let level = opened.store.terms().level;
        fixture.kill(opened.store);
        if level == Level::Buffered || fixture.lose_power() == Hook::Unsupported {
            continue; // what `buffered` calls durable survives kill -9 only
        }
        let opened = OpenedStore::open(fixture, case);
        case.check(opened.recovered.next_lsn > durable, "what was durable survives a power loss");
        fixture.kill(opened.store);
    }
}

fn reads_see_appends<F: Fixture>(fixture: &mut F, case: Case) {
    fixture.clear();
    let mut history = case.history();
    let mut opened = OpenedStore::open(fixture, case);
    case.check(opened.recovered.next_lsn == Lsn(1), "a new place is empty");
    case.check(opened.recovered.next_id == 1, "a new place has given no id");
    case.check(opened.recovered.clock.is_none(), "a new place has no clock");
    for _ in 0..30 {
        let group = history.group(9);
        opened.append(&group);
        opened.compare(&history, history.model());
        if history.dice().once_in(2) {
            case.ok(opened.store.sync(), "sync");
        }
    }
    fixture.kill(opened.store);
}

fn loads_are_snapshots<F: Fixture>(fixture: &mut F, case: Case) {
    fixture.clear();
    let mut history = case.history();
    let mut opened = OpenedStore::open(fixture, case);
    for round in 0..25 {
        let group = history.group(12);
        opened.append(&group);
        for sequence in Sequence::ALL {
            let names: Vec<QueueName> = history.model().queue_rows().into_iter().map(|q| q.name).collect();
            let some = Arc::from_iter(names.iter().step_by(2).cloned());
            let mut whiches = vec![Which::All, Which::AllBut(some)];
            whiches.extend(names.first().cloned().map(Which::One));
            for which in whiches {
                let place = |row: &Row| place_in(sequence, row).unwrap_or((0, MessageId(0)));
                let until = match history.dice().below(3) {
                    0 => u64::MAX,
                    _ => naive(history.model(), sequence).get(5).map_or(0, |row| place(row).0),
                };
                let mut load = Load {
                    ticket: history.dice().roll(),
                    sequence,
                    which,
                    after: None,
                    until,
                    rows: 1 + usize::try_from(history.dice().below(7)).unwrap_or(0),
                    bytes: 1 + usize::try_from(history.dice().below(500)).unwrap_or(0),
                };
                let mut seen: Vec<Row> = Vec::new();
                loop {
                    let page = opened.load(load.clone());
                    case.check(page.load == load, "a page says what was asked");
                    case.check(page.as_of == history.model().applied(), "a page is as of the last append");
                    case.check(page.rows.len() <= load.rows, "a page has at most the rows asked for");
                    if page.more == More::Yes {
                        case.check(page.upto > load.after, "a page with more behind it moves on");
                    }
                    case.check(
                        page.rows
                            .iter()
                            .all(|row| load.after < Some(place(row)) && Some(place(row)) <= page.upto),
                        "rows are behind the cursor and up to the page's end",
                    );
                    seen.extend(page.rows);
                    match (page.more, page.upto) {
                        (More::Yes, Some(upto)) => load.after = Some(upto),
                        (More::Yes | More::No, _) => break,
                    }
                }
                let mut expected = naive(history.model(), sequence);
                expected.retain(|row| {
                    place(row).0 <= until
                        && match &load.which {
                            Which::All => true,
                            Which::One(queue) => *queue == row.message.queue,
                            Which::AllBut(queues) => !queues.contains(&row.message.queue),
                        }
                });
                case.check(
                    seen == expected,
                    &format!("round {round}: pages of {sequence:?} in order, no gap"),
                );
            }
        }
    }
    fixture.kill(opened.store);
}

/// A sequence in order, computed in the simplest way.
fn naive(model: &Table, sequence: Sequence) -> Vec<Row> {
    let mut rows = model.rows();
    rows.retain(|row| place_in(sequence, row).is_some());
    rows.sort_by_key(|row| place_in(sequence, row));
    rows
}

fn epochs_grow<F: Fixture>(fixture: &mut F, case: Case) {
    fixture.clear();
    let mut history = case.history();
    let mut before = Epoch(0);
    for round in 0..6 {
        let mut opened = OpenedStore::open(fixture, case);
        case.check(opened.recovered.epoch > before, "each open has a higher epoch, used or not");
        before = opened.recovered.epoch;
        match round % 3 {
            0 => {}
            1 => {
                let group = history.group(3);
                opened.append(&group);
                opened.wait_until_written(group.last());
            }
            _ => {
                let done = case.ok(opened.store.close(history.tick()), "close");
                case.check(
                    done.durable.next() == opened.recovered.next_lsn,
                    "everything is durable in the end",
                );
            }
        }
        fixture.kill(opened.store);
    }
}

fn two_owners<F: Fixture>(fixture: &mut F, case: Case) {
    fixture.clear();
    let mut history = case.history();
    let mut first = OpenedStore::open(fixture, case);
    first.append(&history.group(5));
    let group = history.group(5);
    match fixture.open(Arc::new(|| {})) {
        Err(error) => {
            let fits = matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Unavailable);
            case.check(fits, "a second owner is refused with Fenced or Unavailable");
            first.append(&group);
            fixture.kill(first.store);
        }
        Ok(second) => {
            let error = case.refused(first.store.append(&group), "an older owner's append");
            case.check(error.kind() == ErrorKind::Fenced, "an older owner is told Fenced");
            fixture.kill(first.store);
            fixture.kill(second);
        }
    }
    let opened = OpenedStore::open(fixture, case);
    case.check(history.model_at(Lsn(opened.recovered.next_lsn.0 - 1)).is_some(), "no group is lost or split");
    fixture.kill(opened.store);
}

/// Checks that a look-up of messages that weigh more than the bound is made in several calls, and finds all of them.
fn look_ups_are_bounded<F: Fixture>(fixture: &mut F, case: Case) {
    const MESSAGES: u64 = 200;
    const BODY: usize = 2_048;
    const BYTES: usize = 20 * BODY;
    fixture.clear();
    let mut history = case.history();
    let mut opened = OpenedStore::open(fixture, case);
    let queue = QueueName::new("large").expect("a good name");
    let key = |id: u64| Key::new(&format!("key-{id}")).expect("a good key");
    let clock = history.tick();
    let put = |id: u64| {
        let message = MessageContent {
            dedupe_id: None,
            id: MessageId(id),
            queue: queue.clone(),
            key: Some(key(id)),
            body: vec![b'a'; BODY].into(),
            headers: Headers::new(),
            options: Options::default(),
            enqueued_at: clock.wall,
        };
        let due = Due::At(WallMs(clock.wall.0 + id));
        Record::Put { message: Arc::new(message), life: Life::new(due, None), was: None }
    };
    for first in (1..=MESSAGES).step_by(50) {
        let records = (first..first + 50).map(put).collect();
        let group = Group { first: history.model().applied().next(), clock, records };
        opened.append(&group);
        history.adopt(group);
    }
    let ids: Vec<MessageId> = (1..=MESSAGES).rev().map(MessageId).collect();
    let keys: Vec<(QueueName, Key)> = (1..=MESSAGES).map(|id| (queue.clone(), key(id))).collect();
    let mut seen = [Vec::new(), Vec::new()];
    for (list, seen) in seen.iter_mut().enumerate() {
        let mut made = 0;
        while made < ids.len() {
            let mut lookups = Lookups { bytes: BYTES, ..Lookups::default() };
            match list {
                0 => lookups.ids = ids[made..].to_vec(),
                _ => lookups.keys = keys[made..].to_vec(),
            }
            let mut found = Found::default();
            case.ok(opened.store.find_many(&lookups, &mut found), "find_many");
            let left = if list == 0 { found.left.ids } else { found.left.keys };
            let now = ids.len() - made - left;
            case.check(now >= FOUND_AHEAD.min(ids.len() - made), "a look-up makes progress");
            case.check(found.rows.len() == now, "what was not left out is found");
            let weight: usize = found.rows.iter().map(Row::weight).sum();
            let heaviest = found.rows.iter().map(Row::weight).max().unwrap_or(0);
            case.check(weight <= BYTES + FOUND_AHEAD * heaviest, "a look-up brings about what it may");
            seen.extend(found.rows.iter().map(|row| row.message.id));
            made += now;
        }
        seen.sort_unstable();
    }
    let all: Vec<MessageId> = (1..=MESSAGES).map(MessageId).collect();
    case.check(seen == [all.clone(), all], "all are found");
    fixture.kill(opened.store);
}

fn closed_is_closed<F: Fixture>(fixture: &mut F, case: Case) {
    fixture.clear();
    let mut history = case.history();
    let mut opened = OpenedStore::open(fixture, case);
    for _ in 0..10 {
        opened.append(&history.group(9));
    }
    let clock = history.tick();
    case.ok(opened.store.close(clock), "close");
    for error in [
        case.refused(opened.store.append(&History::new(9).group(1)), "append after close"),
        case.refused(opened.store.sync(), "sync after close"),
        case.refused(opened.store.progress(), "progress after close"),
    ] {
        case.check(error.kind() == ErrorKind::Closed, "a closed store says Closed");
    }
    drop(opened);
    fixture.lose_power();
    let mut opened = OpenedStore::open(fixture, case);
    opened.compare_recovered(history.model());
    opened.compare(&history, history.model());
    let engine = opened.recovered.clock.map(|pair| pair.engine);
    case.check(engine == Some(clock.engine), "the engine time of the close is remembered");
    fixture.kill(opened.store);
}

fn damage_is_refused<F: Fixture>(fixture: &mut F, case: Case) {
    fixture.clear();
    let mut history = case.history();
    let mut opened = OpenedStore::open(fixture, case);
    for _ in 0..10 {
        opened.append(&history.group(9));
    }
    case.ok(opened.store.close(history.tick()), "close");
    drop(opened);
    if fixture.damage() == Hook::Done {
        let error = case.refused(fixture.open(Arc::new(|| {})).map(drop), "opening a damaged store");
        case.check(error.kind() == ErrorKind::Corrupt, "damage is called Corrupt");
    }
}

fn failure_is_final<F: Fixture>(fixture: &mut F, case: Case) {
    fixture.clear();
    let mut history = case.history();
    let mut opened = OpenedStore::open(fixture, case);
    opened.append(&history.group(5));
    opened.make_durable(history.model().applied());
    let safe = history.model().applied();
    if fixture.fail() == Hook::Unsupported {
        fixture.kill(opened.store);
        return;
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let group = history.group(5);
        if opened.store.append(&group).is_err() || opened.store.sync().is_err() {
            break;
        }
        case.check(Instant::now() < deadline, "a failed write or sync shows");
        opened.bell.wait();
        if opened.store.progress().is_err() {
            break;
        }
    }
    let group = history.group(5);
    case.refused(opened.store.append(&group), "append after a failure");
    case.refused(opened.store.sync(), "sync after a failure");
    case.refused(opened.store.progress(), "progress after a failure");
    case.refused(
        opened.store.find_many(&history.lookups(), &mut Found::default()),
        "find_many after a failure",
    );
    case.refused(opened.store.idle(group.clock, None), "idle after a failure");
    fixture.kill(opened.store);
    let mut opened = OpenedStore::open(fixture, case);
    let last = Lsn(opened.recovered.next_lsn.0 - 1);
    case.check(last >= safe, "what was durable before the failure is there");
    case.check(history.model_at(last).is_some(), "whole groups are there");
    history.forget_after(last);
    opened.compare_recovered(history.model());
    opened.compare(&history, history.model());
    fixture.kill(opened.store);
}

fn room_is_known<F: Fixture>(fixture: &mut F, case: Case) {
    fixture.clear();
    let mut history = case.history();
    let mut opened = OpenedStore::open(fixture, case);
    case.check(opened.store.room() == Capacity::Enough, "there is room in a new place");
    if fixture.space(FixtureSpace::Full) == Hook::Unsupported {
        fixture.kill(opened.store);
        return;
    }
    let deadline = Instant::now() + PATIENCE;
    let mut turn = 0;
    loop {
        match opened.store.room() {
            Capacity::Enough => {}
            Capacity::Busy => {
                case.check(Instant::now() < deadline, "a busy store comes to an end with what it does");
                opened.bell.wait();
                continue;
            }
            Capacity::SettleOnly | Capacity::RemoveOnly => break,
        }
        // Of the agreed size, and around it on the smaller side; each on the word of what room there is.
        let most = opened.store.terms().group_bytes;
        let bytes = [most, most - 1, most / 2 + 1, most / 2, 1][turn % 5];
        opened.append(&history.puts(bytes, 1 + turn / 5 % 3));
        turn += 1;
        case.check(Instant::now() < deadline, "a full place shows in room()");
    }
    for _ in 0..20 {
        let room = opened.store.room();
        case.check(matches!(room, Capacity::SettleOnly | Capacity::RemoveOnly), "a full place stays full");
        case.check(opened.store.room_error().is_none(), "a lack of room is no error");
        if room == Capacity::RemoveOnly {
            break; // what it has taken until now is at its bound
        }
        let next = history.model().applied().next();
        let group = loop {
            let group = history.group(4);
            if !group.records.iter().any(|r| matches!(r, Record::Put { .. })) {
                break group;
            }
            history.forget_after(Lsn(next.0 - 1));
        };
        opened.append(&group);
        opened.make_durable(group.last());
    }
    fixture.space(FixtureSpace::Free);
    let deadline = Instant::now() + PATIENCE;
    while opened.store.room() != Capacity::Enough {
        case.check(Instant::now() < deadline, "room comes back by itself");
        opened.bell.wait();
    }
    for _ in 0..20 {
        opened.append(&history.group(9));
    }
    opened.make_durable(history.model().applied());
    fixture.kill(opened.store);
    let mut opened = OpenedStore::open(fixture, case);
    opened.compare_recovered(history.model());
    opened.compare(&history, history.model());
    fixture.kill(opened.store);
}
