//! Reads the files of a shard, for its owner and for others.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use duewheel_core::store::{ErrorKind, StoreError};
use duewheel_store_medium::{FileId, MAX_PIECE, MediumFiles, NamedFile, lay_over};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::calls::{self, CallFailure, Database, Lent, Param, odd};

const LIST: &str = "SELECT name FROM {s}.file WHERE shard = $1 AND starts_with(name, $2) ORDER BY name";
const FIND: &str = "SELECT id, bytes FROM {s}.file WHERE shard = $1 AND name = $2";
const READ: &str = "SELECT greatest(at, $3), substring(body FROM (greatest($3 - at, 0) + 1)::int4 \
      FOR ($4 - greatest(at, $3))::int4) FROM {s}.piece \
    WHERE shard = $1 AND file = $2 AND at > $3 - $5 AND at < $4 ORDER BY seq";

/// The statements with the names of the tables.
pub(crate) struct ReadStatements {
    list: String,
    find: String,
    read: String,
}

impl ReadStatements {
    pub(crate) fn of(database: &Database) -> Self {
        ReadStatements { list: database.sql(LIST), find: database.sql(FIND), read: database.sql(READ) }
    }
}

/// The rows of a shard.
pub(crate) trait RowsAsked: Sync {
    fn shard(&self) -> &i32;

    fn statements(&self) -> &ReadStatements;

    /// Makes a statement that changes nothing.
    fn asked(
        &self,
        sql: &str,
        params: &[Param<'_>],
    ) -> impl Future<Output = Result<Vec<Row>, StoreError>> + Send;
}

/// Numbers of files, offsets and lengths are far below 2^63.
pub(crate) fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn unsigned(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

pub(crate) async fn find(shard: &impl RowsAsked, name: String) -> Result<Option<NamedFile>, StoreError> {
    let params: [Param<'_>; 2] = [(shard.shard(), Type::INT4), (&name, Type::TEXT)];
    let rows = shard.asked(&shard.statements().find, &params).await?;
    let read = |row: &Row| {
        let (id, bytes): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        Ok(NamedFile { id: FileId(unsigned(id)), bytes: unsigned(bytes) })
    };
    rows.first().map(read).transpose().map_err(|_: tokio_postgres::Error| odd("a file"))
}

pub(crate) async fn list(shard: &impl RowsAsked, prefix: String) -> Result<Vec<String>, StoreError> {
    let params: [Param<'_>; 2] = [(shard.shard(), Type::INT4), (&prefix, Type::TEXT)];
    let rows = shard.asked(&shard.statements().list, &params).await?;
    rows.iter().map(|row| row.try_get(0).map_err(|_| odd("a list of files"))).collect()
}

/// Reads bytes of a file; what no piece covers is zero.
pub(crate) async fn read(
    shard: &impl RowsAsked,
    file: FileId,
    at: u64,
    length: usize,
) -> Result<Vec<u8>, StoreError> {
    let (file, from, end) = (signed(file.0), signed(at), signed(at + length as u64));
    let piece = MAX_PIECE as i64;
    let params: [Param<'_>; 5] = [
        (shard.shard(), Type::INT4),
        (&file, Type::INT8),
        (&from, Type::INT8),
        (&end, Type::INT8),
        (&piece, Type::INT8),
    ];
    let rows = shard.asked(&shard.statements().read, &params).await?;
    let mut bytes = vec![0; length];
    for row in &rows {
        let from: i64 = row.try_get(0).map_err(|_| odd("a piece"))?;
        let body: &[u8] = row.try_get(1).map_err(|_| odd("a piece"))?;
        lay_over(&mut bytes, at, unsigned(from), body);
    }
    Ok(bytes)
}

/// The files of a shard that another node may own.
pub(crate) struct PgReader(Arc<PgReaderInner>);

struct PgReaderInner {
    source: RowSource,
    statements: ReadStatements,
    shard: i32,
}

/// Where rows are read.
enum RowSource {
    /// As they are when they are read.
    Present(Arc<Database>),
    Moment(Arc<PgMoment>),
}

/// A transaction that shows the tables as of its first statement. The server keeps removed rows until this is dropped.
pub(crate) struct PgMoment {
    lent: tokio::sync::Mutex<Lent>,
    limit: Duration,
}

impl PgMoment {
    /// Begins it; it begins to show the tables at the first statement.
    pub(crate) async fn begin(database: &Database) -> Result<Self, StoreError> {
        let mut lent = database.connection().await?;
        // Between two statements a copy works on its disk, for as long as that takes.
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; \
                     SET LOCAL idle_in_transaction_session_timeout = 0";
        lent.client()?.batch_execute(begin).await.map_err(CallFailure::from)?;
        Ok(PgMoment { lent: tokio::sync::Mutex::new(lent), limit: database.time_limit() })
    }

    pub(crate) async fn asked(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, StoreError> {
        let mut lent = self.lent.lock().await;
        let asked = lent.client()?.query_typed(sql, params);
        let late = |_| StoreError::new(ErrorKind::Unavailable, "PostgreSQL does not answer in time");
        let answer = tokio::time::timeout(self.limit, asked).await.map_err(late)?;
        Ok(answer.map_err(CallFailure::from)?)
    }
}

impl PgReader {
    pub(crate) fn new(database: &Arc<Database>, shard: i32) -> Self {
        PgReader::of(RowSource::Present(Arc::clone(database)), database, shard)
    }

    /// The files as of one moment.
    pub(crate) fn at(moment: &Arc<PgMoment>, database: &Database, shard: i32) -> Self {
        PgReader::of(RowSource::Moment(Arc::clone(moment)), database, shard)
    }

    fn of(source: RowSource, database: &Database, shard: i32) -> Self {
        PgReader(Arc::new(PgReaderInner { source, statements: ReadStatements::of(database), shard }))
    }
}

impl RowsAsked for PgReaderInner {
    fn shard(&self) -> &i32 {
        &self.shard
    }

    fn statements(&self) -> &ReadStatements {
        &self.statements
    }

    async fn asked(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, StoreError> {
        match &self.source {
            RowSource::Present(database) => Ok(database.call(sql, params).await?),
            RowSource::Moment(moment) => moment.asked(sql, params).await,
        }
    }
}

impl MediumFiles for PgReader {
    fn read(&self, file: FileId, at: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        let shard = Arc::clone(&self.0);
        calls::wait_for(async move { read(&*shard, file, at, length).await })
    }

    fn find(&self, name: &str) -> Result<Option<NamedFile>, StoreError> {
        let (shard, name) = (Arc::clone(&self.0), name.to_owned());
        calls::wait_for(async move { find(&*shard, name).await })
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let (shard, prefix) = (Arc::clone(&self.0), prefix.to_owned());
        calls::wait_for(async move { list(&*shard, prefix).await })
    }
}

impl fmt::Debug for PgReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgReader").field("shard", &self.0.shard).finish_non_exhaustive()
    }
}
