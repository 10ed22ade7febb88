//! The files of a shard as rows: the medium of its log store.
//!
//! **The fence.** A change of the journal or of a name locks the shard's row in the mode that readers share, and finds
//! this owner's mark in it. Acquiring a shard changes that row, so it waits for such changes, and they fail behind it. A
//! lock makes no new version of the row, so nothing accumulates behind a long transaction of others. Pieces of other files
//! are checked without a lock: nothing reads them before they have a name.
//!
//! **Lost answers.** Each statement may be repeated: what it writes is the same, and an older piece or name never replaces
//! a newer one, however late the server comes to it. (Numbers of files and of pieces only grow.) So a statement whose
//! answer was lost is made again until it has one, or until the lease is over.
//!
//! **Lost changes.** A server that takes the place of a failed one may lack its newest changes. Each write to the
//! journal, name and removal requires the last row of the journal and the last name or removal, which have numbers; and a
//! name requires all pieces of its file. If something is gone the store ends, and what is left is read
//! again. Otherwise a run would be removed that the manifest, as it is then, still lists.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime};

use duewheel_core::store::{ErrorKind, Level, StoreError};
use duewheel_core::{Epoch, MessageId};
use duewheel_store_medium::{
    FileId, FileKind, Medium, MediumFiles, NamedFile, Piece, boot_ms, locked, quorum_lost,
};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::calls::{self, CallFailure, Database, Param, odd};
use crate::reading::{self, ReadStatements, RowsAsked, signed};
use crate::reign::{self, OfProcess, PgReign};
use crate::schema::{CommitSettings, SETTINGS};

/// How long after a refusal the server's disk counts as full.
const FULL_FOR_MS: u64 = 5_000;

const FENCE: &str =
    "WITH fence AS MATERIALIZED (SELECT 1 FROM {s}.shard WHERE shard = $1 AND mark = $2 FOR SHARE)";
/// Whether the last name or removal that was answered is there. Later ones may be on their way.
const HELD: &str =
    ", held AS MATERIALIZED (SELECT 1 FROM {s}.turn WHERE shard = $1 AND mark = $2 AND n >= $9)";
const WRITE_JOURNAL: &str = ", put AS (INSERT INTO {s}.piece (shard, file, at, seq, noted, body) SELECT $1, $5, u.at, u.seq, \
      COALESCE($10, clock_timestamp()), u.body \
      FROM unnest($6::int8[], $7::int8[], $8::bytea[]) AS u(at, seq, body), fence, before, held \
      ON CONFLICT (shard, file, at) DO UPDATE SET seq = excluded.seq, body = excluded.body, noted = excluded.noted \
      WHERE piece.seq <= excluded.seq RETURNING 1) \
    SELECT (SELECT count(*) FROM fence), (SELECT count(*) FROM before, held), (SELECT count(*) FROM put), ";
const WRITE_BLOB: &str = "WITH fence AS MATERIALIZED (SELECT 1 FROM {s}.shard WHERE shard = $1 AND mark = $2), \
    put AS (INSERT INTO {s}.piece (shard, file, at, seq, body) SELECT $1, $3, u.at, u.seq, u.body \
      FROM unnest($4::int8[], $5::int8[], $6::bytea[]) AS u(at, seq, body), fence \
      ON CONFLICT (shard, file, at) DO UPDATE SET seq = excluded.seq, body = excluded.body \
      WHERE piece.seq <= excluded.seq RETURNING 1) \
    SELECT (SELECT count(*) FROM fence), (SELECT count(*) FROM put)";
/// Whether the last row of the journal is there.
const BEFORE: &str = ", before AS MATERIALIZED (SELECT 1 WHERE $3 = 0 OR EXISTS \
      (SELECT 1 FROM {s}.piece WHERE shard = $1 AND file = $3 AND at = $4))";
/// Whether the name or removal before is there: each has a number.
const TURN: &str = ", turned AS (UPDATE {s}.turn SET n = $5 FROM fence, before \
      WHERE turn.shard = $1 AND turn.mark = $2 AND turn.n IN ($5 - 1, $5) RETURNING 1)";
