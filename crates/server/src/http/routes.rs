//! The table of all paths: method, path, query parameters, permission, handler, and description, from which
//! `openapi.json` is made.
//!
//! A route cannot be written without its permission, which is checked before its handler is called: [`Call::new`].

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use bytes::Bytes;
use duewheel::Policy;
use serde_json::Value;

use super::call::Call;
use super::durations::RouteDurations;
use super::openapi::operation::OperationDoc;
use super::openapi::{
    self, Described, Security, events as doc_events, jobs as doc_jobs, operations as doc,
    schedules as doc_schedules, targets as doc_targets,
};
use super::{
    Answer, App, backup, bulk, cancel, clock, cluster, dashboard, enqueue, errors, events, health, histogram,
    home, identity, listing, message as messages, metrics, queue as queues, queue_config, quota, reserve,
    schedule as schedules, settle, settle_many, stats, target as targets, typed, wheel,
};
use crate::auth::{About, AccessRule, Scope};
use crate::error::{ErrorCode, Problem};
use crate::json::written;

/// A route: its method, path and permission, its description and its handler.
pub(crate) struct HttpRoute {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) query: &'static [&'static str],
    pub(crate) access: AccessRule,
    /// The description of the route in `openapi.json`.
    pub(crate) doc: fn() -> OperationDoc,
    handler: MethodRouter<App>,
    durations: Arc<RouteDurations>,
}

const fn queue(scope: Scope) -> AccessRule {
    AccessRule::Needs(scope, About::Queue)
}

const fn message(scope: Scope) -> AccessRule {
    AccessRule::Needs(scope, About::Message)
}

const fn several(scope: Scope) -> AccessRule {
    AccessRule::Needs(scope, About::Several)
}

const fn server(scope: Scope) -> AccessRule {
    AccessRule::Needs(scope, About::Server)
}

