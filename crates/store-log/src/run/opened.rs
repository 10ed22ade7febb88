//! A run that is open for queries: its tail is in memory, everything else is read on demand.
//!
//! The manifest says where the tail starts, so two reads open a run, and neither depends on the other: the head, and
//! the tail with the footer behind it in one range.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use duewheel_core::message::Row;
use duewheel_core::name::BadName;
use duewheel_core::record::{DecodeError, Reader, RowHead, StageKind, varint};
use duewheel_core::time::Class;
use duewheel_core::{Due, Lsn, MessageId, QueueName};
use roaring::RoaringTreemap;

use crate::disk::Disk;
use crate::fault::{ReadFault, lock};
use crate::format::u64_at;
use crate::manifest::RunEntry;
use crate::run::block::{self, BlockHead, BlockKind, Footer, HEAD, RunFile, bytes_between};
use crate::run::filter::{self, Filter, NameHasher};
use crate::run::index::RunIndex;

/// A run, immutable and shared.
pub(crate) struct Run {
    pub(super) file: RunFile,
    pub(super) footer: Footer,
    queues: Vec<RunQueue>,
    /// The hashes of its folder.
    pub(super) hasher: NameHasher,
    answers: Vec<RunAnswers>,
    /// Numbers of queues, by the hashes of their names.
    by_name: Vec<(u64, u32)>,
    pub(super) spans: Vec<Span>,
    pub(super) by_id: RunIndex<2>,
    pub(super) by_key: RunIndex<3>,
    pub(super) by_queue: RunIndex<4>,
    pub(super) leased: RunIndex<4>,
    pub(super) dead: RunIndex<4>,
    pub(super) graves: RunIndex<4>,
    pub(super) filter: Filter,
    ids: RoaringTreemap,
}

/// A queue that has rows in a run. Its position in the list is its number there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunQueue {
    pub(crate) name: QueueName,
    pub(crate) rows: u64,
    /// Sum of the weights of its messages.
    pub(crate) weight: u64,
}

/// The answers of a queue in a run that have a position in its log. One as old as `last` or older is forgotten together
/// with the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunAnswers {
    pub(crate) queue: QueueName,
    pub(crate) count: u64,
    /// The bytes of their entries.
    pub(crate) bytes: u64,
    pub(crate) last: Lsn,
}

/// A part of the rows: all that are due from its first row up to that of the next span, exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) at: u64,
    pub(crate) class: Class,
    pub(crate) due: u64,
    pub(crate) id: MessageId,
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("entry", self.entry()).field("rows", &self.rows()).finish_non_exhaustive()
    }
}

