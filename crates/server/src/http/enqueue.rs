//! `POST /v1/queues/{queue}/messages`: enqueues one message, or one for each line.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use duewheel::core::engine::{Answered, Enqueue, Enqueued, Op};
use duewheel::core::{Key, QueueName};
use duewheel::{CallError, Client, Outcome};
use duewheel_shard::inbox::Pending;
use duewheel_shard::inbox::{Answers, WhenBusy};
use hyper::body::Frame;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::Instant;

use super::call::{BodyFormat, Call};
use super::line::{EnqueueLine, EnqueuedAnswer, IDEMPOTENCY_KEY, TimeField, status};
use super::reading::ReadBody;
use super::traced::Sending;
use super::{Answer, App, check_batch, reply, strict, target};
use crate::auth::Caller;
use crate::error::{ErrorCode, ItemProblem, Problem};
use crate::json;

pub(crate) async fn enqueue(mut call: Call) -> Answer {
    call.app.accepts()?;
    let queue = call.queue()?;
    let idempotency_key = idempotency_key(call.headers(), call.app.policy.max_dedupe_id)?;
    if call.content() == BodyFormat::Lines {
        if idempotency_key.is_some() {
            let why = "is for a single message; a message on a line has dedupe_id";
            return Err(Problem::field(IDEMPOTENCY_KEY, why));
        }
        return enqueue_lines(call, queue).await;
    }
    let mut sending = Sending::begin(&call, &queue);
    let done = enqueue_one(&mut call, &queue, idempotency_key, &mut sending).await;
    match &done {
        Ok((done, _)) => sending.accepted(done.id),
        Err(problem) => sending.refused(problem),
    }
    let (done, key) = done?;
    Ok(accepted(&done, &queue, key.as_ref()))
}

/// The answer about a single message.
pub(super) fn accepted(done: &Enqueued, queue: &QueueName, key: Option<&Key>) -> Response {
    let mut response = reply(status(done), &EnqueuedAnswer::of(done, queue, key));
    if done.answered == Answered::Before {
        response.headers_mut().insert("idempotent-replayed", HeaderValue::from_static("true"));
    }
    response
}

/// Enqueues a single message; also gives its key.
async fn enqueue_one(
    call: &mut Call,
    queue: &QueueName,
    idempotency_key: Option<Box<str>>,
    sending: &mut Sending,
) -> Result<(Enqueued, Option<Key>), Problem> {
    let bytes = call.json_bytes(call.app.max_single_bytes()).await?;
    let (mut message, time) =
        strict::parse::<EnqueueLine<'_>>(&bytes)?.into_enqueue(queue, idempotency_key)?;
    drop(bytes);
    sending.mark(&mut message);
    if target::has_url(&message) {
        target::check_url(&call.app, &call.caller, queue).await?;
    }
    let key = message.key.clone();
    let done = call.app.ask(message).await?.map_err(|refusal| Problem::from_enqueue(refusal, time))?;
    Ok((done, key))
}

/// The value of the header `Idempotency-Key`, as it is: quotes are a part of it.
pub(super) fn idempotency_key(headers: &HeaderMap, max: usize) -> Result<Option<Box<str>>, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let no = |what: &str| Err(Problem::field(IDEMPOTENCY_KEY, what));
    if values.next().is_some() {
        return no("is there twice");
    }
    match std::str::from_utf8(value.as_bytes()) {
        Err(_) => no("is not UTF-8"),
        Ok("") => no("must not be empty"),
        Ok(text) if text.len() > max => no(&format!("must have at most {max} bytes")),
        Ok(text) => Ok(Some(text.into())),
    }
}

/// The number of lines that are submitted together and answered together.
const SLICE: usize = 1_000;
/// The interval at which waiting lines are submitted again.
const LOOK: Duration = Duration::from_millis(5);
/// Typical size of one result, in bytes.
const RESULT_BYTES: usize = 192;

async fn enqueue_lines(mut call: Call, queue: QueueName) -> Answer {
    let body = call.bytes(call.app.policy.max_batch_bytes).await?;
    let mut sending = Sending::begin(&call, &queue);
    let submitted = submit(&call.app, &call.caller, body, &queue, &mut sending).await;
    let mut slices = match submitted {
        Ok(slices) => slices,
        Err(problem) => {
            sending.refused(&problem);
            return Err(problem);
        }
    };
    let lines = slices.iter().map(|slice| slice.outcomes.len()).sum();
    let body = match (slices.pop_front(), slices.is_empty()) {
        (None, _) => {
            sending.taken(lines);
            Body::empty()
        }
        (Some(slice), true) => {
            let results = slice.finish(&queue, &call.caller).await;
            sending.taken(lines);
            Body::from(results)
        }
        (Some(first), false) => {
            slices.push_front(first);
            Body::new(Results { slices, queue, caller: call.caller.clone(), sending: Some((sending, lines)) })
        }
    };
    let mut response: Response = (StatusCode::OK, body).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    Ok(response)
}

