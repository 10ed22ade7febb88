//! Every exchange of these tests is compared with `openapi.json`, by as much of JSON Schema as that uses.

use std::sync::LazyLock;

use serde_json::Value;

static SPEC: LazyLock<Value> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../../server/openapi.json")).expect("openapi.json")
});

/// Compares one exchange with the description. Unknown paths and methods have none.
pub(crate) fn check(
    method: &str,
    path: &str,
    request: &[u8],
    status: u16,
    content_type: &str,
    response: &[u8],
) {
    let path = path.split('?').next().unwrap_or_default();
    let Some(operation) = operation(method, path) else { return };
    let media = content_type.split(';').next().unwrap_or_default();
    let key = status.to_string();
    let at = format!("{method} {path} -> {status}");
    let described = operation["responses"].get(&key).map(resolve);
    let described = described.unwrap_or_else(|| panic!("{at}: this status is not described"));
    let schema = &described["content"][media]["schema"];
    assert!(!schema.is_null(), "{at}: {media} is not described");
    let bodies: Vec<&[u8]> = match media {
        "application/json" | "application/problem+json" => vec![response],
        "application/x-ndjson" => response.split(|b| *b == b'\n').filter(|line| !line.is_empty()).collect(),
        _ => return,
    };
    for body in bodies {
        let value: Value = serde_json::from_slice(body).unwrap_or_else(|e| panic!("{at}: {e}"));
        validate(schema, &value).unwrap_or_else(|e| panic!("{at}: {e}\n{value:#}"));
        if media == "application/problem+json" {
            let code = value["code"].as_str().unwrap_or_default();
            assert!(
                described["content"][media]["examples"].get(code).is_some(),
                "{at}: {code} is not described"
            );
        }
    }
    if status < 300 && media == "application/json" && !request.is_empty() {
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        let value: Value = serde_json::from_slice(request).expect("request");
        validate(schema, &value)
            .unwrap_or_else(|e| panic!("{at}: the request that was taken: {e}\n{value:#}"));
    }
}

fn operation(method: &str, path: &str) -> Option<&'static Value> {
    let paths = SPEC["paths"].as_object()?;
    let fits = |template: &str| {
        let (a, b): (Vec<&str>, Vec<&str>) = (template.split('/').collect(), path.split('/').collect());
        a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| a == b || (a.starts_with('{') && !b.is_empty()))
    };
    let (_, item) = paths.iter().find(|(template, _)| fits(template))?;
    item.get(method.to_lowercase())
}

/// A schema by its name.
pub(crate) fn of_component(name: &str) -> &'static Value {
    SPEC.pointer(&format!("/components/schemas/{name}")).expect("a schema of this name")
}

