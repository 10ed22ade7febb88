//! `duewheel import`: from a file of `duewheel export` ([`super::import_file`]), or from a running beanstalkd
//! ([`duewheel_import`]).

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use duewheel_import::{ImportError, ImportPlan};

use super::import_file::{self, FileOptions};
use super::invocation::print_json;
use super::remote::Remote;
use super::table::{self, plain};
use super::{ClientCommand, CommandFailure, ServerArgs, when};
use crate::span::TimeSpan;

#[derive(Args, Debug)]
#[command(
    after_help = "FILE: nothing is sent before the whole file was read and found right; standard input is sent as it \
arrives. When the command says that messages are here, they are durable. Import a file again whenever you are not sure \
that it was imported: within a day nothing doubles. Messages keep their due times and keys, and get new ids.\n\n\
--beanstalk: a job leaves the source when its copy is durable here; interrupt it when you like, and run it again within \
a day. Due times, priorities, TTR and the order of buried jobs are kept; jobs get new ids. Jobs that workers have are \
left to them.\n\nExit codes: 0 all is here, 1 failed, or messages were refused or are left in the source, 2 used wrongly, \
or the file is wrong, 3 a named queue is not in the file, 5 a server or the beanstalkd cannot be reached.\n\n\
docs/import.md tells how to move step by step."
)]
#[group(id = "source", required = true, args = ["file", "beanstalk"])]
pub(super) struct ImportArgs {
    /// A file that `duewheel export` has written; `-` is standard input
    #[arg(value_name = "FILE|-")]
    file: Option<PathBuf>,
    /// A running beanstalkd (1.10 or later), in place of a file
    #[arg(long, value_name = "HOST:PORT|unix:PATH", conflicts_with = "file")]
    beanstalk: Option<String>,
    /// Prefix of the queues' names here, in front of each queue's or tube's name
    #[arg(long, value_name = "P", default_value = "")]
    prefix: String,
    #[command(flatten)]
    of_file: FileOptions,
    #[command(flatten)]
    of_beanstalk: BeanstalkOptions,
    #[command(flatten)]
    server: ServerArgs,
}

/// Options of an import from beanstalkd.
#[derive(Args, Debug)]
#[command(next_help_heading = "From beanstalkd")]
struct BeanstalkOptions {
    /// Only this tube; may be given several times
    #[arg(long = "tube", value_name = "T", conflicts_with = "file")]
    tubes: Vec<String>,
    /// Leave all jobs in the source, untouched. Move them later only after purging the copies: both would run
    #[arg(long, conflicts_with = "file")]
    copy: bool,
    /// How long to wait for jobs that workers have reserved, such as 30s, 10m [default: 0s]
    #[arg(long, value_name = "TIME", conflicts_with = "file", value_parser = when::span)]
    wait: Option<TimeSpan>,
}

impl ClientCommand for ImportArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        match (&self.file, &self.beanstalk) {
            (Some(file), _) => {
                let remote = Remote::new(&self.server)?;
                import_file::run(file, remote, &self.prefix, &self.of_file, &self.server)
            }
            (None, Some(beanstalk)) => {
                let beanstalk = beanstalk.clone();
                self.move_jobs(beanstalk)
            }
            (None, None) => Err(CommandFailure::Usage("FILE or --beanstalk is missing".into())),
        }
    }
}

impl ImportArgs {
    fn move_jobs(self, beanstalk: String) -> Result<(), CommandFailure> {
        let BeanstalkOptions { tubes, copy, wait } = self.of_beanstalk;
        if let Some(bad) = tubes.iter().find(|tube| !duewheel_import::is_name(tube)) {
            return Err(CommandFailure::Usage(format!("--tube {bad:?}: no tube can have this name")));
        }
        let remote = Remote::new(&self.server)?;
        let plan = ImportPlan {
            beanstalk,
            tubes: tubes.into_iter().collect(),
            prefix: self.prefix,
            copies: copy,
            wait: wait.map_or(Duration::ZERO, Duration::from),
        };
        let summary = duewheel_import::run(plan, remote, &self.server.server)?;
        let mut out = io::stdout().lock();
        if self.server.json {
            print_json(&mut out, &summary.json)?;
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
            ImportError::Unreachable(what) => CommandFailure::Unreachable(what),
            ImportError::Api(trouble) => trouble.into(),
        }
    }
}
