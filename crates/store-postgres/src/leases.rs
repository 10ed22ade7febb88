//! Renews the leases of all shards of this process together.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use duewheel_core::store::{ErrorKind, StoreError, Waker};
use duewheel_store_medium::{boot_ms, locked};
use tokio_postgres::types::Type;

use crate::calls::Database;
use crate::pool;
use crate::reign::PgReign;

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
        pool::spawn(async move {
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
