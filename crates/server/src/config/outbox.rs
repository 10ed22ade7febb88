//! Databases whose outboxes are drained: `[[postgres]]`.

use duewheel_bridge::outbox::OutboxSettings;
use serde::{Deserialize, Serialize};

use super::{ConfigError, Secret};
use crate::auth::Prefixes;

/// A database with an outbox, as the file has it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PostgresTable {
    /// The name of the database, under which its rows in flight are recorded.
    pub name: String,
    /// The address: `postgres://USER[:PASSWORD]@HOST[:PORT]/DATABASE`.
    pub url: Secret,
    /// Prefixes of the queues that it may name; without them all.
    pub queues: Option<Prefixes>,
}

impl PostgresTable {
    /// The settings of its drain.
    ///
    /// # Errors
    /// The name or the URL is not valid. The URL is not shown.
    pub fn settings(&self) -> Result<OutboxSettings, ConfigError> {
        let settings = OutboxSettings::new(&self.name, self.url.expose())
            .map_err(|bad| ConfigError::Value(format!("postgres {:?}: {bad}", self.name)))?;
        Ok(match &self.queues {
            Some(queues) => settings.prefixes(queues.names().to_vec()),
            None => settings,
        })
    }
}

/// The databases of the options, after validation.
pub(super) fn checked(tables: Option<Vec<PostgresTable>>) -> Result<Vec<PostgresTable>, ConfigError> {
    let tables = tables.unwrap_or_default();
    for (i, table) in tables.iter().enumerate() {
        table.settings()?;
        if tables.iter().take(i).any(|other| other.name == table.name) {
            return Err(ConfigError::Value(format!("postgres {:?}: name: occurs twice", table.name)));
        }
    }
    Ok(tables)
}

/// The database of a name among these, or of a URL.
///
/// # Errors
/// There is none of this name, or the URL is not valid.
pub fn database(tables: &[PostgresTable], named: &str) -> Result<OutboxSettings, ConfigError> {
    if named.contains("://") {
        let table = PostgresTable { name: "database".to_owned(), url: Secret::from(named), queues: None };
        return table.settings();
    }
    let missing = || {
        let what = format!("--database {named}: is no [[postgres]] of the configuration, and no URL");
        ConfigError::Value(what)
    };
    tables.iter().find(|table| table.name == named).ok_or_else(missing)?.settings()
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::*;

    #[test]
    fn invalid_databases_are_refused_by_name() {
        let settings = |text: &str| toml::from_str::<Options>(text).unwrap().settings();
        for (toml, says) in [
            ("name = 'a b'\nurl = 'postgres://u@localhost/d'", "postgres \"a b\": name: "),
            ("name = 'a'\nurl = 'mysql://u:hunter2@localhost/d'", "postgres \"a\": url: must begin with"),
            (
                "name = 'a'\nurl = 'postgres://u:hunter2@db.internal/d?sslmode=disable'",
                "postgres \"a\": url: sslmode",
            ),
        ] {
            let refused = settings(&format!("[[postgres]]\n{toml}")).unwrap_err().to_string();
            assert!(refused.starts_with(says) && !refused.contains("hunter2"), "{refused}");
        }
        let one = "[[postgres]]\nname = 'a'\nurl = 'postgres://u:hunter2@localhost/d'\nqueues = ['shop/']\n";
        assert!(settings(&one.repeat(2)).unwrap_err().to_string().contains("occurs twice"));
        let settings = settings(one).unwrap();
        let shown = toml::to_string(&settings.to_options().without_secrets()).unwrap();
        assert!(shown.contains("url = \"postgres://u@localhost/d\""), "{shown}");
        let named = |name: &str| database(&settings.outboxes, name);
        assert_eq!(named("a").unwrap().name(), "a");
        assert!(named("postgres://u@localhost/d").is_ok());
        assert!(named("b").unwrap_err().to_string().contains("--database b: is no [[postgres]]"));
    }
}
