//! `duewheel cluster reset`.

use std::io::{Write as _, stdout};
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Failure;
use crate::config::{Options, StoreChoice};
use crate::store;

#[derive(Args, Debug)]
pub(super) struct Cluster {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// Give up what Redis has lost: make the shards that are not there, and keep those that are. In an empty Redis it
    /// makes a new cluster. No id is given again. All nodes must be stopped
    Reset(Box<Reset>),
}

/// The options of `serve` that say where Redis is; the others are not used.
#[derive(Args, Debug)]
struct Reset {
    /// Shards that are not there are given up for good
    #[arg(long)]
    yes: bool,
    /// The TOML file of `serve`; flags and environment win over it
    #[arg(long, env = "DUEWHEEL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

impl Cluster {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.command {
            ClusterCommand::Reset(args) => args.run(),
        }
    }
}

impl Reset {
    fn run(self) -> Result<(), Failure> {
        let file = self.config.as_deref().map(Options::from_file).transpose()?;
        let settings = self.options.over(file.unwrap_or_default()).settings()?;
        let StoreChoice::Redis(redis) = &settings.store else {
            return Err(Failure::Usage(
                "cluster reset is for --store redis://… and redis-cluster://…".to_owned(),
            ));
        };
        if !self.yes {
            let what =
                "cluster reset gives up what Redis has lost; say --yes if its data cannot be given back";
            return Err(Failure::Usage(what.to_owned()));
        }
        let done = store::reset(redis).map_err(Failure::failed)?;
        writeln!(stdout(), "{done}")?;
        Ok(())
    }
}
