//! Batches over all their attempts: what was put off, or has no answer, is sent again.

use std::collections::VecDeque;

use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use crate::call::ApiCall;
use crate::error::{Code, Error};
use crate::outgoing::BatchItem;
use crate::retry::Attempts;
use crate::transport::HttpTransport;
use crate::types::Each;

/// Below the limits of the server, 10,000 items and 16 MiB.
const ITEMS: usize = 10_000;
const BYTES: usize = 15 << 20;

/// The next request, and the number of items in it: lines, or the member of an object.
fn request(
    call: &ApiCall,
    member: Option<&str>,
    items: &[Result<BatchItem, Error>],
    open: &VecDeque<usize>,
) -> Result<(ApiCall, usize), Error> {
    let (mut bytes, mut count) = (Vec::new(), 0);
    for i in open.iter().take(ITEMS) {
        let json = items[*i].as_ref().map_err(Error::clone)?.json()?;
        if count > 0 && bytes.len() + json.len() >= BYTES {
            break;
        }
        if count > 0 {
            bytes.push(if member.is_some() { b',' } else { b'\n' });
        }
        bytes.extend(json);
        count += 1;
    }
    let call = call.clone();
    let call = match member {
        None => call.lines(bytes),
        Some(name) => call.written([format!("{{\"{name}\":[").as_bytes(), &bytes, b"]}"].concat()),
    };
    Ok((call, count))
}

/// The answers of a batch, as far as they are whole.
fn answers(body: &[u8], is_lines: bool) -> Vec<Value> {
    if is_lines {
        let lines = body.split(|b| *b == b'\n').filter(|line| !line.is_empty());
        return lines.map_while(|line| serde_json::from_slice(line).ok()).collect();
    }
    match serde_json::from_slice::<Value>(body).map(|mut answer| answer["results"].take()) {
        Ok(Value::Array(results)) => results,
        Ok(_) | Err(_) => Vec::new(),
    }
}

/// The answers to an attempt, and the reason for those that are missing.
async fn attempt(
    server: &HttpTransport,
    call: &ApiCall,
    call_ends: Option<Instant>,
    is_lines: bool,
) -> (Vec<Value>, Error) {
    let answer = match server.send(call, call_ends).await {
        Ok(answer) => answer,
        Err(error) => return (Vec::new(), error),
    };
    if let Some(refusal) = answer.refusal() {
        return (Vec::new(), refusal);
    }
    let answers = answers(&answer.body, is_lines);
    let missing = match answer.cut {
        Some(cut) => cut,
        None if answers.is_empty() => Error::bad_answer(answer.status, &answer.body),
        None => Error { may_be_applied: true, ..Error::new(Code::Connection, "the answer ends too early") },
    };
    (answers, missing)
}

/// The result of each item. The error of the whole call is returned only if nothing was accepted.
pub(crate) async fn run<T: DeserializeOwned>(
    server: &HttpTransport,
    call: ApiCall,
    member: Option<&str>,
    mut items: Vec<Result<BatchItem, Error>>,
) -> Result<Each<T>, Error> {
    // What cannot be sent has its error already.
    let unsent = |item: &Result<_, Error>| item.as_ref().err().map(|error| Err(error.clone()));
    let mut results: Vec<Option<Result<T, Error>>> = items.iter().map(unsent).collect();
    let mut unsure = vec![false; items.len()];
    let mut open: VecDeque<usize> = (0..items.len()).filter(|i| items[*i].is_ok()).collect();
    let mut attempts = Attempts::new(&call, server);
    let mut is_begun = false;
    while !open.is_empty() {
        let (request, count) = request(&call, member, &items, &open)?;
        let (answers, missing) = attempt(server, &request, attempts.ends(), member.is_none()).await;
        // An item that is too large is sent alone, and says nothing about the others.
        let is_of_item = count == 1 && items.len() > 1 && missing.status == Some(413);
        if answers.is_empty() && !is_begun && !is_of_item && !attempts.helps(&missing) {
            return Err(missing.after_unsure(unsure.contains(&true)));
        }
        let (mut again, mut longest) = (Vec::new(), None::<Error>);
        for (at, i) in open.drain(..count).enumerate() {
            let refused = answers.get(at).map_or_else(|| Some(missing.clone()), Error::of_problem);
            let error = match (refused, answers.get(at)) {
                (None, Some(answer)) => match serde_json::from_value(answer.clone()) {
                    Ok(read) => {
                        results[i] = Some(Ok(read));
                        is_begun = true;
                        continue;
                    }
                    Err(_) => Error::bad_answer(200, answer.to_string().as_bytes()),
                },
                (refused, _) => refused.unwrap_or_else(|| missing.clone()),
            };
            if attempts.helps(&error) {
                unsure[i] |= error.may_be_applied;
                if longest.as_ref().is_none_or(|longest| longest.retry_after < error.retry_after) {
                    longest = Some(error.clone());
                }
            } else if !items[i].as_mut().is_ok_and(|item| item.has_lost_window(&error)) {
                results[i] = Some(Err(error.after_unsure(unsure[i])));
                continue;
            }
            again.push((i, error));
        }
        match longest.map(|error| attempts.after(error)) {
            Some(Ok(pause)) => tokio::time::sleep(pause).await,
            Some(Err(error)) if !is_begun => return Err(error.after_unsure(unsure.contains(&true))),
            Some(Err(_)) => {
                for (i, error) in again.drain(..) {
                    results[i] = Some(Err(error.after_unsure(unsure[i])));
                }
            }
            None => {}
        }
        if again.is_empty() {
            attempts = Attempts::new(&call, server);
        }
        again.into_iter().rev().for_each(|(i, _)| open.push_front(i));
    }
    Ok(results.into_iter().flatten().collect())
}
