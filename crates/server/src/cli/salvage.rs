//! `duewheel salvage SRC DEST`, and `duewheel salvage --store URL DEST`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use duewheel::core::ShardId;
use duewheel::core::store::StoreError;
use duewheel::{Salvaged, salvage, salvage_shards};
use serde_json::json;

use super::CommandFailure;
use super::table::counted;
use crate::config::{Options, StoreChoice};
use crate::stored::{self, StoredShards};

#[derive(Args, Debug)]
pub(super) struct SalvageArgs {
    /// The damaged data folder, which no server may have open and which is never written to. With --store redis://… or
    /// postgres://… it is left out: all shards there are read, which no node may own
    #[arg(value_name = "[SRC] DEST")]
    first: PathBuf,
    /// The new data folder, which must not exist
    #[arg(value_name = "DEST", conflicts_with_all = ["store", "config"], hide = true)]
    second: Option<PathBuf>,
    /// Print the result as JSON, and an error as one JSON object on standard error
    #[arg(long)]
    pub(super) json: bool,
    /// The TOML file of `serve`, for its store; flags and environment take precedence
    #[arg(long, env = "DUEWHEEL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

impl SalvageArgs {
    pub(super) fn run(self) -> Result<(), CommandFailure> {
        let json = self.json;
        let (src, dest, salvaged) = self.salvaged()?;
        let report = salvaged.report;
        let mut out = io::stdout().lock();
        if json {
            let damage: Vec<String> = report.damage.iter().map(ToString::to_string).collect();
            let losses: Vec<_> = report
                .losses
                .iter()
                .map(|loss| json!({ "kind": loss.as_str(), "what": loss.to_string() }))
                .collect();
            let result = json!({
                "data": dest.to_string_lossy(), "messages": report.pending,
                "kept": report.messages.saturating_sub(report.pending), "answers": report.answers,
                "tokens_ended": salvaged.tokens_ended, "damage": damage, "losses": losses,
            });
            writeln!(out, "{result}")?;
        } else {
            for problem in &report.damage {
                writeln!(out, "damaged: {problem}")?;
            }
            for loss in &report.losses {
                writeln!(out, "lost: {loss}")?;
            }
            write!(out, "{} salvaged", counted(report.pending, "message"))?;
            match report.messages.saturating_sub(report.pending) {
                0 => writeln!(out)?,
                kept => writeln!(out, ", and {} kept beside them", counted(kept, "record"))?,
            }
            if salvaged.tokens_ended > 0 {
                writeln!(
                    out,
                    "{} of the original no longer accepted",
                    counted(salvaged.tokens_ended, "lease token")
                )?;
            }
        }
        match report.losses.len() {
            0 => Ok(()),
            n => {
                let dest = dest.display();
                Err(CommandFailure::Failed(format!("{dest} is complete, but for {n} losses of {src}")))
            }
        }
    }

    /// Salvages the source; returns its name, the folder that was made, and the result.
    fn salvaged(self) -> Result<(String, PathBuf, Salvaged), CommandFailure> {
        match (self.first, self.second) {
            (src, Some(dest)) => {
                let salvaged = salvage(&src, &dest).map_err(CommandFailure::failed)?;
                Ok((src.display().to_string(), dest, salvaged))
            }
            (dest, None) => {
                let file = self.config.as_deref().map(Options::from_file).transpose()?;
                let settings = self.options.over(file.unwrap_or_default()).settings()?;
                if matches!(settings.store, StoreChoice::Log { .. }) {
                    let what =
                        "give SRC, the damaged data folder, and DEST, the new one; or --store URL and DEST";
                    return Err(CommandFailure::Usage(what.to_owned()));
                }
                let shards = stored::open(&settings)?;
                let salvaged = salvage_stored(&shards, &dest)
                    .map_err(|error| CommandFailure::Failed(format!("cannot salvage the store: {error}")))?;
                Ok(("the store".to_owned(), dest, salvaged))
            }
        }
    }
}

/// Salvages all shards of a store on a server.
fn salvage_stored(shards: &StoredShards, dest: &Path) -> Result<Salvaged, StoreError> {
    shards.unowned()?;
    let disks =
        (0..shards.count()).map(|shard| shards.disk(ShardId(shard))).collect::<Result<Vec<_>, _>>()?;
    salvage_shards(&disks, dest)
}
