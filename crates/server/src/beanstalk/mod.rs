//! The front end for beanstalkd's protocol. `docs/beanstalk.md` describes it for users.
//!
//! ```text
//!   socket ──bytes──▶ codec ──commands──▶ session ──operations──▶ the engine
//!          ◀──replies─────────────────────        ◀──answers────
//! ```
//!
//! Codec and session do no I/O; the listener does nothing else. The words of a session and of the engine: tube = queue,
//! job = message, TTR = lease, delayed = Scheduled, ready = Ready, reserved = Leased, buried = Dead.

mod batch;
mod codec;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod listener;
mod reach;
mod replies;
mod session;
mod socket;
mod stats;

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use duewheel::core::QueueName;
use duewheel::core::act::Act;
use duewheel::{Client, Duewheel};

pub use listener::{BeanstalkListener, ListenAddress};
pub(crate) use session::{default_queue, exists};
pub use socket::SocketMode;

use crate::auth::Prefixes;
use crate::drain::Drain;
use crate::http::act_on_queue;
use codec::CommandKind;

/// beanstalkd's limit for a job, in bytes.
pub const DEFAULT_MAX_BODY: usize = 65_535;

/// For how long a repeated command belongs to the act that it began, so that it does not push out the acts of others.
const ONE_ACT_MS: u64 = 60_000;
/// The number of acts that may be repeated at a time.
const MAX_ACTS: usize = 256;

/// The state that all sessions share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct BeanstalkApp(Arc<BeanstalkState>);

/// The state that all sessions share.
#[derive(Debug)]
struct BeanstalkState {
    client: Client,
    max_body: usize,
    max_connections: usize,
    /// The queues that clients may use; `None`: all.
    queues: Option<Arc<Prefixes>>,
    drain: Drain,
    counters: SessionCounters,
    started: Instant,
    /// A name of this run of the process.
    instance: String,
    kernel: Kernel,
    /// The last acts of clients, the newest first.
    acts: Mutex<VecDeque<Arc<Act>>>,
}

/// The figures of the machine in `stats`.
#[derive(Clone, Debug)]
struct Kernel {
    hostname: String,
    os: String,
}

impl Kernel {
    fn read() -> Self {
        Kernel { hostname: kernel("hostname"), os: kernel("version") }
    }
}

impl BeanstalkApp {
    /// The state of a listener for a wheel that accepts bodies of `max_body` bytes.
    pub fn new(wheel: &Duewheel, max_body: usize, max_connections: usize, drain: Drain) -> Self {
        BeanstalkApp::on(Kernel::read(), wheel, max_body, max_connections, drain)
    }

    fn on(kernel: Kernel, wheel: &Duewheel, max_body: usize, max_connections: usize, drain: Drain) -> Self {
        BeanstalkApp(Arc::new(BeanstalkState {
            client: wheel.client().served_here(),
            max_body,
            max_connections,
            queues: None,
            drain,
            counters: SessionCounters::default(),
            started: Instant::now(),
            instance: format!("{:016x}", RandomState::new().hash_one(std::process::id())),
            kernel,
            acts: Mutex::default(),
        }))
    }

    /// Limits the clients to queues with these prefixes. To be called before the state is cloned.
    ///
    /// # Panics
    /// When the state has been cloned.
    #[must_use]
    pub fn limited_to(mut self, queues: Option<Prefixes>) -> Self {
        let shared = Arc::get_mut(&mut self.0).expect("no listener has it yet");
        shared.queues = queues.map(Arc::new);
        self
    }
}

impl BeanstalkState {
    /// The act that a command is part of: the same one for commands that a client repeats, even over other connections.
    fn act(&self, name: &str, queue: &QueueName, peer: Option<IpAddr>) -> Arc<Act> {
        let new = act_on_queue(&self.client, name, queue, peer);
        let mut acts = self.acts.lock().unwrap_or_else(PoisonError::into_inner);
        acts.retain(|act| new.at.0.saturating_sub(act.at.0) < ONE_ACT_MS);
        let is_repeated =
            |act: &&Arc<Act>| (&act.name, &act.queue, &act.address) == (&new.name, &new.queue, &new.address);
        if let Some(act) = acts.iter().find(is_repeated) {
            return Arc::clone(act);
        }
        let new = Arc::new(new);
        acts.truncate(MAX_ACTS - 1);
        acts.push_front(Arc::clone(&new));
        new
    }

    fn reaches(&self, queue: &QueueName) -> bool {
        self.queues.as_ref().is_none_or(|queues| queues.reach(queue))
    }
}

/// Counters of the sessions, for `stats`.
#[derive(Debug, Default)]
struct SessionCounters {
    commands: [AtomicU64; CommandKind::COUNT],
    connections: AtomicUsize,
    producers: AtomicUsize,
    workers: AtomicUsize,
    total_connections: AtomicU64,
}

impl SessionCounters {
    fn count(&self, kind: CommandKind) {
        self.commands[kind as usize].fetch_add(1, Relaxed);
    }

    fn of(&self, kind: CommandKind) -> u64 {
        self.commands[kind as usize].load(Relaxed)
    }
}

/// A fact about the kernel, without characters that could end a quoted string.
fn kernel(what: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/sys/kernel/{what}")).unwrap_or_default();
    text.trim().chars().filter(|c| !c.is_control() && !matches!(c, '"' | '\\')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use duewheel::VirtualClock;

    #[tokio::test(flavor = "multi_thread")]
    async fn repeated_commands_are_one_act() {
        let clock = VirtualClock::at_2026();
        let wheel = Duewheel::builder().in_memory().clock(clock.clone()).seed(1).open().await.unwrap();
        let app = BeanstalkApp::new(&wheel, 1, 1, Drain::default());
        let queue = QueueName::new("q").unwrap();
        let nonce = |name| app.0.act(name, &queue, None).nonce;
        let first = nonce("fire");
        assert_ne!(nonce("redrive"), first);
        assert_eq!(nonce("fire"), first);
        clock.advance(std::time::Duration::from_millis(ONE_ACT_MS));
        assert_ne!(nonce("fire"), first);
    }
}
