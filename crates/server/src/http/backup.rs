//! A copy of the data folder, made by the server on its own machine.

use std::path::Path;
use std::sync::atomic::Ordering;

use axum::http::StatusCode;
use duewheel::BackupError;
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
    let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
    let Asked { dest } = strict::parse(&bytes)?;
    let dest = &*dest.0;
    // The server's working directory is nothing that a client knows.
    if !Path::new(dest).is_absolute() {
        return Err(Problem::field("dest", "must be an absolute path, on the machine of the server"));
    }
    if dest.contains('\0') {
        return Err(Problem::field("dest", "must not have a zero byte in it"));
    }
    let copied = call.app.wheel.backup(dest).await.map_err(|error| {
        let draining = call.app.draining.load(Ordering::Relaxed);
        match error {
            BackupError::Closed if draining => Problem::new(ErrorCode::Draining, error.to_string()),
            error => Problem::from_backup(&error),
        }
    })?;
    tracing::info!(dest, files = copied.files, bytes = copied.bytes, "backup made");
    Ok(object(StatusCode::OK, |out| {
        out.text("dest", dest);
        out.number("files", copied.files);
        out.number("bytes", copied.bytes);
        out.number("linked", copied.linked);
        out.number("last_lsn", copied.last.0);
    }))
}
