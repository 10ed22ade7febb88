//! The boundary to whatever several nodes agree by: who takes part, and who owns which shard.
//!
//! A [`Coordinator`] is as dumb as a store. It keeps leases and numbers, and never decides which node should have which shard: every node
//! computes that for itself out of what [`Coordinator::beat`] gives.

use std::fmt;
use std::time::Duration;

use super::{Level, Store, StoreError, Waker};
use crate::id::{Epoch, ShardId};

/// Version of the rule that says in which shard a message of a queue is. Nodes that place by different rules would not
/// find each other's messages, so whatever they agree by keeps it and refuses another.
pub const PLACEMENT: u32 = 1;

/// Most shards of a cluster.
pub const MAX_SHARDS: u32 = 1024;

/// A node that takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its operator's name for it. One living node has it.
    pub name: Box<str>,
    /// Where other nodes reach it: host and port.
    pub advertise: Box<str>,
    /// This life of it. Never given again, so that a node that was started anew is another one.
    pub number: u32,
}

/// What a node wants to take part as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// As in [`Node`].
    pub name: Box<str>,
    /// As in [`Node`].
    pub advertise: Box<str>,
    /// How many shards there are to be if nobody has taken part before. Fixed from then on.
    pub shards_if_new: u32,
    /// How long a node that comes must stay before this one gives shards up to it. Nodes that wait for different times
    /// want different owners, so it is the same at all.
    pub settle_delay: Duration,
}

/// What a node is told when it takes part.
#[derive(Clone, PartialEq, Eq)]
pub struct Joined {
    /// The node.
    pub node: Node,
    /// How many shards there are.
    pub shards: u32,
    /// Known to the nodes alone, so that they know each other.
    pub secret: [u8; 32],
}

impl fmt::Debug for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joined")
            .field("node", &self.node)
            .field("shards", &self.shards)
            .finish_non_exhaustive()
    }
}

/// What nodes know each other by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secrets {
    /// The one that counts.
    pub current: [u8; 32],
    /// While it is being replaced: the one before, which some nodes may still have as theirs.
    pub former: Option<[u8; 32]>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

/// The owner of a shard, while its lease runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Which node.
    pub node: Node,
    /// Its reign.
    pub epoch: Epoch,
}

/// Keeps what several nodes agree by. Called from threads that may wait; every call ends within a bounded time.
///
/// # Obligations
///
/// 1. **One life a number.** No two calls of [`Coordinator::join`] give the same number, whatever fails over in between.
/// 2. **One owner at a time.** [`Coordinator::open`] gives a shard only when no other lease of it runs. The store that it gives keeps the
///    lease, and refuses everything with [`super::ErrorKind::Fenced`] once it cannot be sure of it: by a clock that goes on while the
///    process is stopped, counted from before the lease was asked for.
/// 3. **Fenced for good.** A store whose reign is over cannot append, whatever any clock says, even if what is kept was set back to an
///    earlier time, by a failover that lost writes or a restored copy.
/// 4. **Epochs never come again**, not even then.
/// 5. **A clean end is quick.** [`Store::close`] gives the lease back, so that the next owner need not wait for its end.
pub trait Coordinator: Send + Sync + fmt::Debug {
    /// Takes part.
    ///
    /// # Errors
    /// [`super::ErrorKind::Fenced`] while another living node has the name. [`super::ErrorKind::Corrupt`] for a cluster
    /// of an unknown format, one that places by another rule ([`PLACEMENT`]), one whose living nodes have another lease or
    /// another `settle_delay`, and one that is not there and must not be made.
    fn join(&self, candidate: &Candidate) -> Result<Joined, StoreError>;

    /// Says that the node is alive, and gives all nodes that are, itself included, by name.
    ///
    /// # Errors
    /// [`super::ErrorKind::Fenced`] when another node has its name by now: it must end. [`super::ErrorKind::Corrupt`]
    /// when there is another cluster than the one that it joined.
    fn beat(&self, node: &Node) -> Result<Vec<Node>, StoreError>;

    /// Takes part no more.
    ///
    /// # Errors
    /// When it could not be said; the others find out after [`Coordinator::lease`].
    fn leave(&self, node: &Node) -> Result<(), StoreError>;

    /// The secrets that are known at present: those of [`Joined`], until an operator replaces them.
    ///
    /// # Errors
    /// When they cannot be known; those that were known stay.
    fn secrets(&self) -> Result<Secrets, StoreError>;

    /// The owner of each shard, in order; `None` where no lease runs.
    ///
    /// # Errors
    /// When it cannot be known.
    fn owners(&self) -> Result<Vec<Option<Owner>>, StoreError>;

    /// Takes a shard and opens its store.
    ///
    /// # Errors
    /// [`super::ErrorKind::Fenced`] while another owner's lease runs. [`super::ErrorKind::Corrupt`] for a shard of
    /// another cluster, and for one that is not there although it was made before.
    fn open(&self, node: &Node, shard: ShardId, waker: Waker) -> Result<Box<dyn Store>, StoreError>;

    /// How long a lease of a shard runs, and for how long a node counts as alive after it was last heard of.
    fn lease(&self) -> Duration;

    /// What a durable answer means.
    fn level(&self) -> Level;
}
