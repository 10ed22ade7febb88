//! Events as server-sent events.

use std::fmt::Write as _;

use duewheel::core::event::MessageEvent;
use schemars::JsonSchema;
use serde::Serialize;

use super::position::EventPosition;
use crate::json::{InstantText, written};

/// An event of a message's life.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Event")]
pub(crate) struct EventAnswer<'a> {
    /// What happened.
    pub(crate) event: &'static str,
    /// The message; missing where several are meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    pub(crate) queue: &'a str,
    /// The key, where the event has it: in `accepted`, and where the content was changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<&'a str>,
    pub(crate) at: InstantText,
    /// When the message is due, if it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) due_at: Option<InstantText>,
    /// The number of its attempts so far, if there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<&'static str>,
    /// The number of messages, where several are meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) count: Option<u64>,
}

/// Events that were not kept.
#[derive(Debug, Serialize)]
struct MissedAnswer {
    event: &'static str,
    from: String,
    to: String,
}

impl<'a> EventAnswer<'a> {
    pub(crate) fn of(event: &'a MessageEvent) -> Self {
        EventAnswer {
            event: event.kind.as_str(),
            id: event.id.map(|id| id.to_string()),
            queue: event.queue.as_str(),
            key: event.key.as_ref().map(|key| key.as_str()),
            at: InstantText(event.at),
            due_at: event.due_at.map(InstantText),
            attempt: event.attempt,
            reason: event.reason.map(|reason| reason.as_str()),
            count: event.count,
        }
    }
}

/// Adds an event. One without a position does not change that of its reader.
pub(super) fn push_event(text: &mut String, event: &MessageEvent, position: Option<&EventPosition>) {
    push(text, event.kind.as_str(), position, &EventAnswer::of(event));
}

/// Adds the event that says that those between two positions were not kept.
pub(super) fn push_missed(text: &mut String, from: &EventPosition, to: &EventPosition) {
    let missed = MissedAnswer { event: "missed", from: from.to_string(), to: to.to_string() };
    push(text, missed.event, Some(to), &missed);
}

/// Adds a comment, and the position: it is no event, and a client that connects again begins there.
pub(super) fn push_position(text: &mut String, position: &EventPosition) {
    // Writing to a string does not fail.
    let _ = write!(text, ": here\nid: {position}\n\n");
}

fn push(text: &mut String, name: &str, position: Option<&EventPosition>, data: &impl Serialize) {
    let _ = writeln!(text, "event: {name}");
    if let Some(position) = position {
        let _ = writeln!(text, "id: {position}");
    }
    // JSON has no line break.
    let data = written(256, data);
    let _ = write!(text, "data: {}\n\n", String::from_utf8_lossy(&data));
}
