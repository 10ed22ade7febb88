//! Handling of SIGINT, SIGTERM and SIGHUP.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tokio::signal::unix::{SignalKind, signal};

/// Becomes true at the first SIGINT, SIGTERM or SIGHUP, which from the call on do not end the process.
#[derive(Clone, Debug)]
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Observes the signals.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn watch() -> io::Result<Interrupt> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [mut interrupt, mut terminate, mut hang_up] = runtime.block_on(async {
            let [a, b, c] = kinds.map(signal);
            io::Result::Ok([a?, b?, c?])
        })?;
        let has_come = Arc::new(AtomicBool::new(false));
        let tell = Arc::clone(&has_come);
        thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hang_up.recv() => {}
                }
                tell.store(true, Ordering::SeqCst);
            });
        });
        Ok(Interrupt(has_come))
    }

    /// Whether a signal has come.
    pub(super) fn has_come(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
