//! Connections to one origin, and the exchange of a request and its answer over them.
//!
//! A connection is kept for the next request when an answer was read to its end. The receiver may close it in the moment
//! in which that request is sent: what ends before the first byte of an answer is sent once more over a fresh one.

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tower_service::Service;

use crate::connect::JudgingConnector;
use crate::limits::{
    CLOSING, IDLE, MAX_ANSWER, MAX_ANSWER_HEADERS, MAX_IDLE, MAX_PLAIN_HEAD, MAX_PLAIN_HEADERS,
};

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// Connections to an origin. Cheap to clone; clones share them.
#[derive(Clone)]
pub(crate) struct OriginConnections(Arc<ConnectionPool>);

struct ConnectionPool {
    connector: HttpsConnector<JudgingConnector>,
    /// How many are kept at most.
    most: usize,
    kept: Mutex<KeptConnections>,
}

#[derive(Default)]
struct KeptConnections {
    /// Each with the instant at which it is closed.
    idle: Vec<(PushConnection, Instant)>,
    /// Whether a task closes them.
    is_swept: bool,
}

/// An answer whose head was read. The head decides, whatever becomes of the body.
pub(crate) struct PushAnswer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// The beginning of the body.
    pub(crate) body: Vec<u8>,
    /// The failure that ended the body early.
    pub(crate) cut: Option<BoxError>,
}

/// How much of a body was read.
enum BodyRead {
    Whole,
    /// As much as is read of any.
    Enough,
    Cut(BoxError),
}

impl OriginConnections {
    /// No connections yet; `most` are kept.
    pub(crate) fn new(connector: HttpsConnector<JudgingConnector>, most: usize) -> Self {
        OriginConnections(Arc::new(ConnectionPool { connector, most, kept: Mutex::default() }))
    }

    /// Sends a request and reads the answer, until `deadline`. `repeated` is called when the request is sent once more.
    ///
    /// # Cancel safety
    /// When the future is dropped, the receiver may have got the request. The connection is closed.
    pub(crate) async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
        deadline: Instant,
        repeated: impl FnOnce(),
    ) -> Result<PushAnswer, BoxError> {
        let sent = timeout_at(deadline, self.send(request, repeated)).await.map_err(io::Error::from)?;
        let (mut connection, response) = sent?;
        let (head, mut incoming) = response.into_parts();
        if head.headers.contains_key(CONTENT_LENGTH) && head.headers.contains_key(TRANSFER_ENCODING) {
            return Err(TwoLengths.into());
        }
        let is_plain = connection.is_plain();
        let mut body = Vec::new();
        let read = match timeout_at(deadline, beginning(&mut incoming, &mut body)).await {
            Ok(read) => read,
            Err(elapsed) => BodyRead::Cut(io::Error::from(elapsed).into()),
        };
        let cut = match read {
            BodyRead::Cut(error) => Some(error),
            BodyRead::Enough => None,
            BodyRead::Whole => {
                // The receiver may have answered before it got all of the request.
                let ready = timeout_at(deadline, connection.sender.ready()).await;
                if is_plain && matches!(ready, Ok(Ok(()))) {
                    self.keep(connection, kept_for(&head.headers));
                }
                None
            }
        };
        Ok(PushAnswer { status: head.status, headers: head.headers, body, cut })
    }

    async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
        repeated: impl FnOnce(),
    ) -> Result<(PushConnection, Response<Incoming>), BoxError> {
        let uri = to_origin_form(&mut request)?;
        if let Some(mut kept) = self.take() {
            match kept.send(request.clone()).await {
                // It was closed before anything was sent.
                Err(error) if error.is_canceled() => {}
                Err(_) if kept.is_unanswered() => repeated(),
                sent => return Ok((kept, sent?)),
            }
        }
        let mut fresh = self.connect(uri).await?;
        let response = fresh.send(request).await?;
        Ok((fresh, response))
    }

    async fn connect(&self, uri: Uri) -> Result<PushConnection, BoxError> {
        let mut connector = self.0.connector.clone();
        poll_fn(|cx| connector.poll_ready(cx)).await?;
        let received = Arc::default();
        let stream =
            TappedStream { inner: TokioIo::new(connector.call(uri).await?), received: Arc::clone(&received) };
        let (sender, connection) = odd_answers().handshake(TokioIo::new(stream)).await?;
        let mut task = JoinSet::new();
        task.spawn(async { drop(connection.await) });
        Ok(PushConnection { sender, received, task })
    }

    /// The connection that was used last, of those that are kept and open.
    fn take(&self) -> Option<PushConnection> {
        let (mut kept, now) = (self.0.lock(), Instant::now());
        std::iter::from_fn(|| kept.idle.pop())
            .find(|(connection, until)| now < *until && connection.sender.is_ready())
            .map(|(connection, _)| connection)
    }

    fn keep(&self, connection: PushConnection, time: Duration) {
        if time.is_zero() {
            return;
        }
        let mut kept = self.0.lock();
        if kept.idle.len() >= self.0.most {
            kept.idle.remove(0);
        }
        kept.idle.push((connection, Instant::now() + time));
        if !std::mem::replace(&mut kept.is_swept, true) {
            tokio::spawn(sweep(Arc::downgrade(&self.0)));
        }
    }
}

