//! Queue names and keys, which are validated when they are created.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

/// The name of a queue: 1 to 200 bytes of UTF-8 in NFC, of letters, marks and digits of any script and
/// `-+/:;.$_()`, not starting with `-`.
///
/// Names are compared byte by byte. NFC gives each text one form, so a name that looks the same to its writer is the
/// same queue; a text in another form is refused, not converted. Characters of other kinds are refused: spaces,
/// controls, formatting (bidirectional marks are of that kind), symbols and other punctuation, `#` among them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName(Arc<str>);

/// The beginning of the names of queues that keep done messages.
const DONE: &str = "#done/";
/// The name of the queue that keeps acts.
const ACTS: &str = "#acts";

/// Between the name of a queue and the id of the act whose messages are kept; no name of a caller's queue has it.
const ACT: char = '#';
/// The name of the queue of points.
const HISTORY: &str = "#history";

/// The caller's own name for a message: 1 to 512 bytes of UTF-8, unique among the unsettled ones of its queue.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

/// Why a text is not a valid queue name or key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadName {
    /// The name is empty.
    Empty,
    /// The name is longer than this many bytes.
    TooLong(usize),
    /// A queue name must not start with `-`.
    LeadingDash,
    /// A queue name holds a character that is no letter, mark or digit and none of the permitted signs.
    BadCharacter,
    /// A queue name is not in Unicode's normalization form C.
    NotNormalized,
}

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadName::Empty => f.write_str("must not be empty"),
            BadName::TooLong(max) => write!(f, "must have at most {max} bytes"),
            BadName::LeadingDash => f.write_str("must not start with '-'"),
            BadName::BadCharacter => {
                f.write_str("may hold only letters, marks, digits and - + / : ; . $ _ ( )")
            }
            BadName::NotNormalized => f.write_str("must be in Unicode's normalization form C (NFC)"),
        }
    }
}

impl std::error::Error for BadName {}

impl QueueName {
    /// Longest name in bytes.
    pub const MAX: usize = 200;

    /// Longest id of an act in bytes.
    pub const MAX_ACT: usize = 32;

    /// Checks a name.
    ///
    /// ```
    /// use duewheel_core::QueueName;
    /// assert!(QueueName::new("orders/close").is_ok());
    /// assert!(QueueName::new("eu:größe").is_ok());
    /// assert!(QueueName::new("-orders").is_err());
    /// ```
    ///
    /// # Errors
    /// [`BadName`] says which rule the name breaks.
    pub fn new(name: &str) -> Result<Self, BadName> {
        if name.starts_with('-') {
            return Err(BadName::LeadingDash);
        }
        let stored = Self::stored(name)?;
        if !name.chars().all(is_permitted) {
            return Err(BadName::BadCharacter);
        }
        // ASCII text is in NFC.
        if !name.is_ascii() && !unicode_normalization::is_nfc(name) {
            return Err(BadName::NotNormalized);
        }
        Ok(stored)
    }

    /// A name that was checked when it was stored: of a caller, or of the server. A later version of Unicode may have more
    /// letters: a name of one build can be read by another one, whose [`QueueName::new`] refuses it.
    ///
    /// # Errors
    /// [`BadName`] if it is empty or too long.
    pub fn stored(name: &str) -> Result<Self, BadName> {
        // The queue of done messages of a queue has a longer name.
        let max = if name.starts_with(DONE) {
            Self::MAX + DONE.len() + ACT.len_utf8() + Self::MAX_ACT
        } else {
            Self::MAX
        };
        match name.len() {
            0 => Err(BadName::Empty),
            n if n > max => Err(BadName::TooLong(max)),
            _ => Ok(QueueName(name.into())),
        }
    }

    /// The system queue that keeps the done messages of this queue.
    ///
    /// ```
    /// use duewheel_core::QueueName;
    /// let done = QueueName::new("orders")?.of_done();
    /// assert!(done.is_system());
    /// assert_eq!(done.done_of(), Some("orders"));
    /// assert_eq!(QueueName::new("orders")?.done_of(), None);
    /// # Ok::<(), duewheel_core::name::BadName>(())
    /// ```
    #[must_use]
    pub fn of_done(&self) -> QueueName {
        QueueName([DONE, &self.0].concat().into())
    }

    /// The name under which answers are remembered that lead from ids to done messages. It has no messages.
    pub fn done_ids() -> QueueName {
        QueueName("#done".into())
    }

