//! From a list of events to operations, and from operations to messages.

use std::collections::BTreeMap;

use crate::history::{
    Answer, Call, Enqueue, Event, Fault, Grant, Held, History, IfExists, Leases, Moment, MsgId, OpId,
    Payload, Proof, Refusal, Rules, Seen, Stamp, Tag, Target, Token, Told, Totals, Unanswered, What,
};

use super::{Check, Report, Violation, story};

pub(super) const NS: u64 = 1_000_000;

/// A place in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    /// Position in the list. Of two points the one with the smaller position was really before.
    pub(super) idx: usize,
    pub(super) ns: u64,
    pub(super) wall: u64,
}

impl Point {
    const NEVER: Point = Point { idx: usize::MAX, ns: u64::MAX, wall: u64::MAX };

    fn new(idx: usize, at: Stamp) -> Self {
        Point { idx, ns: at.mono_ns, wall: at.wall_ms }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum End<'h> {
    Ok(Point, &'h Answer),
    Fail(Point, &'h Refusal),
    Unknown,
}

#[derive(Debug)]
pub(super) struct Op<'h> {
    pub(super) call: &'h Call,
    pub(super) inv: Point,
    pub(super) end: End<'h>,
    /// It takes no effect after this: its end, or the kill that followed.
    pub(super) latest: Point,
    pub(super) info_idx: Option<usize>,
}

impl Op<'_> {
    /// Whether it may have changed anything.
    pub(super) fn possible(&self) -> bool {
        !matches!(self.end, End::Fail(..))
    }

    /// When it was answered positively.
    pub(super) fn done(&self) -> Option<Point> {
        match self.end {
            End::Ok(at, _) => Some(at),
            End::Fail(..) | End::Unknown => None,
        }
    }

    pub(super) fn unknown(&self) -> bool {
        matches!(self.end, End::Unknown)
    }
}

/// A grant that a consumer has received.
#[derive(Debug)]
pub(super) struct Granted<'h> {
    pub(super) op: usize,
    pub(super) grant: &'h Grant,
    /// The reserve was invoked: the grant is not older.
    pub(super) inv: Point,
    /// The grant was received.
    pub(super) ret: Point,
    pub(super) lease_ns: u64,
}

/// A request that may have ended a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ender {
    pub(super) op: usize,
    pub(super) how: How,
    /// Answered, so that it certainly has.
    pub(super) certain: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Acked,
    Cancelled,
    Replaced,
    Purged,
}

/// One message: everything in the history that concerns it. Numbers are positions in [`World::ops`].
#[derive(Debug, Default)]
pub(super) struct Life<'h> {
    pub(super) id: Option<MsgId>,
    pub(super) tag: Option<Tag>,
    pub(super) queue: String,
    pub(super) key: Option<String>,
    pub(super) max_attempts: u64,
    /// Length of its leases, if it says so itself.
    pub(super) lease_ms: Option<u64>,
    /// Enqueues: one, or several with the same `dedupe_id`.
    pub(super) sends: Vec<usize>,
    /// Sorted by token.
    pub(super) grants: Vec<Granted<'h>>,
    /// Ack, nack, extend, bury.
    pub(super) settles: Vec<usize>,
    /// Cancel, postpone, fire and redrive that name it by id, or whose answer does.
    pub(super) changes: Vec<usize>,
    /// Those by key that may have meant it.
    pub(super) loose: Vec<usize>,
    pub(super) gets: Vec<usize>,
    pub(super) enders: Vec<Ender>,
    pub(super) held: Option<(Point, &'h Held)>,
    /// Proven to exist from here on.
    pub(super) exists: Option<Point>,
}

impl Life<'_> {
    pub(super) fn all_ops(&self) -> Vec<usize> {
        let mut ops = [&self.sends[..], &self.settles, &self.changes, &self.loose, &self.gets].concat();
        ops.extend(self.enders.iter().map(|e| e.op));
        ops
    }

    pub(super) fn grant_ops(&self) -> Vec<usize> {
        self.grants.iter().map(|g| g.op).collect()
    }
}

/// A reserve that may have granted something that nobody has received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    pub(super) op: usize,
    /// No such grant is later.
    pub(super) latest: Point,
}

