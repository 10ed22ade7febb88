//! The settings of a queue: get, replace, change; and the removal of a queue.

use std::borrow::Cow;

use axum::http::StatusCode;
use duewheel::core::QueueName;
use duewheel::core::engine::{Op, QueueView, SettingsRefusal};
use duewheel::core::message::MaxAttempts;
use duewheel::core::policy::{Defaults, Lasting, QueueSettings};
use duewheel::core::record::Pause;
use duewheel_delivery::{ShownTarget, TargetError, TargetView};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use super::call::Call;
use super::line::BackoffFields;
use super::queue::{is_unused_default, purge_at_most};
use super::queue_view::{
    BackoffAnswer, GrantRateFields, LimitsAnswer, OnExpiryWord, OrderWord, QueueAnswer, SettingsAnswer,
    TraceWord,
};
use super::strict::{self, Given, Object, Positive, U32_MAX, Whole};
use super::target::targets;
use super::{Answer, App, answer, reply};
use crate::auth::Caller;
use crate::error::{ErrorCode, Problem};
use crate::hourly::HourlyRate;
use crate::json::{LevelText, QueueText};
use crate::schema::DelaySchema;
use crate::span::{SpanText, TimeSpan};

/// Changes of the settings of a queue: a member that is left out stays as it is, and `null` resets it to the server's
/// default. At least one member.
#[derive(Debug, Default, Deserialize, JsonSchema, PartialEq)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "ConfigChange", extend("minProperties" = 1), transform = crate::schema::config_rules)]
pub(crate) struct ConfigChange {
    #[schemars(extend("x-limit" = "max_lease_ms"))]
    lease_ms: Given<Positive>,
    /// `lease_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    lease: Given<SpanText>,
    /// Number of grants after which the message is dead; 4294967295 for never.
    max_attempts: Given<Whole<1, U32_MAX>>,
    /// Priority; lower is granted first.
    priority: Given<Whole<0, U32_MAX>>,
    backoff: Given<Object<BackoffFields>>,
    /// How long a `dedupe_id` is remembered.
    #[schemars(extend("x-limit" = "max_dedupe_window_ms"))]
    dedupe_window_ms: Given<Whole>,
    /// `dedupe_window_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    dedupe_window: Given<SpanText>,
    /// Dead messages are removed after this time.
    #[schemars(extend("x-limit" = "max_delay_ms"))]
    dead_ttl_ms: Given<Whole>,
    /// `dead_ttl_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    dead_ttl: Given<SpanText>,
    order: Given<OrderWord>,
    /// Messages granted a second, to all consumers together.
    rate: Given<Object<GrantRateFields>>,
    /// Messages granted a second while the next one has been due for more than 10 s, if that is less than `rate`.
    catchup_rate: Given<HourlyRate>,
    /// Leases at a time; at least the number of shards.
    concurrency: Given<Whole<1, U32_MAX>>,
    /// How long after its due time a message without an expiry of its own expires.
    #[schemars(extend("x-limit" = "max_delay_ms"))]
    expires_in_ms: Given<Positive>,
    /// `expires_in_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    expires_in: Given<SpanText>,
    /// What happens with an expired message.
    on_expiry: Given<OnExpiryWord>,
    /// Messages that have ended are kept as done for this number of milliseconds.
    #[schemars(extend("x-limit" = "max_keep_done_ms"))]
    keep_done_ms: Given<Positive>,
    /// `keep_done_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    keep_done: Given<SpanText>,
    /// How the traces of deliveries belong to those of the messages' creation.
    trace: Given<TraceWord>,
    /// The target that its messages are delivered to; `null` for none.
    target: Given<String>,
}

/// The settings of a queue: a change of the server's defaults.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct ConfigRequest(ConfigChange);

impl JsonSchema for ConfigRequest {
    fn schema_name() -> Cow<'static, str> {
        "Config".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = ConfigChange::json_schema(generator);
        schema.remove("minProperties");
        let description = "The settings of a queue. A member that is left out takes the server's default.";
        schema.insert("description".into(), description.into());
        schema
    }
}

