//! Three nodes of a cluster under a simulated store, network and clocks, from one seed.
//!
//! ```text
//!   clients ──calls──▶ Router ─▶ Fleet ─▶ inbox ─▶ Runner::turn ─▶ MediumStore ─▶ SimMedium ═▶ World: files, leases, members
//!                                  │                              Keeper::turn ──▶ NodeCoordinator ─▲
//!                                  └─▶ Peer ═══ Net ═══▶ the owner's node
//! ```
//!
//! Routing, forwarding, ownership, the frames between nodes, the runtime of shards, the engine and the log store over a
//! medium are the real code. The medium, the network and the clocks are simulated. Everything runs on one thread: each node's tasks have
//! a runtime of their own, whose clock advances only when the simulation lets its time pass. A node that is killed is
//! dropped with its runtime; one that is paused is not stepped, and its clocks run on. The same seed gives the same
//! run, call by call.

mod clock;
mod facts;
mod faults;
mod network;
mod owners;
mod place;
mod store;
mod suite;
mod survey;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use duewheel::CallError;
use duewheel_core::engine::Reply;
use duewheel_core::mutant::{self, Mutant};
use duewheel_core::policy::Policy;
use duewheel_judge::history::{
    Call, Downtime, Event, Fault, History, OpId, Rules, Shards, Stamp, Unanswered, What,
};
use duewheel_judge::rng::Rng;
use duewheel_shard::client::Reserve;
use duewheel_store_log::Options as LogOptions;

use super::bounds::Bounds;
use super::clients::{Gossip, Role, Stage};
use super::style::{RULES, Style};
use super::{Trace, ask, said_by};
use clock::MachineClock;
pub use facts::ClusterFacts;
use faults::{Blows, FaultKind};
use network::Net;
use owners::Owners;
use place::{Fate, Process, Promise, Recipe};
use store::{Link, World, WorldBug};
pub use suite::{MEDIUM_BUGS, suite_of_media};
use survey::Survey;

const MS: u64 = 1_000_000;
/// When the simulation begins, by the wall clock: 2026-01-01T00:00:00Z, in ms.
const BEGIN_MS: u64 = 1_767_225_600_000;
const NODES: usize = 3;
const SHARDS: u32 = 4;
/// If the run is not drained by then, something hangs.
const PATIENCE_NS: u64 = 120_000 * MS;
/// The longest pause of a node, and the longest time that it is cut off.
const LONGEST_MS: u64 = 2_500;

/// A store that is set back has lost the changes of at most so long a time.
const FORGOTTEN_MS: u64 = 700;
/// How often the clocks of a shard are noted at rest.
const NOTED_MS: u64 = 1_000;

/// The promises to the clients of a run.
const OF_CLUSTER: Rules = Rules {
    shards: Shards::Many,
    // A node may have to wait for another one that was paused, and for the store.
    unanswered: Unanswered::ForMs(2 * LONGEST_MS + 3_000),
    failover_ms: FORGOTTEN_MS,
    // Clients reserve few messages at a time, and a reserve that waits for a shorter time than a message takes to
    // arrive gets nothing.
    offer_ms: 11_000,
    slack_ms: 100,
    // A shard's time stands still, each time it moves, for as long as its last change was on its way to the store; and,
    // where the nodes' clocks disagree, since the clocks were noted.
    move_ms: LONGEST_MS + 500 + NOTED_MS,
    downtime: Downtime::OfBoot,
    ..RULES
};

/// A bug of a cluster, to test the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterBug(Inside);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inside {
    Code(Mutant),
    World(WorldBug),
}

