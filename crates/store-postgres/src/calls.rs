//! Calls to the server, each with a time limit.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool::managed::{Object, PoolError};
use duewheel_core::Lsn;
use duewheel_core::store::{ErrorKind, Level, StoreError};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::fault::CallFailure;
use crate::options::Options;
use crate::pool::{self, PgManager, PgPool};

/// A parameter of a statement, with its type: no statement is prepared by name, so a pooler may stand in between.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// The pause before a call is repeated.
const PAUSES_MS: [u64; 5] = [20, 50, 100, 200, 400];

/// The database of this process.
pub(crate) struct Database {
    pub(crate) options: Options,
    pool: PgPool,
    level: Mutex<Level>,
}

impl Database {
    pub(crate) fn new(options: Options) -> Result<Arc<Self>, StoreError> {
        let pool = pool::pool(&options)?;
        Ok(Arc::new(Database { options, pool, level: Mutex::new(Level::Fsync) }))
    }

    /// The level of the connection that was used last.
    pub(crate) fn level(&self) -> Level {
        *self.level.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time limit of a call: an answer after the end of a lease is useless.
    fn time_limit(&self) -> Duration {
        self.options.lease.max(Duration::from_secs(1))
    }

    /// A statement with the names of the tables in it.
    pub(crate) fn sql(&self, statement: &str) -> String {
        statement.replace("{s}", &self.options.schema)
    }

    pub(crate) async fn connection(&self) -> Result<Object<PgManager>, CallFailure> {
        let got = tokio::time::timeout(self.time_limit(), self.pool.get()).await;
        let connection = match got {
            Ok(Ok(connection)) => connection,
            Ok(Err(PoolError::Backend(failure))) => return Err(failure),
            Ok(Err(error)) => return Err(CallFailure::passing(format_args!("PostgreSQL: {error}"))),
            Err(_) => return Err(CallFailure::passing("PostgreSQL cannot be reached in time")),
        };
        *self.level.lock().unwrap_or_else(PoisonError::into_inner) = connection.settings.level();
        Ok(connection)
    }

    /// Makes one statement, which is a transaction of its own.
    pub(crate) async fn call(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, CallFailure> {
        let connection = self.connection().await?;
        let answer =
            tokio::time::timeout(self.time_limit(), connection.client.query_typed(sql, params)).await;
        match answer {
            Ok(Ok(rows)) if connection.has_warned() => {
                drop(rows);
                // It is repeated: once a later commit has reached the standby, this one has, too.
                Err(CallFailure::passing(
                    "the commit returned with a warning: it may not have reached its level",
                ))
            }
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => {
                // The statement may go on in the server; its connection is not used again.
                drop(Object::take(connection));
                Err(CallFailure::passing("PostgreSQL does not answer in time"))
            }
        }
    }

    /// Makes a statement that may be repeated until it succeeds, fails for good, or `ends` says that it is too late.
    pub(crate) async fn insist(
        &self,
        sql: &str,
        params: &[Param<'_>],
        ends: impl Fn() -> Result<(), StoreError>,
        mut failed: impl FnMut(&StoreError),
    ) -> Result<Vec<Row>, StoreError> {
        let mut pauses = PAUSES_MS.iter().copied();
        ends().map_err(|late| late.with_nothing_from(Lsn(0)))?; // it was not sent
        loop {
            match self.call(sql, params).await {
                Ok(rows) => return Ok(rows),
                Err(CallFailure { error, may_pass: false }) => return Err(error),
                Err(CallFailure { error, .. }) => {
                    failed(&error);
                    tracing::debug!(%error, "a statement is repeated");
                    let pause = Duration::from_millis(pauses.next().unwrap_or(500));
                    tokio::time::sleep(pause).await;
                    ends().map_err(|late| {
                        StoreError::new(late.kind(), format_args!("{late}; before: {error}"))
                    })?;
                }
            }
        }
    }

    /// How safely the server keeps changes, in a sentence for its operator; `None`: as safely as one server can.
    pub(crate) async fn inspect(&self) -> Result<Option<String>, StoreError> {
        let connection = self.connection().await?;
        Ok(connection.settings.warning())
    }

    /// Makes the tables.
    pub(crate) async fn init(&self) -> Result<(), StoreError> {
        let connection = self.connection().await?;
        let made = connection.client.batch_execute(&crate::schema::schema(&self.options.schema)).await;
        Ok(made.map_err(CallFailure::from)?)
    }

    /// Whether the tables are there.
    pub(crate) async fn has_tables(&self) -> Result<bool, StoreError> {
        let name = format!("{}.piece", self.options.schema);
        let rows = self.call("SELECT to_regclass($1) IS NOT NULL", &[(&name, Type::TEXT)]).await?;
        let there = rows.first().and_then(|row| row.try_get::<_, bool>(0).ok());
        there.ok_or_else(|| {
            StoreError::new(ErrorKind::Unavailable, "PostgreSQL does not say whether the tables are there")
        })
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("options", &self.options).finish_non_exhaustive()
    }
}
