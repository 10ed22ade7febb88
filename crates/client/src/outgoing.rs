//! What is sent, and sent again, under the same ids.

use std::time::Duration;

use duewheel_api::error_code::ErrorCode;
use serde_json::Value;

use crate::call::no_json;
use crate::error::Error;
use crate::random::id;
use crate::transport::Options;
use crate::types::{NewMessage, bad_request, millis};

/// The shortest and the longest time for which the server remembers an id that the client made. No server remembers
/// ids for longer.
const OWN_WINDOW: [Duration; 2] = [Duration::from_secs(15 * 60), Duration::from_secs(30 * 24 * 3600)];

/// A message as it is sent, each time with the same id.
#[derive(Debug)]
pub(crate) struct OutgoingMessage {
    pub(crate) message: NewMessage,
    has_own_window: bool,
}

impl OutgoingMessage {
    pub(crate) fn new(mut message: NewMessage, options: &Options) -> Result<OutgoingMessage, Error> {
        if message.dedupe_window_ms.is_some() && message.dedupe_id.is_none() {
            return Err(bad_request("dedupe_window: needs a dedupe_id, which is remembered for so long"));
        }
        if message.due_at.is_none() && message.delay_ms.is_none() {
            message.delay_ms = Some(0);
        }
        if message.body.is_none() && message.body_base64.is_none() && message.json.is_none() {
            message.body = Some(String::new());
        }
        let has_own_window = message.dedupe_id.is_none();
        message.dedupe_id.get_or_insert_with(id);
        if has_own_window {
            // Longer than the call is sent again.
            let sent = options.retry_for.saturating_add(options.timeout.saturating_mul(2));
            message.dedupe_window_ms = Some(millis(sent.clamp(OWN_WINDOW[0], OWN_WINDOW[1])));
        }
        Ok(OutgoingMessage { message, has_own_window })
    }

    /// Whether the queue remembers ids for a shorter time than ours: from now on its own time counts.
    pub(crate) fn has_lost_window(&mut self, error: &Error) -> bool {
        let is_refused = self.has_own_window
            && error.code == ErrorCode::BadRequest
            && error.text("field") == Some("dedupe_window");
        if is_refused {
            self.has_own_window = false;
            self.message.dedupe_window_ms = None;
        }
        is_refused
    }
}

/// An element of a batch.
pub(crate) enum BatchItem {
    Message(Box<OutgoingMessage>),
    Other(Value),
}

impl BatchItem {
    pub(crate) fn json(&self) -> Result<Vec<u8>, Error> {
        match self {
            BatchItem::Message(outgoing) => serde_json::to_vec(&outgoing.message),
            BatchItem::Other(value) => serde_json::to_vec(value),
        }
        .map_err(no_json)
    }

    pub(crate) fn has_lost_window(&mut self, error: &Error) -> bool {
        match self {
            BatchItem::Message(outgoing) => outgoing.has_lost_window(error),
            BatchItem::Other(_) => false,
        }
    }
}
