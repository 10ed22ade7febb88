//! A node whose turns a simulation takes: what runs on threads elsewhere is stepped here, and its tasks run on a
//! runtime whose clock the simulation moves.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use duewheel_core::policy::Policy;
use duewheel_core::store::Coordinator;
use duewheel_shard::clock::Clock;
use duewheel_shard::runner::{AfterTurn, Runner, SleepLimit, StartError, WakeOn, WhenFenced};
use duewheel_shard::shared::DriverEnd;
use duewheel_shard::thread::Shard;

use crate::ownership::core::{Core, FleetError};
use crate::ownership::member::{Candidacy, Environment, Fleet, FleetOptions, Started, assemble};
use crate::ownership::owned::{NotOpened, Opening, OpeningCallback, Starter};
use crate::ownership::reconciler::Reconciler;
use crate::transport::{Connector, Host, Network, PeerStream, TransportConfig, answer};

/// A node that tries to join, in a simulation.
pub struct SteppedStart {
    candidacy: Candidacy,
    coordinator: Arc<dyn Coordinator>,
    options: FleetOptions,
    policy: Policy,
    clock: Arc<dyn Clock>,
    network: Arc<dyn Network>,
}

impl fmt::Debug for SteppedStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SteppedStart").field("name", &self.options.name).finish_non_exhaustive()
    }
}

impl SteppedStart {
    /// Prepares a node. It must have an address for other nodes.
    pub fn new(
        coordinator: Arc<dyn Coordinator>,
        options: FleetOptions,
        policy: Policy,
        clock: Arc<dyn Clock>,
        network: Arc<dyn Network>,
    ) -> Self {
        let advertise = options.advertise.clone().unwrap_or_default();
        let candidacy = Candidacy::new(coordinator.lease(), &options, &advertise, clock.running());
        SteppedStart { candidacy, coordinator, options, policy, clock, network }
    }

    /// Tries to join, within the runtime of the node's tasks; `None`: to be called again after [`SteppedStart::pause`].
    ///
    /// # Errors
    /// See [`FleetError`].
    pub fn attempt(&mut self) -> Result<Option<SteppedNode>, FleetError> {
        let Some(joined) = self.candidacy.attempt(&*self.coordinator, self.clock.running())? else {
            return Ok(None);
        };
        let starts = Starts::default();
        let means = Environment {
            clock: self.clock.clone(),
            jitter: self.options.jitter(&*self.clock),
            link: Connector::Simulated(self.network.clone()),
            starter: Arc::new(starts.clone()),
        };
        let (core, keeper, terms) =
            assemble(self.coordinator.clone(), &joined, &self.options, &self.policy, means);
        let clock = self.clock.clone();
        Ok(Some(SteppedNode {
            keeper: Some(keeper),
            keeper_due: Duration::ZERO,
            core,
            terms,
            clock,
            starts,
            running: Vec::new(),
        }))
    }

    /// The pause between two attempts.
    pub fn pause(&self) -> Duration {
        self.candidacy.pause()
    }
}

/// A node of a simulation. When it is dropped, it ends as by `kill -9`, provided that its stores and the runtime of its
/// tasks are dropped with it.
pub struct SteppedNode {
    /// `None` when it has ended.
    keeper: Option<Reconciler>,
    keeper_due: Duration,
    core: Arc<Core>,
    terms: TransportConfig,
    clock: Arc<dyn Clock>,
    starts: Starts,
    running: Vec<SteppedShard>,
}

impl fmt::Debug for SteppedNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SteppedNode").field("me", &self.core.me).field("shards", &self.running.len()).finish()
    }
}

/// A shard between two turns.
struct SteppedShard {
    /// `None` when it has ended.
    runner: Option<Runner>,
    nap: Option<SleepLimit>,
    due: Duration,
    /// The callback, while the shard opens.
    tell: Option<OpeningCallback>,
}

/// Shards that are to be opened.
#[derive(Clone, Default)]
struct Starts(Arc<Mutex<VecDeque<(Opening, OpeningCallback)>>>);

