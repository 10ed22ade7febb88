//! The sockets: accepts connections, reads the input of sessions, writes their replies.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use std::{fmt, io};

use bytes::BytesMut;
use duewheel::CallError;
use duewheel::core::engine::{Hold, Op, WaiterId};
use duewheel_shard::inbox::{Answers, Pending, WhenBusy};
use duewheel_shard::testing;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::server::TlsStream;

use super::codec::{Decoder, MAX_LINE};
use super::session::{Session, SessionNext, default_queue};
use super::socket::{self, SocketMode, identity};
use super::{BeanstalkApp, BeanstalkState};
use crate::claim::Claim;
use crate::drain::Stop;
use crate::http::report_act;
use crate::tls::Tls;

/// Bytes of input held while the session is busy, besides the body that is being read.
const READ_BUFFER: usize = 16 * 1024;
/// Bytes for the first read of a connection: many connections never send much.
const FIRST_READ: usize = 2 * 1024;
/// Largest size of bodies that wait in a session, in bytes.
const MAX_HEARD: usize = 1024 * 1024;
/// Replies are sent when they have this size, and when the session has nothing more to do.
const WRITE_BUFFER: usize = 16 * 1024;
/// How long the input of a client of another protocol is read behind its answer.
const LINGER: Duration = Duration::from_secs(1);
/// Time between two attempts to tell the engine that a connection has closed.
const TELL_AGAIN: Duration = Duration::from_millis(200);

/// The address of the listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// TCP.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Tcp(address) => write!(f, "beanstalk://{address}"),
            ListenAddress::Unix(path) => write!(f, "beanstalk+unix:{}", path.display()),
        }
    }
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    /// A socket file, which is removed at the end if it is still the one that was made.
    Unix(UnixListener, PathBuf, (u64, u64)),
}

/// A bound listener that does not accept yet.
#[derive(Debug)]
pub struct BeanstalkListener {
    socket: Socket,
    app: BeanstalkApp,
    /// TLS, and the time limit of a handshake.
    tls: Option<(Arc<Tls>, Duration)>,
    stop: watch::Receiver<bool>,
    stopper: Stop,
}

impl BeanstalkListener {
    /// Binds the address. An unused socket file is replaced; a new one has the permissions `mode`.
    ///
    /// # Cancel safety
    /// Cancel safe; a socket file may be left behind.
    ///
    /// # Errors
    /// [`io::Error`] when the address cannot be bound.
    pub async fn bind(
        address: &ListenAddress,
        mode: SocketMode,
        app: BeanstalkApp,
    ) -> io::Result<BeanstalkListener> {
        let socket = match address {
            ListenAddress::Tcp(address) => Socket::Tcp(TcpListener::bind(address).await?),
            ListenAddress::Unix(path) => {
                let socket = socket::listen(path, mode).await?;
                Socket::Unix(socket, path.clone(), identity(path)?)
            }
        };
        Ok(BeanstalkListener::over(socket, app))
    }

    /// Listens at a TCP address that is bound already.
    ///
    /// # Errors
    /// [`io::Error`] when another process has begun to listen there since.
    pub(crate) fn on(claim: Claim, app: BeanstalkApp) -> io::Result<BeanstalkListener> {
        Ok(BeanstalkListener::over(Socket::Tcp(claim.listen()?), app))
    }

    fn over(socket: Socket, app: BeanstalkApp) -> BeanstalkListener {
        let (stopper, stop) = Stop::new();
        BeanstalkListener { socket, app, tls: None, stop, stopper }
    }

    /// Accepts TLS alone, with a time limit for the handshake.
    #[must_use]
    pub fn with_tls(self, tls: Option<(Arc<Tls>, Duration)>) -> BeanstalkListener {
        BeanstalkListener { tls, ..self }
    }

    /// The address of the listener; the real port if port 0 was configured.
    ///
    /// # Errors
    /// [`io::Error`] when the system does not return it.
    pub fn address(&self) -> io::Result<ListenAddress> {
        Ok(match &self.socket {
            Socket::Tcp(socket) => ListenAddress::Tcp(socket.local_addr()?),
            Socket::Unix(_, path, _) => ListenAddress::Unix(path.clone()),
        })
    }

