//! The wheel compared with other timer structures: insert, cancel, expire, and bytes for each timer.
//!
//! Every number comes from a process of its own, so that no structure inherits the memory of another, and is processor
//! time: all of them work on one thread and do not wait. All structures get the same due times in the same order, hold
//! a `u64` as the caller's value, and hand out due entries in the same steps of time.

use std::alloc::System;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet};
use std::hint::black_box;
use std::process::Command;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use clap::Parser;
use duewheel_judge::rng::Rng;
use duewheel_wheel::{Geometry, Handle, Wheel};
use hierarchical_hash_wheel_timer::wheels::Skip;
use hierarchical_hash_wheel_timer::wheels::cancellable::{
    CancellableTimerEntry, QuadWheelWithOverflow as CancellableQuadWheel,
};
use hierarchical_hash_wheel_timer::wheels::quad_wheel::{QuadWheelWithOverflow, no_prune};
use rustix::time::{ClockId, clock_gettime};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio::runtime::Runtime;
use tokio::time::Instant;
use tokio_util::time::{DelayQueue, delay_queue};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Compares the wheel with other timer structures.
#[derive(Debug, Parser)]
struct Args {
    /// One million timers only
    #[arg(long)]
    quick: bool,
    /// How many timers; may be given several times [default: 1000000 and 10000000]
    #[arg(long, value_name = "N")]
    timers: Vec<usize>,
    /// Due times are spread evenly over this many milliseconds
    #[arg(long, value_name = "MS", default_value_t = 3_600_000)]
    span: u64,
    /// Time goes on by this many milliseconds at once
    #[arg(long, value_name = "MS", default_value_t = 100)]
    step: u64,
    /// How many of a hundred timers are cancelled, in random order
    #[arg(long, value_name = "PERCENT", default_value_t = 90)]
    cancel: usize,
    /// Each number is the best of this many runs
    #[arg(long, value_name = "N", default_value_t = 5)]
    runs: usize,
    /// Seed of the due times
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only the contenders whose name contains this
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Measures one contender in this process (used by the comparison itself)
    #[arg(long, hide = true)]
    one: Option<String>,
}

fn main() {
    let args = Args::parse();
    if let Some(name) = &args.one {
        let contender = CONTENDERS.iter().find(|contender| contender.name == name).expect("known contender");
        println!("{}", (contender.measure)(&Settings::from(&args)).to_line());
        return;
    }
    println!("{}", duewheel_bench::machine::describe());
    println!(
        "settings due times even over {} ms, time in steps of {} ms, {} % cancelled, best of {} runs, seed {}",
        args.span, args.step, args.cancel, args.runs, args.seed
    );
    let sizes = match (args.timers.is_empty(), args.quick) {
        (false, _) => args.timers.clone(),
        (true, true) => vec![1_000_000],
        (true, false) => vec![1_000_000, 10_000_000],
    };
    for timers in sizes {
        compare(&args, timers);
    }
    println!(
        "\nbytes: allocated for each timer, besides the caller's value of 8; `left`: share of that memory still"
    );
    println!("allocated after cancelling. (×): against the wheel.");
    for contender in CONTENDERS {
        println!("{:<24} {}", contender.name, contender.note);
    }
}

fn compare(args: &Args, timers: usize) {
    let chosen: Vec<_> = CONTENDERS
        .iter()
        .filter(|contender| args.only.as_ref().is_none_or(|only| contender.name.contains(only.as_str())))
        .collect();
    // Round after round over all contenders, so that a disturbance does not hit only one of them.
    let mut results = vec![Vec::new(); chosen.len()];
    for _ in 0..args.runs {
        for (contender, results) in chosen.iter().zip(&mut results) {
            results.push(in_own_process(args, timers, contender.name));
        }
    }
    println!(
        "\n{timers} timers\n{:<24} {:>16} {:>16} {:>16} {:>14} {:>6}",
        "", "insert ns", "cancel ns", "expire ns", "bytes", "left"
    );
    let best: Vec<Numbers> = results.iter().map(|results| Numbers::best(results)).collect();
    let ours = &best[0];
    for (contender, numbers) in chosen.iter().zip(&best) {
        println!(
            "{:<24} {:>16} {:>16} {:>16} {:>14} {:>6}",
            contender.name,
            beside(numbers.insert, ours.insert),
            beside(numbers.cancel, ours.cancel),
            beside(numbers.expire, ours.expire),
            beside(numbers.bytes, ours.bytes),
            if numbers.left.is_nan() { "-".into() } else { format!("{:.0} %", numbers.left * 100.0) },
        );
    }
}

