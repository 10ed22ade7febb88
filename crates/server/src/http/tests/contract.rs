//! Tests of `openapi.json`, and of its copy in the repository.

use std::collections::BTreeSet;

use duewheel::Policy;
use serde_json::Value;

use crate::auth::{About, AccessRule};
use crate::error::ErrorCode;
use crate::http::openapi::Security;
use crate::http::routes::{self, document};

fn spec() -> Value {
    document(&Policy::default(), Security::Tokens)
}

/// The copy is for people who read changes and generate clients without a server.
#[test]
fn committed_openapi_is_current() {
    let made = serde_json::to_string_pretty(&spec()).expect("JSON") + "\n";
    if std::env::var_os("DUEWHEEL_OPENAPI").is_some_and(|word| word == "write") {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json"), &made).expect("openapi.json");
        return;
    }
    let same = made == include_str!("../../../openapi.json");
    assert!(
        same,
        "the API has changed: DUEWHEEL_OPENAPI=write cargo test -p duewheel-server-lib --lib contract:: writes it again"
    );
}

/// Story: an open server announced security, and a test tool that was served without a token reported that as a hole.
#[test]
fn an_open_server_announces_no_security() {
    let open = document(&Policy::default(), Security::Open).to_string();
    for word in ["\"security\"", "securitySchemes", "\"401\"", ".forbidden", "WWW-Authenticate"] {
        assert!(!open.contains(word), "{word}");
        assert!(spec().to_string().contains(word), "{word}");
    }
}

#[test]
fn openapi_calls_have_examples_and_limits() {
    let spec = spec();
    assert!(!spec.to_string().contains("x-limit"));
    let (mut requests, mut answers) = (0, 0);
    for (path, item) in spec["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("item").iter().filter(|(m, _)| *m != "parameters")
        {
            let media = |body: &Value| {
                let forms = body.get("content").and_then(Value::as_object).into_iter().flatten();
                forms
                    .map(|(_, form)| assert!(form.get("example").is_some(), "{method} {path}: {form}"))
                    .count()
            };
            requests += media(&operation["requestBody"]);
            answers += media(&operation["responses"]["200"]) + media(&operation["responses"]["201"]);
        }
    }
    assert!(
        requests >= 15 && answers >= routes::described().count(),
        "{requests} requests, {answers} answers"
    );
    assert_eq!(spec["components"]["schemas"]["Reserve"]["properties"]["max"]["maximum"], 10_000);
}

#[test]
fn openapi_documents_every_problem_code() {
    let spec = spec();
    let told: BTreeSet<String> = spec["components"]["responses"]
        .as_object()
        .expect("responses")
        .values()
        .flat_map(|r| {
            r["content"]["application/problem+json"]["examples"].as_object().expect("examples").keys()
        })
        .cloned()
        .collect();
    let silent: Vec<&str> =
        ErrorCode::ALL.iter().map(|code| code.as_str()).filter(|code| !told.contains(*code)).collect();
    // A wrong method has no operation, a message that is not dead is an item of a list, and `unknown` is the code of a
    // line.
    assert_eq!(silent, ["method_not_allowed", "not_dead", "unknown"]);
}

fn resolve<'a>(spec: &'a Value, value: &'a Value) -> &'a Value {
    match value.get("$ref").and_then(Value::as_str) {
        Some(reference) => spec.pointer(reference.trim_start_matches('#')).expect(reference),
        None => value,
    }
}

#[test]
fn openapi_operations_match_routes() {
    let spec = spec();
    let mut described = BTreeSet::new();
    for (path, item) in spec["paths"].as_object().expect("paths") {
        let shared = item.get("parameters").and_then(Value::as_array).into_iter().flatten();
        let in_path: BTreeSet<&str> =
            shared.map(|p| resolve(&spec, p)["name"].as_str().expect("name")).collect();
        let in_template: BTreeSet<&str> =
            path.split('/').filter_map(|s| s.strip_prefix('{')?.strip_suffix('}')).collect();
        assert_eq!(in_path, in_template, "{path}");
        for (method, operation) in item.as_object().expect("item").iter().filter(|(m, _)| *m != "parameters")
        {
            let parameters = operation.get("parameters").and_then(Value::as_array).into_iter().flatten();
            let query: Vec<String> =
                parameters.map(|p| p["name"].as_str().expect("name").to_owned()).collect();
            assert!(
                operation["responses"].get("default").is_some(),
                "{method} {path}: problems are described"
            );
            described.insert((path.clone(), method.to_uppercase(), query));
        }
    }
    let routed: BTreeSet<_> = routes::described()
        .map(|r| {
            (r.path.to_owned(), r.method.to_string(), r.query.iter().map(|q| q.name.to_owned()).collect())
        })
        .collect();
    assert_eq!(routed, described);
}