impl ConnectionPool {
    fn lock(&self) -> MutexGuard<'_, KeptConnections> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes what was kept for its time. Returns when to look again; `None`: nothing is kept.
    fn close_idle(&self) -> Option<Instant> {
        let (mut kept, now) = (self.lock(), Instant::now());
        let is_over = |(connection, until): &mut (PushConnection, Instant)| {
            *until <= now || connection.sender.is_closed()
        };
        kept.idle.extract_if(.., is_over).for_each(|(connection, _)| connection.close());
        let next = kept.idle.iter().map(|(_, until)| *until).min();
        kept.is_swept = next.is_some();
        next
    }
}

/// Closes connections that are not used, until none is kept.
async fn sweep(pool: Weak<ConnectionPool>) {
    while let Some(next) = pool.upgrade().and_then(|pool| pool.close_idle()) {
        sleep_until(next).await;
    }
}

/// A connection for one request at a time. Dropping it closes it.
struct PushConnection {
    sender: SendRequest<Full<Bytes>>,
    /// The beginning of what was received since the latest request.
    received: Arc<Mutex<Vec<u8>>>,
    /// Reads and writes, until this is dropped.
    task: JoinSet<()>,
}

impl PushConnection {
    async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        *self.lock() = Vec::new();
        self.sender.send_request(request).await
    }

    /// Takes leave, as TLS has it.
    fn close(mut self) {
        drop(self.sender);
        tokio::spawn(async move { drop(timeout(CLOSING, self.task.join_next()).await) });
    }

    fn is_unanswered(&self) -> bool {
        self.lock().is_empty()
    }

    /// Whether the head of the answer is as it should be. Where it is not, the receiver may see the end of the answer
    /// elsewhere, so that the connection is not used again. Forgets the head.
    fn is_plain(&self) -> bool {
        let received = std::mem::take(&mut *self.lock());
        let mut rest = received.as_slice();
        loop {
            let mut headers = [httparse::EMPTY_HEADER; MAX_PLAIN_HEADERS];
            let mut response = httparse::Response::new(&mut headers);
            match response.parse(rest) {
                Ok(httparse::Status::Complete(length)) if response.code.is_some_and(|code| code < 200) => {
                    rest = &rest[length..];
                }
                Ok(status) => return status.is_complete(),
                Err(_) => return false,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream that keeps the beginning of what is received.
struct TappedStream<S> {
    inner: S,
    received: Arc<Mutex<Vec<u8>>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for TappedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        let mut received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MAX_PLAIN_HEAD - received.len();
        received.extend(buf.filled()[before..].iter().take(room));
        drop(received);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TappedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// The answer has a length and a transfer coding, so that its end is not certain.
#[derive(Debug, thiserror::Error)]
#[error("the answer has both content-length and transfer-encoding")]
pub(crate) struct TwoLengths;

/// A connection that accepts the heads that curl, node and Python accept: folded lines, a space before the colon, lines
/// without one, many headers.
fn odd_answers() -> Builder {
    let mut builder = Builder::new();
    builder
        .ignore_invalid_headers_in_responses(true)
        .allow_spaces_after_header_name_in_responses(true)
        .allow_obsolete_multiline_headers_in_responses(true)
        .max_headers(MAX_ANSWER_HEADERS);
    builder
}

/// Moves scheme and host of the URI to the `host` header, as a server that is no proxy expects it. Returns the URI.
fn to_origin_form(request: &mut Request<Full<Bytes>>) -> Result<Uri, BoxError> {
    let uri = request.uri().clone();
    if let Some(authority) = uri.authority() {
        request.headers_mut().insert(HOST, HeaderValue::from_str(authority.as_str())?);
    }
    *request.uri_mut() = uri.path_and_query().map_or("/", |text| text.as_str()).parse()?;
    Ok(uri)
}

/// How long a connection is kept after this answer. The receiver's own time is cut by a quarter, so that the receiver is
/// not the first to close it.
fn kept_for(headers: &HeaderMap) -> Duration {
    let text = headers.get("keep-alive").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let timeout = text.split(',').find_map(|part| {
        let (name, value) = part.split_once('=')?;
        name.trim().eq_ignore_ascii_case("timeout").then(|| value.trim().parse::<u32>().ok())?
    });
    timeout.map_or(IDLE, |seconds| (Duration::from_secs(seconds.into()) * 3 / 4).min(MAX_IDLE))
}

/// Reads at most [`MAX_ANSWER`] bytes.
async fn beginning(body: &mut Incoming, read: &mut Vec<u8>) -> BodyRead {
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => return BodyRead::Cut(error.into()),
        };
        if let Some(data) = frame.data_ref() {
            let room = MAX_ANSWER - read.len();
            read.extend_from_slice(&data[..data.len().min(room)]);
            if read.len() == MAX_ANSWER {
                return BodyRead::Enough;
            }
        }
    }
    BodyRead::Whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_alive_says_how_long_it_is_kept() {
        for (text, ms) in [
            ("timeout=5", 3_750),
            ("max=100, Timeout = 1", 750),
            ("timeout=0", 0),
            ("timeout=100000", 60_000),
            ("timeout=-1", 4_000),
            ("timeout", 4_000),
            ("", 4_000),
        ] {
            let headers = [("keep-alive".parse().unwrap(), text.parse().unwrap())].into_iter().collect();
            assert_eq!(kept_for(&headers).as_millis(), ms, "{text}");
        }
        assert_eq!(kept_for(&HeaderMap::new()), IDLE);
    }
}
