//! The position of a reader of events: a position in each shard.

use std::fmt;

use duewheel::core::id::Lsn;

/// How far a reader has got, for each shard. As text the numbers of all shards in their order, with dots in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventPosition(Vec<Lsn>);

impl EventPosition {
    pub(super) fn new(shards: Vec<Lsn>) -> Self {
        EventPosition(shards)
    }

    /// Reads the `id` of an event of a server with this number of shards.
    pub(super) fn parse(text: &str, shards: usize) -> Result<Self, String> {
        let number = |part: &str| {
            let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            if digits { part.parse().ok().map(Lsn) } else { None }
        };
        let parts: Option<Vec<Lsn>> = text.split('.').map(number).collect();
        let parts = parts.ok_or("must be the id of an event: numbers with dots in between")?;
        if parts.len() != shards {
            let is = parts.len();
            return Err(format!("is a position in {is} shards, and this server has {shards}"));
        }
        Ok(EventPosition(parts))
    }

    pub(super) fn of(&self, shard: usize) -> Lsn {
        self.0.get(shard).copied().unwrap_or_default()
    }

    pub(super) fn set(&mut self, shard: usize, to: Lsn) {
        if let Some(position) = self.0.get_mut(shard) {
            *position = to;
        }
    }

    pub(super) fn shards(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Display for EventPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, position) in self.0.iter().enumerate() {
            let dot = if n == 0 { "" } else { "." };
            write!(f, "{dot}{}", position.0)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_comes_back() {
        for (text, shards) in [("0", 1), ("17.0.18446744073709551615", 3)] {
            assert_eq!(EventPosition::parse(text, shards).unwrap().to_string(), text);
        }
        for bad in ["", ".", "1.", "x", "-1", "+1", "1.18446744073709551616", " 1.1", "1,1"] {
            assert!(EventPosition::parse(bad, 2).is_err_and(|what| what.contains("id of an event")), "{bad}");
        }
        let other = EventPosition::parse("1.2.3", 2).unwrap_err();
        assert_eq!(other, "is a position in 3 shards, and this server has 2");
    }
}
