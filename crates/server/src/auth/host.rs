//! The host names under which a server without tokens may be called.
//!
//! A web page can let its own name resolve to 127.0.0.1 (DNS rebinding). The browser then takes this server for the
//! page's own, sends the page's name as `Host` and as `Origin`, and lets the page read the answers. So without tokens
//! the name must be one that no foreign page can have: an address, `localhost`, a name without a dot (a container's,
//! which is in no public DNS), or one that the operator has configured.

use std::convert::Infallible;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::file_value::FileValue;

/// The configured names of a server, besides those that no foreign page can have.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(try_from = "FileValue", into = "String")]
pub struct Hosts(Vec<String>);

impl Hosts {
    /// Whether a request with this `Host` header was meant for this server.
    pub fn knows(&self, header: &[u8]) -> bool {
        let Ok(header) = std::str::from_utf8(header) else { return false };
        let name = without_port(header).trim_end_matches('.').to_ascii_lowercase();
        let address = name.parse::<Ipv4Addr>().is_ok()
            || name
                .strip_prefix('[')
                .and_then(|n| n.strip_suffix(']'))
                .is_some_and(|n| n.parse::<Ipv6Addr>().is_ok());
        address || !name.contains('.') || name.ends_with(".localhost") || self.0.contains(&name)
    }
}

fn without_port(header: &str) -> &str {
    match header.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        Some(_) | None => header,
    }
}

impl FromStr for Hosts {
    type Err = Infallible;

    fn from_str(s: &str) -> Result<Self, Infallible> {
        let names = s.split(',').map(|name| name.trim().trim_end_matches('.').to_ascii_lowercase());
        Ok(Hosts(names.filter(|name| !name.is_empty()).collect()))
    }
}

impl TryFrom<FileValue> for Hosts {
    type Error = String;

    fn try_from(value: FileValue) -> Result<Self, String> {
        value.list()
    }
}

impl From<Hosts> for String {
    fn from(hosts: Hosts) -> String {
        hosts.to_string()
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unspoofable_host_names_are_known() {
        let hosts: Hosts = " Queue.Example. , other.example".parse().unwrap();
        assert_eq!(hosts.to_string(), "queue.example,other.example");
        for good in [
            "127.0.0.1",
            "127.0.0.1:7788",
            "[::1]",
            "[::1]:7788",
            "192.0.2.1:1",
            "localhost",
            "LOCALHOST:7788",
            "localhost.",
            "a.localhost:1",
            "duewheel:7788",
            "x",
            "queue.example",
            "QUEUE.example.:7788",
            "",
        ] {
            assert!(hosts.knows(good.as_bytes()), "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:7788",
            "127.0.0.1.evil.example",
            "queue.example.evil.example",
            "localhost.evil.example",
            "evil.localhost.example",
            "a.queue.example",
            "127.0.0.1.",
            "1.2.3",
            "\u{fc}.example",
        ] {
            // A dot at the end of an address is ignored, because an address is not a name of the DNS.
            assert!(bad == "127.0.0.1." || !hosts.knows(bad.as_bytes()), "{bad}");
        }
        assert!(!hosts.knows(b"\xff.example"));
    }
}
