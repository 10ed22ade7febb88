//! Finds messages by id and by key, and remembered answers, in all memtables and runs: the newest entry of a message is
//! valid.
//!
//! | asked | what it costs |
//! |---|---|
//! | something in a memtable | memory only |
//! | a key or an answer that is nowhere | a probe of each run's filter, memory only |
//! | a message in a run | a leaf of an index and a block, which neighbours share |

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use duewheel_core::message::{Kind, Row};
use duewheel_core::store::{DEAD_FOUND, FOUND_AHEAD, Found, Lookups};
use duewheel_core::{Key, MessageId, QueueName};

use crate::fault::{Damage, ReadFault};
use crate::format::JOURNAL;
use crate::mem::{Mem, MemAnswer, Patch, StageAfter};
use crate::readers::{ReadPriority, ReadTask, Readers};
use crate::run::{Blocking, KeyLookup, Newer, NewerTables, ReadAllowance};
use crate::view::{LiveRun, StoreView};

/// Up to this many look-ups in runs are made by the caller's thread; more are distributed.
const ALONE: usize = 64;
/// Smallest number of look-ups for one thread.
const SHARE: usize = 32;
/// Largest number of threads for look-ups of one kind.
const SHARES: usize = 16;

/// The tables to search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finder<'a> {
    pub(crate) view: &'a StoreView,
    /// The active memtable, newer than the view, if there is one.
    pub(crate) active: Option<&'a Mem>,
    pub(crate) readers: &'a Arc<Readers>,
    /// The priority of the reads.
    pub(crate) whom: ReadPriority,
    /// Whether they may wait for the medium.
    pub(crate) blocking: Blocking,
}

/// A key in a run, with everything that a reader needs.
struct WantedKey {
    lookup: usize,
    hash: u64,
    queue: QueueName,
    key: Key,
}

impl<'a> Finder<'a> {
    /// Finds what is behind the active memtable, and may wait for the medium.
    pub(crate) fn new(view: &'a StoreView, readers: &'a Arc<Readers>, whom: ReadPriority) -> Self {
        Finder { view, active: None, readers, whom, blocking: Blocking::Allowed }
    }
}

