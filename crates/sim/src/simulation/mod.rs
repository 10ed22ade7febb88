//! The real engine, driver and log store under a simulated clock, disk and scheduler, from one seed.
//!
//! ```text
//!   clients ──calls──▶ network ──▶ Client ──▶ inbox ──▶ Runner::turn ──▶ LogStore ──▶ SimDisk
//!      ▲                                                                   ▲
//!      └── answers ◀── network ◀── futures                     Hands: sync, prepare, flush, merge, load
//! ```
//!
//! Everything runs on one thread. The scheduler is a list of things to do, each at a time; how long each takes, who comes first, what
//! breaks and when is drawn from the seed. So the same seed gives the same run, call by call. What the clients see becomes a
//! history, which the judge looks at.

mod ask;
mod clients;
mod clock;
mod faults;
mod manager;
mod store;
mod style;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt::Write as _;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};

use duewheel::{CallError, Client, Demand, End, Nap, Runner, StartError, Turn};
use duewheel_core::SessionId;
use duewheel_core::engine::{Config, Reply};
use duewheel_core::mutant::{self, Mutant};
use duewheel_core::store::ErrorKind;
use duewheel_judge::history::{
    Answer, Call, Event, Fault, History, Moment, MsgId, OpId, Refusal, Stamp, Target, What,
};
use duewheel_judge::rng::Rng;
use duewheel_sim_disk::{Lie, Seen, SimDisk};
use duewheel_store_log::{Hands, LogStore, Worked, verify_on};

use clients::{Gossip, Role, Stage};
use clock::{SimClock, Source};
use faults::Down;
use manager::Manager;
use store::{Shared, StoreBug, lock};
use style::{RULES, Style};

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
/// Not drained by then: something hangs.
const PATIENCE_NS: u64 = 240_000 * MS;

/// A bug that the simulation can have, to test the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bug(Inside);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inside {
    Code(Mutant),
    Disk(Lie),
    Store(StoreBug),
    /// Leases and delays follow the wall clock.
    WallLeases,
    /// A cancel answers first and removes a little later.
    CancelInTwoSteps,
    /// What a start finds at the end of the journal is not synced again.
    TailNotSynced,
}

/// All bugs, by name.
pub const BUGS: [(&str, Bug); 20] = [
    ("ack before fsync", Bug(Inside::Code(Mutant::AckBeforeSync))),
    ("skip every 50th fsync", Bug(Inside::Disk(Lie::SkipSync(50)))),
    ("no directory sync", Bug(Inside::Disk(Lie::NoDirSync))),
    ("retry after EIO", Bug(Inside::Disk(Lie::RetrySync))),
    ("ignore a short write", Bug(Inside::Disk(Lie::ShortWrite))),
    ("due rounded down", Bug(Inside::Code(Mutant::DueRoundedDown))),
    ("one long sleep", Bug(Inside::Code(Mutant::OneLongSleep))),
    ("leases on the wall clock", Bug(Inside::WallLeases)),
    ("token reused after a restart", Bug(Inside::Store(StoreBug::EpochKept))),
    ("ack without a token check", Bug(Inside::Code(Mutant::TokenUnchecked))),
    ("attempts counted at nack", Bug(Inside::Code(Mutant::AttemptAtNack))),
    ("cancel in two steps", Bug(Inside::CancelInTwoSteps)),
    ("key not persisted", Bug(Inside::Store(StoreBug::KeysDropped))),
    ("nack dropped when full", Bug(Inside::Code(Mutant::NackDroppedWhenFull))),
    ("replay sets due = start + delay", Bug(Inside::Store(StoreBug::DelayFromStart))),
    ("a far turn not loaded", Bug(Inside::Store(StoreBug::PagesLost))),
    ("a merge drops the newest", Bug(Inside::Code(Mutant::MergeDropsNewest))),
    ("recovered tail not synced again", Bug(Inside::TailNotSynced)),
    ("half-applied enqueue on a full disk", Bug(Inside::Code(Mutant::HalfApplied))),
    ("a panic swallowed in a background task", Bug(Inside::Code(Mutant::PanicSwallowed))),
];

