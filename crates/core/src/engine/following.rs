//! Callers that wait for events, and messages that became due while a caller follows.

use std::collections::{BTreeMap, VecDeque};

use crate::event::MessageEvent;
use crate::id::{Lsn, ReplyTo};
use crate::time::{EngineMs, Now};

/// Most events of messages that became due that are kept.
const FIRED: usize = 1_024;

/// State of the callers that follow events: their open requests, and the messages that became due.
#[derive(Debug, Default)]
pub(super) struct Following {
    pub(super) questions: BTreeMap<u64, EventQuestion>,
    pub(super) next_ticket: u64,
    fired: VecDeque<MessageEvent>,
    /// The number of the last one of `fired`, counted since the start.
    pub(super) last_fired: u64,
    /// Until when what becomes due is kept.
    pub(super) until: Option<EngineMs>,
}

/// A caller that waits for a page.
#[derive(Debug)]
pub(super) struct EventQuestion {
    pub(super) to: ReplyTo,
    pub(super) fired_after: Option<u64>,
}

impl Following {
    pub(super) fn is_asked(&self) -> bool {
        !self.questions.is_empty()
    }

    /// Whether what becomes due is kept now.
    pub(super) fn is_followed(&mut self, now: Now) -> bool {
        if self.until.is_some_and(|until| until < now.engine) {
            self.until = None;
            self.fired = VecDeque::new();
        }
        self.until.is_some()
    }

    pub(super) fn push(&mut self, event: MessageEvent) {
        if self.fired.len() == FIRED {
            self.fired.pop_front();
        }
        self.fired.push_back(event);
        self.last_fired += 1;
    }

    /// Events of messages that became due behind number `after`, up to a position; and the number of the last.
    pub(super) fn fired_since(&self, after: u64, upto: Lsn) -> (Vec<MessageEvent>, u64) {
        let before = self.last_fired - self.fired.len() as u64;
        // The number of an engine that was replaced may be higher.
        let after = after.min(self.last_fired).max(before);
        let skip = usize::try_from(after - before).unwrap_or(usize::MAX);
        let fired = self.fired.iter().skip(skip).take_while(|event| event.position <= upto);
        let fired: Vec<MessageEvent> = fired.cloned().collect();
        let last = after + fired.len() as u64;
        (fired, last)
    }
}
