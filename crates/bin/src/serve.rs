//! `duewheel serve`.

use std::ffi::OsString;
use std::io::{Write as _, stdout};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use duewheel_cli::{CommandFailure, RunCommand, exit_code};
use duewheel_server::bug::Bugs;
use duewheel_server::config::{LogFormat, Options};
use duewheel_server::log;
use duewheel_server::serve::serve;
use duewheel_server::service::GivenSockets;
use duewheel_server::signals::keep_hang_up_from_killing;
use tracing_subscriber::EnvFilter;

use crate::options::failure;

/// Options of `serve`: the flags, and the file below them.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
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
            GivenSockets::from_environment().map_err(|error| in_format(given_format, failure(error)))?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        // This comes first: an operator who has changed a file sends the signal without knowing how far the start has come.
        let entered = runtime.enter();
        keep_hang_up_from_killing()?;
        drop(entered);
        let file = self.config.as_deref().map(Options::from_file).transpose();
        let file = file.map_err(|error| in_format(given_format, failure(error)))?;
        let options = self.options.over(file.unwrap_or_default());
        let format = options.log_format;
        let mut settings = options.settings().map_err(|error| in_format(format, failure(error)))?;
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
        result.map_err(|error| match (failure(error), format) {
            (CommandFailure::Failed(what), LogFormat::Json) => {
                tracing::error!("{what}");
                CommandFailure::Said(exit_code::FAILED)
            }
            (failure, format) => in_format(Some(format), failure),
        })
    }
}

/// Writes an error of these arguments as a line of the log, if they are those of a server whose log lines are JSON.
pub(crate) fn log_error(args: &[OsString], what: &str) -> bool {
    let is_json = wants_json_lines(args);
    if is_json {
        log::error_line(module_path!(), what);
    }
    is_json
}

/// Prints a failure that precedes the log as JSON, where log lines are JSON.
fn in_format(format: Option<LogFormat>, failure: CommandFailure) -> CommandFailure {
    match (&failure, format) {
        (CommandFailure::Usage(what) | CommandFailure::Failed(what), Some(LogFormat::Json)) => {
            log::error_line(module_path!(), what);
            CommandFailure::Said(failure.exit_code())
        }
        _ => failure,
    }
}

fn wants_json_lines(args: &[OsString]) -> bool {
    let args: Vec<String> = args.iter().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    if args.first().is_none_or(|command| command != "serve") {
        return false;
    }
    let by_env = std::env::var("DUEWHEEL_LOG_FORMAT").ok();
    let split = args.windows(2).rfind(|two| two[0] == "--log-format").map(|two| two[1].clone());
    let joined = args.iter().rev().find_map(|arg| arg.strip_prefix("--log-format=").map(str::to_owned));
    split.or(joined).or(by_env).is_some_and(|format| format == "json")
}