fn beside(number: f64, ours: f64) -> String {
    if number.is_nan() { "-".into() } else { format!("{number:.1} (×{:.1})", number / ours) }
}

fn in_own_process(args: &Args, timers: usize, name: &str) -> Numbers {
    let output = Command::new(std::env::current_exe().expect("path of this program"))
        .args(["--one", name])
        .args(["--timers", &timers.to_string()])
        .args(["--span", &args.span.to_string()])
        .args(["--step", &args.step.to_string()])
        .args(["--cancel", &args.cancel.to_string()])
        .args(["--seed", &args.seed.to_string()])
        .output()
        .expect("this program starts again");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Numbers::from_line(&String::from_utf8_lossy(&output.stdout))
}

/// The parameters of one measurement.
#[derive(Debug)]
struct Settings {
    timers: usize,
    span: u64,
    step: u64,
    cancel: usize,
    seed: u64,
}

impl From<&Args> for Settings {
    fn from(args: &Args) -> Self {
        let timers = args.timers.first().copied().unwrap_or(1_000_000);
        Self { timers, span: args.span, step: args.step, cancel: args.cancel, seed: args.seed }
    }
}

/// Nanoseconds for each operation, bytes for each timer, and the share of memory left after cancelling.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    insert: f64,
    cancel: f64,
    expire: f64,
    bytes: f64,
    left: f64,
}

impl Numbers {
    fn to_line(self) -> String {
        format!("{} {} {} {} {}", self.insert, self.cancel, self.expire, self.bytes, self.left)
    }

    fn from_line(line: &str) -> Self {
        let mut numbers = line.split_whitespace().map(|number| number.parse().expect("a number"));
        let mut next = || numbers.next().expect("five numbers");
        Self { insert: next(), cancel: next(), expire: next(), bytes: next(), left: next() }
    }

    /// The best of each: other load of the machine can only make a run slower.
    fn best(runs: &[Self]) -> Self {
        let least = |field: fn(&Self) -> f64| runs.iter().map(field).fold(f64::NAN, f64::min);
        Self {
            insert: least(|run| run.insert),
            cancel: least(|run| run.cancel),
            expire: least(|run| run.expire),
            bytes: least(|run| run.bytes),
            left: least(|run| run.left),
        }
    }
}

/// Fills the structure, and hands everything out; fills it again, and cancels.
fn measure<T: Timers>(settings: &Settings) -> Numbers {
    touch_memory(settings.timers * 200);
    let mut random = Rng::new(settings.seed);
    let dues: Vec<u64> = (0..settings.timers).map(|_| 1 + random.below(settings.span - 1)).collect();
    let before = allocated();
    let mut timers = T::new();
    let insert = nanoseconds(settings.timers, || {
        for (id, due) in dues.iter().enumerate() {
            black_box(timers.insert(*due, id as u64));
        }
    });
    let full = allocated() - before;

    let mut seen = 0;
    let mut sum = 0;
    let expire = nanoseconds(settings.timers, || {
        let mut now = 0;
        while now < settings.span {
            now = (now + settings.step).min(settings.span);
            seen += timers.expire(now, &mut sum);
        }
    });
    assert_eq!(seen, settings.timers, "everything comes out");
    assert_eq!(sum, (0..settings.timers as u64).sum::<u64>(), "each once");
    drop(timers);

    let (cancel, left) = if T::CANCELS {
        let mut keys = Vec::with_capacity(settings.timers);
        let before = allocated();
        let mut timers = T::new();
        keys.extend(dues.iter().enumerate().map(|(id, due)| timers.insert(*due, id as u64)));
        let full = allocated() - before;
        let cancelled = settings.timers * settings.cancel / 100;
        random.shuffle(&mut keys);
        let victims = &keys[..cancelled];
        let cancel = nanoseconds(cancelled, || {
            for key in victims {
                timers.cancel(key);
            }
        });
        (cancel, (allocated() - before) / full)
    } else {
        (f64::NAN, f64::NAN)
    };
    Numbers { insert, cancel, expire, bytes: full / settings.timers as f64 - 8.0, left }
}

