//! kill -9 of the real server under load, row M9.
//!
//! Clients enqueue, change their minds, reserve and settle; the server is killed at random moments, a fifth of them while
//! it recovers, and started again on the same folder. At the end everything is drained, what is left is listed, and the
//! history of what the clients saw is judged. A run counts only if its faults provably happened.
//!
//! `DUEWHEEL_KILLS` (20) says how often (0: a run of 5 s without a fault), `DUEWHEEL_SEED` repeats the decisions of a run (not the scheduling of the machine),
//! `DUEWHEEL_BIN` names the binary, `DUEWHEEL_KEEP=1` keeps history and data of a good run, too.

mod api;
mod crew;

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use duewheel_judge::checker::{Fact, Report, check};
use duewheel_judge::history::{Fault, Moment, Rules, Shards, Totals, What};
use duewheel_judge::rng::Rng;
use duewheel_sim::http::escape;
use duewheel_sim::process::{Server, binary};
use serde_json::{Value, json};

use api::{Api, Shared, Stage};
use crew::{Gossip, QUEUES};

/// What the queues are set to.
const RULES: Rules = Rules {
    lease_ms: 400,
    max_attempts: 20,
    backoff_min_ms: 100,
    backoff_max_ms: 1_000,
    offer_ms: 5_000,
    slack_ms: 50,
    shards: Shards::One,
};

const PRODUCERS: u32 = 3;
const CHANGERS: u32 = 2;
const CONSUMERS: u32 = 3;
const START: Duration = Duration::from_secs(10);
const DRAIN: Duration = Duration::from_secs(40);

#[test]
fn what_was_accepted_survives_kill_9() {
    let kills = env("DUEWHEEL_KILLS").unwrap_or(20);
    let seed = env("DUEWHEEL_SEED").unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
        u64::from(now.subsec_nanos())
    });
    let binary = binary().expect("the server's binary");
    let folder = tempfile::Builder::new().prefix("duewheel-kill9-").tempdir().expect("a temporary folder");
    println!(
        "kill9: {kills} kills, seed {seed}, binary {}, folder {}",
        binary.display(),
        folder.path().display()
    );

    let started = Instant::now();
    let shared = Shared::default();
    let result = run(&shared, kills, seed, &binary, folder.path());
    let title = format!("kill9, {kills} kills, seed {seed}");
    let history = shared.recorder.history(&title, RULES);
    let report = check(&history);
    println!("{report}in {:.1} s", started.elapsed().as_secs_f32());

    let mut faults = Vec::new();
    if let Err(what) = result {
        faults.push(what);
    }
    faults.extend(shared.complaints());
    for violation in report.violations.iter().take(10) {
        faults.push(violation.to_string());
    }
    if faults.is_empty()
        && let Err(missing) = counts(&report, kills)
    {
        faults.push(format!("the run proves too little: {missing}"));
    }
    if faults.is_empty() && env("DUEWHEEL_KEEP").is_none() {
        return;
    }
    let kept = folder.keep();
    let file = kept.join("history.jsonl");
    let mut out = BufWriter::new(File::create(&file).expect("the history's file"));
    history.save(&mut out).expect("the history is written");
    if faults.is_empty() {
        println!("history {}", file.display());
        return;
    }
    panic!(
        "{}\n\n{} violations. History {}, server's log and data beside it.\n\
         judge it again: cargo run -p duewheel-judge --example judge -- {}\n\
         same decisions: DUEWHEEL_SEED={seed} DUEWHEEL_KILLS={kills} cargo test -p duewheel-sim --test kill9 -- --nocapture",
        faults.join("\n"),
        report.violations.len(),
        file.display(),
        file.display()
    );
}

