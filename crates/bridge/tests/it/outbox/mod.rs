//! The outbox with real servers of PostgreSQL.

mod crash;
mod drain;
mod place;
mod sql;
