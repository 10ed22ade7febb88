//! Looks at messages of its own all the time, each by its key, and so sees for how long a shard is with nobody.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use duewheel_sim::http::{self, Completeness, Connection, Soundness};
use duewheel_sim::process::until;
use serde_json::json;

use crate::stage;

/// So many that no shard is without one; or hardly ever, and then it is not missed.
const KEYS: usize = 24;
const QUEUE: &str = "probe";
const STEP: Duration = Duration::from_millis(200);
/// A request waits for two seconds for a shard without an owner.
const PATIENCE: Duration = Duration::from_secs(5);

/// Of one key.
#[derive(Clone, Copy)]
struct Seen {
    /// When the last answer came.
    last: Instant,
    /// When that was asked for.
    asked: Instant,
    /// The longest time without an answer.
    longest: Duration,
    /// Where it is being asked for right now.
    at: Option<SocketAddr>,
}

struct Shared {
    nodes: Mutex<Vec<Option<SocketAddr>>>,
    seen: Vec<Mutex<Seen>>,
    over: AtomicBool,
}

/// Looks until it is dropped.
pub(crate) struct Probe {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Probe {
    /// Puts the messages there, and begins to look.
    pub(crate) fn start(nodes: Vec<Option<SocketAddr>>) -> Result<Self, String> {
        let first = nodes.iter().flatten().next().ok_or("no node to probe")?;
        for key in 0..KEYS {
            let body = json!({"body": "probe", "delay_ms": 86_400_000, "key": format!("k{key}")});
            let path = format!("/v1/queues/{QUEUE}/messages");
            // Nodes that have just come still hand shards over, and a machine with too much to do lets a lease run out.
            until("a message to probe with is taken", stage::PATIENCE, || {
                let (status, said) = match http::ask(*first, PATIENCE, "POST", &path, &body) {
                    Ok(answer) => answer,
                    Err(_) => return Ok(None),
                };
                match status {
                    // It was taken before, and the answer was lost.
                    200..300 | 409 => Ok(Some(())),
                    503 => Ok(None),
                    _ => Err(format!("a message to probe with: {status} {said}")),
                }
            })?;
        }
        let now = Instant::now();
        let seen = Seen { last: now, asked: now, longest: Duration::ZERO, at: None };
        let seen = (0..KEYS).map(|_| Mutex::new(seen)).collect();
        let shared = Arc::new(Shared { nodes: Mutex::new(nodes), seen, over: AtomicBool::new(false) });
        let threads = (0..KEYS).map(|key| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.look(key))
        });
        Ok(Probe { threads: threads.collect(), shared })
    }

    /// Which nodes it may ask.
    pub(crate) fn set_node(&self, node: usize, address: Option<SocketAddr>) {
        let mut nodes = lock(&self.shared.nodes);
        if nodes.len() <= node {
            nodes.resize(node + 1, None);
        }
        nodes[node] = address;
    }

    /// Keeps away from a node, and waits until nothing is asked there any more: a question to a node that sleeps would
    /// only measure how long this waits for an answer.
    pub(crate) fn leave(&self, node: usize) {
        let address = lock(&self.shared.nodes).get(node).copied().flatten();
        self.set_node(node, None);
        let asked = |seen: &Mutex<Seen>| address.is_some() && lock(seen).at == address;
        while self.shared.seen.iter().any(asked) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until each key was asked for after a moment, and found. Gives the time from that moment to the last of
    /// them.
    pub(crate) fn until_whole(&self, since: Instant, patience: Duration) -> Result<Duration, String> {
        loop {
            let missing = |seen: &&Mutex<Seen>| lock(seen).asked < since;
            let missing = self.shared.seen.iter().filter(missing).count();
            if missing == 0 {
                let last = self.shared.seen.iter().map(|seen| lock(seen).last).max();
                return Ok(last.unwrap_or(since).saturating_duration_since(since));
            }
            if since.elapsed() > patience {
                return Err(format!("{missing} of {KEYS} keys are not found after {} s", patience.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The longest time for which a key was not found since the last call of this.
    pub(crate) fn longest(&self) -> Duration {
        let now = Instant::now();
        let longest = |seen: &Mutex<Seen>| {
            let mut seen = lock(seen);
            std::mem::take(&mut seen.longest).max(now.saturating_duration_since(seen.last))
        };
        self.shared.seen.iter().map(longest).max().unwrap_or_default()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            // It has nothing to tell any more.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn look(&self, key: usize) {
        let mut connection: Option<(Connection, SocketAddr)> = None;
        while !self.over.load(Ordering::SeqCst) {
            std::thread::sleep(STEP);
            let at = {
                let nodes = lock(&self.nodes);
                let (before, after) = nodes.split_at(key % nodes.len().max(1));
                let at = after.iter().chain(before).find_map(|node| *node);
                lock(&self.seen[key]).at = at;
                at
            };
            let Some(at) = at else { continue };
            let usable = |(c, a): &(Connection, SocketAddr)| *a == at && c.soundness() == Soundness::Open;
            if !connection.as_ref().is_some_and(usable) {
                connection = Connection::open(at, PATIENCE).ok().map(|c| (c, at));
            }
            let Some((connection, _)) = &mut connection else {
                lock(&self.seen[key]).at = None;
                continue;
            };
            let asked = Instant::now();
            let path = format!("/v1/queues/{QUEUE}/keys/k{key}");
            let answer = connection.request("GET", &path, "application/json", b"");
            let mut seen = lock(&self.seen[key]);
            seen.at = None;
            if answer.is_ok_and(|a| a.status == 200 && a.end == Completeness::Whole) {
                let now = Instant::now();
                seen.longest = seen.longest.max(now.saturating_duration_since(seen.last));
                (seen.last, seen.asked) = (now, asked);
            }
        }
    }
}
