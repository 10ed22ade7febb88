//! Shards in this process, each with a thread of its own, that can be made to fail; and a router over them.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use duewheel_core::engine::{Config, Enqueue, Grant, Ids, Op, Reply, Reserved, When};
use duewheel_core::id::{MessageId, ShardId};
use duewheel_core::name::{Key, QueueName};
use duewheel_core::policy::Policy;
use duewheel_core::store::{ErrorKind, Level, MemoryStore, Store, StoreError};
use duewheel_shard::client::{Client, Reserve};
use duewheel_shard::clock::{Clock, VirtualClock};
use duewheel_shard::error::{CallError, Outcome};
use duewheel_shard::inbox::{Inbox, Pending, WhenBusy};
use duewheel_shard::runner::WhenFenced;
use duewheel_shard::shared::{DriverEnd, DriverShared, Lifecycle};
use duewheel_shard::thread::Shard;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::routing::Shards;
use crate::routing::router::Router;

/// How a shard behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    Well,
    /// Nobody owns it: nothing is applied.
    Away,
    /// What is asked arrives there so much later.
    Slow(Duration),
    /// It never answers, and nothing is applied.
    Silent,
    /// Its inbox takes only what settles.
    Full,
    /// It does what it is asked, and the answers are lost on their way; grants go back.
    Deaf,
}

#[derive(Debug)]
struct One {
    client: Client,
    life: Lifecycle,
    mood: Mood,
    /// Operations that were asked of it, as words.
    asked: Vec<&'static str>,
}

/// Shards in this process.
#[derive(Debug)]
pub(super) struct Local {
    shards: Mutex<Vec<One>>,
    here: Mutex<Vec<ShardId>>,
    runtime: Handle,
    /// Answers that never come.
    unanswered: Mutex<Vec<oneshot::Sender<duewheel_shard::inbox::Answers>>>,
    submissions: AtomicUsize,
}

impl Local {
    fn start(shards: u32, policy: &Policy, clock: &Arc<dyn Clock>) -> Self {
        let start = |shard| {
            let config = Config {
                policy: policy.clone(),
                seed: u64::from(shard),
                ids: Ids::of(ShardId(shard), shards),
                ..Config::default()
            };
            let opener = |waker| Ok(Box::new(MemoryStore::with_waker(waker)) as Box<dyn Store>);
            let shard = Shard::start(
                Box::new(opener),
                config,
                Default::default(),
                clock.clone(),
                WhenFenced::OpenAgain,
            );
            let Ok(shard) = shard else { panic!("a shard in memory starts") };
            let (inbox, shared) = shard.hand_on();
            let life = Lifecycle::new(inbox.clone(), shared.clone());
            One { client: Client::new(inbox, shared), life, mood: Mood::Well, asked: Vec::new() }
        };
        Local {
            shards: Mutex::new((0..shards).map(start).collect()),
            here: Mutex::new((0..shards).map(ShardId).collect()),
            runtime: Handle::current(),
            unanswered: Mutex::default(),
            submissions: AtomicUsize::new(0),
        }
    }

    pub(super) fn set(&self, shard: u32, mood: Mood) {
        self.shards.lock().unwrap()[shard as usize].mood = mood;
    }

    pub(super) fn set_here(&self, here: &[u32]) {
        *self.here.lock().unwrap() = here.iter().copied().map(ShardId).collect();
    }

    /// A way to one shard, past the router.
    pub(super) fn client(&self, shard: u32) -> Client {
        self.shards.lock().unwrap()[shard as usize].client.clone()
    }

    pub(super) fn submissions(&self) -> usize {
        self.submissions.load(SeqCst)
    }

    /// How often something was asked, of all shards.
    pub(super) fn asked(&self, word: &str) -> usize {
        self.asked_each(word).into_iter().sum()
    }

    /// How much was asked of each shard.
    pub(super) fn all_asked(&self) -> Vec<usize> {
        self.shards.lock().unwrap().iter().map(|one| one.asked.len()).collect()
    }

    pub(super) fn asked_each(&self, word: &str) -> Vec<usize> {
        let count = |one: &One| one.asked.iter().filter(|asked| **asked == word).count();
        self.shards.lock().unwrap().iter().map(count).collect()
    }
}

fn word(op: &Op) -> &'static str {
    match op {
        Op::Reserve(r) if r.max == 0 => "wait",
        Op::Reserve(_) => "reserve",
        Op::CancelReserve { .. } => "withdraw",
        Op::Undelivered { .. } => "undelivered",
        Op::SessionClosed { .. } => "closed",
        Op::Enqueue(_) => "enqueue",
        _ => "other",
    }
}

impl Shards for Local {
    fn count(&self) -> u32 {
        self.shards.lock().unwrap().len() as u32
    }

    fn here(&self) -> Vec<ShardId> {
        self.here.lock().unwrap().clone()
    }

