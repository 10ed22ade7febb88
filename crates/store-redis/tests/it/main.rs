//! The store on real servers.

mod conformance;
mod coordinator;
mod fence;
mod place;
