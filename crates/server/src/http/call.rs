//! A request on its way to its handler: path, query and body, each checked before use.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use duewheel::core::engine::Target;
use duewheel::core::{Key, MessageId, QueueName, percent};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::openapi::Parameter;
use super::reading::{BodyShare, Coming, ReadBody};
use super::{Answer, App, reach, request_id, strict};
use crate::auth::{About, AccessRule, Caller};
use crate::error::{ErrorCode, Problem, request_too_large};

/// The largest number of bytes of a refused body that are read and discarded, and the time limit.
const DISCARD_BYTES: usize = 64 * 1024 * 1024;
const DISCARD_TIME: Duration = Duration::from_secs(5);
/// Number of bytes of a body that are read before other requests are served.
const TURN_BYTES: usize = 128 * 1024;
/// Pause between the turns of a body that is discarded.
const DISCARD_REST: Duration = Duration::from_millis(4);

/// The answer that a handler computes.
pub(super) type Handled = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Computes the answer to a call.
pub(super) type CallHandler = dyn Fn(Call) -> Handled + Send + Sync;

/// A request on its way to its handler.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) app: App,
    pub(crate) caller: Caller,
    parts: Parts,
    body: Body,
}

impl Call {
    /// Checks everything that can be checked before the body is read; a caller without permission learns nothing else.
    pub(crate) async fn new(
        app: App,
        request: axum::extract::Request,
        query: &'static [Parameter],
        access: AccessRule,
    ) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let caller = app.guard.caller(&parts.headers, app.client.now().wall);
        let mut call = Call { app, caller, parts, body };
        let checked = match call.check(query, access) {
            Ok(None) => Ok(()),
            Ok(Some(id)) => within_reach(call.app.clone(), call.caller.clone(), id).await,
            Err(problem) => Err(problem),
        };
        if let Err(problem) = checked {
            call.discard();
            return Err(problem);
        }
        Ok(call)
    }

    /// Returns the id that must be looked up to determine whether the token covers its message.
    fn check(&self, query: &'static [Parameter], access: AccessRule) -> Result<Option<MessageId>, Problem> {
        self.check_headers(access)?;
        let id = self.check_access(access)?;
        self.check_query(query)?;
        Ok(id)
    }

    fn check_access(&self, access: AccessRule) -> Result<Option<MessageId>, Problem> {
        let (scopes, about) = match access {
            AccessRule::Open => return Ok(None),
            AccessRule::Identified => return self.caller.need_identity().map(|()| None),
            AccessRule::Needs(scopes, about) => (scopes, about),
        };
        self.caller.need_one_of(scopes)?;
        match about {
            About::Queue => self.caller.need_queue(&self.queue()?)?,
            About::Message if self.caller.limits().is_some() => return Ok(Some(self.id()?)),
            About::Message => {}
            // The handler leaves out messages that the token does not cover. If a lease's message were checked here,
            // the answer to a malformed body would reveal which ids of others are pending: an unknown id is passed on
            // to the handler.
            About::Lease | About::Recalled | About::Several => {}
            About::Server => self.caller.need_all_queues()?,
        }
        Ok(None)
    }

    fn check_headers(&self, access: AccessRule) -> Result<(), Problem> {
        let headers = &self.parts.headers;
        let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
        if bytes > self.app.limits.max_header_bytes {
            let detail =
                format!("a request may have at most {} bytes of headers", self.app.limits.max_header_bytes);
            return Err(Problem::new(ErrorCode::HeadersTooLarge, detail));
        }
        request_id::of(headers)?;
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = hosts.next();
        if hosts.next().is_some() {
            return Err(Problem::new(ErrorCode::BadRequest, "there is more than one Host header"));
        }
        if access != AccessRule::Open && self.app.guard.is_open() && !self.names_server() {
            return Err(Problem::new(
                ErrorCode::CrossOrigin,
                "the name in the Host header is none of this server's; its operator may add it with --hosts",
            ));
        }
        // A web page of another origin must not use its visitor's browser to reach a server that trusts this machine.
        for origin in headers.get_all(header::ORIGIN) {
            let authority = origin.as_bytes().split(|b| *b == b'/').nth(2);
            if authority.is_none() || authority != host.map(|h| h.as_bytes()) {
                return Err(Problem::new(
                    ErrorCode::CrossOrigin,
                    "a web page of another origin must not call this server",
                ));
            }
        }
        Ok(())
    }

    /// Whether the request names this server as its host: a page of another origin can give its own name to the address.
    fn names_server(&self) -> bool {
        let host = self.parts.headers.get(header::HOST);
        host.is_none_or(|host| self.app.hosts.knows(host.as_bytes()))
    }

    /// Whether the caller may read texts that name files and servers.
    pub(super) fn may_read_trouble(&self) -> bool {
        match self.caller {
            Caller::Trusted => self.names_server(),
            Caller::Holder(_) => true,
            Caller::Stranger(_) => false,
        }
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.parts.headers
    }

    /// The name that the caller has given the request.
    pub(super) fn request_id(&self) -> Option<&str> {
        request_id::of(&self.parts.headers).ok().flatten()?.to_str().ok()
    }

    /// A fact about the connection.
    pub(super) fn extension<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.parts.extensions.get()
    }

    // ----- path -----

    pub(super) fn path(&self) -> &str {
        self.parts.uri.path()
    }

    /// The queue, target, schedule or job of the path; else its first name.
    pub(super) fn object(&self) -> String {
        let found = [3, 2].map(|n| self.segment(n, "name").unwrap_or_default().into_owned());
        let [named, of_server] = found;
        if named.is_empty() || of_server == "clock" { of_server } else { named }
    }

    /// The n-th segment of the path, decoded. `{queue}`, `{id}`, `{name}` and `{job}` are always the third, `{key}` the
    /// fifth.
    fn segment(&self, n: usize, field: &'static str) -> Result<Cow<'_, str>, Problem> {
        let raw = self.parts.uri.path().split('/').nth(n).unwrap_or_default();
        percent::decode(raw).map_err(|bad| Problem::field(field, bad))
    }

    pub(crate) fn queue(&self) -> Result<QueueName, Problem> {
        let name = self.segment(3, "queue")?;
        QueueName::new(&name).map_err(|what| Problem::field("queue", what))
    }

    pub(crate) fn id(&self) -> Result<MessageId, Problem> {
        let text = self.segment(3, "id")?;
        strict::id(&text).ok_or_else(|| Problem::field("id", "must be a decimal number"))
    }

    /// The name of a schedule.
    pub(crate) fn name(&self) -> Result<String, Problem> {
        self.segment(3, "name").map(Cow::into_owned)
    }

    /// The id of a job.
    pub(crate) fn job(&self) -> Result<String, Problem> {
        self.segment(3, "job").map(Cow::into_owned)
    }

    /// The message of the path: by its id, or by its queue and key.
    pub(crate) fn message(&self) -> Result<Target, Problem> {
        if self.parts.uri.path().starts_with("/v1/messages/") {
            return self.id().map(Target::Id);
        }
        let queue = self.queue()?;
        let text = self.segment(5, "key")?;
        let key = Key::new(&text).map_err(|what| Problem::field("key", what))?;
        Ok(Target::Key(queue, key))
    }

    // ----- query -----

    fn check_query(&self, allowed: &[Parameter]) -> Result<(), Problem> {
        let Some(query) = self.parts.uri.query() else { return Ok(()) };
        let mut seen: Vec<Cow<'_, str>> = Vec::new();
        for (name, _) in pairs(query) {
            let name = percent::decode(name)
                .map_err(|bad| Problem::new(ErrorCode::BadRequest, format!("query: {bad}")))?;
            let fits = |one: &Parameter| one.name == name || names_of(one.name, &name).is_some();
            if !allowed.iter().any(fits) {
                let names: Vec<&str> = allowed.iter().map(|one| one.name).collect();
                let hint = if names.is_empty() {
                    "none is".to_owned()
                } else {
                    format!("only {} are", names.join(", "))
                };
                return Err(Problem::field(
                    name.into_owned(),
                    format_args!("unknown query parameter; {hint} accepted here"),
                ));
            }
            if seen.contains(&name) {
                return Err(Problem::field(name.into_owned(), "is there twice"));
            }
            seen.push(name);
        }
        Ok(())
    }

    /// A query parameter, decoded. `+` is a plus, because instants contain it.
    pub(crate) fn param(&self, wanted: &'static str) -> Result<Option<Cow<'_, str>>, Problem> {
        let query = self.parts.uri.query().unwrap_or_default();
        let value = pairs(query)
            .find(|(name, _)| percent::decode(name).is_ok_and(|name| name == wanted))
            .map(|(_, v)| v);
        value.map(|value| percent::decode(value).map_err(|bad| Problem::field(wanted, bad))).transpose()
    }

    /// The values of all query parameters of a form such as `header.NAME`, decoded, by what stands for `NAME`.
    pub(crate) fn params_of(&self, form: &'static str) -> Result<Vec<(String, String)>, Problem> {
        let mut found = Vec::new();
        for (name, value) in pairs(self.parts.uri.query().unwrap_or_default()) {
            // Its name was checked.
            let Ok(name) = percent::decode(name) else { continue };
            let Some(of) = names_of(form, &name) else { continue };
            let value =
                percent::decode(value).map_err(|bad| Problem::field(name.clone().into_owned(), bad))?;
            found.push((of.to_owned(), value.into_owned()));
        }
        Ok(found)
    }

    /// A whole number, if the parameter is given.
    pub(crate) fn number_param(&self, wanted: &'static str) -> Result<Option<u64>, Problem> {
        let Some(text) = self.param(wanted)? else { return Ok(None) };
        match text.parse() {
            Ok(number) if text.bytes().all(|b| b.is_ascii_digit()) => Ok(Some(number)),
            _ => Err(Problem::field(wanted, "must be a whole number")),
        }
    }

    /// A whole number from 1 to `max`, or a default if the parameter is missing.
    pub(crate) fn count_param(
        &self,
        wanted: &'static str,
        default: usize,
        max: usize,
    ) -> Result<usize, Problem> {
        let Some(text) = self.param(wanted)? else { return Ok(default.min(max)) };
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        match text.parse::<usize>() {
            Ok(n) if digits && (1..=max).contains(&n) => Ok(n),
            _ => Err(Problem::field(wanted, format_args!("must be a whole number from 1 to {max}"))),
        }
    }

    // ----- body -----

    /// Reads a body that is a JSON object.
    pub(crate) async fn json<T: DeserializeOwned>(&mut self, limit: usize) -> Result<T, Problem> {
        let bytes = self.json_bytes(limit).await?;
        strict::parse_optional(&bytes)
    }

    /// Reads a body that is JSON, for a type that borrows from it.
    pub(crate) async fn json_bytes(&mut self, limit: usize) -> Result<ReadBody, Problem> {
        if self.content() == BodyFormat::Other {
            return Err(Problem::new(
                ErrorCode::UnsupportedMediaType,
                "the body must be JSON: Content-Type: application/json",
            ));
        }
        self.bytes(limit).await
    }

    /// The format of the body, by its `Content-Type`.
    pub(crate) fn content(&self) -> BodyFormat {
        let Some(value) = self.parts.headers.get(header::CONTENT_TYPE) else { return BodyFormat::Json };
        let value = value.as_bytes().split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
        // curl sends the form type when no type is given.
        let json: [&[u8]; 3] = [b"application/json", b"application/x-www-form-urlencoded", b"text/json"];
        let lines: [&[u8]; 3] = [b"application/x-ndjson", b"application/ndjson", b"application/jsonl"];
        if lines.iter().any(|known| value.eq_ignore_ascii_case(known)) {
            BodyFormat::Lines
        } else if json.iter().any(|known| value.eq_ignore_ascii_case(known)) || value.ends_with(b"+json") {
            BodyFormat::Json
        } else {
            BodyFormat::Other
        }
    }

    /// Reads the body. A body of more than `limit` bytes is refused before it is read, if the request announces its
    /// size. The body is charged as being read as long as it is kept: a handler drops it before it waits.
    pub(crate) async fn bytes(&mut self, limit: usize) -> Result<ReadBody, Problem> {
        // Decompression would multiply the size. A compressed body is refused rather than misread.
        let coded = self.parts.headers.get_all(header::CONTENT_ENCODING).iter();
        if coded.into_iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
            self.discard();
            let why = "the body must not be encoded: no Content-Encoding is accepted";
            return Err(Problem::new(ErrorCode::UnsupportedMediaType, why));
        }
        let announced = self.announced();
        if announced.is_some_and(|n| n > limit as u64) {
            self.discard();
            return Err(request_too_large(limit, self.app.policy.max_body));
        }
        let body = std::mem::take(&mut self.body);
        let share = self.app.reading.share();
        if body.is_end_stream() {
            return Ok(ReadBody::new(Bytes::new(), share));
        }
        let limits = (limit, self.app.policy.max_body);
        collect(body, limits, announced, (share, self.app.limits.body_timeout)).await
    }

    /// The size of the body according to the request.
    fn announced(&self) -> Option<u64> {
        self.parts.headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok())
    }

    /// Reads and discards the body of a refused request.
    fn discard(&mut self) {
        let body = std::mem::take(&mut self.body);
        // A client that waits for `100 Continue` sends no body; one that announces far too much is not waited for.
        let small = self.announced().is_none_or(|n| n <= DISCARD_BYTES as u64);
        if small && !body.is_end_stream() && !self.parts.headers.contains_key(header::EXPECT) {
            discard(body);
        }
    }
}

