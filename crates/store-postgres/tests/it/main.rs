//! The store on real servers of PostgreSQL.

mod conformance;
mod fence;
mod format;
mod late;
mod lost;
mod place;
