//! The owner of a shard: its connections, its fence, and their counters.

use std::fmt;
use std::future::Future;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use duewheel_core::Lsn;
use duewheel_core::store::{ErrorKind, Level, StoreError, Waker};
use duewheel_store_medium::{FileKind, LeaseFence, locked, millis};
use redis::{Cmd, Pipeline, Value};
use tokio::task::JoinHandle;

use crate::fault::{self, FenceReason};
use crate::keys::{self, Keys};
use crate::memory::Memory;
use crate::options::{Options, WaitFor};
use crate::reign::{self, RedisReign};
use crate::wire::{Begun, RedisReply, RequestFailure, Servers, Wire};

/// How often a call that waits looks whether the lease still runs.
const LOOK_MS: u64 = 100;

/// State that the calls and tasks of an owner share.
pub(crate) struct RedisOwner {
    pub(crate) servers: Servers,
    pub(crate) keys: Keys,
    pub(crate) reign: RedisReign,
    pub(crate) fence: LeaseFence,
    /// The connection of the journal, and that of all other files: a run that is written does not hold up a group.
    pub(crate) journal: Wire,
    pub(crate) files: Wire,
    /// The memory of the master, shared by all shards of this process on it.
    pub(crate) memory: Arc<Memory>,
    waker: Waker,
    is_over: AtomicBool,
    /// The level of the last write to the journal.
    level: Mutex<Level>,
    /// Bytes that were sent and not answered.
    under_way: AtomicU64,
    pub(crate) counts: RequestFigures,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// Figures for people.
#[derive(Debug, Default)]
pub(crate) struct RequestFigures {
    /// Number of writes to the journal that were answered, and the total time of these.
    pub(crate) answered: AtomicU64,
    pub(crate) append_micros: AtomicU64,
    pub(crate) renewals: AtomicU64,
    /// Number of writes for which the wait failed.
    pub(crate) wait_failures: AtomicU64,
    /// Number of ends of ownership by reason.
    pub(crate) fences: [AtomicU64; 4],
}

impl RequestFigures {
    /// Records the time until the reply to a write.
    fn took(&self, time: Duration) {
        self.answered.fetch_add(1, SeqCst);
        self.append_micros.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), SeqCst);
    }
}

impl RedisOwner {
    pub(crate) fn new(
        servers: Servers,
        keys: Keys,
        (reign, fence): (RedisReign, LeaseFence),
        (journal, files): (Wire, Wire),
        (memory, replicas): (Arc<Memory>, u64),
        waker: Waker,
    ) -> Self {
        let level = ReplicationState::following(replicas).level(memory.alone());
        RedisOwner {
            servers,
            keys,
            reign,
            fence,
            journal,
            files,
            memory,
            waker,
            is_over: AtomicBool::new(false),
            level: Mutex::new(level),
            under_way: AtomicU64::new(0),
            counts: RequestFigures::default(),
            tasks: Mutex::default(),
        }
    }

    pub(crate) fn options(&self) -> &Options {
        &self.servers.0
    }

    pub(crate) fn wake(&self) {
        (self.waker)();
    }

    /// Adds a task that ends with this owner.
    pub(crate) fn add_task(&self, task: JoinHandle<()>) {
        locked(&self.tasks).push(task);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(SeqCst)
    }

