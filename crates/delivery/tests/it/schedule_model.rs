//! Plans of schedules over crashes: two workers, edits, callers, refusals and outages, judged by an oracle.
//!
//! The world is a record with a generation, a queue that remembers answers, and a clock. Each step of a worker may be
//! its last; each answer may be lost.

use std::collections::{BTreeMap, BTreeSet};

use duewheel::core::random::SplitMix64;
use duewheel_delivery::{
    DueAnswer, EnterOutcome, LookFacts, PreviousRun, ScheduleEntry, ScheduleSettings, ScheduleState,
    ScheduleStep, TakeBack, TakeOutcome,
};

use crate::schedules::{DAY, HELD, NAME, START, WEEK, settings, table, time, to_ms};

/// What is wrong with the code under test, on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScheduleMutant {
    None,
    /// The cursor moves before the occurrence is in its queue.
    CursorFirst,
    /// The queue forgets the answer before the cursor has moved.
    ForgottenEarly,
    /// A caller's change of a pending occurrence goes unseen.
    TouchedUnseen,
    /// A look goes by its own clock alone.
    OwnClock,
    /// The previous occurrence is taken for settled, whatever the look at it says.
    PreviousUnseen,
}

#[derive(Clone, Debug)]
struct Entered {
    at: u64,
    due: u64,
    generation: u32,
    /// Taken back by us.
    marked: bool,
    gone: bool,
    /// Until when its shard withholds it.
    withheld: u64,
}

/// The queue, the record, and those who use them.
struct World {
    random: SplitMix64,
    now: u64,
    mutant: ScheduleMutant,
    record: (ScheduleSettings, ScheduleState),
    generation: u32,
    messages: BTreeMap<u64, Entered>,
    /// Messages that were removed because they were taken back.
    erased: BTreeSet<u64>,
    remembered: BTreeMap<(u64, u32), (u64, u64)>,
    refuses: bool,
    /// Whether what was sent in time may arrive after others have taken the record over.
    delays: bool,
    touched: BTreeSet<u64>,
    /// Messages that callers had changed, and that were removed as if they had not.
    taken_from_callers: u32,
    /// Since when which recurrence applies; `None` while paused.
    rules: Vec<(u64, Option<ScheduleSettings>)>,
    edits: u32,
    /// When a look has last judged everything up to then.
    looked: u64,
    /// How often the clock was set back.
    set_back: u32,
    /// Whether consumers take their time with each message.
    slow: bool,
    /// Messages that entered one at a time, and found another one unsettled all the same.
    two_at_a_time: u32,
    /// Since when one of the two shards of the queue is closed.
    closed: Option<u64>,
    /// Messages that were taken back because their shard had withheld them.
    taken_withheld: u32,
}