const NAME: &str = ", whole AS MATERIALIZED (SELECT 1 FROM turned WHERE \
      (SELECT count(*) FROM {s}.piece WHERE shard = $1 AND file = $7) >= $9), \
    old AS (SELECT id FROM {s}.file WHERE shard = $1 AND name = $6), \
    put AS (INSERT INTO {s}.file AS f (shard, name, id, bytes) SELECT $1, $6, $7, $8 FROM whole \
      ON CONFLICT (shard, name) DO UPDATE SET id = excluded.id, bytes = excluded.bytes WHERE f.id <= excluded.id \
      RETURNING 1), \
    gone AS (DELETE FROM {s}.piece p USING old, put WHERE p.shard = $1 AND p.file = old.id AND old.id < $7) \
    SELECT (SELECT count(*) FROM fence), (SELECT count(*) FROM put)";
const REMOVE: &str = ", gone AS (DELETE FROM {s}.file USING turned WHERE file.shard = $1 AND file.name = $6 RETURNING id), \
    pieces AS (DELETE FROM {s}.piece p USING gone WHERE p.shard = $1 AND p.file = gone.id \
      AND NOT (p.file = $3 AND p.at = $4)) \
    SELECT (SELECT count(*) FROM fence), (SELECT count(*) FROM turned)";
/// The first reason stays.
const REFUSE: &str =
    "UPDATE {s}.shard SET refused = COALESCE(refused, $3) WHERE shard = $1 AND mark = $2 RETURNING 1";
/// A server that has been set back may have the name of such a file again.
const FORGET: &str = "DELETE FROM {s}.piece p USING {s}.shard s WHERE s.shard = $1 AND s.mark = $3 AND p.shard = $1 \
    AND p.file = ANY($2) AND NOT EXISTS (SELECT 1 FROM {s}.file f WHERE f.shard = p.shard AND f.id = p.file)";
/// Removes pieces that earlier owners have left without a name, at most 16 MiB at a time. Files of this owner, and of
/// later ones, have higher numbers; and the row that the next write to the journal requires stays.
const CLEAN: &str = "DELETE FROM {s}.piece p USING {s}.shard s, \
      (SELECT few.file, few.at, sum(few.size) OVER (ORDER BY few.file, few.at) AS sizes FROM \
        (SELECT q.file, q.at, octet_length(q.body) AS size FROM {s}.piece q \
          WHERE q.shard = $1 AND q.file < $2 AND q.file <> $4 \
          AND NOT EXISTS (SELECT 1 FROM {s}.file f WHERE f.shard = q.shard AND f.id = q.file) LIMIT 200) few) gone \
    WHERE s.shard = $1 AND s.mark = $3 AND gone.sizes <= 16777216 \
    AND p.shard = $1 AND p.file = gone.file AND p.at = gone.at RETURNING 1";

/// State that the calls of an owner share.
struct PgFiles {
    of_process: OfProcess,
    database: Arc<Database>,
    statements: FileStatements,
    reads: ReadStatements,
    reign: Arc<PgReign>,
    /// Numbers of pieces: each is given once, in this epoch and over all epochs.
    given: AtomicI64,
    /// The last row of the journal.
    last: Mutex<Option<LastRow>>,
    /// When the clocks were noted that rows of the journal have: those of an earlier owner; `None`: those of this one.
    noted: Mutex<Option<SystemTime>>,
    /// Names and removals are made one at a time.
    turn: tokio::sync::Mutex<()>,
    /// The number of the last name or removal that was answered.
    answered_turn: AtomicI64,
    /// Where the pieces of files begin that have no name yet, but for journals.
    unnamed: Mutex<BTreeMap<i64, BTreeSet<i64>>>,
    /// Files that are gone but for their last row, which the next write to the journal requires.
    leftovers: Mutex<Vec<i64>>,
    /// When the server's disk was found full, by the boot clock.
    full_at: AtomicU64,
}

/// The last row of the journal, which the next write requires.
#[derive(Clone, Copy, Debug)]
struct LastRow {
    file: i64,
    at: i64,
    level: Level,
}

/// The statements with the names of the tables, made once: some are made for each group.
struct FileStatements {
    write_journal: String,
    write_blob: String,
    name: String,
    remove: String,
    forget: String,
    clean: String,
    settings: String,
}

impl FileStatements {
    fn of(database: &Database) -> Self {
        let fenced = |change: &str| database.sql(&[FENCE, change].concat());
        FileStatements {
            write_journal: fenced(&[BEFORE, HELD, WRITE_JOURNAL, SETTINGS].concat()),
            write_blob: database.sql(WRITE_BLOB),
            name: fenced(&[BEFORE, TURN, NAME].concat()),
            remove: fenced(&[BEFORE, TURN, REMOVE].concat()),
            forget: database.sql(FORGET),
            clean: database.sql(CLEAN),
            settings: ["SELECT ", SETTINGS].concat(),
        }
    }
}

