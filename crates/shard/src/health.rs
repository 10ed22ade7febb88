//! How a driver is doing, for those who watch it.

/// How the driver is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// How long ago the driver's loop last came round, in ms. It comes round at least every second.
    pub tick_age_ms: u64,
    /// Why it does not work, if it does not.
    pub trouble: Option<String>,
}
