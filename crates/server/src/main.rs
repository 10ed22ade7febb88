//! The `duewheel` binary.

use std::process::ExitCode;

/// Messages are allocated on one thread and freed on another, for which glibc's arenas are slow.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    duewheel_server::cli::main()
}
