//! Lists of spans of due time: read in parts, told apart, swept, and gone with the last message that is in them alone.

use std::collections::BTreeMap;

use bytes::Bytes;
use duewheel_core::message::{Kind, Row};
use duewheel_core::record::{Gone, Record, Was};
use duewheel_core::store::{Load, More, Sequence, Table, Which};
use duewheel_core::time::{Due, EngineMs, WallMs};
use duewheel_core::{MessageId, QueueName};
use duewheel_redis_rig::Redis;

use crate::place::{options, server, until};
use crate::shard::{Shard, all, ask, at, leased, number, parts, put, queue};

fn gone(record: &Record) -> Record {
    let (message, _, was) = parts(record);
    Record::Removed { id: message.id, why: Gone::Acked, was }
}

/// The message of a record, due at another time.
fn moved(record: &Record, due: Due) -> Record {
    let (message, life, was) = parts(record);
    let mut life = life.clone();
    life.due = due;
    life.generation += 1;
    Record::Changed { id: message.id, life, was }
}

fn ids(rows: &[Row]) -> Vec<u64> {
    rows.iter().map(|row| row.message.id.0).collect()
}

/// The keys of the shard, without what is there once.
fn keys(redis: &Redis) -> Vec<String> {
    let all = ask(redis, &["KEYS", "{duewheel:3}:*"]);
    let names =
        all.list().iter().filter_map(|key| key.text()?.strip_prefix("{duewheel:3}:").map(str::to_owned));
    let mut names: Vec<String> =
        names.filter(|name| !["owner", "head", "tail", "books"].contains(&name.as_str())).collect();
    names.sort_unstable();
    names
}

/// What each queue's index says of how many messages there are that are not dead: the members of the set, and what the
/// counts of the lists add to them.
pub(crate) fn counted(redis: &Redis, prefix: &str, class: &str, queue: &QueueName) -> u64 {
    let key = |what: &str| format!("{{{prefix}:3}}:{class}{what}:{queue}");
    let singles = number(redis, &["ZCARD", &key("")]);
    let live = ask(redis, &["HGETALL", &key("-live")]);
    let live: BTreeMap<u64, u64> = live
        .list()
        .chunks(2)
        .map(|pair| (pair[0].number().expect("a start"), pair[1].number().expect("a count")))
        .collect();
    let spans = ask(redis, &["ZRANGE", &key("-spans"), "0", "-1"]);
    let spans: Vec<u64> = spans.list().iter().filter_map(|start| start.number()).collect();
    assert!(spans.iter().eq(live.keys()), "each span has a count: {spans:?} {live:?}");
    for (start, count) in &live {
        let entries = number(redis, &["LLEN", &key(&format!("-span:{start}"))]);
        assert!(*count > 0 && entries > *count, "{start}: {count} of {entries} and the stamp");
    }
    singles + live.values().sum::<u64>()
}

/// Whether the indexes have each message that is not dead, and no other.
pub(crate) fn indexes_agree(redis: &Redis, prefix: &str, model: &Table) {
    let whole = |sequence, queue: &QueueName| {
        let load = Load { rows: usize::MAX, bytes: usize::MAX, ..all(sequence, Which::One(queue.clone())) };
        let rows = model.load(load).rows;
        rows.iter().filter(|row| row.life.stage.kind() != Kind::Dead).count() as u64
    };
    for queue in model.queue_rows().iter().map(|row| &row.name) {
        for (class, sequence) in [("at", Sequence::AllAt), ("after", Sequence::AllAfter)] {
            assert_eq!(counted(redis, prefix, class, queue), whole(sequence, queue), "{class} {queue}");
        }
    }
}

