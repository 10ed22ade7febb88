//! The style of a run, which its seed determines. Runs that differ in the features that they have find more bugs than
//! runs that have a little of everything (Groce et al., "Swarm Testing", ISSTA 2012).

use duewheel_core::message::MaxAttempts;
use duewheel_core::policy::{Backoff, Defaults, Policy};
use duewheel_judge::history::{Downtime, Rules};
use duewheel_judge::rng::Rng;
use duewheel_store_log::{Options, WorkMode};

use super::bounds::Bounds;
use super::clients::Role;

const MS: u64 = 1_000_000;

/// The style of a run.
#[derive(Clone, Debug)]
pub(super) struct Style {
    /// The time in ns during which there are faults, which is that of the work.
    pub(super) work_ns: u64,
    pub(super) roles: Vec<Role>,
    /// Longest pause of a client between two requests, in ns.
    pub(super) pause_ns: u64,
    /// Percent of reserves that do not wait.
    pub(super) polls: u64,
    /// Longest wait of a reserve, in ms.
    pub(super) wait_ms: u64,
    /// Mean time from one fault to the next, in ns; 0: none.
    pub(super) fault_ns: u64,
    /// The kinds of faults, one for each share.
    pub(super) faults: Vec<FaultKind>,
    /// The longest duration of a sync, in ns.
    pub(super) sync_ns: u64,
    /// The percentage of messages that are due in some minutes.
    pub(super) far: u64,
    /// The percentages of messages with a key, due at an instant, and in batches.
    pub(super) keyed: u64,
    pub(super) instants: u64,
    pub(super) batches: u64,
    pub(super) keys: u64,
    /// The percentage of the requests of changers that name many messages, which other requests name at the same time.
    pub(super) shared: u64,
    /// The percentage of messages whose body has the largest allowed size, or is one byte larger.
    pub(super) large: u64,
    /// The percentage of messages that are due at once.
    pub(super) at_once: u64,
    pub(super) queues: Vec<String>,
    /// What messages have of expiry and spread, and queues of limits.
    pub(super) bounds: Bounds,
    /// Whether all messages of the run fit into the memory for ready ones, up to [`FITTING`].
    pub(super) fits: bool,
    pub(super) policy: Policy,
    pub(super) options: Options,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FaultKind {
    Kill,
    PowerLoss,
    ClockStep,
    /// Forward by a minute or an hour.
    ClockForward,
    Pause,
    DiskErrors,
    FullDisk,
    WorkerPanic,
    /// A time server slews the wall clock.
    Slew,
    /// Files of flushes and merges cannot be written.
    FlushTrouble,
}

impl FaultKind {
    pub(super) const ALL: [FaultKind; 9] = [
        FaultKind::Kill,
        FaultKind::PowerLoss,
        FaultKind::ClockStep,
        FaultKind::Pause,
        FaultKind::DiskErrors,
        FaultKind::FullDisk,
        FaultKind::WorkerPanic,
        FaultKind::Slew,
        FaultKind::FlushTrouble,
    ];
}

/// The largest size of a body, in bytes.
pub(super) const MAX_BODY: usize = 2_000;
/// The number of ready messages in memory in runs in which all of them fit.
pub(super) const FITTING: usize = 1_000;
/// The size of a group that the store certainly accepts after it has reported room, in bytes.
pub(super) const AGREED_BYTES: u64 = 8 * 1024;

/// The promises to the clients of a run.
pub(super) const RULES: Rules = Rules {
    lease_ms: 300,
    max_attempts: 8,
    backoff_min_ms: 40,
    backoff_max_ms: 500,
    offer_ms: 2_000,
    slack_ms: 50,
    downtime: Downtime::OfBoot,
    ..Rules::USUAL
};

impl Style {
    pub(super) fn of(rng: &mut Rng) -> Self {
        let quiet = rng.percent(15);
        let mut faults: Vec<FaultKind> = FaultKind::ALL.into_iter().filter(|_| rng.percent(50)).collect();
        let clockwork = quiet && rng.percent(50);
        if clockwork {
            // The only fault is a clock that is stepped forward now and then: where the driver may sleep for long, this
            // shows whether it believes the clock and not its alarm.
            faults = vec![FaultKind::ClockForward];
        }
        if faults.is_empty() {
            faults.push(FaultKind::Kill);
        }
        let mut roles = vec![Role::Producer, Role::Consumer];
        if !quiet {
            for (role, most) in
                [(Role::Producer, 3), (Role::Changer, 3), (Role::Consumer, 3), (Role::Looker, 2)]
            {
                roles.extend((0..rng.below(most)).map(|_| role));
            }
        }
        let memory = usize::try_from(rng.range(8, 80)).unwrap_or(40);
        // Many queues with ready messages in each, and few consumers.
        let crowded = !quiet && rng.percent(20);
        let fits = crowded && rng.percent(75);
        let queues = match crowded {
            true if fits => 40,
            true => rng.range(12, 40),
            false => 2,
        };
        if fits {
            // Producers are faster than consumers.
            roles.extend([Role::Producer; 2]);
        }
        Style {
            // Where little happens, only its own alarm wakes the driver.
            work_ns: MS
                * match quiet {
                    true if clockwork => rng.range(60_000, 120_000),
                    true => rng.range(10_000, 30_000),
                    false => rng.range(2_000, 4_500),
                },
            pause_ns: MS
                * match quiet {
                    true if clockwork => rng.range(4_000, 12_000),
                    true => rng.range(1_000, 8_000),
                    false => rng.range(2, 30),
                },
            polls: if quiet { 5 } else { 40 },
            wait_ms: match quiet {
                true if clockwork => 30_000,
                true => 10_000,
                false => 400,
            },
            fault_ns: match rng.percent(4) {
                true => 0,
                false => {
                    rng.range(100, 700)
                        * MS
                        * if clockwork {
                            20
                        } else if quiet {
                            5
                        } else {
                            1
                        }
                }
            },
            faults,
            sync_ns: if rng.percent(20) { 60 * MS } else { 3 * MS },
            keyed: rng.below(80),
            instants: if quiet { 80 } else { rng.below(50) },
            far: if quiet { 60 } else { 2 },
            batches: rng.below(40),
            keys: rng.range(2, 13),
            large: if rng.percent(30) { rng.range(20, 90) } else { 0 },
            at_once: if crowded { 80 } else { 0 },
            queues: (0..queues).map(queue).collect(),
            fits,
            roles,
            policy: policy(memory, fits),
            options: Options {
                segment_bytes: rng.range(2, 5) * 8 * 1024,
                filled_at_start: 8 * 1024,
                journal_bytes: rng.range(10, 40) * 1024,
                journal_records: rng.range(100, 400),
                small_runs: 3,
                run_rows: rng.range(60, 400),
                readers: 1,
                max_group_bytes: AGREED_BYTES,
                workers: WorkMode::ByHand,
                ..Options::default()
            },
            bounds: Bounds::of(rng, fits || crowded),
            shared: if !quiet && rng.percent(25) { 40 } else { 0 },
        }
    }
}

/// The first two are those of the other tests.
fn queue(n: u64) -> String {
    match n {
        0 => "orders".to_owned(),
        1 => "sms/bulk".to_owned(),
        n => format!("crowd/{n}"),
    }
}

fn policy(memory: usize, fits: bool) -> Policy {
    Policy {
        max_body: MAX_BODY,
        max_group_bytes: MAX_BODY,
        wheel_slots: 60,
        wheel_tick_ms: 10,
        near_messages: if fits { FITTING } else { memory },
        ready_messages: if fits { FITTING } else { memory },
        least_window: 2,
        load_rows: memory / 4 + 2,
        max_batch_ops: 16,
        defaults: Defaults {
            lease_ms: RULES.lease_ms,
            max_attempts: MaxAttempts::new(8).unwrap_or(MaxAttempts::UNLIMITED),
            backoff: Backoff { min_ms: RULES.backoff_min_ms, max_ms: RULES.backoff_max_ms },
            // The wall clock may be stepped by a century while the process is down.
            dedupe_window_ms: 500 * 365 * 86_400_000,
            priority: 1024,
        },
        // The judge takes a dedupe id for remembered as long as its window is.
        min_answer_ms: u64::MAX,
        ..Policy::default()
    }
}
