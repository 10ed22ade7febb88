//! Bugs that tests switch on, to test the tests. They are compiled in only with the feature `mutants`, which only the
//! simulation enables; without it [`is`] is `false` at compile time.

/// A deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mutant {
    /// An answer leaves when its record is written, not when it is durable.
    AckBeforeSync,
    /// A delay is counted from the clock's reading rounded down.
    DueRoundedDown,
    /// The time without an owner on a medium is counted by the wall clock as it is when the store is open.
    OpenedByWall,
    /// The driver sleeps until the next due time as it is when it falls asleep, however long that is.
    OneLongSleep,
    /// A turn that a sleeping driver lends is taken by the time at which it fell asleep.
    LentTurnStale,
    /// Any token settles a message.
    TokenUnchecked,
    /// A message whose last lease ran out loses the token of that lease.
    LastTokenLost,
    /// Attempts are counted when a message comes back, not when it is granted.
    AttemptAtNack,
    /// While the disk is full, a nack loses its message.
    NackDroppedWhenFull,
    /// While the disk is full, an enqueue is refused and has removed what it would have replaced.
    HalfApplied,
    /// A merge leaves the last message of its newest run out.
    MergeDropsNewest,
    /// Groups are cut by the number of their records alone.
    GroupTooLarge,
    /// A flush that fails after its records were folded into the books leaves them there.
    BooksFolded,
    /// The size of a flush is computed without a run's indexes.
    ReserveWithoutIndexes,
    /// The memory for ready messages is shared equally by all queues that have some.
    WindowByQueues,
    /// A background worker that panics ends without a report.
    PanicSwallowed,
    /// A call that has waited for the medium is decided by what was found when it began to wait.
    LookUpAsOfAsking,
    /// Calls that name what a waiting call names do not wait for it.
    LaneIgnored,
    /// A call waits for any parked call that names what it names, whether that arrived before it or after it.
    WaitsForLater,
    /// A flush removes the journal that it covers before the manifest lists its runs.
    CutBeforeManifest,
    /// The manifest says that the journal is durable as far as it is written.
    ProvenUnsynced,
    /// A medium removes a file that is still read.
    RemovedWhileRead,
    /// An expired message is granted where it is to be dropped.
    ExpiredGranted,
    /// An expiry is counted from the enqueue, not from the due time.
    ExpiryFromEnqueue,
    /// The delay of a retry moves the expiry.
    RetryMovesExpiry,
    /// The tokens of a rate gather beyond its burst.
    BurstUnlimited,
    /// From the second start on, a queue may have one lease more than its limit.
    OneLeaseMore,
    /// A message whose key was taken while it was leased comes back when its lease ends.
    SupersededReturns,
    /// A message that an act has removed is put back, and can be put back once more.
    RestoredTwice,
    /// The rows of an outbox that cancel or postpone are not recorded.
    OnlyEnqueuesRecorded,
    /// A request to another node whose outcome is unknown is sent again, whatever it is.
    LostRetried,
}

#[cfg(feature = "mutants")]
thread_local! {
    static CHOSEN: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Switches a bug on for this thread, or all bugs off.
#[cfg(feature = "mutants")]
pub fn choose(mutant: Option<Mutant>) {
    CHOSEN.set(mutant);
}

/// Whether the bug is switched on for this thread.
#[inline]
#[must_use]
pub fn is(mutant: Mutant) -> bool {
    #[cfg(feature = "mutants")]
    return CHOSEN.get() == Some(mutant);
    #[cfg(not(feature = "mutants"))]
    {
        let _ = mutant;
        false
    }
}
