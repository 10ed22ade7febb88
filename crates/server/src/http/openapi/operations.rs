//! The descriptions of all operations, as far as types do not give them.

use duewheel::core::policy::QueueSettings;
use duewheel::core::store::Level;
use duewheel::core::{Epoch, LeaseToken, MessageId, WallMs};
use schemars::json_schema;
use serde_json::json;

use super::operation::{Link, OperationDoc, Tag};
use crate::auth::Scope;
use crate::error::ErrorCode::{
    self, Dead, DedupeMismatch, DiskFull, GenerationMismatch, InThePast, InUse, KeyExists, LeaseLost, Leased,
    MessageNotFound, NotDone, NotFound, OverQuota, Paused,
};
use crate::error::{ItemProblem, Problem};
use crate::hourly::HourlyRate;
use crate::http::backup::{BackedUpAnswer, BackupRequest};
use crate::http::cancel::{CancelMany, CancelResult, CancelResults, CancelledId, CancelledKey, RefusedKey};
use crate::http::clock::{AdvanceRequest, AdvancedAnswer};
use crate::http::cluster::{ClusterAnswer, NodeAnswer, ShardAnswer};
use crate::http::enqueued::EnqueuedAnswer;
use crate::http::health::{HealthAnswer, ProbeAnswer, StatusWord, TroubledAnswer};
use crate::http::histogram::{self, BucketAnswer, HistogramAnswer};
use crate::http::identity::{IdentityAnswer, TokenAnswer, TokensAnswer};
use crate::http::limits::{GrantRateAnswer, LimitsAnswer, OnExpiryWord, TraceWord};
use crate::http::line::EnqueueLine;
use crate::http::listing::{self, QueuesAnswer};
use crate::http::message::{
    CancelRequest, CancelledAnswer, CancelledWord, Nothing, PostponeRequest, ReplayRequest,
};
use crate::http::ndjson::{AcceptedLine, LineAnswer};
use crate::http::queue::{
    PauseFor, PausedAnswer, PurgedAnswer, Redrive, RedriveResult, RedrivenAnswer, RedrivenId, ResumedAnswer,
};
use crate::http::queue_config::{
    ConfigAnswer, ConfigChange, ConfigRequest, ConfiguredAnswer, EffectiveAnswer, RemovedAnswer, RemovedWord,
};
use crate::http::queue_view::{
    BackoffAnswer, CountsAnswer, ExpiredAnswer, OrderWord, QueueAnswer, RatesAnswer, SettingsAnswer,
    TotalsAnswer,
};
use crate::http::quota::{QuotaAnswer, QuotasAnswer, RateAnswer, ResourceAnswer};
use crate::http::reserve::{GrantAnswer, GrantsAnswer, ReserveOfMany, ReserveRequest};
use crate::http::settle::{
    Ack, Extend, ExtendedAnswer, ExtendedWord, Nack, RefusedId, SettledAnswer, SettledWord,
};
use crate::http::settle_many::{
    AckMany, AckResult, AckResults, AckedItem, ExtendMany, ExtendResult, ExtendResults, ExtendedItem,
    NackMany, NackResult, NackResults, NackedItem,
};
use crate::http::stats::{LatenessAnswer, LaterAnswer, RingAnswer, StatsAnswer};
use crate::http::view::{ContentAnswer, MessageAnswer, OutlineAnswer, OwnSettingsAnswer, PastAttemptAnswer};
use crate::http::wheel::{OccupiedAnswer, PointersAnswer, SlotAnswer, WheelAnswer};
use crate::json::{Elements, HeaderPairs, IdText, InstantText, Thousandths, TokenText};
use crate::schema::{InstantSchema, QueueSchema};

const QUEUE: &str = "close-review";
const KEY: Option<&str> = Some("order-42");
const ID: IdText = IdText(MessageId(17));
const DUE_AT: InstantText = InstantText(WallMs(1_767_398_400_000));
const NOW: InstantText = InstantText(WallMs(1_767_225_600_000));
const LEASED_UNTIL: InstantText = InstantText(WallMs(1_767_398_430_012));
const FSYNC: &str = "fsync";
const TOKEN: LeaseToken = LeaseToken { epoch: Epoch(1), counter: 1 };

