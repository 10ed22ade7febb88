//! `duewheel serve`.

use std::io::{Write as _, stdout};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tracing_subscriber::EnvFilter;

use super::CommandFailure;
use crate::bug::Bugs;
use crate::config::{LogFormat, Options};
use crate::log;
use crate::serve::{ServeError, serve};
use crate::service::GivenSockets;
use crate::signals::keep_hang_up_from_killing;

/// Options of `serve`: the flags, and the file below them.
#[derive(Args, Debug)]
pub(super) struct ServeArgs {
    /// A TOML file with these options, `-` written as `_`; flags and environment take precedence
    #[arg(long, env = "DUEWHEEL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the effective settings, as TOML, and exit
    #[arg(long)]
    print_config: bool,
    #[command(flatten)]
    options: Options,
}

pub(super) fn run(args: ServeArgs) -> Result<(), CommandFailure> {
    // Before the runtime has threads.
    let given = GivenSockets::from_environment()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // This comes first: an operator who has changed a file sends the signal without knowing how far the start has come.
    let entered = runtime.enter();
    keep_hang_up_from_killing()?;
    drop(entered);
    let file = args.config.as_deref().map(Options::from_file).transpose()?;
    let mut settings = args.options.over(file.unwrap_or_default()).settings()?;
    settings.file = args.config.clone();
    if args.print_config {
        let text =
            toml::to_string(&settings.to_options().without_secrets()).map_err(CommandFailure::failed)?;
        stdout().write_all(text.as_bytes())?;
        return Ok(());
    }
    let filter = EnvFilter::try_new(&settings.log)
        .map_err(|error| CommandFailure::Usage(format!("--log {}: {error}", settings.log)))?;
    let format = settings.log_format;
    log::begin(filter, format);
    // After a bug the server stops as after a signal; if that is not possible any more, the process ends.
    let bugs = Bugs::watch(settings.drain_timeout.saturating_add(Duration::from_secs(5)));
    let result = runtime.block_on(serve(settings, given, bugs, &mut stdout()));
    // A request that hangs must not keep the process alive.
    runtime.shutdown_background();
    result.map_err(|error| match error {
        ServeError::NoListener => CommandFailure::Usage(error.to_string()),
        ServeError::Config(_)
        | ServeError::Tokens(_)
        | ServeError::Tls(_)
        | ServeError::Open { .. }
        | ServeError::Bind { .. }
        | ServeError::System(_)
        | ServeError::Ended(_)
        | ServeError::Shutdown(_) => match format {
            LogFormat::Json => {
                tracing::error!("{error}");
                CommandFailure::Said
            }
            LogFormat::Text => CommandFailure::failed(error),
        },
    })
}
