//! Log lines of `duewheel serve`: text for people, or a JSON object a line (docs/adr/0028-server-process.md).

use std::fmt;
use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};

use duewheel::core::act::cut;
use serde::Serialize;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::Directive;
use tracing_subscriber::fmt::format::{JsonFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::config::LogFormat;
use duewheel_api::terminal::plain;

/// Most warnings that are kept of a start, and the longest in bytes.
const MOST_WARNINGS: usize = 50;
const MAX_WARNING: usize = 512;

/// The warnings of the start; `None` once it is over.
static START: Mutex<Option<Vec<String>>> = Mutex::new(Some(Vec::new()));

/// The warnings since the process has begun. Later ones are not kept.
pub(crate) fn warnings_of_start() -> Vec<String> {
    START.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
}

/// Keeps the warnings of the start.
struct StartWarnings;

impl<S: Subscriber> Layer<S> for StartWarnings {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() > Level::WARN {
            return;
        }
        let mut start = START.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(kept) = start.as_mut().filter(|kept| kept.len() < MOST_WARNINGS) else { return };
        let mut values = JsonValues::default();
        event.record(&mut values);
        let mut text = values.message;
        for (name, value) in values.fields {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            text.push_str(&format!(" {name}={value}"));
        }
        kept.push(plain(cut(&text, MAX_WARNING)).into_owned());
    }
}

/// Begins to log to standard error in this format; with [`LogFormat::Json`] panics are log lines as well.
pub fn begin(filter: EnvFilter, format: LogFormat) {
    let filter = without_requests(filter);
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match format {
        LogFormat::Text => {
            let subscriber = subscriber.fmt_fields(text_fields()).with_ansi(io::stderr().is_terminal());
            subscriber.finish().with(StartWarnings).init();
        }
        LogFormat::Json => {
            let subscriber = subscriber.fmt_fields(JsonFields::new()).event_format(JsonLines);
            subscriber.finish().with(StartWarnings).init();
            std::panic::set_hook(Box::new(|info| tracing::error!(panic = %info, "a thread has panicked")));
        }
    }
}

/// The message and `name=value` of each other field. A value may be of a client: none begins a line or commands a
/// terminal.
fn text_fields() -> impl for<'a> FormatFields<'a> + Send + Sync + 'static {
    let field = |out: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug| {
        let text = format!("{value:?}");
        match field.name() {
            "message" => write!(out, "{}", plain(&text)),
            name => write!(out, "{name}={}", plain(&text)),
        }
    };
    tracing_subscriber::fmt::format::debug_fn(field).delimited(" ")
}

/// An error as a line of JSON, before anything is logged.
pub fn error_line(area: &str, message: &str) {
    let line = JsonLine {
        time: format!("{:.3}", jiff::Timestamp::now()),
        level: "error",
        area,
        message: message.to_owned(),
        fields: Map::new(),
    };
    if let Ok(text) = serde_json::to_string(&line) {
        eprintln!("{text}");
    }
}

/// The filter with the clients of the collector and of brokers turned off: lines of theirs have the bytes of requests, and
/// so secrets, or the bodies of messages that a broker returns.
fn without_requests(filter: EnvFilter) -> EnvFilter {
    let off =
        ["ureq=off", "ureq_proto=off", "ureq_proto::util=off", "lapin=off", "lapin::returned_messages=off"]
            .map(str::parse::<Directive>);
    off.into_iter().flatten().fold(filter, EnvFilter::add_directive)
}

/// A log line: `time`, `level`, `area` (the module), `message`, and the other values in `fields`; those of the span
/// that it belongs to, a request for example, in a field of that name.
#[derive(Debug, Serialize)]
struct JsonLine<'a> {
    time: String,
    level: &'a str,
    area: &'a str,
    message: String,
    #[serde(skip_serializing_if = "Map::is_empty")]
    fields: Map<String, Value>,
}

/// Writes [`JsonLine`]s.
struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut values = JsonValues::default();
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            let extensions = span.extensions();
            let fields = extensions.get::<FormattedFields<N>>();
            if let Some(Ok(Value::Object(fields))) = fields.map(|fields| serde_json::from_str(&fields.fields))
            {
                values.fields.insert(span.name().to_owned(), Value::Object(fields));
            }
        }
        event.record(&mut values);
        let line = JsonLine {
            time: format!("{:.3}", jiff::Timestamp::now()),
            level: &event.metadata().level().as_str().to_ascii_lowercase(),
            area: event.metadata().target(),
            message: values.message,
            fields: values.fields,
        };
        let text = serde_json::to_string(&line).map_err(|_| fmt::Error)?;
        writeln!(out, "{text}")
    }
}

/// The values of one event.
#[derive(Debug, Default)]
struct JsonValues {
    message: String,
    fields: Map<String, Value>,
}

impl JsonValues {
    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            (name, value) => {
                self.fields.insert(name.to_owned(), value);
            }
        }
    }
}

impl Visit for JsonValues {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}").into());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError};

    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Lines {
        type Writer = Lines;
        fn make_writer(&'a self) -> Lines {
            self.clone()
        }
    }

    /// Story: lines of JSON had no request id, and with `--log warn` no line had one.
    #[test]
    fn log_line_carries_request_id() {
        let lines = Lines::default();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new("warn"))
            .fmt_fields(JsonFields::new())
            .event_format(JsonLines)
            .with_writer(lines.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            crate::http::request_span("my-1").in_scope(|| tracing::warn!(status = 500_u64, "answered"));
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["fields"], serde_json::json!({"request": {"id": "my-1"}, "status": 500}));
    }

    #[test]
    fn json_log_line_keeps_value_types() {
        let lines = Lines::default();
        let subscriber =
            tracing_subscriber::fmt().event_format(JsonLines).with_writer(lines.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(queue = %"a\"b\nc", n = 3_u64, part = 0.5, is = true, "it {}", "is so");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let mut line: Value = serde_json::from_str(&text).unwrap();
        let time = line["time"].take();
        assert!(time.as_str().unwrap().parse::<jiff::Timestamp>().is_ok(), "{time}");
        let expected = serde_json::json!({
            "time": null, "level": "warn", "area": module_path!(), "message": "it is so",
            "fields": {"queue": "a\"b\nc", "n": 3, "part": 0.5, "is": true},
        });
        assert_eq!(line, expected);
    }
}
