//! The way of a submission to the owner of its shard: the route, and what is tried again.

pub(crate) mod attempt;
pub(crate) mod routes;