    /// The system queue that keeps the records of acts ([`crate::act`]).
    pub fn of_acts() -> QueueName {
        QueueName(ACTS.into())
    }

    /// Whether this is the queue of [`QueueName::of_acts`].
    pub fn is_of_acts(&self) -> bool {
        *self.0 == *ACTS
    }

    /// The name of the queue whose done messages this queue keeps; `None` for every other queue.
    pub fn done_of(&self) -> Option<&str> {
        let name = self.0.strip_prefix(DONE)?;
        Some(name.split_once(ACT).map_or(name, |(name, _)| name))
    }

    /// The system queue that keeps the messages which one act has removed from this queue, to be put back. The id of an
    /// act is 1 to [`QueueName::MAX_ACT`] letters and digits.
    ///
    /// ```
    /// use duewheel_core::QueueName;
    /// let kept = QueueName::new("orders")?.of_act("7f3a").unwrap();
    /// assert_eq!((kept.done_of(), kept.is_of_act()), (Some("orders"), true));
    /// assert!(!QueueName::new("orders")?.of_done().is_of_act());
    /// # Ok::<(), duewheel_core::name::BadName>(())
    /// ```
    ///
    /// # Errors
    /// [`BadName`] if the id is not one.
    pub fn of_act(&self, act: &str) -> Result<QueueName, BadName> {
        match act.len() {
            0 => Err(BadName::Empty),
            n if n > Self::MAX_ACT => Err(BadName::TooLong(Self::MAX_ACT)),
            _ if !act.bytes().all(|b| b.is_ascii_alphanumeric()) => Err(BadName::BadCharacter),
            _ => Ok(QueueName([DONE, &self.0, ACT.encode_utf8(&mut [0; 4]), act].concat().into())),
        }
    }

    /// Whether the queue keeps the messages of one act ([`QueueName::of_act`]).
    pub fn is_of_act(&self) -> bool {
        self.0.strip_prefix(DONE).is_some_and(|name| name.contains(ACT))
    }

    /// The system queue that keeps the points of all histories ([`crate::history`]).
    pub fn history() -> QueueName {
        QueueName(HISTORY.into())
    }

    /// Whether it is that queue.
    pub fn is_history(&self) -> bool {
        *self.0 == *HISTORY
    }

    /// Whether beanstalkd's protocol can express the name: `A-Za-z0-9-+/;.$_()`.
    pub fn is_plain(&self) -> bool {
        self.0.bytes().all(is_plain)
    }

    /// The name of a queue that belongs to the server: a `#` and a name. No front end accepts one from its callers.
    ///
    /// # Errors
    /// [`BadName`] says which rule the name breaks.
    pub fn system(name: &str) -> Result<Self, BadName> {
        let rest = name.strip_prefix('#').ok_or(BadName::BadCharacter)?;
        QueueName::new(rest)?;
        if name.len() > Self::MAX {
            return Err(BadName::TooLong(Self::MAX));
        }
        Ok(QueueName(name.into()))
    }

