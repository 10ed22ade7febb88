//! Paths that match no route, and what probably was meant.

use std::borrow::Cow;

use crate::error::{ErrorCode, Problem};

/// The longest path that is suggested.
const LONGEST: usize = 2_048;

/// The problem of a path that is none of `routes`. An empty name in it is an invalid name rather than an unknown path.
pub(super) fn path(path: &str, routes: &[&str]) -> Problem {
    let segments: Vec<&str> = path.split('/').collect();
    match segments.as_slice() {
        ["", "v1", "queues", "", _, ..] => Problem::field("queue", "must not be empty"),
        ["", "v1", "queues", _, "keys", ""] | ["", "v1", "queues", _, "keys", "", _] => {
            Problem::field("key", "must not be empty")
        }
        segments => {
            let meant = segments.strip_prefix(&["", "v1", "queues"]).and_then(|rest| escaped(rest, routes));
            let detail = match meant {
                Some(meant) => {
                    format!("a / in the name of a queue or in a key is written %2F: /v1/queues/{meant}")
                        .into()
                }
                None => Cow::Borrowed("there is nothing at this path; GET / names what there is"),
            };
            Problem::new(ErrorCode::NotFound, detail)
        }
    }
}

/// The rest of the path behind `/v1/queues/` with the slashes of a queue or a key escaped, if it has some. A call of a
/// queue has one segment behind its name; one of a key has `keys`, the key, and perhaps `fire`.
fn escaped(segments: &[&str], routes: &[&str]) -> Option<String> {
    let is_call =
        |word: &str| routes.iter().any(|route| route.strip_prefix("/v1/queues/{queue}/") == Some(word));
    let keys = segments.iter().skip(1).position(|segment| *segment == "keys").map(|at| at + 1);
    let meant = match (segments, keys.map(|at| (&segments[..at], &segments[at + 1..]))) {
        (_, Some((queue, [key @ .., "fire"]))) if !key.is_empty() => {
            format!("{}/keys/{}/fire", queue.join("%2F"), key.join("%2F"))
        }
        (_, Some((queue, key @ [_, ..]))) => format!("{}/keys/{}", queue.join("%2F"), key.join("%2F")),
        ([queue @ .., call], _) if is_call(call) => format!("{}/{call}", queue.join("%2F")),
        _ => return None,
    };
    let is_other = meant.split('/').count() < segments.len() && !segments.contains(&"");
    (is_other && meant.len() <= LONGEST).then_some(meant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unescaped_slashes_are_told_apart() {
        let routes =
            ["/v1/queues/{queue}/messages", "/v1/queues/{queue}", "/v1/queues/{queue}/keys/{key}/fire"];
        for (asked, meant) in [
            ("shop/mail/messages", Some("shop%2Fmail/messages")),
            ("shop/mail", None),
            ("a/b/c/messages", Some("a%2Fb%2Fc/messages")),
            ("shop/mail/keys/k", Some("shop%2Fmail/keys/k")),
            ("shop/keys/order/7", Some("shop/keys/order%2F7")),
            ("shop/keys/order/7/fire", Some("shop/keys/order%2F7/fire")),
            ("shop/mail/keys/order/7/fire", Some("shop%2Fmail/keys/order%2F7/fire")),
            ("shop/mail/keys", None),
            ("shop%20/mail/messages", Some("shop%20%2Fmail/messages")),
            ("shop/message", None),
            ("shop//messages", None),
            ("shop/mail/", None),
            ("shop", None),
        ] {
            let segments: Vec<&str> = asked.split('/').collect();
            assert_eq!(escaped(&segments, &routes).as_deref(), meant, "{asked}");
        }
        let long = "a/".repeat(1_000) + "messages";
        assert!(path(&format!("/v1/queues/{long}"), &routes).detail.starts_with("there is nothing"));
        let told = path("/v1/queues/shop/mail/messages", &routes).detail;
        assert_eq!(
            told,
            "a / in the name of a queue or in a key is written %2F: /v1/queues/shop%2Fmail/messages"
        );
    }
}
