//! Calls that wait for a slow medium, and the calls that must wait for them.
//!
//! A look-up that must read a disk or a server delays the call that needs it, and the calls that name the same messages,
//! keys or answers: these keep their order. All others go on. When the store has what it needs in memory, the call comes
//! back, and everything is looked up again, as of then.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use duewheel_core::engine::{Named, Op};
use duewheel_core::id::{MessageId, ReplyTo};
use duewheel_core::mutant::{self, Mutant};
use duewheel_core::name::{Key, QueueName};
use duewheel_core::store::{Found, Lookups};

use super::calls::call_of;

/// Number of times that a call is fetched: for what it names, and for what it asks by what was found. After that it waits for the
/// medium on the driver's thread, since memory may be too small to keep what is fetched.
const FETCHES: u8 = 2;

/// Calls that wait, in the order in which they arrived.
#[derive(Debug, Default)]
pub(super) struct Parked {
    calls: VecDeque<ParkedCall>,
    /// What they name.
    names: BTreeSet<LookupName>,
    /// Calls that have come back and are not decided yet.
    back: BTreeMap<u64, ParkedTurn>,
    arrivals: u64,
    tickets: u64,
    /// The number of operations that wait.
    ops: usize,
    /// Whether a call could come back, for which the batch had no room.
    more: bool,
}

/// The turn of a call among those that were parked, and how often it was fetched.
#[derive(Clone, Copy, Debug)]
struct ParkedTurn {
    turn: u64,
    fetches: u8,
}

#[derive(Debug)]
struct ParkedCall {
    arrival: ParkedTurn,
    /// What it waits for; `None`: only for calls before it.
    ticket: Option<u64>,
    ops: Vec<(ReplyTo, Op)>,
    found: Option<(Lookups, Found)>,
}

/// What an operation names, whether it is in memory or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LookupName {
    Message(MessageId),
    Key(QueueName, Key),
    Answer(QueueName, Box<str>),
}

impl Parked {
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The number of operations that wait.
    pub(super) fn ops(&self) -> usize {
        self.ops
    }

    /// Whether a call can come back at once.
    pub(super) fn has_more(&self) -> bool {
        self.more
    }

    /// Whether a call may wait for the medium beside the driver's thread. One of which a part is decided may not: its
    /// operations are decided without others in between.
    pub(super) fn may_fetch(&self, first: ReplyTo) -> bool {
        let (call, part) = call_of(first);
        part == 0 && self.back.get(&call).is_none_or(|arrival| arrival.fetches < FETCHES)
    }

    /// Whether a call that waits names something of what these operations name.
    pub(super) fn concerns(&self, ops: &[(ReplyTo, Op)]) -> bool {
        !self.names.is_empty() && !is_lane_ignored() && names(ops).any(|name| self.names.contains(&name))
    }

    /// Parks a call; returns the ticket under which its look-ups are to be fetched, unless it only waits for other calls.
    pub(super) fn park(
        &mut self,
        ops: Vec<(ReplyTo, Op)>,
        is_fetched: bool,
        found: Option<(Lookups, Found)>,
    ) -> Option<u64> {
        let (call, _) = call_of(ops.first()?.0);
        let mut arrival = self.back.remove(&call).unwrap_or_else(|| {
            self.arrivals += 1;
            ParkedTurn { turn: self.arrivals, fetches: 0 }
        });
        let ticket = is_fetched.then(|| {
            arrival.fetches += 1;
            self.tickets += 1;
            self.tickets
        });
        self.names.extend(names(&ops));
        self.ops += ops.len();
        self.more |= ticket.is_none();
        let at = self.calls.partition_point(|before| before.arrival.turn < arrival.turn);
        self.calls.insert(at, ParkedCall { arrival, ticket, ops, found });
        ticket
    }

    /// What a call waits for has been fetched.
    pub(super) fn fetched(&mut self, ticket: u64) {
        if let Some(call) = self.calls.iter_mut().find(|call| call.ticket == Some(ticket)) {
            call.ticket = None;
            self.more = true;
        }
    }

    /// Lets calls come back that wait for nothing any more, up to about so many operations. A call that waits for others
    /// which name the same comes back with them, behind them.
    pub(super) fn take(
        &mut self,
        most: usize,
        to: &mut VecDeque<(ReplyTo, Op)>,
        mut adopt: impl FnMut(Lookups, Found),
    ) {
        if !std::mem::take(&mut self.more) {
            return;
        }
        let mut waiting = BTreeSet::new();
        for parked in std::mem::take(&mut self.calls) {
            let waits = parked.ticket.is_some()
                || (!is_lane_ignored() && names(&parked.ops).any(|name| waiting.contains(&name)));
            let is_full = !to.is_empty() && to.len() + parked.ops.len() > most;
            if waits || is_full {
                self.more |= !waits;
                waiting.extend(names(&parked.ops));
                self.calls.push_back(parked);
                continue;
            }
            self.ops -= parked.ops.len();
            if let Some((to, _)) = parked.ops.first() {
                self.back.insert(call_of(*to).0, parked.arrival);
            }
            to.extend(parked.ops);
            if let Some((lookups, found)) = parked.found {
                adopt(lookups, found);
            }
        }
        self.names = waiting;
    }

    /// An operation is decided, and with it the first one of its call.
    pub(super) fn decided(&mut self, to: ReplyTo) {
        if !self.back.is_empty() {
            self.back.remove(&call_of(to).0);
        }
    }

    /// Gives up all calls that wait, in order.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (ReplyTo, Op)> + use<> {
        std::mem::take(self).calls.into_iter().flat_map(|call| call.ops)
    }
}

fn is_lane_ignored() -> bool {
    mutant::is(Mutant::LaneIgnored) || mutant::is(Mutant::LookUpAsOfAsking)
}

fn names(ops: &[(ReplyTo, Op)]) -> impl Iterator<Item = LookupName> + '_ {
    let message = |op: &Op| match op.names() {
        Named::Id(id) => Some(LookupName::Message(id)),
        Named::Key(queue, key) => Some(LookupName::Key(queue.clone(), key.clone())),
        Named::Nothing => None,
    };
    let answer = |op: &Op| op.dedupe_id().map(|(queue, id)| LookupName::Answer(queue.clone(), id.into()));
    ops.iter().flat_map(move |(_, op)| message(op).into_iter().chain(answer(op)))
}
