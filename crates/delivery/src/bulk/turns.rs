//! Whose turn it is: of each tenant the jobs that began first.

use std::collections::HashMap;

use duewheel::core::MessageId;
use serde::{Deserialize, Serialize};

use super::record::{BulkPhase, BulkRecord};
use crate::limits::BULK_TENANT_RUNS;

/// Who has begun a job. A tenant has a number of jobs, and of turns, of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BulkTenant {
    /// All who are told apart by neither a quota nor a token.
    #[default]
    Common,
    /// The tenant whose quota has this prefix.
    Quota(Box<str>),
    /// The holder of the token with this name.
    Token(Box<str>),
}

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

/// Of each tenant the [`BULK_TENANT_RUNS`] jobs that began first: it is their turn, on whichever nodes they run.
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
    fn each_tenants_first_four_have_a_turn() {
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
