//! The envelope of a message of the broker: exchange, routing key and properties, in AMQP's own bytes.
//!
//! ```text
//!   version (1)   exchange: length (1), bytes   routing key: length (1), bytes   properties: flags (2), fields
//! ```
//!
//! One header of the message has these bytes in base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lapin::BasicProperties;
use lapin::protocol::basic::{gen_properties, parse_properties};
use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::connect::short;

/// The header that has it.
pub(super) const KEPT: &str = "amqp-message";
const VERSION: u8 = 1;
/// Headers that the broker adds to a message that it delivers again: the message is the same.
const OF_DELIVERY: [&str; 2] = ["x-acquired-count", "x-delivery-count"];

/// Headers by which the broker routes a message to more queues. One that is no array makes it close the channel.
const ROUTES: [&str; 2] = ["CC", "BCC"];

/// Exchange, routing key and properties of a message.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KeptParts {
    pub(super) exchange: ShortString,
    pub(super) routing_key: ShortString,
    pub(super) properties: BasicProperties,
}

impl KeptParts {
    /// The text of the header.
    pub(super) fn text(&self) -> Result<String, String> {
        let mut bytes = vec![VERSION];
        for name in [&self.exchange, &self.routing_key] {
            // A short string has 255 bytes at most.
            bytes.push(u8::try_from(name.as_str().len()).map_err(|_| "a name is too long".to_owned())?);
            bytes.extend_from_slice(name.as_str().as_bytes());
        }
        let properties = self.properties.headers().as_ref().map_or_else(
            || self.properties.clone(),
            |headers| self.properties.clone().with_headers(of_sender(headers)),
        );
        let written = cookie_factory::gen_simple(gen_properties(&properties), bytes);
        written.map(|bytes| STANDARD.encode(bytes)).map_err(|why| format!("properties: {why}"))
    }

    /// Reads the text of the header. `None`: it is not one that a bridge has written.
    pub(super) fn read(text: &str) -> Option<Self> {
        let bytes = STANDARD.decode(text).ok()?;
        let rest = bytes.strip_prefix(&[VERSION])?;
        let (exchange, rest) = name(rest)?;
        let (routing_key, rest) = name(rest)?;
        let (rest, properties) = parse_properties(rest).ok()?;
        rest.is_empty().then_some(KeptParts { exchange, routing_key, properties })
    }
}

fn name(bytes: &[u8]) -> Option<(ShortString, &[u8])> {
    let (length, rest) = bytes.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(*length))?;
    Some((short(std::str::from_utf8(name).ok()?), rest))
}

/// The headers without those of a delivery.
fn of_sender(headers: &FieldTable) -> FieldTable {
    let mut kept = headers.inner().clone();
    kept.retain(|name, _| !OF_DELIVERY.contains(&name.as_str()));
    FieldTable::from(kept)
}

/// The headers without those by which the broker routes; `keep` keeps the valid ones of them.
pub(super) fn without_routes(headers: &FieldTable, keep: bool) -> FieldTable {
    let mut kept = headers.inner().clone();
    let is_valid = |value: &AMQPValue| matches!(value, AMQPValue::FieldArray(_));
    kept.retain(|name, value| !ROUTES.contains(&name.as_str()) || keep && is_valid(value));
    FieldTable::from(kept)
}

/// Properties without the user, whose name the broker refuses from another one, and with these headers.
pub(super) fn for_delivery(
    properties: &BasicProperties,
    headers: FieldTable,
    expires: bool,
) -> BasicProperties {
    let mut out = BasicProperties::default().with_headers(headers);
    macro_rules! copy {
        ($($get:ident $with:ident),*) => {
            $(if let Some(value) = properties.$get().clone() { out = out.$with(value); })*
        };
    }
    copy!(
        content_type with_content_type,
        content_encoding with_content_encoding,
        delivery_mode with_delivery_mode,
        priority with_priority,
        correlation_id with_correlation_id,
        reply_to with_reply_to,
        message_id with_message_id,
        timestamp with_timestamp,
        kind with_type,
        app_id with_app_id,
        cluster_id with_cluster_id
    );
    match properties.expiration().clone().filter(|_| expires) {
        Some(expiration) => out.with_expiration(expiration),
        None => out,
    }
}

