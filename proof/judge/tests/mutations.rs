//! The checker's own mutant test, second half: clean histories of the toy with one thing changed.
//!
//! Each mutation is applied to a random place of random histories. Where it makes the history impossible it must be
//! caught, each time; a mutation that is sometimes legal names the share that must be.

use std::collections::{BTreeMap, BTreeSet};

use duewheel_judge::checker::{Check, check};
use duewheel_judge::history::{
    Answer, Call, Event, Grant, Held, History, MsgId, OpId, Refusal, State, Target, Token, What, When,
};
use duewheel_judge::model::run;
use duewheel_judge::rng::Rng;

const SEEDS: u64 = 25;

/// Changes a history; `None` if there is no place for it.
type Mutation = fn(&mut History, &mut Rng) -> Option<()>;

/// Name, what it does, checks of which one must fail, and in how many of a hundred histories at least.
#[rustfmt::skip]
const MUTATIONS: &[(&str, Mutation, &[Check], usize)] = &[
    ("an ack disappears", drop_ack, &[Check::Lost], 100),
    ("all of a message's grants and its ack disappear", drop_life, &[Check::Lost, Check::NotOffered], 100),
    ("a dead message disappears from the dump", drop_row, &[Check::Lost], 90),
    ("a delay was longer than it is", longer_delay, &[Check::Early], 100),
    ("a due time was later than it is", later_due, &[Check::Early], 100),
    ("a grant follows an ack", grant_after_ack, &[Check::GrantAfterAck], 100),
    ("a grant follows a cancel", grant_after_cancel, &[Check::GrantAfterCancel], 100),
    ("a token is used twice", same_token, &[Check::TokenOrder], 100),
    ("a token is older than the last", older_token, &[Check::TokenOrder], 100),
    ("an attempt is not counted", same_attempt, &[Check::Attempts], 100),
    ("an attempt is counted ten times", ten_attempts, &[Check::Attempts], 100),
    ("a body is changed", wrong_hash, &[Check::WrongBody], 100),
    ("two bodies are exchanged", swapped_bodies, &[Check::WrongBody], 100),
    ("a key is changed", wrong_key, &[Check::WrongBody], 100),
    ("two messages have one key", double_key, &[Check::DoubleKey], 80),
    ("a stale settle is accepted", accept_stale, &[Check::StaleSettle, Check::GrantAfterAck], 100),
    ("a settle of an acked message is accepted", accept_after_ack, &[Check::StaleSettle, Check::EndedTwice], 100),
    ("a holder is refused", refuse_holder, &[Check::WronglyRefused], 100),
    ("a lease was longer than it is", longer_lease, &[Check::LeaseBroken], 100),
    ("a dead message had fewer attempts", early_death, &[Check::DeadInexact, Check::Attempts], 100),
    ("an acked message is in the dump", row_of_acked, &[Check::Resurrected], 100),
    ("a late cancel wins", late_cancel, &[Check::EndedTwice, Check::GrantAfterCancel], 100),
    ("a cancel of a leased message wins", cancel_leased, &[Check::GrantAfterCancel], 60),
    ("a change of a leased message wins", change_leased, &[Check::ChangedWhileLeased], 20),
    ("a get of a living message finds nothing", get_nothing, &[Check::Untruthful], 50),
    ("a refused enqueue was granted", refused_enqueue, &[Check::Ghost], 100),
    ("one enqueue has two ids", two_ids, &[Check::Ghost], 100),
    ("a grant says a wrong lateness", wrong_lateness, &[Check::Lateness], 90),
    ("totals miss an ack", wrong_totals, &[Check::Totals], 50),
];

#[test]
fn each_mutation_is_caught() {
    let mut blind = Vec::new();
    let clean: Vec<History> = (0..SEEDS).map(|seed| run(seed, None)).collect();
    for (name, mutate, checks, share) in MUTATIONS {
        let (mut applied, mut caught) = (0, 0);
        let mut by: BTreeMap<Check, usize> = BTreeMap::new();
        for (seed, history) in (0..SEEDS).zip(&clean) {
            let mut history = history.clone();
            if mutate(&mut history, &mut Rng::new(seed)).is_none() {
                continue;
            }
            applied += 1;
            let failed = check(&history).failed();
            caught += usize::from(failed.iter().any(|c| checks.contains(c)));
            for check in failed {
                *by.entry(check).or_default() += 1;
            }
        }
        println!("{name}: {caught} of {applied}, by {by:?}");
        if applied < 10 || caught * 100 < applied * share {
            blind.push(format!("{name}: {caught} of {applied}, by {by:?}"));
        }
    }
    assert!(blind.is_empty(), "not caught:\n{}", blind.join("\n"));
}

