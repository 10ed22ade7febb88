//! `GET /`: a page of text for a person who has found the port.

use std::fmt::Write as _;

use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;

use super::typed;
use crate::auth::AccessRule;

const BEGINNING: &str = concat!(
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>duewheel</title>\n<h1>duewheel ",
    env!("CARGO_PKG_VERSION"),
    "</h1>\n<p>Durable delayed messages. Schedule one:</p>\n",
    "<pre>curl http://HOST:PORT/v1/queues/greetings/messages -d '{\"body\": \"hello\", \"delay\": \"10s\"}'</pre>\n",
    "<p>Every call, with the scope that a token needs where tokens are asked for; also in ",
    "<a href=\"/openapi.json\">/openapi.json</a>:</p>\n<pre>\n",
);

/// The page, with a line for each call: its method, path, query parameters and access.
pub(crate) fn page<'a>(
    calls: impl Iterator<Item = (&'a Method, &'static str, &'static [&'static str], AccessRule)>,
) -> Response {
    let mut page = BEGINNING.to_owned();
    for (method, path, query, access) in calls {
        let query = if query.is_empty() { String::new() } else { format!("?{}=", query.join("=&")) };
        let scope = match access {
            AccessRule::Open | AccessRule::Identified => "",
            AccessRule::Needs(scope, _) => scope.as_str(),
        };
        let _ = writeln!(page, "{scope:9}{:7} {path}{query}", method.as_str());
    }
    page.push_str("</pre>\n");
    let mut response = typed(StatusCode::OK, "text/html; charset=utf-8", page);
    let headers = response.headers_mut();
    // A browser gets the dashboard at the same address.
    headers.insert(header::VARY, HeaderValue::from_static("accept"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
