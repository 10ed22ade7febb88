//! `--wait`: how long a command tries again while no server can be reached.
//!
//! Only the first request of a command is sent again, and only as long as no server has taken it: nothing is done
//! twice.

use std::env;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use super::failure::CommandFailure;
use super::invocation;
use super::when::Millis;

/// The wait for a server of this machine; for another one it is none.
const ON_THIS_MACHINE: Duration = Duration::from_secs(5);
/// The time after which people learn what is waited for.
const SILENCE: Duration = Duration::from_secs(1);
const REST: Duration = Duration::from_millis(50);
/// The variable of `--wait`.
const VARIABLE: &str = "DUEWHEEL_WAIT";

/// How long a command waits for its server, if that is given.
pub trait ServerWait: Args {
    /// The time, if it is given.
    ///
    /// # Errors
    /// The variable has no length of time.
    fn given(&self) -> Result<Option<Duration>, CommandFailure>;

    /// How long the command waits for a message.
    fn for_message(&self) -> Duration {
        Duration::ZERO
    }
}

/// The option of most client commands.
#[derive(Args, Debug)]
#[command(next_help_heading = "Server options")]
pub struct WaitArgs {
    /// How long to wait for a server that cannot be reached [default: 5s on this machine, otherwise 0s]
    #[arg(long, value_name = "TIME")]
    wait: Option<Millis>,
}

impl ServerWait for WaitArgs {
    fn given(&self) -> Result<Option<Duration>, CommandFailure> {
        Ok(self.wait.map(|Millis(ms)| Duration::from_millis(ms)))
    }
}

/// No option: the command tells at once that there is no server, or waits for it in its own way.
#[derive(Args, Debug)]
pub(super) struct NoWait {}

impl ServerWait for NoWait {
    fn given(&self) -> Result<Option<Duration>, CommandFailure> {
        Ok(Some(Duration::ZERO))
    }
}

/// No option, because `--wait` of the command means something else; the variable counts.
#[derive(Args, Debug)]
pub(super) struct WaitOfVariable {}

impl ServerWait for WaitOfVariable {
    fn given(&self) -> Result<Option<Duration>, CommandFailure> {
        let Ok(text) = env::var(VARIABLE) else { return Ok(None) };
        let time = text.parse().map(|Millis(ms)| Some(Duration::from_millis(ms)));
        time.map_err(|what| CommandFailure::Usage(format!("{VARIABLE}={text:?}: {what}")))
    }
}

/// The option of `reserve`, which also waits for a message; the variable is for the server alone.
#[derive(Args, Debug)]
pub(super) struct ReserveWait {
    /// How long to wait for a message, at most 10 min, and for a server [default: 0s, for a server of this machine 5s]
    #[arg(long, value_name = "TIME", help_heading = None::<&'static str>)]
    wait: Option<Millis>,
}

impl ServerWait for ReserveWait {
    fn given(&self) -> Result<Option<Duration>, CommandFailure> {
        match self.wait {
            Some(Millis(ms)) => Ok(Some(Duration::from_millis(ms))),
            None => WaitOfVariable {}.given(),
        }
    }

    fn for_message(&self) -> Duration {
        self.wait.map_or(Duration::ZERO, |Millis(ms)| Duration::from_millis(ms))
    }
}

/// The first request of a command.
#[derive(Debug)]
pub(super) struct FirstContact {
    wait: Duration,
    is_over: AtomicBool,
}

impl FirstContact {
    /// A contact that waits for this time, or as long as servers of this or of another machine are waited for.
    pub(super) fn new(given: Option<Duration>, is_on_this_machine: bool) -> FirstContact {
        let usual = if is_on_this_machine { ON_THIS_MACHINE } else { Duration::ZERO };
        FirstContact { wait: given.unwrap_or(usual), is_over: AtomicBool::new(false) }
    }

    /// The result of a request to `server`. As long as no request of the command had another result and there is time,
    /// one that `is_away` is tried again.
    pub(super) fn make<T>(
        &self,
        server: &str,
        mut request: impl FnMut() -> T,
        is_away: impl Fn(&T) -> bool,
    ) -> T {
        let begun = Instant::now();
        let mut has_told = false;
        loop {
            let result = request();
            let waited = begun.elapsed();
            if self.is_over.load(Ordering::Relaxed) || waited >= self.wait || !is_away(&result) {
                self.is_over.store(true, Ordering::Relaxed);
                return result;
            }
            if !has_told && waited >= SILENCE {
                has_told = true;
                // JSON for programs has its notes at the end, which is too late.
                if !invocation::current().is_json() {
                    invocation::note(format!("waiting for a server at {server}"));
                }
            }
            thread::sleep(REST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_first_contact_is_repeated() {
        let contact = FirstContact::new(None, true);
        let mut calls = 0;
        let made = contact.make(
            "",
            || {
                calls += 1;
                calls
            },
            |calls| *calls < 3,
        );
        assert_eq!(made, 3);
        assert!(!contact.make("", || false, |reached| !reached), "a later request is not repeated");
        let none = FirstContact::new(Some(Duration::ZERO), true);
        assert!(!none.make("", || false, |reached| !reached));
    }
}
