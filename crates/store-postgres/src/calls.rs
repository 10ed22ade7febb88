//! Calls to the server, each with a time limit.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use deadpool::managed::{Object, PoolError};
use duewheel_core::Lsn;
use duewheel_core::store::{ErrorKind, Level, StoreError};
use duewheel_store_medium::{locked, millis};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, Transaction};

use crate::fault::CallFailure;
use crate::options::Options;
use crate::pool::{self, PgManager, PgPool};

/// A parameter of a statement, with its type: no statement is prepared by name, so a pooler may stand in between.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// The pause before a call is repeated.
const PAUSES_MS: [u64; 5] = [20, 50, 100, 200, 400];

/// Connections for calls that say that this process is alive: renewals of leases and of the membership.
const HEARTBEATS: usize = 2;

/// The statements of [`Database::clamp`].
const CLAMPS: [&str; 2] = [
    "UPDATE {s}.lease SET until = clock_timestamp() + make_interval(secs => lease_ms::float8 / 1000) \
     WHERE until > clock_timestamp() + make_interval(secs => lease_ms::float8 / 1000)",
    "UPDATE {s}.node SET until = clock_timestamp() + make_interval(secs => lease_ms::float8 / 1000) \
     WHERE until > clock_timestamp() + make_interval(secs => lease_ms::float8 / 1000)",
];

/// A connection that is lent for some statements.
pub(crate) struct Lent {
    connection: Option<Object<PgManager>>,
    limit: Duration,
}

impl Lent {
    pub(crate) fn client(&mut self) -> Result<&mut Client, CallFailure> {
        let client = self.connection.as_mut().map(|connection| &mut connection.client);
        client.ok_or_else(|| CallFailure::passing("the connection was given back"))
    }

    /// Whether the server has warned since the last call.
    pub(crate) fn has_warned(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.has_warned())
    }

    /// Lets others use the connection: each of its statements had its answer.
    pub(crate) fn give_back(mut self) {
        drop(self.connection.take());
    }
}

impl Drop for Lent {
    /// Cancels the work that the server still does for the connection.
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            Object::take(connection).give_up(self.limit);
        }
    }
}

/// The database of this process.
pub(crate) struct Database {
    pub(crate) options: Options,
    pool: PgPool,
    /// For calls that say that this process is alive. They must not wait behind others.
    heartbeats: PgPool,
    level: Mutex<Option<Level>>,
}

impl Database {
    pub(crate) fn new(options: Options) -> Result<Arc<Self>, StoreError> {
        let pool = pool::pool(&options, options.connections)?;
        let heartbeats = pool::pool(&options, HEARTBEATS)?;
        Ok(Arc::new(Database { options, pool, heartbeats, level: Mutex::default() }))
    }

    /// The level of the last write to a journal, or, before the first one, of the first connection.
    pub(crate) fn level(&self) -> Level {
        locked(&self.level).unwrap_or(Level::Fsync)
    }

    pub(crate) fn note_level(&self, level: Level) {
        *locked(&self.level) = Some(level);
    }

    /// The time limit of a call: an answer after the end of a lease is useless.
    pub(crate) fn time_limit(&self) -> Duration {
        self.options.lease.max(Duration::from_secs(1))
    }

    /// A statement with the names of the tables in it.
    pub(crate) fn sql(&self, statement: &str) -> String {
        statement.replace("{s}", &self.options.schema)
    }

    async fn connection_of(&self, pool: &PgPool) -> Result<Object<PgManager>, CallFailure> {
        let got = tokio::time::timeout(self.time_limit(), pool.get()).await;
        let connection = match got {
            Ok(Ok(connection)) => connection,
            Ok(Err(PoolError::Backend(failure))) => return Err(failure),
            Ok(Err(error)) => return Err(CallFailure::passing(format_args!("PostgreSQL: {error}"))),
            Err(_) => return Err(CallFailure::passing("PostgreSQL cannot be reached in time")),
        };
        let mut level = locked(&self.level);
        level.get_or_insert_with(|| connection.settings.level());
        drop(level);
        Ok(connection)
    }

