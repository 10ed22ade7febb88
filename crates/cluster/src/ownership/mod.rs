//! The life of a node: it joins, opens the shards that it should own, and gives up those that it should not own.

mod assignment;
pub(crate) mod core;
pub(crate) mod error;
mod hanging;
pub(crate) mod member;
pub(crate) mod owned;
pub(crate) mod presence;
pub(crate) mod reconciler;
#[cfg(test)]
mod tests;
