//! The files of a shard in Redis: the medium of its log store.
//!
//! A file is a row of blocks, each a string of its own: a write is `SETRANGE`, or `SET` where it completes a block of a
//! run; a read is `GETRANGE`. Names are a hash. Every change is a script that checks the owner first, so an owner that
//! was replaced changes nothing.
//!
//! **No gap.** Each write to the journal has a number, and requires that the one before it is there. All keys of a shard
//! are in one slot, and a replica has a prefix of its master's changes: so a name never comes without its bytes.
//!
//! **Nothing is sent twice.** A call without an answer ends the owner, although the call may have taken effect. The
//! next owner, perhaps of the same process, reads what is there.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use duewheel_core::store::{Level, StoreError};
use duewheel_core::{Epoch, MessageId, ShardId};
use duewheel_store_medium::{FileId, FileKind, Medium, MediumFiles, NamedFile, Piece};
use redis::{Cmd, Pipeline, Value};

use crate::fault::{self, FenceReason};
use crate::keys::{self, Keys};
use crate::owner::RedisOwner;
use crate::reign::{self, IDS_ASIDE};
use crate::wire::{self, Servers, Wire};

/// The files of a shard, for its owner.
pub(crate) struct RedisFiles(Arc<RedisFilesInner>);

struct RedisFilesInner {
    owner: Arc<RedisOwner>,
    /// The number of the last write to the journal.
    writes: AtomicU64,
    /// Ids below this one are reserved.
    aside: AtomicU64,
    /// The greatest id that will be written.
    newest: AtomicU64,
    /// Whether writes to the journal have the clocks of this owner.
    notes: AtomicBool,
}

impl RedisFiles {
    pub(crate) fn new(owner: Arc<RedisOwner>, writes: u64) -> Self {
        let aside = AtomicU64::new(owner.reign.first_id.saturating_add(IDS_ASIDE));
        RedisFiles(Arc::new(RedisFilesInner {
            owner,
            writes: AtomicU64::new(writes),
            aside,
            newest: AtomicU64::new(0),
            notes: AtomicBool::new(false),
        }))
    }

    /// Runs calls to their end.
    fn wait<T: Send + 'static, F>(
        &self,
        work: impl FnOnce(Arc<RedisFilesInner>) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        wire::wait_for(work(Arc::clone(&self.0)))
    }
}

impl RedisFilesInner {
    /// The call that writes pieces, and its bytes. `journal` is the number of the last write to the journal, if this is one.
    fn write(&self, file: FileId, pieces: &[Piece], journal: Option<u64>, aside: Option<u64>) -> (Cmd, u64) {
        let keys = &self.owner.keys;
        let mut blocks = BTreeMap::new();
        let mut parts = Vec::new();
        for Piece { at, bytes } in pieces {
            let (mut at, mut rest) = (*at, &bytes[..]);
            while !rest.is_empty() {
                let (block, from) = (at / BLOCK, at % BLOCK);
                let taken = rest.len().min(usize::try_from(BLOCK - from).unwrap_or(usize::MAX));
                blocks.entry(block).or_insert_with(|| keys.block(file, block));
                parts.push((block, from, &rest[..taken]));
                at += taken as u64;
                rest = &rest[taken..];
            }
        }
        let mut names: Vec<&str> = vec![&keys.blocks];
        names.extend(blocks.values().map(String::as_str));
        let mut call = self.owner.fenced(keys::write(), &names);
        for number in [journal, aside] {
            call.arg(number.map_or_else(String::new, |n| n.to_string()));
        }
        call.arg(if self.notes.load(SeqCst) { "1" } else { "" });
        call.arg(file.0).arg(blocks.keys().last().map_or(0, |last| last + 1));
        call.arg(if journal.is_none() { BLOCK } else { 0 });
        let mut sum = 0;
        for (block, from, bytes) in parts {
            // Behind the owner, the head and the numbers of blocks, counted from one.
            let key = 4 + blocks.range(..block).count();
            call.arg(key).arg(from).arg(bytes);
            sum += bytes.len() as u64;
        }
        (call, sum)
    }

    /// The next mark of ids, if it is time for one: ids are set aside before they are given.
    fn next_aside(&self) -> Option<u64> {
        let newest = self.newest.load(SeqCst);
        let is_due = newest.saturating_add(IDS_ASIDE / 2) > self.aside.load(SeqCst);
        is_due.then(|| newest.saturating_add(IDS_ASIDE))
    }

    async fn write_journal(&self, file: FileId, pieces: Vec<Piece>) -> Result<Level, StoreError> {
        let (last, aside) = (self.writes.load(SeqCst), self.next_aside());
        let (call, bytes) = self.write(file, &pieces, Some(last), aside);
        let level = self.owner.write_journal(call, bytes).await?;
        self.writes.store(last + 1, SeqCst);
        if let Some(aside) = aside {
            self.aside.store(aside, SeqCst);
        }
        Ok(level)
    }

    async fn write_blob(&self, file: FileId, pieces: Vec<Piece>) -> Result<Level, StoreError> {
        let (call, bytes) = self.write(file, &pieces, None, None);
        self.owner.call(call, bytes).await?;
        Ok(self.owner.level())
    }

