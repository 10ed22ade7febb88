//! Converts a list of events to operations, and operations to messages.

use std::collections::BTreeMap;

use crate::history::{
    Answer, Call, Enqueue, Fault, History, IfExists, MsgId, OpId, PushId, Seen, Target, Told, Unanswered,
    What,
};
use crate::pushes::parts_of;

use super::life::{Granted, Life, Pushed};
use super::names::Names;
use super::op::{End, NS, Op, Point};
use super::world::{Failover, Lost, World};
use super::{Check, Report, Violation};

impl<'h> World<'h> {
    pub(super) fn new(history: &'h History, report: &mut Report) -> Self {
        let mut world = World {
            events: &history.events,
            rules: history.rules,
            ops: Vec::new(),
            lives: Vec::new(),
            keys: BTreeMap::new(),
            lost_reserves: BTreeMap::new(),
            reserves: BTreeMap::new(),
            limits: BTreeMap::new(),
            empty_reserves: BTreeMap::new(),
            slow_reserves: BTreeMap::new(),
            dumps: BTreeMap::new(),
            totals: Vec::new(),
            pushed: BTreeMap::new(),
            pushes: Vec::new(),
            faults: Vec::new(),
            closings: BTreeMap::new(),
            downs: Vec::new(),
            stalls: Vec::new(),
            pauses: Vec::new(),
            blows: Vec::new(),
            failovers: Vec::new(),
            down_since: None,
            phases: Vec::new(),
        };
        world.read_events();
        let mut names = world.make_lives(report);
        world.attach_observations(&mut names, report);
        world.attach_pushes(&mut names, report);
        world.attach_operations(&names);
        world.bound_grants();
        world.find_enders(&names);
        world.find_expiries();
        world
    }

    fn read_events(&mut self) {
        let mut by_id: BTreeMap<OpId, usize> = BTreeMap::new();
        let mut open: Vec<usize> = Vec::new();
        let mut down = Some(Point { idx: 0, ns: 0, wall: 0 });
        let mut paused = None;
        let mut by_push: BTreeMap<PushId, usize> = BTreeMap::new();
        let (mut struck, mut last_blow) = (None, None);
        for (idx, event) in self.events.iter().enumerate() {
            let at = Point::new(idx, event.at);
            match &event.what {
                What::Invoke { op, call } => {
                    by_id.insert(*op, self.ops.len());
                    open.push(self.ops.len());
                    self.ops.push(Op {
                        call,
                        inv: at,
                        end: End::Unknown,
                        latest: Point::NEVER,
                        info_idx: None,
                    });
                }
                What::Ok { op, answer } => self.close(&by_id, *op, at, End::Ok(at, answer)),
                What::Fail { op, refusal } => self.close(&by_id, *op, at, End::Fail(at, refusal)),
                What::Info { op, .. } => {
                    if let Some(&i) = by_id.get(op) {
                        self.ops[i].info_idx = Some(idx);
                    }
                }
                What::Fault(fault) => {
                    self.faults.push((at, fault));
                    match fault {
                        Fault::Started => self.downs.extend(down.take().map(|since| (since, at))),
                        Fault::Killed(_) | Fault::Stopped | Fault::PowerLoss => {
                            down.get_or_insert(at);
                            for i in open.drain(..) {
                                if self.ops[i].latest == Point::NEVER {
                                    self.ops[i].latest = at;
                                }
                            }
                        }
                        Fault::Stalled => self.stalls.push(at),
                        Fault::Paused => paused = Some(at),
                        Fault::Resumed => self.pauses.extend(paused.take().map(|since| (since, at))),
                        Fault::Struck(_) => {
                            struck.get_or_insert(at);
                            last_blow = Some(at);
                        }
                        Fault::FailedOver => self.failovers.push(Failover {
                            begin: last_blow.unwrap_or(at),
                            end: at,
                            kept_ns: last_blow
                                .unwrap_or(at)
                                .ns
                                .saturating_sub(self.rules.failover_ms.saturating_mul(NS)),
                        }),
                        Fault::Healed => self.blows.extend(struck.take().map(|since| (since, at))),
                        Fault::ClockStep { .. } | Fault::Slewed { .. } | Fault::Other(_) => {}
                    }
                }
                What::Closing => self.closings.entry(event.client).or_default().push(idx),
                What::Phase(name) => self.phases.push((at, name)),
                What::Dump { queue, rows } => {
                    self.dumps.insert(queue, (at, rows));
                }
                What::Totals { queue, totals } => self.totals.push((queue, at, *totals)),
                What::Pushed(pushed) => {
                    self.pushed.insert(&pushed.queue, pushed);
                }
                What::PushSeen(seen) => {
                    by_push.insert(seen.push, self.pushes.len());
                    self.pushes.push(Pushed { seen, read: at, answered: None });
                }
                What::PushAnswered { push, answer } => {
                    if let Some(&i) = by_push.get(push) {
                        self.pushes[i].answered = Some((at, *answer));
                    }
                }
            }
        }
        self.down_since = down;
        self.blows.extend(struck.map(|since| (since, Point::NEVER)));
        let mut lingering = BTreeMap::new();
        if let Unanswered::ForMs(ms) = self.rules.unanswered {
            lingering = self.unanswered_for(ms.saturating_mul(NS));
        }
        for i in 0..self.ops.len() {
            let op = &self.ops[i];
            if let (Call::Limit { queue, .. }, true) = (op.call, op.possible()) {
                self.limits.entry(queue).or_default().push(i);
            }
            if let Call::Reserve { queue, .. } = op.call {
                if op.possible() {
                    self.reserves.entry(queue).or_default().push(i);
                }
                match op.end {
                    End::Unknown => {
                        self.lost_reserves.entry(queue).or_default().push(Lost { op: i, latest: op.latest });
                    }
                    End::Ok(ret, answer) => {
                        if let Some(&latest) = lingering.get(&i) {
                            self.lost_reserves.entry(queue).or_default().push(Lost { op: i, latest });
                        }
                        if matches!(answer, Answer::Grants(grants) if grants.is_empty()) {
                            self.empty_reserves.entry(queue).or_default().push(i);
                        }
                        if ret.ns.saturating_sub(op.inv.ns) > (self.rules.offer_ms + self.rules.slack_ms) * NS
                        {
                            self.slow_reserves.entry(queue).or_default().push(i);
                        }
                    }
                    End::Fail(..) => {}
                }
            }
        }
    }

