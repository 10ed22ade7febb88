//! Writes frames to the journal. Belongs to the owner's thread; a group costs it one write.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use duewheel_core::Lsn;
use duewheel_core::record::{BootAnchor, ClockPair, Group, Writer};
use duewheel_core::store::{ErrorKind, Room, StoreError};

use super::frame::{self, Head};
use super::preparer;
use super::segment::{BLOCK, Header, Prepared, Sealed};
use crate::disk::DiskFile;
use crate::fault::failed;
use crate::manifest::SegmentEntry;
use crate::options::{SyncMode, Workers};
use crate::shared::{Shared, Space, Worked};

#[derive(Debug)]
pub(crate) struct JournalWriter {
    shared: Arc<Shared>,
    active: Active,
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
}

/// A frame buffer larger than this is freed after use.
const KEEP_BUFFER: usize = 8 * 1024 * 1024;
/// The wall clock is recorded once it differs from elapsed time by more than this, in ms, after a step or a slew: this
/// much of it may count as downtime when the machine is started again.
const CLOCK_STEP_MS: u64 = 5;

/// Whether the owner has had to wait for the next segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    Not,
    Counted,
}

impl Waited {
    fn count(&mut self, shared: &Shared) {
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
        shared: Arc<Shared>,
        active: Active,
        next: Lsn,
        clock: Option<ClockPair>,
        anchor: Option<BootAnchor>,
    ) -> Self {
        JournalWriter {
            shared,
            active,
            buffer: Writer::default(),
            ends: Vec::new(),
            next,
            evidence: Lsn(next.0 - 1), // stands in the header
            noted: clock,
            anchor,
            last_group: None,
        }
    }

    /// The highest written LSN.
    pub(crate) fn written(&self) -> Lsn {
        Lsn(self.next.0 - 1)
    }

    /// Bytes of frames in the segment in use.
    pub(crate) fn active_bytes(&self) -> u64 {
        self.active.at - BLOCK as u64
    }

    /// The records of the group that was appended last, as they were written.
    pub(crate) fn appended(&self) -> impl Iterator<Item = &[u8]> {
        let from = std::iter::once(frame::HEAD).chain(self.ends.iter().copied());
        from.zip(&self.ends).map(|(from, to)| &self.buffer.bytes[from..*to])
    }

    /// Frees an unusually large buffer.
    pub(crate) fn shrink(&mut self) {
        if self.buffer.bytes.capacity() > KEEP_BUFFER {
            self.buffer = Writer::default();
            self.ends = Vec::new();
        }
    }

