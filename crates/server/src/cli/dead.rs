//! `duewheel dead QUEUE`: dead messages by reason.

use std::collections::BTreeMap;
use std::io::{self, Write};

use clap::{Args, ValueEnum};
use duewheel::core::QueueName;
use serde_json::{Map, Value, json};

use super::queue::{path, queue_name};
use super::remote::Remote;
use super::table::{plain, print};
use super::{ClientCommand, CommandFailure, ServerArgs};

#[derive(Args, Debug)]
pub(super) struct DeadArgs {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    #[command(flatten)]
    server: ServerArgs,
}

/// Why a message is dead.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum DeadReasonArg {
    /// All its attempts failed
    MaxAttempts,
    /// A consumer, or the delivery to a target, gave it up
    Buried,
    /// The message had expired
    Expired,
}

impl DeadReasonArg {
    pub(super) fn word(self) -> &'static str {
        match self {
            DeadReasonArg::MaxAttempts => "max_attempts",
            DeadReasonArg::Buried => "buried",
            DeadReasonArg::Expired => "expired",
        }
    }
}

/// The fields of a filter for dead messages.
pub(super) fn filter(reason: Option<DeadReasonArg>, note: Option<&str>) -> Map<String, Value> {
    let mut fields = Map::new();
    if let Some(reason) = reason {
        fields.insert("dead_reason".into(), reason.word().into());
    }
    if let Some(note) = note {
        fields.insert("dead_note".into(), note.into());
    }
    fields
}

impl ClientCommand for DeadArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        let remote = Remote::new(&self.server)?;
        let (mut counts, mut counted) = (BTreeMap::<(String, String), u64>::new(), 0);
        for one in remote.list(&format!("{}/dead", path(&self.queue)), "reasons")? {
            let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
            let messages = one["messages"].as_u64().unwrap_or(0);
            *counts.entry((text("dead_reason"), text("dead_note"))).or_default() += messages;
            counted += messages;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(_, messages)| std::cmp::Reverse(*messages));
        let mut out = io::stdout().lock();
        if self.server.json {
            let one = |((reason, note), messages): &((String, String), u64)| json!({"dead_reason": reason, "dead_note": note, "messages": messages});
            let reasons: Vec<Value> = counts.iter().map(one).collect();
            writeln!(out, "{}", json!({"reasons": reasons, "counted": counted}))?;
            return Ok(());
        }
        let row = |((reason, note), messages): &((String, String), u64)| {
            vec![messages.to_string(), reason.clone(), plain(note)]
        };
        let rows: Vec<Vec<String>> = counts.iter().map(row).collect();
        print(&mut out, &["MESSAGES", "REASON", "NOTE OF THE LAST ATTEMPT"], &rows)?;
        Ok(())
    }
}