fn env(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// What must provably have happened.
fn counts(report: &Report, kills: u64) -> Result<(), String> {
    let a_tenth = kills.div_ceil(10);
    report.evidence.require(&[
        (Fact::KillsServing, kills / 2),
        (Fact::KillsRecovering, a_tenth),
        (Fact::UnknownOutcomes, kills),
        (Fact::UnansweredButAccepted, kills.min(1)),
        (Fact::LostReserves, kills.min(1)),
        (Fact::ExpiredLeasesGrantedAgain, kills),
        (Fact::StaleSettlesRefused, a_tenth),
        (Fact::LeasesAckedAcrossAKill, a_tenth),
        (Fact::CancelsWon, kills),
        (Fact::CancelsLost, a_tenth),
        (Fact::Replaced, kills),
        (Fact::Kept, a_tenth),
        (Fact::KeysRefused, a_tenth),
        (Fact::Deduped, kills.min(1)),
        (Fact::Postponed, a_tenth),
        (Fact::Fired, a_tenth),
        (Fact::OverdueFromDowntime, a_tenth),
        (Fact::Redeliveries, kills),
        (Fact::NackedAndGrantedAgain, kills),
        (Fact::Extended, a_tenth),
        (Fact::Dead, a_tenth),
    ])
}

fn run(shared: &Shared, kills: u64, seed: u64, binary: &Path, folder: &Path) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let gossip = Gossip::default();
    std::thread::scope(|scope| {
        let mut number = 0;
        let mut hire = |role: fn(&Shared, u32, &Gossip, Rng), count: u32| {
            let mut hired = Vec::new();
            for _ in 0..count {
                number += 1;
                let (number, gossip, rng) = (number, &gossip, Rng::new(seed ^ (u64::from(number) << 32)));
                hired.push(scope.spawn(move || role(shared, number, gossip, rng)));
            }
            hired
        };
        let mut producers = hire(crew::produce, PRODUCERS);
        producers.extend(hire(crew::change_mind, CHANGERS));
        producers.extend(hire(crew::look, 1));
        let consumers = hire(crew::consume, CONSUMERS);
        let mut killer = Killer {
            shared,
            binary,
            folder: folder.to_owned(),
            reign: 0,
            start_up: Duration::from_millis(20),
        };
        let result = killer.torment(kills, &mut rng).and_then(|server| {
            // One after the other, so that nothing is asked any more when the rest is looked at.
            killer.phase("drain");
            shared.set_stage(Stage::Drain);
            wait(producers)?;
            killer.drain()?;
            shared.set_stage(Stage::Stop);
            wait(consumers)?;
            killer.dump()?;
            server.kill().map_err(|e| format!("at the end: {e}"))
        });
        // Whatever happened, let the clients go.
        shared.set_stage(Stage::Stop);
        shared.set_address(None);
        result
    })
}

fn wait(clients: Vec<std::thread::ScopedJoinHandle<'_, ()>>) -> Result<(), String> {
    for client in clients {
        client.join().map_err(|_| "a client panicked".to_owned())?;
    }
    Ok(())
}

struct Killer<'a> {
    shared: &'a Shared,
    binary: &'a Path,
    folder: PathBuf,
    reign: u64,
    /// How long the last start took.
    start_up: Duration,
}