    /// Writes a group.
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
        frame::begin(&mut self.buffer);
        self.ends.clear();
        for record in &group.records {
            self.buffer.record(record);
            self.ends.push(self.buffer.bytes.len());
        }
        // A mark must fit behind every group.
        let needed = self.buffer.bytes.len() + 8 + frame::MARK_BYTES;
        if !self.active.fits(needed) {
            self.rotate(needed)?;
        }
        let records = u32::try_from(group.records.len())
            .map_err(|_| StoreError::new(ErrorKind::Full, "a group has at most 2^32 records"))?;
        self.write(group.first, records, group.clock)?;
        self.last_group = Some(group.clock);
        self.shared.counters.groups.fetch_add(1, Relaxed);
        self.shared.counters.records.fetch_add(u64::from(records), Relaxed);
        Ok(())
    }

    /// Records the clocks, and how far the journal is durable, if no group is being written and this is news.
    pub(crate) fn idle(&mut self, clock: ClockPair) -> Result<(), StoreError> {
        let rests = self
            .last_group
            .is_none_or(|last| clock.engine.0.saturating_sub(last.engine.0) >= self.shared.options.idle_ms);
        if !rests {
            return Ok(());
        }
        if self.shared.syncer.synced() < self.written() {
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

    /// Takes the anchor of the owner's boot, and writes it if it is news.
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
        self.shared.syncer.wait(&self.shared)?;
        self.mark(clock)?;
        self.shared.syncer.wait(&self.shared)?;
        match self.shared.change_manifest(|_| {}) {
            // The proof in the journal is enough.
            Err(error) if error.kind() == ErrorKind::Full => Ok(()),
            other => other,
        }
    }

    /// Whether the next group will find room; see [`preparer`] for the reserved space.
    pub(crate) fn room(&mut self) -> Room {
        let shared = Arc::clone(&self.shared);
        let fits = self.active.fits(shared.options.agreed_frame());
        let mut journal = shared.journal();
        let mut waited = Waited::Not;
        loop {
            if journal.space == Space::Short || shared.is_stopping() {
                return Room::SettleOnly;
            }
            if fits || journal.prepared.len() > preparer::BALLAST {
                return Room::Enough;
            }
            // Rare: the disk is slower at preparing segments than at filling them.
            waited.count(&shared);
            if shared.options.workers == Workers::ByHand {
                drop(journal);
                if preparer::step(&shared) != Worked::Done {
                    return Room::SettleOnly;
                }
                journal = shared.journal();
            } else {
                shared.preparer_bell.ring();
                journal = shared.wait_for_journal(journal);
            }
        }
    }

    /// Whether only the end of the ballast is left: room for one more group.
    pub(crate) fn is_at_the_end(&self) -> bool {
        !self.active.fits(self.shared.options.agreed_frame()) && self.shared.journal().prepared.is_empty()
    }

    /// Writes a frame without records, unless it does not fit and the next segment is not prepared.
    fn mark(&mut self, clock: ClockPair) -> Result<(), StoreError> {
        if !self.active.fits(frame::MARK_BYTES) {
            let at_hand = {
                let journal = self.shared.journal();
                journal.space == Space::Enough && journal.prepared.len() > preparer::BALLAST
            };
            if !at_hand {
                return Ok(());
            }
            self.noted = Some(clock); // for the header
            return self.rotate(frame::MARK_BYTES);
        }
        frame::begin(&mut self.buffer);
        if let Some(anchor) = self.anchor.and_then(|anchor| anchor.at(clock.engine)) {
            frame::push_anchor(&mut self.buffer, &anchor);
        }
        self.shared.counters.marks.fetch_add(1, Relaxed);
        self.write(self.next, 0, clock)
    }

    /// Writes the frame in the buffer.
    fn write(&mut self, first: Lsn, records: u32, clock: ClockPair) -> Result<(), StoreError> {
        let watermark = self.shared.syncer.synced();
        let incarnation = self.active.entry.incarnation;
        frame::finish(&mut self.buffer, Head { incarnation, first, records, watermark, clock });
        let bytes = &self.buffer.bytes;
        self.active.file.write_at(bytes, self.active.at).map_err(failed("write", &self.active.name))?;
        self.active.at += bytes.len() as u64;
        self.shared.counters.bytes.fetch_add(bytes.len() as u64, Relaxed);
        self.next.0 += u64::from(records);
        self.evidence = watermark;
        self.noted = Some(clock);
        self.shared.syncer.wrote(self.written(), self.shared.options.sync);
        Ok(())
    }

    /// Continues in the next segment. The one in use is made durable first, so that a crash can cut frames off the end
    /// of the journal only.
    fn rotate(&mut self, needed: usize) -> Result<(), StoreError> {
        self.shared.syncer.wait(&self.shared)?;
        let next = self.next_segment(needed)?;
        let header = Header {
            first: self.next,
            watermark: self.written(),
            epoch: self.shared.epoch,
            clock: self.noted,
            anchor: self.anchor,
        };
        let name: Arc<str> = next.entry.no.segment().into();
        next.file.write_at(&header.encode(&next.entry), 0).map_err(failed("write", &name))?;
        let active = Active {
            entry: next.entry,
            file: Arc::clone(&next.file),
            name: Arc::clone(&name),
            first: self.next,
            at: BLOCK as u64,
        };
        let full = std::mem::replace(&mut self.active, active);
        self.shared.syncer.switch(next.file, name);
        self.shared.syncer.wrote(self.written(), SyncMode::Fsync); // the header
        self.evidence = self.written();
        self.shared.counters.rotations.fetch_add(1, Relaxed);
        let frames = full.at - BLOCK as u64;
        let sealed = Sealed { entry: full.entry, first: full.first, end: self.next, frames };
        self.shared.change_journal(|journal| journal.sealed.push(sealed));
        self.shared.preparer_bell.ring();
        self.shared.background_bell.ring();
        Ok(())
    }

    /// The next prepared segment; a group larger than a segment gets one of its own size.
    fn next_segment(&self, needed: usize) -> Result<Prepared, StoreError> {
        let shared = &*self.shared;
        let least = (BLOCK + needed) as u64;
        if least > shared.options.segment_bytes {
            return preparer::make_to_measure(shared, least.next_multiple_of(BLOCK as u64));
        }
        let mut journal = shared.journal();
        let mut waited = Waited::Not;
        loop {
            shared.check()?;
            if let Some(next) = journal.prepared.pop_front() {
                return Ok(next);
            }
            waited.count(shared);
            if journal.space == Space::Short || shared.is_stopping() {
                return Err(StoreError::new(
                    ErrorKind::Full,
                    "there is no room for the next journal segment",
                ));
            }
            if shared.options.workers == Workers::ByHand {
                drop(journal);
                preparer::step(shared);
                journal = shared.journal();
            } else {
                shared.preparer_bell.ring();
                journal = shared.wait_for_journal(journal);
            }
        }
    }
}