impl Starter for Starts {
    fn start(&self, opening: Opening, tell: OpeningCallback) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back((opening, tell));
        Ok(())
    }
}

impl SteppedNode {
    /// The handles that a client needs to use the node.
    pub fn started(&self) -> Started {
        Fleet::started(self.core.clone())
    }

    /// The number of this run of the node.
    pub fn number(&self) -> u32 {
        self.core.me.number
    }

    /// Whether the node has ended by itself.
    pub fn has_ended(&self) -> bool {
        self.keeper.is_none()
    }

    /// Answers a connection that another node has made to this one. To be run as a task of the node.
    pub fn answer(&self, stream: PeerStream) -> impl Future<Output = ()> + Send + 'static {
        let (terms, host) = (self.terms.clone(), self.core.clone() as Arc<dyn Host>);
        async move {
            let ended = answer(stream, &terms, &host).await;
            tracing::debug!(?ended, "a node's connection ended");
        }
    }

    /// Takes all turns that are due or woken: of the node, then of its shards.
    pub fn step(&mut self) {
        let now = self.clock.running();
        if let Some(keeper) = &mut self.keeper
            && (self.keeper_due <= now || self.core.inbox.is_woken())
        {
            // A wake-up is consumed, as by a wait that ends.
            self.core.inbox.wait_for_wake(Duration::ZERO);
            match keeper.turn() {
                Some(nap) => self.keeper_due = now + nap,
                None => self.keeper = None,
            }
        }
        loop {
            let next = self.starts.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some((opening, tell)) = next else { break };
            self.running.extend(SteppedShard::start(opening, tell));
        }
        for running in &mut self.running {
            running.step(now);
        }
        self.running.retain(|running| running.runner.is_some());
    }
}

impl SteppedShard {
    fn start(opening: Opening, tell: OpeningCallback) -> Option<SteppedShard> {
        let Opening { opener, config, quotas, clock } = opening;
        match caught(|| Runner::start(opener, config, clock)) {
            Ok(runner) => {
                let runner = runner.when_fenced(WhenFenced::End).with_quotas(quotas);
                Some(SteppedShard { runner: Some(runner), nap: None, due: Duration::ZERO, tell: Some(tell) })
            }
            Err(error) => {
                tell(Err(error));
                None
            }
        }
    }

    fn step(&mut self, now: Duration) {
        let Some(runner) = &mut self.runner else { return };
        let woken = self.nap.is_none_or(|nap| runner.is_woken(nap));
        if self.due > now && !woken {
            return;
        }
        if self.tell.is_some() {
            return self.open(now);
        }
        if let Some(nap) = self.nap.take() {
            runner.woke(nap);
        }
        loop {
            match runner.turn() {
                AfterTurn::Again => {}
                AfterTurn::Sleep(nap) => {
                    (self.nap, self.due) = (Some(nap), now + nap.at_most);
                    return;
                }
                AfterTurn::Ended(end) => return self.end(end),
            }
        }
    }

    fn open(&mut self, now: Duration) {
        let Some(runner) = &mut self.runner else { return };
        let opened = caught(|| runner.opening());
        match opened {
            Ok(Some(at_most)) => {
                self.nap = Some(SleepLimit { until: WakeOn::Gathering, at_most });
                self.due = now + at_most;
            }
            Ok(None) => {
                (self.nap, self.due) = (None, now);
                if let Some(tell) = self.tell.take() {
                    tell(Ok(Shard::of(runner)));
                }
            }
            Err(error) => {
                self.runner = None;
                if let Some(tell) = self.tell.take() {
                    tell(Err(error));
                }
            }
        }
    }

    fn end(&mut self, end: DriverEnd) {
        if let Some(runner) = self.runner.take() {
            runner.end(end);
        }
    }
}

fn caught<T>(open: impl FnOnce() -> Result<T, StartError>) -> Result<T, NotOpened> {
    match catch_unwind(AssertUnwindSafe(open)) {
        Ok(opened) => opened.map_err(NotOpened::Refused),
        Err(panic) => Err(NotOpened::panicked(&*panic)),
    }
}
