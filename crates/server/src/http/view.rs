//! The present state of a message in JSON.

use duewheel::core::MessageContent;
use duewheel::core::engine::{Applied, Outline, View};
use duewheel::core::message::{DeadReason, Expiry, Options, PastAttempt};
use duewheel::core::policy::Backoff;
use duewheel_delivery::MessageUrl;
use schemars::JsonSchema;
use serde::Serialize;

use super::queue_view::BackoffAnswer;
use super::target_view::DeliveryAnswer;
use crate::json::{Base64Text, Elements, HeaderPairs, IdText, InstantText};
use crate::schema::{
    DeadReasonSchema, DoneOutcomeSchema, EndedSchema, KeySchema, LevelSchema, MessageStateSchema,
    QueueSchema, StateSchema, TargetUrlSchema,
};

/// The members of a message that only its producer can change.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct ContentAnswer<'a> {
    pub(super) id: IdText,
    #[schemars(with = "QueueSchema")]
    pub(super) queue: &'a str,
    #[schemars(with = "Option<KeySchema>")]
    pub(super) key: Option<&'a str>,
    /// The body, if it is UTF-8 text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) body: Option<&'a str>,
    /// The body, if it is not UTF-8 text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) body_base64: Option<Base64Text<'a>>,
    pub(super) headers: HeaderPairs<'a>,
    /// Where it is sent instead of to the target of its queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TargetUrlSchema>")]
    pub(super) target_url: Option<&'a str>,
}

impl<'a> ContentAnswer<'a> {
    pub(crate) fn of(message: &'a MessageContent) -> Self {
        let (body, body_base64) = match std::str::from_utf8(&message.body) {
            Ok(text) => (Some(text), None),
            Err(_) => (None, Some(Base64Text(&message.body))),
        };
        ContentAnswer {
            id: IdText(message.id),
            queue: message.queue.as_str(),
            key: message.key.as_ref().map(|key| key.as_str()),
            body,
            body_base64,
            headers: HeaderPairs(&message.headers),
            target_url: MessageUrl::of(message),
        }
    }
}

/// The present state of a message. It has `body`, or `body_base64` if the bytes are not UTF-8 text.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Message")]
pub(crate) struct MessageAnswer<'a> {
    #[serde(flatten)]
    pub(super) content: ContentAnswer<'a>,
    #[schemars(with = "MessageStateSchema")]
    pub(super) state: &'static str,
    /// How it ended, if it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<DoneOutcomeSchema>")]
    pub(super) outcome: Option<&'static str>,
    /// When it ended, if it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ended_at: Option<InstantText>,
    pub(super) due_at: InstantText,
    /// Milliseconds until it is due; 0 when it is.
    pub(super) due_in_ms: u64,
    /// Grants so far.
    pub(super) attempt: u32,
    /// Grants of these that do not count against `max_attempts`.
    pub(super) forgiven: u32,
    pub(super) max_attempts: u32,
    /// The generation, which each change by the producer raises.
    pub(super) generation: u32,
    /// Priority; lower is granted first.
    pub(super) priority: u32,
    pub(super) lease_ms: u64,
    pub(super) enqueued_at: InstantText,
    /// The deadline of the lease, while it is leased.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lease_until: Option<InstantText>,
    /// The message that has taken its key while it was leased: it is not granted again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) superseded_by: Option<IdText>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<DeadReasonSchema>")]
    pub(super) dead_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dead_at: Option<InstantText>,
    /// When it expires, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_at: Option<InstantText>,
    /// Settings that the message has itself. All others are its queue's.
    #[serde(skip_serializing_if = "OwnSettingsAnswer::is_empty")]
    pub(super) own: OwnSettingsAnswer,
    /// The last attempts that have ended.
    pub(super) history: Elements<'a, PastAttempt, PastAttemptAnswer<'a>>,
    /// The last ten attempts to deliver it to a target, as far as they are kept; only where one message is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) deliveries: Option<Vec<DeliveryAnswer>>,
}

impl<'a> MessageAnswer<'a> {
    pub(crate) fn of(view: &'a View) -> Self {
        let (done, dead) = match view.dead {
            Some((DeadReason::Done(outcome), at)) => (Some((outcome, at)), None),
            dead => (None, dead),
        };
        MessageAnswer {
            content: ContentAnswer::of(&view.message),
            state: view.state.as_str(),
            outcome: done.map(|(outcome, _)| outcome.as_str()),
            ended_at: done.map(|(_, at)| InstantText(at)),
            due_at: InstantText(view.due_at),
            due_in_ms: view.due_in_ms,
            attempt: view.attempt,
            forgiven: view.forgiven,
            max_attempts: view.max_attempts,
            generation: view.generation,
            priority: view.priority,
            lease_ms: view.lease_ms,
            enqueued_at: InstantText(view.message.enqueued_at),
            lease_until: view.lease_until.map(InstantText),
            superseded_by: view.marks.superseded_by.map(IdText),
            dead_reason: dead.map(|(reason, _)| reason.as_str()),
            dead_at: dead.map(|(_, at)| InstantText(at)),
            expires_at: view.expires_at.map(InstantText),
            own: OwnSettingsAnswer::of(&view.message.options),
            history: Elements::new(&view.history, PastAttemptAnswer::of),
            deliveries: None,
        }
    }
}

