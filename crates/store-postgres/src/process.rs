//! State that the shards of a process share.

use std::sync::Arc;

use duewheel_store_medium::{EndedOwners, MediumShared};

use crate::calls::Database;
use crate::leases::PgLeases;

/// State that the shards of a process share.
#[derive(Clone, Debug)]
pub(crate) struct OfProcess {
    pub(crate) database: Arc<Database>,
    pub(crate) shared: MediumShared,
    pub(crate) leases: Arc<PgLeases>,
    pub(crate) ended: Arc<EndedOwners<i64>>,
}