impl Run {
    /// Opens a run: reads its head, its tail and its footer.
    pub(crate) fn open(
        disk: &dyn Disk,
        run: &RunEntry,
        hasher: NameHasher,
        names: &Interner,
    ) -> Result<Self, ReadFault> {
        let mut file = RunFile::open(disk, run)?;
        let (range, footer) = read_tail(&mut file)?;
        let footer_at = run.bytes - block::FOOTER as u64;
        let mut tail = Tail {
            file: &file,
            range: &range,
            from: footer.leaves_end,
            at: footer.leaves_end,
            end: footer_at,
        };

        let (at, head, bytes) = tail.block(BlockKind::Queues)?;
        let (queues, answers) = read_queues(bytes, head.entries, names)
            .filter(|(queues, _)| queues.len() as u64 == footer.queues)
            .ok_or_else(|| file.problem(at, "the queues cannot be read"))?;
        let counted = queues.iter().try_fold((0u64, 0u64), |(rows, weight), queue| {
            Some((rows.checked_add(queue.rows)?, weight.checked_add(queue.weight)?))
        });
        if counted != Some((footer.rows, footer.weight)) {
            return Err(file.problem(at, "the queues do not count as many messages as there are").into());
        }
        let mut by_name: Vec<(u64, u32)> =
            queues.iter().map(|queue| hasher.name(&queue.name)).zip(0..).collect();
        by_name.sort_unstable();
        let twice = |same: &[(u64, u32)]| {
            same.iter().enumerate().any(|(i, a)| {
                same[..i].iter().any(|b| queues[a.1 as usize].name == queues[b.1 as usize].name)
            })
        };
        if by_name.chunk_by(|a, b| a.0 == b.0).any(twice) {
            return Err(file.problem(at, "a queue is named twice").into());
        }

        let (at, head, bytes) = tail.block(BlockKind::Spans)?;
        let spans = read_spans(bytes, head.entries, footer.messages_end)
            .ok_or_else(|| file.problem(at, "the table of spans cannot be read"))?;

        let mut from = footer.answers_end;
        let by_id = tail.index(BlockKind::IdLeaf, &mut from, footer.leaves_end)?;
        let by_key = tail.index(BlockKind::KeyLeaf, &mut from, footer.leaves_end)?;
        let by_queue = tail.index(BlockKind::SpanLeaf, &mut from, footer.leaves_end)?;
        let leased: RunIndex<4> = tail.index(BlockKind::LeasedLeaf, &mut from, footer.leaves_end)?;
        let dead: RunIndex<4> = tail.index(BlockKind::DeadLeaf, &mut from, footer.leaves_end)?;
        let graves: RunIndex<4> = tail.index(BlockKind::GraveLeaf, &mut from, footer.leaves_end)?;
        if from != footer.leaves_end {
            return Err(file.problem(from, "there are leaves that no index knows").into());
        }

        let (at, head, bytes) = tail.block(BlockKind::Filter)?;
        let filter = Filter::read(bytes.to_vec(), 0, head.entries)
            .ok_or_else(|| file.problem(at, "the filter cannot be read"))?;

        let (at, _, mut set) = tail.block(BlockKind::Ids)?;
        let ids = RoaringTreemap::deserialize_from(&mut set).ok().filter(|_| set.is_empty());
        let ids = ids.ok_or_else(|| file.problem(at, "the set of ids cannot be read"))?;
        if tail.at != tail.end {
            return Err(file.problem(tail.at, "there is more in the tail than there should").into());
        }
        if ids.len() != footer.rows || by_id.entries != footer.rows || dead.entries != graves.entries {
            return Err(file.problem(at, "the counts of messages do not agree").into());
        }
        Ok(Run {
            file,
            footer,
            queues,
            hasher,
            answers,
            by_name,
            spans,
            by_id,
            by_key,
            by_queue,
            leased,
            dead,
            graves,
            filter,
            ids,
        })
    }

    /// The run's entry in the manifest.
    pub(crate) fn entry(&self) -> &RunEntry {
        &self.file.run
    }

    /// Number of its messages, live or not.
    pub(crate) fn rows(&self) -> u64 {
        self.footer.rows
    }

    /// Sum of the weights of its messages, live or not.
    pub(crate) fn weight(&self) -> u64 {
        self.footer.weight
    }

    /// Bytes of its messages in the file, indexes apart.
    pub(crate) fn message_bytes(&self) -> u64 {
        self.footer.messages_end.saturating_sub(block::FILE_HEAD as u64)
    }

    /// Bytes of its remembered answers in the file, indexes apart.
    pub(crate) fn answer_bytes(&self) -> u64 {
        self.footer.answers_end.saturating_sub(self.footer.messages_end)
    }

    /// Number of its remembered answers.
    pub(crate) fn answers(&self) -> u64 {
        self.footer.answers
    }

    /// The engine time at which the last of its answers expires; 0 if it has none.
    pub(crate) fn answers_until(&self) -> u64 {
        self.footer.answers_until
    }

    /// Ids of its messages.
    pub(crate) fn ids(&self) -> &RoaringTreemap {
        &self.ids
    }

    /// Queues that have messages in it, by their numbers.
    pub(crate) fn queues(&self) -> &[RunQueue] {
        &self.queues
    }

