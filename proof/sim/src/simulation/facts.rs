//! What really happened in a run.

use duewheel_sim_disk::Seen;

/// What really happened in a run: one without faults proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Processes killed, and machines that lost their power.
    pub kills: u64,
    /// Power losses.
    pub power_losses: u64,
    /// Of both, in the middle of a call to the disk.
    pub in_a_call: u64,
    /// Of both, before it served.
    pub recovering: u64,
    /// Times the store failed and was opened again by the same process.
    pub reopened: u64,
    /// Starts that ended with an error, to be tried again.
    pub failed_starts: u64,
    /// Times the process stood still.
    pub pauses: u64,
    /// Steps of the wall clock.
    pub steps: u64,
    /// Times the wall clock was slewed for a while.
    pub slews: u64,
    /// By how much, in both directions, in µs.
    pub slewed_us: u64,
    /// Messages enqueued with a body at the size limit.
    pub at_the_limit: u64,
    /// Groups of at least a quarter of the size that a store agrees to: there the driver cuts.
    pub large_groups: u64,
    /// Most queues that had ready messages at a time, of each run.
    pub ready_queues: u64,
    /// Times that all that was ready was in memory beside many queues, where it fits.
    pub fitting: u64,
    /// Times that the files of flushes and merges could not be written for a while.
    pub flush_troubles: u64,
    /// Times the disk was full for a while.
    pub full: u64,
    /// Enqueues refused because of that.
    pub refused_full: u64,
    /// Panics in background workers.
    pub panics: u64,
    /// Runs written, and merges done.
    pub flushes: u64,
    /// Merges done.
    pub merges: u64,
    /// Look-ups that waited for the disk beside the driver.
    pub fetches: u64,
    /// Requests of more operations than a batch of the driver.
    pub large_calls: u64,
    /// Requests that name many messages, and were sent again.
    pub repeats: u64,
    /// Rows of the outbox that were recorded, and came again.
    pub replayed_rows: u64,
    /// The largest number of the driver's rounds in which a request waited for its answer.
    pub most_rounds: u64,
    /// Turns that callers took while the driver's thread slept.
    pub lent: u64,
    /// What the disk has seen.
    pub disk: Seen,
}

impl Facts {
    /// Counts those of another run, too.
    pub fn add(&mut self, other: &Facts) {
        let Facts { kills, power_losses, in_a_call, recovering, reopened, failed_starts, pauses, .. } = other;
        let Facts { steps, full, refused_full, panics, flushes, merges, fetches, disk, .. } = other;
        let Facts {
            slews, slewed_us, at_the_limit, large_groups, ready_queues, fitting, flush_troubles, ..
        } = other;
        let Facts { large_calls, repeats, replayed_rows, most_rounds, lent, .. } = other;
        self.lent += lent;
        self.replayed_rows += replayed_rows;
        self.large_calls += large_calls;
        self.repeats += repeats;
        self.most_rounds = self.most_rounds.max(*most_rounds);
        self.slews += slews;
        self.slewed_us += slewed_us;
        self.at_the_limit += at_the_limit;
        self.large_groups += large_groups;
        self.ready_queues += ready_queues;
        self.fitting += fitting;
        self.flush_troubles += flush_troubles;
        self.kills += kills;
        self.power_losses += power_losses;
        self.in_a_call += in_a_call;
        self.recovering += recovering;
        self.reopened += reopened;
        self.failed_starts += failed_starts;
        self.pauses += pauses;
        self.steps += steps;
        self.full += full;
        self.refused_full += refused_full;
        self.panics += panics;
        self.flushes += flushes;
        self.merges += merges;
        self.fetches += fetches;
        self.disk.failed += disk.failed;
        self.disk.failed_syncs += disk.failed_syncs;
        self.disk.full += disk.full;
        self.disk.short += disk.short;
        self.disk.lost_bytes += disk.lost_bytes;
        self.disk.lost_names += disk.lost_names;
        self.disk.panics += disk.panics;
        self.disk.troubled += disk.troubled;
    }

    /// Whether so many runs have met every fault often enough; else what is missing.
    pub fn require(&self, runs: u64) -> Result<(), String> {
        let least = [
            ("kills", self.kills, runs),
            ("power losses", self.power_losses, runs / 2),
            ("ends in the middle of a call", self.in_a_call, runs / 2),
            ("ends of starts", self.recovering, runs / 5),
            ("stores opened again", self.reopened, runs / 5),
            ("failed starts", self.failed_starts, runs / 50),
            ("pauses", self.pauses, runs / 3),
            ("steps of the clock", self.steps, runs / 3),
            ("slews of the clock", self.slews, runs / 5),
            ("µs that the clock was slewed", self.slewed_us, runs * 100),
            ("bodies at the limit", self.at_the_limit, runs),
            ("groups that were cut for their size", self.large_groups, runs / 2),
            ("queues with ready messages at a time", self.ready_queues, runs * 3),
            ("times that all ready messages were in memory", self.fitting, runs),
            ("troubles of flushes", self.flush_troubles, runs / 5),
            ("calls that met them", self.disk.troubled, runs / 5),
            ("times the disk was full", self.full, runs / 5),
            ("enqueues refused by a full disk", self.refused_full, runs / 5),
            ("panics of workers", self.panics, runs / 20),
            ("flushes", self.flushes, runs),
            ("merges", self.merges, runs / 2),
            ("look-ups that waited for the disk", self.fetches, runs),
            ("requests larger than a batch", self.large_calls, runs),
            ("repeated requests of many messages", self.repeats, runs),
            ("rows of the outbox that came again", self.replayed_rows, runs),
            ("turns that callers took", self.lent, runs),
            ("failed calls", self.disk.failed, runs / 2),
            ("failed syncs", self.disk.failed_syncs, runs / 20),
            ("short writes", self.disk.short, runs),
            ("bytes lost", self.disk.lost_bytes, runs * 1_000),
            ("names lost", self.disk.lost_names, runs / 10),
        ];
        let missing: Vec<String> = least
            .iter()
            .filter(|(_, seen, least)| seen < least)
            .map(|(what, seen, least)| format!("{what}: {seen} of at least {least}"))
            .collect();
        if missing.is_empty() { Ok(()) } else { Err(missing.join(", ")) }
    }
}
