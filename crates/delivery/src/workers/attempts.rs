//! The latest attempts of a message, for people to read: the detail that each settlement of a delivery brings.

use duewheel::core::engine::View;
use duewheel::core::message::Detail;
use duewheel::core::time::{WallMs, ceil_ms};
use serde::{Deserialize, Serialize};

use crate::client::PushOutcome;
use crate::limits::KEPT_ATTEMPTS;

/// An attempt to deliver a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryAttempt {
    /// When it began, in ms since 1970.
    pub at_ms: u64,
    /// How long it took, in ms.
    pub ms: u64,
    /// The status of the answer, if there was one.
    pub status: Option<u16>,
    /// How it ended, in a word: `status_500`, `timeout`, …
    pub class: String,
    /// The first KiB of the answer, as of [`PushOutcome`].
    pub answer: String,
}

impl DeliveryAttempt {
    /// A request that began at `at`.
    pub(crate) fn of(at: WallMs, outcome: &PushOutcome) -> Self {
        DeliveryAttempt {
            at_ms: at.0,
            ms: ceil_ms(outcome.took),
            status: outcome.class.status(),
            class: outcome.class.to_string(),
            answer: outcome.answer.clone(),
        }
    }
}

/// The attempts of a message that are kept, oldest first: the last ten whose settlement was applied. The view is that of
/// [`duewheel::core::engine::Op::recall`]; a list has none of them.
pub fn deliveries(view: &View) -> Vec<DeliveryAttempt> {
    // What another consumer has written is none of them.
    view.detail.as_deref().and_then(|detail| serde_json::from_slice(detail).ok()).unwrap_or_default()
}

/// The detail of a settlement: the attempts of the message as it was seen before, and one more.
pub(crate) fn detail_with(seen: Option<&View>, attempt: DeliveryAttempt) -> Detail {
    let mut attempts = seen.map(deliveries).unwrap_or_default();
    attempts.push(attempt);
    attempts.drain(..attempts.len().saturating_sub(KEPT_ATTEMPTS));
    serde_json::to_vec(&attempts).unwrap_or_default().into()
}