/// The reasons for which a change of a waiting message may be refused.
const CHANGE: &[ErrorCode] = &[MessageNotFound, Leased, Dead];

/// The links of a producer to one message by its id.
const OF_A_MESSAGE: &[Link] = &[by_id("get"), by_id("cancel"), by_id("postpone"), by_id("fire")];

const fn by_id(operation: &'static str) -> Link {
    Link { operation, parameters: &[("id", "$response.body#/id")] }
}

// ----- produce -----

fn accepted() -> EnqueuedAnswer<'static> {
    EnqueuedAnswer {
        id: ID,
        queue: QUEUE,
        key: KEY,
        due_at: DUE_AT,
        generation: 1,
        created: true,
        state: None,
        replaced: None,
        superseded: None,
        replayed: false,
        durability: FSYNC,
    }
}

pub(crate) fn enqueue() -> OperationDoc {
    let refused = Problem::field("delay", "must be whole numbers with units");
    OperationDoc::new(Tag::Produce, "enqueue", "Schedule a message, or a message a line")
        .takes::<EnqueueLine<'_>>(r#"{"body": "order 42", "delay": "48h", "key": "order-42"}"#)
        .takes_lines::<EnqueueLine<'_>>("{\"body\": \"order 42\", \"delay\": \"48h\"}\n{\"body\": \"order 43\", \"delay\": \"soon\"}\n")
        .gives(201, "A new message.", &accepted())
        .leads_to(OF_A_MESSAGE)
        .gives(
            200,
            "The message that was there (`if_exists: keep`, or a repeated `dedupe_id`); or, for a message a line, a result a line.",
            &EnqueuedAnswer { created: false, state: Some("scheduled"), ..accepted() },
        )
        .gives_lines(
            200,
            "",
            &[
                LineAnswer::Accepted(AcceptedLine { message: accepted(), status: 201 }),
                LineAnswer::Refused(ItemProblem::of(&refused)),
            ],
        )
        .refuses(&[KeyExists, Leased, DedupeMismatch, InThePast, OverQuota, DiskFull])
}

pub(crate) fn get() -> OperationDoc {
    look_at("get")
}

pub(crate) fn get_by_key() -> OperationDoc {
    look_at("get_by_key")
}

fn look_at(id: &'static str) -> OperationDoc {
    OperationDoc::new(Tag::Look, id, "Look at a message")
        .gives(200, "The message.", &message())
        .refuses(&[MessageNotFound])
}

pub(crate) fn cancel() -> OperationDoc {
    cancelling("cancel")
}

pub(crate) fn cancel_by_key() -> OperationDoc {
    cancelling("cancel_by_key")
}

