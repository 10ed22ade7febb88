use std::collections::BTreeSet;
use std::sync::Arc;

use duewheel_core::message::Stage;
use duewheel_core::record::{Pause, Record};
use duewheel_core::store::Ledger;
use duewheel_core::store::conformance::History;
use duewheel_core::{Due, Lsn, MessageId, QueueName, WallMs};
use roaring::RoaringTreemap;

use super::write::{StateChange, write, write_whole};
use super::{StateFile, read};
use crate::disk::Disk;
use crate::format::FileNo;
use crate::manifest::StateEntry;
use crate::run::tests::mem_disk::MemDisk;
use crate::run::tests::model::{Model, Shape, row};
use crate::run::tests::{open, write as write_run};
use crate::run::{Live, Mask};
use crate::view::LiveRun;

/// What a state says, in an order of its own.
fn said(state: StateFile) -> (Ledger, Vec<super::Lost>) {
    assert_eq!(state.doubtful, BTreeSet::new());
    let mut lost = state.lost;
    lost.sort_unstable_by_key(|lost| lost.no);
    lost.iter_mut().for_each(|lost| lost.masks.sort_unstable_by_key(|(queue, mask)| (*queue, mask.before)));
    (state.ledger, lost)
}

fn name(no: u64) -> QueueName {
    QueueName::new(format!("queue-{no}").as_str()).expect("a good name")
}

/// Rows of two queues.
fn some_rows(rows: u64) -> Model {
    let waiting = Stage::Waiting { token: None };
    let of_id = |id| (MessageId(id), row(id, id % 2, Due::At(WallMs(id)), waiting.clone(), None, 10));
    Model { rows: (1..=rows).map(of_id).collect(), ..Model::default() }
}

/// Books of so many queues, each with its settings.
fn books(queues: u64) -> Ledger {
    let mut ledger = Ledger::default();
    for no in 0..queues {
        let paused = Record::Queue { name: name(no), settings: Default::default(), pause: Pause::Paused };
        ledger.apply(Lsn(no + 1), &paused);
    }
    ledger
}

/// Story: the state was written whole at each flush: 25,000 queues were 5 MB, whatever had changed.
#[test]
fn a_file_has_what_is_different() {
    let disk = MemDisk::default();
    let mut ledger = books(25_000);
    let whole = |ledger: &Ledger, no| write_whole(&disk, FileNo(no), ledger, &[]).expect("a disk in memory");
    let mut files = vec![whole(&ledger, 1)];
    let one = name(77);
    for round in 0..3 {
        let running = Record::Queue {
            name: one.clone(),
            settings: Default::default(),
            pause: if round == 1 { Pause::Running } else { Pause::Paused },
        };
        ledger.apply(ledger.applied().next(), &running);
        let change = StateChange { ledger: &ledger, queues: BTreeSet::from([&one]), before: &[], parts: &[] };
        files = write(&disk, FileNo(2 + round), &files, &change).expect("a disk in memory");
        let last = files.last().expect("at least one");
        assert!(last.bytes < 1_024 && files[0].bytes > 250_000, "{files:?}");
        assert_eq!(said(read(&disk, &files).expect("just written")).0, ledger);
    }
    assert_eq!(files.len(), 4);
}

/// Deltas are not longer than the first file, all together, and not many: then all of it is written again.
#[test]
fn outweighing_deltas_are_rewritten_whole() {
    let disk = MemDisk::default();
    let ledger = books(200);
    let all: Vec<QueueName> = (0..200).map(name).collect();
    for (queues, of_one) in [(200, 60), (3, 64)] {
        let mut files = vec![write_whole(&disk, FileNo(1), &ledger, &[]).expect("a disk in memory")];
        let (mut no, mut most) = (2, 0);
        while no < 400 && (no == 2 || files.len() > 1) {
            let queues = all[..queues].iter().collect();
            let change = StateChange { ledger: &ledger, queues, before: &[], parts: &[] };
            files = write(&disk, FileNo(no), &files, &change).expect("a disk in memory");
            let deltas: u64 = files[1..].iter().map(|file| file.bytes).sum();
            assert!(deltas <= files[0].bytes, "{files:?}");
            (no, most) = (no + 1, most.max(files.len()));
        }
        assert_eq!(files.len(), 1, "all of it again");
        assert!(most <= of_one, "{most} files");
        assert_eq!(said(read(&disk, &files).expect("just written")).0, ledger);
    }
}