/// The store has gone on with a copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failover {
    /// The blow.
    pub(super) begin: Point,
    /// From here on the copy is all that there is.
    pub(super) end: Point,
    /// What was answered before this is in the copy.
    pub(super) kept_ns: u64,
}

/// The whole run, indexed.
#[derive(Debug)]
pub(super) struct World<'h> {
    pub(super) events: &'h [Event],
    pub(super) rules: Rules,
    pub(super) ops: Vec<Op<'h>>,
    pub(super) lives: Vec<Life<'h>>,
    /// Lives by queue and key.
    pub(super) keys: BTreeMap<(String, String), Vec<usize>>,
    /// Reserves that may have granted something that nobody has received.
    pub(super) lost_reserves: BTreeMap<&'h str, Vec<Lost>>,
    /// Reserves that found nothing, by queue.
    pub(super) empty_reserves: BTreeMap<&'h str, Vec<usize>>,
    /// Reserves whose answer took longer than anything that is due may wait, by queue.
    pub(super) slow_reserves: BTreeMap<&'h str, Vec<usize>>,
    pub(super) dumps: BTreeMap<&'h str, (Point, &'h [Held])>,
    pub(super) totals: Vec<(&'h str, Point, Totals)>,
    pub(super) faults: Vec<(Point, &'h Fault)>,
    /// Where clients closed connections.
    pub(super) closings: BTreeMap<u32, Vec<usize>>,
    /// From a kill until it listened again.
    pub(super) downs: Vec<(Point, Point)>,
    /// Where it could do nothing for a while, which ended here.
    pub(super) stalls: Vec<Point>,
    /// From stopped to about to go on.
    pub(super) pauses: Vec<(Point, Point)>,
    /// From a blow until nothing of the cluster is missing any more.
    pub(super) blows: Vec<(Point, Point)>,
    pub(super) failovers: Vec<Failover>,
    /// A kill after which it has not listened again.
    down_since: Option<Point>,
    pub(super) phases: Vec<(Point, &'h str)>,
}

impl<'h> World<'h> {
    pub(super) fn new(history: &'h History, report: &mut Report) -> Self {
        let mut world = World {
            events: &history.events,
            rules: history.rules,
            ops: Vec::new(),
            lives: Vec::new(),
            keys: BTreeMap::new(),
            lost_reserves: BTreeMap::new(),
            empty_reserves: BTreeMap::new(),
            slow_reserves: BTreeMap::new(),
            dumps: BTreeMap::new(),
            totals: Vec::new(),
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
        world.attach_operations(&names);
        world.find_enders(&names);
        world
    }

    fn read_events(&mut self) {
        let mut by_id: BTreeMap<OpId, usize> = BTreeMap::new();
        let mut open: Vec<usize> = Vec::new();
        let mut down = Some(Point { idx: 0, ns: 0, wall: 0 });
        let mut paused = None;
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
                        Fault::ClockStep { .. } | Fault::Other(_) => {}
                    }
                }
                What::Closing => self.closings.entry(event.client).or_default().push(idx),
                What::Phase(name) => self.phases.push((at, name)),
                What::Dump { queue, rows } => {
                    self.dumps.insert(queue, (at, rows));
                }
                What::Totals { queue, totals } => self.totals.push((queue, at, *totals)),
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
            if let Call::Reserve { queue, .. } = op.call {
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

    /// Operations that were given up take no effect after so long. Neither does what a reserve left behind that met a blow: it asks several
    /// parts, and is answered with what those that are there have given; what the others may have granted reaches nobody.
    fn unanswered_for(&mut self, ns: u64) -> BTreeMap<usize, Point> {
        // Their stamps are in the order of the list.
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
                max_attempts: e.max_attempts.unwrap_or(self.rules.max_attempts),
                lease_ms: e.lease_ms,
                ..Life::default()
            });
            self.lives.len() - 1
        });
        self.lives[life].sends.push(i);
        if let End::Ok(at, Answer::Enqueued { id, created: true, .. }) = self.ops[i].end {
            self.name(life, *id, at, names, report);
        }
    }

    /// Says that a life has this id, which was seen here.
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
            // The one that was seen first must be forgotten when the other is seen. An enqueue may have waited for that, so its
            // invocation says nothing about the order.
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

    /// Whether a failover may have forgotten what a first try of an enqueue had made, so that a retry, one of the two seen here and
    /// the other at another place, has made it again.
    fn made_twice(&self, life: usize, at: Point) -> bool {
        let life = &self.lives[life];
        let Some(exists) = life.exists else { return false };
        let (first, then) = if exists.idx < at.idx { (exists, at) } else { (at, exists) };
        let born = life.sends.iter().map(|&s| self.ops[s].inv).min_by_key(|inv| inv.idx);
        born.is_some_and(|born| self.failovers.iter().any(|f| f.may_undo(born, first, then.idx)))
    }

    /// Grants, gets and the dump: they prove that a message exists, and say which.
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
                        self.lives[life].grants.push(Granted { op: i, grant, inv, ret, lease_ns });
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

    /// Finds the life of something seen, and compares body, key and queue.
    fn sight(&mut self, s: &Sight<'_>, at: Point, names: &mut Names, report: &mut Report) -> Option<usize> {
        report.applied(Check::WrongBody);
        let tagged = s.body.and_then(|b| b.tag);
        let by_tag = tagged.and_then(|t| names.tags.get(&t).copied());
        let by_id = names.of_either(s.id, at.idx, by_tag);
        // An id that was forgotten may be another's now, as the body tells.
        let anew =
            |l: &usize| by_tag.is_some_and(|tagged| tagged != *l) && self.lives[*l].forgotten(self, at.idx);
        let life = match (by_id.filter(|l| !anew(l)), by_tag) {
            (Some(life), _) => life,
            (None, Some(life)) => {
                self.name(life, s.id, at, names, report);
                life
            }
            // A new body for a message whose enqueue was never answered: a life that nothing else is known of.
            (None, None) if tagged.is_some_and(|t| names.patches.contains_key(&t)) => {
                let life = Life { queue: s.queue.to_owned(), max_attempts: u64::MAX, ..Life::default() };
                self.lives.push(Life { key: s.key.map(str::to_owned), ..life });
                let life = self.lives.len() - 1;
                self.name(life, s.id, at, names, report);
                life
            }
            // A row without a body may be one of the enqueues without an answer; nothing can be said of it.
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
        let another = self.rules.keys == Told::Yes && s.key != l.key.as_deref();
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
                        // By key: an answered id that nothing else is known of is that of an unanswered enqueue.
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
                | Call::Purge { .. } => {}
            }
        }
    }

    fn attach(&mut self, names: &Names, id: MsgId, op: usize, to: impl FnOnce(&mut Life<'h>)) {
        if let Some(&l) = names.between(id, self.ops[op].inv.idx, 0).first() {
            to(&mut self.lives[l]);
        }
    }

    /// What was done to an id while it was given again may have been done to either message.
    fn attach_change(&mut self, names: &Names, id: MsgId, op: usize) {
        let lives = names.between(id, self.ops[op].inv.idx, self.ops[op].latest.idx);
        for &l in &lives {
            let life = &mut self.lives[l];
            if lives.len() == 1 { life.changes.push(op) } else { life.loose.push(op) }
        }
    }

    fn find_enders(&mut self, names: &Names) {
        let mut purges: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        let mut replacers: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
        for (i, op) in self.ops.iter().enumerate().filter(|(_, op)| op.possible()) {
            match op.call {
                Call::Purge { queue } => purges.entry(queue).or_default().push(i),
                Call::Enqueue(e) if e.if_exists == IfExists::Replace => {
                    if let Some(key) = &e.key {
                        replacers.entry((&e.queue, key)).or_default().push(i);
                    }
                }
                _ => {}
            }
        }
        for l in 0..self.lives.len() {
            let enders = self.enders_of(l, names, &purges, &replacers);
            self.lives[l].enders = enders;
        }
    }

    fn enders_of(
        &self,
        number: usize,
        names: &Names,
        purges: &BTreeMap<&str, Vec<usize>>,
        replacers: &BTreeMap<(&str, &str), Vec<usize>>,
    ) -> Vec<Ender> {
        let life = &self.lives[number];
        let mut enders = Vec::new();
        for &op in &life.settles {
            let Call::Ack(proof) = self.ops[op].call else { continue };
            let certain = self.certainly_done(op);
            // An ack that is known to be stale has ended nothing, whatever became of it; a delete may have.
            let stale = self.rules.leases == Leases::OfTokens
                && life
                    .grants
                    .iter()
                    .any(|g| g.grant.token > proof.token && g.ret.idx < self.ops[op].inv.idx);
            if self.ops[op].done().is_some() || (self.ops[op].unknown() && !stale) {
                enders.push(Ender { op, how: How::Acked, certain });
            }
        }
        for &op in &life.changes {
            if matches!(self.ops[op].call, Call::Cancel(_)) && self.ops[op].possible() {
                enders.push(Ender { op, how: How::Cancelled, certain: self.certainly_done(op) });
            }
        }
        for &op in &life.loose {
            if matches!(self.ops[op].call, Call::Cancel(_)) && self.ops[op].possible() {
                enders.push(Ender { op, how: How::Cancelled, certain: false });
            }
        }
        if let Some(key) = &life.key {
            for &op in replacers.get(&(life.queue.as_str(), key.as_str())).into_iter().flatten() {
                if life.sends.contains(&op) {
                    continue;
                }
                match self.ops[op].end {
                    End::Ok(_, Answer::Enqueued { replaced, .. }) => {
                        let (inv, latest) = (self.ops[op].inv.idx, self.ops[op].latest.idx);
                        let meant = replaced.map_or(Vec::new(), |id| names.between(id, inv, latest));
                        if meant.contains(&number) {
                            let certain = self.certainly_done(op) && meant.len() == 1;
                            enders.push(Ender { op, how: How::Replaced, certain });
                        } else if life.may_have_had_another_id(self)
                            && replaced.is_some_and(|id| !names.ids.contains_key(&id))
                        {
                            enders.push(Ender { op, how: How::Replaced, certain: false });
                        }
                    }
                    End::Ok(..) | End::Fail(..) => {}
                    End::Unknown => enders.push(Ender { op, how: How::Replaced, certain: false }),
                }
            }
        }
        for &op in purges.get(life.queue.as_str()).into_iter().flatten() {
            enders.push(Ender { op, how: How::Purged, certain: false });
        }
        let since = life.sends.iter().map(|&s| self.ops[s].inv.idx).min().unwrap_or(0);
        enders.retain(|e| self.ops[e.op].latest.idx > since);
        enders
    }

    /// Whether it was answered positively, and no failover may have undone it.
    fn certainly_done(&self, op: usize) -> bool {
        self.ops[op].done().is_some() && !self.undone(&self.ops[op], usize::MAX)
    }

    /// Whether a failover before a place may have undone what was answered.
    pub(super) fn undone(&self, op: &Op<'_>, to: usize) -> bool {
        op.done().is_some_and(|ret| self.failovers.iter().any(|f| f.may_undo(op.inv, ret, to)))
    }

    pub(super) fn blame(&self, report: &mut Report, check: Check, life: usize, what: String) {
        self.accuse(report, check, &self.lives[life], what);
    }

    pub(super) fn accuse(&self, report: &mut Report, check: Check, life: &Life<'_>, what: String) {
        let story = story::of(self, life);
        report.violations.push(Violation { check, message: life.id, tag: life.tag, what, story });
    }

    /// Length of a lease that was asked for like this.
    pub(super) fn lease_ns(&self, life: &Life<'_>, asked_ms: Option<u64>) -> u64 {
        asked_ms.or(life.lease_ms).unwrap_or(self.rules.lease_ms).saturating_mul(NS)
    }

    /// When a lease that nobody has received has run out at the latest.
    pub(super) fn lost_lease_ends(&self, life: &Life<'_>, lost: &Lost) -> u64 {
        let asked = match self.ops[lost.op].call {
            Call::Reserve { lease_ms, .. } => *lease_ms,
            _ => None,
        };
        lost.latest.ns.saturating_add(self.lease_ns(life, asked))
    }

    /// Whether the holder's connection may have ended, and its lease with it, before a place.
    pub(super) fn hung_up(&self, g: &Granted<'_>, before: usize) -> bool {
        if self.rules.leases == Leases::OfTokens {
            return false;
        }
        let within = |idx: usize| g.inv.idx < idx && idx < before;
        let closings = self.closings.get(&self.events[g.inv.idx].client);
        closings.into_iter().flatten().any(|&idx| within(idx))
            || self.downs.iter().map(|(down, _)| down).chain(&self.down_since).any(|down| within(down.idx))
    }

    /// How many grants of a message nobody may have received between two places.
    pub(super) fn lost_between(&self, queue: &str, from: usize, to: usize) -> u64 {
        self.lost_reserves(queue, from, to).count() as u64
    }

    /// Reserves of unknown outcome that may have happened between two places.
    pub(super) fn lost_reserves(&self, queue: &str, from: usize, to: usize) -> impl Iterator<Item = &Lost> {
        let all = self.lost_reserves.get(queue).map_or(&[][..], |v| &v[..]);
        all.iter().filter(move |lost| self.ops[lost.op].inv.idx < to && lost.latest.idx > from)
    }

    /// By how much the wall clock was put forward between two places in a way that counts as time that passed: while the
    /// system was down, or so shortly before it went down that nothing durable tells of the step.
    pub(super) fn jumped_unnoted(&self, from: usize, to: usize) -> u64 {
        let mut ms = 0;
        for (at, fault) in &self.faults {
            if let Fault::ClockStep { before_ms, after_ms } = fault
                && at.idx > from
                && at.idx < to
                && self.is_unnoted(at.idx, to)
            {
                ms += after_ms.saturating_sub(*before_ms);
            }
        }
        ms * NS
    }

    /// Whether the system may not know of a step of the wall clock when it starts next.
    fn is_unnoted(&self, step: usize, to: usize) -> bool {
        let while_down = self.downs.iter().any(|(down, up)| down.idx < step && step < up.idx);
        let next_down = self.downs.iter().map(|(down, _)| down.idx).find(|down| *down > step && *down < to);
        while_down || next_down.is_some_and(|down| !self.is_noted(step, down))
    }

    /// Whether a step between two places may make a message wait longer: a wall clock that goes back, or one that the system
    /// learns of at its next start.
    pub(super) fn put_back(&self, from: usize, to: usize) -> bool {
        self.faults.iter().any(|(at, fault)| {
            matches!(fault, Fault::ClockStep { before_ms, after_ms } if after_ms < before_ms || self.is_unnoted(at.idx, to))
                && at.idx > from
                && at.idx < to
        })
    }

    /// The moment at which the wall clock has certainly shown a time, if it goes on undisturbed after this place or is put forward.
    pub(super) fn shows(&self, wall: u64, after: Point) -> u64 {
        let (mut ns, mut shown) = (after.ns, after.wall);
        for (at, fault) in self.faults.iter().filter(|(at, _)| at.idx > after.idx) {
            if let Fault::ClockStep { after_ms, .. } = fault {
                let ran = at.ns.saturating_sub(ns) / NS;
                if shown.saturating_add(ran) >= wall {
                    break;
                }
                (ns, shown) = (at.ns, *after_ms);
            }
        }
        ns.saturating_add(wall.saturating_sub(shown).saturating_mul(NS))
    }

    /// Whether something that was asked for after one place was durably answered before another: then all of before is
    /// durable, too.
    fn is_noted(&self, after: usize, before: usize) -> bool {
        self.ops.iter().any(|op| {
            let durable = !matches!(op.call, Call::Reserve { .. } | Call::Get(_));
            durable && op.inv.idx > after && op.done().is_some_and(|ret| ret.idx < before)
        })
    }

    /// Whether the wall clock was stepped between two places.
    pub(super) fn stepped(&self, from: usize, to: usize) -> bool {
        self.faults.iter().any(|(at, f)| matches!(f, Fault::ClockStep { .. }) && at.idx > from && at.idx < to)
    }

    /// Whether a failover, or a power loss, between two places may have made the system forget a grant. A power loss has not if the system has
    /// durably answered something that was asked after the grant was received: replies leave in order.
    pub(super) fn forgettable(&self, g: &Granted<'_>, to: usize) -> bool {
        let undone = self.failovers.iter().any(|f| f.may_undo(g.inv, g.ret, to));
        undone
            || self.faults.iter().any(|(at, fault)| {
                matches!(fault, Fault::PowerLoss)
                    && at.idx > g.inv.idx
                    && at.idx < to
                    && !self.is_noted(g.ret.idx, at.idx)
            })
    }

    /// Counts the kills, by moment.
    pub(super) fn kills(&self, moment: Moment) -> u64 {
        self.faults.iter().filter(|(_, f)| **f == Fault::Killed(moment)).count() as u64
    }
}

