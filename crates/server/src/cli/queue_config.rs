//! `duewheel config QUEUE`: shows the settings of a queue, or changes those that are named.

use std::io;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use duewheel::core::QueueName;
use serde_json::{Map, Value, json};

use super::invocation::print_json;
use super::queue::{path, queue_name, show_settings};
use super::remote::Remote;
use super::{ClientCommand, CommandFailure, ServerArgs, when};
use crate::hourly::HourlyRate;
use crate::span::TimeSpan;

#[derive(Args, Debug)]
pub(super) struct ConfigArgs {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    #[command(flatten)]
    change: ChangeArgs,
    /// Set this one to the server's default; may be given several times
    #[arg(long, value_name = "SETTING")]
    unset: Vec<SettingArg>,
    /// Set everything that is not named to the server's default
    #[arg(long, conflicts_with = "unset")]
    reset: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// The settings to change.
#[derive(Args, Debug)]
#[group(id = "change", multiple = true)]
struct ChangeArgs {
    /// Length of a lease
    #[arg(long, value_name = "TIME", value_parser = when::span)]
    lease: Option<TimeSpan>,
    /// Number of attempts after which a message is dead
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// Priority; lower goes first
    #[arg(long, value_name = "N")]
    priority: Option<u32>,
    /// Shortest and longest time until the next attempt, such as 1s..1h
    #[arg(long, value_name = "TIME..TIME")]
    backoff: Option<BackoffArg>,
    /// How long a dedupe id is remembered
    #[arg(long, value_name = "TIME", value_parser = when::span)]
    dedupe_window: Option<TimeSpan>,
    /// How long a dead message is kept
    #[arg(long, value_name = "TIME", value_parser = when::span)]
    dead_ttl: Option<TimeSpan>,
    /// Order of ready messages of equal priority
    #[arg(long, value_name = "ORDER")]
    order: Option<OrderArg>,
    /// Messages granted a second, to all consumers together; 10/m is ten a minute, 7/h seven an hour
    #[arg(long, value_name = "N", value_parser = HourlyRate::written)]
    rate: Option<HourlyRate>,
    /// Messages that may be granted at once after a pause
    #[arg(long, value_name = "N", requires = "rate")]
    burst: Option<u32>,
    /// Messages granted a second while the next one has been due for more than 10 s
    #[arg(long, value_name = "N", value_parser = HourlyRate::written)]
    catchup_rate: Option<HourlyRate>,
    /// Leases at a time
    #[arg(long, value_name = "N")]
    concurrency: Option<u32>,
    /// How long after its due time a message expires
    #[arg(long, value_name = "TIME", value_parser = when::span)]
    expires_in: Option<TimeSpan>,
    /// What happens with an expired message
    #[arg(long, value_name = "WHAT")]
    on_expiry: Option<OnExpiryArg>,
    /// How long messages that have ended can still be read and replayed
    #[arg(long, value_name = "TIME", value_parser = when::span)]
    keep_done: Option<TimeSpan>,
    /// How the trace of a delivery belongs to that of its message's creation
    #[arg(long, value_name = "HOW")]
    trace: Option<TraceArg>,
    /// The target that messages are delivered to
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
}

/// A setting, by the name of its option.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum SettingArg {
    Lease,
    MaxAttempts,
    Priority,
    Backoff,
    DedupeWindow,
    DeadTtl,
    Order,
    Rate,
    CatchupRate,
    Concurrency,
    ExpiresIn,
    OnExpiry,
    KeepDone,
    Trace,
    Target,
}

