//! Writes frames to the journal. It belongs to the owner's thread, and makes one write for each group.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use duewheel_core::record::{BootAnchor, ClockPair, Group, Writer};
use duewheel_core::store::{Capacity, ErrorKind, StoreError};
use duewheel_core::{EngineMs, Lsn};

use crate::disk::DiskFile;
use crate::fault::failed;
use crate::format::align8;
use crate::journal::events::JournalPart;
use crate::journal::segment::{self, BLOCK, FrameHead, Header, Prepared, Sealed};
use crate::journal::{preparer, workers};
use crate::manifest::SegmentEntry;
use crate::options::{AtSegmentEnd, Options, SyncMode, WorkMode};
use crate::shared::{DiskSpace, StoreShared, Worked};

#[derive(Debug)]
pub(crate) struct JournalWriter {
    shared: Arc<StoreShared>,
    active: Active,
    /// Groups that wait for the next segment. While there are any, nothing is written to the present one.
    turn: Option<WaitingGroups>,
    /// The buffer of the present frame, kept to reuse its memory.
    buffer: Writer,
    /// The end of each record of the last group in it.
    ends: Vec<usize>,
    /// LSN of the next record.
    next: Lsn,
    /// The highest watermark in the journal.
    evidence: Lsn,
    /// The clocks as written last, in a group, a mark or a header.
    noted: Option<ClockPair>,
    /// The anchor of the boot, written to every mark and header.
    anchor: Option<BootAnchor>,
    /// The clock of the last group.
    last_group: Option<ClockPair>,
    /// Since when groups lie behind the position that the manifest was asked to record; `None`: none does.
    behind_position: Option<EngineMs>,
}

/// The segment that takes frames.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) entry: SegmentEntry,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) name: Arc<str>,
    pub(crate) first: Lsn,
    /// The offset of the next frame.
    pub(crate) at: u64,
    /// Zeros were written up to here when it was made; behind it space is merely allocated, and a sync takes longer.
    pub(crate) filled: u64,
}

/// A frame buffer larger than this is freed after use.
const KEEP_BUFFER: usize = 8 * 1024 * 1024;
/// The wall clock is recorded once it differs from elapsed time by more than this, in ms, after a step or a slew: at
/// most this difference may count as downtime when the machine is started again.
const CLOCK_STEP_MS: u64 = 5;

/// Whether the owner has had to wait for the next segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    Not,
    Counted,
}

impl Waited {
    fn count(&mut self, shared: &StoreShared) {
        if *self == Waited::Not {
            *self = Waited::Counted;
            shared.counters.segment_waits.fetch_add(1, Relaxed);
        }
    }
}

impl Active {
    fn fits(&self, bytes: usize) -> bool {
        self.at + bytes as u64 <= self.entry.bytes
    }
}

impl JournalWriter {
    pub(crate) fn new(
        shared: Arc<StoreShared>,
        active: Active,
        next: Lsn,
        clock: Option<ClockPair>,
        anchor: Option<BootAnchor>,
    ) -> Self {
        JournalWriter {
            shared,
            active,
            turn: None,
            buffer: Writer::default(),
            ends: Vec::new(),
            next,
            evidence: Lsn(next.0 - 1), // stands in the header
            noted: clock,
            anchor,
            last_group: None,
            behind_position: None,
        }
    }

    /// The highest written LSN.
    pub(crate) fn written(&self) -> Lsn {
        Lsn(self.turn.as_ref().map_or(self.next, |turn| turn.first).0 - 1)
    }

    /// The highest LSN appended: it may wait for the next segment.
    pub(crate) fn last(&self) -> Lsn {
        Lsn(self.next.0 - 1)
    }

    /// Whether groups wait for the next segment.
    pub(crate) fn is_turning(&self) -> bool {
        self.turn.is_some()
    }

    /// The segment in use, as far as its records are durable.
    pub(crate) fn active_part(&self, durable: Lsn) -> JournalPart {
        let Active { entry, first, .. } = &self.active;
        JournalPart { entry: *entry, first: *first, end: durable.next().max(*first) }
    }

    /// Bytes of frames in the segment in use.
    pub(crate) fn active_bytes(&self) -> u64 {
        self.active.at - BLOCK as u64
    }

    /// The records of the group that was appended last, as they were written.
    pub(crate) fn records(&self) -> impl Iterator<Item = &[u8]> {
        let from = std::iter::once(segment::HEAD).chain(self.ends.iter().copied());
        from.zip(&self.ends).map(|(from, to)| &self.buffer.bytes[from..*to])
    }

