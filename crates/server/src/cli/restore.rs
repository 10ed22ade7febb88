//! `duewheel restore SRC DATA-DIR`, and `duewheel restore SRC --store URL`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use duewheel::{Restored, restore};
use serde_json::{Value, json};

use super::CommandFailure;
use super::table::counted;
use crate::config::Options;
use crate::restoring::{restore_to, target_of};

#[derive(Args, Debug)]
pub(super) struct RestoreArgs {
    /// The copy, made by `duewheel backup`
    #[arg(value_name = "SRC")]
    src: PathBuf,
    /// The new data folder: empty, or missing. Without it --store redis://… or postgres://… names the store to restore
    /// to, which must be empty: it gets as many shards as the copy has
    #[arg(value_name = "DATA-DIR", conflicts_with_all = ["store", "config"])]
    folder: Option<PathBuf>,
    /// Print the result as JSON, and an error as one JSON object on standard error
    #[arg(long)]
    pub(super) json: bool,
    /// The TOML file of `serve`, for its store; flags and environment take precedence
    #[arg(long, env = "DUEWHEEL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

impl RestoreArgs {
    pub(super) fn run(self) -> Result<(), CommandFailure> {
        let json = self.json;
        let (restored, place) = self.restored()?;
        let Restored { messages, tokens_ended, files, bytes, records } = restored;
        let mut out = io::stdout().lock();
        if json {
            let mut result = json!({
                "messages": messages, "tokens_ended": tokens_ended,
                "files": files, "bytes": bytes, "records": records,
            });
            let (name, value) = place;
            result[name] = value;
            writeln!(out, "{result}")?;
            return Ok(());
        }
        let (messages, files) = (counted(messages, "message"), counted(files, "file"));
        writeln!(out, "{messages} pending, restored from {files}, {bytes} bytes")?;
        if tokens_ended > 0 {
            writeln!(out, "{} of the original no longer accepted", counted(tokens_ended, "lease token"))?;
        }
        Ok(())
    }

    /// The result, and what the JSON says of the place: the folder, or the number of shards of the store.
    fn restored(self) -> Result<(Restored, (&'static str, Value)), CommandFailure> {
        if let Some(data) = self.folder {
            let restored = restore(&self.src, &data).map_err(CommandFailure::failed)?;
            return Ok((restored, ("data", json!(data.to_string_lossy()))));
        }
        let file = self.config.as_deref().map(Options::from_file).transpose()?;
        let settings = self.options.over(file.unwrap_or_default()).settings()?;
        let Some(store) = target_of(&settings)? else {
            let what = "give DATA-DIR, the new data folder; or --store redis://… or postgres://…";
            return Err(CommandFailure::Usage(what.to_owned()));
        };
        let (restored, shards) = restore_to(&*store, &self.src)
            .map_err(|error| CommandFailure::Failed(format!("cannot restore to the store: {error}")))?;
        Ok((restored, ("shards", json!(shards))))
    }
}
