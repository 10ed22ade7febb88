//! Crashes at every step: of appending, of preparing segments, of flushes and merges, of opening itself.
//!
//! After each one the folder must open, with whole groups, in order, and with everything that was durable; after kill
//! -9 with everything that was written.

use duewheel_core::record::{ClockPair, Created, DedupeRow, Group, Record};
use duewheel_core::store::conformance::{Dice, History};
use duewheel_core::store::{Found, Lookups, Progress, Store};
use duewheel_core::{EngineMs, Lsn, MessageId, QueueName, WallMs};
use duewheel_store_log::disk::Disk;
use duewheel_store_log::{AtSegmentEnd, Options, SyncMode, Worked, verify_on};

use crate::rig::{self, assert_is, by_hand, open, seeds, work_all};
use duewheel_sim_disk::{Plan, SimDisk, Survivors};

/// What the owner knew when the machine stopped.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Appends that returned.
    written: Lsn,
    /// Told durable.
    durable: Lsn,
}

/// What has really happened: a test of crashes that meets none proves nothing.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    rotations: u64,
    reused: u64,
    flushes: u64,
    merges: u64,
    /// Opened with the remains of a flush or a merge that no manifest lists.
    half_made: u64,
    unproven: u64,
    /// Groups that waited for the next segment.
    waited: u64,
    /// Large segments that were given back.
    shrunk: u64,
    lost: usize,
}

impl Seen {
    fn is_worth_it(&self) -> bool {
        self.rotations > 50
            && self.reused > 20
            && self.flushes > 50
            && self.merges > 10
            && self.half_made > 20
            && self.unproven > 50
            && self.waited > 20
    }

    #[track_caller]
    fn assert_worth_it(&self) {
        assert!(self.is_worth_it(), "{self:?}");
    }
}

/// What an owner does at the end of a segment, by chance.
fn at_segment_end(dice: &mut Dice) -> AtSegmentEnd {
    if dice.once_in(2) { AtSegmentEnd::GoOn } else { AtSegmentEnd::Wait }
}

/// Opens the store and works with it until `steps` are done or the machine stops.
fn work(
    disk: &SimDisk,
    history: &mut History,
    dice: &mut Dice,
    (steps, at_segment_end): (u64, AtSegmentEnd),
    known: &mut Known,
    seen: &mut Seen,
) {
    let sync = if dice.once_in(4) { SyncMode::Buffered } else { SyncMode::Fsync };
    let options = Options { sync, at_segment_end, ..by_hand() };
    // Some begin with small segments, and come back to them whenever nothing is appended.
    let options = if dice.once_in(2) {
        Options { small_segment_bytes: 8 * 1024, filled_at_start: 6 * 1024, rest_ms: 0, ..options }
    } else {
        options
    };
    let Ok(mut store) = open(disk, options) else { return };
    let recovered = store.recovered();
    let last = Lsn(recovered.next_lsn.0 - 1);
    assert!(last >= known.durable, "opened at {last:?}, {:?} was durable", known.durable);
    history.forget_after(last);
    // What was recovered has been synced.
    *known = Known { written: last, durable: last };
    let hands = store.hands();
    for _ in 0..steps {
        let done = match dice.below(10) {
            0..=3 => {
                let group = history.group(12);
                let appended = store.append(&group);
                if appended.is_ok() && at_segment_end == AtSegmentEnd::Wait {
                    known.written = group.last();
                }
                appended
            }
            4 => store.sync().inspect(|()| {
                hands.sync();
            }),
            5 => {
                hands.prepare();
                Ok(())
            }
            6 => {
                rig::work(&hands);
                Ok(())
            }
            7 => {
                // Whatever is asked in between is answered as if nothing went on.
                let lookups = history.lookups();
                store.find_many(&lookups, &mut Found::default()).map(drop)
            }
            _ => store.idle(history.tick(), None),
        };
        if let Ok(progress) = store.progress() {
            known.written = known.written.max(progress.written);
            // What buffered calls durable survives kill -9, not a power loss.
            if sync == SyncMode::Fsync {
                known.durable = progress.durable;
            }
        }
        if done.is_err() {
            break;
        }
    }
    let figure = |name| store.figures().into_iter().find(|(n, _)| *n == name).map_or(0, |(_, value)| value);
    seen.rotations += figure("segment_rotations_total");
    seen.reused += figure("segments_reused_total");
    seen.flushes += figure("flushes_total");
    seen.merges += figure("merges_total");
    seen.waited += figure("groups_waited_total");
    seen.shrunk += figure("segments_shrunk_total");
    if dice.once_in(3)
        && let Ok(Progress { written, durable, .. }) = store.close(history.tick())
    {
        *known = Known { written, durable };
    }
}

