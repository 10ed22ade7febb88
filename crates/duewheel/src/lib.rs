//! **duewheel**: durable delayed messages. "In 48 hours, close this order's review": said once, done when due, never
//! early, never lost, cancellable by your own key.
//!
//! ```standalone_crate
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
//! # let dir = tempfile::tempdir()?;
//! # std::env::set_current_dir(&dir)?;
//! # let order = serde_json::json!({"order": 42});
//! use duewheel::{Duewheel, HOUR, HandlerResult, Message};
//! use std::time::Duration;
//!
//! let wheel = Duewheel::open("data").await?; // the embedded log; `Duewheel::builder()` for everything else
//! wheel.queue("close-review").handler(|msg: Message| async move {
//!     let order: serde_json::Value = msg.json()?;
//!     println!("closing the review of {order}");
//!     HandlerResult::Ok(()) // acks; an error retries with backoff
//! })?;
//! wheel.queue("close-review").message(&order).delay(48 * HOUR).key("order-42").enqueue().await?;
//! wheel.queue("close-review").cancel_key("order-42").await?; // Cancelled | Leased | NotFound
//! wheel.shutdown(Duration::from_secs(10)).await?;
//! # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! # What survives a crash
//!
//! When `enqueue` returns, the message is on the disk (`fdatasync` has returned): it survives kill -9 and power loss.
//! The message is forgotten only after its handler has succeeded, so a handler may run twice for one message; make it
//! idempotent, or use [`Message::lease_token`] as a fencing token. Due times are absolute: time counts while nothing
//! runs.
//!
//! # Time in tests
//!
//! [`VirtualClock`] makes a test of a 48-hour timeout take milliseconds:
//!
//! ```
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
//! use duewheel::{Duewheel, Message, VirtualClock};
//! use std::time::Duration;
//! use std::sync::{Arc, atomic::{AtomicUsize, Ordering}};
//!
//! let clock = VirtualClock::at_2026();
//! let wheel = Duewheel::builder().in_memory().clock(clock.clone()).open().await?;
//! let closed = Arc::new(AtomicUsize::new(0));
//! let seen = closed.clone();
//! wheel.queue("close-review").handler(move |_: Message| {
//!     let seen = seen.clone();
//!     async move { drop(seen.fetch_add(1, Ordering::SeqCst)) }
//! })?;
//! wheel.queue("close-review").message(&"order-42").delay(Duration::from_secs(48 * 3600)).enqueue().await?;
//!
//! wheel.advance(&clock, Duration::from_secs(48 * 3600 - 1)).await?;
//! assert_eq!(closed.load(Ordering::SeqCst), 0, "never early");
//! wheel.advance(&clock, Duration::from_secs(1)).await?;
//! assert_eq!(closed.load(Ordering::SeqCst), 1);
//! # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
//! ```

// Callers of the library have no other place to learn which errors a call returns.
#![warn(clippy::missing_errors_doc)]

mod backup;
mod builder;
#[cfg(feature = "cluster")]
mod cluster;
mod enqueue;
mod handler;
mod message;
mod opening;
mod queue;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod wheel;

use std::time::Duration;

pub use backup::{
    BackupError, Restored, STORE_QUEUE, Salvaged, close_restored, restore, salvage, salvage_shards,
};
pub use builder::{Builder, Durability};
#[cfg(feature = "cluster")]
pub use cluster::NodeOptions;
#[cfg(feature = "cluster")]
pub use duewheel_cluster::{
    BadCertificate, CertificatePart, ClusterView, DEFAULT_SETTLE_DELAY, FleetError, PeerCertificates,
    ShardStage, ShardView,
};
pub use duewheel_core as core;
pub use duewheel_core::engine::{Applied, Attended, IfExists, KeyHolder, Outline, QueueView, View};
pub use duewheel_core::record::BootId;
pub use duewheel_core::store::Level;
pub use duewheel_core::{MessageId, Policy};
pub use duewheel_shard::client::Client;
pub use duewheel_shard::clock::{Clock, ClockSample, SystemClock, VirtualClock};
pub use duewheel_shard::error::{CallError, Outcome};
pub use duewheel_store_log as store_log;
pub use duewheel_store_log::{BackupReport, Destination, FolderProblem};
pub use enqueue::{Draft, EnqueueError, Receipt};
pub use handler::{HandlerBuilder, HandlerResult};
pub use message::{DeadLetter, HandlerOutcome, IntoOutcome, Message, NotYet};
pub use opening::OpenError;
pub use queue::{Cancel, Change, Queue, QueueError, replay_of, same_content};
pub use wheel::{AdvanceError, Duewheel, HandlerError, ShutdownError};

/// A second, to be multiplied: `90 * SECOND`.
pub const SECOND: Duration = Duration::from_secs(1);
/// A minute: 60 seconds.
pub const MINUTE: Duration = Duration::from_secs(60);
/// An hour, to be multiplied: `48 * HOUR`.
pub const HOUR: Duration = Duration::from_secs(3_600);
/// A day of 24 hours.
pub const DAY: Duration = Duration::from_secs(86_400);