    /// Answers with a position, by queue.
    pub(crate) fn answers_by_queue(&self) -> &[RunAnswers] {
        &self.answers
    }

    /// The number of a queue.
    pub(crate) fn queue_no(&self, name: &QueueName) -> Option<u32> {
        let hash = self.hasher.name(name);
        let from = self.by_name.partition_point(|(of, _)| *of < hash);
        let mut same = self.by_name[from..].iter().take_while(|(of, _)| *of == hash);
        same.find(|(_, no)| self.queues[*no as usize].name == *name).map(|(_, no)| *no)
    }

    /// Whether there may be a message with a key, or an answer, of this hash. `false` is certain.
    pub(crate) fn may_have(&self, hash: u64) -> bool {
        self.filter.may_have(filter::short(hash))
    }

    /// Calls `hit` with the position of each hash for which [`Run::may_have`] is true.
    pub(crate) fn probe(&self, hashes: &[u64], hit: impl FnMut(usize)) {
        self.filter.probe(hashes.iter().map(|hash| filter::short(*hash)), hit);
    }

    /// The name of a queue to which a row in the block at `at` refers.
    pub(super) fn queue_name(&self, queue: u32, at: u64) -> Result<QueueName, ReadFault> {
        match self.queues.get(queue as usize) {
            Some(queue) => Ok(queue.name.clone()),
            None => Err(self.file.problem(at, "a row is of a queue that is not in the run").into()),
        }
    }

    /// The end of a span.
    pub(super) fn span_end(&self, span: usize) -> u64 {
        self.spans.get(span + 1).map_or(self.footer.messages_end, |next| next.at)
    }
}

/// Reads everything from the start of the tail to the end of the file, and notes where the tail starts.
fn read_tail(file: &mut RunFile) -> Result<(Vec<u8>, Footer), ReadFault> {
    let run = file.run;
    let footer_at = run.bytes - block::FOOTER as u64;
    let footer_of = |bytes: &[u8]| -> Result<Footer, ReadFault> {
        let head = file.check(bytes, BlockKind::Footer, footer_at)?;
        Ok(Footer::read(payload(bytes, head), footer_at).map_err(|what| file.problem(footer_at, what))?)
    };
    let from = match run.tail {
        Some(tail) if tail <= footer_at => tail,
        Some(_) => return Err(file.problem(footer_at, "the manifest has the tail start behind it").into()),
        None => {
            let mut bytes = [0; block::FOOTER];
            file.read(&mut bytes, footer_at)?;
            footer_of(&bytes)?.leaves_end
        }
    };
    let mut range = vec![0; bytes_between(from, run.bytes)];
    file.read(&mut range, from)?;
    let footer = footer_of(&range[bytes_between(from, footer_at)..])?;
    if footer.leaves_end != from {
        return Err(file.problem(footer_at, "the tail does not start where the manifest says").into());
    }
    file.run.tail = Some(from);
    Ok((range, footer))
}

/// The blocks of the tail, one after the other.
struct Tail<'a> {
    file: &'a RunFile,
    /// Everything from `from` to the end of the file.
    range: &'a [u8],
    from: u64,
    at: u64,
    end: u64,
}

impl<'a> Tail<'a> {
    /// The place of the next block, its head and its payload.
    fn block(&mut self, kind: BlockKind) -> Result<(u64, BlockHead, &'a [u8]), ReadFault> {
        let at = self.at;
        if bytes_between(at, self.end) < HEAD {
            return Err(self.file.problem(at, "the tail ends too soon").into());
        }
        let bytes = &self.range[bytes_between(self.from, at)..bytes_between(self.from, self.end)];
        let head = self.file.first_block(bytes, kind, at)?;
        self.at += head.length as u64;
        Ok((at, head, payload(bytes, head)))
    }