    /// Whether the queue belongs to the server.
    pub fn is_system(&self) -> bool {
        self.0.starts_with('#')
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether the byte may be in a name by beanstalkd's rule.
fn is_plain(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"-+/;.$_()".contains(&b)
}

/// Whether the character may be in the name of a queue.
fn is_permitted(c: char) -> bool {
    match u8::try_from(c) {
        Ok(b) if b.is_ascii() => is_plain(b) || b == b':',
        _ => matches!(
            c.general_category(),
            GeneralCategory::UppercaseLetter
                | GeneralCategory::LowercaseLetter
                | GeneralCategory::TitlecaseLetter
                | GeneralCategory::ModifierLetter
                | GeneralCategory::OtherLetter
                | GeneralCategory::NonspacingMark
                | GeneralCategory::SpacingMark
                | GeneralCategory::EnclosingMark
                | GeneralCategory::DecimalNumber
        ),
    }
}

impl Key {
    /// Longest key in bytes.
    pub const MAX: usize = 512;

    /// Checks a key.
    ///
    /// # Errors
    /// [`BadName`] if the key is empty or too long.
    pub fn new(key: &str) -> Result<Self, BadName> {
        match key.len() {
            0 => Err(BadName::Empty),
            n if n > Self::MAX => Err(BadName::TooLong(Self::MAX)),
            _ => Ok(Key(key.into())),
        }
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Enums whose values have names, each stated with its value.
macro_rules! named_enum {
    ($(#[$of_all:meta])* pub enum $t:ident { $($(#[$of:meta])* $value:ident $(= $number:literal)? => $name:literal,)* }) => {
        $(#[$of_all])*
        pub enum $t {
            $($(#[$of])* $value $(= $number)?,)*
        }

        impl $t {
            /// All values.
            pub const ALL: [$t; [$($name),*].len()] = [$($t::$value),*];

            /// The name in JSON.
            pub fn as_str(self) -> &'static str {
                match self {
                    $($t::$value => $name,)*
                }
            }
        }
    };
}
pub(crate) use named_enum;

macro_rules! text {
    ($t:ty) => {
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
        impl Borrow<str> for $t {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}
text!(QueueName);
text!(Key);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert_eq!(QueueName::new(""), Err(BadName::Empty));
        assert_eq!(QueueName::new("-a"), Err(BadName::LeadingDash));
        assert_eq!(QueueName::new("a b"), Err(BadName::BadCharacter));
        assert_eq!(QueueName::new("a#b"), Err(BadName::BadCharacter));
        assert_eq!(QueueName::new("#targets"), Err(BadName::BadCharacter), "these are the server's");
        assert!(QueueName::new(&"q".repeat(200)).is_ok());
        assert_eq!(QueueName::new(&"q".repeat(201)), Err(BadName::TooLong(200)));
        assert!(QueueName::new("A-z0+/;.$_()").is_ok());
        assert_eq!(QueueName::new("#a"), Err(BadName::BadCharacter));
        assert!(QueueName::system("#a").is_ok_and(|name| name.is_system()));
        assert_eq!(QueueName::system("a"), Err(BadName::BadCharacter));
        assert_eq!(QueueName::system("#"), Err(BadName::Empty));
        assert!(
            QueueName::stored("#a").is_ok() && QueueName::stored("a").is_ok_and(|name| !name.is_system())
        );
        assert_eq!(Key::new(""), Err(BadName::Empty));
        assert!(Key::new(&"k".repeat(512)).is_ok());
        assert_eq!(Key::new(&"k".repeat(513)), Err(BadName::TooLong(512)));
    }

    #[test]
    fn queue_names_allow_normalized_scripts() {
        for good in
            ["größe", "заказы/закрыть", "注文:締切", "कतार", "طابور", "คิว", "eu:orders", "a١٢", "ǅ", "ªº"]
        {
            assert_eq!(QueueName::new(good).map(|name| name.to_string()).as_deref(), Ok(good));
            assert_eq!(
                QueueName::new(good).is_ok_and(|name| name.is_plain()),
                good.is_ascii() && !good.contains(':')
            );
        }
        let (composed, decomposed) = ("caf\u{e9}", "cafe\u{301}");
        assert!(QueueName::new(composed).is_ok());
        assert_eq!(QueueName::new(decomposed), Err(BadName::NotNormalized));
        // The ohm sign is a letter whose form C is the Greek letter.
        assert_eq!(QueueName::new("\u{2126}"), Err(BadName::NotNormalized));
        for bad in [
            "a b",
            "a\u{a0}b",
            "a\u{3000}b",
            "a\tb",
            "a\u{0}b",
            "a\u{7f}",
            "a\u{85}b",
            "a\u{200b}b",
            "a\u{200d}b",
            "\u{202e}a",
            "a\u{2066}b",
            "a\u{200f}b",
            "a\u{feff}",
            "a\u{ad}b",
            "a²",
            "½",
            "Ⅷ",
            "a\u{e000}",
            "a\u{378}",
            "👍",
            "a\u{2028}b",
            "a,b",
            "a*",
            "a=b",
            "a\"b",
            "a\\b",
            "a%b",
            "a?b",
            "a…",
            "€",
        ] {
            assert_eq!(QueueName::new(bad), Err(BadName::BadCharacter), "{bad:?}");
        }
        // The limit counts bytes: 66 characters of three bytes, and two of one.
        assert!(QueueName::new(&("注".repeat(66) + "ab")).is_ok());
        assert_eq!(QueueName::new(&"注".repeat(67)), Err(BadName::TooLong(200)));
    }

    #[test]
    fn stored_names_allow_any_letters() {
        for text in ["a\u{378}", "#targets", "-a"] {
            assert_eq!(QueueName::stored(text).map(|name| name.to_string()).as_deref(), Ok(text));
        }
        assert_eq!(QueueName::stored(""), Err(BadName::Empty));
        assert_eq!(QueueName::stored(&"q".repeat(201)), Err(BadName::TooLong(200)));
    }
}
