//! The options of `serve` that commands without a server take, and the failures of the server's parts.

use std::path::PathBuf;

use clap::{Arg, Args};
use duewheel_cli::CommandFailure;
use duewheel_server::config::{Options, Settings};
use duewheel_server::serve::ServeError;

/// The options of `serve` for the place of the store; the others are not used.
#[derive(Args, Debug)]
pub(crate) struct StoreOptions {
    /// The TOML file of `serve`; flags and environment take precedence
    #[arg(long, env = "DUEWHEEL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

impl StoreOptions {
    /// The options, and below them those of the file.
    pub(crate) fn options(self) -> Result<Options, CommandFailure> {
        let file = self.config.as_deref().map(Options::from_file).transpose().map_err(failure)?;
        Ok(self.options.over(file.unwrap_or_default()))
    }

    pub(crate) fn settings(self) -> Result<Settings, CommandFailure> {
        self.options()?.settings().map_err(failure)
    }
}

/// The help of `--config` where a folder can take the place of the store.
pub(crate) fn for_its_store(arg: Arg) -> Arg {
    if arg.get_id() != "config" {
        return arg;
    }
    arg.help("The TOML file of `serve`, for its store; flags and environment take precedence")
}

/// A failure of a part of the server, as the command's: wrong settings are wrong usage.
pub(crate) fn failure(error: impl Into<ServeError>) -> CommandFailure {
    match error.into() {
        error @ (ServeError::NoListener | ServeError::Config(_) | ServeError::Bridge(_)) => {
            CommandFailure::Usage(error.to_string())
        }
        error @ (ServeError::Tokens(_)
        | ServeError::Tls(_)
        | ServeError::Open { .. }
        | ServeError::Bind { .. }
        | ServeError::System(_)
        | ServeError::Ended(_)
        | ServeError::Shutdown(_)) => CommandFailure::failed(error),
    }
}
