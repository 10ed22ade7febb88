//! `[[quota]]` in the configuration file: the limits of a tenant.

use duewheel::Policy;
use duewheel::core::engine::{Quota, Quotas};
use serde::{Deserialize, Serialize};

use super::ConfigError;

/// A quota, as the file has it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct QuotaTable {
    /// The prefix of the tenant's queues.
    pub prefix: String,
    /// Unsettled messages at a time.
    pub messages: Option<u64>,
    /// The weight of unsettled messages, in bytes.
    pub bytes: Option<u64>,
    /// Concurrent leases.
    pub leases: Option<u64>,
    /// Enqueues a second.
    pub enqueues_per_second: Option<u64>,
    /// Enqueues at once.
    pub burst: Option<u64>,
    /// Remembered answers; ten times `messages` by default.
    pub answers: Option<u64>,
}

impl From<QuotaTable> for Quota {
    fn from(table: QuotaTable) -> Self {
        let QuotaTable { prefix, messages, bytes, leases, enqueues_per_second, burst, answers } = table;
        Quota { prefix: prefix.into(), messages, bytes, leases, enqueues_per_second, burst, answers }
    }
}

impl From<&Quota> for QuotaTable {
    fn from(quota: &Quota) -> Self {
        let Quota { prefix, messages, bytes, leases, enqueues_per_second, burst, answers } = quota.clone();
        QuotaTable { prefix: prefix.into(), messages, bytes, leases, enqueues_per_second, burst, answers }
    }
}

/// The quotas of the options, after validation.
pub(super) fn checked(tables: Option<Vec<QuotaTable>>, policy: &Policy) -> Result<Vec<Quota>, ConfigError> {
    let quotas: Vec<Quota> = tables.unwrap_or_default().into_iter().map(Quota::from).collect();
    Quotas::new(quotas.clone(), policy).map_err(|bad| ConfigError::Value(bad.to_string()))?;
    Ok(quotas)
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::*;

    fn settings(toml: &str) -> Result<Vec<Quota>, String> {
        let options: Options = toml::from_str(toml).unwrap();
        options.settings().map(|settings| settings.quotas).map_err(|error| error.to_string())
    }

    #[test]
    fn quota_config_error_names_field() {
        for (toml, says) in [
            (
                "prefix = 'acme.'\nmessages = 0",
                "quota \"acme.\": messages: must be from 1 to 9007199254740992",
            ),
            ("prefix = 'acme.'\nburst = 1", "quota \"acme.\": burst: needs enqueues_per_second"),
            ("prefix = 'a b'", "quota \"a b\": prefix: may hold only letters, marks, digits"),
            ("prefix = 'a'\n[[quota]]\nprefix = 'a'", "quota \"a\": prefix: occurs twice"),
        ] {
            let error = settings(&format!("[[quota]]\n{toml}")).unwrap_err();
            assert!(error.starts_with(says), "{error}");
        }
        assert_eq!(settings("[[quota]]\nprefix = ''\nleases = 7").unwrap()[0].leases, Some(7));
        assert_eq!(settings("[[quota]]\nprefix = ''\nanswers = 7").unwrap()[0].answers, Some(7));
        assert_eq!(settings("").unwrap(), []);
    }
}
