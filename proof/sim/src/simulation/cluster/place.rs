//! The process on a machine of the simulated cluster: a node, and the runtime of its tasks.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use duewheel::Clock;
use duewheel_cluster::testing::{SteppedNode, SteppedStart};
use duewheel_cluster::{Fleet, FleetOptions, Router, Started};
use duewheel_core::policy::Policy;
use duewheel_shard::client::Client;
use duewheel_shard::error::CallError;
use duewheel_shard::inbox::Admission;
use duewheel_shard::shared::ThreadCommand;
use duewheel_store_log::Options as LogOptions;
use duewheel_store_medium::MediumShared;
use tokio::runtime::{Builder, Runtime};

use super::clock::MachineClock;
use super::network::{Caller, End, Net, address};
use super::store::{NodeCoordinator, World};

/// The settings of the processes of a run.
#[derive(Debug)]
pub(super) struct Recipe {
    pub(super) world: World,
    pub(super) net: Net,
    pub(super) policy: Policy,
    pub(super) settle_delay: Duration,
    /// The settings of each shard's store.
    pub(super) log: LogOptions,
}

/// A process.
#[derive(Debug)]
pub(super) struct Process {
    // Dropped in this order, as by kill -9: none of it does anything any more.
    phase: Phase,
    clock: MachineClock,
    runtime: Runtime,
    /// The beginning of its runtime, by its own clock and by the simulation's.
    began: (tokio::time::Instant, u64),
}

#[derive(Debug)]
enum Phase {
    Joining { start: Box<SteppedStart>, at: Duration },
    Up(Box<Up>),
}

/// A node that has joined.
#[derive(Debug)]
pub(super) struct Up {
    pub(super) client: Client,
    pub(super) fleet: Arc<Fleet>,
    node: SteppedNode,
    started: Started,
    leaving: bool,
}

/// The state of a process after a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Runs,
    /// It has ended on request.
    Left,
    /// It has ended by itself.
    Ended(String),
    /// It could not join; it is started again.
    NotJoined,
}

impl Process {
    /// Starts a process on a machine.
    pub(super) fn start(recipe: &Recipe, place: usize, clock: &MachineClock, seed: u64, now: u64) -> Self {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without I/O");
        let began = (runtime.block_on(async { tokio::time::Instant::now() }), now);
        let (world, log) = (recipe.world.clone(), recipe.log.clone());
        let coordinator =
            NodeCoordinator { world, place, clock: clock.clone(), log, shared: MediumShared::default() };
        let mut options = FleetOptions::new(format!("node-{place}"));
        options.advertise = Some(address(place));
        options.shards_if_new = super::SHARDS;
        options.settle_delay = recipe.settle_delay;
        options.seed = Some(seed);
        let network = Caller { net: recipe.net.clone(), node: place };
        let start = SteppedStart::new(
            Arc::new(coordinator),
            options,
            recipe.policy.clone(),
            Arc::new(clock.clone()),
            Arc::new(network),
        );
        let phase = Phase::Joining { start: Box::new(start), at: Duration::ZERO };
        Process { phase, clock: clock.clone(), runtime, began }
    }

    pub(super) fn up(&self) -> Option<&Up> {
        match &self.phase {
            Phase::Up(up) => Some(up),
            Phase::Joining { .. } => None,
        }
    }

    /// The node, if it accepts requests.
    pub(super) fn serving(&self) -> Option<&Up> {
        self.up().filter(|up| !up.leaving)
    }

    /// Takes its turns, and lets its tasks run up to now.
    pub(super) fn step(&mut self, recipe: &Recipe, now: u64) -> Fate {
        let clock = self.clock.clone();
        let entered = self.runtime.enter();
        match &mut self.phase {
            Phase::Joining { at, .. } if clock.running() < *at => return Fate::Runs,
            Phase::Joining { start, at } => match start.attempt() {
                Err(_) => return Fate::NotJoined,
                Ok(None) => {
                    *at = clock.running() + start.pause();
                    return Fate::Runs;
                }
                Ok(Some(node)) => self.phase = Phase::Up(Box::new(Up::new(node, recipe))),
            },
            Phase::Up(up) => up.node.step(),
        }
        drop(entered);
        self.run_tasks(now);
        let Phase::Up(up) = &self.phase else { return Fate::Runs };
        match (up.node.has_ended(), up.leaving) {
            (false, _) => Fate::Runs,
            // A node that leaves must not end by a panic either.
            (true, true) if up.started.shared.bug().is_none() => Fate::Left,
            (true, _) => {
                let why = up.started.shared.bug().cloned();
                Fate::Ended(why.or(up.started.shared.health().trouble).unwrap_or_default())
            }
        }
    }

    /// Advances the time of its tasks in one step, as after a pause, and runs them until nothing is left to do.
    fn run_tasks(&mut self, now: u64) {
        let target = self.began.0 + Duration::from_nanos(now - self.began.1);
        let last = Duration::from_millis(1);
        self.runtime.block_on(async {
            let left = target.saturating_duration_since(tokio::time::Instant::now());
            if left > last {
                tokio::time::advance(left - last).await;
            }
            // It ends when all other tasks wait.
            tokio::time::sleep_until(target).await;
        });
    }

    /// Accepts a connection of another node.
    pub(super) fn accept(&self, end: End) {
        if let Some(up) = self.up() {
            self.runtime.spawn(up.node.answer(Box::new(end)));
        }
    }

    /// Creates or polls a future of a client in the context of its tasks.
    pub(super) fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        let _entered = self.runtime.enter();
        work()
    }

    /// Asks it to end.
    pub(super) fn leave(&mut self) -> bool {
        let Phase::Up(up) = &mut self.phase else { return false };
        up.leaving = true;
        let Started { shared, inbox, .. } = &up.started;
        inbox.close_door(Admission::Draining);
        shared.wish(ThreadCommand::EndWaits, inbox);
        inbox.close_door(Admission::Closed(CallError::Draining));
        shared.wish(ThreadCommand::Stop, inbox);
        true
    }
}

impl Up {
    fn new(node: SteppedNode, recipe: &Recipe) -> Self {
        let started = node.started();
        let Started { fleet, shared, inbox, sessions } = node.started();
        let runtime = tokio::runtime::Handle::current();
        let router = Router::new(
            fleet.clone(),
            recipe.policy.clone(),
            &inbox,
            &shared,
            Default::default(),
            sessions,
            runtime,
        );
        let client = Client::routed(inbox, shared, router, sessions);
        Up { client, fleet, node, started, leaving: false }
    }
}

/// The answer to a request to a node.
pub(super) type Promise<T> = std::pin::Pin<Box<dyn Future<Output = T>>>;
