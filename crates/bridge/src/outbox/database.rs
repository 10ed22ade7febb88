//! The schema in the database: installs it, checks its version, shows its state.

use std::future::Future;
use std::time::Duration;

use duewheel_store_postgres::{Options, PgConnection, connect};
use tokio_postgres::{Client, Row};

use super::error::{OutboxError, VERSION};

/// The number of rejected rows that are kept.
pub(super) const REJECTED: i64 = 10_000;
/// The time limit of a statement and of its answer.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(30);

/// The statements that install the outbox, for bodies of at most this many bytes. They may be repeated.
///
/// # Examples
/// ```
/// let sql = duewheel_bridge::outbox::install_sql(1_000);
/// assert!(sql.contains("octet_length(body) > 1000"));
/// ```
pub fn install_sql(max_body: usize) -> String {
    include_str!("install.sql")
        .replace("{version}", &VERSION.to_string())
        .replace("{rejected}", &REJECTED.to_string())
        .replace("{max_body}", &max_body.to_string())
}

/// Installs the outbox, or renews it, in one transaction.
///
/// # Errors
/// The database cannot be reached, has a newer version, or does not let this user create the schema.
///
/// # Cancel safety
/// When the future is dropped, all of it is installed or nothing.
pub async fn install(options: &Options, max_body: usize) -> Result<(), OutboxError> {
    let connection = connect(options).await?;
    let sql = format!("BEGIN; {}; COMMIT", install_sql(max_body));
    in_time(connection.client.batch_execute(&sql)).await
}

/// The state of an outbox, for people.
#[derive(Clone, Debug)]
pub struct OutboxStatus {
    /// The version of the schema.
    pub version: i32,
    /// Rows that wait, as they are visible now.
    pub waiting: i64,
    /// The age of the oldest of them since its call, in seconds.
    pub oldest_seconds: Option<f64>,
    /// Rows in `duewheel.rejected`.
    pub rejected: i64,
    /// The size of the outbox with its index, in bytes.
    pub bytes: i64,
    /// The node that drains or has drained last.
    pub drainer: Option<String>,
    /// When it began, in ms since 1970.
    pub since: Option<i64>,
}

/// Reads the state of an outbox.
///
/// # Errors
/// The database cannot be reached, or the outbox is not installed in this version.
///
/// # Cancel safety
/// Cancel safe.
pub async fn status(options: &Options) -> Result<OutboxStatus, OutboxError> {
    let connection = connect(options).await?;
    let version = check_version(&connection.client).await?;
    let sql = "SELECT (SELECT count(*) FROM duewheel.outbox), \
        (SELECT extract(epoch FROM clock_timestamp() - called_at)::float8 FROM duewheel.outbox ORDER BY seq LIMIT 1), \
        (SELECT count(*) FROM duewheel.rejected), pg_total_relation_size('duewheel.outbox'), \
        drainer, (extract(epoch FROM since) * 1000)::bigint FROM duewheel.outbox_state";
    let rows = in_time(connection.client.query_typed(sql, &[])).await?;
    let row = rows.first().ok_or(OutboxError::NotInstalled)?;
    Ok(OutboxStatus {
        version,
        waiting: row.try_get(0)?,
        oldest_seconds: row.try_get(1)?,
        rejected: row.try_get(2)?,
        bytes: row.try_get(3)?,
        drainer: row.try_get(4)?,
        since: row.try_get(5)?,
    })
}

/// Connects to a database whose outbox has the version that this program knows.
pub(super) async fn connect_to_outbox(options: &Options) -> Result<PgConnection, OutboxError> {
    let connection = connect(options).await?;
    check_version(&connection.client).await?;
    Ok(connection)
}

async fn check_version(client: &Client) -> Result<i32, OutboxError> {
    let there = "SELECT to_regclass('duewheel.outbox_state') IS NOT NULL";
    let rows = in_time(client.query_typed(there, &[])).await?;
    if !rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false)) {
        return Err(OutboxError::NotInstalled);
    }
    let rows: Vec<Row> =
        in_time(client.query_typed("SELECT version FROM duewheel.outbox_state", &[])).await?;
    match rows.first().ok_or(OutboxError::NotInstalled)?.try_get(0)? {
        VERSION => Ok(VERSION),
        other => Err(OutboxError::OtherVersion(other)),
    }
}

/// Waits for an answer, and no longer than the time limit: then it is unknown what has become of the statement.
pub(super) async fn in_time<T>(
    asked: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, OutboxError> {
    match tokio::time::timeout(TIME_LIMIT, asked).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(OutboxError::Late),
    }
}
