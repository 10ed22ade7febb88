//! Calls to the server, each with a time limit.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use deadpool::managed::{self, Metrics, Object, PoolError, RecycleError, RecycleResult};
use duewheel_core::Lsn;
use duewheel_core::store::{ErrorKind, Level, StoreError};
use duewheel_store_medium::{locked, millis};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, CancelToken, Client, Connection, NoTls, Row, Socket, Transaction};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::options::Options;
use crate::schema::{CommitSettings, SETTINGS};

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
        let connections = pool(&options, options.connections)?;
        let heartbeats = pool(&options, HEARTBEATS)?;
        Ok(Arc::new(Database { options, pool: connections, heartbeats, level: Mutex::default() }))
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

// Errors of PostgreSQL as those of a store.

/// A call that did not give its answer.
#[derive(Clone, Debug)]
pub(crate) struct CallFailure {
    pub(crate) error: StoreError,
    /// Whether the same call may succeed a little later; it may have been carried out.
    pub(crate) may_pass: bool,
}

impl CallFailure {
    pub(crate) fn passing(what: impl fmt::Display) -> Self {
        CallFailure { error: StoreError::new(ErrorKind::Unavailable, what), may_pass: true }
    }

    pub(crate) fn lasting(kind: ErrorKind, what: impl fmt::Display) -> Self {
        CallFailure { error: StoreError::new(kind, what), may_pass: false }
    }
}

impl fmt::Display for CallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.error)
    }
}

impl From<CallFailure> for StoreError {
    fn from(failure: CallFailure) -> Self {
        failure.error
    }
}

impl From<tokio_postgres::Error> for CallFailure {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(refusal) = error.as_db_error() else {
            let cause =
                std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            return CallFailure::passing(format_args!("PostgreSQL: {error}{cause}"));
        };
        let code = refusal.code();
        let what = format!("PostgreSQL: {} ({})", refusal.message(), code.code());
        let class = &code.code()[..2];
        let missing = [SqlState::UNDEFINED_TABLE, SqlState::INVALID_SCHEMA_NAME];
        if missing.contains(code) {
            return CallFailure::lasting(
                ErrorKind::Corrupt,
                format_args!("{what}: tables are not there; `duewheel store init` makes them"),
            );
        }
        if *code == SqlState::DISK_FULL || *code == SqlState::OUT_OF_MEMORY {
            return CallFailure { error: StoreError::new(ErrorKind::Full, what), may_pass: true };
        }
        // Another node makes the tables at the same moment.
        let made = [SqlState::DUPLICATE_SCHEMA, SqlState::DUPLICATE_TABLE, SqlState::DUPLICATE_OBJECT];
        if made.contains(code) {
            return CallFailure::passing(what);
        }
        if *code == SqlState::INSUFFICIENT_PRIVILEGE {
            return CallFailure::lasting(
                ErrorKind::Corrupt,
                format_args!(
                    "{what}: `duewheel store init --print --role USER` prints what another user can run for it"
                ),
            );
        }
        // Wrong passwords, missing rights and databases, damage: an operator must act.
        if matches!(class, "28" | "3D" | "XX" | "42") {
            return CallFailure::lasting(ErrorKind::Corrupt, what);
        }
        CallFailure::passing(what)
    }
}

/// The error of an answer of the server that has an unknown form.
pub(crate) fn odd(what: &str) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, format_args!("PostgreSQL answered {what} in an unknown way"))
}

// Connections to PostgreSQL, and the runtime in which they live.

const THREADS: usize = 2;

/// The runtime of all connections of the process, so that they do not depend on a runtime of the caller's.
fn runtime() -> Result<&'static Runtime, StoreError> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let made = RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(THREADS).thread_name("duewheel-postgres").enable_all();
        builder.build().map_err(|error| error.to_string())
    });
    made.as_ref().map_err(|error| StoreError::new(ErrorKind::Unavailable, error))
}

/// Runs a future of the connections to its end, from a thread that may block.
pub(crate) fn wait_for<T: Send + 'static>(
    work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, StoreError> {
    let (done, result) = sync_channel(1);
    spawn(async move {
        let _ = done.send(work.await); // nobody waits any more
    })?;
    let ended = |_| StoreError::new(ErrorKind::Closed, "a bug: a task has ended without a result");
    result.recv().map_err(ended)?
}

/// Starts a task of the connections. Boxed: the runtime's code for a task is compiled once.
pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Result<(), StoreError> {
    let work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(work);
    runtime()?.spawn(work);
    Ok(())
}