fn cancelling(id: &'static str) -> OperationDoc {
    let example = CancelledAnswer {
        result: CancelledWord::Cancelled,
        id: ID,
        queue: QUEUE,
        key: KEY,
        durability: FSYNC,
    };
    OperationDoc::new(Tag::Produce, id, "Cancel a message")
        .may_take::<CancelRequest>(r#"{"forget_dedupe": true}"#)
        .gives(200, "The message was taken back.", &example)
        .refuses(&[MessageNotFound, Leased])
}

pub(crate) fn postpone() -> OperationDoc {
    postponing("postpone")
}

pub(crate) fn postpone_by_key() -> OperationDoc {
    postponing("postpone_by_key")
}

fn postponing(id: &'static str) -> OperationDoc {
    let summary =
        "Change a message that waits: its due time, body, headers or settings; what is left out stays";
    OperationDoc::new(Tag::Produce, id, summary)
        .takes::<PostponeRequest<'_>>(r#"{"delay": "15d", "if_generation": 1}"#)
        .gives(
            200,
            "The message as it is now: the same id, the generation one higher.",
            &outline("scheduled", 2),
        )
        .refuses(CHANGE)
        .refuses(&[GenerationMismatch, InThePast, OverQuota, DiskFull])
}

pub(crate) fn replay() -> OperationDoc {
    let answer = EnqueuedAnswer { key: None, ..accepted() };
    OperationDoc::new(Tag::Produce, "replay", "Enqueue the content of a done or dead message again")
        .may_take::<ReplayRequest>(r#"{"key": "order-42-again"}"#)
        .gives(201, "A new message, due now.", &answer)
        .refuses(&[MessageNotFound, NotDone, KeyExists, OverQuota, DiskFull])
}

pub(crate) fn fire() -> OperationDoc {
    firing("fire")
}

pub(crate) fn fire_by_key() -> OperationDoc {
    firing("fire_by_key")
}

fn firing(id: &'static str) -> OperationDoc {
    OperationDoc::new(Tag::Produce, id, "Make a message due now")
        .may_take::<Nothing>("{}")
        .gives(200, "The message as it is now.", &outline("ready", 1))
        .refuses(CHANGE)
        .refuses(&[Paused, OverQuota, DiskFull])
}

pub(crate) fn cancel_many() -> OperationDoc {
    let gone = Problem::message_not_found();
    let results = vec![
        CancelResult::Key(CancelledKey::of("order-42", Level::Fsync)),
        CancelResult::KeyRefused(RefusedKey { key: "order-43", problem: ItemProblem::of(&gone) }),
        CancelResult::Id(CancelledId::of(ID.0, Level::Fsync)),
        CancelResult::IdRefused(RefusedId { id: IdText(MessageId(18)), problem: ItemProblem::of(&gone) }),
    ];
    OperationDoc::new(Tag::Produce, "cancel_many", "Cancel many messages, by key and by id")
        .takes::<CancelMany<'_>>(r#"{"keys": ["order-42", "order-43"], "ids": ["17", "18"]}"#)
        .gives(200, "A result for each key, then for each id, in order.", &CancelResults { results })
}

// ----- consume -----

pub(crate) fn reserve() -> OperationDoc {
    reserving("reserve", "Lease messages, waiting for the first if asked to")
        .may_take::<ReserveRequest>(r#"{"max": 10, "wait_ms": 0}"#)
}

pub(crate) fn reserve_of_many() -> OperationDoc {
    reserving("reserve_of_many", "Lease messages of several queues, waiting for the first if asked to")
        .takes::<ReserveOfMany<'_>>(
        r#"{"queues": [{"queue": "close-review"}, {"queue": "sms", "max": 2}], "max": 10}"#,
    )
}

fn reserving(id: &'static str, summary: &'static str) -> OperationDoc {
    let grant = GrantAnswer {
        content: content(),
        attempt: 1,
        priority: 1024,
        generation: 1,
        due_at: DUE_AT,
        lease_token: TokenText(TOKEN),
        lease_until: LEASED_UNTIL,
        lease_ms: 30_000,
        lateness_ms: 12,
        late: false,
    };
    OperationDoc::new(Tag::Consume, id, summary).gives(
        200,
        "The messages, in the order in which they are granted; none when none has come.",
        &GrantsAnswer { messages: Elements::Made(vec![grant]), held_back: None },
    )
}

pub(crate) fn ack() -> OperationDoc {
    let example = settled(SettledWord::Acked, None);
    OperationDoc::new(Tag::Consume, "ack", "Done")
        .takes::<Ack<'_>>(r#"{"lease_token": "000000010000000000000001"}"#)
        .gives(200, "The message is done.", &example)
        .refuses(&[LeaseLost, MessageNotFound])
}

pub(crate) fn nack() -> OperationDoc {
    let example = settled(SettledWord::Again, Some(DUE_AT));
    OperationDoc::new(Tag::Consume, "nack", "Nack a message: it is ready again after a delay, or dead")
        .takes::<Nack<'_>>(
            r#"{"lease_token": "000000010000000000000001", "delay_ms": 60000, "reason": "mail server away"}"#,
        )
        .gives(200, "The state of the message from now on.", &example)
        .refuses(&[LeaseLost, KeyExists, MessageNotFound])
}

pub(crate) fn extend() -> OperationDoc {
    let example =
        ExtendedAnswer { result: ExtendedWord::Extended, lease_until: LEASED_UNTIL, durability: FSYNC };
    OperationDoc::new(Tag::Consume, "extend", "Push a lease's deadline")
        .takes::<Extend<'_>>(r#"{"lease_token": "000000010000000000000001", "lease_ms": 30000}"#)
        .gives(200, "The lease lasts until then.", &example)
        .refuses(&[LeaseLost, MessageNotFound])
}

pub(crate) fn ack_many() -> OperationDoc {
    let lost = Problem::new(LeaseLost, LeaseLost.summary());
    let results = vec![
        AckResult::Done(AckedItem { id: ID, settled: settled(SettledWord::Acked, None) }),
        AckResult::Refused(RefusedId::of(MessageId(18), &lost)),
    ];
    OperationDoc::new(Tag::Consume, "ack_many", "Ack many messages")
        .takes::<AckMany<'_>>(r#"{"messages": [{"id": "17", "lease_token": "000000010000000000000001"}]}"#)
        .gives(200, "A result for each message, in order.", &AckResults { results })
}

pub(crate) fn nack_many() -> OperationDoc {
    let lost = Problem::new(LeaseLost, LeaseLost.summary());
    let results = vec![
        NackResult::Done(NackedItem { id: ID, settled: settled(SettledWord::Again, Some(DUE_AT)) }),
        NackResult::Refused(RefusedId::of(MessageId(18), &lost)),
    ];
    OperationDoc::new(Tag::Consume, "nack_many", "Nack many messages")
        .takes::<NackMany<'_>>(
            r#"{"messages": [{"id": "17", "lease_token": "000000010000000000000001", "delay_ms": 60000}]}"#,
        )
        .gives(200, "A result for each message, in order.", &NackResults { results })
}

