//! Spans at a collector, from outside: the real server, and a collector that parses what it gets.

mod collector;
mod deliveries;
mod operations;
mod trouble;

use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::hook::Hook;
use crate::process::{Process, serve};
use collector::Collector;

/// The trace of a caller, and its span.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

/// The header of a caller that records, or does not.
fn caller(flags: &str) -> String {
    format!("traceparent: 00-{TRACE}-{CALLER}-{flags}\r\n")
}

/// A server that exports its spans to this address.
struct Traced {
    server: Process,
    _data: TempDir,
}

impl Traced {
    fn start(collector: &Collector) -> Traced {
        Traced::with(&collector.url(), &[])
    }

    /// With more variables, which win.
    fn with(url: &str, variables: &[(&str, &str)]) -> Traced {
        let data = TempDir::new().expect("folder");
        Traced { server: Process::spawn(traced(url, &data, variables)), _data: data }
    }

    /// Enqueues for a caller; gives the id.
    fn enqueue(&self, queue: &str, head: &str, message: &Value) -> String {
        let mut message = message.clone();
        message["delay"] = json!("0s");
        let path = format!("/v1/queues/{queue}/messages");
        let (status, done) = self.server.call_with("POST", &path, head, &message.to_string());
        assert_eq!(status, 201, "{done}");
        done["id"].as_str().expect("an id").to_owned()
    }

    /// Delivers a queue to a receiver.
    fn deliver(&self, queue: &str, hook: &Hook) {
        let target = json!({"url": hook.url(), "networks": ["127.0.0.1/32"], "retry": {"delays": ["1h"]}});
        assert_eq!(self.server.call("PUT", "/v1/targets/shop", &target.to_string()).0, 200);
        self.configure(queue, &json!({"target": "shop"}));
    }

    fn configure(&self, queue: &str, change: &Value) {
        let path = format!("/v1/queues/{queue}/config");
        let (status, answer) = self.server.call("PATCH", &path, &change.to_string());
        assert_eq!(status, 200, "{answer}");
    }

    /// A figure of `/metrics`.
    fn figure(&self, name: &str) -> u64 {
        let text = self.server.text("/metrics");
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name}")).parse().expect("a number")
    }
}

/// `serve` with spans that are exported soon.
fn traced(url: &str, data: &TempDir, variables: &[(&str, &str)]) -> Command {
    let mut command = serve();
    command.args(["--http", "127.0.0.1:0", "--data"]).arg(data.path()).stderr(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("OTEL_") {
            command.env_remove(name);
        }
    }
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", url).env("OTEL_BSP_SCHEDULE_DELAY", "20");
    command.envs(variables.iter().copied());
    command
}
