//! How a driver is doing, for those who watch it.

/// How the driver is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// How long ago the driver's loop last came round, in ms. It comes round at least every second.
    pub tick_age_ms: u64,
    /// How long its thread has given no sign of life, in ms: it has neither come round nor returned from a call of the
    /// store. 0 while it is in one.
    pub quiet_ms: u64,
    /// What keeps it from coming round.
    pub thread: ThreadIn,
    /// Why it does not work, if it does not.
    pub trouble: Option<String>,
}

/// Where the driver's thread is, or those of a node's shards that do not come round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadIn {
    /// In our own code.
    Ours,
    /// In a call of the store: a disk or a server that does not answer.
    Store,
}