pub(crate) fn extend_many() -> OperationDoc {
    let lost = Problem::new(LeaseLost, LeaseLost.summary());
    let extended =
        ExtendedAnswer { result: ExtendedWord::Extended, lease_until: LEASED_UNTIL, durability: FSYNC };
    let results = vec![
        ExtendResult::Done(ExtendedItem { id: ID, extended }),
        ExtendResult::Refused(RefusedId::of(MessageId(18), &lost)),
    ];
    OperationDoc::new(Tag::Consume, "extend_many", "Push the deadlines of many leases")
        .takes::<ExtendMany<'_>>(
            r#"{"messages": [{"id": "17", "lease_token": "000000010000000000000001", "lease_ms": 30000}]}"#,
        )
        .gives(200, "A result for each message, in order.", &ExtendResults { results })
}

// ----- look -----

pub(crate) fn list_queues() -> OperationDoc {
    OperationDoc::new(Tag::Look, "list_queues", "All queues by name")
        .query(
            "after",
            "The `next` of an earlier page.",
            |g| g.subschema_for::<QueueSchema>(),
            json!("close-review"),
        )
        .query("limit", "The most queues of a page.", |_| limit(listing::QUEUES, "max_page"), json!(1000))
        .gives(200, "The page.", &QueuesAnswer { queues: vec![queue()], next: None })
}

pub(crate) fn get_queue() -> OperationDoc {
    OperationDoc::new(Tag::Look, "get_queue", "A queue; one that does not exist is shown as empty").gives(
        200,
        "The queue.",
        &queue(),
    )
}

pub(crate) fn histogram() -> OperationDoc {
    histogram_named("histogram", "How many messages are due when")
}

pub(crate) fn histogram_of_all() -> OperationDoc {
    histogram_named("histogram_of_all", "How many messages of all queues are due when")
}

