//! A bounded number of connections that have not authenticated yet; a new connection always gets a slot.
//!
//! When all slots are taken, a new connection takes one from the address that has most of them, and there the oldest.
//! So clients that connect and send nothing lose their slots first; a node that connects authenticates within a few
//! round trips, long before its slot is the oldest. Authenticated connections have a limit of their own.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The largest number of unauthenticated connections at a time.
pub(super) const MAX_UNAUTHENTICATED: usize = 256;

/// The unauthenticated connections, in the order in which they were accepted.
#[derive(Clone, Debug, Default)]
pub(super) struct HandshakeSlots(Arc<Mutex<SlotTable>>);

#[derive(Debug, Default)]
struct SlotTable {
    next: u64,
    taken: BTreeMap<u64, (IpAddr, oneshot::Sender<()>)>,
}

/// The slot of one unauthenticated connection; freed on drop.
#[derive(Debug)]
pub(super) struct HandshakeSlot {
    of: HandshakeSlots,
    number: u64,
    gone: oneshot::Receiver<()>,
}

impl HandshakeSlots {
    /// Takes a slot for a connection from this address, if necessary from another connection.
    pub(super) fn enter(&self, from: IpAddr) -> HandshakeSlot {
        let (to, gone) = oneshot::channel();
        let mut places = self.places();
        if places.taken.len() >= MAX_UNAUTHENTICATED
            && let Some(loses) = places.least_wanted()
            && let Some((_, loser)) = places.taken.remove(&loses)
        {
            // The connection may have ended by itself.
            let _ = loser.send(());
        }
        let number = places.next;
        places.next += 1;
        places.taken.insert(number, (from, to));
        drop(places);
        HandshakeSlot { of: self.clone(), number, gone }
    }

    fn places(&self) -> MutexGuard<'_, SlotTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlotTable {
    /// The oldest slot of the address that has most slots.
    fn least_wanted(&self) -> Option<u64> {
        let mut each: BTreeMap<IpAddr, (usize, u64)> = BTreeMap::new();
        for (number, (from, _)) in &self.taken {
            each.entry(*from).or_insert((0, *number)).0 += 1;
        }
        // Of two addresses with as many slots, the one with the older slot.
        each.into_values().max_by_key(|(count, oldest)| (*count, u64::MAX - oldest)).map(|(_, oldest)| oldest)
    }
}

impl HandshakeSlot {
    /// Waits until another connection has taken this slot.
    pub(super) async fn lost(&mut self) {
        // An error means the same: the sender is dropped only with the slot.
        let _ = (&mut self.gone).await;
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        self.of.places().taken.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_most_loses_its_oldest() {
        let slots = HandshakeSlots::default();
        let (flood, node) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut real = slots.enter(node);
        let mut floods: Vec<HandshakeSlot> =
            (0..3 * MAX_UNAUTHENTICATED).map(|_| slots.enter(flood)).collect();
        assert!(real.gone.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        let lost: Vec<bool> = floods.iter_mut().map(|place| place.gone.try_recv().is_ok()).collect();
        let first_left = 2 * MAX_UNAUTHENTICATED + 1;
        assert!(lost[..first_left].iter().all(|lost| *lost) && lost[first_left..].iter().all(|lost| !lost));
        assert_eq!(slots.places().taken.len(), MAX_UNAUTHENTICATED);
        drop(floods);
        drop(real);
        assert!(slots.places().taken.is_empty());
    }
}