/// All bugs of a cluster, by name.
pub const CLUSTER_BUGS: [(&str, ClusterBug); 12] = [
    ("renewal without epoch", ClusterBug(Inside::World(WorldBug::RenewalWithoutEpoch))),
    ("forward retried after unknown", ClusterBug(Inside::Code(Mutant::LostRetried))),
    ("a wall clock stepped while a shard opens", ClusterBug(Inside::Code(Mutant::OpenedByWall))),
    ("two owners for one lease", ClusterBug(Inside::World(WorldBug::DeadlineIgnored))),
    ("an epoch that was there before", ClusterBug(Inside::World(WorldBug::EpochKept))),
    ("lost write taken for done", ClusterBug(Inside::World(WorldBug::LostWriteAcked))),
    ("lost pieces of a run taken for written", ClusterBug(Inside::World(WorldBug::LostBlobAcked))),
    ("a name before its bytes", ClusterBug(Inside::World(WorldBug::NameFirst))),
    ("a name that shows what it had before", ClusterBug(Inside::World(WorldBug::StaleNames))),
    ("a journal with a gap", ClusterBug(Inside::World(WorldBug::GapAccepted))),
    ("retry with other bytes", ClusterBug(Inside::World(WorldBug::RetryWithOtherBytes))),
    ("a lease that is kept for too long", ClusterBug(Inside::World(WorldBug::LeaseKept))),
];

/// The result of a run of a cluster.
#[derive(Debug)]
pub struct ClusterOutcome {
    /// The history of the clients.
    pub history: History,
    /// Other errors: a node ended by itself, did not end, or panicked.
    pub broken: Option<String>,
    /// The faults and events that really happened.
    pub facts: ClusterFacts,
    /// Every step, if requested.
    pub trace: String,
}

/// Runs the simulation with a seed.
pub fn run_cluster(seed: u64, bug: Option<ClusterBug>, trace: Trace) -> ClusterOutcome {
    mutant::choose(match bug {
        Some(ClusterBug(Inside::Code(mutant))) => Some(mutant),
        Some(ClusterBug(Inside::World(_))) | None => None,
    });
    let mut sim = Cluster::new(seed, bug, trace);
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| sim.go())) {
        sim.broken.get_or_insert(said_by(&*panic));
    }
    let outcome = sim.outcome();
    mutant::choose(None);
    outcome
}

#[derive(Debug)]
enum Action {
    Start(usize),
    Wake(usize),
    Arrive { client: usize, flight: u64 },
    Answer { client: usize, flight: u64 },
    Fault,
    Mend(FaultKind),
    Heal,
    Look,
}

type Answers = Vec<Result<Reply, CallError>>;

struct Person {
    role: Role,
    flight: Option<Flight>,
}

/// A request between its invocation and its answer.
struct Flight {
    no: u64,
    place: usize,
    ops: Vec<(OpId, Call)>,
    state: FlightState,
}

enum FlightState {
    /// The request is on its way.
    Out,
    There(Promise<Answers>),
    /// The answer is on its way.
    Back(Answers),
}

struct Machine {
    clock: MachineClock,
    process: Option<Process>,
    /// The process is paused until then.
    still_until: u64,
}

struct Cluster {
    seed: u64,
    bug: Option<ClusterBug>,
    rng: Rng,
    style: Style,
    faults: Blows,
    recipe: Recipe,
    machines: Vec<Machine>,
    now: u64,
    plan: BTreeMap<(u64, u64), Action>,
    planned: u64,
    events: Vec<Event>,
    ops: u64,
    flights: u64,
    people: Vec<Person>,
    gossip: Gossip,
    survey: Survey,
    owners: Owners,
    stage: Stage,
    /// Set while a part of the cluster may be missing.
    struck: bool,
    /// When the clients could begin: the queues have their settings.
    ready_at: Option<u64>,
    /// Set while an owner does not know yet that its shard was set back.
    failing_over: bool,
    done: bool,
    facts: ClusterFacts,
    broken: Option<String>,
    trace: Option<String>,
}

