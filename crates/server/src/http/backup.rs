//! A copy of the data folder, made by the server on its own machine.

use std::path::Path;
use std::sync::atomic::Ordering;

use axum::http::StatusCode;
use duewheel::{BackupError, Destination};
use serde::Deserialize;

use super::call::Call;
use super::strict::{self, Text};
use super::{Answer, object};
use crate::error::{ErrorCode, Problem};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked<'a> {
    #[serde(borrow)]
    dest: Text<'a>,
}

pub(crate) async fn backup(mut call: Call) -> Answer {
    let dest = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        strict::parse::<Asked<'_>>(&bytes)?.dest.0.into_owned()
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
    Ok(object(StatusCode::OK, |out| {
        out.text("dest", &dest);
        out.number("files", copied.files);
        out.number("bytes", copied.bytes);
        out.number("linked", copied.linked);
        out.number("last_lsn", copied.last.0);
    }))
}

/// A client says where a copy goes, and the server writes with rights that the client may not have. So it takes a folder that its
/// own user has prepared, or makes one below the root of all backups.
fn destination(dest: &str, root: Option<&Path>) -> Result<Destination, Problem> {
    if dest.contains('\0') {
        return Err(Problem::field("dest", "must not have a zero byte in it"));
    }
    let path = Path::new(dest);
    match root {
        // The server's working directory is nothing that a client knows.
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
