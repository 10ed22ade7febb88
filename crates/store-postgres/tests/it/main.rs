//! The store on real servers of PostgreSQL.

mod conformance;
mod fence;
mod lost;
mod place;