/// All routes.
#[rustfmt::skip]
pub(crate) fn table() -> Vec<HttpRoute> {
    use Scope::{Admin, Cancel, Consume, Enqueue, Metrics};
    const NO: &[&str] = &[];
    vec![
        post("/v1/queues/{queue}/messages", NO, queue(Enqueue), enqueue::enqueue, doc::enqueue),
        get("/v1/queues/{queue}/messages", &["state", "due_from", "due_to", "key_prefix", listing::HEADER, "dead_reason", "dead_note", "after", "limit"], queue(Admin), listing::messages, doc_jobs::list_messages),
        post("/v1/queues/{queue}/reserve", NO, queue(Consume), reserve::reserve, doc::reserve),
        post("/v1/queues/{queue}/cancel", NO, queue(Cancel), cancel::cancel_many, doc::cancel_many),

        get("/v1/messages/{id}", NO, AccessRule::Needs(Cancel, About::Recalled), messages::get_by_id, doc::get),
        delete("/v1/messages/{id}", NO, message(Cancel), messages::cancel_by_id, doc::cancel),
        patch("/v1/messages/{id}", NO, message(Cancel), messages::postpone_by_id, doc::postpone),
        post("/v1/messages/{id}/fire", NO, message(Cancel), messages::fire_by_id, doc::fire),
        post("/v1/messages/{id}/replay", NO, AccessRule::Needs(Cancel, About::Recalled), messages::replay, doc::replay),
        get("/v1/queues/{queue}/keys/{key}", NO, queue(Cancel), messages::get_by_key, doc::get_by_key),
        delete("/v1/queues/{queue}/keys/{key}", NO, queue(Cancel), messages::cancel_by_key, doc::cancel_by_key),
        patch("/v1/queues/{queue}/keys/{key}", NO, queue(Cancel), messages::postpone_by_key, doc::postpone_by_key),
        post("/v1/queues/{queue}/keys/{key}/fire", NO, queue(Cancel), messages::fire_by_key, doc::fire_by_key),

        post("/v1/messages/{id}/ack", NO, AccessRule::Needs(Consume, About::Lease), settle::ack, doc::ack),
        post("/v1/messages/{id}/nack", NO, message(Consume), settle::nack, doc::nack),
        post("/v1/messages/{id}/extend", NO, message(Consume), settle::extend, doc::extend),
        post("/v1/ack", NO, several(Consume), settle_many::ack_many, doc::ack_many),
        post("/v1/nack", NO, several(Consume), settle_many::nack_many, doc::nack_many),
        post("/v1/extend", NO, several(Consume), settle_many::extend_many, doc::extend_many),
        post("/v1/reserve", NO, several(Consume), reserve::reserve_of_many, doc::reserve_of_many),

        get("/v1/queues", &["after", "limit"], several(Metrics), listing::queues, doc::list_queues),
        get("/v1/queues/{queue}", NO, queue(Metrics), queues::show, doc::get_queue),
        get("/v1/queues/{queue}/histogram", &["from", "to", "buckets"], queue(Metrics), histogram::histogram, doc::histogram),
        get("/v1/queues/{queue}/dead", &["after"], queue(Admin), listing::dead, doc_jobs::dead),
        delete("/v1/queues/{queue}", NO, queue(Admin), queue_config::remove, doc::remove_queue),
        get("/v1/queues/{queue}/config", NO, queue(Admin), queue_config::config, doc::get_config),
        put("/v1/queues/{queue}/config", NO, queue(Admin), queue_config::configure, doc::configure),
        patch("/v1/queues/{queue}/config", NO, queue(Admin), queue_config::change, doc::change_config),
        post("/v1/queues/{queue}/pause", NO, queue(Admin), queues::pause, doc::pause),
        post("/v1/queues/{queue}/resume", NO, queue(Admin), queues::resume, doc::resume),
        post("/v1/queues/{queue}/purge", NO, queue(Admin), queues::purge, doc::purge),
        post("/v1/queues/{queue}/redrive", NO, queue(Admin), queues::redrive, doc::redrive),

        post("/v1/queues/{queue}/bulk", NO, queue(Admin), bulk::bulk, doc_jobs::bulk),
        get("/v1/jobs", NO, several(Admin), bulk::list, doc_jobs::list),
        get("/v1/jobs/{job}", NO, several(Admin), bulk::show, doc_jobs::get),
        delete("/v1/jobs/{job}", NO, several(Admin), bulk::cancel, doc_jobs::cancel),

        get("/v1/schedules", &["after", "limit"], several(Admin), schedules::list, doc_schedules::list),
        put("/v1/schedules/{name}", NO, several(Admin), schedules::put, doc_schedules::put),
        get("/v1/schedules/{name}", NO, several(Admin), schedules::show, doc_schedules::get),
        patch("/v1/schedules/{name}", NO, several(Admin), schedules::change, doc_schedules::change),
        delete("/v1/schedules/{name}", NO, several(Admin), schedules::remove, doc_schedules::remove),
        post("/v1/schedules/{name}/trigger", NO, several(Admin), schedules::trigger, doc_schedules::trigger),
        post("/v1/schedules/{name}/backfill", NO, several(Admin), schedules::backfill, doc_schedules::backfill),
        post("/v1/schedules/preview", NO, several(Admin), schedules::preview, doc_schedules::preview),

        get("/v1/targets", &["after", "limit"], server(Admin), targets::list, doc_targets::list),
        put("/v1/targets/{name}", NO, server(Admin), targets::put, doc_targets::put),
        get("/v1/targets/{name}", NO, server(Admin), targets::show, doc_targets::get),
        delete("/v1/targets/{name}", NO, server(Admin), targets::remove, doc_targets::remove),
        post("/v1/targets/{name}/pause", NO, server(Admin), targets::pause, doc_targets::pause),
        post("/v1/targets/{name}/resume", NO, server(Admin), targets::resume, doc_targets::resume),
        post("/v1/targets/{name}/test", NO, server(Admin), targets::test, doc_targets::test),

        get("/v1/quotas", NO, several(Metrics), quota::quotas, doc::quotas),
        get("/v1/histogram", &["from", "to", "buckets"], server(Metrics), histogram::all_queues, doc::histogram_of_all),
        get("/v1/stats", NO, server(Metrics), stats::stats, doc::stats),
        get("/v1/stats/stream", NO, server(Metrics), stats::stream, doc::stats_stream),
        get("/v1/events", &["queue", "since"], several(Admin), events::events, doc_events::events),
        get("/v1/wheel", NO, server(Metrics), wheel::wheel, doc::wheel),
        get("/v1/cluster", NO, server(Metrics), cluster::cluster, doc::cluster),
        get("/v1/token", NO, AccessRule::Identified, identity::token, doc::token),
        get("/v1/tokens", NO, server(Admin), identity::tokens, doc::tokens),
        post("/v1/clock/advance", NO, server(Admin), clock::advance, doc::advance),
        post("/v1/backup", NO, server(Admin), backup::backup, doc::backup),

        get("/healthz", NO, AccessRule::Open, health::health, doc::health),
        get("/livez", NO, AccessRule::Open, health::live, doc::live),
        get("/readyz", NO, AccessRule::Open, health::ready, doc::ready),
        get("/metrics", &["queue"], server(Metrics), metrics::metrics, doc::metrics),
        get("/openapi.json", NO, AccessRule::Open, openapi, doc::openapi),
        get("/errors", NO, AccessRule::Open, errors::page, doc::errors),
        get("/", NO, AccessRule::Open, home, doc::home),
    ]
}

