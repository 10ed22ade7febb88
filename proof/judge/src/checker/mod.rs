//! Finds contradictions between a history and the promises.
//!
//! A violation is reported only if it is *provable* from what the clients saw: no assignment of moments to operations,
//! each between its invocation and its end, explains the history. An operation whose outcome is unknown may have
//! happened at any moment between its invocation and the next kill, or not at all; both are always considered. What the
//! checker cannot prove it does not report; `docs/testing.md` lists the checks.
//!
//! The work is one pass: operations are grouped by message (`index.rs`), each message is checked by itself
//! (`judge.rs`), and a second, short pass checks keys, tokens and totals (`crowd.rs`).

mod crowd;
mod due;
mod enders;
mod evidence;
mod expiry;
mod index;
mod judge;
mod lateness;
mod life;
mod limits;
mod names;
mod offer;
mod op;
mod pushes;
mod story;
mod world;

use std::collections::BTreeMap;
use std::fmt;

pub use evidence::{Evidence, Fact};
pub use lateness::{Lateness, Percentiles};

use crate::history::{Event, History, MsgId, Tag};

/// A promise that the checker checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    /// An accepted message that no operation may have ended is visible at the end (G1).
    Lost,
    /// No grant before the due time (G2).
    Early,
    /// No grant after an ack (G4).
    GrantAfterAck,
    /// No grant after a cancel, replacement or supersession, and no cancel of a message that a consumer has (G5).
    GrantAfterCancel,
    /// A message ends once: no two of acked, cancelled, replaced were answered.
    EndedTwice,
    /// A message that has ended is not visible any more.
    Resurrected,
    /// Tokens grow (G6).
    TokenOrder,
    /// A settle with a stale token, or of a message that is gone, is refused (G6).
    StaleSettle,
    /// No extend after the lease ran out (G8).
    LateExtend,
    /// The holder of a lease, or of one that ran out and that no other consumer has got since, is not refused (G8).
    WronglyRefused,
    /// No second grant before a lease runs out (G7).
    LeaseBroken,
    /// No producer changes a message while a consumer has it.
    ChangedWhileLeased,
    /// The body that was sent comes back, under its key (G12).
    WrongBody,
    /// Every visible message was enqueued, and accepted once.
    Ghost,
    /// One unsettled message a key (G10).
    DoubleKey,
    /// Attempts are counted by one a grant (G9).
    Attempts,
    /// Dead after exactly `max_attempts` grants (G9).
    DeadInexact,
    /// A refusal gives the true reason.
    Untruthful,
    /// Overdue messages are offered soon after the faults end (G3).
    NotOffered,
    /// The reported lateness of a grant is true: downtime counts, and nothing else is added.
    Lateness,
    /// The system's own totals agree with what the clients saw.
    Totals,
    /// What has expired is late, dead or gone, as its queue wants; what has not is none of these.
    Expiry,
    /// A message is due in its spread.
    Spread,
    /// A queue has no more leases than its concurrency allows.
    Concurrency,
    /// A queue grants no more than its rates and their bursts allow.
    Rate,
    /// All requests with a message have one `webhook-id`, and all messages name one store in theirs (G18).
    WebhookId,
    /// The attempts that requests name grow, by one and the requests that a kill can have cut off (G18).
    PushAttempts,
    /// No request with a message that is gone, or whose success was answered in time (G4, G18).
    PushAfterEnd,
}

impl Check {
    /// All of them.
    pub const ALL: [Check; 28] = [
        Check::Lost,
        Check::Early,
        Check::GrantAfterAck,
        Check::GrantAfterCancel,
        Check::EndedTwice,
        Check::Resurrected,
        Check::TokenOrder,
        Check::StaleSettle,
        Check::LateExtend,
        Check::WronglyRefused,
        Check::LeaseBroken,
        Check::ChangedWhileLeased,
        Check::WrongBody,
        Check::Ghost,
        Check::DoubleKey,
        Check::Attempts,
        Check::DeadInexact,
        Check::Untruthful,
        Check::NotOffered,
        Check::Lateness,
        Check::Totals,
        Check::Expiry,
        Check::Spread,
        Check::Concurrency,
        Check::Rate,
        Check::WebhookId,
        Check::PushAttempts,
        Check::PushAfterEnd,
    ];
}

