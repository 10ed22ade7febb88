//! `duewheel bridge …`: other systems that messages come from and go to.

use std::io::{self, Write};

use clap::{Args, Subcommand};
use duewheel_client::segment;
use serde::Serialize;
use serde_json::{Value, json};

use super::failure::CommandFailure;
use super::session::{ClientArgs, ClientSession, NoArgs, RunCommand, fields};
use super::table::{self, cell, elements, member, texts};

#[derive(Debug, Subcommand)]
pub(super) enum BridgeCommand {
    /// List the bridges of the configuration, with their states and counts
    List(ClientArgs<NoArgs>),
    /// Show what is to be declared at the broker and in programs, so that the bridge takes the plugin's place
    Plan(ClientArgs<BridgePlanArgs>),
    /// Connect to the broker, check declarations and permissions, and send a message each way that no consumer gets
    Test(ClientArgs<BridgeNamed>),
    /// Let a bridge take and give nothing until it is resumed
    Pause(ClientArgs<BridgePauseArgs>),
    /// Resume a paused bridge
    Resume(ClientArgs<BridgeNamed>),
}

#[derive(Args, Debug)]
pub(super) struct BridgeNamed {
    /// The name of the bridge
    name: String,
}

#[derive(Args, Debug)]
pub(super) struct BridgePlanArgs {
    /// The name of the bridge
    name: String,
    /// Print the definitions alone, for rabbitmqadmin import
    #[arg(long)]
    definitions: bool,
}

#[derive(Args, Debug, Serialize)]
pub(super) struct BridgePauseArgs {
    /// The name of the bridge
    #[serde(skip)]
    name: String,
    /// Why, in words
    #[arg(long)]
    reason: Option<String>,
}

fn path(name: &str, what: &str) -> String {
    format!("/v1/bridges/{}{what}", segment(name))
}

impl RunCommand for BridgeCommand {
    fn run(self) -> Result<(), CommandFailure> {
        match self {
            BridgeCommand::List(args) => args.with(|_, session| list(session)),
            BridgeCommand::Plan(args) => args.with(|args, session| plan(&args, session)),
            BridgeCommand::Test(args) => args.with(|args, session| test(&args, session)),
            BridgeCommand::Pause(args) => args.with(|args, session| {
                let asked = Value::Object(fields(&args)?);
                show(session, &session.remote.post(&path(&args.name, "/pause"), &asked)?)
            }),
            BridgeCommand::Resume(args) => args.with(|args, session| {
                show(session, &session.remote.post(&path(&args.name, "/resume"), &json!({}))?)
            }),
        }
    }
}

fn list(session: &ClientSession) -> Result<(), CommandFailure> {
    let answer = session.remote.get("/v1/bridges")?;
    let count = |name: &'static str| move |bridge: &Value| bridge["counts"][name].to_string();
    let why = |bridge: &Value| {
        bridge["reason"].as_str().or(bridge["last_error"].as_str()).unwrap_or_default().to_owned()
    };
    let columns: [table::Column<'_>; 8] = [
        ("NAME", &member("name")),
        ("STATE", &member("state")),
        ("QUEUE", &member("queue")),
        ("IN", &count("in")),
        ("OUT", &count("out")),
        ("REJECTED", &count("rejected")),
        ("LAG MS", &|bridge| bridge["lag_ms"].to_string()),
        ("WHY", &why),
    ];
    session.print(&answer, |out| table::print_rows(out, elements(&answer, "bridges"), &columns))
}

fn plan(asked: &BridgePlanArgs, session: &ClientSession) -> Result<(), CommandFailure> {
    let answer = session.remote.get(&path(&asked.name, "/plan"))?;
    if asked.definitions {
        return Ok(writeln!(io::stdout(), "{:#}", answer["definitions"])?);
    }
    session.print(&answer, |out| {
        for (n, step) in texts(&answer["steps"]).enumerate() {
            writeln!(out, "{}. {step}", n + 1)?;
        }
        for program in elements(&answer, "programs") {
            writeln!(out, "\n{}", cell(program, "library"))?;
            writeln!(out, "    {}\n    {}", cell(program, "declare"), cell(program, "bind"))?;
        }
        Ok(())
    })
}

fn test(asked: &BridgeNamed, session: &ClientSession) -> Result<(), CommandFailure> {
    let answer = session.remote.post(&path(&asked.name, "/test"), &json!({}))?;
    session.print(&answer, |out| {
        for step in elements(&answer, "steps") {
            let word = match step["ok"].as_bool() {
                Some(true) => "ok",
                Some(false) => "failed",
                None => "-",
            };
            writeln!(out, "{:<10}{word:<8}{}", cell(step, "step"), cell(step, "detail"))?;
        }
        Ok(())
    })?;
    match answer["ok"] == true {
        true => Ok(()),
        false => Err(CommandFailure::Failed("the bridge would not work".to_owned())),
    }
}

fn show(session: &ClientSession, bridge: &Value) -> Result<(), CommandFailure> {
    session.print(bridge, |out| {
        let names = ["name", "state", "reason", "last_error", "queue", "exchange", "source", "lag_ms"];
        table::print_members(out, 16, bridge, &names)?;
        for (name, count) in bridge["counts"].as_object().into_iter().flatten() {
            writeln!(out, "{name:<16}{count}")?;
        }
        Ok(())
    })
}
