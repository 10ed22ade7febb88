//! Connections to PostgreSQL, and the runtime in which they live.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use deadpool::managed::{self, Metrics, RecycleError, RecycleResult};
use duewheel_core::store::{ErrorKind, StoreError};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::error::Severity;
use tokio_postgres::{AsyncMessage, CancelToken, Client, Connection, NoTls, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::fault::CallFailure;
use crate::level::{CommitSettings, SETTINGS};
use crate::options::Options;

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
    runtime()?.spawn(async move {
        let _ = done.send(work.await); // nobody waits any more
    });
    let ended = |_| StoreError::new(ErrorKind::Closed, "a bug: a task has ended without a result");
    result.recv().map_err(ended)?
}

/// Starts a task of the connections.
pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Result<(), StoreError> {
    runtime()?.spawn(work);
    Ok(())
}

/// A connection of the pool.
pub(crate) struct PgConnection {
    pub(crate) client: Client,
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

    /// Whether the server has warned since the last call.
    pub(crate) fn has_warned(&self) -> bool {
        self.warned.swap(false, SeqCst)
    }
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
