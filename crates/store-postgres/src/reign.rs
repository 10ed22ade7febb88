//! Ownership of a shard: acquiring it, and giving it back.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use duewheel_core::Epoch;
use duewheel_core::store::{ErrorKind, Node, StoreError, Waker};
use duewheel_store_medium::{
    Acquired, EndedOwners, LeaseFence, MediumShared, boot_ms, locked, millis, random, read_clocks,
};
use tokio_postgres::types::Type;

use crate::calls::{self, CallFailure, Database, odd};

/// Epochs, numbers of nodes, ids and tokens count from the start of 2020, in seconds from 1970.
pub(crate) const FIRST_SECOND: i64 = 1_577_836_800;
/// Ids for each second of the server's clock: after each change of the owner, ids continue at the server's time times
/// this number. So a database that lost its newest changes gives no id again, as long as fewer ids than this are given
/// each second. They stay below 2^53 until the year 2088.
const IDS_A_SECOND: u64 = 1 << 22;
/// Lease tokens continue from the server's microseconds times this number, for the same reason. They stay below 2^64
/// until the year 2162.
const TOKENS_A_MICROSECOND: u64 = 1 << 12;

/// An owner's hold of a shard.
#[derive(Debug)]
pub(crate) struct PgReign {
    pub(crate) shard: i32,
    /// A random number for each acquisition. Only the owner with it may change the shard's files.
    pub(crate) mark: i64,
    pub(crate) epoch: Epoch,
    /// When an owner last wrote its clocks to the journal, by the server's clock, as of the acquisition.
    pub(crate) noted: Option<SystemTime>,
    pub(crate) fence: LeaseFence,
}

/// The statement that finds the row of a shard, and keeps its owner from changing anything until the transaction ends.
const LOOK: &str = "SELECT s.cluster, s.epoch, l.mark, l.node, \
    CASE WHEN l.shard IS NULL OR l.mark = ANY($2) THEN 0 \
      ELSE LEAST(EXTRACT(EPOCH FROM l.until - clock_timestamp()) * 1000, l.lease_ms)::float8 END, \
    (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint, (SELECT shards FROM {s}.cluster), s.refused, s.given_up \
    FROM {s}.shard s LEFT JOIN {s}.lease l ON l.shard = s.shard WHERE s.shard = $1 FOR UPDATE OF s";
/// How long ago an owner last wrote its clocks to the journal, and when. A file of the journal is known by its name.
const NOTED: &str = "SELECT (EXTRACT(EPOCH FROM clock_timestamp() - max(p.noted)) * 1000)::bigint, max(p.noted) \
    FROM {s}.piece p JOIN {s}.file f ON f.shard = p.shard AND f.id = p.file WHERE p.shard = $1 AND f.name LIKE 'journal/%'";
/// Whether the shard has had files, which are gone.
const TAKE: &str = "UPDATE {s}.shard s SET epoch = $2, mark = $3, used = s.used OR has.file OR has.turn \
    FROM (SELECT EXISTS (SELECT 1 FROM {s}.file WHERE shard = $1) AS file, \
      EXISTS (SELECT 1 FROM {s}.turn WHERE shard = $1 AND n > 0) AS turn) AS has \
    WHERE s.shard = $1 RETURNING s.used AND NOT has.file";
/// A renewal that nobody saw yet may have come first.
const HOLD: &str = "INSERT INTO {s}.lease (shard, mark, node, number, advertise, until, lease_ms) \
    VALUES ($1, $2, $3, $4, $5, clock_timestamp() + make_interval(secs => $6::float8 / 1000), $6) \
    ON CONFLICT (shard) DO UPDATE SET mark = excluded.mark, node = excluded.node, number = excluded.number, \
    advertise = excluded.advertise, until = excluded.until, lease_ms = excluded.lease_ms \
    WHERE lease.until <= clock_timestamp() OR lease.mark = ANY($7) RETURNING 1";
const FIRST_TURN: &str = "INSERT INTO {s}.turn (shard, mark, n) VALUES ($1, $2, 0) \
    ON CONFLICT (shard) DO UPDATE SET mark = excluded.mark, n = 0";
const GIVE_BACK: &str = "UPDATE {s}.lease SET until = 'epoch' WHERE shard = $1 AND mark = $2";

/// Acquires a shard of this cluster, if no lease of another owner runs.
///
/// `known` is the greatest epoch of it that this process has seen.
pub(crate) async fn acquire(
    database: &Database,
    shard: i32,
    node: &Node,
    cluster: &str,
    (known, ended): (u32, &EndedOwners<i64>),
) -> Result<(PgReign, Acquired), StoreError> {
    let mark = i64::from_le_bytes(random::<8>()?);
    let asked = boot_ms();
    let limit = database.options.lease.max(Duration::from_secs(1));
    let taking = take(database, shard, node, cluster, (mark, known, ended.all()));
    let late = |_| StoreError::new(ErrorKind::Unavailable, "PostgreSQL does not answer in time");
    let taken = tokio::time::timeout(limit, taking).await.map_err(late).and_then(|taken| taken);
    match taken {
        Ok((epoch, noted, acquired)) => {
            let fence = LeaseFence::new(asked, database.options.lease);
            Ok((PgReign { shard, mark, epoch, noted, fence }, acquired))
        }
        Err(error) => {
            // The shard may have been acquired although this failed. No answer of that owner is ever sent.
            ended.note(mark);
            Err(error)
        }
    }
}

