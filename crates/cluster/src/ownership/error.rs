//! Why a node cannot take part.

use std::io;

use duewheel_core::store::{Node, StoreError};

/// Longest name of a node, and longest address, in bytes: a greeting has room for them.
pub(crate) const MAX_NAME: usize = 200;

/// Why a node cannot join the cluster.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// What the nodes agree by refuses, or cannot be reached.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// Another living node has the name, or one that died has it until its lease is over.
    #[error("another living node has the name {0:?}; each node needs its own")]
    NameTaken(String),
    /// Without an address no other node can reach it, and there are some.
    #[error("this node has no address for other nodes (--advertise), but others take part: {0}")]
    NotAlone(String),
    /// Another node runs without an address, and owns everything.
    #[error("node {0} takes part without an address for other nodes (--advertise), and owns everything")]
    OtherIsAlone(String),
    /// Its name or address cannot be one.
    #[error("a node's name and address have 1 to {MAX_NAME} bytes each")]
    BadName,
    /// It cannot listen there.
    #[error("cannot listen for other nodes at {0}: {1}")]
    Listen(String, io::Error),
    /// It cannot speak TLS with other nodes.
    #[error("cannot speak TLS with other nodes: {0}")]
    Tls(io::Error),
    /// No thread could be started.
    #[error("no thread could be started: {0}")]
    Thread(io::Error),
    /// It ended while it started.
    #[error("it ended while it started: {0}")]
    Ended(String),
    /// The async runtime was shut down meanwhile.
    #[error("the async runtime was shut down while starting")]
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
