//! The promises and the reports of a system: the judge checks these, and nothing else.

use serde::{Deserialize, Serialize};

/// The promises of the system under test beyond the common rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// The length of a lease if neither reserve nor message has its own.
    pub lease_ms: u64,
    /// The number of grants after which a message is dead, if the message has no setting of its own.
    pub max_attempts: u64,
    /// The shortest delay after a nack without a delay, at the first attempt; doubled with each attempt.
    pub backoff_min_ms: u64,
    /// Longest delay after a nack without a delay.
    pub backoff_max_ms: u64,
    /// An overdue message is offered within this time once the system is up and no other consumer is in front.
    pub offer_ms: u64,
    /// The tolerance for rounding and scheduling where the system must do something *not later* than a time. Where it
    /// must not do something *before* a time, there is none.
    pub slack_ms: u64,
    /// A further tolerance for each fault of a cluster: a shard's time stands still, each time it moves, for as long as
    /// its last change was on its way to the store.
    #[serde(default)]
    pub move_ms: u64,
    /// Whether tokens are comparable between messages: they are within one shard.
    pub shards: Shards,
    /// Whether grants and rows report how often a message was granted; the number is 0 if not.
    #[serde(default)]
    pub attempts: Told,
    /// Whether grants and rows report a message's key; it is absent if not.
    #[serde(default)]
    pub keys: Told,
    /// Whether grants report their lateness; the number is 0 if not.
    #[serde(default)]
    pub lateness: Told,
    /// Who holds a lease.
    #[serde(default)]
    pub leases: Leases,
    /// Changes that were answered longer than this before a failover of the store are not forgotten by it.
    #[serde(default)]
    pub failover_ms: u64,
    /// How long an operation without an answer may still take effect.
    #[serde(default)]
    pub unanswered: Unanswered,
    /// A reserve that takes as long as this may be answered without one of the shards that it has asked, whose grants
    /// reach no client. 0: it waits for all of them.
    #[serde(default)]
    pub partial_ms: u64,
    /// The clock by which downtime is measured.
    #[serde(default)]
    pub downtime: Downtime,
}

/// The clock by which a system measures at a start how long it was down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Downtime {
    /// The wall clock: steps and slews that it could not record before it went down, or that happened meanwhile, count
    /// as time.
    #[default]
    WallClock,
    /// A clock that continues while the machine runs; the wall clock only after a power loss.
    OfBoot,
}

/// How long an operation without an answer may still take effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unanswered {
    /// Until the process is killed: there is only one.
    #[default]
    UntilKilled,
    /// For this number of ms after the client has given it up: any of several processes may still be working on it.
    ForMs(u64),
}

/// Whether a system reports a value. Nothing is concluded from a value that is not reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// The value is reported, and checked.
    #[default]
    Yes,
    /// The value is not reported.
    No,
}

/// Who holds a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Leases {
    /// The client that shows its token: the lease runs on when connections close and the system is killed.
    #[default]
    OfTokens,
    /// The connection that took it, as in beanstalkd's protocol: the lease ends with the connection, or earlier by its
    /// time; a nack, bury or extend needs a running lease; and an ack is a delete, which any client may do to a message
    /// that no consumer has. The recorder makes the tokens, in the order in which the grants of a message were given.
    OfConnections,
}

/// Whether tokens of different messages come from one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shards {
    /// They come from one counter.
    One,
    /// They may come from several.
    Many,
}

impl Rules {
    /// The rules of one process with the usual settings: everything is reported, and nothing is forgotten.
    pub const USUAL: Rules = Rules {
        lease_ms: 30_000,
        max_attempts: 20,
        backoff_min_ms: 1_000,
        backoff_max_ms: 3_600_000,
        offer_ms: 5_000,
        slack_ms: 50,
        move_ms: 0,
        shards: Shards::One,
        attempts: Told::Yes,
        keys: Told::Yes,
        lateness: Told::Yes,
        leases: Leases::OfTokens,
        failover_ms: 0,
        unanswered: Unanswered::UntilKilled,
        partial_ms: 0,
        downtime: Downtime::WallClock,
    };
}

impl Default for Rules {
    fn default() -> Self {
        Rules::USUAL
    }
}
