//! The answer log of a queue: how many answers it remembers, and up to which one they are forgotten.
//!
//! ```text
//!   forgotten │ span │ span │ … │ span │   each: last ordinal, time, end, number, bytes
//!             └ oldest                └ newest
//! ```
//!
//! An answer has an ordinal, the position of its record. The queue remembers it if the log has spans and the ordinal is
//! behind `forgotten`. So answers are forgotten by a number, and not one by one; a store leaves forgotten ones out when
//! it writes a run. The log is a fold over records: an engine and its store have the same one.

use crate::id::Lsn;
use crate::time::EngineMs;

/// Largest number of spans of a log. Beyond it, each two neighbours become one.
const SPANS: usize = 48;
/// A span is closed when it has this part of all answers of the log.
const PART: u64 = 32;

/// The position of a remembered answer in the log of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerPosition {
    /// The ordinal: the position of the answer's record.
    pub nth: Lsn,
    /// When the answer was given.
    pub at: EngineMs,
}

/// Neighbouring answers of a log, which are forgotten together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerSpan {
    /// The last answer.
    pub last: AnswerPosition,
    /// The end of the longest dedupe window.
    pub until: EngineMs,
    /// The number of answers.
    pub count: u64,
    /// The size of the answers in bytes.
    pub bytes: u64,
}

/// The remembered answers of a queue, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerLog {
    forgotten: Lsn,
    spans: Vec<AnswerSpan>,
}

impl AnswerLog {
    /// A log as it was saved.
    pub fn restored(forgotten: Lsn, spans: Vec<AnswerSpan>) -> Self {
        AnswerLog { forgotten, spans }
    }

    /// Adds the next answer, of this size, and drops the spans that have expired when it is given. An answer that the
    /// log has already was freed: it no longer counts.
    pub fn add(&mut self, position: AnswerPosition, until: EngineMs, bytes: u64) {
        if let Some(span) = self.spans.iter_mut().find(|span| span.last.nth >= position.nth) {
            (span.count, span.bytes) = (span.count.saturating_sub(1), span.bytes.saturating_sub(bytes));
            return self.drop_spans(|span| span.count == 0);
        }
        self.expire(position.at);
        if self.spans.is_empty() {
            self.forgotten = Lsn(position.nth.0.saturating_sub(1));
        }
        let one = AnswerSpan { last: position, until, count: 1, bytes };
        let part = self.count() / PART;
        match self.spans.last_mut().filter(|last| last.count < part) {
            Some(last) => *last = last.and(one),
            None => self.spans.push(one),
        }
        if self.spans.len() > SPANS {
            self.spans =
                self.spans.chunks(2).map(|two| two[1..].iter().fold(two[0], |a, b| a.and(*b))).collect();
        }
    }

    /// Drops the spans that have expired. The next answer does that, too, so a store need not.
    pub fn expire(&mut self, now: EngineMs) {
        self.spans.retain(|span| span.until > now);
    }

    /// Forgets the answers up to this ordinal. A span that goes on behind it still counts as a whole.
    pub fn forget(&mut self, upto: Lsn) {
        self.forgotten = self.forgotten.max(upto);
        self.drop_spans(|span| span.last.nth <= upto);
    }

    fn drop_spans(&mut self, which: impl Fn(&AnswerSpan) -> bool) {
        self.spans.retain(|span| !which(span));
        if self.spans.is_empty() {
            *self = AnswerLog::default();
        }
    }

    /// Whether the answer with this ordinal is remembered, unless it has expired.
    pub fn remembers(&self, nth: Lsn) -> bool {
        !self.spans.is_empty() && nth > self.forgotten
    }

    /// Whether no answer is remembered.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The answers up to this ordinal are forgotten.
    pub fn forgotten(&self) -> Lsn {
        self.forgotten
    }

    /// The spans, oldest first.
    pub fn spans(&self) -> &[AnswerSpan] {
        &self.spans
    }

    /// The number of remembered answers; those of a span count until the last of them has expired.
    pub fn count(&self) -> u64 {
        self.spans.iter().map(|span| span.count).fold(0, u64::saturating_add)
    }

    /// The size of remembered answers in bytes.
    pub fn bytes(&self) -> u64 {
        self.spans.iter().map(|span| span.bytes).fold(0, u64::saturating_add)
    }
}

impl AnswerSpan {
    fn and(self, next: AnswerSpan) -> AnswerSpan {
        AnswerSpan {
            last: next.last,
            until: self.until.max(next.until),
            count: self.count.saturating_add(next.count),
            bytes: self.bytes.saturating_add(next.bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(log: &mut AnswerLog, nth: u64, at: u64, window: u64) {
        log.add(AnswerPosition { nth: Lsn(nth), at: EngineMs(at) }, EngineMs(at + window), 100);
    }

    #[test]
    fn spans_stay_few_and_count_exactly() {
        let mut log = AnswerLog::default();
        for nth in 1..=100_000 {
            add(&mut log, nth, nth, 1 << 40);
            assert!(log.spans().len() <= SPANS);
        }
        assert_eq!((log.count(), log.bytes()), (100_000, 100_000 * 100));
        assert!(log.spans().iter().all(|span| span.count <= 100_000 / PART * 2 + 1), "{:?}", log.spans());
        let first = log.spans()[0];
        log.forget(first.last.nth);
        assert_eq!(log.count(), 100_000 - first.count);
        assert!(!log.remembers(first.last.nth) && log.remembers(first.last.nth.next()));
    }

    #[test]
    fn freed_answer_no_longer_counts() {
        let mut log = AnswerLog::default();
        (1..=500).for_each(|nth| add(&mut log, nth, nth, 1 << 40));
        for nth in (1..=500).filter(|nth| nth % 100 != 0) {
            add(&mut log, nth, nth, 0);
        }
        assert_eq!((log.count(), log.bytes(), log.spans().len()), (5, 500, 5));
        assert!(log.remembers(Lsn(1)), "the freed answer hides an older one in the store");
        (1..=5).for_each(|nth| add(&mut log, nth * 100, 0, 0));
        assert!(log.is_empty() && !log.remembers(Lsn(500)));
    }

    #[test]
    fn expired_spans_leave_with_next_answer() {
        let mut log = AnswerLog::default();
        for nth in 1..=10 {
            add(&mut log, nth, 100, 50);
        }
        add(&mut log, 11, 149, 50);
        assert_eq!(log.count(), 11);
        add(&mut log, 12, 150, 50);
        assert_eq!(log.count(), 2);
    }

    #[test]
    fn emptied_log_forgets_earlier_answers() {
        let mut log = AnswerLog::default();
        add(&mut log, 5, 1, 50);
        log.forget(Lsn(5));
        assert!(log.is_empty() && !log.remembers(Lsn(6)));
        add(&mut log, 9, 2, 50);
        assert!(!log.remembers(Lsn(5)) && !log.remembers(Lsn(8)) && log.remembers(Lsn(9)));
    }
}
