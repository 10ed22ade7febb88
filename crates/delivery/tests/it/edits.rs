//! Every edit in every state of what is put ahead, against the number and the instants that have to enter.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, UNIX_EPOCH};

use duewheel_delivery::{
    EnterOutcome, LookFacts, PreviousRun, RecurrenceSettings, ScheduleSettings, ScheduleState, ScheduleStep,
    TakeOutcome, Timetable,
};

const START: u64 = 1_800_000_000_000;
const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PutAhead {
    /// The schedule was just created.
    Untouched,
    /// A caller has cancelled the occurrence.
    Cancelled,
    /// A caller has postponed the occurrence to its former time.
    Touched,
    /// The first occurrence is ready, and the second one is put ahead.
    Ready,
    /// The first occurrence is acked, and the second one is put ahead.
    Acked,
}

const STATES: [PutAhead; 5] =
    [PutAhead::Untouched, PutAhead::Cancelled, PutAhead::Touched, PutAhead::Ready, PutAhead::Acked];

#[derive(Clone, Debug)]
struct DeskMessage {
    at: u64,
    due: u64,
    touched: bool,
    /// Whether a caller has cancelled it before it was due.
    cancelled: bool,
    /// Taken back, acked or cancelled.
    gone: bool,
    taken: bool,
}

/// A schedule, its queue, and consumers that ack after `works` ms.
struct Desk {
    now: u64,
    works: u64,
    settings: ScheduleSettings,
    state: ScheduleState,
    sent: BTreeMap<u64, DeskMessage>,
    /// Messages that entered while an earlier one was not settled.
    together: u32,
}

fn table(settings: &ScheduleSettings) -> Timetable {
    Timetable::new(settings, UNIX_EPOCH + Duration::from_millis(START)).unwrap()
}

fn settings(every: &str, jitter: Option<&str>) -> ScheduleSettings {
    let recurrence = RecurrenceSettings {
        every: Some(every.into()),
        jitter: jitter.map(Into::into),
        ..RecurrenceSettings::default()
    };
    ScheduleSettings { queue: "q".into(), recurrence, ..ScheduleSettings::default() }
}

impl Desk {
    fn new(settings: &ScheduleSettings, remaining: Option<u64>) -> Self {
        let state = ScheduleState::new(START, remaining);
        let (settings, sent) = (settings.clone(), BTreeMap::new());
        let mut desk = Desk { now: START, works: 90 * SECOND, settings, state, sent, together: 0 };
        desk.look();
        desk
    }

    fn live(&self) -> impl Iterator<Item = (&u64, &DeskMessage)> {
        self.sent.iter().filter(|(_, sent)| !sent.gone)
    }

    /// Looks until nothing is left to do, and returns when the next look is.
    fn look(&mut self) -> u64 {
        let (mut previous, mut is_checked, table) = (PreviousRun::Unknown, false, table(&self.settings));
        loop {
            let (name, now) = ("report", self.now);
            let facts = LookFacts { name, now, previous, is_checked, remembered: 7 * 86_400_000 };
            previous = PreviousRun::Unknown;
            match self.state.advance(&table, facts) {
                ScheduleStep::Enter(entries) => {
                    for entry in entries {
                        let is_alone = self.settings.overlap.as_deref().is_some_and(|o| o != "allow");
                        self.together += u32::from(is_alone && self.live().next().is_some());
                        let id = self.sent.len() as u64 + 1;
                        let (at, due) = (entry.at, entry.due);
                        let sent = DeskMessage {
                            at,
                            due,
                            touched: false,
                            cancelled: false,
                            gone: false,
                            taken: false,
                        };
                        self.sent.insert(id, sent);
                        let outcome = EnterOutcome::Entered { id, generation: 1, keyed: true };
                        self.state.entered(self.now, &entry, outcome);
                    }
                }
                ScheduleStep::Take(list) => {
                    for take in list {
                        let sent = self.sent.get_mut(&take.entry.id.unwrap()).unwrap();
                        let outcome = match (sent.gone, sent.touched || sent.due <= self.now) {
                            (true, _) => TakeOutcome::Removed,
                            (false, true) => TakeOutcome::Gone,
                            (false, false) => TakeOutcome::Taken,
                        };
                        if outcome == TakeOutcome::Taken {
                            (sent.taken, sent.gone) = (true, true);
                        }
                        self.state.took(None, self.now, &take, outcome);
                    }
                }
                ScheduleStep::Erase(ids) => self.state.erased(&ids),
                ScheduleStep::Check => {
                    self.find_removed();
                    is_checked = true;
                }
                ScheduleStep::Look(id) => {
                    let settled = self.sent.get(&id).is_none_or(|sent| sent.gone);
                    previous = if settled { PreviousRun::Settled } else { PreviousRun::Unsettled };
                }
                ScheduleStep::Sleep(until) if until > self.state.present => return until,
                ScheduleStep::Sleep(_) => {}
                ScheduleStep::Remove => panic!("it is not removed"),
            }
        }
    }

