//! The node that shares a store with others.

use std::path::PathBuf;
use std::time::Duration;

use super::{ConfigError, Options};
use crate::span::TimeSpan;
use crate::tls;

const DEFAULT_NODE: &str = "duewheel";
/// With one node all messages can be in one shard, with ids 1, 2, 3, ...; several nodes need several shards.
const DEFAULT_SHARDS: [u32; 2] = [1, 16];
const DEFAULT_LEASE: Duration = Duration::from_secs(5);
/// With a shorter lease a busy server would lose its shards; with a longer one a dead server would keep them.
const LEASES: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60);

/// The files of the certificates by which nodes authenticate each other, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFiles {
    /// The certificate of this node, and its key.
    pub own: tls::Files,
    /// The authority of all nodes.
    pub ca: PathBuf,
}

/// A node among those that share a store.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSettings {
    /// The name of the node.
    pub name: String,
    /// The address at which other nodes reach it; `None`: it is a single node.
    pub advertise: Option<String>,
    /// The certificate that other nodes see; `None`: a key that the node generates.
    pub peer: Option<PeerFiles>,
    /// The address of the listener for other nodes, if it is not `advertise`.
    pub peer_listen: Option<String>,
    /// The number of shards of a new cluster.
    pub shards: Option<u32>,
    /// How long a shard stays with a node that does not renew its lease.
    pub lease: Duration,
    /// How long a new node must stay before others give up shards to it.
    pub settle_delay: Duration,
}

impl NodeSettings {
    /// The number of shards of a new cluster.
    pub fn shards_if_new(&self) -> u32 {
        self.shards.unwrap_or(DEFAULT_SHARDS[usize::from(self.advertise.is_some())])
    }

    /// Reads the options that concern nodes, whichever store they share.
    pub(super) fn of(options: &Options) -> Result<NodeSettings, ConfigError> {
        let bad = |what: String| Err(ConfigError::Value(what));
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        let name = options.node.clone().unwrap_or_else(|| DEFAULT_NODE.into());
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
            return bad(format!("--node {name:?}: must be 1 to 64 of A-Z a-z 0-9 - _ . :"));
        }
        if options.advertise.is_some() && options.node.is_none() {
            return bad("--advertise needs --node: nodes are told apart by their names".into());
        }
        if options.peer_listen.is_some() && options.advertise.is_none() {
            return bad("--peer-listen needs --advertise: others must know where to reach this node".into());
        }
        let lease = options.shard_lease.map_or(DEFAULT_LEASE, Duration::from);
        if !LEASES.contains(&lease) {
            return bad(format!("--shard-lease {}: must be from 1s to 60s", span(lease)));
        }
        let peer = match (options.peer_cert.clone(), options.peer_key.clone(), options.peer_ca.clone()) {
            (Some(cert), Some(key), Some(ca)) => Some(PeerFiles { own: tls::Files { cert, key }, ca }),
            (None, None, None) => None,
            (cert, key, ca) => {
                let all = [("peer-cert", cert), ("peer-key", key), ("peer-ca", ca)];
                let words = |given: bool| {
                    let words = all.iter().filter(|(_, file)| file.is_some() == given);
                    words.map(|(name, _)| format!("--{name}")).collect::<Vec<_>>().join(" and ")
                };
                return bad(format!(
                    "{} without {}: nodes need all three, or none",
                    words(true),
                    words(false)
                ));
            }
        };
        if peer.is_some() && options.advertise.is_none() {
            return bad("--peer-cert needs --advertise: a node that is alone speaks with no other".into());
        }
        Ok(NodeSettings {
            name,
            advertise: options.advertise.clone(),
            peer,
            peer_listen: options.peer_listen.clone(),
            shards: options.shards,
            lease,
            settle_delay: options.settle_delay.map_or(duewheel::DEFAULT_SETTLE_DELAY, Duration::from),
        })
    }

    /// The settings as options.
    pub(super) fn into_options(self) -> Options {
        Options {
            shards: Some(self.shards_if_new()),
            node: Some(self.name),
            advertise: self.advertise,
            peer_cert: self.peer.as_ref().map(|files| files.own.cert.clone()),
            peer_key: self.peer.as_ref().map(|files| files.own.key.clone()),
            peer_ca: self.peer.map(|files| files.ca),
            peer_listen: self.peer_listen,
            shard_lease: Some(span(self.lease)),
            settle_delay: Some(span(self.settle_delay)),
            ..Options::default()
        }
    }
}

pub(super) fn span(d: Duration) -> TimeSpan {
    TimeSpan(u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}