    /// Whether this owner may still answer: an error is permanent, and so is an uncertain lease.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        self.fence.check().inspect_err(|error| self.end(error.clone()))
    }

    /// Ends the owner. The first error stays.
    pub(crate) fn end(&self, error: StoreError) {
        if self.is_over.swap(true, SeqCst) {
            return;
        }
        if let Some(reason) = FenceReason::of(&error) {
            self.counts.fences[reason as usize].fetch_add(1, SeqCst);
        }
        self.fence.lose(error);
        // From now on no answer of this owner is sent, so the same process need not wait for its lease.
        reign::ended().note(self.reign.incarnation.clone());
        self.wake();
    }

    /// Ends all tasks and connections.
    pub(crate) fn cut(&self) {
        self.end(StoreError::new(ErrorKind::Closed, "the store is closed"));
        self.journal.cut();
        self.files.cut();
        locked(&self.tasks).drain(..).for_each(|task| task.abort());
    }

    /// The beginning of a call of an owner's script: its keys and the fence.
    pub(crate) fn fenced(&self, script: &str, keys: &[&str]) -> Cmd {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(script).arg(keys.len() + 2).arg(&self.keys.owner).arg(&self.keys.head).arg(keys);
        cmd.arg(self.reign.epoch.0).arg(&self.reign.incarnation).arg(&self.reign.replid);
        cmd
    }

    /// Waits for an answer, but not longer than the lease is certain. A failure ends this owner: what it has sent may
    /// have been carried out, and nothing is ever sent twice.
    pub(crate) async fn answer<T>(
        &self,
        of: FileKind,
        asked: impl Future<Output = Result<T, RequestFailure>>,
    ) -> Result<T, StoreError> {
        let nothing = |error: StoreError| match of {
            FileKind::Journal => error.with_nothing_from(Lsn(0)),
            FileKind::Blob => error,
        };
        self.check().map_err(nothing)?;
        let mut asked = std::pin::pin!(asked);
        let answer = loop {
            let look = Duration::from_millis(self.fence.left().clamp(1, LOOK_MS));
            match tokio::time::timeout(look, asked.as_mut()).await {
                Ok(answer) => break answer,
                Err(_) => self.check()?,
            }
        };
        answer.map_err(|RequestFailure { error, begun }| {
            // If it has ended before, its connections were cut then.
            let first = self.fence.check().err();
            self.end(error.clone());
            let error = first.unwrap_or(error);
            if begun == Begun::No { nothing(error) } else { error }
        })
    }

    /// Sends a write to the journal, waits for it and for as many replicas as the options say.
    pub(crate) async fn write_journal(&self, call: Cmd, bytes: u64) -> Result<Level, StoreError> {
        let waits = WaitRequirements::of(self.options());
        let mut ask = Pipeline::with_capacity(2);
        ask.add_command(call);
        waits.ask(&mut ask);
        let sent = Instant::now();
        let _counted = self.goes(bytes);
        let answer = self.answer(FileKind::Journal, async {
            let reply: RedisReply = self.journal.call(ask).await;
            waits.read(reply?, &self.counts.wait_failures)
        });
        let reach = answer.await?;
        self.counts.took(sent.elapsed());
        let level = reach.level(self.memory.alone());
        *locked(&self.level) = level;
        Ok(level)
    }

    /// Sends a call about another file, and gives what the script answers.
    pub(crate) async fn call(&self, call: Cmd, bytes: u64) -> Result<String, StoreError> {
        let mut ask = Pipeline::with_capacity(1);
        ask.add_command(call);
        let _counted = self.goes(bytes);
        self.answer(FileKind::Blob, async {
            let reply: RedisReply = self.files.call(ask).await;
            keys::answered(reply?).map_err(RequestFailure::from)
        })
        .await
    }

    /// Counts bytes that are sent, until they are answered, or never will be.
    fn goes(&self, bytes: u64) -> BytesUnderWay<'_> {
        self.under_way.fetch_add(bytes, SeqCst);
        self.memory.goes(bytes);
        BytesUnderWay { owner: self, bytes }
    }

    pub(crate) fn under_way(&self) -> u64 {
        self.under_way.load(SeqCst)
    }

    /// The level of the last write.
    pub(crate) fn level(&self) -> Level {
        *locked(&self.level)
    }
}

/// Bytes under way.
struct BytesUnderWay<'a> {
    owner: &'a RedisOwner,
    bytes: u64,
}