    /// The handle that stops it.
    pub fn stopper(&self) -> Stop {
        self.stopper.clone()
    }

    /// Serves until stopped, and then until the open connections have ended, but not longer than `linger`.
    ///
    /// # Cancel safety
    /// When it is dropped, no new connections are accepted; open ones continue.
    pub async fn run(self, linger: Duration) {
        if self.app.0.reaches(&default_queue()) {
            // The queue `default` always exists, with its totals.
            let keep = Op::Hold { queue: default_queue(), how: Hold::Keep };
            drop(self.app.0.client.submit(vec![keep]));
        }
        let places = self.app.0.max_connections.min(Semaphore::MAX_PERMITS);
        let free = Arc::new(Semaphore::new(places));
        loop {
            let accepted = tokio::select! {
                accepted = self.accept() => accepted,
                _ = async { let _ = self.stop.clone().wait_for(|stop| *stop).await; } => break,
            };
            let stream = match accepted {
                Ok(stream) => stream,
                Err(error) => {
                    // Most likely there are no file descriptors left. Serving the open connections frees some.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            testing::place("beanstalk accept");
            // The protocol has no reply for "too many connections", so the connection is closed.
            let Ok(place) = Arc::clone(&free).try_acquire_owned() else { continue };
            let (app, tls, stop) = (self.app.clone(), self.tls.clone(), self.stop.clone());
            tokio::spawn(async move {
                let _place = place;
                let peer = stream.peer();
                match (stream, tls) {
                    (Stream::Tcp(stream), None) => serve(stream, peer, app, stop).await,
                    (Stream::Tcp(stream), Some((tls, patience))) => {
                        if let Some(stream) = shake_hands(stream, &tls, patience, stop.clone()).await {
                            serve(stream, peer, app, stop).await;
                        }
                    }
                    (Stream::Unix(stream), _) => serve(stream, peer, app, stop).await,
                }
            });
        }
        if let Socket::Unix(_, path, own) = &self.socket
            && identity(path).ok() == Some(*own)
        {
            let _ = std::fs::remove_file(path);
        }
        drop(self.socket);
        let all = u32::try_from(places).unwrap_or(u32::MAX);
        if tokio::time::timeout(linger, free.acquire_many(all)).await.is_err() {
            tracing::warn!("some connections did not end in time");
        }
    }

    async fn accept(&self) -> io::Result<Stream> {
        match &self.socket {
            Socket::Tcp(socket) => {
                let (stream, _) = socket.accept().await?;
                // Replies are written whole; waiting for more to send would only delay them.
                let _ = stream.set_nodelay(true);
                // Detects a client that has disappeared without closing, within hours.
                let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
                Ok(Stream::Tcp(stream))
            }
            Socket::Unix(socket, ..) => Ok(Stream::Unix(socket.accept().await?.0)),
        }
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// The address of the client, if it has one.
    fn peer(&self) -> Option<IpAddr> {
        match self {
            Stream::Tcp(stream) => Some(stream.peer_addr().ok()?.ip()),
            Stream::Unix(_) => None,
        }
    }
}

/// `None` if the handshake fails (such as without a valid client certificate), times out, or the server stops.
async fn shake_hands(
    stream: TcpStream,
    tls: &Tls,
    patience: Duration,
    mut stop: watch::Receiver<bool>,
) -> Option<TlsStream<TcpStream>> {
    tokio::select! {
        shaken = tokio::time::timeout(patience, tls.acceptor().accept(stream)) => match shaken {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => tracing::debug!(%error, "no TLS connection"),
            Err(_) => tracing::debug!("no TLS connection: the handshake took too long"),
        },
        _ = stop.wait_for(|stop| *stop) => {}
    }
    None
}

/// Serves one connection.
async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: Option<IpAddr>,
    app: BeanstalkApp,
    stop: watch::Receiver<bool>,
) {
    let shared = &*app.0;
    testing::place("beanstalk connection");
    shared.counters.connections.fetch_add(1, Relaxed);
    shared.counters.total_connections.fetch_add(1, Relaxed);
    let mut connection = Connection {
        stream,
        peer,
        shared,
        session: Session::new(shared.client.new_session(), shared.queues.clone()),
        decoder: Decoder::new(shared.max_body),
        input: BytesMut::new(),
        out: Vec::new(),
        read_next: FIRST_READ,
        stop,
    };
    // Never refused but when the driver is gone.
    drop(shared.client.submit(connection.session.opening()));
    if let Err(error) = connection.run().await {
        tracing::debug!(%error, "connection ended");
    }
    let closing = connection.session.close(shared);
    shared.counters.connections.fetch_sub(1, Relaxed);
    // A client that sees the end of the connection finds its leases released.
    let submitted = shared.client.submit(closing.clone());
    if connection.decoder.has_ended() {
        discard(&mut connection.stream).await;
    }
    drop(connection);
    tell(shared, closing, submitted).await;
}

/// Reads to the end, for a limited time: closing with unread bytes would reset the connection, and the last reply could
/// be lost.
async fn discard(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    let discarded = async {
        stream.shutdown().await?;
        tokio::io::copy(stream, &mut tokio::io::sink()).await
    };
    let _ = tokio::time::timeout(LINGER, discarded).await;
}

/// Tells the engine that a connection has closed. Its leases must be released, so this is repeated until the store has
/// the records, or has ended itself.
async fn tell(shared: &BeanstalkState, ops: Vec<Op>, mut submitted: Result<Pending, CallError>) {
    loop {
        match submitted {
            Ok(answers) => match answers.await.into_iter().next() {
                Some(Err(error)) if error.is_retryable() => {}
                Some(_) | None => return,
            },
            Err(error) if error.is_retryable() && !matches!(error, CallError::Draining) => {}
            Err(_) => return,
        }
        tokio::time::sleep(TELL_AGAIN).await;
        submitted = shared.client.submit(ops.clone());
    }
}

struct Connection<'a, S> {
    stream: S,
    peer: Option<IpAddr>,
    shared: &'a BeanstalkState,
    session: Session,
    decoder: Decoder,
    input: BytesMut,
    out: Vec<u8>,
    /// Smallest room for the next read.
    read_next: usize,
    stop: watch::Receiver<bool>,
}

/// Whether the bytes that were read contained a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommandSeen {
    Something,
    Nothing,
}

