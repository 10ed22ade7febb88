//! Very many messages come due at one instant (where delays are whole seconds: within one second), and all are reserved
//! and acked. The time it takes is reported, not judged.

use std::time::{Duration, Instant};

use duewheel_judge::history::{MsgId, When, wall_ms};

use super::{Done, Figures, Host, Trial, accepted, ms, proof, wait};
use crate::blackbox::Ability;
use crate::blackbox::client::{Client, Message, Run, Stage};
use crate::process::PATIENCE;

/// The queues of the instants that are tried. The first one comes before the last message only on a machine that has become
/// slower since the warm-up; the next one is twice as far ahead.
const QUEUES: [&str; 5] = ["burst", "burst-2", "burst-3", "burst-4", "burst-5"];
const WARM_UP: &str = "warm-up";
const CLIENTS: u64 = 4;
const TOGETHER: u64 = 200;
const LEASE_MS: u64 = 120_000;

pub(super) fn act(trial: &Trial<'_>) -> Result<Done, String> {
    let (run, size) = (trial.run, trial.size);
    let mut host = Host::new(trial);
    host.begin(&QUEUES)?;
    // The first client connects.
    let (_, mut others) = warm_up(run)?;
    let (rate, more) = warm_up(run)?;
    others.extend(more);
    let rate = rate.max(1);
    run.phase("burst");
    let mut ahead = Duration::from_millis(2_000 + size * 1_500 / rate);
    let mut tried = Vec::new();
    let (queue, ids, instant) = loop {
        let queue = *QUEUES.get(tried.len()).ok_or("too slow: each instant came before the last message")?;
        let due_at = wall_ms() + u64::try_from(ahead.as_millis()).unwrap_or(0);
        let instant = Instant::now() + ahead;
        let ids = enqueue(run, queue, size, due_at)?;
        if Instant::now() < instant {
            break (queue, ids, instant);
        }
        tried.push((queue, ids));
        ahead *= 2;
    };
    let granted: Vec<MsgId> = std::thread::scope(|scope| {
        let consumers = (0..CLIENTS).map(|n| scope.spawn(move || consume(run, queue, n))).collect();
        std::thread::sleep(instant.saturating_duration_since(Instant::now()));
        let drained = host.run.until_left(&[queue], 0, PATIENCE);
        run.set_stage(Stage::Stop);
        let granted = wait(consumers)?.concat();
        drained.map(|()| granted)
    })?;
    let took = instant.elapsed();
    let distinct: std::collections::BTreeSet<MsgId> = granted.iter().copied().collect();
    if granted.len() as u64 != size || distinct.len() as u64 != size {
        run.complain(format!("{} grants of {} messages, should be {size}", granted.len(), distinct.len()));
    }
    host.run.dump(queue, &ids)?;
    tried.iter().try_for_each(|(queue, ids)| host.run.dump(queue, ids))?;
    host.run.dump(WARM_UP, &others)?;
    host.kill()?;
    let figures = Figures::new(move |report| {
        let late = report.lateness.get("burst").and_then(|l| l.seen());
        let late = late.map_or(String::new(), |l| format!(", late p50 {} p99 {}", ms(l.p50), ms(l.p99)));
        format!("{rate}/s put, {size} drained in {:.1} s{late}", took.as_secs_f32())
    });
    Ok(Done { require: Vec::new(), figures })
}

/// Enqueues some messages that stay; returns the rate a second, and their ids.
fn warm_up(run: &Run<'_>) -> Result<(u64, Vec<MsgId>), String> {
    let begun = Instant::now();
    let made = std::thread::scope(|scope| {
        let clients = (0..CLIENTS).map(|n| {
            scope.spawn(move || {
                let mut client = Client::new(run, 20 + u32::try_from(n).unwrap_or(0));
                let messages: Vec<Message> =
                    (0..TOGETHER).map(|_| Message::new(run, WARM_UP, When::DelayMs(3_600_000))).collect();
                accepted(client.enqueue_all(&messages))
            })
        });
        wait(clients.collect())
    })?;
    let ids = made.into_iter().collect::<Result<Vec<_>, String>>()?.concat();
    let us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX).max(1);
    Ok((ids.len() as u64 * 1_000_000 / us, ids))
}

fn enqueue(run: &Run<'_>, queue: &str, size: u64, due_at: u64) -> Result<Vec<MsgId>, String> {
    std::thread::scope(|scope| {
        let producers = (0..CLIENTS).map(|n| {
            let count = size / CLIENTS + u64::from(n < size % CLIENTS);
            scope.spawn(move || produce(run, queue, n, count, due_at))
        });
        let made = wait(producers.collect())?;
        made.into_iter().collect::<Result<Vec<_>, String>>().map(|ids| ids.concat())
    })
}

fn produce(run: &Run<'_>, queue: &str, n: u64, count: u64, due_at: u64) -> Result<Vec<MsgId>, String> {
    let mut client = Client::new(run, 1 + u32::try_from(n).unwrap_or(0));
    let mut ids = Vec::new();
    while (ids.len() as u64) < count {
        let when = if run.system.can(Ability::At) {
            When::AtMs(due_at)
        } else {
            When::DelayMs(due_at.saturating_sub(wall_ms()).next_multiple_of(run.system.unit_ms()))
        };
        let some = TOGETHER.min(count - ids.len() as u64);
        let messages: Vec<Message> = (0..some)
            .map(|_| {
                let mut message = Message::new(run, queue, when);
                message.call.lease_ms = Some(LEASE_MS);
                message
            })
            .collect();
        ids.extend(accepted(client.enqueue_all(&messages))?);
    }
    Ok(ids)
}

fn consume(run: &Run<'_>, queue: &str, n: u64) -> Vec<MsgId> {
    let mut client = Client::new(run, 10 + u32::try_from(n).unwrap_or(0));
    let mut granted = Vec::new();
    while run.stage() != Stage::Stop {
        let grants = client.reserve(queue, 50, 20, Some(LEASE_MS));
        granted.extend(grants.iter().map(|g| g.id));
        client.ack_all(grants.iter().map(proof).collect());
    }
    granted
}