async fn take(
    database: &Database,
    shard: i32,
    node: &Node,
    cluster: &str,
    (mark, known, ended): (i64, u32, Vec<i64>),
) -> Result<(Epoch, Option<SystemTime>, Acquired), StoreError> {
    let mut lent = database.connection().await?;
    let failed = |error: tokio_postgres::Error| StoreError::from(CallFailure::from(error));
    let transaction = database.begin(&mut lent).await?;
    let of_shard = (&shard as _, Type::INT4);
    let look = database.sql(LOOK);
    let rows = transaction.query_typed(&look, &[of_shard.clone(), (&ended, Type::INT8_ARRAY)]).await;
    let rows = rows.map_err(failed)?;
    let Some(row) = rows.first() else {
        let what =
            format_args!("shard {shard} is not there, although the cluster is: the database has lost rows");
        return Err(StoreError::new(ErrorKind::Corrupt, what));
    };
    let (of, epoch): (String, i64) = (row.get(0), row.get(1));
    let (holder, left): (Option<String>, f64) = (row.get(3), row.get(4));
    let (micros, shards): (i64, Option<i32>) = (row.get(5), row.get(6));
    let given_up = u32::try_from(row.get::<_, i64>(8)).map_err(|_| odd("an epoch"))?;
    if of != cluster {
        let what = format_args!(
            "shard {shard} belongs to cluster {of:?}, and not to {cluster:?}, which this node has joined"
        );
        return Err(StoreError::new(ErrorKind::Corrupt, what));
    }
    if let Some(why) = row.get::<_, Option<String>>(7) {
        transaction.rollback().await.map_err(failed)?;
        lent.give_back();
        return Err(StoreError::new(ErrorKind::Corrupt, format_args!("shard {shard}: {why}")));
    }
    if left > 0.0 {
        transaction.rollback().await.map_err(failed)?;
        lent.give_back();
        let holder = holder.unwrap_or_default();
        let what = format_args!("node {holder:?} has the shard; its lease runs for {left:.0} ms");
        return Err(StoreError::new(ErrorKind::Fenced, what));
    }
    let noted = transaction
        .query_typed(&database.sql(NOTED), std::slice::from_ref(&of_shard))
        .await
        .map_err(failed)?;
    let taken = read_clocks();
    let (noted_ms, noted): (Option<i64>, _) =
        noted.first().map_or((None, None), |row| (row.get(0), row.get(1)));
    let is_new = epoch == 0 && known == 0;
    // Seconds, so that a database that was set back gives no earlier epoch.
    let since = u64::try_from(micros - FIRST_SECOND * 1_000_000).unwrap_or(0);
    let epoch = (epoch + 1).max(i64::from(known) + 1).max(i64::try_from(since / 1_000_000).unwrap_or(0));
    let given = u32::try_from(epoch).map_err(|_| odd("an epoch"))?;
    let lease = i64::try_from(millis(database.options.lease)).unwrap_or(i64::MAX);
    let (name, advertise, number) = (&*node.name, &*node.advertise, i64::from(node.number));
    let of_mark = (&mark as _, Type::INT8);
    let taking = [of_shard.clone(), (&epoch as _, Type::INT8), of_mark.clone()];
    let had = transaction.query_typed(&database.sql(TAKE), &taking).await.map_err(failed)?;
    if had.first().is_some_and(|row| row.get(0)) {
        transaction.rollback().await.map_err(failed)?;
        lent.give_back();
        let what = format_args!(
            "shard {shard} has had files, and the database has none of them any more: restore its tables, or give up what is \
             lost by `duewheel cluster reset`"
        );
        return Err(StoreError::new(ErrorKind::Corrupt, what));
    }
    let first_turn = [of_shard.clone(), of_mark.clone()];
    transaction.query_typed(&database.sql(FIRST_TURN), &first_turn).await.map_err(failed)?;
    let holding = [
        of_shard.clone(),
        of_mark,
        (&name as _, Type::TEXT),
        (&number as _, Type::INT8),
        (&advertise as _, Type::TEXT),
        (&lease as _, Type::INT8),
        (&ended as _, Type::INT8_ARRAY),
    ];
    if transaction.query_typed(&database.sql(HOLD), &holding).await.map_err(failed)?.is_empty() {
        transaction.rollback().await.map_err(failed)?;
        lent.give_back();
        return Err(StoreError::new(ErrorKind::Fenced, "the shard's owner has renewed its lease meanwhile"));
    }
    transaction.commit().await.map_err(failed)?;
    let has_warned = lent.has_warned();
    lent.give_back();
    if has_warned {
        let what = "the commit returned with a warning: a standby may not know the new owner";
        return Err(StoreError::new(ErrorKind::Unavailable, what));
    }
    Ok((
        Epoch(given),
        noted,
        Acquired {
            shard: shard.unsigned_abs(),
            first_id: if is_new { 0 } else { since / 1_000_000 * IDS_A_SECOND },
            tokens: since.saturating_mul(TOKENS_A_MICROSECOND),
            noted_ago: noted_ms.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0))),
            given_up: Epoch(given_up),
            taken,
            shards: shards.and_then(|shards| u32::try_from(shards).ok()).unwrap_or(1),
        },
    ))
}

