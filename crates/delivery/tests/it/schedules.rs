//! Plans of schedules: single stories, looked at by hand.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use duewheel_delivery::{
    DueAnswer, EnterOutcome, LookFacts, PreviousRun, RecurrenceSettings, ScheduleEntry, ScheduleSettings,
    ScheduleState, ScheduleStep, TakeOutcome, Timetable,
};

pub(crate) const NAME: &str = "report";
pub(crate) const START: u64 = 1_800_000_000_000;
pub(crate) const HOUR: u64 = 3_600_000;
pub(crate) const DAY: u64 = 86_400_000;
pub(crate) const WEEK: u64 = 7 * DAY;
pub(crate) const HELD: u64 = 10_000;

pub(crate) fn time(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

pub(crate) fn to_ms(at: SystemTime) -> u64 {
    u64::try_from(at.duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

pub(crate) fn settings(every: &str) -> ScheduleSettings {
    ScheduleSettings {
        queue: "reports".into(),
        recurrence: RecurrenceSettings { every: Some(every.into()), ..RecurrenceSettings::default() },
        body: "0".into(),
        ..ScheduleSettings::default()
    }
}

pub(crate) fn table(settings: &ScheduleSettings) -> Timetable {
    Timetable::new(settings, time(START)).unwrap()
}

/// Nobody has looked at a schedule for a day: each look does a bounded part of what there is to do, so that other
/// schedules get their turn, and what enters late is no burst.
#[test]
fn a_look_is_bounded() {
    let settings =
        ScheduleSettings { missed: Some("all".into()), catchup: Some("30d".into()), ..settings("1s") };
    let (table, mut state) = (table(&settings), ScheduleState::new(START, None));
    let mut now = START + DAY;
    let (mut entered, mut late) = (0, Vec::new());
    for _ in 0..2_000 {
        let facts =
            LookFacts { name: NAME, now, previous: PreviousRun::Unknown, is_checked: true, remembered: WEEK };
        let before = state.cursor;
        match state.advance(&table, facts) {
            ScheduleStep::Enter(entries) => {
                assert!(entries.len() <= 32, "{}", entries.len());
                for entry in entries {
                    entered += 1;
                    assert_eq!(entry.due, entry.at, "due times are nominal");
                    late.extend((now - entry.due > 30_000).then_some((now, entry.due)));
                    let id = entered;
                    state.entered(now, &entry, EnterOutcome::Entered { id, generation: 1, keyed: true });
                }
            }
            ScheduleStep::Sleep(until) => now = now.max(until),
            other => panic!("{other:?}"),
        }
        assert!(state.cursor - before <= 5_000_000, "5,000 instants");
        if entered > 1_000 && state.backlog.is_empty() {
            break;
        }
    }
    assert!(late.len() > 900 && late.windows(2).all(|pair| pair[0].1 < pair[1].1), "in order");
    assert!(late.windows(11).all(|some| some[10].0 >= some[0].0 + 1_000), "ten a second");
    assert!(state.counts.missed >= DAY / 1_000 - 1_011, "{:?}", state.counts);
}

/// An interval of a second that nobody has looked at for a year is counted without a look at each second.
#[test]
fn long_outage_is_counted_arithmetically() {
    let settings = ScheduleSettings { catchup: Some("1m".into()), ..settings("1s") };
    let (table, mut state) = (table(&settings), ScheduleState::new(START, None));
    let now = START + 365 * DAY;
    let facts =
        LookFacts { name: NAME, now, previous: PreviousRun::Unknown, is_checked: true, remembered: WEEK };
    assert!(state.judge(&table, facts, 5_000));
    assert_eq!(state.counts.missed + state.backlog.len() as u64, 365 * DAY / 1_000);
}

/// The answer was lost, and the next look came too late to be sure: it is neither entered again nor called missed.
#[test]
fn forgotten_answer_is_counted_as_unsure() {
    let (table, mut state) = (table(&settings("1h")), ScheduleState::new(START, None));
    let facts = |now| LookFacts {
        name: NAME,
        now,
        previous: PreviousRun::Unknown,
        is_checked: true,
        remembered: WEEK,
    };
    let ScheduleStep::Enter(first) = state.advance(&table, facts(START)) else { panic!("enter") };
    assert_eq!(state.advance(&table, facts(START + WEEK - DAY - 1)), ScheduleStep::Enter(first));
    let _ = state.advance(&table, facts(START + WEEK - DAY));
    assert_eq!(state.counts.unsure, 1);
}

/// Story: an edit of the recurrence took an occurrence back, which was delivered just before that. By then its instant
/// had passed, so it was not noted as done; the new recurrence has the same instant, and it entered twice.
#[test]
fn delivered_occurrence_is_not_entered_again() {
    let (old, new) = (settings("1h"), settings("30m"));
    let (before, after) = (table(&old), table(&new));
    let mut state = ScheduleState::new(START, None);
    let facts = |now| LookFacts {
        name: NAME,
        now,
        previous: PreviousRun::Unknown,
        is_checked: true,
        remembered: WEEK,
    };
    let ScheduleStep::Enter(first) = state.advance(&before, facts(START)) else { panic!("enter") };
    state.entered(START, &first[0], EnterOutcome::Entered { id: 1, generation: 1, keyed: true });
    let at = first[0].at;
    state.change(&before, &after, false, facts(at - 1));
    let ScheduleStep::Take(taken) = state.advance(&after, facts(at - 1)) else { panic!("take") };
    state.took(None, at + 5, &taken[0], TakeOutcome::Gone);
    let ScheduleStep::Enter(next) = state.advance(&after, facts(at + 5)) else { panic!("enter") };
    assert!(next.iter().all(|entry| entry.at > at), "{next:?}");
}

/// Enters what one look enters, with the ids from `id` on. Returns the instants, as hours from the start.
fn enter_all(state: &mut ScheduleState, rules: &Timetable, now: u64, id: &mut u64) -> Vec<u64> {
    let mut at = Vec::new();
    loop {
        let facts =
            LookFacts { name: NAME, now, previous: PreviousRun::Unknown, is_checked: true, remembered: WEEK };
        let ScheduleStep::Enter(entries) = state.advance(rules, facts) else { return at };
        for entry in entries {
            *id += 1;
            state.entered(now, &entry, EnterOutcome::Entered { id: *id, generation: 1, keyed: true });
            at.push((entry.at - START) / HOUR);
        }
    }
}

/// Story: the message of an occurrence that was put ahead was in a shard that was closed while it became due, and the
/// record in one that was open: it counted as entered, and was granted late whatever `missed` said.
#[test]
fn closed_shard_leaves_occurrence_open() {
    let half = HOUR / 2;
    // When the shard has opened, after the first occurrence was due.
    for (missed, opens, enters) in [
        ("none", half, false),
        ("last", half, true),
        ("last", HOUR + half, false),
        ("all", HOUR + half, true),
    ] {
        let kind = ScheduleSettings { missed: Some(missed.into()), ..settings("1h") };
        let (rules, mut state, mut id) = (table(&kind), ScheduleState::new(START, Some(10)), 0);
        let due = START + HOUR;
        assert_eq!(enter_all(&mut state, &rules, START, &mut id), [1]);
        state.pass_due(due);
        state.answered(due, due, DueAnswer::Unknown);
        assert_eq!(enter_all(&mut state, &rules, due, &mut id), [2], "others do not wait");
        let facts = LookFacts {
            name: NAME,
            now: due,
            previous: PreviousRun::Unknown,
            is_checked: true,
            remembered: WEEK,
        };
        assert_eq!(
            state.advance(&rules, facts),
            ScheduleStep::Sleep(due + 2_000),
            "the shard is asked again"
        );
        for (now, answer) in [(due + 30_000, DueAnswer::Scheduled), (due + half, DueAnswer::Entered)] {
            let mut open = state.clone();
            open.answered(now, due, answer);
            assert!(open.taking.is_empty() && open.unanswered.is_empty(), "its shard was open in time");
        }
        let now = due + opens;
        if opens > HOUR {
            assert_eq!(enter_all(&mut state, &rules, due + HOUR, &mut id), [3]);
            state.answered(due + HOUR, due + HOUR, DueAnswer::Entered);
        }
        state.answered(now, due, DueAnswer::Scheduled);
        let ScheduleStep::Take(taken) = state.advance(&rules, LookFacts { now, ..facts }) else {
            panic!("take")
        };
        state.took(Some(&rules), now, &taken[0], TakeOutcome::Taken);
        state.erased(&[1]);
        let entered = enter_all(&mut state, &rules, now, &mut id);
        assert_eq!(entered, if enters { vec![1] } else { vec![] }, "{missed}");
        assert_eq!(state.counts.missed, u64::from(!enters), "{missed}: {:?}", state.counts);
        assert_eq!(state.counts.entered + state.remaining.unwrap(), 10, "{missed}: {:?}", state.counts);
    }
}

/// A shard that never opens again is asked for as long as the answer to the enqueue is remembered.
#[test]
fn unanswered_occurrences_are_bounded() {
    for (every, step, most) in [("7d", 168 * HOUR, 1), ("12h", 12 * HOUR, 14), ("1h", HOUR, 32)] {
        let (rules, mut state, mut id) = (table(&settings(every)), ScheduleState::new(START, None), 0);
        for n in 0..200 {
            assert_eq!(enter_all(&mut state, &rules, START + n * step, &mut id).len(), 1);
        }
        assert_eq!(state.unanswered.len(), most, "{every}");
        assert_eq!((state.counts.entered, state.counts.missed), (200, 0));
    }
}

/// Story: a clock was ten minutes ahead when the time service set it back. The next look saw an occurrence that came
/// before the one in the queue, took that one back, and let all of those ten minutes enter once more; so did an edit, a
/// pause that ended, and a node whose clock was two seconds behind.
#[test]
fn clock_step_back_repeats_no_occurrence() {
    let kind = settings("1m");
    let (rules, other) = (table(&kind), table(&settings("30s")));
    let paused = table(&ScheduleSettings { paused: true, ..kind.clone() });
    let facts = |now| LookFacts {
        name: NAME,
        now,
        previous: PreviousRun::Unknown,
        is_checked: true,
        remembered: WEEK,
    };
    let ahead = START + 600_000;
    let (mut state, mut at) = (ScheduleState::new(START, None), BTreeSet::new());
    let look = |state: &mut ScheduleState, rules: &Timetable, now: u64, at: &mut BTreeSet<u64>| {
        loop {
            state.compute_again(rules, facts(now));
            match state.advance(rules, facts(now)) {
                ScheduleStep::Enter(entries) => {
                    for entry in entries {
                        assert!(at.insert(entry.at), "{} enters once more", entry.at - START);
                        let id = at.len() as u64;
                        state.entered(now, &entry, EnterOutcome::Entered { id, generation: 1, keyed: true });
                    }
                }
                ScheduleStep::Take(list) => {
                    for take in list {
                        at.remove(&take.entry.at);
                        state.took(None, now, &take, TakeOutcome::Taken);
                    }
                }
                ScheduleStep::Erase(ids) => state.erased(&ids),
                ScheduleStep::Sleep(until) if until <= state.present => {}
                _ => break,
            }
        }
    };
    for minute in 0..=10 {
        look(&mut state, &rules, START + minute * 60_000, &mut at);
    }
    for now in [ahead - 2_000, START + 5_000] {
        look(&mut state, &rules, now, &mut at);
        for edits in [vec![(&rules, &paused, true), (&paused, &rules, true)], vec![(&rules, &other, false)]] {
            let (mut edited, mut at) = (state.clone(), at.clone());
            for (from, to, same) in edits {
                edited.change(from, to, same, facts(now));
                look(&mut edited, to, now, &mut at);
            }
        }
    }
    look(&mut state, &rules, ahead + 60_000, &mut at);
    assert_eq!(at.into_iter().filter(|at| *at <= ahead + 60_000).count(), 11, "each minute once");
}

/// One worker without faults, over a span; previous messages are settled, and the queue refuses until `accepts`.
fn undisturbed(
    settings: &ScheduleSettings,
    span: u64,
    accepts: u64,
) -> (ScheduleState, Vec<(u64, ScheduleEntry)>) {
    let table = table(settings);
    let (mut state, mut now, mut entered) = (ScheduleState::new(START, None), START, Vec::new());
    let mut previous = PreviousRun::Unknown;
    while now < START + span {
        let facts = LookFacts {
            name: NAME,
            now,
            previous: std::mem::take(&mut previous),
            is_checked: true,
            remembered: WEEK,
        };
        match state.advance(&table, facts) {
            ScheduleStep::Enter(entries) => {
                for entry in entries {
                    let id = entered.len() as u64;
                    let outcome = match now < accepts {
                        true => EnterOutcome::Refused("no room".to_owned()),
                        false => EnterOutcome::Entered { id, generation: 1, keyed: true },
                    };
                    if now >= accepts {
                        entered.push((now, entry.clone()));
                    }
                    state.entered(now, &entry, outcome);
                }
            }
            ScheduleStep::Look(_) => previous = PreviousRun::Settled,
            ScheduleStep::Sleep(until) => now = until.max(now + 1),
            step => panic!("{step:?}"),
        }
        assert!(state.pending.len() <= duewheel_delivery::limits::MAX_PENDING, "{}", state.pending.len());
    }
    (state, entered)
}

/// Story: with a jitter of many intervals all occurrences entered before their time, and the record outgrew its room;
/// with `skip`, and while many waited in their queue, those that were due before an earlier one were missed.
#[test]
fn large_jitter_loses_no_occurrence() {
    for overlap in ["allow", "skip", "buffer_one"] {
        let mut settings = settings("10s");
        settings.recurrence.jitter = Some("1h".into());
        settings.overlap = Some(overlap.into());
        settings.missed = Some("none".into());
        let (state, entered) = undisturbed(&settings, 3 * 3_600_000, 0);
        assert_eq!((state.counts.missed, state.counts.skipped), (0, 0), "{overlap}: {:?}", state.counts);
        let due = START + 2 * 3_600_000;
        let came: BTreeSet<u64> = entered.iter().map(|(_, entry)| entry.at).filter(|at| *at <= due).collect();
        assert_eq!(came.len(), 720, "{overlap}");
        let late = entered.iter().map(|(now, entry)| now.saturating_sub(entry.due)).max();
        assert!(late <= Some(1_000), "{overlap}: {late:?} ms late");
    }
}

/// Story: while a refused occurrence waited, the worker slept, and what passed meanwhile was missed.
#[test]
fn blocked_occurrence_causes_no_misses() {
    for overlap in ["allow", "skip", "buffer_one"] {
        let mut settings = settings("5s");
        settings.overlap = Some(overlap.into());
        settings.missed = Some("none".into());
        let (state, entered) = undisturbed(&settings, 1_200_000, START + 600_000);
        assert_eq!(state.counts.missed, 0, "{overlap}: {:?}", state.counts);
        assert!(entered.len() >= 239, "{overlap}: {} of 240", entered.len());
    }
}