/// The result of a read.
enum ReadResult {
    Bytes,
    End,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<'_, S> {
    async fn run(&mut self) -> io::Result<()> {
        let mut next = SessionNext::Read;
        loop {
            if self.out.len() >= WRITE_BUFFER {
                self.flush().await?;
            }
            let answers = match next {
                SessionNext::Ask(ops) if ops.is_empty() => Vec::new(),
                SessionNext::Ask(ops) => self.ask(ops).await,
                SessionNext::Wait(waiter, op) => {
                    // Replies to earlier commands must not wait for this one.
                    self.flush().await?;
                    match self.shared.client.submit(vec![op]) {
                        Ok(pending) => self.wait(pending, waiter).await?,
                        Err(error) => vec![Err(error)],
                    }
                }
                SessionNext::Read => {
                    let heard = self.hear();
                    next = self.session.go_on(self.shared, &mut self.out);
                    if heard == CommandSeen::Something || !matches!(next, SessionNext::Read) {
                        continue;
                    }
                    self.flush().await?;
                    match self.read().await? {
                        ReadResult::Bytes => {}
                        ReadResult::End => return Ok(()),
                    }
                    continue;
                }
                SessionNext::Close => return self.flush().await,
            };
            next = self.session.answered(answers, self.shared, &mut self.out);
        }
    }

