//! How a submission reaches the owner of its shard: routes and retries.

pub(crate) mod attempt;
pub(crate) mod routes;
