//! Schedules over a real wheel in memory, whose clock stands still.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use duewheel::core::engine::{Answered, Edit, Enqueue, IfExists, Op, Quota, Target, When};
use duewheel::core::name::{Key, QueueName};
use duewheel::{Args, Duewheel, Job, Policy, State, View, VirtualClock, Workers};
use duewheel_delivery::{
    OccurrenceEnd, PastOccurrences, RecurrenceSettings, ScheduleError, ScheduleSettings, ScheduleView,
    ScheduleWorker, Schedules,
};

pub(crate) const LONG: Duration = Duration::from_secs(60);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(10);

pub(crate) struct Rig {
    pub(crate) wheel: Duewheel,
    pub(crate) clock: VirtualClock,
    pub(crate) schedules: Schedules,
    pub(crate) worker: Option<ScheduleWorker>,
}

/// Polls until `done`, with a deadline.
pub(crate) async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !done().await {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(crate) fn every(length: &str) -> ScheduleSettings {
    ScheduleSettings {
        queue: "q".into(),
        recurrence: RecurrenceSettings { every: Some(length.into()), ..Default::default() },
        body: "work".into(),
        headers: vec![("kind".into(), "report".into())],
        ..Default::default()
    }
}

impl Rig {
    pub(crate) async fn new() -> Self {
        let clock = VirtualClock::at_2026();
        let wheel = Duewheel::builder().in_memory().clock(clock.clone()).seed(1).open().await.unwrap();
        let schedules = Schedules::new(&wheel, &Policy::default()).unwrap();
        let worker = Some(ScheduleWorker::start(&schedules));
        Rig { wheel, clock, schedules, worker }
    }

    pub(crate) async fn stop_worker(&mut self) {
        self.worker.take().unwrap().stop(STOP).await;
    }

    pub(crate) fn start_worker(&mut self) {
        self.worker = Some(ScheduleWorker::start(&self.schedules));
    }

    pub(crate) async fn get(&self, name: &str) -> ScheduleView {
        self.schedules.get(name).await.unwrap()
    }

    /// All messages of the queue by id, in due order.
    pub(crate) async fn messages(&self) -> Vec<View> {
        let queue = QueueName::new("q").unwrap();
        self.wheel.client().list(queue, None, None, 1_000).await.unwrap().views
    }

    /// Waits until the schedule has entered so many occurrences.
    pub(crate) async fn entered(&self, name: &str, count: u64) {
        until("occurrences have entered", async || {
            let view = self.get(name).await;
            view.record.state.counts.entered == count && view.record.state.held_until == 0
        })
        .await;
    }

    async fn cancel(&self, id: duewheel::MessageId) {
        self.wheel.client().ask(Op::cancel(Target::Id(id))).await.unwrap().unwrap();
    }

    pub(crate) fn now(&self) -> SystemTime {
        self.wheel.client().now().wall.to_system_time()
    }
}

fn key(view: &View) -> &str {
    view.message.key.as_ref().unwrap().as_str()
}

fn header<'a>(view: &'a View, name: &str) -> Option<&'a str> {
    view.message.headers.iter().find(|(found, _)| &**found == name).map(|(_, value)| &**value)
}

