//! The table of all paths: method, path, query parameters, handler. `openapi.json` is compared with it.

use std::future::Future;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};

use super::call::Call;
use super::{
    Answer, App, backup, cancel, enqueue, health, histogram, home, listing, message, metrics, queue, reserve,
    settle, wheel,
};
use crate::error::{ErrorCode, Problem};

/// One line of the table.
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) query: &'static [&'static str],
    handler: MethodRouter<App>,
}

/// All of them.
#[rustfmt::skip]
pub(crate) fn table() -> Vec<Route> {
    const NO: &[&str] = &[];
    vec![
        post("/v1/queues/{queue}/messages", NO, enqueue::enqueue),
        get("/v1/queues/{queue}/messages", &["state", "after", "limit"], listing::messages),
        post("/v1/queues/{queue}/reserve", NO, reserve::reserve),
        post("/v1/queues/{queue}/cancel", NO, cancel::cancel_many),

        get("/v1/messages/{id}", NO, message::get_by_id),
        delete("/v1/messages/{id}", NO, message::cancel_by_id),
        patch("/v1/messages/{id}", NO, message::postpone_by_id),
        post("/v1/messages/{id}/fire", NO, message::fire_by_id),
        get("/v1/queues/{queue}/keys/{key}", NO, message::get_by_key),
        delete("/v1/queues/{queue}/keys/{key}", NO, message::cancel_by_key),
        patch("/v1/queues/{queue}/keys/{key}", NO, message::postpone_by_key),
        post("/v1/queues/{queue}/keys/{key}/fire", NO, message::fire_by_key),

        post("/v1/messages/{id}/ack", NO, settle::ack),
        post("/v1/messages/{id}/nack", NO, settle::nack),
        post("/v1/messages/{id}/extend", NO, settle::extend),
        post("/v1/ack", NO, settle::ack_many),

        get("/v1/queues", &["after", "limit"], listing::queues),
        get("/v1/queues/{queue}", NO, queue::show),
        get("/v1/queues/{queue}/histogram", &["from", "to", "buckets"], histogram::histogram),
        put("/v1/queues/{queue}/config", NO, queue::configure),
        post("/v1/queues/{queue}/pause", NO, queue::pause),
        post("/v1/queues/{queue}/resume", NO, queue::resume),
        post("/v1/queues/{queue}/purge", NO, queue::purge),
        post("/v1/queues/{queue}/redrive", NO, queue::redrive),
        get("/v1/wheel", NO, wheel::wheel),
        post("/v1/backup", NO, backup::backup),

        get("/healthz", NO, health::health),
        get("/metrics", NO, metrics::metrics),
        get("/openapi.json", NO, home::openapi),
        get("/", NO, home::home),
    ]
}

/// The router over the table.
pub(crate) fn router(app: App) -> Router {
    let mut router = Router::new();
    for route in table() {
        router = router.route(route.path, route.handler);
    }
    router
        .fallback(
            |State(app): State<App>, uri: Uri| async move { answer(&app, Err(unknown_path(uri.path()))) },
        )
        .method_not_allowed_fallback(|State(app): State<App>, method: Method| async move {
            let detail = format!("{method} is not a method of this path; see the Allow header");
            answer(&app, Err(Problem::new(ErrorCode::MethodNotAllowed, detail)))
        })
        .with_state(app)
}

macro_rules! methods {
    ($($name:ident $method:ident),*) => {$(
        fn $name<H, F>(path: &'static str, query: &'static [&'static str], handler: H) -> Route
        where
            H: Fn(Call) -> F + Clone + Send + Sync + 'static,
            F: Future<Output = Answer> + Send + 'static,
        {
            let serve = move |State(app): State<App>, request: Request| {
                let handler = handler.clone();
                async move {
                    let result = match Call::new(app.clone(), request, query) {
                        Ok(call) => handler(call).await,
                        Err(problem) => Err(problem),
                    };
                    answer(&app, result)
                }
            };
            Route { method: Method::$method, path, query, handler: on(MethodFilter::$method, serve) }
        }
    )*};
}
methods!(get GET, post POST, put PUT, patch PATCH, delete DELETE);

fn answer(app: &App, result: Answer) -> Response {
    let response = result.unwrap_or_else(IntoResponse::into_response);
    app.count_response(response.status());
    response
}

/// An empty name in a path matches no route; it is a bad name rather than an unknown path.
fn unknown_path(path: &str) -> Problem {
    let segments: Vec<&str> = path.split('/').collect();
    match segments.as_slice() {
        ["", "v1", "queues", "", _, ..] => Problem::field("queue", "must not be empty"),
        ["", "v1", "queues", _, "keys", ""] | ["", "v1", "queues", _, "keys", "", _] => {
            Problem::field("key", "must not be empty")
        }
        _ => Problem::new(ErrorCode::NotFound, "there is nothing at this path; GET / names what there is"),
    }
}
