//! The systems that are compared, and the runs that include them.

use std::fmt;

use crate::redis::parts::Parts;

/// A way to have delayed messages on Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum System {
    /// The home-made queue, a script call for each message; it polls every 10 ms
    Homemade,
    /// The same, polling every 100 ms
    HomemadeSlow,
    /// The same with 100 messages in a script call
    HomemadeBatch,
    /// BullMQ, one job a call
    Bullmq,
    /// BullMQ, 500 jobs a call
    BullmqBulk,
    /// duewheel over beanstalkd's protocol, a put for each message
    Beanstalk,
    /// duewheel over HTTP, a request for each message
    Http,
    /// duewheel over HTTP, 1000 messages a request
    Ndjson,
    /// The same, each message with a key
    NdjsonKeyed,
    /// The same without keys on duewheel's own log, synced before each answer
    NdjsonLog,
    /// One node on one Redis, 16 shards
    OneNode,
    /// One node on a Redis Cluster of three masters, 16 shards
    OneNodeCluster,
    /// Three nodes on a Redis Cluster of three masters, 16 shards
    ThreeNodes,
    /// Two nodes, one shard; requests go to the node that owns it
    AtOwner,
    /// The same; requests go to the other node, which forwards them over TLS
    AtOther,
    /// A value for 1000 messages
    PartBlob,
    /// A field of a hash for each message
    PartField,
    /// That, and a member of a sorted set
    PartOneSet,
    /// That, and a member of each of two sorted sets
    PartTwoSets,
    /// The store alone, groups of one record
    Groups1,
    /// The store alone, groups of 10 records
    Groups10,
    /// The store alone, groups of 100 records
    Groups100,
    /// The store alone, groups of 1000 records
    Groups1000,
}

impl System {
    /// Whether it needs a duewheel server.
    pub(crate) fn is_duewheel(self) -> bool {
        use System::*;
        matches!(
            self,
            Beanstalk
                | Http
                | Ndjson
                | NdjsonKeyed
                | NdjsonLog
                | OneNode
                | OneNodeCluster
                | ThreeNodes
                | AtOwner
                | AtOther
        )
    }

    /// The parts that are written, if the system is Redis alone.
    pub(crate) fn parts(self) -> Option<Parts> {
        match self {
            System::PartBlob => Some(Parts::Blob),
            System::PartField => Some(Parts::Field),
            System::PartOneSet => Some(Parts::FieldAndSets(1)),
            System::PartTwoSets => Some(Parts::FieldAndSets(2)),
            _ => None,
        }
    }

    /// The records of a group, if the system is the store alone.
    pub(crate) fn group(self) -> Option<usize> {
        match self {
            System::Groups1 => Some(1),
            System::Groups10 => Some(10),
            System::Groups100 => Some(100),
            System::Groups1000 => Some(1_000),
            _ => None,
        }
    }

    /// Whether it is BullMQ.
    pub(crate) fn is_bullmq(self) -> bool {
        matches!(self, System::Bullmq | System::BullmqBulk)
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            System::Homemade => "home-made",
            System::HomemadeSlow => "home-made, polls every 100 ms",
            System::HomemadeBatch => "home-made, 100 a call",
            System::Bullmq => "BullMQ",
            System::BullmqBulk => "BullMQ, 500 a call",
            System::Beanstalk => "duewheel, beanstalkd's protocol",
            System::Http => "duewheel, HTTP",
            System::Ndjson => "duewheel, NDJSON x 1000",
            System::NdjsonKeyed => "duewheel, NDJSON x 1000, keys",
            System::NdjsonLog => "duewheel, NDJSON x 1000, own log",
            System::OneNode => "1 node, 1 Redis",
            System::OneNodeCluster => "1 node, 3 masters",
            System::ThreeNodes => "3 nodes, 3 masters",
            System::AtOwner => "2 nodes, at the owner",
            System::AtOther => "2 nodes, at the other one",
            System::PartBlob => "a value for 1000",
            System::PartField => "a field of a hash",
            System::PartOneSet => "... and a member of a sorted set",
            System::PartTwoSets => "... and of two",
            System::Groups1 => "groups of 1",
            System::Groups10 => "groups of 10",
            System::Groups100 => "groups of 100",
            System::Groups1000 => "groups of 1000",
        })
    }
}

/// The runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Run {
    /// Enqueues with many in flight
    Pipelined,
    /// Enqueues one by one, on many connections
    Alone,
    /// Enqueued with a delay, delivered and acked
    Through,
    /// How late messages come
    Late,
    /// Enqueues with keys into one node and into three
    Nodes,
    /// Enqueued, delivered and acked by one node and by three
    NodesThrough,
    /// Enqueues one by one at the owner of the shard, and at a node that forwards them
    Forwarded,
    /// The same from end to end: enqueued, delivered and acked, a request for each
    ForwardedThrough,
    /// The same in batches of 1000
    ForwardedBatches,
    /// What Redis itself needs for the parts of a message
    Parts,
    /// The store alone takes new messages
    StorePut,
    /// The store alone takes grants
    StoreGrant,
    /// The store alone takes acks
    StoreAck,
}

impl Run {
    pub(crate) const ALL: [Run; 13] = [
        Run::Pipelined,
        Run::Alone,
        Run::Through,
        Run::Late,
        Run::Nodes,
        Run::NodesThrough,
        Run::Forwarded,
        Run::ForwardedThrough,
        Run::ForwardedBatches,
        Run::Parts,
        Run::StorePut,
        Run::StoreGrant,
        Run::StoreAck,
    ];

    pub(crate) fn systems(self) -> &'static [System] {
        use System::*;
        match self {
            Run::Pipelined => {
                &[Homemade, HomemadeBatch, BullmqBulk, Beanstalk, Ndjson, NdjsonKeyed, NdjsonLog]
            }
            Run::Alone => &[Homemade, Bullmq, Beanstalk, Http],
            Run::Through => &[Homemade, Bullmq, BullmqBulk, Http, Ndjson, NdjsonLog],
            Run::Late => &[Homemade, HomemadeSlow, Ndjson, NdjsonLog],
            Run::Nodes | Run::NodesThrough => &[OneNode, OneNodeCluster, ThreeNodes],
            Run::Forwarded | Run::ForwardedThrough | Run::ForwardedBatches => &[AtOwner, AtOther],
            Run::Parts => &[PartBlob, PartField, PartOneSet, PartTwoSets],
            Run::StorePut | Run::StoreGrant | Run::StoreAck => &[Groups1000, Groups100, Groups10, Groups1],
        }
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Run::Pipelined => "enqueue, pipelined",
            Run::Alone => "enqueue, one by one",
            Run::Through => "end to end",
            Run::Late => "lateness",
            Run::Nodes => "enqueue with keys",
            Run::NodesThrough => "end to end, nodes",
            Run::Forwarded => "forwarded enqueue, one by one",
            Run::ForwardedThrough => "forwarded end to end, one by one",
            Run::ForwardedBatches => "forwarded end to end, batches",
            Run::Parts => "Redis alone",
            Run::StorePut => "store alone, puts",
            Run::StoreGrant => "store alone, grants",
            Run::StoreAck => "store alone, acks",
        })
    }
}
