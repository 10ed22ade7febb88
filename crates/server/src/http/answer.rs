//! Answers: how they are written, and the memory for those that are being written, which is bounded over all
//! connections, because clients may read slowly.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;

use super::budget::{ByteBudget, BytePermit};
use crate::error::{Problem, overloaded};
use crate::json;

/// Answers from this size on take so long to write that other requests would be delayed.
const LARGE_ANSWER: usize = 256 * 1024;

/// The result of a handler: an answer or a problem.
pub(crate) type Answer = Result<Response, Problem>;

/// An answer with its schema and how it is made: a struct and its function `of`.
///
/// `answer! { Name of (from: Type, …) with { let …; } { field: Type = value, … } }` has a field on each line, and
/// before them the variables of their values, if there are any. A field with a `?` before it is left out where its
/// value is `None`.
macro_rules! answer {
    ($(#[$meta:meta])* $name:ident$(<$life:lifetime>)? of ($($from:ident: $of:ty),*)
        $(with { $($let:tt)* })? { $($rows:tt)* }) => {
        $crate::http::answer! {
            @rows [$(#[$meta])* $name [$($life)?] ($($from: $of),*) { $($($let)*)? }] [] [] $($rows)*
        }
    };
    (@rows $head:tt [$($fields:tt)*] [$($values:tt)*]
        $(#[$meta:meta])* ?$field:ident: $type:ty = $value:expr, $($rows:tt)*) => {
        $crate::http::answer! {
            @rows $head
            [$($fields)* $(#[$meta])* #[serde(skip_serializing_if = "Option::is_none")]
                pub(super) $field: Option<$type>,]
            [$($values)* $field: $value,] $($rows)*
        }
    };
    (@rows $head:tt [$($fields:tt)*] [$($values:tt)*]
        $(#[$meta:meta])* $field:ident: $type:ty = $value:expr, $($rows:tt)*) => {
        $crate::http::answer! {
            @rows $head [$($fields)* $(#[$meta])* pub(super) $field: $type,] [$($values)* $field: $value,] $($rows)*
        }
    };
    (@rows [$(#[$meta:meta])* $name:ident [$($life:lifetime)?] ($($from:ident: $of:ty),*) { $($let:tt)* }]
        [$($fields:tt)*] [$($values:tt)*]) => {
        #[derive(Debug, schemars::JsonSchema, serde::Serialize)]
        $(#[$meta])*
        pub(crate) struct $name$(<$life>)? { $($fields)* }

        impl$(<$life>)? $name$(<$life>)? {
            pub(crate) fn of($($from: $of),*) -> Self {
                $($let)*
                $name { $($values)* }
            }
        }
    };
}
pub(super) use answer;

/// An answer in JSON.
pub(super) fn reply(status: StatusCode, answer: &impl Serialize) -> Response {
    typed(status, "application/json", json::line(256, answer))
}

/// An answer of another type.
pub(super) fn typed(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response {
    let mut response = (status, body.into()).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// An answer in JSON that holds its memory until it is written.
pub(super) fn held(status: StatusCode, room: AnswerPermit, json: Vec<u8>) -> Response {
    typed(status, "application/json", room.hold(json))
}

/// Writes an answer of about this size; a large one on a thread that serves no other requests.
pub(super) async fn write_large(
    bytes: usize,
    write: impl FnOnce() -> Vec<u8> + Send + 'static,
) -> Result<Vec<u8>, Problem> {
    if bytes < LARGE_ANSWER {
        return Ok(write());
    }
    tokio::task::spawn_blocking(write).await.map_err(|_| Problem::internal())
}

/// How long an answer waits until other clients have read theirs.
const TIME_LIMIT: Duration = Duration::from_secs(1);

/// Bytes of answers that are being written, all connections together.
#[derive(Clone, Debug)]
pub(crate) struct AnswerBudget(ByteBudget);

/// Memory for one answer; released when the answer has been written.
#[derive(Debug)]
pub(crate) struct AnswerPermit(BytePermit);

impl AnswerBudget {
    pub(crate) fn new(bytes: usize) -> Self {
        AnswerBudget(ByteBudget::new(bytes))
    }

    /// Reserves memory for an answer of up to this number of bytes, before it is made.
    ///
    /// # Errors
    /// `overloaded` when there is none within a second.
    pub(crate) async fn take(&self, bytes: usize) -> Result<AnswerPermit, Problem> {
        let mut permit = self.0.nothing();
        match tokio::time::timeout(TIME_LIMIT, permit.grow(bytes)).await {
            Ok(()) => Ok(AnswerPermit(permit)),
            Err(_) => Err(overloaded(
                "the answers that wait for their clients have as many bytes together as is allowed; read answers faster, or \
                 ask for less at a time",
            )),
        }
    }

    /// Whether there is memory for an answer of this number of bytes.
    pub(crate) fn has(&self, bytes: usize) -> bool {
        self.0.free() >= bytes
    }

    /// Memory for an answer that has been made: as much of it as is free.
    pub(crate) fn take_left(&self, bytes: usize) -> AnswerPermit {
        AnswerPermit(self.0.take_left(bytes))
    }
}

impl AnswerPermit {
    /// The answer, which holds the memory that it needs until its last byte has been written. The rest is released now.
    pub(crate) fn hold(mut self, answer: Vec<u8>) -> Bytes {
        struct Held {
            bytes: Bytes,
            _permit: AnswerPermit,
        }
        impl AsRef<[u8]> for Held {
            fn as_ref(&self) -> &[u8] {
                &self.bytes
            }
        }
        let bytes = Bytes::from(answer);
        self.0.shrink_to(bytes.len());
        Bytes::from_owner(Held { bytes, _permit: self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answer_memory_is_held_until_written() {
        let budget = AnswerBudget::new(1_000);
        let bytes = budget.take(800).await.unwrap().hold(vec![b'x'; 301]);
        assert!(budget.has(699) && !budget.has(700), "301 bytes are held");
        let half = bytes.slice(..10);
        drop(bytes);
        assert!(budget.take(800).await.is_err(), "a part of it is still being written");
        drop(half);
        assert!(budget.has(1_000));
        let all = budget.take_left(100_000);
        assert!(!budget.has(1));
        drop(all);
        assert!(budget.has(1_000));
    }
}
