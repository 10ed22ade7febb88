//! The assignment of shards to nodes: each node computes the same one from the same list of nodes, of the members that
//! count.
//!
//! A node that joins and leaves again and again (a process that crashes, a bad cable) would move its share of the
//! shards each time, and each move interrupts a shard. When a node leaves, others must take its shards at once; when it
//! joins, there is no hurry. So a new node counts only once it has stayed for a while. Until then it takes requests for
//! all shards, as every node does, and owns none.

use std::collections::BTreeMap;
use std::time::Duration;

use duewheel_core::store::{Node, Owner};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// For each shard, the index in `nodes` of the node that should own it. `nodes` holds names without duplicates, in any
/// order.
///
/// Every pair of a node and a shard has a score (rendezvous hashing: Thaler and Ravishankar, 1998). The best pair is
/// assigned first, then the next that is still possible; each node gets `shards / nodes`, rounded down or up. So a
/// node that joins or leaves moves few shards besides its own, and a node that returns under its name gets the shards
/// that it had.
pub(crate) fn assign(nodes: &[&str], shards: u32) -> Vec<usize> {
    let mut owners = vec![usize::MAX; shards as usize];
    if nodes.is_empty() {
        return owners;
    }
    let least = owners.len() / nodes.len();
    let mut extras = owners.len() % nodes.len();
    let mut pairs: Vec<(u64, &str, u32, usize)> = nodes
        .iter()
        .enumerate()
        .flat_map(|(at, name)| {
            (0..shards)
                .map(move |shard| (xxh3_64_with_seed(name.as_bytes(), u64::from(shard)), *name, shard, at))
        })
        .collect();
    pairs.sort_unstable_by(|a, b| b.cmp(a));
    let mut loads = vec![0; nodes.len()];
    let mut missing = owners.len();
    for (_, _, shard, at) in pairs {
        if missing == 0 {
            break;
        }
        let owner = &mut owners[shard as usize];
        let has_room = loads[at] < least || (loads[at] == least && extras > 0);
        if *owner != usize::MAX || !has_room {
            continue;
        }
        if loads[at] == least {
            extras -= 1;
        }
        *owner = at;
        loads[at] += 1;
        missing -= 1;
    }
    owners
}

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
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn names(nodes: &BTreeSet<String>) -> Vec<&str> {
        nodes.iter().map(String::as_str).collect()
    }

    /// The names of the owners.
    fn owners<'a>(nodes: &[&'a str], shards: u32) -> Vec<&'a str> {
        assign(nodes, shards).into_iter().map(|at| nodes[at]).collect()
    }

    fn moves(a: &[&str], b: &[&str]) -> usize {
        a.iter().zip(b).filter(|(a, b)| a != b).count()
    }

    fn some_nodes() -> impl Strategy<Value = BTreeSet<String>> {
        prop::collection::btree_set("[a-z]{1,6}-[0-9]{1,3}", 1..12)
    }

    proptest! {
        #[test]
        fn assignment_is_balanced_in_any_order(nodes in some_nodes(), shards in 1_u32..300) {
            let mut list = names(&nodes);
            let all = owners(&list, shards);
            for name in &list {
                let load = all.iter().filter(|owner| owner == &name).count();
                let least = shards as usize / list.len();
                prop_assert!(load == least || load == least + 1, "{name} has {load} of {shards}");
            }
            list.reverse();
            prop_assert_eq!(owners(&list, shards), all);
        }

        #[test]
        fn join_or_leave_moves_few_shards(nodes in some_nodes(), who in "new-[0-9]{1,4}", shards in 1_u32..300) {
            let without = names(&nodes);
            let mut with = without.clone();
            with.push(&who);
            let (before, after) = (owners(&without, shards), owners(&with, shards));
            let share = (shards as usize).div_ceil(with.len());
            let moved = moves(&before, &after);
            // The new node takes its share, and some shards move on to keep the balance.
            prop_assert!(moved <= 3 * share + 2, "{moved} of {shards} for {} nodes, a share is {share}", with.len());
        }
    }

    #[test]
    fn average_join_moves_near_minimum() {
        let (mut moved, mut must) = (0, 0);
        for n in 1..12 {
            for round in 0..20 {
                let all: Vec<String> = (0..=n).map(|i| format!("node-{round}-{i}")).collect();
                let all: Vec<&str> = all.iter().map(String::as_str).collect();
                moved += moves(&owners(&all[..n], 128), &owners(&all, 128));
                must += 128 / (n + 1);
            }
        }
        assert!(moved * 2 <= must * 3, "{moved} moved, {must} had to");
    }

    #[test]
    fn nobody_there_and_nothing_to_give() {
        assert_eq!(assign(&[], 2), [usize::MAX; 2]);
        assert_eq!(assign(&["a"], 0), [0_usize; 0]);
    }
}

#[cfg(test)]
mod presence_tests {
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
