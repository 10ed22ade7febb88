//! Several shards and several nodes: ownership of shards, and routing of operations to their owners. See
//! `docs/adr/0009-redis-and-cluster.md`.
//!
//! ```text
//!   Client ──▶ routing: which shard, broadcast, merge ──▶ Shards ──▶ forwarding: the route to each shard, retries
//!                                                                      │             │
//!              ownership: who takes part, who owns what, by a          ▼             ▼
//!              Coordinator; it opens and closes this node's shards   inbox here    transport ──▶ the node that owns it
//! ```
//!
//! The engine and the driver own one shard each and know nothing of other shards. This crate is for duewheel's other
//! crates; people who embed duewheel use the crate `duewheel` with its feature `cluster`.

// Each public function that can fail lists its errors.
#![warn(clippy::missing_errors_doc)]

mod forwarding;
mod ownership;
mod routing;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod transport;

pub use ownership::assignment::DEFAULT_SETTLE_DELAY;
pub use ownership::core::{ClusterView, FleetError, ShardStage, ShardView};
pub use ownership::member::{Fleet, FleetOptions, Started};
pub use routing::Shards;
pub use routing::router::Router;
pub use transport::{BadCertificate, CertificatePart, PeerCertificates};