    /// Sets the latest effect of operations that were given up. The same applies to the grants of a reserve during a
    /// fault, or of one that took long: it asks several parts, and is answered with the grants of those that respond;
    /// grants of the others reach no client.
    fn unanswered_for(&mut self, ns: u64) -> BTreeMap<usize, Point> {
        // The stamps are in the order of the list.
        let invocations: Vec<Point> = self.ops.iter().map(|op| op.inv).collect();
        for op in &mut self.ops {
            let Some(info) = op.info_idx.filter(|_| op.latest == Point::NEVER) else { continue };
            let until = self.events[info].at.mono_ns.saturating_add(ns);
            let first = invocations.partition_point(|inv| inv.ns <= until);
            op.latest = invocations.get(first).copied().unwrap_or(Point::NEVER);
        }
        let met = self.ops.iter().enumerate().filter_map(|(i, op)| {
            let ret = op.done().filter(|_| matches!(op.call, Call::Reserve { .. }))?;
            let met = self.blows.iter().any(|(begin, end)| op.inv.idx < end.idx && begin.idx < ret.idx);
            let partial = self.rules.partial_ms.saturating_mul(NS);
            let met = met || (partial > 0 && ret.ns.saturating_sub(op.inv.ns) >= partial);
            let first = invocations.partition_point(|inv| inv.ns <= ret.ns.saturating_add(ns));
            met.then(|| (i, invocations.get(first).copied().unwrap_or(Point::NEVER)))
        });
        met.collect()
    }

    fn close(&mut self, by_id: &BTreeMap<OpId, usize>, op: OpId, at: Point, end: End<'h>) {
        if let Some(&i) = by_id.get(&op) {
            self.ops[i].end = end;
            self.ops[i].latest = at;
        }
    }

    /// One life for each tag that was enqueued.
    fn make_lives(&mut self, report: &mut Report) -> Names {
        let mut names = Names::default();
        for i in 0..self.ops.len() {
            match self.ops[i].call {
                Call::Enqueue(e) => self.add_send(i, e, &mut names, report),
                Call::Postpone { body: Some(payload), .. } => {
                    names.patches.insert(payload.tag, (i, *payload));
                }
                _ => {}
            }
        }
        names
    }

    fn add_send(&mut self, i: usize, e: &'h Enqueue, names: &mut Names, report: &mut Report) {
        let life = *names.tags.entry(e.body.tag).or_insert_with(|| {
            self.lives.push(Life {
                tag: Some(e.body.tag),
                queue: e.queue.clone(),
                key: e.key.clone(),
                max_attempts: e.max_attempts.unwrap_or_else(|| self.max_attempts(&e.queue)),
                lease_ms: e.lease_ms,
                spread_ms: e.spread_ms,
                expiry: e.expiry,
                ..Life::default()
            });
            self.lives.len() - 1
        });
        self.lives[life].sends.push(i);
        if let End::Ok(at, Answer::Enqueued { id, created: true, .. }) = self.ops[i].end {
            self.name(life, *id, at, names, report);
        }
    }