/// What a run gave.
#[derive(Debug)]
pub struct Outcome {
    /// What the clients saw.
    pub history: History,
    /// What was broken besides: it did not start, did not end, or panicked.
    pub broken: Option<String>,
    /// What really happened.
    pub facts: Facts,
    /// Every step and every call to the disk, if it was asked for.
    pub trace: String,
}

/// What really happened in a run: one without faults proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Processes killed, and machines that lost their power.
    pub kills: u64,
    /// Power losses.
    pub power_losses: u64,
    /// Of both, in the middle of a call to the disk.
    pub in_a_call: u64,
    /// Of both, before it served.
    pub recovering: u64,
    /// Times the store failed and was opened again by the same process.
    pub reopened: u64,
    /// Starts that ended with an error, to be tried again.
    pub failed_starts: u64,
    /// Times the process stood still.
    pub pauses: u64,
    /// Steps of the wall clock.
    pub steps: u64,
    /// Times the disk was full for a while.
    pub full: u64,
    /// Enqueues refused because of that.
    pub refused_full: u64,
    /// Panics in background workers.
    pub panics: u64,
    /// Runs written, and merges done.
    pub flushes: u64,
    /// Merges done.
    pub merges: u64,
    /// What the disk has seen.
    pub disk: Seen,
}

impl Facts {
    /// Counts those of another run, too.
    pub fn add(&mut self, other: &Facts) {
        let Facts { kills, power_losses, in_a_call, recovering, reopened, failed_starts, pauses, .. } = other;
        let Facts { steps, full, refused_full, panics, flushes, merges, disk, .. } = other;
        self.kills += kills;
        self.power_losses += power_losses;
        self.in_a_call += in_a_call;
        self.recovering += recovering;
        self.reopened += reopened;
        self.failed_starts += failed_starts;
        self.pauses += pauses;
        self.steps += steps;
        self.full += full;
        self.refused_full += refused_full;
        self.panics += panics;
        self.flushes += flushes;
        self.merges += merges;
        self.disk.failed += disk.failed;
        self.disk.failed_syncs += disk.failed_syncs;
        self.disk.full += disk.full;
        self.disk.short += disk.short;
        self.disk.lost_bytes += disk.lost_bytes;
        self.disk.lost_names += disk.lost_names;
        self.disk.panics += disk.panics;
    }

    /// Whether so many runs have met every fault often enough; else what is missing.
    pub fn require(&self, runs: u64) -> Result<(), String> {
        let least = [
            ("kills", self.kills, runs),
            ("power losses", self.power_losses, runs / 2),
            ("ends in the middle of a call", self.in_a_call, runs / 2),
            ("ends of starts", self.recovering, runs / 5),
            ("stores opened again", self.reopened, runs / 5),
            ("failed starts", self.failed_starts, runs / 50),
            ("pauses", self.pauses, runs / 3),
            ("steps of the clock", self.steps, runs / 3),
            ("times the disk was full", self.full, runs / 5),
            ("enqueues refused by a full disk", self.refused_full, runs / 5),
            ("panics of workers", self.panics, runs / 20),
            ("flushes", self.flushes, runs),
            ("merges", self.merges, runs / 2),
            ("failed calls", self.disk.failed, runs / 2),
            ("failed syncs", self.disk.failed_syncs, runs / 20),
            ("short writes", self.disk.short, runs),
            ("bytes lost", self.disk.lost_bytes, runs * 1_000),
            ("names lost", self.disk.lost_names, runs / 10),
        ];
        let missing: Vec<String> = least
            .iter()
            .filter(|(_, seen, least)| seen < least)
            .map(|(what, seen, least)| format!("{what}: {seen} of at least {least}"))
            .collect();
        if missing.is_empty() { Ok(()) } else { Err(missing.join(", ")) }
    }
}

/// How much is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trace {
    /// The history alone.
    No,
    /// Every step and every call to the disk.
    Yes,
}

/// Runs a seed.
pub fn run(seed: u64, bug: Option<Bug>, trace: Trace) -> Outcome {
    mutant::choose(match bug {
        Some(Bug(Inside::Code(mutant))) => Some(mutant),
        _ => None,
    });
    let mut sim = Sim::new(seed, bug, trace);
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| sim.go())) {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        sim.broken.get_or_insert(format!("panicked: {said}"));
    }
    mutant::choose(None);
    sim.outcome()
}