    /// A connection for several statements. It is not used again unless [`Lent::give_back`] is called, so nobody waits
    /// behind a statement whose answer was not awaited.
    pub(crate) async fn connection(&self) -> Result<Lent, CallFailure> {
        Ok(Lent { connection: Some(self.connection_of(&self.pool).await?), limit: self.time_limit() })
    }

    /// Begins a transaction that the server ends when this process does not go on with it, so that no lock of it stays.
    pub(crate) async fn begin<'a>(&self, lent: &'a mut Lent) -> Result<Transaction<'a>, CallFailure> {
        let transaction = self.begin_long(lent).await?;
        let limit = millis(self.time_limit());
        transaction.batch_execute(&format!("SET LOCAL statement_timeout = {limit}")).await?;
        Ok(transaction)
    }

    /// Begins a transaction like [`Database::begin`], whose statements may take long.
    pub(crate) async fn begin_long<'a>(&self, lent: &'a mut Lent) -> Result<Transaction<'a>, CallFailure> {
        let transaction = lent.client()?.transaction().await?;
        let limit = millis(self.time_limit());
        let limits = format!(
            "SET LOCAL lock_timeout = {limit}; SET LOCAL idle_in_transaction_session_timeout = {limit}"
        );
        transaction.batch_execute(&limits).await?;
        Ok(transaction)
    }

    /// Makes one statement, which is a transaction of its own.
    pub(crate) async fn call(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, CallFailure> {
        self.call_on(&self.pool, sql, params).await
    }

    /// Makes a statement that says that this process is alive, on a connection of its own.
    pub(crate) async fn heartbeat(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, CallFailure> {
        self.call_on(&self.heartbeats, sql, params).await
    }

    async fn call_on(&self, pool: &PgPool, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, CallFailure> {
        let mut lent = Lent { connection: Some(self.connection_of(pool).await?), limit: self.time_limit() };
        let asked = lent.client()?.query_typed(sql, params);
        let answer = tokio::time::timeout(self.time_limit(), asked).await;
        match answer {
            // The statement may go on in the server; its connection is not used again.
            Err(_) => Err(CallFailure::passing("PostgreSQL does not answer in time")),
            Ok(answer) => {
                let has_warned = lent.has_warned();
                lent.give_back();
                let rows = answer?;
                if has_warned {
                    // The call is repeated: once a later commit has reached the standby, this one also has.
                    let what = "the commit returned with a warning: it may not have reached its level";
                    return Err(CallFailure::passing(what));
                }
                Ok(rows)
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

    /// Bounds the ends of all leases of shards and nodes. After a backward step of the server's clock, or at a standby whose
    /// clock is behind, they lie further in the future than a lease lasts.
    pub(crate) async fn clamp(&self) -> Result<(), CallFailure> {
        for clamp in CLAMPS {
            self.heartbeat(&self.sql(clamp), &[]).await?;
        }
        Ok(())
    }

    /// How safely the server keeps changes, in a sentence for its operator; `None`: as safely as one server can.
    pub(crate) async fn inspect(&self) -> Result<Option<String>, StoreError> {
        let lent = self.connection().await?;
        let warning = lent.connection.as_ref().and_then(|connection| connection.settings.warning());
        lent.give_back();
        Ok(warning)
    }

    /// Makes the tables, and the schema if it is missing: that takes a right on the database.
    pub(crate) async fn init(&self) -> Result<(), StoreError> {
        let schema = &self.options.schema;
        let rows = self.call("SELECT to_regnamespace($1) IS NOT NULL", &[(schema, Type::TEXT)]).await?;
        let is_there = rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false));
        let sql = match is_there {
            true => crate::schema::tables(schema),
            false => crate::schema::schema(schema),
        };
        let mut lent = self.connection().await?;
        let made = lent.client()?.batch_execute(&sql).await;
        lent.give_back();
        Ok(made.map_err(CallFailure::from)?)
    }

    /// Whether the tables are there: all were made in one transaction.
    pub(crate) async fn has_tables(&self) -> Result<bool, StoreError> {
        let cluster = format!("{}.cluster", self.options.schema);
        let rows = self.call("SELECT to_regclass($1) IS NOT NULL", &[(&cluster, Type::TEXT)]).await?;
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
