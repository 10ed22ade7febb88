//! Limits to queues by prefixes of their names.

use std::fmt;
use std::str::FromStr;

use duewheel::core::QueueName;
use serde::{Deserialize, Serialize};

/// Prefixes of the names of queues; at least one. They cover a queue if its name begins with one of them.
///
/// On the command line they are separated by commas, which no name may contain; in a file they are a list.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Prefixes(Vec<QueueName>);

impl Prefixes {
    /// Whether the prefixes cover the queue.
    pub fn reach(&self, queue: &QueueName) -> bool {
        reach(&self.0, queue)
    }
}

/// Whether the name of a queue begins with one of these.
pub(super) fn reach(prefixes: &[QueueName], queue: &QueueName) -> bool {
    prefixes.iter().any(|prefix| queue.as_str().starts_with(prefix.as_str()))
}

impl FromStr for Prefixes {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        s.split(',').map(|prefix| prefix.trim().to_owned()).collect::<Vec<_>>().try_into()
    }
}

impl TryFrom<Vec<String>> for Prefixes {
    type Error = String;

    fn try_from(all: Vec<String>) -> Result<Self, String> {
        if all.is_empty() {
            return Err("say how their names begin, or leave it out for all queues".to_owned());
        }
        let one = |text: &String| QueueName::new(text).map_err(|what| format!("{text:?} {what}"));
        all.iter().map(one).collect::<Result<_, _>>().map(Prefixes)
    }
}

impl From<Prefixes> for Vec<String> {
    fn from(Prefixes(all): Prefixes) -> Self {
        all.iter().map(|prefix| prefix.as_str().to_owned()).collect()
    }
}

impl fmt::Display for Prefixes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Vec::from(self.clone()).join(","))
    }
}
