//! The common part of all client commands.

use super::{CommandFailure, ServerArgs};

/// A command that talks to a server.
pub(crate) trait ClientCommand {
    fn server(&self) -> &ServerArgs;
    fn run(self) -> Result<(), CommandFailure>;
}

/// How a command ended, and whether the caller wants to read that as JSON.
pub(crate) struct CommandEnd {
    pub(crate) result: Result<(), CommandFailure>,
    pub(crate) json: bool,
}

impl From<Result<(), CommandFailure>> for CommandEnd {
    fn from(result: Result<(), CommandFailure>) -> Self {
        CommandEnd { result, json: false }
    }
}

/// Runs such a command.
pub(crate) fn client(command: impl ClientCommand) -> CommandEnd {
    let json = command.server().json;
    CommandEnd { result: command.run(), json }
}
