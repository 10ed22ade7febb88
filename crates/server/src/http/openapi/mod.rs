//! `openapi.json`, made from the table of routes and from the types of requests and answers.
//!
//! A row of the table has what types cannot express: summary, group, and the problems that an operation may have.
//! `examples.json` has the examples; the integration tests compare each with its schema. The document of a server with
//! tokens names the scope of each operation; that of an open server announces no security, because nothing is required.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use axum::http::Method;
use duewheel::Policy;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use crate::auth::{AccessRule, Audit};
use crate::error::{ErrorCode, Problem, ProblemAnswer};
use crate::schema::{IdSchema, JobSchema, KeySchema, QueueSchema, ScheduleNameSchema};

/// The examples of operations by id: those of query parameters, and of each content type of the request and of each
/// status.
static EXAMPLES: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("examples.json")).unwrap_or_default());

/// The content type of one message on each line.
const LINES: &str = "application/x-ndjson";
const JSON: &str = "application/json";

/// Whether a server requires tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Security {
    /// No tokens are required.
    Open,
    /// Each call needs a token with the scope of its route.
    Tokens,
}

/// A route as `openapi.json` describes it.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) query: &'static [Parameter],
    pub(crate) access: AccessRule,
    pub(crate) doc: OperationDoc,
}

/// A query parameter, which may always be left out.
#[derive(Debug)]
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    pub(crate) schema: SchemaOf,
}

/// Makes the schema of one type; those of the types in it are kept by the generator.
pub(crate) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// The description of an operation.
#[derive(Debug)]
pub(crate) struct OperationDoc {
    id: &'static str,
    tag: Tag,
    summary: &'static str,
    /// The operation whose examples it has.
    examples: &'static str,
    pub(crate) request: Vec<MediaDoc>,
    is_request_required: bool,
    answers: Vec<AnswerDoc>,
    /// Codes of problems that not every operation has.
    problems: Vec<ErrorCode>,
    /// Whether its calls are acts.
    pub(crate) audit: Audit,
}

/// A form of a body: its content type and its schema.
#[derive(Debug)]
pub(crate) struct MediaDoc {
    content_type: &'static str,
    pub(crate) schema: SchemaOf,
}

/// An answer that is not a problem.
#[derive(Debug)]
struct AnswerDoc {
    status: u16,
    description: &'static str,
    media: Vec<MediaDoc>,
    /// Operations that take the id of this answer.
    links: &'static [&'static str],
}

/// Groups of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    Produce,
    Consume,
    Look,
    Operate,
}

impl Tag {
    const ALL: [Tag; 4] = [Tag::Produce, Tag::Consume, Tag::Look, Tag::Operate];

    /// The name of the group, and its description.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Tag::Produce => ("produce", "Schedule messages, change them, and take them back."),
            Tag::Consume => ("consume", "Lease messages, and report their outcomes."),
            Tag::Look => ("look", "See what is pending, and the state of the server."),
            Tag::Operate => ("operate", "Set, pause and empty queues; make copies."),
        }
    }
}

impl OperationDoc {
    pub(crate) fn new(tag: Tag, id: &'static str, summary: &'static str) -> Self {
        OperationDoc {
            id,
            tag,
            summary,
            examples: id,
            request: Vec::new(),
            is_request_required: true,
            answers: Vec::new(),
            problems: Vec::new(),
            audit: Audit::No,
        }
    }

