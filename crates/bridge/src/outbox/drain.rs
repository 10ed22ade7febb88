//! The drain of one database: a loop of transactions, of which each applies one batch of rows.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use duewheel::core::engine::Answered;
use duewheel::{CallError, Client, Duewheel};
use duewheel_shard::random::doubled;
use duewheel_store_postgres::PgConnection;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_postgres::types::{ToSql, Type};

use super::database::{REJECTED, connect_to_outbox, in_time};
use super::error::OutboxError;
use super::figures::OutboxFigures;
use super::intent::IntentRecord;
use super::row::{OutboxRow, RowName, RowVerdict};
use super::settings::{DrainStep, OutboxSettings};

/// The lock of the database's drainer; an arbitrary number.
const LOCK: i64 = 0x6475_6577_6865_656c;
/// Limits of a batch: rows at first, rows at most, and bytes.
const FIRST_ROWS: usize = 1_000;
const MOST_ROWS: usize = 4_096;
const MOST_BYTES: i64 = 16 * 1024 * 1024;
/// How long a batch is applied: the rest of its rows comes with the next one.
const LONG: Duration = Duration::from_secs(2);
/// Pauses between looks: after rows, and without.
const BUSY: Duration = Duration::from_millis(20);
const IDLE: Duration = Duration::from_millis(250);
/// The pause when all queues wait.
const ALL_WAIT: Duration = Duration::from_secs(1);
/// Pauses between connections.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// The number of queues that may wait at a time; with more of them all wait.
const WAITING_QUEUES: usize = 1_000;
/// The interval at which the drainer says that it drains, and of figures that need a query.
const LOOK: Duration = Duration::from_secs(3);
/// Takes the place of the drainer, if it is free, this node's own, or left.
const CLAIM: &str = "UPDATE duewheel.outbox_state SET drainer = $1, since = clock_timestamp(), seen = clock_timestamp() \
    WHERE seen IS NULL OR drainer = $1 OR seen < clock_timestamp() - interval '10s' RETURNING one";
/// Keeps the place, if it is still this node's.
const KEEP: &str =
    "UPDATE duewheel.outbox_state SET seen = clock_timestamp() WHERE drainer = $1 RETURNING one";
/// Leaves it to others at once.
const LEAVE: &str = "UPDATE duewheel.outbox_state SET seen = NULL WHERE drainer = $1";
/// Operations of a batch are submitted at most this long after its read, by elapsed time. If another node drains by then, it
/// may have applied and confirmed the same rows: these are remembered for five minutes more.
const FRESH_MS: u64 = 60_000;

/// A transaction that the server ends by itself. A commit counts when it is as durable as the server can make it. The index
/// alone finds the first rows behind those that are deleted and not yet cleaned away.
const BEGIN: &str = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '30s'; SET LOCAL statement_timeout = '30s'; \
    SET LOCAL lock_timeout = '10s'; SET LOCAL synchronous_commit = on; SET LOCAL enable_seqscan = off; \
    SET LOCAL enable_bitmapscan = off";

/// The drain of one database.
pub(super) struct OutboxDrain {
    client: Client,
    node: String,
    settings: OutboxSettings,
    intent: IntentRecord,
    figures: Arc<OutboxFigures>,
    /// The queues that wait, and until when.
    waiting: HashMap<String, Instant>,
    /// The number of rows of the next batch.
    rows: usize,
    next_look: Instant,
}

/// The result of one look at the table.
enum DrainLook {
    /// Another node drains.
    Standby,
    /// No row waits, but for those of queues that wait.
    Nothing,
    /// The next look is due after this pause.
    Again(Duration),
}

impl OutboxDrain {
    pub(super) fn new(
        wheel: &Duewheel,
        intent: IntentRecord,
        (node, settings): (&str, &OutboxSettings),
        figures: Arc<OutboxFigures>,
    ) -> Self {
        OutboxDrain {
            client: wheel.client().clone(),
            node: node.to_owned(),
            settings: settings.clone(),
            intent,
            figures,
            waiting: HashMap::new(),
            rows: FIRST_ROWS,
            next_look: Instant::now(),
        }
    }

