//! `duewheel restore SRC DATA-DIR`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use duewheel::{Restored, restore};
use serde_json::json;

use super::CommandFailure;
use super::table::counted;

#[derive(Args, Debug)]
pub(super) struct RestoreArgs {
    /// The copy, made by `duewheel backup`
    #[arg(value_name = "SRC")]
    src: PathBuf,
    /// The new data folder: empty, or missing
    #[arg(value_name = "DATA-DIR")]
    data: PathBuf,
    /// Print the result as JSON, and an error as one JSON object on standard error
    #[arg(long)]
    pub(super) json: bool,
}

impl RestoreArgs {
    pub(super) fn run(self) -> Result<(), CommandFailure> {
        let restored = restore(&self.src, &self.data).map_err(CommandFailure::failed)?;
        let Restored { messages, tokens_ended, files, bytes, records } = restored;
        let mut out = io::stdout().lock();
        if self.json {
            let data = self.data.to_string_lossy();
            let restored = json!({
                "data": data, "messages": messages, "tokens_ended": tokens_ended,
                "files": files, "bytes": bytes, "records": records,
            });
            writeln!(out, "{restored}")?;
            return Ok(());
        }
        let (messages, files) = (counted(messages, "message"), counted(files, "file"));
        writeln!(out, "{messages} pending, restored from {files}, {bytes} bytes")?;
        if tokens_ended > 0 {
            writeln!(out, "{} of the original no longer accepted", counted(tokens_ended, "lease token"))?;
        }
        Ok(())
    }
}
