//! The signals that a server answers to.

use duewheel::{Duewheel, testing};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::drain::Drain;
use crate::reload::{Reload, Reloader, Watched};

/// From the call on, SIGHUP ends this process no more: it means that files are read again, and has no other meaning for a server that
/// has none. Must be called within a runtime.
///
/// # Errors
/// When the system refuses.
pub(crate) fn keep_hang_up_from_killing() -> std::io::Result<()> {
    // The handler stays when this is dropped.
    signal(SignalKind::hangup()).map(drop)
}

/// SIGTERM and SIGINT, which end the server, SIGUSR1, which begins drain mode, and SIGHUP, which has files read again, as a change of
/// theirs does.
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

    /// The store is open: quotas that were to be read again meanwhile are.
    pub(crate) fn opened(&self, wheel: Duewheel) {
        self.reload.opened(wheel);
    }

    /// The next one that ends the server. Cancel safe.
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
