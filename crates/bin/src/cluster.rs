//! `duewheel cluster show`, `reset` and `rotate-secret`, `store init` and `store backup`.

use std::io::{Write as _, stdout};
use std::path::PathBuf;

use clap::Args;
use duewheel_cli::table::counted;
use duewheel_cli::{ClientArgs, CommandFailure, RunCommand, ShowClusterArgs, commands, print_answer};
use duewheel_server::config::StoreChoice;
use duewheel_server::store::{give_up_lost, init_postgres, reset, rotate_secret};
use duewheel_server::stored;
use duewheel_store_log::copy_shards;
use duewheel_store_medium::SecretRotation;
use serde_json::json;

use crate::options::{StoreOptions, failure};

commands! {
    pub(crate) enum ClusterCommand {
        /// Show the nodes, and which of them owns which shards
        Show(ClientArgs<ShowClusterArgs>),
        /// Give up data that the store has lost. On Redis: create the missing shards, and keep the others; in an empty Redis it
        /// creates a new cluster, and all nodes must be stopped. On PostgreSQL: open the shards again that are refused because
        /// they have lost changes or files. No id is given again
        Reset(ResetArgs),
        /// Replace the secret by which nodes authenticate each other, while they work. Takes two leases of a shard
        /// (--shard-lease). Run an interrupted rotation again to complete it, and once more for a new secret
        RotateSecret(RotateSecretArgs),
    }
}

#[derive(Args, Debug)]
pub(crate) struct RotateSecretArgs {
    #[command(flatten)]
    store: StoreOptions,
}

#[derive(Args, Debug)]
pub(crate) struct ResetArgs {
    /// Confirm that missing shards are given up permanently
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    store: StoreOptions,
}

impl RunCommand for ResetArgs {
    fn run(self) -> Result<(), CommandFailure> {
        let store = shared_store(self.store, "reset")?;
        if !self.yes {
            let what =
                "cluster reset gives up what the store has lost; say --yes if its data cannot be given back";
            return Err(CommandFailure::Usage(what.to_owned()));
        }
        let done = match store {
            StoreChoice::Redis(redis) => reset(&redis).map_err(failure)?.to_string(),
            StoreChoice::Postgres(postgres) => match &*give_up_lost(&postgres).map_err(failure)? {
                [] => "no shard is refused for what it has lost".to_owned(),
                shards => {
                    format!("shards that are opened without what they have lost: {}", shards.join(", "))
                }
            },
            StoreChoice::Log { .. } => return Ok(()),
        };
        writeln!(stdout(), "{done}")?;
        Ok(())
    }
}

impl RunCommand for RotateSecretArgs {
    fn run(self) -> Result<(), CommandFailure> {
        let store = shared_store(self.store, "rotate-secret")?;
        let say = |rotation: SecretRotation| {
            let wait = rotation.wait.as_secs_f32();
            let which = if rotation.is_new {
                "a new secret is valid"
            } else {
                "the new secret of an interrupted rotation is valid"
            };
            // The reader of the output may have closed it; the rotation continues.
            let _ = writeln!(
                stdout(),
                "{which}; the former one stays valid for {wait:.1} s, until all nodes know"
            );
        };
        rotate_secret(&store, say).map_err(failure)?;
        writeln!(stdout(), "done: the former secret is no longer valid")?;
        Ok(())
    }
}

/// The store that nodes share, for a command of this name.
fn shared_store(options: StoreOptions, command: &str) -> Result<StoreChoice, CommandFailure> {
    let store = options.settings()?.store;
    if store.is_log() {
        let what = format!("cluster {command} is for --store redis://…, redis-cluster://… and postgres://…");
        return Err(CommandFailure::Usage(what));
    }
    Ok(store)
}

commands! {
    pub(crate) enum StoreCommand {
        /// Make the tables in PostgreSQL, or print the statements that make them. They may be repeated. A server makes missing
        /// tables itself if its user may
        Init(InitArgs),
        /// Copy all shards on Redis or PostgreSQL into a data folder, for `duewheel restore`. On PostgreSQL this is one moment of
        /// all shards, while nodes go on; on Redis all nodes must be stopped. Of a data folder `duewheel backup` makes a copy
        Backup(StoreBackupArgs),
    }
}

#[derive(Args, Debug)]
pub(crate) struct InitArgs {
    /// Print the statements instead of running them
    #[arg(long)]
    print: bool,
    /// Print also the statements that give this role the rights that the server needs, and no more
    #[arg(long, value_name = "NAME", requires = "print")]
    role: Option<String>,
    #[command(flatten)]
    store: StoreOptions,
}

#[derive(Args, Debug)]
pub(crate) struct StoreBackupArgs {
    /// The copy: an empty folder, or a missing one
    #[arg(value_name = "DEST")]
    dest: PathBuf,
    /// Print the result as JSON, and an error as one JSON object on standard error
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreOptions,
}

impl RunCommand for StoreBackupArgs {
    fn run(self) -> Result<(), CommandFailure> {
        let Some(shards) = stored::to_copy(&self.store.settings()?).map_err(failure)? else {
            let what = "give --store redis://… or postgres://…; `duewheel backup` copies the data folder of a server";
            return Err(CommandFailure::Usage(what.to_owned()));
        };
        let copied = copy_shards(&shards.disks, &self.dest, || shards.still_unchanged());
        let copied = copied.map_err(CommandFailure::failed)?;
        let (files, bytes) = (copied.files, copied.bytes);
        let answer = json!({
            "dest": self.dest.to_string_lossy(), "messages": copied.pending, "files": files, "bytes": bytes,
        });
        print_answer(self.json, &answer, |out| {
            let (messages, files) = (counted(copied.pending, "message"), counted(files, "file"));
            writeln!(out, "{messages} pending, in {files}, {bytes} bytes: {}", self.dest.display())
        })
    }
}

impl RunCommand for InitArgs {
    fn run(self) -> Result<(), CommandFailure> {
        let mut options = self.store.options()?;
        if self.print && options.store.is_none() {
            // The statements need no server.
            options.store = Some("postgres://localhost/postgres".into());
        }
        let StoreChoice::Postgres(postgres) = options.settings().map_err(failure)?.store else {
            let what = "store init is for --store postgres://…; the other stores need no preparation";
            return Err(CommandFailure::Usage(what.into()));
        };
        if !self.print {
            init_postgres(&postgres).map_err(failure)?;
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
