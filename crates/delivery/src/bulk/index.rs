//! The jobs of each tenant, in memory: how many there are, and which of them began first.
//!
//! The index is built by a scan of all records, and kept true by what this node writes. Other nodes write as well: the
//! number of records that were ever created tells whether any is missing here, and whether a job has ended is read
//! from its record before its turn depends on that.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::record::{BulkRecord, BulkTenant};
use crate::limits::{BULK_INDEX_AGE, BULK_INDEX_SHARE, BULK_REREAD_AGE, BULK_TENANT_RUNS, MAX_JOBS};

/// The jobs that this node knows of.
#[derive(Debug, Default)]
pub(super) struct JobIndex {
    jobs: Mutex<IndexedJobs>,
    /// Held by the task that scans, so that all others wait for the same scan.
    pub(super) scanning: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct IndexedJobs {
    by_name: HashMap<String, IndexedJob>,
    tenants: HashMap<BulkTenant, TenantJobs>,
    /// The number of scans that were begun.
    scans: u64,
    /// The last scan that was completed: its number, its end, and its duration.
    complete: Option<(u64, Instant, Duration)>,
    /// Records that were ever created, as of the last scan and by this node since.
    created: u64,
}

/// The properties of a job that its tenant's limits depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IndexedJob {
    tenant: BulkTenant,
    created: u64,
    ended: Option<u64>,
    /// The number of scans that were begun before it was last noted.
    noted: u64,
}

#[derive(Debug, Default)]
struct TenantJobs {
    /// Names of jobs that have not ended, behind their beginnings.
    unended: BTreeSet<(u64, String)>,
    /// Names of jobs that have ended, behind their ends.
    ended: BTreeSet<(u64, String)>,
}

/// Whether a tenant may begin one more job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum JobRoom {
    Free,
    /// Once the job with this name is removed, which has ended first.
    Replaces(String),
    /// All its jobs are unended.
    Full,
}

impl IndexedJob {
    pub(super) fn of(record: &BulkRecord) -> Self {
        IndexedJob { tenant: record.tenant.clone(), created: record.created, ended: record.ended, noted: 0 }
    }
}

impl JobIndex {
    fn lock(&self) -> MutexGuard<'_, IndexedJobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all jobs are in the index, if so many were ever created.
    pub(super) fn has_all(&self, created: u64) -> bool {
        let jobs = self.lock();
        let is_complete = |(scan, at, _): (u64, Instant, Duration)| {
            scan == jobs.scans && at.elapsed() < BULK_INDEX_AGE && jobs.created == created
        };
        jobs.complete.is_some_and(is_complete)
    }

    /// Whether the records were read a while ago. Scans that follow from refusals and from ends of jobs take a small
    /// share of the time, however many there are.
    pub(super) fn is_old(&self) -> bool {
        let is_old = |(_, at, took): (u64, Instant, Duration)| {
            at.elapsed() > BULK_REREAD_AGE.max(took.saturating_mul(BULK_INDEX_SHARE))
        };
        self.lock().complete.is_none_or(is_old)
    }

    /// The number of scans that were begun.
    pub(super) fn scans(&self) -> u64 {
        self.lock().scans
    }

    /// Begins a scan. `created`: the number of records that were created before it.
    pub(super) fn begin_scan(&self, created: u64) -> u64 {
        let mut jobs = self.lock();
        jobs.scans += 1;
        jobs.created = created;
        jobs.scans
    }

    /// Takes over what a scan has found, except for jobs that this node has written since it began.
    pub(super) fn end_scan(
        &self,
        scan: u64,
        took: Duration,
        found: impl Iterator<Item = (String, IndexedJob)>,
    ) {
        let mut jobs = self.lock();
        let since = std::mem::take(&mut jobs.by_name);
        jobs.tenants.clear();
        for (name, job) in since.into_iter().filter(|(_, job)| job.noted >= scan).chain(found) {
            if !jobs.by_name.contains_key(&name) {
                jobs.insert(name, job);
            }
        }
        jobs.complete = Some((scan, Instant::now(), took));
    }

    /// Notes what the record of a job says. A job that has ended stays so.
    pub(super) fn note(&self, name: &str, record: &BulkRecord) {
        let mut jobs = self.lock();
        let ended = jobs.remove(name).and_then(|former| former.ended);
        let job = IndexedJob::of(record);
        let job = IndexedJob { ended: job.ended.or(ended), noted: jobs.scans, ..job };
        jobs.insert(name.to_owned(), job);
    }

    /// Notes a job that this node has created. `scans`: the number of scans before the call that created it.
    pub(super) fn created(&self, name: &str, record: &BulkRecord, scans: u64) {
        self.note(name, record);
        let mut jobs = self.lock();
        // Otherwise a scan that began in between may have counted it already; the next look finds out.
        jobs.created += u64::from(scans == jobs.scans);
    }

    /// Notes that the record of a job is gone.
    pub(super) fn removed(&self, name: &str) {
        self.lock().remove(name);
    }

