//! `duewheel store init`.

use std::io::{Write as _, stdout};
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{CommandEnd, CommandFailure};
use crate::config::{Options, StoreChoice};
use crate::store::init_postgres;

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

impl StoreArgs {
    pub(super) fn run(self) -> CommandEnd {
        match self.command {
            StoreCommand::Init(args) => args.run().into(),
        }
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
