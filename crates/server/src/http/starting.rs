//! Answers over HTTP while a server starts: it is alive, and not ready yet.
//!
//! The address listens from the beginning, so that a start which takes long, or waits for Redis, is reported instead of
//! refusing connections. Each answer ends its connection: the next request comes on one that the server itself accepts.
//! The socket is handed over as it is, so no connection is refused in between.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use duewheel::Outcome;
use http_body_util::BodyExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use super::health::{ProbeAnswer, StartingAnswer, StartingWord, StatusWord, TroubledAnswer};
use super::listener::{StopOfConnection, shake_hands, talk};
use super::reply;
use crate::auth::Hosts;
use crate::claim::Claim;
use crate::drain::Stop;
use crate::error::{ErrorCode, Extra, Problem};
use crate::tls::Tls;

/// The largest number of connections at a time; further ones wait in the system's backlog.
const MAX_CONNECTIONS: usize = 256;
/// The time limit for a handshake, and for the headers of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of bytes of a request's body that are read before the answer, and the time limit: closing a connection
/// with unread bytes may lose the answer.
const BODY_BYTES: usize = 1024 * 1024;
const BODY_TIME: Duration = Duration::from_secs(2);

/// The reason why a start takes long, as text.
pub(crate) type StartWords = watch::Sender<String>;

/// The callers that may read the reason why the start takes long, which names servers and folders.
#[derive(Clone, Debug)]
pub(crate) enum Audience {
    /// Requests that name one of these hosts, or none.
    Named(Hosts),
    /// There are tokens, and they are not checked yet.
    Nobody,
}

/// A listener that answers until the server is ready.
pub(crate) struct Starting {
    stop: Stop,
    task: JoinHandle<TcpListener>,
}

#[derive(Clone)]
struct StartupServer {
    waits: watch::Receiver<String>,
    audience: Audience,
}

impl Starting {
    /// Listens at once. Must be called within a runtime.
    ///
    /// # Errors
    /// Another process has begun to listen there since.
    pub(crate) fn on(
        claim: Claim,
        tls: Option<Arc<Tls>>,
        waits: &StartWords,
        audience: Audience,
    ) -> io::Result<Self> {
        let socket = claim.listen()?;
        let (stop, stopped) = Stop::new();
        let router =
            Router::new().fallback(answer).with_state(StartupServer { waits: waits.subscribe(), audience });
        Ok(Starting { stop, task: tokio::spawn(accept(socket, tls, router, stopped)) })
    }

    /// Ends it, and returns the socket. Requests that have arrived are still answered.
    ///
    /// # Errors
    /// The listener has ended by itself, because of a bug.
    pub(crate) async fn end(self) -> io::Result<TcpListener> {
        self.stop.stop();
        self.task.await.map_err(io::Error::other)
    }
}

async fn accept(
    socket: TcpListener,
    tls: Option<Arc<Tls>>,
    router: Router,
    mut stopped: watch::Receiver<bool>,
) -> TcpListener {
    let free = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = async {
            // The semaphore is never closed.
            let place = Arc::clone(&free).acquire_owned().await.ok();
            (socket.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            accepted = accepted => accepted,
            _ = stopped.wait_for(|stop| *stop) => return socket,
        };
        match accepted {
            Ok((stream, _)) => {
                let serving = serve(stream, tls.clone(), router.clone());
                tokio::spawn(async move {
                    let _place = place;
                    serving.await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Serves a connection to its end, even after the store has opened: each ends soon by itself.
async fn serve(stream: TcpStream, tls: Option<Arc<Tls>>, router: Router) {
    match tls {
        None => talk(stream, router, (HEADER_TIMEOUT, None), StopOfConnection::default()).await,
        Some(tls) => {
            if let Some(stream) = shake_hands(stream, &tls, HEADER_TIMEOUT, pending()).await {
                talk(stream, router, (HEADER_TIMEOUT, None), StopOfConnection::default()).await;
            }
        }
    }
}

async fn answer(State(keeper): State<StartupServer>, request: Request) -> Response {
    let (parts, mut body) = request.into_parts();
    let reading = async {
        let mut left = BODY_BYTES;
        while let Some(Ok(frame)) = body.frame().await
            && left > 0
        {
            left = left.saturating_sub(frame.data_ref().map_or(0, bytes::Bytes::len));
        }
    };
    if !parts.headers.contains_key(header::EXPECT) {
        // Bytes that arrive later are not awaited.
        let _ = tokio::time::timeout(BODY_TIME, reading).await;
    }
    let may_read = match &keeper.audience {
        Audience::Named(hosts) => {
            parts.headers.get_all(header::HOST).iter().all(|host| hosts.knows(host.as_bytes()))
        }
        Audience::Nobody => false,
    };
    let words = if may_read {
        format!("starting: {}", *keeper.waits.borrow())
    } else {
        "starting: the store is not open yet".to_owned()
    };
    let unready = |mut response: Response| {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(1));
        response
    };
    let no = StatusCode::SERVICE_UNAVAILABLE;
    let mut response = match parts.uri.path() {
        "/livez" => reply(StatusCode::OK, &ProbeAnswer { status: StatusWord::Ok }),
        "/readyz" => unready(reply(no, &ProbeAnswer { status: StatusWord::Starting })),
        "/healthz" => unready(reply(
            no,
            &TroubledAnswer::Starting(StartingAnswer { status: StartingWord::Starting, trouble: &words }),
        )),
        _ => {
            let extra = Extra::Outcome(Outcome::NotApplied);
            Problem { extra, ..Problem::new(ErrorCode::StorageUnavailable, words) }.into_response()
        }
    };
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