impl Cluster {
    fn new(seed: u64, bug: Option<ClusterBug>, trace: Trace) -> Self {
        let mut rng = Rng::new(seed ^ 0xc1u64.rotate_left(56));
        let faults = Blows::of(&mut rng);
        let mut style = Style::of(&mut rng);
        style.queues.truncate(2);
        style.fits = false;
        style.bounds = Bounds::default();
        style.work_ns = rng.range(4_000, 7_000) * MS;
        style.pause_ns = rng.range(20, 120) * MS;
        style.wait_ms = 400;
        style.roles.truncate(6);
        style.roles.extend([Role::Producer, Role::Consumer, Role::Looker]);
        style.far = style.far.min(2);
        style.large = 0;
        let skewed = rng.percent(40);
        if skewed {
            style.instants = 0;
        }
        let mut facts = ClusterFacts::default();
        let mut machine = |place| {
            let skew_ms = if skewed { rng.range(0, 7_200_000).cast_signed() - 3_600_000 } else { 0 };
            facts.skewed += u64::from(skewed);
            Machine { clock: MachineClock::new(place, skew_ms), process: None, still_until: 0 }
        };
        let machines = (0..NODES).map(&mut machine).collect();
        let of_world = match bug {
            Some(ClusterBug(Inside::World(bug))) => Some(bug),
            Some(ClusterBug(Inside::Code(_))) | None => None,
        };
        let sets_back = faults.set_back();
        let (slow, slow_store) = (rng.range(1, 12), rng.range(1, 20));
        let recipe = Recipe {
            world: World::new(rng.bits(), SHARDS, slow_store, of_world, sets_back),
            net: Net::new(rng.bits(), slow),
            // Each shard has a part of its node's limits.
            policy: Policy {
                near_messages: style.policy.near_messages * 4,
                ready_messages: style.policy.ready_messages * 4,
                ..style.policy.clone()
            },
            settle_delay: Duration::from_millis(rng.range(100, 800)),
            log: LogOptions { clock_ms: NOTED_MS, ..style.options.clone() },
        };
        let people = style.roles.iter().map(|&role| Person { role, flight: None }).collect();
        Cluster {
            seed,
            bug,
            rng,
            style,
            faults,
            recipe,
            machines,
            now: 0,
            plan: BTreeMap::new(),
            planned: 0,
            events: Vec::new(),
            ops: 0,
            flights: 0,
            people,
            gossip: Gossip::default(),
            survey: Survey::default(),
            owners: Owners::default(),
            stage: Stage::Work,
            struck: false,
            ready_at: None,
            failing_over: false,
            done: false,
            facts,
            broken: None,
            trace: (trace == Trace::Yes).then(String::new),
        }
    }

    fn go(&mut self) {
        self.fault(Fault::Started);
        for place in 0..NODES {
            let late = self.rng.below(300) * MS;
            self.at(late, Action::Start(place));
        }
        for i in 0..self.people.len() {
            self.at(MS, Action::Wake(i));
        }
        self.at(self.style.work_ns, Action::Heal);
        self.plan_fault();
        let give_up = self.style.work_ns + PATIENCE_NS;
        while !self.done && self.broken.is_none() {
            self.tick();
            if self.now > give_up {
                self.broken = Some(format!("not drained after {} s", PATIENCE_NS / MS / 1_000));
            }
        }
    }

    /// Lets a few ms pass.
    fn tick(&mut self) {
        let most = if self.stage == Stage::Work { 8 } else { 20 };
        self.now += self.rng.range(1, most) * MS;
        for machine in &self.machines {
            machine.clock.set(self.now);
        }
        let (now, machines) = (self.now, &self.machines);
        self.recipe.world.advance(now, &|place: usize| now < machines[place].still_until);
        self.broken = self.broken.take().or(self.recipe.world.broken());
        let up =
            |place: usize| machines[place].process.as_ref().is_some_and(|process| process.up().is_some());
        for (to, end) in self.recipe.net.advance(now, up) {
            if let Some(process) = &machines[to].process {
                process.accept(end);
            }
        }
        let first = usize::try_from(self.rng.below(NODES as u64)).unwrap_or(0);
        for n in 0..NODES {
            self.step((first + n) % NODES);
        }
        while let Some(entry) = self.plan.first_entry()
            && entry.key().0 <= self.now
        {
            let action = entry.remove();
            if let Some(trace) = &mut self.trace {
                let _ = writeln!(trace, "{} {action:?}", self.now); // a string takes everything
            }
            self.act(action);
        }
        self.poll();
        self.look_over();
        if self.survey.is_ready() {
            self.ready_at.get_or_insert(self.now);
            self.look_at_owners();
        }
        if self.failing_over && !self.recipe.world.is_set_back() {
            self.failing_over = false;
            self.fault(Fault::FailedOver);
        }
        if self.struck && !self.failing_over && self.is_whole() {
            self.struck = false;
            self.fault(Fault::Healed);
        }
    }