    /// The name of the operation.
    pub(crate) fn id(&self) -> &'static str {
        self.id
    }

    /// Says that its calls are acts, which are recorded with their operations.
    pub(crate) fn audited(mut self) -> Self {
        self.audit = Audit::Operations;
        self
    }

    /// Says that its calls are acts, which submit no operations.
    pub(crate) fn audited_alone(mut self) -> Self {
        self.audit = Audit::Alone;
        self
    }

    /// Shows the examples of another operation.
    pub(crate) fn like(mut self, id: &'static str) -> Self {
        self.examples = id;
        self
    }

    /// Sets the body in JSON.
    pub(crate) fn takes<T: JsonSchema>(mut self) -> Self {
        self.request.push(MediaDoc { content_type: JSON, schema: schema_of::<T> });
        self
    }

    /// Sets the body in JSON, which may be left out.
    pub(crate) fn may_take<T: JsonSchema>(mut self) -> Self {
        self.is_request_required = false;
        self.takes::<T>()
    }

    /// Also accepts a body with an object on each line.
    pub(crate) fn takes_lines<T: JsonSchema>(mut self) -> Self {
        self.request.push(MediaDoc { content_type: LINES, schema: schema_of::<T> });
        self
    }

    /// Sets an answer in JSON.
    pub(crate) fn gives<T: JsonSchema>(self, status: u16, description: &'static str) -> Self {
        self.gives_other(status, description, JSON, schema_of::<T>)
    }

    /// Sets an answer with an object on each line.
    pub(crate) fn gives_lines<T: JsonSchema>(self, status: u16, description: &'static str) -> Self {
        self.gives_other(status, description, LINES, schema_of::<T>)
    }

    /// Sets an answer that is text.
    pub(crate) fn gives_text(self, content_type: &'static str, description: &'static str) -> Self {
        self.gives_other(200, description, content_type, |_| json_schema!({ "type": "string" }))
    }

    /// Sets an answer of another content type, or adds one to an answer with this status.
    pub(crate) fn gives_other(
        mut self,
        status: u16,
        description: &'static str,
        content_type: &'static str,
        schema: SchemaOf,
    ) -> Self {
        let media = MediaDoc { content_type, schema };
        match self.answers.iter_mut().find(|answer| answer.status == status) {
            Some(answer) => answer.media.push(media),
            None => self.answers.push(AnswerDoc { status, description, media: vec![media], links: &[] }),
        }
        self
    }

    /// Links the last answer to operations on the message whose id it has.
    pub(crate) fn leads_to(mut self, operations: &'static [&'static str]) -> Self {
        if let Some(answer) = self.answers.last_mut() {
            answer.links = operations;
        }
        self
    }

    /// Adds the reasons for which the operation may be refused, besides those of all operations.
    pub(crate) fn refuses(mut self, codes: &[ErrorCode]) -> Self {
        self.problems.extend_from_slice(codes);
        self
    }

    /// An example: of the request, of a status, or of the query.
    fn example(&self, of: &str, name: &str) -> &'static Value {
        &EXAMPLES[self.examples][of][name]
    }

    /// The forms of a body by content type, each with its example.
    fn content(&self, of: &str, media: &[MediaDoc], generator: &mut SchemaGenerator) -> Map<String, Value> {
        let form = |media: &MediaDoc| {
            let example = self.example(of, media.content_type);
            let schema = (media.schema)(generator);
            (media.content_type.to_owned(), json!({ "schema": schema, "example": example }))
        };
        media.iter().map(form).collect()
    }
}

/// The schema of a type, as [`SchemaOf`].
pub(crate) fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// A whole number from 1 to a limit of the policy.
pub(crate) fn limit_schema(default: Option<usize>, name: &str) -> Schema {
    let mut schema = json_schema!({ "type": "integer", "minimum": 1, "x-limit": name });
    if let Some(default) = default {
        schema.insert("default".into(), default.into());
    }
    schema
}

/// The whole document about these routes.
pub(crate) fn document(
    routes: impl Iterator<Item = Described>,
    policy: &Policy,
    security: Security,
) -> Value {
    let mut parts = Assembly::new(security);
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for route in routes {
        let operation = parts.operation(&route);
        let item = paths.entry(route.path).or_default();
        item.insert(route.method.as_str().to_lowercase(), operation);
        let shared = parameters_of(route.path);
        if !shared.is_empty() {
            item.insert("parameters".into(), shared.into());
        }
    }
    let tags = Tag::ALL
        .map(Tag::words)
        .map(|(name, description)| json!({ "name": name, "description": description }));
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "duewheel",
            "version": "1",
            "description": "Durable delayed messages. Unknown fields and query parameters are refused; `null` is the same \
                as leaving a field out. Answers may have more fields than are described here.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "tags": tags,
        "paths": paths,
        "components": parts.components(),
    });
    finish(&mut document, policy);
    document
}

/// The state that all operations share while the document is made.
struct Assembly {
    security: Security,
    /// Schemas of requests.
    requests: SchemaGenerator,
    /// Schemas of answers.
    answers: SchemaGenerator,
    /// Problems by name: the codes that a status may have.
    problems: BTreeMap<String, BTreeSet<&'static str>>,
}

