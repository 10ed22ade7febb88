//! Sets of message ids in a compact form, for the records of purges.

use std::fmt;

use roaring::RoaringTreemap;

use crate::id::MessageId;

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
