//! `signatures`.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
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
    let body = match case["body_base64"].as_str() {
        Some(encoded) => STANDARD.decode(encoded).unwrap(),
        None => text(case, "body").into(),
    };
    let webhook = webhooks.verify_at(&headers, &body, now)?;
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