    /// Frees an unusually large buffer.
    pub(crate) fn shrink(&mut self) {
        if self.buffer.bytes.capacity() > KEEP_BUFFER {
            self.buffer = Writer::default();
            self.ends = Vec::new();
        }
    }

    /// Writes a group, or queues it for the next segment.
    pub(crate) fn append(&mut self, group: &Group) -> Result<(), StoreError> {
        if group.first != self.next || group.records.is_empty() {
            let what = format_args!(
                "a group of {} records starts with LSN {}, LSN {} is due",
                group.records.len(),
                group.first.0,
                self.next.0
            );
            return Err(StoreError::new(ErrorKind::Unavailable, what));
        }
        segment::begin(&mut self.buffer);
        self.ends.clear();
        for record in &group.records {
            self.buffer.record(record);
            self.ends.push(self.buffer.bytes.len());
        }
        let records = u32::try_from(group.records.len())
            .map_err(|_| StoreError::new(ErrorKind::Full, "a group has at most 2^32 records"))?;
        // A mark must fit behind every group.
        let needed = self.buffer.bytes.len() + 8 + segment::MARK_BYTES;
        self.make_way(needed)?;
        match &mut self.turn {
            None => self.write(records, group.clock)?,
            Some(turn) => {
                let frame = Writer { bytes: self.buffer.bytes.clone() };
                turn.push(WaitingFrame { frame, first: group.first, records, clock: group.clock });
                self.shared.counters.groups_waited.fetch_add(1, Relaxed);
            }
        }
        self.next.0 += u64::from(records);
        self.last_group = Some(group.clock);
        self.behind_position.get_or_insert(group.clock.engine);
        self.note_position(group.clock);
        self.shared.counters.appended(records);
        Ok(())
    }

    /// Ensures that a frame of this size can be written, or may wait.
    fn make_way(&mut self, needed: usize) -> Result<(), StoreError> {
        self.go_on()?;
        let least = (BLOCK + needed) as u64;
        loop {
            match &self.turn {
                None if self.leaves_unfilled(needed) => self.begin_turn()?,
                None if self.active.fits(needed) => return Ok(()),
                None if !self.next_takes(least) => {
                    // The group is larger than the agreed size: it waits for a segment of its own size.
                    self.wait_for_sync()?;
                    let measure = least.max(self.shared.options.segment_bytes).next_multiple_of(BLOCK as u64);
                    let next = preparer::make_to_measure(&self.shared, measure)?;
                    self.turn = Some(WaitingGroups::new(self.next));
                    self.turn_to(next)?;
                }
                None => {
                    // The load has filled a segment: from now on there are large ones.
                    self.shared.set_segment_bytes(self.shared.options.segment_bytes);
                    self.begin_turn()?;
                }
                Some(turn) if turn.takes(needed, &self.shared.options) => return Ok(()),
                // So many bytes wait that the owner must wait as well.
                Some(_) => self.finish_turn()?,
            }
        }
    }

    /// Whether the frame would lie where the first segment has no zeros, and the next segment is prepared.
    fn leaves_unfilled(&self, needed: usize) -> bool {
        let active = &self.active;
        if active.at + needed as u64 <= active.filled || active.filled >= active.entry.bytes {
            return false;
        }
        let journal = self.shared.journal();
        journal.space == DiskSpace::Enough && journal.prepared.len() > preparer::BALLAST
    }

    /// Whether the next segment has so many bytes.
    fn next_takes(&self, least: u64) -> bool {
        let is_large = |next: &Prepared| next.entry.bytes >= least;
        least <= self.shared.options.small_segment_bytes
            || self.shared.journal().prepared.front().is_some_and(is_large)
    }

    /// Changes to the next segment if that one is small and the present one is not.
    pub(crate) fn leave_large_segment(&mut self, clock: ClockPair) -> Result<(), StoreError> {
        let small = self.shared.options.small_segment_bytes;
        let is_small = |next: &Prepared| next.entry.bytes <= small;
        let has_small = self.shared.journal().prepared.front().is_some_and(is_small);
        if self.turn.is_some() || self.active.entry.bytes <= small || !has_small {
            return Ok(());
        }
        self.shared.counters.segments_shrunk.fetch_add(1, Relaxed);
        self.noted = Some(clock); // for the header
        self.begin_turn()?;
        self.shared.syncer.ask();
        Ok(())
    }

