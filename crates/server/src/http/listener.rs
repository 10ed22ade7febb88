//! Accepts connections and serves them, with all limits in place, until stopped.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use duewheel_shard::testing;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::server::TlsStream;

use super::audit::PeerAddress;
use super::request_id::Identified;
use super::stall::Stall;
use super::{App, routes};
use crate::claim::Claim;
use crate::drain::Stop;
use crate::tls::Tls;

/// The read buffer of a connection. It is larger than the limit of headers, so that too many of them are mostly
/// answered with a code of this server.
const READ_BUFFER: usize = 64 * 1024;
/// The number of connections at a time that get an answer that there are too many; others are simply closed.
const TURNED_AWAY: usize = 64;
/// The answer to a connection above the limit.
const TOO_MANY: &str = concat!(
    "{\"type\":\"/errors#overloaded\",\"title\":\"Too Many Requests\",\"status\":429,\"code\":\"overloaded\",",
    "\"detail\":\"too many connections; try again soon\"}\n"
);

/// A bound listener that does not accept yet.
#[derive(Debug)]
pub struct HttpListener {
    socket: TcpListener,
    router: Router,
    app: App,
    tls: Option<Arc<Tls>>,
    stop: watch::Receiver<bool>,
    stopper: Stop,
    /// How long a connection that was accepted before the stop may take to begin its first request.
    first_request: Duration,
}

impl HttpListener {
    /// Binds the address. Connections wait in the backlog until [`HttpListener::run`].
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn bind(address: SocketAddr, app: App) -> io::Result<HttpListener> {
        Ok(HttpListener::on(Claim::of(address)?.listen()?, app))
    }

    /// Serves a socket that listens already.
    pub(crate) fn on(socket: TcpListener, app: App) -> HttpListener {
        let (stopper, stop) = Stop::new();
        let router = routes::router(app.clone());
        HttpListener { socket, router, app, tls: None, stop, stopper, first_request: Duration::ZERO }
    }

    /// Accepts TLS alone.
    #[must_use]
    pub fn with_tls(self, tls: Option<Arc<Tls>>) -> HttpListener {
        HttpListener { tls, ..self }
    }

    /// Lets connections that were accepted before the stop begin their first request until this long after it.
    /// Otherwise they are closed: with a successor on the same socket that is the only refusal that clients could see.
    pub(crate) fn with_first_request(self, first_request: Duration) -> HttpListener {
        HttpListener { first_request, ..self }
    }

    /// The address of the listener; the real port if port 0 was configured.
    ///
    /// # Errors
    /// [`io::Error`] when the system does not return it.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The handle that stops it.
    pub fn stopper(&self) -> Stop {
        self.stopper.clone()
    }