    /// Reads an index whose leaves start at `from`, which moves behind them.
    fn index<const C: usize>(
        &mut self,
        kind: BlockKind,
        from: &mut u64,
        until: u64,
    ) -> Result<RunIndex<C>, ReadFault> {
        let (at, head, bytes) = self.block(BlockKind::Fences)?;
        let index: RunIndex<C> = RunIndex::read(kind, bytes, head.entries, *from, until)
            .ok_or_else(|| self.file.problem(at, "the table of leaves cannot be read"))?;
        *from = index.end();
        Ok(index)
    }
}

/// The payload of the block at the start of `bytes`.
pub(super) fn payload(bytes: &[u8], head: BlockHead) -> &[u8] {
    &bytes[HEAD..HEAD + head.payload]
}

/// Reads the queues, and behind them those with answers.
fn read_queues(mut bytes: &[u8], count: u32, names: &Interner) -> Option<(Vec<RunQueue>, Vec<RunAnswers>)> {
    let mut queues = Vec::with_capacity((count as usize).min(bytes.len() / 4));
    for _ in 0..count {
        let name = read_name(&mut bytes, names)?;
        queues.push(RunQueue { name, rows: varint(&mut bytes).ok()?, weight: varint(&mut bytes).ok()? });
    }
    let mut answers = Vec::new();
    while !bytes.is_empty() {
        let queue = read_name(&mut bytes, names)?;
        let (count, size) = (varint(&mut bytes).ok()?, varint(&mut bytes).ok()?);
        answers.push(RunAnswers { queue, count, bytes: size, last: Lsn(varint(&mut bytes).ok()?) });
    }
    Some((queues, answers))
}

fn read_name(bytes: &mut &[u8], names: &Interner) -> Option<QueueName> {
    let length = usize::try_from(varint(bytes).ok()?).ok()?;
    let (name, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    names.name(std::str::from_utf8(name).ok()?).ok()
}

fn read_spans(bytes: &[u8], count: u32, messages_end: u64) -> Option<Vec<Span>> {
    if bytes.len() != (count as usize).checked_mul(Span::BYTES)? {
        return None;
    }
    let mut spans: Vec<Span> = Vec::with_capacity(count as usize);
    for span in bytes.chunks_exact(Span::BYTES) {
        let class = match u64_at(span, 8) {
            0 => Class::At,
            1 => Class::After,
            _ => return None,
        };
        spans.push(Span {
            at: u64_at(span, 0),
            class,
            due: u64_at(span, 16),
            id: MessageId(u64_at(span, 24)),
        });
    }
    let start = spans.first().map_or(messages_end, |span| span.at);
    let ordered = spans.is_sorted_by(|a, b| a.at < b.at && a.key() < b.key());
    let whole = start == block::FILE_HEAD as u64
        && ordered
        && spans.iter().all(|span| span.at < messages_end && span.at % 8 == 0);
    whole.then_some(spans)
}

impl Span {
    pub(super) const BYTES: usize = 32;

    pub(super) fn key(&self) -> (Class, u64, MessageId) {
        (self.class, self.due, self.id)
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let class = match self.class {
            Class::At => 0,
            Class::After => 1,
        };
        for n in [self.at, class, self.due, self.id.0] {
            out.extend_from_slice(&n.to_le_bytes());
        }
    }
}

// The live rows of a run.

/// A snapshot for one run: replaced as a whole, never changed while it is read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live {
    /// The live ids, apart from masks.
    pub(crate) ids: RoaringTreemap,
    /// Purges that were not applied to `ids` yet, by the run's number of the queue.
    masks: BTreeMap<u32, Vec<Mask>>,
    /// Sum of the weights of the rows that were removed from `ids`, in bytes. An estimate, for the choice of merges.
    gone: u64,
}

/// A purge of a queue: rows with an id below `before` are removed, except for those kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mask {
    pub(crate) before: MessageId,
    /// The ids that it kept and that were live in the run then, ascending. (Others may be among them.)
    pub(crate) keep: Vec<MessageId>,
}

