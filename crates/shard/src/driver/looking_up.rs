//! Look-ups of messages that are not in the engine's memory, made before operations are decided.

use std::mem;

use duewheel_core::engine::Op;
use duewheel_core::id::{Lsn, ReplyTo};
use duewheel_core::mutant;
use duewheel_core::mutant::Mutant;
use duewheel_core::store::{AtHand, ErrorKind, FOUND_AHEAD, Found, Lookups, Store, StoreError, StoreRequest};
use duewheel_core::time::{EngineMs, Now};

use super::calls::call_of;
use super::parked::ParkedFor;
use super::{Driver, clock};
use crate::error::{CallError, Outcome};

/// The number of times that a call is fetched: for what it names, and for what it asks by what was found. After that it
/// waits for the medium on the driver's thread, since memory may be too small to keep what is fetched.
const FETCHES: u8 = 2;

/// How often an operation is looked up at most: what it names, and what it asks by that.
const LEVELS: usize = 2;

impl<S: Store> Driver<S> {
    /// Looks up what the engine must know about messages that are not in its memory. Returns how many of the waiting
    /// operations can be decided: the first ones, up to one whose messages did not fit. Calls that need a slow medium
    /// are parked, and others pass them.
    pub(super) fn look_up(&mut self) -> Result<usize, StoreError> {
        match self.look_up_at_hand() {
            Err(error) if self.is_passing(&error) => {
                self.park_what_waits_for_others();
                self.look_up_each()
            }
            known => known,
        }
    }

    /// Whether the error of a look-up affects only that look-up.
    pub(super) fn is_passing(&mut self, error: &StoreError) -> bool {
        error.kind() == ErrorKind::Unavailable && self.progress().is_ok()
    }

    fn look_up_at_hand(&mut self) -> Result<usize, StoreError> {
        // The engine's own questions are not postponed.
        self.engine.look_up(None, &mut self.lookups);
        self.find()?;
        self.park_what_waits_for_others();
        let most = self.undecided.len().min(self.looks).min(self.policy.max_batch_ops);
        for (_, op) in self.undecided.iter().take(most) {
            self.engine.look_up(Some(op), &mut self.lookups);
        }
        let mut known = most;
        let mut at_hand = self.find_at_hand()?;
        if at_hand == AtHand::Yes {
            known = self.looked_up(most);
            // These ask by what was found.
            for (_, op) in self.undecided.iter().take(known).filter(|(_, op)| op.looks_twice()) {
                self.engine.look_up(Some(op), &mut self.lookups);
            }
            at_hand = self.find_at_hand()?;
        }
        known = match at_hand {
            AtHand::Yes => self.looked_up(known),
            AtHand::No => return self.look_up_calls(most),
        };
        // The next ones are about as large. To ask for far more than fits is work for nothing.
        self.looks = if known < most { known.max(FOUND_AHEAD) * 2 } else { self.looks.saturating_mul(2) };
        Ok(known)
    }

    fn looked_up(&self, most: usize) -> usize {
        self.undecided.iter().take(most).take_while(|(_, op)| self.engine.is_looked_up(op)).count()
    }

    /// Parks the calls which name something that a parked call before them names.
    fn park_what_waits_for_others(&mut self) {
        if self.parked.is_empty() {
            return;
        }
        for (to, ops) in self.take_calls() {
            if self.waits_for_others(to, &ops) {
                self.parked.park(self.open.arrival(to), ParkedFor::Others, ops, None);
            } else {
                self.undecided.extend(ops);
            }
        }
    }

    /// Looks up call by call, and parks each that needs the medium. Looks up `most` operations, and the rest of the last
    /// call of them.
    fn look_up_calls(&mut self, most: usize) -> Result<usize, StoreError> {
        let mut known = None;
        let mut calls = self.take_calls().into_iter();
        let mut looked_up = 0;
        while looked_up < most
            && known.is_none()
            && let Some((to, ops)) = calls.next()
        {
            looked_up += ops.len();
            match self.look_up_call(to, &ops) {
                Ok(None) => {}
                Ok(Some(lookups)) => {
                    self.park(to, ops, lookups)?;
                    continue;
                }
                Err(error) => {
                    self.undecided.extend(ops);
                    self.undecided.extend(calls.flat_map(|(_, ops)| ops));
                    return Err(error);
                }
            }
            let first = self.undecided.len();
            self.undecided.extend(ops);
            let all = self.undecided.len();
            let of_call = self.undecided.iter().skip(first);
            let decidable = first + of_call.take_while(|(_, op)| self.engine.is_looked_up(op)).count();
            known = (decidable < all).then_some(decidable);
        }
        let known = known.unwrap_or(self.undecided.len());
        self.undecided.extend(calls.flat_map(|(_, ops)| ops));
        Ok(known)
    }

