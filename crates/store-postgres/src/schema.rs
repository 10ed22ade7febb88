//! The tables, and the rights that the server needs.

use duewheel_core::store::{Level, StoreError};
use duewheel_store_medium::{BadOption, refused_format};
use tokio_postgres::Row;

use crate::options::check_identifier;

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
/// [`BadOption`] for a role that is not a plain identifier.
pub fn role(schema: &str, role: &str) -> Result<String, BadOption> {
    check_identifier("role", role)?;
    Ok(format!(
        "GRANT USAGE ON SCHEMA {schema} TO {role};\n\
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};\n\
         ALTER ROLE {role} SET synchronous_commit = on;\n"
    ))
}

// The durability level that a server's settings reach.

/// The columns of [`CommitSettings`]: the settings of the session in which the statement runs.
pub(crate) const SETTINGS: &str = "current_setting('fsync'), current_setting('synchronous_commit'), \
    current_setting('synchronous_standby_names'), (SELECT count(*) FROM pg_stat_get_wal_senders())";

/// The settings of a server that decide the level of a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommitSettings {
    /// `fsync`.
    pub(crate) fsync: String,
    /// `synchronous_commit`, of this session.
    pub(crate) synchronous_commit: String,
    /// `synchronous_standby_names`.
    pub(crate) standby_names: String,
    /// Number of standbys that are connected.
    pub(crate) standbys: i64,
}

impl CommitSettings {
    /// Reads [`SETTINGS`], from this column on.
    pub(crate) fn read(row: &Row, from: usize) -> Result<Self, tokio_postgres::Error> {
        Ok(CommitSettings {
            fsync: row.try_get(from)?,
            synchronous_commit: row.try_get(from + 1)?,
            standby_names: row.try_get(from + 2)?,
            standbys: row.try_get(from + 3)?,
        })
    }

    /// The level of a commit that returned without a warning.
    pub(crate) fn level(&self) -> Level {
        if self.fsync != "on" {
            // A crash of the machine may damage the whole database.
            return Level::Memory;
        }
        if self.synchronous_commit == "off" {
            return Level::Buffered;
        }
        let waits = matches!(self.synchronous_commit.as_str(), "on" | "remote_apply");
        match (self.standby_names.trim().is_empty(), waits) {
            (false, true) => Level::Quorum,
            // A promoted standby may lack what was acknowledged.
            (false, false) => Level::BestEffortReplicated,
            (true, _) if self.standbys > 0 => Level::BestEffortReplicated,
            (true, _) => Level::Fsync,
        }
    }

    /// A warning for the operator about these settings, if they need one.
    pub(crate) fn warning(&self) -> Option<String> {
        let CommitSettings { fsync, synchronous_commit, standby_names, standbys } = self;
        if fsync != "on" {
            return Some(format!("fsync is {fsync}: a crash of the machine may damage the whole database"));
        }
        match synchronous_commit.as_str() {
            "off" => Some("synchronous_commit is off: a crash may lose what was acknowledged".into()),
            "local" | "remote_write" if !standby_names.trim().is_empty() => Some(format!(
                "synchronous_commit is {synchronous_commit}: a promoted standby may lack what was acknowledged"
            )),
            _ if *standbys > 0 && standby_names.trim().is_empty() => Some(format!(
                "it has {standbys} standbys and no synchronous_standby_names: a promoted one may lack what was acknowledged"
            )),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_follows_commit_settings() {
        let settings = |fsync: &str, commit: &str, names: &str, standbys| CommitSettings {
            fsync: fsync.into(),
            synchronous_commit: commit.into(),
            standby_names: names.into(),
            standbys,
        };
        for (settings, level, warns) in [
            (settings("on", "on", "", 0), Level::Fsync, false),
            (settings("on", "local", "", 0), Level::Fsync, false),
            (settings("off", "on", "", 0), Level::Memory, true),
            (settings("on", "off", "", 0), Level::Buffered, true),
            (settings("on", "on", "", 1), Level::BestEffortReplicated, true),
            (settings("on", "on", "ANY 1 (a, b)", 2), Level::Quorum, false),
            (settings("on", "remote_apply", "a", 1), Level::Quorum, false),
            (settings("on", "remote_write", "a", 1), Level::BestEffortReplicated, true),
            (settings("on", "local", "a", 1), Level::BestEffortReplicated, true),
        ] {
            assert_eq!(settings.level(), level, "{settings:?}");
            assert_eq!(settings.warning().is_some(), warns, "{settings:?}");
        }
    }
}
