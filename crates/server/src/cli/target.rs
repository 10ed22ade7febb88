//! `duewheel target …`: where messages are delivered.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::enqueue::header_twice;
use super::invocation::print_json;
use super::remote::{Remote, segment};
use super::table::{cell, print};
use super::{ClientCommand, CommandFailure, ServerArgs};
use crate::span::TimeSpan;

#[derive(Args, Debug)]
pub(super) struct TargetArgs {
    #[command(subcommand)]
    command: TargetCommand,
}

#[derive(Debug, Subcommand)]
enum TargetCommand {
    /// Create a target, or give it other settings: all of them, secrets too
    Put(Box<TargetPut>),
    /// Show a target
    Get(TargetNamed),
    /// List all targets
    List(TargetList),
    /// Let the messages of a target wait until it is resumed
    Pause(TargetPauseArgs),
    /// Resume deliveries to a paused target
    Resume(TargetNamed),
    /// Send one signed message now, and show what comes back
    Test(TargetNamed),
    /// Remove a target that no queue is delivered to
    Rm(TargetNamed),
}

#[derive(Args, Debug)]
struct TargetPut {
    /// The name of the target
    name: String,
    /// Where messages are sent; http or https
    url: String,
    /// POST (default), PUT or PATCH
    #[arg(long)]
    method: Option<String>,
    /// A header of each request, such as "x-shop: 7"; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// File of secrets (whsec_... or whsk_...), one a line; - reads standard input. Each of them signs
    #[arg(long, value_name = "FILE")]
    secrets: Option<PathBuf>,
    /// How long a request may take [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = super::when::span)]
    timeout: Option<TimeSpan>,
    /// Requests at a time [default: 10]
    #[arg(long, value_name = "N")]
    concurrency: Option<u32>,
    /// Requests a second [default: no limit]
    #[arg(long, value_name = "N")]
    rate: Option<u32>,
    /// Requests that may go at once after a pause [default: those of a second]
    #[arg(long, value_name = "N", requires = "rate")]
    burst: Option<u32>,
    /// Delays after failed attempts; the last one repeats [default: 5s,5m,30m,2h,5h,10h]
    #[arg(long, value_name = "TIME,...", value_delimiter = ',')]
    delays: Vec<String>,
    /// Attempts after which a message is dead [default: 10]
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// Status codes that make a message dead at once
    #[arg(long, value_name = "CODE,...", value_delimiter = ',')]
    dead_on: Vec<u16>,
    /// Authorities of the target's certificate, in PEM [default: those of the web]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// A certificate to show, with its private key, in PEM
    #[arg(long, value_name = "FILE")]
    client_cert: Option<PathBuf>,
    /// Addresses that requests may go to: public, any, or networks such as 10.0.0.0/8 [default: public]
    #[arg(long, value_name = "NETWORK,...", value_delimiter = ',')]
    networks: Vec<String>,
    /// What the names of queues begin with that may be delivered to it [default: all]
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',')]
    queues: Vec<String>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Args, Debug)]
struct TargetNamed {
    /// The name of the target
    name: String,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Args, Debug)]
struct TargetPauseArgs {
    /// The name of the target
    name: String,
    /// Why, in words
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Args, Debug)]
struct TargetList {
    #[command(flatten)]
    server: ServerArgs,
}

/// Reads a file, or standard input for `-`.
fn read(option: &str, file: &Path) -> Result<String, CommandFailure> {
    let named = |why: io::Error| CommandFailure::Usage(format!("--{option} {}: {why}", file.display()));
    if file.as_os_str() == "-" {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map_err(named)?;
        return Ok(text);
    }
    fs::read_to_string(file).map_err(named)
}

