//! The `duewheel` binary.

use std::process::ExitCode;

/// Messages are made on one thread and dropped on another, which glibc's arenas take badly.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    duewheel_server::cli::main()
}
