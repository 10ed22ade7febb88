//! `duewheel backup DEST`.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::remote::{Remote, Trouble};
use super::table::cell;
use super::{Failure, Server};

/// Copying takes as long as it takes; a server that has gone is noticed by its connection.
const LONG: Duration = Duration::from_secs(7 * 86_400);
const OWNER_ONLY: u32 = 0o700;

#[derive(Args, Debug)]
pub(super) struct Backup {
    /// Where the copy goes, on the server's machine: a folder that is empty and the server's user's alone (mode 0700), or not
    /// there; then it is made
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
        let copied = ask(&remote, dest)?;
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

/// Asks for the copy. A server without `--backup-root` makes no folder where others say, so the folder is made here, with the rights of
/// the user who asks.
fn ask(remote: &Remote, dest: &str) -> Result<Value, Failure> {
    let backup = || remote.post_waiting("/v1/backup", &json!({ "dest": dest }), LONG);
    let refused = match backup() {
        Err(Trouble::Refused(refused)) if refused.field.as_deref() == Some("dest") => refused,
        answer => return Ok(answer?),
    };
    let Ok(made) = Made::folder(Path::new(dest)) else { return Err(Trouble::Refused(refused).into()) };
    let copied = backup()?;
    made.keep();
    Ok(copied)
}

/// Folders that are gone again unless they are kept.
struct Made(Vec<PathBuf>);

impl Made {
    /// A folder for its owner alone, and those around it that are missing.
    ///
    /// # Errors
    /// It is there, or cannot be made.
    fn folder(path: &Path) -> io::Result<Made> {
        let is_missing = |path: &&Path| path.symlink_metadata().is_err();
        let mut missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
        if missing.is_empty() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        missing.reverse();
        let mut made = Made(Vec::new());
        for folder in missing {
            DirBuilder::new().mode(OWNER_ONLY).create(folder)?;
            made.0.push(folder.to_owned());
        }
        Ok(made)
    }

    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for folder in self.0.iter().rev() {
            // What has been put into it meanwhile stays.
            let _ = fs::remove_dir(folder);
        }
    }
}
