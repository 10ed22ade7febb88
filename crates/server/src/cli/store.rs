//! `duewheel store init` and `store backup`.

use std::io::{Write as _, stdout};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use duewheel_store_log::{copy_shards, spoil};
use serde_json::json;

use super::table::counted;
use super::{CommandEnd, CommandFailure};
use crate::config::{Options, StoreChoice};
use crate::store::init_postgres;
use crate::stored;

#[derive(Args, Debug)]
pub(super) struct StoreArgs {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Debug, Subcommand)]
enum StoreCommand {
    /// Make the tables in PostgreSQL, or print the statements that make them. They may be repeated. A server makes missing
    /// tables itself if its user may
    Init(Box<InitArgs>),
    /// Copy all shards on Redis or PostgreSQL into a data folder, for `duewheel restore`. On PostgreSQL this is one moment of
    /// all shards, while nodes go on; on Redis all nodes must be stopped. Of a data folder `duewheel backup` makes a copy
    Backup(Box<StoreBackupArgs>),
}

/// The options of `serve` for the address of PostgreSQL; the others are not used.
#[derive(Args, Debug)]
struct InitArgs {
    /// Print the statements instead of running them
    #[arg(long)]
    print: bool,
    /// Print also the statements that give this role the rights that the server needs, and no more
    #[arg(long, value_name = "NAME", requires = "print")]
    role: Option<String>,
    /// The TOML file of `serve`; flags and environment take precedence
    #[arg(long, env = "DUEWHEEL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

/// The options of `serve` for the place of the store; the others are not used.
#[derive(Args, Debug)]
struct StoreBackupArgs {
    /// The copy: an empty folder, or a missing one
    #[arg(value_name = "DEST")]
    dest: PathBuf,
    /// Print the result as JSON, and an error as one JSON object on standard error
    #[arg(long)]
    json: bool,
    /// The TOML file of `serve`; flags and environment take precedence
    #[arg(long, env = "DUEWHEEL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

impl StoreArgs {
    pub(super) fn run(self) -> CommandEnd {
        match self.command {
            StoreCommand::Init(args) => args.run().into(),
            StoreCommand::Backup(args) => CommandEnd { json: args.json, result: args.run() },
        }
    }
}

impl StoreBackupArgs {
    fn run(self) -> Result<(), CommandFailure> {
        let file = self.config.as_deref().map(Options::from_file).transpose()?;
        let settings = self.options.over(file.unwrap_or_default()).settings()?;
        let Some(shards) = stored::to_copy(&settings)? else {
            let what = "give --store redis://… or postgres://…; `duewheel backup` copies the data folder of a server";
            return Err(CommandFailure::Usage(what.to_owned()));
        };
        let copied = copy_shards(&shards.disks, &self.dest).map_err(CommandFailure::failed)?;
        if let Err(changed) = shards.still_unchanged() {
            // If even that fails, the error above is reported.
            let _ = spoil(&self.dest);
            return Err(CommandFailure::failed(changed));
        }
        let mut out = stdout().lock();
        if self.json {
            let dest = self.dest.to_string_lossy();
            let (files, bytes) = (copied.files, copied.bytes);
            writeln!(
                out,
                "{}",
                json!({"dest": dest, "messages": copied.pending, "files": files, "bytes": bytes})
            )?;
            return Ok(());
        }
        let (messages, files) = (counted(copied.pending, "message"), counted(copied.files, "file"));
        writeln!(out, "{messages} pending, in {files}, {} bytes: {}", copied.bytes, self.dest.display())?;
        Ok(())
    }
}

impl InitArgs {
    fn run(self) -> Result<(), CommandFailure> {
        let file = self.config.as_deref().map(Options::from_file).transpose()?;
        let mut options = self.options.over(file.unwrap_or_default());
        if self.print && options.store.is_none() {
            // The statements need no server.
            options.store = Some("postgres://localhost/postgres".into());
        }
        let StoreChoice::Postgres(postgres) = options.settings()?.store else {
            let what = "store init is for --store postgres://…; the other stores need no preparation";
            return Err(CommandFailure::Usage(what.into()));
        };
        if !self.print {
            init_postgres(&postgres)?;
            writeln!(stdout(), "the tables are there, in schema {}", postgres.schema)?;
            return Ok(());
        }
        let role = self.role.as_ref().map(|role| {
            let bad = |error| CommandFailure::Usage(format!("--role: {error}"));
            duewheel_store_postgres::role(&postgres.schema, role).map_err(bad)
        });
        let role = role.transpose()?;
        let mut out = stdout().lock();
        write!(out, "{}", duewheel_store_postgres::schema(&postgres.schema))?;
        if let Some(role) = role {
            write!(out, "\n{role}")?;
        }
        Ok(())
    }
}
