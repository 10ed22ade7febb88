//! `duewheel salvage SRC DEST`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use duewheel::salvage;
use serde_json::json;

use super::CommandFailure;
use super::table::counted;

#[derive(Args, Debug)]
pub(super) struct SalvageArgs {
    /// The damaged data folder; no server may have it open, and it is never written to
    #[arg(value_name = "SRC")]
    src: PathBuf,
    /// The new data folder, which must not exist
    #[arg(value_name = "DEST")]
    dest: PathBuf,
    /// Print the result as JSON, and an error as one JSON object on standard error
    #[arg(long)]
    pub(super) json: bool,
}

impl SalvageArgs {
    pub(super) fn run(self) -> Result<(), CommandFailure> {
        let salvaged = salvage(&self.src, &self.dest).map_err(CommandFailure::failed)?;
        let report = salvaged.report;
        let mut out = io::stdout().lock();
        if self.json {
            let damage: Vec<String> = report.damage.iter().map(ToString::to_string).collect();
            let losses: Vec<_> = report
                .losses
                .iter()
                .map(|loss| json!({ "kind": loss.as_str(), "what": loss.to_string() }))
                .collect();
            let result = json!({
                "data": self.dest.to_string_lossy(), "messages": report.messages, "answers": report.answers,
                "tokens_ended": salvaged.tokens_ended, "damage": damage, "losses": losses,
            });
            writeln!(out, "{result}")?;
        } else {
            for problem in &report.damage {
                writeln!(out, "damaged: {problem}")?;
            }
            for loss in &report.losses {
                writeln!(out, "lost: {loss}")?;
            }
            writeln!(out, "{} salvaged", counted(report.messages, "message"))?;
            if salvaged.tokens_ended > 0 {
                writeln!(
                    out,
                    "{} of the original no longer accepted",
                    counted(salvaged.tokens_ended, "lease token")
                )?;
            }
        }
        match report.losses.len() {
            0 => Ok(()),
            n => {
                let (src, dest) = (self.src.display(), self.dest.display());
                Err(CommandFailure::Failed(format!("{dest} is complete, but for {n} losses of {src}")))
            }
        }
    }
}