impl SettingArg {
    /// The name of the setting in a request.
    fn field(self) -> &'static str {
        match self {
            SettingArg::Lease => "lease_ms",
            SettingArg::MaxAttempts => "max_attempts",
            SettingArg::Priority => "priority",
            SettingArg::Backoff => "backoff",
            SettingArg::DedupeWindow => "dedupe_window_ms",
            SettingArg::DeadTtl => "dead_ttl_ms",
            SettingArg::Order => "order",
            SettingArg::Rate => "rate",
            SettingArg::CatchupRate => "catchup_rate",
            SettingArg::Concurrency => "concurrency",
            SettingArg::ExpiresIn => "expires_in_ms",
            SettingArg::OnExpiry => "on_expiry",
            SettingArg::KeepDone => "keep_done_ms",
            SettingArg::Trace => "trace",
            SettingArg::Target => "target",
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OrderArg {
    /// By due time
    Due,
    /// As they were accepted
    Arrival,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OnExpiryArg {
    /// An expired message is granted, and the grant says that it is late
    DeliverLate,
    /// An expired message is dead
    Dead,
    /// An expired message is removed
    Drop,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TraceArg {
    /// A trace of its own, with a link
    Link,
    /// A span of the same trace
    Child,
}

/// `MIN..MAX`, or one time for both.
#[derive(Clone, Copy, Debug)]
pub(super) struct BackoffArg {
    min: TimeSpan,
    max: TimeSpan,
}

impl FromStr for BackoffArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once("..").unwrap_or((text, text));
        let span = |text| when::span(text).map_err(|what| what.to_string());
        Ok(BackoffArg { min: span(min)?, max: span(max)? })
    }
}

impl BackoffArg {
    pub(super) fn json(self) -> Value {
        json!({"min_ms": self.min.0, "max_ms": self.max.0})
    }
}

impl ChangeArgs {
    fn json(&self) -> Map<String, Value> {
        let mut named = Map::new();
        let mut put = |name: &str, value: Option<Value>| value.map(|value| named.insert(name.into(), value));
        put("lease_ms", self.lease.map(|time| time.0.into()));
        put("max_attempts", self.max_attempts.map(Value::from));
        put("priority", self.priority.map(Value::from));
        put("backoff", self.backoff.map(BackoffArg::json));
        put("dedupe_window_ms", self.dedupe_window.map(|time| time.0.into()));
        put("dead_ttl_ms", self.dead_ttl.map(|time| time.0.into()));
        let order = self.order.map(|order| match order {
            OrderArg::Due => "due",
            OrderArg::Arrival => "arrival",
        });
        put("order", order.map(Value::from));
        put("rate", self.rate.map(|per_second| json!({"per_second": per_second, "burst": self.burst})));
        put("catchup_rate", self.catchup_rate.map(|rate| json!(rate)));
        put("concurrency", self.concurrency.map(Value::from));
        put("expires_in_ms", self.expires_in.map(|time| time.0.into()));
        let on_expiry = self.on_expiry.map(|what| match what {
            OnExpiryArg::DeliverLate => "deliver_late",
            OnExpiryArg::Dead => "dead",
            OnExpiryArg::Drop => "drop",
        });
        put("on_expiry", on_expiry.map(Value::from));
        put("keep_done_ms", self.keep_done.map(|time| time.0.into()));
        let trace = self.trace.map(|how| match how {
            TraceArg::Link => "link",
            TraceArg::Child => "child",
        });
        put("trace", trace.map(Value::from));
        put("target", self.target.clone().map(Value::from));
        named
    }
}

impl ClientCommand for ConfigArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        let remote = Remote::new(&self.server)?;
        let path = format!("{}/config", path(&self.queue));
        let mut change = self.change.json();
        for setting in &self.unset {
            if change.insert(setting.field().to_owned(), Value::Null).is_some() {
                let name = setting.to_possible_value().map(|value| value.get_name().to_owned());
                let name = name.unwrap_or_default();
                return Err(CommandFailure::Usage(format!("--unset {name}: --{name} is given, too")));
            }
        }
        if self.reset {
            remote.put(&path, &Value::Object(change))?;
        } else if !change.is_empty() {
            remote.patch(&path, &Value::Object(change))?;
        }
        let mut shown = remote.get(&path)?;
        if self.server.json {
            let Value::Object(mut config) = shown["config"].take() else { return Err(strange()) };
            config.insert("effective".into(), shown["effective"].take());
            print_json(&mut io::stdout(), &Value::Object(config))?;
            return Ok(());
        }
        show_settings(&shown["config"], Some(&shown["effective"]))
    }
}

fn strange() -> CommandFailure {
    CommandFailure::failed("the server does not tell the settings of the queue")
}