/// Submits all lines to the engine. The body is dropped when the engine has them, however long their answers take.
async fn submit(
    app: &App,
    caller: &Caller,
    body: ReadBody,
    queue: &QueueName,
    sending: &mut Sending,
) -> Result<VecDeque<Slice>, Problem> {
    let until = Instant::now() + body.time_limit();
    let lines = lines(&body);
    check_batch(lines.len(), &app.policy)?;
    // Whether lines may have URLs, once one has.
    let mut urls = None;
    let mut slices: VecDeque<Slice> = VecDeque::with_capacity(lines.len().div_ceil(SLICE));
    for (n, chunk) in lines.chunks(SLICE).enumerate() {
        if n > 0 {
            // Parsing takes time, so other requests are served in between.
            tokio::task::yield_now().await;
        }
        if app.client.is_routed()
            && let Some(before) = slices.back_mut()
        {
            before.settle().await;
        }
        let mut slice = Slice::parse(chunk, queue);
        slice.mark(sending);
        if slice.has_urls() {
            if urls.is_none() {
                urls = Some(target::check_url(app, caller, queue).await);
            }
            if let Some(Err(problem)) = &urls {
                slice.refuse_urls(problem);
            }
        }
        match slice.submit(app, until).await {
            Ok(()) => {}
            // Nothing has been applied yet: the request as a whole is refused, and may be repeated as a whole.
            Err(problem) if n == 0 => return Err(problem),
            Err(problem) => slice.refuse(&problem),
        }
        slices.push_back(slice);
    }
    Ok(slices)
}

/// The lines of a body. The last one may or may not end with a newline, and empty ones behind it count for nothing.
fn lines(bytes: &[u8]) -> Vec<&[u8]> {
    let end = bytes.iter().rposition(|b| !matches!(b, b'\n' | b'\r')).map_or(0, |last| last + 1);
    let bytes = &bytes[..end];
    if bytes.is_empty() {
        return Vec::new();
    }
    bytes.split(|b| *b == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line)).collect()
}

/// The lines of a body, each as it would be submitted or refused.
#[cfg(feature = "fuzzing")]
pub(super) fn parse(bytes: &[u8], queue: &QueueName) -> Vec<Result<Op, Problem>> {
    let slice = Slice::parse(&lines(bytes), queue);
    let mut ops = slice.ops.into_iter();
    let outcome = |outcome| match outcome {
        Outcomes::Submitted { .. } => Ok(ops.next().expect("an operation for each good line")),
        Outcomes::Refused(problem) => Err(*problem),
    };
    slice.outcomes.into_iter().map(outcome).collect()
}

/// A slice of lines in progress.
#[derive(Debug)]
struct Slice {
    /// The outcomes of the lines, in their order.
    outcomes: Vec<Outcomes>,
    /// The operations of the valid lines, until they are submitted.
    ops: Vec<Op>,
    replies: LineAnswers,
}

/// The answers to the valid lines.
#[derive(Debug)]
enum LineAnswers {
    /// No answers are expected.
    Nothing,
    Later(Pending),
    Already(Answers),
}

impl LineAnswers {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Answers> {
        match self {
            LineAnswers::Nothing => Poll::Ready(Vec::new()),
            LineAnswers::Later(pending) => Pin::new(pending).poll(cx),
            LineAnswers::Already(answers) => Poll::Ready(std::mem::take(answers)),
        }
    }
}

/// The outcome of a line, or what is known before its answer arrives.
#[derive(Debug)]
enum Outcomes {
    /// The line was submitted.
    Submitted { key: Option<Key>, time: TimeField },
    /// The line was not valid, or was not accepted.
    Refused(Box<Problem>),
}

