//! `duewheel list QUEUE`.

use std::io::{self, Write};

use clap::Args;
use duewheel::core::QueueName;
use serde_json::{Value, json};

use super::filter::FilterArgs;
use super::invocation::print_json;
use super::queue::queue_name;
use super::remote::{Remote, segment};
use super::table::{self, body, cell};
use super::{ClientCommand, CommandFailure, ServerArgs, when};

/// Number of messages of one request.
const PAGE: usize = 1_000;
const BODY_CHARS: usize = 40;

#[derive(Args, Debug)]
pub(super) struct ListArgs {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    #[command(flatten)]
    filter: FilterArgs,
    /// Largest number of messages
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
    #[command(flatten)]
    server: ServerArgs,
}

impl ClientCommand for ListArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        let remote = Remote::new(&self.server)?;
        let mut messages: Vec<Value> = Vec::new();
        let mut next: Option<String> = None;
        loop {
            let limit = PAGE.min(self.limit - messages.len());
            if limit == 0 {
                break;
            }
            let mut path = format!("/v1/queues/{}/messages?limit={limit}", segment(self.queue.as_str()));
            path.push_str(&self.filter.query()?);
            if let Some(after) = &next {
                path.push_str(&format!("&after={}", segment(after)));
            }
            let mut page = remote.get(&path)?;
            if let Some(Value::Array(more)) = page.get_mut("messages").map(Value::take) {
                messages.extend(more);
            }
            next = page.get("next").and_then(Value::as_str).map(str::to_owned);
            if next.is_none() {
                break;
            }
        }
        let mut out = io::stdout().lock();
        if self.server.json {
            print_json(&mut out, &json!({"messages": messages, "next": next}))?;
            return Ok(());
        }
        let row = |message: &Value| {
            vec![
                cell(message, "id"),
                match message["outcome"].as_str() {
                    Some(outcome) => format!("done, {outcome}"),
                    None => cell(message, "state"),
                },
                when::due(message),
                cell(message, "key"),
                cell(message, "attempt"),
                body(message, BODY_CHARS),
            ]
        };
        let rows: Vec<Vec<String>> = messages.iter().map(row).collect();
        table::print(&mut out, &["ID", "STATE", "DUE", "KEY", "ATTEMPT", "BODY"], &rows)?;
        if next.is_some() {
            writeln!(out, "there may be more; see --limit")?;
        }
        Ok(())
    }
}
