//! What a system promises and what it tells: the judge holds it to that, and to nothing else.

use serde::{Deserialize, Serialize};

/// What the system under test has promised beyond the common rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Length of a lease if neither reserve nor message says otherwise.
    pub lease_ms: u64,
    /// Dead after so many grants if the message does not say otherwise.
    pub max_attempts: u64,
    /// Shortest delay after a nack without a delay, at the first attempt; doubles.
    pub backoff_min_ms: u64,
    /// Longest delay after a nack without a delay.
    pub backoff_max_ms: u64,
    /// An overdue message is offered within this time once the system is up and nobody else is in front of it.
    pub offer_ms: u64,
    /// What is allowed for rounding and scheduling wherever the system must do something *not later* than a time. Where
    /// it must not do something *before* a time, nothing is allowed.
    pub slack_ms: u64,
    /// The same once more for each fault of a cluster: a shard's time stands still, each time it moves, for as long as its
    /// last change was on its way to the store.
    #[serde(default)]
    pub move_ms: u64,
    /// Whether tokens are comparable between messages: they are within one shard.
    pub shards: Shards,
    /// Whether grants and rows say how often a message was granted; the number is 0 if not.
    #[serde(default)]
    pub attempts: Told,
    /// Whether grants and rows say a message's key; there is none in them if not.
    #[serde(default)]
    pub keys: Told,
    /// Whether grants say how late they are; the number is 0 if not.
    #[serde(default)]
    pub lateness: Told,
    /// Whose a lease is.
    #[serde(default)]
    pub leases: Leases,
    /// What was answered longer than this before a failover of the store is not forgotten by it.
    #[serde(default)]
    pub failover_ms: u64,
    /// Until when an operation without an answer takes effect, if at all.
    #[serde(default)]
    pub unanswered: Unanswered,
    /// By which clock downtime is known.
    #[serde(default)]
    pub downtime: Downtime,
}

/// By which clock a system knows at a start how long it was down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Downtime {
    /// By the wall clock: steps and slews that it could not note before it went down, or that came meanwhile, count as time.
    #[default]
    WallClock,
    /// By a clock that goes on while the machine does; by the wall clock only after a power loss.
    OfBoot,
}

/// Until when an operation without an answer takes effect, if at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unanswered {
    /// Until the process is killed: there is one.
    #[default]
    UntilKilled,
    /// For so many ms after the client has given it up: of several processes any may still have it in hand.
    ForMs(u64),
}

/// Whether a system says something. From what it does not say nothing is concluded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// It does, and is held to it.
    #[default]
    Yes,
    /// It does not.
    No,
}

/// Whose a lease is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Leases {
    /// Whoever shows its token: it runs on when connections close and the system is killed.
    #[default]
    OfTokens,
    /// The connection that took it, as in beanstalkd's protocol: it ends with the connection, or earlier by its time; a nack,
    /// bury or extend needs one that runs; and an ack is a delete, which anybody may do to a message that nobody has.
    /// Tokens are made by whoever writes the history, in the order in which the grants of a message were given.
    OfConnections,
}

/// Whether tokens of different messages come from one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shards {
    /// They do.
    One,
    /// They need not.
    Many,
}

impl Rules {
    /// Those of one process with the usual settings: everything is told, and nothing is forgotten.
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
        downtime: Downtime::WallClock,
    };
}

impl Default for Rules {
    fn default() -> Self {
        Rules::USUAL
    }
}