#[derive(Debug)]
enum Action {
    Turn { reign: u64, no: u64 },
    Hand { reign: u64, hand: usize },
    Wake(usize),
    Arrive { client: usize, flight: u64 },
    Answer { client: usize, flight: u64 },
    LateCancel { id: MsgId },
    Fault,
    Start,
    Calm,
    Room,
    Resume,
    Heal,
    Look,
}

type Answers = Vec<Result<Reply, CallError>>;
type Promise = Pin<Box<dyn Future<Output = Answers>>>;

struct Person {
    role: Role,
    flight: Option<Flight>,
}

/// A request between its invocation and its answer.
struct Flight {
    no: u64,
    ops: Vec<(OpId, Call)>,
    state: FlightState,
}

enum FlightState {
    /// On its way.
    Out,
    There(Promise),
    /// Its answer is on its way.
    Back(Answers),
}

struct Process {
    reign: u64,
    runner: Option<Runner>,
    client: Client,
    handle: Shared,
    phase: Phase,
    nap: Option<Nap>,
    /// Which planned turn counts.
    turn: u64,
    turn_at: u64,
    /// Which hands have something planned.
    busy: [bool; HANDS.len()],
    /// Which hands are gone for good.
    gone: [bool; HANDS.len()],
    opens: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Opening,
    Serving,
    /// Its store has failed.
    Troubled,
}

type Hand = fn(&Hands) -> Worked;
const HANDS: [Hand; 5] = [Hands::sync, Hands::prepare, Hands::flush, Hands::merge, Hands::load];
const LOAD: usize = 4;

struct Sim {
    seed: u64,
    bug: Option<Bug>,
    rng: Rng,
    style: Style,
    clock: SimClock,
    disk: SimDisk,
    now: u64,
    plan: BinaryHeap<Reverse<(u64, u64)>>,
    actions: BTreeMap<u64, Action>,
    planned: u64,
    events: Vec<Event>,
    ops: u64,
    flights: u64,
    reign: u64,
    process: Option<Process>,
    people: Vec<Person>,
    gossip: Gossip,
    manager: Manager,
    stage: Stage,
    done: bool,
    /// The machine is to stop in the middle of a call, like this.
    armed: Option<Down>,
    /// The process stands still until then.
    still_until: u64,
    facts: Facts,
    broken: Option<String>,
    trace: Option<String>,
}

impl Sim {
    fn new(seed: u64, bug: Option<Bug>, trace: Trace) -> Self {
        let mut rng = Rng::new(seed ^ 0x5eed_0000_0000_0000);
        let style = Style::of(&mut rng);
        let disk = SimDisk::new(rng.bits());
        if let Some(Bug(Inside::Disk(lie))) = bug {
            disk.lie(Some(lie));
        }
        if trace == Trace::Yes {
            disk.start_trace();
        }
        let source = if bug == Some(Bug(Inside::WallLeases)) { Source::Wall } else { Source::Elapsed };
        let people = style.roles.iter().map(|&role| Person { role, flight: None }).collect();
        Sim {
            seed,
            bug,
            rng,
            style,
            clock: SimClock::new(source),
            disk,
            now: 0,
            plan: BinaryHeap::new(),
            actions: BTreeMap::new(),
            planned: 0,
            events: Vec::new(),
            ops: 0,
            flights: 0,
            reign: 0,
            process: None,
            people,
            gossip: Gossip::default(),
            manager: Manager::default(),
            stage: Stage::Work,
            done: false,
            armed: None,
            still_until: 0,
            facts: Facts::default(),
            broken: None,
            trace: (trace == Trace::Yes).then(String::new),
        }
    }

