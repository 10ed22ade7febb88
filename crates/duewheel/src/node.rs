//! Opening a node of a cluster: its options, and how its parts are built.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use duewheel_cluster::{ClusterView, Fleet, FleetError, FleetOptions, PeerCertificates, Router, Started};
use duewheel_core::store::Coordinator;
use duewheel_shard::client::Client;
use duewheel_shard::lifecycle::Lifecycle;

use crate::Duewheel;
use crate::backup::Copier;
use crate::opening::{Common, Elsewhere, OpenError};
use crate::wheel::WheelParts;

/// The options of a cluster node.
///
/// ```
/// let alone = duewheel::NodeOptions::new("a");
/// let with_others = duewheel::NodeOptions::new("a").advertise("10.0.0.1:7800").shards_if_new(16);
/// ```
#[derive(Clone, Debug)]
pub struct NodeOptions {
    fleet: FleetOptions,
}

impl NodeOptions {
    /// A node of this name, which no other live node may have. Without further options it runs alone, and a new cluster
    /// has one shard.
    pub fn new(name: impl Into<String>) -> Self {
        NodeOptions { fleet: FleetOptions::new(name) }
    }

    /// The host and port at which other nodes reach this one; it also listens there. Nodes authenticate each other by a
    /// secret stored in the coordinator, and use TLS. With port 0 a free port is taken.
    #[must_use]
    pub fn advertise(mut self, address: impl Into<String>) -> Self {
        self.fleet.advertise = Some(address.into());
        self
    }

    /// The certificates that this node presents; every other node must then present one of the same authority. Without
    /// them each start of a node generates a key, which is vouched for by the cluster's secret. The secret is required
    /// in both cases.
    #[must_use]
    pub fn certificates(mut self, certificates: PeerCertificates) -> Self {
        self.fleet.certificates = Some(certificates);
        self
    }

    /// The address to listen on, if it differs from the advertised one.
    #[must_use]
    pub fn bind(mut self, address: impl Into<String>) -> Self {
        self.fleet.bind = Some(address.into());
        self
    }

    /// The number of shards of a new cluster, which cannot be changed later; an existing cluster keeps its number.
    #[must_use]
    pub fn shards_if_new(mut self, shards: u32) -> Self {
        self.fleet.shards_if_new = shards;
        self
    }

    /// How long a node that joins must stay before this one hands shards over to it;
    /// [`DEFAULT_SETTLE_DELAY`](crate::DEFAULT_SETTLE_DELAY) by default. A node that joins and leaves repeatedly thus
    /// moves no shards each time. It must be the same at all nodes: a node with another value is refused while others
    /// take part.
    #[must_use]
    pub fn settle_delay(mut self, delay: Duration) -> Self {
        self.fleet.settle_delay = delay;
        self
    }
}

/// A node that is about to join.
#[derive(Debug)]
pub(crate) struct Joining {
    pub(crate) coordinator: Arc<dyn Coordinator>,
    pub(crate) node: NodeOptions,
}

impl Elsewhere for Joining {
    fn open(
        self: Box<Self>,
        common: Common,
    ) -> Pin<Box<dyn Future<Output = Result<WheelParts, OpenError>> + Send>> {
        Box::pin(async move { Ok(join(self.coordinator, self.node.fleet, common).await?) })
    }
}

/// Joins the cluster and creates a client for it.
pub(crate) async fn join(
    coordinator: Arc<dyn Coordinator>,
    mut options: FleetOptions,
    common: Common,
) -> Result<WheelParts, FleetError> {
    let Common { policy, quotas, clock, seed } = common;
    options.quotas = quotas.clone();
    options.seed = seed;
    let Started { fleet, shared, inbox, sessions } =
        Fleet::start(coordinator, options, policy.clone(), clock).await?;
    let runtime = tokio::runtime::Handle::current();
    let router =
        Router::new(fleet.clone(), policy.clone(), &inbox, &shared, quotas.clone(), sessions, runtime);
    let life = Lifecycle::new(inbox.clone(), shared.clone());
    let client = Client::routed(inbox, shared, router, sessions);
    Ok(WheelParts { client, life, copier: Copier::None, policy, quotas, node: Some(fleet) })
}

impl Duewheel {
    /// The cluster as this node sees it, or the shards of this process; `None` for a single store.
    pub fn cluster(&self) -> Option<ClusterView> {
        self.fleet().map(Fleet::view)
    }

    /// The number of submissions that this node has forwarded to each other node since it started, by that node's name.
    pub fn cluster_forwards(&self) -> Vec<(Box<str>, u64)> {
        self.fleet().map(Fleet::forwards).unwrap_or_default()
    }

    /// Metrics of the node for `/metrics`; names without prefix.
    pub fn cluster_figures(&self) -> Option<[(&'static str, u64); 4]> {
        self.fleet().map(Fleet::figures)
    }

    fn fleet(&self) -> Option<&Fleet> {
        self.node()
    }
}
