//! `duewheel clock advance TIME`: for tests against a server with `--virtual-clock`.

use std::io::{self, Write};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;

use super::invocation::print_json;
use super::remote::Remote;
use super::table::cell;
use super::{ClientCommand, CommandFailure, ServerArgs, when};
use crate::span::TimeSpan;

/// How long the events on the way may take.
const EVENTS: Duration = Duration::from_secs(600);

#[derive(Args, Debug)]
pub(super) struct ClockArgs {
    #[command(subcommand)]
    command: ClockCommand,
}

#[derive(Debug, Subcommand)]
enum ClockCommand {
    /// Let time pass at once
    Advance(AdvanceArgs),
}

#[derive(Args, Debug)]
struct AdvanceArgs {
    /// How much
    #[arg(value_name = "TIME", value_parser = when::span)]
    by: TimeSpan,
    #[command(flatten)]
    server: ServerArgs,
}

impl ClientCommand for ClockArgs {
    fn server(&self) -> &ServerArgs {
        let ClockCommand::Advance(args) = &self.command;
        &args.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        let ClockCommand::Advance(args) = self.command;
        let answer = Remote::new(&args.server)?.post_waiting(
            "/v1/clock/advance",
            &json!({"by_ms": args.by.0}),
            EVENTS,
        )?;
        let mut out = io::stdout().lock();
        if args.server.json {
            print_json(&mut out, &answer)?;
        } else {
            let now = cell(&answer, "now");
            let here = when::calendar(&now).map(|here| format!("{here} ")).unwrap_or_default();
            writeln!(out, "it is {here}for the server ({now})")?;
        }
        Ok(())
    }
}