impl Mask {
    /// Whether the purge removes a message of its queue.
    pub(crate) fn takes(&self, id: MessageId) -> bool {
        id < self.before && self.keep.binary_search(&id).is_err()
    }

    /// Adds what the same purge kept of another run.
    fn keep_also(&mut self, ids: &[MessageId]) {
        self.keep.extend_from_slice(ids);
        self.keep.sort_unstable();
        self.keep.dedup();
    }
}

impl Live {
    /// All rows of a run.
    pub(crate) fn all(run: &Run) -> Self {
        Live { ids: run.ids().clone(), masks: BTreeMap::new(), gone: 0 }
    }

    /// The rows of a run without the removed ones, whose weights sum up to `gone`.
    pub(crate) fn without(run: &Run, removed: &RoaringTreemap, gone: u64) -> Self {
        Live { ids: run.ids() - removed, masks: BTreeMap::new(), gone }
    }

    /// Removes rows whose weights sum up to `weight`.
    pub(crate) fn take(&mut self, ids: &RoaringTreemap, weight: u64) {
        self.ids -= ids;
        self.gone = self.gone.saturating_add(weight);
    }

    /// Sum of the weights of the rows that were removed, apart from masks.
    pub(crate) fn gone(&self) -> u64 {
        self.gone
    }

    /// Whether a row is live.
    #[inline]
    pub(crate) fn has(&self, id: MessageId, queue: u32) -> bool {
        self.ids.contains(id.0) && (self.masks.is_empty() || !self.is_masked(id, queue))
    }

    /// Whether the id may be live, as far as this is known without its queue.
    #[inline]
    pub(crate) fn may_have(&self, id: MessageId) -> bool {
        self.ids.contains(id.0)
    }

    /// Removes a row.
    #[cfg(test)]
    pub(crate) fn remove(&mut self, id: MessageId) -> bool {
        self.ids.remove(id.0)
    }

    /// Records a purge of a queue. A purge includes whatever an earlier one took: the messages that the earlier one
    /// kept were alive or have been removed since.
    pub(crate) fn mask(&mut self, queue: u32, mask: Mask) {
        let masks = self.masks.entry(queue).or_default();
        masks.retain(|earlier| earlier.before > mask.before);
        masks.push(mask);
    }

    /// Purges by the run's number of the queue.
    pub(crate) fn masks(&self) -> impl Iterator<Item = (u32, &Mask)> {
        self.masks.iter().flat_map(|(queue, masks)| masks.iter().map(|mask| (*queue, mask)))
    }

    fn is_masked(&self, id: MessageId, queue: u32) -> bool {
        let Some(masks) = self.masks.get(&queue) else { return false };
        masks.iter().any(|mask| mask.takes(id))
    }

    /// The live rows of a merge's output: `inputs` are the runs, their live rows when the merge began, and their
    /// present ones.
    ///
    /// Purges that were masked when it began have been applied. They are dropped, because otherwise a queue would stay
    /// purged forever.
    pub(crate) fn of_merged(output: &Run, inputs: &[(&Run, &Live, &Live)]) -> Live {
        let mut ids = RoaringTreemap::new();
        for (_, _, live) in inputs {
            ids |= &live.ids;
        }
        ids &= output.ids();
        let gone = inputs.iter().map(|(_, then, now)| now.gone.saturating_sub(then.gone)).sum();
        let mut merged = Live { ids, masks: BTreeMap::new(), gone };
        let of_output = |run: &Run, queue: u32| output.queue_no(&run.queues().get(queue as usize)?.name);
        // A purge is new as a whole when it is new for one of the runs: each has its own part of what the purge kept.
        let mut new = BTreeSet::new();
        for (run, then, now) in inputs {
            let came = now.masks().filter(|mask| !then.masks().any(|applied| applied == *mask));
            new.extend(came.filter_map(|(queue, mask)| Some((of_output(run, queue)?, mask.before))));
        }
        for (run, _, now) in inputs {
            for (queue, mask) in now.masks() {
                let Some(queue) = of_output(run, queue).filter(|queue| new.contains(&(*queue, mask.before)))
                else {
                    continue;
                };
                let known = merged.masks.entry(queue).or_default();
                match known.iter_mut().find(|known| known.before == mask.before) {
                    Some(known) => known.keep_also(&mask.keep),
                    None => known.push(mask.clone()),
                }
            }
        }
        merged
    }
}