    /// Serves until stopped, and then until the open connections have had their answers, but no longer than `linger`.
    pub async fn run(mut self, linger: Duration) {
        let places = self.app.limits.max_connections.min(Semaphore::MAX_PERMITS);
        let free = Arc::new(Semaphore::new(places));
        let turned_away = Arc::new(Semaphore::new(TURNED_AWAY));
        loop {
            let accepted = tokio::select! {
                accepted = self.socket.accept() => accepted,
                _ = self.stop.wait_for(|stop| *stop) => break,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Most likely there are no file descriptors left. Serving the open connections frees some.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            testing::place("http accept");
            match Arc::clone(&free).try_acquire_owned() {
                Ok(place) => self.serve(stream, PeerAddress(peer.ip()), place),
                // An answer would need a handshake first.
                Err(_) if self.tls.is_some() => drop(stream),
                Err(_) => turn_away(stream, &turned_away),
            }
        }
        drop(self.socket);
        let all = u32::try_from(places).unwrap_or(u32::MAX);
        if tokio::time::timeout(linger, free.acquire_many(all)).await.is_err() {
            tracing::warn!("some connections did not end in time");
        }
    }

    fn serve(&self, stream: TcpStream, peer: PeerAddress, place: OwnedSemaphorePermit) {
        // Answers are written whole; waiting for more to send would only delay them.
        let _ = stream.set_nodelay(true);
        let (app, tls, router) = (self.app.clone(), self.tls.clone(), self.router.clone());
        let stop = StopOfConnection { stop: Some(self.stop.clone()), first_request: self.first_request };
        tokio::spawn(async move {
            let _place = place;
            testing::place("http connection");
            app.counters.connections.fetch_add(1, Ordering::Relaxed);
            let header_timeout = app.limits.header_timeout;
            if tls.is_some() && is_plain_http(&stream, header_timeout, stop.before_request()).await {
                answer_plain_http(stream).await;
                app.counters.connections.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            let stream = Stall::new(stream, app.limits.body_timeout);
            match tls {
                None => talk(stream, router, (header_timeout, Some(peer)), stop).await,
                Some(tls) => {
                    let ends = stop.before_request();
                    if let Some(stream) = shake_hands(stream, &tls, header_timeout, ends).await {
                        talk(stream, router, (header_timeout, Some(peer)), stop).await;
                    }
                }
            }
            app.counters.connections.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// When a connection ends because the server stops.
#[derive(Clone, Debug, Default)]
pub(super) struct StopOfConnection {
    /// `None`: the server that serves it does not stop.
    stop: Option<watch::Receiver<bool>>,
    first_request: Duration,
}

impl StopOfConnection {
    /// Ends when the server stops.
    async fn stopped(&self) {
        match &self.stop {
            // The sender lives as long as the listener: an error means that the listener is gone.
            Some(stop) => drop(stop.clone().wait_for(|stop| *stop).await),
            None => std::future::pending().await,
        }
    }

    /// Ends when a connection that has sent no request is to end.
    async fn before_request(&self) {
        self.stopped().await;
        tokio::time::sleep(self.first_request).await;
    }
}

/// `None` if the handshake fails, times out, or `stopped` ends before it is over.
pub(super) async fn shake_hands<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    tls: &Tls,
    header_timeout: Duration,
    stopped: impl Future<Output = ()>,
) -> Option<TlsStream<S>> {
    let shaking = tokio::time::timeout(header_timeout, tls.acceptor().accept(stream));
    tokio::select! {
        shaken = shaking => match shaken {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => tracing::debug!(%error, "no TLS connection"),
            Err(_) => tracing::debug!("no TLS connection: the handshake took too long"),
        },
        () = stopped => {}
    }
    None
}

/// Serves one connection from its first request to its last; after the stop, only the request in progress, or a first
/// request that begins in time.
pub(super) async fn talk(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    (header_timeout, peer): (Duration, Option<PeerAddress>),
    stop: StopOfConnection,
) {
    let mut server = http1::Builder::new();
    server
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        // Without `pipeline_flush`: with it answers to pipelined requests are lost when the bytes behind them are not a
        // request.
        .max_buf_size(READ_BUFFER);
    let asked = Arc::new(Notify::new());
    let routes = Identified::new(router);
    let service = service_fn(|mut request: Request<Incoming>| {
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer);
        }
        // Keeps one permit: it does not matter whether a task waits yet.
        asked.notify_one();
        routes.call(request)
    });
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
    let stopped = async {
        stop.stopped().await;
        // hyper ends a connection that has read nothing at once, and its client would see no answer.
        let _ = tokio::time::timeout(stop.first_request, asked.notified()).await;
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

fn turn_away(mut stream: TcpStream, turned_away: &Arc<Semaphore>) {
    let Ok(place) = Arc::clone(turned_away).try_acquire_owned() else { return };
    tokio::spawn(async move {
        let _place = place;
        let talk = async {
            let length = TOO_MANY.len();
            let answer = format!(
                "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n\
                 connection: close\r\ncontent-length: {length}\r\n\r\n{TOO_MANY}"
            );
            stream.write_all(answer.as_bytes()).await?;
            stream.shutdown().await?;
            // Closing with unread bytes would reset the connection, and the answer would be lost.
            let mut unread = [0; 4_096];
            while stream.read(&mut unread).await? > 0 {}
            io::Result::Ok(())
        };
        let _ = tokio::time::timeout(Duration::from_millis(500), talk).await;
    });
}

/// The first byte of every TLS connection: a handshake record.
const HANDSHAKE: u8 = 0x16;
const SAY_HTTPS: &str = concat!(
    r#"{"type":"about:blank","title":"Bad Request","status":400,"code":"bad_request","#,
    r#""detail":"this is an HTTPS port: say https:// instead of http://"}"#,
    "\n"
);
/// How long the client may take to read it.
const LINGER: Duration = Duration::from_millis(500);

/// Whether the client has begun with something other than TLS, within `time` and before `stopped` ends. Nothing is
/// consumed. Cancel safe.
async fn is_plain_http(stream: &TcpStream, time: Duration, stopped: impl Future<Output = ()>) -> bool {
    let mut first = [0];
    let peeked = tokio::select! {
        peeked = tokio::time::timeout(time, stream.peek(&mut first)) => peeked,
        () = stopped => return false,
    };
    matches!(peeked, Ok(Ok(1))) && first[0] != HANDSHAKE && first[0].is_ascii_uppercase()
}

/// Answers such a client, and closes the connection.
async fn answer_plain_http(mut stream: TcpStream) {
    let talk = async {
        let head = format!(
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{SAY_HTTPS}",
            SAY_HTTPS.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.shutdown().await?;
        // Closing with unread bytes would reset the connection, and the answer would be lost.
        let mut unread = [0; 4_096];
        while stream.read(&mut unread).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _ = tokio::time::timeout(LINGER, talk).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::io::DuplexStream;
    use tokio::time::sleep;

    const FIRST_REQUEST: Duration = Duration::from_secs(1);

    /// A connection that the listener had accepted, its client's side, and what stops it.
    fn accepted(first_request: Duration) -> (DuplexStream, Stop, tokio::task::JoinHandle<()>) {
        let (client, server) = tokio::io::duplex(64 * 1024);
        let (stopper, stop) = Stop::new();
        let stop = StopOfConnection { stop: Some(stop), first_request };
        let router = Router::new().route("/", get(async || "here"));
        let serving = tokio::spawn(talk(server, router, (Duration::from_secs(60), None), stop));
        (client, stopper, serving)
    }

    /// What the server answers to a request that comes this long after the stop.
    async fn answered(first_request: Duration, after: Duration) -> String {
        let (mut client, stopper, serving) = accepted(first_request);
        tokio::task::yield_now().await;
        stopper.stop();
        sleep(after).await;
        let mut answer = String::new();
        // Nobody may be there any more.
        let _ = client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        client.read_to_string(&mut answer).await.unwrap();
        serving.await.unwrap();
        answer
    }

    /// An upgrade on a given socket lost a request now and then: hyper closes a connection that has read nothing at once,
    /// and the client had no answer.
    #[tokio::test(start_paused = true)]
    async fn request_soon_after_stop_is_answered() {
        let answer = answered(FIRST_REQUEST, FIRST_REQUEST / 2).await;
        assert!(answer.ends_with("here"), "{answer:?}");
        assert_eq!(answered(FIRST_REQUEST, FIRST_REQUEST * 2).await, "");
        assert_eq!(answered(Duration::ZERO, Duration::from_millis(10)).await, "", "without a successor");
    }
}