impl Drop for BytesUnderWay<'_> {
    fn drop(&mut self) {
        self.owner.under_way.fetch_sub(self.bytes, SeqCst);
        self.owner.memory.comes(self.bytes);
    }
}

impl fmt::Debug for RedisOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOwner")
            .field("keys", &self.keys.tag())
            .field("epoch", &self.reign.epoch)
            .field("is_over", &self.is_over())
            .finish_non_exhaustive()
    }
}

/// The demands of the options on each change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitRequirements {
    replicas: u32,
    wait_for: WaitFor,
    timeout_ms: u64,
}

/// The servers that have a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplicationState {
    /// The number of replicas that have it, or that follow closely where no replica is awaited.
    replicas: u64,
    /// Whether the master itself has certainly synced it.
    synced: bool,
}

impl WaitRequirements {
    pub(crate) fn of(options: &Options) -> Self {
        let timeout_ms = millis(options.wait_timeout);
        WaitRequirements { replicas: options.wait, wait_for: options.wait_for, timeout_ms }
    }

    /// Adds the wait to a change.
    pub(crate) fn ask(self, ask: &mut Pipeline) {
        match self.wait_for {
            WaitFor::Synced => {
                ask.cmd("WAITAOF").arg(1).arg(self.replicas).arg(self.timeout_ms);
            }
            WaitFor::Received if self.replicas > 0 => {
                ask.cmd("WAIT").arg(self.replicas).arg(self.timeout_ms);
            }
            WaitFor::Received => {}
        }
    }

    /// Reads whether the script has applied, and which servers have the change. Counts a failed wait.
    pub(crate) fn read(
        self,
        values: Vec<Value>,
        failures: &AtomicU64,
    ) -> Result<ReplicationState, RequestFailure> {
        let mut values = values.into_iter();
        let reply = fault::some(values.next(), "apply")?;
        // The script refuses before it changes anything.
        let following =
            reign::judge_applied(reply).map_err(|error| RequestFailure { error, begun: Begun::No })?;
        let waited = values.next();
        let (synced, have) = match (self.wait_for, waited) {
            (WaitFor::Received, None) => return Ok(ReplicationState { replicas: following, synced: false }),
            (WaitFor::Received, Some(have)) => (None, fault::number(have, "WAIT")?.unwrap_or(0)),
            (WaitFor::Synced, waited) => {
                let mut both = fault::list(fault::some(waited, "WAITAOF")?, "WAITAOF")?.into_iter();
                let mut next = || fault::number(both.next().unwrap_or_default(), "WAITAOF");
                (Some(next()?.unwrap_or(0) > 0), next()?.unwrap_or(0))
            }
        };
        if synced == Some(false) || have < u64::from(self.replicas) {
            failures.fetch_add(1, SeqCst);
            let wanted = self.replicas;
            let what = match synced {
                None => format!("{have} of {wanted} replicas have the change; whether it stays is unknown"),
                Some(synced) => format!(
                    "{have} of {wanted} replicas have synced the change, and the master {}; whether it stays is unknown",
                    if synced { "has" } else { "has not" }
                ),
            };
            return Err(StoreError::new(ErrorKind::Unavailable, what).into());
        }
        // If no replica is required, those that follow closely count as they do without waiting.
        let replicas = if self.replicas == 0 { following } else { have };
        Ok(ReplicationState { replicas, synced: synced == Some(true) })
    }
}

impl ReplicationState {
    /// The level of a change that would have the level `alone` at its master alone. A master without an append-only
    /// file restarts empty, and its replicas then also empty themselves.
    pub(crate) fn level(self, alone: Level) -> Level {
        let alone = if self.synced { Level::Fsync } else { alone };
        if alone == Level::Memory || self.replicas == 0 { alone } else { Level::BestEffortReplicated }
    }

    /// The reach by replicas that follow, when nothing is waited for.
    pub(crate) fn following(replicas: u64) -> Self {
        ReplicationState { replicas, synced: false }
    }
}