/// Gives the lease back, so that the next owner need not wait for its end.
pub(crate) async fn give_back(database: &Database, reign: &PgReign) -> Result<(), StoreError> {
    let params = [(&reign.shard as _, Type::INT4), (&reign.mark as _, Type::INT8)];
    database.call(&database.sql(GIVE_BACK), &params).await?;
    Ok(())
}

/// State that the shards of a process share.
#[derive(Clone, Debug)]
pub(crate) struct OfProcess {
    pub(crate) database: Arc<Database>,
    pub(crate) shared: MediumShared,
    pub(crate) leases: Arc<PgLeases>,
    pub(crate) ended: Arc<EndedOwners<i64>>,
}

// Renews the leases of all shards of this process together.

const RENEW: &str = "UPDATE {s}.lease l SET until = clock_timestamp() + make_interval(secs => l.lease_ms::float8 / 1000) \
    FROM unnest($1::int4[], $2::int8[]) AS held(shard, mark), {s}.shard s \
    WHERE l.shard = held.shard AND l.mark = held.mark AND s.shard = held.shard AND s.mark = held.mark \
    AND l.until > clock_timestamp() RETURNING l.mark";
/// A lease is renewed so often in its time.
const RENEWALS: u32 = 5;

/// The shards that this process has.
#[derive(Default)]
pub(crate) struct PgLeases(Mutex<BTreeMap<i64, (Arc<PgReign>, Waker)>>);

impl PgLeases {
    /// Renews the lease of this owner from now on; its store is woken when it is lost.
    pub(crate) fn add(&self, reign: &Arc<PgReign>, waker: Waker) {
        self.held().insert(reign.mark, (Arc::clone(reign), waker));
    }

    /// Stops renewing.
    pub(crate) fn remove(&self, mark: i64) {
        self.held().remove(&mark);
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<i64, (Arc<PgReign>, Waker)>> {
        locked(&self.0)
    }

    /// Starts the renewals, which end with the last use of these leases.
    pub(crate) fn start(self: &Arc<Self>, database: &Arc<Database>) -> Result<(), StoreError> {
        let (leases, database) = (Arc::downgrade(self), Arc::clone(database));
        calls::spawn(async move {
            let mut pause = tokio::time::interval(database.options.lease / RENEWALS);
            pause.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                pause.tick().await;
                let Some(leases) = leases.upgrade() else { return };
                leases.renew(&database).await;
            }
        })
    }

    async fn renew(&self, database: &Database) {
        let held: Vec<Arc<PgReign>> = self.held().values().map(|(reign, _)| Arc::clone(reign)).collect();
        if held.is_empty() {
            return;
        }
        let shards: Vec<i32> = held.iter().map(|reign| reign.shard).collect();
        let marks: Vec<i64> = held.iter().map(|reign| reign.mark).collect();
        let asked = boot_ms();
        let params = [(&shards as _, Type::INT4_ARRAY), (&marks as _, Type::INT8_ARRAY)];
        match database.heartbeat(&database.sql(RENEW), &params).await {
            Ok(rows) => {
                let renewed: Vec<i64> = rows.iter().filter_map(|row| row.try_get(0).ok()).collect();
                for reign in &held {
                    if renewed.contains(&reign.mark) {
                        reign.fence.renewed(asked);
                    } else {
                        let what = "the lease is over, another node has the shard, or its rows are gone";
                        reign.fence.lose(StoreError::new(ErrorKind::Fenced, what));
                    }
                }
            }
            Err(failure) => tracing::debug!(error = %failure.error, "leases could not be renewed"),
        }
        let over = |reign: &PgReign| reign.fence.check().is_err();
        let wakers: Vec<Waker> = {
            let held = self.held();
            held.values().filter(|(reign, _)| over(reign)).map(|(_, waker)| Arc::clone(waker)).collect()
        };
        wakers.iter().for_each(|waker| waker());
    }
}

impl fmt::Debug for PgLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgLeases").field("held", &self.held().len()).finish()
    }
}