    /// Changes to a segment that has room for the marks of a close and for nothing else, and has no other one prepared.
    /// False: there is no room for it.
    pub(crate) fn begin_last_segment(&mut self, clock: ClockPair) -> Result<bool, StoreError> {
        self.finish_turn()?;
        self.wait_for_sync()?;
        self.shared.prepares_no_more();
        let next = match preparer::make_to_measure(&self.shared, 2 * BLOCK as u64) {
            Err(error) if error.kind() == ErrorKind::Full => return Ok(false),
            made => made?,
        };
        self.noted = Some(clock); // for the header
        self.turn = Some(WaitingGroups::new(self.next));
        self.turn_to(next)?;
        Ok(true)
    }

    /// Records the clocks and the durable position, if no group is being written and either has changed.
    pub(crate) fn idle(&mut self, clock: ClockPair) -> Result<(), StoreError> {
        let rests = self
            .last_group
            .is_none_or(|last| clock.engine.0.saturating_sub(last.engine.0) >= self.shared.options.idle_ms);
        self.go_on()?;
        self.note_position(clock);
        if !rests {
            return Ok(());
        }
        if self.turn.is_some() || self.shared.syncer.synced() < self.written() {
            self.shared.syncer.ask(); // there is nothing to prove yet
            return Ok(());
        }
        let clocks_are_news = self.noted.is_none_or(|noted| {
            let ran = clock.engine.0.saturating_sub(noted.engine.0);
            let expected = noted.wall.0.saturating_add(ran);
            ran >= self.shared.options.clock_ms || expected.abs_diff(clock.wall.0) > CLOCK_STEP_MS
        });
        if self.evidence < self.written() || clocks_are_news {
            self.mark(clock)?;
            self.shared.syncer.ask();
        }
        Ok(())
    }

    /// Asks for the durable position in the manifest, once groups have been behind it for long enough.
    fn note_position(&mut self, clock: ClockPair) {
        let Some(since) = self.behind_position else { return };
        let due = since.0.saturating_add(self.shared.options.position_ms);
        if clock.engine.0 < due {
            return;
        }
        self.behind_position = (self.shared.syncer.synced() < self.last()).then_some(clock.engine);
        self.shared.ask_for_position();
    }

    /// Takes the anchor of the owner's boot, and writes it if it is new.
    pub(crate) fn anchor(&mut self, clock: ClockPair, anchor: BootAnchor) -> Result<(), StoreError> {
        if self.anchor.and_then(|known| known.at(anchor.engine)) == Some(anchor) {
            return Ok(());
        }
        self.anchor = Some(anchor);
        self.mark(clock)?;
        self.shared.syncer.ask();
        Ok(())
    }

    /// Makes everything durable, and writes a mark that proves it.
    pub(crate) fn close(&mut self, clock: ClockPair) -> Result<(), StoreError> {
        self.finish_turn()?;
        workers::wait(&self.shared)?;
        self.mark(clock)?;
        workers::wait(&self.shared)?;
        match self.shared.change_manifest(|manifest| manifest.is_closed = true) {
            // The proof in the journal is sufficient.
            Err(error) if error.kind() == ErrorKind::Full => Ok(()),
            other => other,
        }
    }

    /// Whether the next group can be written; see [`preparer`] for the space that is reserved. [`Capacity::Busy`] while
    /// more bytes wait for the sync of a full segment than memory may hold. Waits until a segment is available, or
    /// until it is certain that there is no space for one: so no group waits for a segment that cannot be prepared.
    pub(crate) fn room(&mut self) -> Capacity {
        let shared = Arc::clone(&self.shared);
        let fits = self.takes_agreed();
        let mut waited = Waited::Not;
        loop {
            let journal = shared.journal();
            if journal.space == DiskSpace::Short || shared.is_stopping() {
                return Capacity::SettleOnly;
            }
            let prepared = journal.prepared.len();
            if fits || (self.turn.is_none() && prepared > preparer::BALLAST) {
                return Capacity::Enough;
            }
            if let Some(turn) = &self.turn
                && (turn.next.is_some() || prepared > 0)
            {
                return Capacity::Busy;
            }
            if shared.options.workers == WorkMode::ByHand {
                drop(journal);
                if preparer::step(&shared) != Worked::Done {
                    return Capacity::SettleOnly;
                }
            } else {
                waited.count(&shared);
                shared.preparer_bell.ring();
                drop(shared.wait_for_journal(journal));
            }
        }
    }

    /// Whether a group of the agreed size needs no other segment than those that are prepared.
    fn takes_agreed(&self) -> bool {
        let options = &self.shared.options;
        match &self.turn {
            None => self.active.fits(options.agreed_frame()),
            Some(turn) => turn.next.is_some() && turn.takes(options.agreed_frame(), options),
        }
    }