impl ConfigChange {
    fn apply(self, to: &mut QueueSettings) -> Result<(), Problem> {
        /// A length that was given by either of its fields; `null` resets it.
        fn length<const MIN: u64>(
            to: &mut Option<u64>,
            ms: Given<Whole<MIN>>,
            text: Given<SpanText>,
            field: &'static str,
        ) -> Result<(), Problem> {
            let is_given = ms.0.is_some() || text.0.is_some();
            let length = strict::either(ms.value(), text.value(), field)?;
            Given(is_given.then_some(length)).put(to, Some);
            Ok(())
        }
        length(&mut to.lease_ms, self.lease_ms, self.lease, "lease")?;
        self.max_attempts.put(&mut to.max_attempts, |n| MaxAttempts::new(n.get()));
        self.priority.put(&mut to.priority, |n| Some(n.get()));
        let backoff = self.backoff.0.map(|given| given.map(|fields| fields.0.check()).transpose());
        Given(backoff.transpose()?).put(&mut to.backoff, Some);
        length(&mut to.dedupe_window_ms, self.dedupe_window_ms, self.dedupe_window, "dedupe_window")?;
        length(&mut to.dead_ttl_ms, self.dead_ttl_ms, self.dead_ttl, "dead_ttl")?;
        self.order.put(&mut to.order, |word| Some(word.into()));
        self.rate.put(&mut to.limits.rate, |rate| Some(rate.0.into()));
        self.catchup_rate.put(&mut to.limits.catchup_per_hour, |rate| Some(rate.0));
        self.concurrency.put(&mut to.limits.concurrency, |n| Some(n.get()));
        length(&mut to.expires_in_ms, self.expires_in_ms, self.expires_in, "expires_in")?;
        self.on_expiry.put(&mut to.on_expiry, |word| Some(word.into()));
        length(&mut to.keep_done_ms, self.keep_done_ms, self.keep_done, "keep_done")?;
        self.trace.put(&mut to.trace, |word| Some(word.into()));
        to.lasting = Lasting::Always;
        Ok(())
    }

    /// The names of the lengths of time that were sent as text.
    fn as_text(&self) -> Vec<&'static str> {
        strict::named([
            ("lease", self.lease.value()),
            ("dedupe_window", self.dedupe_window.value()),
            ("dead_ttl", self.dead_ttl.value()),
            ("expires_in", self.expires_in.value()),
            ("keep_done", self.keep_done.value()),
        ])
    }
}

/// A queue with its new settings.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Configured")]
pub(crate) struct ConfiguredAnswer<'a> {
    #[serde(flatten)]
    pub(super) queue: QueueAnswer<'a>,
    pub(super) durability: LevelText,
}

pub(crate) async fn configure(mut call: Call) -> Answer {
    let queue = call.queue()?;
    let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
    let ConfigRequest(mut asked) = strict::parse(&bytes)?;
    // A target that is not named goes.
    asked.target = Given(Some(asked.target.value()));
    let _alone = call.app.settings.lock().await;
    set(&call.app, &call.caller, queue, QueueSettings::default(), asked).await
}

pub(crate) async fn change(mut call: Call) -> Answer {
    let queue = call.queue()?;
    let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
    let asked: ConfigChange = strict::parse(&bytes)?;
    if asked == ConfigChange::default() {
        let why = "nothing is to be changed: give at least one of lease, max_attempts, priority, backoff, \
                   dedupe_window, dead_ttl, order, rate, catchup_rate, concurrency, expires_in, on_expiry, \
                   keep_done, trace and target; null resets it";
        return Err(Problem::new(ErrorCode::BadRequest, why));
    }
    // Two changes of different members at the same time must both count.
    let _alone = call.app.settings.lock().await;
    let settings = present(&call.app, &queue).await?;
    set(&call.app, &call.caller, queue, settings, asked).await
}