/// Opens what a crash has left and compares.
fn check(disk: &SimDisk, history: &History, known: Known, survivors: Survivors, seen: &mut Seen, what: &str) {
    let listed_nowhere = |name: &String| name.ends_with(".tmp");
    seen.half_made += u64::from(disk.names("runs").iter().chain(&disk.names("state")).any(listed_nowhere));
    let report = verify_on(disk).unwrap_or_else(|e| panic!("{what}: verify: {e:?}"));
    if disk.names("MANIFEST").contains(&"MANIFEST".to_owned()) {
        assert_eq!(report.problems, [], "{what}");
    } else {
        assert_eq!(known.durable, Lsn(0), "{what}: the folder was never complete");
    }
    let mut store = open(disk, by_hand()).unwrap_or_else(|e| panic!("{what}: {e:?}"));
    let recovered = store.recovered();
    let last = Lsn(recovered.next_lsn.0 - 1);
    assert!(last >= known.durable, "{what}: {last:?}, {:?} was durable", known.durable);
    if survivors == Survivors::All {
        assert!(last >= known.written, "{what}: {last:?}, {:?} was written", known.written);
    }
    assert_is(&mut store, &recovered, history, what);
    if !report.problems.is_empty() {
        return;
    }
    let messages: u64 = recovered.queues.iter().map(|queue| queue.tally.count()).sum();
    assert_eq!(report.messages, messages, "{what}");
    seen.unproven += report.unproven_groups;
}

fn survivors(dice: &mut Dice) -> Survivors {
    match dice.below(4) {
        0 => Survivors::None,
        1 => Survivors::All,
        _ => Survivors::Some,
    }
}

#[test]
fn crash_at_every_call_recovers() {
    let mut seen = Seen::default();
    let asked = seeds(2);
    // Few seeds may leave something out, say merges, by chance: more of them follow then.
    for seed in asked.start..asked.end + 6 {
        if seed >= asked.end && seen.is_worth_it() {
            break;
        }
        for halt in 1.. {
            let disk = SimDisk::new(seed);
            let mut history = History::new(seed);
            let mut dice = Dice::new(seed);
            let mut known = Known::default();
            disk.plan(Plan::HaltAt(halt));
            // Two owners, so that the second one recovers what the first one left without closing.
            for _ in 0..2 {
                let end = at_segment_end(&mut dice);
                work(&disk, &mut history, &mut dice, (90, end), &mut known, &mut seen);
            }
            if disk.calls() < halt {
                assert!(halt > 200, "the work must be worth it: {halt} calls");
                break;
            }
            for (name, survivors) in
                [("none", Survivors::None), ("all", Survivors::All), ("some", Survivors::Some)]
            {
                let copy = disk.copy();
                copy.restart(survivors);
                let what = format!("seed {seed}, halt at {halt}, {name} survive");
                check(&copy, &history, known, survivors, &mut seen, &what);
            }
        }
    }
    seen.assert_worth_it();
}

/// Random crashes one after the other, a third of them while the folder is being opened.
#[test]
fn crashes_follow_each_other() {
    let mut seen = Seen::default();
    for seed in seeds(200) {
        let mut dice = Dice::new(seed);
        let disk = SimDisk::new(seed);
        let mut history = History::new(seed);
        let mut known = Known::default();
        for round in 0..8 {
            let halt = disk.calls() + 1 + if dice.once_in(3) { dice.below(12) } else { dice.below(250) };
            disk.plan(Plan::HaltAt(halt));
            let end = at_segment_end(&mut dice);
            work(&disk, &mut history, &mut dice, (150, end), &mut known, &mut seen);
            let survivors = survivors(&mut dice);
            seen.lost += if survivors == Survivors::All { 0 } else { disk.unsynced() };
            disk.restart(survivors);
            if survivors != Survivors::All {
                known.written = known.durable;
            }
            let what = format!("seed {seed}, round {round}");
            check(&disk.copy(), &history, known, survivors, &mut seen, &what);
        }
    }
    seen.assert_worth_it();
    assert!(seen.shrunk > 20, "{seen:?}");
    assert!(seen.lost > 1_000, "unsynced bytes must really be lost: {seen:?}");
}

