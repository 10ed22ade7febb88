//! Which of the members count when shards are assigned.
//!
//! A node that joins and leaves again and again (a process that crashes, a bad cable) would move its share of the
//! shards each time, and each move interrupts a shard. When a node leaves, others must take its shards at once; when it
//! joins, there is no hurry. So a new node counts only once it has stayed for a while. Until then it takes requests for
//! all shards, as every node does, and owns none.

use std::collections::BTreeMap;
use std::time::Duration;

use duewheel_core::store::{Node, Owner};

/// The default time that a new node must stay before others give up shards to it.
pub const DEFAULT_SETTLE_DELAY: Duration = Duration::from_secs(10);

/// Since when each node has been a member without interruption, as seen by this node.
#[derive(Debug)]
pub(crate) struct Presence {
    delay: Duration,
    /// By the number of the node: a node that starts again has a new number.
    since: BTreeMap<u32, Duration>,
}

impl Presence {
    /// Creates it without nodes.
    pub(crate) fn new(delay: Duration) -> Self {
        Presence { delay, since: BTreeMap::new() }
    }

    /// Records that exactly these nodes are members. `now` is the time since any fixed moment.
    pub(crate) fn saw(&mut self, now: Duration, nodes: &[Node]) {
        self.since.retain(|number, _| nodes.iter().any(|node| node.number == *number));
        self.saw_some(now, nodes);
    }

    /// Records that these nodes are members; about others nothing is known, for example just after an outage of the
    /// coordinator that all nodes have seen.
    pub(crate) fn saw_some(&mut self, now: Duration, nodes: &[Node]) {
        for node in nodes {
            self.since.entry(node.number).or_insert(now);
        }
    }

    /// The members of `nodes` that count for the assignment: those that have stayed long enough, and those that own a
    /// shard. If no node has stayed long enough as far as this node knows, the cluster or this node is new, and all
    /// count.
    pub(crate) fn settled<'a>(
        &self,
        now: Duration,
        nodes: &'a [Node],
        owners: &[Option<Owner>],
    ) -> Vec<&'a Node> {
        let stayed = |node: &&Node| {
            self.since.get(&node.number).is_some_and(|since| now.saturating_sub(*since) >= self.delay)
        };
        if !nodes.iter().any(|node| stayed(&node)) {
            return nodes.iter().collect();
        }
        let owns = |node: &&Node| owners.iter().flatten().any(|owner| owner.node.number == node.number);
        nodes.iter().filter(|node| stayed(node) || owns(node)).collect()
    }
}

#[cfg(test)]
mod tests {
    use duewheel_core::id::Epoch;

    use super::*;

    fn node(number: u32) -> Node {
        Node { number, name: format!("n{number}").into(), advertise: "h:1".into() }
    }

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn numbers(nodes: &[&Node]) -> Vec<u32> {
        nodes.iter().map(|node| node.number).collect()
    }

    #[test]
    fn late_node_waits_in_running_cluster() {
        let mut presence = Presence::new(s(10));
        let (a, b, c) = (node(1), node(2), node(3));
        let first = [a.clone(), b.clone()];
        presence.saw(s(100), &first);
        assert_eq!(numbers(&presence.settled(s(100), &first, &[])), [1, 2]);
        let all = [a, b, c];
        presence.saw(s(111), &all);
        assert_eq!(numbers(&presence.settled(s(111), &all, &[])), [1, 2]);
        presence.saw(s(120), &all);
        assert_eq!(numbers(&presence.settled(s(120), &all, &[])), [1, 2]);
        presence.saw(s(121), &all);
        assert_eq!(numbers(&presence.settled(s(121), &all, &[])), [1, 2, 3]);
    }

    #[test]
    fn rejoining_node_settles_again_unless_owner() {
        let mut presence = Presence::new(s(10));
        let both = [node(1), node(2)];
        presence.saw(s(0), &both);
        for flap in 0..5 {
            let now = s(20 + flap * 8);
            presence.saw(now, &both[..1]);
            assert_eq!(numbers(&presence.settled(now, &both[..1], &[])), [1]);
            presence.saw(now + s(2), &both);
            presence.saw(now + s(7), &both);
            assert_eq!(numbers(&presence.settled(now + s(7), &both, &[None])), [1], "flap {flap}");
            let owner = Owner { node: node(2), epoch: Epoch(1) };
            assert_eq!(numbers(&presence.settled(now + s(7), &both, &[None, Some(owner)])), [1, 2]);
        }
    }
}
