//! `X-Request-Id`: the caller's name for a request, which its answer and its log lines carry.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;

use axum::Router;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request};
use axum::response::Response;
use futures_util::future::Either;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tracing::Instrument;

use crate::error::Problem;

/// The name of the header.
const NAME: HeaderName = HeaderName::from_static("x-request-id");
/// The largest number of bytes of its value.
const MAX: usize = 128;

/// The value of a request's header, if it has one.
///
/// # Errors
/// `bad_request` if it is there twice, or is not 1 to 128 visible ASCII characters.
pub(super) fn of(headers: &HeaderMap) -> Result<Option<&HeaderValue>, Problem> {
    let mut values = headers.get_all(NAME).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Problem::field("X-Request-Id", "is there twice"));
    }
    let is_good = (1..=MAX).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic);
    match is_good {
        true => Ok(Some(value)),
        false => {
            Err(Problem::field("X-Request-Id", "must be 1 to 128 visible ASCII characters, without spaces"))
        }
    }
}

/// The span that adds the id of a request to its log lines, at every level of the log.
pub(crate) fn span(id: &str) -> tracing::Span {
    tracing::error_span!("request", id)
}

/// Routes whose answers carry the id of their request. Requests without one pass through as they are.
#[derive(Clone, Debug)]
pub(super) struct Identified(TowerToHyperService<Router>);

impl Identified {
    pub(super) fn new(router: Router) -> Self {
        Identified(TowerToHyperService::new(router))
    }

    async fn serve(self, request: Request<Incoming>, id: HeaderValue) -> Result<Response, Infallible> {
        let span = span(id.to_str().unwrap_or_default());
        let method = request.method().clone();
        let answered = async {
            let Ok(response) = self.0.call(request).await;
            let status = response.status();
            match status.is_server_error() {
                true => tracing::warn!(%method, status = status.as_u16(), "answered"),
                // A client that names a request wants to find it in the log.
                false => tracing::info!(%method, status = status.as_u16(), "answered"),
            }
            response
        };
        let mut response = answered.instrument(span).await;
        response.headers_mut().insert(NAME, id);
        Ok(response)
    }
}

/// The answer of the routes to a request without an id.
type Plain = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Future;

impl Service<Request<Incoming>> for Identified {
    type Response = Response;
    type Error = Infallible;
    type Future = Either<Plain, Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        match of(request.headers()) {
            Ok(Some(id)) => {
                let id = id.clone();
                Either::Right(Box::pin(self.clone().serve(request, id)))
            }
            // The routes refuse a value that is not valid.
            Ok(None) | Err(_) => Either::Left(self.0.call(request)),
        }
    }
}
