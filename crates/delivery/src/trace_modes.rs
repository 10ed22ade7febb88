//! How spans of a queue's deliveries are related to the creation of their messages.

use std::collections::HashMap;
use std::time::Duration;

use duewheel::Client;
use duewheel::core::engine::Op;
use duewheel::core::name::QueueName;
use duewheel::core::policy::TraceMode;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How long a queue's setting is believed: an edit holds after this time, at every node.
const BELIEVED: Duration = Duration::from_secs(1);
/// How long a delivery waits for it.
const WAIT: Duration = Duration::from_millis(500);

/// The setting of each queue, as it was read last.
#[derive(Debug, Default)]
pub(crate) struct TraceModes(Mutex<HashMap<QueueName, (Instant, TraceMode)>>);

impl TraceModes {
    /// The setting of a queue; the last one, or the default, if the wheel does not tell it in time.
    pub(crate) async fn of(&self, queue: &QueueName, wheel: &Client) -> TraceMode {
        // Locked until the answer is there, so that all callers that need it wait for the same request.
        let mut modes = self.0.lock().await;
        let known = modes.get(queue).copied();
        if let Some((at, mode)) = known
            && at.elapsed() < BELIEVED
        {
            return mode;
        }
        let asked = tokio::time::timeout(WAIT, wheel.ask(Op::queue(queue.clone()))).await;
        let mode = match asked {
            Ok(Ok(view)) => view.and_then(|view| view.settings.trace).unwrap_or_default(),
            Ok(Err(_)) | Err(_) => known.map(|(_, mode)| mode).unwrap_or_default(),
        };
        modes.insert(queue.clone(), (Instant::now(), mode));
        mode
    }
}