#[test]
fn openapi_scopes_match_routes() {
    let spec = spec();
    for route in routes::described() {
        let operation = &spec["paths"][route.path][route.method.as_str().to_lowercase()];
        let described = match route.access {
            AccessRule::Open => serde_json::json!([]),
            AccessRule::Identified => serde_json::json!([{"bearer": []}]),
            AccessRule::Needs(scopes, _) => {
                scopes.iter().map(|scope| serde_json::json!({"bearer": [scope.as_str()]})).collect()
            }
        };
        assert_eq!(operation["security"], described, "{} {}", route.method, route.path);
    }
    assert_eq!(spec["components"]["securitySchemes"]["bearer"]["scheme"], "bearer");
}

#[test]
fn route_access_follows_its_path() {
    for route in routes::described() {
        let (queue, id) = (route.path.contains("{queue}"), route.path.contains("{id}"));
        let about = match route.access {
            AccessRule::Open
            | AccessRule::Identified
            | AccessRule::Needs(_, About::Several | About::Server) => (false, false),
            AccessRule::Needs(_, About::Queue) => (true, false),
            AccessRule::Needs(_, About::Message | About::Recalled | About::Lease) => (false, true),
        };
        assert_eq!(about, (queue, id), "{} {}", route.method, route.path);
    }
    let open = routes::described().filter(|route| route.access == AccessRule::Open);
    assert_eq!(
        open.map(|route| route.path).collect::<Vec<_>>(),
        ["/healthz", "/livez", "/readyz", "/openapi.json", "/errors", "/"]
    );
}

#[test]
fn openapi_ids_and_references_are_valid() {
    fn walk(spec: &Value, value: &Value, ids: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(id)) = members.get("operationId") {
                    ids.push(id.clone());
                }
                resolve(spec, value);
                // A link names its target operation.
                let others = members.iter().filter(|(name, _)| *name != "links");
                others.for_each(|(_, v)| walk(spec, v, ids));
            }
            Value::Array(elements) => elements.iter().for_each(|v| walk(spec, v, ids)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let spec = spec();
    let mut ids = Vec::new();
    walk(&spec, &spec, &mut ids);
    let unique: BTreeSet<&String> = ids.iter().collect();
    assert_eq!((unique.len(), ids.len()), (ids.len(), routes::described().count()));
    // A verb and its noun, such as listQueues.
    let is_uniform = |id: &String| {
        let (verb, noun) = id.split_at(id.find(char::is_uppercase).unwrap_or(id.len()));
        let is_word = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphabetic());
        is_word(verb) && is_word(noun)
    };
    assert_eq!(ids.iter().find(|id| !is_uniform(id)), None);
}

/// Story: generators of clients made no class of a schema that has alternatives beside its members, and clients refused
/// answers with a member that a later version had added.
#[test]
fn openapi_schemas_allow_future_members() {
    fn objects<'a>(spec: &'a Value, value: &'a Value, found: &mut Vec<&'a Value>) {
        let value = resolve(spec, value);
        if found.iter().any(|seen| std::ptr::eq(*seen, value)) {
            return;
        }
        found.push(value);
        match value {
            Value::Object(members) => members.values().for_each(|v| objects(spec, v, found)),
            Value::Array(elements) => elements.iter().for_each(|v| objects(spec, v, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let spec = spec();
    let mut answers = Vec::new();
    for item in spec["paths"].as_object().expect("paths").values() {
        for operation in item.as_object().expect("item").values().filter(|o| o.is_object()) {
            objects(&spec, &operation["responses"], &mut answers);
        }
    }
    for answer in &answers {
        assert!(answer.get("oneOf").is_none() || answer.get("properties").is_none(), "{answer}");
        assert!(answer.get("additionalProperties") != Some(&Value::Bool(false)), "{answer}");
    }
    assert!(spec["components"]["schemas"]["Postpone"].get("oneOf").is_none());
}

#[test]
fn http_page_names_routes_and_codes() {
    let page = include_str!("../../../../../docs/http.md");
    for route in routes::described() {
        assert!(page.contains(route.path), "docs/http.md does not name {}", route.path);
        for parameter in route.query {
            let name = parameter.name;
            assert!(page.contains(&format!("`{name}")), "docs/http.md does not name {name}");
        }
    }
    assert!(page.contains("errors.md"), "codes are in docs/errors.md: {:?}", ErrorCode::ALL);
}
