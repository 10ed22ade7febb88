//! `duewheel target …`: where messages are delivered.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use duewheel_client::segment;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::enqueue::header_twice;
use super::failure::CommandFailure;
use super::session::{ClientArgs, ClientSession, NoArgs, RunCommand, fields};
use super::system_words::of_file;
use super::table::{self, cell, member, texts};
use super::when::Millis;

#[derive(Debug, Subcommand)]
pub(super) enum TargetCommand {
    /// Create a target, or give it other settings: all of them, secrets too
    Put(Box<ClientArgs<TargetPut>>),
    /// Show a target
    Get(ClientArgs<TargetNamed>),
    /// List all targets
    List(ClientArgs<NoArgs>),
    /// Let the messages of a target wait until it is resumed
    Pause(ClientArgs<TargetPauseArgs>),
    /// Resume deliveries to a paused target
    Resume(ClientArgs<TargetNamed>),
    /// Send one signed message now, and show what comes back
    Test(ClientArgs<TargetNamed>),
    /// Remove a target that no queue is delivered to
    Rm(ClientArgs<TargetNamed>),
}

#[derive(Args, Debug, Serialize)]
pub(super) struct TargetPut {
    /// The name of the target
    #[serde(skip)]
    name: String,
    /// Where messages are sent; http or https
    url: String,
    /// POST (default), PUT or PATCH
    #[arg(long)]
    method: Option<String>,
    /// A header of each request, such as "x-shop: 7"; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE")]
    #[serde(skip)]
    headers: Vec<String>,
    /// File of secrets (whsec_... or whsk_...), one a line; - reads standard input. Each of them signs
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    secrets: Option<PathBuf>,
    /// How long a request may take [default: 30s]
    #[arg(long = "timeout", value_name = "TIME")]
    timeout_ms: Option<Millis>,
    /// Requests at a time [default: 10]
    #[arg(long, value_name = "N")]
    concurrency: Option<u32>,
    /// Requests a second [default: no limit]
    #[arg(long, value_name = "N")]
    #[serde(skip)]
    rate: Option<u32>,
    /// Requests that may go at once after a pause [default: those of a second]
    #[arg(long, value_name = "N", requires = "rate")]
    #[serde(skip)]
    burst: Option<u32>,
    /// Delays after failed attempts; the last one repeats [default: 5s,5m,30m,2h,5h,10h]
    #[arg(long, value_name = "TIME,...", value_delimiter = ',')]
    #[serde(skip)]
    delays: Vec<String>,
    /// Attempts after which a message is dead [default: 10]
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// Status codes that make a message dead at once
    #[arg(long, value_name = "CODE,...", value_delimiter = ',')]
    dead_on: Vec<u16>,
    /// Authorities of the target's certificate, in PEM [default: those of the web]
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    ca: Option<PathBuf>,
    /// A certificate to show, with its private key, in PEM
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    client_cert: Option<PathBuf>,
    /// Addresses that requests may go to: public, any, or networks such as 10.0.0.0/8 [default: public]
    #[arg(long, value_name = "NETWORK,...", value_delimiter = ',')]
    networks: Vec<String>,
    /// What the names of queues begin with that may be delivered to it [default: all]
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',')]
    queues: Vec<String>,
}

#[derive(Args, Debug)]
pub(super) struct TargetNamed {
    /// The name of the target
    name: String,
}

#[derive(Args, Debug, Serialize)]
pub(super) struct TargetPauseArgs {
    /// The name of the target
    #[serde(skip)]
    name: String,
    /// Why, in words
    #[arg(long)]
    reason: Option<String>,
}

/// Reads a file, or standard input for `-`.
fn read(option: &str, file: &Path) -> Result<String, CommandFailure> {
    let named = |why: io::Error| CommandFailure::Usage(format!("--{option} {}", of_file(file, &why)));
    if file.as_os_str() == "-" {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map_err(named)?;
        return Ok(text);
    }
    fs::read_to_string(file).map_err(named)
}

impl TargetPut {
    fn json(&self) -> Result<Map<String, Value>, CommandFailure> {
        let mut target = fields(self)?;
        if !self.headers.is_empty() {
            target.insert("headers".into(), json!(self.headers()?));
        }
        if let Some(file) = &self.secrets {
            let text = read("secrets", file)?;
            let secrets: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            if secrets.is_empty() {
                let what = "has no secret; leave the option out for a target that has none";
                return Err(CommandFailure::Usage(format!("--secrets {}: {what}", file.display())));
            }
            target.insert("secrets".into(), json!(secrets));
        }
        if let Some(per_second) = self.rate {
            let burst = self.burst.unwrap_or(per_second);
            target.insert("rate".into(), json!({"per_second": per_second, "burst": burst}));
        }
        if !self.delays.is_empty() {
            target.insert("retry".into(), json!({"delays": self.delays}));
        }
        for (field, option, file) in
            [("ca_pem", "ca", &self.ca), ("client_pem", "client-cert", &self.client_cert)]
        {
            if let Some(file) = file {
                target.insert(field.into(), read(option, file)?.into());
            }
        }
        Ok(target)
    }

