//! Restores a backup to PostgreSQL.
//!
//! The format of the cluster's row says that a restore has begun, from before the first shard is filled until the last
//! is complete. A restore that has not ended is begun anew: its rows are removed in one transaction, so that an earlier
//! restore that still runs no longer finds its shards.

use std::sync::Arc;

use duewheel_core::ShardId;
use duewheel_core::store::{ErrorKind, Node, PLACEMENT, StoreError, Waker};
use duewheel_store_medium::{FillFolder, MediumStore, RestoreTarget, random};
use tokio_postgres::types::Type;

use crate::calls::{Database, Param};
use crate::coordinator::{PostgresCoordinator, column, failed, new_id};
use crate::fault::odd;
use crate::pool;
use crate::schema::{FORMAT, RESTORING, check_format};

const LOOK: &str = "SELECT format, shards, (SELECT count(*) FROM {s}.node WHERE until > clock_timestamp()) \
    FROM {s}.cluster FOR UPDATE";
const REMAINS: &str = "SELECT EXISTS (SELECT 1 FROM {s}.shard) OR EXISTS (SELECT 1 FROM {s}.file)";
const LEASES: &str = "SELECT shard, (EXTRACT(EPOCH FROM until - clock_timestamp()) * 1000)::bigint FROM {s}.lease \
    WHERE until > clock_timestamp() ORDER BY shard LIMIT 1";
const EPOCH: &str = "SELECT COALESCE(max(epoch), 0) FROM {s}.shard";
const REMOVE: [&str; 6] = [
    "DELETE FROM {s}.shard",
    "DELETE FROM {s}.turn",
    "DELETE FROM {s}.lease",
    "DELETE FROM {s}.file",
    "DELETE FROM {s}.piece",
    "DELETE FROM {s}.cluster",
];
const CREATE: &str = "INSERT INTO {s}.cluster (format, id, shards, placement, secret, last_number) \
    VALUES ($1, $2, $3, $4, $5, 0) ON CONFLICT DO NOTHING RETURNING 1";
const CREATE_SHARDS: &str = "INSERT INTO {s}.shard (shard, cluster, epoch, mark) \
    SELECT n, $1, $3, 0 FROM generate_series(0, $2 - 1) AS n";
const END: &str = "UPDATE {s}.cluster SET format = $1 WHERE id = $2 AND format IN ($1, $3) RETURNING 1";

impl RestoreTarget for PostgresCoordinator {
    fn begin_restore(&self, shards: u32) -> Result<(), StoreError> {
        let database = Arc::clone(self.database());
        let id = pool::wait_for(async move { begin(&database, shards).await })?;
        self.set_joined(id, 0);
        Ok(())
    }

    fn restore_shard(
        &self,
        shard: ShardId,
        waker: Waker,
        fill: FillFolder<'_>,
    ) -> Result<MediumStore, StoreError> {
        let node = Node { name: "duewheel restore".into(), advertise: "".into(), number: 0 };
        let (medium, acquired) = self.acquire(&node, shard, Arc::clone(&waker))?;
        MediumStore::restore(medium, self.shared(), self.options().log.clone(), &acquired, waker, fill)
    }

    fn end_restore(&self) -> Result<(), StoreError> {
        let closed = || StoreError::new(ErrorKind::Closed, "no restore has begun");
        let (id, database) = (self.joined().ok_or_else(closed)?, Arc::clone(self.database()));
        pool::wait_for(async move {
            let params: [Param<'_>; 3] = [(&FORMAT, Type::INT4), (&id, Type::TEXT), (&RESTORING, Type::INT4)];
            if database.call(&database.sql(END), &params).await?.is_empty() {
                let what = "another restore of the store has begun since, or its tables were emptied";
                return Err(StoreError::new(ErrorKind::Fenced, what));
            }
            Ok(())
        })
    }
}

/// Makes a cluster that no node can join, in place of that of a restore that has not ended. Returns its id.
async fn begin(database: &Database, shards: u32) -> Result<String, StoreError> {
    if !database.has_tables().await? {
        database.init().await?;
    }
    database.clamp().await?;
    let mut lent = database.connection().await?;
    let transaction = database.begin_long(&mut lent).await?;
    let ask = async |sql: &str, params: &[Param<'_>]| {
        transaction.query_typed(&database.sql(sql), params).await.map_err(failed)
    };
    let found = ask(LOOK, &[]).await?;
    match found.first() {
        Some(row) if column::<i32>(row, 0)? == RESTORING => {}
        Some(row) => {
            check_format(column(row, 0)?)?;
            let (shards, nodes): (i32, i64) = (column(row, 1)?, column(row, 2)?);
            return Err(there(format_args!(
                "a cluster of {shards} shards, in which {nodes} nodes take part"
            )));
        }
        None => {
            let remains = ask(REMAINS, &[]).await?;
            if column(remains.first().ok_or_else(|| odd("a look"))?, 0)? {
                return Err(there(format_args!("shards or files without their cluster")));
            }
        }
    }
    if let Some(row) = ask(LEASES, &[]).await?.first() {
        let (shard, left): (i32, i64) = (column(row, 0)?, column(row, 1)?);
        let what = format_args!(
            "another process restores the store, or did until a moment ago: its lease of shard {shard} runs for {left} ms"
        );
        return Err(StoreError::new(ErrorKind::Fenced, what));
    }
    let epochs = ask(EPOCH, &[]).await?;
    let epoch: i64 = column(epochs.first().ok_or_else(|| odd("an epoch"))?, 0)?;
    for removal in REMOVE {
        ask(removal, &[]).await?;
    }
    let (id, secret) = (new_id()?, &random::<32>()?[..]);
    let shards = i32::try_from(shards).map_err(|_| odd("a number"))?;
    let placement = i32::try_from(PLACEMENT).unwrap_or(i32::MAX);
    let params: [Param<'_>; 5] = [
        (&RESTORING, Type::INT4),
        (&id, Type::TEXT),
        (&shards, Type::INT4),
        (&placement, Type::INT4),
        (&secret, Type::BYTEA),
    ];
    if ask(CREATE, &params).await?.is_empty() {
        return Err(there(format_args!("another process has made it just now")));
    }
    let params: [Param<'_>; 3] = [(&id, Type::TEXT), (&shards, Type::INT4), (&epoch, Type::INT8)];
    ask(CREATE_SHARDS, &params).await?;
    transaction.commit().await.map_err(failed)?;
    let has_warned = lent.has_warned();
    lent.give_back();
    if has_warned {
        let what = "the commit returned with a warning: a standby may not know that the restore has begun";
        return Err(StoreError::new(ErrorKind::Unavailable, what));
    }
    Ok(id)
}

/// The refusal of a restore to a store that exists.
fn there(what: std::fmt::Arguments<'_>) -> StoreError {
    let what = format_args!(
        "there is a store already: {what}. A backup is restored to an empty schema, say under a --postgres-schema of its \
         own"
    );
    StoreError::new(ErrorKind::Corrupt, what)
}
