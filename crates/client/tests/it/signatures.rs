//! `signatures`.

use std::time::{Duration, SystemTime};

use duewheel_client::Webhooks;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};

use crate::calls::{length, shown_error, text, texts};
use crate::cases::{cases, matches};

fn verified(case: &Value) -> Result<Value, duewheel_client::Error> {
    let mut headers = HeaderMap::new();
    for (name, value) in case["headers"].as_object().unwrap() {
        let value = HeaderValue::from_str(value.as_str().unwrap()).unwrap();
        headers.insert(name.parse::<HeaderName>().unwrap(), value);
    }
    let mut webhooks = Webhooks::new(&texts(&case["secrets"]))?;
    if let Some(tolerance) = length(case, "tolerance_ms") {
        webhooks = webhooks.tolerance(tolerance);
    }
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(case["now"].as_u64().unwrap());
    let webhook = webhooks.verify_at(&headers, text(case, "body").as_bytes(), now)?;
    let timestamp = webhook.timestamp.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    Ok(json!({
        "id": webhook.id, "timestamp": timestamp, "queue": webhook.queue, "key": webhook.key,
        "attempt": webhook.attempt, "due_at": webhook.due_at,
    }))
}

#[test]
fn webhooks_are_accepted_or_refused() {
    for case in cases("signatures") {
        let place = text(&case, "name");
        match (verified(&case), case.get("error")) {
            (Ok(webhook), None) => matches(&webhook, &case["result"], place),
            (Err(error), Some(wanted)) => matches(&shown_error(&error), wanted, place),
            (got, _) => panic!("{place}: {got:?}"),
        }
    }
}
