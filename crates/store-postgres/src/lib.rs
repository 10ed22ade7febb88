//! The log store on PostgreSQL, and the coordinator of the nodes that share it.
//!
//! * [`PostgresCoordinator`] gives nodes their shards, each with a store.
//! * [`Options`] has the address and the settings.
//! * [`SCHEMA`] has the tables.
//! * [`connect`] makes a connection for others, by the same rules.
//!
//! A shard is a folder of the log store whose files are rows. `docs/postgres.md` describes the tables, and
//! `docs/adr/0037-one-store-over-any-medium.md` the decisions.

// Each public function that can fail lists its errors.
#![warn(clippy::missing_errors_doc)]

mod calls;
mod coordinator;
mod files;
mod options;
mod reading;
mod reign;
mod schema;

pub use calls::{PgConnection, connect};
pub use coordinator::PostgresCoordinator;
pub use duewheel_store_medium::BadOption;
pub use options::Options;
pub use schema::{SCHEMA, role, schema};