    /// Submits operations; those that change more than one message or a setting are acts.
    async fn ask(&mut self, ops: Vec<Op>) -> Answers {
        let mut acts = Vec::new();
        let part_of_act = |(n, op): (usize, Op)| {
            let (name, queue) = match &op {
                Op::Pause { queue, .. } => ("pauseQueue", queue),
                Op::FireMany { queue, max } if *max > 1 => ("fireMessages", queue),
                Op::RedriveMany { queue, max } if *max > 1 => ("redriveMessages", queue),
                _ => return op,
            };
            let act = self.shared.act(name, queue, self.peer);
            let op = op.of_act(&act);
            acts.push((n, act));
            op
        };
        let ops = ops.into_iter().enumerate().map(part_of_act).collect();
        let answers = self.submit(ops).await;
        for (n, act) in acts {
            if let Some(Ok(reply)) = answers.get(n) {
                report_act(&act, reply);
            }
        }
        answers
    }

    async fn submit(&self, ops: Vec<Op>) -> Answers {
        let n = ops.len();
        // A client of this protocol waits for its answer, and can do little with "out of memory".
        match self.shared.client.offer(ops, WhenBusy::Paced) {
            Ok(pending) => pending.await,
            // Operations that settle are never refused, so they are separated from others that may be.
            Err((CallError::Overloaded | CallError::Draining, ops)) if n > 1 => {
                let submit = |op: Op| self.shared.client.submit(vec![op]);
                let submitted: Vec<_> = ops.into_iter().map(submit).collect();
                let mut answers = Vec::with_capacity(n);
                for one in submitted {
                    match one {
                        Ok(pending) => answers.extend(pending.await),
                        Err(error) => answers.push(Err(error)),
                    }
                }
                answers
            }
            Err((error, _)) => (0..n).map(|_| Err(error.clone())).collect(),
        }
    }

    /// Waits for a reserve, and for the client to disconnect.
    async fn wait(&mut self, mut pending: Pending, waiter: WaiterId) -> io::Result<Answers> {
        if !self.session.is_half_closed() {
            tokio::select! {
                biased;
                answers = &mut pending => return Ok(answers),
                gone = Self::listen(&mut self.stream, &mut self.input) => gone?,
            }
            self.session.half_close();
        }
        // Refused only when the driver is gone; then the answer comes all the same.
        drop(self.shared.client.submit(vec![Op::CancelReserve { waiter }]));
        Ok(pending.await)
    }

    /// Reads on until the client has closed its half of the connection. Cancel safe: bytes that were read stay in
    /// `input`. Once that is full it stops reading: a client that sends so much while it waits is detected when its
    /// reply is written.
    async fn listen(stream: &mut S, input: &mut BytesMut) -> io::Result<()> {
        while input.len() < READ_BUFFER {
            input.reserve(MAX_LINE);
            if stream.read_buf(input).await? == 0 {
                return Ok(());
            }
        }
        std::future::pending().await
    }

    /// Decodes the bytes that were read, as far as the session has room.
    fn hear(&mut self) -> CommandSeen {
        let mut heard = CommandSeen::Nothing;
        while self.session.has_room(MAX_HEARD) {
            match self.decoder.next(&mut self.input) {
                Some(said) => self.session.hear(said),
                None => break,
            }
            heard = CommandSeen::Something;
        }
        heard
    }

    async fn read(&mut self) -> io::Result<ReadResult> {
        if self.session.is_half_closed() {
            return Ok(ReadResult::End);
        }
        if self.input.is_empty() && self.input.capacity() > READ_BUFFER {
            self.input = BytesMut::new();
        }
        // The space that the body in progress needs, but not more than has been filled already.
        let wanted = self.decoder.wanted(&self.input).min(self.input.len().max(READ_BUFFER));
        self.input.reserve(wanted.max(self.read_next));
        let room = self.input.capacity() - self.input.len();
        let read = tokio::select! {
            read = self.stream.read_buf(&mut self.input) => read?,
            _ = self.stop.wait_for(|stop| *stop) => 0,
        };
        if read == room {
            self.read_next = READ_BUFFER;
        }
        Ok(if read == 0 { ReadResult::End } else { ReadResult::Bytes })
    }

    async fn flush(&mut self) -> io::Result<()> {
        if !self.out.is_empty() {
            self.stream.write_all(&self.out).await?;
            // TLS may have buffered some of it.
            self.stream.flush().await?;
            self.out.clear();
            self.out.shrink_to(WRITE_BUFFER);
        }
        Ok(())
    }
}
