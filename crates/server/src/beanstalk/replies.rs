//! The protocol's replies as bytes.

use duewheel::core::MessageId;
use duewheel::core::engine::{ChangeRefusal, Reply, SettleRefusal};
use duewheel::core::message::MessageContent;
use duewheel::{CallError, Outcome};

use crate::error::{ErrorCode, Problem};

/// The reply to a session whose lease is not, or no longer, the message's.
pub(super) fn lost(refusal: SettleRefusal) -> &'static str {
    match refusal {
        SettleRefusal::LeaseLost | SettleRefusal::NeverIssued => "NOT_FOUND\r\n",
        // The protocol has no longer times, and no "not yet".
        SettleRefusal::TooLong(_) | SettleRefusal::KeyExists(_) => ErrorCode::Internal.beanstalk(),
    }
}

/// The reply to a refused change: a message in another state counts as missing; a full store has a reply of its own.
pub(super) fn unchanged(refusal: ChangeRefusal) -> &'static str {
    match refusal {
        ChangeRefusal::DiskFull
        | ChangeRefusal::Overloaded(_)
        | ChangeRefusal::Busy
        | ChangeRefusal::OverQuota(_) => Problem::from_change(refusal, "delay").code.beanstalk(),
        ChangeRefusal::NotFound
        | ChangeRefusal::Leased
        | ChangeRefusal::Dead
        | ChangeRefusal::NotDead
        | ChangeRefusal::KeyExists(_)
        | ChangeRefusal::GenerationMismatch(_)
        | ChangeRefusal::InThePast
        | ChangeRefusal::TooFar(_)
        | ChangeRefusal::TooLarge(..)
        | ChangeRefusal::OutOfRange(_)
        | ChangeRefusal::NothingToChange
        | ChangeRefusal::LeaseTooLong(_)
        | ChangeRefusal::Paused => "NOT_FOUND\r\n",
    }
}

/// The reply if the engine did not answer, or with an unexpected answer.
pub(super) fn no_answer(answer: Option<EngineAnswer>) -> &'static str {
    match answer {
        // The reply says that nothing was done, which `INTERNAL_ERROR` would leave open.
        Some(Err(error @ CallError::Store { outcome: Outcome::NotApplied, .. })) if error.is_retryable() => {
            ErrorCode::Overloaded.beanstalk()
        }
        Some(Err(error)) => Problem::from(error).code.beanstalk(),
        Some(Ok(_)) | None => ErrorCode::Internal.beanstalk(),
    }
}

/// A word and a number.
pub(super) fn line(out: &mut Vec<u8>, word: &str, id: MessageId) {
    out.extend_from_slice(word.as_bytes());
    out.push(b' ');
    digits(out, id.0);
    out.extend_from_slice(b"\r\n");
}

/// A word, the id, and the body.
pub(super) fn found(out: &mut Vec<u8>, word: &str, message: &MessageContent) {
    out.extend_from_slice(word.as_bytes());
    out.push(b' ');
    digits(out, message.id.0);
    out.push(b' ');
    digits(out, message.body.len() as u64);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(&message.body);
    out.extend_from_slice(b"\r\n");
}

/// `OK` and a text.
pub(super) fn block(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(b"OK ");
    digits(out, text.len() as u64);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// A number in decimal digits.
fn digits(out: &mut Vec<u8>, n: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
}

pub(super) type EngineAnswer = Result<Reply, CallError>;