impl PgFiles {
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

    /// Writes to the journal. Returns the level that this very commit has reached.
    async fn write_journal(&self, file: i64, pieces: Vec<Piece>) -> Result<Level, StoreError> {
        let (at, seq, body) = self.columns(pieces);
        let last = *locked(&self.last);
        let (last_file, last_at) = last.map_or((0, 0), |last| (last.file, last.at));
        let (turn, noted) = (self.answered_turn.load(SeqCst), *locked(&self.noted));
        let params: [Param<'_>; 10] = [
            (&self.reign.shard, Type::INT4),
            (&self.reign.mark, Type::INT8),
            (&last_file, Type::INT8),
            (&last_at, Type::INT8),
            (&file, Type::INT8),
            (&at, Type::INT8_ARRAY),
            (&seq, Type::INT8_ARRAY),
            (&body, Type::BYTEA_ARRAY),
            (&turn, Type::INT8),
            (&noted, Type::TIMESTAMPTZ),
        ];
        let sql = &self.statements.write_journal;
        let rows = self.insist(sql, &params).await?;
        let [_, before, _] = self.counts(&rows)?;
        let settings = rows.first().map(|row| CommitSettings::read(row, 3));
        let mut level = settings.and_then(Result::ok).ok_or_else(|| odd("its settings"))?.level();
        if level == Level::Quorum {
            level = level.and(self.level_now().await);
        }
        self.database.note_level(level);
        if before == 0 {
            return Err(self.lost(last).await);
        }
        if let Some(last) = at.last() {
            *locked(&self.last) = Some(LastRow { file, at: *last, level });
        }
        Ok(level)
    }

    /// The level by the present settings. When a server stops waiting for standbys, the commits that wait return without a
    /// warning.
    async fn level_now(&self) -> Level {
        let rows = self.database.call(&self.statements.settings, &[]).await.unwrap_or_default();
        let settings = rows.first().and_then(|row| CommitSettings::read(row, 0).ok());
        settings.map_or(Level::BestEffortReplicated, |settings| settings.level())
    }

    /// Ends this owner, because the server lacks what it has written before: rows of the journal, of which this was the
    /// last one, or what came behind it.
    async fn lost(&self, last: Option<LastRow>) -> StoreError {
        let lost = if last.is_some_and(|last| last.level == Level::Quorum) {
            let shard = self.reign.shard;
            let why = quorum_lost("the newest changes of the shard");
            let more =
                self.refuse(why.clone()).await.err().map_or(String::new(), |error| format!(" ({error})"));
            StoreError::new(ErrorKind::Corrupt, format_args!("shard {shard}: {why}{more}"))
        } else {
            let what = "the server has lost the newest changes of the shard: it was restored, or a standby took its place";
            StoreError::new(ErrorKind::Unavailable, what)
        };
        self.reign.fence.lose(lost.clone());
        lost
    }

