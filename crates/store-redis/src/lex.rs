//! Members of sorted sets that sort as bytes like (time, id): a number is a letter for the number of digits, and the
//! digits.
//!
//! `17` is `b17`, `1763740800123` is `m1763740800123`, the greatest number of 64 bits begins with `t`. So a person can
//! read them, no number is a prefix of another, and 64 bits are exact, which the score of a sorted set is not.

use duewheel_core::MessageId;
use duewheel_core::store::Cursor;

/// Sorts behind every member that continues with `:`.
const BEHIND: u8 = b';';

/// Appends a number.
pub(crate) fn push(out: &mut Vec<u8>, n: u64) {
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(n).as_bytes();
    let count = u8::try_from(digits.len()).unwrap_or(20);
    out.push(b'a' + count - 1);
    out.extend_from_slice(digits);
}

/// Appends a number in plain decimal form.
pub(crate) fn push_decimal(out: &mut Vec<u8>, n: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
}

/// Reads a number at the start of a text; returns it and the rest.
pub(crate) fn read(text: &[u8]) -> Option<(u64, &[u8])> {
    let (&letter, rest) = text.split_first()?;
    let count = usize::from(letter.checked_sub(b'a')?) + 1;
    let (digits, rest) = rest.split_at_checked(count)?;
    Some((std::str::from_utf8(digits).ok()?.parse().ok()?, rest))
}

/// Appends `time:id`, as in the sets of one queue.
pub(crate) fn push_place(out: &mut Vec<u8>, time: u64, id: MessageId) {
    push(out, time);
    out.push(b':');
    push(out, id.0);
}

/// Appends `id:queue`, where the score is the time.
pub(crate) fn push_tail(out: &mut Vec<u8>, id: MessageId, queue: &str) {
    push(out, id.0);
    out.push(b':');
    out.extend_from_slice(queue.as_bytes());
}

/// The cursor of `time:id`.
pub(crate) fn read_place(member: &[u8]) -> Option<Cursor> {
    let (time, rest) = read(member)?;
    match read_tail(rest.strip_prefix(b":")?)? {
        (id, "") => Some((time, id)),
        _ => None,
    }
}

/// The id and the queue of `id:queue`.
pub(crate) fn read_tail(member: &[u8]) -> Option<(MessageId, &str)> {
    let (id, rest) = read(member)?;
    let queue = match rest.split_first() {
        None => "",
        Some((b':', queue)) => std::str::from_utf8(queue).ok()?,
        Some(_) => return None,
    };
    Some((MessageId(id), queue))
}

/// The lower end of a range behind a cursor, for `ZRANGEBYLEX`.
pub(crate) fn behind(after: Option<Cursor>) -> Vec<u8> {
    let Some((time, id)) = after else { return b"-".to_vec() };
    let mut out = b"[".to_vec();
    push_place(&mut out, time, id);
    out.push(BEHIND);
    out
}

/// The upper end of a range up to and including a time.
pub(crate) fn up_to(time: u64) -> Vec<u8> {
    let mut out = b"[".to_vec();
    push(&mut out, time);
    out.push(BEHIND);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(time: u64, id: MessageId) -> Vec<u8> {
        let mut out = Vec::new();
        push_place(&mut out, time, id);
        out
    }

    #[test]
    fn members_sort_like_what_they_say() {
        let numbers = [0, 1, 9, 10, 17, 99, 100, 1_763_740_800_123, u64::MAX - 1, u64::MAX];
        let mut places = Vec::new();
        for time in numbers {
            for id in numbers {
                places.push((time, MessageId(id)));
            }
        }
        for (a, b) in places.iter().flat_map(|a| places.iter().map(move |b| (a, b))) {
            let (first, second) = (place(a.0, a.1), place(b.0, b.1));
            assert_eq!(a.cmp(b), first.cmp(&second), "{a:?} {b:?}");
            assert_eq!(read_place(&first), Some(*a));
            // What is behind a cursor begins above its range's lower end.
            assert_eq!(a < b, behind(Some(*a))[1..] < second[..], "{a:?} {b:?}");
            assert_eq!(b.0 <= a.0, second[..] < up_to(a.0)[1..], "{a:?} {b:?}");
            let mut tails = [Vec::new(), Vec::new()];
            push_tail(&mut tails[0], a.1, "x");
            push_tail(&mut tails[1], b.1, "a;b");
            assert_eq!(read_tail(&tails[1]), Some((b.1, "a;b")));
            assert!(a.1 == b.1 || a.1.cmp(&b.1) == tails[0].cmp(&tails[1]), "{a:?} {b:?}");
        }
        for bad in ["", "a", "b1", "z", "a1", "a1:", "a1;a1", "a1:a1:x"] {
            assert_eq!(read_place(bad.as_bytes()), None, "{bad}");
        }
    }
}
