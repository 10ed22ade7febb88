//! The files of a shard as rows: the disk of its log store.
//!
//! | the log store | here |
//! |---|---|
//! | writes to a file | the bytes wait in memory, as pieces |
//! | syncs it | one statement inserts the pieces, if this owner still has the shard |
//! | renames it | one statement changes the name's row, and removes the pieces of the file that had it |
//! | opens, lists, removes | the rows of names |
//! | takes the lock | the shard has been acquired: [`crate::reign`] |
//!
//! **The fence.** A change of the journal or of a name locks the shard's row in the mode that readers share, and finds
//! this owner's mark in it. Acquiring a shard changes that row, so it waits for such changes, and they fail behind it. A
//! lock makes no new version of the row, so nothing accumulates behind a long transaction of others. Pieces of other files
//! are checked without a lock: nothing reads them before they have a name.
//!
//! **Lost answers.** Each statement may be repeated: what it writes is the same, and an older piece never replaces a
//! newer one. So a statement whose answer was lost is made again until it has one, or until the lease is over.
//!
//! **Lost changes.** A server that takes the place of a failed one may lack its newest changes. Each write to the
//! journal requires the row of the write before it. If that is gone the store ends, and what is left is read again.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::future::Future;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use duewheel_core::Epoch;
use duewheel_core::store::{ErrorKind, StoreError};
use duewheel_store_log::disk::{Disk, DiskFile, FileAccess, HeldLock, LockKind};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::cache::{BLOCK, BlockCache};
use crate::calls::{Database, Param};
use crate::fault::{io_error, odd};
use crate::fence::boot_ms;
use crate::pool;
use crate::reign::{PgReign, random};
use crate::rows::{PIECE, Pieces, lay_over};

const JOURNAL: &str = "journal/";
/// Files of this name are read by their writer alone.
const SPILL: &str = ".spill.tmp";
/// Pieces of a run are sent when so many bytes wait.
const SEND: usize = 4 * PIECE;
/// A read of more than this is not kept in the cache: it belongs to a merge.
const MAX_CACHED: usize = 512 * 1024;
/// How long after a refusal the server's disk counts as full.
const FULL_FOR_MS: u64 = 5_000;

const FENCE: &str =
    "WITH fence AS MATERIALIZED (SELECT 1 FROM {s}.shard WHERE shard = $1 AND mark = $2 FOR SHARE)";
const WRITE_JOURNAL: &str = ", before AS MATERIALIZED (SELECT 1 WHERE $3 = 0 OR EXISTS \
      (SELECT 1 FROM {s}.piece WHERE shard = $1 AND file = $3 AND at = $4)), \
    put AS (INSERT INTO {s}.piece (shard, file, at, seq, body) SELECT $1, $5, u.at, u.seq, u.body \
      FROM unnest($6::int8[], $7::int8[], $8::bytea[]) AS u(at, seq, body), fence, before \
      ON CONFLICT (shard, file, at) DO UPDATE SET seq = excluded.seq, body = excluded.body, noted = excluded.noted \
      WHERE piece.seq <= excluded.seq RETURNING 1) \
    SELECT (SELECT count(*) FROM fence), (SELECT count(*) FROM before), (SELECT count(*) FROM put)";
const WRITE_BLOB: &str = "WITH fence AS MATERIALIZED (SELECT 1 FROM {s}.shard WHERE shard = $1 AND mark = $2), \
    put AS (INSERT INTO {s}.piece (shard, file, at, seq, body) SELECT $1, $3, u.at, u.seq, u.body \
      FROM unnest($4::int8[], $5::int8[], $6::bytea[]) AS u(at, seq, body), fence \
      ON CONFLICT (shard, file, at) DO UPDATE SET seq = excluded.seq, body = excluded.body \
      WHERE piece.seq <= excluded.seq RETURNING 1) \
    SELECT (SELECT count(*) FROM fence), (SELECT count(*) FROM put)";
const NAME: &str = ", old AS (SELECT id FROM {s}.file WHERE shard = $1 AND name = $3), \
    put AS (INSERT INTO {s}.file (shard, name, id, bytes) SELECT $1, $3, $4, $5 FROM fence \
      ON CONFLICT (shard, name) DO UPDATE SET id = excluded.id, bytes = excluded.bytes RETURNING 1), \
    gone AS (DELETE FROM {s}.piece p USING old, fence WHERE p.shard = $1 AND p.file = old.id AND old.id <> $4) \
    SELECT (SELECT count(*) FROM fence), (SELECT count(*) FROM put)";
