//! Opening a node of a cluster: how it takes part, and what is put together for that.

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
use crate::builder::{Builder, Common, Elsewhere, OpenError};
use crate::wheel::WheelParts;

/// How a node takes part in a cluster.
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
    /// A node of this name, which no other living node has. Alone, and a new cluster has one shard, if nothing else is said.
    pub fn new(name: impl Into<String>) -> Self {
        NodeOptions { fleet: FleetOptions::new(name) }
    }

    /// Where other nodes reach it, host and port; it listens there. Nodes know each other by a secret that the
    /// coordinator keeps, and speak TLS. With port 0 one that is free is taken.
    #[must_use]
    pub fn advertise(mut self, address: impl Into<String>) -> Self {
        self.fleet.advertise = Some(address.into());
        self
    }

    /// What it shows to other nodes, which must then show one of the same authority, all of them. Without it each
    /// start of a node draws a key, which the cluster's secret vouches for. The secret is asked for in both cases.
    #[must_use]
    pub fn certificates(mut self, certificates: PeerCertificates) -> Self {
        self.fleet.certificates = Some(certificates);
        self
    }

    /// Where it listens, if that is not where others reach it.
    #[must_use]
    pub fn bind(mut self, address: impl Into<String>) -> Self {
        self.fleet.bind = Some(address.into());
        self
    }

    /// Into how many shards a new cluster is split, for ever; one that exists stays as it is.
    #[must_use]
    pub fn shards_if_new(mut self, shards: u32) -> Self {
        self.fleet.shards_if_new = shards;
        self
    }

    /// How long a node that comes must stay before this one gives shards up to it;
    /// [`DEFAULT_SETTLE_DELAY`](crate::DEFAULT_SETTLE_DELAY) if nothing else is said. So one that comes and goes again
    /// and again moves no shards each time. The same at all nodes: one that has another is refused while others take part.
    #[must_use]
    pub fn settle_delay(mut self, delay: Duration) -> Self {
        self.fleet.settle_delay = delay;
        self
    }
}

impl Builder {
    /// As a node of a cluster: shards of it are opened here as this node comes to own them, and every operation finds its way to the
    /// owner. [`Builder::data`] and [`Builder::durability`] do not count then, and there is no [`Duewheel::backup`].
    ///
    /// The runtime on which it is opened must live as long as the node.
    pub fn cluster(self, coordinator: Arc<dyn Coordinator>, node: NodeOptions) -> Self {
        self.elsewhere(Joining { coordinator, node })
    }
}

/// A node that is to take part.
#[derive(Debug)]
struct Joining {
    coordinator: Arc<dyn Coordinator>,
    node: NodeOptions,
}

impl Elsewhere for Joining {
    fn open(
        self: Box<Self>,
        common: Common,
    ) -> Pin<Box<dyn Future<Output = Result<WheelParts, OpenError>> + Send>> {
        Box::pin(async move { Ok(join(self.coordinator, self.node.fleet, common).await?) })
    }
}

/// Takes part, and puts a client on top.
async fn join(
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
    /// The cluster as this node sees it; `None` when this is no node of one.
    pub fn cluster(&self) -> Option<ClusterView> {
        self.fleet().map(Fleet::view)
    }

    /// Submissions that this node has sent to each other node since it started, by that node's name.
    pub fn cluster_forwards(&self) -> Vec<(Box<str>, u64)> {
        self.fleet().map(Fleet::forwards).unwrap_or_default()
    }

    /// Figures of the node for `/metrics`; names without prefix.
    pub fn cluster_figures(&self) -> Option<[(&'static str, u64); 4]> {
        self.fleet().map(Fleet::figures)
    }

    fn fleet(&self) -> Option<&Fleet> {
        self.node()
    }
}
