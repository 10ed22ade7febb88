//! Queue names and keys, which are validated when they are created.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// The name of a queue: 1 to 200 bytes of `A-Za-z0-9-+/;.$_()`, not starting with `-` (beanstalkd's rule).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName(Arc<str>);

/// The caller's own name for a message: 1 to 512 bytes of UTF-8, unique among the unsettled ones of its queue.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

/// Why a text is not a valid queue name or key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadName {
    /// It is empty.
    Empty,
    /// It is longer than this many bytes.
    TooLong(usize),
    /// A queue name must not start with `-`.
    LeadingDash,
    /// A queue name holds a byte outside of the alphabet.
    BadCharacter,
}

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadName::Empty => f.write_str("must not be empty"),
            BadName::TooLong(max) => write!(f, "must have at most {max} bytes"),
            BadName::LeadingDash => f.write_str("must not start with '-'"),
            BadName::BadCharacter => f.write_str("may hold only A-Z a-z 0-9 - + / ; . $ _ ( )"),
        }
    }
}

impl std::error::Error for BadName {}

impl QueueName {
    /// Longest name in bytes.
    pub const MAX: usize = 200;

    /// Checks a name.
    ///
    /// ```
    /// use duewheel_core::QueueName;
    /// assert!(QueueName::new("orders/close").is_ok());
    /// assert!(QueueName::new("-orders").is_err());
    /// ```
    ///
    /// # Errors
    /// [`BadName`] says which rule the name breaks.
    pub fn new(name: &str) -> Result<Self, BadName> {
        let bytes = name.as_bytes();
        match bytes.first() {
            None => return Err(BadName::Empty),
            Some(b'-') => return Err(BadName::LeadingDash),
            Some(_) if bytes.len() > Self::MAX => return Err(BadName::TooLong(Self::MAX)),
            Some(_) => {}
        }
        let ok = |b: &u8| b.is_ascii_alphanumeric() || b"-+/;.$_()".contains(b);
        if !bytes.iter().all(ok) {
            return Err(BadName::BadCharacter);
        }
        Ok(QueueName(name.into()))
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

    /// Checks a name that a store or another node has: one of a caller, or one of the server.
    ///
    /// # Errors
    /// [`BadName`] says which rule the name breaks.
    pub fn stored(name: &str) -> Result<Self, BadName> {
        if name.starts_with('#') { QueueName::system(name) } else { QueueName::new(name) }
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
        assert_eq!(QueueName::new("ä"), Err(BadName::BadCharacter));
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
}
