//! The tables, and the rights that the server needs.

use duewheel_core::store::StoreError;
use duewheel_store_medium::refused_format;

use crate::options::{BadPostgresOption, check_identifier};

/// The statements that make the tables, with `{schema}` for the name of the schema. They may be repeated.
pub const SCHEMA: &str = include_str!("schema.sql");

/// The format of the tables and of the files in them: format 1. Builds before 0.1.0 have written 1 in the same column,
/// and refuse each other number in words.
pub(crate) const FORMAT: i32 = 1001;
/// The format of a cluster while a backup is restored to it.
pub(crate) const RESTORING: i32 = -1001;
/// Formats that builds before 0.1.0 have written.
const EARLIER: [i32; 2] = [1, -1];

/// Checks that this version knows the format of a cluster.
pub(crate) fn check_format(stored: i32) -> Result<(), StoreError> {
    if stored == FORMAT {
        return Ok(());
    }
    Err(refused_format("the cluster", stored, [FORMAT, RESTORING], &EARLIER))
}

/// The statements for a schema.
///
/// # Examples
/// ```
/// let sql = duewheel_store_postgres::schema("orders");
/// assert!(sql.contains("CREATE TABLE IF NOT EXISTS orders.piece"));
/// ```
pub fn schema(name: &str) -> String {
    SCHEMA.replace("{schema}", name)
}

/// The statements for a schema that is there.
pub(crate) fn tables(name: &str) -> String {
    schema(name).replace(&format!("CREATE SCHEMA IF NOT EXISTS {name};\n"), "")
}

/// The statements that give a role the rights that the server needs, and no more.
///
/// # Examples
/// ```
/// let sql = duewheel_store_postgres::role("orders", "duewheel").unwrap();
/// assert!(sql.contains("GRANT USAGE ON SCHEMA orders TO duewheel"));
/// assert!(duewheel_store_postgres::role("orders", "a; DROP TABLE x").is_err());
/// ```
///
/// # Errors
/// [`BadPostgresOption`] for a role that is not a plain identifier.
pub fn role(schema: &str, role: &str) -> Result<String, BadPostgresOption> {
    check_identifier("role", role)?;
    Ok(format!(
        "GRANT USAGE ON SCHEMA {schema} TO {role};\n\
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};\n\
         ALTER ROLE {role} SET synchronous_commit = on;\n"
    ))
}