    fn go(&mut self) {
        self.at(0, Action::Start);
        for i in 0..self.people.len() {
            self.at(MS, Action::Wake(i));
        }
        self.at(self.style.work_ns, Action::Heal);
        self.plan_fault();
        let give_up = self.style.work_ns + PATIENCE_NS;
        while let Some(Reverse((time, n))) = self.plan.pop() {
            self.now = self.now.max(time);
            self.clock.set(self.now);
            let Some(action) = self.actions.remove(&n) else { continue };
            if let Some(trace) = &mut self.trace {
                let _ = writeln!(trace, "{} {action:?}", self.now); // a string takes everything
                trace.push_str(&self.disk.take_trace());
            }
            self.act(action);
            if self.done || self.broken.is_some() {
                break;
            }
            if self.now > give_up {
                self.broken = Some(format!("not drained after {} s", PATIENCE_NS / MS / 1_000));
            }
        }
        if self.broken.is_none() {
            self.inspect();
        }
    }

    /// The folder after the run.
    fn inspect(&mut self) {
        self.note_figures();
        self.process = None;
        self.people.clear();
        match verify_on(&self.disk) {
            Ok(report) if !report.problems.is_empty() => {
                self.broken = Some(format!("the folder is damaged: {:?}", report.problems));
            }
            Ok(report) if report.messages != self.manager.shown() => {
                let what =
                    format!("{} messages are in the folder, {} show", report.messages, self.manager.shown());
                self.broken = Some(what);
            }
            Ok(_) => {}
            Err(error) => self.broken = Some(format!("the folder cannot be read: {error}")),
        }
    }

    fn outcome(mut self) -> Outcome {
        self.facts.disk = self.disk.seen();
        let title = format!("simulation, seed {}, bug {:?}", self.seed, self.bug);
        let mut trace = self.trace.unwrap_or_default();
        trace.push_str(&self.disk.take_trace());
        Outcome {
            history: History { title, rules: RULES, events: self.events },
            broken: self.broken,
            facts: self.facts,
            trace,
        }
    }

    fn at(&mut self, time: u64, action: Action) {
        let n = self.planned;
        self.planned += 1;
        self.actions.insert(n, action);
        self.plan.push(Reverse((time, n)));
    }

    fn soon(&mut self, from_us: u64, to_us: u64, action: Action) {
        let time = self.now + self.rng.range(from_us, to_us) * US;
        self.at(time, action);
    }

    fn note(&mut self, client: usize, what: What) {
        let at = Stamp { mono_ns: self.now, wall_ms: self.clock.wall_ms() };
        self.events.push(Event { at, client: u32::try_from(client).unwrap_or(u32::MAX), what });
    }

    fn fault(&mut self, fault: Fault) {
        self.note(0, What::Fault(fault));
    }

    fn act(&mut self, action: Action) {
        let of_process = matches!(
            action,
            Action::Turn { .. } | Action::Hand { .. } | Action::Arrive { .. } | Action::Start
        );
        if of_process && self.now < self.still_until {
            let until = self.still_until;
            return self.at(until, action);
        }
        match action {
            Action::Start => self.start(),
            Action::Turn { reign, no } => self.turn(reign, no),
            Action::Hand { reign, hand } => self.hand(reign, hand),
            Action::Wake(i) => self.wake(i),
            Action::Arrive { client, flight } => self.arrive(client, flight),
            Action::Answer { client, flight } => self.answer(client, flight),
            Action::LateCancel { id } => {
                if let Some(client) = self.serving() {
                    let call = Call::Cancel(Target::Id(id));
                    drop(client.submit(vec![ask::op(&call)])); // as nobody waits for it
                }
            }
            Action::Fault => self.do_fault(),
            Action::Calm => self.calm(),
            Action::Room => self.disk.set_free(u64::MAX),
            Action::Resume => self.fault(Fault::Stalled),
            Action::Heal => self.heal(),
            Action::Look => self.look(),
        }
        self.notice();
    }

    /// What follows from any action: the machine may have stopped, the runner may be awake, answers may be there.
    fn notice(&mut self) {
        if self.disk.has_stopped() {
            let down = self.armed.take().unwrap_or(Down::Kill);
            self.facts.in_a_call += 1;
            return self.crash(down);
        }
        let Some(process) = &self.process else { return };
        if let (Some(runner), Some(nap)) = (&process.runner, process.nap)
            && runner.is_woken(nap)
        {
            let at = self.now + self.rng.range(2, 60) * US;
            self.plan_turn(at);
        }
        self.poll();
        self.manage();
    }

