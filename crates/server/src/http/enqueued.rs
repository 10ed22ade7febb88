//! The answer to an accepted enqueue.

use axum::http::StatusCode;
use duewheel::core::engine::{Answered, Enqueued};
use duewheel::core::message::State;
use duewheel::core::record::Created;
use duewheel::core::{Key, QueueName};
use schemars::JsonSchema;
use serde::Serialize;

use crate::json::{IdText, InstantText};
use crate::schema::{KeySchema, LevelSchema, QueueSchema, StateSchema};

/// 201 for a new message, 200 for an existing one.
pub(crate) fn status(done: &Enqueued) -> StatusCode {
    match done.created {
        Created::New | Created::Replacing(_) | Created::Superseding(_) => StatusCode::CREATED,
        Created::Kept => StatusCode::OK,
    }
}

/// A message that was accepted, or that existed already.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Enqueued")]
pub(crate) struct EnqueuedAnswer<'a> {
    pub(super) id: IdText,
    #[schemars(with = "QueueSchema")]
    pub(super) queue: &'a str,
    #[schemars(with = "Option<KeySchema>")]
    pub(super) key: Option<&'a str>,
    pub(super) due_at: InstantText,
    /// The generation, which each change by the producer raises.
    pub(super) generation: u32,
    /// Whether the message is new.
    pub(super) created: bool,
    /// The state of the message that was kept; not in a repeated answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<StateSchema>")]
    pub(super) state: Option<&'static str>,
    /// The message that it has replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) replaced: Option<IdText>,
    /// The leased message whose key it has taken: that one ends with its lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) superseded: Option<IdText>,
    /// The `dedupe_id` was remembered: this is the answer to an earlier enqueue, which nothing was added to. Its message
    /// may have ended since.
    #[serde(skip_serializing_if = "is_false")]
    #[schemars(default)]
    pub(super) replayed: bool,
    #[schemars(with = "LevelSchema")]
    pub(super) durability: &'static str,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl<'a> EnqueuedAnswer<'a> {
    pub(crate) fn of(done: &Enqueued, queue: &'a QueueName, key: Option<&'a Key>) -> Self {
        EnqueuedAnswer {
            id: IdText(done.id),
            queue: queue.as_str(),
            key: key.map(Key::as_str),
            due_at: InstantText(done.due_at),
            generation: done.generation,
            created: done.created != Created::Kept,
            state: done.kept.map(State::as_str),
            replaced: match done.created {
                Created::Replacing(old) => Some(IdText(old)),
                Created::New | Created::Kept | Created::Superseding(_) => None,
            },
            superseded: match done.created {
                Created::Superseding(old) => Some(IdText(old)),
                Created::New | Created::Kept | Created::Replacing(_) => None,
            },
            replayed: done.answered == Answered::Before,
            durability: done.level.as_str(),
        }
    }
}
