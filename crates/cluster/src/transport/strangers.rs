//! Connections that have not shown yet who is there: few places, which newcomers always get.
//!
//! When all are taken, one is taken away from the address that has most of them, the one that it has had longest. So
//! those who connect and say nothing lose their places to others, and to each other first; a node that comes proves
//! itself within a few round trips, long before it is its turn. Connections that have shown who is there have places
//! of their own.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Places of strangers.
pub(super) const MAX_STRANGERS: usize = 256;

/// Who is in which place, by the order of coming.
#[derive(Clone, Debug, Default)]
pub(super) struct Strangers(Arc<Mutex<Places>>);

#[derive(Debug, Default)]
struct Places {
    next: u64,
    taken: BTreeMap<u64, (IpAddr, oneshot::Sender<()>)>,
}

/// A stranger's place, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    of: Strangers,
    number: u64,
    gone: oneshot::Receiver<()>,
}

impl Strangers {
    /// A place for a connection from this address, which another one may lose by that.
    pub(super) fn enter(&self, from: IpAddr) -> Place {
        let (to, gone) = oneshot::channel();
        let mut places = self.places();
        if places.taken.len() >= MAX_STRANGERS
            && let Some(loses) = places.least_wanted()
            && let Some((_, loser)) = places.taken.remove(&loses)
        {
            // It may have ended by itself.
            let _ = loser.send(());
        }
        let number = places.next;
        places.next += 1;
        places.taken.insert(number, (from, to));
        drop(places);
        Place { of: self.clone(), number, gone }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    /// The oldest place of the address that has most.
    fn least_wanted(&self) -> Option<u64> {
        let mut each: BTreeMap<IpAddr, (usize, u64)> = BTreeMap::new();
        for (number, (from, _)) in &self.taken {
            each.entry(*from).or_insert((0, *number)).0 += 1;
        }
        // Of two that have as many, the one that came first.
        each.into_values().max_by_key(|(count, oldest)| (*count, u64::MAX - oldest)).map(|(_, oldest)| oldest)
    }
}

impl Place {
    /// Ends when another one has got this place.
    pub(super) async fn lost(&mut self) {
        // An error means the same: the sender is dropped with the place alone.
        let _ = (&mut self.gone).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.of.places().taken.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_most_loses_its_oldest() {
        let strangers = Strangers::default();
        let (flood, node) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut real = strangers.enter(node);
        let mut floods: Vec<Place> = (0..3 * MAX_STRANGERS).map(|_| strangers.enter(flood)).collect();
        assert!(real.gone.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        let lost: Vec<bool> = floods.iter_mut().map(|place| place.gone.try_recv().is_ok()).collect();
        let first_left = 2 * MAX_STRANGERS + 1;
        assert!(lost[..first_left].iter().all(|lost| *lost) && lost[first_left..].iter().all(|lost| !lost));
        assert_eq!(strangers.places().taken.len(), MAX_STRANGERS);
        drop(floods);
        drop(real);
        assert!(strangers.places().taken.is_empty());
    }
}
