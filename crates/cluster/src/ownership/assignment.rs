//! The assignment of shards to nodes: each node computes the same one from the same list of nodes.

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
