//! `POST /v1/queues/{queue}/cancel`: many at once, by key and by id.

use axum::http::StatusCode;
use duewheel::core::engine::{Op, Reply, Target};
use duewheel::core::{Key, MessageId};
use serde::Deserialize;

use super::call::Call;
use super::reach::of_queue;
use super::strict::{self, Id, Text};
use super::{Answer, Json, check_batch, object};
use crate::error::Problem;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CancelMany<'a> {
    #[serde(borrow)]
    keys: Option<Vec<Text<'a>>>,
    ids: Option<Vec<Id>>,
}

pub(crate) async fn cancel_many(mut call: Call) -> Answer {
    let queue = call.queue()?;
    let (keys, ids) = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        let asked: CancelMany<'_> = strict::parse(&bytes)?;
        if asked.keys.is_none() && asked.ids.is_none() {
            return Err(Problem::field("keys", "keys or ids must be given"));
        }
        let keys = asked.keys.unwrap_or_default();
        let ids = asked.ids.unwrap_or_default();
        check_batch(keys.len() + ids.len(), &call.app.policy)?;
        let key = |(n, text): (usize, &Text<'_>)| {
            Key::new(&text.0).map_err(|what| Problem::field(format!("keys[{n}]"), what))
        };
        (keys.iter().enumerate().map(key).collect::<Result<Vec<_>, _>>()?, ids)
    };
    let ids: Vec<MessageId> = ids.into_iter().map(|id| id.0).collect();
    let by_key =
        keys.iter().map(|key| Op::Cancel { target: Target::Key(queue.clone(), key.clone()) }).collect();
    let key_results = call.app.ask_many(by_key).await?;
    let id_results = of_queue(&call.app, &queue, &ids, |id| Op::Cancel { target: Target::Id(id) }).await?;

    Ok(object(StatusCode::OK, |out| {
        out.open_list("results");
        for (key, result) in keys.iter().zip(key_results) {
            out.open();
            out.text("key", key.as_str());
            write(out, result);
            out.close();
        }
        for (id, result) in ids.iter().zip(id_results) {
            out.open();
            out.id("id", *id);
            write(out, result);
            out.close();
        }
        out.close_list();
    }))
}

fn write(out: &mut Json, result: Result<Reply, Problem>) {
    let problem = match result {
        Ok(Reply::Change(Ok(was))) => {
            out.plain("result", "cancelled");
            return out.plain("durability", was.level.as_str());
        }
        Ok(Reply::Change(Err(refusal))) => Problem::from_change(refusal, "due_at"),
        Ok(_) => Problem::internal(),
        Err(problem) => problem,
    };
    problem.write_line(out);
}
