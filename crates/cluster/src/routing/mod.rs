//! Routing: the shard of each operation, and merged answers of several shards.

mod broadcast;
mod demand;
mod merge;
mod moving;
mod partition;
mod reserve;
pub(crate) mod router;
mod sessions;
#[cfg(test)]
mod tests;
mod used_up;