    /// Looks up what the operations of one call name; returns the look-ups that need the medium, if the call may wait
    /// for it.
    fn look_up_call(&mut self, to: ReplyTo, ops: &[(ReplyTo, Op)]) -> Result<Option<Lookups>, StoreError> {
        if self.waits_for_others(to, ops) {
            return Ok(Some(Lookups::default()));
        }
        let may_fetch = is_whole(to) && self.open.fetches(to) < FETCHES;
        for _ in 0..LEVELS {
            self.lookups = self.lookups_of(ops);
            if self.lookups.is_empty() {
                break;
            }
            if !may_fetch {
                self.find()?;
            } else if self.find_at_hand()? == AtHand::No {
                return Ok(Some(self.lookups_of(ops)));
            }
        }
        Ok(None)
    }

    /// Whether a call must let a parked one go first.
    fn waits_for_others(&self, to: ReplyTo, ops: &[(ReplyTo, Op)]) -> bool {
        is_whole(to) && self.parked.delays(self.open.arrival(to), ops)
    }

    fn park(&mut self, to: ReplyTo, ops: Vec<(ReplyTo, Op)>, fetch: Lookups) -> Result<(), StoreError> {
        let arrival = self.open.arrival(to);
        if fetch.is_empty() {
            self.parked.park(arrival, ParkedFor::Others, ops, None);
            return Ok(());
        }
        let mut found = None;
        if mutant::is(Mutant::LookUpAsOfAsking) {
            let mut as_of_now = Found::default();
            self.store.find_many(&fetch, &mut as_of_now)?;
            found = Some((fetch.clone(), as_of_now));
        }
        self.parked.park(arrival, ParkedFor::Medium, ops, found);
        self.open.fetch(to);
        self.store.ask(StoreRequest::Fetch(arrival.0, fetch))
    }

    /// Lets calls come back for which the store has fetched what they need.
    pub(super) fn take_parked(&mut self) {
        if self.parked.is_empty() {
            return;
        }
        let (engine, most) = (&mut self.engine, self.policy.max_batch_ops);
        self.parked.take(most, &mut self.undecided, |lookups, found| engine.adopt(&lookups, found));
    }

    /// Takes the waiting operations, by call.
    fn take_calls(&mut self) -> Vec<(ReplyTo, Vec<(ReplyTo, Op)>)> {
        let mut calls: Vec<(ReplyTo, Vec<(ReplyTo, Op)>)> = Vec::new();
        for (to, op) in mem::take(&mut self.undecided) {
            match calls.last_mut() {
                Some((first, ops)) if call_of(*first).0 == call_of(to).0 => ops.push((to, op)),
                _ => calls.push((to, vec![(to, op)])),
            }
        }
        calls
    }

    fn lookups_of(&mut self, ops: &[(ReplyTo, Op)]) -> Lookups {
        let mut lookups = Lookups::default();
        for (_, op) in ops {
            self.engine.look_up(Some(op), &mut lookups);
        }
        lookups
    }

