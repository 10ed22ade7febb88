//! Serialization between nodes: names as text, validated when it is read; settings as records have them, so that a later
//! version may add to them.
//!
//! Operations and answers derive serde's traits behind the feature `serde`. Their bytes are not a durable format: nodes
//! of one cluster exchange them, and agree on a version first.

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::message::Options;
use crate::name::{BadName, Key, QueueName};
use crate::policy::QueueSettings;
use crate::record::{DecodeError, Reader, Writer};

/// Reads a text, and validates it by the constructor of the type.
struct Checked<T>(fn(&str) -> Result<T, BadName>);

impl<T> Visitor<'_> for Checked<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.0)(text).map_err(E::custom)
    }
}

macro_rules! checked {
    ($t:ty, $read:ident) => {
        impl Serialize for $t {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.as_str())
            }
        }
        impl<'de> Deserialize<'de> for $t {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_str(Checked(<$t>::$read))
            }
        }
    };
}
// The node that has received a name from its client has checked it, perhaps by later tables of letters.
checked!(QueueName, stored);
checked!(Key, new);

/// Reads a section of tagged fields, of which a noun says whose they are.
struct Section<T>(&'static str, fn(&mut Reader) -> Result<T, DecodeError>);

impl<T> Visitor<'_> for Section<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<T, E> {
        let mut reader = Reader::new(bytes::Bytes::copy_from_slice(bytes));
        let read = (self.1)(&mut reader).map_err(E::custom)?;
        if reader.is_empty() { Ok(read) } else { Err(E::custom("more bytes than fields")) }
    }
}

macro_rules! section {
    ($t:ty, $part:ident, $noun:literal) => {
        impl Serialize for $t {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                let mut section = Writer::default();
                section.$part(self);
                to.serialize_bytes(&section.bytes)
            }
        }
        impl<'de> Deserialize<'de> for $t {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_bytes(Section($noun, Reader::$part))
            }
        }
    };
}
section!(Options, options, "the options of a message");
section!(QueueSettings, settings, "the settings of a queue");

/// The field that [`crate::engine::SettingsRefusal::OutOfRange`] names: one of a closed list.
pub(crate) mod settings_field {
    use super::{Deserialize, Deserializer, Error, Serialize, Serializer};

    const FIELDS: [&str; 9] = [
        "lease_ms",
        "backoff",
        "dedupe_window_ms",
        "dead_ttl_ms",
        "rate.per_second",
        "rate.burst",
        "catchup_rate",
        "concurrency",
        "expires_in_ms",
    ];

    pub(crate) fn serialize<S: Serializer>(field: &&'static str, to: S) -> Result<S::Ok, S::Error> {
        let known = FIELDS.iter().position(|f| f == field).and_then(|at| u8::try_from(at).ok());
        known.ok_or_else(|| serde::ser::Error::custom("an unknown field of the settings"))?.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<&'static str, D::Error> {
        let at = u8::deserialize(from)?;
        FIELDS
            .get(usize::from(at))
            .copied()
            .ok_or_else(|| D::Error::custom("an unknown field of the settings"))
    }
}
