//! The signals that a server answers to.

use duewheel::Duewheel;
use duewheel_shard::testing;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::drain::Drain;
use crate::reload::{Reload, Reloader, Watched};

/// From the call on, SIGHUP does not end this process any more: it makes the server read files again, and has no effect
/// on a server without files. Must be called within a runtime.
///
/// # Errors
/// The system refuses.
pub fn keep_hang_up_from_killing() -> std::io::Result<()> {
    // The handler stays when this is dropped.
    signal(SignalKind::hangup()).map(drop)
}

/// SIGTERM and SIGINT, which end the server, SIGUSR1, which begins drain mode, and SIGHUP, which makes the server read
/// its files again, like a change of the files.
pub(crate) struct Signals {
    reload: Reloader,
    hang_up: Signal,
    changes: mpsc::Receiver<()>,
    drain: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn new(reload: Reload, watched: Watched) -> std::io::Result<Self> {
        Ok(Signals {
            reload: Reloader::new(reload),
            hang_up: signal(SignalKind::hangup())?,
            changes: watched.changes(),
            drain: signal(SignalKind::user_defined1())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Notes that the store is open: quotas whose reload was postponed are read again.
    pub(crate) fn opened(&self, wheel: Duewheel) {
        self.reload.opened(wheel);
    }

    /// Waits for the next signal that ends the server. Cancel safe.
    pub(crate) async fn next(&mut self, drain: &Drain) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hang_up.recv() => self.reload.ask(),
                Some(()) = self.changes.recv() => self.reload.ask(),
                _ = self.drain.recv() => {
                    testing::place("signals");
                    tracing::info!("drain mode: new messages are refused");
                    drain.turn_on();
                }
            }
        }
    }
}
