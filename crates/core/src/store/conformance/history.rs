//! Random but valid histories of groups, which the seed determines.

use std::sync::Arc;

use bytes::Bytes;

use super::super::{Found, Lookups, Table};
use crate::answers::AnswerPosition;
use crate::id::{Epoch, LeaseToken, Lsn, MessageId, SessionId};
use crate::message::{
    DeadReason, Died, DoneOutcome, Ended, Expiry, Kind, Lease, Life, MaxAttempts, MessageContent, Options,
    PastAttempt, QueueLimit, Stage, State,
};
use crate::name::{Key, QueueName};
use crate::policy::{Backoff, GrantLimits, GrantRate, OnExpiry, QueueSettings, ReadyOrder, TraceMode};
use crate::random::SplitMix64;
use crate::record::{ClockPair, Created, DedupeRow, Gone, Group, Pause, Record, Was};
use crate::time::{Due, EngineMs, WallMs};

/// Random decisions from a seed.
#[derive(Clone, Debug)]
pub struct Dice(SplitMix64);

impl Dice {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        Dice(SplitMix64::new(seed))
    }

    /// Any number.
    pub fn roll(&mut self) -> u64 {
        self.0.next()
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.roll() % n
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn index(&mut self, n: usize) -> usize {
        usize::try_from(self.below(n as u64)).unwrap_or(0)
    }
}

/// Makes groups as an engine could: keys stay unique, positions and clocks grow. Keeps all of them.
#[derive(Debug)]
pub struct History {
    dice: Dice,
    /// For fields that few records have: without them a history of a seed stays what it was.
    rare: Dice,
    groups: Vec<Group>,
    model: Table,
    clock: ClockPair,
    /// Messages are due within a second, and a quarter of them up to this many ms later.
    spread_ms: u64,
}

/// Largest size of a put without its body, in bytes.
const PUT_AROUND: usize = 80;
/// Number of queues.
const QUEUES: u64 = 5;
/// Number of keys per queue: few enough that they are taken, released and taken again.
const KEYS: u64 = 40;

impl History {
    /// An empty history.
    pub fn new(seed: u64) -> Self {
        let clock = ClockPair { engine: EngineMs(1_000), wall: WallMs(1_700_000_000_000) };
        History {
            dice: Dice::new(seed),
            rare: Dice::new(!seed),
            groups: Vec::new(),
            model: Table::default(),
            clock,
            spread_ms: 0,
        }
    }

    /// Makes a quarter of the messages due up to this many ms later than the others, which are due within a second; 0
    /// by default.
    #[must_use]
    pub fn spread_ms(mut self, ms: u64) -> Self {
        self.spread_ms = ms;
        self
    }

    /// All groups so far.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The state after all groups so far.
    pub fn model(&self) -> &Table {
        &self.model
    }

    /// The state after the groups up to a position; `None` if the position is in the middle of a group.
    pub fn model_at(&self, last: Lsn) -> Option<Table> {
        let mut model = Table::default();
        for group in self.groups.iter().filter(|g| g.first <= last) {
            model.apply(group);
        }
        (model.applied() == last).then_some(model)
    }

    /// Forgets the groups behind a position, as a crash does. The clocks continue.
    ///
    /// # Panics
    /// If the position is in the middle of a group.
    pub fn forget_after(&mut self, last: Lsn) {
        self.groups.retain(|g| g.first <= last);
        self.model = self.model_at(last).expect("the position is the end of a group");
    }

    /// The clocks now.
    pub fn clock(&self) -> ClockPair {
        self.clock
    }

    /// Lets time pass.
    pub fn tick(&mut self) -> ClockPair {
        let ms = self.dice.below(200);
        self.clock.engine.0 += ms;
        self.clock.wall.0 += ms;
        self.clock
    }

    /// Makes a group of `messages` new messages with at most `bytes` encoded bytes, and nearly as many if that suffices
    /// for one message each.
    pub fn puts(&mut self, bytes: usize, messages: usize) -> Group {
        let clock = self.tick();
        let first = self.model.applied().next();
        let body = (bytes / messages).saturating_sub(PUT_AROUND);
        let mut records = Vec::new();
        for lsn in (first.0..).take(messages) {
            let message = MessageContent {
                dedupe_id: None,
                id: MessageId(self.model.next_id()),
                queue: self.queue(),
                key: None,
                body: Bytes::from(vec![b'x'; body]),
                headers: Vec::new(),
                options: Options::default(),
                enqueued_at: clock.wall,
            };
            let due = Due::After(EngineMs(clock.engine.0 + self.dice.below(1_000)));
            let record = Record::Put { message: Arc::new(message), life: Life::new(due, None), was: None };
            self.model.apply_record(Lsn(lsn), &record);
            records.push(record);
        }
        self.model.note_clock(clock);
        let group = Group { first, clock, records };
        self.groups.push(group.clone());
        group
    }