    /// Drains until it is stopped, over as many connections as that takes.
    pub(super) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let database = self.settings.name.clone();
        let mut failures = 0;
        loop {
            let ended = self.connected(&mut stop, &mut failures).await;
            let Err(error) = ended else { return };
            self.figures.errors.fetch_add(1, Relaxed);
            self.figures.set_error(Some(error.to_string()));
            if self.figures.up.swap(0, Relaxed) == 1 || failures == 0 {
                tracing::warn!(database, %error, "the outbox is not drained; this is tried again");
            } else {
                tracing::debug!(database, %error, "the outbox is still not drained");
            }
            let pause = doubled(RECONNECT.0, RECONNECT.1, failures);
            failures = failures.saturating_add(1);
            if wait(&mut stop, pause).await {
                return;
            }
        }
    }

    /// Drains over one connection, until that fails or the drain is stopped.
    async fn connected(
        &mut self,
        stop: &mut watch::Receiver<bool>,
        failures: &mut u32,
    ) -> Result<(), OutboxError> {
        let connection = connect_to_outbox(&self.settings.options).await?;
        let mut is_drainer = false;
        while !*stop.borrow() {
            is_drainer = is_drainer || self.recover(&connection).await?;
            let look = if is_drainer { self.look(&connection).await? } else { DrainLook::Standby };
            if self.figures.up.swap(1, Relaxed) == 0 && *failures > 0 {
                self.figures.set_error(None);
                tracing::info!(database = self.settings.name, "the outbox is drained again");
            }
            *failures = 0;
            let pause = match look {
                DrainLook::Standby => {
                    is_drainer = false;
                    self.figures.waiting.store(0, Relaxed);
                    self.figures.oldest_ms.store(0, Relaxed);
                    IDLE
                }
                DrainLook::Nothing => IDLE,
                DrainLook::Again(pause) => pause,
            };
            if is_drainer && Instant::now() >= self.next_look {
                self.next_look = Instant::now() + LOOK;
                is_drainer = !query(&connection, KEEP, &[(&self.node, Type::TEXT)]).await?.is_empty();
                self.count(&connection).await?;
            }
            if wait(stop, pause).await {
                break;
            }
        }
        if is_drainer {
            query(&connection, LEAVE, &[(&self.node, Type::TEXT)]).await?;
        }
        Ok(())
    }

    /// Becomes the drainer, and returns whether it is: releases the rows of the intent that are gone. A commit of the same
    /// transaction comes first, so that what it has seen is as durable as a commit is.
    async fn recover(&mut self, connection: &PgConnection) -> Result<bool, OutboxError> {
        if !begin(connection).await? {
            return Ok(false);
        }
        if query(connection, CLAIM, &[(&self.node, Type::TEXT)]).await?.is_empty() {
            rollback(connection).await?;
            return Ok(false);
        }
        let intent = self.intent.read().await?;
        let named: Vec<i64> = intent.iter().map(|row| row.seq).collect();
        let sql = "SELECT seq, id::text FROM duewheel.outbox WHERE seq = ANY($1)";
        let mut here = BTreeSet::new();
        for row in query(connection, sql, &[(&named, Type::INT8_ARRAY)]).await? {
            here.insert(RowName::read(row.try_get(0)?, row.try_get(1)?));
        }
        commit(connection).await?;
        // Rows that are still here will be named again before they can go.
        self.intent.release(&self.client, intent.difference(&here)).await?;
        self.waiting.clear();
        Ok(true)
    }

    /// Makes one drain transaction.
    async fn look(&mut self, connection: &PgConnection) -> Result<DrainLook, OutboxError> {
        if !begin(connection).await? {
            return Ok(DrainLook::Standby);
        }
        let (since, read_at) = (Instant::now(), self.client.now().engine.0);
        let now = Instant::now();
        self.waiting.retain(|_, until| *until > now);
        let rows = self.read(connection).await?;
        let took = since.elapsed();
        if rows.is_empty() {
            rollback(connection).await?;
            return Ok(if self.waiting.is_empty() { DrainLook::Nothing } else { DrainLook::Again(IDLE) });
        }
        let is_full = rows.len() >= self.rows;
        self.step(DrainStep::Read);
        let verdicts = match self.intend_and_apply(&rows, read_at).await {
            Ok(verdicts) => verdicts,
            // What was applied is recorded, and what is unknown may be: the same rows are met again.
            Err(error) if error.may_pass() => {
                rollback(connection).await?;
                self.figures.errors.fetch_add(1, Relaxed);
                tracing::debug!(database = self.settings.name, %error, "a batch of the outbox is applied again");
                return Ok(DrainLook::Again(ALL_WAIT));
            }
            Err(error) => return Err(error),
        };
        self.step(DrainStep::Applied);
        let done = self.delete(connection, &rows, &verdicts).await?;
        self.step(DrainStep::Deleted);
        commit(connection).await?;
        self.step(DrainStep::Committed);
        let all_wait = verdicts.contains(&RowVerdict::AllWait);
        self.intent.release(&self.client, &done).await?;
        self.tally(&verdicts);
        self.step(DrainStep::Released);
        self.rows = if is_full { (self.rows * 2).min(MOST_ROWS) } else { FIRST_ROWS };
        let pause = match (all_wait || self.waiting.len() > WAITING_QUEUES, is_full) {
            (true, _) => ALL_WAIT,
            (false, true) => Duration::ZERO,
            // A look that is slow, because a long transaction keeps deleted rows, has no more than half of the time.
            (false, false) => BUSY.max(took),
        };
        Ok(DrainLook::Again(pause))
    }

    /// The first rows, in order, without those of queues that wait.
    async fn read(&self, connection: &PgConnection) -> Result<Vec<OutboxRow>, OutboxError> {
        let waiting: Vec<&str> = self.waiting.keys().map(String::as_str).collect();
        let rows = self.rows.min(self.intent.capacity()).max(1);
        let rows = i64::try_from(rows).unwrap_or(1);
        let sql = format!(
            "SELECT {} FROM (SELECT *, sum(coalesce(octet_length(body), 0)) OVER (ORDER BY seq) AS total \
             FROM (SELECT * FROM duewheel.outbox WHERE queue <> ALL($1) ORDER BY seq LIMIT $2) AS first) AS summed \
             WHERE total - coalesce(octet_length(body), 0) < $3 ORDER BY seq",
            OutboxRow::COLUMNS
        );
        let params: [SqlParam<'_>; 3] =
            [(&waiting, Type::TEXT_ARRAY), (&rows, Type::INT8), (&MOST_BYTES, Type::INT8)];
        let found = query(connection, &sql, &params).await?;
        Ok(found.iter().map(OutboxRow::read).collect::<Result<_, _>>()?)
    }

    async fn intend_and_apply(
        &mut self,
        rows: &[OutboxRow],
        read_at: u64,
    ) -> Result<Vec<RowVerdict>, OutboxError> {
        self.intent.write(&rows.iter().map(|row| row.name).collect()).await?;
        self.step(DrainStep::Intended);
        self.apply(rows, read_at).await
    }

    /// Applies rows in order, and returns their verdicts; those behind the last verdict were not applied. Rows without a
    /// repeated key are submitted together. A row whose key was there before waits for the answers: if its queue waits by
    /// then, it also does.
    async fn apply(&mut self, rows: &[OutboxRow], read_at: u64) -> Result<Vec<RowVerdict>, OutboxError> {
        let since = Instant::now();
        let mut verdicts = Vec::with_capacity(rows.len());
        while let Some(left) = rows.get(verdicts.len()..).filter(|left| !left.is_empty()) {
            if self.client.now().engine.0.saturating_sub(read_at) > FRESH_MS {
                return Err(OutboxError::Stale);
            }
            if since.elapsed() > LONG || verdicts.contains(&RowVerdict::AllWait) {
                break;
            }
            let (run, _) = left.split_at(without_repeated_key(left));
            verdicts.extend(self.apply_run(run).await?);
        }
        Ok(verdicts)
    }

    /// Applies rows of which no two have the same key.
    async fn apply_run(&mut self, rows: &[OutboxRow]) -> Result<Vec<RowVerdict>, OutboxError> {
        let (mut ops, mut verdicts) = (Vec::new(), Vec::new());
        for row in rows {
            let op = match self.waiting.contains_key(&row.queue) {
                true => Err(RowVerdict::QueueWaits(0)),
                false => row.to_op(self.settings.prefixes.as_deref()),
            };
            verdicts.push(op.map(|op| ops.push(self.intent.once(op, row.name))));
        }
        let answers = if ops.is_empty() { Vec::new() } else { self.client.submit(ops)?.await };
        let mut answers = answers.into_iter();
        let mut all = Vec::with_capacity(rows.len());
        for (row, verdict) in rows.iter().zip(verdicts) {
            let verdict = match verdict {
                Ok(()) => RowVerdict::of(&answers.next().unwrap_or(Err(CallError::NO_ANSWER))?),
                Err(verdict) => verdict,
            };
            if let RowVerdict::QueueWaits(ms @ 1..) = verdict {
                self.waiting.insert(row.queue.clone(), Instant::now() + Duration::from_millis(ms));
            }
            all.push(verdict);
        }
        Ok(all)
    }

    /// Deletes the rows that are applied or rejected, and returns them.
    async fn delete(
        &self,
        connection: &PgConnection,
        rows: &[OutboxRow],
        verdicts: &[RowVerdict],
    ) -> Result<Vec<RowName>, OutboxError> {
        let (mut done, mut rejected, mut codes, mut reasons) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (row, verdict) in rows.iter().zip(verdicts) {
            match verdict {
                RowVerdict::Applied(_) => done.push(row.name),
                RowVerdict::Rejected(code, reason) => {
                    done.push(row.name);
                    rejected.push(row.name.seq);
                    codes.push(*code);
                    reasons.push(reason.as_str());
                }
                RowVerdict::QueueWaits(_) | RowVerdict::AllWait => {}
            }
        }
        if !rejected.is_empty() {
            let all =
                "seq, id, called_at, op, queue, key, body, due_at, delay_s, if_exists, headers, dedupe_id";
            let sql = format!(
                "INSERT INTO duewheel.rejected ({all}, code, reason) SELECT {all}, code, reason FROM duewheel.outbox \
                 JOIN unnest($1, $2, $3) AS refused (seq, code, reason) USING (seq) ON CONFLICT (seq) DO NOTHING"
            );
            let params: [SqlParam<'_>; 3] =
                [(&rejected, Type::INT8_ARRAY), (&codes, Type::TEXT_ARRAY), (&reasons, Type::TEXT_ARRAY)];
            query(connection, &sql, &params).await?;
            let sql = "DELETE FROM duewheel.rejected WHERE seq < \
                (SELECT seq FROM duewheel.rejected ORDER BY seq DESC OFFSET $1 LIMIT 1)";
            query(connection, sql, &[(&(REJECTED - 1), Type::INT8)]).await?;
        }
        let seqs: Vec<i64> = done.iter().map(|row| row.seq).collect();
        query(connection, "DELETE FROM duewheel.outbox WHERE seq = ANY($1)", &[(&seqs, Type::INT8_ARRAY)])
            .await?;
        Ok(done)
    }

    fn tally(&self, verdicts: &[RowVerdict]) {
        for verdict in verdicts {
            match verdict {
                RowVerdict::Applied(answered) => {
                    self.figures.applied.fetch_add(1, Relaxed);
                    if *answered == Answered::Before {
                        self.figures.replayed.fetch_add(1, Relaxed);
                    }
                }
                RowVerdict::Rejected(..) => drop(self.figures.rejected.fetch_add(1, Relaxed)),
                RowVerdict::QueueWaits(_) | RowVerdict::AllWait => {}
            }
        }
    }

    async fn count(&self, connection: &PgConnection) -> Result<(), OutboxError> {
        let sql = "SELECT (SELECT count(*) FROM (SELECT FROM duewheel.outbox LIMIT 100001) AS few), \
            (SELECT (extract(epoch FROM clock_timestamp() - called_at) * 1000)::bigint FROM duewheel.outbox \
             ORDER BY seq LIMIT 1)";
        if let Some(row) = query(connection, sql, &[]).await?.first() {
            let number = |n: Option<i64>| n.and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
            self.figures.waiting.store(number(row.try_get(0)?), Relaxed);
            self.figures.oldest_ms.store(number(row.try_get(1)?), Relaxed);
        }
        Ok(())
    }

    fn step(&self, step: DrainStep) {
        if let Some(hook) = &self.settings.on_step {
            hook(step);
        }
    }
}

/// The number of rows before the first one that has the key of one before it.
fn without_repeated_key(rows: &[OutboxRow]) -> usize {
    let mut keys = HashSet::new();
    rows.iter()
        .take_while(|row| row.key.as_deref().is_none_or(|key| keys.insert((row.queue.as_str(), key))))
        .count()
}

/// A parameter of a statement, with its type: no statement is prepared by name, so a pooler may stand in between.
type SqlParam<'a> = (&'a (dyn ToSql + Sync), Type);

