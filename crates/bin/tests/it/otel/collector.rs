//! A collector: takes `POST /v1/traces`, and parses its protobuf.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

use crate::fixture::PATIENCE;
use crate::hook::{Hook, HookRequest};

pub(super) use opentelemetry_proto::tonic::trace::v1::span::SpanKind;

/// Keeps all spans.
pub(super) struct Collector {
    pub(super) hook: Hook,
}

/// A span, as far as tests look at it. Ids are in hex.
#[derive(Clone, Debug)]
pub(super) struct SeenSpan {
    pub(super) name: String,
    pub(super) kind: SpanKind,
    pub(super) trace: String,
    pub(super) id: String,
    /// Empty: it has none.
    pub(super) parent: String,
    /// Trace and span of each.
    pub(super) links: Vec<(String, String)>,
    pub(super) state: String,
    /// Numbers as text.
    pub(super) attributes: BTreeMap<String, String>,
    /// What is said of its process.
    pub(super) resource: BTreeMap<String, String>,
    pub(super) is_error: bool,
}

impl SeenSpan {
    pub(super) fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.get(name).map(String::as_str)
    }

    /// Its context, as a header has it.
    pub(super) fn context(&self) -> String {
        format!("00-{}-{}-01", self.trace, self.id)
    }

    /// What a link to it has.
    pub(super) fn link(&self) -> (String, String) {
        (self.trace.clone(), self.id.clone())
    }
}

impl Collector {
    pub(super) fn start() -> Collector {
        Collector { hook: Hook::well() }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.hook.address)
    }

    pub(super) fn spans(&self) -> Vec<SeenSpan> {
        self.hook.requests().iter().flat_map(parsed).collect()
    }

    /// Waits for the span with this name and this value of an attribute.
    pub(super) fn span(&self, name: &str, attribute: (&str, &str)) -> SeenSpan {
        let begun = Instant::now();
        loop {
            let all = self.spans();
            let is = |span: &&SeenSpan| span.name == name && span.attribute(attribute.0) == Some(attribute.1);
            if let Some(span) = all.iter().find(is) {
                return span.clone();
            }
            assert!(begun.elapsed() < PATIENCE, "never: {name} {attribute:?}: {all:#?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the span of this message.
    pub(super) fn of(&self, name: &str, id: &str) -> SeenSpan {
        self.span(name, ("messaging.message.id", id))
    }
}

/// The spans of one export.
pub(super) fn parsed(request: &HookRequest) -> Vec<SeenSpan> {
    assert_eq!(request.path, "/v1/traces");
    assert_eq!(request.header("content-type"), "application/x-protobuf");
    let export = ExportTraceServiceRequest::decode(&request.body[..]).expect("an export");
    let mut spans = Vec::new();
    for of_resource in export.resource_spans {
        let resource = of_resource.resource.map(|resource| pairs(&resource.attributes)).unwrap_or_default();
        for of_scope in of_resource.scope_spans {
            assert_eq!(of_scope.scope.expect("a scope").name, "duewheel");
            spans.extend(of_scope.spans.iter().map(|span| seen(span, &resource)));
        }
    }
    spans
}

fn seen(span: &Span, resource: &BTreeMap<String, String>) -> SeenSpan {
    assert!(span.start_time_unix_nano > 0 && span.start_time_unix_nano <= span.end_time_unix_nano);
    SeenSpan {
        name: span.name.clone(),
        kind: span.kind(),
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        links: span.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect(),
        state: span.trace_state.clone(),
        attributes: pairs(&span.attributes),
        resource: resource.clone(),
        is_error: span.status.as_ref().is_some_and(|status| status.code == 2),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn pairs(all: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |pair: &KeyValue| match pair.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(n)) => n.to_string(),
        other => panic!("{other:?}"),
    };
    all.iter().map(|pair| (pair.key.clone(), text(pair))).collect()
}
