//! Finds the jobs. beanstalkd's protocol cannot list them, so each id is queried, a thousand in flight.

use std::collections::BTreeMap;

use crate::reply::BadReply;
use crate::source::{BeanstalkSource, Body, TubeHead};

/// The number of commands sent together; two such groups are in flight.
const GROUP: usize = 500;
/// The number of ids above all known ones that may be queried in vain when a draining source counts more jobs than were
/// found.
pub(crate) const MAX_MISSES: u64 = 10_000_000;

/// Jobs that were found: ids by tube.
#[derive(Debug, Default)]
pub(crate) struct FoundJobs {
    tubes: BTreeMap<String, Vec<u64>>,
    pub(crate) jobs: u64,
    highest: u64,
}

/// When a scan stops before it has tried all ids.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ScanLimit {
    /// The number of jobs that are enough.
    pub(crate) jobs: Option<u64>,
    /// The number of ids in a row without a job after which the scan stops.
    pub(crate) misses: Option<u64>,
}

impl FoundJobs {
    /// The ids of each tube, ascending.
    pub(crate) fn into_tubes(self) -> BTreeMap<String, Vec<u64>> {
        let mut tubes = self.tubes;
        for ids in tubes.values_mut() {
            ids.sort_unstable();
            ids.dedup();
        }
        tubes
    }

    fn add(&mut self, tube: &str, id: u64) {
        self.jobs += 1;
        self.highest = self.highest.max(id);
        match self.tubes.get_mut(tube) {
            Some(ids) => ids.push(id),
            None => drop(self.tubes.insert(tube.to_owned(), vec![id])),
        }
    }
}

/// Queries ids until they end or enough jobs are found. `saw` is called with the number of ids queried.
pub(crate) fn scan(
    source: &mut BeanstalkSource,
    mut ids: impl Iterator<Item = u64>,
    wanted: impl Fn(&str, u64) -> bool,
    enough: ScanLimit,
    found: &mut FoundJobs,
    mut saw: impl FnMut(u64, &FoundJobs),
) -> Result<(), BadReply> {
    let mut send = |source: &mut BeanstalkSource| {
        let group: Vec<u64> = ids.by_ref().take(GROUP).collect();
        if !group.is_empty() {
            source.send(commands("stats-job", &group));
        }
        group
    };
    let mut misses = 0;
    let mut group = send(source);
    while !group.is_empty() {
        let done = enough.jobs.is_some_and(|n| found.jobs >= n) || enough.misses.is_some_and(|n| misses >= n);
        let next = if done { Vec::new() } else { send(source) };
        for id in &group {
            misses += 1;
            let Some(job) = source.read_stats_job(*id)? else { continue };
            if wanted(&job.tube, *id) {
                misses = 0;
                found.add(&job.tube, *id);
            }
        }
        saw(group.len() as u64, found);
        group = next;
    }
    Ok(())
}

/// The highest id among the heads of the tubes: jobs that certainly exist, whatever the latest id is.
pub(crate) fn highest_head(source: &mut BeanstalkSource, tubes: &[String]) -> Result<u64, BadReply> {
    let mut highest = 0;
    for tube in tubes {
        source.use_tube(tube)?;
        for head in [TubeHead::Ready, TubeHead::Delayed, TubeHead::Buried] {
            if let Some((id, Body::Kept(_) | Body::Skipped(_))) = source.head(head)? {
                highest = highest.max(id);
            }
        }
    }
    Ok(highest)
}

/// The command `word` for each id, to be sent together.
pub(crate) fn commands(word: &str, ids: &[u64]) -> Vec<u8> {
    ids.iter().flat_map(|id| format!("{word} {id}\r\n").into_bytes()).collect()
}
