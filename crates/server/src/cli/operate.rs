//! `duewheel pause|resume|purge|redrive QUEUE`.

use std::io::{self, Write};

use clap::Args;
use duewheel::core::QueueName;
use serde_json::{Map, Value, json};

use super::confirm::confirm;
use super::dead::{self, DeadReasonArg};
use super::invocation::print_json;
use super::queue::{path, queue_name};
use super::remote::{Remote, ServerRefusal};
use super::table::{are, cell, cell_counted, counted, plain};
use super::{ClientCommand, CommandFailure, ServerArgs, bulk, when};
use crate::span::TimeSpan;

#[derive(Args, Debug)]
pub(super) struct PauseArgs {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// For this time [default: until `duewheel resume`]
    #[arg(long = "for", value_name = "TIME", value_parser = when::span)]
    length: Option<TimeSpan>,
    #[command(flatten)]
    server: ServerArgs,
}

impl ClientCommand for PauseArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        let mut request = Map::new();
        if let Some(TimeSpan(ms)) = self.length {
            request.insert("for_ms".into(), ms.into());
        }
        let how = match self.length {
            Some(length) => format!("paused for {length}"),
            None => "paused until it is resumed".to_owned(),
        };
        operate(&self.queue, "pause", &Value::Object(request), &self.server, |_| how)
    }
}

#[derive(Args, Debug)]
pub(super) struct ResumeArgs {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    #[command(flatten)]
    server: ServerArgs,
}

impl ClientCommand for ResumeArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        operate(&self.queue, "resume", &json!({}), &self.server, |_| "resumed".to_owned())
    }
}

#[derive(Args, Debug)]
pub(super) struct PurgeArgs {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    server: ServerArgs,
}

impl ClientCommand for PurgeArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        if !self.yes {
            let counts = Remote::new(&self.server)?.get(&path(&self.queue))?["counts"].take();
            let count = |state: &str| counts[state].as_u64().unwrap_or(0);
            let doomed = count("scheduled") + count("ready") + count("dead");
            confirm(&format!("remove {} of {} for ever", counted(doomed, "message"), self.queue))?;
        }
        operate(&self.queue, "purge", &json!({}), &self.server, |answer| {
            format!("{} removed", cell_counted(answer, "purged", "message"))
        })
    }
}

#[derive(Args, Debug)]
pub(super) struct RedriveArgs {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// Only this message; may be given several times
    #[arg(long = "id", value_name = "ID", conflicts_with = "max")]
    ids: Vec<String>,
    /// At most this number of messages, in the order in which they died
    #[arg(long, value_name = "N")]
    max: Option<u64>,
    /// With --id: the messages become new ones of this queue
    #[arg(long, value_name = "QUEUE", requires = "ids", value_parser = queue_name)]
    to_queue: Option<QueueName>,
    /// Only messages that died for this reason; as a job, which it waits for
    #[arg(long, value_name = "R", conflicts_with_all = ["ids", "max"])]
    reason: Option<DeadReasonArg>,
    /// Only messages whose last attempt has this note; `duewheel dead` shows them
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["ids", "max"])]
    note: Option<String>,
    /// With --reason and --note: do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    server: ServerArgs,
}

impl ClientCommand for RedriveArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        let filter = dead::filter(self.reason, self.note.as_deref());
        if !filter.is_empty() {
            return bulk::redrive(&self.queue, filter, self.yes, &self.server);
        }
        let mut request = Map::new();
        if !self.ids.is_empty() {
            request.insert("ids".into(), json!(self.ids));
        }
        if let Some(max) = self.max {
            request.insert("max".into(), max.into());
        }
        if let Some(to) = &self.to_queue {
            request.insert("to_queue".into(), to.as_str().into());
        }
        let (mut refused, mut stay) = (Vec::new(), Vec::new());
        operate(&self.queue, "redrive", &Value::Object(request), &self.server, |answer| {
            for result in answer["results"].as_array().into_iter().flatten() {
                if result.get("code").is_some() {
                    refused.push((cell(result, "id"), ServerRefusal::from_json(result)));
                }
            }
            for of_code in answer["refused"].as_array().into_iter().flatten() {
                let messages = counted(of_code["messages"].as_u64().unwrap_or(0), "message");
                let ids = of_code["ids"].as_array().into_iter().flatten().filter_map(Value::as_str);
                let ids: Vec<&str> = ids.collect();
                stay.push(format!("{}: {messages} ({})", cell(of_code, "code"), ids.join(", ")));
            }
            format!("{} ready again", are(answer["redriven"].as_u64().unwrap_or(0), "message"))
        })?;
        match refused.len() {
            0 if !stay.is_empty() => {
                Err(CommandFailure::Failed(format!("some stay dead: {}", stay.join("; "))))
            }
            0 => Ok(()),
            1 => refused.pop().map_or(Ok(()), |(_, refusal)| Err(CommandFailure::Refused(refusal))),
            many => {
                // With --json the answer has them.
                for (id, refusal) in refused.iter().filter(|_| !self.server.json) {
                    eprintln!("{id}: {}", plain(&refusal.to_string()));
                }
                Err(CommandFailure::Failed(format!("{many} messages were refused")))
            }
        }
    }
}

/// Posts to a path below a queue, and prints the answer.
fn operate(
    queue: &QueueName,
    verb: &str,
    request: &Value,
    server: &ServerArgs,
    words: impl FnOnce(&Value) -> String,
) -> Result<(), CommandFailure> {
    let answer = Remote::new(server)?.post(&format!("{}/{verb}", path(queue)), request)?;
    let words = words(&answer);
    let mut out = io::stdout().lock();
    if server.json {
        print_json(&mut out, &answer)?;
    } else {
        writeln!(out, "{queue}  {words}")?;
    }
    Ok(())
}
