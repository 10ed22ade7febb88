//! Several shards, several nodes: who owns what, and the way to it. See `docs/adr/0009-redis-and-cluster.md`.

#[cfg(feature = "cluster")]
mod assign;
#[cfg(feature = "cluster")]
mod fan;
#[cfg(feature = "cluster")]
pub(crate) mod fleet;
#[cfg(all(feature = "cluster", test))]
mod fleet_tests;
#[cfg(feature = "testing")]
pub(crate) mod here;
#[cfg(feature = "cluster")]
mod keeper;
#[cfg(feature = "cluster")]
mod line;
pub(crate) mod list;
#[cfg(feature = "cluster")]
mod locals;
#[cfg(all(feature = "cluster", any(test, feature = "testing")))]
pub(crate) mod memory;
#[cfg(feature = "cluster")]
mod merge;
#[cfg(feature = "cluster")]
mod moving;
#[cfg(feature = "cluster")]
mod owned;
#[cfg(feature = "cluster")]
mod parcel;
#[cfg(feature = "cluster")]
mod pause;
#[cfg(feature = "cluster")]
pub(crate) mod peer;
#[cfg(feature = "cluster")]
mod place;
#[cfg(feature = "cluster")]
mod presence;
#[cfg(feature = "cluster")]
mod reserve;
pub(crate) mod room;
#[cfg(feature = "cluster")]
pub(crate) mod router;
#[cfg(feature = "cluster")]
mod sessions;
#[cfg(all(feature = "cluster", test))]
mod tests;
#[cfg(feature = "cluster")]
mod view;
#[cfg(feature = "cluster")]
mod ways;
#[cfg(feature = "cluster")]
pub(crate) mod wire;

#[cfg(feature = "cluster")]
pub use fleet::FleetError;
#[cfg(feature = "cluster")]
pub use peer::{BadCertificate, CertificatePart, PeerCertificates};
#[cfg(feature = "cluster")]
pub use presence::DEFAULT_SETTLE_DELAY;
#[cfg(feature = "cluster")]
pub use view::{ClusterView, ShardView, Stage};

use std::fmt;

use duewheel_core::engine::Op;
use duewheel_core::id::ShardId;

use crate::client::Pending;
use crate::inbox::Patience;
use crate::local::LocalShard;

/// Takes operations to shards, wherever their owners are.
pub(crate) trait Shards: Send + Sync + fmt::Debug {
    /// How many there are; 0, 1, 2, ...
    fn count(&self) -> u32;

    /// Those that this node owns at the moment: a way that is shorter by a hop.
    fn here(&self) -> Vec<ShardId>;

    /// Submits operations of one shard to its owner, to be decided in order, next to each other. Two calls for one shard keep their order
    /// unless one of them comes back: while the shard moves, or its owner opens the store again, the first may follow the second.
    ///
    /// Waits a little for an owner where there is none. What certainly was not applied is tried again meanwhile; what may have been is
    /// answered with an error whose outcome is unknown. Grants whose answer nobody receives go back, and do not count as attempts.
    fn submit(&self, shard: ShardId, ops: Vec<Op>, patience: Patience) -> Pending;

    /// Those that this node owns, or has owned since it started.
    fn local_shards(&self) -> Vec<LocalShard> {
        Vec::new()
    }
}
