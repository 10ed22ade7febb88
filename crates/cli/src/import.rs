//! `duewheel import`: from a file of `duewheel export` ([`super::import_file`]), or from a running beanstalkd
//! ([`super::import_jobs`]).

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::beanstalk_source::is_tube;
use super::failure::{CommandFailure, none_of};
use super::import_file::{self, FileOptions};
use super::import_jobs::{self, JobOptions};
use super::session::{ClientCommand, ClientSession};
use super::system_words::on_stderr;
use super::table::{self, counted, plain};
use super::when;
use duewheel_api::span::TimeSpan;

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
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        match (&self.file, &self.beanstalk) {
            (Some(file), _) => import_file::run(file, &self.prefix, &self.of_file, session),
            (None, Some(beanstalk)) => {
                let beanstalk = beanstalk.clone();
                self.move_jobs(&beanstalk, session)
            }
            (None, None) => Err(CommandFailure::Usage("FILE or --beanstalk is missing".into())),
        }
    }
}

impl ImportArgs {
    fn move_jobs(self, beanstalk: &str, session: &ClientSession) -> Result<(), CommandFailure> {
        let BeanstalkOptions { tubes, copy, wait } = self.of_beanstalk;
        if let Some(bad) = tubes.iter().find(|tube| !is_tube(tube)) {
            return Err(CommandFailure::Usage(format!("--tube {bad:?}: no tube can have this name")));
        }
        let options = JobOptions {
            tubes: tubes.into_iter().collect(),
            prefix: self.prefix,
            is_copy: copy,
            wait: wait.map_or(Duration::ZERO, Duration::from),
        };
        let report = import_jobs::run(beanstalk, &session.remote, options)?;
        session.print(&report.json(), |out| {
            let row = |(tube, jobs): (&String, &[u64; 5])| {
                std::iter::once(tube.clone()).chain(jobs.map(|n| n.to_string())).collect()
            };
            let rows: Vec<Vec<String>> = report.tubes.iter().map(row).collect();
            if !rows.is_empty() {
                table::print(out, &["TUBE", "READY", "DELAYED", "BURIED", "HELD", "REFUSED"], &rows)?;
            }
            let (verb, to) = (if copy { "copied" } else { "moved" }, &session.server);
            let (moved, left) = (counted(report.moved(), "job"), report.in_source);
            writeln!(out, "{moved} {verb} from {beanstalk} to {to}; {left} are in the source now")?;
            table::print_counts(
                out,
                &[
                    (report.before, "of them were there already, from an earlier run"),
                    (
                        report.left_to_workers,
                        "were taken by workers of the source while they were copied; the copies are cancelled",
                    ),
                    (
                        report.may_run_twice,
                        "of such copies had been handed out already: these jobs may run twice",
                    ),
                ],
            )
        })?;
        for line in report.refusals() {
            on_stderr(format_args!("duewheel: {}", plain(&line)));
        }
        let (held, refused) = (counted(report.held(), "job"), counted(report.refused.len() as u64, "job"));
        let missing = counted(report.not_found, "job");
        none_of([
            (
                report.held(),
                format!(
                    "workers have {held}: stop the workers or let them finish, and run it again, or say --wait 10m"
                ),
            ),
            (report.refused.len() as u64, format!("{refused} refused, and left in the source")),
            (
                report.not_found,
                format!(
                    "the source counts {missing} more than were found: \
                     run it again while no client puts or takes jobs"
                ),
            ),
        ])
    }
}
