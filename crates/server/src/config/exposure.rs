//! The listeners that other machines may reach without authentication.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

impl<'de> Deserialize<'de> for Insecure {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl Visitor<'_> for Words {
            type Value = Insecure;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("listeners out of http, peer, beanstalk, with commas between")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Insecure, E> {
                text.parse().map_err(|what| E::custom(format!("insecure: {what}")))
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Insecure, E> {
                self.visit_str(if value { "true" } else { "false" })
            }
        }
        deserializer.deserialize_any(Words)
    }
}

#[cfg(test)]
mod tests {
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
}