    /// The unended jobs of a tenant that began first, as many as are worked on at a time.
    pub(super) fn first(&self, tenant: &BulkTenant) -> Vec<String> {
        let jobs = self.lock();
        let unended = jobs.tenants.get(tenant).into_iter().flat_map(|jobs| &jobs.unended);
        unended.take(BULK_TENANT_RUNS).map(|(_, name)| name.clone()).collect()
    }

    pub(super) fn room(&self, tenant: &BulkTenant) -> JobRoom {
        let jobs = self.lock();
        let Some(of_it) = jobs.tenants.get(tenant) else { return JobRoom::Free };
        match of_it.ended.first() {
            _ if ((of_it.unended.len() + of_it.ended.len()) as u64) < MAX_JOBS => JobRoom::Free,
            Some((_, name)) => JobRoom::Replaces(name.clone()),
            None => JobRoom::Full,
        }
    }
}

impl IndexedJobs {
    fn insert(&mut self, name: String, job: IndexedJob) {
        let of_tenant = self.tenants.entry(job.tenant.clone()).or_default();
        match job.ended {
            Some(ended) => of_tenant.ended.insert((ended, name.clone())),
            None => of_tenant.unended.insert((job.created, name.clone())),
        };
        self.by_name.insert(name, job);
    }

    fn remove(&mut self, name: &str) -> Option<IndexedJob> {
        let job = self.by_name.remove(name)?;
        if let Some(of_tenant) = self.tenants.get_mut(&job.tenant) {
            match job.ended {
                Some(ended) => of_tenant.ended.remove(&(ended, name.to_owned())),
                None => of_tenant.unended.remove(&(job.created, name.to_owned())),
            };
            if of_tenant.ended.is_empty() && of_tenant.unended.is_empty() {
                self.tenants.remove(&job.tenant);
            }
        }
        Some(job)
    }
}

/// The jobs of a worker that wait for room in the store, which cannot write for long that it has them.
#[derive(Debug, Default)]
pub(super) struct WaitingJobs(Mutex<Vec<String>>);

impl WaitingJobs {
    pub(super) fn all(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(self: &Arc<Self>, id: &str) -> WaitingJob {
        self.all().push(id.to_owned());
        WaitingJob(self.clone(), id.to_owned())
    }
}

/// A job that waits for room, until this is dropped.
pub(super) struct WaitingJob(Arc<WaitingJobs>, String);

impl Drop for WaitingJob {
    fn drop(&mut self) {
        let mut all = self.0.all();
        if let Some(at) = all.iter().position(|id| *id == self.1) {
            all.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BulkAction, BulkFilter, BulkPhase};

    fn record(tenant: &BulkTenant, created: u64) -> BulkRecord {
        let (filter, action) = (BulkFilter::default(), BulkAction::Cancel);
        BulkRecord::new(tenant.clone(), "orders".into(), filter, action, None, created)
    }

    #[test]
    fn four_oldest_jobs_per_tenant_run() {
        let token = |name: &str| BulkTenant::Token(name.into());
        let quota = BulkTenant::Quota("acme".into());
        let tenants =
            [token("acme"), token("acme"), quota.clone(), token("acme"), BulkTenant::Common, token("acme")];
        let index = JobIndex::default();
        for n in 0..12 {
            index.note(&format!("{n:02}"), &record(&tenants[n % 6], 100 - n as u64 / 2));
        }
        assert_eq!(index.first(&token("acme")), ["11", "09", "06", "07"]);
        assert_eq!(index.first(&quota), ["08", "02"]);
        assert_eq!(index.first(&BulkTenant::Common), ["10", "04"]);
        let mut ended = record(&token("acme"), 100 - 5);
        ended.end(BulkPhase::Done, 200);
        index.note("11", &ended);
        index.note("11", &record(&token("acme"), 100 - 5));
        index.removed("06");
        assert_eq!(index.first(&token("acme")), ["09", "07", "05", "03"]);
    }

    /// A scan that began before a change does not undo it, and a job that another node has created is missed.
    #[test]
    fn scan_keeps_changes_since_its_begin() {
        let tenant = BulkTenant::Common;
        let index = JobIndex::default();
        let scan = index.begin_scan(2);
        let found = ["a", "b"].map(|name| (name.to_owned(), IndexedJob::of(&record(&tenant, 1))));
        let mut ended = record(&tenant, 1);
        ended.end(BulkPhase::Cancelled, 2);
        index.note("a", &ended);
        index.created("c", &record(&tenant, 3), scan - 1);
        index.created("d", &record(&tenant, 3), scan);
        assert!(!index.has_all(3), "the scan is under way");
        index.end_scan(scan, Duration::ZERO, found.into_iter());
        assert_eq!(index.first(&tenant), ["b", "c", "d"]);
        assert!(
            index.has_all(3) && !index.has_all(4),
            "of c it is not known whether the scan has counted it"
        );
        let scan = index.begin_scan(4);
        index.end_scan(scan, Duration::ZERO, std::iter::empty());
        assert!(index.first(&tenant).is_empty() && index.has_all(4), "other nodes have removed them");
    }
}
