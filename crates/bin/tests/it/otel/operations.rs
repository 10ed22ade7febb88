//! Spans of requests, and what travels with a message where none are made.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::collector::{Collector, SpanKind};
use super::{CALLER, TRACE, Traced, caller};
use crate::hook::Hook;
use crate::process::Process;

#[test]
fn receive_and_settle_link_to_creations() {
    let collector = Collector::start();
    let server = Traced::start(&collector);
    let first = server.enqueue("orders", &caller("01"), &json!({"body": "a"}));
    let second = server.enqueue("orders", "", &json!({"body": "b"}));
    let sends = [collector.of("send orders", &first), collector.of("send orders", &second)];
    let links = vec![sends[0].link(), sends[1].link()];

    let path = "/v1/queues/orders/reserve";
    let (_, got) = server.server.call_with("POST", path, &caller("01"), r#"{"max": 5}"#);
    let receive = collector.span("receive orders", ("messaging.batch.message_count", "2"));
    assert_eq!((receive.kind, &*receive.trace, &*receive.parent), (SpanKind::Server, TRACE, CALLER));
    assert_eq!((receive.links, receive.attributes.get("messaging.message.id")), (links.clone(), None));
    assert_eq!(receive.attributes["messaging.operation.type"], "receive");

    let lease = |n: usize| got["messages"][n]["lease_token"].clone();
    let token = json!({"lease_token": lease(0)}).to_string();
    let path = format!("/v1/messages/{first}");
    assert_eq!(server.server.call_with("POST", &format!("{path}/extend"), &caller("01"), &token).0, 200);
    let extend = collector.span("settle orders", ("duewheel.settlement", "extend"));
    assert_eq!((extend.kind, &*extend.parent, &extend.links[..]), (SpanKind::Server, CALLER, &links[..1]));
    assert_eq!(server.server.call("POST", &format!("{path}/nack"), &token).0, 200);
    let nack = collector.span("settle orders", ("duewheel.settlement", "nack"));
    // Without a caller it is a trace of its own, which is recorded because the creation was.
    assert_eq!((&*nack.parent, &nack.links[..]), ("", &links[..1]));
    assert_eq!(nack.attribute("messaging.message.id"), Some(&*first));
    // The lease is gone.
    assert_eq!(server.server.call("POST", &format!("{path}/ack"), &token).0, 409);
    let late = collector.span("settle orders", ("error.type", "lease_lost"));
    assert!(late.is_error && late.attribute("duewheel.settlement") == Some("ack"), "{late:?}");

    let both = json!({"messages": [{"id": second, "lease_token": lease(1)}]}).to_string();
    assert_eq!(server.server.call("POST", "/v1/ack", &both).0, 200);
    let ack = collector.span("settle orders", ("messaging.batch.message_count", "1"));
    assert_eq!((ack.is_error, &ack.links[..]), (false, &links[1..]));
}

/// A consumer that polls would fill the collector with spans of nothing.
#[test]
fn empty_receive_span_needs_sampled_caller() {
    let collector = Collector::start();
    let server = Traced::start(&collector);
    let reserve = |head: &str| server.server.call_with("POST", "/v1/queues/q/reserve", head, "{}");
    assert_eq!(reserve("").0, 200);
    assert_eq!(reserve(&caller("01")).0, 200);
    collector.span("receive q", ("messaging.batch.message_count", "0"));
    assert_eq!(collector.spans().len(), 1);
}

#[test]
fn messages_on_lines_have_one_span() {
    let collector = Collector::start();
    let server = Traced::start(&collector);
    let head = format!("{}content-type: application/x-ndjson\r\n", caller("01"));
    // More than one slice: the answer is sent in parts, and the span ends with it.
    let lines = "{\"body\": \"a\", \"delay\": \"0s\"}\n".repeat(1_001);
    assert_eq!(server.server.call_with("POST", "/v1/queues/orders/messages", &head, &lines).0, 200);
    let send = collector.span("send orders", ("messaging.batch.message_count", "1001"));
    assert_eq!(&*send.parent, CALLER);
    let (_, got) = server.server.call("POST", "/v1/queues/orders/reserve", r#"{"max": 200}"#);
    assert_eq!(got["messages"][0]["headers"]["traceparent"], send.context());
    let receive = collector.span("receive orders", ("messaging.batch.message_count", "200"));
    assert_eq!(receive.links, vec![send.link(); 128], "as many as a span may have");
    let few = "{\"body\": \"a\", \"delay\": \"0s\"}\n";
    server.server.call_with("POST", "/v1/queues/orders/messages", &head, few);
    collector.span("send orders", ("messaging.batch.message_count", "1"));
    let (status, _) = server.server.call("POST", "/v1/queues/orders/messages", r#"{"body": "no time"}"#);
    assert_eq!(status, 400);
    assert!(collector.span("send orders", ("error.type", "bad_request")).is_error);
}

/// Without a collector the context of the caller travels, and a message of a caller without one is as it was.
#[test]
fn caller_trace_context_travels_without_collector() {
    let (data, hook) = (TempDir::new().expect("folder"), Hook::well());
    let server = Traced { server: Process::start(data.path(), &[]), _data: data };
    let headers =
        |id: &str| server.server.call("GET", &format!("/v1/messages/{id}"), "").1["headers"].clone();
    let plain = server.enqueue("orders", "", &json!({"body": "x", "headers": {"a": "b"}}));
    assert_eq!(headers(&plain), json!({"a": "b"}));
    let head = format!("{}tracestate: a=1\r\n", caller("01"));
    let parent = format!("00-{TRACE}-{CALLER}-01");
    let known = server.enqueue("orders", &head, &json!({"body": "x", "headers": {"a": "b"}}));
    assert_eq!(headers(&known), json!({"a": "b", "traceparent": parent, "tracestate": "a=1"}));
    for odd in ["traceparent: nonsense\r\n".to_owned(), caller("01").repeat(2)] {
        let id = server.enqueue("orders", &odd, &json!({"body": "x"}));
        assert_eq!(headers(&id), json!({}), "{odd}");
    }
    // Each try of a client has a span of its own, and is the same enqueue.
    let once = json!({"body": "x", "dedupe_id": "once"});
    let first = server.enqueue("orders", &head, &once);
    assert_eq!(server.enqueue("orders", "", &once), first);
    assert_eq!(server.enqueue("orders", &caller("00"), &once), first);
    // A caller's header is never why a message is refused.
    let full = "x".repeat(16 * 1024 - 1);
    let id = server.enqueue("orders", &head, &json!({"body": "x", "headers": {"a": full}}));
    assert_eq!(headers(&id).as_object().map(serde_json::Map::len), Some(1));
    assert!(!server.server.text("/metrics").contains("duewheel_otel"));

    server.deliver("hooked", &hook);
    server.enqueue("hooked", &head, &json!({"body": "x"}));
    let got = hook.until("it is delivered", |got| !got.is_empty()).remove(0);
    assert_eq!((got.header("traceparent"), got.header("tracestate")), (&*parent, "a=1"));
    assert_eq!(got.header("duewheel-creation-traceparent"), "");
}

#[test]
fn queue_trace_setting_survives_restart() {
    let data = TempDir::new().expect("folder");
    let server = Process::start(data.path(), &[]);
    let (_, set) = server.call("PATCH", "/v1/queues/q/config", r#"{"trace": "child"}"#);
    assert_eq!(set["config"]["trace"], "child");
    let address = server.url.trim_start_matches("http://").to_owned();
    let server = server.killed_and_restarted(data.path(), &address);
    let (_, shown) = server.call("GET", "/v1/queues/q/config", "");
    assert_eq!((&shown["config"]["trace"], &shown["effective"]["trace"]), (&json!("child"), &json!("child")));
    let (_, set) = server.call("PATCH", "/v1/queues/q/config", r#"{"trace": null}"#);
    assert_eq!(set["config"]["trace"], Value::Null);
}