impl Failover {
    /// Whether something that was invoked and answered here may be undone before a place.
    pub(super) fn may_undo(&self, inv: Point, ret: Point, to: usize) -> bool {
        self.begin.idx < to && inv.idx < self.end.idx && ret.ns >= self.kept_ns
    }
}

/// What a name stands for.
#[derive(Debug, Default)]
struct Names {
    /// Lives by id, each from a place on: an id that a failover has made the system forget may be given again.
    ids: BTreeMap<MsgId, Vec<(usize, usize)>>,
    tags: BTreeMap<Tag, usize>,
    patches: BTreeMap<Tag, (usize, Payload)>,
}

impl Names {
    fn add(&mut self, id: MsgId, since: usize, life: usize) {
        let lives = self.ids.entry(id).or_default();
        match lives.iter_mut().find(|(_, l)| *l == life) {
            Some((first, _)) => *first = since.min(*first),
            None => lives.push((since, life)),
        }
        lives.sort_unstable();
    }

    /// A life has its id from a later place on.
    fn put_off(&mut self, id: MsgId, life: usize, since: usize) {
        let lives = self.ids.entry(id).or_default();
        for entry in lives.iter_mut().filter(|(_, l)| *l == life) {
            entry.0 = entry.0.max(since);
        }
        lives.sort_unstable();
    }

