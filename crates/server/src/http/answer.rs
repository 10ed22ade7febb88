//! Answers: their content types, and how they are written.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;

use super::answer_budget::AnswerPermit;
use crate::error::Problem;
use crate::json::written;

/// Answers from this size on take so long to write that other requests would be delayed.
const LARGE_ANSWER: usize = 256 * 1024;

/// The result of a handler: an answer or a problem.
pub(crate) type Answer = Result<Response, Problem>;

/// An answer in JSON.
pub(super) fn reply(status: StatusCode, answer: &impl Serialize) -> Response {
    typed(status, "application/json", written(256, answer))
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