    fn submit(&self, shard: ShardId, ops: Vec<Op>, patience: WhenBusy) -> Pending {
        self.submissions.fetch_add(1, SeqCst);
        let (client, mood) = {
            let mut shards = self.shards.lock().unwrap();
            let one = &mut shards[shard.0 as usize];
            one.asked.extend(ops.iter().map(word));
            (one.client.clone(), one.mood)
        };
        let n = ops.len();
        let (to, answers) = oneshot::channel();
        let pending = Pending::new(answers, n);
        match mood {
            Mood::Full if !ops.iter().all(|op| op.operation().settles) => {
                drop(to.send((0..n).map(|_| Err(CallError::Overloaded)).collect()));
            }
            Mood::Well | Mood::Full => match client.offer(ops, patience) {
                Ok(pending) => return pending,
                Err((error, _)) => drop(to.send((0..n).map(|_| Err(error.clone())).collect())),
            },
            Mood::Away => {
                let error = StoreError::new(ErrorKind::Unavailable, "it has no owner");
                let error = CallError::Store { error, outcome: Outcome::NotApplied };
                drop(to.send((0..n).map(|_| Err(error.clone())).collect()));
            }
            Mood::Silent => self.unanswered.lock().unwrap().push(to),
            Mood::Slow(by) => {
                self.runtime.spawn(async move {
                    tokio::time::sleep(by).await;
                    let answers = match client.offer(ops, patience) {
                        Ok(pending) => pending.await,
                        Err((error, _)) => (0..n).map(|_| Err(error.clone())).collect(),
                    };
                    give_or_take_back(&client, to.send(answers).err().into_iter().flatten());
                });
            }
            Mood::Deaf => {
                self.runtime.spawn(async move {
                    if let Ok(pending) = client.offer(ops, patience) {
                        give_or_take_back(&client, pending.await);
                    }
                    drop(to.send((0..n).map(|_| Err(CallError::Lost("on its way"))).collect()));
                });
            }
        }
        pending
    }
}

fn give_or_take_back(client: &Client, answers: impl IntoIterator<Item = Result<Reply, CallError>>) {
    for answer in answers {
        if let Ok(Reply::Reserve(Reserved::Grants(grants))) = answer {
            let leases = grants.iter().map(|g| (g.message.id, g.token)).collect();
            drop(client.submit(vec![Op::Undelivered { leases }]));
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        for one in self.shards.lock().unwrap().iter() {
            one.life.stop();
        }
    }
}

/// A router over shards in this process.
pub(super) struct Rig {
    pub(super) local: Arc<Local>,
    pub(super) client: Client,
    pub(super) clock: VirtualClock,
    pub(super) inbox: Arc<Inbox>,
    shared: Arc<DriverShared>,
}

/// Over so many shards, with a clock that stands.
pub(super) fn rig(shards: u32) -> Rig {
    rig_with(shards, Policy::default(), VirtualClock::at_2026())
}

pub(super) fn rig_with(shards: u32, policy: Policy, clock: VirtualClock) -> Rig {
    let any: Arc<dyn Clock> = Arc::new(clock.clone());
    let local = Arc::new(Local::start(shards, &policy, &any));
    let inbox = Arc::new(Inbox::new(&policy));
    let shared = Arc::new(DriverShared::new(Level::Memory, any));
    let names = 7 << 40;
    let router =
        Router::new(local.clone(), policy, &inbox, &shared, Default::default(), names, Handle::current());
    let client = Client::routed(inbox.clone(), shared.clone(), router, names);
    Rig { local, client, clock, inbox, shared }
}

impl Rig {
    /// A way in at another node, over the same shards.
    pub(super) fn second_node(&self) -> Client {
        let (inbox, shared) = (self.inbox.clone(), self.shared.clone());
        let names = 9 << 40;
        let policy = Policy::default();
        let router = Router::new(
            self.local.clone(),
            policy,
            &inbox,
            &shared,
            Default::default(),
            names,
            Handle::current(),
        );
        Client::routed(inbox, shared, router, names)
    }

    pub(super) fn pass(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
    }

    /// Waits until every shard has seen what time it is.
    pub(super) async fn looks_at_the_clock(&self) {
        for shard in 0..self.local.count() {
            self.local.client(shard).call(Op::NextDue).await.unwrap();
        }
    }

    pub(super) async fn call(&self, op: Op) -> Reply {
        self.client.call(op).await.unwrap()
    }

    pub(super) async fn put(&self, queue: &str, body: &str) -> MessageId {
        self.enqueue(message(queue, body)).await
    }

    pub(super) async fn enqueue(&self, enqueue: Enqueue) -> MessageId {
        match self.call(Op::Enqueue(Box::new(enqueue))).await {
            Reply::Enqueue(Ok(done)) => done.id,
            other => panic!("{other:?}"),
        }
    }

    /// Puts a message into this very shard.
    pub(super) async fn put_at(&self, shard: u32, queue: &str, body: &str) -> MessageId {
        let op = Op::Enqueue(Box::new(message(queue, body)));
        match self.local.client(shard).call(op).await.unwrap() {
            Reply::Enqueue(Ok(done)) => done.id,
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn reserve(&self, demand: Reserve) -> Vec<Grant> {
        match self.client.reserve(demand).await.unwrap() {
            Reserved::Grants(grants) => grants,
            other => panic!("{other:?}"),
        }
    }

    /// The node has ended: what a shutdown waits for.
    pub(super) fn ended(&self) {
        self.shared.set_ended(DriverEnd::Stopped);
    }
}

pub(super) fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

pub(super) fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

pub(super) fn message(queue_name: &str, body: &str) -> Enqueue {
    Enqueue::new(queue(queue_name), body.to_owned())
}

pub(super) fn later(queue_name: &str, body: &str, ms: u64) -> Enqueue {
    Enqueue { when: When::After(ms), ..message(queue_name, body) }
}

pub(super) fn demand(name: &str, max: usize, wait_ms: u64) -> Reserve {
    Reserve { max, wait_ms, ..Reserve::new(queue(name)) }
}

pub(super) fn body(grant: &Grant) -> String {
    String::from_utf8_lossy(&grant.message.body).into_owned()
}

pub(super) fn bodies(grants: &[Grant]) -> Vec<String> {
    let mut bodies: Vec<String> = grants.iter().map(body).collect();
    bodies.sort_unstable();
    bodies
}

/// Polls until `done`, with a deadline.
pub(super) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