impl Killer<'_> {
    fn torment(&mut self, kills: u64, rng: &mut Rng) -> Result<Server, String> {
        let mut server = self.start()?;
        self.configure()?;
        self.phase("load");
        if kills == 0 {
            std::thread::sleep(Duration::from_secs(5));
        }
        let mut next_in_recovery = 4;
        let mut kill = 0;
        while kill < kills {
            std::thread::sleep(Duration::from_millis(rng.range(100, 1_500)));
            self.stop(server, Moment::Serving)?;
            kill += 1;
            self.downtime(rng);
            // Of each five kills one is early.
            while kill >= next_in_recovery && kill < kills {
                let mut young = self.spawn()?;
                let most = u64::try_from(self.start_up.as_micros()).unwrap_or(0).clamp(2_000, 50_000);
                let patience = Duration::from_micros(rng.below(most));
                let moment = match young.address(patience) {
                    Err(e) if e.kind() == std::io::ErrorKind::TimedOut => Moment::Recovering,
                    Err(e) => return Err(format!("a start after a kill failed: {e}")),
                    Ok(_) => Moment::Serving,
                };
                self.stop(young, moment)?;
                kill += 1;
                if moment == Moment::Recovering {
                    next_in_recovery += 5;
                }
                self.downtime(rng);
            }
            server = self.start()?;
        }
        Ok(server)
    }

    fn spawn(&mut self) -> Result<Server, String> {
        self.reign += 1;
        Server::spawn(self.binary, &self.folder.join("data"), &self.folder.join("server.log"))
            .map_err(|e| e.to_string())
    }

    fn start(&mut self) -> Result<Server, String> {
        let mut server = self.spawn()?;
        let address = server.address(START).map_err(|e| format!("start {}: {e}", self.reign))?;
        self.start_up = server.age();
        self.fault(Fault::Started);
        self.shared.set_address(Some((address, self.reign)));
        Ok(server)
    }

    /// The fault is written down when the process is gone: nothing that was asked of it before has an effect after.
    fn stop(&self, server: Server, moment: Moment) -> Result<(), String> {
        self.shared.set_address(None);
        server.kill().map_err(|e| format!("kill in reign {}: {e}", self.reign))?;
        self.fault(Fault::Killed(moment));
        Ok(())
    }

    fn downtime(&self, rng: &mut Rng) {
        let most = if rng.percent(70) { 100 } else { 1_000 };
        std::thread::sleep(Duration::from_millis(rng.below(most)));
    }

    fn fault(&self, fault: Fault) {
        self.shared.recorder.note(self.shared.recorder.stamp(), 0, What::Fault(fault));
    }

    fn phase(&self, name: &str) {
        self.shared.recorder.note(self.shared.recorder.stamp(), 0, What::Phase(name.to_owned()));
    }

    /// Short leases and retries for all; they must survive the kills, too.
    fn configure(&self) -> Result<(), String> {
        let mut api = Api::new(self.shared, 0);
        for queue in QUEUES {
            let settings = json!({
                "lease_ms": RULES.lease_ms,
                "backoff": {"min_ms": RULES.backoff_min_ms, "max_ms": RULES.backoff_max_ms},
            });
            api.plain("PUT", format!("/v1/queues/{}/config", escape(queue)), &settings)?;
        }
        Ok(())
    }

    /// Waits until nothing is left but dead messages.
    fn drain(&self) -> Result<(), String> {
        let mut api = Api::new(self.shared, 0);
        let deadline = Instant::now() + DRAIN;
        loop {
            let mut left = Vec::new();
            for queue in QUEUES {
                let view = api.plain("GET", format!("/v1/queues/{}", escape(queue)), &Value::Null)?;
                let counts = &view["counts"];
                let waiting =
                    ["scheduled", "ready", "leased"].iter().filter_map(|s| counts[s].as_u64()).sum::<u64>();
                if waiting > 0 {
                    left.push(format!("{queue}: {counts}"));
                }
            }
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                // The dump and the checker will say more.
                self.dump()?;
                return Err(format!("not drained after {} s: {}", DRAIN.as_secs(), left.join(", ")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn dump(&self) -> Result<(), String> {
        let mut api = Api::new(self.shared, 0);
        for queue in QUEUES {
            let rows = api.list(queue)?;
            let view = api.plain("GET", format!("/v1/queues/{}", escape(queue)), &Value::Null)?;
            let at = self.shared.recorder.stamp();
            self.shared.recorder.note(at, 0, What::Dump { queue: queue.to_owned(), rows });
            let figure = |name: &str| view["totals"][name].as_u64();
            if let Some(totals) = totals(figure) {
                self.shared.recorder.note(at, 0, What::Totals { queue: queue.to_owned(), totals });
            }
        }
        Ok(())
    }
}

fn totals(figure: impl Fn(&str) -> Option<u64>) -> Option<Totals> {
    Some(Totals {
        enqueued: figure("enqueued")?,
        acked: figure("acked")?,
        cancelled: figure("cancelled")?,
        replaced: figure("replaced")?,
        purged: figure("purged")?,
    })
}
