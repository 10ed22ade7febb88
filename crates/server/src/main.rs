//! The `duewheel` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    duewheel_server::cli::main()
}
