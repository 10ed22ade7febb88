//! The life of a node: it joins, opens the shards that it should own, and gives up those that it should not own.

pub(crate) mod assignment;
pub(crate) mod core;
pub(crate) mod member;
pub(crate) mod owned;
pub(crate) mod reconciler;
#[cfg(test)]
mod tests;