/// Whatever happens, the first file and the deltas behind it say what one file with all of it says.
#[test]
fn deltas_say_what_the_whole_says() {
    let mut longest = 0;
    for seed in 0..30 {
        let disk = Arc::new(MemDisk::default());
        let mut history = History::new(seed);
        let mut ledger = books(40);
        let mut parts: Vec<LiveRun> = Vec::new();
        let mut files: Vec<StateEntry> = Vec::new();
        let mut no = 1;
        for turn in 0..60u64 {
            let before = parts.clone();
            let group = history.group(4);
            for record in &group.records {
                ledger.apply(ledger.applied().next(), record);
            }
            ledger.note_clock(group.clock);
            let queues: BTreeSet<&QueueName> = group.records.iter().map(Record::queue).collect();
            let dice = history.dice();
            if dice.once_in(3) {
                let entry = write_run(&disk, 1_000 + turn, &some_rows(dice.below(30)), Shape::default());
                let run = open(&disk, &entry);
                parts.push(LiveRun { live: Arc::new(Live::all(&run)), run });
            }
            if parts.len() > 3 && dice.once_in(3) {
                parts.remove(0);
            }
            for part in &mut parts {
                if dice.once_in(2) {
                    let gone: RoaringTreemap = part.live.ids.iter().filter(|_| dice.once_in(4)).collect();
                    Arc::make_mut(&mut part.live).take(&gone, gone.len());
                }
                if dice.once_in(5) && !part.run.queues().is_empty() {
                    let keep = part.live.ids.iter().take(2).map(MessageId).collect();
                    Arc::make_mut(&mut part.live).mask(0, Mask { before: MessageId(turn), keep });
                }
            }
            let change = StateChange { ledger: &ledger, queues, before: &before, parts: &parts };
            files = write(&*disk, FileNo(no), &files, &change).expect("a disk in memory");
            let whole = write_whole(&*disk, FileNo(no + 1), &ledger, &parts).expect("a disk in memory");
            no += 2;
            longest = longest.max(files.len());
            let by_deltas = said(read(&*disk, &files).expect("just written"));
            assert_eq!(
                by_deltas,
                said(read(&*disk, &[whole]).expect("just written")),
                "seed {seed}, turn {turn}"
            );
            assert_eq!(by_deltas.0, ledger, "seed {seed}, turn {turn}");
        }
    }
    assert!(longest > 4, "{longest}");
}

/// A delta is valid behind the file that it continues, and behind no other.
#[test]
fn misplaced_delta_is_refused() {
    let disk = MemDisk::default();
    let ledger = books(300);
    let one = name(5);
    let change = || StateChange { ledger: &ledger, queues: BTreeSet::from([&one]), before: &[], parts: &[] };
    let mut files = vec![write_whole(&disk, FileNo(1), &ledger, &[]).expect("a disk in memory")];
    for no in 2..4 {
        files = write(&disk, FileNo(no), &files, &change()).expect("a disk in memory");
    }
    let [first, second, third] = files[..] else { panic!("{files:?}") };
    read(&disk, &files).expect("just written");
    for wrong in [vec![first, third], vec![second], vec![second, third], vec![first, first]] {
        assert!(read(&disk, &wrong).is_err(), "{wrong:?}");
    }
    disk.remove(&second.no.state()).expect("it is there");
    assert!(read(&disk, &files).is_err());
}