impl Assembly {
    fn new(security: Security) -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = "/components/schemas".into();
                settings.meta_schema = None;
            })
        };
        Assembly {
            security,
            requests: settings().for_deserialize().into_generator(),
            answers: settings().for_serialize().into_generator(),
            problems: BTreeMap::new(),
        }
    }

    fn operation(&mut self, route: &Described) -> Value {
        let doc = &route.doc;
        let mut out = json!({
            "operationId": doc.id,
            "summary": doc.summary,
            "tags": [doc.tag.words().0],
        });
        if !route.query.is_empty() {
            let query = route.query.iter().map(|parameter| {
                json!({
                    "name": parameter.name, "in": "query", "required": false, "description": parameter.description,
                    "schema": (parameter.schema)(&mut self.requests),
                    "example": doc.example("query", parameter.name),
                })
            });
            out["parameters"] = query.collect();
        }
        if !doc.request.is_empty() {
            let content = doc.content("request", &doc.request, &mut self.requests);
            out["requestBody"] = json!({ "required": doc.is_request_required, "content": content });
        }
        if let (Security::Tokens, access) = (self.security, route.access) {
            out["security"] = match access {
                AccessRule::Open => json!([]),
                AccessRule::Identified => json!([{ "bearer": [] }]),
                AccessRule::Needs(scopes, _) => {
                    scopes.iter().map(|scope| json!({ "bearer": [scope.as_str()] })).collect()
                }
            };
        }
        out["responses"] = self.responses(route);
        out
    }

    fn responses(&mut self, route: &Described) -> Value {
        let mut responses = Map::new();
        for answer in &route.doc.answers {
            let status = answer.status.to_string();
            let content = route.doc.content(&status, &answer.media, &mut self.answers);
            let mut response = json!({ "description": answer.description, "content": content });
            if !answer.links.is_empty() {
                response["links"] = answer.links.iter().map(|id| link(id)).collect::<Map<_, _>>().into();
            }
            responses.insert(status, response);
        }
        let mut by_status: BTreeMap<u16, Vec<ErrorCode>> = BTreeMap::new();
        for code in problems_of(route, self.security) {
            by_status.entry(code.status().as_u16()).or_default().push(code);
        }
        for (status, codes) in by_status {
            let words: BTreeSet<&'static str> = codes.iter().map(|code| code.as_str()).collect();
            let name = words.iter().copied().collect::<Vec<_>>().join(".");
            // A probe answers with a status of its own.
            let own = responses.contains_key(&status.to_string());
            if !own {
                let reference = format!("#/components/responses/{name}");
                responses.insert(status.to_string(), json!({ "$ref": reference }));
                self.problems.insert(name, words);
            }
        }
        responses.insert("default".into(), json!({ "$ref": "#/components/responses/other" }));
        responses.into()
    }

    fn components(mut self) -> Value {
        let problem = self.answers.subschema_for::<ProblemAnswer<'static>>();
        let content = |examples: Value| json!({ "application/problem+json": { "schema": problem, "examples": examples } });
        let mut responses = Map::new();
        for (name, words) in &self.problems {
            let codes: Vec<ErrorCode> =
                ErrorCode::ALL.into_iter().filter(|code| words.contains(code.as_str())).collect();
            let texts = codes.iter().map(|code| format!("`{}`: {}", code.as_str(), code.summary()));
            let example = |code: &ErrorCode| {
                let value = serde_json::to_value(ProblemAnswer::of(&Problem::new(*code, code.summary())));
                (code.as_str().to_owned(), json!({ "value": value.unwrap_or_default() }))
            };
            let examples: Map<String, Value> = codes.iter().map(example).collect();
            let mut response = json!({
                "description": texts.collect::<Vec<_>>().join(" "),
                "content": content(examples.into()),
            });
            let mut headers = Map::new();
            if codes.iter().all(|code| code.is_passing()) {
                let seconds = json!({ "type": "integer", "minimum": 0 });
                let header =
                    json!({ "description": "Seconds to wait.", "required": true, "schema": seconds });
                headers.insert("Retry-After".into(), header);
            }
            if codes.contains(&ErrorCode::Unauthorized) {
                let header =
                    json!({ "description": "Bearer.", "required": true, "schema": { "type": "string" } });
                headers.insert("WWW-Authenticate".into(), header);
            }
            if !headers.is_empty() {
                response["headers"] = headers.into();
            }
            responses.insert(name.clone(), response);
        }
        responses.insert(
            "other".into(),
            json!({ "description": "Refused or failed: see `code`, and /errors.", "content": content(json!({})) }),
        );
        let parameters = json!({
            "queue": path_parameter::<QueueSchema>(&mut self.requests, "queue", "Percent-encoded; a / as %2F.", "close-review"),
            "key": path_parameter::<KeySchema>(&mut self.requests, "key", "Percent-encoded; a / as %2F.", "order-42"),
            "name": path_parameter::<ScheduleNameSchema>(&mut self.requests, "name", "Percent-encoded; a / as %2F.", "weekly-report"),
            "job": path_parameter::<JobSchema>(&mut self.requests, "job", "The id of a job.", "5b1f0c6a9d3e4f208a7c6b5d4e3f2a10"),
            "id": path_parameter::<IdSchema>(&mut self.requests, "id", "The id of a message.", "17"),
        });
        let mut schemas = self.answers.take_definitions(true);
        schemas.values_mut().for_each(of_answer);
        for (name, schema) in self.requests.take_definitions(true) {
            let other = schemas.insert(name.clone(), schema.clone());
            debug_assert!(other.is_none_or(|other| other == schema), "{name} is two schemas");
        }
        let mut components = json!({ "schemas": schemas, "parameters": parameters, "responses": responses });
        if self.security == Security::Tokens {
            components["securitySchemes"] = json!({ "bearer": {
                "type": "http", "scheme": "bearer",
                "description": "A token of `duewheel token new`. The words are the scopes that it needs.",
            } });
        }
        components
    }
}