const REMOVE: &str = ", gone AS (DELETE FROM {s}.file USING fence WHERE file.shard = $1 AND file.name = $3 RETURNING id), \
    pieces AS (DELETE FROM {s}.piece p USING gone WHERE p.shard = $1 AND p.file = gone.id \
      AND NOT (p.file = $4 AND p.at = $5)) \
    SELECT (SELECT count(*) FROM fence), (SELECT count(*) FROM gone)";
const FORGET: &str = "DELETE FROM {s}.piece WHERE shard = $1 AND file = ANY($2)";
const LIST: &str = "SELECT name FROM {s}.file WHERE shard = $1 AND starts_with(name, $2) ORDER BY name";
const FIND: &str = "SELECT id, bytes FROM {s}.file WHERE shard = $1 AND name = $2";
const READ: &str = "SELECT greatest(at, $3), substring(body FROM (greatest($3 - at, 0) + 1)::int4 \
      FOR ($4 - greatest(at, $3))::int4) FROM {s}.piece \
    WHERE shard = $1 AND file = $2 AND at > $3 - $5 AND at < $4 ORDER BY seq";

/// The files of a shard, for its owner.
pub(crate) struct PgFiles(Arc<PgFilesInner>);

struct PgFilesInner {
    database: Arc<Database>,
    statements: FileStatements,
    cache: Arc<BlockCache>,
    reign: Arc<PgReign>,
    /// Files that have no name in the database yet, by the name they have here.
    unnamed: Mutex<BTreeMap<String, Arc<PgFile>>>,
    /// Numbers of files and of pieces: each is given once, in this epoch and over all epochs.
    given: AtomicI64,
    /// File and offset of the last row of the journal.
    last: Mutex<Option<(i64, i64)>>,
    /// Files that are gone but for their last row, which the next write to the journal requires.
    leftovers: Mutex<Vec<i64>>,
    /// When the server's disk was found full, by the boot clock.
    full_at: AtomicU64,
}

/// The statements with the names of the tables, made once: some are made for each group.
struct FileStatements {
    write_journal: String,
    write_blob: String,
    name: String,
    remove: String,
    forget: String,
    list: String,
    find: String,
    read: String,
}

impl FileStatements {
    fn of(database: &Database) -> Self {
        let fenced = |change: &str| database.sql(&[FENCE, change].concat());
        FileStatements {
            write_journal: fenced(WRITE_JOURNAL),
            write_blob: database.sql(WRITE_BLOB),
            name: fenced(NAME),
            remove: fenced(REMOVE),
            forget: database.sql(FORGET),
            list: database.sql(LIST),
            find: database.sql(FIND),
            read: database.sql(READ),
        }
    }
}

/// What a file is kept as.
enum PgFileKind {
    /// Pieces of the journal.
    Journal,
    /// Pieces of a file that is being written.
    Blob,
    /// Pieces of a file that was opened by its name: it never changes.
    Whole,
    /// A file of this machine, for its writer alone.
    Here(File),
}

struct PgFile {
    files: Arc<PgFilesInner>,
    id: i64,
    kept: PgFileKind,
    /// Its length.
    bytes: AtomicU64,
    waiting: Mutex<Pieces>,
}

#[derive(Debug)]
struct PgLock;

impl HeldLock for PgLock {}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PgFiles {
    pub(crate) fn new(database: Arc<Database>, cache: Arc<BlockCache>, reign: Arc<PgReign>) -> Self {
        let given = AtomicI64::new(i64::from(reign.epoch.0) << 31);
        PgFiles(Arc::new(PgFilesInner {
            statements: FileStatements::of(&database),
            database,
            cache,
            reign,
            unnamed: Mutex::default(),
            given,
            last: Mutex::default(),
            leftovers: Mutex::default(),
            full_at: AtomicU64::new(0),
        }))
    }
}

impl PgFilesInner {
    fn next(&self) -> i64 {
        self.given.fetch_add(1, SeqCst) + 1
    }

