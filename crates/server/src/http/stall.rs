//! A socket that disconnects clients that stop reading, so that they cannot hold answers forever.
//!
//! The connection is also closed so that the last answer arrives: a socket that is closed with unread bytes resets the
//! connection, and the client loses what it has not read yet. So bytes that have arrived are read and discarded first,
//! within limits.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// The largest number of bytes that are read and discarded at the end of a connection, and the time limit.
const UNREAD_BYTES: usize = 1024 * 1024;
const UNREAD_TIME: Duration = Duration::from_millis(500);

/// A socket that fails when nothing can be written for this long.
#[derive(Debug)]
pub(super) struct Stall<S> {
    socket: S,
    time_limit: Duration,
    /// The timer, while a write waits.
    waits: Option<Pin<Box<Sleep>>>,
    end: ClosePhase,
}

/// The phase of the end of a connection.
#[derive(Debug)]
enum ClosePhase {
    Open,
    /// Nothing more is written. Unread bytes are discarded until this time.
    Written,
    Reading {
        until: Pin<Box<Sleep>>,
        left: usize,
    },
}

impl<S> Stall<S> {
    pub(super) fn new(socket: S, time_limit: Duration) -> Self {
        Stall { socket, time_limit, waits: None, end: ClosePhase::Open }
    }

    fn watch<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waits = None;
            return written;
        }
        let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(self.time_limit)));
        ready!(waits.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answer")))
    }
}

impl<S: AsyncRead + Unpin> Stall<S> {
    /// Discards bytes as long as there are any. Ready when there are none, or enough were read.
    fn forget(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut unread = [0; 4_096];
        loop {
            let mut read = ReadBuf::new(&mut unread);
            let polled = Pin::new(&mut self.socket).poll_read(cx, &mut read);
            let n = read.filled().len();
            match (&mut self.end, polled) {
                (_, Poll::Ready(Err(_))) | (ClosePhase::Open, _) => return Poll::Ready(()),
                (_, Poll::Ready(Ok(()))) if n == 0 => return Poll::Ready(()),
                (ClosePhase::Written, Poll::Ready(Ok(()))) => {
                    self.end =
                        ClosePhase::Reading { until: Box::pin(sleep(UNREAD_TIME)), left: UNREAD_BYTES };
                }
                (ClosePhase::Written, Poll::Pending) => return Poll::Ready(()),
                (ClosePhase::Reading { left, .. }, Poll::Ready(Ok(()))) => match left.checked_sub(n) {
                    Some(less) => *left = less,
                    None => return Poll::Ready(()),
                },
                (ClosePhase::Reading { until, .. }, Poll::Pending) => return until.as_mut().poll(cx),
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stall<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stall<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        self.watch(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if matches!(self.end, ClosePhase::Open) {
            let ended = Pin::new(&mut self.socket).poll_shutdown(cx);
            ready!(self.watch(cx, ended))?;
            self.end = ClosePhase::Written;
        }
        self.forget(cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Story: on a busy machine the client that reads slowly was too slow; time is simulated since.
    #[tokio::test(start_paused = true)]
    async fn stalled_reader_is_disconnected() {
        let (ours, mut theirs) = tokio::io::duplex(4);
        let mut ours = Stall::new(ours, Duration::from_millis(100));
        let reader = tokio::spawn(async move {
            let mut read = [0; 2];
            for _ in 0..6 {
                tokio::time::sleep(Duration::from_millis(25)).await;
                theirs.read_exact(&mut read).await.unwrap();
            }
            // Then no more.
            tokio::time::sleep(Duration::from_secs(60)).await;
            drop(theirs);
        });
        ours.write_all(&[0; 16]).await.unwrap();
        let why = ours.write_all(&[0; 16]).await.unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::TimedOut);
        reader.abort();
    }

    #[tokio::test]
    async fn shutdown_drains_unread_bytes_with_bound() {
        // Nothing is unread, so the end is at once. (An end that waited would wait for the other side, which never
        // ends.)
        let (ours, theirs) = tokio::io::duplex(64);
        Stall::new(ours, Duration::from_secs(60)).shutdown().await.unwrap();
        drop(theirs);
        // Unread bytes are discarded, and so are those that follow, until the other side ends.
        let (ours, mut theirs) = tokio::io::duplex(64);
        theirs.write_all(&[1; 64]).await.unwrap();
        let ending = tokio::spawn(async move {
            let mut ours = Stall::new(ours, Duration::from_secs(60));
            ours.shutdown().await.unwrap();
            ours
        });
        theirs.write_all(&[2; 640]).await.unwrap();
        theirs.shutdown().await.unwrap();
        let mut ours = ending.await.unwrap();
        let mut rest = Vec::new();
        assert_eq!(ours.read_to_end(&mut rest).await.unwrap(), 0);
        // A client that never ends.
        let (ours, mut theirs) = tokio::io::duplex(64);
        let endless = tokio::spawn(async move { while theirs.write_all(&[3; 64]).await.is_ok() {} });
        tokio::task::yield_now().await;
        Stall::new(ours, Duration::from_secs(60)).shutdown().await.unwrap();
        endless.await.unwrap();
    }
}