    fn serving(&self) -> Option<Client> {
        let process = self.process.as_ref()?;
        (process.phase != Phase::Opening).then(|| process.client.clone())
    }

    fn start(&mut self) {
        if self.process.is_some() {
            return;
        }
        self.reign += 1;
        self.arm_for_start();
        if self.bug == Some(Bug(Inside::TailNotSynced)) {
            self.disk.lie(Some(Lie::SkipSyncIn("journal")));
        }
        let handle = Shared::default();
        let (disk, options, shared) = (self.disk.clone(), self.style.options.clone(), Arc::clone(&handle));
        let bug = match self.bug {
            Some(Bug(Inside::Store(bug))) => Some(bug),
            _ => None,
        };
        let opener = Box::new(move |waker: duewheel_core::store::Waker| {
            let store = LogStore::open_on(Arc::new(disk.clone()), options.clone(), Arc::clone(&waker))?;
            Ok(store::gated(store, waker, &shared, bug))
        });
        let config = Config { policy: self.style.policy.clone(), seed: self.rng.bits(), ..Config::default() };
        match Runner::start(opener, config, Arc::new(self.clock.clone())) {
            Ok(runner) => {
                self.process = Some(Process {
                    reign: self.reign,
                    client: runner.client(),
                    runner: Some(runner),
                    handle,
                    phase: Phase::Opening,
                    nap: None,
                    turn: 0,
                    turn_at: u64::MAX,
                    busy: [false; HANDS.len()],
                    gone: [false; HANDS.len()],
                    opens: 1,
                });
                self.plan_turn(self.now);
            }
            Err(error) => self.not_started(&error),
        }
    }

    fn not_started(&mut self, error: &StartError) {
        if self.disk.has_stopped() {
            return; // it is noticed in a moment
        }
        self.facts.failed_starts += 1;
        match error {
            StartError::Store(error) if error.kind() == ErrorKind::Corrupt => {
                self.broken = Some(format!("it does not start: {error}"));
            }
            StartError::Policy(error) => self.broken = Some(format!("it does not start: {error}")),
            StartError::Store(_) | StartError::Thread(_) => {
                self.process = None;
                self.soon(20_000, 400_000, Action::Start);
            }
        }
    }

    /// A turn at that time, or before if one is planned.
    fn plan_turn(&mut self, at: u64) {
        let Some(process) = &mut self.process else { return };
        if process.turn_at <= at {
            return;
        }
        process.turn += 1;
        process.turn_at = at;
        let action = Action::Turn { reign: process.reign, no: process.turn };
        self.at(at, action);
    }

    fn turn(&mut self, reign: u64, no: u64) {
        let Some(process) = self.process.as_mut().filter(|p| p.reign == reign && p.turn == no) else {
            return;
        };
        process.turn_at = u64::MAX;
        let nap = process.nap.take();
        let Some(runner) = &mut process.runner else { return };
        if process.phase == Phase::Opening {
            match runner.opening() {
                Ok(None) => {
                    process.phase = Phase::Serving;
                    if self.bug == Some(Bug(Inside::TailNotSynced)) {
                        self.disk.lie(None);
                    }
                    self.fault(Fault::Started);
                    self.plan_turn(self.now);
                }
                Ok(Some(nap)) => {
                    let until = duewheel::NapFor::Gathering;
                    process.nap = Some(Nap { until, at_most: nap });
                    self.plan_turn(self.now + u64::try_from(nap.as_nanos()).unwrap_or(u64::MAX));
                }
                Err(error) => {
                    self.process = None;
                    self.not_started(&error);
                }
            }
            return self.plan_hands();
        }
        if let Some(nap) = nap {
            runner.woke(nap);
        }
        let turn = runner.turn();
        let serves = runner.is_serving();
        let was =
            std::mem::replace(&mut process.phase, if serves { Phase::Serving } else { Phase::Troubled });
        let opens = lock(&process.handle).opens;
        if opens > process.opens {
            process.opens = opens;
            process.busy = [false; HANDS.len()];
            process.gone = [false; HANDS.len()];
            self.facts.reopened += 1;
        }
        match turn {
            Turn::Again => {
                let at = self.now + self.rng.range(2, 200) * US;
                self.plan_turn(at);
            }
            Turn::Sleep(nap) => {
                process.nap = Some(nap);
                let at =
                    self.now.saturating_add(u64::try_from(nap.at_most.as_nanos()).unwrap_or(u64::MAX / 2));
                self.plan_turn(at);
            }
            Turn::Ended(end) => return self.ended(end),
        }
        if was == Phase::Troubled && serves {
            self.fault(Fault::Stalled);
        }
        self.plan_hands();
    }