    /// Whose id it is at a place.
    fn of(&self, id: MsgId, at: usize) -> Option<usize> {
        self.ids.get(&id)?.iter().rev().find(|(since, _)| *since <= at).map(|(_, life)| *life)
    }

    /// Whose id it may be between two places.
    fn between(&self, id: MsgId, from: usize, to: usize) -> Vec<usize> {
        let lives = self.ids.get(&id).map_or(&[][..], Vec::as_slice);
        let first = lives.partition_point(|(since, _)| *since <= from).saturating_sub(1);
        let within =
            lives.iter().enumerate().filter(|(n, (since, _))| *n == first || (*n > first && *since < to));
        within.map(|(_, (_, life))| *life).collect()
    }

    /// As [`Names::of`], but of several lives the one that the body tells.
    fn of_either(&self, id: MsgId, at: usize, told: Option<usize>) -> Option<usize> {
        let named =
            |l: &usize| self.ids.get(&id).is_some_and(|lives| lives.iter().any(|(_, life)| life == l));
        told.filter(named).or_else(|| self.of(id, at))
    }
}

/// Something that was seen.
struct Sight<'a> {
    id: MsgId,
    queue: &'a str,
    key: Option<&'a str>,
    body: Option<Seen>,
}

/// The token that a settle shows.
pub(super) fn proof(call: &Call) -> Option<&Proof> {
    match call {
        Call::Ack(proof) | Call::Bury(proof) => Some(proof),
        Call::Nack { proof, .. } | Call::Extend { proof, .. } => Some(proof),
        Call::Enqueue(_)
        | Call::Cancel(_)
        | Call::Postpone { .. }
        | Call::Fire(_)
        | Call::Get(_)
        | Call::Reserve { .. }
        | Call::Redrive(_)
        | Call::Purge { .. } => None,
    }
}

/// The token of a settle that gives the message back.
pub(super) fn gives_back(call: &Call) -> Option<&Token> {
    match call {
        Call::Nack { proof, .. } | Call::Bury(proof) => Some(&proof.token),
        _ => None,
    }
}