    /// Makes a statement, repeatedly if need be, as long as the lease runs.
    async fn insist(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, StoreError> {
        let noted = |error: &StoreError| {
            if error.kind() == ErrorKind::Full {
                self.full_at.store(boot_ms(), SeqCst);
            }
        };
        self.database.insist(sql, params, || self.reign.fence.check(), noted).await
    }

    /// The counts that a change answers, of which the first says whether this owner still has the shard.
    fn counts<const N: usize>(&self, rows: &[Row]) -> Result<[i64; N], StoreError> {
        let row = rows.first().ok_or_else(|| odd("a change"))?;
        let mut counts = [0; N];
        for (i, count) in counts.iter_mut().enumerate() {
            *count = row.try_get(i).map_err(|_| odd("a change"))?;
        }
        if counts[0] == 0 {
            let deposed = StoreError::new(ErrorKind::Fenced, "another node has the shard by now");
            self.reign.fence.lose(deposed.clone());
            return Err(deposed);
        }
        Ok(counts)
    }

    async fn write_journal(&self, file: i64, rows: Vec<(u64, Vec<u8>)>) -> Result<(), StoreError> {
        let (at, seq, body) = self.columns(rows);
        let (last_file, last_at) = locked(&self.last).unwrap_or((0, 0));
        let params: [Param<'_>; 8] = [
            (&self.reign.shard, Type::INT4),
            (&self.reign.mark, Type::INT8),
            (&last_file, Type::INT8),
            (&last_at, Type::INT8),
            (&file, Type::INT8),
            (&at, Type::INT8_ARRAY),
            (&seq, Type::INT8_ARRAY),
            (&body, Type::BYTEA_ARRAY),
        ];
        let sql = &self.statements.write_journal;
        let [_, before, _] = self.counts(&self.insist(sql, &params).await?)?;
        if before == 0 {
            let what = "the server has lost the newest changes of the journal: it was restored, or a standby took its place";
            let lost = StoreError::new(ErrorKind::Unavailable, what);
            self.reign.fence.lose(lost.clone());
            return Err(lost);
        }
        if let Some(last) = at.last() {
            *locked(&self.last) = Some((file, *last));
        }
        Ok(())
    }

    async fn write_blob(&self, file: i64, rows: Vec<(u64, Vec<u8>)>) -> Result<(), StoreError> {
        let (at, seq, body) = self.columns(rows);
        let params: [Param<'_>; 6] = [
            (&self.reign.shard, Type::INT4),
            (&self.reign.mark, Type::INT8),
            (&file, Type::INT8),
            (&at, Type::INT8_ARRAY),
            (&seq, Type::INT8_ARRAY),
            (&body, Type::BYTEA_ARRAY),
        ];
        let [_, _] = self.counts(&self.insist(&self.statements.write_blob, &params).await?)?;
        Ok(())
    }

    fn columns(&self, rows: Vec<(u64, Vec<u8>)>) -> (Vec<i64>, Vec<i64>, Vec<Vec<u8>>) {
        let (mut at, mut seq, mut body) = (Vec::new(), Vec::new(), Vec::new());
        for (from, row) in rows {
            at.push(signed(from));
            seq.push(self.next());
            body.push(row);
        }
        (at, seq, body)
    }

    async fn name(&self, name: String, file: i64, bytes: u64) -> Result<(), StoreError> {
        let bytes = signed(bytes);
        let params: [Param<'_>; 5] = [
            (&self.reign.shard, Type::INT4),
            (&self.reign.mark, Type::INT8),
            (&name, Type::TEXT),
            (&file, Type::INT8),
            (&bytes, Type::INT8),
        ];
        let sql = &self.statements.name;
        let [_, _] = self.counts(&self.insist(sql, &params).await?)?;
        Ok(())
    }

    /// Removes a name and its file. False if there was none.
    async fn remove(&self, name: String) -> Result<bool, StoreError> {
        let last = locked(&self.last).unwrap_or((0, 0));
        let params: [Param<'_>; 5] = [
            (&self.reign.shard, Type::INT4),
            (&self.reign.mark, Type::INT8),
            (&name, Type::TEXT),
            (&last.0, Type::INT8),
            (&last.1, Type::INT8),
        ];
        let found = self.find(name.clone()).await?;
        let sql = &self.statements.remove;
        let [_, _] = self.counts(&self.insist(sql, &params).await?)?;
        let Some((id, _)) = found else { return Ok(false) };
        self.forget(Some(id).filter(|id| *id == last.0)).await?;
        Ok(true)
    }

    /// Removes what is left of files that are gone, but of the one with the journal's last row.
    async fn forget(&self, another: Option<i64>) -> Result<(), StoreError> {
        let last = locked(&self.last).map(|(file, _)| file);
        let gone: Vec<i64> = {
            let mut leftovers = locked(&self.leftovers);
            leftovers.extend(another);
            let (kept, gone) = leftovers.drain(..).partition(|file| Some(*file) == last);
            *leftovers = kept;
            gone
        };
        if gone.is_empty() {
            return Ok(());
        }
        let params: [Param<'_>; 2] = [(&self.reign.shard, Type::INT4), (&gone, Type::INT8_ARRAY)];
        self.insist(&self.statements.forget, &params).await?;
        Ok(())
    }

    async fn find(&self, name: String) -> Result<Option<(i64, i64)>, StoreError> {
        let params: [Param<'_>; 2] = [(&self.reign.shard, Type::INT4), (&name, Type::TEXT)];
        let rows = self.insist(&self.statements.find, &params).await?;
        let read = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?));
        rows.first().map(read).transpose().map_err(|_: tokio_postgres::Error| odd("a file"))
    }

    async fn list(&self, folder: String) -> Result<Vec<String>, StoreError> {
        let params: [Param<'_>; 2] = [(&self.reign.shard, Type::INT4), (&folder, Type::TEXT)];
        let rows = self.insist(&self.statements.list, &params).await?;
        rows.iter().map(|row| row.try_get(0).map_err(|_| odd("a list of files"))).collect()
    }

    /// Reads bytes of a file; what no piece covers is zero.
    async fn read(&self, file: i64, at: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        let (from, end, piece) = (signed(at), signed(at + length as u64), PIECE as i64);
        let params: [Param<'_>; 5] = [
            (&self.reign.shard, Type::INT4),
            (&file, Type::INT8),
            (&from, Type::INT8),
            (&end, Type::INT8),
            (&piece, Type::INT8),
        ];
        let rows = self.insist(&self.statements.read, &params).await?;
        let mut bytes = vec![0; length];
        for row in &rows {
            let from: i64 = row.try_get(0).map_err(|_| odd("a piece"))?;
            let body: &[u8] = row.try_get(1).map_err(|_| odd("a piece"))?;
            lay_over(&mut bytes, at, u64::try_from(from).unwrap_or(0), body);
        }
        Ok(bytes)
    }

    /// Reads through the cache, in whole blocks.
    async fn read_cached(&self, file: i64, at: u64, length: usize, size: u64) -> Result<Vec<u8>, StoreError> {
        let (first, last) = (at / BLOCK, (at + length as u64 - 1) / BLOCK);
        let shard = self.reign.shard;
        let known: Vec<Option<Bytes>> = (first..=last).map(|no| self.cache.get(shard, file, no)).collect();
        let from = first * BLOCK;
        let whole = if let Some(blocks) = known.into_iter().collect::<Option<Vec<Bytes>>>() {
            blocks.concat()
        } else {
            let end = ((last + 1) * BLOCK).min(size);
            let whole = self.read(file, from, usize::try_from(end - from).unwrap_or(usize::MAX)).await?;
            for (no, block) in (first..).zip(whole.chunks(usize::try_from(BLOCK).unwrap_or(usize::MAX))) {
                self.cache.put(shard, file, no, Bytes::copy_from_slice(block));
            }
            whole
        };
        let skip = usize::try_from(at - from).unwrap_or(usize::MAX);
        Ok(whole[skip..skip + length].to_vec())
    }
}

/// Runs a future of the files to its end.
fn wait<T: Send + 'static>(
    work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> io::Result<T> {
    pool::wait_for(work).map_err(|error| io_error(&error))
}

/// Offsets and lengths are far below 2^63.
fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

impl Disk for PgFiles {
    fn make_dir(&self, _dir: &str) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let folder = if dir.is_empty() { String::new() } else { format!("{dir}/") };
        let inside = |name: &str| name.strip_prefix(&*folder).map(str::to_owned);
        let unnamed: Vec<String> = locked(&self.0.unnamed).keys().filter_map(|name| inside(name)).collect();
        let (files, asked) = (Arc::clone(&self.0), folder.clone());
        let named = wait(async move { files.list(asked).await })?;
        let mut names: Vec<String> = named.iter().filter_map(|name| inside(name)).chain(unnamed).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn lock(&self, _name: &str, _hold: LockKind) -> io::Result<Box<dyn HeldLock>> {
        self.0.reign.fence.check().map_err(|error| io_error(&error))?;
        Ok(Box::new(PgLock))
    }

    fn open(&self, name: &str, _access: FileAccess) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(file) = locked(&self.0.unnamed).get(name) {
            return Ok(Arc::clone(file) as Arc<dyn DiskFile>);
        }
        let (files, asked) = (Arc::clone(&self.0), name.to_owned());
        match wait(async move { files.find(asked).await })? {
            Some((id, bytes)) => {
                let kept = if name.starts_with(JOURNAL) { PgFileKind::Journal } else { PgFileKind::Whole };
                let bytes = AtomicU64::new(u64::try_from(bytes).unwrap_or(0));
                Ok(Arc::new(PgFile {
                    files: Arc::clone(&self.0),
                    id,
                    kept,
                    bytes,
                    waiting: Mutex::default(),
                }))
            }
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let kept = if name.ends_with(SPILL) {
            PgFileKind::Here(tempfile::tempfile()?)
        } else if name.starts_with(JOURNAL) {
            PgFileKind::Journal
        } else {
            PgFileKind::Blob
        };
        let (id, bytes) = (self.0.next(), AtomicU64::new(0));
        let file =
            Arc::new(PgFile { files: Arc::clone(&self.0), id, kept, bytes, waiting: Mutex::default() });
        locked(&self.0.unnamed).insert(name.to_owned(), Arc::clone(&file));
        Ok(file)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let unnamed = locked(&self.0.unnamed).get(from).cloned();
        let (id, bytes) = match unnamed {
            Some(file) => {
                file.sync_data()?;
                (file.id, file.bytes.load(SeqCst))
            }
            // The only names that change are those of new files.
            None => return Err(io::ErrorKind::NotFound.into()),
        };
        let (files, name) = (Arc::clone(&self.0), to.to_owned());
        wait(async move { files.name(name, id, bytes).await })?;
        locked(&self.0.unnamed).remove(from);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let files = Arc::clone(&self.0);
        let unnamed = locked(&self.0.unnamed).remove(name);
        if let Some(file) = unnamed {
            return match file.kept {
                PgFileKind::Here(_) => Ok(()),
                PgFileKind::Journal | PgFileKind::Blob | PgFileKind::Whole => {
                    wait(async move { files.forget(Some(file.id)).await })
                }
            };
        }
        let name = name.to_owned();
        match wait(async move { files.remove(name).await })? {
            true => Ok(()),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn sync_dir(&self, _dir: &str) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let full_at = self.0.full_at.load(SeqCst);
        let is_full = full_at > 0 && boot_ms().saturating_sub(full_at) < FULL_FOR_MS;
        Ok(if is_full { 0 } else { u64::MAX / 4 })
    }

    fn unique(&self) -> u64 {
        // Without random bytes a number of this owner's own: it can be guessed, and is given once.
        random::<8>().map_or_else(|_| self.0.next().unsigned_abs(), u64::from_le_bytes)
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn least_epoch(&self) -> Epoch {
        self.0.reign.epoch
    }
}

impl PgFile {
    /// Sends what waits.
    fn send(&self) -> io::Result<()> {
        let rows = std::mem::take(&mut *locked(&self.waiting)).into_rows();
        if rows.is_empty() {
            return Ok(());
        }
        let (files, id) = (Arc::clone(&self.files), self.id);
        match &self.kept {
            PgFileKind::Journal => wait(async move { files.write_journal(id, rows).await }),
            PgFileKind::Blob | PgFileKind::Whole => wait(async move { files.write_blob(id, rows).await }),
            PgFileKind::Here(_) => Ok(()),
        }
    }
}

impl DiskFile for PgFile {
    fn size(&self) -> io::Result<u64> {
        match &self.kept {
            PgFileKind::Here(file) => Ok(file.metadata()?.len()),
            PgFileKind::Journal | PgFileKind::Blob | PgFileKind::Whole => Ok(self.bytes.load(SeqCst)),
        }
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        if let PgFileKind::Here(file) = &self.kept {
            return file.read_exact_at(buffer, at);
        }
        let size = self.bytes.load(SeqCst);
        if at.saturating_add(buffer.len() as u64) > size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if buffer.is_empty() {
            return Ok(());
        }
        let (files, id, length) = (Arc::clone(&self.files), self.id, buffer.len());
        let read = if matches!(self.kept, PgFileKind::Whole) && length <= MAX_CACHED {
            wait(async move { files.read_cached(id, at, length, size).await })?
        } else {
            wait(async move { files.read(id, at, length).await })?
        };
        buffer.copy_from_slice(&read);
        locked(&self.waiting).lay_over(buffer, at);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        if let PgFileKind::Here(file) = &self.kept {
            return file.write_all_at(bytes, at);
        }
        self.bytes.fetch_max(at + bytes.len() as u64, SeqCst);
        let waiting = {
            let mut waiting = locked(&self.waiting);
            waiting.write(at, bytes);
            waiting.bytes()
        };
        // A journal is sent when it is synced: at once if at all.
        if matches!(self.kept, PgFileKind::Blob) && waiting >= SEND { self.send() } else { Ok(()) }
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.bytes.fetch_max(bytes, SeqCst);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.send()
    }
}

impl fmt::Debug for PgFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgFiles").field("reign", &self.0.reign).finish_non_exhaustive()
    }
}

impl fmt::Debug for PgFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgFile")
            .field("shard", &self.files.reign.shard)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