/// On a virtual machine the first use of a page costs many times the later ones, and would affect only the contender
/// that happens to be first.
fn touch_memory(bytes: usize) {
    black_box(vec![1_u8; bytes]);
}

fn nanoseconds(operations: usize, work: impl FnOnce()) -> f64 {
    let start = processor_time();
    work();
    (processor_time() - start) / operations as f64
}

fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn allocated() -> f64 {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated as f64 - stats.bytes_deallocated as f64
}

/// A structure under its name.
struct Contender {
    name: &'static str,
    note: &'static str,
    measure: fn(&Settings) -> Numbers,
}

/// The wheel comes first: the others are compared with it.
const CONTENDERS: &[Contender] = &[
    Contender {
        name: "duewheel",
        note: "3600 slots of 1000 ms, at every size; out in the order of (due, tie)",
        measure: measure::<Ours>,
    },
    Contender {
        name: "BinaryHeap",
        note: "std; cannot cancel: cancelled ids are put into a HashSet and skipped when due",
        measure: measure::<Heap>,
    },
    Contender { name: "BTreeMap", note: "std; key (due, id)", measure: measure::<Tree> },
    Contender {
        name: "DelayQueue",
        note: "tokio-util, on tokio's paused clock; no order within a millisecond",
        measure: measure::<Tokio>,
    },
    Contender {
        name: "hash wheel, cancellable",
        note: "hierarchical_hash_wheel_timer, wheels::cancellable; ticks of 1 ms; no order within a tick",
        measure: measure::<CancellableHashWheel>,
    },
    Contender {
        name: "hash wheel, plain",
        note: "hierarchical_hash_wheel_timer, wheels::quad_wheel; cannot cancel",
        measure: measure::<HashWheel>,
    },
];

/// A timer's value is its id. Times are milliseconds from 0, and due times are at least 1.
trait Timers {
    type Key;
    const CANCELS: bool = true;

    fn new() -> Self;
    fn insert(&mut self, due: u64, id: u64) -> Self::Key;
    fn cancel(&mut self, key: &Self::Key);
    /// Takes out all entries that are due at `now`, adds up their values, and returns their number.
    fn expire(&mut self, now: u64, sum: &mut u64) -> usize;
}

struct Ours(Wheel<u64>);

impl Timers for Ours {
    type Key = Handle;

    fn new() -> Self {
        Self(Wheel::new(Geometry::default()))
    }

    fn insert(&mut self, due: u64, id: u64) -> Handle {
        self.0.insert(due, id, id)
    }

    fn cancel(&mut self, key: &Handle) {
        assert!(self.0.cancel(*key), "was there");
    }

    fn expire(&mut self, now: u64, sum: &mut u64) -> usize {
        self.0.expire(now, |_, _, value| *sum += value)
    }
}

struct Heap {
    heap: BinaryHeap<Reverse<(u64, u64, u64)>>,
    cancelled: HashSet<u64>,
}

impl Timers for Heap {
    type Key = u64;

    fn new() -> Self {
        Self { heap: BinaryHeap::new(), cancelled: HashSet::new() }
    }

    fn insert(&mut self, due: u64, id: u64) -> u64 {
        self.heap.push(Reverse((due, id, id)));
        id
    }

    fn cancel(&mut self, key: &u64) {
        self.cancelled.insert(*key);
    }

    fn expire(&mut self, now: u64, sum: &mut u64) -> usize {
        let mut count = 0;
        while self.heap.peek().is_some_and(|Reverse((due, ..))| *due <= now)
            && let Some(Reverse((_, id, value))) = self.heap.pop()
        {
            if self.cancelled.is_empty() || !self.cancelled.remove(&id) {
                *sum += value;
                count += 1;
            }
        }
        count
    }
}

struct Tree(BTreeMap<(u64, u64), u64>);

impl Timers for Tree {
    type Key = (u64, u64);

    fn new() -> Self {
        Self(BTreeMap::new())
    }

    fn insert(&mut self, due: u64, id: u64) -> (u64, u64) {
        self.0.insert((due, id), id);
        (due, id)
    }

    fn cancel(&mut self, key: &(u64, u64)) {
        self.0.remove(key).expect("was there");
    }

