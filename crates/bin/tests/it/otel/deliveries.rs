//! Deliveries to webhooks: as traces of their own with a link, and as children.

use serde_json::json;

use super::collector::{Collector, SpanKind};
use super::{CALLER, TRACE, Traced, caller};
use crate::hook::Hook;

#[test]
fn delivery_trace_links_to_creation() {
    let (collector, hook) = (Collector::start(), Hook::well());
    let resource = "service.name=x,deployment.environment.name=test";
    let more = [("OTEL_RESOURCE_ATTRIBUTES", resource), ("OTEL_SERVICE_NAME", "shop")];
    let server = Traced::with(&collector.url(), &more);
    server.deliver("orders", &hook);
    let head = format!("{}tracestate: a=1\r\ntracestate: b=2\r\n", caller("01"));
    let id = server.enqueue("orders", &head, &json!({"body": "close", "headers": {"a": "b"}}));

    let send = collector.of("send orders", &id);
    assert_eq!((send.kind, &*send.trace, &*send.parent), (SpanKind::Producer, TRACE, CALLER));
    assert_eq!((&*send.state, &*send.links, send.is_error), ("a=1,b=2", &[][..], false));
    for (name, value) in [
        ("messaging.system", "duewheel"),
        ("messaging.operation.name", "send"),
        ("messaging.operation.type", "send"),
        ("messaging.destination.name", "orders"),
    ] {
        assert_eq!(send.attribute(name), Some(value), "{name}");
    }
    for (name, value) in [
        ("service.name", "shop"),
        ("deployment.environment.name", "test"),
        ("telemetry.sdk.language", "rust"),
    ] {
        assert_eq!(send.resource.get(name).map(String::as_str), Some(value), "{name}");
    }

    let process = collector.of("process orders", &id);
    assert_eq!((process.kind, &*process.parent), (SpanKind::Consumer, ""));
    assert_ne!(process.trace, send.trace);
    assert_eq!(process.links, [send.link()]);
    let port = hook.address.port().to_string();
    for (name, value) in [
        ("messaging.operation.type", "process"),
        ("messaging.destination.name", "orders"),
        ("server.address", "127.0.0.1"),
        ("server.port", &port),
        ("http.response.status_code", "200"),
        ("duewheel.attempt", "1"),
    ] {
        assert_eq!(process.attribute(name), Some(value), "{name}");
    }
    assert_eq!(process.attribute("error.type"), None);

    let got = hook.until("it is delivered", |got| !got.is_empty()).remove(0);
    assert_eq!(got.header("traceparent"), process.context());
    assert_eq!(got.header("duewheel-creation-traceparent"), send.context());
    assert_eq!((got.header("tracestate"), got.header("duewheel-h-a")), ("", "b"));
}

#[test]
fn delivery_is_child_span_when_configured() {
    let (collector, hook) = (Collector::start(), Hook::well());
    let server = Traced::start(&collector);
    server.deliver("codes", &hook);
    server.configure("codes", &json!({"trace": "child"}));
    let head = format!("{}tracestate: a=1\r\n", caller("01"));
    let id = server.enqueue("codes", &head, &json!({"body": "1234"}));
    let (send, process) = (collector.of("send codes", &id), collector.of("process codes", &id));
    assert_eq!((&*process.trace, &process.parent, &*process.state), (TRACE, &send.id, "a=1"));
    assert_eq!(process.links, []);
    let got = hook.until("it is delivered", |got| !got.is_empty()).remove(0);
    assert_eq!((got.header("traceparent"), got.header("tracestate")), (&*process.context(), "a=1"));
    assert_eq!(got.header("duewheel-creation-traceparent"), send.context());
}

/// What records the creation records the delivery, whatever this server would do with a trace that begins here.
#[test]
fn delivery_sampling_follows_creation() {
    for (sampler, unsampled_first) in [("parentbased_always_on", true), ("parentbased_always_off", false)] {
        let (collector, hook) = (Collector::start(), Hook::well());
        let server = Traced::with(&collector.url(), &[("OTEL_TRACES_SAMPLER", sampler)]);
        server.deliver("orders", &hook);
        let dark = match unsampled_first {
            true => server.enqueue("orders", &caller("00"), &json!({"body": "dark"})),
            // Nobody has asked for a trace, and none begins here.
            false => server.enqueue("orders", "", &json!({"body": "dark"})),
        };
        let got = hook.until("the first", |got| !got.is_empty()).remove(0);
        assert!(got.header("traceparent").ends_with("-00"), "{got:?}");
        assert!(got.header("duewheel-creation-traceparent").ends_with("-00"), "{got:?}");
        let id = server.enqueue("orders", &caller("01"), &json!({"body": "seen"}));
        let send = collector.of("send orders", &id);
        assert_eq!(collector.of("process orders", &id).links, [send.link()], "{sampler}");
        let spans = collector.spans();
        let of_dark = spans.iter().filter(|span| span.attribute("messaging.message.id") == Some(&dark));
        assert_eq!(of_dark.count(), 0, "{sampler}: {spans:#?}");
    }
}

#[test]
fn a_delivery_that_fails_says_how() {
    let (collector, hook) = (Collector::start(), Hook::new(|_, _| "500".to_owned()));
    let server = Traced::start(&collector);
    server.deliver("orders", &hook);
    let id = server.enqueue("orders", "", &json!({"body": "x"}));
    let process = collector.of("process orders", &id);
    assert!(process.is_error);
    assert_eq!(process.attribute("error.type"), Some("status_500"));
    assert_eq!(process.attribute("http.response.status_code"), Some("500"));
    // The creation is the beginning of a trace.
    let send = collector.of("send orders", &id);
    assert_eq!((&*send.parent, process.links), ("", vec![send.link()]));
}

/// Story: before there were spans, a producer put `traceparent` into the headers of a message, and the receiver got it.
#[test]
fn message_traceparent_header_is_kept() {
    let (collector, hook) = (Collector::start(), Hook::well());
    let server = Traced::start(&collector);
    server.deliver("orders", &hook);
    let own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let message = json!({"body": "x", "headers": {"Traceparent": own, "tracestate": "c=3"}});
    let id = server.enqueue("orders", &caller("01"), &message);
    let linked = vec![("0af7651916cd43dd8448eb211c80319c".to_owned(), "b7ad6b7169203331".to_owned())];
    let send = collector.of("send orders", &id);
    assert_eq!((&*send.trace, &send.links), (TRACE, &linked));
    assert_eq!(collector.of("process orders", &id).links, linked);
    let got = hook.until("it is delivered", |got| !got.is_empty()).remove(0);
    assert_eq!(got.header("duewheel-creation-traceparent"), own);
}
