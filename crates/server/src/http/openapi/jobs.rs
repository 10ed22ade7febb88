//! The descriptions of the operations on many messages of a queue: lists of them, and jobs.

use duewheel::core::WallMs;
use schemars::json_schema;
use serde_json::json;

use super::operation::{OperationDoc, Tag};
use super::operations::{limit, message};
use crate::error::ErrorCode::{DiskFull, NotFound, OverQuota};
use crate::http::bulk::{BulkCountAnswer, BulkFields, JobAnswer, JobsAnswer};
use crate::http::listing::{self, DeadAnswer, DeadReasonAnswer, MessagesAnswer};
use crate::json::{Elements, InstantText};
use crate::schema::{DeadReasonSchema, InstantSchema, StateSchema};

const CREATED: InstantText = InstantText(WallMs(1_766_991_600_000));

fn job(state: &'static str, done: u64) -> JobAnswer {
    JobAnswer {
        id: "5b1f0c6a9d3e4f208a7c6b5d4e3f2a10".into(),
        queue: "close-review".into(),
        action: "cancel",
        state,
        matched: 1_200,
        done,
        leased: 3,
        changed: 0,
        refused: 0,
        rate: None,
        to_queue: None,
        created_at: CREATED,
        ended_at: None,
    }
}

pub(crate) fn list_messages() -> OperationDoc {
    OperationDoc::new(
        Tag::Look,
        "list_messages",
        "A page of messages in due order, dead ones in the order in which they died",
    )
    .query("state", "Only messages in this state.", |g| g.subschema_for::<StateSchema>(), json!("scheduled"))
    .query(
        "due_from",
        "Only messages that are due at this instant or later.",
        |g| g.subschema_for::<InstantSchema>(),
        json!("2026-01-31T08:00:00Z"),
    )
    .query(
        "due_to",
        "Only messages that are due before this instant.",
        |g| g.subschema_for::<InstantSchema>(),
        json!("2026-02-01T08:00:00Z"),
    )
    .query(
        "key_prefix",
        "Only messages whose key begins with this.",
        |_| json_schema!({ "type": "string" }),
        json!("order-"),
    )
    .query(
        listing::HEADER,
        "Only messages with this value of a header, whose name stands in the place of NAME.",
        |_| json_schema!({ "type": "string" }),
        json!("eu"),
    )
    .query(
        "dead_reason",
        "Only dead messages with this reason.",
        |g| g.subschema_for::<DeadReasonSchema>(),
        json!("max_attempts"),
    )
    .query(
        "dead_note",
        "Only dead messages whose last attempt has this note.",
        |_| json_schema!({ "type": "string" }),
        json!("status_500"),
    )
    .query("after", AFTER, |_| cursor(), json!("-_-"))
    .query("limit", "The most messages of a page.", |_| limit(listing::MESSAGES, "max_page"), json!(100))
    .gives(200, "The page.", &MessagesAnswer { messages: Elements::Made(vec![message()]), next: None })
}

const AFTER: &str = "The `next` of an earlier page.";

fn cursor() -> schemars::Schema {
    json_schema!({ "type": "string", "format": "duewheel-cursor" })
}

pub(crate) fn dead() -> OperationDoc {
    let one = |dead_reason, dead_note, messages| DeadReasonAnswer { dead_reason, dead_note, messages };
    let reasons = vec![one("max_attempts", "status_500", 17), one("buried", "", 2)];
    OperationDoc::new(
        Tag::Look,
        "dead_by_reason",
        "Dead messages counted by reason: of a page of at most 20,000, in the order in which they died",
    )
    .query("after", AFTER, |_| cursor(), json!("-_-"))
    .gives(200, "The counts of the page.", &DeadAnswer { reasons, counted: 19, next: None })
}

pub(crate) fn bulk() -> OperationDoc {
    OperationDoc::new(Tag::Operate, "bulk", "Cancel, postpone, fire or redrive many messages")
        .takes::<BulkFields<'_>>(
            r#"{"action": "cancel", "filter": {"key_prefix": "order-"}, "dry_run": true}"#,
        )
        .gives(200, "The messages are counted.", &BulkCountAnswer { matched: 1_200, leased: 3 })
        .gives(202, "The job has begun.", &job("waiting", 0))
        .refuses(&[OverQuota, DiskFull])
}

pub(crate) fn list() -> OperationDoc {
    OperationDoc::new(Tag::Look, "list_jobs", "List jobs, the newest first").gives(
        200,
        "All jobs.",
        &JobsAnswer { jobs: vec![job("running", 500)] },
    )
}

pub(crate) fn get() -> OperationDoc {
    OperationDoc::new(Tag::Look, "get_job", "Look at a job")
        .gives(200, "The job.", &job("running", 500))
        .refuses(&[NotFound])
}

pub(crate) fn cancel() -> OperationDoc {
    OperationDoc::new(Tag::Operate, "cancel_job", "End a job; what it has changed stays")
        .gives(200, "The job has ended.", &job("cancelled", 500))
        .refuses(&[NotFound, DiskFull])
}