impl Finder<'_> {
    /// Finds everything that was asked for, or what the first look-ups of each list ask for if more than
    /// [`Lookups::bytes`] would have to be read.
    pub(crate) fn find(&self, lookups: &Lookups, found: &mut Found) -> Result<(), ReadFault> {
        let mut most = lookups.ids.len().max(lookups.keys.len());
        loop {
            let ids = &lookups.ids[..most.min(lookups.ids.len())];
            let keys = &lookups.keys[..most.min(lookups.keys.len())];
            let bytes = if most <= FOUND_AHEAD { usize::MAX } else { lookups.bytes };
            match self.find_first(ids, keys, &ReadAllowance::new(bytes, self.blocking)) {
                Ok(rows) => {
                    found.rows.extend(rows);
                    found.left.ids = lookups.ids.len() - ids.len();
                    found.left.keys = lookups.keys.len() - keys.len();
                    break;
                }
                Err(ReadFault::TooMuch) => most = (most / 4).max(FOUND_AHEAD),
                Err(trouble) => return Err(trouble),
            }
        }
        for (queue, id) in &lookups.answers {
            found.answers.extend(self.answer(queue, id)?);
        }
        Ok(())
    }

    fn find_first(
        &self,
        asked: &[MessageId],
        keys: &[(QueueName, Key)],
        allowance: &Arc<ReadAllowance>,
    ) -> Result<impl Iterator<Item = Row> + use<>, ReadFault> {
        let mut ids: Vec<MessageId> = asked.to_vec();
        let (named, read) = self.named_by_keys(keys, allowance)?;
        ids.extend(named.iter().map(|(_, id)| *id));
        ids.sort_unstable();
        ids.dedup();
        let mut rows = self.rows_within(&ids, read, allowance)?;
        if !named.is_empty() {
            let in_order = if asked.is_sorted() { None } else { Some(sorted(asked)) };
            let asked = in_order.as_deref().unwrap_or(asked);
            self.drop_unwanted(&ids, asked, keys, &named, &mut rows);
        }
        Ok(rows.into_iter().flatten())
    }

    /// The messages with these ids, which are ascending and distinct; `None` for missing ones. `read` are rows of runs
    /// that have been read already.
    pub(crate) fn rows(
        &self,
        ids: &[MessageId],
        read: HashMap<MessageId, Row>,
    ) -> Result<Vec<Option<Row>>, ReadFault> {
        self.rows_within(ids, read, &ReadAllowance::new(usize::MAX, self.blocking))
    }

    /// The messages with these ids, as [`Finder::rows`], while the allowance lasts. `read` has been charged to it.
    fn rows_within(
        &self,
        ids: &[MessageId],
        mut read: HashMap<MessageId, Row>,
        allowance: &Arc<ReadAllowance>,
    ) -> Result<Vec<Option<Row>>, ReadFault> {
        let mut rows: Vec<Option<Row>> = Vec::with_capacity(ids.len());
        // Those that a run must tell, and what has changed since.
        let mut older: Vec<usize> = Vec::new();
        let mut patches: HashMap<usize, Patch> = HashMap::new();
        for (i, &id) in ids.iter().enumerate() {
            rows.push(None);
            let patch = match self.combined(id) {
                MemAnswer::Gone => continue,
                MemAnswer::Row(row) => {
                    allowance.charge(row.weight())?;
                    rows[i] = Some(row);
                    continue;
                }
                MemAnswer::Patch(patch) => Some(patch),
                MemAnswer::Nothing => None,
            };
            older.push(i);
            patches.extend(patch.map(|patch| (i, patch)));
        }
        if older.is_empty() {
            return Ok(rows);
        }
        let mut take = |i: usize, mut row: Row| {
            if let Some(patch) = patches.remove(&i) {
                patch.apply(&mut row);
            }
            if !self.is_purged(ids[i], &row.message.queue) {
                rows[i] = Some(row);
            }
        };
        if !read.is_empty() {
            older.retain(|i| match read.remove(&ids[*i]) {
                Some(row) => {
                    take(*i, row);
                    false
                }
                None => true,
            });
        }
        for (part, row) in self.read_ids(ids, older, allowance)? {
            let id = row.message.id;
            if let Ok(i) = ids.binary_search(&id)
                && self.view.parts[part].counts(id, &row.message.queue)
            {
                take(i, row);
            }
        }
        match patches.into_keys().min() {
            None => Ok(rows),
            Some(i) => Err(nowhere(ids[i]).into()),
        }
    }

    /// The combined entries of the tables for a message.
    fn combined(&self, id: MessageId) -> MemAnswer {
        let mut patch: Option<Patch> = None;
        for (newer, mem) in self.newer().enumerate() {
            let is_purged = |queue: &QueueName| self.newer().take(newer).any(|mem| mem.has_purged(id, queue));
            match mem.told(id) {
                MemAnswer::Nothing => {}
                MemAnswer::Gone => return MemAnswer::Gone,
                MemAnswer::Row(row) if is_purged(&row.message.queue) => return MemAnswer::Gone,
                MemAnswer::Row(mut row) => {
                    if let Some(patch) = patch {
                        patch.apply(&mut row);
                    }
                    return MemAnswer::Row(row);
                }
                // Where the rest of it was may have been given up since.
                MemAnswer::Patch(_) if mem.queue_of(id).is_some_and(is_purged) => return MemAnswer::Gone,
                MemAnswer::Patch(older) => {
                    patch = Some(match patch {
                        Some(patch) => patch.on(older),
                        None => older,
                    });
                }
            }
        }
        patch.map_or(MemAnswer::Nothing, MemAnswer::Patch)
    }

    /// Reads messages from the runs that have them.
    fn read_ids(
        &self,
        ids: &[MessageId],
        mut left: Vec<usize>,
        allowance: &Arc<ReadAllowance>,
    ) -> Result<Vec<(usize, Row)>, ReadFault> {
        let mut in_parts: Vec<(usize, Vec<MessageId>)> = Vec::new();
        let mut count = 0;
        for (no, part) in self.view.parts.iter().enumerate().rev() {
            if left.is_empty() {
                break;
            }
            let mut here = Vec::new();
            left.retain(|i| {
                let has = part.live.may_have(ids[*i]);
                if has {
                    here.push(ids[*i]);
                }
                !has
            });
            count += here.len();
            if !here.is_empty() {
                in_parts.push((no, here));
            }
        }
        let mut rows = Vec::with_capacity(count);
        if count <= ALONE {
            for (no, here) in in_parts {
                let mut found = Vec::with_capacity(here.len());
                self.view.parts[no].run.find_ids(&here, allowance, &mut found)?;
                rows.extend(found.into_iter().map(|row| (no, row)));
            }
            return Ok(rows);
        }
        let share = SHARE.max(count.div_ceil(SHARES));
        let mut reads: Vec<ReadTask<(usize, Vec<Row>)>> = Vec::new();
        for (no, here) in in_parts {
            for ids in here.chunks(share) {
                let (run, ids) = (Arc::clone(&self.view.parts[no].run), ids.to_vec());
                let allowance = Arc::clone(allowance);
                reads.push(Box::new(move || {
                    let mut found = Vec::with_capacity(ids.len());
                    run.find_ids(&ids, &allowance, &mut found)?;
                    Ok((no, found))
                }));
            }
        }
        for (no, found) in self.readers.all(self.whom, reads)? {
            rows.extend(found.into_iter().map(|row| (no, row)));
        }
        Ok(rows)
    }

    /// The messages that may have these keys, by the position of the key; and the rows that were read for that.
    #[allow(clippy::type_complexity)] // two lists
    fn named_by_keys(
        &self,
        keys: &[(QueueName, Key)],
        allowance: &Arc<ReadAllowance>,
    ) -> Result<(Vec<(usize, MessageId)>, HashMap<MessageId, Row>), ReadFault> {
        let mut named: Vec<(usize, MessageId)> = Vec::new();
        let mut read = HashMap::new();
        let mut in_parts: Vec<Vec<WantedKey>> = Vec::new();
        in_parts.resize_with(self.view.parts.len(), Vec::new);
        let mut ids = Vec::new();
        let mut hashes = Vec::with_capacity(keys.len());
        let mut count = 0;
        for (i, (queue, key)) in keys.iter().enumerate() {
            let hash = self.view.hasher.key(queue, key);
            for (no, mem) in self.newer().enumerate() {
                let newer = self.newer().take(no);
                let says =
                    |id| newer.clone().map(|mem| mem.says(id, queue)).find(|says| *says != Newer::Nothing);
                let says = |id| says(id).unwrap_or(Newer::Nothing);
                let behind = NewerTables { says: &says, revived: newer.clone().any(Mem::has_revived) };
                mem.find_key(hash, (queue, key), &behind, &mut ids);
            }
            self.keep_wanted(queue, &mut ids);
            named.extend(ids.drain(..).map(|id| (i, id)));
            hashes.push(hash);
        }
        // Run by run: a filter stays in the processor's cache for all keys, and its look-ups overlap.
        for (part, wanted) in self.view.parts.iter().zip(&mut in_parts) {
            part.run.probe(&hashes, |lookup| {
                let (queue, key) = keys[lookup].clone();
                wanted.push(WantedKey { lookup, hash: hashes[lookup], queue, key });
                count += 1;
            });
        }
        if count == 0 {
            return Ok((named, read));
        }
        let mut take = |no: usize, mut rows: Vec<(usize, Row)>| {
            self.look_behind(&self.view.parts[no], keys, &hashes, allowance, &mut rows)?;
            for (lookup, row) in rows {
                named.push((lookup, row.message.id));
                read.insert(row.message.id, row);
            }
            Ok::<(), ReadFault>(())
        };
        let in_parts = in_parts.into_iter().enumerate().filter(|(_, wanted)| !wanted.is_empty());
        if count <= ALONE {
            for (no, wanted) in in_parts {
                take(no, read_keys(&self.view.parts[no], &wanted, allowance)?)?;
            }
            return Ok((named, read));
        }
        let share = SHARE.max(count.div_ceil(SHARES));
        let mut reads: Vec<ReadTask<(usize, Vec<(usize, Row)>)>> = Vec::new();
        for (no, wanted) in in_parts {
            let mut wanted = wanted.into_iter();
            loop {
                let some: Vec<WantedKey> = wanted.by_ref().take(share).collect();
                if some.is_empty() {
                    break;
                }
                let (part, allowance) = (self.view.parts[no].clone(), Arc::clone(allowance));
                reads.push(Box::new(move || Ok((no, read_keys(&part, &some, &allowance)?))));
            }
        }
        for (no, rows) in self.readers.all(self.whom, reads)? {
            take(no, rows)?;
        }
        Ok((named, read))
    }

    /// Keeps the holder and the newest dead ones among the messages that the newer tables name by a key. The head of
    /// its newest record gives a message's stage, so nothing is decoded for the others.
    fn keep_wanted(&self, queue: &QueueName, ids: &mut Vec<MessageId>) {
        if ids.len() <= DEAD_FOUND {
            return;
        }
        ids.sort_unstable_by(|a, b| b.cmp(a));
        ids.dedup();
        let mut dead = 0;
        ids.retain(|id| match self.newer().find_map(|mem| mem.stands(*id, queue)) {
            Some(StageAfter::Gone) => false,
            Some(StageAfter::Is(Kind::Dead)) => {
                dead += 1;
                dead <= DEAD_FOUND
            }
            Some(StageAfter::Is(Kind::Waiting | Kind::Leased)) | None => true,
        });
    }

    /// Asks a run again that has named as many dead messages of a key as are wanted, while newer tables may hide some
    /// of them or have revived an older one: for all affected messages, and as many of the others. While a message is
    /// revived in memory, this reads the index entry of each dead message of the key.
    fn look_behind(
        &self,
        part: &LiveRun,
        keys: &[(QueueName, Key)],
        hashes: &[u64],
        allowance: &ReadAllowance,
        rows: &mut Vec<(usize, Row)>,
    ) -> Result<(), ReadFault> {
        if self.newer().all(Mem::is_empty) {
            return Ok(());
        }
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        for (i, _) in &*rows {
            *counts.entry(*i).or_default() += 1;
        }
        let revived = self.newer().any(Mem::has_revived);
        for (i, _) in counts.into_iter().filter(|(_, count)| *count >= DEAD_FOUND) {
            rows.retain(|(of, _)| *of != i);
            let (queue, key) = &keys[i];
            let says = |id| self.newer().map(|mem| mem.says(id, queue)).find(|says| *says != Newer::Nothing);
            let says = |id| says(id).unwrap_or(Newer::Nothing);
            let behind = NewerTables { says: &says, revived };
            let found =
                part.run.find_key(hashes[i], queue, key, &part.live, DEAD_FOUND, &behind, allowance)?;
            rows.extend(found.into_iter().map(|row| (i, row)));
        }
        Ok(())
    }

    /// The tables that are newer than all runs, the newest first.
    fn newer(&self) -> impl Iterator<Item = &Mem> + Clone {
        self.active.into_iter().chain(self.view.frozen.iter().rev().map(|mem| &**mem))
    }

    /// Keeps the holder and the newest dead ones of the messages found by key.
    fn drop_unwanted(
        &self,
        ids: &[MessageId],
        asked: &[MessageId],
        keys: &[(QueueName, Key)],
        named: &[(usize, MessageId)],
        rows: &mut [Option<Row>],
    ) {
        let mut wanted = vec![false; ids.len()];
        for (i, id) in ids.iter().enumerate() {
            wanted[i] = asked.binary_search(id).is_ok();
        }
        let mut by_key: Vec<(usize, usize)> = named
            .iter()
            .filter_map(|(lookup, id)| ids.binary_search(id).ok().map(|i| (*lookup, i)))
            .filter(|(lookup, i)| rows[*i].as_ref().is_some_and(|row| has_key(row, &keys[*lookup])))
            .collect();
        by_key.sort_unstable();
        by_key.dedup();
        for of_key in by_key.chunk_by(|a, b| a.0 == b.0) {
            let is_dead = |i: usize| rows[i].as_ref().is_some_and(|row| row.life.stage.kind() == Kind::Dead);
            let mut dead = DEAD_FOUND;
            for (_, i) in of_key.iter().rev() {
                if !is_dead(*i) {
                    wanted[*i] = true;
                } else if dead > 0 {
                    dead -= 1;
                    wanted[*i] = true;
                }
            }
        }
        for (row, wanted) in rows.iter_mut().zip(wanted) {
            if !wanted {
                *row = None;
            }
        }
    }

    fn answer(
        &self,
        queue: &QueueName,
        id: &str,
    ) -> Result<Option<duewheel_core::record::DedupeRow>, ReadFault> {
        let hash = self.view.hasher.answer(queue, id);
        for mem in self.newer() {
            if let Some(row) = mem.find_answer(hash, queue, id) {
                return Ok(Some(row));
            }
        }
        for part in self.view.parts.iter().rev().filter(|part| part.run.may_have(hash)) {
            if let Some(row) = part.run.find_answer(hash, queue, id, self.blocking)? {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    fn is_purged(&self, id: MessageId, queue: &QueueName) -> bool {
        self.newer().any(|mem| mem.has_purged(id, queue))
    }
}

/// The problem of a change without its message: leaving it out would lose the message.
pub(crate) fn nowhere(id: MessageId) -> Damage {
    Damage::new(
        JOURNAL,
        0,
        format!("a record changes message {id}, which is in no run and in no record before it"),
    )
}

/// Looks keys up in one run, as if there were nothing newer.
fn read_keys(
    part: &LiveRun,
    wanted: &[WantedKey],
    allowance: &ReadAllowance,
) -> Result<Vec<(usize, Row)>, ReadFault> {
    let lookups: Vec<KeyLookup<'_>> = wanted
        .iter()
        .map(|wanted| KeyLookup { hash: wanted.hash, queue: &wanted.queue, key: &wanted.key })
        .collect();
    let mut rows = Vec::new();
    part.run.find_keys(&lookups, &part.live, DEAD_FOUND, &NewerTables::NOTHING, allowance, &mut rows)?;
    Ok(rows.into_iter().map(|(i, row)| (wanted[i].lookup, row)).collect())
}

/// Whether a row has a key. A record may name a message by a key that a later one has taken from it; no engine writes
/// that.
fn has_key(row: &Row, (queue, key): &(QueueName, Key)) -> bool {
    row.message.queue == *queue && row.message.key.as_ref() == Some(key)
}

fn sorted(ids: &[MessageId]) -> Vec<MessageId> {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids
}

#[cfg(test)]
mod tests {
    use duewheel_core::hash_key::HashKey;
    use duewheel_core::message::{DeadReason, Died, Life, MessageContent, Options, Stage};
    use duewheel_core::record::{Gone, Record, Was, Writer};
    use duewheel_core::{Due, Lsn, WallMs};

    use super::*;
    use crate::run::filter::NameHasher;

    const DUE: Due = Due::At(WallMs(5));

    fn push(mem: &mut Mem, record: &Record) {
        let mut writer = Writer::default();
        writer.record(record);
        mem.push(record, &writer.bytes).unwrap();
    }

    fn queue() -> QueueName {
        QueueName::new("q").unwrap()
    }

    fn put(mem: &mut Mem, id: u64, stage: Stage) {
        let message = MessageContent {
            dedupe_id: None,
            id: MessageId(id),
            queue: queue(),
            key: Key::new("k").ok(),
            body: "".into(),
            headers: Vec::new(),
            options: Options::default(),
            enqueued_at: WallMs(1),
        };
        let life = Life { stage, ..Life::new(DUE, None) };
        push(mem, &Record::Put { message: Arc::new(message), life, was: None });
    }

    fn was(kind: Kind) -> Was {
        Was { queue: queue(), kind, due: DUE, weight: 1, detail: 0, past: 0, unweighed: 0 }
    }

    fn dead(id: u64) -> Stage {
        Stage::Dead { reason: DeadReason::Buried, at: Died::from_raw(id), token: None }
    }

    /// Story: every message put with one key since the cut was decoded at each look-up of it. Ten thousand dead under
    /// one constant key made each enqueue take ten milliseconds.
    #[test]
    fn key_lookup_decodes_only_needed() {
        let hasher = NameHasher::new(HashKey::seeded(1));
        let new = || Mem::new(hasher, Lsn(0), (1, 1), None);
        let (mut frozen, mut active) = (new(), new());
        for id in 1..=1_000 {
            put(&mut frozen, id, dead(id));
        }
        for id in 1_001..=2_000 {
            put(&mut active, id, dead(id));
        }
        // One of the oldest is revived in the newer table, and holds the key; one of the newest is gone.
        let life = Life { stage: Stage::Waiting { token: None }, ..Life::new(DUE, None) };
        push(&mut active, &Record::Changed { id: MessageId(3), life, was: was(Kind::Dead) });
        push(
            &mut active,
            &Record::Removed { id: MessageId(1_999), why: Gone::Cancelled, was: was(Kind::Dead) },
        );
        frozen.settle();
        let view = StoreView { hasher, frozen: vec![Arc::new(frozen)], parts: Vec::new() };
        let readers = Arc::new(Readers::default());
        let finder = Finder { active: Some(&active), ..Finder::new(&view, &readers, ReadPriority::Owner) };
        let keys = vec![(queue(), Key::new("k").unwrap())];
        let (named, read) =
            finder.named_by_keys(&keys, &ReadAllowance::new(usize::MAX, Blocking::Allowed)).unwrap();
        assert_eq!((named.len(), read.len()), (DEAD_FOUND + 1, 0), "each of these is decoded");
        let mut found = Found::default();
        finder.find(&Lookups { keys, ..Lookups::default() }, &mut found).unwrap();
        let mut ids: Vec<u64> = found.rows.iter().map(|row| row.message.id.0).collect();
        ids.sort_unstable();
        let newest = [1_992, 1_993, 1_994, 1_995, 1_996, 1_997, 1_998, 2_000];
        assert_eq!(ids, [&[3][..], &newest].concat());
    }
}
