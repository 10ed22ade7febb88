//! The real engine, driver and log store under a simulated clock, disk and scheduler, from one seed.
//!
//! ```text
//!   clients ──calls──▶ network ──▶ Client ──▶ inbox ──▶ Runner::turn ──▶ LogStore ──▶ SimDisk
//!      ▲                                                                   ▲
//!      └── answers ◀── network ◀── futures                     Hands: sync, prepare, flush, merge, load
//! ```
//!
//! Everything runs on one thread. The scheduler is a list of things to do, each at a time; how long each takes, who
//! comes first, what breaks and when is drawn from the seed. So the same seed gives the same run, call by call. What
//! the clients see becomes a history, which the judge looks at.

mod ask;
mod bounds;
mod clients;
mod clock;
mod cluster;
mod facts;
mod faults;
mod manager;
mod outbox;
mod process;
mod store;
mod style;

use std::any::Any;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt::Write as _;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

use duewheel::CallError;
use duewheel_core::engine::Reply;
use duewheel_core::mutant::{self, Mutant};
use duewheel_judge::history::{
    Answer, Call, Event, Fault, History, MsgId, OpId, Refusal, Stamp, Target, What,
};
use duewheel_judge::rng::Rng;
use duewheel_shard::client::Reserve;
use duewheel_sim_disk::{Lie, SimDisk};
use duewheel_store_log::verify_on;

use clients::{Gossip, Role, Stage};
use clock::{SimClock, Source};
pub use cluster::{
    CLUSTER_BUGS, ClusterBug, ClusterFacts, ClusterOutcome, MEDIUM_BUGS, run_cluster, suite_of_media,
};
pub use facts::Facts;
use faults::Down;
use manager::Manager;
use outbox::Outbox;
use process::{HANDS, Process};
use store::{Shared, StoreBug, lock};
use style::{RULES, Style};

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
/// Not drained by then: something hangs.
const PATIENCE_NS: u64 = 240_000 * MS;
/// A woken thread of the driver takes its turn within this time.
const MOST_WAKING_US: u64 = 60;
/// A request that is not answered after so many rounds of the driver never is. Those of clean runs take some hundreds at most:
/// while a sync takes long, a few each millisecond.
const MOST_ROUNDS: u64 = 2_000;

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
pub const BUGS: [(&str, Bug); 37] = [
    ("ack before fsync", Bug(Inside::Code(Mutant::AckBeforeSync))),
    ("skip every 50th fsync", Bug(Inside::Disk(Lie::SkipSync(50)))),
    ("no directory sync", Bug(Inside::Disk(Lie::NoDirSync))),
    ("retry after EIO", Bug(Inside::Disk(Lie::RetrySync))),
    ("ignore a short write", Bug(Inside::Disk(Lie::ShortWrite))),
    ("due rounded down", Bug(Inside::Code(Mutant::DueRoundedDown))),
    ("one long sleep", Bug(Inside::Code(Mutant::OneLongSleep))),
    ("a lent turn by an old clock", Bug(Inside::Code(Mutant::LentTurnStale))),
    ("leases on the wall clock", Bug(Inside::WallLeases)),
    ("token reused after a restart", Bug(Inside::Store(StoreBug::EpochKept))),
    ("ack without a token check", Bug(Inside::Code(Mutant::TokenUnchecked))),
    ("the last token lost", Bug(Inside::Code(Mutant::LastTokenLost))),
    ("attempts counted at nack", Bug(Inside::Code(Mutant::AttemptAtNack))),
    ("cancel in two steps", Bug(Inside::CancelInTwoSteps)),
    ("key not persisted", Bug(Inside::Store(StoreBug::KeysDropped))),
    ("nack dropped when full", Bug(Inside::Code(Mutant::NackDroppedWhenFull))),
    ("replay sets due = start + delay", Bug(Inside::Store(StoreBug::DelayFromStart))),
    ("a far turn not loaded", Bug(Inside::Store(StoreBug::PagesLost))),
    ("a merge drops the newest", Bug(Inside::Code(Mutant::MergeDropsNewest))),
    ("recovered tail not synced again", Bug(Inside::TailNotSynced)),
    ("half-applied enqueue on a full disk", Bug(Inside::Code(Mutant::HalfApplied))),
    ("a group above the agreed size", Bug(Inside::Code(Mutant::GroupTooLarge))),
    ("books folded before success", Bug(Inside::Code(Mutant::BooksFolded))),
    ("reserve without indexes", Bug(Inside::Code(Mutant::ReserveWithoutIndexes))),
    ("a window by number of queues", Bug(Inside::Code(Mutant::WindowByQueues))),
    ("expired granted under drop", Bug(Inside::Code(Mutant::ExpiredGranted))),
    ("expiry counted from enqueue", Bug(Inside::Code(Mutant::ExpiryFromEnqueue))),
    ("retry moves the expiry", Bug(Inside::Code(Mutant::RetryMovesExpiry))),
    ("rate forgets the burst limit", Bug(Inside::Code(Mutant::BurstUnlimited))),
    ("concurrency off by one after restart", Bug(Inside::Code(Mutant::OneLeaseMore))),
    ("a superseded message returns", Bug(Inside::Code(Mutant::SupersededReturns))),
    ("only enqueues of an outbox recorded", Bug(Inside::Code(Mutant::OnlyEnqueuesRecorded))),
    ("cut before the manifest", Bug(Inside::Code(Mutant::CutBeforeManifest))),
    ("a position before its sync", Bug(Inside::Code(Mutant::ProvenUnsynced))),
    ("a look-up as of its asking", Bug(Inside::Code(Mutant::LookUpAsOfAsking))),
    ("a call waits for a later one", Bug(Inside::Code(Mutant::WaitsForLater))),
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
        sim.broken.get_or_insert(said_by(&*panic));
    }
    mutant::choose(None);
    sim.outcome()
}

