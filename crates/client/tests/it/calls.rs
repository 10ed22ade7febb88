//! The calls of the cases, as calls of the client.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use duewheel_client::{
    Error, LeasedMessage, MessageRef, Nack, NewMessage, PastDue, Postponement, Reserving, TakenKey, Timestamp,
};
use serde::Serialize;
use serde_json::{Value, json};

pub(crate) fn text<'a>(args: &'a Value, name: &str) -> &'a str {
    args[name].as_str().unwrap_or_default()
}

pub(crate) fn length(args: &Value, name: &str) -> Option<Duration> {
    args[name].as_u64().map(Duration::from_millis)
}

pub(crate) fn texts(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn number(args: &Value, name: &str) -> Option<u32> {
    args[name].as_u64().map(|n| u32::try_from(n).unwrap())
}

fn instant(args: &Value, name: &str) -> Option<SystemTime> {
    let text = args.get(name)?;
    Some(serde_json::from_value::<Timestamp>(text.clone()).unwrap().0)
}

fn headers(args: &Value) -> Option<BTreeMap<String, String>> {
    serde_json::from_value(args.get("headers")?.clone()).unwrap()
}

/// A request with what is there.
macro_rules! filled {
    ($request:expr, $($set:ident($value:expr);)*) => {{
        let request = $request;
        $(let request = match $value { Some(value) => request.$set(value), None => request };)*
        request
    }};
}

pub(crate) fn new_message(args: &Value) -> NewMessage {
    let if_exists = args["if_exists"].as_str().map(|word| match word {
        "keep" => TakenKey::Keep,
        "replace" => TakenKey::Replace,
        "supersede" => TakenKey::Supersede,
        _ => TakenKey::Reject,
    });
    let bytes = args["body_base64"].as_str().map(|text| STANDARD.decode(text).unwrap());
    let message = filled! {
        NewMessage::default(),
        body(args["body"].as_str());
        bytes(bytes.as_deref());
        delay(length(args, "delay_ms"));
        due_at(instant(args, "due_at"));
        past((args["past"] == "fire").then_some(PastDue::Fire));
        key(args["key"].as_str());
        if_exists(if_exists);
        dedupe_id(args["dedupe_id"].as_str());
        dedupe_window(length(args, "dedupe_window_ms"));
        priority(number(args, "priority"));
        max_attempts(number(args, "max_attempts"));
        headers(headers(args));
    };
    match args.get("json") {
        Some(json) => message.json(json).unwrap(),
        None => message,
    }
}

pub(crate) fn new_messages(args: &Value) -> Vec<NewMessage> {
    args["messages"].as_array().unwrap().iter().map(new_message).collect()
}

pub(crate) fn lease(message: &Value) -> LeasedMessage {
    serde_json::from_value(message.clone()).unwrap()
}

pub(crate) fn leases(args: &Value) -> Vec<LeasedMessage> {
    args["messages"].as_array().unwrap().iter().map(lease).collect()
}

pub(crate) fn results(args: &Value) -> Vec<Option<Value>> {
    let list = args["results"].as_array().into_iter().flatten();
    list.map(|result| (!result.is_null()).then(|| result.clone())).collect()
}

pub(crate) fn nack(args: &Value) -> Nack {
    filled! {
        Nack::default(),
        delay(length(args, "delay_ms"));
        reason(args["reason"].as_str());
        dead(args["dead"].as_bool());
        attempt(args["attempt"].as_bool());
    }
}

pub(crate) fn change(args: &Value) -> Postponement {
    filled! {
        Postponement::default(),
        delay(length(args, "delay_ms"));
        body(args["body"].as_str());
        priority(number(args, "priority"));
        if_generation(args["if_generation"].as_u64());
    }
}

pub(crate) fn reserving(args: &Value) -> Reserving {
    filled! {
        Reserving::default(),
        max(args["max"].as_u64().map(|max| usize::try_from(max).unwrap()));
        wait(length(args, "wait_ms"));
        lease(length(args, "lease_ms"));
    }
}

pub(crate) fn named(args: &Value) -> MessageRef {
    match args["id"].as_str() {
        Some(id) => MessageRef::id(id),
        None => MessageRef::key(text(args, "queue"), text(args, "key")),
    }
}

/// An answer as a case names it.
pub(crate) fn shown(answer: impl Serialize) -> Value {
    with_bodies(serde_json::to_value(answer).unwrap())
}

fn with_bodies(mut value: Value) -> Value {
    if let Some(list) = value.get_mut("messages").and_then(Value::as_array_mut) {
        list.iter_mut().for_each(|one| *one = with_bodies(one.take()));
    }
    let Some(message) = value.as_object_mut().filter(|fields| fields.contains_key("body_base64")) else {
        return value;
    };
    let message_view: duewheel_client::MessageView =
        serde_json::from_value(Value::Object(message.clone())).unwrap();
    let bytes = message_view.bytes();
    message.insert("body_base64".into(), STANDARD.encode(&bytes).into());
    message.insert("json".into(), message_view.json().unwrap_or_default());
    value
}

pub(crate) fn shown_error(error: &Error) -> Value {
    let mut shown = json!({
        "code": error.code.as_str(), "status": error.status,
        "outcome": if error.may_be_applied { "unknown" } else { "not_applied" },
        "retry_after_ms": error.retry_after.map(|after| u64::try_from(after.as_millis()).unwrap()),
    });
    for name in ["field", "existing_id", "state"] {
        shown[name] = error.text(name).into();
    }
    shown["generation"] = error.number("generation").into();
    shown
}

pub(crate) fn each<T: Serialize>(results: Vec<Result<T, Error>>) -> Value {
    let one = |result| match result {
        Ok(answer) => shown(answer),
        Err(error) => json!({"error": shown_error(&error)}),
    };
    json!({"results": results.into_iter().map(one).collect::<Vec<_>>()})
}

/// The answer to a call of a case. Behind the client stands what waits for it: `.await`, or nothing.
macro_rules! perform {
    ($client:expr, $name:expr, $args:expr, $($wait:tt)*) => {{
        let (client, args): (_, &serde_json::Value) = ($client, $args);
        let queue = text(args, "queue");
        match $name {
            "enqueue" => shown(client.enqueue(queue, new_message(args))$($wait)*?),
            "enqueue_many" => each(client.enqueue_many(queue, new_messages(args))$($wait)*?),
            "get" => shown(client.get(&named(args))$($wait)*?),
            "cancel" if args["forget_dedupe"] == true => shown(client.cancel_and_forget(&named(args))$($wait)*?),
            "cancel" => shown(client.cancel(&named(args))$($wait)*?),
            "cancel_many" => each(client.cancel_many(queue, &texts(&args["keys"]))$($wait)*?),
            "postpone" => shown(client.postpone(&named(args), &change(args))$($wait)*?),
            "fire" => shown(client.fire(&named(args))$($wait)*?),
            "replay" => shown(client.replay(text(args, "id"), None)$($wait)*?),
            "reserve" => shown(client.reserve(&texts(&args["queues"]), &reserving(args))$($wait)*?),
            "ack" => shown(client.ack(&lease(&args["message"]), args.get("result"))$($wait)*?),
            "nack" => shown(client.nack(&lease(&args["message"]), &nack(args))$($wait)*?),
            "extend" => shown(client.extend(&lease(&args["message"]), length(args, "lease_ms"))$($wait)*?),
            "ack_many" => each(client.ack_many(&leases(args), &results(args))$($wait)*?),
            "nack_many" => each(client.nack_many(&leases(args), &nack(args))$($wait)*?),
            "extend_many" => each(client.extend_many(&leases(args), length(args, "lease_ms"))$($wait)*?),
            "list" => {
                let limit = usize::try_from(args["limit"].as_u64().unwrap()).unwrap();
                let filter = [("state", text(args, "state"))];
                shown(client.list(queue, limit, args["after"].as_str(), &filter)$($wait)*?)
            }
            "queue" => shown(client.queue(queue)$($wait)*?),
            "configure" => client.configure(queue, &args["settings"])$($wait)*?,
            "redrive" => serde_json::json!({"redriven": client.redrive(queue, None)$($wait)*?}),
            "advance" => client.advance(length(args, "by_ms").unwrap())$($wait)*?,
            other => panic!("there is no call {other}"),
        }
    }};
}
pub(crate) use perform;