/// `of` times `part` divided by `whole`, rounded down; `of` at most.
pub(crate) fn share(of: u64, part: u64, whole: u64) -> u64 {
    let share = u128::from(of) * u128::from(part.min(whole)) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(of)
}

// A message of a run, not decoded.

/// A row as a scan returns it. It keeps a part of the file in memory as long as it lives.
#[derive(Clone, Debug)]
pub(crate) struct RawRow {
    pub(crate) id: MessageId,
    pub(crate) due: Due,
    pub(crate) stands: StageKind,
    pub(crate) weight: u64,
    /// The run's number of its queue.
    pub(crate) queue: u32,
    /// The row in the codec's form.
    pub(crate) bytes: Bytes,
    /// The row's offset in the file, for messages about damage.
    pub(crate) at: u64,
}

/// A row in the payload of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InBlock<'a> {
    pub(crate) queue: u32,
    pub(crate) head: RowHead<'a>,
    /// The row in the codec's form.
    pub(crate) bytes: &'a [u8],
    /// The start of these bytes in the payload.
    pub(crate) at: usize,
}

/// The rows of a block's payload, one by one.
#[derive(Debug)]
pub(crate) struct BlockRows<'a> {
    payload: &'a [u8],
    rest: &'a [u8],
    left: u32,
}

impl<'a> BlockRows<'a> {
    pub(crate) fn new(payload: &'a [u8], entries: u32) -> Self {
        BlockRows { payload, rest: payload, left: entries }
    }

    /// The next row; `None` when the block ends where it should.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<InBlock<'a>>, DecodeError> {
        if self.left == 0 {
            return if self.rest.is_empty() { Ok(None) } else { Err(DecodeError::Unknown("end of a block")) };
        }
        self.left -= 1;
        let length = usize::try_from(varint(&mut self.rest)?).map_err(|_| DecodeError::Short)?;
        let (mut row, rest) = self.rest.split_at_checked(length).ok_or(DecodeError::Short)?;
        self.rest = rest;
        let queue = u32::try_from(varint(&mut row)?).map_err(|_| DecodeError::Unknown("queue"))?;
        let at = self.payload.len() - rest.len() - row.len();
        Ok(Some(InBlock { queue, head: RowHead::read(row)?, bytes: row, at }))
    }
}

/// Decodes the whole row.
pub(crate) fn decode_row(bytes: Bytes, queue: QueueName) -> Result<Row, DecodeError> {
    let mut reader = Reader::new(bytes);
    let row = reader.stored(queue)?;
    if reader.is_empty() { Ok(row) } else { Err(DecodeError::Unknown("end of a message")) }
}

// A shared copy of each queue's name, however many runs have rows of it.

/// Interns names, so that equal names share memory; for several threads.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    names: Mutex<HashSet<QueueName>>,
}

impl Interner {
    /// The name with this text.
    pub(crate) fn name(&self, text: &str) -> Result<QueueName, BadName> {
        let mut names = self.lock();
        if let Some(name) = names.get(text) {
            return Ok(name.clone());
        }
        let name = QueueName::stored(text)?;
        names.insert(name.clone());
        Ok(name)
    }

    /// Forgets names that are not used any more.
    pub(crate) fn keep(&self, wanted: impl Fn(&QueueName) -> bool) {
        self.lock().retain(wanted);
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<QueueName>> {
        lock(&self.names)
    }
}
