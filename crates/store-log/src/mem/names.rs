//! Reads the names in a record from its bytes, and computes the short hashes by which the record is found.

use duewheel_core::MessageId;
use duewheel_core::record::{DecodeError, varint};

/// The first byte of a record that puts a message, and of an answer.
const PUT: u8 = 1;
const DEDUPED: u8 = 7;

/// Id, queue and key of a record that puts a message.
pub(super) fn put_names(bytes: &[u8]) -> Option<(MessageId, &[u8], &[u8])> {
    let (kind, mut rest) = bytes.split_first()?;
    if *kind != PUT {
        return None;
    }
    let id = varint(&mut rest).ok()?;
    let queue = blob(&mut rest).ok()?;
    Some((MessageId(id), queue, blob(&mut rest).ok()?))
}

/// Whether a record is the answer remembered under this id.
pub(super) fn names_answer(bytes: &[u8], queue: &str, id: &str) -> bool {
    let Some((&DEDUPED, mut rest)) = bytes.split_first() else { return false };
    blob(&mut rest) == Ok(queue.as_bytes()) && blob(&mut rest) == Ok(id.as_bytes())
}

fn blob<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let length = usize::try_from(varint(rest)?).map_err(|_| DecodeError::Short)?;
    let (blob, behind) = rest.split_at_checked(length).ok_or(DecodeError::Short)?;
    *rest = behind;
    Ok(blob)
}

/// The part of a hash that is kept. More of it would cost memory and spare nothing: under a secret seed two names share
/// these 32 bits by chance alone, so a look-up in a table of ten million examines a stranger once in 400 times.
#[allow(clippy::cast_possible_truncation)] // a part of it is enough
pub(super) fn short(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// The short hash, spread over all bits that a hash table uses.
pub(super) fn spread(short: u32) -> u64 {
    u64::from(short).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
