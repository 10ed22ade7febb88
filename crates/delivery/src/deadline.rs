//! Connections that end by themselves. A delivery has a deadline, but the client goes on in the background with what a
//! delivery has left: it completes a connection that another request did not wait for, and it sends the rest of a body
//! before it closes. Each of these has the time-out of the target as well.

use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::time::Sleep;
use tower_service::Service;

type BoxError = Box<dyn Error + Send + Sync>;

/// A connector whose connections take at most a given time to come about, TLS included, and then to take what is
/// written.
#[derive(Clone)]
pub(crate) struct DeadlineConnector<C> {
    inner: C,
    limit: Duration,
}

impl<C> DeadlineConnector<C> {
    pub(crate) fn new(inner: C, limit: Duration) -> Self {
        DeadlineConnector { inner, limit }
    }
}

impl<C> Service<Uri> for DeadlineConnector<C>
where
    C: Service<Uri, Error = BoxError>,
    C::Future: Send + 'static,
{
    type Response = DeadlineStream<C::Response>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, limit) = (self.inner.call(uri), self.limit);
        Box::pin(async move {
            let inner = tokio::time::timeout(limit, connecting).await.map_err(io::Error::from)??;
            Ok(DeadlineStream::new(inner, limit))
        })
    }
}

/// A stream whose writer fails when the other side has not taken all that was written for a given time. A few bytes now
/// and then do not extend it.
pub(crate) struct DeadlineStream<S> {
    inner: S,
    limit: Duration,
    /// Runs from the first write that had to wait until everything is flushed.
    late: Option<Pin<Box<Sleep>>>,
    closing: bool,
}

impl<S> DeadlineStream<S> {
    fn new(inner: S, limit: Duration) -> Self {
        DeadlineStream { inner, limit, late: None, closing: false }
    }

    fn in_time<T>(&mut self, polled: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            return polled;
        }
        let late = self.late.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.limit)));
        late.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: Read + Unpin> Read for DeadlineStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: Write + Unpin> Write for DeadlineStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.in_time(polled, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.in_time(polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_flush(cx);
        if polled.is_ready() && !self.closing {
            self.late = None;
        }
        self.in_time(polled, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.closing = true;
        let polled = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.in_time(polled, cx)
    }
}

impl<S: Connection> Connection for DeadlineStream<S> {
    fn connected(&self) -> Connected {
        self.inner.connected()
    }
}

#[cfg(test)]
mod tests {
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// A stream that holds ten bytes, and its other side.
    fn narrow() -> (TokioIo<DeadlineStream<TokioIo<DuplexStream>>>, DuplexStream) {
        let (ours, theirs) = duplex(10);
        (TokioIo::new(DeadlineStream::new(TokioIo::new(ours), LIMIT)), theirs)
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_that_are_taken_one_by_one_do_not_extend_it() {
        let (mut stream, mut reader) = narrow();
        let reading = tokio::spawn(async move {
            loop {
                tokio::time::sleep(LIMIT / 3).await;
                drop(reader.read_u8().await);
            }
        });
        let started = tokio::time::Instant::now();
        let error = stream.write_all(&[0; 100]).await.unwrap_err();
        assert_eq!((error.kind(), started.elapsed().as_secs()), (io::ErrorKind::TimedOut, LIMIT.as_secs()));
        reading.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_flushed_begins_anew() {
        let (mut stream, mut reader) = narrow();
        for _ in 0..3 {
            let reading = async {
                tokio::time::sleep(LIMIT * 2 / 3).await;
                reader.read_exact(&mut [0; 20]).await.unwrap();
            };
            let writing = async {
                stream.write_all(&[0; 20]).await.unwrap();
                stream.flush().await.unwrap();
            };
            tokio::join!(reading, writing);
        }
    }
}