#[cfg(test)]
mod tests {
    use lapin::types::{ByteArray, DecimalValue, FieldArray};

    use super::*;

    /// All properties, and a header of each type.
    pub(super) fn full() -> BasicProperties {
        let mut inner = FieldTable::default();
        inner.insert("größe".into(), AMQPValue::LongString(vec![0, 255, b'x'].into()));
        let values = [
            AMQPValue::Boolean(true),
            AMQPValue::ShortShortInt(-1),
            AMQPValue::ShortShortUInt(255),
            AMQPValue::ShortInt(-2),
            AMQPValue::ShortUInt(65_535),
            AMQPValue::LongInt(-3),
            AMQPValue::LongUInt(u32::MAX),
            AMQPValue::LongLongInt(i64::MIN),
            AMQPValue::Float(1.5),
            AMQPValue::Double(-0.1),
            AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 314 }),
            AMQPValue::LongString("text".into()),
            AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::Void, AMQPValue::LongInt(1)])),
            AMQPValue::Timestamp(1_700_000_000),
            AMQPValue::FieldTable(inner),
            AMQPValue::ByteArray(ByteArray::from(vec![0, 1, 2])),
            AMQPValue::Void,
        ];
        let mut headers = FieldTable::default();
        for (n, value) in values.into_iter().enumerate() {
            headers.insert(format!("h{n}").into(), value);
        }
        BasicProperties::default()
            .with_content_type("application/json".into())
            .with_content_encoding("gzip".into())
            .with_headers(headers)
            .with_delivery_mode(2)
            .with_priority(7)
            .with_correlation_id("c".into())
            .with_reply_to("r".into())
            .with_expiration("60000".into())
            .with_message_id("m".into())
            .with_timestamp(u64::MAX)
            .with_type("t".into())
            .with_user_id("guest".into())
            .with_app_id("a".into())
            .with_cluster_id("k".into())
    }

    fn bytes(properties: &BasicProperties) -> Vec<u8> {
        cookie_factory::gen_simple(gen_properties(properties), Vec::new()).unwrap()
    }

    #[test]
    fn kept_properties_are_the_same_bytes() {
        for properties in [full(), BasicProperties::default()] {
            let (exchange, routing_key) = ("délayed".into(), "a.b".into());
            let kept = KeptParts { exchange, routing_key, properties };
            let read = KeptParts::read(&kept.text().unwrap()).unwrap();
            assert_eq!(read, kept);
            assert_eq!(bytes(&read.properties), bytes(&kept.properties));
        }
        assert_eq!(KeptParts::read("not base64"), None);
        assert_eq!(KeptParts::read(&STANDARD.encode([VERSION, 200, b'x'])), None);
    }

    /// A message that is delivered again must have the answer of the first one.
    #[test]
    fn redelivered_message_is_kept_alike() {
        let kept = |headers: FieldTable| {
            let properties = full().with_headers(headers);
            KeptParts { exchange: "x".into(), routing_key: "k".into(), properties }.text().unwrap()
        };
        let headers = full().headers().clone().unwrap();
        let mut again = headers.clone();
        again.insert("x-delivery-count".into(), AMQPValue::LongLongInt(3));
        again.insert("x-acquired-count".into(), AMQPValue::LongLongInt(4));
        assert_eq!(kept(again), kept(headers));
    }

    #[test]
    fn delivery_drops_the_user_alone() {
        let headers = full().headers().clone().unwrap();
        let out = for_delivery(&full(), headers, true);
        assert_eq!(*out.user_id(), None);
        assert_eq!(out.with_user_id("guest".into()), full());
    }
}
