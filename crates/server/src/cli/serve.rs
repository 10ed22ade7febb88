//! `duewheel serve`.

use std::ffi::OsString;
use std::io::{Write as _, stdout};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tracing_subscriber::EnvFilter;

use super::CommandFailure;
use super::failure::exit_code;
use super::session::RunCommand;
use crate::bug::Bugs;
use crate::config::{LogFormat, Options};
use crate::log;
use crate::serve::serve;
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

impl RunCommand for ServeArgs {
    fn run(self) -> Result<(), CommandFailure> {
        // Before the runtime has threads.
        let given_format = self.options.log_format;
        let given =
            GivenSockets::from_environment().map_err(|error| in_format(given_format, error.into()))?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        // This comes first: an operator who has changed a file sends the signal without knowing how far the start has come.
        let entered = runtime.enter();
        keep_hang_up_from_killing()?;
        drop(entered);
        let file = self.config.as_deref().map(Options::from_file).transpose();
        let file = file.map_err(|error| in_format(given_format, error.into()))?;
        let options = self.options.over(file.unwrap_or_default());
        let format = options.log_format;
        let mut settings = options.settings().map_err(|error| in_format(format, error.into()))?;
        settings.file = self.config.clone();
        if self.print_config {
            let text =
                toml::to_string(&settings.to_options().without_secrets()).map_err(CommandFailure::failed)?;
            stdout().write_all(text.as_bytes())?;
            return Ok(());
        }
        let format = settings.log_format;
        let filter = EnvFilter::try_new(&settings.log)
            .map_err(|error| CommandFailure::Usage(format!("--log {}: {error}", settings.log)))
            .map_err(|failure| in_format(Some(format), failure))?;
        log::begin(filter, format);
        // After a bug the server stops as after a signal; if that is not possible any more, the process ends.
        let bugs = Bugs::watch(settings.drain_timeout.saturating_add(Duration::from_secs(5)));
        let result = runtime.block_on(serve(settings, given, bugs, &mut stdout()));
        // A request that hangs must not keep the process alive.
        runtime.shutdown_background();
        result.map_err(|error| match (CommandFailure::from(error), format) {
            (CommandFailure::Failed(what), LogFormat::Json) => {
                tracing::error!("{what}");
                CommandFailure::Said(exit_code::FAILED)
            }
            (failure, format) => in_format(Some(format), failure),
        })
    }
}

/// An error before the log has begun, as a line of it.
pub(super) fn error_line(what: &str) {
    log::error_line(module_path!(), what);
}

/// Prints a failure that precedes the log as JSON, where log lines are JSON.
fn in_format(format: Option<LogFormat>, failure: CommandFailure) -> CommandFailure {
    match (&failure, format) {
        (CommandFailure::Usage(what) | CommandFailure::Failed(what), Some(LogFormat::Json)) => {
            error_line(what);
            CommandFailure::Said(failure.exit_code())
        }
        _ => failure,
    }
}

/// Whether arguments that cannot be parsed are those of a server whose log lines are JSON.
pub(super) fn wants_json_lines(args: impl Iterator<Item = OsString>) -> bool {
    let args: Vec<String> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
    if args.first().is_none_or(|command| command != "serve") {
        return false;
    }
    let by_env = std::env::var("DUEWHEEL_LOG_FORMAT").ok();
    let split = args.windows(2).rfind(|two| two[0] == "--log-format").map(|two| two[1].clone());
    let joined = args.iter().rev().find_map(|arg| arg.strip_prefix("--log-format=").map(str::to_owned));
    split.or(joined).or(by_env).is_some_and(|format| format == "json")
}
