//! The mark of a purge: it hides messages at once, and a sweep deletes them later.

use duewheel_core::MessageId;

use crate::lex;
use crate::text::Bad;

/// A mark hides the messages of a queue that are older than an id, except some.
///
/// A later mark of the same queue replaces an earlier one: a message that the earlier one removed is not among those
/// that the later one keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) before: MessageId,
    /// The ids that are kept, ascending.
    pub(crate) keep: Vec<MessageId>,
}

impl Mark {
    /// Whether this message is removed.
    pub(crate) fn hides(&self, id: MessageId) -> bool {
        id < self.before && self.keep.binary_search(&id).is_err()
    }

    /// The mark as it is stored in Redis.
    pub(crate) fn text(&self) -> Vec<u8> {
        let mut out = b"before=".to_vec();
        lex::push_decimal(&mut out, self.before.0);
        for (i, id) in self.keep.iter().enumerate() {
            out.extend_from_slice(if i == 0 { b" keep=" } else { b"," });
            lex::push_decimal(&mut out, id.0);
        }
        out
    }

    /// Reads what [`Mark::text`] wrote.
    pub(crate) fn read(text: &[u8]) -> Result<Self, Bad> {
        let id = |n: &str| n.parse().map(MessageId).map_err(|_| "purge");
        let text = std::str::from_utf8(text).map_err(|_| "purge")?;
        let text = text.strip_prefix("before=").ok_or("purge")?;
        let (before, keep) = match text.split_once(" keep=") {
            Some((before, keep)) => (before, keep.split(',').map(id).collect::<Result<_, _>>()?),
            None => (text, Vec::new()),
        };
        Ok(Mark { before: id(before)?, keep })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_come_back() {
        for keep in [vec![], vec![MessageId(3)], vec![MessageId(3), MessageId(70)]] {
            let mark = Mark { before: MessageId(90), keep };
            assert_eq!(Mark::read(&mark.text()), Ok(mark.clone()));
            assert!(mark.hides(MessageId(4)) && !mark.hides(MessageId(90)));
            assert_eq!(mark.hides(MessageId(3)), mark.keep.is_empty());
        }
        for bad in ["", "before=", "before=x", "before=1 keep=", "before=1 keep=1,,"] {
            assert!(Mark::read(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
