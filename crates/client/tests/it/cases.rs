//! `real` and `scripted`: once by the client that waits for nothing, once by the one that blocks.

use std::collections::HashMap;
use std::future::Future;

use duewheel_client::{BlockingClient, DuewheelClient, Error, Options};
use serde_json::{Value, json};

use crate::calls::{
    change, each, lease, leases, length, nack, named, new_message, new_messages, perform, reserving, results,
    shown, shown_error, text, texts,
};
use crate::processes::{Process, clients, real, scripted};

pub(crate) fn cases(kind: &str) -> Vec<Value> {
    let all = std::fs::read(clients().join("cases.json")).unwrap();
    let mut all: Value = serde_json::from_slice(&all).unwrap();
    serde_json::from_value(all[kind].take()).unwrap()
}

/// Whether `got` has what is wanted. `null` is nothing.
pub(crate) fn matches(got: &Value, wanted: &Value, place: &str) {
    match wanted {
        Value::Object(members) => {
            members.iter().for_each(|(name, wanted)| matches(&got[name], wanted, &format!("{place}.{name}")));
        }
        Value::Array(list) => {
            let got = got.as_array().unwrap_or_else(|| panic!("{place}: {got} is no list"));
            assert_eq!(got.len(), list.len(), "{place}: {got:?}");
            got.iter()
                .zip(list)
                .enumerate()
                .for_each(|(n, (got, one))| matches(got, one, &format!("{place}.{n}")));
        }
        _ => assert_eq!(got, wanted, "{place}"),
    }
}

/// The value with `${name}` in it replaced.
fn filled(value: &Value, names: &HashMap<String, Value>) -> Value {
    match value {
        Value::String(text) => {
            let whole = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
            if let Some(value) = whole.and_then(|name| names.get(name)) {
                return value.clone();
            }
            let put = |text: String, (name, value): (&String, &Value)| {
                text.replace(&format!("${{{name}}}"), value.as_str().unwrap_or_default())
            };
            names.iter().fold(text.clone(), put).into()
        }
        Value::Array(list) => list.iter().map(|one| filled(one, names)).collect(),
        Value::Object(members) => {
            members.iter().map(|(name, one)| (name.clone(), filled(one, names))).collect()
        }
        other => other.clone(),
    }
}

fn judge(got: Result<Value, Error>, step: &Value, place: &str) -> Value {
    match (got, step.get("error")) {
        (Err(error), Some(wanted)) => {
            matches(&shown_error(&error), wanted, place);
            Value::Null
        }
        (Ok(got), None) => {
            matches(&got, step.get("result").unwrap_or(&json!({})), place);
            got
        }
        (got, _) => panic!("{place}: {got:?} in place of {step}"),
    }
}

async fn run_real<F: Future<Output = Result<Value, Error>>>(prefix: &str, call: impl Fn(String, Value) -> F) {
    for (number, case) in cases("real").iter().enumerate() {
        let mut names = HashMap::from([("queue".to_owned(), format!("{prefix}.{number}").into())]);
        for (n, step) in case["steps"].as_array().unwrap().iter().enumerate() {
            let place = format!("{}, step {} ({})", case["name"], n + 1, step["call"]);
            let step = filled(step, &names);
            let args = step.get("args").cloned().unwrap_or_default();
            let got = judge(call(text(&step, "call").to_owned(), args).await, &step, &place);
            for (name, path) in step["save"].as_object().into_iter().flatten() {
                let path = format!("/{}", path.as_str().unwrap().replace('.', "/"));
                names.insert(name.clone(), got.pointer(&path).cloned().unwrap_or_default());
            }
        }
    }
}

async fn perform_async(client: DuewheelClient, name: String, args: Value) -> Result<Value, Error> {
    Ok(perform!(client, name.as_str(), &args, .await))
}

/// On a thread without a runtime.
async fn perform_blocking(
    client: impl FnOnce() -> BlockingClient + Send + 'static,
    name: String,
    args: Value,
) -> Result<Value, Error> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let client = client();
        let got = (|| Ok::<_, Error>(perform!(&client, name.as_str(), &args,)))();
        let _ = sender.send(got);
    });
    receiver.await.expect("the call does not panic")
}

#[tokio::test]
async fn async_client_on_the_real_server() {
    let server = real();
    let client = DuewheelClient::new(&server.url, Options::default()).unwrap();
    run_real("async", |name, args| perform_async(client.clone(), name, args)).await;
}

#[tokio::test]
async fn blocking_client_on_the_real_server() {
    let server = real();
    let url = server.url.clone();
    run_real("blocking", |name, args| {
        let url = url.clone();
        perform_blocking(move || BlockingClient::new(&url, Options::default()).unwrap(), name, args)
    })
    .await;
}

fn options(case: &Value) -> Options {
    let mut options = Options::default();
    if let Some(token) = case["client"]["token"].as_str() {
        options = options.token(token).unwrap();
    }
    match length(&case["client"], "retry_for_ms") {
        Some(time) => options.retry_for(time),
        None => options,
    }
}

/// All cases at the same time: most of them wait.
async fn run_scripted<F>(server: &Process, call: impl Fn(String, Options, String, Value) -> F)
where
    F: Future<Output = Result<Value, Error>> + Send + 'static,
{
    let mut running = tokio::task::JoinSet::new();
    for case in cases("scripted") {
        let name = text(&case, "name").to_owned();
        let url = format!("{}/{name}", server.url);
        let called = call(url, options(&case), text(&case, "call").to_owned(), case["args"].clone());
        running.spawn(async move { judge(called.await, &case, &name) });
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("the case holds");
    }
}

fn failures(server: &Process, kind: &str) -> Vec<String> {
    let of_case = |case: &Value| {
        let name = text(case, "name").to_owned();
        let (failures, _) = server.verdict(&name);
        failures.into_iter().map(move |failure| format!("{name}: {failure}"))
    };
    cases(kind).iter().flat_map(of_case).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn async_client_on_the_scripted_server() {
    let server = scripted();
    run_scripted(&server, |url, options, name, args| async move {
        perform_async(DuewheelClient::new(&url, options)?, name, args).await
    })
    .await;
    let found = std::thread::spawn(move || failures(&server, "scripted")).join().unwrap();
    assert!(found.is_empty(), "{found:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_client_on_the_scripted_server() {
    let server = scripted();
    run_scripted(&server, |url, options, name, args| {
        perform_blocking(move || BlockingClient::new(&url, options).unwrap(), name, args)
    })
    .await;
    let found = std::thread::spawn(move || failures(&server, "scripted")).join().unwrap();
    assert!(found.is_empty(), "{found:#?}");
}
