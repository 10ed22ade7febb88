//! The messages that ids and keys in the history refer to.

use std::collections::BTreeMap;

use crate::history::{MsgId, Payload, Tag};

/// The messages that names refer to.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Lives by id, each from a point on: an id that a failover has made the system forget may be given again.
    pub(super) ids: BTreeMap<MsgId, Vec<(usize, usize)>>,
    pub(super) tags: BTreeMap<Tag, usize>,
    pub(super) patches: BTreeMap<Tag, (usize, Payload)>,
}

impl Names {
    pub(super) fn add(&mut self, id: MsgId, since: usize, life: usize) {
        let lives = self.ids.entry(id).or_default();
        match lives.iter_mut().find(|(_, l)| *l == life) {
            Some((first, _)) => *first = since.min(*first),
            None => lives.push((since, life)),
        }
        lives.sort_unstable();
    }

    /// Records that a life has its id only from a later point on.
    pub(super) fn put_off(&mut self, id: MsgId, life: usize, since: usize) {
        let lives = self.ids.entry(id).or_default();
        for entry in lives.iter_mut().filter(|(_, l)| *l == life) {
            entry.0 = entry.0.max(since);
        }
        lives.sort_unstable();
    }

    /// The life with this id at a point.
    pub(super) fn of(&self, id: MsgId, at: usize) -> Option<usize> {
        self.ids.get(&id)?.iter().rev().find(|(since, _)| *since <= at).map(|(_, life)| *life)
    }

    /// The lives that may have this id between two points.
    pub(super) fn between(&self, id: MsgId, from: usize, to: usize) -> Vec<usize> {
        let lives = self.ids.get(&id).map_or(&[][..], Vec::as_slice);
        let first = lives.partition_point(|(since, _)| *since <= from).saturating_sub(1);
        let within =
            lives.iter().enumerate().filter(|(n, (since, _))| *n == first || (*n > first && *since < to));
        within.map(|(_, (_, life))| *life).collect()
    }

    /// The life with this id at a point; of several lives the one that the body identifies.
    pub(super) fn of_either(&self, id: MsgId, at: usize, told: Option<usize>) -> Option<usize> {
        let named =
            |l: &usize| self.ids.get(&id).is_some_and(|lives| lives.iter().any(|(_, life)| life == l));
        told.filter(named).or_else(|| self.of(id, at))
    }
}