impl TargetPut {
    fn json(&self) -> Result<Value, CommandFailure> {
        let mut fields = Map::new();
        let mut put = |name: &str, value: Value| {
            let is_given = match &value {
                Value::Null => false,
                Value::Array(all) => !all.is_empty(),
                Value::Object(all) => !all.is_empty(),
                Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
            };
            if is_given {
                fields.insert(name.to_owned(), value);
            }
        };
        put("url", json!(self.url));
        put("method", json!(self.method));
        put("headers", json!(self.headers()?));
        if let Some(file) = &self.secrets {
            let text = read("secrets", file)?;
            let secrets: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            put("secrets", json!(secrets));
        }
        put("timeout_ms", json!(self.timeout.map(|time| time.0)));
        put("concurrency", json!(self.concurrency));
        if let Some(per_second) = self.rate {
            let burst = self.burst.unwrap_or(per_second);
            put("rate", json!({"per_second": per_second, "burst": burst}));
        }
        if !self.delays.is_empty() {
            put("retry", json!({"delays": self.delays}));
        }
        put("max_attempts", json!(self.max_attempts));
        put("dead_on", json!(self.dead_on));
        let pem = |option, file: &Option<PathBuf>| file.as_ref().map(|file| read(option, file)).transpose();
        put("ca_pem", json!(pem("ca", &self.ca)?));
        put("client_pem", json!(pem("client-cert", &self.client_cert)?));
        put("networks", json!(self.networks));
        put("queues", json!(self.queues));
        Ok(Value::Object(fields))
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

impl ClientCommand for TargetArgs {
    fn server(&self) -> &ServerArgs {
        match &self.command {
            TargetCommand::Put(args) => &args.server,
            TargetCommand::Get(args)
            | TargetCommand::Resume(args)
            | TargetCommand::Test(args)
            | TargetCommand::Rm(args) => &args.server,
            TargetCommand::List(args) => &args.server,
            TargetCommand::Pause(args) => &args.server,
        }
    }

    fn run(self) -> Result<(), CommandFailure> {
        let remote = Remote::new(self.server())?;
        let is_json = self.server().json;
        let show = |answer: Value, tell: fn(&Value) -> io::Result<()>| -> Result<(), CommandFailure> {
            if is_json {
                print_json(&mut io::stdout(), &answer)?
            } else {
                tell(&answer)?
            }
            Ok(())
        };
        match &self.command {
            TargetCommand::Put(args) => show(remote.put(&path(&args.name), &args.json()?)?, tell_target),
            TargetCommand::Get(args) => show(remote.get(&path(&args.name))?, tell_target),
            TargetCommand::List(_) => list(&remote, is_json),
            TargetCommand::Pause(args) => {
                let body = args.reason.as_ref().map_or_else(|| json!({}), |reason| json!({"reason": reason}));
                show(remote.post(&format!("{}/pause", path(&args.name)), &body)?, tell_target)
            }
            TargetCommand::Resume(args) => {
                show(remote.post(&format!("{}/resume", path(&args.name)), &json!({}))?, tell_target)
            }
            TargetCommand::Test(args) => {
                let answer = remote.post(&format!("{}/test", path(&args.name)), &json!({}))?;
                let delivered = answer["delivered"] == true;
                show(answer, tell_test)?;
                match delivered {
                    true => Ok(()),
                    false => Err(CommandFailure::Failed("the target did not take the message".to_owned())),
                }
            }
            TargetCommand::Rm(args) => show(remote.delete(&path(&args.name))?, |answer| {
                writeln!(io::stdout(), "removed {}", cell(answer, "name"))
            }),
        }
    }
}

fn list(remote: &Remote, is_json: bool) -> Result<(), CommandFailure> {
    let mut rows = Vec::new();
    for target in &remote.list("/v1/targets?limit=1000", "targets")? {
        if is_json {
            writeln!(io::stdout(), "{target}")?;
            continue;
        }
        let why = target["error"].as_str().or(target["reason"].as_str()).unwrap_or_default();
        rows.push(vec![
            cell(target, "name"),
            cell(target, "state"),
            joined(&target["delivers"]),
            cell(target, "url"),
            why.to_owned(),
        ]);
    }
    if !is_json {
        print(&mut io::stdout().lock(), &["NAME", "STATE", "QUEUES", "URL", "WHY"], &rows)?;
    }
    Ok(())
}

/// The texts of a list.
fn joined(list: &Value) -> String {
    let texts: Vec<&str> = list.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if texts.is_empty() { "-".to_owned() } else { texts.join(", ") }
}

fn tell_target(target: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for name in ["name", "state", "reason", "since", "error"] {
        if !target[name].is_null() {
            writeln!(out, "{name:<16}{}", cell(target, name))?;
        }
    }
    writeln!(out, "{:<16}{}", "queues", joined(&target["delivers"]))?;
    for name in ["url", "method", "timeout_ms", "concurrency", "max_attempts"] {
        if !target[name].is_null() {
            writeln!(out, "{name:<16}{}", cell(target, name))?;
        }
    }
    for name in ["headers", "secrets"] {
        writeln!(out, "{name:<16}{}", joined(&target[name]))?;
    }
    for (name, count) in target["counts"].as_object().into_iter().flatten() {
        writeln!(out, "{name:<16}{count}")?;
    }
    Ok(())
}

fn tell_test(answer: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for name in ["at", "class", "ms", "webhook_id", "answer"] {
        writeln!(out, "{name:<16}{}", cell(answer, name))?;
    }
    Ok(())
}