    /// Records that a life has this id, which was seen at this point.
    fn name(&mut self, life: usize, id: MsgId, at: Point, names: &mut Names, report: &mut Report) {
        report.applied(Check::Ghost);
        if let Some(old) = self.lives[life].id
            && old != id
            && !self.made_twice(life, at)
        {
            let what = format!("one enqueue shows up under two ids, {} and {}", old.0, id.0);
            self.blame(report, Check::Ghost, life, what);
            return;
        }
        let exists = &mut self.lives[life].exists;
        if exists.is_none_or(|p| at.idx < p.idx) {
            *exists = Some(at);
        }
        let sends = self.lives[life].sends.iter().map(|&send| self.ops[send].inv.idx);
        let since = sends.filter(|inv| *inv < at.idx).max().unwrap_or(at.idx);
        let mut since = since;
        let others: Vec<(usize, usize)> = names.ids.get(&id).cloned().unwrap_or_default();
        for (other_since, other) in others.into_iter().filter(|(_, l)| *l != life) {
            // The message that was seen first must be forgotten when the other is seen. An enqueue may have waited for
            // that, so its invocation says nothing about the order.
            let seen = |l: usize| self.lives[l].exists.map_or(at.idx, |p| p.idx);
            let (old, young) = if seen(other) <= seen(life) { (other, life) } else { (life, other) };
            let forgotten = self.lives[old].forgotten_at(self);
            if forgotten >= seen(young) {
                let what = format!("id {} was given to two enqueues", id.0);
                self.blame(report, Check::Ghost, life, what);
                return;
            }
            if old == other {
                since = since.max(forgotten).max(other_since + 1);
            } else {
                names.put_off(id, other, forgotten.max(since + 1));
            }
        }
        names.add(id, since, life);
        self.lives[life].id = Some(id);
    }

    /// Whether a failover may have forgotten the message of an enqueue's first attempt, so that a retry has made it
    /// again: one of the two was seen here and the other at another point.
    fn made_twice(&self, life: usize, at: Point) -> bool {
        let life = &self.lives[life];
        let Some(exists) = life.exists else { return false };
        let (first, then) = if exists.idx < at.idx { (exists, at) } else { (at, exists) };
        let born = life.sends.iter().map(|&s| self.ops[s].inv).min_by_key(|inv| inv.idx);
        born.is_some_and(|born| self.failovers.iter().any(|f| f.may_undo(born, first, then.idx)))
    }

    /// Attaches grants, gets and the dump: they prove that a message exists, and identify it.
    fn attach_observations(&mut self, names: &mut Names, report: &mut Report) {
        for i in 0..self.ops.len() {
            let (inv, call) = (self.ops[i].inv, self.ops[i].call);
            let End::Ok(ret, answer) = self.ops[i].end else { continue };
            match (call, answer) {
                (Call::Reserve { queue, lease_ms, .. }, Answer::Grants(grants)) => {
                    for grant in grants {
                        let seen =
                            Sight { id: grant.id, queue, key: grant.key.as_deref(), body: Some(grant.body) };
                        let Some(life) = self.sight(&seen, ret, names, report) else { continue };
                        let lease_ns = self.lease_ns(&self.lives[life], *lease_ms);
                        self.lives[life].grants.push(Granted {
                            op: i,
                            grant,
                            inv,
                            ret,
                            least: inv,
                            most: ret,
                            lease_ns,
                        });
                    }
                }
                (Call::Get(target), Answer::Found(row)) => {
                    let queue = match target {
                        Target::Key { queue, .. } => queue.clone(),
                        Target::Id(_) => {
                            let tagged = row.body.and_then(|b| b.tag).and_then(|t| names.tags.get(&t));
                            let known = names.of(row.id, ret.idx).or(tagged.copied());
                            known.map(|l| self.lives[l].queue.clone()).unwrap_or_default()
                        }
                    };
                    let seen = Sight { id: row.id, queue: &queue, key: row.key.as_deref(), body: row.body };
                    if let Some(life) = self.sight(&seen, ret, names, report) {
                        self.lives[life].gets.push(i);
                    }
                }
                _ => {}
            }
        }
        for (queue, (at, rows)) in self.dumps.clone() {
            for row in rows {
                let seen = Sight { id: row.id, queue, key: row.key.as_deref(), body: row.body };
                let Some(life) = self.sight(&seen, at, names, report) else { continue };
                if self.lives[life].held.replace((at, row)).is_some() {
                    self.blame(report, Check::Ghost, life, "the dump shows the message twice".to_owned());
                }
            }
        }
        for life in &mut self.lives {
            life.grants.sort_by(|a, b| (&a.grant.token, a.ret.idx).cmp(&(&b.grant.token, b.ret.idx)));
        }
    }