/// The settings that a message has itself.
#[derive(Debug, Default, JsonSchema, Serialize)]
#[schemars(rename = "OwnSettings")]
pub(crate) struct OwnSettingsAnswer {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lease_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) backoff: Option<BackoffAnswer>,
    /// The due time was drawn from this many milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) spread_ms: Option<u64>,
    /// The message expires this long after its due time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_in_ms: Option<u64>,
    /// The message expires at this instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_at: Option<InstantText>,
}

impl OwnSettingsAnswer {
    fn of(options: &Options) -> Self {
        OwnSettingsAnswer {
            lease_ms: options.lease_ms,
            max_attempts: options.max_attempts.map(|n| n.count()),
            backoff: options.backoff.map(|Backoff { min_ms, max_ms }| BackoffAnswer { min_ms, max_ms }),
            spread_ms: options.spread_ms,
            expires_in_ms: match options.expiry {
                Some(Expiry::In(ms)) => Some(ms),
                Some(Expiry::At(_)) | None => None,
            },
            expires_at: match options.expiry {
                Some(Expiry::At(at)) => Some(InstantText(at)),
                Some(Expiry::In(_)) | None => None,
            },
        }
    }

    fn is_empty(&self) -> bool {
        let OwnSettingsAnswer { lease_ms, max_attempts, backoff, spread_ms, expires_in_ms, expires_at } =
            self;
        [lease_ms, spread_ms, expires_in_ms].into_iter().all(Option::is_none)
            && max_attempts.is_none()
            && backoff.is_none()
            && expires_at.is_none()
    }
}

/// An attempt that has ended.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "PastAttempt")]
pub(crate) struct PastAttemptAnswer<'a> {
    pub(super) attempt: u32,
    pub(super) granted_at: InstantText,
    pub(super) ended_at: InstantText,
    #[schemars(with = "EndedSchema")]
    pub(super) how: &'static str,
    /// The reason that the consumer gave.
    pub(super) note: &'a str,
}

impl<'a> PastAttemptAnswer<'a> {
    fn of(past: &'a PastAttempt) -> Self {
        PastAttemptAnswer {
            attempt: past.attempt,
            granted_at: InstantText(past.granted_at),
            ended_at: InstantText(past.ended_at),
            how: past.how.as_str(),
            note: &past.note,
        }
    }
}

/// The state of a message after a change, without its body, headers and history.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Outline")]
pub(crate) struct OutlineAnswer<'a> {
    pub(super) id: IdText,
    #[schemars(with = "QueueSchema")]
    pub(super) queue: &'a str,
    #[schemars(with = "Option<KeySchema>")]
    pub(super) key: Option<&'a str>,
    #[schemars(with = "StateSchema")]
    pub(super) state: &'static str,
    pub(super) due_at: InstantText,
    /// Milliseconds until it is due; 0 when it is.
    pub(super) due_in_ms: u64,
    /// Grants so far.
    pub(super) attempt: u32,
    pub(super) max_attempts: u32,
    /// The generation, which each change by the producer raises.
    pub(super) generation: u32,
    /// Priority; lower is granted first.
    pub(super) priority: u32,
    pub(super) lease_ms: u64,
    pub(super) enqueued_at: InstantText,
    #[schemars(with = "LevelSchema")]
    pub(super) durability: &'static str,
}

impl<'a> OutlineAnswer<'a> {
    pub(crate) fn of(changed: &'a Applied<Box<Outline>>) -> Self {
        let outline = &changed.what;
        OutlineAnswer {
            id: IdText(outline.id),
            queue: outline.queue.as_str(),
            key: outline.key.as_ref().map(|key| key.as_str()),
            state: outline.state.as_str(),
            due_at: InstantText(outline.due_at),
            due_in_ms: outline.due_in_ms,
            attempt: outline.attempt,
            max_attempts: outline.max_attempts,
            generation: outline.generation,
            priority: outline.priority,
            lease_ms: outline.lease_ms,
            enqueued_at: InstantText(outline.enqueued_at),
            durability: changed.level.as_str(),
        }
    }
}