/// A link from the id of an answer to another operation.
fn link(operation: &str) -> (String, Value) {
    let parameters = json!({ "id": "$response.body#/id" });
    (operation.to_owned(), json!({ "operationId": operation, "parameters": parameters }))
}

fn path_parameter<T: JsonSchema>(
    generator: &mut SchemaGenerator,
    name: &str,
    description: &str,
    example: &str,
) -> Value {
    let schema = generator.subschema_for::<T>();
    json!({
        "name": name, "in": "path", "required": true, "description": description, "schema": schema, "example": example,
    })
}

/// The parameters in a path.
fn parameters_of(path: &str) -> Vec<Value> {
    let names = path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'));
    names.map(|name| json!({ "$ref": format!("#/components/parameters/{name}") })).collect()
}

/// The codes of all problems that an operation may have.
fn problems_of(route: &Described, security: Security) -> BTreeSet<ErrorCode> {
    use ErrorCode as Code;
    let mut codes: BTreeSet<Code> =
        [Code::BadRequest, Code::CrossOrigin, Code::HeadersTooLarge, Code::Overloaded, Code::Internal].into();
    codes.extend(&route.doc.problems);
    if !route.doc.request.is_empty() {
        codes.extend([Code::RequestTimeout, Code::BodyTooLarge, Code::UnsupportedMediaType]);
    }
    if route.access == AccessRule::Identified && security == Security::Tokens {
        codes.insert(Code::Unauthorized);
    }
    if let AccessRule::Needs(..) = route.access {
        codes.extend([Code::Draining, Code::StorageUnavailable]);
        if security == Security::Tokens {
            codes.extend([Code::Unauthorized, Code::Forbidden]);
        }
    }
    codes
}

/// Where answers leave a member out, it is never `null`, and nothing is its default. They may have further members.
fn of_answer(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else { return };
    if object.get("additionalProperties") == Some(&Value::Bool(false)) {
        object.remove("additionalProperties");
    }
    let required: BTreeSet<String> = object
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    let properties = object.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten();
    for (name, member) in properties {
        let Some(member) = member.as_object_mut() else { continue };
        member.remove("default");
        if required.contains(name) {
            continue;
        }
        if let Some(Value::Array(types)) = member.get_mut("type") {
            types.retain(|one| one != "null");
            if types.len() == 1 {
                let only = types.remove(0);
                member.insert("type".into(), only);
            }
        }
        let Some(Value::Array(mut some)) = member.remove("anyOf") else { continue };
        some.retain(|one| *one != json!({ "type": "null" }));
        match some.pop() {
            Some(Value::Object(only)) if some.is_empty() => member.extend(only),
            last => {
                some.extend(last);
                member.insert("anyOf".into(), some.into());
            }
        }
    }
}

/// Inserts the limits of the policy where the schemas name them, and joins the lines of descriptions.
fn finish(value: &mut Value, policy: &Policy) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(name)) = members.remove("x-limit-items") {
                members.insert("maxItems".into(), limit(policy, &name).into());
            }
            if let Some(Value::String(name)) = members.remove("x-limit") {
                members.insert("maximum".into(), limit(policy, &name).into());
            }
            if let Some(Value::String(name)) = members.remove("x-limit-both-ways") {
                let most = limit(policy, &name);
                members.insert("maximum".into(), most.into());
                members.insert("minimum".into(), i64::try_from(most).map_or(i64::MIN, |most| -most).into());
            }
            // Line breaks of a comment are not line breaks of the text.
            if let Some(Value::String(text)) = members.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            members.values_mut().for_each(|member| finish(member, policy));
        }
        Value::Array(elements) => elements.iter_mut().for_each(|element| finish(element, policy)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn limit(policy: &Policy, name: &str) -> u64 {
    match name {
        "max_delay_ms" => policy.max_delay_ms,
        "max_lease_ms" => policy.max_lease_ms,
        "max_dedupe_window_ms" => policy.max_dedupe_window_ms,
        "max_keep_done_ms" => policy.max_keep_done_ms,
        "max_reserve" => policy.max_reserve as u64,
        "max_reserve_queues" => policy.max_reserve_queues as u64,
        "max_wait_ms" => policy.max_wait_ms,
        "max_page" => policy.max_page as u64,
        "max_histogram" => policy.max_histogram as u64,
        other => unreachable!("{other} is no limit of the policy"),
    }
}
