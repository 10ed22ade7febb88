//! The store on real servers of PostgreSQL.

mod conformance;
mod fence;
mod late;
mod lost;
mod place;
