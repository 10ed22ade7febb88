//! `duewheel queues`.

use std::io::{self, Write};

use clap::Args;
use serde_json::{Value, json};

use super::remote::Remote;
use super::table::{self, cell};
use super::{ClientCommand, CommandFailure, ServerArgs};
use crate::span::TimeSpan;

#[derive(Args, Debug)]
pub(super) struct QueuesArgs {
    #[command(flatten)]
    server: ServerArgs,
}

impl ClientCommand for QueuesArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        let remote = Remote::new(&self.server)?;
        let queues = remote.list("/v1/queues", "queues")?;
        let mut out = io::stdout().lock();
        if self.server.json {
            writeln!(out, "{}", json!({ "queues": queues }))?;
            return Ok(());
        }
        let rows: Vec<Vec<String>> = queues.iter().map(row).collect();
        let head = ["QUEUE", "SCHEDULED", "READY", "LEASED", "DEAD", "OVERDUE", "IN/S", "OUT/S", ""];
        table::print(&mut out, &head, &rows)?;
        Ok(())
    }
}

fn row(queue: &Value) -> Vec<String> {
    let count = |state: &str| cell(&queue["counts"], state);
    let overdue_s = queue["oldest_overdue_ms"].as_u64().unwrap_or(0) / 1_000;
    vec![
        cell(queue, "queue"),
        count("scheduled"),
        count("ready"),
        count("leased"),
        count("dead"),
        if queue["oldest_overdue"].is_null() {
            "-".to_owned()
        } else {
            TimeSpan(overdue_s * 1_000).to_string()
        },
        cell(&queue["rates"], "enqueued"),
        cell(&queue["rates"], "acked"),
        if queue["paused"].as_bool() == Some(true) { "paused".to_owned() } else { String::new() },
    ]
}