fn histogram_named(id: &'static str, summary: &'static str) -> OperationDoc {
    let example = HistogramAnswer {
        from: NOW,
        width_ms: 1_800_000,
        resolution_ms: 60_000,
        before: 0,
        after: 3,
        buckets: vec![BucketAnswer { from: NOW, count: 7 }],
    };
    let instant: super::operation::SchemaOf = |g| g.subschema_for::<InstantSchema>();
    OperationDoc::new(Tag::Look, id, summary)
        .query(
            "from",
            "The start of the first bucket; now by default.",
            instant,
            json!("2026-01-01T00:00:00Z"),
        )
        .query(
            "to",
            "The end of the last bucket; a day after `from` by default.",
            instant,
            json!("2026-01-02T00:00:00Z"),
        )
        .query("buckets", "How many.", |_| limit(histogram::COLUMNS, "max_histogram"), json!(48))
        .gives(200, "Scheduled and ready messages by due time.", &example)
}

fn stats_example() -> StatsAnswer {
    StatsAnswer {
        at: NOW,
        counts: counts(),
        bytes: 50,
        resident: 10,
        queues: 1,
        waiters: 0,
        totals: totals(),
        lease_expired: 0,
        lateness: LatenessAnswer { edges_ms: vec![0, 1], counts: vec![7, 1, 0], sum_ms: 1 },
        ring: RingAnswer { slots: 3_600, tick_ms: 1_000, pointer: 12, messages: 10, segments: vec![10, 0] },
        later: vec![LaterAnswer { from: NOW, width_ms: 1_800_000, counts: vec![10, 0], after: 0 }],
    }
}

pub(crate) fn stats() -> OperationDoc {
    OperationDoc::new(Tag::Look, "stats", "Figures of the whole server").gives(
        200,
        "The figures.",
        &stats_example(),
    )
}

pub(crate) fn stats_stream() -> OperationDoc {
    let example = serde_json::to_string(&stats_example()).unwrap_or_default();
    OperationDoc::new(Tag::Look, "stats_stream", "The figures every second, as server-sent events").gives_other(
        200,
        "An event `stats` every second, with the figures in JSON, until the reader ends the connection or the server stops.",
        "text/event-stream",
        |_| json_schema!({ "type": "string" }),
        format!("event: stats\ndata: {example}\n\n").into(),
    )
}

fn token_example() -> TokenAnswer<'static> {
    TokenAnswer {
        name: "shop",
        scopes: vec![Scope::Enqueue, Scope::Cancel],
        queues: Some(vec!["shop/"]),
        expires: None,
    }
}

pub(crate) fn token() -> OperationDoc {
    OperationDoc::new(Tag::Look, "token", "Who the caller is, and what its token allows").gives(
        200,
        "The caller.",
        &IdentityAnswer { open: false, token: Some(token_example()) },
    )
}

pub(crate) fn tokens() -> OperationDoc {
    OperationDoc::new(Tag::Look, "tokens", "All tokens by name, without the tokens themselves").gives(
        200,
        "The tokens; none where the server asks for none.",
        &TokensAnswer { tokens: vec![token_example()] },
    )
}

pub(crate) fn quotas() -> OperationDoc {
    let resource = |limit| ResourceAnswer { limit, used: 0, refused: 0 };
    let example = QuotaAnswer {
        prefix: "acme.",
        messages: resource(Some(1_000_000)),
        bytes: resource(None),
        leases: resource(Some(1_000)),
        answers: resource(Some(10_000_000)),
        enqueues_per_second: RateAnswer { limit: Some(100), burst: Some(500), used: 0, refused: 0 },
    };
    OperationDoc::new(Tag::Look, "quotas", "All quotas, and what is used of them").gives(
        200,
        "All quotas within reach.",
        &QuotasAnswer { quotas: Elements::Made(vec![example]) },
    )
}

pub(crate) fn wheel() -> OperationDoc {
    let example = WheelAnswer {
        slots: 3600,
        tick_ms: 1_000,
        messages: 1,
        pointer: PointersAnswer { at: 12, after: 12 },
        occupied: OccupiedAnswer {
            at: Elements::Made(Vec::new()),
            after: Elements::Made(vec![SlotAnswer { slot: 22, messages: 1 }]),
        },
    };
    OperationDoc::new(Tag::Look, "wheel", "The rings in memory").gives(200, "The rings.", &example)
}

