//! Errors, by their codes.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use duewheel_api::error_code::ErrorCode;
use serde_json::{Map, Value};

/// The longest time of the server that counts.
pub(crate) const LONGEST_AFTER: Duration = Duration::from_secs(24 * 3600);

/// The kind of an error, in one stable word.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Code {
    /// A refusal of the server.
    Server(ErrorCode),
    /// A refusal of a later version of the server.
    Other(String),
    /// No answer: the connection was refused, cut off, or timed out.
    Connection,
    /// An answer that is not duewheel's, such as a proxy's page.
    BadAnswer,
    /// A webhook without one of its headers.
    WebhookHeader,
    /// A webhook from too long ago, or from the future.
    WebhookTimestamp,
    /// A webhook that none of the secrets has signed.
    WebhookSignature,
    /// A secret of webhooks that cannot be used.
    WebhookSecret,
}

impl Code {
    /// The word.
    pub fn as_str(&self) -> &str {
        match self {
            Code::Server(code) => code.as_str(),
            Code::Other(word) => word,
            Code::Connection => "connection",
            Code::BadAnswer => "bad_answer",
            Code::WebhookHeader => "webhook_header",
            Code::WebhookTimestamp => "webhook_timestamp",
            Code::WebhookSignature => "webhook_signature",
            Code::WebhookSecret => "webhook_secret",
        }
    }
}

impl PartialEq<ErrorCode> for Code {
    fn eq(&self, other: &ErrorCode) -> bool {
        *self == Code::Server(*other)
    }
}

/// A call that was refused or has failed.
///
/// ```
/// use duewheel_client::{Error, ErrorCode};
///
/// fn is_too_late(error: &Error) -> bool {
///     error.code == ErrorCode::MessageNotFound || error.code == ErrorCode::Leased
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Error {
    /// The kind of the error.
    pub code: Code,
    /// A sentence for people.
    pub detail: String,
    /// The status of HTTP, if there was an answer.
    pub status: Option<u16>,
    /// Whether the call, or an earlier attempt of it, may have been applied: only its answer is missing.
    pub may_be_applied: bool,
    /// The time after which the same call may be accepted, if the server says so.
    pub retry_after: Option<Duration>,
    pub(crate) problem: Map<String, Value>,
    pub(crate) source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error whose call was not applied.
    pub fn new(code: impl Into<Code>, detail: impl Into<String>) -> Error {
        Error {
            code: code.into(),
            detail: detail.into(),
            status: None,
            may_be_applied: false,
            retry_after: None,
            problem: Map::new(),
            source: None,
        }
    }

    /// A request without an answer. One that `is_unsent` has certainly not left this machine.
    pub(crate) fn no_answer(source: impl StdError + Send + Sync + 'static, is_unsent: bool) -> Error {
        let mut error = Error::new(Code::Connection, format!("no answer from the server: {source}"));
        let mut cause = source.source();
        while let Some(inner) = cause {
            error.detail += &format!(": {inner}");
            cause = inner.source();
        }
        error.may_be_applied = !is_unsent;
        error.source = Some(Arc::new(source));
        error
    }

    /// An answer that is not duewheel's.
    pub(crate) fn bad_answer(status: u16, body: &[u8]) -> Error {
        let begin = String::from_utf8_lossy(&body[..body.len().min(100)]);
        let detail = format!("status {status}, and no answer of duewheel: {begin:?}");
        Error { status: Some(status), may_be_applied: true, ..Error::new(Code::BadAnswer, detail) }
    }

    /// The error in a problem document, or in a refused item of a batch; `None` if it is neither.
    ///
    /// ```
    /// # use duewheel_client::{Error, ErrorCode};
    /// let line = serde_json::json!({"status": 409, "code": "key_exists", "existing_id": "17"});
    /// let error = Error::of_problem(&line).unwrap();
    /// assert_eq!((&error.code, error.text("existing_id")), (&ErrorCode::KeyExists.into(), Some("17")));
    /// ```
    pub fn of_problem(problem: &Value) -> Option<Error> {
        let word = problem["code"].as_str()?;
        let code = ErrorCode::of(word).map_or_else(|| Code::Other(word.to_owned()), Code::Server);
        let status = problem["status"].as_u64().and_then(|status| u16::try_from(status).ok());
        let may_be_applied = match problem["outcome"].as_str() {
            Some(outcome) => outcome != "not_applied",
            None => {
                status.is_some_and(|status| status >= 500 && status != 507) && code != ErrorCode::Draining
            }
        };
        let detail = problem["detail"].as_str().unwrap_or_default();
        Some(Error {
            status,
            may_be_applied,
            retry_after: problem["retry_after_ms"]
                .as_u64()
                .map(|ms| Duration::from_millis(ms).min(LONGEST_AFTER)),
            problem: problem.as_object().cloned().unwrap_or_default(),
            ..Error::new(code, detail)
        })
    }

    /// This error behind an attempt that `may_be_applied`, or not.
    pub(crate) fn after_unsure(self, may_be_applied: bool) -> Error {
        Error { may_be_applied: self.may_be_applied || may_be_applied, ..self }
    }

    /// A member of the problem document: `field` (of the request, at fault), `existing_id` and `state` (of the message
    /// because of which the call was refused), `quota`, `resource`.
    pub fn text(&self, member: &str) -> Option<&str> {
        self.problem.get(member)?.as_str()
    }

    /// A number in the problem document: `generation` (of the message), `limit`, `used`.
    pub fn number(&self, member: &str) -> Option<u64> {
        self.problem.get(member)?.as_u64()
    }

    /// The cause of this type, such as an [`io::Error`] of the connection.
    pub fn cause<T: StdError + 'static>(&self) -> Option<&T> {
        let mut next = self.source();
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref() {
                return Some(found);
            }
            // An error of input and output leaves out the one that it wraps.
            next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
                Some(wrapped) => Some(wrapped),
                None => error.source(),
            };
        }
        None
    }

    /// Whether the same call may be accepted a little later. A handshake of TLS that has failed fails again.
    pub fn is_passing(&self) -> bool {
        let is_away = self.code == Code::Connection && self.cause::<rustls::Error>().is_none();
        is_away || matches!(self.status, Some(429 | 503))
    }
}

impl From<ErrorCode> for Code {
    fn from(code: ErrorCode) -> Code {
        Code::Server(code)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !matches!(self.code, Code::Connection | Code::BadAnswer) {
            write!(f, "{}: ", self.code.as_str())?;
        }
        f.write_str(&self.detail)?;
        match (self.text("existing_id"), self.text("state")) {
            (Some(id), Some(state)) => write!(f, " (id {id}, {state})"),
            (Some(id), None) => write!(f, " (id {id})"),
            (None, _) => Ok(()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}