/// A promise that was provably broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The promise.
    pub check: Check,
    /// The message, if it has an id.
    pub message: Option<MsgId>,
    /// The tag of the enqueue that made it, if known.
    pub tag: Option<Tag>,
    /// The contradiction, in words.
    pub what: String,
    /// All events that concern the message, including the faults of its time.
    pub story: Vec<Event>,
}

/// The ends of all accepted messages. `accepted` is the sum of all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// Known to have been accepted: answered so, or seen.
    pub accepted: u64,
    /// Of these, without a positive answer to the producer.
    pub accepted_unanswered: u64,
    /// Acked.
    pub acked: u64,
    /// Not in the dump, and the receiver of pushes has answered it with a success.
    pub delivered: u64,
    /// Cancelled.
    pub cancelled: u64,
    /// Replaced.
    pub replaced: u64,
    /// Ended with the lease during which another message took their key.
    pub superseded: u64,
    /// Dropped because they had expired.
    pub expired: u64,
    /// In the dump as dead.
    pub dead: u64,
    /// In the dump otherwise.
    pub held: u64,
    /// Not in the dump; an operation with an unknown outcome, or a purge, may have ended it.
    pub unknown: u64,
    /// Not in the dump; a failover of the store may have removed it.
    pub forgotten: u64,
    /// Not in the dump, and nothing explains it.
    pub lost: u64,
}

/// The verdict.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The violations.
    pub violations: Vec<Violation>,
    /// The number of times that each check was applied.
    pub applied: BTreeMap<Check, u64>,
    /// The facts that provably happened.
    pub evidence: Evidence,
    /// The ends of all messages.
    pub balance: Balance,
    /// The lateness of first grants, per phase.
    pub lateness: BTreeMap<String, Lateness>,
    /// Operations in the history.
    pub operations: u64,
}

/// Checks a history.
pub fn check(history: &History) -> Report {
    let mut report = Report::default();
    let world = world::World::new(history, &mut report);
    report.operations = world.ops.len() as u64;
    for life in &world.lives {
        judge::check(&world, life, &mut report);
    }
    crowd::check(&world, &mut report);
    limits::check(&world, &mut report);
    pushes::check_stores(&world, &mut report);
    evidence::gather(&world, &mut report.evidence);
    report.lateness = lateness::gather(&world);
    report
}

impl Report {
    /// Counts an application of a check.
    fn applied(&mut self, check: Check) {
        *self.applied.entry(check).or_default() += 1;
    }

    /// The checks that failed.
    pub fn failed(&self) -> Vec<Check> {
        let mut checks: Vec<Check> = self.violations.iter().map(|v| v.check).collect();
        checks.sort();
        checks.dedup();
        checks
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let b = &self.balance;
        writeln!(f, "operations      {}", self.operations)?;
        writeln!(
            f,
            "accepted        {} ({} of them never answered) = {} acked + {} delivered + {} cancelled + {} replaced + {} superseded + \
             {} expired + {} dead + {} held + {} unknown + {} forgotten + {} lost",
            b.accepted,
            b.accepted_unanswered,
            b.acked,
            b.delivered,
            b.cancelled,
            b.replaced,
            b.superseded,
            b.expired,
            b.dead,
            b.held,
            b.unknown,
            b.forgotten,
            b.lost
        )?;
        writeln!(f, "{}", self.evidence)?;
        for (phase, lateness) in &self.lateness {
            writeln!(f, "late, {phase:<10}{lateness}")?;
        }
        write!(f, "checks applied ")?;
        for (check, n) in &self.applied {
            write!(f, " {check:?} {n}")?;
        }
        writeln!(f)?;
        writeln!(f, "violations      {}", self.violations.len())?;
        if !self.violations.is_empty() {
            // scripts/test searches for this line: a run in which a promise was broken is never repeated.
            writeln!(f, "JUDGE: broken {:?}", self.failed())?;
        }
        Ok(())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: ", self.check)?;
        if let Some(id) = self.message {
            write!(f, "message {} ", id.0)?;
        }
        if let Some(tag) = self.tag {
            write!(f, "(tag {:016x}) ", tag.0)?;
        }
        writeln!(f, "{}", self.what)?;
        story::print(&self.story, f)
    }
}