// ---- places in a history ----

/// Positions of events, in random order.
fn places(h: &History, rng: &mut Rng) -> Vec<usize> {
    let mut all: Vec<(u64, usize)> = (0..h.events.len()).map(|i| (rng.bits(), i)).collect();
    all.sort_unstable();
    all.into_iter().map(|(_, i)| i).collect()
}

fn call_of(h: &History, op: OpId) -> Option<&Call> {
    h.events.iter().find_map(|e| match &e.what {
        What::Invoke { op: o, call } if *o == op => Some(call),
        _ => None,
    })
}

fn call_mut(h: &mut History, op: OpId) -> Option<&mut Call> {
    h.events.iter_mut().find_map(|e| match &mut e.what {
        What::Invoke { op: o, call } if *o == op => Some(call),
        _ => None,
    })
}

fn remove_op(h: &mut History, op: OpId) {
    h.events.retain(|e| match &e.what {
        What::Invoke { op: o, .. }
        | What::Ok { op: o, .. }
        | What::Fail { op: o, .. }
        | What::Info { op: o, .. } => *o != op,
        _ => true,
    });
}

/// A random event with this answer to this call.
fn answered(h: &History, rng: &mut Rng, wanted: impl Fn(&Call, &What) -> bool) -> Option<(usize, OpId)> {
    let mut calls: BTreeMap<OpId, &Call> = BTreeMap::new();
    for event in &h.events {
        if let What::Invoke { op, call } = &event.what {
            calls.insert(*op, call);
        }
    }
    places(h, rng).into_iter().find_map(|i| {
        let what = &h.events[i].what;
        let (What::Ok { op, .. } | What::Fail { op, .. }) = what else { return None };
        wanted(calls.get(op)?, what).then_some((i, *op))
    })
}

fn is_ok(what: &What) -> bool {
    matches!(what, What::Ok { .. })
}

/// All grants, in the order in which they were received: place, place within, message.
fn grants(h: &History) -> Vec<(usize, usize, MsgId)> {
    let mut all = Vec::new();
    for (i, event) in h.events.iter().enumerate() {
        if let What::Ok { answer: Answer::Grants(g), .. } = &event.what {
            all.extend(g.iter().enumerate().map(|(n, g)| (i, n, g.id)));
        }
    }
    all
}

fn grant_at(h: &mut History, (i, n, _): (usize, usize, MsgId)) -> Option<&mut Grant> {
    match &mut h.events[i].what {
        What::Ok { answer: Answer::Grants(g), .. } => g.get_mut(n),
        _ => None,
    }
}

/// Two successive grants of one message.
fn pair(h: &History, rng: &mut Rng) -> Option<[(usize, usize, MsgId); 2]> {
    let all = grants(h);
    let mut pairs = Vec::new();
    for (i, first) in all.iter().enumerate() {
        if let Some(second) = all[i + 1..].iter().find(|g| g.2 == first.2 && g.0 != first.0) {
            pairs.push([*first, *second]);
        }
    }
    // The second must have been asked for after the first was received, so that their order is known.
    pairs.retain(|[a, b]| {
        let What::Ok { op, .. } = &h.events[b.0].what else { return false };
        let asked = h.events.iter().position(|e| matches!(&e.what, What::Invoke { op: o, .. } if o == op));
        asked.is_some_and(|asked| asked > a.0)
    });
    rng.pick(&pairs).copied()
}

/// The enqueue that made a message, if it was answered.
fn enqueue_of(h: &History, id: MsgId) -> Option<OpId> {
    h.events.iter().find_map(|e| match &e.what {
        What::Ok { op, answer: Answer::Enqueued { id: i, created: true, .. } } if *i == id => Some(*op),
        _ => None,
    })
}

/// Messages that nothing in the history concerns but an answered enqueue, grants and settles.
fn untouched(h: &History) -> BTreeSet<MsgId> {
    let mut plain: BTreeSet<OpId> = BTreeSet::new();
    let mut ids: BTreeSet<MsgId> = BTreeSet::new();
    let mut touched: BTreeSet<MsgId> = BTreeSet::new();
    for event in &h.events {
        match &event.what {
            What::Invoke { op, call: Call::Enqueue(e) } if e.key.is_none() && e.dedupe_id.is_none() => {
                plain.insert(*op);
            }
            What::Invoke {
                call: Call::Cancel(t) | Call::Fire(t) | Call::Postpone { target: t, .. }, ..
            } => {
                if let Target::Id(id) = t {
                    touched.insert(*id);
                }
            }
            What::Ok { op, answer: Answer::Enqueued { id, created: true, .. } } if plain.contains(op) => {
                ids.insert(*id);
            }
            _ => {}
        }
    }
    &ids - &touched
}