    /// Makes the next group, of 1 to `most` records.
    pub fn group(&mut self, most: u64) -> Group {
        let clock = self.tick();
        let first = self.model.applied().next();
        let count = 1 + self.dice.below(most);
        let mut records = Vec::new();
        for lsn in (first.0..).take(usize::try_from(count).unwrap_or(1)) {
            let record = self.record();
            self.model.apply_record(Lsn(lsn), &record);
            records.push(record);
        }
        self.model.note_clock(clock);
        let group = Group { first, clock, records };
        self.groups.push(group.clone());
        group
    }

    /// Continues with a group of the caller's own.
    ///
    /// # Panics
    /// If it does not follow the last one.
    pub fn adopt(&mut self, group: Group) {
        assert_eq!(group.first, self.model.applied().next(), "groups follow each other");
        self.model.apply(&group);
        self.groups.push(group);
    }

    /// The generator for the caller's own decisions, so that one seed replays everything.
    pub fn dice(&mut self) -> &mut Dice {
        &mut self.dice
    }

    fn record(&mut self) -> Record {
        match self.dice.below(100) {
            0..=39 => self.put(),
            40..=89 => {
                let id = self.some_id();
                match self.was(id) {
                    Some(was) => self.change(id, was),
                    None => self.put(),
                }
            }
            90..=94 => self.queue_record(),
            95 => self.purge(),
            _ => self.answer(),
        }
    }

    /// A change of an existing message.
    fn change(&mut self, id: MessageId, was: Was) -> Record {
        match self.dice.below(50) {
            0..=14 => {
                let life = self.life(id);
                Record::Changed { id, life, was }
            }
            15..=29 => {
                // A grant of a dead message could bring a key back that another one has taken.
                if was.kind == Kind::Dead {
                    return Record::Removed { id, why: Gone::Expired, was };
                }
                Record::Granted { id, attempt: self.small(), lease: self.lease(), was }
            }
            _ => {
                let all = [Gone::Acked, Gone::Cancelled, Gone::Replaced, Gone::Expired, Gone::Superseded];
                let why = all[self.dice.index(5)];
                Record::Removed { id, why, was }
            }
        }
    }

    fn was(&self, id: MessageId) -> Option<Was> {
        let (row, _) = self.model.row(id)?;
        Some(Was::of(&row.message, &row.life))
    }

    fn put(&mut self) -> Record {
        let known = if self.dice.once_in(10) { Some(self.some_id()) } else { None };
        // Another body for a message that is there: its queue and its key stay.
        let known = known.and_then(|id| self.model.row(id)).map(|(row, _)| row.message.clone());
        let known = known.filter(|m| self.was(m.id).is_some_and(|was| was.kind == Kind::Waiting));
        let was = known.as_ref().and_then(|m| self.was(m.id));
        let id = known.as_ref().map_or(MessageId(self.model.next_id()), |m| m.id);
        let (queue, key) = match &known {
            Some(message) => (message.queue.clone(), message.key.clone()),
            None => {
                let queue = self.queue();
                let key = if self.dice.once_in(3) { None } else { Some(self.key()) };
                let key = key.filter(|key| self.is_free(&queue, key));
                (queue, key)
            }
        };
        let body: Vec<u8> = {
            let fill = self.dice.roll().to_le_bytes();
            let length = if self.dice.once_in(30) { self.dice.index(3000) } else { self.dice.index(120) };
            fill.into_iter().cycle().take(length).collect()
        };
        let headers = (0..self.dice.below(20).saturating_sub(17))
            .map(|n| (format!("name{n}").into(), format!("value{}", self.dice.roll()).into()))
            .collect();
        let options = Options {
            queue_limit: if self.rare.once_in(5) { QueueLimit::Wins } else { QueueLimit::Yields },
            lease_ms: self.maybe(100_000),
            max_attempts: self.maybe(30).and_then(|n| MaxAttempts::new(u32::try_from(n).unwrap_or(1))),
            backoff: self.maybe(50).map(|min_ms| Backoff { min_ms, max_ms: min_ms * 9 }),
            spread_ms: self.rare.once_in(20).then(|| self.rare.below(7_000)),
            expiry: match self.rare.below(40) {
                0 => Some(Expiry::In(self.rare.below(9_000))),
                1 => Some(Expiry::At(WallMs(self.clock.wall.0 + self.rare.below(9_000)))),
                _ => None,
            },
        };
        let message = MessageContent {
            dedupe_id: None,
            id,
            queue,
            key,
            body: Bytes::from(body),
            headers,
            options,
            enqueued_at: self.clock.wall,
        };
        let life = Life::new(self.due(), self.maybe(5000).and_then(|n| u32::try_from(n).ok()));
        Record::Put { message: Arc::new(message), life, was }
    }