    /// Looks up each operation separately, so that only the operations whose data the disk does not return are left
    /// unapplied.
    fn look_up_each(&mut self) -> Result<usize, StoreError> {
        self.engine.look_up(None, &mut self.lookups);
        match self.find() {
            Err(error) if self.is_passing(&error) => {
                if let Some(given_up) = self.engine.give_up_many(&mut self.effects) {
                    self.tell_given_up(given_up, &error);
                }
            }
            found => found?,
        }
        let mut known = 0;
        // Few at a time: each look-up brings as much as fits one, or takes as long as a disk that fails.
        for _ in 0..FOUND_AHEAD {
            let Some((to, op)) = self.undecided.get(known) else { break };
            let to = *to;
            self.engine.look_up(Some(op), &mut self.lookups);
            let mut found = self.find();
            if found.is_ok()
                && let Some((_, op)) = self.undecided.get(known).filter(|(_, op)| op.looks_twice())
            {
                self.engine.look_up(Some(op), &mut self.lookups);
                found = self.find();
            }
            match found {
                Ok(()) => known += 1,
                Err(error) if self.is_passing(&error) => {
                    self.undecided.remove(known);
                    self.decided += 1;
                    let refusal = CallError::Store { error, outcome: Outcome::NotApplied };
                    self.open.answer(to, Err(refusal), &mut self.own);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(known)
    }

    /// Finds what was asked for, however long the medium takes.
    fn find(&mut self) -> Result<(), StoreError> {
        self.find_within(false).map(drop)
    }

    /// Finds what was asked for, if that needs no wait for the medium.
    fn find_at_hand(&mut self) -> Result<AtHand, StoreError> {
        self.find_within(true)
    }

    fn find_within(&mut self, at_hand: bool) -> Result<AtHand, StoreError> {
        if self.lookups.is_empty() {
            return Ok(AtHand::Yes);
        }
        let mut found = Found::default();
        self.lookups.at_hand = at_hand;
        let result = self.store.find_many(&self.lookups, &mut found);
        if let Ok(AtHand::Yes) = result {
            self.engine.adopt(&self.lookups, found);
        }
        self.lookups.ids.clear();
        self.lookups.keys.clear();
        self.lookups.answers.clear();
        result
    }
}

/// Whether nothing of a call is decided, of which this is the first operation that is not. Others do not wait: the
/// operations of a call are decided without those of other calls in between.
fn is_whole(first: ReplyTo) -> bool {
    call_of(first).1 == 0
}

/// The driver syncs on its own thread only while nothing is due for this time, in ms: a few times the longest sync that a
/// store makes there.
const SYNC_AHEAD_MS: u64 = 3;

/// The longest time, in ms, that records which no answer waits for lie unsynced.
pub(crate) const UNSYNCED_MS: u64 = 5;

impl<S: Store> Driver<S> {
    /// Asks for a sync of what was appended. `alone`: the step had one caller, and nobody waited.
    ///
    /// Such a caller can be no faster than its sync, which keeps no other caller waiting, so the driver's thread makes
    /// it. If something becomes due soon, the store's worker does, because a sync may take longer than usual.
    ///
    /// Records that no answer waits for, as those of grants, are synced with the next ones that one does, or after
    /// [`UNSYNCED_MS`]. `before`: the end of the journal before the step.
    pub(super) fn ask_for_sync(&mut self, now: Now, alone: bool, before: Lsn) -> Result<(), StoreError> {
        if self.asked == self.appended {
            if self.is_open() {
                self.store.idle(clock(now), None)?;
            }
            return Ok(());
        }
        if before < self.appended && !self.awaits_sync() {
            self.answer()?;
            let since = *self.unsynced_since.get_or_insert(now.engine);
            let is_held = !self.held.is_empty() || !self.held_grants.is_empty();
            if !is_held && now.engine.0.saturating_sub(since.0) < UNSYNCED_MS {
                return Ok(());
            }
        }
        let soon = EngineMs(now.engine.0.saturating_add(SYNC_AHEAD_MS));
        let is_calm = self.engine.next_wakeup().is_none_or(|next| next > soon);
        if alone && is_calm && self.undecided.is_empty() && self.awaits_sync() {
            self.store.sync_here()?;
        } else {
            self.store.sync()?;
        }
        self.asked = self.appended;
        self.unsynced_since = None;
        Ok(())
    }

    /// Whether an answer waits for a sync that was not requested.
    fn awaits_sync(&self) -> bool {
        let held = self.held.back().into_iter().chain(&self.held_grants);
        held.into_iter().any(|held| held.after.durable > self.asked)
    }

    /// Whether records lie unsynced that no answer waits for.
    pub(crate) fn leaves_unsynced(&self) -> bool {
        self.unsynced_since.is_some()
    }
}