/// The grants of such messages, in the order in which they were received.
fn untouched_grants(h: &History) -> Vec<(usize, usize, MsgId)> {
    let free = untouched(h);
    grants(h).into_iter().filter(|g| free.contains(&g.2)).collect()
}

/// An ack of such a message that was accepted.
fn acked(h: &History, rng: &mut Rng) -> Option<(OpId, MsgId)> {
    let free = untouched(h);
    let (_, op) = answered(h, rng, |call, what| match call {
        Call::Ack(proof) => is_ok(what) && free.contains(&proof.id),
        _ => false,
    })?;
    let Some(Call::Ack(proof)) = call_of(h, op) else { return None };
    Some((op, proof.id))
}

/// Answers a cancel of an id as if it had won.
fn win(h: &mut History, answer: usize, op: OpId) -> Option<()> {
    let Some(Call::Cancel(Target::Id(id))) = call_of(h, op).cloned() else { return None };
    h.events[answer].what = What::Ok { op, answer: Answer::Cancelled(Some(id)) };
    Some(())
}

fn end_of(h: &History) -> usize {
    h.events.iter().position(|e| matches!(e.what, What::Dump { .. })).unwrap_or(h.events.len())
}

/// Inserts a reserve with this grant before the dump.
fn append_grant(h: &mut History, grant: Grant) {
    let end = end_of(h);
    let at = h.events[end].at;
    let op = OpId(u64::MAX);
    let call = Call::Reserve { queue: "toy".to_owned(), max: 1, wait_ms: 0, lease_ms: Some(50) };
    h.events.insert(end, Event { at, client: 9, what: What::Invoke { op, call } });
    h.events
        .insert(end + 1, Event { at, client: 9, what: What::Ok { op, answer: Answer::Grants(vec![grant]) } });
}

fn fresh_token() -> Token {
    Token("ffff00000000".to_owned())
}

fn dump_rows(h: &mut History) -> Option<&mut Vec<Held>> {
    h.events.iter_mut().find_map(|e| match &mut e.what {
        What::Dump { rows, .. } => Some(rows),
        _ => None,
    })
}

fn sent_body(h: &History, id: MsgId) -> Option<duewheel_judge::history::Seen> {
    match call_of(h, enqueue_of(h, id)?)? {
        Call::Enqueue(e) => Some(e.body.seen()),
        _ => None,
    }
}

// ---- mutations ----

fn drop_ack(h: &mut History, rng: &mut Rng) -> Option<()> {
    let (op, _) = acked(h, rng)?;
    remove_op(h, op);
    Some(())
}

fn drop_life(h: &mut History, rng: &mut Rng) -> Option<()> {
    let (op, id) = acked(h, rng)?;
    remove_op(h, op);
    for event in &mut h.events {
        if let What::Ok { answer: Answer::Grants(g), .. } = &mut event.what {
            g.retain(|g| g.id != id);
        }
    }
    Some(())
}

fn drop_row(h: &mut History, rng: &mut Rng) -> Option<()> {
    let free = untouched(h);
    let dead: Vec<MsgId> = dump_rows(h)?.iter().map(|r| r.id).collect();
    let dead: Vec<MsgId> = dead.into_iter().filter(|id| free.contains(id)).collect();
    let id = *rng.pick(&dead)?;
    dump_rows(h)?.retain(|r| r.id != id);
    Some(())
}

fn lengthen(h: &mut History, rng: &mut Rng, absolute: bool) -> Option<()> {
    let all = untouched_grants(h);
    for _ in 0..50 {
        let place = *rng.pick(&all)?;
        let received = h.events[place.0].at;
        let op = enqueue_of(h, place.2)?;
        let sent = h.events.iter().find(|e| matches!(&e.what, What::Invoke { op: o, .. } if *o == op))?.at;
        if grant_at(h, place)?.attempt != 1 {
            continue;
        }
        if let Some(Call::Enqueue(e)) = call_mut(h, op) {
            match &mut e.when {
                When::DelayMs(ms) if !absolute => {
                    *ms = (received.mono_ns - sent.mono_ns) / 1_000_000 + 1;
                    return Some(());
                }
                When::AtMs(ms) if absolute => {
                    *ms = received.wall_ms + 1;
                    return Some(());
                }
                _ => {}
            }
        }
    }
    None
}