/// A connection to a server that takes changes. It ends when it is dropped.
pub struct PgConnection {
    /// The client of the connection.
    pub client: Client,
    /// Whether the server has warned. A commit whose wait for a standby was cancelled returns with a warning.
    warned: Arc<AtomicBool>,
    /// As they were when the connection was made.
    pub(crate) settings: CommitSettings,
    cancel: CancelToken,
    tls: Option<MakeRustlsConnect>,
}

impl PgConnection {
    /// Asks the server to end what it still does for this connection, which is not used again. If that fails it goes on:
    /// each statement may come late.
    pub(crate) fn give_up(self, limit: Duration) {
        let PgConnection { client, cancel, tls, .. } = self;
        // The caller may be on any thread.
        let _ = spawn(async move {
            drop(client);
            let asked = async {
                match tls {
                    Some(tls) => cancel.cancel_query(tls).await,
                    None => cancel.cancel_query(NoTls).await,
                }
            };
            if let Ok(Err(error)) = tokio::time::timeout(limit, asked).await {
                tracing::debug!(%error, "a statement could not be cancelled");
            }
        }); // without the runtime there is no connection either
    }

    /// Whether the server has warned since the last call: a commit may not have reached its level.
    pub fn has_warned(&self) -> bool {
        self.warned.swap(false, SeqCst)
    }
}

impl fmt::Debug for PgConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgConnection").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Connects to a server that takes changes: by TLS, unless it is on this machine. The connection lives on the runtime of
/// the caller.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if an operator must act, else [`ErrorKind::Unavailable`].
///
/// # Cancel safety
/// When the future is dropped, no connection is left.
pub async fn connect(options: &Options) -> Result<PgConnection, StoreError> {
    let manager = PgManager { options: options.clone() };
    Ok(managed::Manager::create(&manager).await?)
}

/// Makes connections.
#[derive(Debug)]
pub(crate) struct PgManager {
    options: Options,
}

pub(crate) type PgPool = managed::Pool<PgManager>;

/// The pool of a process, which makes connections on demand.
pub(crate) fn pool(options: &Options, connections: usize) -> Result<PgPool, StoreError> {
    let manager = PgManager { options: options.clone() };
    let pool =
        managed::Pool::builder(manager).max_size(connections).runtime(deadpool::Runtime::Tokio1).build();
    pool.map_err(|error| StoreError::new(ErrorKind::Unavailable, error))
}

impl managed::Manager for PgManager {
    type Type = PgConnection;
    type Error = CallFailure;

    async fn create(&self) -> Result<PgConnection, CallFailure> {
        let warned = Arc::new(AtomicBool::new(false));
        let config = &self.options.config;
        let (client, tls) = if self.options.is_encrypted {
            let tls = self.options.tls().map_err(|error| CallFailure::lasting(ErrorKind::Corrupt, error))?;
            let tls = MakeRustlsConnect::new(rustls::ClientConfig::clone(&tls));
            let (client, connection) = config.connect(tls.clone()).await?;
            tokio::spawn(listen(connection, Arc::clone(&warned)));
            (client, Some(tls))
        } else {
            let (client, connection) = config.connect(NoTls).await?;
            tokio::spawn(listen(connection, Arc::clone(&warned)));
            (client, None)
        };
        let settings = settings(&client).await?;
        warned.store(false, SeqCst);
        let cancel = client.cancel_token();
        Ok(PgConnection { client, warned, settings, cancel, tls })
    }

    async fn recycle(&self, connection: &mut PgConnection, _: &Metrics) -> RecycleResult<CallFailure> {
        if connection.client.is_closed() {
            return Err(RecycleError::message("it is closed"));
        }
        connection.warned.store(false, SeqCst);
        Ok(())
    }
}

/// Drives a connection to its end, and records warnings.
async fn listen<T>(mut connection: Connection<Socket, T>, warned: Arc<AtomicBool>)
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
        if let AsyncMessage::Notice(notice) = message {
            // Whatever the language of the server.
            if notice.parsed_severity() == Some(Severity::Warning) {
                tracing::warn!(message = notice.message(), "PostgreSQL warns");
                warned.store(true, SeqCst);
            }
        }
    }
}

/// The settings that decide the level, and whether the server takes changes at all.
async fn settings(client: &Client) -> Result<CommitSettings, CallFailure> {
    let asked = format!("SELECT pg_is_in_recovery(), {SETTINGS}");
    let row = tokio::time::timeout(Duration::from_secs(5), client.query_typed(&asked, &[])).await;
    let rows = row.map_err(|_| CallFailure::passing("PostgreSQL does not answer in time"))??;
    let row = rows.first().ok_or_else(|| CallFailure::passing("PostgreSQL gives no settings"))?;
    if row.try_get::<_, bool>(0)? {
        return Err(CallFailure::passing("the server is a standby, which takes no changes"));
    }
    Ok(CommitSettings::read(row, 1)?)
}