/// Story: each start takes a segment. A process that dies and is started again for a night must not fill the disk.
#[test]
fn crash_loop_does_not_fill_disk() {
    let disk = SimDisk::new(1);
    let mut history = History::new(1);
    let mut largest = 0;
    for round in 0..60 {
        let mut store = open(&disk, by_hand()).expect("open");
        let hands = store.hands();
        while hands.prepare() == Worked::Done {}
        if round % 3 == 0 {
            store.append(&history.group(3)).expect("append");
        }
        work_all(&hands);
        drop(store);
        disk.restart(Survivors::All);
        largest = largest.max(disk.names("journal").len());
    }
    assert!(largest <= 8, "{largest} segments");
}

/// A copy of the disk on which opening was halted at its `call`-th call that changes something; `None` if it needs no
/// more of them, and then it was more than `least`.
fn halted_opening(disk: &SimDisk, call: u64, least: u64) -> Option<SimDisk> {
    let disk = disk.copy();
    let calls = disk.calls();
    disk.plan(Plan::HaltAt(calls + call));
    if open(&disk, by_hand()).is_ok() {
        assert!(call > least, "opening changes something: {call}");
        return None;
    }
    Some(disk)
}

/// Opens a disk: there is more on it than up to `upto`, and all of that is what the history says.
#[track_caller]
fn assert_keeps(disk: &SimDisk, upto: Lsn, history: &History, what: &str) {
    let mut store = open(disk, by_hand()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let recovered = store.recovered();
    assert!(recovered.next_lsn > upto, "{what}");
    assert_is(&mut store, &recovered, history, what);
}

/// A start on a full disk writes the groups of the last segments again, into one that takes their place.
///
/// Story: their clocks were taken for later than the one in its header. After a step of the wall clock and two starts,
/// messages were due a day early.
#[test]
fn start_on_full_disk_survives_crashes() {
    let disk = SimDisk::new(1);
    let mut history = History::new(1);
    let (mut durable, mut stepped) = (Lsn(0), ClockPair::default());
    for round in 0..3 {
        let mut store = open(&disk, by_hand()).expect("open");
        if round == 0 {
            while store.hands().prepare() == Worked::Done {}
            disk.set_free(0);
        }
        store.append(&history.group(3)).expect("append");
        store.sync().expect("sync");
        store.hands().sync();
        durable = store.progress().expect("progress").durable;
        let now = history.clock();
        stepped.engine = EngineMs(now.engine.0 + by_hand().idle_ms);
        stepped.wall = WallMs(now.wall.0 + by_hand().idle_ms + 86_400_000);
        store.idle(stepped, None).expect("idle");
        store.hands().sync();
    }
    assert_eq!(durable, history.model().applied());
    for call in 1.. {
        for survivors in [Survivors::None, Survivors::Some, Survivors::All] {
            let halted = halted_opening(&disk, call, 8);
            let (disk, is_over) = halted.map_or((disk.clone(), true), |halted| (halted, false));
            let what = format!("call {call}, {survivors:?}");
            for _ in 0..2 {
                disk.restart(survivors);
                let mut store = open(&disk, by_hand()).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(store.recovered().clock, Some(stepped), "{what}");
            }
            disk.restart(survivors);
            assert_keeps(&disk, Lsn(durable.0 - 1), &history, &what);
            if is_over {
                return;
            }
        }
    }
}

/// Story: an owner had just gone on to the next segment when it was killed: the header was in the page cache, not on
/// the disk. The next owner read it there, listed a segment of its own behind it, and then the power failed. The header
/// was gone, a later segment was in use, and the folder was refused as damaged.
#[test]
fn cached_segment_header_is_made_durable() {
    let disk = SimDisk::new(1);
    let mut history = History::new(1);
    let mut store = open(&disk, by_hand()).expect("open");
    let rotations = |store: &duewheel_store_log::LogStore| {
        store.figures().iter().find(|(name, _)| *name == "segment_rotations_total").map_or(0, |f| f.1)
    };
    while rotations(&store) == 0 {
        store.append(&history.group(9)).expect("append");
        store.hands().prepare();
    }
    let durable = store.progress().expect("progress").durable;
    assert!(durable < history.model().applied(), "the last group is not synced, nor is the header before it");
    drop(store);
    for call in 1.. {
        for survivors in [Survivors::None, Survivors::Some, Survivors::All] {
            let Some(disk) = halted_opening(&disk, call, 8) else { return };
            disk.restart(survivors);
            assert_keeps(&disk, durable, &history, &format!("call {call}, {survivors:?}"));
        }
    }
}

/// Story: an owner was killed while it took a folder over, when it had written the header of its segment and not yet
/// synced it. That header says that the groups copied before it are durable, which is true, and the next owner took it
/// for proof that the header is on the disk, too. It listed a segment of its own behind it, and then the power failed.
/// Found by a disk whose cache outlives the process.
#[test]
fn vouching_header_is_itself_unproven() {
    let disk = SimDisk::new(1);
    let mut history = History::new(1);
    let mut store = open(&disk, by_hand()).expect("open");
    store.append(&history.group(9)).expect("append");
    store.sync().expect("sync");
    store.hands().sync();
    store.append(&history.group(9)).expect("append");
    let written = store.progress().expect("progress").written;
    drop(store);
    for call in 1.. {
        let Some(disk) = halted_opening(&disk, call, 8) else { return };
        disk.restart(Survivors::All);
        drop(open(&disk, by_hand()).unwrap_or_else(|e| panic!("call {call}: {e}")));
        for survivors in [Survivors::None, Survivors::Some] {
            let disk = disk.copy();
            disk.restart(survivors);
            // The owner before had taken it over.
            assert_keeps(&disk, written, &history, &format!("call {call}, {survivors:?}"));
        }
    }
}

/// Story: an owner was killed when it had renamed a new manifest into its place, and not yet made that name durable.
/// The next owner read it in the page cache, and removed the files that it does not list. Then the power failed: the
/// old manifest was back, and what it lists was gone. Found by chains of crashes on the same disk.
#[test]
fn killed_owner_then_power_loss_recovers() {
    let mut seen = Seen::default();
    let mut losses = 0;
    for seed in seeds(1) {
        for halt in 1.. {
            let disk = SimDisk::new(seed);
            let mut history = History::new(seed);
            let mut dice = Dice::new(seed);
            let mut known = Known::default();
            disk.plan(Plan::HaltAt(halt));
            let end = at_segment_end(&mut dice);
            work(&disk, &mut history, &mut dice, (120, end), &mut known, &mut seen);
            if disk.calls() < halt {
                assert!(halt > 100, "the work must be worth it: {halt} calls");
                break;
            }
            disk.restart(Survivors::All);
            for later in 1..=10 {
                let disk = disk.copy();
                // Other dice each time.
                for _ in 0..later {
                    disk.unique();
                }
                let calls = disk.calls();
                disk.plan(Plan::HaltAt(calls + later));
                drop(open(&disk, by_hand()));
                disk.restart(if later == 1 { Survivors::None } else { Survivors::Some });
                losses += 1;
                let what = format!("seed {seed}, halt at {halt}, then at call {later} of the next start");
                check(&disk, &history, known, Survivors::Some, &mut seen, &what);
            }
        }
    }
    assert!(losses > 1_000, "{losses} power losses");
}

/// Story: an owner copies the unproven groups into the segment it has chosen, and the power fails before that segment's
/// header is written. The old copies are lost, the new ones are not. The next owner chooses the same segment and writes
/// a group of its own over the first copy; the second copy stands right behind it, whole, and with the LSN that is due.
#[test]
fn stale_copies_never_come_back() {
    let group = |lsn: u64, id: u64| Group {
        first: Lsn(lsn),
        clock: ClockPair::default(),
        records: vec![Record::Deduped(DedupeRow {
            defaults: None,
            queue: QueueName::new("q").expect("a good name"),
            dedupe_id: "once".into(),
            content: 0,
            until: EngineMs(1_000),
            id: MessageId(id),
            key: None,
            due_at: WallMs(0),
            generation: 1,
            created: Created::New,
            kept: None,
            position: None,
        })],
    };
    let disk = SimDisk::new(1);
    let mut store = open(&disk, by_hand()).expect("open");
    while store.hands().prepare() == Worked::Done {}
    store.append(&group(1, 1)).expect("append");
    store.sync().expect("sync");
    store.hands().sync();
    for lsn in 2..6 {
        store.append(&group(lsn, 2)).expect("append");
    }
    drop(store);
    for call in 1.. {
        let Some(disk) = halted_opening(&disk, call, 6) else { return };
        disk.restart(Survivors::None);
        let mut store = open(&disk, by_hand()).expect("open");
        let next = store.recovered().next_lsn;
        store.append(&group(next.0, 3)).expect("append");
        drop(store);
        let mut store = open(&disk, by_hand()).expect("open");
        let recovered = store.recovered();
        assert_eq!(recovered.next_lsn, next.next(), "call {call}");
        let lookups = Lookups {
            answers: vec![(QueueName::new("q").expect("a good name"), "once".into())],
            ..Lookups::default()
        };
        let mut found = Found::default();
        store.find_many(&lookups, &mut found).expect("find_many");
        assert_eq!(found.answers[0].id, MessageId(3), "call {call}");
    }
}
