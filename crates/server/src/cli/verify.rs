//! `duewheel verify DATA-DIR`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use duewheel_store_log::{VerifyReport, verify};
use serde_json::json;

use super::CommandFailure;
use super::table::counted;

#[derive(Args, Debug)]
pub(super) struct VerifyArgs {
    /// The data folder; no server may have it open
    #[arg(value_name = "DATA-DIR")]
    data: PathBuf,
    /// Print the result as JSON, and an error as one JSON object on standard error
    #[arg(long)]
    pub(super) json: bool,
}

impl VerifyArgs {
    pub(super) fn run(self) -> Result<(), CommandFailure> {
        let data = self.data.display();
        let report = verify(&self.data)
            .map_err(|error| CommandFailure::Failed(format!("cannot check {data}: {error}")))?;
        let mut out = io::stdout().lock();
        if self.json {
            writeln!(out, "{}", as_json(&report))?;
        } else {
            for problem in &report.problems {
                writeln!(out, "{problem}")?;
            }
            let VerifyReport { files, bytes, records, messages, unproven_groups, .. } = report;
            let files = counted(files, "file");
            write!(out, "{files}, {bytes} bytes with the unused space of journal segments, ")?;
            write!(out, "{} in the journal", counted(records, "record"))?;
            if report.problems.is_empty() {
                write!(out, ", {} pending", counted(messages, "message"))?;
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

fn as_json(report: &VerifyReport) -> serde_json::Value {
    let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    json!({
        "files": report.files, "bytes": report.bytes, "records": report.records, "messages": report.messages,
        "unproven_groups": report.unproven_groups, "problems": problems,
    })
}