pub(crate) fn cluster() -> OperationDoc {
    let shard = ShardAnswer {
        shard: 0,
        owner: Some("a"),
        unknown: None,
        wanted: Some("a"),
        epoch: Some(1),
        here: "serving",
    };
    let example = ClusterAnswer {
        node: "a",
        age_ms: 120,
        nodes: vec![NodeAnswer { name: "a".into(), advertise: "10.0.0.1:7789".into(), shards: 1 }],
        shards_without_owner: 0,
        shards: Elements::Made(vec![shard]),
    };
    OperationDoc::new(Tag::Look, "cluster", "The nodes, and the owners of the shards")
        .gives(200, "The cluster as the node that answers sees it.", &example)
        .refuses(&[NotFound])
}

pub(crate) fn health() -> OperationDoc {
    let example = |status, trouble| HealthAnswer {
        status,
        tick_age_ms: 3,
        durability: FSYNC,
        drain_mode: false,
        shards_without_owner: None,
        trouble,
    };
    OperationDoc::new(Tag::Look, "health", "Whether all is well, the store and the cluster included")
        .gives(200, "All is well.", &example(StatusWord::Ok, None))
        .gives(
            503,
            "The server starts or drains, its driver has stalled, or its store or cluster has a problem.",
            &TroubledAnswer::Running(example(StatusWord::Failing, Some("the store is away"))),
        )
}

pub(crate) fn live() -> OperationDoc {
    let no = "A thread has stalled for two minutes, or there was a bug; never for the store.";
    probe("live", "Whether the process works: 503 when only a restart helps", no, StatusWord::Stalled)
}

pub(crate) fn ready() -> OperationDoc {
    let no = "The server starts or was told to stop, a thread has stalled, the store does not return from a call, or there was a bug.";
    probe("ready", "Whether to send requests here: 503 while stopping", no, StatusWord::Draining)
}

fn probe(id: &'static str, summary: &'static str, no: &'static str, status: StatusWord) -> OperationDoc {
    OperationDoc::new(Tag::Look, id, summary)
        .gives(200, "Yes.", &ProbeAnswer { status: StatusWord::Ok })
        .gives(503, no, &ProbeAnswer { status })
}

pub(crate) fn metrics() -> OperationDoc {
    OperationDoc::new(Tag::Look, "metrics", "Figures in Prometheus' text format")
        .query(
            "queue",
            "Figures of this queue alone; with `*` at the end, of all queues whose names begin with what is before it.",
            |_| json_schema!({ "type": "string", "format": "duewheel-queues", "minLength": 1 }),
            json!("orders*"),
        )
        .gives_other(
            200,
            "The figures at the moment of the request.",
            "text/plain",
            |_| json_schema!({ "type": "string" }),
            json!("duewheel_messages{state=\"scheduled\"} 1\n"),
        )
}

pub(crate) fn openapi() -> OperationDoc {
    OperationDoc::new(Tag::Look, "openapi", "This description").gives_other(
        200,
        "The description.",
        "application/json",
        |_| json_schema!({ "type": "object" }),
        json!({ "openapi": "3.1.0" }),
    )
}

pub(crate) fn errors() -> OperationDoc {
    OperationDoc::new(Tag::Look, "errors", "What the codes of problems mean, for people").gives_other(
        200,
        "The page; each code is an anchor.",
        "text/html",
        |_| json_schema!({ "type": "string" }),
        json!("<!doctype html>"),
    )
}

pub(crate) fn home() -> OperationDoc {
    OperationDoc::new(Tag::Look, "home", "A page for people").gives_other(
        200,
        "The page.",
        "text/html",
        |_| json_schema!({ "type": "string" }),
        json!("<!doctype html>"),
    )
}

// ----- operate -----