    /// The driver has ended: so does the process.
    fn ended(&mut self, end: End) {
        if self.disk.has_stopped() {
            return;
        }
        if let Some(runner) = self.process.as_mut().and_then(|process| process.runner.take()) {
            runner.end(end);
        }
        self.poll();
        self.crash(Down::Kill);
    }

    fn plan_hands(&mut self) {
        for hand in 0..HANDS.len() {
            let Some(process) = &mut self.process else { return };
            if process.busy[hand] || process.gone[hand] {
                continue;
            }
            process.busy[hand] = true;
            let action = Action::Hand { reign: process.reign, hand };
            let most = match hand {
                0 => self.style.sync_ns / US,
                LOAD => 4_000,
                _ => 12_000,
            };
            self.soon(50, most, action);
        }
    }

    fn hand(&mut self, reign: u64, hand: usize) {
        let Some(process) = self.process.as_mut().filter(|p| p.reign == reign) else { return };
        process.busy[hand] = false;
        if process.gone[hand] {
            return;
        }
        let worked = self.work(hand);
        let Some(process) = &mut self.process else { return };
        let again = match worked {
            Some(Worked::Done) => {
                let handle = lock(&process.handle);
                if hand == LOAD {
                    handle.pages.fetch_add(1, Relaxed);
                    if let Some(waker) = &handle.waker {
                        waker();
                    }
                }
                (20, 3_000)
            }
            Some(Worked::Later) => (20_000, 60_000),
            Some(Worked::Nothing) | None => return,
        };
        process.busy[hand] = true;
        self.soon(again.0, again.1, Action::Hand { reign, hand });
    }

    /// A step of a worker; `None` if it has panicked.
    fn work(&mut self, hand: usize) -> Option<Worked> {
        let process = self.process.as_ref()?;
        let hands = lock(&process.handle).hands.clone()?;
        let worked = catch_unwind(AssertUnwindSafe(|| HANDS[hand](&hands)));
        if worked.is_err() {
            self.facts.panics += 1;
            if let Some(process) = &mut self.process {
                process.gone[hand] = true;
            }
        }
        worked.ok()
    }

