//! Folds a group, message by message: a group is applied at once, so only the states before and after it matter.

use std::sync::Arc;

use duewheel_core::message::{Kind, Lease, Life, MessageContent, Stage};
use duewheel_core::record::{Group, Record, Was};
use duewheel_core::time::Due;
use duewheel_core::{MessageId, QueueName};
use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// One message: its state before and after the group.
#[derive(Clone, Debug)]
pub(crate) struct Net<'a> {
    pub(crate) id: MessageId,
    pub(crate) queue: &'a QueueName,
    /// Its former state; `None` if the group puts it.
    pub(crate) was: Option<&'a Was>,
    /// Its present state; `None` if it was removed.
    pub(crate) is: Option<Standing<'a>>,
}

/// The state of a message after a group.
#[derive(Clone, Debug)]
pub(crate) struct Standing<'a> {
    pub(crate) kind: Kind,
    pub(crate) due: Due,
    /// Its content, if the group contains it.
    pub(crate) message: Option<&'a Arc<MessageContent>>,
    /// The last complete life in the group.
    pub(crate) life: Option<&'a Life>,
    /// The attempt and the lease that it was granted with, or that its life contains.
    pub(crate) lease: Option<(u32, &'a Lease)>,
}

/// A group without changes that it undoes itself.
#[derive(Debug, Default)]
pub(crate) struct Folded<'a> {
    pub(crate) nets: Vec<Net<'a>>,
    /// Settings, purges and answers, in order.
    pub(crate) others: Vec<&'a Record>,
}

/// Folds a group.
pub(crate) fn fold(group: &Group) -> Folded<'_> {
    let mut folded = Folded { nets: Vec::with_capacity(group.records.len()), others: Vec::new() };
    // Most groups name each message once and in ascending order: positions are looked up only from the first record
    // that does not.
    let mut places: Option<HashMap<MessageId, usize, FixedState>> = None;
    let mut greatest = None;
    for record in &group.records {
        let (id, queue, was) = match record {
            Record::Put { message, was, .. } => (message.id, &message.queue, was.as_ref()),
            Record::Changed { id, was, .. }
            | Record::Granted { id, was, .. }
            | Record::Removed { id, was, .. } => (*id, &was.queue, Some(was)),
            Record::Purged { queue, keep, .. } => {
                for net in folded.nets.iter_mut().filter(|net| net.queue == queue) {
                    if !keep.contains(net.id) {
                        net.is = None;
                    }
                }
                folded.others.push(record);
                continue;
            }
            Record::Queue { .. } | Record::Deduped(_) => {
                folded.others.push(record);
                continue;
            }
        };
        let grows = greatest < Some(id);
        let place = if places.is_none() && grows {
            None
        } else {
            let nets = &folded.nets;
            let places =
                places.get_or_insert_with(|| nets.iter().enumerate().map(|(i, n)| (n.id, i)).collect());
            let place = places.get(&id).copied();
            if place.is_none() {
                places.insert(id, nets.len());
            }
            place
        };
        greatest = greatest.max(Some(id));
        let net = if let Some(place) = place {
            &mut folded.nets[place]
        } else {
            folded.nets.push(Net { id, queue, was, is: None });
            let Some(net) = folded.nets.last_mut() else { continue };
            net
        };
        let message = net.is.as_ref().and_then(|is| is.message);
        let before = net.is.as_ref().and_then(|is| is.life);
        net.is = match record {
            Record::Put { message, life, .. } => Some(Standing::of(life, Some(message))),
            Record::Changed { life, .. } => Some(Standing::of(life, message)),
            Record::Granted { attempt, lease, was, .. } => Some(Standing {
                kind: Kind::Leased,
                due: was.due,
                message,
                life: before,
                lease: Some((*attempt, lease)),
            }),
            Record::Removed { .. } => None,
            Record::Queue { .. } | Record::Purged { .. } | Record::Deduped(_) => net.is.take(),
        };
    }
    // A message that the group puts and removes again was never visible to others.
    folded.nets.retain(|net| net.was.is_some() || net.is.is_some());
    folded
}

impl<'a> Standing<'a> {
    fn of(life: &'a Life, message: Option<&'a Arc<MessageContent>>) -> Self {
        let lease = match &life.stage {
            Stage::Leased(lease) => Some((life.attempt, lease)),
            Stage::Waiting { .. } | Stage::Dead { .. } => None,
        };
        Standing { kind: life.stage.kind(), due: life.due, message, life: Some(life), lease }
    }
}
