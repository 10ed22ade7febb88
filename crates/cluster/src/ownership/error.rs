//! Why a node cannot join the cluster.

use std::io;

use duewheel_core::store::{Node, StoreError};

/// The longest name of a node and the longest address, in bytes, so that a greeting can hold them.
pub(crate) const MAX_NAME: usize = 200;

/// Why a node cannot join the cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FleetError {
    /// The coordinator refuses, or cannot be reached.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another living node has this name, or a dead one whose lease has not run out yet.
    #[error("another living node has the name {0:?}; each node needs its own")]
    NameTaken(String),
    /// The node has no address, so no other node could reach it, and there are other nodes.
    #[error("other nodes take part ({0}), and this one has no address for them; start it with --advertise")]
    NotAlone(String),
    /// Another node runs without an address and owns all shards.
    #[error("node {0} runs in single-node mode and owns all shards; start it with --advertise")]
    OtherIsAlone(String),
    /// The name or the address is not valid.
    #[error("a node's name and address have 1 to {MAX_NAME} bytes each")]
    BadName,
    /// The node cannot listen at this address.
    #[error("cannot listen for other nodes at {0}: {1}")]
    Listen(String, io::Error),
    /// The node cannot set up TLS for connections to other nodes.
    #[error("cannot speak TLS with other nodes: {0}")]
    Tls(io::Error),
    /// A thread could not be started.
    #[error("no thread could be started: {0}")]
    Thread(io::Error),
    /// The node ended while it started.
    #[error("the node ended while it started: {0}")]
    Ended(String),
    /// The async runtime was shut down while the node started.
    #[error("the async runtime was shut down while the node started")]
    Runtime,
}

/// Why these nodes cannot form one cluster; `None` if they can.
pub(crate) fn stranger(me: &Node, nodes: &[Node]) -> Option<FleetError> {
    let mut others = nodes.iter().filter(|node| node.number != me.number);
    if me.advertise.is_empty() {
        let names: Vec<&str> = others.map(|node| &*node.name).collect();
        return (!names.is_empty()).then(|| FleetError::NotAlone(names.join(", ")));
    }
    let alone = others.find(|node| node.advertise.is_empty())?;
    Some(FleetError::OtherIsAlone(alone.name.to_string()))
}
