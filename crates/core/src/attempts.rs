//! How often a message may be tried.

/// Dead after this many grants; at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MaxAttempts(std::num::NonZeroU32);

impl MaxAttempts {
    /// Never dead by counting, as beanstalkd has it.
    pub const UNLIMITED: MaxAttempts = MaxAttempts(std::num::NonZeroU32::MAX);

    /// `None` for 0: a message that may never be tried cannot be meant.
    pub fn new(n: u32) -> Option<Self> {
        std::num::NonZeroU32::new(n).map(MaxAttempts)
    }

    /// The number.
    pub fn count(self) -> u32 {
        self.0.get()
    }
}
