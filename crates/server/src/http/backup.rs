//! A copy of the data folder, made by the server on its own machine.

use std::path::Path;
use std::sync::atomic::Ordering;

use axum::http::StatusCode;
use duewheel::{BackupError, BackupReport, Destination};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::call::Call;
use super::strict::{self, Text};
use super::{Answer, reply};
use crate::error::{ErrorCode, Problem};

/// The destination of a copy of the data folder.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Backup")]
pub(crate) struct BackupRequest<'a> {
    /// A path on the server's machine: an absolute path of an empty folder of the server's user; or, with
    /// `--backup-root`, a path below that folder.
    #[serde(borrow)]
    dest: Text<'a>,
}

pub(crate) async fn backup(mut call: Call) -> Answer {
    let dest = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        strict::parse::<BackupRequest<'_>>(&bytes)?.dest.0.into_owned()
    };
    let dest = &*dest;
    let destination = destination(dest, call.app.limits.backup_root.as_deref())?;
    let copied = call.app.wheel.backup_into(destination).await.map_err(|error| {
        let draining = call.app.draining.load(Ordering::Relaxed);
        match error {
            BackupError::Closed if draining => Problem::new(ErrorCode::Draining, error.to_string()),
            error => Problem::from_backup(&error),
        }
    })?;
    let made = call.app.limits.backup_root.as_deref().map_or_else(|| dest.into(), |root| root.join(dest));
    let dest = made.to_string_lossy();
    tracing::info!(%dest, files = copied.files, bytes = copied.bytes, "backup made");
    let BackupReport { files, bytes, linked, last } = copied;
    Ok(reply(StatusCode::OK, &BackedUpAnswer { dest: &dest, files, bytes, linked, last_lsn: last.0 }))
}

/// A complete copy of the data folder.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "BackedUp")]
pub(crate) struct BackedUpAnswer<'a> {
    pub(super) dest: &'a str,
    /// Files of the copy.
    pub(super) files: u64,
    /// Bytes in them.
    pub(super) bytes: u64,
    /// Files that are hard links of the server's own: they take no space as long as the server has them, too.
    pub(super) linked: u64,
    /// The last record in the copy.
    pub(super) last_lsn: u64,
}

/// A client names the destination, and the server writes with rights that the client may not have. So the server
/// accepts a folder that its own user has prepared, or creates one below the root of all backups.
fn destination(dest: &str, root: Option<&Path>) -> Result<Destination, Problem> {
    if dest.contains('\0') {
        return Err(Problem::field("dest", "must not have a zero byte in it"));
    }
    let path = Path::new(dest);
    match root {
        // Clients do not know the server's working directory.
        None if !path.is_absolute() => {
            Err(Problem::field("dest", "must be an absolute path, on the machine of the server"))
        }
        None => Ok(Destination::Prepared(path.to_owned())),
        Some(root) => {
            let name = path.strip_prefix(root).unwrap_or(path);
            Ok(Destination::Below { root: root.to_owned(), name: name.to_owned() })
        }
    }
}