#[derive(Clone, Debug)]
enum EditJob {
    Note,
    Body,
    Rule(&'static str),
    Pause,
    Resume,
    Catchup(&'static str),
}

/// A worker, or a caller that edits, between two of its steps.
#[derive(Clone, Debug, Default)]
struct Looker {
    job: Option<EditJob>,
    seen: Option<(ScheduleSettings, ScheduleState, u32)>,
    until: u64,
    previous: PreviousRun,
    doing: Vec<Act>,
    looks: u32,
    /// How far its clock is behind that of the queue, in ms.
    behind: u64,
}

#[derive(Clone, Debug)]
enum Act {
    Enter(ScheduleEntry),
    Take(TakeBack),
    Erase(Vec<u64>),
}

impl World {
    fn new(seed: u64, settings: ScheduleSettings, mutant: ScheduleMutant) -> Self {
        World {
            random: SplitMix64::new(seed),
            now: START,
            mutant,
            rules: vec![(START, Some(settings.clone()))],
            record: (settings, ScheduleState::new(START, None)),
            generation: 1,
            messages: BTreeMap::new(),
            erased: BTreeSet::new(),
            remembered: BTreeMap::new(),
            refuses: false,
            delays: seed.is_multiple_of(2),
            touched: BTreeSet::new(),
            taken_from_callers: 0,
            edits: 0,
            looked: START,
            set_back: 0,
            slow: false,
            two_at_a_time: 0,
            closed: None,
            taken_withheld: 0,
        }
    }

    /// Whether the message of an occurrence is in the shard that is closed.
    fn is_closed(&self, at: u64) -> bool {
        self.closed.is_some() && (at / 1_000).count_ones().is_multiple_of(2)
    }

    /// Opens or closes a shard. What became due while it was closed, and is not on time, is withheld for a while.
    fn switch_shard(&mut self) {
        let Some(closed) = self.closed else {
            self.closed = Some(self.now);
            return;
        };
        let now = self.now;
        for at in self.messages.values().map(|message| message.at).collect::<Vec<_>>() {
            let is_here = self.is_closed(at);
            for message in self.messages.values_mut().filter(|message| is_here && message.at == at) {
                let is_old = message.due > closed && message.due + 30_000 < now;
                if is_old && !message.gone && !message.marked {
                    message.withheld = now + 5_000;
                }
            }
        }
        self.closed = None;
    }

    /// The answer of a shard about the message of an occurrence that is due.
    fn ask_due(&self, entry: &ScheduleEntry) -> DueAnswer {
        match self.messages.get(&entry.id.unwrap()) {
            _ if self.is_closed(entry.at) => DueAnswer::Unknown,
            Some(message) if message.gone || message.generation != entry.generation => DueAnswer::Entered,
            Some(message) if message.withheld > self.now => DueAnswer::Scheduled,
            Some(message) if message.due > self.now => DueAnswer::Unknown,
            Some(_) | None => DueAnswer::Entered,
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random.next() % below
    }

    fn window(&self) -> u64 {
        if self.mutant == ScheduleMutant::ForgottenEarly { 1 } else { WEEK }
    }

    fn enqueue(&mut self, entry: &ScheduleEntry) -> EnterOutcome {
        let id = (entry.at, entry.round);
        if self.is_closed(entry.at) {
            return EnterOutcome::Unknown;
        }
        if let Some((id, until)) = self.remembered.get(&id)
            && *until > self.now
        {
            return EnterOutcome::Entered { id: *id, generation: 1, keyed: true };
        }
        if self.refuses {
            return EnterOutcome::Refused("over_quota".into());
        }
        let is_alone = matches!(self.record.0.overlap.as_deref(), Some("skip" | "buffer_one"));
        let unsettled = self.messages.values().any(|message| !message.gone);
        self.two_at_a_time += u32::from(is_alone && unsettled);
        let new = u64::try_from(self.messages.len()).unwrap() + 1;
        self.remembered.insert(id, (new, self.now + self.window()));
        let message =
            Entered { at: entry.at, due: entry.due, generation: 1, marked: false, gone: false, withheld: 0 };
        self.messages.insert(new, message);
        EnterOutcome::Entered { id: new, generation: 1, keyed: true }
    }

    fn take(&mut self, entry: &ScheduleEntry) -> TakeOutcome {
        let unseen = self.mutant == ScheduleMutant::TouchedUnseen;
        let now = self.now;
        if self.is_closed(entry.at) {
            return TakeOutcome::Unknown;
        }
        let Some(message) = self.messages.get_mut(&entry.id.unwrap()) else { return TakeOutcome::Gone };
        if message.marked {
            return TakeOutcome::Taken;
        }
        if unseen && message.due > now {
            message.marked = true;
            return TakeOutcome::Taken;
        }
        let is_withheld = message.withheld > now;
        if message.gone || message.generation != entry.generation || (message.due <= now && !is_withheld) {
            // It was due before it could be taken back.
            self.touched.insert(entry.at);
            return TakeOutcome::Gone;
        }
        message.marked = true;
        self.taken_withheld += u32::from(is_withheld);
        TakeOutcome::Taken
    }

    fn write(&mut self, looker: &mut Looker, held_until: u64) -> bool {
        let Some((settings, state, generation)) = &mut looker.seen else { return false };
        if *generation != self.generation {
            return false;
        }
        self.generation += 1;
        *generation = self.generation;
        state.held_until = held_until;
        self.record = (settings.clone(), state.clone());
        looker.until = held_until;
        if self.mutant == ScheduleMutant::CursorFirst {
            self.record.1.entering.clear();
        }
        true
    }

    /// One step of a looker. It ends when `seen` is gone again.
    fn step(&mut self, looker: &mut Looker) {
        if let Some(act) = looker.doing.pop() {
            return self.act(looker, act);
        }
        if looker.seen.is_none() {
            let (settings, state) = self.record.clone();
            if state.held_until <= self.now {
                *looker = Looker { job: looker.job.take(), behind: looker.behind, ..Looker::default() };
                looker.seen = Some((settings, state, self.generation));
            }
            return;
        }
        looker.looks += 1;
        if looker.until != 0 && looker.until <= self.now {
            looker.seen = None; // its time with the record is over
            return;
        }
        self.plan(looker);
    }

    fn plan(&mut self, looker: &mut Looker) {
        let now = self.now - looker.behind;
        let facts =
            LookFacts { name: NAME, now, previous: looker.previous, is_checked: true, remembered: WEEK };
        let Some((settings, state, _)) = &mut looker.seen else { return };
        let rules = table(settings);
        if looker.looks == 1 {
            state.pass_due(now);
            for entry in state.unanswered.clone() {
                state.answered(now, entry.at, self.ask_due(&entry));
            }
        }
        if self.mutant == ScheduleMutant::OwnClock {
            state.present = 0;
        }
        if looker.job.is_none() {
            state.compute_again(&rules, facts);
        }
        if looker.job.is_some() && state.is_quiet() && (rules.paused || state.judge(&rules, facts, 100_000)) {
            let job = looker.job.take().unwrap();
            let after = edited(settings, &job, self.edits);
            state.change(&rules, &table(&after), settings.recurrence == after.recurrence, facts);
            let changed = settings.recurrence != after.recurrence || settings.paused != after.paused;
            let changed_at = state.present;
            *settings = after.clone();
            if !self.write(looker, self.now + HELD) {
                looker.seen = None;
            } else {
                self.edits += 1;
                if changed {
                    self.rules.push((changed_at, (!after.paused).then_some(after)));
                }
            }
            return;
        }
        match state.advance(&rules, facts) {
            ScheduleStep::Enter(entries) => looker.doing = entries.into_iter().map(Act::Enter).collect(),
            ScheduleStep::Take(list) => looker.doing = list.into_iter().map(Act::Take).collect(),
            ScheduleStep::Erase(ids) => looker.doing = vec![Act::Erase(ids)],
            ScheduleStep::Look(id) if self.messages.get(&id).is_some_and(|m| self.is_closed(m.at)) => {
                self.write(looker, 0);
                looker.seen = None;
                return;
            }
            ScheduleStep::Look(id) => {
                let unseen = self.mutant == ScheduleMutant::PreviousUnseen;
                let settled = unseen || self.messages.get(&id).is_none_or(|message| message.gone);
                looker.previous = if settled { PreviousRun::Settled } else { PreviousRun::Unsettled };
                return;
            }
            ScheduleStep::Check => panic!("each look has checked"),
            ScheduleStep::Sleep(_) | ScheduleStep::Remove => {
                let present = state.present;
                if self.write(looker, 0) {
                    self.looked = present;
                }
                looker.seen = None;
                return;
            }
        }
        looker.previous = PreviousRun::Unknown;
        if !self.write(looker, self.now + HELD) {
            looker.doing.clear();
            looker.seen = None;
        }
    }

    fn act(&mut self, looker: &mut Looker, act: Act) {
        let lost = self.draw(20) == 0;
        let (now, behind) = (self.now, looker.behind);
        if looker.until <= now && !self.delays {
            *looker = Looker { behind, ..Looker::default() };
            return;
        }
        let Some((settings, state, _)) = &mut looker.seen else { return };
        match act {
            Act::Enter(entry) => {
                let outcome = self.enqueue(&entry);
                state.entered(now - behind, &entry, if lost { EnterOutcome::Unknown } else { outcome });
            }
            Act::Take(take) => {
                let outcome = self.take(&take.entry);
                let outcome = if lost { TakeOutcome::Unknown } else { outcome };
                state.took(Some(&table(settings)), now - behind, &take, outcome);
            }
            Act::Erase(ids) if ids.iter().any(|id| self.is_closed(self.messages[id].at)) => {}
            Act::Erase(ids) => {
                for id in &ids {
                    if let Some(message) = self.messages.get_mut(id) {
                        let is_callers = message.generation > 1 && !message.gone;
                        self.taken_from_callers += u32::from(is_callers);
                        message.gone = true;
                        self.erased.insert(*id);
                    }
                }
                if !lost {
                    state.erased(&ids);
                }
            }
        }
    }

    /// Consumers take what is due; a caller sometimes changes what is not.
    fn callers(&mut self) {
        let (now, touches, postpones) = (self.now, self.draw(400) == 0, self.draw(2) == 0);
        if self.slow && self.draw(30) != 0 {
            return;
        }
        let closed: Vec<u64> =
            self.messages.iter().filter(|(_, m)| self.is_closed(m.at)).map(|(id, _)| *id).collect();
        let open = self.messages.iter_mut().filter(|(id, _)| !closed.contains(id)).map(|(_, m)| m);
        for message in open.filter(|m| !m.gone && !m.marked && m.withheld <= now) {
            if message.due <= now {
                message.gone = true;
            } else if touches {
                self.touched.insert(message.at);
                message.generation += 1;
                if postpones { message.due += 60_000 } else { message.gone = true }
            }
        }
    }

    fn expected(&self) -> BTreeSet<u64> {
        let mut all = BTreeSet::new();
        for (n, (from, settings)) in self.rules.iter().enumerate() {
            let Some(settings) = settings else { continue };
            let until = self.rules.get(n + 1).map_or(self.looked, |(from, _)| *from);
            let upcoming = table(settings).recurrence;
            let upcoming = upcoming.upcoming(time(*from)).map(|o| to_ms(o.at));
            all.extend(upcoming.take_while(|at| *at <= until));
        }
        all
    }

    /// The contradiction of the promise, if there is one.
    fn judge(&self) -> Result<(), String> {
        if self.taken_from_callers > 0 {
            return Err(format!(
                "{} messages that callers had changed were removed",
                self.taken_from_callers
            ));
        }
        let unsure = self.record.1.counts.unsure;
        if u64::from(self.two_at_a_time) > unsure {
            // Nobody knows the message of one that is unsure, so the next one cannot wait for it.
            return Err(format!(
                "{} entered beside an unsettled one, {unsure} are unsure",
                self.two_at_a_time
            ));
        }
        let mut entered: BTreeMap<u64, u32> = BTreeMap::new();
        for (id, message) in &self.messages {
            if !self.erased.contains(id) {
                *entered.entry(message.at).or_default() += 1;
            }
        }
        if let Some((at, n)) = entered.iter().find(|(_, n)| **n > 1) {
            return Err(format!("{at} entered {n} times"));
        }
        let expected = self.expected();
        let stray = entered
            .keys()
            .find(|at| **at <= self.looked && !expected.contains(at) && !self.touched.contains(at));
        if let Some(at) = stray {
            return Err(format!("{at} entered, and does not occur"));
        }
        let state = &self.record.1;
        let came = entered.keys().filter(|at| expected.contains(at)).count() as u64;
        let counts = &state.counts;
        let waiting = (state.backlog.iter().filter(|at| **at <= self.looked).count()
            + usize::from(state.buffered.is_some())) as u64;
        let known = came + counts.missed + counts.skipped + waiting;
        let all = expected.len() as u64;
        if known > all || known + counts.unsure < all {
            return Err(format!("{all} occurrences, {came} entered, {waiting} wait, {counts:?}"));
        }
        Ok(())
    }
}

fn edited(settings: &ScheduleSettings, job: &EditJob, edits: u32) -> ScheduleSettings {
    let mut after = settings.clone();
    match job {
        EditJob::Note => after.note = Some(format!("edit {edits}")),
        EditJob::Body => after.body = (edits + 1).to_string().into(),
        EditJob::Rule(every) => after.recurrence.every = Some((*every).into()),
        EditJob::Pause => after.paused = true,
        EditJob::Resume => after.paused = false,
        EditJob::Catchup(length) => after.catchup = Some((*length).into()),
    }
    after
}

/// A run: `Err` says what was broken.
fn run(seed: u64, settings: &ScheduleSettings, mutant: ScheduleMutant) -> Result<World, String> {
    run_in(World::new(seed, settings.clone(), mutant))
}

fn run_in(mut world: World) -> Result<World, String> {
    let mut lookers = [Looker::default(), Looker { behind: world.draw(3) * 1_300, ..Looker::default() }];
    let forget = |looker: &mut Looker| *looker = Looker { behind: looker.behind, ..Looker::default() };
    let jobs = [
        EditJob::Note,
        EditJob::Body,
        EditJob::Body,
        EditJob::Body,
        EditJob::Resume,
        EditJob::Catchup("1m"),
        EditJob::Catchup("3h"),
        EditJob::Rule("10m"),
        EditJob::Rule("7s"),
        EditJob::Rule("1h"),
        EditJob::Rule("90s"),
        EditJob::Pause,
        EditJob::Resume,
    ];
    for _ in 0..1_500 {
        let pace = [0, 1, 20, 700, 4_000, 20_000];
        let at = usize::try_from(world.draw(6)).unwrap();
        world.now += pace[at];
        if world.draw(300) == 0 {
            // An outage: nothing of this process is left.
            lookers.iter_mut().for_each(forget);
            world.now += match world.draw(12) {
                0..6 => 60_000,
                6..11 => DAY / 12,
                _ => 9 * DAY,
            };
        }
        if world.draw(100) == 0 {
            world.switch_shard();
            for _ in 0..if world.closed.is_none() { 20 } else { 0 } {
                // The withheld ones are looked at.
                world.step(&mut lookers[0]);
                world.now += 20;
            }
        }
        if world.draw(150) == 0 && !world.delays {
            world.refuses = !world.refuses;
        }
        if world.draw(400) == 0 {
            // The time service sets a clock back that was ahead.
            world.now = (world.now - 1_000 - world.draw(600_000)).max(START + DAY / 24);
            world.set_back += 1;
        }
        let which = usize::try_from(world.draw(2)).unwrap();
        match world.draw(40) {
            0 => forget(&mut lookers[which]),
            1 if lookers[which].seen.is_none() => {
                let job = usize::try_from(world.draw(jobs.len() as u64)).unwrap();
                lookers[which].job = Some(jobs[job].clone());
            }
            _ => world.step(&mut lookers[which]),
        }
        world.callers();
    }
    // Everything under way ends, and one worker looks until all is judged.
    world.refuses = false;
    if world.closed.is_some() {
        world.switch_shard();
    }
    world.now += HELD + 61_000;
    let mut last = Looker::default();
    for _ in 0..600 {
        world.step(&mut last);
        world.callers();
        world.now += 150;
    }
    while last.seen.is_some() || !world.record.1.is_quiet() {
        world.step(&mut last);
        world.now += 10;
    }
    if world.looked + 2_000 < world.now {
        return Err(format!("the last look was {} ms ago", world.now - world.looked));
    }
    world.judge()?;
    Ok(world)
}

fn kinds() -> Vec<ScheduleSettings> {
    let mut all = Vec::new();
    for every in ["1s", "7s", "45s", "1h"] {
        for missed in ["none", "last", "all"] {
            for overlap in ["allow", "skip", "buffer_one"] {
                let (missed, overlap) = (Some(missed.into()), Some(overlap.into()));
                // Each second of a day would take long to judge.
                let catchup = (every == "1s").then(|| "10m".into());
                all.push(ScheduleSettings { missed, overlap, catchup, ..settings(every) });
            }
        }
    }
    all
}

#[test]
fn occurrence_enters_once_or_is_counted() {
    let (mut entered, mut edits, mut touched, mut erased, mut set_back) = (0, 0, 0, 0, 0);
    let mut taken_withheld = 0;
    for seed in 0..6 {
        for kind in kinds() {
            match run(seed, &kind, ScheduleMutant::None) {
                Ok(world) => {
                    entered += world.messages.len();
                    edits += world.edits;
                    touched += world.touched.len();
                    erased += world.erased.len();
                    set_back += world.set_back;
                    taken_withheld += world.taken_withheld;
                }
                Err(why) => panic!("seed {seed}, {kind:?}: {why}"),
            }
        }
    }
    assert!(
        entered > 5_000 && edits > 1_000 && touched > 100 && erased > 20 && set_back > 200,
        "{entered} {edits} {touched} {erased} {set_back}"
    );
    assert!(taken_withheld > 5, "{taken_withheld}");
}

/// The look at the previous occurrence, the write of the record and the enqueue are three calls. Workers die between
/// them, answers are lost, and consumers take their time.
#[test]
fn overlap_rule_survives_worker_deaths() {
    let slow = |seed, kind: &ScheduleSettings, mutant| {
        run_in(World { slow: true, ..World::new(seed, kind.clone(), mutant) })
    };
    let alone: Vec<_> = kinds().into_iter().filter(|kind| kind.overlap.as_deref() != Some("allow")).collect();
    let (mut entered, mut skipped, mut unsettled) = (0, 0, 0);
    for seed in 0..12 {
        for kind in &alone {
            match slow(seed, kind, ScheduleMutant::None) {
                Ok(world) => {
                    entered += world.messages.len();
                    skipped += world.record.1.counts.skipped;
                    unsettled += world.messages.values().filter(|message| !message.gone).count();
                }
                Err(why) => panic!("seed {seed}, {kind:?}: {why}"),
            }
        }
    }
    assert!(entered > 2_000 && skipped > 1_000 && unsettled > 0, "{entered} {skipped} {unsettled}");
    let unseen = ScheduleMutant::PreviousUnseen;
    assert!((0..3).any(|seed| alone.iter().any(|kind| slow(seed, kind, unseen).is_err())));
}

#[test]
fn schedule_mutants_are_detected() {
    use ScheduleMutant::{CursorFirst, ForgottenEarly, OwnClock, TouchedUnseen};
    for mutant in [CursorFirst, ForgottenEarly, TouchedUnseen, OwnClock] {
        let found = (0..12).any(|seed| kinds().iter().any(|kind| run(seed, kind, mutant).is_err()));
        assert!(found, "{mutant:?} was not found");
    }
}
