//! The faults and events that really happened in a run of several nodes.

/// The faults and events of a run; a run without faults proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterFacts {
    /// Nodes killed.
    pub kills: u64,
    /// Nodes that ended on request.
    pub leaves: u64,
    /// Pauses of nodes.
    pub pauses: u64,
    /// Pauses that were longer than a lease.
    pub pauses_beyond: u64,
    /// The number of times that a node was cut off from the store.
    pub cuts: u64,
    /// The number of times that answers of the store were lost for a while.
    pub lossy: u64,
    /// The number of times that two nodes were cut off from each other.
    pub splits: u64,
    /// Connections between nodes that broke.
    pub resets: u64,
    /// Bytes between nodes that never arrived.
    pub bytes_lost: u64,
    /// Shards opened.
    pub reigns: u64,
    /// Shards opened by another node than before.
    pub takeovers: u64,
    /// Leases that ran out while their owner still had its store.
    pub leases_run_out: u64,
    /// Groups of owners whose reign had ended, refused by the server.
    pub stale_writes_refused: u64,
    /// Renewals of such owners, refused as well.
    pub stale_renewals_refused: u64,
    /// Groups applied after their owner had given them up.
    pub late_writes: u64,
    /// Groups that their owner gave up because no answer arrived.
    pub unanswered_writes: u64,
    /// Writes to journals that were sent again because no answer arrived.
    pub writes_repeated: u64,
    /// Calls of the coordinator that were carried out, and whose answers were lost.
    pub answers_lost: u64,
    /// Submissions sent to another node.
    pub forwards: u64,
    /// Submissions sent again because their shard had moved or could not be reached.
    pub sent_again: u64,
    /// Requests with an outcome that is unknown to their clients.
    pub unknown: u64,
    /// Those of them that were sent to a node which was alive.
    pub unknown_of_living: u64,
    /// Nodes whose wall clock is wrong.
    pub skewed: u64,
    /// Wall clocks stepped while a shard was opened.
    pub stepped: u64,
    /// Times that the store was set back.
    pub set_backs: u64,
    /// Writes to journals that it lost by that.
    pub writes_lost: u64,
    /// Changes that a node has found to be lost.
    pub lost_noticed: u64,
    /// The longest time for which a shard was without an owner since the last fault, in ms.
    pub longest_away_ms: u64,
}

impl ClusterFacts {
    fn all(&mut self) -> [(&'static str, &mut u64); 27] {
        let ClusterFacts { kills, leaves, pauses, pauses_beyond, cuts, lossy, splits, resets, .. } = self;
        let ClusterFacts { bytes_lost, reigns, takeovers, leases_run_out, stale_writes_refused, .. } = self;
        let ClusterFacts { stale_renewals_refused, late_writes, unanswered_writes, answers_lost, .. } = self;
        let ClusterFacts { forwards, sent_again, unknown, unknown_of_living, skewed, .. } = self;
        let ClusterFacts { set_backs, writes_lost, lost_noticed, writes_repeated, stepped, .. } = self;
        [
            ("nodes killed", kills),
            ("nodes that left", leaves),
            ("pauses", pauses),
            ("pauses beyond the lease", pauses_beyond),
            ("nodes cut off from the store", cuts),
            ("ways to the store that lost answers", lossy),
            ("nodes cut off from each other", splits),
            ("connections broken", resets),
            ("bytes lost between nodes", bytes_lost),
            ("shards opened", reigns),
            ("takeovers", takeovers),
            ("leases that ran out", leases_run_out),
            ("stale writes refused", stale_writes_refused),
            ("stale renewals refused", stale_renewals_refused),
            ("writes applied after they were given up", late_writes),
            ("writes without an answer", unanswered_writes),
            ("writes sent again", writes_repeated),
            ("answers of the coordinator lost", answers_lost),
            ("forwards", forwards),
            ("submissions sent again", sent_again),
            ("unknown outcomes", unknown),
            ("unknown outcomes of living nodes", unknown_of_living),
            ("wrong wall clocks", skewed),
            ("wall clocks stepped while a shard was opened", stepped),
            ("times that the store was set back", set_backs),
            ("writes to journals that it lost", writes_lost),
            ("lost changes that a node noticed", lost_noticed),
        ]
    }

    /// Adds the facts of another run.
    pub fn add(&mut self, other: &ClusterFacts) {
        let mut other = *other;
        self.longest_away_ms = self.longest_away_ms.max(other.longest_away_ms);
        for ((_, mine), (_, theirs)) in self.all().into_iter().zip(other.all()) {
            *mine += *theirs;
        }
    }

    /// Checks that this number of runs have met every fault often enough; the error lists what is missing.
    pub fn require(&self, runs: u64) -> Result<(), String> {
        let mut seen = *self;
        let missing: Vec<String> = seen
            .all()
            .into_iter()
            .map(|(what, seen)| (what, *seen, (runs / 10).max(1)))
            .filter(|(_, seen, least)| seen < least)
            .map(|(what, seen, least)| format!("{what}: {seen} of at least {least}"))
            .collect();
        if missing.is_empty() { Ok(()) } else { Err(missing.join(", ")) }
    }
}
