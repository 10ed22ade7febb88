//! kill -9: clients use all operations while the server is killed again and again, a fifth of the times while it
//! recovers. At the end everything is drained and listed.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use duewheel_judge::checker::Fact;
use duewheel_judge::history::{Fault, Leases, Moment};
use duewheel_judge::rng::Rng;

use super::client::{Run, Stage};
use super::crew::{Crew, Gossip, QUEUES};
use super::verdict::{Done, Figures, Finding, conclude, env, seed};
use super::{Ability, System};
use crate::process::{PATIENCE, Server};

/// The variable that says how often the server is killed.
const KILLS: &str = "DUEWHEEL_KILLS";

/// Kills a system's process so often, unless `DUEWHEEL_KILLS` says another number, and judges the history. History and
/// data are kept unless the system held, or if `DUEWHEEL_KEEP` is set. `test` names the test, as cargo takes it.
///
/// # Errors
///
/// There is no temporary folder.
pub fn conduct(test: &str, system: &dyn System, usual: u64) -> io::Result<Finding> {
    let (kills, seed) = (env(KILLS).unwrap_or(usual), seed());
    let folder = tempfile::Builder::new().prefix("duewheel-kill9-").tempdir()?;
    let title = format!("kill -9 of {}, {kills}, seed {seed}", system.name());
    println!("{title}, folder {}", folder.path().display());
    let again = format!(
        "DUEWHEEL_SEED={seed} {KILLS}={kills} cargo test -p duewheel-sim --test kill9 -- --nocapture {test}"
    );
    let started = Instant::now();
    let run = Run::new(system);
    let done = act(&run, folder.path(), seed, kills);
    let finding = Finding { seconds: started.elapsed().as_secs_f32(), ..Finding::new(again) };
    Ok(conclude(&run, run.complaints(), &title, folder, &done, finding))
}

fn act(run: &Run<'_>, folder: &Path, seed: u64, kills: u64) -> Result<Done, String> {
    let mut rng = Rng::new(seed);
    let gossip = Gossip::default();
    let mut host = Host::new(run, folder);
    std::thread::scope(|scope| {
        let crew = Crew::hire(scope, run, &gossip, seed);
        let result = torment(&mut host, kills, &mut rng)
            .and_then(|()| crew.drain(run, &gossip))
            .and_then(|()| host.kill());
        // The clients end in any case.
        run.set_stage(Stage::Stop);
        run.set_address(None);
        result
    })?;
    let figures = Figures::new(|report| {
        let late = report.lateness.get("load").and_then(|l| l.seen());
        let late = late.map_or(String::new(), |l| format!(", first grants late p99 {}", ms(l.p99)));
        format!("{} operations, {} messages{late}", report.operations, report.balance.accepted)
    });
    Ok(Done { require: required(run.system, kills), figures })
}

fn torment(host: &mut Host<'_>, kills: u64, rng: &mut Rng) -> Result<(), String> {
    host.begin(&QUEUES)?;
    host.run.phase("load");
    if kills == 0 {
        std::thread::sleep(Duration::from_secs(5));
    }
    let lease_ms = host.run.system.rules().lease_ms;
    let mut next_in_recovery = 4;
    let mut kill = 0;
    while kill < kills {
        std::thread::sleep(Duration::from_millis(rng.range(100, 1_100 + lease_ms)));
        host.kill()?;
        kill += 1;
        host.downtime(rng);
        // One of five kills is early.
        while kill >= next_in_recovery && kill < kills {
            let mut young = host.spawn()?;
            let most = u64::try_from(host.start_up.as_micros()).unwrap_or(0).clamp(2_000, 50_000);
            let moment = match young.address(Duration::from_micros(rng.below(most))) {
                Err(e) if e.kind() == ErrorKind::TimedOut => Moment::Recovering,
                Err(e) => return Err(format!("a start after a kill failed: {e}")),
                Ok(_) => Moment::Serving,
            };
            young.kill().map_err(|e| format!("an early kill: {e}"))?;
            host.run.fault(Fault::Killed(moment));
            kill += 1;
            if moment == Moment::Recovering {
                next_in_recovery += 5;
            }
            host.downtime(rng);
        }
        host.start()?;
    }
    Ok(())
}

/// The facts that must provably have happened, as far as the system supports them.
fn required(system: &dyn System, kills: u64) -> Vec<(Fact, u64)> {
    let a_tenth = kills.div_ceil(10);
    let mut facts = vec![
        (Fact::KillsServing, kills / 2),
        (Fact::KillsRecovering, u64::from(kills > 10) * a_tenth),
        (Fact::UnknownOutcomes, kills),
        (Fact::UnansweredButAccepted, u64::from(kills > 10)),
        (Fact::LostReserves, kills.min(1)),
        // A kill ends the leases that belong to connections, so few run out between two kills; those of tokens have
        // enough of them.
        (Fact::ExpiredLeasesGrantedAgain, u64::from(kills > 10)),
        (Fact::OverdueFromDowntime, a_tenth),
        (Fact::Redeliveries, kills),
    ];
    let mut add = |ability: Ability, some: &[(Fact, u64)]| {
        if system.can(ability) {
            facts.extend_from_slice(some);
        }
    };
    add(Ability::Cancel, &[(Fact::CancelsWon, kills), (Fact::CancelsLost, a_tenth)]);
    add(Ability::Keys, &[(Fact::KeysRefused, a_tenth)]);
    add(Ability::IfExists, &[(Fact::Replaced, kills), (Fact::Kept, a_tenth)]);
    add(Ability::Supersede, &[(Fact::Superseded, u64::from(kills > 10) * a_tenth)]);
    add(Ability::Dedupe, &[(Fact::Deduped, kills.min(1))]);
    add(Ability::Postpone, &[(Fact::Postponed, a_tenth)]);
    add(Ability::Fire, &[(Fact::Fired, a_tenth)]);
    add(Ability::MaxAttempts, &[(Fact::Dead, a_tenth)]);
    add(Ability::Nack, &[(Fact::NackedAndGrantedAgain, kills)]);
    add(Ability::Extend, &[(Fact::Extended, a_tenth)]);
    if system.rules().leases == Leases::OfTokens {
        facts.extend([
            (Fact::StaleSettlesRefused, a_tenth),
            (Fact::LeasesAckedAcrossAKill, a_tenth),
            (Fact::ExpiredLeasesGrantedAgain, kills),
        ]);
    }
    facts
}

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
    fn new(run: &'a Run<'a>, folder: &'a Path) -> Self {
        Host { run, folder, server: None, reign: 0, start_up: Duration::from_millis(20) }
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
        let mut server = self.spawn()?;
        let address = server.address(PATIENCE).map_err(|e| format!("start {}: {e}", self.reign))?;
        self.start_up = server.age();
        self.server = Some(server);
        self.run.fault(Fault::Started);
        Ok(address)
    }

    /// Kills the process. The fault is recorded when the process is gone: earlier requests have no effect after that.
    fn kill(&mut self) -> Result<(), String> {
        self.run.set_address(None);
        let server = self.server.take().ok_or("nothing runs")?;
        server.kill().map_err(|e| format!("kill in reign {}: {e}", self.reign))?;
        self.run.fault(Fault::Killed(Moment::Serving));
        Ok(())
    }

    fn downtime(&self, rng: &mut Rng) {
        let most = if rng.percent(70) { 100 } else { 1_000 };
        std::thread::sleep(Duration::from_millis(rng.below(most)));
    }
}

fn ms(us: u64) -> String {
    format!("{}.{} ms", us / 1_000, us / 100 % 10)
}
