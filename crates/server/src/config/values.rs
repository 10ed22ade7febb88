//! The types of single options, as flags and files give them, and the error of one that is invalid.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use duewheel::core::engine::{Quota, Quotas};
use duewheel::{Durability, Policy};
use serde::{Deserialize, Serialize, Serializer};

use crate::file_value::FileValue;

/// Why the settings are invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {0}: {1}")]
    Unreadable(PathBuf, std::io::Error),
    /// The content of the file is invalid.
    #[error("{file}, line {line}: {what}")]
    File {
        /// The file.
        file: PathBuf,
        /// The number of the line.
        line: usize,
        /// The fault, with the key.
        what: String,
    },
    /// The value of an option is invalid.
    #[error("{0}")]
    Value(String),
}

/// The address of a listener.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum Listen {
    /// The listener is off.
    Off,
    /// At `host:port`.
    At(String),
    /// At a socket in the file system.
    Unix(PathBuf),
}

/// The durability levels of flags and files.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LevelOption {
    /// On the disk: survives a power loss
    Fsync,
    /// Handed to the operating system: survives kill -9
    Buffered,
    /// In memory only
    Memory,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people
    Text,
    /// A JSON object a line
    Json,
}

/// Whether the clock stands still until a request moves it.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase", try_from = "FileValue")]
pub enum VirtualClockOption {
    /// The machine's clocks.
    #[default]
    #[value(alias = "false")]
    Off,
    /// A clock that stands, and `POST /v1/clock/advance`. All is in memory.
    #[value(alias = "true")]
    On,
    /// The clock is virtual although messages are kept, which may then be delivered before their time.
    Force,
}

impl FromStr for VirtualClockOption {
    type Err = &'static str;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        <Self as ValueEnum>::from_str(s, false).map_err(|_| "must be on, off or force")
    }
}

impl TryFrom<FileValue> for VirtualClockOption {
    type Error = String;

    fn try_from(value: FileValue) -> Result<Self, String> {
        value.flag()
    }
}

/// Whether a cluster is made in a Redis where none is.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum RedisCreate {
    /// A missing cluster is created, unless a node knows that it existed.
    #[default]
    Always,
    /// A missing cluster is refused.
    Never,
}

/// The state of a change in Redis that its answer waits for.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum RedisWaitFor {
    /// Replicas have the change.
    #[default]
    Received,
    /// Redis and replicas have synced the change.
    Synced,
}

/// A text that must not appear in logs.
#[derive(Clone, Deserialize, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The secret itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Secret(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

impl From<LevelOption> for Durability {
    fn from(level: LevelOption) -> Self {
        match level {
            LevelOption::Fsync => Durability::Fsync,
            LevelOption::Buffered => Durability::Buffered,
            LevelOption::Memory => Durability::Memory,
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match (s, s.rsplit_once(':').map(|(_, port)| port.parse::<u16>())) {
            ("off", _) => Ok(Listen::Off),
            (_, _) if s.starts_with("unix:") && s.len() > 5 => Ok(Listen::Unix(s[5..].into())),
            (_, Some(Ok(_))) => Ok(Listen::At(with_host(s))),
            _ => Err(format!("{s:?} is neither HOST:PORT, :PORT on this machine, unix:PATH nor off")),
        }
    }
}

/// `HOST:PORT`, where `:PORT` is one of this machine that no other machine reaches.
pub(super) fn with_host(address: &str) -> String {
    if address.starts_with(':') { format!("127.0.0.1{address}") } else { address.to_owned() }
}

impl TryFrom<String> for Listen {
    type Error = String;
    fn try_from(s: String) -> Result<Self, String> {
        s.parse()
    }
}

impl From<Listen> for String {
    fn from(listen: Listen) -> String {
        match listen {
            Listen::Off => "off".to_owned(),
            Listen::At(text) => text,
            Listen::Unix(path) => format!("unix:{}", path.display()),
        }
    }
}

/// A listener, by the word for it in `--insecure`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Endpoint {
    /// HTTP.
    Http,
    /// The other nodes of a cluster.
    Peer,
    /// beanstalkd's protocol.
    Beanstalk,
}

impl Endpoint {
    const ALL: [Endpoint; 3] = [Endpoint::Http, Endpoint::Peer, Endpoint::Beanstalk];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Endpoint::Http => "http",
            Endpoint::Peer => "peer",
            Endpoint::Beanstalk => "beanstalk",
        }
    }
}

/// The listeners that may be at any address because the operator has permitted it. Every other one is on loopback, or
/// has authentication and encryption.
///
/// Each is named, so that opening one listener never opens another by accident.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(try_from = "FileValue")]
pub struct Insecure(BTreeSet<Endpoint>);

impl Insecure {
    /// Whether this listener may be at any address.
    pub fn has(&self, endpoint: Endpoint) -> bool {
        self.0.contains(&endpoint)
    }

    /// Whether no listener may.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for Insecure {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        // The former single switch for all listeners is refused; its value "off" keeps its meaning.
        if s.eq_ignore_ascii_case("false") || s == "none" {
            return Ok(Insecure::default());
        }
        let one = |word: &str| {
            let found = Endpoint::ALL.into_iter().find(|endpoint| endpoint.as_str() == word.trim());
            found.ok_or_else(|| match word.trim() {
                "" | "true" => {
                    "say which listeners: one or more of http, peer, beanstalk, with commas between"
                        .to_owned()
                }
                other => format!("{other:?} is none of the listeners http, peer, beanstalk"),
            })
        };
        s.split(',').map(one).collect::<Result<_, _>>().map(Insecure)
    }
}

impl fmt::Display for Insecure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        let words: Vec<_> = self.0.iter().map(|endpoint| endpoint.as_str()).collect();
        f.write_str(&words.join(","))
    }
}

impl Serialize for Insecure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl TryFrom<FileValue> for Insecure {
    type Error = String;

    fn try_from(value: FileValue) -> Result<Self, String> {
        value.flag()
    }
}

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

    #[test]
    fn insecure_option_requires_listener_names() {
        let all: Insecure = "peer, http,beanstalk".parse().unwrap();
        assert_eq!(all.to_string(), "http,peer,beanstalk");
        assert!(Endpoint::ALL.into_iter().all(|endpoint| all.has(endpoint)));
        let one: Insecure = "peer".parse().unwrap();
        assert!(one.has(Endpoint::Peer) && !one.has(Endpoint::Http) && !one.has(Endpoint::Beanstalk));
        for none in ["false", "none"] {
            assert!(none.parse::<Insecure>().unwrap().is_empty());
        }
        for bad in ["", "true", "http,", "all", "http peer", "HTTP"] {
            let why = bad.parse::<Insecure>().unwrap_err();
            assert!(why.contains("http, peer, beanstalk"), "{bad}: {why}");
        }
    }

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