/// A panic, in words.
fn said_by(panic: &(dyn Any + Send)) -> String {
    let said = panic.downcast_ref::<String>().map(String::as_str);
    let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    format!("panicked: {said}")
}

#[derive(Debug)]
enum Action {
    Turn {
        reign: u64,
        no: u64,
    },
    Hand {
        reign: u64,
        hand: usize,
    },
    Wake(usize),
    Arrive {
        client: usize,
        flight: u64,
    },
    Answer {
        client: usize,
        flight: u64,
    },
    LateCancel {
        id: MsgId,
    },
    Fault,
    Start,
    Calm,
    /// Behind syncs that failed.
    PowerLoss,
    Room,
    /// The wall clock goes at its own rate again.
    SlewEnds,
    /// What it was slewed by is written down.
    SlewGoesOn,
    /// Flushes can be written again.
    TroubleEnds,
    Census,
    Drain,
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
    /// The number of the round before which it arrived.
    round: u64,
}

impl Flight {
    /// Whether the driver answers it as soon as it can. A reserve may wait for a message.
    fn is_due(&self) -> bool {
        matches!(self.state, FlightState::There(_)) && !matches!(self.ops[..], [(_, Call::Reserve { .. })])
    }
}

enum FlightState {
    /// On its way.
    Out,
    There(Promise),
    /// Its answer is on its way.
    Back(Answers),
}

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
    /// Rounds of the driver.
    rounds: u64,
    reign: u64,
    process: Option<Process>,
    people: Vec<Person>,
    gossip: Gossip,
    manager: Manager,
    outbox: Outbox,
    stage: Stage,
    done: bool,
    /// The machine is to stop in the middle of a call, like this.
    armed: Option<Down>,
    /// The process stands still until then.
    still_until: u64,
    /// Millionths by which the wall clock is slewed, and by how many ns it was ahead when that was written down last.
    slew: (i64, i128),
    facts: Facts,
    /// Groups that the store has got, of at least a quarter of the size that it agrees to.
    large_groups: Arc<AtomicU64>,
    broken: Option<String>,
    trace: Option<String>,
}