    /// Keeps all nodes from opening the shard.
    async fn refuse(&self, why: String) -> Result<(), StoreError> {
        let params: [Param<'_>; 3] =
            [(&self.reign.shard, Type::INT4), (&self.reign.mark, Type::INT8), (&why, Type::TEXT)];
        let refused = self.database.call(&self.database.sql(REFUSE), &params).await?;
        if refused.is_empty() {
            return Err(StoreError::new(ErrorKind::Fenced, "another node has the shard by now"));
        }
        Ok(())
    }

    async fn write_blob(&self, file: i64, pieces: Vec<Piece>) -> Result<Level, StoreError> {
        let (at, seq, body) = self.columns(pieces);
        let params: [Param<'_>; 6] = [
            (&self.reign.shard, Type::INT4),
            (&self.reign.mark, Type::INT8),
            (&file, Type::INT8),
            (&at, Type::INT8_ARRAY),
            (&seq, Type::INT8_ARRAY),
            (&body, Type::BYTEA_ARRAY),
        ];
        let [_, _] = self.counts(&self.insist(&self.statements.write_blob, &params).await?)?;
        locked(&self.unnamed).entry(file).or_default().extend(&at);
        Ok(self.database.level())
    }

    fn columns(&self, pieces: Vec<Piece>) -> (Vec<i64>, Vec<i64>, Vec<Vec<u8>>) {
        let (mut at, mut seq, mut body) = (Vec::new(), Vec::new(), Vec::new());
        for piece in pieces {
            at.push(signed(piece.at));
            seq.push(self.given.fetch_add(1, SeqCst) + 1);
            body.push(piece.bytes);
        }
        (at, seq, body)
    }

    async fn name(&self, name: String, file: i64, bytes: u64) -> Result<(), StoreError> {
        let _turn = self.turn.lock().await;
        let next = self.answered_turn.load(SeqCst) + 1;
        let (last, bytes) = (*locked(&self.last), signed(bytes));
        let (last_file, last_at) = last.map_or((0, 0), |last| (last.file, last.at));
        let pieces = locked(&self.unnamed).get(&file).map_or(0, |pieces| signed(pieces.len() as u64));
        let params: [Param<'_>; 9] = [
            (&self.reign.shard, Type::INT4),
            (&self.reign.mark, Type::INT8),
            (&last_file, Type::INT8),
            (&last_at, Type::INT8),
            (&next, Type::INT8),
            (&name, Type::TEXT),
            (&file, Type::INT8),
            (&bytes, Type::INT8),
            (&pieces, Type::INT8),
        ];
        let [_, put] = self.counts(&self.insist(&self.statements.name, &params).await?)?;
        if put == 0 {
            return Err(self.lost(last).await);
        }
        self.answered_turn.store(next, SeqCst);
        locked(&self.unnamed).remove(&file);
        Ok(())
    }

    /// Removes a name and its file. False if there was none.
    async fn remove(&self, name: String) -> Result<bool, StoreError> {
        let _turn = self.turn.lock().await;
        let (last, next) = (*locked(&self.last), self.answered_turn.load(SeqCst) + 1);
        let (last_file, last_at) = last.map_or((0, 0), |last| (last.file, last.at));
        let params: [Param<'_>; 6] = [
            (&self.reign.shard, Type::INT4),
            (&self.reign.mark, Type::INT8),
            (&last_file, Type::INT8),
            (&last_at, Type::INT8),
            (&next, Type::INT8),
            (&name, Type::TEXT),
        ];
        let found = reading::find(self, name.clone()).await?;
        let [_, turned] = self.counts(&self.insist(&self.statements.remove, &params).await?)?;
        if turned == 0 {
            return Err(self.lost(last).await);
        }
        self.answered_turn.store(next, SeqCst);
        let Some(file) = found else { return Ok(false) };
        self.forget(Some(signed(file.id.0)).filter(|id| *id == last_file)).await?;
        Ok(true)
    }

    /// Removes what is left of files that are gone, but of the one with the journal's last row. The caller has the turn: a
    /// name or a removal under way may require a row that was the last one when it was sent.
    async fn forget(&self, another: Option<i64>) -> Result<(), StoreError> {
        let last = locked(&self.last).map(|last| last.file);
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
        let params: [Param<'_>; 3] =
            [(&self.reign.shard, Type::INT4), (&gone, Type::INT8_ARRAY), (&self.reign.mark, Type::INT8)];
        self.insist(&self.statements.forget, &params).await?;
        Ok(())
    }

    /// Removes some pieces that earlier owners have left without a name; returns how many. It has the turn, for the same
    /// reason.
    async fn clean_some(&self) -> Result<usize, CallFailure> {
        let _turn = self.turn.lock().await;
        let last = locked(&self.last).map_or(0, |last| last.file);
        let first = i64::from(self.reign.epoch.0) << 31;
        let params: [Param<'_>; 4] = [
            (&self.reign.shard, Type::INT4),
            (&first, Type::INT8),
            (&self.reign.mark, Type::INT8),
            (&last, Type::INT8),
        ];
        Ok(self.database.call(&self.statements.clean, &params).await?.len())
    }
}

/// Removes what earlier owners have left without a name, step by step, while this owner has the shard. The next one goes
/// on.
async fn clean(files: Weak<PgFiles>) {
    while let Some(files) = files.upgrade().filter(|files| files.reign.fence.check().is_ok()) {
        match files.clean_some().await {
            Ok(0) => return,
            Ok(_) => {}
            Err(failure) => {
                tracing::debug!(error = %failure.error, "what earlier owners have left stays for a while");
                let pause = files.database.options.lease;
                drop(files);
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// The files of a shard, for its owner.
pub(crate) struct PgMedium(Arc<PgFiles>);

impl PgMedium {
    pub(crate) fn new(of_process: OfProcess, reign: Arc<PgReign>) -> Self {
        // Above all numbers of earlier epochs.
        let given = AtomicI64::new(i64::from(reign.epoch.0) << 31);
        let noted = Mutex::new(reign.noted);
        let files = Arc::new(PgFiles {
            statements: FileStatements::of(&of_process.database),
            reads: ReadStatements::of(&of_process.database),
            database: Arc::clone(&of_process.database),
            of_process,
            reign,
            given,
            last: Mutex::default(),
            noted,
            turn: tokio::sync::Mutex::default(),
            answered_turn: AtomicI64::new(0),
            unnamed: Mutex::default(),
            leftovers: Mutex::default(),
            full_at: AtomicU64::new(0),
        });
        let _ = calls::spawn(clean(Arc::downgrade(&files))); // or the next owner does it
        PgMedium(files)
    }

    /// Runs calls of the files to their end.
    fn wait<T: Send + 'static, F>(&self, work: impl FnOnce(Arc<PgFiles>) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        calls::wait_for(work(Arc::clone(&self.0)))
    }
}

impl RowsAsked for PgFiles {
    fn shard(&self) -> &i32 {
        &self.reign.shard
    }

    fn statements(&self) -> &ReadStatements {
        &self.reads
    }

    async fn asked(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, StoreError> {
        self.insist(sql, params).await
    }
}

impl MediumFiles for PgMedium {
    fn read(&self, file: FileId, at: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        self.wait(|files| async move { reading::read(&*files, file, at, length).await })
    }

    fn find(&self, name: &str) -> Result<Option<NamedFile>, StoreError> {
        let name = name.to_owned();
        self.wait(|files| async move { reading::find(&*files, name).await })
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let prefix = prefix.to_owned();
        self.wait(|files| async move { reading::list(&*files, prefix).await })
    }
}

impl Medium for PgMedium {
    fn epoch(&self) -> Epoch {
        self.0.reign.epoch
    }

    fn check(&self) -> Result<(), StoreError> {
        self.0.reign.fence.check()
    }

    fn lease_left(&self) -> Duration {
        Duration::from_millis(self.0.reign.fence.left())
    }

    fn lease(&self) -> Duration {
        self.0.database.options.lease
    }

    fn write(&self, file: FileId, kind: FileKind, pieces: Vec<Piece>) -> Result<Level, StoreError> {
        let file = signed(file.0);
        match kind {
            FileKind::Journal => self.wait(|files| async move { files.write_journal(file, pieces).await }),
            FileKind::Blob => self.wait(|files| async move { files.write_blob(file, pieces).await }),
        }
    }

    fn give_name(&self, name: &str, file: FileId, _kind: FileKind, bytes: u64) -> Result<(), StoreError> {
        let name = name.to_owned();
        self.wait(|files| async move { files.name(name, signed(file.0), bytes).await })
    }

    fn remove(&self, name: &str) -> Result<bool, StoreError> {
        let name = name.to_owned();
        self.wait(|files| async move { files.remove(name).await })
    }

    fn discard(&self, file: FileId) -> Result<(), StoreError> {
        self.wait(|files| async move {
            let _turn = files.turn.lock().await;
            locked(&files.unnamed).remove(&signed(file.0));
            files.forget(Some(signed(file.0))).await
        })
    }

    fn free_bytes(&self) -> u64 {
        let full_at = self.0.full_at.load(SeqCst);
        let is_full = full_at > 0 && boot_ms().saturating_sub(full_at) < FULL_FOR_MS;
        if is_full { 0 } else { u64::MAX / 4 }
    }

    fn level(&self) -> Level {
        self.0.database.level()
    }

    fn note_clocks(&self) {
        *locked(&self.0.noted) = None;
    }

    fn give_back(&self, _next_id: Option<MessageId>) -> Result<(), StoreError> {
        self.0.of_process.leases.remove(self.0.reign.mark);
        self.wait(|files| async move { reign::give_back(&files.database, &files.reign).await })
    }

    fn refuse(&self, why: &str) -> Result<(), StoreError> {
        let why = why.to_owned();
        self.wait(|files| async move { files.refuse(why).await })
    }

    fn ended(&self, why: StoreError) {
        self.0.reign.fence.lose(why);
        self.0.of_process.leases.remove(self.0.reign.mark);
        self.0.of_process.ended.note(self.0.reign.mark);
    }
}

impl Drop for PgFiles {
    /// The lease is renewed no longer.
    fn drop(&mut self) {
        self.of_process.leases.remove(self.reign.mark);
    }
}

impl fmt::Debug for PgMedium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgMedium").field("reign", &self.0.reign).finish_non_exhaustive()
    }
}