    fn headers(&self) -> Result<BTreeMap<&str, &str>, CommandFailure> {
        let mut headers: BTreeMap<&str, &str> = BTreeMap::new();
        for header in &self.headers {
            // The text may hold a secret.
            let Some((name, value)) = header.split_once(':') else {
                return Err(CommandFailure::Usage(
                    "--header: give a name and a value, as NAME: VALUE".into(),
                ));
            };
            let name = name.trim();
            if headers.keys().any(|known| known.eq_ignore_ascii_case(name)) {
                return Err(header_twice(name));
            }
            headers.insert(name, value.trim());
        }
        Ok(headers)
    }
}

fn path(name: &str) -> String {
    format!("/v1/targets/{}", segment(name))
}

impl RunCommand for TargetCommand {
    fn run(self) -> Result<(), CommandFailure> {
        match self {
            TargetCommand::Put(args) => args.with(|args, session| {
                show(session, &session.remote.put(&path(&args.name), &Value::Object(args.json()?))?)
            }),
            TargetCommand::Get(args) => {
                args.with(|args, session| show(session, &session.remote.get(&path(&args.name))?))
            }
            TargetCommand::List(args) => args.with(|_, session| list(session)),
            TargetCommand::Pause(args) => args.with(|args, session| {
                let path = format!("{}/pause", path(&args.name));
                show(session, &session.remote.post(&path, &Value::Object(fields(&args)?))?)
            }),
            TargetCommand::Resume(args) => args.with(|args, session| {
                show(session, &session.remote.post(&format!("{}/resume", path(&args.name)), &json!({}))?)
            }),
            TargetCommand::Test(args) => args.with(|args, session| test(&args, session)),
            TargetCommand::Rm(args) => args.with(|args, session| {
                let answer = session.remote.delete(&path(&args.name))?;
                session.say(&answer, format_args!("removed {}", cell(&answer, "name")))
            }),
        }
    }
}

fn test(target: &TargetNamed, session: &ClientSession) -> Result<(), CommandFailure> {
    let answer = session.remote.post(&format!("{}/test", path(&target.name)), &json!({}))?;
    session.print(&answer, |out| {
        let names = ["at", "class", "ms", "webhook_id", "answer"];
        names.iter().try_for_each(|name| writeln!(out, "{name:<16}{}", cell(&answer, name)))
    })?;
    match answer["delivered"] == true {
        true => Ok(()),
        false => Err(CommandFailure::Failed("the target did not take the message".to_owned())),
    }
}

fn list(session: &ClientSession) -> Result<(), CommandFailure> {
    let targets = session.remote.list("/v1/targets?limit=1000", "targets")?;
    let why = |target: &Value| {
        target["error"].as_str().or(target["reason"].as_str()).unwrap_or_default().to_owned()
    };
    let columns: [table::Column<'_>; 5] = [
        ("NAME", &member("name")),
        ("STATE", &member("state")),
        ("QUEUES", &|target| joined(&target["delivers"])),
        ("URL", &member("url")),
        ("WHY", &why),
    ];
    session.print(&json!({ "targets": targets }), |out| table::print_rows(out, &targets, &columns))
}

/// The texts of a list.
fn joined(list: &Value) -> String {
    let texts: Vec<&str> = texts(list).collect();
    if texts.is_empty() { "-".to_owned() } else { texts.join(", ") }
}

fn show(session: &ClientSession, target: &Value) -> Result<(), CommandFailure> {
    session.print(target, |out| {
        table::print_members(out, 16, target, &["name", "state", "reason", "since", "error"])?;
        writeln!(out, "{:<16}{}", "queues", joined(&target["delivers"]))?;
        let names = ["url", "method", "timeout_ms", "concurrency", "max_attempts"];
        table::print_members(out, 16, target, &names)?;
        for name in ["headers", "secrets"] {
            writeln!(out, "{name:<16}{}", joined(&target[name]))?;
        }
        for (name, count) in target["counts"].as_object().into_iter().flatten() {
            writeln!(out, "{name:<16}{count}")?;
        }
        Ok(())
    })
}
