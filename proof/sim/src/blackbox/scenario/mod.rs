//! Scenarios: the faults of a system, and the facts that must provably have happened at the end.

mod burst;
mod extremes;
mod kill9;
mod race;
mod restart;
mod stale;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use duewheel_judge::checker::{Fact, Report};
use duewheel_judge::history::{Answer, Fault, Grant, Moment, MsgId, Proof};
use duewheel_judge::rng::Rng;

use super::Ability;
use super::client::{Outcome, Run};
use crate::process::{Listens, PATIENCE, Server};

/// A scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The name in the table.
    pub name: &'static str,
    /// The variable for the size.
    pub knob: &'static str,
    /// The default size.
    pub usual: u64,
    /// The abilities without which the scenario cannot run.
    pub needs: &'static [Ability],
    pub(super) act: fn(&Trial<'_>) -> Result<Done, String>,
}

impl Scenario {
    const fn new(
        name: &'static str,
        (knob, usual): (&'static str, u64),
        needs: &'static [Ability],
        act: fn(&Trial<'_>) -> Result<Done, String>,
    ) -> Self {
        Scenario { name, knob, usual, needs, act }
    }
}

/// One run of a scenario.
#[derive(Debug)]
pub struct Trial<'a> {
    pub(super) run: &'a Run<'a>,
    pub(super) folder: &'a Path,
    pub(super) seed: u64,
    pub(super) size: u64,
}

/// A completed scenario.
#[derive(Debug)]
pub struct Done {
    /// The facts that must provably have happened.
    pub require: Vec<(Fact, u64)>,
    /// Further figures.
    pub figures: Figures,
}

/// A text made from a report and the scenario's own figures.
pub struct Figures(Box<dyn Fn(&Report) -> String + Send>);

impl std::fmt::Debug for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Figures")
    }
}

impl Figures {
    /// Made when the report is complete.
    pub fn new(say: impl Fn(&Report) -> String + Send + 'static) -> Self {
        Figures(Box::new(say))
    }

    pub(super) fn say(&self, report: &Report) -> String {
        (self.0)(report)
    }
}

/// SIGKILL under load, a fifth of them while the system recovers.
pub const KILL9: Scenario =
    Scenario::new("kill -9 under load", ("DUEWHEEL_KILLS", 20), &[Ability::Durable], kill9::act);

/// Due times across SIGKILL and SIGTERM.
pub const RESTART: Scenario =
    Scenario::new("restart keeps due times", ("DUEWHEEL_MESSAGES", 200), &[Ability::Durable], restart::act);

/// Very many messages at one instant.
pub const BURST: Scenario =
    Scenario::new("many due at one instant", ("DUEWHEEL_BURST", 50_000), &[], burst::act);

/// Delays at the edges of number types.
pub const EXTREMES: Scenario =
    Scenario::new("extreme delays", ("DUEWHEEL_ROUNDS", 1), &[Ability::Durable], extremes::act);

/// A consumer that is too late.
pub const STALE: Scenario = Scenario::new("stale settles", ("DUEWHEEL_STALE", 200), &[], stale::act);

/// A cancel at the due instant.
pub const RACE: Scenario =
    Scenario::new("cancel against grant", ("DUEWHEEL_RACES", 2_000), &[Ability::Cancel], race::act);

/// All of them, the short ones first.
pub const ALL: [Scenario; 6] = [RESTART, EXTREMES, STALE, RACE, KILL9, BURST];

/// Starts and ends the system's process, and records that.
#[derive(Debug)]
struct Host<'a> {
    run: &'a Run<'a>,
    folder: &'a Path,
    server: Option<Server>,
    reign: u64,
    /// The duration of the last start.
    start_up: Duration,
}

impl<'a> Host<'a> {
    fn new(trial: &Trial<'a>) -> Self {
        let start_up = Duration::from_millis(20);
        Host { run: trial.run, folder: trial.folder, server: None, reign: 0, start_up }
    }

    /// Starts the process for the first time, and configures the queues.
    fn begin(&mut self, queues: &[&str]) -> Result<(), String> {
        let address = self.launch()?;
        // Done before the clients know the address: earlier leases would differ from those in the history.
        queues.iter().try_for_each(|queue| self.run.system.prepare(address, queue))?;
        self.run.set_address(Some((address, self.reign)));
        Ok(())
    }

    fn spawn(&mut self) -> Result<Server, String> {
        self.reign += 1;
        self.run.system.spawn(self.folder).map_err(|e| format!("start {}: {e}", self.reign))
    }

    fn start(&mut self) -> Result<(), String> {
        let address = self.launch()?;
        self.run.set_address(Some((address, self.reign)));
        Ok(())
    }

    /// Starts the process; the clients do not know its address yet.
    fn launch(&mut self) -> Result<SocketAddr, String> {
        for more in (0..3).rev() {
            let mut server = self.spawn()?;
            match server.address(PATIENCE) {
                Ok(address) => {
                    self.start_up = server.age();
                    self.server = Some(server);
                    self.run.fault(Fault::Started);
                    return Ok(address);
                }
                // Another process may have taken the port that was chosen for it.
                Err(_) if more > 0 && matches!(server.listens(), Listens::Answers(..)) => {}
                Err(e) => return Err(format!("start {}: {e}", self.reign)),
            }
        }
        Err(format!("start {}: it does not listen", self.reign))
    }

    /// Kills the process. The fault is recorded when the process is gone: earlier requests have no effect after that.
    fn kill(&mut self) -> Result<(), String> {
        self.run.set_address(None);
        let server = self.server.take().ok_or("nothing runs")?;
        server.kill().map_err(|e| format!("kill in reign {}: {e}", self.reign))?;
        self.run.fault(Fault::Killed(Moment::Serving));
        Ok(())
    }

    fn stop(&mut self) -> Result<(), String> {
        self.run.set_address(None);
        let server = self.server.take().ok_or("nothing runs")?;
        server.stop(PATIENCE).map_err(|e| format!("SIGTERM in reign {}: {e}", self.reign))?;
        self.run.fault(Fault::Stopped);
        Ok(())
    }

    fn downtime(&self, rng: &mut Rng) {
        let most = if rng.percent(70) { 100 } else { 1_000 };
        std::thread::sleep(Duration::from_millis(rng.below(most)));
    }
}

/// The ids of messages that were enqueued while there are no faults.
fn accepted(outcomes: Vec<Outcome>) -> Result<Vec<MsgId>, String> {
    let id = |outcome| match outcome {
        Some(Ok(Answer::Enqueued { id, .. })) => Ok(id),
        other => Err(format!("an enqueue without a fault came to {other:?}")),
    };
    outcomes.into_iter().map(id).collect()
}

fn proof(grant: &Grant) -> Proof {
    Proof { id: grant.id, token: grant.token.clone() }
}

fn wait<T>(clients: Vec<std::thread::ScopedJoinHandle<'_, T>>) -> Result<Vec<T>, String> {
    clients.into_iter().map(|c| c.join().map_err(|_| "a client panicked".to_owned())).collect()
}

fn ms(us: u64) -> String {
    format!("{}.{} ms", us / 1_000, us / 100 % 10)
}