impl Slice {
    fn parse(lines: &[&[u8]], queue: &QueueName) -> Slice {
        let mut slice = Slice {
            outcomes: Vec::with_capacity(lines.len()),
            ops: Vec::with_capacity(lines.len()),
            replies: LineAnswers::Nothing,
        };
        for line in lines {
            match strict::parse::<EnqueueLine<'_>>(line).and_then(|line| line.into_enqueue(queue, None)) {
                Ok((message, time)) => {
                    slice.outcomes.push(Outcomes::Submitted { key: message.key.clone(), time });
                    slice.ops.push(Op::Enqueue(Box::new(message)));
                }
                Err(problem) => slice.outcomes.push(Outcomes::Refused(Box::new(problem))),
            }
        }
        slice
    }

    /// Gives the valid lines the context of the request.
    fn mark(&mut self, sending: &mut Sending) {
        for op in &mut self.ops {
            if let Op::Enqueue(message) = op {
                sending.mark(message);
            }
        }
    }

    /// Whether a valid line has a URL.
    fn has_urls(&self) -> bool {
        self.ops.iter().any(has_url)
    }

    /// Refuses the valid lines with a URL.
    fn refuse_urls(&mut self, problem: &Problem) {
        let mut ops = std::mem::take(&mut self.ops).into_iter();
        for outcome in &mut self.outcomes {
            if let Outcomes::Refused(_) = outcome {
                continue;
            }
            match ops.next() {
                Some(op) if has_url(&op) => *outcome = Outcomes::Refused(Box::new(problem.clone())),
                op => self.ops.extend(op),
            }
        }
    }

    /// Submits the valid lines to the engine. While the engine or the store is behind, they wait, which slows the
    /// sender to the speed of the disk. `until` is the deadline for all slices of a request.
    async fn submit(&mut self, app: &App, until: Instant) -> Result<(), Problem> {
        let mut ops = std::mem::take(&mut self.ops);
        while !ops.is_empty() {
            match app.client.offer(ops, WhenBusy::Wait) {
                Ok(pending) => {
                    self.replies = LineAnswers::Later(pending);
                    break;
                }
                Err((CallError::Overloaded, back)) if Instant::now() < until => ops = back,
                Err((error, _)) => return Err(error.into()),
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Waits for the answers, and keeps them.
    async fn settle(&mut self) {
        self.replies = LineAnswers::Already(poll_fn(|cx| self.replies.poll(cx)).await);
    }

    /// Refuses the valid lines, because they were not accepted.
    fn refuse(&mut self, problem: &Problem) {
        for outcome in &mut self.outcomes {
            if let Outcomes::Submitted { .. } = outcome {
                *outcome = Outcomes::Refused(Box::new(problem.clone()));
            }
        }
    }

    async fn finish(mut self, queue: &QueueName, caller: &Caller) -> Bytes {
        let answers = poll_fn(|cx| self.replies.poll(cx)).await;
        self.write(answers, queue, caller)
    }

    fn write(self, answers: Answers, queue: &QueueName, caller: &Caller) -> Bytes {
        let mut answers = answers.into_iter();
        let mut out = Vec::with_capacity(self.outcomes.len() * RESULT_BYTES);
        let refused = |out: &mut Vec<u8>, problem: &Problem| {
            json::write(out, &LineAnswer::Refused(ItemProblem::of(problem)));
        };
        for outcome in self.outcomes {
            match outcome {
                Outcomes::Refused(problem) => refused(&mut out, &problem),
                Outcomes::Submitted { key, time } => match Client::answer_to::<Enqueue>(answers.next()) {
                    Ok(Ok(done)) => {
                        let message = EnqueuedAnswer::of(&done, queue, key.as_ref());
                        let status = status(&done).as_u16();
                        json::write(&mut out, &LineAnswer::Accepted(AcceptedLine { message, status }));
                    }
                    Ok(Err(refusal)) => {
                        refused(&mut out, &caller.readable(Problem::from_enqueue(refusal, time)));
                    }
                    Err(error) => refused(&mut out, &failed(error)),
                },
            }
            out.push(b'\n');
        }
        out.into()
    }
}

fn has_url(op: &Op) -> bool {
    matches!(op, Op::Enqueue(message) if target::has_url(message))
}

/// The result of one line: a message that was accepted, with its status, or a problem without an id.
#[derive(Debug, JsonSchema, Serialize)]
#[serde(untagged)]
#[schemars(rename = "LineResult")]
pub(crate) enum LineAnswer<'a> {
    /// The message was accepted.
    Accepted(AcceptedLine<'a>),
    /// The message was refused.
    Refused(ItemProblem<'a>),
}

/// A message that was accepted, and the status of the same call with this message alone.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct AcceptedLine<'a> {
    #[serde(flatten)]
    pub(super) message: EnqueuedAnswer<'a>,
    pub(super) status: u16,
}

/// The problem of a line without an answer: it may be unknown whether it was applied.
fn failed(error: CallError) -> Problem {
    let unknown = error.outcome() == Outcome::Unknown;
    let mut problem = Problem::from(error);
    if unknown {
        problem.code = ErrorCode::Unknown;
    }
    problem
}

/// Sends the results of each slice when it is durable.
#[derive(Debug)]
struct Results {
    slices: VecDeque<Slice>,
    queue: QueueName,
    caller: Caller,
    /// The trace, and the number of lines, until the last result is there.
    sending: Option<(Sending, usize)>,
}

impl HttpBody for Results {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(slice) = self.slices.front_mut() else { return Poll::Ready(None) };
        let answers = ready!(slice.replies.poll(cx));
        let Some(slice) = self.slices.pop_front() else { return Poll::Ready(None) };
        let bytes = slice.write(answers, &self.queue, &self.caller);
        if self.slices.is_empty()
            && let Some((sending, lines)) = self.sending.take()
        {
            sending.taken(lines);
        }
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.slices.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::HttpLimits;
    use super::*;
    use crate::drain::Drain;
    use duewheel::Policy;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_body_is_cut_into_lines() {
        let cut = |s: &'static str| {
            lines(s.as_bytes()).into_iter().map(|l| std::str::from_utf8(l).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(cut(""), Vec::<&str>::new());
        assert_eq!(cut("\n"), Vec::<&str>::new());
        assert_eq!(cut("a"), ["a"]);
        assert_eq!(cut("a\nb\n"), ["a", "b"]);
        assert_eq!(cut("a\r\n\r\nb"), ["a", "", "b"]);
        // Story: an empty line at the end got the result of a bad line, which nobody had sent.
        assert_eq!(cut("a\n\n"), ["a"]);
        assert_eq!(cut("a\r\n\r\n\n"), ["a"]);
        assert_eq!(cut("\na\n"), ["", "a"], "an empty line before another is a line");
    }

    /// Bytes that record when they are dropped.
    struct Watched(Arc<AtomicBool>);

    impl AsRef<[u8]> for Watched {
        fn as_ref(&self) -> &[u8] {
            b"{\"body\": \"a\", \"delay_ms\": 0}\n{}"
        }
    }

    impl Drop for Watched {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Story: the bytes of a batch stayed until the last of its lines was durable, while their share of the memory for
    /// bodies had been released before: many senders together held more than is allowed.
    #[tokio::test]
    async fn batch_body_is_freed_before_answers() {
        let wheel = duewheel::Duewheel::builder().in_memory().open().await.unwrap();
        let limits = HttpLimits { max_reading_bytes: 1_000, ..HttpLimits::default() };
        let app = App::new(wheel, Policy::default(), limits, Drain::default());
        let is_gone = Arc::new(AtomicBool::new(false));
        let bytes = Bytes::from_owner(Watched(Arc::clone(&is_gone)));
        let mut share = app.reading.share();
        share.grow(500).await.unwrap();
        assert_eq!(app.reading.free(), 0);
        let queue = QueueName::new("q").unwrap();
        let slices =
            submit(&app, &Caller::Trusted, ReadBody::new(bytes, share), &queue, &mut Sending::none())
                .await
                .unwrap();
        assert!(
            slices.iter().any(|slice| matches!(slice.replies, LineAnswers::Later(_))),
            "no answer was taken"
        );
        assert!(is_gone.load(Ordering::Relaxed));
        assert_eq!(app.reading.free(), 500);
    }

    #[test]
    fn ndjson_results_follow_line_order() {
        let queue = QueueName::new("q").unwrap();
        let text: Vec<&[u8]> = vec![
            br#"{"body": "a", "delay_ms": 0, "key": "k"}"#,
            br#"{"body": "a", "delay": "soon"}"#,
            b"",
            br#"{"body": "a", "delay": "1s"}"#,
            br#"{"body": "a", "delay": "200000d"}"#,
        ];
        let slice = Slice::parse(&text, &queue);
        assert_eq!(slice.ops.len(), 3);
        let done = duewheel::core::engine::Enqueued {
            id: duewheel::core::MessageId(7),
            due_at: duewheel::core::WallMs(0),
            generation: 1,
            created: duewheel::core::record::Created::New,
            kept: None,
            answered: duewheel::core::engine::Answered::Now,
            level: duewheel::core::store::Level::Buffered,
        };
        let answers = vec![
            Ok(duewheel::core::engine::Reply::Enqueue(Ok(done))),
            Err(CallError::Lost("gone")),
            Ok(duewheel::core::engine::Reply::Enqueue(Err(duewheel::core::engine::EnqueueRefusal::TooFar(
                5,
            )))),
        ];
        let out = slice.write(answers, &queue, &Caller::Trusted);
        let results: Vec<serde_json::Value> =
            lines(&out).into_iter().map(|l| serde_json::from_slice(l).unwrap()).collect();
        assert_eq!(
            results[0],
            serde_json::json!({
                "id": "7", "queue": "q", "key": "k", "due_at": "1970-01-01T00:00:00.000Z", "generation": 1,
                "created": true, "durability": "buffered", "status": 201,
            })
        );
        assert_eq!(results[1]["field"], "delay");
        assert_eq!(results[2]["code"], "bad_request");
        assert_eq!((&results[3]["status"], &results[3]["code"]), (&503.into(), &"unknown".into()));
        assert_eq!((&results[4]["code"], &results[4]["field"]), (&"bad_request".into(), &"delay".into()));
        assert!(results[1..].iter().all(|r| r.get("id").is_none()));
    }
}
