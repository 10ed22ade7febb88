//! Connections between nodes: one for each direction of asking, with many requests in flight.
//!
//! A node keeps a connection to every other node for its requests, and answers on the connections that the others have
//! made to it. [`tls`] and [`handshake`] describe the authentication, [`self::wire`] the
//! frames, and which of them two nodes of different builds exchange.

mod client;
#[cfg(feature = "testing")]
pub(crate) mod fuzzing;
mod handshake;
mod refusals;
mod server;
mod tls;
pub(crate) mod wire;

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use duewheel_core::store::Secrets;
use duewheel_shard::clock::Clock;
use duewheel_shard::random::Jitter;
use handshake::KeyId;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

pub(crate) use client::{NotSent, Peer, PeerOutcome};
pub(crate) use handshake::Keyring;
#[cfg(any(test, feature = "testing"))]
pub(crate) use server::answer;
pub(crate) use server::{Host, listen};
pub use tls::{BadCertificate, CertificatePart, PeerCertificates};
pub(crate) use tls::{Connector, PeerTls};
#[cfg(any(test, feature = "testing"))]
pub use tls::{Duplex, Network, PeerStream};

use self::wire::{FrameLimits, LENGTH, SupportedVersions};

/// The identity of this node, and its settings for connections to others.
#[derive(Clone, Debug)]
pub(crate) struct TransportConfig {
    me: duewheel_core::store::Node,
    link: Connector,
    secrets: Arc<watch::Sender<Keyring>>,
    speaks: SupportedVersions,
    limits: FrameLimits,
    pace: TransportTimings,
    clock: Arc<dyn Clock>,
    jitter: Jitter,
    open: Arc<AtomicUsize>,
    ends: watch::Sender<AcceptsRequests>,
}

/// Whether this node accepts requests of other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AcceptsRequests {
    No,
    Yes,
}

impl TransportConfig {
    pub(crate) fn new(
        me: duewheel_core::store::Node,
        link: Connector,
        secrets: &Secrets,
        speaks: SupportedVersions,
        limits: FrameLimits,
        lease: Duration,
        (clock, jitter): (Arc<dyn Clock>, Jitter),
    ) -> Self {
        TransportConfig {
            me,
            link,
            secrets: Arc::new(watch::Sender::new(Keyring::from(secrets))),
            speaks,
            limits,
            pace: TransportTimings::of(lease),
            clock,
            jitter,
            open: Arc::default(),
            ends: watch::Sender::new(AcceptsRequests::No),
        }
    }

    /// Replaces the secrets by which nodes authenticate each other. A connection that was authenticated by another
    /// secret ends; its requests in flight are answered before, if the answers come within half a lease.
    pub(crate) fn know(&self, secrets: &Secrets) {
        let fresh = Keyring::from(secrets);
        self.secrets.send_if_modified(|known| {
            let changes = *known != fresh;
            *known = fresh;
            changes
        });
    }

    /// Waits until this secret is no longer valid.
    async fn forgotten(&self, id: KeyId) {
        let mut secrets = self.secrets.subscribe();
        // The sender is part of this value.
        let _ = secrets.wait_for(|known| !known.knows(id)).await;
    }

    /// Accepts no further requests of other nodes. Once the received ones are answered, other nodes are notified that
    /// nothing else was applied.
    pub(crate) fn end(&self) {
        self.ends.send_replace(AcceptsRequests::Yes);
    }

    /// The number of requests and connections of other nodes that have not ended.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}

/// Terms that two nodes have agreed on for a connection.
#[derive(Clone, Copy, Debug)]
struct Agreed {
    version: u32,
    /// The limits of frames that are sent to the other node.
    limits: FrameLimits,
    /// The secret that authenticated the connection.
    by: KeyId,
}

/// Counts a request or a connection of another node until its end.
#[derive(Debug)]
struct OpenGuard(Arc<AtomicUsize>);

impl OpenGuard {
    fn new(terms: &TransportConfig) -> Self {
        terms.open.fetch_add(1, Ordering::SeqCst);
        OpenGuard(terms.open.clone())
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The time limits of connections.
#[derive(Clone, Copy, Debug)]
struct TransportTimings {
    /// The limit for connecting, and for the handshake.
    greet: Duration,
    /// The interval between two pings.
    ping: Duration,
    /// The time without a byte from the peer after which it is given up.
    silence: Duration,
    /// The pause before the next attempt to connect, doubled up to the longest.
    pause: Duration,
    longest_pause: Duration,
}

impl TransportTimings {
    /// The limits are such that a hanging peer is noticed within half a lease, before its shards may have another
    /// owner.
    fn of(lease: Duration) -> Self {
        TransportTimings {
            greet: (lease / 4).clamp(Duration::from_millis(200), Duration::from_secs(1)),
            ping: (lease / 8).max(Duration::from_millis(10)),
            silence: (lease / 2).max(Duration::from_millis(100)),
            pause: Duration::from_millis(20),
            longest_pause: (lease / 4).clamp(Duration::from_millis(50), Duration::from_secs(1)),
        }
    }
}

/// When bytes of the other side arrived last.
#[derive(Debug)]
struct LastReceived {
    /// The instant, by [`Clock::running`].
    last: Mutex<Duration>,
    clock: Arc<dyn Clock>,
}

impl LastReceived {
    fn now(clock: &Arc<dyn Clock>) -> Self {
        LastReceived { last: Mutex::new(clock.running()), clock: clock.clone() }
    }

    fn note(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = self.clock.running();
    }

    fn since(&self) -> Duration {
        self.clock.running().saturating_sub(*self.last.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Splits the bytes of a connection into frames.
#[derive(Debug)]
struct FrameReader<R> {
    from: R,
    buffer: BytesMut,
}

/// The number of bytes that are read at a time: a false length allocates no more than this.
const PIECE: usize = 64 * 1024;

impl<R: AsyncRead + Unpin> FrameReader<R> {
    fn new(from: R) -> Self {
        FrameReader { from, buffer: BytesMut::new() }
    }

    /// The next frame, without its length; `None` at a clean end. Cancel safe: what was read is kept.
    async fn next(&mut self, limit: usize, heard: &LastReceived) -> io::Result<Option<Bytes>> {
        loop {
            if let Some(length) = self.buffer.first_chunk::<LENGTH>() {
                let length = u32::from_le_bytes(*length) as usize;
                if length > limit {
                    return Err(io::Error::other("a frame is larger than the limit"));
                }
                if self.buffer.len() >= LENGTH + length {
                    let mut frame = self.buffer.split_to(LENGTH + length).freeze();
                    return Ok(Some(frame.split_off(LENGTH)));
                }
            }
            self.buffer.reserve(PIECE);
            let piece = (&mut self.from).take(PIECE as u64).read_buf(&mut self.buffer).await?;
            if piece == 0 {
                return if self.buffer.is_empty() {
                    Ok(None)
                } else {
                    Err(io::ErrorKind::UnexpectedEof.into())
                };
            }
            heard.note();
        }
    }
}

/// Writes one or several frames. Progress of a large frame counts as a sign of life of the peer; progress of small ones
/// does not, because the system accepts them even if the peer hangs.
async fn write(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8], heard: &LastReceived) -> io::Result<()> {
    for piece in bytes.chunks(PIECE) {
        to.write_all(piece).await?;
        if piece.len() == PIECE {
            heard.note();
        }
    }
    // TLS buffers what the socket did not accept at once.
    to.flush().await
}

#[cfg(test)]
mod tests;