#[test]
fn the_last_message_takes_its_list_with_it() {
    let redis = server();
    let mut shard = Shard::open(&options(&redis));
    let q = queue("q");
    let puts: Vec<Record> = (1..=100).map(|id| at(70_000 + id, put(&q, id, None, Bytes::new()))).collect();
    shard.append(puts.clone());
    shard.settle();
    assert_eq!(keys(&redis), ["at-live:q", "at-span:65536:q", "at-spans:q", "messages"]);
    // What is granted stays where it is due; the leases are kept beside.
    shard.append(vec![leased(&puts[0], 9_000_000)]);
    shard.settle();
    assert_eq!(counted(&redis, "duewheel", "at", &q), 100);
    let seen = shard.pages(all(Sequence::At, Which::All));
    assert_eq!(ids(&seen), (2..=100).collect::<Vec<_>>());
    assert_eq!(ids(&shard.pages(all(Sequence::AllAt, Which::All))), (1..=100).collect::<Vec<_>>());
    // One moves within the span and back, one far away.
    let near = moved(&puts[1], Due::At(WallMs(70_999)));
    let far = moved(&puts[2], Due::After(EngineMs(9_000_000)));
    shard.append(vec![near.clone(), far.clone()]);
    shard.settle();
    assert_eq!(counted(&redis, "duewheel", "at", &q), 99);
    assert_eq!(counted(&redis, "duewheel", "after", &q), 1);
    let mut expected: Vec<u64> = (4..=100).collect();
    expected.push(2);
    assert_eq!(ids(&shard.pages(all(Sequence::At, Which::One(q.clone())))), expected);
    let Record::Changed { life, was, .. } = &near else { panic!("a change") };
    let back = Record::Changed {
        id: MessageId(2),
        life: parts(&puts[1]).1.clone(),
        was: Was { due: life.due, ..was.clone() },
    };
    shard.append(vec![back]);
    assert_eq!(ids(&shard.pages(all(Sequence::At, Which::One(q.clone()))))[0], 2);

    let was = |due: Due, kind: Kind, record: &Record| match gone(record) {
        Record::Removed { id, why, was } => Record::Removed { id, why, was: Was { due, kind, ..was } },
        other => other,
    };
    let due = |record: &Record| parts(record).1.due;
    shard.append(puts[3..99].iter().map(gone).collect());
    shard.append(vec![
        was(due(&puts[0]), Kind::Leased, &puts[0]),
        gone(&puts[1]),
        was(Due::After(EngineMs(9_000_000)), Kind::Waiting, &puts[2]),
    ]);
    shard.settle();
    assert_eq!(keys(&redis), ["at-live:q", "at-span:65536:q", "at-spans:q", "messages"]);
    assert_eq!(ids(&shard.pages(all(Sequence::At, Which::All))), [100]);
    shard.append(vec![gone(&puts[99])]);
    shard.settle();
    assert_eq!(keys(&redis), Vec::<String>::new());
}

/// Five of a group make a list, two join one that is there, one never does.
#[test]
fn few_are_single_and_many_are_in_a_list() {
    let redis = server();
    let mut shard = Shard::open(&options(&redis));
    let q = queue("q");
    let list = "{duewheel:3}:at-span:65536:q";
    let (mut id, mut singles, mut listed) = (0, 0, 0);
    for (many, joins) in [(1, false), (4, false), (2, false), (5, true), (2, true), (1, false), (3, true)] {
        let records = (id + 1..=id + many).map(|id| at(70_000 + id, put(&q, id, None, Bytes::new())));
        shard.append(records.collect());
        shard.settle();
        id += many;
        if joins {
            listed += many;
        } else {
            singles += many;
        }
        assert_eq!(number(&redis, &["ZCARD", "{duewheel:3}:at:q"]), singles, "after {many}");
        // With the stamp, once there is a list.
        assert_eq!(number(&redis, &["LLEN", list]), listed + u64::from(listed > 0), "after {many}");
    }
    assert_eq!(ids(&shard.pages(all(Sequence::At, Which::All))), (1..=id).collect::<Vec<_>>());
}

#[test]
fn a_list_that_is_larger_than_what_is_kept_is_read_in_parts() {
    // With so many sources each may keep some four thousand places.
    const OTHERS: u64 = 100;
    const MANY: u64 = 30_000;
    let redis = server();
    let mut shard = Shard::open(&options(&redis).dense(1));
    let mut model = Table::default();
    // Scattered over the list, many of a ms.
    let large = queue("large");
    let time = |id: u64| 70_000 + id * 7_919 % 50_000 / 10;
    let mut records: Vec<Record> =
        (1..=MANY).map(|id| at(time(id), put(&large, id, None, Bytes::new()))).collect();
    let others = (0..OTHERS).map(|n| queue(&format!("q{n}")));
    records.extend(others.zip(MANY + 1..).map(|(q, id)| at(time(id), put(&q, id, None, Bytes::new()))));
    model.apply(&shard.append(records));
    for which in [Which::All, Which::One(large.clone())] {
        let mut load = Load { rows: 900, ..all(Sequence::At, which) };
        let (mut seen, mut round) = (Vec::new(), 0);
        loop {
            let page = shard.load(load.clone());
            seen.extend(page.rows);
            load.after = page.upto;
            if page.more == More::No {
                break;
            }
            // Meanwhile more come: behind the cursor they must show, before it they must not.
            round += 1;
            if round <= 3 {
                let id = model.next_id();
                let cursor = page.upto.expect("a cursor").0;
                let more = [(id, cursor + 3), (id + 1, 70_000)];
                let more = more.map(|(id, ms)| at(ms, put(&large, id, None, Bytes::new())));
                model.apply(&shard.append(more.to_vec()));
            }
        }
        let mut expected =
            model.load(Load { after: None, rows: usize::MAX, bytes: usize::MAX, ..load.clone() }).rows;
        let late: Vec<u64> =
            seen.iter().map(|row| row.message.id.0).filter(|id| *id > MANY + OTHERS).collect();
        assert!(late.len() >= 3, "{late:?}");
        expected.retain(|row| row.message.id.0 <= MANY + OTHERS || late.contains(&row.message.id.0));
        assert!(seen == expected, "{} and {}", seen.len(), expected.len());
    }
}

