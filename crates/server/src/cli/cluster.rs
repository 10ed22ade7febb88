//! `duewheel cluster show`, `reset` and `rotate-secret`.

use std::io::{Write as _, stdout};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use duewheel_store_redis::Rotation;

use super::remote::Remote;
use super::table::{self, cell};
use super::{ClientCommand, CommandEnd, CommandFailure, ServerArgs, client};
use crate::config::{Options, RedisSettings, StoreChoice};
use crate::store;

#[derive(Args, Debug)]
pub(super) struct ClusterArgs {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// Show the nodes, and which of them owns which shards
    Show(ShowArgs),
    /// Give up data that Redis has lost: create the missing shards, and keep the others. In an empty Redis it creates a
    /// new cluster. No id is given again. All nodes must be stopped
    Reset(Box<ResetArgs>),
    /// Replace the secret by which nodes authenticate each other, while they work. Takes two leases of a shard
    /// (--shard-lease). Run an interrupted rotation again to complete it, and once more for a new secret
    RotateSecret(Box<RotateSecretArgs>),
}

/// The options of `serve` for the address of Redis; the others are not used.
#[derive(Args, Debug)]
struct RotateSecretArgs {
    /// The TOML file of `serve`; flags and environment take precedence
    #[arg(long, env = "DUEWHEEL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

/// The options of `serve` for the address of Redis; the others are not used.
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
        let redis = redis_of(self.config, self.options, "reset")?;
        if !self.yes {
            let what =
                "cluster reset gives up what Redis has lost; say --yes if its data cannot be given back";
            return Err(CommandFailure::Usage(what.to_owned()));
        }
        let done = store::reset(&redis).map_err(CommandFailure::failed)?;
        writeln!(stdout(), "{done}")?;
        Ok(())
    }
}

impl RotateSecretArgs {
    fn run(self) -> Result<(), CommandFailure> {
        let redis = redis_of(self.config, self.options, "rotate-secret")?;
        let say = |rotation: Rotation| {
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
        store::rotate_secret(&redis, say).map_err(CommandFailure::failed)?;
        writeln!(stdout(), "done: the former secret is no longer valid")?;
        Ok(())
    }
}

/// The settings of Redis, for a command of this name.
fn redis_of(
    config: Option<PathBuf>,
    options: Options,
    command: &str,
) -> Result<Box<RedisSettings>, CommandFailure> {
    let file = config.as_deref().map(Options::from_file).transpose()?;
    match options.over(file.unwrap_or_default()).settings()?.store {
        StoreChoice::Redis(redis) => Ok(redis),
        StoreChoice::Log { .. } => {
            let what = format!("cluster {command} is for --store redis://… and redis-cluster://…");
            Err(CommandFailure::Usage(what))
        }
    }
}
