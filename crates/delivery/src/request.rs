//! Requests: messages with the headers and the signature of Standard Webhooks 1.0.

use std::borrow::Cow;
use std::fmt;
use std::time::SystemTime;

use bytes::Bytes;
use duewheel::core::engine::Grant;
use http_body_util::Full;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Request, Uri};
use jiff::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::message_url::TARGET_URL_HEADER;
use crate::random::random_traceparent;
use crate::target::PushTarget;
use crate::trace::{TRACEPARENT, TRACESTATE, TraceContext};
use duewheel_api::signing::signatures;

/// The request of one attempt. `Debug` leaves out body and headers.
#[derive(Clone)]
pub struct PushRequest {
    /// The value of `webhook-id`: the same over all attempts, and without a dot.
    pub webhook_id: String,
    /// The instant of this attempt.
    pub now: SystemTime,
    /// The queue of the message.
    pub queue: String,
    /// The producer's own name for the message.
    pub key: Option<String>,
    /// Deliveries so far, this one included.
    pub attempt: u32,
    /// When this attempt was due.
    pub due_at: SystemTime,
    /// The headers of the message.
    pub headers: Vec<(String, String)>,
    /// The body of the message, sent byte for byte.
    pub body: Bytes,
    /// The span of this attempt. Without one, `traceparent` is that of the message's headers, else a new one that is
    /// not sampled.
    pub span: Option<TraceContext>,
}

/// With a span of the attempt: the span in which the message was created.
const CREATION: &str = "duewheel-creation-traceparent";

/// Characters that stand for themselves where a text is percent-encoded: the unreserved ones of RFC 3986.
const ENCODED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// In names of headers, all that a name may have (RFC 9110, section 5.6.2), but `%` and `*`.
const ENCODED_IN_NAME: AsciiSet = ENCODED
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'+')
    .remove(b'^')
    .remove(b'`')
    .remove(b'|');

impl PushRequest {
    /// The request for a granted message. `store` identifies the store the message is in ([`webhook_id`]).
    pub fn of(grant: &Grant, store: &str, now: SystemTime) -> Self {
        let message = &grant.message;
        PushRequest {
            webhook_id: webhook_id(store, &message.id.to_string(), grant.generation),
            now,
            queue: message.queue.as_str().to_owned(),
            key: message.key.as_ref().map(|key| key.as_str().to_owned()),
            attempt: grant.attempt,
            due_at: grant.due_at.to_system_time(),
            headers: message
                .headers
                .iter()
                .filter(|(name, _)| &**name != TARGET_URL_HEADER)
                .map(|(name, value)| (name.to_string(), value.to_string()))
                .collect(),
            body: message.body.clone(),
            span: None,
        }
    }

    /// The request as it goes out.
    pub(crate) fn to_http(&self, target: &PushTarget, uri: &Uri) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = target.method.clone();
        *request.uri_mut() = uri.clone();
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("duewheel/", env!("CARGO_PKG_VERSION"))));
        // hyper leaves it out when there is no body.
        headers.insert(CONTENT_LENGTH, HeaderValue::from(self.body.len()));
        // Those of the target replace the agent's name.
        headers.extend(target.headers.clone());
        let creation = TraceContext::among(self.headers.iter().map(|(name, value)| (&**name, &**value)));
        for (name, value) in &self.headers {
            let is_parent = creation.is_some() && name.eq_ignore_ascii_case(TRACEPARENT);
            let has_state = creation.as_ref().is_some_and(|creation| creation.tracestate().is_some());
            let is_state = has_state && name.eq_ignore_ascii_case(TRACESTATE);
            // A valid context is set below, under the usual names.
            if !is_parent && !is_state {
                self.add(headers, name, value);
            }
        }
        let timestamp = seconds(self.now);
        let mut set = |name: &'static str, value: &str| {
            // All of these values are visible ASCII.
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        };
        set("webhook-id", &self.webhook_id);
        set("webhook-timestamp", &timestamp.to_string());
        if !target.secrets.is_empty() {
            set("webhook-signature", &signatures(&target.secrets, &self.webhook_id, timestamp, &self.body));
        }
        set("duewheel-queue", &encoded(&self.queue));
        if let Some(key) = &self.key {
            set("duewheel-key", &encoded(key));
        }
        set("duewheel-attempt", &self.attempt.to_string());
        set("duewheel-due-at", &rfc3339(self.due_at));
        match self.span.as_ref().or(creation.as_ref()) {
            Some(context) => {
                set(TRACEPARENT, context.traceparent());
                if let Some(state) = context.tracestate() {
                    set(TRACESTATE, state);
                }
            }
            None => set(TRACEPARENT, &random_traceparent()),
        }
        if let (Some(_), Some(creation)) = (&self.span, &creation) {
            set(CREATION, creation.traceparent());
        }
        request
    }

    /// Adds a header of the message: `content-type` as it is, others as `duewheel-h-NAME`.
    fn add(&self, headers: &mut HeaderMap, name: &str, value: &str) {
        let plain = is_plain(value).then(|| HeaderValue::from_str(value).ok()).flatten();
        if name.eq_ignore_ascii_case("content-type")
            && let Some(value) = &plain
        {
            headers.insert(CONTENT_TYPE, value.clone());
            return;
        }
        let name = utf8_percent_encode(name, &ENCODED_IN_NAME);
        // Other values as extended ones (RFC 8187), under a name with a star.
        let (name, value) = match plain {
            Some(value) => (format!("duewheel-h-{name}"), Some(value)),
            None => {
                let value = format!("UTF-8''{}", encoded(value));
                (format!("duewheel-h-{name}*"), HeaderValue::from_str(&value).ok())
            }
        };
        if let (Ok(name), Some(value)) = (HeaderName::try_from(name), value) {
            headers.append(name, value);
        }
    }
}

impl fmt::Debug for PushRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushRequest")
            .field("webhook_id", &self.webhook_id)
            .field("queue", &self.queue)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

/// The value of `webhook-id`: the same over all attempts of a message and after a redrive, another one after each change
/// by the producer. `store` makes it differ between stores, and between a store and its restored copy.
pub fn webhook_id(store: &str, message: &str, generation: u32) -> String {
    format!("dw_{store}_{message}_{generation}")
}

fn encoded(text: &str) -> Cow<'_, str> {
    utf8_percent_encode(text, &ENCODED).into()
}

/// Whether a header can have this value as it is: visible ASCII, with spaces between.
fn is_plain(value: &str) -> bool {
    value.bytes().all(|b| matches!(b, b' '..=b'~')) && value.trim() == value
}

/// Whole seconds since 1970.
fn seconds(instant: SystemTime) -> i64 {
    Timestamp::try_from(instant).map_or(0, Timestamp::as_second)
}

/// RFC 3339 in UTC, with milliseconds.
fn rfc3339(instant: SystemTime) -> String {
    Timestamp::try_from(instant).map_or_else(|_| String::new(), |instant| format!("{instant:.3}"))
}
