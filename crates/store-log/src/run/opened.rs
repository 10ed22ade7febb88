//! A run that is open for queries: its tail is in memory, everything else is read on demand.
//!
//! The manifest says where the tail starts, so two reads open a run, and neither depends on the other: the head, and
//! the tail with the footer behind it in one range.

use std::fmt;

use duewheel_core::record::varint;
use duewheel_core::time::Class;
use duewheel_core::{Lsn, MessageId, QueueName};
use roaring::RoaringTreemap;

use super::block::{self, BlockHead, BlockKind, Footer, HEAD};
use super::file::{RunFile, bytes_between};
use super::filter::Filter;
use super::hash::{self, NameHasher};
use super::index::RunIndex;
use crate::disk::Disk;
use crate::fault::ReadFault;
use crate::le::u64_at;
use crate::manifest::RunEntry;
use crate::names::Interner;

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
        self.filter.may_have(hash::short(hash))
    }

    /// Calls `hit` with the position of each hash for which [`Run::may_have`] is true.
    pub(crate) fn probe(&self, hashes: &[u64], hit: impl FnMut(usize)) {
        self.filter.probe(hashes.iter().map(|hash| hash::short(*hash)), hit);
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
        let head = file.whole_block(bytes, BlockKind::Footer, footer_at)?;
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
