//! Reads the messages of a run in order of time.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use duewheel_core::message::Row;
use duewheel_core::record::{DedupeRow, Reader, StageKind};
use duewheel_core::store::{Cursor, Sequence, Which};
use duewheel_core::time::Class;
use duewheel_core::{Due, MessageId};

use super::block::{BlockKind, FILE_HEAD, HEAD};
use super::find::text;
use super::index::{IndexScan, RunIndex};
use super::opened::{Run, payload};
use crate::fault::ReadFault;
use crate::run::block::{Blocking, bytes_between};
use crate::run::index::LeafEntry;
use crate::run::opened::{self, BlockRows, Live, RawRow};

/// Returns the live rows of a sequence one by one, and keeps its position. One span is in memory at a time, or one
/// queue's part of it.
#[derive(Debug)]
pub(crate) struct RunScan {
    run: Arc<Run>,
    live: Arc<Live>,
    wanted: QueueNumbers,
    after: Option<Cursor>,
    until: u64,
    way: ScanPath,
    allowance: SkipAllowance,
    /// The position at which it has paused: nothing is left before it.
    paused: Option<Cursor>,
}

/// The bytes that a scan may read for one page when it leaves queues out, because discarded reads must be bounded.
#[derive(Clone, Copy, Debug)]
struct SkipAllowance {
    bytes: u64,
    /// Whether something was read for this page. The page must also come further than `from`.
    has_read: bool,
    from: Option<Cursor>,
}

/// Queues by their numbers in the run.
#[derive(Debug)]
enum QueueNumbers {
    All,
    One(u32),
    /// All except these: whether each queue is left out.
    AllBut(Vec<bool>),
}

#[derive(Debug)]
enum ScanPath {
    Nothing,
    Spans(BySpan),
    Index(ByIndex),
}

/// A scan through the spans of one class.
#[derive(Debug)]
struct BySpan {
    class: Class,
    stages: Stages,
    /// The next span, and the last one of the class.
    span: usize,
    end: usize,
    /// The position of the one wanted queue.
    queue: IndexScan<4>,
    /// Large queues that are left out, and the position of each in this span or behind it.
    skipped: Vec<(u32, IndexScan<4>, Option<LeafEntry<4>>)>,
    /// The rest of the present span: parts of the file, and the rows in them, in order.
    parts: Vec<SpanBlock>,
    rows: Vec<RowPosition>,
    order: Vec<(u64, MessageId, u32)>,
    next: usize,
    spare: Option<BytesMut>,
    read_bytes: u64,
}

/// The rows of a span that are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stages {
    Waiting,
    Every,
}

#[derive(Debug)]
struct SpanBlock {
    at: u64,
    bytes: Bytes,
}

/// A row in a part.
#[derive(Debug)]
struct RowPosition {
    part: u32,
    queue: u32,
    from: usize,
    length: usize,
    stands: StageKind,
    weight: u64,
}