    fn find_removed(&mut self) {
        let ahead: Vec<_> = self.state.ahead(self.now).cloned().collect();
        for entry in ahead.iter().filter(|entry| self.sent[&entry.id.unwrap()].gone) {
            self.state.removed(self.now, entry.at);
        }
    }

    fn pass(&mut self, length: u64) {
        let end = self.now + length;
        while self.now < end {
            let next = self.look();
            self.now = next.min(self.now + SECOND).min(end);
            for sent in self.sent.values_mut() {
                sent.gone |= sent.due + self.works <= self.now;
            }
        }
        self.look();
    }

    fn edit(&mut self, change: impl FnOnce(&mut ScheduleSettings), remaining: Option<Option<u64>>) {
        self.look();
        let (old, before) = (table(&self.settings), self.settings.recurrence.clone());
        change(&mut self.settings);
        let new = table(&self.settings);
        let same = before == self.settings.recurrence;
        self.find_removed();
        let facts = LookFacts {
            name: "report",
            now: self.now,
            previous: PreviousRun::Unknown,
            is_checked: false,
            remembered: 7 * 86_400_000,
        };
        assert!(old.paused || self.state.judge(&old, facts, 1_000));
        self.state.change(&old, &new, same, facts);
        if let Some(remaining) = remaining {
            self.state.limit(self.now, remaining);
        }
        self.look();
    }

    /// Brings what is put ahead into a state.
    fn bring(&mut self, to: PutAhead) {
        let first = self.live().next().map(|(id, _)| *id).unwrap();
        match to {
            PutAhead::Untouched => {}
            PutAhead::Cancelled => {
                let sent = self.sent.get_mut(&first).unwrap();
                (sent.cancelled, sent.gone) = (true, true);
            }
            PutAhead::Touched => self.sent.get_mut(&first).unwrap().touched = true,
            PutAhead::Ready => self.pass(self.sent[&first].due - self.now + SECOND),
            PutAhead::Acked => {
                self.pass(self.sent[&first].due - self.now + SECOND);
                self.sent.get_mut(&first).unwrap().gone = true;
            }
        }
    }

    /// The instants that entered and became due after this moment.
    fn entered_since(&self, since: u64) -> Vec<u64> {
        let entered = self.sent.values().filter(|sent| !sent.taken && !sent.cancelled && sent.due > since);
        entered.map(|sent| sent.at).collect()
    }

    /// Each instant has one message at most, and the counts are those of the messages.
    fn judge(&self, what: &str) {
        let mut seen = BTreeSet::new();
        for sent in self.sent.values().filter(|sent| !sent.taken) {
            assert!(seen.insert(sent.at), "{what}: {} entered twice", sent.at - START);
        }
        assert_eq!(self.together, 0, "{what}: two were unsettled");
        let entered = self.sent.values().filter(|sent| !sent.taken && !sent.cancelled).count() as u64;
        assert_eq!(self.state.counts.entered, entered, "{what}: cancelled ones do not count");
    }
}

type SettingsEdit = fn(&mut ScheduleSettings);

