//! The question before an act that cannot be undone.

use std::io::{self, IsTerminal};

use super::CommandFailure;

/// Asks on a terminal; elsewhere `--yes` is needed.
pub(super) fn confirm(what: &str) -> Result<(), CommandFailure> {
    if !io::stdin().is_terminal() {
        return Err(CommandFailure::Usage(format!("this would {what}; confirm with --yes")));
    }
    eprint!("This will {what}. Type yes to go on: ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    if answer.trim() == "yes" { Ok(()) } else { Err(CommandFailure::Failed("nothing was changed".into())) }
}