    fn step(&mut self, place: usize) {
        let machine = &mut self.machines[place];
        if self.now < machine.still_until {
            return;
        }
        let Some(process) = &mut machine.process else { return };
        match process.step(&self.recipe, self.now) {
            Fate::Runs => return,
            Fate::Left => self.facts.leaves += 1,
            Fate::NotJoined => {}
            Fate::Ended(why) => self.broken = Some(format!("node {place} ended by itself: {why}")),
        }
        self.gone(place);
        self.soon(20, 800, Action::Start(place));
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Start(place) => {
                let machine = &mut self.machines[place];
                if machine.process.is_none() {
                    let seed = self.rng.bits();
                    let process = Process::start(&self.recipe, place, &machine.clock, seed, self.now);
                    machine.process = Some(process);
                }
            }
            Action::Wake(i) => self.wake(i),
            Action::Arrive { client, flight } => self.arrive(client, flight),
            Action::Answer { client, flight } => self.answer(client, flight),
            Action::Fault => self.do_fault(),
            Action::Mend(kind) => self.mend(kind),
            Action::Heal => self.heal(),
            Action::Look => self.begin_survey(),
        }
    }

    fn at(&mut self, time: u64, action: Action) {
        self.plan.insert((time, self.planned), action);
        self.planned += 1;
    }

    fn soon(&mut self, from_ms: u64, to_ms: u64, action: Action) {
        let time = self.now + self.rng.range(from_ms, to_ms) * MS;
        self.at(time, action);
    }

    fn wall_ms(&self) -> u64 {
        BEGIN_MS + self.now / MS
    }

    fn note(&mut self, client: usize, what: What) {
        let at = Stamp { mono_ns: self.now, wall_ms: self.wall_ms() };
        self.events.push(Event { at, client: u32::try_from(client).unwrap_or(u32::MAX), what });
    }

    fn fault(&mut self, fault: Fault) {
        self.note(0, What::Fault(fault));
    }

    /// One of the nodes that accept requests.
    fn some_node(&mut self) -> Option<usize> {
        let serving = |place: &usize| {
            self.machines[*place].process.as_ref().is_some_and(|process| process.serving().is_some())
        };
        let all: Vec<usize> = (0..NODES).filter(serving).collect();
        self.rng.pick(&all).copied()
    }

    fn wake(&mut self, i: usize) {
        if self.people[i].flight.is_some() || self.stage == Stage::Stop {
            return;
        }
        let Some(place) = self.some_node().filter(|_| self.survey.is_ready()) else {
            return self.soon(5, 40, Action::Wake(i));
        };
        let times = (self.now, self.wall_ms());
        let calls = self.gossip.next(self.people[i].role, self.stage, &self.style, times, &mut self.rng);
        if calls.is_empty() {
            return self.soon(20, 100, Action::Wake(i));
        }
        let mut ops = Vec::new();
        for call in calls {
            let op = OpId(self.ops);
            self.ops += 1;
            self.note(i + 1, What::Invoke { op, call: call.clone() });
            ops.push((op, call));
        }
        self.flights += 1;
        let flight = self.flights;
        self.people[i].flight = Some(Flight { no: flight, place, ops, state: FlightState::Out });
        self.soon(1, 4, Action::Arrive { client: i, flight });
    }

    fn arrive(&mut self, i: usize, no: u64) {
        let Some(flight) = self.people[i].flight.as_mut().filter(|flight| flight.no == no) else { return };
        let process = self.machines[flight.place].process.as_ref();
        let Some((process, client)) = process.and_then(|p| Some((p, p.up()?.client.clone()))) else { return };
        let promise: Promise<Answers> = match &flight.ops[..] {
            [(_, Call::Reserve { queue, max, wait_ms, lease_ms })] => {
                let demand = Reserve {
                    max: usize::try_from(*max).unwrap_or(usize::MAX),
                    wait_ms: *wait_ms,
                    lease_ms: *lease_ms,
                    ..Reserve::new(ask::queue(queue))
                };
                Box::pin(async move { vec![client.reserve(demand).await.map(Reply::Reserve)] })
            }
            ops => {
                let asked = ops.iter().map(|(_, call)| ask::op(call)).collect();
                let n = ops.len();
                process.within(|| -> Promise<Answers> {
                    match client.submit(asked) {
                        Ok(pending) => Box::pin(pending),
                        Err(error) => Box::pin(async move { vec![Err(error); n] }),
                    }
                })
            }
        };
        flight.state = FlightState::There(promise);
    }

    /// Checks which answers have arrived.
    fn poll(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        let mut back = Vec::new();
        for (i, person) in self.people.iter_mut().enumerate() {
            let Some(flight) = &mut person.flight else { continue };
            let machine = &self.machines[flight.place];
            if self.now < machine.still_until {
                continue;
            }
            if let FlightState::There(promise) = &mut flight.state
                && let Some(process) = &machine.process
                && let Poll::Ready(answers) = process.within(|| promise.as_mut().poll(&mut context))
            {
                flight.state = FlightState::Back(answers);
                back.push((i, flight.no));
            }
        }
        for (client, flight) in back {
            self.soon(1, 4, Action::Answer { client, flight });
        }
    }

    fn answer(&mut self, i: usize, no: u64) {
        let Some(flight) = self.people[i].flight.take_if(|flight| flight.no == no) else { return };
        let FlightState::Back(answers) = flight.state else { return };
        for ((op, call), reply) in flight.ops.into_iter().zip(answers) {
            let what = ask::heard(op, &call, reply);
            if let What::Info { .. } = &what {
                self.facts.unknown += 1;
                self.facts.unknown_of_living += 1;
            }
            self.gossip.hear(&call, &what, self.stage, self.now, &mut self.rng);
            self.note(i + 1, what);
        }
        let pause = self.rng.range(MS, self.style.pause_ns);
        let pause = if self.stage == Stage::Work { pause } else { pause.min(20 * MS) };
        self.at(self.now + pause, Action::Wake(i));
    }

    /// Handles the end of a process: requests without an answer will get none.
    fn gone(&mut self, place: usize) {
        let mut lost = VecDeque::new();
        for (i, person) in self.people.iter_mut().enumerate() {
            if let Some(flight) = person.flight.take_if(|flight| flight.place == place) {
                lost.extend(flight.ops.into_iter().map(|op| (i, op)));
            }
        }
        self.survey.forget(place);
        self.count(place);
        self.machines[place].process = None;
        self.machines[place].still_until = 0;
        let mut woken = None;
        for (i, (op, call)) in lost {
            let what = What::Info { op, why: "the connection broke".to_owned() };
            self.facts.unknown += 1;
            self.gossip.hear(&call, &what, self.stage, self.now, &mut self.rng);
            self.note(i + 1, what);
            if woken != Some(i) {
                woken = Some(i);
                self.soon(5, 20, Action::Wake(i));
            }
        }
    }

    fn count(&mut self, place: usize) {
        if let Some(up) = self.machines[place].process.as_ref().and_then(Process::up) {
            self.facts.forwards += up.fleet.forwards().iter().map(|(_, n)| n).sum::<u64>();
            self.facts.sent_again += up.fleet.figures()[3].1;
        }
    }

    fn outcome(mut self) -> ClusterOutcome {
        for place in 0..NODES {
            self.count(place);
        }
        self.facts.bytes_lost = self.recipe.net.lost();
        self.facts.add(&self.recipe.world.facts());
        let title = format!("simulation of a cluster, seed {}, bug {:?}", self.seed, self.bug);
        ClusterOutcome {
            history: History { title, rules: OF_CLUSTER, events: std::mem::take(&mut self.events) },
            broken: self.broken.take(),
            facts: self.facts,
            trace: self.trace.take().unwrap_or_default(),
        }
    }
}
