//! The common part of all commands: the server that they talk to, their answers, questions and signals.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::signal::unix::{SignalKind, signal};

use super::failure::{CommandFailure, unprinted};
use super::invocation::print_json;
use super::remote::{Remote, ServerArgs};
use super::wait::{ServerWait, WaitArgs};

/// A command with its arguments.
pub trait RunCommand {
    /// Runs it.
    ///
    /// # Errors
    /// See [`CommandFailure`].
    fn run(self) -> Result<(), CommandFailure>;
}

/// A command that talks to a server.
pub(super) trait ClientCommand {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure>;
}

/// A set of commands, and how each of them runs.
#[macro_export]
macro_rules! commands {
    ($(#[$outer:meta])* $vis:vis enum $name:ident { $($(#[$meta:meta])* $command:ident($args:ty),)* }) => {
        $(#[$outer])*
        #[derive(Debug, clap::Subcommand)]
        $vis enum $name { $($(#[$meta])* $command(Box<$args>),)* }

        impl $crate::RunCommand for $name {
            fn run(self) -> Result<(), $crate::CommandFailure> {
                match self { $($name::$command(args) => args.run(),)* }
            }
        }
    };
}

/// The arguments of a client command, its server, and how long it waits for that.
#[derive(Args, Debug)]
pub struct ClientArgs<C: Args, W: ServerWait = WaitArgs> {
    #[command(flatten)]
    command: C,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    wait: W,
}

impl<C: Args, W: ServerWait> ClientArgs<C, W> {
    /// Runs a command with these arguments and this server.
    pub(super) fn with(
        self,
        run: impl FnOnce(C, &ClientSession) -> Result<(), CommandFailure>,
    ) -> Result<(), CommandFailure> {
        let wait = self.wait.given()?;
        let remote = Remote::new(&self.server, wait)?;
        let wait_for_message = self.wait.for_message();
        let ServerArgs { json: is_json, server, .. } = self.server;
        run(self.command, &ClientSession { remote, server, is_json, wait_for_message })
    }
}

impl<C: Args + ClientCommand, W: ServerWait> RunCommand for ClientArgs<C, W> {
    fn run(self) -> Result<(), CommandFailure> {
        self.with(C::run)
    }
}

/// The arguments of a command that has none of its own.
#[derive(Args, Debug)]
pub(super) struct NoArgs {}

/// A server, and the form in which a command prints its answers.
pub(super) struct ClientSession {
    pub(super) remote: Remote,
    /// The address of the server, as it was given.
    pub(super) server: String,
    pub(super) is_json: bool,
    /// The time of `reserve --wait`.
    pub(super) wait_for_message: Duration,
}

impl ClientSession {
    /// Prints an answer: as JSON, or in words.
    pub(super) fn print(
        &self,
        answer: &Value,
        words: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), CommandFailure> {
        print_answer(self.is_json, answer, words)
    }

    /// Prints an answer: as JSON, or as a line of words.
    pub(super) fn say(&self, answer: &Value, line: impl fmt::Display) -> Result<(), CommandFailure> {
        self.print(answer, |out| writeln!(out, "{line}"))
    }
}

/// Prints an answer: as JSON, or in words.
///
/// # Errors
/// Standard output takes no more.
pub fn print_answer(
    is_json: bool,
    answer: &Value,
    words: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), CommandFailure> {
    let mut out = io::stdout().lock();
    let printed = if is_json { print_json(&mut out, answer) } else { words(&mut out) };
    printed.map_err(unprinted)
}

/// The fields of a request that were given, of options that are named as the request has them.
pub(super) fn fields(options: &impl Serialize) -> Result<Map<String, Value>, CommandFailure> {
    let Value::Object(mut fields) = serde_json::to_value(options).map_err(CommandFailure::failed)? else {
        return Ok(Map::new());
    };
    fields.retain(|_, value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(all) => !all.is_empty(),
        Value::Object(all) => !all.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::String(_) => true,
    });
    Ok(fields)
}

/// A bar or a spinner that shows progress on standard error, if that is a terminal.
pub(super) fn progress(bar: ProgressBar, template: &str) -> ProgressBar {
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Asks on a terminal before an act that cannot be undone; elsewhere `--yes` is needed.
pub(super) fn confirm(what: &str) -> Result<(), CommandFailure> {
    if !io::stdin().is_terminal() {
        return Err(CommandFailure::Usage(format!("this would {what}; confirm with --yes")));
    }
    eprint!("This will {what}. Type yes to go on: ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    if answer.trim() == "yes" { Ok(()) } else { Err(CommandFailure::Failed("nothing was changed".into())) }
}

/// Acts at each SIGINT, SIGTERM and SIGHUP, which from the call on do not end the process.
///
/// # Errors
/// The system refuses.
pub(super) fn on_signals(mut act: impl FnMut() + Send + 'static) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let [mut interrupt, mut terminate, mut hang_up] = runtime.block_on(async {
        let [a, b, c] = kinds.map(signal);
        io::Result::Ok([a?, b?, c?])
    })?;
    thread::spawn(move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hang_up.recv() => {}
                }
                act();
            }
        });
    });
    Ok(())
}

/// Becomes true at the first signal of [`on_signals`].
#[derive(Clone, Debug)]
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Observes the signals.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn watch() -> io::Result<Interrupt> {
        let has_come = Arc::new(AtomicBool::new(false));
        let tell = Arc::clone(&has_come);
        on_signals(move || tell.store(true, Ordering::SeqCst))?;
        Ok(Interrupt(has_come))
    }

    /// Whether a signal has come.
    pub(super) fn has_come(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
