//! Calls that wait for a slow medium, and the calls that must wait for them.
//!
//! A look-up that must read a disk or a server delays the call that needs it, and later calls that name the same messages,
//! keys or answers: these keep their order. All others go on. When the store has what it needs in memory, the call comes
//! back, and everything is looked up again, as of then.
//!
//! A call waits only for calls that arrived before it, so the first one of all waits for nothing but the medium.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use duewheel_core::engine::{Named, Op};
use duewheel_core::id::{MessageId, ReplyTo};
use duewheel_core::mutant::{self, Mutant};
use duewheel_core::name::{Key, QueueName};
use duewheel_core::store::{Found, Lookups};

use super::calls::CallNumber;

/// Calls that wait, by their arrival. Each method takes time by the operations that it is given or returns, however many
/// wait.
#[derive(Debug, Default)]
pub(super) struct Parked {
    calls: BTreeMap<CallNumber, ParkedCall>,
    /// The names of each call. The first call of a name goes first.
    names: BTreeSet<(LookupName, CallNumber)>,
    /// Calls that can come back.
    ready: BTreeSet<CallNumber>,
    /// The number of operations that wait.
    ops: usize,
}

/// The reason why a call is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParkedFor {
    /// The store fetches what it needs.
    Medium,
    /// Calls before it name the same.
    Others,
}

#[derive(Debug)]
struct ParkedCall {
    waits_for: ParkedFor,
    /// The number of its names that an earlier call also has.
    behind: usize,
    ops: Vec<(ReplyTo, Op)>,
    found: Option<(Lookups, Found)>,
}

impl ParkedCall {
    fn is_ready(&self) -> bool {
        self.waits_for == ParkedFor::Others && self.behind == 0
    }
}

/// A message, key or answer that an operation names, whether it is in memory or not.
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
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether a call that arrived before this one waits, and names something of what these operations name.
    pub(super) fn delays(&self, arrival: CallNumber, ops: &[(ReplyTo, Op)]) -> bool {
        let is_before = |first: CallNumber| first < arrival || mutant::is(Mutant::WaitsForLater);
        !self.names.is_empty() && names(ops).any(|name| self.first_of(&name).is_some_and(is_before))
    }

    /// Parks a call.
    pub(super) fn park(
        &mut self,
        arrival: CallNumber,
        waits_for: ParkedFor,
        ops: Vec<(ReplyTo, Op)>,
        found: Option<(Lookups, Found)>,
    ) {
        let mut behind = 0;
        if !is_lane_ignored() {
            for name in names(&ops) {
                let first = self.first_of(&name);
                if !self.names.insert((name, arrival)) {
                    continue;
                }
                match first {
                    Some(first) if first < arrival => behind += 1,
                    Some(later) => self.puts_behind(later),
                    None => {}
                }
            }
        }
        self.ops += ops.len();
        let call = ParkedCall { waits_for, behind, ops, found };
        if call.is_ready() {
            self.ready.insert(arrival);
        }
        self.calls.insert(arrival, call);
    }

    /// Notes that the store has fetched everything that a call waits for.
    pub(super) fn fetched(&mut self, arrival: CallNumber) {
        if let Some(call) = self.calls.get_mut(&arrival) {
            call.waits_for = ParkedFor::Others;
            if call.is_ready() {
                self.ready.insert(arrival);
            }
        }
    }

    /// Lets calls come back that wait for nothing any more, up to so many operations, and at least one call if `to` is
    /// empty. A call comes back with the calls before it that name the same, behind them.
    pub(super) fn take(
        &mut self,
        most: usize,
        to: &mut VecDeque<(ReplyTo, Op)>,
        mut adopt: impl FnMut(Lookups, Found),
    ) {
        while let Some(&first) = self.ready.first() {
            let size = self.calls.get(&first).map_or(0, |call| call.ops.len());
            if !to.is_empty() && to.len() + size > most {
                return;
            }
            self.ready.remove(&first);
            let Some(call) = self.calls.remove(&first) else { continue };
            self.ops -= size;
            for name in names(&call.ops) {
                self.let_next(name, first);
            }
            to.extend(call.ops);
            if let Some((lookups, found)) = call.found {
                adopt(lookups, found);
            }
        }
    }

    /// Gives up all calls that wait, in order.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (ReplyTo, Op)> + use<> {
        std::mem::take(self).calls.into_values().flat_map(|call| call.ops)
    }

    /// The first call that has this name.
    fn first_of(&self, name: &LookupName) -> Option<CallNumber> {
        let (next, first) = self.names.range((name.clone(), CallNumber::FIRST)..).next()?;
        (next == name).then_some(*first)
    }

    /// A call is not the first one of a name any more.
    fn puts_behind(&mut self, arrival: CallNumber) {
        if let Some(call) = self.calls.get_mut(&arrival) {
            call.behind += 1;
            self.ready.remove(&arrival);
        }
    }

    /// The first call of a name is gone.
    fn let_next(&mut self, name: LookupName, gone: CallNumber) {
        let entry = (name, gone);
        if !self.names.remove(&entry) {
            return;
        }
        if let Some(next) = self.first_of(&entry.0)
            && let Some(call) = self.calls.get_mut(&next)
        {
            call.behind -= 1;
            if call.is_ready() {
                self.ready.insert(next);
            }
        }
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
    let answer = |(queue, id): (&QueueName, &str)| LookupName::Answer(queue.clone(), id.into());
    let answers = move |op: &Op| [op.dedupe_id().map(answer), op.row().map(answer)].into_iter().flatten();
    ops.iter().flat_map(move |(_, op)| message(op).into_iter().chain(answers(op)))
}
