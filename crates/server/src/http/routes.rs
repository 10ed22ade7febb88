//! The table of all paths: method, path, query parameters, permission, handler, and description, from which
//! `openapi.json` is made.
//!
//! A route cannot be written without its permission, which is checked before its handler is called: [`Call::new`].

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use bytes::Bytes;
use duewheel::Policy;
use duewheel_bridge::BridgePlan;
use schemars::json_schema;
use serde_json::Value;

use super::app::RouteDurations;
use super::audit::{self, AuditAnswer};
use super::bridge::{self as bridges, BridgeAnswer, BridgesAnswer, PauseBridgeRequest, TestedBridgeAnswer};
use super::bulk::{self, BulkCountAnswer, BulkFields, JobAnswer, JobsAnswer, PurgeRequest, PurgedAnswer};
use super::call::{Call, CallHandler};
use super::enqueue::{self, LineAnswer};
use super::events::{self, EventAnswer};
use super::health::{self, HealthAnswer, ProbeAnswer, TroubledAnswer};
use super::history::{self, HistoryAnswer};
use super::line::{EnqueueLine, EnqueuedAnswer};
use super::listing::{self, DeadAnswer, MessagesAnswer, QueuesAnswer};
use super::message::{
    self as messages, CancelRequest, CancelledAnswer, MessageAnswer, Nothing, OutlineAnswer, PostponeRequest,
    ReplayRequest,
};
use super::openapi::{self, Described, OperationDoc, Parameter, Security, Tag, limit_schema, schema_of};
use super::queue::{
    self as queues, CancelMany, CancelResults, PauseFor, PausedAnswer, Redrive, RedrivenAnswer, ResumedAnswer,
};
use super::queue_config::{self, ConfigAnswer, ConfigChange, ConfigRequest, ConfiguredAnswer, RemovedAnswer};
use super::queue_view::QueueAnswer;
use super::reserve::{self, GrantsAnswer, ReserveOfMany, ReserveRequest};
use super::schedule::{
    self as schedules, BackfillRequest, BackfilledAnswer, ScheduleRemoved, TriggerRequest, TriggeredAnswer,
};
use super::schedule_view::{PreviewAnswer, PreviewRequest, ScheduleAnswer, ScheduleRequest, SchedulesAnswer};
use super::server::{
    self as servers, AdvanceRequest, AdvancedAnswer, BackedUpAnswer, BackupRequest, ClusterAnswer,
    IdentityAnswer, QuotasAnswer, TokensAnswer,
};
use super::settle::{
    self, Ack, AckMany, AckResults, Extend, ExtendMany, ExtendResults, ExtendedAnswer, Nack, NackMany,
    NackResults, SettledAnswer,
};
use super::stats::{self, HistogramAnswer, StatsAnswer, WheelAnswer};
use super::status::{self as statuses, ServerStatusAnswer};
use super::target::{
    self as targets, PauseTargetRequest, TargetAnswer, TargetRemoved, TargetRequest, TargetsAnswer,
    TestedAnswer,
};
use super::{Answer, App, home, metrics, typed, unknown};
use crate::auth::{About, AccessRule, Scope};
use crate::error::ErrorCode::{
    self, Changed, Dead, DedupeMismatch, DiskFull, GenerationMismatch, InThePast, InUse, KeyExists,
    LeaseLost, Leased, MessageNotFound, NotDone, NotFound, OverQuota, Overloaded, Paused,
};
use crate::error::Problem;
use crate::json;
use crate::schema::{DeadReasonSchema, InstantSchema, QueueSchema, StateSchema};

/// A route: its description and its handler.
struct HttpRoute {
    described: Described,
    handler: MethodRouter<App>,
    durations: Arc<RouteDurations>,
}

const fn queue(scope: Scope) -> AccessRule {
    AccessRule::Needs(scope.alone(), About::Queue)
}

/// A list of the messages of a queue: consumers get them all in any case.
const LISTS: AccessRule = AccessRule::Needs(&[Scope::Consume, Scope::Admin], About::Queue);

const fn message(scope: Scope) -> AccessRule {
    AccessRule::Needs(scope.alone(), About::Message)
}

const fn several(scope: Scope) -> AccessRule {
    AccessRule::Needs(scope.alone(), About::Several)
}

const fn server(scope: Scope) -> AccessRule {
    AccessRule::Needs(scope.alone(), About::Server)
}

fn produce(id: &'static str, summary: &'static str) -> OperationDoc {
    OperationDoc::new(Tag::Produce, id, summary)
}

fn consume(id: &'static str, summary: &'static str) -> OperationDoc {
    OperationDoc::new(Tag::Consume, id, summary)
}

fn look(id: &'static str, summary: &'static str) -> OperationDoc {
    OperationDoc::new(Tag::Look, id, summary)
}