/// `GET /`: the dashboard for a browser, else a page that lists all routes.
async fn home(call: Call) -> Answer {
    if dashboard::is_browser(call.headers()) {
        return Ok(dashboard::page(call.headers()));
    }
    let table = table();
    Ok(home::page(table.iter().map(|route| (&route.method, route.path, route.query, route.access))))
}

/// `GET /openapi.json`, for machines.
async fn openapi(call: Call) -> Answer {
    Ok(typed(StatusCode::OK, "application/json", description(&call.app)))
}

/// The text of `openapi.json`, which is made at the first call.
pub(super) fn description(app: &App) -> Bytes {
    let security = if app.guard.is_open() { Security::Open } else { Security::Tokens };
    let make = || written(256 * 1024, &document(&app.policy, security)).into();
    app.description.get_or_init(make).clone()
}

/// The description of the whole table, as in `openapi.json`.
pub(crate) fn document(policy: &Policy, security: Security) -> Value {
    let described = |route: HttpRoute| Described {
        method: route.method,
        path: route.path,
        access: route.access,
        doc: route.doc,
    };
    openapi::document(table().into_iter().map(described), policy, security)
}

/// The router for the table, over this state.
pub(crate) fn router(app: App) -> Router {
    Unbound::new().bind(app)
}

/// The router for the table, without a state.
#[derive(Clone)]
pub(crate) struct Unbound {
    router: Router<App>,
    durations: Vec<Arc<RouteDurations>>,
}

impl Unbound {
    pub(crate) fn new() -> Self {
        let mut router = Router::new();
        let mut durations = Vec::new();
        for route in table() {
            durations.push(route.durations);
            router = router.route(route.path, route.handler);
        }
        // They are no part of the API, and not described.
        for asset in dashboard::assets() {
            let serve = move |State(app): State<App>, headers: HeaderMap| async move {
                answer(&app, Ok(asset.answer(&headers)))
            };
            router = router.route(asset.path, on(MethodFilter::GET, serve));
        }
        let router = router
            .fallback(|State(app): State<App>, uri: Uri| async move {
                answer(&app, Err(unknown_path(uri.path())))
            })
            .method_not_allowed_fallback(|State(app): State<App>, method: Method| async move {
                let detail = format!("{method} is not a method of this path; see the Allow header");
                answer(&app, Err(Problem::new(ErrorCode::MethodNotAllowed, detail)))
            });
        Unbound { router, durations }
    }

    pub(crate) fn bind(self, app: App) -> Router {
        // An app has one router.
        let _ = app.durations.set(self.durations);
        self.router.with_state(app)
    }
}

macro_rules! methods {
    ($($name:ident $method:ident),*) => {$(
        fn $name<H, F>(
            path: &'static str,
            query: &'static [&'static str],
            access: AccessRule,
            handler: H,
            doc: fn() -> OperationDoc,
        ) -> HttpRoute
        where
            H: Fn(Call) -> F + Clone + Send + Sync + 'static,
            F: Future<Output = Answer> + Send + 'static,
        {
            let durations = Arc::new(RouteDurations::new(Method::$method, path));
            let counted = Arc::clone(&durations);
            let serve = move |State(app): State<App>, request: Request| {
                let (handler, durations) = (handler.clone(), Arc::clone(&counted));
                async move {
                    let since = Instant::now();
                    let result = match Call::new(app.clone(), request, query, access).await {
                        Ok(call) => {
                            let caller = call.caller.clone();
                            handler(call).await.map_err(|problem| caller.readable(problem))
                        }
                        Err(problem) => Err(problem),
                    };
                    let response = answer(&app, result);
                    durations.count(response.status(), since.elapsed());
                    response
                }
            };
            let handler = on(MethodFilter::$method, serve);
            HttpRoute { method: Method::$method, path, query, access, doc, handler, durations }
        }
    )*};
}
methods!(get GET, post POST, put PUT, patch PATCH, delete DELETE);

fn answer(app: &App, result: Answer) -> Response {
    let response = result.unwrap_or_else(IntoResponse::into_response);
    app.count_response(response.status());
    response
}

/// An empty name in a path matches no route; it is an invalid name rather than an unknown path.
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