impl Sim {
    fn new(seed: u64, bug: Option<Bug>, trace: Trace) -> Self {
        let mut rng = Rng::new(seed ^ 0x5eed_0000_0000_0000);
        let style = Style::of(&mut rng);
        let disk = SimDisk::new(rng.bits());
        let cold = [0, 2, 5][usize::try_from(rng.below(3)).unwrap_or(0)];
        // What many requests name is slow for all of them.
        disk.cold(if style.shared > 0 { cold.clamp(1, 2) } else { cold });
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
            rounds: 0,
            reign: 0,
            process: None,
            people,
            gossip: Gossip::default(),
            manager: Manager::default(),
            outbox: Outbox::new(seed),
            stage: Stage::Work,
            done: false,
            armed: None,
            still_until: 0,
            slew: (0, 0),
            facts: Facts::default(),
            large_groups: Arc::default(),
            broken: None,
            trace: (trace == Trace::Yes).then(String::new),
        }
    }

    fn go(&mut self) {
        self.at(0, Action::Start);
        for i in 0..self.people.len() {
            self.at(MS, Action::Wake(i));
        }
        self.at(MS, Action::Drain);
        self.at(self.style.work_ns, Action::Heal);
        for part in if self.style.fits { &[1][..] } else { &[30, 60, 90] } {
            self.at(self.style.work_ns / 100 * *part, Action::Census);
        }
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
            Ok(report) if report.messages != self.manager.shown() + self.outbox.messages() => {
                let (shown, outbox) = (self.manager.shown(), self.outbox.messages());
                let what =
                    format!("{} messages are in the folder, {shown} and {outbox} show", report.messages);
                self.broken = Some(what);
            }
            Ok(_) => {}
            Err(error) => self.broken = Some(format!("the folder cannot be read: {error}")),
        }
    }

    fn outcome(mut self) -> Outcome {
        self.facts.disk = self.disk.seen();
        self.facts.repeats = self.gossip.repeats();
        self.facts.replayed_rows = self.outbox.replayed();
        self.facts.large_groups += self.large_groups.load(Relaxed);
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

    fn next_op(&mut self) -> OpId {
        self.ops += 1;
        OpId(self.ops - 1)
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
            Action::PowerLoss => self.lose_power(),
            Action::Room => self.disk.set_free(u64::MAX),
            Action::SlewEnds => self.slew(0),
            Action::SlewGoesOn => self.slew_goes_on(),
            Action::TroubleEnds => self.disk.trouble(None),
            Action::Census => self.take_census(),
            Action::Drain => self.drain_outbox(),
            Action::Resume => self.fault(Fault::Stalled),
            Action::Heal => self.heal(),
            Action::Look => self.look(),
        }
        self.notice();
    }

    /// What follows from any action: the machine may have stopped, the runner may be awake, answers may be there.
    fn notice(&mut self) {
        self.lend();
        if self.disk.has_stopped() {
            let down = self.armed.take().unwrap_or(Down::Kill);
            self.facts.in_a_call += 1;
            return self.crash(down);
        }
        let Some(process) = &self.process else { return };
        if let (Some(runner), Some(nap)) = (&process.runner, process.nap)
            && runner.is_woken(nap)
        {
            let at = self.now + self.rng.range(2, MOST_WAKING_US) * US;
            self.plan_turn(at);
        }
        self.poll();
        self.manage();
        self.hear_outbox();
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
            let op = self.next_op();
            self.note(i + 1, What::Invoke { op, call: call.clone() });
            if let Call::Enqueue(e) = &call {
                self.facts.at_the_limit += u64::from(e.body.len == style::MAX_BODY as u64);
            }
            ops.push((op, call));
        }
        self.facts.large_calls += u64::from(ops.len() > self.style.policy.max_batch_ops);
        self.flights += 1;
        let flight = self.flights;
        self.people[i].flight = Some(Flight { no: flight, ops, state: FlightState::Out, round: 0 });
        self.soon(20, 1_500, Action::Arrive { client: i, flight });
    }

    fn arrive(&mut self, i: usize, no: u64) {
        let Some(client) = self.serving() else { return };
        let two_steps = self.bug == Some(Bug(Inside::CancelInTwoSteps));
        let Some(flight) = self.people[i].flight.as_mut().filter(|flight| flight.no == no) else { return };
        let promise: Promise = match &flight.ops[..] {
            [(_, Call::Reserve { queue, max, wait_ms, lease_ms })] => {
                let demand = Reserve {
                    max: usize::try_from(*max).unwrap_or(usize::MAX),
                    wait_ms: *wait_ms,
                    lease_ms: *lease_ms,
                    ..Reserve::new(ask::queue(queue))
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
        flight.round = self.rounds;
    }

    /// The driver has done a round: each request ends within a bounded number of them.
    fn count_round(&mut self) {
        self.rounds += 1;
        let due =
            self.people.iter().filter_map(|person| person.flight.as_ref()).filter(|flight| flight.is_due());
        let Some(first) = due.min_by_key(|flight| flight.round) else { return };
        let waited = self.rounds - first.round;
        self.facts.most_rounds = self.facts.most_rounds.max(waited);
        if waited > MOST_ROUNDS {
            let ops = first.ops.len();
            self.broken = Some(format!("not answered: {ops} operations wait after {waited} rounds"));
        }
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
}
