//! `duewheel verify DATA-DIR`.

use std::path::PathBuf;

use clap::Args;

use super::Failure;

#[derive(Args, Debug)]
pub(super) struct Verify {
    /// The data folder; it may be in use
    #[arg(value_name = "DATA-DIR")]
    data: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Verify {
    pub(super) fn run(self) -> Result<(), Failure> {
        let _ = (self.data, self.json);
        Err(Failure::failed("verify waits for the store"))
    }
}