/// Sets what is asked, and all other settings to these; a target that is not named stays.
async fn set(
    app: &App,
    caller: &Caller,
    queue: QueueName,
    mut settings: QueueSettings,
    asked: ConfigChange,
) -> Answer {
    let (as_text, target) = (asked.as_text(), asked.target.0.clone());
    asked.apply(&mut settings)?;
    let targets = targets(app)?;
    let limited = caller.limits().is_some();
    // A target without queues of its own is for those who may use all queues; others do not exist for them.
    let is_meant = |shown: &ShownTarget| shown.queues.is_some() && shown.serves(&queue);
    let may = |view: &TargetView| !limited || view.shown.as_ref().is_some_and(is_meant);
    let before = targets.target_of(&queue).await?;
    // The present target was permitted when it was chosen, so it is not checked again.
    let target = target.filter(|target| *target != before);
    if let Some(Some(name)) = &target {
        // Nothing is changed when the target is refused.
        targets.check_choice(&queue, name, &may).await.map_err(of_target)?;
    }
    let done = app.ask(Op::configure(queue.clone(), settings)).await?;
    let done = done.map_err(|refusal| refused(refusal, &as_text))?;
    let target = match target {
        Some(target) => {
            let chosen = targets.choose(&queue, target.as_deref(), &may).await;
            chosen.map_err(|error| half_set(of_target(error)))?;
            app.refresh_targets();
            target
        }
        None => before,
    };
    let mut queue = QueueAnswer::of(&done, app.client.now().wall);
    queue.config.target = target;
    let answer = ConfiguredAnswer { queue, durability: LevelText(done.level) };
    Ok(reply(StatusCode::OK, &answer))
}

/// The problem of refused settings, with the field that was sent: `keep_done` where that was given for `keep_done_ms`.
fn refused(refusal: SettingsRefusal, as_text: &[&'static str]) -> Problem {
    match refusal {
        SettingsRefusal::OutOfRange(field, limit) if as_text.contains(&strict::sent_as(field, as_text)) => {
            Problem::field(
                strict::sent_as(field, as_text),
                format_args!("must be at most {}", TimeSpan(limit)),
            )
        }
        refusal => Problem::from_settings(refusal),
    }
}

/// The settings of the queue are set, and then its target was not: each is a record of its own.
fn half_set(mut problem: Problem) -> Problem {
    let detail =
        format!("{}; the settings are set, and the target is not: make the call again", problem.detail);
    problem.detail = detail.into();
    problem
}

/// A target that there is not is a wrong field.
fn of_target(error: TargetError) -> Problem {
    match error {
        TargetError::NotFound => Problem::field("target", error),
        error => Problem::from(error),
    }
}

/// The settings of a queue, as they were set and as they are in effect.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "ConfigOfQueue")]
pub(crate) struct ConfigAnswer<'a> {
    pub(super) queue: QueueText<'a>,
    pub(super) config: SettingsAnswer,
    pub(super) effective: EffectiveAnswer,
}

answer! {
    /// The values that apply to messages of the queue without values of their own: where `config` has `null`, these are
    /// the server's defaults.
    #[schemars(rename = "Effective")]
    EffectiveAnswer of (settings: &QueueSettings, defaults: &Defaults, to: Option<String>) with {
        let mut settings = settings.clone();
        if let Some(rate) = &mut settings.limits.rate {
            rate.burst = Some(rate.burst_that_applies());
        }
    } {
        lease_ms: u64 = settings.lease_ms.unwrap_or(defaults.lease_ms),
        max_attempts: u32 = settings.max_attempts.unwrap_or(defaults.max_attempts).count(),
        priority: u32 = settings.priority.unwrap_or(defaults.priority),
        backoff: BackoffAnswer = BackoffAnswer::of(settings.backoff.unwrap_or(defaults.backoff)),
        dedupe_window_ms: u64 = settings.dedupe_window_ms.unwrap_or(defaults.dedupe_window_ms),
        /// `null`: dead messages are kept.
        dead_ttl_ms: Option<u64> = settings.dead_ttl_ms,
        order: OrderWord = settings.order.unwrap_or_default().into(),
        #[serde(flatten)]
        limits: LimitsAnswer = LimitsAnswer::of(&settings),
        on_expiry: OnExpiryWord = settings.on_expiry.unwrap_or_default().into(),
        /// `null`: messages that have ended are not kept.
        keep_done_ms: Option<u64> = settings.keep_done_ms,
        trace: TraceWord = settings.trace.unwrap_or_default().into(),
        /// The target that messages are delivered to; `null`: consumers reserve them.
        target: Option<String> = to,
    }
}

