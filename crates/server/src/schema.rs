//! JSON Schemas of the small values in requests and answers, and the rules about several members of a request.
//!
//! The schemas of requests and answers themselves are derived from the types that read and write them. `x-limit` stands
//! for a limit of the policy, whose value is in `openapi.json`.

use std::borrow::Cow;

use duewheel::ShardStage;
use duewheel::core::engine::{HeldBack, Resource};
use duewheel::core::message::{DeadReason, DoneOutcome, Ended};
use duewheel::core::store::Level;
use duewheel::core::{Key, QueueName, State};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

/// Gives types the schema of another type.
macro_rules! same_schema {
    ($(impl[$($generics:tt)*] $type:ty as $schema:ty;)*) => {$(
        impl<$($generics)*> schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                <$schema as schemars::JsonSchema>::inline_schema()
            }
            fn schema_name() -> std::borrow::Cow<'static, str> {
                <$schema as schemars::JsonSchema>::schema_name()
            }
            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                <$schema as schemars::JsonSchema>::json_schema(generator)
            }
        }
    )*};
}
pub(crate) use same_schema;

macro_rules! named {
    ($($(#[$doc:meta])* $type:ident $name:literal $schema:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) enum $type {}

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    )*};
}

named! {
    /// An id in an answer or a path.
    IdSchema "Id" json_schema!({
        "type": "string", "pattern": "^[0-9]+$", "examples": ["17"],
        "description": "The id of a message: a decimal number, below 2^53.",
    });
    /// An id in a request.
    IdInSchema "IdIn" json_schema!({
        "description": "The id of a message, as a string or as a number.",
        "anyOf": [{"type": "string", "pattern": "^[0-9]+$"}, {"type": "integer", "minimum": 0, "maximum": u64::MAX}],
    });
    /// An instant.
    InstantSchema "Instant" json_schema!({
        "type": "string", "format": "date-time", "examples": ["2026-01-03T00:00:00.000Z"],
        "description": "An instant by RFC 3339. Answers have it in UTC with milliseconds. Requests may have any offset; \
            what is finer than a millisecond is rounded up.",
    });
    /// The URL of a message.
    TargetUrlSchema "TargetUrl" json_schema!({
        "type": "string", "format": "uri", "maxLength": duewheel_delivery::limits::MAX_URL,
        "examples": ["https://customer.example/hook"],
        "description": "`http` or `https`, without user information and without a fragment, at a public address.",
    });
    /// A length of time as text.
    DelaySchema "Delay" json_schema!({
        "type": "string", "format": "duewheel-span", "examples": ["250ms", "48h", "1h30m"],
        "minLength": 2, "maxLength": 64, "pattern": "^[0-9Pp].*[A-Za-z]$",
        "description": "A length of time with its units: 250ms, 90s, 30m (minutes), 1.5h, 48h, 15d, 1w, 2 days, PT48H. A day \
            has 24 hours; months and years are refused.",
    });
    /// A length of time, which may be negative.
    ShiftSchema "Shift" json_schema!({
        "type": "string", "format": "duewheel-shift", "examples": ["1d", "-30m"],
        "minLength": 2, "maxLength": 65, "pattern": "^-?[0-9Pp].*[A-Za-z]$",
        "description": "A length of time as in a delay; with a - before it, earlier.",
    });
    /// The name of a queue.
    QueueSchema "QueueName" json_schema!({
        "type": "string", "minLength": 1, "maxLength": QueueName::MAX, "format": "duewheel-queue",
        "examples": ["close-review"],
        "description": "The name of a queue: 1 to 200 bytes of UTF-8 in NFC, of letters, marks and digits of any script \
            and - + / : ; . $ _ ( ), not starting with -. A queue needs no creation.",
    });
    /// The name of a schedule.
    ScheduleNameSchema "ScheduleName" json_schema!({
        "type": "string", "minLength": 1, "maxLength": 128, "examples": ["weekly-report"],
        "pattern": "^[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]*$",
        "description": "The name of a schedule.",
    });
    /// The id of a job.
    JobSchema "JobId" json_schema!({
        "type": "string", "pattern": "^[0-9a-f]{32}$", "examples": ["5b1f0c6a9d3e4f208a7c6b5d4e3f2a10"],
        "description": "The id of a job.",
    });
    /// A key.
    KeySchema "Key" json_schema!({
        "type": "string", "minLength": 1, "maxLength": Key::MAX, "format": "duewheel-key", "examples": ["order-42"],
        "description": "The producer's own name for a message: 1 to 512 bytes of UTF-8, unique among the unsettled \
            messages of its queue.",
    });
    /// A lease token.
    TokenSchema "LeaseToken" json_schema!({
        "type": "string", "pattern": "^[0-9a-f]{24}$", "examples": ["000000010000000000000001"],
        "description": "Proof of one lease. Later leases of a message have greater tokens, compared as text.",
    });
    /// A state.
    StateSchema "State" words("The state of a message.", &State::ALL.map(State::as_str));
    /// A state, that of done messages included.
    MessageStateSchema "MessageState" words(
        "The state of a message; `done` if it has ended and its queue keeps it for a while.",
        &[State::Scheduled, State::Ready, State::Leased, State::Dead, State::Done].map(State::as_str),
    );
    /// How a message ended.
    DoneOutcomeSchema "DoneOutcome" words(
        "How a message ended that is done: a consumer acked it, its producer cancelled it, another message replaced it, \
            it expired, or another message took its key while it was leased and the lease ended without an ack.",
        &DoneOutcome::ALL.map(DoneOutcome::as_str),
    );
    /// A level of durability.
    LevelSchema "Level" words(
        "What a change has really reached. memory is less than buffered, and quorum more than all others; fsync survives a \
            power failure, best_effort_replicated mostly the loss of a machine.",
        &[Level::Memory, Level::Buffered, Level::Fsync, Level::BestEffortReplicated, Level::Quorum].map(Level::as_str),
    );
    /// Why a message is dead.
    DeadReasonSchema "DeadReason" words(
        "Why a message is dead: its attempts are used up, a consumer has parked it, or it has expired.",
        &DeadReason::ALL.map(DeadReason::as_str),
    );
    /// How an attempt ended.
    EndedSchema "Ended" words(
        "How an attempt ended.",
        &[Ended::Nacked, Ended::LeaseExpired, Ended::Released, Ended::Buried].map(Ended::as_str),
    );
    /// Why no message is granted.
    HeldBackSchema "HeldBack" words(
        "Why there is no message although some are ready. `leases`: as many messages are leased as are allowed. `rate`: \
            the queue's own rate allows none yet.",
        &[HeldBack::Leases, HeldBack::Rate].map(HeldBack::as_str),
    );
    /// The resource that a quota limits.
    ResourceSchema "Resource" words("What a quota counts.", &Resource::ALL.map(Resource::as_str));
    /// The stage of a shard at a node.
    StageSchema "Stage" words(
        "What a shard is to the node that answers.",
        &[ShardStage::Away, ShardStage::Opening, ShardStage::Serving, ShardStage::Closing].map(ShardStage::as_str),
    );
    /// Names and values.
    HeadersSchema "Headers" json_schema!({
        "type": "object", "additionalProperties": {"type": "string"}, "propertyNames": {"minLength": 1},
        "description": "Names and values that travel with the body.",
    });
    /// Any value in JSON.
    AnyJsonSchema "AnyJson" json_schema!({
        "description": "Any value in JSON. `null` counts as left out.", "examples": [{"order": 42}],
    });
    /// Bytes in base64.
    Base64Schema "Base64" json_schema!({
        "type": "string", "contentEncoding": "base64", "examples": ["/wA="],
        "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$",
        "description": "Bytes in base64, by the standard alphabet, with padding.",
    });
}

/// The schema of a string that is one of `words`.
fn words(description: &str, words: &[&str]) -> Schema {
    json_schema!({ "type": "string", "enum": words, "description": description })
}

/// Forbids what `rules` describe. All rules about several members use `not`: generators of clients make several classes
/// of a schema that has alternatives in addition to its members.
fn forbid(schema: &mut Schema, rules: Vec<Value>) {
    schema.insert("not".into(), json!({ "anyOf": rules }));
}

/// The member is present, and is not `null`, which counts as left out.
fn given(name: &str) -> Value {
    json!({ "required": [name], "properties": { name: { "not": { "type": "null" } } } })
}

/// None of the members is given.
fn none(names: &[&str]) -> Value {
    let nulls = names.iter().map(|name| ((*name).to_owned(), json!({ "type": "null" })));
    json!({ "properties": nulls.collect::<Map<_, _>>() })
}

/// All of the members are given.
fn all(names: &[&str]) -> Value {
    json!({ "allOf": names.iter().copied().map(given).collect::<Vec<_>>() })
}

const BODIES: [&str; 3] = ["body", "json", "body_base64"];
const TIMES: [&str; 3] = ["delay_ms", "delay", "due_at"];

/// Pairs of members that say the same twice.
fn twice() -> Vec<Value> {
    let pairs = |[one, two, three]: [&str; 3]| [all(&[one, two]), all(&[one, three]), all(&[two, three])];
    [pairs(BODIES), pairs(TIMES)].concat()
}

/// The member `past`, without an instant that may have passed.
fn past_of_nothing() -> Value {
    json!({ "allOf": [given("past"), none(&["due_at"])] })
}

/// The rules of a new message.
pub(crate) fn enqueue_rules(schema: &mut Schema) {
    let pairs = [
        ["spread_ms", "spread"],
        ["lease_ms", "lease"],
        ["dedupe_window_ms", "dedupe_window"],
        ["expires_in_ms", "expires_in"],
        ["expires_in_ms", "expires_at"],
        ["expires_in", "expires_at"],
    ];
    let options = pairs.iter().map(|pair| all(pair)).collect();
    let words_of_nothing = json!({ "allOf": [given("due_words"), none(&["due_at"])] });
    let nothing = vec![none(&BODIES), none(&TIMES), past_of_nothing(), words_of_nothing];
    forbid(schema, [twice(), options, nothing].concat());
}

/// Each of these lengths is given as a number of milliseconds or as text.
fn either_of(names: &[&str]) -> Vec<Value> {
    names.iter().map(|name| all(&[&format!("{name}_ms"), name])).collect()
}

/// The rules of a reserve.
pub(crate) fn reserve_rules(schema: &mut Schema) {
    forbid(schema, either_of(&["wait", "lease"]));
}

/// The rules of an extension.
pub(crate) fn lease_rules(schema: &mut Schema) {
    forbid(schema, either_of(&["lease"]));
}

/// The rules of a target.
pub(crate) fn target_rules(schema: &mut Schema) {
    forbid(schema, either_of(&["timeout"]));
}

/// The rules of a target's plan.
pub(crate) fn retry_rules(schema: &mut Schema) {
    forbid(schema, either_of(&["min", "max"]));
}

/// The rules of a backoff.
pub(crate) fn backoff_rules(schema: &mut Schema) {
    let missing = vec![none(&["min_ms", "min"]), none(&["max_ms", "max"])];
    forbid(schema, [either_of(&["min", "max"]), missing].concat());
}

/// The rules of the settings of a queue.
pub(crate) fn config_rules(schema: &mut Schema) {
    forbid(schema, either_of(&["lease", "dedupe_window", "dead_ttl", "expires_in", "keep_done"]));
}

/// The rules of a change.
pub(crate) fn postpone_rules(schema: &mut Schema) {
    let changes =
        [&BODIES[..], &TIMES, &["headers", "priority", "max_attempts", "lease_ms", "lease"]].concat();
    // `null` of it is a change, other than of all others.
    let of_nothing = json!({ "allOf": [none(&changes), { "not": { "required": ["target_url"] } }] });
    forbid(schema, [twice(), either_of(&["lease"]), vec![of_nothing, past_of_nothing()]].concat());
}

/// The rules of a nack.
pub(crate) fn nack_rules(schema: &mut Schema) {
    let dead = json!({ "required": ["dead"], "properties": { "dead": { "const": true } } });
    let not_yet = json!({ "required": ["attempt"], "properties": { "attempt": { "const": false } } });
    let delayed = ["delay_ms", "delay"].map(|name| json!({ "allOf": [dead, given(name)] }));
    let both = vec![json!({ "allOf": [dead, not_yet] })];
    forbid(schema, [either_of(&["delay"]), delayed.to_vec(), both].concat());
}

/// The rules of a cancel of many.
pub(crate) fn cancel_rules(schema: &mut Schema) {
    forbid(schema, vec![none(&["keys", "ids"])]);
}

/// The rules of a purge.
pub(crate) fn purge_rules(schema: &mut Schema) {
    forbid(schema, either_of(&["keep"]));
}

/// The rules of a pause.
pub(crate) fn pause_rules(schema: &mut Schema) {
    forbid(schema, either_of(&["for"]));
}

/// The rules of a step of the clock.
pub(crate) fn advance_rules(schema: &mut Schema) {
    forbid(schema, either_of(&["by"]));
}

/// The rules of a job.
pub(crate) fn bulk_rules(schema: &mut Schema) {
    let action =
        |word: &str| json!({ "required": ["action"], "properties": { "action": { "const": word } } });
    let both = |one: &Value, two: &Value| json!({ "allOf": [one, two] });
    let every = json!({ "required": ["all"], "properties": { "all": { "const": true } } });
    let states = |words: &[&str]| {
        let state =
            json!({ "type": "object", "required": ["state"], "properties": { "state": { "enum": words } } });
        json!({ "required": ["filter"], "properties": { "filter": state } })
    };
    // A filter that names something.
    let mut named = FILTER_FIELDS.map(given).to_vec();
    named.push(json!({ "not": { "patternProperties": { "^header\\.": false } } }));
    let named = json!({ "type": "object", "anyOf": named });
    let filters = json!({ "required": ["filter"], "properties": { "filter": named } });
    let (delays, shifts) = (["delay_ms", "delay"], ["shift_ms", "shift"]);
    let some = |names: &[&str]| json!({ "anyOf": names.iter().copied().map(given).collect::<Vec<_>>() });
    let mut rules = vec![
        all(&delays),
        all(&shifts),
        both(&some(&delays), &some(&shifts)),
        both(&filters, &every),
        json!({ "allOf": [{ "not": filters }, { "not": every }, { "not": action("restore") }] }),
        both(&action("postpone"), &none(&[delays, shifts].concat())),
        both(&action("postpone"), &given("to_queue")),
        both(&action("redrive"), &some(&shifts)),
        both(&action("redrive"), &states(&["scheduled", "ready", "leased"])),
        states(&["leased"]),
    ];
    let of_dead = json!({ "required": ["filter"], "properties": {
        "filter": { "type": "object", "anyOf": DEAD_FIELDS.map(given) },
    } });
    for word in ["postpone", "fire"] {
        rules.push(both(&action(word), &states(&["dead"])));
        rules.push(both(&action(word), &of_dead));
    }
    for word in ["cancel", "fire", "restore"] {
        rules.push(both(&action(word), &some(&[&delays[..], &shifts, &["to_queue"]].concat())));
    }
    let keeps = ["keep_ms", "keep"];
    rules.push(all(&keeps));
    for word in ["postpone", "fire", "redrive", "restore"] {
        rules.push(both(&action(word), &some(&keeps)));
    }
    for word in ["cancel", "postpone", "fire", "redrive"] {
        rules.push(both(&action(word), &given("act")));
    }
    rules.push(both(&action("restore"), &json!({ "anyOf": [filters, every, none(&["act"])] })));
    forbid(schema, rules);
}

/// The rules of a filter.
pub(crate) fn filter_rules(schema: &mut Schema) {
    let states = [State::Scheduled, State::Ready, State::Leased].map(State::as_str);
    let living = json!({ "required": ["state"], "properties": { "state": { "enum": states } } });
    let mut rules = DEAD_FIELDS.map(|name| json!({ "allOf": [given(name), living] })).to_vec();
    rules.push(all(&["reason", "dead_reason"]));
    forbid(schema, rules);
    let header = json!({ "type": "string", "description": "The header `NAME` is there with this value." });
    schema.insert("patternProperties".into(), json!({ "^header\\..": header }));
}

/// The members of a filter, besides `header.NAME`.
const FILTER_FIELDS: [&str; 9] =
    ["due_from", "due_to", "key_prefix", "headers", "state", "reason", "note", "dead_reason", "dead_note"];

/// Members that only dead messages have.
const DEAD_FIELDS: [&str; 4] = ["reason", "note", "dead_reason", "dead_note"];

/// The rules of a redrive.
pub(crate) fn redrive_rules(schema: &mut Schema) {
    forbid(
        schema,
        vec![
            all(&["ids", "max"]),
            all(&["ids", "expect"]),
            json!({ "allOf": [given("to_queue"), none(&["ids"])] }),
        ],
    );
}