    fn life(&mut self, id: MessageId) -> Life {
        let fresh = Life::new(self.due(), None);
        let mut life = self.model.row(id).map_or(fresh, |(row, _)| row.life.clone());
        life.generation += u32::from(self.dice.once_in(2));
        if self.dice.once_in(2) {
            life.due = self.due();
        }
        if self.dice.once_in(3) {
            life.history.push(PastAttempt {
                attempt: life.attempt,
                granted_at: self.clock.wall,
                ended_at: self.clock.wall,
                how: [Ended::Nacked, Ended::LeaseExpired, Ended::Released, Ended::Buried][self.dice.index(4)],
                note: "an honest note".into(),
            });
            life.history.truncate(3);
        }
        if self.rare.once_in(9) {
            let byte = self.rare.roll().to_le_bytes()[0];
            life.detail = Some(vec![byte; self.rare.index(400)].into());
        }
        if self.rare.once_in(15) {
            life.marks.asked = Some(life.due);
            life.marks.delay_ms = self.rare.once_in(2).then(|| self.rare.below(900));
        }
        life.stage = match self.dice.below(6) {
            0 => Stage::Leased(self.lease()),
            1 => Stage::Dead {
                reason: match self.rare.below(8) {
                    0 => DeadReason::Expired,
                    1 => DeadReason::Done(DoneOutcome::ALL[self.rare.index(4)]),
                    _ => DeadReason::Buried,
                },
                at: Died::at(self.clock.wall),
                token: self.rare.once_in(3).then(|| self.lease().token),
            },
            2 => Stage::Waiting { token: Some(self.lease().token) },
            _ => Stage::Waiting { token: None },
        };
        // A dead message has left its key free; it may not come back to life while another one holds it.
        if let Some((row, _)) = self.model.row(id)
            && let (Stage::Dead { .. }, Some(key)) = (&row.life.stage, &row.message.key)
            && !self.is_free(&row.message.queue, key)
        {
            life.stage = row.life.stage.clone();
        }
        let is_superseded = id.0 % 2 == 1 && matches!(life.stage, Stage::Leased(_));
        life.marks.superseded_by = is_superseded.then_some(MessageId(id.0 + 1));
        life
    }

    fn lease(&mut self) -> Lease {
        Lease {
            token: LeaseToken { epoch: Epoch(self.small()), counter: self.dice.below(1000) },
            until: EngineMs(self.clock.engine.0 + self.dice.below(5_000)),
            session: SessionId(self.dice.below(4)),
            granted_at: self.clock.wall,
        }
    }

    fn small_number(&mut self) -> Option<u32> {
        self.rare.once_in(4).then(|| self.rare.below(1_000)).and_then(|n| u32::try_from(n).ok())
    }

    fn queue_record(&mut self) -> Record {
        let name = self.queue();
        let settings = if self.dice.once_in(2) {
            QueueSettings::default()
        } else {
            QueueSettings {
                lease_ms: self.maybe(100_000),
                priority: self.maybe(9_000).and_then(|n| u32::try_from(n).ok()),
                dead_ttl_ms: self.maybe(77),
                limits: GrantLimits {
                    rate: self
                        .small_number()
                        .map(|n| GrantRate { burst: self.small_number(), ..GrantRate::per_second(n) }),
                    catchup_per_hour: self.small_number().map(u64::from),
                    concurrency: self.small_number(),
                },
                expires_in_ms: self.rare.once_in(4).then(|| self.rare.below(70_000)),
                on_expiry: [None, Some(OnExpiry::DeliverLate), Some(OnExpiry::Dead), Some(OnExpiry::Drop)]
                    [self.rare.index(4)],
                keep_done_ms: self.rare.once_in(4).then(|| self.rare.below(70_000)),
                trace: [None, Some(TraceMode::Link), Some(TraceMode::Child)][self.rare.index(3)],
                order: self.maybe(2).map(|n| if n == 0 { ReadyOrder::Due } else { ReadyOrder::Arrival }),
                ..QueueSettings::default()
            }
        };
        let pause = match self.dice.below(4) {
            0 => Pause::Paused,
            1 => {
                Pause::Until { end: EngineMs(self.clock.engine.0 + self.dice.below(1000)), length_ms: 1_000 }
            }
            _ => Pause::Running,
        };
        Record::Queue { name, settings, pause }
    }

