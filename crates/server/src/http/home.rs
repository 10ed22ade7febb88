//! `GET /` for a person who has found the port, and `GET /openapi.json` for machines.

use std::fmt::Write as _;

use axum::http::StatusCode;

use super::call::Call;
use super::openapi::{Security, document};
use super::{Answer, routes, typed};
use crate::auth::Access;
use crate::json::written;

const BEGINNING: &str = concat!(
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>duewheel</title>\n<h1>duewheel ",
    env!("CARGO_PKG_VERSION"),
    "</h1>\n<p>Durable delayed messages. Schedule one:</p>\n",
    "<pre>curl http://HOST:PORT/v1/queues/greetings/messages -d '{\"body\": \"hello\", \"delay\": \"10s\"}'</pre>\n",
    "<p>Every call, with the scope that a token needs where tokens are asked for; also in ",
    "<a href=\"/openapi.json\">/openapi.json</a>:</p>\n<pre>\n",
);

pub(crate) async fn home(_: Call) -> Answer {
    let mut page = BEGINNING.to_owned();
    for route in routes::table() {
        let query =
            if route.query.is_empty() { String::new() } else { format!("?{}=", route.query.join("=&")) };
        let scope = match route.access {
            Access::Open => "",
            Access::Needs(scope, _) => scope.as_str(),
        };
        let _ = writeln!(page, "{scope:9}{:7} {}{query}", route.method.as_str(), route.path);
    }
    page.push_str("</pre>\n");
    Ok(typed(StatusCode::OK, "text/html; charset=utf-8", page))
}

pub(crate) async fn openapi(call: Call) -> Answer {
    let security = if call.app.guard.is_open() { Security::Open } else { Security::Tokens };
    let make = || written(256 * 1024, &document(&call.app.policy, security)).into();
    let made = call.app.description.get_or_init(make).clone();
    Ok(typed(StatusCode::OK, "application/json", made))
}
