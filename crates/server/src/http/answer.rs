//! Answers: of which type they are, and how they are written.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;

use super::room::Room;
use crate::error::Problem;
use crate::json::Json;

/// Answers from this size on take long enough to write that others would notice.
const LARGE_ANSWER: usize = 256 * 1024;

/// What a handler gives: an answer or a problem.
pub(crate) type Answer = Result<Response, Problem>;

/// An answer in JSON.
pub(super) fn json(status: StatusCode, json: Json) -> Response {
    typed(status, "application/json", json.into_bytes())
}

/// An answer of another type.
pub(super) fn typed(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response {
    let mut response = (status, body.into()).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// An answer in JSON that holds its room until it is written.
pub(super) fn held(status: StatusCode, room: Room, json: Json) -> Response {
    typed(status, "application/json", room.hold(json))
}

/// Writes an answer of about so many bytes; a large one beside the threads that serve all the others.
pub(super) async fn write_large(
    bytes: usize,
    write: impl FnOnce() -> Json + Send + 'static,
) -> Result<Json, Problem> {
    if bytes < LARGE_ANSWER {
        return Ok(write());
    }
    tokio::task::spawn_blocking(write).await.map_err(|_| Problem::internal())
}

/// Writes one JSON object as an answer.
pub(super) fn object(status: StatusCode, write: impl FnOnce(&mut Json)) -> Response {
    let mut out = Json::with_capacity(256);
    out.open();
    write(&mut out);
    out.close();
    json(status, out)
}