    /// Attaches what the receiver of pushes has read, as [`World::attach_observations`] does.
    fn attach_pushes(&mut self, names: &mut Names, report: &mut Report) {
        for push in self.pushes.clone() {
            let Some((_, id, _)) = parts_of(&push.seen.webhook_id) else {
                report.violations.push(Violation {
                    check: Check::WebhookId,
                    message: None,
                    tag: push.seen.body.tag,
                    what: format!("a request with the webhook-id {:?}", push.seen.webhook_id),
                    story: self.events[push.read.idx..=push.read.idx].to_vec(),
                });
                continue;
            };
            let (queue, key) = (push.seen.queue.as_str(), push.seen.key.as_deref());
            let seen = Sight { id: MsgId(id), queue, key, body: Some(push.seen.body) };
            if let Some(life) = self.sight(&seen, push.read, names, report) {
                self.lives[life].pushes.push(push);
            }
        }
    }

    /// Attempts of a message of this queue that has no limit of its own.
    fn max_attempts(&self, queue: &str) -> u64 {
        self.pushed.get(queue).map_or(self.rules.max_attempts, |pushed| pushed.max_attempts)
    }

    /// Finds the life of an observation, and compares body, key and queue.
    fn sight(&mut self, s: &Sight<'_>, at: Point, names: &mut Names, report: &mut Report) -> Option<usize> {
        report.applied(Check::WrongBody);
        let tagged = s.body.and_then(|b| b.tag);
        let by_tag = tagged.and_then(|t| names.tags.get(&t).copied());
        let by_id = names.of_either(s.id, at.idx, by_tag);
        // An id that was forgotten may be another message's now, which the body shows.
        let anew =
            |l: &usize| by_tag.is_some_and(|tagged| tagged != *l) && self.lives[*l].forgotten(self, at.idx);
        let life = match (by_id.filter(|l| !anew(l)), by_tag) {
            (Some(life), _) => life,
            (None, Some(life)) => {
                self.name(life, s.id, at, names, report);
                life
            }
            // A new body for a message whose enqueue was never answered: a life about which nothing else is known.
            (None, None) if tagged.is_some_and(|t| names.patches.contains_key(&t)) => {
                let life = Life { queue: s.queue.to_owned(), max_attempts: u64::MAX, ..Life::default() };
                self.lives.push(Life { key: s.key.map(str::to_owned), ..life });
                let life = self.lives.len() - 1;
                self.name(life, s.id, at, names, report);
                life
            }
            // A row without a body may belong to an enqueue without an answer; nothing can be concluded from it.
            (None, None) if s.body.is_none() => return None,
            (None, None) => {
                report.violations.push(Violation {
                    check: Check::Ghost,
                    message: Some(s.id),
                    tag: tagged,
                    what: format!("a body that nobody has sent: {:?}", s.body),
                    story: self.events[at.idx..=at.idx].to_vec(),
                });
                return None;
            }
        };
        self.compare(life, s, at, names, report);
        let exists = &mut self.lives[life].exists;
        if exists.is_none_or(|p| at.idx < p.idx) {
            *exists = Some(at);
        }
        Some(life)
    }

    fn compare(&self, life: usize, s: &Sight<'_>, at: Point, names: &Names, report: &mut Report) {
        let l = &self.lives[life];
        if let Some(body) = s.body {
            let sent = l.sends.iter().filter_map(|&i| match self.ops[i].call {
                Call::Enqueue(e) => Some(e.body.seen()),
                _ => None,
            });
            let patched = body.tag.and_then(|t| names.patches.get(&t)).filter(|(op, _)| {
                let op = &self.ops[*op];
                let meant = match op.call {
                    Call::Postpone { target: Target::Id(id), .. } => *id == s.id,
                    Call::Postpone { target: Target::Key { queue, key }, .. } => {
                        *queue == l.queue && Some(key) == l.key.as_ref()
                    }
                    _ => false,
                };
                meant && op.possible() && op.inv.idx < at.idx
            });
            if !sent.into_iter().chain(patched.map(|(_, p)| p.seen())).any(|b| b == body) {
                let what = format!("came back with a body that was not its own: {body:?}");
                self.blame(report, Check::WrongBody, life, what);
            }
        }
        let unknown = s.queue.is_empty() || l.queue.is_empty();
        let lost = s.key.is_none() && self.may_be_superseded(l, s.id, at);
        let another = self.rules.keys == Told::Yes && s.key != l.key.as_deref() && !lost;
        if (s.queue != l.queue && !unknown) || another {
            let what = format!("came back under queue {:?} and key {:?}", s.queue, s.key);
            self.blame(report, Check::WrongBody, life, what);
        }
        report.applied(Check::Ghost);
        let accepted = l.sends.is_empty()
            || l.sends.iter().any(|&i| {
                let op = &self.ops[i];
                let created = !matches!(op.end, End::Ok(_, Answer::Enqueued { created: false, .. }));
                op.possible() && created && op.inv.idx < at.idx
            });
        if !accepted {
            self.blame(report, Check::Ghost, life, "was refused, and shows nevertheless".to_owned());
        }
    }