pub(crate) fn get_config() -> OperationDoc {
    let effective = EffectiveAnswer {
        lease_ms: 60_000,
        max_attempts: 25,
        priority: 1024,
        backoff: BackoffAnswer { min_ms: 1_000, max_ms: 3_600_000 },
        dedupe_window_ms: 86_400_000,
        dead_ttl_ms: None,
        order: OrderWord::Due,
        limits: limits(),
        on_expiry: OnExpiryWord::DeliverLate,
        keep_done_ms: None,
        trace: TraceWord::Link,
        target: None,
    };
    let config = queue().config;
    OperationDoc::new(Tag::Operate, "get_config", "The settings of a queue, as set and as in effect").gives(
        200,
        "The settings.",
        &ConfigAnswer { queue: QUEUE, config, effective },
    )
}

fn limits() -> LimitsAnswer {
    let rate = GrantRateAnswer { per_second: HourlyRate(50 * 3_600), burst: None };
    LimitsAnswer { rate: Some(rate), catchup_rate: None, concurrency: None, expires_in_ms: None }
}

fn configured() -> ConfiguredAnswer<'static> {
    let mut queue = queue();
    queue.config.target = Some("shop".into());
    ConfiguredAnswer { queue, durability: FSYNC }
}

pub(crate) fn change_config() -> OperationDoc {
    OperationDoc::new(Tag::Operate, "change_config", "Change some settings of a queue; null resets one")
        .takes::<ConfigChange>(r#"{"lease_ms": 60000, "dead_ttl_ms": null}"#)
        .gives(200, "The queue as it is now.", &configured())
}

pub(crate) fn remove_queue() -> OperationDoc {
    let example = RemovedAnswer { result: RemovedWord::Removed, queue: QUEUE, purged: 3, durability: FSYNC };
    OperationDoc::new(Tag::Operate, "remove_queue", "Remove a queue with its messages and settings")
        .gives(200, "The queue is gone.", &example)
        .refuses(&[NotFound, Leased, InUse])
}

pub(crate) fn configure() -> OperationDoc {
    OperationDoc::new(Tag::Operate, "configure", "Replace the settings of a queue")
        .takes::<ConfigRequest>(
            r#"{"lease_ms": 60000, "max_attempts": 5, "backoff": {"min_ms": 1000, "max_ms": 3600000}}"#,
        )
        .gives(200, "The queue as it is now.", &configured())
}

pub(crate) fn advance() -> OperationDoc {
    OperationDoc::new(
        Tag::Operate,
        "advanceClock",
        "For tests: let time pass, on a server with --virtual-clock",
    )
    .takes::<AdvanceRequest>(r#"{"by": "48h"}"#)
    .gives(200, "The time has passed.", &AdvancedAnswer { now: NOW })
    .refuses(&[NotFound])
}

pub(crate) fn pause() -> OperationDoc {
    OperationDoc::new(Tag::Operate, "pause", "Grant nothing, until resumed or for a time")
        .may_take::<PauseFor>(r#"{"for": "10m"}"#)
        .gives(
            200,
            "The queue is paused.",
            &PausedAnswer { queue: QUEUE, paused: true, for_ms: Some(600_000), durability: FSYNC },
        )
}

pub(crate) fn resume() -> OperationDoc {
    OperationDoc::new(Tag::Operate, "resume", "Grant again").may_take::<Nothing>("{}").gives(
        200,
        "The queue is not paused.",
        &ResumedAnswer { queue: QUEUE, paused: false, durability: FSYNC },
    )
}

pub(crate) fn purge() -> OperationDoc {
    OperationDoc::new(Tag::Operate, "purge", "Remove all messages that are not leased")
        .may_take::<Nothing>("{}")
        .gives(200, "The messages are removed.", &PurgedAnswer { purged: 3, durability: FSYNC })
}

pub(crate) fn redrive() -> OperationDoc {
    let taken = Problem::new(KeyExists, KeyExists.summary());
    let results = vec![
        RedriveResult::Done(RedrivenId::of(ID.0, Level::Fsync)),
        RedriveResult::Refused(RefusedId::of(MessageId(18), &taken)),
    ];
    let example = RedrivenAnswer { redriven: 1, results: Some(results), refused: None, durability: None };
    OperationDoc::new(
        Tag::Operate,
        "redrive",
        "Make dead messages ready again, in the order in which they died",
    )
    .may_take::<Redrive>(r#"{"ids": ["17", "18"]}"#)
    .gives(200, "The messages are ready.", &example)
    .refuses(&[Paused, OverQuota, DiskFull])
}

pub(crate) fn backup() -> OperationDoc {
    let example = BackedUpAnswer {
        dest: "/var/backups/duewheel/1",
        files: 5,
        bytes: 73_400_320,
        linked: 3,
        last_lsn: 4_711,
    };
    OperationDoc::new(Tag::Operate, "backup", "Copy the data folder, while everything goes on")
        .takes::<BackupRequest<'_>>(r#"{"dest": "/var/backups/duewheel/1"}"#)
        .gives(200, "The copy is complete.", &example)
        .refuses(&[DiskFull])
}

// ----- examples of larger answers -----

fn content() -> ContentAnswer<'static> {
    ContentAnswer {
        id: ID,
        queue: QUEUE,
        key: KEY,
        body: Some("order 42"),
        body_base64: None,
        headers: HeaderPairs(&[]),
        target_url: None,
    }
}

pub(super) fn message() -> MessageAnswer<'static> {
    let past = PastAttemptAnswer {
        attempt: 1,
        granted_at: NOW,
        ended_at: NOW,
        how: "nacked",
        note: "mail server away",
    };
    MessageAnswer {
        content: content(),
        state: "scheduled",
        outcome: None,
        ended_at: None,
        due_at: DUE_AT,
        due_in_ms: 172_800_000,
        attempt: 1,
        forgiven: 0,
        max_attempts: 20,
        generation: 1,
        priority: 1024,
        lease_ms: 30_000,
        enqueued_at: NOW,
        lease_until: None,
        superseded_by: None,
        dead_reason: None,
        dead_at: None,
        expires_at: None,
        own: OwnSettingsAnswer { lease_ms: Some(30_000), ..Default::default() },
        history: Elements::Made(vec![past]),
        deliveries: None,
    }
}

fn outline(state: &'static str, generation: u32) -> OutlineAnswer<'static> {
    OutlineAnswer {
        id: ID,
        queue: QUEUE,
        key: KEY,
        state,
        due_at: DUE_AT,
        due_in_ms: 172_800_000,
        attempt: 0,
        max_attempts: 20,
        generation,
        priority: 1024,
        lease_ms: 30_000,
        enqueued_at: NOW,
        durability: FSYNC,
    }
}

fn settled(result: SettledWord, due_at: Option<InstantText>) -> SettledAnswer {
    SettledAnswer { result, due_at, dead_reason: None, durability: FSYNC }
}

fn counts() -> CountsAnswer {
    CountsAnswer { scheduled: 1, ready: 0, leased: 0, dead: 0, estimated: false }
}

fn totals() -> TotalsAnswer {
    TotalsAnswer {
        enqueued: 1,
        granted: 0,
        acked: 0,
        cancelled: 0,
        replaced: 0,
        superseded: 0,
        purged: 0,
        died: 0,
        expired: 0,
    }
}

fn queue() -> QueueAnswer<'static> {
    let [enqueued, granted, acked] = [12_340, 12_000, 12_000].map(Thousandths);
    let rates = RatesAnswer { enqueued, granted, acked };
    QueueAnswer {
        queue: QUEUE,
        counts: counts(),
        done: 0,
        oldest_overdue: None,
        oldest_overdue_ms: 0,
        waiters: 0,
        attended: true,
        rates,
        totals: totals(),
        expired: ExpiredAnswer { late: 0, dead: 0 },
        paused: false,
        pause_left_ms: None,
        config: SettingsAnswer {
            lease_ms: Some(60_000),
            limits: limits(),
            ..SettingsAnswer::of(&QueueSettings::default())
        },
    }
}

/// A whole number from 1 to a limit of the policy.
pub(super) fn limit(default: usize, name: &str) -> schemars::Schema {
    json_schema!({ "type": "integer", "minimum": 1, "default": default, "x-limit": name })
}