async fn query(
    connection: &PgConnection,
    sql: &str,
    params: &[SqlParam<'_>],
) -> Result<Vec<tokio_postgres::Row>, OutboxError> {
    in_time(connection.client.query_typed(sql, params)).await
}

/// Begins a transaction, and returns whether it has the lock of the drainer; else it is over. The lock has a statement of
/// its own, so that the next one sees what the drainer before has committed.
async fn begin(connection: &PgConnection) -> Result<bool, OutboxError> {
    in_time(connection.client.batch_execute(BEGIN)).await?;
    let rows = query(connection, "SELECT pg_try_advisory_xact_lock($1)", &[(&LOCK, Type::INT8)]).await?;
    if rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false)) {
        return Ok(true);
    }
    rollback(connection).await?;
    Ok(false)
}

async fn rollback(connection: &PgConnection) -> Result<(), OutboxError> {
    in_time(connection.client.batch_execute("ROLLBACK")).await
}

/// Commits. After an error the outcome is unknown.
async fn commit(connection: &PgConnection) -> Result<(), OutboxError> {
    let _ = connection.has_warned(); // of a statement before
    in_time(connection.client.batch_execute("COMMIT")).await?;
    if connection.has_warned() { Err(OutboxError::Warned) } else { Ok(()) }
}

/// Waits, and returns whether the drain is to stop.
async fn wait(stop: &mut watch::Receiver<bool>, pause: Duration) -> bool {
    tokio::time::timeout(pause, stop.wait_for(|stop| *stop)).await.is_ok()
}
