//! `duewheel backup DEST`.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::remote::{ApiError, Remote};
use super::table::{cell, cell_counted};
use super::{ClientCommand, CommandFailure, ServerArgs};

/// The time limit of a copy: practically none, because the connection shows when the server is gone.
const LONG: Duration = Duration::from_secs(7 * 86_400);
const OWNER_ONLY: u32 = 0o700;

#[derive(Args, Debug)]
pub(super) struct BackupArgs {
    /// The destination folder, on the server's machine: empty, with mode 0700 and of the server's user, or missing;
    /// then it is created
    #[arg(value_name = "DEST")]
    dest: PathBuf,
    #[command(flatten)]
    server: ServerArgs,
}

impl ClientCommand for BackupArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        let usage = |what: &str| CommandFailure::Usage(format!("DEST {}: {what}", self.dest.display()));
        let dest = std::path::absolute(&self.dest).map_err(|error| usage(&error.to_string()))?;
        let dest = dest.to_str().ok_or_else(|| usage("is not UTF-8"))?;
        let remote = Remote::new(&self.server)?;
        let copied = ask(&remote, dest)?;
        let mut out = io::stdout().lock();
        if self.server.json {
            writeln!(out, "{copied}")?;
            return Ok(());
        }
        let (files, bytes, linked) =
            (cell_counted(&copied, "files", "file"), cell(&copied, "bytes"), cell(&copied, "linked"));
        let server = &self.server.server;
        write!(out, "{files}, {bytes} bytes without the unused space of journal segments")?;
        if linked != "0" {
            write!(out, "; {linked} of the files are linked, not copied")?;
        }
        writeln!(out)?;
        writeln!(out, "they are in {} on the machine of {server}", cell(&copied, "dest"))?;
        Ok(())
    }
}

/// Asks for the copy. A server without `--backup-root` creates no folder for a remote caller, so the folder is created
/// here, with the rights of the user.
fn ask(remote: &Remote, dest: &str) -> Result<Value, CommandFailure> {
    let backup = || remote.post_waiting("/v1/backup", &json!({ "dest": dest }), LONG);
    let refused = match backup() {
        Err(ApiError::Refused(refused)) if refused.field.as_deref() == Some("dest") => refused,
        answer => return Ok(answer?),
    };
    let Ok(made) = CreatedFolders::folder(Path::new(dest)) else {
        return Err(ApiError::Refused(refused).into());
    };
    let copied = backup()?;
    made.keep();
    Ok(copied)
}

/// Folders that are removed again unless they are kept.
struct CreatedFolders(Vec<PathBuf>);

impl CreatedFolders {
    /// Creates a folder for its owner alone, and the missing folders around it.
    ///
    /// # Errors
    /// The folder exists, or cannot be created.
    fn folder(path: &Path) -> io::Result<CreatedFolders> {
        let is_missing = |path: &&Path| path.symlink_metadata().is_err();
        let mut missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
        if missing.is_empty() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        missing.reverse();
        let mut made = CreatedFolders(Vec::new());
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

impl Drop for CreatedFolders {
    fn drop(&mut self) {
        for folder in self.0.iter().rev() {
            // A folder that is no longer empty stays, with its files.
            let _ = fs::remove_dir(folder);
        }
    }
}
