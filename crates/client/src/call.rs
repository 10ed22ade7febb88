//! A request, and its answer.

use std::time::Duration;

use bytes::Bytes;
use duewheel_api::error_code::ErrorCode;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, Method};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use crate::error::{Code, Error, LONGEST_AFTER};

/// The largest answer that is read: a page of the largest messages.
const MAX_ANSWER: usize = 1 << 30;
/// The characters that need no escape in a segment of a path (RFC 3986, "unreserved").
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// As far in the future as a clock is asked for.
const NEVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// The end of a time that begins now, which may be longer than the clock goes.
pub(crate) fn in_time(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time).unwrap_or(now + NEVER)
}

/// A segment of a path, such as the name of a queue, or a value in a query.
///
/// ```
/// assert_eq!(duewheel_client::segment("a/b c"), "a%2Fb%20c");
/// ```
pub fn segment(text: &str) -> String {
    // A segment of dots would be resolved as the parent on its way.
    match text {
        "." => "%2E".to_owned(),
        ".." => "%2E%2E".to_owned(),
        _ => utf8_percent_encode(text, SEGMENT).to_string(),
    }
}

/// How often a call may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Until the client's limit: a second time changes nothing.
    Limited,
    /// Until it is answered.
    Endless,
    /// As `Limited`, and never if an earlier attempt may have been applied.
    Careful,
}

/// Any request of the HTTP interface, for those that have no method of their own.
///
/// ```no_run
/// # async fn pause(wheel: duewheel_client::DuewheelClient) -> Result<(), duewheel_client::Error> {
/// use duewheel_client::ApiCall;
///
/// let pause = ApiCall::post("/v1/queues/orders/pause").json(&serde_json::json!({"for_ms": 60_000}))?;
/// let paused: serde_json::Value = wheel.call(pause).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ApiCall {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) wait: Duration,
    pub(crate) within: Option<Duration>,
    /// The longest pause before an attempt, whatever the server says.
    pub(crate) longest_pause: Duration,
    pub(crate) effort: Effort,
}

impl ApiCall {
    /// A request to a path, with its query, of segments that are escaped by [`segment`].
    pub fn new(method: Method, path: impl Into<String>) -> ApiCall {
        let effort = if method == Method::POST { Effort::Careful } else { Effort::Limited };
        ApiCall {
            method,
            path: path.into(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            wait: Duration::ZERO,
            within: None,
            longest_pause: Duration::MAX,
            effort,
        }
    }

    /// A `GET`.
    pub fn get(path: impl Into<String>) -> ApiCall {
        ApiCall::new(Method::GET, path)
    }

    /// A `POST`.
    pub fn post(path: impl Into<String>) -> ApiCall {
        ApiCall::new(Method::POST, path)
    }

    /// With a body of JSON.
    ///
    /// # Errors
    /// The value is no JSON, such as a map whose keys are no texts.
    pub fn json(self, body: &impl Serialize) -> Result<ApiCall, Error> {
        let bytes = serde_json::to_vec(body).map_err(no_json)?;
        Ok(self.written(bytes))
    }

    /// With a body that is JSON already.
    #[must_use]
    pub fn written(self, json: impl Into<Bytes>) -> ApiCall {
        self.body("application/json", json)
    }

    /// With lines of JSON, as a batch.
    #[must_use]
    pub fn lines(self, lines: impl Into<Bytes>) -> ApiCall {
        self.body("application/x-ndjson", lines)
    }

    fn body(mut self, kind: &'static str, body: impl Into<Bytes>) -> ApiCall {
        self.body = body.into();
        self.header(CONTENT_TYPE, HeaderValue::from_static(kind))
    }

    /// With a header.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> ApiCall {
        self.headers.insert(name, value);
        self
    }

