//! Requests through the real routes, and lines through the real parsers, without a socket.

use std::cell::OnceCell;

use axum::Router;
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use bytes::Bytes;
use duewheel::core::QueueName;
use duewheel::core::engine::{Enqueue, Op};
use http_body_util::BodyExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;

use super::line::{EnqueueLine, TimeField};
use super::{App, enqueue, routes, strict};
use crate::error::Problem;

/// Parses the body of an enqueue; returns the message, and the field that determines its due time.
///
/// # Errors
/// The body is not valid.
pub fn line(bytes: &[u8], queue: &QueueName) -> Result<(Enqueue, TimeField), Problem> {
    strict::parse::<EnqueueLine<'_>>(bytes)?.into_enqueue(queue, None)
}

/// The lines of a batch.
pub fn lines(bytes: &[u8], queue: &QueueName) -> Vec<Result<Enqueue, Problem>> {
    enqueue::parse(bytes, queue)
        .into_iter()
        .map(|line| {
            line.map(|op| match op {
                Op::Enqueue(message) => *message,
                other => unreachable!("a line is an enqueue, and not {other:?}"),
            })
        })
        .collect()
}

/// The routes of one server.
#[derive(Clone, Debug)]
pub struct Routes(TowerToHyperService<Router>);

impl Routes {
    /// The routes over this state, which is of the same policy and guard each time. Table and description are made once
    /// for each thread: that takes longer than most requests.
    pub fn new(app: App) -> Self {
        thread_local! {
            static TABLE: routes::Unbound = routes::Unbound::new();
            static DESCRIPTION: OnceCell<Bytes> = const { OnceCell::new() };
        }
        let described = DESCRIPTION.with(|made| made.get_or_init(|| routes::description(&app)).clone());
        let _ = app.description.set(described);
        Routes(TowerToHyperService::new(TABLE.with(Clone::clone).bind(app)))
    }

    /// Serves a request, and returns its answer; an answer of events, which does not end, without its body.
    ///
    /// # Panics
    /// A body breaks off, which does not happen with bodies in memory.
    pub async fn call(&self, request: Request) -> (Response<()>, Bytes) {
        let response = match self.0.call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let (parts, body) = response.into_parts();
        let goes_on = parts.headers.get(CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
        if goes_on {
            return (Response::from_parts(parts, ()), Bytes::new());
        }
        let body = body.collect().await.expect("a body in memory is whole").to_bytes();
        (Response::from_parts(parts, ()), body)
    }
}
