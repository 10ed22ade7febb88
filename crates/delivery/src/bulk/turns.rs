//! The turns of jobs: those of each tenant that began first are worked on.

use std::collections::HashMap;

use duewheel::core::MessageId;

use super::record::{BulkPhase, BulkRecord};
use super::tenant::BulkTenant;
use crate::limits::BULK_TENANT_RUNS;

/// A job that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unended {
    tenant: BulkTenant,
    created: u64,
    name: String,
    pub(super) row: (MessageId, u32),
    /// Whether it has had no turn yet.
    pub(super) waits: bool,
}

impl Unended {
    /// `None`: the job has ended.
    pub(super) fn of(name: &str, row: (MessageId, u32), record: BulkRecord) -> Option<Self> {
        let waits = record.phase == BulkPhase::Waiting;
        let BulkRecord { tenant, created, phase, .. } = record;
        (!phase.is_end()).then(|| Unended { tenant, created, name: name.to_owned(), row, waits })
    }
}

/// The [`BULK_TENANT_RUNS`] jobs of each tenant that began first: it is their turn, on whichever nodes they run.
pub(super) fn first_come(mut unended: Vec<Unended>) -> Vec<Unended> {
    unended.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
    let mut turns: HashMap<BulkTenant, usize> = HashMap::new();
    unended.retain(|job| {
        let taken = turns.entry(job.tenant.clone()).or_default();
        *taken += 1;
        *taken <= BULK_TENANT_RUNS
    });
    unended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_oldest_jobs_per_tenant_run() {
        let token = |name: &str| BulkTenant::Token(name.into());
        let quota = BulkTenant::Quota("acme".into());
        let tenants = [token("acme"), token("acme"), quota, token("acme"), BulkTenant::Common, token("acme")];
        let all: Vec<_> = (0..12)
            .map(|n: usize| Unended {
                tenant: tenants[n % 6].clone(),
                created: 100 - n as u64 / 2,
                name: format!("{n:02}"),
                row: (MessageId(n as u64), 1),
                waits: true,
            })
            .collect();
        let names: Vec<_> = first_come(all).into_iter().map(|job| job.name).collect();
        assert_eq!(names, ["10", "11", "08", "09", "06", "07", "04", "02"]);
    }
}