/// What is leased stays in the lists: it must not hold up what waits behind it.
#[test]
fn what_is_leased_is_passed_over() {
    const LEASED: u64 = 25_000;
    let redis = server();
    for dense in [1, usize::MAX] {
        let options = options(&redis).prefix(format!("dense{dense}")).expect("a prefix").dense(dense);
        let mut shard = Shard::open(&options);
        let q = queue("q");
        let puts: Vec<Record> =
            (1..=LEASED + 20).map(|id| at(70_000 + id / 10, put(&q, id, None, Bytes::new()))).collect();
        shard.append(puts.clone());
        let first = puts[..25_000].iter().map(|record| leased(record, 9_000_000));
        shard.append(first.collect());
        shard.settle();
        ask(&redis, &["CONFIG", "RESETSTAT"]);
        let rows = shard.pages(all(Sequence::At, Which::All));
        assert_eq!(ids(&rows), (LEASED + 1..=LEASED + 20).collect::<Vec<_>>());
        let read = calls(&redis, "hmget");
        // Three for each request; renewals of the lease have some, too.
        assert!(read < 30, "{read} requests for messages");
    }
}

#[test]
fn a_list_that_came_again_is_read_anew() {
    let redis = server();
    let mut shard = Shard::open(&options(&redis));
    let q = queue("q");
    let first: Vec<Record> = (1..=10).map(|id| at(77, put(&q, id, None, Bytes::new()))).collect();
    let second: Vec<Record> = (11..=20).map(|id| at(77, put(&q, id, None, Bytes::new()))).collect();
    shard.append(first.clone());
    let page = shard.load(Load { rows: 5, ..all(Sequence::At, Which::All) });
    assert_eq!(ids(&page.rows), [1, 2, 3, 4, 5]);
    shard.append(first.iter().map(gone).collect());
    shard.append(second);
    let rest = shard.pages(Load { after: page.upto, ..all(Sequence::At, Which::All) });
    assert_eq!(ids(&rest), (11..=20).collect::<Vec<_>>());
}

/// A sweep finds what has left a list long ago; that must not count against those that are still there.
#[test]
fn a_sweep_counts_what_is_there() {
    let redis = server();
    let mut shard = Shard::open(&options(&redis));
    let q = queue("q");
    let puts: Vec<Record> = (1..=2_000).map(|id| at(77, put(&q, id, None, Bytes::new()))).collect();
    shard.append(puts.clone());
    shard.append(puts[..500].iter().map(gone).collect());
    let away = puts[500..600].iter().map(|record| moved(record, Due::At(WallMs(900_000))));
    shard.append(away.collect());
    // And back again: the list names them twice.
    let back = puts[500..600].iter().map(|record| {
        let (message, life, was) = parts(record);
        let was = Was { due: Due::At(WallMs(900_000)), ..was };
        Record::Changed { id: message.id, life: life.clone(), was }
    });
    shard.append(back.collect());
    shard.append(vec![leased(&puts[1_999], 9_000_000)]);
    let keep = vec![MessageId(2_000)].into();
    let purged = Record::Purged { queue: q.clone(), keep, before: MessageId(2_001), purged: 1_499 };
    shard.append(vec![purged]);
    shard.settle();
    until("the sweep has ended", || number(&redis, &["HLEN", "{duewheel:3}:purges"]) == 0);
    assert_eq!(shard.figure("swept_total"), 1_499);
    assert_eq!(number(&redis, &["HLEN", "{duewheel:3}:messages"]), 1);
    assert_eq!(counted(&redis, "duewheel", "at", &q), 1);
    assert_eq!(ids(&shard.pages(all(Sequence::AllAt, Which::All))), [2_000]);
    // It waits again, and is found by an owner that knows nothing of before.
    let (message, life, was) = parts(&puts[1_999]);
    let was = Was { kind: Kind::Leased, ..was };
    shard.append(vec![Record::Changed { id: message.id, life: life.clone(), was }]);
    shard.settle();
    drop(shard);
    let mut shard = Shard::open(&options(&redis));
    assert_eq!(ids(&shard.pages(all(Sequence::At, Which::All))), [2_000]);
}

