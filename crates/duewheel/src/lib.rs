//! **duewheel**: durable delayed messages. "In 48 hours, close this order's review": said once, done when due, never
//! early, never lost, cancellable by your own key.
//!
//! ```standalone_crate
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
//! # let dir = tempfile::tempdir()?;
//! # std::env::set_current_dir(&dir)?;
//! # let order = serde_json::json!({"order": 42});
//! use duewheel::{Duewheel, HOUR, Message};
//! use std::time::Duration;
//!
//! let wheel = Duewheel::open("data").await?; // the embedded log; `Duewheel::builder()` for everything else
//! wheel.queue("close-review").handler(|msg: Message| async move {
//!     let order: serde_json::Value = msg.json()?;
//!     println!("closing the review of {order}");
//!     Ok(()) // acks; an error retries with backoff
//! })?;
//! wheel.queue("close-review").message(&order).delay(48 * HOUR).key("order-42").enqueue().await?;
//! wheel.queue("close-review").cancel_key("order-42").await?; // Cancelled | Leased | NotFound
//! wheel.shutdown(Duration::from_secs(10)).await?;
//! # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! # What survives what
//!
//! When `enqueue` returns, the message is on the disk (`fdatasync` has returned): it survives kill -9 and power loss. It
//! is forgotten only after its handler has succeeded, so a handler may run twice for one message; make it idempotent, or
//! use [`Message::lease_token`] as a fencing token. Due times are absolute: time counts while nothing runs.
//!
//! # Time in tests
//!
//! [`VirtualClock`] makes a test of a 48-hour timeout take milliseconds.

mod backup;
mod builder;
mod client;
mod clock;
#[cfg_attr(not(feature = "cluster"), allow(dead_code))] // nothing routes without it
mod cluster;
mod driver;
mod edit;
mod enqueue;
mod error;
mod failure;
mod handler;
mod inbox;
mod local;
mod marked;
mod message;
#[cfg(feature = "cluster")]
mod node;
mod pacing;
mod queue;
mod quotas;
mod restore;
mod runner;
mod salvage;
mod shard;
mod shared;
#[doc(hidden)]
pub mod testing;
mod timekeeper;
mod turns;
mod waiting;
mod wheel;

use std::time::Duration;

pub use backup::BackupError;
pub use builder::{Builder, Durability, OpenError};
pub use client::{Client, Demand, Health, Pending, ThreadIn};
pub use clock::{Clock, Reading, SystemClock, VirtualClock};
pub use cluster::list::{ListPlace, ListPlaces, Listing};
#[cfg(feature = "cluster")]
pub use cluster::{
    BadCertificate, CertificatePart, ClusterView, DEFAULT_SETTLE_DELAY, FleetError, PeerCertificates,
    ShardView, Stage,
};
pub use driver::Driver;
pub use duewheel_core as core;
pub use duewheel_core::engine::{Applied, Attended, IfExists, Outline, QueueView, View};
pub use duewheel_core::record::BootId;
pub use duewheel_core::store::Level;
pub use duewheel_core::{MessageId, Policy};
pub use duewheel_store_log as store_log;
pub use duewheel_store_log::{BackupReport, Destination, FolderProblem};
pub use edit::Change;
pub use enqueue::{Draft, EnqueueError, Receipt};
pub use error::{CallError, Outcome};
pub use failure::{DeadLetter, NotYet};
pub use handler::{HandlerBuilder, HandlerError, HandlerResult, Isolation};
pub use inbox::{Answers, Inbox, Patience, Submission};
pub use local::{Counted, LocalShard, is_counter};
pub use message::Message;
#[cfg(feature = "cluster")]
pub use node::NodeOptions;
pub use queue::{Cancel, Queue, QueueError};
pub use restore::{Restored, restore};
pub use runner::{End, Nap, NapFor, Opener, Runner, StartError, Turn, WhenFenced};
pub use salvage::{Salvaged, salvage};
pub use wheel::{Duewheel, ShutdownError};

/// One second, to be multiplied: `90 * SECOND`.
pub const SECOND: Duration = Duration::from_secs(1);
/// One minute.
pub const MINUTE: Duration = Duration::from_secs(60);
/// One hour: `48 * HOUR`.
pub const HOUR: Duration = Duration::from_secs(3_600);
/// One day of 24 hours.
pub const DAY: Duration = Duration::from_secs(86_400);
