//! A message as it is at this moment, in JSON.

use duewheel::core::Message;
use duewheel::core::engine::{Outline, View};

use super::Json;

/// The members of a message that only its producer can change.
pub(crate) fn write_message(out: &mut Json, message: &Message) {
    out.id("id", message.id);
    out.text("queue", message.queue.as_str());
    out.text_or_null("key", message.key.as_ref().map(|k| k.as_str()));
    out.body(&message.body);
    out.open_member("headers");
    for (name, value) in &message.headers {
        out.text_member(name, value);
    }
    out.close();
}

/// Where a message stands after a change: all members but its body, headers and history.
pub(crate) fn write_outline(out: &mut Json, outline: &Outline) {
    out.id("id", outline.id);
    out.text("queue", outline.queue.as_str());
    out.text_or_null("key", outline.key.as_ref().map(|k| k.as_str()));
    out.plain("state", outline.state.as_str());
    out.instant("due_at", outline.due_at);
    out.number("due_in_ms", outline.due_in_ms);
    out.number("attempt", u64::from(outline.attempt));
    out.number("max_attempts", u64::from(outline.max_attempts));
    out.number("generation", u64::from(outline.generation));
    out.number("priority", u64::from(outline.priority));
    out.number("lease_ms", outline.lease_ms);
    out.instant("enqueued_at", outline.enqueued_at);
}

/// The members of a message and where it stands.
pub(crate) fn write(out: &mut Json, view: &View) {
    write_message(out, &view.message);
    out.plain("state", view.state.as_str());
    out.instant("due_at", view.due_at);
    out.number("due_in_ms", view.due_in_ms);
    out.number("attempt", u64::from(view.attempt));
    out.number("forgiven", u64::from(view.forgiven));
    out.number("max_attempts", u64::from(view.max_attempts));
    out.number("generation", u64::from(view.generation));
    out.number("priority", u64::from(view.priority));
    out.number("lease_ms", view.lease_ms);
    out.instant("enqueued_at", view.message.enqueued_at);
    if let Some(until) = view.lease_until {
        out.instant("lease_until", until);
    }
    if let Some((reason, at)) = view.dead {
        out.plain("dead_reason", reason.as_str());
        out.instant("dead_at", at);
    }
    out.open_list("history");
    for past in &view.history {
        out.open();
        out.number("attempt", u64::from(past.attempt));
        out.instant("granted_at", past.granted_at);
        out.instant("ended_at", past.ended_at);
        out.plain("how", past.how.as_str());
        out.text("note", &past.note);
        out.close();
    }
    out.close_list();
}
