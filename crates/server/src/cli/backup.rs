//! `duewheel backup DEST`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::remote::Remote;
use super::table::cell;
use super::{Failure, Server};

/// Copying takes as long as it takes; a server that has gone is noticed by its connection.
const LONG: Duration = Duration::from_secs(7 * 86_400);

#[derive(Args, Debug)]
pub(super) struct Backup {
    /// Where the copy goes, on the server's machine: a folder that is empty, or not there
    #[arg(value_name = "DEST")]
    dest: PathBuf,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

impl Backup {
    pub(super) fn run(self) -> Result<(), Failure> {
        let usage = |what: &str| Failure::Usage(format!("DEST {}: {what}", self.dest.display()));
        let dest = std::path::absolute(&self.dest).map_err(|error| usage(&error.to_string()))?;
        let dest = dest.to_str().ok_or_else(|| usage("is not UTF-8"))?;
        let remote = Remote::new(&self.server)?;
        let copied = remote.post_waiting("/v1/backup", &json!({ "dest": dest }), LONG)?;
        let mut out = io::stdout().lock();
        if self.json {
            writeln!(out, "{copied}")?;
            return Ok(());
        }
        let (files, bytes, linked) =
            (cell(&copied, "files"), cell(&copied, "bytes"), cell(&copied, "linked"));
        let server = &self.server.server;
        write!(out, "{files} files, {bytes} bytes without the unused space of journal segments")?;
        if linked != "0" {
            write!(out, "; {linked} of the files are linked, not copied")?;
        }
        writeln!(out)?;
        writeln!(out, "they are in {} on the machine of {server}", cell(&copied, "dest"))?;
        Ok(())
    }
}