    /// Whether another message may have taken the key of one, which had it with this id, before a point.
    fn may_be_superseded(&self, life: &Life<'_>, id: MsgId, before: Point) -> bool {
        self.ops.iter().take_while(|op| op.inv.idx < before.idx).any(|op| {
            let Call::Enqueue(e) = op.call else { return false };
            let same = e.queue == life.queue && e.key == life.key && e.if_exists == IfExists::Supersede;
            same && match op.end {
                End::Ok(_, Answer::Enqueued { superseded, .. }) => *superseded == Some(id),
                End::Ok(..) | End::Fail(..) => false,
                End::Unknown => true,
            }
        })
    }

    fn attach_operations(&mut self, names: &Names) {
        for (l, life) in self.lives.iter().enumerate() {
            if let Some(key) = &life.key {
                self.keys.entry((life.queue.clone(), key.clone())).or_default().push(l);
            }
        }
        for i in 0..self.ops.len() {
            let (call, end) = (self.ops[i].call, self.ops[i].end);
            match call {
                Call::Ack(proof) | Call::Bury(proof) => {
                    self.attach(names, proof.id, i, |l| l.settles.push(i));
                }
                Call::Nack { proof, .. } | Call::Extend { proof, .. } => {
                    self.attach(names, proof.id, i, |l| l.settles.push(i));
                }
                Call::Redrive(id) => self.attach(names, *id, i, |l| l.changes.push(i)),
                Call::Get(Target::Id(id)) => {
                    if !matches!(end, End::Ok(..)) {
                        self.attach(names, *id, i, |l| l.gets.push(i));
                    }
                }
                Call::Cancel(target) | Call::Postpone { target, .. } | Call::Fire(target) => {
                    let answered = match end {
                        End::Ok(_, Answer::Cancelled(id) | Answer::Changed(id)) => *id,
                        End::Ok(..) | End::Fail(..) | End::Unknown => None,
                    };
                    match (answered, target) {
                        (Some(id), _) if names.ids.contains_key(&id) => self.attach_change(names, id, i),
                        (_, Target::Id(id)) => self.attach_change(names, *id, i),
                        // By key: an answered id about which nothing else is known is that of an unanswered enqueue.
                        (named, Target::Key { queue, key }) => {
                            let lives =
                                self.keys.get(&(queue.clone(), key.clone())).cloned().unwrap_or_default();
                            for l in lives {
                                if named.is_none() || self.lives[l].may_have_had_another_id(self) {
                                    self.lives[l].loose.push(i);
                                }
                            }
                        }
                    }
                }
                Call::Enqueue(_)
                | Call::Get(Target::Key { .. })
                | Call::Reserve { .. }
                | Call::Purge { .. }
                | Call::Limit { .. } => {}
            }
        }
    }

    fn attach(&mut self, names: &Names, id: MsgId, op: usize, to: impl FnOnce(&mut Life<'h>)) {
        if let Some(&l) = names.between(id, self.ops[op].inv.idx, 0).first() {
            to(&mut self.lives[l]);
        }
    }

    /// A change of an id while it was given again may concern either message.
    fn attach_change(&mut self, names: &Names, id: MsgId, op: usize) {
        let lives = names.between(id, self.ops[op].inv.idx, self.ops[op].latest.idx);
        for &l in &lives {
            let life = &mut self.lives[l];
            if lives.len() == 1 { life.changes.push(op) } else { life.loose.push(op) }
        }
    }
}

/// An observation of a message.
struct Sight<'a> {
    id: MsgId,
    queue: &'a str,
    key: Option<&'a str>,
    body: Option<Seen>,
}