fn resolve(schema: &'static Value) -> &'static Value {
    match schema.get("$ref").and_then(Value::as_str) {
        Some(reference) => SPEC.pointer(reference.trim_start_matches('#')).expect(reference),
        None => schema,
    }
}

/// The part of JSON Schema that `openapi.json` uses.
pub(crate) fn validate(schema: &'static Value, value: &Value) -> Result<(), String> {
    let schema = resolve(schema);
    if let Some(kinds) = schema.get("type") {
        let fits = |kind: &Value| match kind.as_str() {
            Some("object") => value.is_object(),
            Some("array") => value.is_array(),
            Some("string") => value.is_string(),
            Some("boolean") => value.is_boolean(),
            Some("null") => value.is_null(),
            Some("integer") => value.is_u64() || value.is_i64(),
            Some("number") => value.is_number(),
            other => panic!("unknown type {other:?}"),
        };
        let any = match kinds {
            Value::Array(kinds) => kinds.iter().any(fits),
            kind => fits(kind),
        };
        if !any {
            return Err(format!("{value} is not of type {kinds}"));
        }
    }
    if let Some(only) = schema.get("const")
        && only != value
    {
        return Err(format!("{value} is not {only}"));
    }
    if let Some(not) = schema.get("not")
        && validate(not, value).is_ok()
    {
        return Err(format!("this must not be: {not}"));
    }
    if let Some(Value::Array(some)) = schema.get("anyOf") {
        let results: Vec<_> = some.iter().map(|one| validate(one, value)).collect();
        if results.iter().all(Result::is_err) {
            return Err(format!("none of the alternatives: {results:?}"));
        }
    }
    if let Some(Value::Array(words)) = schema.get("enum")
        && !words.contains(value)
    {
        return Err(format!("{value} is none of {words:?}"));
    }
    if let (Some(low), Some(n)) = (schema.get("minimum").and_then(Value::as_f64), value.as_f64())
        && n < low
    {
        return Err(format!("{value} is below {low}"));
    }
    if let (Some(high), Some(n)) = (schema.get("maximum").and_then(Value::as_f64), value.as_f64())
        && n > high
    {
        return Err(format!("{value} is above {high}"));
    }
    if let Some(Value::Array(all)) = schema.get("allOf") {
        all.iter().try_for_each(|one| validate(one, value))?;
    }
    if let Some(Value::Array(some)) = schema.get("oneOf") {
        let results: Vec<_> = some.iter().map(|one| validate(one, value)).collect();
        if results.iter().filter(|r| r.is_ok()).count() != 1 {
            return Err(format!("not exactly one of the alternatives: {results:?}"));
        }
    }
    if let (Some(items), Some(elements)) = (schema.get("items"), value.as_array()) {
        elements.iter().try_for_each(|element| validate(items, element))?;
    }
    let Some(members) = value.as_object() else { return Ok(()) };
    for name in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
        if !members.contains_key(name.as_str().expect("name")) {
            return Err(format!("{name} is missing"));
        }
    }
    for (name, member) in members {
        match (schema.get("properties").and_then(|p| p.get(name)), schema.get("additionalProperties")) {
            (Some(schema), _) => validate(schema, member).map_err(|e| format!("{name}: {e}"))?,
            (None, Some(Value::Bool(false))) => return Err(format!("{name} is not described")),
            (None, Some(schema @ Value::Object(_))) => {
                validate(schema, member).map_err(|e| format!("{name}: {e}"))?
            }
            // Clients of a response have to take more than is described; these tests do not.
            (None, None) if schema.get("type").is_some() && schema.get("properties").is_some() => {
                return Err(format!("{name} is not described"));
            }
            (None, _) => {}
        }
    }
    Ok(())
}

/// The examples are written by hand, in `openapi/examples.json`.
#[test]
fn openapi_examples_fit_their_schemas() {
    let mut checked = 0;
    for (path, item) in SPEC["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("item").iter().filter(|(m, _)| *m != "parameters")
        {
            let answers = operation["responses"].as_object().expect("responses").values().map(resolve);
            let media =
                answers.chain([&operation["requestBody"]]).filter_map(|body| body["content"].as_object());
            for (content_type, form) in media.flatten() {
                let Some(example) = form.get("example") else { continue };
                let lines = example.as_str().filter(|_| content_type == "application/x-ndjson");
                let values: Vec<Value> = match lines {
                    Some(lines) => {
                        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
                    }
                    None => vec![example.clone()],
                };
                for value in values {
                    let fits = validate(&form["schema"], &value);
                    fits.unwrap_or_else(|e| panic!("{method} {path}: {e}\n{value:#}"));
                    checked += 1;
                }
            }
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let fits = validate(&parameter["schema"], &parameter["example"]);
                fits.unwrap_or_else(|e| panic!("{method} {path}: {e}: {parameter:#}"));
            }
        }
    }
    assert!(checked >= 100, "{checked} examples");
}

#[test]
fn the_validator_refuses_what_it_should() {
    let schema = &SPEC["components"]["schemas"]["Enqueue"];
    let ok = |text: &str| validate(schema, &serde_json::from_str(text).unwrap());
    ok(r#"{"body": "a", "delay_ms": 0}"#).unwrap();
    for bad in [
        r#"{"body": "a"}"#,
        r#"{"delay_ms": 0}"#,
        r#"{"body": "a", "delay_ms": 0, "due_at": "x"}"#,
        r#"{"body": "a", "delay_ms": -1}"#,
        r#"{"body": "a", "delay_ms": 1.5}"#,
        r#"{"body": "a", "delay_ms": 0, "nope": 1}"#,
        r#"{"body": "a", "delay_ms": 0, "if_exists": "maybe"}"#,
        r#"{"body": "a", "delay_ms": 0, "headers": {"a": 1}}"#,
    ] {
        assert!(ok(bad).is_err(), "{bad}");
    }
}