/// Story: one advance of 48 hours passed over the occurrences, and one message came.
#[tokio::test(flavor = "multi_thread")]
async fn advance_enters_each_occurrence() {
    let rig = Rig::new().await;
    rig.schedules.put("hourly", every("1h"), None).await.unwrap();
    let queue = QueueName::new("q").unwrap();
    rig.wheel.advance(&rig.clock, 48 * 60 * MINUTE).await.unwrap();
    let view = rig.wheel.client().ask(Op::queue(queue)).await.unwrap().unwrap();
    assert_eq!((view.counts.ready, view.counts.scheduled), (48, 1));
    let counts = rig.get("hourly").await.record.state.counts;
    assert_eq!((counts.entered, counts.missed), (49, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn occurrences_are_ordinary_messages_entered_early() {
    let rig = Rig::new().await;
    let created = rig.schedules.put("report", every("1m"), None).await.unwrap();
    assert_eq!(created.next.len(), 10);
    rig.entered("report", 1).await;
    let found = rig.messages().await;
    assert_eq!(found.len(), 1, "one is put ahead");
    let at = rig.now() + MINUTE;
    assert_eq!(found[0].due_at.to_system_time(), at);
    assert_eq!(&*found[0].message.body, b"work");
    assert_eq!(header(&found[0], "kind"), Some("report"));
    assert_eq!(header(&found[0], "duewheel-schedule"), Some("report"));
    let occurrence = header(&found[0], "duewheel-occurrence").unwrap();
    assert_eq!(found[0].message.key.as_ref().unwrap().as_str(), format!("report@{occurrence}"));
    for n in 2..6 {
        rig.clock.advance(MINUTE);
        rig.entered("report", n).await;
    }
    let found = rig.messages().await;
    assert_eq!(found.len(), 5);
    let view = rig.get("report").await;
    // The fifth is put ahead.
    assert_eq!((view.record.state.latest.len(), view.latest.len(), view.counts.entered), (5, 4, 4));
    assert_eq!(view.next[0].at, found[4].due_at.to_system_time());
    assert!(view.record.state.latest.iter().all(|past| past.end == OccurrenceEnd::Entered));
    assert!(
        rig.wheel.queues().await.unwrap().iter().all(|queue| queue.name.as_str() == "q"),
        "records are hidden"
    );
}

/// Story: an occurrence that was put ahead had entered and was still to come, also after its message was cancelled.
#[tokio::test(flavor = "multi_thread")]
async fn occurrence_entered_early_is_shown_next() {
    let rig = Rig::new().await;
    rig.schedules.put("report", every("1h"), None).await.unwrap();
    rig.entered("report", 1).await;
    let first = rig.messages().await.remove(0);
    let view = rig.get("report").await;
    assert_eq!((view.next.len(), view.latest.len(), view.counts.entered), (10, 0, 0));
    assert_eq!(view.next[0].at, first.due_at.to_system_time());
    rig.cancel(first.message.id).await;
    let view = rig.get("report").await;
    assert_eq!((view.next.len(), view.latest.len()), (10, 0));
    assert_eq!(view.next[0].at, first.due_at.to_system_time() + 60 * MINUTE);
    let listed = rig.schedules.list(None, 10, &|_| true).await.unwrap().remove(0);
    assert_eq!(listed.view.unwrap().next, view.next);
    rig.clock.advance(60 * MINUTE);
    rig.entered("report", 2).await;
    let view = rig.get("report").await;
    assert_eq!((view.latest.len(), view.counts.entered), (1, 1));
}

/// An edit replaces the occurrence that is put ahead. One that its callers have cancelled stays so, and others come.
#[tokio::test(flavor = "multi_thread")]
async fn edit_replaces_pending_occurrence() {
    let rig = Rig::new().await;
    rig.schedules.put("report", every("1h"), None).await.unwrap();
    rig.entered("report", 1).await;
    let first = rig.messages().await.remove(0);
    let note = ScheduleSettings { note: Some("words".into()), ..every("1h") };
    rig.schedules.put("report", note.clone(), None).await.unwrap();
    assert_eq!(rig.messages().await[0].message.id, first.message.id, "a note changes no message");
    let other = ScheduleSettings { body: "other".into(), ..note };
    rig.schedules.put("report", other, None).await.unwrap();
    let found = rig.messages().await;
    assert_eq!((found.len(), &*found[0].message.body), (1, &b"other"[..]));
    assert_eq!(found[0].message.key, first.message.key);
    assert_eq!(found[0].due_at, first.due_at);

    rig.cancel(found[0].message.id).await;
    let faster = ScheduleSettings { body: "faster".into(), ..every("20m") };
    rig.schedules.put("report", faster, None).await.unwrap();
    let found = rig.messages().await;
    assert_eq!(found[0].due_at.to_system_time(), rig.now() + 20 * MINUTE);
    // Story: after the edit the one that was cancelled was to come, and had entered.
    let view = rig.get("report").await;
    assert!(!view.next.iter().any(|next| next.at == first.due_at.to_system_time()), "{:?}", view.next);
    assert_eq!((view.latest.len(), view.counts.entered), (0, 0), "it was removed before it was due");
    for n in [2, 3, 3] {
        // At the full hour the occurrence was cancelled: it does not come again.
        rig.clock.advance(20 * MINUTE);
        rig.entered("report", n).await;
    }
    let hours: Vec<_> = rig.messages().await.iter().map(|view| view.due_at).collect();
    assert!(!hours.contains(&first.due_at), "{hours:?}");
}

/// A purge removes the occurrence that is put ahead, as any message: it does not come again, and the next ones come.
#[tokio::test(flavor = "multi_thread")]
async fn purge_removes_only_pending_occurrence() {
    let rig = Rig::new().await;
    rig.schedules.put("report", every("1h"), None).await.unwrap();
    rig.entered("report", 1).await;
    let first = rig.messages().await.remove(0).due_at.to_system_time();
    let purged = rig.wheel.client().ask(Op::purge(QueueName::new("q").unwrap(), None)).await.unwrap();
    assert_eq!(purged.what, 1);
    assert!(rig.messages().await.is_empty());
    let next = |view: &ScheduleView| view.next.iter().map(|next| next.at).take(2).collect::<Vec<_>>();
    let view = rig.get("report").await;
    assert_eq!(next(&view), [first + 60 * MINUTE, first + 120 * MINUTE], "the purged one is not to come");
    // A note is an edit, and puts nothing instead of what was purged.
    let note = ScheduleSettings { note: Some("words".into()), ..every("1h") };
    rig.schedules.put("report", note, None).await.unwrap();
    assert!(rig.messages().await.is_empty());
    for n in 2..5 {
        rig.clock.advance(60 * MINUTE);
        rig.entered("report", n - 1).await;
        let due: Vec<_> = rig.messages().await.iter().map(|view| view.due_at.to_system_time()).collect();
        let expected: Vec<_> =
            (1..u32::try_from(n).unwrap()).map(|hour| first + hour * 60 * MINUTE).collect();
        assert_eq!(due, expected, "each of the others once");
    }
    let counts = rig.get("report").await.record.state.counts;
    assert_eq!((counts.missed, counts.skipped, counts.blocked, counts.unsure), (0, 0, 0, 0));
}

/// Story: an occurrence that was purged before it was due counted as entered once its time had come.
#[tokio::test(flavor = "multi_thread")]
async fn a_purged_occurrence_has_not_entered() {
    let rig = Rig::new().await;
    rig.schedules.put("report", every("1h"), None).await.unwrap();
    rig.entered("report", 1).await;
    rig.wheel.client().ask(Op::purge(QueueName::new("q").unwrap(), None)).await.unwrap();
    rig.clock.advance(60 * MINUTE - Duration::from_millis(900));
    rig.entered("report", 0).await;
    for n in 1..3 {
        rig.clock.advance(if n == 1 { Duration::from_millis(900) } else { 60 * MINUTE });
        rig.entered("report", n).await;
    }
    let view = rig.get("report").await;
    assert_eq!((view.counts.entered, view.latest.len(), rig.messages().await.len()), (1, 1, 2));
}

/// Story: a list of instants that had passed was taken, and nothing ever occurred.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_passed_is_refused_unless_kept() {
    let rig = Rig::new().await;
    let listed = |at: &str| RecurrenceSettings { at: vec![at.into()], ..Default::default() };
    let ended = RecurrenceSettings {
        every: Some("1h".into()),
        start: Some("2020-01-01T00:00:00Z".into()),
        end: Some("2020-01-02T00:00:00Z".into()),
        ..Default::default()
    };
    let cron = RecurrenceSettings {
        cron: Some("0 0 0 1 1 ? 2025".into()),
        start: ended.start.clone(),
        ..Default::default()
    };
    let with =
        |recurrence: &RecurrenceSettings| ScheduleSettings { recurrence: recurrence.clone(), ..every("1h") };
    rig.schedules.put("other", every("1h"), None).await.unwrap();
    for (recurrence, field) in [(listed("2020-01-01T00:00:00Z"), "at"), (ended, "end"), (cron, "cron")] {
        for name in ["report", "other"] {
            let error = rig.schedules.put(name, with(&recurrence), None).await.unwrap_err();
            assert!(matches!(error, ScheduleError::Past(found) if found == field), "{error:?}");
        }
        let kept = (None, PastOccurrences::Keep);
        rig.schedules.put_within("report", with(&recurrence), kept, &|_| true).await.unwrap();
        rig.schedules.put("report", with(&recurrence), None).await.unwrap();
        rig.schedules.remove("report", &|_| true).await.unwrap();
    }
    let error = rig.schedules.put("report", every("1h"), Some(0)).await.unwrap_err();
    assert_eq!(error.to_string(), "remaining: must be at least 1");
    let soon = with(&listed(&humantime(rig.now() + MINUTE)));
    rig.schedules.put("report", soon.clone(), Some(1)).await.unwrap();
    rig.entered("report", 1).await;
    rig.clock.advance(2 * MINUTE);
    let view = rig.schedules.put("report", soon.clone(), Some(0)).await.unwrap();
    assert_eq!(
        (view.remaining, view.counts.entered),
        (Some(0), 1),
        "what equals the stored schedule is taken"
    );
    let note = ScheduleSettings { note: Some("words".into()), ..soon };
    rig.schedules.put("report", note, Some(0)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn postponed_occurrence_is_left_in_place() {
    let rig = Rig::new().await;
    rig.schedules.put("report", every("1h"), None).await.unwrap();
    rig.entered("report", 1).await;
    let first = rig.messages().await.remove(0).message.id;
    let later = Box::new(Edit::due(When::After(10 * 3_600_000)));
    rig.wheel.client().ask(Op::postpone(Target::Id(first), later, None)).await.unwrap().unwrap();
    let other = ScheduleSettings { body: "other".into(), ..every("1h") };
    rig.schedules.put("report", other, None).await.unwrap();
    let found = rig.messages().await;
    assert_eq!((found.len(), found[0].message.id), (1, first));
    assert_eq!(&*found[0].message.body, b"work");
    rig.clock.advance(60 * MINUTE);
    rig.entered("report", 2).await;
    assert_eq!(&*rig.messages().await[0].message.body, b"other");
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_withdraws_and_removal_cancels() {
    let rig = Rig::new().await;
    rig.schedules.put("report", every("1h"), None).await.unwrap();
    rig.entered("report", 1).await;
    let mut pause = |settings: &ScheduleSettings, _: &mut Option<u64>, _: &mut PastOccurrences| {
        Ok(ScheduleSettings { paused: true, note: Some("holidays".into()), ..settings.clone() })
    };
    let paused = rig.schedules.change("report", &mut pause).await.unwrap();
    assert!(paused.next.is_empty());
    assert!(rig.messages().await.is_empty(), "withdrawn");
    rig.clock.advance(300 * MINUTE);
    let mut resume = |settings: &ScheduleSettings, _: &mut Option<u64>, _: &mut PastOccurrences| {
        Ok(ScheduleSettings { paused: false, ..settings.clone() })
    };
    rig.schedules.change("report", &mut resume).await.unwrap();
    rig.entered("report", 1).await;
    let found = rig.messages().await;
    assert_eq!((found.len(), found[0].due_at.to_system_time()), (1, rig.now() + 60 * MINUTE));
    assert_eq!(rig.get("report").await.record.state.counts.missed, 0, "nothing occurs while it is paused");

    rig.schedules.remove("report", &|_| true).await.unwrap();
    assert!(rig.messages().await.is_empty(), "cancelled");
    assert!(matches!(rig.schedules.get("report").await, Err(ScheduleError::NotFound)));
    assert!(matches!(rig.schedules.remove("report", &|_| true).await, Err(ScheduleError::NotFound)));
    rig.schedules.put("report", every("1h"), None).await.unwrap();
    rig.entered("report", 1).await;
    assert_eq!(rig.messages().await.len(), 1, "the new one has the same instants, and other ids");
}

#[tokio::test(flavor = "multi_thread")]
async fn overlapping_occurrence_waits_or_is_skipped() {
    for (overlap, first, second) in [("skip", (1, 2), (2, 2)), ("buffer_one", (1, 1), (2, 1))] {
        let rig = Rig::new().await;
        let settings = ScheduleSettings { overlap: Some(overlap.into()), ..every("1m") };
        rig.schedules.put("report", settings, None).await.unwrap();
        let counts = async |wanted: (u64, u64)| {
            until("it is counted", async || {
                let counts = rig.get("report").await.record.state.counts;
                (counts.entered, counts.skipped) == wanted
            })
            .await;
        };
        assert!(rig.messages().await.is_empty(), "nothing is put ahead");
        rig.clock.advance(MINUTE);
        counts((1, 0)).await;
        rig.clock.advance(MINUTE);
        let skips = u64::from(overlap == "skip");
        counts((1, skips)).await;
        until("it waits", async || {
            overlap == "skip" || rig.get("report").await.record.state.buffered.is_some()
        })
        .await;
        rig.clock.advance(MINUTE);
        counts(first).await;
        rig.cancel(rig.messages().await[0].message.id).await;
        rig.clock.advance(if overlap == "skip" { MINUTE } else { Duration::from_secs(2) });
        counts(second).await;
    }
}

/// A stranger who holds the key, or who guesses ids, makes no occurrence vanish.
#[tokio::test(flavor = "multi_thread")]
async fn strangers_make_no_occurrence_vanish() {
    let mut rig = Rig::new().await;
    rig.stop_worker().await;
    let view = rig.schedules.put("report", every("1m"), None).await.unwrap();
    let at = view.next[0].at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    let text = humantime(view.next[0].at);
    let stranger = Enqueue {
        key: Some(Key::new(&format!("report@{text}")).unwrap()),
        dedupe_id: Some(format!("schedule/report/{at}").into()),
        if_exists: IfExists::Reject,
        when: When::After(3_600_000),
        ..Enqueue::new(QueueName::new("q").unwrap(), "stranger")
    };
    rig.wheel.client().ask(stranger).await.unwrap().unwrap();
    rig.start_worker();
    rig.entered("report", 1).await;
    let counts = rig.get("report").await.record.state.counts;
    assert_eq!((counts.keyless, counts.blocked), (1, 0));
    let found = rig.messages().await;
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].message.key, None);
}

/// Story: an edit that set `remaining` let one more enter for each message that it took back.
#[tokio::test(flavor = "multi_thread")]
async fn edit_of_remaining_is_exact() {
    let rig = Rig::new().await;
    rig.schedules.put("report", every("1h"), None).await.unwrap();
    rig.entered("report", 1).await;
    rig.schedules.put("report", every("2h"), Some(1)).await.unwrap();
    until("the new one is put ahead", async || {
        rig.messages()
            .await
            .first()
            .is_some_and(|first| first.due_at.to_system_time() > rig.now() + 90 * MINUTE)
    })
    .await;
    rig.clock.advance(600 * MINUTE);
    rig.entered("report", 1).await;
    assert_eq!(rig.get("report").await.record.state.remaining, Some(0));
    assert_eq!(rig.messages().await.len(), 1);
}

/// Story: headers in another order were another message, and a new note replaced the one that was put ahead.
#[tokio::test(flavor = "multi_thread")]
async fn headers_in_another_order_replace_nothing() {
    let rig = Rig::new().await;
    let headers = [("b".to_owned(), "2".to_owned()), ("a".to_owned(), "1".to_owned())];
    let settings = ScheduleSettings { headers: headers.to_vec(), ..every("1h") };
    rig.schedules.put("report", settings.clone(), None).await.unwrap();
    rig.entered("report", 1).await;
    let first = rig.messages().await[0].message.id;
    let turned = ScheduleSettings { headers: headers.into_iter().rev().collect(), ..settings };
    rig.schedules.put("report", turned, None).await.unwrap();
    rig.entered("report", 1).await;
    assert_eq!(rig.messages().await[0].message.id, first);
}

fn humantime(at: SystemTime) -> String {
    format!("{:.3}", jiff::Timestamp::try_from(at).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn trigger_and_backfill_ids_prevent_duplicates() {
    let rig = Rig::new().await;
    let settings = ScheduleSettings { paused: true, ..every("1m") };
    rig.schedules.put("report", settings, None).await.unwrap();
    let first = rig.schedules.trigger("report", Some("mine")).await.unwrap();
    rig.clock.advance(MINUTE);
    // Story: the answer to a repeated trigger had the present as its due time.
    let again = rig.schedules.trigger("report", Some("mine")).await.unwrap();
    assert_eq!((again.id, again.due_at, again.answered), (first.id, first.due_at, Answered::Before));
    rig.cancel(first.id).await;
    assert_eq!(rig.schedules.trigger("report", Some("mine")).await.unwrap().due_at, first.due_at);
    for _ in 0..2 {
        rig.schedules.trigger("report", None).await.unwrap();
    }
    assert_eq!(rig.messages().await.len(), 2);

    let span = (rig.now(), rig.now() + 600 * MINUTE);
    let error = rig.schedules.backfill("report", span, None).await.unwrap_err();
    assert!(error.to_string().starts_with("to: is in the future"), "{error}");
    rig.clock.advance(10_000 * MINUTE);
    for _ in 0..2 {
        let done = rig.schedules.backfill("report", span, Some("again")).await.unwrap();
        assert_eq!((done.id.as_str(), done.instants), ("again", 601));
    }
    assert_eq!(rig.messages().await.len(), 603);
    rig.schedules.backfill("report", (span.0, span.0), Some("other")).await.unwrap();
    assert_eq!(rig.messages().await.len(), 604);
    let span = (span.0, span.0 + 10_000 * MINUTE);
    let error = rig.schedules.backfill("report", span, None).await.unwrap_err();
    assert!(error.to_string().contains("10000 occurrences"), "{error}");
    assert_eq!(rig.messages().await.len(), 604);
    assert_eq!(rig.get("report").await.record.state.counts.entered, 0, "neither is an occurrence");
}

/// How many messages each occurrence has, by its minute since `from`.
async fn minutes(rig: &Rig, from: SystemTime) -> BTreeMap<u64, u32> {
    let mut minutes = BTreeMap::new();
    for view in rig.messages().await {
        let at: jiff::Timestamp = header(&view, "duewheel-occurrence").unwrap().parse().unwrap();
        let since = SystemTime::from(at).duration_since(from).unwrap();
        *minutes.entry(since.as_secs() / 60).or_default() += 1;
    }
    minutes
}

/// What has run enters once more for each id of a backfill, and the schedule, which runs, goes on as before.
#[tokio::test(flavor = "multi_thread")]
async fn backfill_enters_once_per_id() {
    let rig = Rig::new().await;
    let start = rig.now();
    rig.schedules.put("report", every("1m"), None).await.unwrap();
    rig.entered("report", 1).await;
    for n in 2..7 {
        rig.clock.advance(MINUTE);
        rig.entered("report", n).await;
    }
    let ran = BTreeMap::from([1, 2, 3, 4, 5, 6].map(|minute| (minute, 1)));
    assert_eq!(minutes(&rig, start).await, ran, "five have run, and one is put ahead");
    let backfill = async |id: &str, from: u32, to: u32| {
        let span = (start + from * MINUTE, start + to * MINUTE);
        rig.schedules.backfill("report", span, Some(id)).await.unwrap().instants
    };
    assert_eq!(backfill("again", 1, 5).await, 5);
    let again = BTreeMap::from([(1, 2), (2, 2), (3, 2), (4, 2), (5, 2), (6, 1)]);
    assert_eq!(minutes(&rig, start).await, again);
    let found = rig.messages().await;
    let added: Vec<_> = found.iter().filter(|view| key(view).ends_with("/again")).collect();
    assert!(added.len() == 5 && added.iter().all(|view| view.due_at.to_system_time() == rig.now()));

    // The id counts, whatever has become of the messages, and in part of the span and in more of it, too.
    let earliest = added.iter().min_by_key(|view| key(view)).unwrap();
    rig.cancel(earliest.message.id).await;
    let one_less = BTreeMap::from([(1, 1), (2, 2), (3, 2), (4, 2), (5, 2), (6, 1)]);
    assert_eq!((backfill("again", 1, 5).await, backfill("again", 2, 3).await), (5, 2));
    assert_eq!(minutes(&rig, start).await, one_less);
    rig.clock.advance(MINUTE);
    rig.entered("report", 7).await;
    assert_eq!(backfill("again", 1, 6).await, 6);
    let sixth = BTreeMap::from([(1, 1), (2, 2), (3, 2), (4, 2), (5, 2), (6, 2), (7, 1)]);
    assert_eq!(minutes(&rig, start).await, sixth);
    // Another id is another backfill.
    assert_eq!(backfill("other", 3, 6).await, 4);
    let other = BTreeMap::from([(1, 1), (2, 2), (3, 3), (4, 3), (5, 3), (6, 3), (7, 1)]);
    assert_eq!(minutes(&rig, start).await, other);

    let view = rig.get("report").await;
    assert_eq!((view.record.state.counts.entered, view.counts.missed), (7, 0), "none is an occurrence");
    rig.clock.advance(MINUTE);
    rig.entered("report", 8).await;
    assert_eq!(minutes(&rig, start).await.get(&8), Some(&1), "the schedule goes on");
}

/// A quota is used up when an occurrence is to enter: it waits, is counted once, and enters when there is room.
#[tokio::test(flavor = "multi_thread")]
async fn occurrence_refused_by_quota_waits() {
    let rig = Rig::new().await;
    let quota = Quota { prefix: "q".into(), messages: Some(1), ..Quota::default() };
    rig.wheel.set_quotas(vec![quota]).unwrap();
    rig.schedules.put("report", every("1h"), None).await.unwrap();
    rig.entered("report", 1).await;
    let first = rig.messages().await.remove(0);
    rig.clock.advance(60 * MINUTE);
    // Refused so often in a row; the state of a look that has ended.
    let refused = async |tries: u32| {
        until("it is refused", async || {
            let state = rig.get("report").await.record.state;
            state.held_until == 0 && state.block.is_some_and(|block| block.tries == tries)
        })
        .await;
        rig.get("report").await
    };
    for tries in 1..=4 {
        let view = refused(tries).await;
        let (state, block) = (&view.record.state, view.record.state.block.clone().unwrap());
        assert_eq!((state.counts.blocked, state.counts.entered, state.counts.missed), (1, 1, 0));
        assert_eq!(block.why, "a quota is used up");
        assert_eq!(view.next[0].at, first.due_at.to_system_time() + 60 * MINUTE, "it is still to come");
        assert_eq!(rig.messages().await.len(), 1);
        if tries == 4 {
            rig.cancel(first.message.id).await;
        }
        let now = rig.wheel.client().now().wall.0;
        assert!(block.until > now && block.until <= now + 60_000, "{block:?}");
        rig.clock.advance(Duration::from_millis(block.until - now));
    }
    rig.entered("report", 2).await;
    let state = rig.get("report").await.record.state;
    assert_eq!((state.counts.blocked, state.block), (1, None));
    let found = rig.messages().await;
    assert_eq!((found.len(), key(&found[0]).starts_with("report@")), (1, true));
    assert_eq!(found[0].due_at.to_system_time(), first.due_at.to_system_time() + 60 * MINUTE);

    // The next one finds no room again, and waits until its time is over: it enters late rather than never.
    rig.clock.advance(60 * MINUTE);
    assert_eq!(refused(1).await.record.state.counts.blocked, 2);
    rig.clock.advance(60 * MINUTE);
    let block = refused(2).await.record.state.block.unwrap();
    rig.cancel(found[0].message.id).await;
    rig.clock.advance(Duration::from_millis(block.until - rig.wheel.client().now().wall.0));
    until("the third has entered", async || rig.get("report").await.record.state.counts.entered == 3).await;
    let third = first.due_at.to_system_time() + 120 * MINUTE;
    assert_eq!(key(&rig.messages().await[0]), format!("report@{}", humantime(third)));
    assert_eq!(rig.get("report").await.record.state.counts.missed, 0);
}

/// Story: a quota refused a backfill without an id when a part of it had entered. Its id was drawn and shown nowhere,
/// so all of that part entered once more when it was repeated.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_backfill_names_its_id() {
    let rig = Rig::new().await;
    let quota = |messages| Quota { prefix: "q".into(), messages: Some(messages), ..Quota::default() };
    rig.wheel.set_quotas(vec![quota(40)]).unwrap();
    let settings = ScheduleSettings { paused: true, ..every("1m") };
    rig.schedules.put("report", settings, None).await.unwrap();
    let span = (rig.now(), rig.now() + 60 * MINUTE);
    rig.clock.advance(60 * MINUTE);
    let error = rig.schedules.backfill("report", span, None).await.unwrap_err();
    let ScheduleError::Interrupted { id, why } = &error else { panic!("{error:?}") };
    assert!(matches!(**why, ScheduleError::Refused(_)) && error.to_string().contains(id.as_str()), "{error}");
    let entered = rig.messages().await.len();
    assert!(entered > 0 && entered <= 40, "{entered}");
    rig.wheel.set_quotas(vec![quota(1_000)]).unwrap();
    assert_eq!(rig.schedules.backfill("report", span, Some(id)).await.unwrap().instants, 60);
    assert_eq!(rig.messages().await.len(), 60);
}

/// A record that cannot be read is shown with its error, does not run, and can be removed.
#[tokio::test(flavor = "multi_thread")]
async fn one_damaged_record_stops_nothing_else() {
    let rig = Rig::new().await;
    let record = Enqueue {
        key: Some(Key::new("broken").unwrap()),
        ..Enqueue::new(QueueName::system("#schedules").unwrap(), r#"{"format":99}"#)
    };
    rig.wheel.client().ask(record).await.unwrap().unwrap();
    rig.schedules.put("report", every("1m"), None).await.unwrap();
    rig.entered("report", 1).await;
    let list = rig.schedules.list(None, 10, &|_| true).await.unwrap();
    let names: Vec<_> = list.iter().map(|listed| (listed.name.as_str(), listed.view.is_ok())).collect();
    assert_eq!(names, [("broken", false), ("report", true)]);
    assert!(list[0].view.as_ref().unwrap_err().contains("format 99"));
    let list = rig.schedules.list(Some("broken"), 10, &|_| true).await.unwrap();
    assert_eq!(list.len(), 1);
    let error = rig.schedules.put("broken", every("1m"), None).await.unwrap_err();
    assert!(matches!(error, ScheduleError::Unreadable(_)), "{error}");
    until("it is removed", async || rig.schedules.remove("broken", &|_| true).await.is_ok()).await;
    assert!(matches!(rig.schedules.get("broken").await, Err(ScheduleError::NotFound)));
}

#[tokio::test(flavor = "multi_thread")]
async fn number_of_schedules_is_limited() {
    let mut rig = Rig::new().await;
    rig.schedules.put("report", every("1m"), None).await.unwrap();
    rig.entered("report", 1).await;
    rig.stop_worker().await;
    // Records alone: only their number counts.
    let record = |n: usize| Enqueue {
        key: Some(Key::new(&format!("s{n}")).unwrap()),
        when: When::After(86_400_000),
        ..Enqueue::new(QueueName::system("#schedules").unwrap(), r#"{"format":99}"#)
    };
    for part in 0..9 {
        let records = (0..1_111).map(|n| record(part * 1_111 + n)).collect();
        let answers = rig.wheel.client().ask_many(records).await.unwrap();
        assert!(answers.iter().all(|answer| matches!(answer, Ok(Ok(_)))));
    }
    let refused = rig.schedules.put("one-more", every("1m"), None).await.map(drop).unwrap_err();
    assert!(matches!(refused, ScheduleError::TooMany(10_000)), "{refused}");
    rig.schedules.put("report", every("2m"), None).await.unwrap();
    rig.schedules.remove("s0", &|_| true).await.unwrap();
    rig.schedules.put("one-more", every("1m"), None).await.unwrap();
}

/// When the messages of the queue are due, in minutes of the day in UTC.
async fn minutes_of_day(rig: &Rig) -> Vec<u64> {
    rig.messages().await.iter().map(|view| view.due_at.0 / 60_000 % 1_440).collect()
}

/// Stops the worker, and writes another text into the record of the schedule.
async fn rewrite_record(rig: &mut Rig, from: &str, to: &str) {
    rig.stop_worker().await;
    let (queue, key) = (QueueName::system("#schedules").unwrap(), Key::new("report").unwrap());
    let record = rig.wheel.client().ask(Op::get(Target::Key(queue, key))).await.unwrap().unwrap();
    let body = String::from_utf8(record.message.body.to_vec()).unwrap();
    assert!(body.contains(from), "{body}");
    let edit = Edit { body: Some(body.replace(from, to).into()), ..Edit::default() };
    let written = Op::postpone(Target::Own(record.message.id), Box::new(edit), None);
    rig.wheel.client().ask(written).await.unwrap().unwrap();
}

/// An expression that an earlier version accepted and this one refuses: the schedule is paused with the reason, what
/// was put ahead is withdrawn, and the expression can be mended.
#[tokio::test(flavor = "multi_thread")]
async fn a_stored_expression_now_refused_pauses() {
    let mut rig = Rig::new().await;
    let cron = |text: &str| RecurrenceSettings { cron: Some(text.into()), ..Default::default() };
    let settings = ScheduleSettings { recurrence: cron("*/59 * * * *"), ..every("1m") };
    rig.schedules.put("report", settings.clone(), None).await.unwrap();
    rig.entered("report", 1).await;
    rewrite_record(&mut rig, "*/59", "*/60").await;
    rig.start_worker();
    until("it is paused", async || rig.get("report").await.record.settings.paused).await;
    until("nothing is ahead", async || rig.messages().await.is_empty()).await;
    let error = rig.get("report").await.error.unwrap().to_string();
    assert!(error.contains("*/60") && error.contains("0 * * * *"), "{error}");
    rig.schedules
        .put("report", ScheduleSettings { recurrence: cron("0 * * * *"), ..settings }, None)
        .await
        .unwrap();
    rig.entered("report", 1).await;
}

/// Zone data that says something else than when an occurrence was put ahead: here the record has another zone.
#[tokio::test(flavor = "multi_thread")]
async fn occurrences_are_computed_again_at_start() {
    let mut rig = Rig::new().await;
    let recurrence = RecurrenceSettings {
        cron: Some("30 9 * * *".into()),
        zone: Some("Europe/Berlin".into()),
        ..Default::default()
    };
    rig.schedules.put("report", ScheduleSettings { recurrence, ..every("1m") }, None).await.unwrap();
    rig.entered("report", 1).await;
    assert_eq!(minutes_of_day(&rig).await, [8 * 60 + 30], "09:30 in Berlin in winter");
    rewrite_record(&mut rig, "Europe/Berlin", "Asia/Tokyo").await;
    rig.start_worker();
    until("it is at 09:30 in Tokyo", async || minutes_of_day(&rig).await == [30]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn schedule_body_leaves_room_for_additions() {
    let rig = Rig::new().await;
    let large = ScheduleSettings { body: vec![b'x'; 200_000].into(), ..every("1m") };
    let error = rig.schedules.put("report", large.clone(), None).await.unwrap_err();
    assert!(error.to_string().starts_with("body: is too large"), "{error}");
    rig.schedules.put("report", every("1m"), None).await.unwrap();
    let error = rig.schedules.put("report", large, None).await.unwrap_err();
    assert!(error.to_string().starts_with("body: is too large"), "{error}");
}

/// Several workers look at many schedules: each occurrence enters once.
#[tokio::test(flavor = "multi_thread")]
async fn several_workers_enter_each_occurrence_once() {
    let rig = Rig::new().await;
    let others: Vec<_> = (0..3).map(|_| ScheduleWorker::start(&rig.schedules)).collect();
    for n in 0..20 {
        rig.schedules.put(&format!("s{n}"), every("1s"), None).await.unwrap();
    }
    for n in 1..=10 {
        for schedule in 0..20 {
            rig.entered(&format!("s{schedule}"), n).await;
        }
        rig.clock.advance(Duration::from_secs(1));
    }
    let mut seen: HashMap<String, u32> = HashMap::new();
    for view in rig.messages().await {
        *seen.entry(view.message.key.as_ref().unwrap().as_str().to_owned()).or_default() += 1;
    }
    assert!(seen.len() >= 200 && seen.values().all(|count| *count == 1), "{}", seen.len());
    for worker in others {
        worker.stop(STOP).await;
    }
}

/// Only so many occurrences as remain enter.
#[tokio::test(flavor = "multi_thread")]
async fn no_more_enter_than_remain() {
    let rig = Rig::new().await;
    rig.schedules.put("report", every("1m"), Some(2)).await.unwrap();
    rig.entered("report", 1).await;
    assert_eq!(rig.get("report").await.next.len(), 2);
    for _ in 0..5 {
        rig.clock.advance(MINUTE);
        rig.entered("report", 2).await;
    }
    assert_eq!(rig.messages().await.len(), 2);
    assert!(rig.get("report").await.next.is_empty());
}

/// A job of the library, once a minute.
#[tokio::test(flavor = "multi_thread")]
async fn recurring_jobs_reach_their_handler() {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Report {
        shop: String,
    }
    impl Job for Report {
        const QUEUE: &'static str = "q";
    }
    async fn report(Args(report): Args<Report>, State(seen): State<Arc<Mutex<Vec<String>>>>) {
        seen.lock().unwrap().push(report.shop);
    }
    let (rig, seen) = (Rig::new().await, Arc::<Mutex<Vec<String>>>::default());
    Workers::new(&rig.wheel, seen.clone()).on::<Report, _>(report).start().unwrap();
    let minutely = RecurrenceSettings { every: Some("1m".into()), ..Default::default() };
    let settings = ScheduleSettings::of_job(&Report { shop: "Berlin".into() }, minutely).unwrap();
    rig.schedules.put("report", settings, None).await.unwrap();
    rig.wheel.advance(&rig.clock, 3 * MINUTE).await.unwrap();
    until("three reports are made", async || seen.lock().unwrap().len() == 3).await;
    assert!(seen.lock().unwrap().iter().all(|shop| shop == "Berlin"));
}