/// A scan through an index that starts with a time and an id.
#[derive(Debug)]
struct ByIndex {
    which: Times,
    index: IndexScan<4>,
    /// The block that was read last.
    block: Option<(u64, Bytes, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Times {
    Leased,
    Dead,
    /// The dead messages of one queue.
    Graves(u32),
}

/// Largest number of excluded queues that are looked up in every span: as many as an engine names in a page
/// (`Policy::max_left_out`).
const SKIPPED: usize = 256;
/// Smallest number of rows for which that may be worth it.
const SKIPPED_ROWS: u64 = 512;

impl Run {
    /// Starts to read a sequence behind `after`, up to and including the time `until`.
    pub(crate) fn scan(
        self: &Arc<Self>,
        live: &Arc<Live>,
        sequence: Sequence,
        which: &Which,
        after: Option<Cursor>,
        until: u64,
    ) -> Result<RunScan, ReadFault> {
        let wanted = match which {
            Which::All => Some(QueueNumbers::All),
            Which::One(name) => self.queue_no(name).map(QueueNumbers::One),
            Which::AllBut(names) => {
                let mut out = vec![false; self.queues().len()];
                for no in names.iter().filter_map(|name| self.queue_no(name)) {
                    out[no as usize] = true;
                }
                Some(QueueNumbers::AllBut(out))
            }
        };
        let way = match (&wanted, sequence) {
            (None, _) => ScanPath::Nothing,
            (Some(wanted), Sequence::At) => self.by_span(wanted, Class::At, Stages::Waiting, after)?,
            (Some(wanted), Sequence::AllAt) => self.by_span(wanted, Class::At, Stages::Every, after)?,
            (Some(wanted), Sequence::After) => self.by_span(wanted, Class::After, Stages::Waiting, after)?,
            (Some(wanted), Sequence::AllAfter) => self.by_span(wanted, Class::After, Stages::Every, after)?,
            (Some(_), Sequence::Leased) => self.by_index(Times::Leased, after)?,
            (Some(QueueNumbers::One(queue)), Sequence::Dead) => {
                self.by_index(Times::Graves(*queue), after)?
            }
            (Some(_), Sequence::Dead) => self.by_index(Times::Dead, after)?,
        };
        let wanted = wanted.unwrap_or(QueueNumbers::All);
        let allowance = SkipAllowance { bytes: u64::MAX, has_read: false, from: after };
        let run = Arc::clone(self);
        Ok(RunScan { run, live: Arc::clone(live), wanted, after, until, way, allowance, paused: None })
    }

    /// Decodes a row that a scan of this run has returned.
    pub(crate) fn decode(&self, row: &RawRow) -> Result<Row, ReadFault> {
        let queue = self.queue_name(row.queue, 0)?;
        opened::decode_row(row.bytes.clone(), queue).map_err(|error| {
            let what = format!("message {} cannot be read: {error}", row.id);
            self.file.problem(row.at, what).into()
        })
    }

    fn by_span(
        &self,
        wanted: &QueueNumbers,
        class: Class,
        stages: Stages,
        after: Option<Cursor>,
    ) -> Result<ScanPath, ReadFault> {
        let end = self.spans.partition_point(|span| span.class <= class);
        let start = self.spans.partition_point(|span| span.class < class);
        let span = match after {
            None => start,
            Some((due, id)) => {
                start.max(self.spans.partition_point(|span| span.key() <= (class, due, id)).saturating_sub(1))
            }
        };
        let mut way = BySpan {
            class,
            stages,
            span,
            end,
            queue: IndexScan::new(),
            skipped: Vec::new(),
            parts: Vec::new(),
            rows: Vec::new(),
            order: Vec::new(),
            next: 0,
            spare: None,
            read_bytes: 0,
        };
        match wanted {
            QueueNumbers::All => {}
            QueueNumbers::One(queue) => {
                way.queue.seek(&self.file, &self.by_queue, &[u64::from(*queue), span as u64, 0, 0])?;
            }
            QueueNumbers::AllBut(out) => {
                let mut large: Vec<(u64, u32)> = (0u32..)
                    .zip(self.queues())
                    .filter(|(no, queue)| out[*no as usize] && queue.rows >= SKIPPED_ROWS)
                    .map(|(no, queue)| (queue.rows, no))
                    .collect();
                large.sort_unstable_by(|a, b| b.cmp(a));
                large.truncate(SKIPPED);
                for (_, queue) in large {
                    let mut scan = IndexScan::new();
                    scan.seek(&self.file, &self.by_queue, &[u64::from(queue), span as u64, 0, 0])?;
                    let first = scan.next(&self.file, &self.by_queue)?;
                    way.skipped.push((queue, scan, first));
                }
            }
        }
        Ok(ScanPath::Spans(way))
    }

    fn by_index(&self, which: Times, after: Option<Cursor>) -> Result<ScanPath, ReadFault> {
        let mut index = IndexScan::new();
        let behind = after.map_or([0; 3], |(time, id)| [time, id.0, u64::MAX]);
        let from = match which {
            Times::Leased | Times::Dead => [behind[0], behind[1], behind[2], behind[2]],
            Times::Graves(queue) => [u64::from(queue), behind[0], behind[1], behind[2]],
        };
        index.seek(&self.file, self.times(which), &from)?;
        Ok(ScanPath::Index(ByIndex { which, index, block: None }))
    }

    fn times(&self, which: Times) -> &RunIndex<4> {
        match which {
            Times::Leased => &self.leased,
            Times::Dead => &self.dead,
            Times::Graves(_) => &self.graves,
        }
    }
}

impl RunScan {
    /// Lets it read this many bytes for the next page, which starts behind a position. It reads at least one span, and
    /// until the page comes further.
    pub(crate) fn allow(&mut self, bytes: u64, from: Option<Cursor>) {
        self.allowance = SkipAllowance { bytes, has_read: false, from };
    }

    /// The position at which it has paused because it may read no more for this page: every row before it was returned.
    pub(crate) fn paused(&self) -> Option<Cursor> {
        self.paused
    }

    /// The next row; `None` at the end, or when it has [`RunScan::paused`].
    pub(crate) fn next(&mut self) -> Result<Option<RawRow>, ReadFault> {
        self.paused = None;
        match &mut self.way {
            ScanPath::Nothing => Ok(None),
            ScanPath::Spans(way) => loop {
                if let Some(row) = way.take() {
                    return Ok(Some(row));
                }
                if let (QueueNumbers::AllBut(_), Some(next)) = (&self.wanted, way.next_span(&self.run))
                    && next.0 <= self.until
                    && self.allowance.is_used_up(next)
                {
                    self.paused = Some(next);
                    return Ok(None);
                }
                let before = way.read_bytes;
                let has_entered = way.enter(&self.run, &self.live, &self.wanted, self.after, self.until)?;
                self.allowance.bytes = self.allowance.bytes.saturating_sub(way.read_bytes - before);
                self.allowance.has_read = true;
                if !has_entered {
                    self.way = ScanPath::Nothing;
                    return Ok(None);
                }
            },
            ScanPath::Index(way) => {
                let row = way.next(&self.run, &self.live, &self.wanted, self.until)?;
                if row.is_none() {
                    self.way = ScanPath::Nothing;
                }
                Ok(row)
            }
        }
    }
}

impl QueueNumbers {
    #[inline]
    fn has(&self, queue: u32) -> bool {
        match self {
            QueueNumbers::All => true,
            QueueNumbers::One(one) => *one == queue,
            QueueNumbers::AllBut(out) => out.get(queue as usize) != Some(&true),
        }
    }
}

impl SkipAllowance {
    /// Whether a page may end before this position.
    fn is_used_up(&self, next: Cursor) -> bool {
        let comes_further = self.from.is_none_or(|from| before(next) > from);
        self.bytes == 0 && self.has_read && comes_further
    }
}

/// The last position before another.
pub(crate) fn before((time, id): Cursor) -> Cursor {
    match (time, id.0.checked_sub(1)) {
        (time, Some(id)) => (time, MessageId(id)),
        (time, None) => (time.saturating_sub(1), MessageId(u64::MAX)),
    }
}

impl BySpan {
    /// The start of the next span.
    fn next_span(&self, run: &Run) -> Option<Cursor> {
        let span = run.spans.get(self.span).filter(|_| self.span < self.end)?;
        Some((span.due, span.id))
    }

    /// The next row of the present span.
    #[inline]
    fn take(&mut self) -> Option<RawRow> {
        let &(due, id, place) = self.order.get(self.next)?;
        self.next += 1;
        let place = &self.rows[place as usize];
        let part = &self.parts[place.part as usize];
        Some(RawRow {
            id,
            due: Due::from_raw(self.class, due),
            stands: place.stands,
            weight: place.weight,
            queue: place.queue,
            bytes: part.bytes.slice(place.from..place.from + place.length),
            at: part.at,
        })
    }

    /// Reads the next span; returns false if there is none.
    fn enter(
        &mut self,
        run: &Run,
        live: &Live,
        wanted: &QueueNumbers,
        after: Option<Cursor>,
        until: u64,
    ) -> Result<bool, ReadFault> {
        // Usually no row of the last span is in use any more: its memory is used again.
        for part in self.parts.drain(..) {
            self.spare = part.bytes.try_into_mut().ok().or(self.spare.take());
        }
        self.rows.clear();
        self.order.clear();
        self.next = 0;
        if let QueueNumbers::One(queue) = wanted {
            // Spans without rows of this queue are not even looked at.
            match self.queue.next(&run.file, &run.by_queue)? {
                Some([of, span, ..]) if of == u64::from(*queue) && span < self.end as u64 => {
                    self.span = usize::try_from(span).unwrap_or(self.end);
                }
                Some(_) | None => return Ok(false),
            }
        }
        if self.span >= self.end || run.spans[self.span].due > until {
            return Ok(false);
        }
        let (from, to) = (run.spans[self.span].at, run.span_end(self.span));
        match wanted {
            QueueNumbers::All => self.read(run, live, wanted, after, until, from, to)?,
            QueueNumbers::One(_) => {
                let Some([_, _, block, extent]) = self.queue.here() else { return Ok(false) };
                let (start, end) = extent_of(block, extent);
                self.check_extent(run, start, end, from, to)?;
                self.read(run, live, wanted, after, until, start, end)?;
            }
            QueueNumbers::AllBut(_) => {
                let mut left_out = self.left_out(run)?;
                left_out.sort_unstable();
                let mut at = from;
                for (start, end) in left_out {
                    self.check_extent(run, start, end, at, to)?;
                    if at < start {
                        self.read(run, live, wanted, after, until, at, start)?;
                    }
                    at = end;
                }
                if at < to {
                    self.read(run, live, wanted, after, until, at, to)?;
                }
            }
        }
        // Sorted pieces, one of each queue: the stable sort makes use of them.
        self.order.sort();
        self.span += 1;
        Ok(true)
    }

    fn check_extent(&self, run: &Run, start: u64, end: u64, from: u64, to: u64) -> Result<(), ReadFault> {
        if start < from || start >= end || end > to {
            return Err(run
                .file
                .problem(start, "the index of queues names blocks outside of the span")
                .into());
        }
        Ok(())
    }

    /// The parts of this span that belong only to queues that are left out.
    fn left_out(&mut self, run: &Run) -> Result<Vec<(u64, u64)>, ReadFault> {
        let mut left_out = Vec::new();
        let here = self.span as u64;
        for (queue, scan, next) in &mut self.skipped {
            while let Some([of, span, block, extent]) = *next {
                if of != u64::from(*queue) {
                    *next = None;
                } else if span < here {
                    *next = scan.next(&run.file, &run.by_queue)?;
                } else {
                    if span == here && extent & 1 == 1 {
                        left_out.push(extent_of(block, extent));
                    }
                    break;
                }
            }
        }
        Ok(left_out)
    }

    /// Reads the blocks from `from` to `to`, and collects their rows.
    #[allow(clippy::too_many_arguments)] // the scan's own fields, which are borrowed apart
    fn read(
        &mut self,
        run: &Run,
        live: &Live,
        wanted: &QueueNumbers,
        after: Option<Cursor>,
        until: u64,
        from: u64,
        to: u64,
    ) -> Result<(), ReadFault> {
        let mut bytes = self.spare.take().unwrap_or_default();
        bytes.resize(bytes_between(from, to), 0);
        run.file.read(&mut bytes, from)?;
        self.read_bytes += to - from;
        let part = u32::try_from(self.parts.len()).unwrap_or(u32::MAX);
        let mut block = 0;
        while block < bytes.len() {
            let at = from + block as u64;
            let head = run.file.first_block(&bytes[block..], BlockKind::Messages, at)?;
            let mut rows = BlockRows::new(payload(&bytes[block..], head), head.entries);
            while let Some(row) = rows.next().map_err(run.file.unreadable(at))? {
                let due = row.head.due;
                if due.class() != self.class {
                    return Err(run.file.problem(at, "a row is of another clock than its span").into());
                }
                if row.queue as usize >= run.queues().len() {
                    return Err(run.file.problem(at, "a row is of a queue that is not in the run").into());
                }
                let place = (due.raw(), row.head.id);
                let counts = place.0 <= until
                    && after.is_none_or(|after| place > after)
                    && (self.stages == Stages::Every || row.head.stands == StageKind::Waiting)
                    && wanted.has(row.queue)
                    && live.has(row.head.id, row.queue);
                if counts {
                    self.order.push((place.0, place.1, u32::try_from(self.rows.len()).unwrap_or(u32::MAX)));
                    self.rows.push(RowPosition {
                        part,
                        queue: row.queue,
                        from: block + HEAD + row.at,
                        length: row.bytes.len(),
                        stands: row.head.stands,
                        weight: row.head.weight,
                    });
                }
            }
            block += head.length;
        }
        self.parts.push(SpanBlock { at: from, bytes: bytes.freeze() });
        Ok(())
    }
}

impl ByIndex {
    fn next(
        &mut self,
        run: &Run,
        live: &Live,
        wanted: &QueueNumbers,
        until: u64,
    ) -> Result<Option<RawRow>, ReadFault> {
        while let Some(entry) = self.index.next(&run.file, run.times(self.which))? {
            let (time, id, block, queue) = match self.which {
                Times::Leased | Times::Dead => (entry[0], entry[1], entry[2], entry[3]),
                Times::Graves(_) => (entry[1], entry[2], entry[3], entry[0]),
            };
            let queue = u32::try_from(queue).unwrap_or(u32::MAX);
            if time > until || matches!(self.which, Times::Graves(of) if of != queue) {
                return Ok(None);
            }
            let id = MessageId(id);
            if wanted.has(queue) && live.has(id, queue) {
                return self.row(run, block.wrapping_mul(8), id, time).map(Some);
            }
        }
        Ok(None)
    }

    fn row(&mut self, run: &Run, at: u64, id: MessageId, time: u64) -> Result<RawRow, ReadFault> {
        let (bytes, entries) = match &self.block {
            Some((here, bytes, entries)) if *here == at => (bytes, *entries),
            Some(_) | None => {
                run.check_place(at, FILE_HEAD as u64, run.footer.messages_end)?;
                let mut buffer = Vec::new();
                let head = run.file.block_within(
                    BlockKind::Messages,
                    at,
                    run.footer.messages_end,
                    &mut buffer,
                    Blocking::Allowed,
                )?;
                buffer.truncate(HEAD + head.payload);
                let (_, bytes, entries) = self.block.insert((at, Bytes::from(buffer), head.entries));
                (&*bytes, *entries)
            }
        };
        let mut rows = BlockRows::new(&bytes[HEAD..], entries);
        while let Some(row) = rows.next().map_err(run.file.unreadable(at))? {
            let stands = row.head.stands;
            let fits = match (self.which, stands) {
                (Times::Leased, StageKind::Leased { until }) => until.0 == time,
                (Times::Dead | Times::Graves(_), StageKind::Dead { at }) => at.raw() == time,
                (_, StageKind::Waiting | StageKind::Leased { .. } | StageKind::Dead { .. }) => false,
            };
            if row.head.id == id && fits {
                return Ok(RawRow {
                    id,
                    due: row.head.due,
                    stands,
                    weight: row.head.weight,
                    queue: row.queue,
                    bytes: bytes.slice(HEAD + row.at..HEAD + row.at + row.bytes.len()),
                    at,
                });
            }
        }
        Err(run.file.problem(at, "an index names a message that is not in the block").into())
    }
}

/// Start and end of the blocks that an entry of the index of queues names.
pub(super) fn extent_of(block: u64, extent: u64) -> (u64, u64) {
    let start = block.wrapping_mul(8);
    (start, start.wrapping_add((extent >> 1).wrapping_mul(8)))
}

/// Returns a run's answers one by one, expired or not, in order of their hashes.
#[derive(Debug)]
pub(crate) struct AnswerScan {
    run: Arc<Run>,
    /// The present block, its start, and the position in it.
    block: Bytes,
    at: u64,
    next: u64,
    last: u64,
}

impl AnswerScan {
    pub(crate) fn new(run: Arc<Run>) -> Self {
        let start = run.footer.messages_end;
        AnswerScan { run, block: Bytes::new(), at: start, next: start, last: 0 }
    }

    /// The next answer and its hash.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, DedupeRow)>, ReadFault> {
        while self.block.is_empty() {
            let end = self.run.footer.answers_end;
            if self.next == end {
                return Ok(None);
            }
            let mut buffer = Vec::new();
            self.at = self.next;
            let head = self.run.file.block_within(
                BlockKind::Answers,
                self.at,
                end,
                &mut buffer,
                Blocking::Allowed,
            )?;
            self.next += head.length as u64;
            self.block = Bytes::copy_from_slice(payload(&buffer, head));
        }
        let mut rest = &self.block[..];
        let Some(entry) = text(&mut rest) else {
            return Err(self.run.file.problem(self.at, "an answer cannot be read").into());
        };
        let entry = self.block.slice_ref(entry);
        self.block = self.block.slice_ref(rest);
        let mut reader = Reader::new(entry);
        let row = reader.dedupe().map_err(self.run.file.unreadable(self.at))?;
        let hash = self.run.hasher.answer(&row.queue, &row.dedupe_id);
        if !reader.is_empty() || hash < self.last {
            return Err(self.run.file.problem(self.at, "the answers are out of order").into());
        }
        self.last = hash;
        Ok(Some((hash, row)))
    }
}
