//! Pages for people: the list of calls at `/`, the errors, and the dashboard.

use std::fmt::Write as _;
use std::sync::OnceLock;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use ring::digest::{SHA256, digest};

use super::call::Call;
use super::openapi::Described;
use super::{Answer, typed};
use crate::auth::{AccessRule, Scope};

const BEGINNING: &str = concat!(
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>duewheel</title>\n<h1>duewheel ",
    env!("CARGO_PKG_VERSION"),
    "</h1>\n<p>Durable delayed messages. Schedule one:</p>\n",
    "<pre>curl http://HOST:PORT/v1/queues/greetings/messages -d '{\"body\": \"hello\", \"delay\": \"10s\"}'</pre>\n",
    "<p>Every call, with the scope that a token needs where tokens are asked for; also in ",
    "<a href=\"/openapi.json\">/openapi.json</a>:</p>\n<pre>\n",
);

/// The page, with a line for each call: its method, path, query parameters and access.
pub(crate) fn list_of_calls(calls: impl Iterator<Item = Described>) -> Response {
    let mut page = BEGINNING.to_owned();
    for Described { method, path, query, access, doc: _ } in calls {
        let names: Vec<&str> = query.iter().map(|parameter| parameter.name).collect();
        let query = if query.is_empty() { String::new() } else { format!("?{}=", names.join("=&")) };
        let scope = match access {
            AccessRule::Open | AccessRule::Identified => String::new(),
            AccessRule::Needs(scopes, _) => Scope::either(scopes),
        };
        let _ = writeln!(page, "{scope:18}{:7} {path}{query}", method.as_str());
    }
    page.push_str("</pre>\n");
    let mut response = typed(StatusCode::OK, "text/html; charset=utf-8", page);
    let headers = response.headers_mut();
    // A browser gets the dashboard at the same address.
    headers.insert(header::VARY, HeaderValue::from_static("accept"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// The page, made from `docs/errors.md`: the test below compares the two, and writes the page again.
const ERRORS: &str = include_str!("../../errors.html");

pub(crate) async fn errors(_: Call) -> Answer {
    let mut response = typed(StatusCode::OK, "text/html; charset=utf-8", ERRORS);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Ok(response)
}

/// The browser may only load and run what comes from this server, and no other page may frame this one (Content
/// Security Policy Level 3; Trusted Types).
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'";

/// A file of the dashboard.
pub(crate) struct Asset {
    /// The path at which it is served.
    pub(crate) path: &'static str,
    content_type: &'static str,
    content: &'static str,
    etag: OnceLock<HeaderValue>,
}

macro_rules! assets {
    ($($name:ident $path:literal $file:literal $content_type:literal;)*) => {$(
        static $name: Asset = Asset {
            path: $path,
            content_type: $content_type,
            content: include_str!(concat!("../../dashboard/", $file)),
            etag: OnceLock::new(),
        };
    )*
        /// All files but the page itself, which is at `/`.
        pub(crate) fn assets() -> impl Iterator<Item = &'static Asset> {
            [$(&$name),*].into_iter().filter(|asset| asset.path != "/")
        }
    };
}

assets! {
    PAGE "/" "index.html" "text/html; charset=utf-8";
    STYLE "/ui/style.css" "style.css" "text/css; charset=utf-8";
    ICON "/ui/icon.svg" "icon.svg" "image/svg+xml";
    MAIN "/ui/main.js" "main.js" "text/javascript; charset=utf-8";
    API "/ui/api.js" "api.js" "text/javascript; charset=utf-8";
    ADDRESS "/ui/address.js" "address.js" "text/javascript; charset=utf-8";
    DOM "/ui/dom.js" "dom.js" "text/javascript; charset=utf-8";
    FORMAT "/ui/format.js" "format.js" "text/javascript; charset=utf-8";
    CHARTS "/ui/charts.js" "charts.js" "text/javascript; charset=utf-8";
    ACTS "/ui/acts.js" "acts.js" "text/javascript; charset=utf-8";
    OVERVIEW "/ui/overview.js" "overview.js" "text/javascript; charset=utf-8";
    ZOOM "/ui/zoom.js" "zoom.js" "text/javascript; charset=utf-8";
    TABLES "/ui/tables.js" "tables.js" "text/javascript; charset=utf-8";
    QUEUES "/ui/queues.js" "queues.js" "text/javascript; charset=utf-8";
    MESSAGES "/ui/messages.js" "messages.js" "text/javascript; charset=utf-8";
    AUDIT "/ui/audit.js" "audit.js" "text/javascript; charset=utf-8";
    ATTENTION "/ui/attention.js" "attention.js" "text/javascript; charset=utf-8";
    CRON "/ui/cron.js" "cron.js" "text/javascript; charset=utf-8";
    HISTORY "/ui/history.js" "history.js" "text/javascript; charset=utf-8";
    QUEUE "/ui/queue.js" "queue.js" "text/javascript; charset=utf-8";
    STACK "/ui/stack.js" "stack.js" "text/javascript; charset=utf-8";
    SETTINGS "/ui/settings.js" "settings.js" "text/javascript; charset=utf-8";
    SCHEDULES "/ui/schedules.js" "schedules.js" "text/javascript; charset=utf-8";
    JOBS "/ui/jobs.js" "jobs.js" "text/javascript; charset=utf-8";
    TARGETS "/ui/targets.js" "targets.js" "text/javascript; charset=utf-8";
    SERVER "/ui/server.js" "server.js" "text/javascript; charset=utf-8";
    WORDS "/ui/words.js" "words.js" "text/javascript; charset=utf-8";
    TEXTS "/ui/texts.js" "texts.js" "text/javascript; charset=utf-8";
}

/// Whether a request for `/` comes from a browser, which asks for HTML by name.
pub(crate) fn is_browser(headers: &HeaderMap) -> bool {
    headers.get_all(header::ACCEPT).iter().any(|accept| {
        accept.as_bytes().split(|b| *b == b',').any(|kind| {
            let kind = kind.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
            kind.eq_ignore_ascii_case(b"text/html")
        })
    })
}

/// The page of the dashboard.
pub(crate) fn dashboard(headers: &HeaderMap) -> Response {
    PAGE.answer(headers)
}

impl Asset {
    /// The answer with the file, or 304 for a browser that has it already.
    pub(crate) fn answer(&self, asked: &HeaderMap) -> Response {
        let etag = self.etag.get_or_init(|| etag(self.content));
        let known = asked.get_all(header::IF_NONE_MATCH).iter().any(|tags| {
            tags.as_bytes().split(|b| *b == b',').any(|tag| {
                let tag = tag.trim_ascii();
                tag == b"*" || tag.strip_prefix(b"W/").unwrap_or(tag) == etag.as_bytes()
            })
        });
        let mut response = Response::new(if known {
            Body::empty()
        } else {
            Body::from(Bytes::from_static(self.content.as_bytes()))
        });
        if known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        headers.insert(header::ETAG, etag.clone());
        // A browser asks each time, and usually learns that nothing has changed.
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(header::VARY, HeaderValue::from_static("accept"));
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        response
    }
}

/// A strong validator: the beginning of the content's hash.
fn etag(content: &str) -> HeaderValue {
    let hash = digest(&SHA256, content.as_bytes());
    let text: String = hash.as_ref().iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    HeaderValue::from_str(&format!("\"{text}\"")).unwrap_or_else(|_| HeaderValue::from_static("\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;
    use std::collections::BTreeSet;

    /// A part of the page: the few forms that `docs/errors.md` has.
    fn block(text: &str) -> String {
        if let Some(code) = text.strip_prefix("```json\n").and_then(|text| text.strip_suffix("```")) {
            return format!("<pre>{}</pre>\n", escaped(code));
        }
        if let Some(title) = text.strip_prefix("# ") {
            return format!("<h1>{}</h1>\n", inline(title));
        }
        if let Some(title) = text.strip_prefix("## ") {
            let anchor = title.strip_prefix('`').and_then(|code| code.split('`').next());
            let id = anchor.map(|code| format!(" id=\"{code}\"")).unwrap_or_default();
            return format!("<h2{id}>{}</h2>\n", inline(title));
        }
        if text.starts_with('|') {
            let rows = text.lines().filter(|line| !line.starts_with("|---")).map(|line| {
                let cells =
                    line.trim_matches('|').split('|').map(|cell| format!("<td>{}", inline(cell.trim())));
                format!("<tr>{}\n", cells.collect::<String>())
            });
            return format!("<table>\n{}</table>\n", rows.collect::<String>());
        }
        format!("<p>{}\n", inline(text))
    }

    fn escaped(text: &str) -> String {
        text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
    }

    /// Code, and the text of links: the pages that they lead to are not served.
    fn inline(text: &str) -> String {
        let parts = text.split('`').enumerate();
        let part = |(n, part): (usize, &str)| match n % 2 {
            0 => without_links(&escaped(part)),
            _ => format!("<code>{}</code>", escaped(part)),
        };
        parts.map(part).collect()
    }

    fn without_links(text: &str) -> String {
        let Some((before, rest)) = text.split_once('[') else { return text.to_owned() };
        let (name, rest) = rest.split_once("](").expect("a link");
        let (_, rest) = rest.split_once(')').expect("a link");
        format!("{before}{name}{}", without_links(rest))
    }

    fn made() -> String {
        let beginning =
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>duewheel: errors</title>\n";
        let blocks = include_str!("../../../../docs/errors.md").split("\n\n");
        blocks.map(|text| block(text.trim())).fold(beginning.to_owned(), |page, block| page + &block)
    }

    #[test]
    fn errors_page_matches_documentation() {
        if std::env::var_os("DUEWHEEL_ERRORS_PAGE").is_some_and(|word| word == "write") {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/errors.html");
            return std::fs::write(path, made()).expect("errors.html");
        }
        let same = made() == ERRORS;
        assert!(
            same,
            "DUEWHEEL_ERRORS_PAGE=write cargo test -p duewheel-server-lib --lib http::home writes errors.html again"
        );
    }

    #[test]
    fn problem_type_links_to_its_section() {
        for code in ErrorCode::ALL {
            let reference = code.reference();
            let anchor = reference.strip_prefix("/errors#").expect("the page");
            assert_eq!(ERRORS.matches(&format!("<h2 id=\"{anchor}\">")).count(), 1, "{anchor}");
        }
    }

    fn asked(name: header::HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn browser_is_recognised_by_accept_header() {
        for (accept, browser) in [
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", true),
            ("application/json, TEXT/HTML;q=0.5", true),
            ("*/*", false),
            ("application/json", false),
            ("text/htmlx", false),
        ] {
            assert_eq!(is_browser(&asked(header::ACCEPT, accept)), browser, "{accept}");
        }
        assert!(!is_browser(&HeaderMap::new()));
    }

    #[test]
    fn cached_dashboard_file_is_not_resent() {
        let etag = PAGE.answer(&HeaderMap::new()).headers()[header::ETAG].to_str().expect("text").to_owned();
        for (known, status) in [(etag.clone(), 304), (format!("\"x\", W/{etag}"), 304), ("\"x\"".into(), 200)]
        {
            let mut headers = HeaderMap::new();
            headers.insert(header::IF_NONE_MATCH, known.parse().expect("a value"));
            let answer = PAGE.answer(&headers);
            assert_eq!(answer.status(), status, "{known}");
            assert_eq!(answer.headers()[header::CONTENT_SECURITY_POLICY], POLICY);
        }
    }

    /// The dashboard stays small (204 KiB), and all files that it imports exist.
    #[test]
    fn dashboard_files_are_small_and_complete() {
        let all: Vec<&Asset> = assets().chain([&PAGE]).collect();
        let bytes: usize = all.iter().map(|asset| asset.content.len()).sum();
        assert!(bytes <= 204 * 1024, "{bytes} bytes");
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/dashboard.md");
        let told = format!("modules, {} KiB in all", (bytes + 512) / 1_024);
        assert!(std::fs::read_to_string(page).unwrap().contains(&told), "docs/dashboard.md says: {told}");
        let paths: BTreeSet<&str> = all.iter().map(|asset| asset.path).collect();
        let mut named = 0;
        for asset in &all {
            for quoted in
                asset.content.split('"').filter(|text| text.starts_with("./") || text.starts_with("/ui/"))
            {
                let path = quoted.strip_prefix("./").map_or(quoted.to_owned(), |name| format!("/ui/{name}"));
                assert!(paths.contains(path.as_str()), "{} names {quoted}", asset.path);
                named += 1;
            }
        }
        assert!(named > all.len(), "{named} names");
    }

    /// Data is inserted only as text; the policy requires it, too.
    #[test]
    fn no_script_makes_markup_of_text() {
        for asset in assets() {
            for word in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("]
            {
                assert!(!asset.content.contains(word), "{}: {word}", asset.path);
            }
        }
    }
}
