//! The state of a driver, for monitoring.

/// The state of a driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The time since the driver's loop last completed a round, in ms. It completes at least one every second.
    pub tick_age_ms: u64,
    /// How long its thread has shown no activity, in ms: it has neither completed a round nor returned from a call to
    /// the store. 0 while it is in such a call.
    pub quiet_ms: u64,
    /// The reason why the loop does not complete a round.
    pub thread: ThreadIn,
    /// Why the driver does not work; `None` if it does.
    pub trouble: Option<String>,
    /// The shards of a node that have waited for long for a call of their store, in words; `None` if none has.
    pub hanging: Option<String>,
}

/// Where the driver's thread is, or the threads of a node's shards that do not complete their rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThreadIn {
    /// In duewheel's own code.
    #[default]
    Ours,
    /// In a call to the store: a disk or a server that does not answer.
    Store,
}
