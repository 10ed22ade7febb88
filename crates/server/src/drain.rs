//! Drain mode, in which no new message is accepted and everything else continues; and the stop of a listener.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

/// Whether the server accepts new messages. Clones share one switch. SIGUSR1 turns drain mode on, as in beanstalkd; it
/// is off again after a restart.
///
/// ```
/// use duewheel_server::drain::Drain;
/// let drain = Drain::default();
/// let listener = drain.clone();
/// drain.turn_on();
/// assert!(listener.is_on());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Drain(Arc<AtomicBool>);

impl Drain {
    /// Refuses new messages from now on.
    pub fn turn_on(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether new messages are refused.
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Tells a listener to stop: no new connections, and each open one ends after its current request.
#[derive(Clone, Debug)]
pub struct Stop(watch::Sender<bool>);

impl Stop {
    pub(crate) fn new() -> (Stop, watch::Receiver<bool>) {
        let (sender, stopped) = watch::channel(false);
        (Stop(sender), stopped)
    }

    /// Stops the listener.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}
