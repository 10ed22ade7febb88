//! The server's binary, which is in the same folder as the benchmarks'.

use std::io;
use std::path::PathBuf;
use std::process::Command;

/// Builds the server.
///
/// # Errors
/// It does not build.
pub fn build() -> io::Result<()> {
    let status = Command::new("cargo")
        .args(["build", "--release", "--quiet", "--package", "duewheel-server"])
        .status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other("the server does not build")) }
}

/// The path of the binary.
///
/// # Errors
/// The path of this program is not known.
pub fn binary() -> io::Result<PathBuf> {
    let here = std::env::current_exe()?;
    Ok(here.with_file_name("duewheel"))
}
