//! **duewheel**: durable delayed messages. "In 48 hours, close this order's review": said once, done when due, never
//! early, never lost, cancellable by your own key.
//!
//! ```standalone_crate
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
//! # let dir = tempfile::tempdir()?;
//! # std::env::set_current_dir(&dir)?;
//! use duewheel::{Args, Duewheel, HOUR, HandlerResult, Job, SECOND, Workers};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, Job)]
//! #[job(queue = "close-review", key = "order-{order}")]
//! struct CloseReview {
//!     order: u64,
//! }
//!
//! async fn close(Args(review): Args<CloseReview>) -> HandlerResult {
//!     println!("closing the review of order {}", review.order);
//!     Ok(()) // acks; an error retries with backoff
//! }
//!
//! let wheel = Duewheel::open("data").await?; // the embedded log; `Duewheel::builder()` for everything else
//! Workers::new(&wheel, ()).on::<CloseReview, _>(close).start()?;
//! wheel.job(&CloseReview { order: 42 }).delay(48 * HOUR).enqueue().await?;
//! let cancel = wheel.queue("close-review").cancel_key("order-42").await?; // Cancelled | Leased | NotFound
//! wheel.shutdown(10 * SECOND).await?;
//! # assert!(matches!(cancel, duewheel::Cancel::Cancelled(_)));
//! # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! [`Job`] has more of it. Below jobs are messages without a type:
//!
//! ```
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
//! # let wheel = duewheel::Duewheel::builder().in_memory().open().await?;
//! use duewheel::{HOUR, HandlerResult, Message};
//!
//! wheel.queue("close-review").handler(|msg: Message| async move {
//!     let order: serde_json::Value = msg.json()?;
//!     println!("closing the review of {order}");
//!     HandlerResult::Ok(())
//! })?;
//! let order = serde_json::json!({"order": 42});
//! wheel.queue("close-review").message(&order).delay(48 * HOUR).key("order-42").enqueue().await?;
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
//! Futures of calls that change something may be dropped: the change is not withdrawn by that, and whether it was made
//! is then unknown. Keys and dedupe ids make it safe to try again. Where more is lost, the call says so.
//!
//! # Features
//!
//! `derive`, on by default: `#[derive(Job)]`. `cluster`: several shards in a folder, and nodes. `test-util`: the module
//! `test`.
//!
//! Recurring jobs and webhooks are in the crate `duewheel-delivery`, over the same wheel.
//!
//! # Time in tests
//!
//! [`VirtualClock`] makes a test of a 48-hour timeout take milliseconds; the feature `test-util` has helpers.
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

#![cfg_attr(docsrs, feature(doc_cfg))]
// Callers of the library have no other place to learn which errors a call returns.
#![warn(clippy::missing_errors_doc)]

mod backup;
mod builder;
mod change;
#[cfg(feature = "cluster")]
mod cluster;
mod enqueue;
mod handler;
mod inspect;
mod job;
mod message;
mod opening;
mod queue;
#[cfg(feature = "test-util")]
pub mod test;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod wheel;

use std::time::Duration;

pub use backup::{BackupError, Restored, Salvaged, restore, salvage};
pub use builder::{Builder, Durability};
pub use change::{Cancel, Change};
#[cfg(feature = "cluster")]
pub use cluster::NodeOptions;
#[cfg(feature = "cluster")]
pub use duewheel_cluster::{
    BadCertificate, CertificatePart, ClusterView, DEFAULT_SETTLE_DELAY, FleetError, PeerCertificates,
    ShardStage, ShardView,
};
pub use duewheel_core::engine::{
    Applied, Attended, BadQuota, ChangeRefusal, Counts, EnqueueRefusal, IfExists, KeyHolder, Limit, Outline,
    QueueView, Quota, QuotaUse, RefusedPart, SettingsField, Settled, Stats, View,
};
pub use duewheel_core::message::{DeadReason, Marks, MessageContent, PastAttempt, State as MessageState};
pub use duewheel_core::name::{BadName, Key, QueueName};
pub use duewheel_core::policy::{Backoff, GrantLimits, GrantRate, OnExpiry, QueueSettings};
pub use duewheel_core::record::{BootId, Created};
pub use duewheel_core::store::{ErrorKind as StoreErrorKind, Level, Store, StoreError};
pub use duewheel_core::{LeaseToken, MessageId, Policy, WallMs};
#[cfg(feature = "derive")]
pub use duewheel_derive::Job;
pub use duewheel_shard::clock::{Clock, ClockSample, SystemClock, VirtualClock};
pub use duewheel_shard::error::{CallError, Outcome};
pub use duewheel_store_log::{BackupReport, Destination, FolderProblem, Options as LogOptions};
pub use enqueue::{Draft, EnqueueError, Receipt};
pub use handler::{HandlerBuilder, HandlerResult};
pub use inspect::MessagePages;
pub use job::{Args, FromMessage, Job, JobHandler, Meta, StateOf as State, Workers};
pub use message::{DeadLetter, HandlerOutcome, IntoOutcome, Message, NotYet};
pub use opening::OpenError;
pub use queue::{Queue, QueueError};
pub use wheel::{AdvanceError, Duewheel, HandlerError, ShutdownError};

// For the other crates of this workspace. They are not of the interface, and change without notice.
#[doc(hidden)]
pub use backup::{STORE_QUEUE, close_restored, salvage_shards};
#[doc(hidden)]
pub use duewheel_core as core;
#[doc(hidden)]
pub use duewheel_shard::client::Client;
#[doc(hidden)]
pub use duewheel_store_log as store_log;
#[doc(hidden)]
pub use inspect::{replay_of, same_content};

/// A second, to be multiplied: `90 * SECOND`.
pub const SECOND: Duration = Duration::from_secs(1);
/// A minute: 60 seconds.
pub const MINUTE: Duration = Duration::from_secs(60);
/// An hour, to be multiplied: `48 * HOUR`.
pub const HOUR: Duration = Duration::from_secs(3_600);
/// A day of 24 hours.
pub const DAY: Duration = Duration::from_secs(86_400);
