//! Groups that wait between a full segment and the next one, so that the owner does not have to.
//!
//! The next segment may take a frame only when the former one is durable: damage can then end the journal in its last
//! segment and nowhere else. Until a worker has synced the former segment and prepared the next one, the groups wait
//! here, in memory. They are in the memtable and not in the journal: neither written nor durable.

use duewheel_core::Lsn;
use duewheel_core::record::{ClockPair, Writer};

use super::segment::{BLOCK, Prepared};
use crate::le::align8;
use crate::options::Options;

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
