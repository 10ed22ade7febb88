//! Whether a queue that a command names exists. Over HTTP each queue does; on the command line an unknown name is most
//! likely mistyped.

use duewheel_client::{Error, segment};
use duewheel_core::QueueName;
use serde_json::Value;

use super::failure::CommandFailure;
use super::failure::is_refusal;
use super::invocation;
use super::remote::Remote;
use super::table::elements;

/// Queues of one page, and the pages that are read. Where there are more, every name counts as one that exists.
const PAGE: usize = 1_000;
const PAGES: usize = 10;
/// Names are similar if this part of them is the same.
const SIMILAR: f64 = 0.6;

/// Refuses a queue that does not exist; `otherwise` says what can be done about it.
pub(super) fn must_exist(remote: &Remote, queue: &QueueName, otherwise: &str) -> Result<(), CommandFailure> {
    match missing(remote, queue)? {
        Some(words) => Err(CommandFailure::NotFound(with(words, otherwise))),
        None => Ok(()),
    }
}

/// Notes that a queue does not exist, and `otherwise`. Trouble is left to the command.
pub(super) fn note_missing(remote: &Remote, queue: &QueueName, otherwise: &str) {
    if let Ok(Some(words)) = missing(remote, queue) {
        invocation::note(with(words, otherwise));
    }
}

/// Notes that a queue, whose answer of the server is `shown`, does not exist.
pub(super) fn note_unknown(remote: &Remote, queue: &QueueName, shown: &Value) {
    if let Ok(Some(words)) = unknown(remote, queue, shown) {
        invocation::note(words);
    }
}

fn with(words: String, otherwise: &str) -> String {
    match (otherwise.split_at_checked(1), words.ends_with('?')) {
        (None, _) => words,
        // A sentence of its own.
        (Some((first, rest)), true) => format!("{words} {}{rest}", first.to_uppercase()),
        (Some(_), false) => format!("{words}; {otherwise}"),
    }
}

/// `no queue "smss"; did you mean "sms"?` for a queue that does not exist. A caller that may not look learns nothing.
fn missing(remote: &Remote, queue: &QueueName) -> Result<Option<String>, Error> {
    let shown = remote.get(&format!("/v1/queues/{}", segment(queue.as_str())));
    match shown.and_then(|shown| unknown(remote, queue, &shown)) {
        Err(refusal) if is_refusal(&refusal) => Ok(None),
        other => other,
    }
}

/// The words for a queue that does not exist, of which the server has `shown` this.
fn unknown(remote: &Remote, queue: &QueueName, shown: &Value) -> Result<Option<String>, Error> {
    if is_in_use(shown) {
        return Ok(None);
    }
    let Some(names) = names(remote)? else { return Ok(None) };
    if names.iter().any(|name| name == queue.as_str()) {
        return Ok(None);
    }
    let known = names.iter().map(String::as_str);
    Ok(Some(match similar(queue.as_str(), known) {
        Some(name) => format!("no queue {:?}; did you mean {name:?}?", queue.as_str()),
        None => format!("no queue {:?}", queue.as_str()),
    }))
}

/// Whether a queue has or had messages or consumers, or is paused. Others may exist as well, such as one with settings.
fn is_in_use(queue: &Value) -> bool {
    let mut numbers = ["counts", "totals"].into_iter().filter_map(|name| queue[name].as_object());
    let has_number = numbers.any(|all| all.values().any(|number| number.as_u64().unwrap_or(0) > 0));
    has_number || queue["paused"] == true || queue["attended"] == true
}

/// The names of all queues that the caller may see; `None` if there are too many.
fn names(remote: &Remote) -> Result<Option<Vec<String>>, Error> {
    let (mut names, mut after) = (Vec::new(), String::new());
    for _ in 0..PAGES {
        let page = remote.get(&format!("/v1/queues?limit={PAGE}{after}"))?;
        names
            .extend(elements(&page, "queues").filter_map(|queue| queue["queue"].as_str().map(str::to_owned)));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={}", segment(next)),
            None => return Ok(Some(names)),
        }
    }
    Ok(None)
}

/// The most similar of these names, if one is similar.
fn similar<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |known: &str| strsim::normalized_damerau_levenshtein(name, known);
    let best = known.map(|known| (likeness(known), known)).max_by(|(a, _), (b, _)| a.total_cmp(b));
    best.filter(|(likeness, _)| *likeness >= SIMILAR).map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Story: a queue whose messages were all done counted as one that does not exist.
    #[test]
    fn drained_queue_is_in_use() {
        let shown = |paused: bool, attended: bool, acked: u64| {
            serde_json::json!({
                "counts": {"scheduled": 0, "ready": 0, "leased": 0, "dead": 0}, "paused": paused,
                "attended": attended, "totals": {"enqueued": acked, "acked": acked},
            })
        };
        assert!(!is_in_use(&shown(false, false, 0)));
        for queue in [shown(true, false, 0), shown(false, true, 0), shown(false, false, 1)] {
            assert!(is_in_use(&queue), "{queue}");
        }
    }

    #[test]
    fn only_similar_names_are_suggested() {
        let known = ["sms", "orders", "close-review"];
        let told = |name| similar(name, known.into_iter());
        assert_eq!(told("smss"), Some("sms"));
        assert_eq!(told("odrers"), Some("orders"));
        assert_eq!(told("closereview"), Some("close-review"));
        assert_eq!(told("mail"), None);
        assert_eq!(similar("sms", std::iter::empty()), None);
    }
}
