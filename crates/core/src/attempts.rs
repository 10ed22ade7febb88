//! The limit on the number of times a message is granted.

/// Number of grants after which a message is dead; at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MaxAttempts(std::num::NonZeroU32);

impl From<std::num::NonZeroU32> for MaxAttempts {
    fn from(n: std::num::NonZeroU32) -> Self {
        MaxAttempts(n)
    }
}

impl MaxAttempts {
    /// No limit: attempts never make the message dead, as in beanstalkd.
    pub const UNLIMITED: MaxAttempts = MaxAttempts(std::num::NonZeroU32::MAX);

    /// A limit of `n` attempts; `None` for 0, because a message that may never be tried makes no sense.
    pub fn new(n: u32) -> Option<Self> {
        std::num::NonZeroU32::new(n).map(MaxAttempts)
    }

    /// The limit as a number.
    pub fn count(self) -> u32 {
        self.0.get()
    }
}