    fn wake(&mut self, i: usize) {
        if self.people[i].flight.is_some() || self.stage == Stage::Stop {
            return;
        }
        if self.serving().is_none() || !self.manager.is_ready() {
            return self.soon(4_000, 20_000, Action::Wake(i));
        }
        let at = (self.now, self.clock.wall_ms());
        let role = self.people[i].role;
        let calls = self.gossip.next(role, self.stage, &self.style, at, &mut self.rng);
        if calls.is_empty() {
            // Something may be to be tried again later.
            return self.soon(20_000, 60_000, Action::Wake(i));
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
        self.people[i].flight = Some(Flight { no: flight, ops, state: FlightState::Out });
        self.soon(20, 1_500, Action::Arrive { client: i, flight });
    }

    fn arrive(&mut self, i: usize, no: u64) {
        let Some(client) = self.serving() else { return };
        let two_steps = self.bug == Some(Bug(Inside::CancelInTwoSteps));
        let Some(flight) = self.people[i].flight.as_mut().filter(|flight| flight.no == no) else { return };
        let promise: Promise = match &flight.ops[..] {
            [(_, Call::Reserve { queue, max, wait_ms, lease_ms })] => {
                let demand = Demand {
                    queues: vec![ask::queue(queue)],
                    max: usize::try_from(*max).unwrap_or(usize::MAX),
                    wait_ms: *wait_ms,
                    lease_ms: *lease_ms,
                    session: SessionId::NONE,
                    deadline_margin_ms: None,
                };
                Box::pin(async move { vec![client.reserve(demand).await.map(Reply::Reserve)] })
            }
            [(_, Call::Cancel(target))] if two_steps => {
                let look = ask::op(&Call::Get(target.clone()));
                Box::pin(async move { vec![client.call(look).await] })
            }
            ops => {
                let asked = ops.iter().map(|(_, call)| ask::op(call)).collect();
                let n = ops.len();
                Box::pin(async move {
                    match client.submit(asked) {
                        Ok(pending) => pending.await,
                        Err(error) => vec![Err(error); n],
                    }
                })
            }
        };
        flight.state = FlightState::There(promise);
    }

    /// Looks which answers are there.
    fn poll(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        let mut back = Vec::new();
        for (i, person) in self.people.iter_mut().enumerate() {
            if let Some(flight) = &mut person.flight
                && let FlightState::There(promise) = &mut flight.state
                && let Poll::Ready(answers) = promise.as_mut().poll(&mut context)
            {
                flight.state = FlightState::Back(answers);
                back.push((i, flight.no));
            }
        }
        for (client, flight) in back {
            self.soon(20, 2_000, Action::Answer { client, flight });
        }
    }

    fn answer(&mut self, i: usize, no: u64) {
        let Some(flight) = self.people[i].flight.take_if(|flight| flight.no == no) else { return };
        let FlightState::Back(answers) = flight.state else { return };
        for ((op, call), reply) in flight.ops.into_iter().zip(answers) {
            let mut what = ask::heard(op, &call, reply);
            if let (Call::Cancel(_), What::Ok { answer: Answer::Found(row), .. }) = (&call, &what) {
                let id = row.id;
                what = if row.state == duewheel_judge::history::State::Leased {
                    What::Fail { op, refusal: Refusal::Leased }
                } else {
                    self.soon(1_000, 60_000, Action::LateCancel { id });
                    What::Ok { op, answer: Answer::Cancelled(Some(id)) }
                };
            }
            self.facts.refused_full += u64::from(
                matches!(&what, What::Fail { refusal: Refusal::Other(why), .. } if why == "DiskFull"),
            );
            self.gossip.hear(&call, &what, self.stage, self.now, &mut self.rng);
            self.note(i + 1, what);
        }
        let pause = self.rng.range(10 * US, self.style.pause_ns);
        let pause = if self.stage == Stage::Work { pause } else { pause.min(5 * MS) };
        self.at(self.now + pause, Action::Wake(i));
    }

    /// The process is gone, and what it had not answered will never be.
    fn crash(&mut self, down: Down) {
        self.armed = None;
        self.still_until = 0;
        self.note_figures();
        if self.manager.forget() {
            self.soon(20_000, 40_000, Action::Look);
        }
        let mut lost = Vec::new();
        for (i, person) in self.people.iter_mut().enumerate() {
            if let Some(flight) = person.flight.take() {
                lost.extend(flight.ops.into_iter().map(|op| (i, op)));
            }
        }
        let process = self.process.take();
        let serving = process.as_ref().is_some_and(|process| process.phase != Phase::Opening);
        drop(process);
        self.facts.recovering += u64::from(!serving);
        self.go_down(down, if serving { Moment::Serving } else { Moment::Recovering });
        let mut woken = Vec::new();
        for (i, (op, call)) in lost {
            let what = What::Info { op, why: "the connection broke".to_owned() };
            self.gossip.hear(&call, &what, self.stage, self.now, &mut self.rng);
            self.note(i + 1, what);
            if woken.last() != Some(&i) {
                woken.push(i);
            }
        }
        for i in woken {
            self.soon(1_000, 20_000, Action::Wake(i));
        }
        let downtime = if self.rng.percent(70) { 50_000 } else { 1_500_000 };
        self.soon(100, downtime, Action::Start);
    }

    fn note_figures(&mut self) {
        let Some(process) = &self.process else { return };
        for (name, value) in process.client.store_figures() {
            match name {
                "flushes_total" => self.facts.flushes += value,
                "merges_total" => self.facts.merges += value,
                _ => {}
            }
        }
    }
}
