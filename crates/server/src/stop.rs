//! Stops a listener.

use tokio::sync::watch;

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
