//! The state of a driver, for monitoring.

/// The state of a driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The time since the driver's loop last completed a round, in ms. It completes at least one every second. A round
    /// does not count if calls wait, and nothing of them was decided, or the store has reported nothing of them.
    pub tick_age_ms: u64,
    /// How long its thread has shown no activity, in ms: it has neither completed a round that counts nor returned from
    /// a call to the store. 0 while it is in such a call.
    pub quiet_ms: u64,
    /// The reason why the loop does not complete a round that counts.
    pub thread: ThreadIn,
    /// Why the driver does not work; `None` if it does.
    pub trouble: Option<String>,
    /// The shards of a node that have waited for long for a call of their store, in words; `None` if none has.
    pub hanging: Option<String>,
}

/// The work of a driver so far, and what waits for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverWork {
    /// Operations that were decided or refused.
    pub decided: u64,
    /// Whether operations wait that the driver could decide now.
    pub has_undecided: bool,
    /// Reports of a higher position by the store.
    pub confirmed: u64,
    /// Whether answers wait for such a report.
    pub awaits_position: bool,
    /// Look-ups that the store has fetched.
    pub fetched: u64,
    /// Whether calls wait for one.
    pub awaits_fetch: bool,
}

/// Where the driver's thread is, or the threads of a node's shards that do not complete their rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThreadIn {
    /// In duewheel's own code.
    #[default]
    Ours,
    /// In a call to the store: a disk or a server that does not answer.
    Store,
    /// In duewheel's own code, which goes on; but the store reports nothing of what calls wait for.
    Unreported,
}