pub(crate) async fn config(call: Call) -> Answer {
    let queue = call.queue()?;
    let settings = present(&call.app, &queue).await?;
    let target = targets(&call.app)?.target_of(&queue).await?;
    let answer = ConfigAnswer {
        queue: QueueText(queue.as_str()),
        effective: EffectiveAnswer::of(&settings, &call.app.policy.defaults, target.clone()),
        config: SettingsAnswer { target, ..SettingsAnswer::of(&settings) },
    };
    Ok(reply(StatusCode::OK, &answer))
}

async fn present(app: &App, queue: &QueueName) -> Result<QueueSettings, Problem> {
    Ok(app.ask(Op::queue(queue.clone())).await?.map(|view| view.settings).unwrap_or_default())
}

/// A queue that is gone.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "QueueRemoved")]
pub(crate) struct RemovedAnswer<'a> {
    pub(super) result: RemovedWord,
    pub(super) queue: QueueText<'a>,
    /// The number of messages removed with it.
    pub(super) purged: u64,
    pub(super) durability: LevelText,
}

/// The status of a removed queue.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(crate) enum RemovedWord {
    Removed,
}

/// Removes the messages of a queue, its settings and its pause, unless consumers have or await messages of it.
///
/// The steps are separate operations, and each is durable by itself: after a crash between two of them the queue is
/// empty and has settings, and the call can be made again. A message that arrives during the call is removed, or
/// stays and the queue with it; a message that is leased during the call stays with its lease.
pub(crate) async fn remove(call: Call) -> Answer {
    let queue = call.queue()?;
    let app = &call.app;
    let expect = call.number_param("expect")?;
    let _alone = app.settings.lock().await;
    if targets(app)?.target_of(&queue).await?.is_some() {
        // Its worker waits on the queue like any consumer.
        let why = "the queue is delivered to a target; set its target to null first";
        return Err(Problem::new(ErrorCode::InUse, why));
    }
    let view = app.ask(Op::queue(queue.clone())).await?.filter(|view| !is_unused_default(view));
    let Some(view) = view else {
        return Err(Problem::new(ErrorCode::NotFound, format!("there is no queue {queue}")));
    };
    removable(&view)?;
    let done = purge_at_most(app, queue.clone(), expect).await?;
    let mut level = done.level;
    if view.pause != Pause::Running {
        level = level.and(app.ask_behind(Op::resume(queue.clone()), true).await?.level);
    }
    // Also where it has no settings: an empty queue is reset with its totals.
    let reset = app.ask_behind(Op::configure(queue.clone(), QueueSettings::default()), true).await?;
    level = level.and(reset.map_err(Problem::from_settings)?.level);
    level = level.and(app.ask_behind(Op::erase_history(queue.clone()), true).await?.level);
    let (result, purged) = (RemovedWord::Removed, done.what);
    let (queue, durability) = (QueueText(queue.as_str()), LevelText(level));
    Ok(reply(StatusCode::OK, &RemovedAnswer { result, queue, purged, durability }))
}

fn removable(view: &QueueView) -> Result<(), Problem> {
    let leased = view.counts.leased;
    if leased > 0 {
        let why = format!("consumers have {leased} messages of this queue; settle them first");
        return Err(Problem::new(ErrorCode::Leased, why));
    }
    let waiting = view.waiters;
    let held = u64::from(view.using) + u64::from(view.watching);
    if waiting > 0 || held > 0 {
        let why = format!(
            "{waiting} reserves wait on this queue, and connections of beanstalkd's protocol use or watch it {held} times; \
             end them first"
        );
        return Err(Problem::new(ErrorCode::InUse, why));
    }
    Ok(())
}
