//! Refusals: their texts for people, and those of a quota.

use std::fmt;

use super::quota::OverQuota;
use super::reply::{ChangeRefusal, EnqueueRefusal, KeyHolder, Limit, RefusedPart};

impl From<Box<OverQuota>> for EnqueueRefusal {
    fn from(over: Box<OverQuota>) -> Self {
        EnqueueRefusal::OverQuota(over)
    }
}

impl From<Box<OverQuota>> for ChangeRefusal {
    fn from(over: Box<OverQuota>) -> Self {
        ChangeRefusal::OverQuota(over)
    }
}

impl fmt::Display for EnqueueRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EnqueueRefusal::KeyExists(holder) => write!(f, "{holder} has this key"),
            EnqueueRefusal::Leased(id) => write!(f, "message {id}, which has this key, is with a consumer"),
            EnqueueRefusal::InThePast => f.write_str(PAST),
            EnqueueRefusal::Expired => f.write_str("the instant of its expiry has passed"),
            EnqueueRefusal::TooFar(max) => write!(f, "the due time is more than {max} ms away"),
            EnqueueRefusal::DedupeMismatch(id) => {
                write!(f, "the same dedupe id stands for another content (message {id})")
            }
            EnqueueRefusal::TooLarge(part, max) => write!(f, "{part} is larger than {max} bytes"),
            EnqueueRefusal::OutOfRange(part) => write!(f, "{part} is out of range"),
            EnqueueRefusal::Overloaded(limit) => limit.fmt(f),
            EnqueueRefusal::Busy => f.write_str(BUSY),
            EnqueueRefusal::DiskFull => f.write_str(FULL),
            EnqueueRefusal::OverQuota(over) => over.fmt(f),
        }
    }
}

impl fmt::Display for ChangeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChangeRefusal::NotFound => f.write_str("no message is pending under this id or key"),
            ChangeRefusal::Leased => {
                f.write_str("a consumer has the message; try again when its lease has ended")
            }
            ChangeRefusal::Dead => f.write_str("the message is dead; redrive it first, or cancel it"),
            ChangeRefusal::NotDead => f.write_str("the message is not dead"),
            ChangeRefusal::KeyExists(holder) => write!(f, "{holder} has taken the key since then"),
            ChangeRefusal::GenerationMismatch(now) => write!(f, "the message has generation {now} now"),
            ChangeRefusal::InThePast => f.write_str(PAST),
            ChangeRefusal::TooFar(max) => write!(f, "the due time is more than {max} ms away"),
            ChangeRefusal::TooLarge(part, max) => write!(f, "{part} is larger than {max} bytes"),
            ChangeRefusal::OutOfRange(part) => write!(f, "{part} is out of range"),
            ChangeRefusal::NothingToChange => f.write_str("no field to change was given"),
            ChangeRefusal::LeaseTooLong(max) => write!(f, "the lease is longer than {max} ms"),
            ChangeRefusal::Paused => f.write_str("the queue is paused; resume it first"),
            ChangeRefusal::DiskFull => f.write_str(FULL),
            ChangeRefusal::Overloaded(limit) => limit.fmt(f),
            ChangeRefusal::Busy => f.write_str(BUSY),
            ChangeRefusal::OverQuota(over) => over.fmt(f),
        }
    }
}

impl fmt::Display for KeyHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {}, which is {},", self.id, self.state.as_str())
    }
}

const PAST: &str = "the due time has passed";
const BUSY: &str = "the store is behind with writing; try again shortly";
const FULL: &str = "the disk is full";

impl RefusedPart {
    /// The name of the field.
    pub fn as_str(self) -> &'static str {
        match self {
            RefusedPart::Body => "body",
            RefusedPart::Headers => "headers",
            RefusedPart::DedupeId => "dedupe_id",
            RefusedPart::DedupeWindow => "dedupe_window",
            RefusedPart::Lease => "lease_ms",
            RefusedPart::MaxAttempts => "max_attempts",
            RefusedPart::Backoff => "backoff",
            RefusedPart::Spread => "spread",
            RefusedPart::ExpiresIn => "expires_in",
            RefusedPart::ExpiresAt => "expires_at",
        }
    }
}

impl fmt::Display for RefusedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for OverQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OverQuota { quota, resource, limit, used, .. } = self;
        write!(f, "quota {quota:?}: {used} of {limit} {resource} are used")
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Messages(max) => write!(f, "{max} messages are held, as many as the limit allows"),
            Limit::Bytes(max) => {
                write!(f, "the messages held would have more than the {max} bytes that the limit allows")
            }
            Limit::Queues(max) => write!(f, "{max} queues exist, as many as the limit allows"),
            Limit::Answers(max) => write!(
                f,
                "{max} answers, or as many bytes of them as the limit allows, are remembered, all of them young"
            ),
            Limit::Leases => f.write_str("as much is leased as the limit allows"),
            Limit::GrantRate(ms) => write!(f, "the queue's rate allows the next message in {ms} ms"),
        }
    }
}
