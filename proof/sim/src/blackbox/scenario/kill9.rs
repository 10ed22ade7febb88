//! Clients use all operations while the server is killed again and again. At the end everything is drained and listed.

use std::io::ErrorKind;
use std::time::Duration;

use duewheel_judge::checker::Fact;
use duewheel_judge::history::{Fault, Leases, Moment};
use duewheel_judge::rng::Rng;

use super::{Done, Figures, Host, Trial, ms};
use crate::blackbox::client::Stage;
use crate::blackbox::crew::{Crew, Gossip, QUEUES};
use crate::blackbox::{Ability, System};

pub(super) fn act(trial: &Trial<'_>) -> Result<Done, String> {
    let (run, kills) = (trial.run, trial.size);
    let mut rng = Rng::new(trial.seed);
    let gossip = Gossip::default();
    let mut host = Host::new(trial);
    std::thread::scope(|scope| {
        let crew = Crew::hire(scope, run, &gossip, trial.seed);
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
        // A kill ends the leases that belong to connections, so few run out between two kills; the scenario `stale` has
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
