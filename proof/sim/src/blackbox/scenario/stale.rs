//! One consumer reserves everything and is too late; another one gets the messages; then the first one settles, and
//! must be refused.

use std::collections::BTreeMap;
use std::time::Instant;

use duewheel_judge::checker::Fact;
use duewheel_judge::history::{MsgId, Proof, When};

use super::{Done, Figures, Host, Trial, accepted, proof};
use crate::blackbox::Ability;
use crate::blackbox::client::{Client, Message};
use crate::process::PATIENCE;

const QUEUE: &str = "slow";

pub(super) fn act(trial: &Trial<'_>) -> Result<Done, String> {
    let (run, size) = (trial.run, trial.size);
    let mut host = Host::new(trial);
    host.begin(&[QUEUE])?;
    let lease_ms = run.system.rules().lease_ms;
    let mut producer = Client::new(run, 1);
    let messages: Vec<Message> = (0..size).map(|_| Message::new(run, QUEUE, When::DelayMs(0))).collect();
    let known = accepted(producer.enqueue_all(&messages))?;
    let deadline = Instant::now() + PATIENCE;
    let mut slow = Client::new(run, 2);
    let mut old: BTreeMap<MsgId, Proof> = BTreeMap::new();
    while (old.len() as u64) < size && Instant::now() < deadline {
        let grants = slow.reserve(QUEUE, 50, 20, Some(lease_ms));
        old.extend(grants.iter().map(|g| (g.id, proof(g))));
    }
    let mut quick = Client::new(run, 3);
    loop {
        let left = quick.peer()?.waiting(QUEUE)?;
        if left == 0 {
            break;
        }
        if Instant::now() > deadline {
            return Err(format!("{left} messages do not come again"));
        }
        // Few at a time, so that their new leases run while the old ones are settled.
        let grants = quick.reserve(QUEUE, 5, 20, Some(lease_ms.max(2_000)));
        for (n, grant) in grants.iter().enumerate() {
            let Some(stale) = old.remove(&grant.id) else { continue };
            match (grant.id.0 + n as u64) % 3 {
                0 if slow.can(Ability::Nack) => slow.nack(stale, Some(0)),
                1 if slow.can(Ability::Extend) => slow.extend(stale, lease_ms),
                _ => slow.ack(stale),
            };
        }
        quick.ack_all(grants.iter().map(proof).collect());
    }
    host.run.dump(QUEUE, &known)?;
    drop((producer, slow, quick));
    host.kill()?;
    let most = size * 8 / 10;
    let require = vec![(Fact::ExpiredLeasesGrantedAgain, most), (Fact::StaleSettlesRefused, most)];
    let figures = Figures::new(|report| {
        format!("{} stale settles refused", report.evidence.count(Fact::StaleSettlesRefused))
    });
    Ok(Done { require, figures })
}
