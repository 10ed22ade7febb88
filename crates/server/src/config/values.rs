//! The types of single options, as flags and files give them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use duewheel::Durability;
use serde::{Deserialize, Serialize};

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
#[serde(rename_all = "lowercase")]
pub enum VirtualClockOption {
    /// The machine's clocks.
    #[default]
    Off,
    /// A clock that stands, and `POST /v1/clock/advance`. All is in memory.
    On,
    /// The clock is virtual although messages are kept, which may then be delivered before their time.
    Force,
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
        let port =
            s.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
        match (s, port) {
            ("off", _) => Ok(Listen::Off),
            (_, _) if s.starts_with("unix:") && s.len() > 5 => Ok(Listen::Unix(s[5..].into())),
            (_, Some(Ok(_))) => Ok(Listen::At(s.to_owned())),
            _ => Err(format!("{s:?} is neither HOST:PORT, unix:PATH nor off")),
        }
    }
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