fn longer_delay(h: &mut History, rng: &mut Rng) -> Option<()> {
    lengthen(h, rng, false)
}

fn later_due(h: &mut History, rng: &mut Rng) -> Option<()> {
    lengthen(h, rng, true)
}

fn grant_after_ack(h: &mut History, rng: &mut Rng) -> Option<()> {
    let (_, op) = answered(h, rng, |call, what| matches!(call, Call::Ack(_)) && is_ok(what))?;
    let Some(Call::Ack(proof)) = call_of(h, op).cloned() else { return None };
    let all = grants(h);
    let place = *all.iter().rev().find(|g| g.2 == proof.id)?;
    let mut grant = grant_at(h, place)?.clone();
    grant.attempt += 1;
    grant.token = fresh_token();
    append_grant(h, grant);
    Some(())
}

fn grant_after_cancel(h: &mut History, rng: &mut Rng) -> Option<()> {
    let (i, _) = answered(h, rng, |_, what| match what {
        What::Ok { answer: Answer::Cancelled(Some(id)), .. } => {
            sent_body(h, *id).is_some() && !grants(h).iter().any(|g| g.2 == *id)
        }
        _ => false,
    })?;
    let What::Ok { answer: Answer::Cancelled(Some(id)), .. } = h.events[i].what else { return None };
    let Some(Call::Enqueue(e)) = call_of(h, enqueue_of(h, id)?) else { return None };
    let grant = Grant {
        id,
        token: fresh_token(),
        attempt: 1,
        key: e.key.clone(),
        body: e.body.seen(),
        lateness_ms: 0,
        late: false,
    };
    append_grant(h, grant);
    Some(())
}

fn same_token(h: &mut History, rng: &mut Rng) -> Option<()> {
    let [a, b] = pair(h, rng)?;
    grant_at(h, b)?.token = grant_at(h, a)?.token.clone();
    Some(())
}

fn older_token(h: &mut History, rng: &mut Rng) -> Option<()> {
    let [_, b] = pair(h, rng)?;
    grant_at(h, b)?.token = Token("000000000000".to_owned());
    Some(())
}

fn same_attempt(h: &mut History, rng: &mut Rng) -> Option<()> {
    let [a, b] = pair(h, rng)?;
    grant_at(h, b)?.attempt = grant_at(h, a)?.attempt;
    Some(())
}

fn ten_attempts(h: &mut History, rng: &mut Rng) -> Option<()> {
    let all = untouched_grants(h);
    let place = *rng.pick(&all)?;
    // More than reserves can have been lost.
    grant_at(h, place)?.attempt += 200;
    Some(())
}

fn wrong_hash(h: &mut History, rng: &mut Rng) -> Option<()> {
    let place = *rng.pick(&grants(h))?;
    grant_at(h, place)?.body.hash ^= 1;
    Some(())
}

fn swapped_bodies(h: &mut History, rng: &mut Rng) -> Option<()> {
    let all = grants(h);
    let (a, b) = (*rng.pick(&all)?, *rng.pick(&all)?);
    if a.2 == b.2 || enqueue_of(h, a.2).is_none() {
        return None;
    }
    let body = grant_at(h, b)?.body;
    grant_at(h, a)?.body = body;
    Some(())
}

fn wrong_key(h: &mut History, rng: &mut Rng) -> Option<()> {
    let place = *rng.pick(&grants(h))?;
    grant_at(h, place)?.key = Some("not mine".to_owned());
    Some(())
}