fn operate(id: &'static str, summary: &'static str) -> OperationDoc {
    OperationDoc::new(Tag::Operate, id, summary)
}

const fn parameter(name: &'static str, description: &'static str, schema: openapi::SchemaOf) -> Parameter {
    Parameter { name, description, schema }
}

const AFTER: Parameter = parameter(
    "after",
    "The `next` of an earlier page.",
    |_| json_schema!({ "type": "string", "format": "duewheel-cursor" }),
);

const REASON: Parameter =
    parameter("reason", "Only dead messages with this reason.", schema_of::<DeadReasonSchema>);
const NOTE: Parameter = parameter(
    "note",
    "Only dead messages whose last attempt has this in its note, in capitals or not; an empty one for those without one.",
    text,
);

const LIST_OF_MESSAGES: &[Parameter] = &[
    parameter("state", "Only messages in this state.", schema_of::<StateSchema>),
    parameter("due_from", "Only messages that are due at this instant or later.", schema_of::<InstantSchema>),
    parameter("due_to", "Only messages that are due before this instant.", schema_of::<InstantSchema>),
    parameter("key_prefix", "Only messages whose key begins with this.", text),
    parameter(
        listing::HEADER,
        "Only messages with this value of a header, whose name stands in the place of NAME.",
        text,
    ),
    REASON,
    NOTE,
    parameter("dead_reason", "Another name of `reason`.", schema_of::<DeadReasonSchema>),
    parameter("dead_note", "Only dead messages whose last attempt has exactly this note.", text),
    AFTER,
    parameter("limit", "The most messages of a page.", |_| limit_schema(Some(listing::MESSAGES), "max_page")),
];

const LIST_OF_QUEUES: &[Parameter] = &[
    parameter("after", "The `next` of an earlier page.", schema_of::<QueueSchema>),
    parameter("limit", "The most queues of a page.", |_| limit_schema(Some(listing::QUEUES), "max_page")),
];

const LIST_OF_SCHEDULES: &[Parameter] = &[
    AFTER_NAME,
    parameter("limit", "The largest number of schedules; 100 by default.", |_| {
        limit_schema(None, "max_page")
    }),
];

const LIST_OF_ACTS: &[Parameter] = &[
    AFTER,
    parameter(
        "limit",
        "The largest number of acts; 1000 at most.",
        |_| json_schema!({ "type": "integer", "minimum": 1, "maximum": 1000, "default": audit::ACTS }),
    ),
];

const LIST_OF_TARGETS: &[Parameter] = &[
    AFTER_NAME,
    parameter("limit", "The largest number of targets; 100 by default.", |_| limit_schema(None, "max_page")),
];

const AFTER_NAME: Parameter = parameter("after", "The `next` of the page before.", text);

const EXPECT: &[Parameter] = &[parameter(
    "expect",
    "The largest number of messages to remove: with more the answer is 409 `changed`, and none is removed.",
    |_| json_schema!({ "type": "integer", "minimum": 0 }),
)];

const HISTOGRAM: &[Parameter] = &[
    parameter("from", "The start of the first bucket; now by default.", schema_of::<InstantSchema>),
    parameter("to", "The end of the last bucket; a day after `from` by default.", schema_of::<InstantSchema>),
    parameter("buckets", "How many.", |_| limit_schema(Some(stats::COLUMNS), "max_histogram")),
];

const HISTORY: &[Parameter] = &[
    parameter("queue", "Only this queue.", schema_of::<QueueSchema>),
    parameter(
        "from",
        "An instant in the first step; an hour before `to` by default.",
        schema_of::<InstantSchema>,
    ),
    parameter("to", "The instant behind the last step; now by default.", schema_of::<InstantSchema>),
];

const EVENTS: &[Parameter] = &[
    parameter("queue", "Only events of this queue.", schema_of::<QueueSchema>),
    parameter(
        "since",
        "The id of an event: those behind it follow. The header Last-Event-ID, which clients send when they connect \
         again, goes before it. Without either the stream begins now.",
        |_| json_schema!({ "type": "string", "pattern": "^[0-9]+(\\.[0-9]+)*$" }),
    ),
];

const METRICS: &[Parameter] = &[parameter(
    "queue",
    "Figures of this queue alone; with `*` at the end, of all queues whose names begin with what is before it.",
    |_| json_schema!({ "type": "string", "format": "duewheel-queues", "minLength": 1 }),
)];

fn text(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    json_schema!({ "type": "string" })
}

/// The operations of a producer on one message by its id.
const OF_A_MESSAGE: &[&str] = &["getMessage", "cancelMessage", "postponeMessage", "fireMessage"];
/// The reasons for which a change of a waiting message may be refused.
const CHANGE: &[ErrorCode] = &[MessageNotFound, Leased, Dead];
const POSTPONE: &str =
    "Change a message that waits: its due time, body, headers or settings; what is left out stays";
