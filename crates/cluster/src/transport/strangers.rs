//! Connections that have not shown yet who is there: few places, which newcomers always get.
//!
//! When all are taken, one is taken away from the address that has most of them, the one that it has had longest. So
//! those who connect and say nothing lose their places to others, and to each other first; a node that comes proves
//! itself within a few round trips, long before it is its turn. Connections that have shown who is there have places
//! of their own.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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

/// Between two lines of the log about connections that were refused.
const BETWEEN_LINES: Duration = Duration::from_secs(60);

/// Connections at the nodes' port that were refused. Whoever reaches the port can make as many as he likes, so there is a
/// line for the first one, and then one a minute at most, which says how many there were.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<LogQuota>);

/// How many were refused since the last line, and when that was.
#[derive(Debug, Default)]
struct LogQuota {
    unsaid: u64,
    /// By the clock that runs.
    said: Option<Duration>,
}

impl LogQuota {
    /// One more was refused: how many a line is to speak of, if there is to be one.
    fn one_more(&mut self, now: Duration) -> Option<u64> {
        self.unsaid += 1;
        if self.said.is_some_and(|said| now.saturating_sub(said) < BETWEEN_LINES) {
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

impl Refusals {
    pub(super) fn say(&self, from: SocketAddr, now: Duration, why: &dyn std::fmt::Display) {
        let refused = self.0.lock().unwrap_or_else(PoisonError::into_inner).one_more(now);
        match refused {
            Some(refused) => {
                tracing::warn!(%from, %why, refused, "refused a connection at the nodes' port; there is one line a minute at most");
            }
            None => tracing::debug!(%from, %why, "refused a connection at the nodes' port"),
        }
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

    /// Story: a scanner that connected a thousand times a second wrote a thousand lines a second into the log.
    #[test]
    fn a_flood_of_strangers_is_a_line_a_minute() {
        let (mut lines, begin) = (LogQuota::default(), Duration::from_secs(5));
        // Ten a second, for five minutes.
        let said: Vec<u64> =
            (0..3_000).filter_map(|n| lines.one_more(begin + Duration::from_millis(n * 100))).collect();
        assert_eq!(said, [1, 600, 600, 600, 600], "the first at once, then how many there were");
        assert_eq!(lines.one_more(begin + Duration::from_secs(360)), Some(600), "none is left out");
    }
}
