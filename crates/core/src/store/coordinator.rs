//! The boundary to the system by which several nodes agree on membership and on the ownership of shards.
//!
//! A [`Coordinator`] is as simple as a store. It keeps leases and numbers, and never decides which node should have
//! which shard: every node computes that itself from the result of [`Coordinator::beat`].

use std::fmt;
use std::time::Duration;

use super::{Level, Store, StoreError, Waker};
use crate::id::{Epoch, ShardId};

/// Version of the rule that assigns messages to shards. Nodes with different rules would not find each other's
/// messages, so the coordinator stores it and refuses another one.
pub const PLACEMENT: u32 = 1;

/// Largest number of shards of a cluster.
pub const MAX_SHARDS: u32 = 1024;

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The name that its operator has given it. Only one living node has it.
    pub name: Box<str>,
    /// The address at which other nodes reach it: host and port.
    pub advertise: Box<str>,
    /// The number of this run of the node. It is never given again, so a restarted node has a new one.
    pub number: u32,
}

/// The parameters with which a node joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The name that the node wants ([`Node::name`]).
    pub name: Box<str>,
    /// The address for other nodes ([`Node::advertise`]).
    pub advertise: Box<str>,
    /// The number of shards if the cluster is new. Fixed from then on.
    pub shards_if_new: u32,
    /// How long a node that joins must stay before this one gives up shards to it. It must be the same at all nodes,
    /// because nodes with different times compute different assignments.
    pub settle_delay: Duration,
}

/// The result of joining.
#[derive(Clone, PartialEq, Eq)]
pub struct Joined {
    /// The node.
    pub node: Node,
    /// The number of shards.
    pub shards: u32,
    /// The secret of the cluster, by which nodes authenticate each other.
    pub secret: [u8; 32],
    /// Whether this process is the only one that can have the shards. Then the connections of an earlier one are
    /// closed, and the leases that were bound to them are released at the start.
    pub is_alone: bool,
}

impl fmt::Debug for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joined")
            .field("node", &self.node)
            .field("shards", &self.shards)
            .finish_non_exhaustive()
    }
}

/// The secrets by which nodes authenticate each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secrets {
    /// The valid one.
    pub current: [u8; 32],
    /// The former one, while it is being replaced; some nodes may still use it.
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
    /// The node.
    pub node: Node,
    /// The epoch of the owner.
    pub epoch: Epoch,
}

/// The known ownership of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// The shard has an owner, whose lease runs.
    Owned(Owner),
    /// No lease runs.
    Free,
    /// The part of the coordinator that keeps the lease cannot be read, for this reason. The lease may run or not.
    Unknown(Box<str>),
}

impl Ownership {
    /// The owner, if it is known that there is one.
    pub fn owner(&self) -> Option<&Owner> {
        match self {
            Ownership::Owned(owner) => Some(owner),
            Ownership::Free | Ownership::Unknown(_) => None,
        }
    }
}

/// The state on which several nodes agree. Called from threads that may wait; every call ends within a bounded time.
///
/// # Obligations
///
/// 1. **Numbers are unique.** No two calls of [`Coordinator::join`] give the same number, whatever fails over in
///    between.
/// 2. **One owner at a time.** [`Coordinator::open`] gives a shard only when no other lease of it runs. The store that
///    it gives keeps the lease, and refuses everything with [`super::ErrorKind::Fenced`] once it cannot be sure of it:
///    by a clock that continues while the process is stopped, counted from before the lease was requested.
/// 3. **Fencing is permanent.** A store whose ownership has ended cannot append, whatever any clock says, even if the
///    coordinator's data was restored to an earlier time, by a failover that lost writes or a restored copy.
/// 4. **Epochs never repeat**, not even then.
/// 5. **A clean end is quick.** [`Store::close`] gives the lease back, so that the next owner need not wait for its
///    end.
pub trait Coordinator: Send + Sync + fmt::Debug {
    /// Joins the cluster.
    ///
    /// # Errors
    /// [`super::ErrorKind::Fenced`] while another living node has the name. [`super::ErrorKind::Corrupt`] for a cluster
    /// of an unknown format, one that places messages by another rule ([`PLACEMENT`]), one whose living nodes have
    /// another lease or another `settle_delay`, and one that does not exist and must not be created.
    fn join(&self, candidate: &Candidate) -> Result<Joined, StoreError>;

    /// Renews the membership of the node, and returns all living nodes, itself included, by name.
    ///
    /// # Errors
    /// [`super::ErrorKind::Fenced`] when another node has taken its name: the node must end.
    /// [`super::ErrorKind::Corrupt`] when the cluster is not the one that it has joined.
    fn beat(&self, node: &Node) -> Result<Vec<Node>, StoreError>;

    /// Leaves the cluster.
    ///
    /// # Errors
    /// [`StoreError`] when the coordinator was not reached; the others see the node as dead after
    /// [`Coordinator::lease`].
    fn leave(&self, node: &Node) -> Result<(), StoreError>;

    /// The valid secrets: the one of [`Joined`], until an operator replaces it.
    ///
    /// # Errors
    /// [`StoreError`] when they cannot be read; the known ones stay valid.
    fn secrets(&self) -> Result<Secrets, StoreError>;

    /// The ownership of each shard, in order. If some parts of the coordinator do not answer, the result contains what
    /// the others know; hanging parts are awaited only for a small part of a lease.
    ///
    /// # Errors
    /// [`StoreError`] when nothing can be read.
    fn owners(&self) -> Result<Vec<Ownership>, StoreError>;

    /// Acquires a shard and opens its store.
    ///
    /// # Errors
    /// [`super::ErrorKind::Fenced`] while another owner's lease runs. [`super::ErrorKind::Corrupt`] for a shard of
    /// another cluster, and for one that is missing although it was created before.
    fn open(&self, node: &Node, shard: ShardId, waker: Waker) -> Result<Box<dyn Store>, StoreError>;

    /// Length of a lease of a shard, and the time for which a node counts as alive after its last beat.
    fn lease(&self) -> Duration;

    /// The durability level of answers.
    fn level(&self) -> Level;
}
