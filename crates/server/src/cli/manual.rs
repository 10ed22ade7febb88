//! `duewheel completions SHELL` and `duewheel man DIR`: made from the command line's description, so they match it.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use super::CommandFailure;

#[derive(Args, Debug)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

impl CompletionsArgs {
    pub(super) fn run(self, mut cli: Command) -> Result<(), CommandFailure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut cli, "duewheel", &mut script);
        io::stdout().write_all(&script)?;
        Ok(())
    }
}

#[derive(Args, Debug)]
pub(super) struct ManArgs {
    /// The folder for the pages, which exists
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl ManArgs {
    pub(super) fn run(self, cli: Command) -> Result<(), CommandFailure> {
        let failed =
            |error: io::Error| CommandFailure::Failed(format!("DIR {}: {error}", self.folder.display()));
        // A page for each command, with a name such as duewheel-enqueue.1.
        clap_mangen::generate_to(cli, &self.folder).map_err(failed)
    }
}
