//! Arbitrary operations and answers, for round trips: random numbers are read as if they were the bytes of a value, so
//! each type that nodes exchange has samples without a list of its fields.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a panic is a failed test; numbers are small

use duewheel_core::engine::{Op, Reply};
use duewheel_core::message::{Options, QueueLimit};
use duewheel_core::policy::QueueSettings;
use duewheel_core::random::{SplitMix64, scaled};
use duewheel_core::record::Writer;
use duewheel_core::store::{ErrorKind, StoreError};
use duewheel_shard::error::{CallError, Outcome};
use duewheel_shard::inbox::Answers;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde::Serialize;
use serde::de::value::Error;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, Expected, SeqAccess,
    VariantAccess, Visitor,
};

/// An arbitrary operation: all kinds are equally likely.
pub(crate) fn op() -> impl Strategy<Value = Op> {
    arbitrary()
}

/// An arbitrary answer: all kinds are equally likely.
pub(super) fn reply() -> impl Strategy<Value = Reply> {
    arbitrary()
}

/// An arbitrary error of a call.
pub(super) fn error() -> impl Strategy<Value = CallError> {
    let kind = select(vec![
        ErrorKind::Fenced,
        ErrorKind::Unavailable,
        ErrorKind::Full,
        ErrorKind::Corrupt,
        ErrorKind::Closed,
    ]);
    let outcome = select(vec![Outcome::NotApplied, Outcome::Unknown]);
    prop_oneof![
        Just(CallError::Overloaded),
        Just(CallError::Draining),
        Just(CallError::Closed("said")),
        Just(CallError::Lost("said")),
        (kind, "\\PC{0,20}", outcome).prop_map(|(kind, text, outcome)| CallError::Store {
            error: StoreError::new(kind, text),
            outcome
        }),
    ]
}

/// Arbitrary answers of a submission.
pub(super) fn answers() -> impl Strategy<Value = Answers> {
    vec(prop_oneof![reply().prop_map(Ok), error().prop_map(Err)], 0..5)
}

/// The number of the kind of an operation or an answer, as it is in frames.
pub(super) fn kind(of: &impl Serialize) -> u32 {
    postcard::take_from_bytes(&postcard::to_allocvec(of).unwrap()).unwrap().0
}

fn arbitrary<T: DeserializeOwned + std::fmt::Debug>() -> impl Strategy<Value = T> {
    any::<u64>().prop_map(|seed| Draws(SplitMix64::new(seed)).draw())
}

/// Letters of names and texts.
const LETTERS: [char; 16] =
    ['a', 'Z', '0', '9', '+', '/', ';', '.', '$', '_', '(', ')', 'é', '\u{378}', '水', '🎡'];

/// Random numbers that are read as values of any type.
struct Draws(SplitMix64);

impl Draws {
    /// The next value that is a valid one.
    fn draw<T: DeserializeOwned>(&mut self) -> T {
        loop {
            if let Ok(value) = T::deserialize(&mut *self) {
                return value;
            }
        }
    }

    /// A number from 0 to `most`.
    fn upto(&mut self, most: u64) -> u64 {
        scaled(self.0.next(), most)
    }

    /// A number: a small one, the largest, or any.
    fn number(&mut self) -> u64 {
        match self.upto(5) {
            0 | 1 => self.upto(9),
            2 => u64::MAX,
            _ => self.0.next(),
        }
    }

    fn text(&mut self, least: u64) -> String {
        let letters = least + self.upto(20 - least);
        (0..letters).map(|_| LETTERS[self.upto(LETTERS.len() as u64 - 1) as usize]).collect()
    }

    /// The bytes of tagged fields, which have a writer instead of serde's form.
    fn section(&mut self, of: &str) -> Vec<u8> {
        let mut section = Writer::default();
        match of {
            "the options of a message" => section.options(&Options {
                lease_ms: self.draw(),
                max_attempts: self.draw(),
                queue_limit: QueueLimit::Wins,
                backoff: self.draw(),
                spread_ms: self.draw(),
                expiry: self.draw(),
            }),
            "the settings of a queue" => section.settings(&QueueSettings {
                lease_ms: self.draw(),
                max_attempts: self.draw(),
                priority: self.draw(),
                backoff: self.draw(),
                dedupe_window_ms: self.draw(),
                dead_ttl_ms: self.draw(),
                order: self.draw(),
                lasting: self.draw(),
                limits: self.draw(),
                expires_in_ms: self.draw(),
                on_expiry: self.draw(),
                keep_done_ms: self.draw(),
                trace: self.draw(),
            }),
            _ => section.bytes.extend((0..self.upto(60)).map(|_| self.0.next() as u8).collect::<Vec<_>>()),
        }
        section.bytes
    }
}

macro_rules! numbers {
    ($($method:ident $visit:ident $t:ty;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.$visit(self.number() as $t)
        }
    )*};
}

impl<'de> Deserializer<'de> for &mut Draws {
    type Error = Error;

    numbers! {
        deserialize_u8 visit_u8 u8;
        deserialize_u16 visit_u16 u16;
        deserialize_u32 visit_u32 u32;
        deserialize_u64 visit_u64 u64;
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(self.upto(1) == 1)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_string(self.text(1)) // a name, which is not empty
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_string(self.text(0))
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let section = self.section(&(&visitor as &dyn Expected).to_string());
        visitor.visit_byte_buf(section)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.upto(1) == 0 { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let left = self.upto(3) as usize;
        visitor.visit_seq(Several { draws: self, left })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, left: usize, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Several { draws: self, left })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        left: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_seq(Several { draws: self, left })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_seq(Several { draws: self, left: fields.len() })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_enum(Several { draws: self, left: variants.len() })
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("nodes do not exchange this type"))
    }

    fn is_human_readable(&self) -> bool {
        false
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i64 f32 f64 char unit unit_struct map identifier ignored_any
    }
}

/// This number of values, or one variant of this number.
struct Several<'a> {
    draws: &'a mut Draws,
    left: usize,
}

impl<'de> SeqAccess<'de> for Several<'_> {
    type Error = Error;
    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        seed.deserialize(&mut *self.draws).map(Some)
    }
}

impl<'de> EnumAccess<'de> for Several<'_> {
    type Error = Error;
    type Variant = Self;
    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self), Error> {
        let variant = self.draws.upto(self.left as u64 - 1) as u32;
        let variant = serde::de::value::U32Deserializer::<Error>::new(variant);
        Ok((seed.deserialize(variant)?, self))
    }
}

impl<'de> VariantAccess<'de> for Several<'_> {
    type Error = Error;
    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }
    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self.draws)
    }
    fn tuple_variant<V: Visitor<'de>>(self, left: usize, visitor: V) -> Result<V::Value, Error> {
        self.draws.deserialize_tuple(left, visitor)
    }
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.draws.deserialize_tuple(fields.len(), visitor)
    }
}