    /// Names, removes or discards a file. False if there was no such name.
    async fn change(&self, verb: &str, words: Vec<String>) -> Result<bool, StoreError> {
        let keys = &self.owner.keys;
        let mut call = self.owner.fenced(keys::files(), &[&keys.files, &keys.blocks]);
        call.arg(&keys.block).arg(verb).arg(&words);
        Ok(self.owner.call(call, 0).await? != "NONE")
    }

    async fn give_back(&self, next_id: Option<u64>) -> Result<(), StoreError> {
        let mut give_back = Pipeline::new();
        give_back.add_command(reign::giving_back(&self.owner.keys, &self.owner.reign, next_id));
        let answer = self.owner.answer(FileKind::Blob, async {
            let reply = self.owner.journal.call(give_back).await?;
            Ok(reign::judge(fault::some(reply.into_iter().next(), "renew")?)?)
        });
        answer.await
    }
}

impl ShardAsked for RedisFilesInner {
    fn keys(&self) -> &Keys {
        &self.owner.keys
    }

    async fn asked(&self, ask: Pipeline) -> Result<Vec<redis::Value>, StoreError> {
        self.owner.answer(FileKind::Blob, self.owner.files.call(ask)).await
    }
}

impl MediumFiles for RedisFiles {
    fn read(&self, file: FileId, at: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        self.wait(|files| async move { read(&*files, file, at, length).await })
    }

    fn find(&self, name: &str) -> Result<Option<NamedFile>, StoreError> {
        let name = name.to_owned();
        self.wait(|files| async move { find(&*files, name).await })
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let prefix = prefix.to_owned();
        self.wait(|files| async move { list(&*files, prefix).await })
    }
}

impl Medium for RedisFiles {
    fn epoch(&self) -> Epoch {
        self.0.owner.reign.epoch
    }

    fn check(&self) -> Result<(), StoreError> {
        self.0.owner.check()
    }

    fn lease_left(&self) -> Duration {
        Duration::from_millis(self.0.owner.fence.left())
    }

    fn lease(&self) -> Duration {
        self.0.owner.options().lease
    }

    fn write(&self, file: FileId, kind: FileKind, pieces: Vec<Piece>) -> Result<Level, StoreError> {
        match kind {
            FileKind::Journal => self.wait(|files| async move { files.write_journal(file, pieces).await }),
            FileKind::Blob => self.wait(|files| async move { files.write_blob(file, pieces).await }),
        }
    }

    fn give_name(&self, name: &str, file: FileId, _kind: FileKind, bytes: u64) -> Result<(), StoreError> {
        let words = vec![name.to_owned(), file.0.to_string(), bytes.to_string()];
        self.wait(|files| async move { files.change("name", words).await.map(drop) })
    }

    fn remove(&self, name: &str) -> Result<bool, StoreError> {
        let words = vec![name.to_owned()];
        self.wait(|files| async move { files.change("remove", words).await })
    }

    fn discard(&self, file: FileId) -> Result<(), StoreError> {
        let words = vec![file.0.to_string()];
        self.wait(|files| async move { files.change("discard", words).await.map(drop) })
    }

    fn free_bytes(&self) -> u64 {
        self.0.owner.memory.free()
    }

    fn level(&self) -> Level {
        self.0.owner.level()
    }

    fn note_id(&self, id: MessageId) {
        self.0.newest.fetch_max(id.0, SeqCst);
    }

    fn note_clocks(&self) {
        self.0.notes.store(true, SeqCst);
    }

    fn give_back(&self, next_id: Option<MessageId>) -> Result<(), StoreError> {
        let next_id = next_id.map(|id| id.0.max(self.0.owner.reign.first_id));
        self.wait(|files| async move { files.give_back(next_id).await })
    }

    fn ended(&self, why: StoreError) {
        self.0.owner.end(why);
        self.0.owner.cut();
    }

    fn figures(&self) -> Vec<(&'static str, u64)> {
        let owner = &*self.0.owner;
        let fence = |reason: FenceReason| owner.counts.fences[reason as usize].load(SeqCst);
        vec![
            ("append_microseconds_total", owner.counts.append_micros.load(SeqCst)),
            ("appends_answered_total", owner.counts.answered.load(SeqCst)),
            ("under_way_bytes", owner.under_way()),
            ("renewals_total", owner.counts.renewals.load(SeqCst)),
            ("fences_total.other_owner", fence(FenceReason::Owner)),
            ("fences_total.lease_ran_out", fence(FenceReason::Lease)),
            ("fences_total.other_master", fence(FenceReason::Master)),
            ("fences_total.lost_changes", fence(FenceReason::Gap)),
            ("wait_failures_total", owner.counts.wait_failures.load(SeqCst)),
            ("server_memory_bytes", owner.memory.used()),
            ("server_memory_max_bytes", owner.memory.max()),
        ]
    }
}

impl Drop for RedisFilesInner {
    /// The lease is renewed no longer.
    fn drop(&mut self) {
        self.owner.cut();
    }
}

