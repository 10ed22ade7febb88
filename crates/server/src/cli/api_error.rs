//! Failures of requests to a server, and escaped segments of paths.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

/// The characters that need no escape in a segment of a path (RFC 3986, "unreserved").
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The failure of a request.
#[derive(Debug)]
pub(crate) enum ApiError {
    /// The server cannot be reached, or the connection broke.
    Unreachable(String),
    /// The address is not that of a duewheel server that the caller can trust. Trying again does not help.
    Mistaken(String),
    /// The server refused.
    Refused(ServerRefusal),
}

/// A refusal of the server, and its reason.
#[derive(Debug)]
pub(crate) struct ServerRefusal {
    /// The stable code of the error.
    pub(crate) code: String,
    /// A sentence for people.
    pub(crate) detail: String,
    /// The field of the request that is not valid.
    pub(crate) field: Option<String>,
    /// The id of the existing message because of which the request was refused.
    pub(crate) existing_id: Option<String>,
    /// The state of that message, if it has the key.
    pub(crate) state: Option<String>,
}

impl ApiError {
    /// This failure with `before` and `behind` around its text; the code of a refusal stays.
    #[must_use]
    pub(crate) fn with_words(self, before: &str, behind: &str) -> ApiError {
        match self {
            ApiError::Unreachable(what) => ApiError::Unreachable(format!("{before}{what}{behind}")),
            ApiError::Mistaken(what) => ApiError::Mistaken(format!("{before}{what}{behind}")),
            ApiError::Refused(refusal) => {
                let detail = format!("{before}{}{behind}", refusal.detail);
                ApiError::Refused(ServerRefusal { detail, ..refusal })
            }
        }
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApiError::Unreachable(what) | ApiError::Mistaken(what) => f.write_str(what),
            ApiError::Refused(refusal) => refusal.fmt(f),
        }
    }
}

impl fmt::Display for ServerRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.detail)?;
        match (&self.existing_id, &self.state) {
            (Some(id), Some(state)) => write!(f, " (id {id}, {state})"),
            (Some(id), None) => write!(f, " (id {id})"),
            (None, _) => Ok(()),
        }
    }
}

impl ServerRefusal {
    /// The refusal in a problem document, or in a line of a batch.
    pub(crate) fn from_json(problem: &Value) -> ServerRefusal {
        let text = |name: &str| problem.get(name).and_then(Value::as_str).map(str::to_owned);
        ServerRefusal {
            code: text("code").unwrap_or_else(|| "no answer of a duewheel server".to_owned()),
            detail: text("detail").unwrap_or_default(),
            field: text("field"),
            existing_id: text("existing_id"),
            state: text("state"),
        }
    }

    /// Whether a problem document was there at all: anything that answers on a port has a status.
    pub(crate) fn is_known(problem: &Value) -> bool {
        problem.get("code").is_some_and(Value::is_string)
    }

    /// Whether the request may succeed a little later.
    pub(crate) fn is_passing(&self) -> bool {
        self.is_full() || self.code == "draining"
    }

    /// Whether the request was refused for lack of space, of the server or within the quota of the queue's tenant.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self.code.as_str(), "overloaded" | "over_quota")
    }
}

/// A segment of a path.
pub(crate) fn segment(text: &str) -> String {
    // A segment of dots would be resolved as the parent on its way.
    match text {
        "." => "%2E".to_owned(),
        ".." => "%2E%2E".to_owned(),
        _ => utf8_percent_encode(text, SEGMENT).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_escaped() {
        assert_eq!(segment("a/b c%ü?#"), "a%2Fb%20c%25%C3%BC%3F%23");
        assert_eq!(segment("order-42.x_y~"), "order-42.x_y~");
        assert_eq!(segment(".."), "%2E%2E");
    }
}