    fn expire(&mut self, now: u64, sum: &mut u64) -> usize {
        let mut count = 0;
        while let Some(first) = self.0.first_entry()
            && first.key().0 <= now
        {
            *sum += first.remove();
            count += 1;
        }
        count
    }
}

struct Tokio {
    queue: DelayQueue<u64>,
    start: Instant,
    now: u64,
    runtime: Runtime,
}

impl Timers for Tokio {
    type Key = delay_queue::Key;

    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let entered = runtime.enter();
        let (queue, start) = (DelayQueue::new(), Instant::now());
        drop(entered);
        Self { queue, start, now: 0, runtime }
    }

    fn insert(&mut self, due: u64, id: u64) -> delay_queue::Key {
        let _entered = self.runtime.enter();
        self.queue.insert_at(id, self.start + Duration::from_millis(due))
    }

    fn cancel(&mut self, key: &delay_queue::Key) {
        let _entered = self.runtime.enter();
        self.queue.remove(key);
    }

    fn expire(&mut self, now: u64, sum: &mut u64) -> usize {
        let step = Duration::from_millis(now - std::mem::replace(&mut self.now, now));
        let queue = &mut self.queue;
        let work = async {
            tokio::time::advance(step).await;
            let mut context = Context::from_waker(Waker::noop());
            let mut count = 0;
            while let Poll::Ready(Some(expired)) = queue.poll_expired(&mut context) {
                *sum += expired.into_inner();
                count += 1;
            }
            count
        };
        self.runtime.block_on(tokio::task::unconstrained(work))
    }
}

#[derive(Debug)]
struct Id(u64);

impl CancellableTimerEntry for Id {
    type Id = u64;

    fn id(&self) -> &u64 {
        &self.0
    }
}

struct CancellableHashWheel {
    wheel: CancellableQuadWheel<Id>,
    now: u64,
}

impl Timers for CancellableHashWheel {
    type Key = u64;

    fn new() -> Self {
        Self { wheel: CancellableQuadWheel::new(), now: 0 }
    }

    fn insert(&mut self, due: u64, id: u64) -> u64 {
        let delay = Duration::from_millis(due - self.now);
        self.wheel.insert_ref_with_delay(Rc::new(Id(id)), delay).expect("in the future");
        id
    }

    fn cancel(&mut self, key: &u64) {
        self.wheel.cancel(key).expect("was there");
    }

    fn expire(&mut self, now: u64, sum: &mut u64) -> usize {
        let mut count = 0;
        while self.now < now {
            self.now += 1;
            let due = self.wheel.tick();
            count += due.len();
            if due.is_empty() {
                let skip = skippable(self.wheel.can_skip(), now - self.now);
                self.wheel.skip(skip);
                self.now += u64::from(skip);
            }
            *sum += due.iter().map(|entry| entry.0).sum::<u64>();
        }
        count
    }
}

struct HashWheel {
    wheel: QuadWheelWithOverflow<u64>,
    now: u64,
}

impl Timers for HashWheel {
    type Key = ();
    const CANCELS: bool = false;

    fn new() -> Self {
        Self { wheel: QuadWheelWithOverflow::new(no_prune), now: 0 }
    }

    fn insert(&mut self, due: u64, id: u64) {
        let delay = Duration::from_millis(due - self.now);
        self.wheel.insert_with_delay(id, delay).expect("in the future");
    }

    fn cancel(&mut self, (): &()) {
        unreachable!("this wheel cannot cancel");
    }

    fn expire(&mut self, now: u64, sum: &mut u64) -> usize {
        let mut count = 0;
        while self.now < now {
            self.now += 1;
            let due = self.wheel.tick();
            count += due.len();
            if due.is_empty() {
                let skip = skippable(self.wheel.can_skip(), now - self.now);
                self.wheel.skip(skip);
                self.now += u64::from(skip);
            }
            *sum += due.iter().sum::<u64>();
        }
        count
    }
}

/// How many ticks the hash wheel may leave out, but not beyond `rest`.
fn skippable(skip: Skip, rest: u64) -> u32 {
    let rest = u32::try_from(rest).unwrap_or(u32::MAX);
    match skip {
        Skip::Empty => rest,
        Skip::Millis(millis) => millis.min(rest),
        Skip::None => 0,
    }
}
