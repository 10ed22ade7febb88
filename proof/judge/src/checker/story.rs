//! The part of a history that concerns one message, for people.

use std::fmt;

use crate::history::{Answer, Call, Event, MsgId, What};

use super::life::Life;
use super::op::End;
use super::world::World;

/// All events that concern a message, and the faults of its time.
pub(super) fn of(world: &World<'_>, life: &Life<'_>) -> Vec<Event> {
    let mut indexes: Vec<usize> = Vec::new();
    for &op in life.all_ops().iter().chain(&life.grant_ops()) {
        let op = &world.ops[op];
        indexes.push(op.inv.idx);
        match op.end {
            End::Ok(at, _) | End::Fail(at, _) => indexes.push(at.idx),
            End::Unknown => indexes.extend(op.info_idx),
        }
    }
    for push in &life.pushes {
        indexes.push(push.read.idx);
        indexes.extend(push.answered.map(|(at, _)| at.idx));
    }
    let (Some(&first), Some(&last)) = (indexes.iter().min(), indexes.iter().max()) else { return Vec::new() };
    for (idx, event) in world.events.iter().enumerate().take(last).skip(first) {
        let of_a_holder = || life.grants.iter().any(|g| world.events[g.inv.idx].client == event.client);
        let closing = event.what == What::Closing && of_a_holder();
        if closing || matches!(event.what, What::Fault(_) | What::Phase(_)) {
            indexes.push(idx);
        }
    }
    indexes.sort_unstable();
    indexes.dedup();
    let mut story: Vec<Event> = indexes.iter().map(|&i| only(world.events[i].clone(), life.id)).collect();
    if let Some((at, row)) = &life.held {
        let dump = world.events[at.idx].clone();
        if let What::Dump { queue, .. } = dump.what {
            let what = What::Dump { queue, rows: vec![(*row).clone()] };
            story.push(Event { what, ..dump });
        }
    }
    story
}

/// Leaves out the other messages of a reserve.
fn only(mut event: Event, id: Option<MsgId>) -> Event {
    if let What::Ok { answer: Answer::Grants(grants), .. } = &mut event.what {
        grants.retain(|g| Some(g.id) == id);
    }
    event
}

pub(super) fn print(story: &[Event], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for event in story {
        let ms = event.at.mono_ns / 1_000_000;
        let us = event.at.mono_ns / 1_000 % 1_000;
        write!(
            f,
            "  {ms:>8}.{us:03} ms  wall …{:06}  client {:<3} ",
            event.at.wall_ms % 1_000_000,
            event.client
        )?;
        match &event.what {
            What::Invoke { op, call } => {
                write!(f, "#{:<6} → ", op.0)?;
                match call {
                    Call::Enqueue(e) => writeln!(
                        f,
                        "enqueue {} key {:?} {:?} {:?} tag {:016x} dedupe {:?} max_attempts {:?} lease_ms {:?} spread_ms {} expiry {:?}",
                        e.queue,
                        e.key,
                        e.when,
                        e.if_exists,
                        e.body.tag.0,
                        e.dedupe_id,
                        e.max_attempts,
                        e.lease_ms,
                        e.spread_ms,
                        e.expiry
                    )?,
                    other => writeln!(f, "{other:?}")?,
                }
            }
            What::Ok { op, answer } => writeln!(f, "#{:<6} ← ok {answer:?}", op.0)?,
            What::Fail { op, refusal } => writeln!(f, "#{:<6} ← refused {refusal:?}", op.0)?,
            What::Info { op, why } => writeln!(f, "#{:<6} ← unknown: {why}", op.0)?,
            What::Fault(fault) => writeln!(f, "======= {fault:?}")?,
            What::Closing => writeln!(f, "closes its connection")?,
            What::Phase(name) => writeln!(f, "------- phase {name}")?,
            What::Dump { queue, rows } => writeln!(f, "dump of {queue}: {rows:?}")?,
            What::Pushed(pushed) => writeln!(f, "------- {pushed:?}")?,
            What::PushSeen(seen) => writeln!(f, "→ {seen:?}")?,
            What::PushAnswered { push, answer } => writeln!(f, "← {push:?} {answer:?}")?,
            What::Totals { queue, totals } => writeln!(f, "totals of {queue}: {totals:?}")?,
        }
    }
    Ok(())
}
