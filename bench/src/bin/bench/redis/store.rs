//! The store on Redis alone, without engine and server: groups of records, some in flight. It measures the fixed cost
//! of a group in Redis and the cost of each message, from which many shards are modelled.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use duewheel_bench::message::put;
use duewheel_core::message::{Kind, Lease};
use duewheel_core::record::{ClockPair, Gone, Group, Record, Was};
use duewheel_core::store::Store;
use duewheel_core::{
    Due, EngineMs, Epoch, LeaseToken, Lsn, MessageId, QueueName, SessionId, ShardId, WallMs,
};
use duewheel_judge::rng::scatter;
use duewheel_store_medium::MediumStore;
use duewheel_store_redis::Options;

/// Groups that are appended and not yet durable.
const IN_FLIGHT: usize = 4;
/// The size of groups that are not measured.
const FILL: usize = 1_000;
const HOUR_MS: u64 = 3_600_000;
const LEASE_MS: u64 = 60_000;
/// The time limit for a group to become durable.
const PATIENCE: Duration = Duration::from_secs(30);

/// The records that are appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// New messages.
    Put,
    /// Their grants.
    Grant,
    /// Their acks.
    Ack,
}

/// The store of one shard, and what was put.
pub(crate) struct Owner {
    store: MediumStore,
    queue: QueueName,
    body: usize,
    epoch: Epoch,
    next: Lsn,
    first_id: u64,
}

impl Owner {
    /// Acquires a shard that has never had an owner.
    pub(crate) fn open(url: &str, body: usize) -> io::Result<Self> {
        let owner = thread::current();
        let waker = Arc::new(move || owner.unpark());
        let options = Options::parse(url).map_err(io::Error::other)?;
        let mut store = duewheel_store_redis::open(&options, ShardId(0), waker).map_err(io::Error::other)?;
        let recovered = store.recovered();
        let queue = QueueName::new("bench").map_err(|_| io::Error::other("a name"))?;
        Ok(Owner {
            store,
            queue,
            body,
            epoch: recovered.epoch,
            next: recovered.next_lsn,
            first_id: recovered.next_id,
        })
    }

    /// Brings this number of messages to the state in which a phase begins.
    pub(crate) fn prepare(&mut self, phase: Phase, count: usize) -> io::Result<()> {
        for before in [Phase::Put, Phase::Grant].into_iter().filter(|before| *before < phase) {
            self.append(before, count, FILL)?;
        }
        Ok(())
    }

    /// Appends records in groups of a size, some in flight, and waits until all are durable.
    pub(crate) fn append(&mut self, phase: Phase, count: usize, size: usize) -> io::Result<Duration> {
        let numbers: Vec<u64> = (0..count as u64).collect();
        let groups: Vec<Group> = numbers.chunks(size).map(|numbers| self.group(phase, numbers)).collect();
        let began = Instant::now();
        for (n, group) in groups.iter().enumerate() {
            self.store.append(group).map_err(io::Error::other)?;
            self.store.sync().map_err(io::Error::other)?;
            if let Some(oldest) = (n + 1).checked_sub(IN_FLIGHT) {
                self.wait(groups[oldest].last())?;
            }
        }
        if let Some(last) = groups.last() {
            self.wait(last.last())?;
        }
        Ok(began.elapsed())
    }

    fn wait(&mut self, lsn: Lsn) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        while self.store.progress().map_err(io::Error::other)?.durable < lsn {
            let left = until.checked_duration_since(Instant::now());
            thread::park_timeout(left.ok_or_else(|| io::Error::other("a group does not become durable"))?);
        }
        Ok(())
    }

    fn group(&mut self, phase: Phase, numbers: &[u64]) -> Group {
        let first = self.next;
        self.next = Lsn(first.0 + numbers.len() as u64);
        let clock = ClockPair { engine: EngineMs(first.0), wall: WallMs(1_700_000_000_000 + first.0) };
        Group { first, clock, records: numbers.iter().map(|n| self.record(phase, *n, clock)).collect() }
    }

    fn record(&self, phase: Phase, number: u64, clock: ClockPair) -> Record {
        let id = MessageId(self.first_id + number);
        let due = Due::After(EngineMs(scatter(number) % HOUR_MS));
        let was = |kind| Was {
            queue: self.queue.clone(),
            kind,
            due,
            weight: self.body as u64,
            detail: 0,
            past: 0,
            unweighed: 0,
        };
        match phase {
            Phase::Put => put(id, &self.queue, self.body, due, clock.wall),
            Phase::Grant => {
                let lease = Lease {
                    token: LeaseToken { epoch: self.epoch, counter: number + 1 },
                    until: EngineMs(clock.engine.0 + LEASE_MS),
                    session: SessionId::NONE,
                    granted_at: clock.wall,
                };
                Record::Granted { id, attempt: 1, lease, was: was(Kind::Waiting) }
            }
            Phase::Ack => Record::Removed { id, why: Gone::Acked, was: was(Kind::Leased) },
        }
    }
}
