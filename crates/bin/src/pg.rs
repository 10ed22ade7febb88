//! `duewheel pg install` and `status`: the outbox in a database of PostgreSQL.

use std::io::{Write as _, stdout};

use clap::Args;
use duewheel::core::WallMs;
use duewheel_api::rfc3339;
use duewheel_bridge::outbox::{OutboxError, OutboxSettings, install, install_sql, status};
use duewheel_cli::{CommandFailure, RunCommand, commands, print_answer};
use duewheel_server::config::{self, Options};
use serde_json::json;

use crate::options::{StoreOptions, failure};

commands! {
    pub(crate) enum PgCommand {
        /// Install the outbox in a database, or renew it; or print the statements that do. They may be repeated
        Install(InstallOutboxArgs),
        /// Show what waits in an outbox, and who drains it
        Status(OutboxStatusArgs),
    }
}

#[derive(Args, Debug)]
pub(crate) struct InstallOutboxArgs {
    /// The database: its name in the configuration ([[postgres]]), or its URL [default: the only one of the configuration]
    #[arg(long, value_name = "NAME|URL", hide_env_values = true)]
    database: Option<String>,
    /// Print the statements instead of running them
    #[arg(long)]
    print: bool,
    #[command(flatten)]
    store: StoreOptions,
}

#[derive(Args, Debug)]
pub(crate) struct OutboxStatusArgs {
    /// The database: its name in the configuration ([[postgres]]), or its URL [default: the only one of the configuration]
    #[arg(long, value_name = "NAME|URL", hide_env_values = true)]
    database: Option<String>,
    /// Print JSON, and an error as one JSON object on standard error
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreOptions,
}

impl RunCommand for InstallOutboxArgs {
    fn run(self) -> Result<(), CommandFailure> {
        let options = self.store.options()?;
        let found = if self.print { None } else { Some(database(&options, self.database.as_deref())?) };
        let max_body = options.settings().map_err(failure)?.policy.max_body;
        let Some(found) = found else {
            stdout().write_all(install_sql(max_body).as_bytes())?;
            return Ok(());
        };
        wait_for(install(found.options(), max_body))?;
        writeln!(stdout(), "the outbox is installed; GRANT duewheel_app TO the roles that may enqueue")?;
        Ok(())
    }
}

impl RunCommand for OutboxStatusArgs {
    fn run(self) -> Result<(), CommandFailure> {
        let found = database(&self.store.options()?, self.database.as_deref())?;
        let status = wait_for(status(found.options()))?;
        let since = status.since.and_then(|ms| u64::try_from(ms).ok()).map(|ms| rfc3339::string(WallMs(ms)));
        let answer = json!({
            "version": status.version, "waiting": status.waiting, "oldest_seconds": status.oldest_seconds,
            "rejected": status.rejected, "bytes": status.bytes, "drainer": status.drainer, "since": since,
        });
        print_answer(self.json, &answer, |out| {
            writeln!(out, "version   {}", status.version)?;
            writeln!(out, "waiting   {}", status.waiting)?;
            if let Some(age) = status.oldest_seconds {
                writeln!(out, "oldest    {age:.1} s")?;
            }
            writeln!(out, "rejected  {}", status.rejected)?;
            writeln!(out, "size      {} bytes", status.bytes)?;
            match (&status.drainer, &since) {
                (Some(node), Some(since)) => writeln!(out, "drainer   {node}, since {since}"),
                (_, _) => writeln!(out, "drainer   none so far"),
            }
        })
    }
}

/// The database that is named, or the only one of the configuration.
fn database(options: &Options, named: Option<&str>) -> Result<OutboxSettings, CommandFailure> {
    let tables = options.postgres.as_deref().unwrap_or_default();
    let named = match (named, tables) {
        (Some(named), _) => named,
        (None, [only]) => &only.name,
        (None, _) => {
            let what =
                "say which database: --database URL, or --config FILE with --database NAME of a [[postgres]]";
            return Err(CommandFailure::Usage(what.to_owned()));
        }
    };
    config::database(tables, named).map_err(failure)
}

fn wait_for<T>(work: impl Future<Output = Result<T, OutboxError>>) -> Result<T, CommandFailure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(work).map_err(CommandFailure::failed)
}
