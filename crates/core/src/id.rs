//! Newtypes for the numbers that identify things, so that none is mistaken for another; and sets of message ids in a
//! compact form, for the records of purges.

use std::fmt;
use std::str::FromStr;

use roaring::RoaringTreemap;

use crate::time::WallMs;

/// Identifies a message; never used again. With one shard ids are 1, 2, 3, ... until the data is restored
/// ([`MessageId::by_time`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MessageId(pub u64);

/// Position of a record in the commit order of its shard; the first record is 1, and 0 means "before everything".
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Lsn(pub u64);

/// Number of an owner's term over a shard; grows with every open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Epoch(pub u32);

/// Numbers that go by the clock count from the start of 2020; in ms from 1970.
const FIRST_INSTANT: u64 = 1_577_836_800_000;
/// Ids for each second of the clock; they stay below 2^53 until the year 2088.
const IDS_A_SECOND: u64 = 1 << 22;

impl MessageId {
    /// The id from which data goes on that is set back at this instant. It is above those given before, as long as fewer
    /// than 2^22 were given each second.
    pub fn by_time(at: WallMs) -> Self {
        MessageId(at.0.saturating_sub(FIRST_INSTANT).saturating_mul(IDS_A_SECOND) / 1_000)
    }
}

impl Epoch {
    /// The epoch from which data goes on that is set back at this instant. It is above those given before, as long as no
    /// shard was opened more often than once each second.
    pub fn by_time(at: WallMs) -> Self {
        Epoch(u32::try_from(at.0.saturating_sub(FIRST_INSTANT) / 1_000).unwrap_or(u32::MAX))
    }
}

/// A part of the key space that has one owner at a time; shards are numbered from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ShardId(pub u32);

impl ShardId {
    /// The shard of a message in a cluster of `shards` shards, which its id determines. Ids begin at 1; an id that was
    /// never given also has a shard.
    pub fn of(id: MessageId, shards: u32) -> ShardId {
        let shard = id.0.saturating_sub(1) % u64::from(shards.max(1));
        ShardId(u32::try_from(shard).unwrap_or(0))
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A connection or consumer to which leases may be bound. 0 is none: the lease ends by its deadline alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SessionId(pub u64);

impl SessionId {
    /// No session: the lease outlives any connection.
    pub const NONE: SessionId = SessionId(0);
}

/// Destination of a reply; chosen by the driver, opaque to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplyTo(pub u64);

/// Proof of *this* lease. Tokens of a shard only grow, so the newest of two is the greater.
///
/// The text form has a fixed width, and sorts like the token: a consumer may hand it to its own
/// resource as a fencing token (Kleppmann, "How to do distributed locking", 2016).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LeaseToken {
    /// The epoch in which the lease was given.
    pub epoch: Epoch,
    /// Counts the grants of that epoch.
    pub counter: u64,
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

impl FromStr for MessageId {
    type Err = std::num::ParseIntError;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        s.parse().map(MessageId)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lsn {}", self.0)
    }
}

impl Lsn {
    /// The position after this one.
    pub fn next(self) -> Lsn {
        Lsn(self.0 + 1)
    }
}

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}{:016x}", self.epoch.0, self.counter)
    }
}

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token {}.{}", self.epoch.0, self.counter)
    }
}

/// The text of a lease token was not 24 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadToken;

impl fmt::Display for BadToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a lease token is 24 hexadecimal digits, as reserve gave it")
    }
}

impl std::error::Error for BadToken {}

impl FromStr for LeaseToken {
    type Err = BadToken;
    fn from_str(s: &str) -> Result<Self, BadToken> {
        if s.len() != 24 || !s.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(BadToken);
        }
        let epoch = u32::from_str_radix(&s[..8], 16).map_err(|_| BadToken)?;
        let counter = u64::from_str_radix(&s[8..], 16).map_err(|_| BadToken)?;
        Ok(LeaseToken { epoch: Epoch(epoch), counter })
    }
}

/// The ids that an engine gives: those of its shard, so that an id determines its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    pub(crate) shard: ShardId,
    pub(crate) shards: u32,
}

impl Default for Ids {
    /// All ids: 1, 2, 3, ...
    fn default() -> Self {
        Ids { shard: ShardId(0), shards: 1 }
    }
}

impl Ids {
    /// The ids of one shard of several: the first has 1, 1 + `shards`, ...; the second 2, 2 + `shards`, ...
    ///
    /// ```
    /// # use duewheel_core::{engine::Ids, MessageId, ShardId};
    /// let ids = Ids::of(ShardId(1), 16);
    /// assert_eq!((ids.at_least(1), ids.at_least(3)), (2, 18));
    /// assert_eq!(ShardId::of(MessageId(18), 16), ShardId(1));
    /// ```
    pub fn of(shard: ShardId, shards: u32) -> Self {
        Ids { shard, shards: shards.max(1) }
    }

    /// The first id of this shard that is at least `id`.
    pub fn at_least(self, id: u64) -> u64 {
        let (first, step) = (u64::from(self.shard.0) + 1, u64::from(self.shards));
        first + id.saturating_sub(first).div_ceil(step) * step
    }

    /// The next id of this shard after `id`.
    pub(crate) fn after(self, id: u64) -> u64 {
        id + u64::from(self.shards)
    }
}

/// A set of message ids, in order: about two bytes for each. A copy takes time by its bytes and not by its ids.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct IdSet {
    ids: RoaringTreemap,
    /// The number of ids; a `RoaringTreemap` would count them each time.
    len: usize,
}

impl IdSet {
    /// Adds an id.
    pub fn insert(&mut self, id: MessageId) {
        self.len += usize::from(self.ids.insert(id.0));
    }

    /// Removes an id.
    pub fn remove(&mut self, id: MessageId) {
        self.len -= usize::from(self.ids.remove(id.0));
    }

    /// Whether it has an id.
    pub fn contains(&self, id: MessageId) -> bool {
        self.ids.contains(id.0)
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no id.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All ids, ascending.
    pub fn iter(&self) -> impl Iterator<Item = MessageId> + '_ {
        self.ids.iter().map(MessageId)
    }

    /// The difference between the greatest and the least id.
    pub(crate) fn span(&self) -> u64 {
        self.ids.max().unwrap_or(0) - self.ids.min().unwrap_or(0)
    }
}

impl FromIterator<MessageId> for IdSet {
    fn from_iter<I: IntoIterator<Item = MessageId>>(ids: I) -> Self {
        let ids: RoaringTreemap = ids.into_iter().map(|id| id.0).collect();
        IdSet { len: usize::try_from(ids.len()).unwrap_or(usize::MAX), ids }
    }
}

impl From<Vec<MessageId>> for IdSet {
    fn from(ids: Vec<MessageId>) -> Self {
        ids.into_iter().collect()
    }
}

impl fmt::Debug for IdSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().take(16)).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_text_round_trips_and_sorts() {
        let old = LeaseToken { epoch: Epoch(3), counter: u64::MAX };
        let new = LeaseToken { epoch: Epoch(10), counter: 1 };
        assert!(old < new && old.to_string() < new.to_string());
        assert_eq!(new.to_string().parse(), Ok(new));
        for bad in ["", "x", "+00000010000000000000001", "0000000100000000000000011"] {
            assert_eq!(bad.parse::<LeaseToken>(), Err(BadToken), "{bad}");
        }
    }
}
