//! Acts: changes of many messages or of a setting, with the caller that has asked for them.
//!
//! The record of an act is a dead message of a system queue ([`QueueName::of_acts`]), which the engine puts into the
//! group of the act's own records. So stores treat acts as they treat all messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::id::{Lsn, MessageId, ReplyTo};
use crate::message::{Died, Headers, Kind, MessageContent, Options};
use crate::name::QueueName;
use crate::record::Was;
use crate::time::{Due, WallMs};

/// Longest text of an act that is kept, in bytes.
const MAX_TEXT: usize = 512;

/// A change of many messages or of a setting, its origin and its outcome. It has no body of a message, secret or token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Act {
    /// A random number, the same in all shards and steps of the act.
    pub nonce: u64,
    /// When it was asked for.
    pub at: WallMs,
    /// Kind of the act, such as `purge`.
    pub name: Box<str>,
    /// The queue, target, schedule or job.
    pub object: Box<str>,
    /// The queue that it concerns; `None`: no single queue.
    pub queue: Option<QueueName>,
    /// The name of the caller's token.
    pub token: Option<Box<str>>,
    /// The address of the caller.
    pub address: Option<Box<str>>,
    /// The name of the request.
    pub request_id: Box<str>,
    /// The job that does it, if one does. Without a count the job goes on.
    pub job: Option<Box<str>>,
    /// The number of messages that it has changed, if they were counted.
    pub count: Option<u64>,
    /// The number of messages that its job could not change.
    pub refused: Option<u64>,
}

/// The beginning of a text, at most this many bytes.
pub fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

impl Act {
    /// The act as texts with their names.
    pub fn texts(&self) -> Headers {
        let Act { nonce, at, name, object, queue, token, address, request_id, job, count, refused } = self;
        let number = |number: u64| Some(number.to_string());
        let (nonce, at) = (number(*nonce), number(at.0));
        let (count, refused) = (count.and_then(number), refused.and_then(number));
        let texts = [
            ("nonce", nonce.as_deref()),
            ("at", at.as_deref()),
            ("act", Some(name)),
            ("object", Some(object)),
            ("queue", queue.as_ref().map(QueueName::as_str)),
            ("token", token.as_deref()),
            ("address", address.as_deref()),
            ("request_id", Some(request_id)),
            ("job", job.as_deref()),
            ("count", count.as_deref()),
            ("refused", refused.as_deref()),
        ];
        let header = |(name, text): (&str, Option<&str>)| {
            let text = text?;
            Some((name.into(), cut(text, MAX_TEXT).into()))
        };
        texts.into_iter().filter_map(header).collect()
    }

    /// The message that keeps it.
    pub fn message(&self, id: MessageId) -> Arc<MessageContent> {
        Arc::new(MessageContent {
            id,
            queue: QueueName::of_acts(),
            key: None,
            body: Bytes::new(),
            headers: self.texts(),
            options: Options::default(),
            dedupe_id: None,
            enqueued_at: self.at,
        })
    }

    /// Adds a part of the same act in another shard.
    pub fn add(&mut self, part: &Act) {
        let add = |sum: &mut Option<u64>, more: Option<u64>| {
            *sum = sum.map_or(more, |sum| Some(sum.saturating_add(more.unwrap_or(0))));
        };
        add(&mut self.count, part.count);
        add(&mut self.refused, part.refused);
    }

    /// The act that has these texts; what they lack is empty.
    pub fn of(texts: &[(Box<str>, Box<str>)]) -> Self {
        let text = |wanted: &str| texts.iter().find(|(name, _)| **name == *wanted).map(|(_, text)| &**text);
        let number = |wanted| text(wanted).and_then(|text| text.parse().ok());
        Act {
            nonce: number("nonce").unwrap_or_default(),
            at: WallMs(number("at").unwrap_or_default()),
            name: text("act").unwrap_or_default().into(),
            object: text("object").unwrap_or_default().into(),
            queue: text("queue").and_then(|name| QueueName::stored(name).ok()),
            token: text("token").map(Box::from),
            address: text("address").map(Box::from),
            request_id: text("request_id").unwrap_or_default().into(),
            job: text("job").map(Box::from),
            count: number("count"),
            refused: number("refused"),
        }
    }
}

/// The index of the records.
#[derive(Debug, Default)]
pub(crate) struct Acts {
    /// By id, so the oldest first.
    pub(crate) kept: BTreeMap<MessageId, KeptAct>,
    /// Number of records in the store.
    pub(crate) stored: u64,
    /// Whether those of earlier owners are being read.
    pub(crate) is_loading: bool,
}

/// The record of an act in the index.
#[derive(Clone, Debug)]
pub(crate) struct KeptAct {
    pub(crate) nonce: u64,
    pub(crate) token: Option<Box<str>>,
    pub(crate) count: Option<u64>,
    pub(crate) due: Due,
    pub(crate) died: Died,
    pub(crate) weight: u64,
}

/// The act that a request is part of.
#[derive(Debug)]
pub(crate) struct Acting {
    pub(crate) act: Arc<Act>,
    pub(crate) to: ReplyTo,
    /// The last record before the request.
    pub(crate) before: Lsn,
    /// Whether it is recorded without any other record.
    pub(crate) is_note: bool,
    /// Whether the request changes or brings one message of a caller, which is counted.
    pub(crate) is_of_one: bool,
}

impl Acts {
    /// The index of an engine that begins, with so many records in the store.
    pub(crate) fn unread(stored: u64) -> Self {
        Acts { stored, ..Acts::default() }
    }
}

impl KeptAct {
    /// State of the record, for the totals.
    pub(crate) fn was(&self) -> Was {
        Was {
            queue: QueueName::of_acts(),
            kind: Kind::Dead,
            due: self.due,
            weight: self.weight,
            detail: 0,
            past: 0,
            unweighed: 0,
        }
    }
}
