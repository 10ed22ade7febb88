//! How a listener is told to stop.

use tokio::sync::watch;

/// Tells a listener to stop: no new connections, and open ones end after what they are at.
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