impl fmt::Debug for RedisFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisFiles").field("owner", &self.0.owner).finish_non_exhaustive()
    }
}

// Reads the files of a shard, for its owner and for others.

/// Bytes of a block. A string of exactly 1 MiB takes a quarter more than its bytes, because of the allocator's classes
/// (measured on Redis 7.0); with its header this one stays below.
pub(crate) const BLOCK: u64 = 1024 * 1024 - 64;
/// Blocks that a read asks for at once.
const BLOCKS_AT_ONCE: usize = 8;

/// A connection to the master of a shard.
pub(crate) trait ShardAsked: Sync {
    fn keys(&self) -> &Keys;

    /// Sends commands that change nothing.
    fn asked(&self, ask: Pipeline) -> impl Future<Output = Result<Vec<Value>, StoreError>> + Send;
}

pub(crate) async fn find(shard: &impl ShardAsked, name: String) -> Result<Option<NamedFile>, StoreError> {
    let mut ask = Pipeline::new();
    ask.cmd("HGET").arg(&shard.keys().files).arg(&name);
    let reply = shard.asked(ask).await?.into_iter().next();
    let Some(entry) = fault::text(fault::some(reply, "HGET")?, "HGET")? else { return Ok(None) };
    let numbers = entry.split_once(' ').and_then(|(id, bytes)| Some((id.parse().ok()?, bytes.parse().ok()?)));
    let Some((id, bytes)) = numbers else {
        return Err(fault::damaged(&shard.keys().files, &name, "it is no file"));
    };
    Ok(Some(NamedFile { id: FileId(id), bytes }))
}

pub(crate) async fn list(shard: &impl ShardAsked, prefix: String) -> Result<Vec<String>, StoreError> {
    let mut ask = Pipeline::new();
    ask.cmd("HKEYS").arg(&shard.keys().files);
    let of = "HKEYS";
    let names = fault::list(fault::some(shard.asked(ask).await?.into_iter().next(), of)?, of)?;
    let names = names.into_iter().map(|name| fault::some(fault::text(name, of)?, of));
    let names: Vec<String> = names.collect::<Result<_, StoreError>>()?;
    Ok(names.into_iter().filter(|name| name.starts_with(&prefix)).collect())
}

pub(crate) async fn read(
    shard: &impl ShardAsked,
    file: FileId,
    at: u64,
    length: usize,
) -> Result<Vec<u8>, StoreError> {
    let mut bytes = vec![0; length];
    let end = at + length as u64;
    let blocks: Vec<u64> = (at / BLOCK..end.div_ceil(BLOCK)).collect();
    for some in blocks.chunks(BLOCKS_AT_ONCE) {
        let mut ask = Pipeline::with_capacity(some.len());
        for block in some {
            let begin = block * BLOCK;
            let (from, to) = (at.max(begin) - begin, end.min(begin + BLOCK) - begin);
            ask.cmd("GETRANGE").arg(shard.keys().block(file, *block)).arg(from).arg(to - 1);
        }
        let parts = fault::bytes_list(Value::Array(shard.asked(ask).await?), "GETRANGE")?;
        for (block, part) in some.iter().zip(parts) {
            let skip = usize::try_from(at.max(block * BLOCK) - at).unwrap_or(usize::MAX);
            // A block that is shorter, or not there, was not written so far.
            let part = part.unwrap_or_default();
            bytes[skip..skip + part.len()].copy_from_slice(&part);
        }
    }
    Ok(bytes)
}

/// The files of a shard that another node may own.
pub(crate) struct RedisReader(Arc<RedisReaderInner>);

struct RedisReaderInner {
    keys: Keys,
    wire: Wire,
}

impl RedisReader {
    /// Connects to the master of a shard.
    pub(crate) async fn connect(servers: &Servers, shard: ShardId) -> Result<Self, StoreError> {
        let keys = Keys::new(&servers.0.prefix, shard);
        let slots = servers.slots().await?;
        let wire = Wire::new(servers.connect(slots.master_of(&keys.files)?).await?);
        Ok(RedisReader(Arc::new(RedisReaderInner { keys, wire })))
    }
}

impl ShardAsked for RedisReaderInner {
    fn keys(&self) -> &Keys {
        &self.keys
    }

    async fn asked(&self, ask: Pipeline) -> Result<Vec<Value>, StoreError> {
        Ok(self.wire.call(ask).await?)
    }
}

impl MediumFiles for RedisReader {
    fn read(&self, file: FileId, at: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        let shard = Arc::clone(&self.0);
        wire::wait_for(async move { read(&*shard, file, at, length).await })
    }

    fn find(&self, name: &str) -> Result<Option<NamedFile>, StoreError> {
        let (shard, name) = (Arc::clone(&self.0), name.to_owned());
        wire::wait_for(async move { find(&*shard, name).await })
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let (shard, prefix) = (Arc::clone(&self.0), prefix.to_owned());
        wire::wait_for(async move { list(&*shard, prefix).await })
    }
}

impl fmt::Debug for RedisReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisReader").field("keys", &self.0.keys.tag()).finish_non_exhaustive()
    }
}
