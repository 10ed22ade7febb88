//! Opening a node of a cluster: how it takes part, and what is put together for that.

use std::sync::Arc;
use std::time::Duration;

use duewheel_core::policy::Policy;
use duewheel_core::store::Coordinator;

use crate::Duewheel;
use crate::backup::Copier;
use crate::client::Client;
use crate::clock::Clock;
use crate::cluster::fleet::{Fleet, FleetOptions};
use crate::cluster::router::Router;
use crate::cluster::wire::dialect::Speaks;
use crate::cluster::{ClusterView, DEFAULT_SETTLE_DELAY, FleetError, PeerCertificates};
use crate::quotas::QuotaSource;

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
        let fleet = FleetOptions {
            name: name.into(),
            advertise: None,
            bind: None,
            certificates: None,
            speaks: Speaks::of_this_process(),
            shards_if_new: 1,
            settle_delay: DEFAULT_SETTLE_DELAY,
            seed: None,
            quotas: QuotaSource::default(),
        };
        NodeOptions { fleet }
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

    /// How long a node that comes must stay before this one gives shards up to it; [`DEFAULT_SETTLE_DELAY`] if nothing else is said. So
    /// one that comes and goes again and again moves no shards each time. The same at all nodes: one
    /// that has another is refused while others take part.
    #[must_use]
    pub fn settle_delay(mut self, delay: Duration) -> Self {
        self.fleet.settle_delay = delay;
        self
    }

    pub(crate) fn seed(mut self, seed: Option<u64>) -> Self {
        self.fleet.seed = seed;
        self
    }
}

/// A node that takes part, for as long as its handle lives.
#[derive(Debug)]
pub(crate) struct Membership {
    fleet: Arc<Fleet>,
}

impl Membership {
    pub(crate) fn view(&self) -> ClusterView {
        self.fleet.view()
    }

    pub(crate) fn forwards(&self) -> Vec<(Box<str>, u64)> {
        self.fleet.forwards()
    }

    pub(crate) fn figures(&self) -> [(&'static str, u64); 4] {
        self.fleet.figures()
    }
}

/// Takes part, and puts a client on top.
pub(crate) async fn open(
    coordinator: Arc<dyn Coordinator>,
    options: NodeOptions,
    policy: Policy,
    quotas: QuotaSource,
    clock: Arc<dyn Clock>,
) -> Result<Duewheel, FleetError> {
    let options = FleetOptions { quotas: quotas.clone(), ..options.fleet };
    let started = Fleet::start(coordinator, options, policy.clone(), clock).await?;
    let runtime = tokio::runtime::Handle::current();
    let (inbox, shared) = (&started.inbox, &started.shared);
    let router = Router::new(
        started.fleet.clone(),
        policy.clone(),
        inbox,
        shared,
        quotas.clone(),
        started.sessions,
        runtime,
    );
    let client = Client::routed(started.inbox, started.shared, router, started.sessions);
    let membership = Membership { fleet: started.fleet };
    Ok(Duewheel::with(client, Copier::None, policy, quotas, Some(membership)))
}

impl Duewheel {
    /// The cluster as this node sees it; `None` when this is no node of one.
    pub fn cluster(&self) -> Option<ClusterView> {
        self.membership().map(Membership::view)
    }

    /// Submissions that this node has sent to each other node since it started, by that node's name.
    pub fn cluster_forwards(&self) -> Vec<(Box<str>, u64)> {
        self.membership().map(Membership::forwards).unwrap_or_default()
    }

    /// Figures of the node for `/metrics`; names without prefix.
    pub fn cluster_figures(&self) -> Option<[(&'static str, u64); 4]> {
        self.membership().map(Membership::figures)
    }
}