const EDITS: &[(&str, SettingsEdit)] = &[
    ("the same", |_| {}),
    ("note", |settings| settings.note = Some("words".into())),
    ("body", |settings| settings.body = "other".into()),
    ("faster", |settings| settings.recurrence.every = Some("30s".into())),
    ("slower", |settings| settings.recurrence.every = Some("3m".into())),
    ("skip", |settings| settings.overlap = Some("skip".into())),
    ("buffer_one", |settings| settings.overlap = Some("buffer_one".into())),
    ("skip, faster", |settings| {
        settings.overlap = Some("skip".into());
        settings.recurrence.every = Some("30s".into());
    }),
    ("pause", |settings| settings.paused = true),
];

/// Story: `remaining: 1` on a schedule that runs let two enter, the one that was put ahead and another one.
#[test]
fn remaining_is_exact_after_every_edit() {
    for (every, jitter) in [("1m", None), ("10s", Some("2m"))] {
        for state in STATES {
            for (name, edit) in EDITS {
                for (before, left) in [(None, 1), (None, 2), (None, 5), (Some(4), 1), (Some(4), 12)] {
                    let what = format!("{every}, {state:?}, {name}, {before:?} to {left}");
                    let mut desk = Desk::new(&settings(every, jitter), before);
                    desk.bring(state);
                    // With a jitter one that was postponed or is ready may be due among the others.
                    let since = desk.now;
                    desk.edit(edit, Some(Some(left)));
                    // One that its caller has touched is not the schedule's any more after an edit that replaces it.
                    let shown = desk.state.left(desk.now);
                    assert!(shown == Some(left) || state == PutAhead::Touched, "{what}: {shown:?}");
                    desk.pass(MINUTE);
                    desk.edit(|settings| settings.paused = false, None);
                    desk.pass(50 * MINUTE);
                    let entered = desk.entered_since(since).len() as u64;
                    let skipped = desk.state.counts.skipped + desk.state.counts.missed;
                    assert!(
                        entered == left || (entered < left && skipped > 0),
                        "{what}: {entered}, {skipped}"
                    );
                    desk.judge(&what);
                }
            }
        }
    }
}

/// Instants that an edit of `remaining` takes back occur when it is raised again.
#[test]
fn a_raised_limit_brings_back_what_was_withdrawn() {
    for (every, jitter) in [("1m", None), ("10s", Some("2m"))] {
        for name in ["the same", "body"] {
            let edit = EDITS.iter().find(|(other, _)| *other == name).unwrap().1;
            let mut desk = Desk::new(&settings(every, jitter), None);
            desk.edit(edit, Some(Some(1)));
            assert_eq!(desk.live().count(), 1, "{every}, {name}");
            desk.edit(|_| {}, Some(None));
            desk.pass(30 * MINUTE);
            let span = table(&desk.settings).recurrence;
            let expected: BTreeSet<u64> = span
                .upcoming(UNIX_EPOCH + Duration::from_millis(START))
                .map(|next| u64::try_from(next.at.duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap())
                .take_while(|at| *at <= desk.now)
                .collect();
            let entered: BTreeSet<u64> = desk.entered_since(START).into_iter().collect();
            assert!(entered.is_superset(&expected), "{every}, {name}: {entered:?}");
            desk.judge(name);
        }
    }
}

/// Story: `skip` was set while the first occurrence was ready: the one ahead was taken back and entered again, because the
/// message that it then waited for was itself.
#[test]
fn overlap_holds_from_the_edit_on() {
    for (every, jitter) in [("1m", None), ("10s", None), ("10s", Some("2m"))] {
        for state in STATES {
            for (name, edit) in
                EDITS.iter().filter(|(name, _)| name.contains("skip") || name.contains("buffer"))
            {
                let what = format!("{every} {jitter:?}, {state:?}, {name}");
                let mut desk = Desk::new(&settings(every, jitter), None);
                // Messages of the time before may overlap: the previous one counts.
                desk.works = if every == "1m" { 90 * SECOND } else { 5 * SECOND };
                desk.bring(state);
                desk.edit(edit, None);
                if jitter.is_none() {
                    desk.pass(30 * MINUTE);
                    desk.judge(&what);
                }
                let counts = &desk.state.counts;
                assert_eq!((counts.missed, counts.unsure), (0, 0), "{what}");
            }
        }
    }
}