const GRANTED: &str = "The messages, in the order in which they are granted; none when none has come.";
const RESULTS: &str = "A result for each message, in order.";

/// All routes.
fn table() -> Vec<HttpRoute> {
    let groups = [
        messages_of_queues(),
        leases(),
        all_queues(),
        all_schedules(),
        all_targets(),
        all_bridges(),
        whole_server(),
    ];
    groups.into_iter().flatten().collect()
}

const NO: &[Parameter] = &[];

/// The routes of the messages of queues, and one message.
#[rustfmt::skip]
fn messages_of_queues() -> Vec<HttpRoute> {
    use AccessRule::Needs;
    use Scope::{Cancel, Consume, Enqueue};
    vec![
        post("/v1/queues/{queue}/messages", NO, queue(Enqueue), enqueue::enqueue,
            produce("enqueueMessage", "Schedule a message, or a message a line")
                .takes::<EnqueueLine<'_>>()
                .takes_lines::<EnqueueLine<'_>>()
                .gives::<EnqueuedAnswer<'_>>(201, "A new message.")
                .leads_to(OF_A_MESSAGE)
                .gives::<EnqueuedAnswer<'_>>(200, "The message that was there (`if_exists: keep`, or a repeated \
                    `dedupe_id`); or, for a message a line, a result a line.")
                .gives_lines::<LineAnswer<'_>>(200, "")
                .refuses(&[KeyExists, Leased, DedupeMismatch, InThePast, OverQuota, DiskFull])),
        get("/v1/queues/{queue}/messages", LIST_OF_MESSAGES, LISTS, listing::messages,
            look("listMessages", "A page of messages in due order, dead ones in the order in which they died")
                .gives::<MessagesAnswer<'_>>(200, "The page.")),
        post("/v1/queues/{queue}/reserve", NO, queue(Consume), reserve::reserve,
            consume("reserveMessages", "Lease messages, waiting for the first if asked to")
                .may_take::<ReserveRequest>()
                .gives::<GrantsAnswer<'_>>(200, GRANTED)),
        post("/v1/queues/{queue}/cancel", NO, queue(Cancel), queues::cancel_many,
            produce("cancelMessages", "Cancel many messages, by key and by id")
                .takes::<CancelMany<'_>>()
                .gives::<CancelResults<'_>>(200, "A result for each key, then for each id, in order.")),

        get("/v1/messages/{id}", NO, Needs(&[Cancel], About::Recalled), messages::get,
            getting("getMessage")),
        delete("/v1/messages/{id}", NO, message(Cancel), messages::cancel,
            cancelling("cancelMessage")),
        patch("/v1/messages/{id}", NO, message(Cancel), messages::postpone,
            postponing("postponeMessage")),
        post("/v1/messages/{id}/fire", NO, message(Cancel), messages::fire,
            firing("fireMessage")),
        post("/v1/messages/{id}/replay", NO, Needs(&[Cancel], About::Recalled), messages::replay,
            produce("replayMessage", "Enqueue the content of a done or dead message again")
                .may_take::<ReplayRequest>()
                .gives::<EnqueuedAnswer<'_>>(201, "A new message, due now.")
                .refuses(&[MessageNotFound, NotDone, KeyExists, OverQuota, DiskFull])),
        get("/v1/queues/{queue}/keys/{key}", NO, queue(Cancel), messages::get,
            getting("getMessageByKey").like("getMessage")),
        delete("/v1/queues/{queue}/keys/{key}", NO, queue(Cancel), messages::cancel,
            cancelling("cancelMessageByKey").like("cancelMessage")),
        patch("/v1/queues/{queue}/keys/{key}", NO, queue(Cancel), messages::postpone,
            postponing("postponeMessageByKey").like("postponeMessage")),
        post("/v1/queues/{queue}/keys/{key}/fire", NO, queue(Cancel), messages::fire,
            firing("fireMessageByKey").like("fireMessage")),
    ]
}

/// The routes of leases.
#[rustfmt::skip]
fn leases() -> Vec<HttpRoute> {
    use AccessRule::Needs;
    use Scope::Consume;
    vec![
        post("/v1/messages/{id}/ack", NO, Needs(&[Consume], About::Lease), settle::ack,
            consume("ackMessage", "Done")
                .takes::<Ack<'_>>()
                .gives::<SettledAnswer>(200, "The message is done.")
                .refuses(&[LeaseLost, MessageNotFound])),
        post("/v1/messages/{id}/nack", NO, message(Consume), settle::nack,
            consume("nackMessage", "Nack a message: it is ready again after a delay, or dead")
                .takes::<Nack<'_>>()
                .gives::<SettledAnswer>(200, "The state of the message from now on.")
                .refuses(&[LeaseLost, KeyExists, MessageNotFound])),
        post("/v1/messages/{id}/extend", NO, message(Consume), settle::extend,
            consume("extendMessage", "Push a lease's deadline")
                .takes::<Extend<'_>>()
                .gives::<ExtendedAnswer>(200, "The lease lasts until then.")
                .refuses(&[LeaseLost, MessageNotFound])),
        post("/v1/ack", NO, several(Consume), settle::ack_many,
            consume("ackMessages", "Ack many messages").takes::<AckMany<'_>>().gives::<AckResults<'_>>(200, RESULTS)),
        post("/v1/nack", NO, several(Consume), settle::nack_many,
            consume("nackMessages", "Nack many messages").takes::<NackMany<'_>>().gives::<NackResults<'_>>(200, RESULTS)),
        post("/v1/extend", NO, several(Consume), settle::extend_many,
            consume("extendMessages", "Push the deadlines of many leases")
                .takes::<ExtendMany<'_>>()
                .gives::<ExtendResults<'_>>(200, RESULTS)),
        post("/v1/reserve", NO, several(Consume), reserve::reserve_of_many,
            consume("reserveMessagesOfQueues", "Lease messages of several queues, waiting for the first if asked to")
                .takes::<ReserveOfMany<'_>>()
                .gives::<GrantsAnswer<'_>>(200, GRANTED)),
    ]
}

/// The routes of queues, and jobs on their messages.
#[rustfmt::skip]
fn all_queues() -> Vec<HttpRoute> {
    use Scope::{Admin, Metrics};
    vec![
        get("/v1/queues", LIST_OF_QUEUES, several(Metrics), listing::queues,
            look("listQueues", "All queues by name").gives::<QueuesAnswer<'_>>(200, "The page.")),
        get("/v1/queues/{queue}", NO, queue(Metrics), queues::show,
            look("getQueue", "A queue; one that does not exist is shown as empty")
                .gives::<QueueAnswer<'_>>(200, "The queue.")),
        get("/v1/queues/{queue}/histogram", HISTOGRAM, queue(Metrics), stats::histogram,
            look("getQueueHistogram", "How many messages are due when")
                .gives::<HistogramAnswer>(200, "Scheduled and ready messages by due time.")),
        get("/v1/queues/{queue}/dead", &[REASON, NOTE, AFTER], LISTS, listing::dead,
            look("countDeadMessages", "Dead messages counted by reason: of a page of at most 20,000, in the order in which \
                they died")
                .gives::<DeadAnswer<'_>>(200, "The counts of the page.")),
        delete("/v1/queues/{queue}", EXPECT, queue(Admin), queue_config::remove,
            operate("removeQueue", "Remove a queue with its messages and settings")
                .audited()
                .gives::<RemovedAnswer<'_>>(200, "The queue is gone.")
                .refuses(&[NotFound, Leased, InUse, Changed])),
        get("/v1/queues/{queue}/config", NO, queue(Admin), queue_config::config,
            operate("getQueueConfig", "The settings of a queue, as set and as in effect")
                .gives::<ConfigAnswer<'_>>(200, "The settings.")),
        put("/v1/queues/{queue}/config", NO, queue(Admin), queue_config::configure,
            operate("putQueueConfig", "Replace the settings of a queue")
                .audited()
                .takes::<ConfigRequest>()
                .gives::<ConfiguredAnswer<'_>>(200, "The queue as it is now.")),
        patch("/v1/queues/{queue}/config", NO, queue(Admin), queue_config::change,
            operate("changeQueueConfig", "Change some settings of a queue; null resets one")
                .audited()
                .takes::<ConfigChange>()
                .gives::<ConfiguredAnswer<'_>>(200, "The queue as it is now.")),
        post("/v1/queues/{queue}/pause", NO, queue(Admin), queues::pause,
            operate("pauseQueue", "Grant nothing, until resumed or for a time")
                .audited()
                .may_take::<PauseFor>()
                .gives::<PausedAnswer<'_>>(200, "The queue is paused.")),
        post("/v1/queues/{queue}/resume", NO, queue(Admin), queues::resume,
            operate("resumeQueue", "Grant again")
                .audited()
                .may_take::<Nothing>()
                .gives::<ResumedAnswer<'_>>(200, "The queue is not paused.")),
        post("/v1/queues/{queue}/purge", NO, queue(Admin), bulk::purge,
            operate("purgeQueue", "Remove all messages that are not leased")
                .audited()
                .may_take::<PurgeRequest>()
                .gives::<PurgedAnswer>(200, "The messages are removed.")
                .gives::<PurgedAnswer>(202, "With `keep`: the job of this act goes on.")
                .refuses(&[Changed, OverQuota, DiskFull])),
        post("/v1/queues/{queue}/redrive", NO, queue(Admin), queues::redrive,
            operate("redriveMessages", "Make dead messages ready again, in the order in which they died")
                .audited()
                .may_take::<Redrive>()
                .gives::<RedrivenAnswer<'_>>(200, "The messages are ready.")
                .refuses(&[Paused, Changed, OverQuota, DiskFull])),

        post("/v1/queues/{queue}/bulk", NO, queue(Admin), bulk::bulk,
            operate("createJob", "Cancel, postpone, fire, redrive or restore many messages")
                .audited()
                .takes::<BulkFields<'_>>()
                .gives::<BulkCountAnswer>(200, "The messages are counted.")
                .gives::<JobAnswer>(202, "The job has begun.")
                .refuses(&[Changed, OverQuota, DiskFull])),
        get("/v1/jobs", NO, several(Admin), bulk::list,
            look("listJobs", "List jobs, the newest first").gives::<JobsAnswer>(200, "All jobs.")),
        get("/v1/jobs/{job}", NO, several(Admin), bulk::show,
            look("getJob", "Look at a job").gives::<JobAnswer>(200, "The job.").refuses(&[NotFound])),
        delete("/v1/jobs/{job}", NO, several(Admin), bulk::cancel,
            operate("cancelJob", "End a job; what it has changed stays")
                .audited()
                .gives::<JobAnswer>(200, "The job has ended.")
                .refuses(&[NotFound, DiskFull])),
    ]
}

/// The routes of schedules.
#[rustfmt::skip]
fn all_schedules() -> Vec<HttpRoute> {
    use Scope::Admin;
    vec![
        get("/v1/schedules", LIST_OF_SCHEDULES, several(Admin), schedules::list,
            look("listSchedules", "List schedules by name").gives::<SchedulesAnswer>(200, "A page.")),
        put("/v1/schedules/{name}", NO, several(Admin), schedules::put,
            operate("putSchedule", "Create a schedule, or give it other settings")
                .audited()
                .takes::<ScheduleRequest<'_>>()
                .gives::<ScheduleAnswer>(200, "The schedule.")
                .refuses(&[KeyExists, InThePast, DiskFull])),
        get("/v1/schedules/{name}", NO, several(Admin), schedules::show,
            look("getSchedule", "Look at a schedule")
                .gives::<ScheduleAnswer>(200, "The schedule.")
                .refuses(&[NotFound, KeyExists])),
        patch("/v1/schedules/{name}", NO, several(Admin), schedules::change,
            operate("changeSchedule", "Change some settings of a schedule; `null` resets one")
                .audited()
                .takes::<ScheduleRequest<'_>>()
                .gives::<ScheduleAnswer>(200, "The schedule.")
                .refuses(&[NotFound, KeyExists, InThePast, DiskFull])),
        delete("/v1/schedules/{name}", NO, several(Admin), schedules::remove,
            operate("removeSchedule", "Remove a schedule, and its occurrence that is not due")
                .audited()
                .gives::<ScheduleRemoved>(200, "The schedule is removed.")
                .refuses(&[NotFound])),
        post("/v1/schedules/{name}/trigger", NO, several(Admin), schedules::trigger,
            operate("triggerSchedule", "Enter one message of a schedule now")
                .may_take::<TriggerRequest<'_>>()
                .gives::<TriggeredAnswer>(201, "The message.")
                .refuses(&[NotFound, KeyExists, OverQuota, DiskFull])),
        post("/v1/schedules/{name}/backfill", NO, several(Admin), schedules::backfill,
            operate("backfillSchedule", "Enter the occurrences of a time past")
                .audited()
                .takes::<BackfillRequest<'_>>()
                .gives::<BackfilledAnswer>(200, "The occurrences have entered.")
                .refuses(&[NotFound, KeyExists, OverQuota, DiskFull])),
        post("/v1/schedules/preview", NO, several(Admin), schedules::preview,
            look("previewSchedule", "See when a schedule would occur, without saving it")
                .takes::<PreviewRequest>()
                .gives::<PreviewAnswer>(200, "The next occurrences.")),
    ]
}

/// The routes of bridges.
#[rustfmt::skip]
fn all_bridges() -> Vec<HttpRoute> {
    use Scope::Admin;
    vec![
        get("/v1/bridges", NO, server(Admin), bridges::list,
            look("listBridges", "List bridges by name").gives::<BridgesAnswer>(200, "The bridges of the configuration.")),
        get("/v1/bridges/{name}", NO, server(Admin), bridges::show,
            look("getBridge", "Look at a bridge").gives::<BridgeAnswer>(200, "The bridge.").refuses(&[NotFound])),
        get("/v1/bridges/{name}/plan", NO, server(Admin), bridges::plan,
            look("planBridge", "Show the declarations by which a bridge takes the place of a plugin")
                .gives::<BridgePlan>(200, "The plan.").refuses(&[NotFound])),
        post("/v1/bridges/{name}/pause", NO, server(Admin), bridges::pause,
            operate("pauseBridge", "Let a bridge take and give nothing until it is resumed")
                .audited()
                .may_take::<PauseBridgeRequest<'_>>()
                .gives::<BridgeAnswer>(200, "The bridge.")
                .refuses(&[NotFound, OverQuota, DiskFull])),
        post("/v1/bridges/{name}/resume", NO, server(Admin), bridges::resume,
            operate("resumeBridge", "Resume a paused bridge")
                .audited()
                .gives::<BridgeAnswer>(200, "The bridge.")
                .refuses(&[NotFound, OverQuota, DiskFull])),
        post("/v1/bridges/{name}/test", NO, server(Admin), bridges::test,
            operate("testBridge", "Connect to the other side, and send a message each way that no consumer gets")
                .gives::<TestedBridgeAnswer>(200, "The steps of the test.").refuses(&[NotFound])),
    ]
}

/// The routes of targets.
#[rustfmt::skip]
fn all_targets() -> Vec<HttpRoute> {
    use Scope::Admin;
    vec![
        get("/v1/targets", LIST_OF_TARGETS, server(Admin), targets::list,
            look("listTargets", "List targets by name").gives::<TargetsAnswer>(200, "A page.")),
        put("/v1/targets/{name}", NO, server(Admin), targets::put,
            operate("putTarget", "Create a target, or give it other settings")
                .audited()
                .takes::<TargetRequest>()
                .gives::<TargetAnswer>(200, "The target.")
                .refuses(&[InUse, OverQuota, DiskFull])),
        get("/v1/targets/{name}", NO, server(Admin), targets::show,
            look("getTarget", "Look at a target").gives::<TargetAnswer>(200, "The target.").refuses(&[NotFound])),
        delete("/v1/targets/{name}", NO, server(Admin), targets::remove,
            operate("removeTarget", "Remove a target that no queue is delivered to")
                .audited()
                .gives::<TargetRemoved>(200, "The target is removed.")
                .refuses(&[NotFound, InUse])),
        post("/v1/targets/{name}/pause", NO, server(Admin), targets::pause,
            operate("pauseTarget", "Let the messages of a target wait until it is resumed")
                .audited()
                .may_take::<PauseTargetRequest<'_>>()
                .gives::<TargetAnswer>(200, "The target.")
                .refuses(&[NotFound, KeyExists, DiskFull])),
        post("/v1/targets/{name}/resume", NO, server(Admin), targets::resume,
            operate("resumeTarget", "Resume deliveries to a paused target")
                .audited()
                .gives::<TargetAnswer>(200, "The target.")
                .refuses(&[NotFound, KeyExists, DiskFull])),
        post("/v1/targets/{name}/test", NO, server(Admin), targets::test,
            operate("testTarget", "Send one signed message now")
                .gives::<TestedAnswer>(200, "The answer of the target.")
                .refuses(&[NotFound, KeyExists, OverQuota, DiskFull])),
    ]
}

/// The routes of the server.
#[rustfmt::skip]
fn whole_server() -> Vec<HttpRoute> {
    use AccessRule::{Identified, Open};
    use Scope::{Admin, Metrics};
    vec![
        get("/v1/quotas", NO, several(Metrics), servers::quotas,
            look("listQuotas", "All quotas, and what is used of them")
                .gives::<QuotasAnswer<'_>>(200, "All quotas within reach.")),
        get("/v1/histogram", HISTOGRAM, server(Metrics), stats::histogram_of_all,
            look("getHistogram", "How many messages of all queues are due when")
                .like("getQueueHistogram")
                .gives::<HistogramAnswer>(200, "Scheduled and ready messages by due time.")),
        get("/v1/history", HISTORY, several(Metrics), history::history,
            look("getHistory", "What happened to messages in each step of time: the last hour by 10 s, 48 hours by 5 min")
                .gives::<HistoryAnswer>(200, "The series, a number or null for each step.")),
        get("/v1/stats", NO, server(Metrics), stats::stats,
            look("getStats", "Figures of the whole server").gives::<StatsAnswer>(200, "The figures.")),
        get("/v1/stats/stream", NO, server(Metrics), stats::stream,
            look("streamStats", "The figures every second, as server-sent events")
                .gives_text("text/event-stream", "An event `stats` every second, with the figures in JSON, until the reader \
                    ends the connection or the server stops.")),
        get("/v1/events", EVENTS, several(Admin), events::events,
            look("streamEvents", "What happens to messages, as server-sent events")
                .gives_other(200, "Events until the reader ends the connection or the server stops. `data` is an Event in \
                    JSON; an event `missed` says from which id to which events were not kept.", "text/event-stream",
                    |generator| { generator.subschema_for::<EventAnswer<'_>>(); text(generator) })
                .refuses(&[Overloaded])),
        get("/v1/wheel", NO, server(Metrics), stats::wheel,
            look("getWheel", "The rings in memory").gives::<WheelAnswer<'_>>(200, "The rings.")),
        get("/v1/audit", LIST_OF_ACTS, several(Admin), audit::list,
            look("listActs", "List changes of many messages or of settings, the newest first")
                .gives::<AuditAnswer<'_>>(200, "A page.")),
        get("/v1/status", NO, server(Admin), statuses::status,
            look("getStatus", "The state of this server")
                .gives::<ServerStatusAnswer>(200, "The state.")),
        get("/v1/cluster", NO, server(Metrics), servers::cluster,
            look("getCluster", "The nodes, and the owners of the shards")
                .gives::<ClusterAnswer<'_>>(200, "The cluster as the node that answers sees it.")
                .refuses(&[NotFound])),
        get("/v1/token", NO, Identified, servers::token,
            look("getToken", "Who the caller is, and what its token allows")
                .gives::<IdentityAnswer<'_>>(200, "The caller.")),
        get("/v1/tokens", NO, server(Admin), servers::tokens,
            look("listTokens", "All tokens by name, without the tokens themselves")
                .gives::<TokensAnswer<'_>>(200, "The tokens; none where the server asks for none.")),
        post("/v1/clock/advance", NO, server(Admin), servers::advance,
            operate("advanceClock", "For tests: let time pass, on a server with --virtual-clock")
                .audited_alone()
                .takes::<AdvanceRequest>()
                .gives::<AdvancedAnswer>(200, "The time has passed.")
                .refuses(&[NotFound])),
        post("/v1/backup", NO, server(Admin), servers::backup,
            operate("createBackup", "Copy the data folder, while everything goes on")
                .audited_alone()
                .takes::<BackupRequest<'_>>()
                .gives::<BackedUpAnswer<'_>>(200, "The copy is complete.")
                .refuses(&[DiskFull])),

        get("/healthz", NO, Open, health::health,
            look("getHealth", "Whether all is well, the store and the cluster included")
                .gives::<HealthAnswer<'_>>(200, "All is well.")
                .gives::<TroubledAnswer<'_>>(503, "The server starts or drains, its driver has stalled, or its store or \
                    cluster has a problem.")),
        get("/livez", NO, Open, health::live,
            look("getLiveness", "Whether the process works: 503 when only a restart helps")
                .gives::<ProbeAnswer>(200, "Yes.")
                .gives::<ProbeAnswer>(503, "A thread has stalled for two minutes, or there was a bug; never for the store.")),
        get("/readyz", NO, Open, health::ready,
            look("getReadiness", "Whether to send requests here: 503 while stopping")
                .gives::<ProbeAnswer>(200, "Yes.")
                .gives::<ProbeAnswer>(503, "The server starts or was told to stop, a thread has stalled, the store does not \
                    return from a call, or there was a bug.")),
        get("/metrics", METRICS, server(Metrics), metrics::metrics,
            look("getMetrics", "Figures in Prometheus' text format")
                .gives_text("text/plain", "The figures at the moment of the request.")),
        get("/openapi.json", NO, Open, openapi,
            look("getDescription", "This description")
                .gives_other(200, "The description.", "application/json", |_| json_schema!({ "type": "object" }))),
        get("/errors", NO, Open, home::errors,
            look("getErrors", "What the codes of problems mean, for people")
                .gives_text("text/html", "The page; each code is an anchor.")),
        get("/", NO, Open, home, look("getHome", "A page for people").gives_text("text/html", "The page.")),
    ]
}

fn getting(id: &'static str) -> OperationDoc {
    look(id, "Look at a message").gives::<MessageAnswer<'_>>(200, "The message.").refuses(&[MessageNotFound])
}

fn cancelling(id: &'static str) -> OperationDoc {
    produce(id, "Cancel a message")
        .may_take::<CancelRequest>()
        .gives::<CancelledAnswer<'_>>(200, "The message was taken back.")
        .refuses(&[MessageNotFound, Leased])
}

fn postponing(id: &'static str) -> OperationDoc {
    produce(id, POSTPONE)
        .takes::<PostponeRequest<'_>>()
        .gives::<OutlineAnswer<'_>>(200, "The message as it is now: the same id, the generation one higher.")
        .refuses(CHANGE)
        .refuses(&[GenerationMismatch, InThePast, OverQuota, DiskFull])
}

fn firing(id: &'static str) -> OperationDoc {
    produce(id, "Make a message due now")
        .may_take::<Nothing>()
        .gives::<OutlineAnswer<'_>>(200, "The message as it is now.")
        .refuses(CHANGE)
        .refuses(&[Paused, OverQuota])
}

/// `GET /`: the dashboard for a browser, else a page that lists all routes.
async fn home(call: Call) -> Answer {
    if home::is_browser(call.headers()) {
        return Ok(home::dashboard(call.headers()));
    }
    Ok(home::list_of_calls(described()))
}

/// `GET /openapi.json`, for machines.
async fn openapi(call: Call) -> Answer {
    Ok(typed(StatusCode::OK, "application/json", description(&call.app)))
}

/// The text of `openapi.json`, which is made at the first call.
pub(super) fn description(app: &App) -> Bytes {
    let security = if app.guard.is_open() { Security::Open } else { Security::Tokens };
    let make = || json::line(256 * 1024, &document(&app.policy, security)).into();
    app.description.get_or_init(make).clone()
}

/// The description of the whole table, as in `openapi.json`.
pub(crate) fn document(policy: &Policy, security: Security) -> Value {
    openapi::document(described(), policy, security)
}

/// All routes as `openapi.json` describes them.
pub(crate) fn described() -> impl Iterator<Item = Described> {
    table().into_iter().map(|route| route.described)
}

/// The router for the table, over this state.
pub(crate) fn router(app: App) -> Router {
    Unbound::new().bind(app)
}

/// The router for the table, without a state.
#[derive(Clone)]
pub(crate) struct Unbound {
    router: Router<App>,
    durations: Vec<Arc<RouteDurations>>,
}

impl Unbound {
    pub(crate) fn new() -> Self {
        let mut router = Router::new();
        let (mut durations, mut paths) = (Vec::new(), Vec::new());
        for route in table() {
            paths.push(route.described.path);
            durations.push(route.durations);
            router = router.route(route.described.path, route.handler);
        }
        // They are no part of the API, and not described.
        for asset in home::assets() {
            let serve = move |State(app): State<App>, headers: HeaderMap| async move {
                answer(&app, Ok(asset.answer(&headers)))
            };
            router = router.route(asset.path, on(MethodFilter::GET, serve));
        }
        let router = router
            .fallback(move |State(app): State<App>, uri: Uri| {
                let problem = unknown::path(uri.path(), &paths);
                async move { answer(&app, Err(problem)) }
            })
            .method_not_allowed_fallback(|State(app): State<App>, method: Method| async move {
                let detail = format!("{method} is not a method of this path; see the Allow header");
                answer(&app, Err(Problem::new(ErrorCode::MethodNotAllowed, detail)))
            });
        Unbound { router, durations }
    }

    pub(crate) fn bind(self, app: App) -> Router {
        // An app has one router.
        let _ = app.durations.set(self.durations);
        self.router.with_state(app)
    }
}

macro_rules! methods {
    ($($name:ident $method:ident),*) => {$(
        fn $name<F: Future<Output = Answer> + Send + 'static>(
            path: &'static str,
            query: &'static [Parameter],
            access: AccessRule,
            handler: impl Fn(Call) -> F + Send + Sync + 'static,
            doc: OperationDoc,
        ) -> HttpRoute {
            route(Described { method: Method::$method, path, query, access, doc }, Arc::new(move |call| Box::pin(handler(call))))
        }
    )*};
}
methods!(get GET, post POST, put PUT, patch PATCH, delete DELETE);

/// A route by its description. Its handler is boxed, so that everything around it is compiled once.
fn route(described: Described, handler: Arc<CallHandler>) -> HttpRoute {
    let Described { query, access, .. } = described;
    let durations = Arc::new(RouteDurations::new(described.method.clone(), described.path));
    let counted = Arc::clone(&durations);
    let (audit, id) = (described.doc.audit, described.doc.id());
    let serve = move |State(app): State<App>, request: Request| {
        let (handler, durations) = (Arc::clone(&handler), Arc::clone(&counted));
        async move {
            let since = Instant::now();
            let result = match Call::new(app.clone(), request, query, access).await {
                Ok(call) => {
                    let caller = call.caller.clone();
                    audit::run(audit, id, call, &*handler).await.map_err(|problem| caller.readable(problem))
                }
                Err(problem) => Err(problem),
            };
            let response = answer(&app, result);
            durations.count(response.status(), since.elapsed());
            response
        }
    };
    let method = MethodFilter::try_from(described.method.clone()).unwrap_or(MethodFilter::GET);
    HttpRoute { handler: on(method, serve), described, durations }
}

fn answer(app: &App, result: Answer) -> Response {
    let response = result.unwrap_or_else(IntoResponse::into_response);
    app.count_response(response.status());
    response
}
