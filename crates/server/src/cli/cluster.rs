//! `duewheel cluster show`, `reset` and `rotate-secret`.

use std::io::{Write as _, stdout};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use duewheel_store_medium::SecretRotation;

use super::remote::Remote;
use super::table::{self, cell};
use super::{ClientCommand, CommandEnd, CommandFailure, ServerArgs, client};
use crate::config::{Options, StoreChoice};
use crate::store::{give_up_lost, reset, rotate_secret};

#[derive(Args, Debug)]
pub(super) struct ClusterArgs {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// Show the nodes, and which of them owns which shards
    Show(ShowArgs),
    /// Give up data that the store has lost. On Redis: create the missing shards, and keep the others; in an empty Redis it
    /// creates a new cluster, and all nodes must be stopped. On PostgreSQL: open the shards again that are refused because
    /// they have lost changes or files. No id is given again
    Reset(Box<ResetArgs>),
    /// Replace the secret by which nodes authenticate each other, while they work. Takes two leases of a shard
    /// (--shard-lease). Run an interrupted rotation again to complete it, and once more for a new secret
    RotateSecret(Box<RotateSecretArgs>),
}

/// The options of `serve` for the address of the store; the others are not used.
#[derive(Args, Debug)]
struct RotateSecretArgs {
    /// The TOML file of `serve`; flags and environment take precedence
    #[arg(long, env = "DUEWHEEL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

/// The options of `serve` for the address of the store; the others are not used.
#[derive(Args, Debug)]
struct ResetArgs {
    /// Confirm that missing shards are given up permanently
    #[arg(long)]
    yes: bool,
    /// The TOML file of `serve`; flags and environment take precedence
    #[arg(long, env = "DUEWHEEL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

#[derive(Args, Debug)]
struct ShowArgs {
    #[command(flatten)]
    server: ServerArgs,
}

impl ClusterArgs {
    pub(super) fn run(self) -> CommandEnd {
        match self.command {
            ClusterCommand::Show(args) => client(args),
            ClusterCommand::Reset(args) => args.run().into(),
            ClusterCommand::RotateSecret(args) => args.run().into(),
        }
    }
}

impl ClientCommand for ShowArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        let cluster = Remote::new(&self.server)?.get("/v1/cluster")?;
        let mut out = stdout().lock();
        if self.server.json {
            writeln!(out, "{cluster}")?;
            return Ok(());
        }
        let rows = |list: &str, columns: &[&str]| -> Vec<Vec<String>> {
            let entries = cluster[list].as_array().into_iter().flatten();
            entries.map(|entry| columns.iter().map(|name| cell(entry, name)).collect()).collect()
        };
        table::print(
            &mut out,
            &["NODE", "ADDRESS", "SHARDS"],
            &rows("nodes", &["name", "advertise", "shards"]),
        )?;
        writeln!(out)?;
        let shards = rows("shards", &["shard", "owner", "wanted", "epoch", "unknown"]);
        table::print(&mut out, &["SHARD", "OWNER", "WANTED", "EPOCH", "UNKNOWN"], &shards)?;
        writeln!(
            out,
            "\nas {} saw it {} ms ago; shards without an owner: {}",
            cell(&cluster, "node"),
            cell(&cluster, "age_ms"),
            cell(&cluster, "shards_without_owner")
        )?;
        Ok(())
    }
}

impl ResetArgs {
    fn run(self) -> Result<(), CommandFailure> {
        let store = shared_store(self.config, self.options, "reset")?;
        if !self.yes {
            let what =
                "cluster reset gives up what the store has lost; say --yes if its data cannot be given back";
            return Err(CommandFailure::Usage(what.to_owned()));
        }
        let done = match store {
            StoreChoice::Redis(redis) => reset(&redis)?.to_string(),
            StoreChoice::Postgres(postgres) => match &*give_up_lost(&postgres)? {
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

impl RotateSecretArgs {
    fn run(self) -> Result<(), CommandFailure> {
        let store = shared_store(self.config, self.options, "rotate-secret")?;
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
        rotate_secret(&store, say)?;
        writeln!(stdout(), "done: the former secret is no longer valid")?;
        Ok(())
    }
}

/// The store that nodes share, for a command of this name.
fn shared_store(
    config: Option<PathBuf>,
    options: Options,
    command: &str,
) -> Result<StoreChoice, CommandFailure> {
    let file = config.as_deref().map(Options::from_file).transpose()?;
    let store = options.over(file.unwrap_or_default()).settings()?.store;
    if store.is_log() {
        let what = format!("cluster {command} is for --store redis://…, redis-cluster://… and postgres://…");
        return Err(CommandFailure::Usage(what));
    }
    Ok(store)
}