/// Checks that the caller's token covers the message; otherwise the answer is that of an id under which nothing is
/// pending. A message never changes its queue and an id is never used again, so the result holds for the operation that
/// follows.
async fn within_reach(app: App, caller: Caller, id: MessageId) -> Result<(), Problem> {
    let reaches = |queue: Option<&QueueName>| queue.is_some_and(|queue| caller.reaches(queue));
    match reach::within(&app, &[id], reaches).await?.pop() {
        Some(Ok(true)) => Ok(()),
        Some(Ok(false)) | None => Err(Problem::message_not_found()),
        Some(Err(problem)) => Err(problem),
    }
}

/// The format of a body, by its `Content-Type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFormat {
    /// A JSON object.
    Json,
    /// Lines with a JSON object each.
    Lines,
    /// A format that is neither JSON nor lines of it.
    Other,
}

/// Reads a body within `time`, which does not include waits for memory.
async fn collect(
    mut body: Body,
    (limit, max_body): (usize, usize),
    announced: Option<u64>,
    (share, time): (BodyShare, Duration),
) -> Result<ReadBody, Problem> {
    let mut until = Instant::now() + time;
    let mut turn = 0;
    let mut coming = Coming::new(share, announced.unwrap_or(limit as u64).min(limit as u64));
    loop {
        let Ok(frame) = tokio::time::timeout_at(until, body.frame()).await else {
            return Err(Problem::new(ErrorCode::RequestTimeout, "the request's body did not arrive in time"));
        };
        let Some(frame) = frame else { return Ok(coming.whole().await) };
        let frame = frame
            .map_err(|e| Problem::new(ErrorCode::BadRequest, format!("the body could not be read: {e}")))?;
        let Ok(data) = frame.into_data() else { continue };
        turn += data.len();
        if turn >= TURN_BYTES {
            turn = 0;
            tokio::task::yield_now().await;
        }
        let added = match coming.len() + data.len() > limit {
            true => Err(request_too_large(limit, max_body)),
            false => coming.add(data).await,
        };
        match added {
            Ok(waited) => until += waited,
            Err(problem) => {
                discard(body);
                return Err(problem);
            }
        }
    }
}

/// Reads and discards the body for a while after the refusal: closing a connection with unread bytes would reset it
/// before a client that is still sending has seen the refusal.
fn discard(mut body: Body) {
    let reading = async move {
        let (mut left, mut turn) = (DISCARD_BYTES, 0);
        while let Some(Ok(frame)) = body.frame().await {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            left = left.saturating_sub(bytes);
            if left == 0 {
                break;
            }
            turn += bytes;
            if turn >= TURN_BYTES {
                turn = 0;
                tokio::time::sleep(DISCARD_REST).await;
            }
        }
    };
    tokio::spawn(tokio::time::timeout(DISCARD_TIME, reading));
}

/// The part of a parameter that stands for `NAME` in a form such as `header.NAME`; `None` for other parameters.
fn names_of<'a>(form: &str, name: &'a str) -> Option<&'a str> {
    let before = form.strip_suffix("NAME")?;
    name.strip_prefix(before).filter(|of| !of.is_empty())
}

fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}