    /// For a stream of server-sent events, behind the one with this id.
    ///
    /// # Errors
    /// The text can be no id.
    pub fn events(self, after: Option<&str>) -> Result<ApiCall, Error> {
        let call = self.header(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let Some(after) = after else { return Ok(call) };
        let bad = |_| Error::new(ErrorCode::BadRequest, "last-event-id: has characters that no id has");
        let id = HeaderValue::from_str(after).map_err(bad)?;
        Ok(call.header(HeaderName::from_static("last-event-id"), id))
    }

    /// The server may hold its answer back for so long.
    #[must_use]
    pub fn waiting(self, wait: Duration) -> ApiCall {
        ApiCall { wait, ..self }
    }

    /// An attempt takes no longer than this.
    #[must_use]
    pub fn within(self, time: Duration) -> ApiCall {
        ApiCall { within: Some(time), ..self }
    }

    /// Sent again even if an earlier attempt may have been applied: a second time changes nothing. So are all that are
    /// no `POST`.
    #[must_use]
    pub fn repeatable(self) -> ApiCall {
        ApiCall { effort: Effort::Limited, ..self }
    }

    pub(crate) fn endless(self) -> ApiCall {
        ApiCall { effort: Effort::Endless, ..self }
    }

    /// Attempts and pauses take no longer than this.
    pub(crate) fn often(self, time: Duration) -> ApiCall {
        ApiCall { longest_pause: time, ..self.within(time) }
    }
}

pub(crate) fn no_json(error: serde_json::Error) -> Error {
    Error::new(ErrorCode::BadRequest, format!("json: {error}"))
}

/// The answer to one attempt, whatever its status.
#[derive(Debug)]
pub struct ApiAnswer {
    /// The status of HTTP.
    pub status: u16,
    /// The body; a part of it if `cut` says so.
    pub body: Vec<u8>,
    is_json: bool,
    retry_after: Option<Duration>,
    pub(crate) cut: Option<Error>,
}

impl ApiAnswer {
    /// Whether the status is one of success.
    pub fn is_success(&self) -> bool {
        self.status / 100 == 2
    }

    /// The error that the answer is, if it is none of success.
    pub fn refusal(&self) -> Option<Error> {
        if self.is_success() {
            return None;
        }
        let problem: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let mut error =
            Error::of_problem(&problem).unwrap_or_else(|| Error::bad_answer(self.status, &self.body));
        error.status = Some(self.status);
        error.retry_after = error.retry_after.or(self.retry_after);
        Some(error)
    }

    /// This answer, if all of its body is there.
    ///
    /// # Errors
    /// The connection was cut off.
    pub fn whole(mut self) -> Result<ApiAnswer, Error> {
        self.cut.take().map_or(Ok(self), Err)
    }

    /// The JSON of a whole answer.
    ///
    /// # Errors
    /// The server has refused, the answer is cut off, or not duewheel's.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        if let Some(error) = self.refusal().or_else(|| self.cut.clone()) {
            return Err(error);
        }
        let read = serde_json::from_slice(&self.body).ok().filter(|_| self.is_json);
        read.ok_or_else(|| Error::bad_answer(self.status, &self.body))
    }
}

/// An answer whose body comes bit by bit.
#[derive(Debug)]
pub struct ApiStream {
    pub(crate) answer: http::Response<Incoming>,
}

impl ApiStream {
    /// The next bytes; `None` at the end. Cancelling loses nothing.
    ///
    /// # Errors
    /// The connection was cut off.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        while let Some(frame) = self.answer.body_mut().frame().await {
            let frame = frame.map_err(|error| Error::no_answer(error, false))?;
            if let Ok(bytes) = frame.into_data() {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    /// Whether the status is one of success.
    pub fn is_success(&self) -> bool {
        self.answer.status().is_success()
    }

    /// All of the body, as far as it arrives by then.
    pub(crate) async fn collect(mut self, by: Instant) -> ApiAnswer {
        let header = |name: &str| self.answer.headers().get(name)?.to_str().ok();
        let after = |text: &str| Some(Duration::from_secs(text.parse().ok()?).min(LONGEST_AFTER));
        let mut answer = ApiAnswer {
            status: self.answer.status().as_u16(),
            body: Vec::new(),
            is_json: header("content-type").is_some_and(|kind| kind.contains("json")),
            retry_after: header("retry-after").and_then(after),
            cut: None,
        };
        loop {
            let next = tokio::time::timeout_at(by, self.next()).await;
            match next.unwrap_or_else(|late| Err(Error::no_answer(late, false))) {
                Ok(Some(bytes)) if answer.body.len() + bytes.len() > MAX_ANSWER => {
                    let detail = "an answer of more than 1 GiB is not read";
                    answer.cut = Some(Error { may_be_applied: true, ..Error::new(Code::BadAnswer, detail) });
                    return answer;
                }
                Ok(Some(bytes)) => answer.body.extend_from_slice(&bytes),
                Ok(None) => return answer,
                Err(error) => {
                    answer.cut = Some(error);
                    return answer;
                }
            }
        }
    }
}