    /// Whether only the end of the ballast is left: space for one more group.
    pub(crate) fn is_at_the_end(&self) -> bool {
        !self.takes_agreed() && self.shared.journal().prepared.is_empty()
    }

    /// Writes a frame without records. It is left out when it does not fit and the next segment is not prepared; while
    /// groups wait for that one, its header contains the same.
    fn mark(&mut self, clock: ClockPair) -> Result<(), StoreError> {
        if self.turn.is_some() {
            return Ok(());
        }
        if !self.active.fits(segment::MARK_BYTES) {
            let at_hand = {
                let journal = self.shared.journal();
                journal.space == DiskSpace::Enough && journal.prepared.len() > preparer::BALLAST
            };
            if !at_hand {
                return Ok(());
            }
            self.noted = Some(clock); // for the header
            return self.begin_turn();
        }
        segment::begin(&mut self.buffer);
        if let Some(anchor) = self.anchor.and_then(|anchor| anchor.at(clock.engine)) {
            segment::push_anchor(&mut self.buffer, &anchor);
        }
        self.shared.counters.marks.fetch_add(1, Relaxed);
        self.write(0, clock)
    }

    /// Writes the frame in the buffer, whose records are next.
    fn write(&mut self, records: u32, clock: ClockPair) -> Result<(), StoreError> {
        let mut frame = std::mem::take(&mut self.buffer);
        let written = self.write_frame(&mut frame, self.next, records, clock);
        self.buffer = frame;
        written
    }

    fn write_frame(
        &mut self,
        frame: &mut Writer,
        first: Lsn,
        records: u32,
        clock: ClockPair,
    ) -> Result<(), StoreError> {
        let watermark = self.shared.syncer.synced();
        let incarnation = self.active.entry.incarnation;
        segment::finish(frame, FrameHead { incarnation, first, records, watermark, clock });
        let bytes = &frame.bytes;
        self.active.file.write_at(bytes, self.active.at).map_err(failed("write", &self.active.name))?;
        self.active.at += bytes.len() as u64;
        self.shared.counters.bytes.fetch_add(bytes.len() as u64, Relaxed);
        self.evidence = watermark;
        self.noted = Some(clock);
        let last = Lsn(first.0 + u64::from(records) - 1);
        self.shared.syncer.wrote(last, self.shared.options.sync);
        Ok(())
    }

    /// Begins the change to the next segment: requests the sync and the segment that it needs.
    fn begin_turn(&mut self) -> Result<(), StoreError> {
        self.turn = Some(WaitingGroups::new(self.next));
        self.shared.syncer.ask();
        match self.shared.options.at_segment_end {
            AtSegmentEnd::GoOn => self.go_on(),
            AtSegmentEnd::Wait => self.finish_turn(),
        }
    }

    /// Completes the change to the next segment, if groups wait for it and nothing else has to be awaited. The former
    /// segment is durable then: a crash may cut frames off the end of the journal, and nowhere else.
    pub(crate) fn go_on(&mut self) -> Result<(), StoreError> {
        let Some(turn) = &mut self.turn else { return Ok(()) };
        let shared = &*self.shared;
        if turn.next.is_none() {
            turn.next = shared.change_journal(|journal| journal.prepared.pop_front());
        }
        let Some(next) = turn.next.clone() else {
            if shared.options.workers == WorkMode::ByHand {
                preparer::step(shared);
            }
            let journal = shared.journal();
            if !journal.prepared.is_empty() {
                drop(journal);
                return self.go_on();
            }
            if journal.space == DiskSpace::Short {
                return Err(no_segment());
            }
            shared.preparer_bell.ring();
            return Ok(());
        };
        if !shared.syncer.is_all_synced() {
            return Ok(());
        }
        self.turn_to(next)
    }

    /// Completes the change to the next segment, and waits for everything that it needs.
    fn finish_turn(&mut self) -> Result<(), StoreError> {
        let mut waited = Waited::Not;
        self.go_on()?;
        while let Some(turn) = &self.turn {
            waited.count(&self.shared);
            if turn.next.is_some() {
                self.wait_for_sync()?;
            } else {
                let shared = &*self.shared;
                shared.check()?;
                let journal = shared.journal();
                if shared.is_stopping() {
                    return Err(no_segment());
                }
                let is_prepared_here = shared.options.workers == WorkMode::ByHand;
                if journal.prepared.is_empty() && journal.space == DiskSpace::Enough && !is_prepared_here {
                    shared.preparer_bell.ring();
                    drop(shared.wait_for_journal(journal));
                }
            }
            self.go_on()?;
        }
        Ok(())
    }