    fn purge(&mut self) -> Record {
        let queue = self.queue();
        let rows = self.model.rows();
        let (keep, gone): (Vec<_>, Vec<_>) =
            rows.iter().filter(|r| r.message.queue == queue).partition(|r| r.life.lease().is_some());
        let keep = keep.iter().map(|r| r.message.id).collect();
        let before = MessageId(self.model.next_id());
        Record::Purged { queue, keep, before, purged: gone.len() as u64 }
    }

    /// An answer, or the end of the oldest ones of a queue.
    fn answer(&mut self) -> Record {
        let row = self.dedupe();
        let log = self.model.ledger().answers(&row.queue);
        let oldest = log.and_then(|log| log.spans().first()).map(|span| span.last.nth);
        match oldest.filter(|_| self.rare.once_in(3)) {
            Some(upto) => Record::AnswersForgotten { queue: row.queue, upto },
            None => Record::Deduped(row),
        }
    }

    fn dedupe(&mut self) -> DedupeRow {
        let (queue, n) = (self.queue(), self.dice.below(60));
        DedupeRow {
            defaults: None,
            queue,
            dedupe_id: format!("once-{n}").into(),
            content: u128::from(self.dice.roll()) * u128::from(self.dice.roll()),
            until: EngineMs(self.clock.engine.0 + self.dice.below(5_000)),
            id: self.some_id(),
            key: self.dice.once_in(2).then(|| self.key()),
            due_at: self.clock.wall,
            generation: 1,
            created: match self.dice.below(3) {
                0 => Created::New,
                1 => Created::Kept,
                _ if n % 2 == 0 => Created::Superseding(self.some_id()),
                _ => Created::Replacing(self.some_id()),
            },
            kept: (n % 5 == 0).then_some(State::Ready),
            // An id belongs to the server or to callers, never to both.
            position: (n % 4 > 0)
                .then(|| AnswerPosition { nth: self.model.applied().next(), at: self.clock.engine }),
        }
    }

    /// An id: mostly a recent one, sometimes an old one, and now and then one that was removed or never given.
    fn some_id(&mut self) -> MessageId {
        let next = self.model.next_id();
        let back = if self.dice.once_in(3) { next } else { next.min(12) };
        let id = (next + u64::from(self.dice.once_in(10))).saturating_sub(self.dice.below(back) + 1);
        MessageId(id.max(1))
    }

    fn due(&mut self) -> Due {
        let mut ms = self.dice.below(1_000); // few enough that some are due at the same time
        if self.spread_ms > 0 && self.dice.below(4) == 0 {
            ms += self.dice.below(self.spread_ms);
        }
        match self.dice.below(2) {
            0 => Due::At(WallMs(self.clock.wall.0 + ms)),
            _ => Due::After(EngineMs(self.clock.engine.0 + ms)),
        }
    }

    fn queue(&mut self) -> QueueName {
        QueueName::new(&format!("queue/{}", self.dice.below(QUEUES))).expect("a good name")
    }

    fn key(&mut self) -> Key {
        Key::new(&format!("key-{}", self.dice.below(KEYS))).expect("a good key")
    }

    fn is_free(&self, queue: &QueueName, key: &Key) -> bool {
        let mut found = Found::default();
        let lookups = Lookups { keys: vec![(queue.clone(), key.clone())], ..Lookups::default() };
        self.model.find_many(&lookups, &mut found);
        !found.rows.iter().any(|row| row.life.stage.kind() != Kind::Dead)
    }

    fn maybe(&mut self, below: u64) -> Option<u64> {
        self.dice.once_in(4).then(|| self.dice.below(below))
    }

    fn small(&mut self) -> u32 {
        u32::try_from(self.dice.below(9)).unwrap_or(0)
    }

    /// Look-ups of every id, key and dedupe id that may be in a store after this history, and of some that are not.
    pub fn lookups(&self) -> Lookups {
        let ids = (1..=self.model.next_id()).map(MessageId).collect();
        let mut lookups = Lookups { ids, ..Lookups::default() };
        for queue in 0..QUEUES {
            for n in 0..60 {
                let queue = QueueName::new(&format!("queue/{queue}")).expect("a good name");
                lookups.answers.push((queue, format!("once-{n}").into()));
            }
        }
        for queue in 0..QUEUES {
            for key in 0..KEYS {
                let queue = QueueName::new(&format!("queue/{queue}")).expect("a good name");
                lookups.keys.push((queue, Key::new(&format!("key-{key}")).expect("a good key")));
            }
        }
        lookups
    }
}
