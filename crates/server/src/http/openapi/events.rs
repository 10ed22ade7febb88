//! The description of the stream of events.

use duewheel::core::WallMs;
use schemars::json_schema;
use serde_json::json;

use super::operation::{OperationDoc, Tag};
use crate::error::ErrorCode::Overloaded;
use crate::http::events::EventAnswer;
use crate::json::InstantText;
use crate::schema::QueueSchema;

fn example() -> EventAnswer<'static> {
    EventAnswer {
        event: "accepted",
        id: Some("17".into()),
        queue: "close-review",
        key: Some("order-42"),
        at: InstantText(WallMs(1_766_991_600_000)),
        due_at: Some(InstantText(WallMs(1_767_164_400_000))),
        attempt: None,
        reason: None,
        count: None,
    }
}

pub(crate) fn events() -> OperationDoc {
    let data = serde_json::to_string(&example()).unwrap_or_default();
    OperationDoc::new(Tag::Look, "events", "What happens to messages, as server-sent events")
        .query("queue", "Only events of this queue.", |g| g.subschema_for::<QueueSchema>(), json!("close-review"))
        .query(
            "since",
            "The id of an event: those behind it follow. The header Last-Event-ID, which clients send when they connect again, goes before it. Without either the stream begins now.",
            |_| json_schema!({ "type": "string", "pattern": "^[0-9]+(\\.[0-9]+)*$" }),
            json!("512"),
        )
        .gives_other(
            200,
            "Events until the reader ends the connection or the server stops. `data` is an Event in JSON; an event `missed` says from which id to which events were not kept.",
            "text/event-stream",
            |g| {
                g.subschema_for::<EventAnswer<'static>>();
                json_schema!({ "type": "string" })
            },
            format!("event: accepted\nid: 513\ndata: {data}\n\n").into(),
        )
        .refuses(&[Overloaded])
}
