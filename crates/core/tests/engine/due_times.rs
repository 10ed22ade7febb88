//! Counts of messages by due time, compared with a scan of the store.

use duewheel_core::engine::*;
use duewheel_core::message::{Kind, Row};
use duewheel_core::policy::Policy;
use duewheel_core::time::WallMs;

use crate::harness::*;

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

fn histogram(rig: &mut Rig, name: Option<&str>, from: u64, to: u64, columns: usize) -> Histogram {
    match rig.call(Op::Histogram { queue: name.map(queue), from: WallMs(from), to: WallMs(to), columns }) {
        Reply::Histogram(histogram) => histogram,
        other => panic!("{other:?}"),
    }
}

/// Compares a histogram with the due times: the sum up to each edge is that of an instant at most the resolution away.
fn compare(h: &Histogram, dues: &[u64], from: u64) {
    assert_eq!(h.from, WallMs(from));
    assert_eq!(h.before + h.counts.iter().sum::<u64>() + h.after, dues.len() as u64, "{h:?}");
    let mut sum = h.before;
    for (n, count) in (1..).zip(&h.counts) {
        sum += count;
        let edge = from + n * h.width_ms;
        let until = |instant: u64| dues.iter().filter(|due| **due < instant).count() as u64;
        let (least, most) = (until(edge - h.resolution_ms), until(edge + h.resolution_ms));
        assert!((least..=most).contains(&sum), "{sum} until {edge}, not {least} to {most}: {h:?}");
    }
}

/// Compares everything that says how many messages are due when.
fn compare_all(rig: &mut Rig) {
    rig.settle();
    let (now, wall) = (rig.now, rig.now.wall.0);
    let rows = rig.table.rows();
    let waits = |row: &&Row| row.life.stage.kind() == Kind::Waiting;
    let mut ready = 0;
    for name in ["a", "b", ""] {
        let is_of = |row: &&Row| name.is_empty() || row.message.queue == queue(name);
        let rows: Vec<&Row> = rows.iter().filter(waits).filter(is_of).collect();
        let dues: Vec<u64> = rows.iter().map(|row| now.wall_of(row.life.due).0).collect();
        let due = rows.iter().filter(|row| now.is_due(row.life.due)).count() as u64;
        let name = Some(name).filter(|name| !name.is_empty());
        let hour = histogram(rig, name, wall, wall + HOUR, 60);
        assert_eq!((hour.before, hour.width_ms, hour.resolution_ms), (due, MINUTE, MINUTE), "{name:?}");
        compare(&hour, &dues, wall);
        for (from, to, columns) in
            [(0, 400 * DAY, 7), (7 * MINUTE + 1, 2 * HOUR, 3), (HOUR, 40 * DAY, 500), (0, 100, 1)]
        {
            let h = histogram(rig, name, wall + from, wall + to, columns);
            compare(&h, &dues, wall + from);
            assert!(from > 0 || h.before == due, "overdue");
        }
        let past = histogram(rig, name, wall - DAY, wall + DAY, 48);
        compare(&past, &dues, wall - DAY);
        let counts = match name {
            Some(name) => match rig.call(Op::Queue { queue: queue(name) }) {
                Reply::Queues(views) => views.first().map(|view| view.counts).unwrap_or_default(),
                other => panic!("{other:?}"),
            },
            None => rig.engine.stats(rig.now).counts,
        };
        assert_eq!((counts.ready, counts.scheduled), (due, dues.len() as u64 - due), "{name:?}");
        ready += due;
    }
    assert!(ready > 0, "nothing was due");
}

fn ack_ready(rig: &mut Rig) {
    for name in ["a", "b"] {
        for grant in rig.reserve(name, 1_000) {
            rig.call(Op::Ack { id: grant.message.id, proof: grant.token.into(), result: None });
        }
    }
}

/// Story: messages of 3 to 30 days made the columns wide, and those of elapsed time begin with the server's start: 5,000
/// delays that were due in nine minutes were shown as overdue.
#[test]
fn far_messages_do_not_blur_the_next_hour() {
    for near_messages in [Policy::default().near_messages, 3_000] {
        let mut rig = Rig::new(Policy { near_messages, ..Policy::default() });
        let mut rng = Rng::seeded(33);
        let put = |rig: &mut Rig, rng: &mut Rng, ms: u64| {
            let due_at = WallMs(rig.now.wall.0 + ms);
            let when = match rng.below(3) {
                0 => When::At { due_at, past: Past::Keep },
                _ => When::After(ms),
            };
            let name = ["a", "b"][usize::from(rng.chance(20))];
            rig.call(Op::Enqueue(Box::new(Enqueue { when, ..message(name, 0) })));
        };
        for _ in 0..6_000 {
            let ms = 3 * DAY + rng.below(27 * DAY);
            put(&mut rig, &mut rng, ms);
        }
        put(&mut rig, &mut rng, 365 * DAY);
        for round in 0..6 {
            for _ in 0..100 {
                let ms = rng.below(2 * HOUR);
                put(&mut rig, &mut rng, ms);
            }
            if round == 3 {
                // What is ready stays so when the clock goes back.
                ack_ready(&mut rig);
            }
            let ms = MINUTE + rng.below(HOUR);
            rig.pass(ms);
            let wall = rig.now.wall.0;
            match round {
                1 => rig.now.wall = WallMs(wall + 3 * HOUR),
                2 => rig.restart(),
                3 => rig.now.wall = WallMs(wall - HOUR / 2),
                _ => {}
            }
            compare_all(&mut rig);
            rig.reserve("a", 20);
        }
        rig.call(Op::Purge { at_most: None, queue: queue("b") });
        compare_all(&mut rig);
        rig.pass(DAY);
        compare_all(&mut rig);
    }
}
