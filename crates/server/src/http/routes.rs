//! The table of all paths: method, path, query parameters, who may call it, handler. `openapi.json` is compared with it.
//!
//! A route cannot be written without its access, and access is checked before its handler is called: [`Call::new`].

use std::future::Future;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};

use super::call::Call;
use super::{
    Answer, App, backup, cancel, cluster, enqueue, health, histogram, home, listing, message as messages,
    metrics, queue as queues, quota, reserve, settle, wheel,
};
use crate::auth::{About, Access, Scope};
use crate::error::{ErrorCode, Problem};

/// One line of the table.
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) query: &'static [&'static str],
    pub(crate) access: Access,
    handler: MethodRouter<App>,
}

const fn queue(scope: Scope) -> Access {
    Access::Needs(scope, About::Queue)
}

const fn message(scope: Scope) -> Access {
    Access::Needs(scope, About::Message)
}

const fn several(scope: Scope) -> Access {
    Access::Needs(scope, About::Several)
}

const fn server(scope: Scope) -> Access {
    Access::Needs(scope, About::Server)
}

/// All of them.
#[rustfmt::skip]
pub(crate) fn table() -> Vec<Route> {
    use Scope::{Admin, Cancel, Consume, Enqueue, Metrics};
    const NO: &[&str] = &[];
    vec![
        post("/v1/queues/{queue}/messages", NO, queue(Enqueue), enqueue::enqueue),
        get("/v1/queues/{queue}/messages", &["state", "after", "limit"], queue(Admin), listing::messages),
        post("/v1/queues/{queue}/reserve", NO, queue(Consume), reserve::reserve),
        post("/v1/queues/{queue}/cancel", NO, queue(Cancel), cancel::cancel_many),

        get("/v1/messages/{id}", NO, message(Cancel), messages::get_by_id),
        delete("/v1/messages/{id}", NO, message(Cancel), messages::cancel_by_id),
        patch("/v1/messages/{id}", NO, message(Cancel), messages::postpone_by_id),
        post("/v1/messages/{id}/fire", NO, message(Cancel), messages::fire_by_id),
        get("/v1/queues/{queue}/keys/{key}", NO, queue(Cancel), messages::get_by_key),
        delete("/v1/queues/{queue}/keys/{key}", NO, queue(Cancel), messages::cancel_by_key),
        patch("/v1/queues/{queue}/keys/{key}", NO, queue(Cancel), messages::postpone_by_key),
        post("/v1/queues/{queue}/keys/{key}/fire", NO, queue(Cancel), messages::fire_by_key),

        post("/v1/messages/{id}/ack", NO, Access::Needs(Consume, About::Lease), settle::ack),
        post("/v1/messages/{id}/nack", NO, message(Consume), settle::nack),
        post("/v1/messages/{id}/extend", NO, message(Consume), settle::extend),
        post("/v1/ack", NO, several(Consume), settle::ack_many),

        get("/v1/queues", &["after", "limit"], several(Metrics), listing::queues),
        get("/v1/queues/{queue}", NO, queue(Metrics), queues::show),
        get("/v1/queues/{queue}/histogram", &["from", "to", "buckets"], queue(Metrics), histogram::histogram),
        put("/v1/queues/{queue}/config", NO, queue(Admin), queues::configure),
        post("/v1/queues/{queue}/pause", NO, queue(Admin), queues::pause),
        post("/v1/queues/{queue}/resume", NO, queue(Admin), queues::resume),
        post("/v1/queues/{queue}/purge", NO, queue(Admin), queues::purge),
        post("/v1/queues/{queue}/redrive", NO, queue(Admin), queues::redrive),
        get("/v1/quotas", NO, several(Metrics), quota::quotas),
        get("/v1/wheel", NO, server(Metrics), wheel::wheel),
        get("/v1/cluster", NO, server(Metrics), cluster::cluster),
        post("/v1/backup", NO, server(Admin), backup::backup),

        get("/healthz", NO, Access::Open, health::health),
        get("/livez", NO, Access::Open, health::live),
        get("/readyz", NO, Access::Open, health::ready),
        get("/metrics", NO, server(Metrics), metrics::metrics),
        get("/openapi.json", NO, Access::Open, home::openapi),
        get("/", NO, Access::Open, home),
    ]
}

/// The page of `GET /`, which names all of them.
async fn home(_: Call) -> Answer {
    let table = table();
    Ok(home::page(table.iter().map(|route| (&route.method, route.path, route.query, route.access))))
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
        fn $name<H, F>(
            path: &'static str,
            query: &'static [&'static str],
            access: Access,
            handler: H,
        ) -> Route
        where
            H: Fn(Call) -> F + Clone + Send + Sync + 'static,
            F: Future<Output = Answer> + Send + 'static,
        {
            let serve = move |State(app): State<App>, request: Request| {
                let handler = handler.clone();
                async move {
                    let result = match Call::new(app.clone(), request, query, access).await {
                        Ok(call) => handler(call).await,
                        Err(problem) => Err(problem),
                    };
                    answer(&app, result)
                }
            };
            Route { method: Method::$method, path, query, access, handler: on(MethodFilter::$method, serve) }
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
