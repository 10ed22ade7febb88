//! `duewheel completions SHELL` and `duewheel man DIR`: made of the description of the command line, so that they are true.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, CommandFailure};

#[derive(Args, Debug)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

impl CompletionsArgs {
    pub(super) fn run(self) -> Result<(), CommandFailure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "duewheel", &mut script);
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
    pub(super) fn run(self) -> Result<(), CommandFailure> {
        let failed =
            |error: io::Error| CommandFailure::Failed(format!("DIR {}: {error}", self.folder.display()));
        // One page a command, named duewheel-enqueue.1.
        clap_mangen::generate_to(Cli::command(), &self.folder).map_err(failed)
    }
}
