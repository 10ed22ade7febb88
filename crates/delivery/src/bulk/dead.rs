//! Dead messages of a queue, counted by the reason of their death.
//!
//! They are counted by a walk. A tally by reason would need the reason in each record about a dead message, and would
//! not tell apart what people ask about: `status_500` from `timeout`. So a count costs as much as a filtered list, and
//! its pages are as bounded.

use std::collections::HashMap;

use duewheel::core::message::{DeadReason, State};
use duewheel::core::name::QueueName;
use duewheel::{CallError, Client};
use duewheel_shard::listing::ListPositions;

use super::filter::{BulkFilter, LOOKED_AT, filter_step, last_note};

/// A page ends once it has so many reasons: consumers may give each message a reason of its own.
const REASONS: usize = 1_000;

/// The dead messages that died for the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadByReason {
    /// The reason.
    pub reason: DeadReason,
    /// The note of their last attempt; empty if there is none.
    pub note: Box<str>,
    /// The number of dead messages.
    pub messages: u64,
}

/// A page of counts.
#[derive(Debug)]
pub struct DeadReasons {
    /// The reasons, the most frequent first.
    pub reasons: Vec<DeadByReason>,
    /// The dead messages that were counted.
    pub counted: u64,
    /// Where the next page begins; `None`: all are counted.
    pub next: Option<ListPositions>,
}

/// Counts dead messages by reason and note, in the order in which they died: of a page of at most 20,000 messages.
///
/// # Errors
/// See [`Client::list`].
///
/// # Cancel safety
/// Cancel safe.
pub async fn dead_reasons(
    client: &Client,
    queue: &QueueName,
    after: Option<ListPositions>,
    limit: usize,
) -> Result<DeadReasons, CallError> {
    let filter = BulkFilter { state: Some(State::Dead), ..BulkFilter::default() };
    let mut by_reason: HashMap<(&'static str, Box<str>), (DeadReason, u64)> = HashMap::new();
    let (mut next, mut walked, mut counted) = (after, 0, 0);
    loop {
        let step = filter_step(client, queue, Some(State::Dead), &filter, next.take(), limit).await?;
        walked += step.walked.max(1);
        for view in &step.found.views {
            let Some((reason, _)) = view.dead else { continue };
            counted += 1;
            by_reason.entry((reason.as_str(), last_note(view).into())).or_insert((reason, 0)).1 += 1;
        }
        next = step.found.next;
        if next.is_none() || walked >= LOOKED_AT || by_reason.len() >= REASONS {
            break;
        }
    }
    let one = |((_, note), (reason, messages))| DeadByReason { reason, note, messages };
    let mut reasons: Vec<DeadByReason> = by_reason.into_iter().map(one).collect();
    reasons.sort_by(|a, b| {
        let names = |one: &DeadByReason| (one.reason.as_str(), one.note.clone());
        b.messages.cmp(&a.messages).then_with(|| names(a).cmp(&names(b)))
    });
    Ok(DeadReasons { reasons, counted, next })
}
