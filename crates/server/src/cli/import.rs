//! `duewheel import`: the command around [`duewheel_import`].

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use duewheel_import::{ImportError, ImportPlan};

use super::remote::Remote;
use super::table::{self, plain};
use super::{ClientCommand, CommandFailure, ServerArgs};
use crate::span::TimeSpan;

#[derive(Args, Debug)]
#[command(
    after_help = "A job leaves the source when its copy is durable here; interrupt it when you like, and run it \
again within a day. Due times, priorities, TTR and the order of buried jobs are kept; jobs get new ids. Jobs that \
workers have are left to them.\n\nExit codes: 0 all moved, 1 failed, or jobs are left in the source (workers have them, or they were refused), \
2 used wrongly.\n\ndocs/import.md tells how to move step by step."
)]
pub(super) struct ImportArgs {
    /// The running beanstalkd (1.10 or later)
    #[arg(long, value_name = "HOST:PORT|unix:PATH")]
    beanstalk: String,
    /// Only this tube; may be given several times
    #[arg(long = "tube", value_name = "T")]
    tubes: Vec<String>,
    /// Prefix of the queues' names, in front of each tube's name
    #[arg(long, value_name = "P", default_value = "")]
    prefix: String,
    /// Leave all jobs in the source, untouched. Move them later only after purging the copies: both would run
    #[arg(long)]
    copy: bool,
    /// How long to wait for jobs that workers have reserved, such as 30s, 10m
    #[arg(long, value_name = "TIME", default_value = "0s")]
    wait: String,
    #[command(flatten)]
    server: ServerArgs,
}

impl ClientCommand for ImportArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        let wait: TimeSpan =
            self.wait.parse().map_err(|what| CommandFailure::Usage(format!("--wait: {what}")))?;
        if let Some(bad) = self.tubes.iter().find(|tube| !duewheel_import::is_name(tube)) {
            return Err(CommandFailure::Usage(format!("--tube {bad:?}: no tube can have this name")));
        }
        let remote = Remote::new(&self.server)?;
        let plan = ImportPlan {
            beanstalk: self.beanstalk,
            tubes: self.tubes.into_iter().collect(),
            prefix: self.prefix,
            copies: self.copy,
            wait: Duration::from_millis(wait.0),
        };
        let summary = duewheel_import::run(plan, remote, &self.server.server)?;
        let mut out = io::stdout().lock();
        if self.server.json {
            writeln!(out, "{}", summary.json)?;
        } else {
            if !summary.rows.is_empty() {
                let head = ["TUBE", "READY", "DELAYED", "BURIED", "HELD", "REFUSED"];
                table::print(&mut out, &head, &summary.rows)?;
            }
            for line in &summary.lines {
                writeln!(out, "{line}")?;
            }
        }
        for line in &summary.refusals {
            eprintln!("{}", plain(line));
        }
        if summary.left.is_empty() { Ok(()) } else { Err(CommandFailure::Failed(summary.left.join("; "))) }
    }
}

impl From<ImportError> for CommandFailure {
    fn from(error: ImportError) -> Self {
        match error {
            ImportError::Usage(what) => CommandFailure::Usage(what),
            ImportError::Failed(what) => CommandFailure::Failed(what),
        }
    }
}
