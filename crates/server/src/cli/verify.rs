//! `duewheel verify DATA-DIR`, and `duewheel verify --store URL`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use duewheel::core::ShardId;
use duewheel::core::store::StoreError;
use duewheel_store_log::{Damage, VerifyReport, verify, verify_on};
use serde_json::json;

use super::CommandFailure;
use super::table::counted;
use crate::config::Options;
use crate::stored::{self, StoredShards};

#[derive(Args, Debug)]
pub(super) struct VerifyArgs {
    /// The data folder; no server may have it open. With --store redis://… or postgres://… all shards there are checked, which
    /// no node may own
    #[arg(value_name = "DATA-DIR", required_unless_present_any = ["store", "config"], conflicts_with_all = ["store", "config"])]
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

impl VerifyArgs {
    pub(super) fn run(self) -> Result<(), CommandFailure> {
        let failed =
            |data: &str, error: StoreError| CommandFailure::Failed(format!("cannot check {data}: {error}"));
        let (data, report) = match &self.folder {
            Some(folder) => {
                let data = folder.display().to_string();
                let report = verify(folder).map_err(|error| failed(&data, error))?;
                (data, report)
            }
            None => {
                let file = self.config.as_deref().map(Options::from_file).transpose()?;
                let settings = self.options.over(file.unwrap_or_default()).settings()?;
                let report =
                    verify_shards(&stored::open(&settings)?).map_err(|error| failed("the store", error))?;
                ("the store".to_owned(), report)
            }
        };
        let mut out = io::stdout().lock();
        if self.json {
            writeln!(out, "{}", as_json(&report))?;
        } else {
            for problem in &report.problems {
                writeln!(out, "{problem}")?;
            }
            let VerifyReport { files, bytes, records, messages, pending, unproven_groups, .. } = report;
            let files = counted(files, "file");
            write!(out, "{files}, {bytes} bytes with the unused space of journal segments, ")?;
            write!(out, "{} in the journal", counted(records, "record"))?;
            if report.problems.is_empty() {
                write!(out, ", {} pending", counted(pending, "message"))?;
                if messages > pending {
                    write!(out, ", {} kept beside them", counted(messages - pending, "record"))?;
                }
            }
            writeln!(out)?;
            if unproven_groups > 0 {
                writeln!(
                    out,
                    "{unproven_groups} groups at the end may not be on the disk; the next start writes them again"
                )?;
            }
        }
        match report.problems.len() {
            0 => Ok(()),
            1 => Err(CommandFailure::Failed(format!("{data} is damaged: 1 problem"))),
            n => Err(CommandFailure::Failed(format!("{data} is damaged: {n} problems"))),
        }
    }
}

/// Checks all shards of a store.
fn verify_shards(shards: &StoredShards) -> Result<VerifyReport, StoreError> {
    shards.unowned()?;
    let mut all = VerifyReport::default();
    for shard in (0..shards.count()).map(ShardId) {
        let disk = shards.disk(shard)?;
        if disk.list("").is_ok_and(|names| names.is_empty()) {
            if shards.has_lost_all(shard)? {
                let what = "the shard has had files, and has none: all that it held is lost";
                let (file, what) = (format!("shard {shard}"), what.to_owned());
                all.problems.push(Damage { file, offset: 0, what });
            }
            continue;
        }
        let VerifyReport { files, bytes, records, messages, pending, unproven_groups, problems } =
            verify_on(&*disk)?;
        all.files += files;
        all.bytes += bytes;
        all.records += records;
        all.messages += messages;
        all.pending += pending;
        all.unproven_groups += unproven_groups;
        all.problems.extend(
            problems
                .into_iter()
                .map(|damage| Damage { file: format!("shard {shard}: {}", damage.file), ..damage }),
        );
    }
    Ok(all)
}

fn as_json(report: &VerifyReport) -> serde_json::Value {
    let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    json!({
        "files": report.files, "bytes": report.bytes, "records": report.records, "messages": report.pending,
        "kept": report.messages.saturating_sub(report.pending), "unproven_groups": report.unproven_groups,
        "problems": problems,
    })
}