/// How often a command was carried out since the statistics were reset.
fn calls(redis: &Redis, command: &str) -> u64 {
    let stats = ask(redis, &["INFO", "commandstats"]).text().expect("text");
    let name = format!("cmdstat_{command}:calls=");
    let calls = stats.lines().find_map(|line| line.strip_prefix(name.as_str())?.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

/// Story: what was read of lists was kept for as long as pages came, and its memory even when it was used up. Found by
/// review.
#[test]
fn what_is_kept_of_lists_is_bounded() {
    const SPANS: u64 = 120;
    const EACH: u64 = 500;
    const KEPT: usize = 2_000;
    let redis = server();
    let mut shard = Shard::open(&options(&redis).reading(100, KEPT));
    let (q, other) = (queue("q"), queue("other"));
    let time = |id: u64| (id % SPANS) * 65_536 + id * 7_919 % 60_000;
    let puts: Vec<Record> = (1..=SPANS * EACH)
        .map(|id| at(time(id), put(if id % 3 == 0 { &other } else { &q }, id, None, Bytes::new())))
        .collect();
    shard.append(puts);
    shard.settle();
    ask(&redis, &["CONFIG", "RESETSTAT"]);
    let mut load = Load { rows: 300, ..all(Sequence::At, Which::All) };
    let (mut rows, mut pages) = (Vec::new(), 0);
    loop {
        let page = shard.load(load.clone());
        pages += 1;
        rows.extend(page.rows.iter().map(|row| (row.life.due.raw(), row.message.id.0)));
        // Windows are cut to their share, and room for as much again may be left in each.
        assert!(shard.figure("list_places") <= 2 * KEPT as u64, "{} kept", shard.figure("list_places"));
        load.after = page.upto;
        if page.more == More::No {
            break;
        }
    }
    let mut expected: Vec<(u64, u64)> = (1..=SPANS * EACH).map(|id| (time(id), id)).collect();
    expected.sort_unstable();
    assert!(rows == expected, "{} of {}", rows.len(), expected.len());
    // Each list is read once, in slices, and asked for more by each page that it serves.
    let read = calls(&redis, "lrange");
    let slices = SPANS * EACH / 100 + 2 * SPANS;
    assert!(read <= 2 * slices + 8 * pages, "{read} reads of {slices} slices in {pages} pages");
}

/// Story: a page that looks further than it gets, because of what is leased or large, had the next one read the list
/// from its start. Found by review.
#[test]
fn a_page_that_looked_ahead_does_not_cost_the_next_one_a_list() {
    const MANY: u64 = 3_000;
    let redis = server();
    let mut shard = Shard::open(&options(&redis).reading(100, 1 << 19));
    let q = queue("q");
    let body = Bytes::from(vec![b'x'; 10_000]);
    let puts: Vec<Record> = (1..=MANY).map(|id| at(70_000 + id, put(&q, id, None, body.clone()))).collect();
    shard.append(puts.clone());
    shard.append(puts.iter().step_by(50).map(|record| leased(record, 9_000_000)).collect());
    shard.settle();
    ask(&redis, &["CONFIG", "RESETSTAT"]);
    let mut load = Load { rows: 100, bytes: 40_000, ..all(Sequence::At, Which::One(q)) };
    let mut seen = Vec::new();
    for _ in 0..20 {
        let page = shard.load(load.clone());
        assert!(page.rows.len() < 10, "{} rows", page.rows.len());
        seen.extend(ids(&page.rows));
        load.after = page.upto;
    }
    assert!(seen.iter().copied().eq((1..=MANY).filter(|id| id % 50 != 1).take(seen.len())), "{seen:?}");
    let read = calls(&redis, "lrange");
    assert!(read <= MANY / 100 + 1 + 20 * 4, "the list was read again: {read} slices");
}

/// Story: messages that leave a span and come back to it, as those that are postponed or replaced, made its list longer
/// each time. Found by review.
#[test]
fn a_list_of_what_comes_and_goes_gets_no_longer() {
    let redis = server();
    let mut shard = Shard::open(&options(&redis));
    let q = queue("q");
    let puts: Vec<Record> = (1..=100).map(|id| at(70_000 + id, put(&q, id, None, Bytes::new()))).collect();
    shard.append(puts.clone());
    let there = Due::At(WallMs(900_000));
    for _ in 0..100 {
        shard.append(puts[1..].iter().map(|record| moved(record, there)).collect());
        let back = puts[1..].iter().map(|record| {
            let (message, life, was) = parts(record);
            Record::Changed { id: message.id, life: life.clone(), was: Was { due: there, ..was } }
        });
        shard.append(back.collect());
    }
    shard.settle();
    let length = number(&redis, &["LLEN", "{duewheel:3}:at-span:65536:q"]);
    assert!(length <= 1_000 + 5 * 100 + 1, "{length} entries of 100 messages");
    assert_eq!(counted(&redis, "duewheel", "at", &q), 100);
    assert_eq!(ids(&shard.pages(all(Sequence::At, Which::All))), (1..=100).collect::<Vec<_>>());
}