fn double_key(h: &mut History, rng: &mut Rng) -> Option<()> {
    let free = untouched(h);
    // Two keyless messages that provably live at the same time: each accepted before either was granted.
    let all = grants(h);
    let mut firsts: BTreeMap<MsgId, usize> = BTreeMap::new();
    for (i, _, id) in &all {
        let What::Ok { op, .. } = &h.events[*i].what else { continue };
        let asked = h.events.iter().position(|e| matches!(&e.what, What::Invoke { op: o, .. } if o == op))?;
        firsts.entry(*id).and_modify(|f| *f = asked.min(*f)).or_insert(asked);
    }
    let mut spans = Vec::new();
    for (id, granted) in firsts {
        if free.contains(&id) {
            let op = enqueue_of(h, id)?;
            let accepted =
                h.events.iter().position(|e| matches!(&e.what, What::Ok { op: o, .. } if *o == op))?;
            spans.push((id, accepted, granted));
        }
    }
    let mut pairs = Vec::new();
    for a in &spans {
        for b in &spans {
            if a.0 < b.0 && a.1 < b.2 && b.1 < a.2 {
                pairs.push((a.0, b.0));
            }
        }
    }
    let (a, b) = *rng.pick(&pairs)?;
    for id in [a, b] {
        let op = enqueue_of(h, id)?;
        if let Some(Call::Enqueue(e)) = call_mut(h, op) {
            e.key = Some("both".to_owned());
        }
        for event in &mut h.events {
            match &mut event.what {
                What::Ok { answer: Answer::Grants(g), .. } => {
                    for g in g.iter_mut().filter(|g| g.id == id) {
                        g.key = Some("both".to_owned());
                    }
                }
                What::Ok { answer: Answer::Found(row), .. } if row.id == id => {
                    row.key = Some("both".to_owned())
                }
                What::Dump { rows, .. } => {
                    for row in rows.iter_mut().filter(|r| r.id == id) {
                        row.key = Some("both".to_owned());
                    }
                }
                _ => {}
            }
        }
    }
    Some(())
}

fn settle_again(h: &mut History, rng: &mut Rng, ended: bool) -> Option<()> {
    // A settle of its own at the end, with the first of several tokens or the token that was acked.
    let (id, token) = if ended {
        let (_, op) = answered(h, rng, |call, what| matches!(call, Call::Ack(_)) && is_ok(what))?;
        match call_of(h, op)? {
            Call::Ack(proof) => (proof.id, proof.token.clone()),
            _ => return None,
        }
    } else {
        let [a, _] = pair(h, rng)?;
        (a.2, grant_at(h, a)?.token.clone())
    };
    let end = end_of(h);
    let at = h.events[end].at;
    let op = OpId(u64::MAX);
    let proof = duewheel_judge::history::Proof { id, token };
    let call = if rng.percent(50) { Call::Ack(proof) } else { Call::Nack { proof, delay_ms: Some(0) } };
    h.events.insert(end, Event { at, client: 9, what: What::Invoke { op, call } });
    h.events.insert(end + 1, Event { at, client: 9, what: What::Ok { op, answer: Answer::Settled } });
    Some(())
}

fn accept_stale(h: &mut History, rng: &mut Rng) -> Option<()> {
    settle_again(h, rng, false)
}

fn accept_after_ack(h: &mut History, rng: &mut Rng) -> Option<()> {
    settle_again(h, rng, true)
}

fn refuse_holder(h: &mut History, rng: &mut Rng) -> Option<()> {
    let free = untouched(h);
    // An ack that was answered well within its lease; what ends the message then is another ack.
    let all = grants(h);
    for _ in 0..100 {
        let (i, op) = answered(h, rng, |call, what| matches!(call, Call::Ack(_)) && is_ok(what))?;
        let Some(Call::Ack(proof)) = call_of(h, op).cloned() else { return None };
        if !free.contains(&proof.id) {
            continue;
        }
        let settles = h.events.iter().filter(|e| match &e.what {
            What::Invoke {
                call: Call::Ack(p) | Call::Nack { proof: p, .. } | Call::Extend { proof: p, .. },
                ..
            } => p.token == proof.token,
            _ => false,
        });
        if settles.count() != 1 {
            continue;
        }
        let Some(place) = all.iter().find(|g| {
            g.2 == proof.id && {
                let What::Ok { answer: Answer::Grants(list), .. } = &h.events[g.0].what else { return false };
                list[g.1].token == proof.token
            }
        }) else {
            continue;
        };
        let What::Ok { op: reserve, .. } = h.events[place.0].what else { continue };
        let Some(Call::Reserve { lease_ms: Some(lease_ms), .. }) = call_of(h, reserve) else { continue };
        let asked =
            h.events.iter().find(|e| matches!(&e.what, What::Invoke { op: o, .. } if *o == reserve))?;
        if h.events[i].at.mono_ns < asked.at.mono_ns + lease_ms * 1_000_000 {
            h.events[i].what = What::Fail { op, refusal: Refusal::LeaseLost };
            return Some(());
        }
    }
    None
}

