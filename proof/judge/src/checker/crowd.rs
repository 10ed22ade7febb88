//! Checks that need several messages: keys, the order of tokens, totals.

use std::collections::BTreeSet;

use crate::history::{Answer, Call, IfExists, MsgId, Refusal, Shards, Target, Token};

use super::life::{How, Life, may_be_leased};
use super::op::{End, Op, Point};
use super::world::World;
use super::{Check, Report, Violation};

pub(super) fn check(world: &World<'_>, report: &mut Report) {
    if world.rules.shards == Shards::One {
        token_order(world, report);
    }
    for lives in world.keys.values() {
        one_a_key(world, lives, report);
    }
    for op in &world.ops {
        by_key(world, op, report);
    }
    totals(world, report);
}

/// Tokens of a shard only grow, whatever the message.
fn token_order(world: &World<'_>, report: &mut Report) {
    let mut grants: Vec<(&Token, Point, Point, &Life<'_>)> = Vec::new();
    for life in &world.lives {
        grants.extend(life.grants.iter().map(|g| (&g.grant.token, g.inv, g.ret, life)));
    }
    // In the order of the run: a grant must be newer than all that were received before its reserve was invoked.
    let mut received: Vec<usize> = (0..grants.len()).collect();
    let mut invoked = received.clone();
    received.sort_by_key(|&i| grants[i].2.idx);
    invoked.sort_by_key(|&i| grants[i].1.idx);
    let mut newest: Option<&Token> = None;
    let mut next = 0;
    for i in invoked {
        let (token, inv, _, life) = grants[i];
        while let Some(&r) = received.get(next).filter(|&&r| grants[r].2.idx < inv.idx) {
            newest = newest.max(Some(grants[r].0));
            next += 1;
        }
        report.applied(Check::TokenOrder);
        if let Some(old) = newest.filter(|old| *old >= token) {
            let what = format!("token {} was given after {}", token.0, old.0);
            world.accuse(report, Check::TokenOrder, life, what);
        }
    }
    let mut tokens: Vec<(&Token, &Life<'_>)> = grants.iter().map(|g| (g.0, g.3)).collect();
    tokens.sort_by(|a, b| a.0.cmp(b.0));
    for pair in tokens.windows(2) {
        if pair[0].0 == pair[1].0 && pair[0].1.id != pair[1].1.id {
            let what = format!("token {} was given for another message, too", pair[0].0.0);
            world.accuse(report, Check::TokenOrder, pair[1].1, what);
        }
    }
}

/// Two messages of one key must not both exist, unsettled and alive, at one point of the history.
fn one_a_key(world: &World<'_>, lives: &[usize], report: &mut Report) {
    let mut spans: Vec<(usize, usize, &Life<'_>)> = Vec::new();
    for &l in lives {
        let life = &world.lives[l];
        let Some(exists) = life.exists else { continue };
        let ended = life.may_lose_key_at(world);
        let end = ended.min(life.may_die_at(world)).min(life.forgotten_at(world));
        if exists.idx < end {
            spans.push((exists.idx, end, life));
        }
    }
    spans.sort_by_key(|s| (s.0, s.1));
    let mut open: Option<(usize, usize, &Life<'_>)> = None;
    for span in spans {
        report.applied(Check::DoubleKey);
        if let Some(last) = open
            && span.0 < last.1
        {
            let what = format!(
                "message {} with the same key {:?} was alive as well",
                last.2.id.map_or(0, |id| id.0),
                last.2.key
            );
            world.accuse(report, Check::DoubleKey, span.2, what);
        }
        if open.is_none_or(|last| span.1 > last.1) {
            open = Some(span);
        }
    }
}

/// Answers to operations that name a key.
fn by_key(world: &World<'_>, op: &Op<'_>, report: &mut Report) {
    match (op.call, op.end) {
        (Call::Enqueue(e), End::Fail(ret, Refusal::DedupeMismatch)) => {
            report.applied(Check::Untruthful);
            let other = world.ops.iter().any(|o| match o.call {
                Call::Enqueue(x) => {
                    x.dedupe_id == e.dedupe_id && x.queue == e.queue && x.body.tag != e.body.tag
                }
                _ => false,
            });
            if !other {
                complain(
                    world,
                    op,
                    ret,
                    "refused with dedupe_mismatch, but nothing else has this dedupe_id",
                    report,
                );
            }
        }
        (Call::Enqueue(e), end) => {
            let Some(key) = &e.key else { return };
            let lives = lives_of(world, &e.queue, key);
            match end {
                End::Fail(ret, Refusal::KeyExists) => taken(world, op, ret, &lives, report),
                End::Fail(ret, Refusal::Leased) => leased(world, op, ret, &lives, report),
                End::Ok(ret, Answer::Enqueued { id, created: false, .. }) if e.dedupe_id.is_none() => {
                    kept(world, op, ret, *id, &lives, e.if_exists, report);
                }
                End::Ok(ret, Answer::Enqueued { superseded: Some(id), .. }) if e.dedupe_id.is_none() => {
                    superseded(world, op, ret, *id, &lives, e.if_exists, report);
                }
                End::Ok(..) | End::Fail(..) | End::Unknown => {}
            }
        }
        (
            Call::Cancel(Target::Key { queue, key })
            | Call::Get(Target::Key { queue, key })
            | Call::Fire(Target::Key { queue, key })
            | Call::Postpone { target: Target::Key { queue, key }, .. },
            End::Fail(ret, refusal),
        ) => {
            let lives = lives_of(world, queue, key);
            match refusal {
                Refusal::NotFound => {
                    report.applied(Check::Untruthful);
                    let there = lives.iter().find(|l| {
                        l.alive(world, op.inv.idx, ret.idx)
                            && !l.may_be_dead(world, ret.idx)
                            && l.may_lose_key_at(world) >= ret.idx
                    });
                    if let Some(life) = there {
                        let what = "its key was said not to be there".to_owned();
                        world.accuse(report, Check::Untruthful, life, what);
                    }
                }
                Refusal::Leased => leased(world, op, ret, &lives, report),
                Refusal::GoneOrLeased
                | Refusal::KeyExists
                | Refusal::Dead
                | Refusal::LeaseLost
                | Refusal::AlreadyAcked
                | Refusal::DedupeMismatch
                | Refusal::Other(_) => {}
            }
        }
        _ => {}
    }
}

fn lives_of<'w, 'h>(world: &'w World<'h>, queue: &str, key: &str) -> Vec<&'w Life<'h>> {
    let lives = world.keys.get(&(queue.to_owned(), key.to_owned()));
    lives.into_iter().flatten().map(|&l| &world.lives[l]).collect()
}

/// Whether a message can have had its key at some moment of an operation.
fn may_hold_key(world: &World<'_>, life: &Life<'_>, op: &Op<'_>, ret: Point) -> bool {
    let created = life.sends.iter().any(|&s| {
        let send = &world.ops[s];
        let kept = matches!(send.end, End::Ok(_, Answer::Enqueued { created: false, .. }));
        send.inv.idx != op.inv.idx && send.possible() && !kept && send.inv.idx < ret.idx
    });
    let lost = life.certain_end().map(|(_, at)| at).into_iter().chain(life.superseded);
    created && lost.into_iter().all(|at| at.idx >= op.inv.idx)
}

/// Checks a refusal because of another message: such a message must exist.
fn taken(world: &World<'_>, op: &Op<'_>, ret: Point, lives: &[&Life<'_>], report: &mut Report) {
    report.applied(Check::Untruthful);
    if !lives.iter().any(|l| may_hold_key(world, l, op, ret)) {
        complain(world, op, ret, "refused with key_exists, but nothing can have the key", report);
    }
}

/// Checks a refusal because of a lease: a consumer must have the message.
fn leased(world: &World<'_>, op: &Op<'_>, ret: Point, lives: &[&Life<'_>], report: &mut Report) {
    report.applied(Check::Untruthful);
    // A message whose id is not known may be leased: with another body, its grants do not tell which message it is.
    let any = lives.iter().any(|l| {
        may_hold_key(world, l, op, ret)
            && (l.may_have_had_another_id(world) || may_be_leased(world, l, op, ret))
    });
    if !any {
        complain(world, op, ret, "refused with leased, but nobody can have a message of this key", report);
    }
}

/// Checks an enqueue that was answered with an older message: that one must exist, and have this key.
fn kept(
    world: &World<'_>,
    op: &Op<'_>,
    ret: Point,
    id: crate::history::MsgId,
    lives: &[&Life<'_>],
    if_exists: IfExists,
    report: &mut Report,
) {
    report.applied(Check::Resurrected);
    if if_exists != IfExists::Keep {
        complain(world, op, ret, "kept an older message without having been asked to", report);
    }
    // The older message may be of an enqueue that was never answered, and so has no id yet.
    let nameless = lives.iter().any(|l| l.may_have_had_another_id(world) && may_hold_key(world, l, op, ret));
    // Of several messages with this id the last; the others were forgotten.
    let born = |l: &&&Life<'_>| l.born(world);
    match lives.iter().filter(|l| l.id == Some(id) && l.born(world) < ret.idx).max_by_key(born) {
        Some(life) => {
            if let Some((e, at)) = life.certain_end()
                && at.idx < op.inv.idx
            {
                let what = format!("was kept for another enqueue after it was {:?}", e.how);
                world.accuse(report, Check::Resurrected, life, what);
            } else if life.superseded.is_some_and(|at| at.idx < op.inv.idx) {
                let what = "was kept for another enqueue after it had lost its key".to_owned();
                world.accuse(report, Check::Resurrected, life, what);
            }
        }
        None if nameless => {}
        None => complain(world, op, ret, "kept a message that does not have this key", report),
    }
}

/// Checks an enqueue that took the key of a leased message: a consumer must have had that one.
fn superseded(
    world: &World<'_>,
    op: &Op<'_>,
    ret: Point,
    id: MsgId,
    lives: &[&Life<'_>],
    if_exists: IfExists,
    report: &mut Report,
) {
    report.applied(Check::Untruthful);
    if if_exists != IfExists::Supersede {
        complain(world, op, ret, "superseded an older message without having been asked to", report);
    }
    let born = |l: &&&Life<'_>| l.born(world);
    match lives.iter().filter(|l| l.id == Some(id) && l.born(world) < ret.idx).max_by_key(born) {
        Some(life) if !may_be_leased(world, life, op, ret) => {
            let what = "was said to be superseded, but nobody can have had it".to_owned();
            world.accuse(report, Check::Untruthful, life, what);
        }
        Some(_) => {}
        None if lives.iter().any(|l| l.may_have_had_another_id(world) && may_hold_key(world, l, op, ret)) => {
        }
        None => complain(world, op, ret, "superseded a message that does not have this key", report),
    }
}

pub(super) fn complain(world: &World<'_>, op: &Op<'_>, ret: Point, what: &str, report: &mut Report) {
    report.violations.push(Violation {
        check: Check::Untruthful,
        message: None,
        tag: None,
        what: what.to_owned(),
        story: vec![world.events[op.inv.idx].clone(), world.events[ret.idx].clone()],
    });
}

/// Answered ends of messages whose enqueue was never answered and that no client has seen: only their ids are known,
/// from an enqueue that kept them. They belong to one of the enqueues of unknown outcome.
fn nameless_ends(world: &World<'_>, queue: &str, how: How) -> u64 {
    let named: BTreeSet<MsgId> = world.lives.iter().filter_map(|life| life.id).collect();
    let ended = world.ops.iter().filter_map(|op| match (op.call, op.end, how) {
        (Call::Cancel(target), End::Ok(_, Answer::Cancelled(id)), How::Cancelled) => match target {
            Target::Key { queue: of, .. } if of != queue => None,
            Target::Key { .. } | Target::Id(_) => *id,
        },
        (Call::Enqueue(e), End::Ok(_, Answer::Enqueued { replaced, .. }), How::Replaced)
            if e.queue == queue =>
        {
            *replaced
        }
        (Call::Enqueue(e), End::Ok(_, Answer::Enqueued { superseded, .. }), How::Superseded)
            if e.queue == queue =>
        {
            *superseded
        }
        _ => None,
    });
    ended.filter(|id| !named.contains(id)).count() as u64
}

/// The system's totals lie between its answers and what it may have done besides.
fn totals(world: &World<'_>, report: &mut Report) {
    for (queue, at, totals) in &world.totals {
        report.applied(Check::Totals);
        let lives: Vec<&Life<'_>> = world.lives.iter().filter(|l| l.queue == *queue).collect();
        let certain = |how: How| {
            let is = |l: &&&Life<'_>| l.enders.iter().any(|e| e.certain && e.how == how);
            lives.iter().filter(is).count() as u64
        };
        let possible = |how: How| {
            let is = |l: &&&Life<'_>| l.enders.iter().any(|e| e.how == how);
            lives.iter().filter(is).count() as u64 + nameless_ends(world, queue, how)
        };
        let delivered = lives.iter().filter(|l| l.pushes.iter().any(|p| p.accepted().is_some()));
        let delivered = delivered.count() as u64;
        let kept = |l: &&&Life<'_>| l.exists.is_some() && !l.forgotten(world, usize::MAX);
        let existing = lives.iter().filter(kept).count() as u64;
        let maybe =
            lives.iter().filter(|l| l.exists.is_some() || l.sends.iter().any(|&s| world.ops[s].unknown()));
        let mut faults = Vec::new();
        let mut between = |name: &str, value: u64, least: u64, most: u64| {
            if value < least || value > most {
                faults.push(format!("{name} is {value}, should be {least}..={most}"));
            }
        };
        between("enqueued", totals.enqueued, existing, maybe.count() as u64);
        between("acked", totals.acked, certain(How::Acked), possible(How::Acked) + delivered);
        between("cancelled", totals.cancelled, certain(How::Cancelled), possible(How::Cancelled));
        between("replaced", totals.replaced, certain(How::Replaced), possible(How::Replaced));
        let (least, most) = (certain(How::Superseded), possible(How::Superseded));
        between("superseded", totals.superseded, least, most);
        between("purged", totals.purged, 0, possible(How::Purged));
        between("expired", totals.expired, certain(How::Expired), possible(How::Expired));
        if let Some((_, rows)) = world.dumps.get(queue) {
            let settled = totals.acked
                + totals.cancelled
                + totals.replaced
                + totals.superseded
                + totals.purged
                + totals.expired;
            let held = totals.enqueued.checked_sub(settled);
            if held != Some(rows.len() as u64) {
                faults.push(format!("{totals:?} do not leave the {} messages of the dump", rows.len()));
            }
        }
        if !faults.is_empty() {
            report.violations.push(Violation {
                check: Check::Totals,
                message: None,
                tag: None,
                what: format!("totals of queue {queue}: {}", faults.join("; ")),
                story: vec![world.events[at.idx].clone()],
            });
        }
    }
}
