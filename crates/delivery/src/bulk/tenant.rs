//! The tenants of jobs.

use serde::{Deserialize, Serialize};

/// Who has begun a job. A tenant has a number of jobs, and of turns, of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BulkTenant {
    /// All callers without a quota and without a token.
    #[default]
    Common,
    /// The tenant whose quota has this prefix.
    Quota(Box<str>),
    /// The holder of the token with this name.
    Token(Box<str>),
}