fn longer_lease(h: &mut History, rng: &mut Rng) -> Option<()> {
    for _ in 0..50 {
        let [a, _] = pair(h, rng)?;
        let token = grant_at(h, a)?.token.clone();
        let settled = h.events.iter().any(|e| match &e.what {
            What::Invoke { call: Call::Nack { proof, .. } | Call::Extend { proof, .. }, .. } => {
                proof.token == token
            }
            _ => false,
        });
        if settled {
            continue;
        }
        let What::Ok { op, .. } = h.events[a.0].what else { continue };
        if let Some(Call::Reserve { lease_ms, .. }) = call_mut(h, op) {
            *lease_ms = Some(60_000);
            return Some(());
        }
    }
    None
}

fn early_death(h: &mut History, rng: &mut Rng) -> Option<()> {
    let rows = dump_rows(h)?;
    let n = usize::try_from(rng.below(rows.len() as u64)).ok()?;
    rows.get_mut(n)?.attempt -= 1;
    Some(())
}

fn row_of_acked(h: &mut History, rng: &mut Rng) -> Option<()> {
    let (_, id) = acked(h, rng)?;
    let body = sent_body(h, id);
    dump_rows(h)?.push(Held {
        id,
        key: None,
        state: State::Ready,
        attempt: 1,
        body,
        forgiven: None,
        death: None,
    });
    Some(())
}

fn late_cancel(h: &mut History, rng: &mut Rng) -> Option<()> {
    let settled: BTreeSet<OpId> = h
        .events
        .iter()
        .filter_map(|e| match e.what {
            What::Ok { op, answer: Answer::Settled } => Some(op),
            _ => None,
        })
        .collect();
    let acked: BTreeSet<MsgId> = h
        .events
        .iter()
        .filter_map(|e| match &e.what {
            What::Invoke { op, call: Call::Ack(p) } if settled.contains(op) => Some(p.id),
            _ => None,
        })
        .collect();
    let (i, op) = answered(h, rng, |call, what| match (call, what) {
        (Call::Cancel(Target::Id(id)), What::Fail { refusal: Refusal::NotFound, .. }) => acked.contains(id),
        _ => false,
    })?;
    win(h, i, op)
}

fn cancel_leased(h: &mut History, rng: &mut Rng) -> Option<()> {
    let (i, op) = answered(h, rng, |call, what| match (call, what) {
        (Call::Cancel(Target::Id(_)), What::Fail { refusal, .. }) => *refusal == Refusal::Leased,
        _ => false,
    })?;
    win(h, i, op)
}

fn change_leased(h: &mut History, rng: &mut Rng) -> Option<()> {
    let (i, op) = answered(h, rng, |call, what| {
        let named = matches!(call, Call::Fire(Target::Id(_)) | Call::Postpone { target: Target::Id(_), .. });
        named && matches!(what, What::Fail { refusal: Refusal::Leased, .. })
    })?;
    h.events[i].what = What::Ok { op, answer: Answer::Changed(None) };
    Some(())
}

fn get_nothing(h: &mut History, rng: &mut Rng) -> Option<()> {
    let (i, op) = answered(h, rng, |call, what| matches!(call, Call::Get(Target::Id(_))) && is_ok(what))?;
    h.events[i].what = What::Fail { op, refusal: Refusal::NotFound };
    Some(())
}

fn refused_enqueue(h: &mut History, rng: &mut Rng) -> Option<()> {
    let all = untouched_grants(h);
    let op = enqueue_of(h, rng.pick(&all)?.2)?;
    let i = h.events.iter().position(|e| matches!(&e.what, What::Ok { op: o, .. } if *o == op))?;
    h.events[i].what = What::Fail { op, refusal: Refusal::Other("overloaded".to_owned()) };
    Some(())
}

fn two_ids(h: &mut History, rng: &mut Rng) -> Option<()> {
    let place = *rng.pick(&grants(h))?;
    grant_at(h, place)?.id = MsgId(1_000_000);
    // The rest of its life keeps the old id; without any the enqueue's answer does.
    enqueue_of(h, place.2).map(|_| ())
}

fn wrong_lateness(h: &mut History, rng: &mut Rng) -> Option<()> {
    let mut all = untouched_grants(h);
    all.retain(|g| grant_at(h, *g).is_some_and(|g| g.attempt == 1));
    let place = *rng.pick(&all)?;
    grant_at(h, place)?.lateness_ms += 1_000;
    Some(())
}

fn wrong_totals(h: &mut History, _: &mut Rng) -> Option<()> {
    h.events.iter_mut().find_map(|e| match &mut e.what {
        What::Totals { totals, .. } => {
            totals.acked -= 1;
            Some(())
        }
        _ => None,
    })
}
