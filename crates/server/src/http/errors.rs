//! `GET /errors`: what each code means, for people; the `type` of a problem names the section of its code.

use axum::http::{HeaderValue, StatusCode, header};

use super::call::Call;
use super::{Answer, typed};

/// The page, made from `docs/errors.md`: the test below compares the two, and writes the page again.
const PAGE: &str = include_str!("../../errors.html");

pub(crate) async fn page(_: Call) -> Answer {
    let mut response = typed(StatusCode::OK, "text/html; charset=utf-8", PAGE);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;

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
        let same = made() == PAGE;
        assert!(
            same,
            "DUEWHEEL_ERRORS_PAGE=write cargo test -p duewheel-server --lib http::errors writes errors.html again"
        );
    }

    #[test]
    fn problem_type_links_to_its_section() {
        for code in ErrorCode::ALL {
            let reference = code.reference();
            let anchor = reference.strip_prefix("/errors#").expect("the page");
            assert_eq!(PAGE.matches(&format!("<h2 id=\"{anchor}\">")).count(), 1, "{anchor}");
        }
    }
}