    fn wait_for_sync(&self) -> Result<(), StoreError> {
        workers::wait(&self.shared)
    }

    /// Continues in this segment with the groups that have waited for it. The former segment is durable.
    fn turn_to(&mut self, next: Prepared) -> Result<(), StoreError> {
        let Some(WaitingGroups { first, frames, .. }) = self.turn.take() else { return Ok(()) };
        let watermark = Lsn(first.0 - 1);
        let header =
            Header { first, watermark, epoch: self.shared.epoch, clock: self.noted, anchor: self.anchor };
        let name: Arc<str> = next.entry.no.segment().into();
        next.file.write_at(&header.encode(&next.entry), 0).map_err(failed("write", &name))?;
        let active = Active {
            entry: next.entry,
            file: Arc::clone(&next.file),
            name: Arc::clone(&name),
            first,
            at: BLOCK as u64,
            filled: next.entry.bytes,
        };
        let full = std::mem::replace(&mut self.active, active);
        self.shared.syncer.switch(next.file, name);
        self.shared.syncer.wrote(watermark, SyncMode::Fsync); // the header
        self.evidence = watermark;
        self.shared.counters.rotations.fetch_add(1, Relaxed);
        let sealed =
            Sealed { entry: full.entry, first: full.first, end: first, frames: full.at - BLOCK as u64 };
        self.shared.change_journal(|journal| journal.sealed.push(sealed));
        self.shared.preparer_bell.ring();
        self.shared.background_bell.ring();
        let has_waited = !frames.is_empty();
        for WaitingFrame { mut frame, first, records, clock } in frames {
            self.write_frame(&mut frame, first, records, clock)?;
        }
        if has_waited {
            self.shared.syncer.ask(); // as it was asked for, or will be
        }
        Ok(())
    }
}

fn no_segment() -> StoreError {
    StoreError::new(ErrorKind::Full, "there is no room for the next journal segment")
}

// Groups that wait between a full segment and the next one, so that the owner does not have to.
//
// The next segment may take a frame only when the former one is durable: damage can then end the journal in its last
// segment and nowhere else. Until a worker has synced the former segment and prepared the next one, the groups wait
// here, in memory. They are in the memtable and not in the journal: neither written nor durable.

/// Groups that wait for the next segment.
#[derive(Debug)]
pub(crate) struct WaitingGroups {
    /// LSN of the first record of the next segment.
    pub(crate) first: Lsn,
    /// The next segment, once it is prepared.
    pub(crate) next: Option<Prepared>,
    pub(crate) frames: Vec<WaitingFrame>,
    /// The number of bytes that the frames take in the segment.
    bytes: usize,
}

/// A frame that is complete except for its head, which depends on the segment that the frame is written to.
#[derive(Debug)]
pub(crate) struct WaitingFrame {
    pub(crate) frame: Writer,
    pub(crate) first: Lsn,
    pub(crate) records: u32,
    pub(crate) clock: ClockPair,
}

impl WaitingGroups {
    pub(crate) fn new(first: Lsn) -> Self {
        WaitingGroups { first, next: None, frames: Vec::new(), bytes: 0 }
    }

    /// Whether this number of further bytes may wait: two groups of the agreed size, and never more than the segment
    /// holds. The smallest segment counts until the next one is known.
    pub(crate) fn takes(&self, bytes: usize, options: &Options) -> bool {
        let all = self.bytes.saturating_add(bytes);
        let segment = self.next.as_ref().map_or(options.small_segment_bytes, |next| next.entry.bytes);
        (BLOCK + all) as u64 <= segment && all <= options.agreed_frame().saturating_mul(2)
    }

    pub(crate) fn push(&mut self, waiting: WaitingFrame) {
        self.bytes += align8(waiting.frame.bytes.len());
        self.frames.push(waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_bytes_include_padding() {
        let options = Options { segment_bytes: 4 * BLOCK as u64, ..Options::default() }.sound();
        let mut turn = WaitingGroups::new(Lsn(1));
        let mut written = 0;
        while turn.takes(57, &options) {
            let frame = Writer { bytes: vec![0; 57] };
            turn.push(WaitingFrame { frame, first: Lsn(1), records: 1, clock: ClockPair::default() });
            written += 64; // a frame begins at a multiple of eight
        }
        assert_eq!(options.small_segment_bytes, options.segment_bytes, "a group of the agreed size fills it");
        assert!((BLOCK + written) as u64 <= options.segment_bytes, "{written} bytes behind the header");
    }
}
