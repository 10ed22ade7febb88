//! How fast are runs? Writes some, reads them by id, by key, by queue and whole, merges sixteen of them, and prints
//! what each row took.
//!
//! ```text
//! cargo run --release -p duewheel-store-log --example runs -- [rows] [bytes of a span ...]
//! ```
//!
//! The page cache is warm. `TMPDIR` says where the files are.

#![allow(dead_code, unused_imports, unreachable_pub, missing_docs)] // modules of the crate, taken in as they are

#[path = "../src"]
mod store_log {
    pub(crate) mod disk;
    pub(crate) mod fault;
    pub(crate) mod format;
    pub(crate) mod manifest;
    pub(crate) mod merge;
    pub(crate) mod run;
}
pub(crate) use store_log::{disk, fault, format, manifest, merge, run};

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use duewheel_core::hash_key::HashKey;
use duewheel_core::message::{Life, MessageContent, Options, Row};
use duewheel_core::random::SplitMix64;
use duewheel_core::store::{Sequence, Which};
use duewheel_core::{Due, EngineMs, Key, Lsn, MessageId, QueueName, WallMs};

use disk::{Disk, RealDisk};
use fault::ReadFault;
use format::{FileNo, Incarnation};
use manifest::RunEntry;
use merge::Merge;
use run::filter::NameHasher;
use run::opened::Interner;
use run::{Blocking, KeyLookup, Live, NewerTables, ReadAllowance, Run, RunWriter};

const BODY: usize = 150;
const RUNS: u64 = 16;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let rows = arguments.next().unwrap_or(1_000_000);
    let mut spans: Vec<usize> = arguments.map(|n| usize::try_from(n).expect("a length")).collect();
    if spans.is_empty() {
        spans = vec![256 << 10, 1 << 20];
    }
    println!(
        "{rows} rows, bodies of {BODY} bytes, every row with a key; nanoseconds for each row or look-up"
    );
    println!(
        "{:>7} {:>7} {:>5} | {:>6} {:>6} | {:>6} {:>6} {:>6} {:>6} | {:>6} {:>6} {:>6} | {:>6} {:>6}",
        "span",
        "queues",
        "B/row",
        "write",
        "open ms",
        "ids",
        "id",
        "keys",
        "absent",
        "scan",
        "decode",
        "queue",
        "merge",
        "most ms"
    );
    for queues in [1, 1_000, 100_000] {
        for &span in &spans {
            match measure(rows, queues, span) {
                Ok(()) => {}
                Err(trouble) => println!("{trouble:?}"),
            }
        }
    }
}

fn measure(rows: u64, queues: u64, span: usize) -> Result<(), ReadFault> {
    let folder = tempfile::tempdir().expect("a folder");
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(folder.path()));
    disk.make_dir(format::RUNS).expect("a folder");
    let names = Interner::default();

    let input = make(1, rows, queues);
    let (entry, write) = timed(|| write(&disk, 1, &input, span));
    let entry = entry?;
    let (run, opened) = timed(|| Run::open(&*disk, &entry, hasher(), &names));
    let run = Arc::new(run?);
    let live = Arc::new(Live::all(&run));

    let mut dice = SplitMix64::new(7);
    let asked: u64 = 100_000.min(rows);
    let all = ReadAllowance::new(usize::MAX, Blocking::Allowed);
    let mut found = Vec::new();
    let mut ids = Duration::ZERO;
    for _ in 0..asked / 1_000 {
        let mut batch: Vec<MessageId> = (0..1_000).map(|_| MessageId(1 + dice.next() % rows)).collect();
        batch.sort_unstable();
        let ((), time) = timed_ok(|| run.find_ids(&batch, &all, &mut found))?;
        ids += time;
        found.clear();
    }
    let singles: Vec<MessageId> = (0..asked / 10).map(|_| MessageId(1 + dice.next() % rows)).collect();
    let ((), single) = timed_ok(|| singles.iter().try_for_each(|id| run.find_ids(&[*id], &all, &mut found)))?;
    assert_eq!(found.len(), singles.len());

    let wanted: Vec<(QueueName, Key)> = (0..asked / 10)
        .map(|_| {
            let message = &input[usize::try_from(dice.next() % rows).expect("a row")].message;
            (message.queue.clone(), message.key.clone().expect("every row has one"))
        })
        .collect();
    let mut by_key = Vec::new();
    let ((), keys) = timed_ok(|| {
        wanted.iter().try_for_each(|(queue, key)| {
            let hash = hasher().key(queue, key);
            run.find_keys(
                &[KeyLookup { hash, queue, key }],
                &live,
                8,
                &NewerTables::NOTHING,
                &all,
                &mut by_key,
            )
        })
    })?;
    assert_eq!(by_key.len(), wanted.len());
    let (may, absent) = timed(|| (0..asked).filter(|_| run.may_have(dice.next())).count());
    assert!(may < 1_000);

    let (count, scan) = timed_ok(|| scan_all(&run, &live))?;
    assert_eq!(count, rows);
    let (count, decode) = timed_ok(|| decode_all(&run, &live))?;
    assert_eq!(count, rows);
    let ((count, of), one) = timed_ok(|| scan_queues(&run, &live, queues))?;
    assert_eq!(count, of);

    let mut inputs = Vec::new();
    for i in 0..RUNS {
        let part = rows / RUNS;
        let entry = self::write(&disk, 2 + i, &make(1 + i * part, part, queues), span)?;
        let run = Arc::new(Run::open(&*disk, &entry, hasher(), &names)?);
        let live = Arc::new(Live::all(&run));
        inputs.push((run, live));
    }
    let mut most = Duration::ZERO;
    let (merged, merge) = timed_ok(|| {
        let mut merge =
            Merge::new(&disk, FileNo(99), Incarnation(99), inputs, Vec::new(), EngineMs(0), hasher())?;
        merge.set_span(span);
        loop {
            let (done, time) = timed_ok(|| merge.step(1 << 20, &|_| true))?;
            most = most.max(time);
            if let Some(entry) = done {
                return Ok(entry);
            }
        }
    })?;
    let merged_rows = rows / RUNS * RUNS;
    assert_eq!(Run::open(&*disk, &merged, hasher(), &names)?.rows(), merged_rows);

    println!(
        "{:>7} {:>7} {:>5} | {:>6} {:>6.1} | {:>6} {:>6} {:>6} {:>6} | {:>6} {:>6} {:>6} | {:>6} {:>6}",
        span >> 10,
        queues,
        entry.bytes / rows,
        each(write, rows),
        opened.as_secs_f64() * 1e3,
        each(ids, asked / 1_000 * 1_000),
        each(single, asked / 10),
        each(keys, asked / 10),
        each(absent, asked),
        each(scan, rows),
        each(decode, rows),
        each(one, count),
        each(merge, merged_rows),
        most.as_millis(),
    );
    Ok(())
}

fn scan_all(run: &Arc<Run>, live: &Arc<Live>) -> Result<u64, ReadFault> {
    let mut scan = run.scan(live, Sequence::At, &Which::All, None, u64::MAX)?;
    let mut count = 0;
    while scan.next()?.is_some() {
        count += 1;
    }
    Ok(count)
}

fn decode_all(run: &Arc<Run>, live: &Arc<Live>) -> Result<u64, ReadFault> {
    let mut scan = run.scan(live, Sequence::At, &Which::All, None, u64::MAX)?;
    let mut count = 0;
    while let Some(row) = scan.next()? {
        count += u64::from(run.decode(&row)?.message.id == row.id);
    }
    Ok(count)
}

/// Reads some queues one by one; returns the rows read and those they have.
fn scan_queues(run: &Arc<Run>, live: &Arc<Live>, queues: u64) -> Result<(u64, u64), ReadFault> {
    let (mut count, mut of) = (0, 0);
    for n in (0..queues).step_by(usize::try_from(queues.div_ceil(100)).expect("few")) {
        let name = queue(n);
        let Some(no) = run.queue_no(&name) else { continue };
        of += run.queues()[no as usize].rows;
        let mut scan = run.scan(live, Sequence::At, &Which::One(name), None, u64::MAX)?;
        while scan.next()?.is_some() {
            count += 1;
        }
    }
    Ok((count, of))
}

/// The hashes under some seed.
fn hasher() -> NameHasher {
    NameHasher::new(HashKey::seeded(1))
}

fn write(disk: &Arc<dyn Disk>, no: u64, rows: &[Row], span: usize) -> Result<RunEntry, ReadFault> {
    let mut writer = RunWriter::create(disk, FileNo(no), Incarnation(no), Lsn(no), hasher())?;
    writer.set_span(span);
    for row in rows {
        writer.row(row)?;
    }
    Ok(writer.finish()?)
}

/// Rows in order of their due times.
fn make(first: u64, rows: u64, queues: u64) -> Vec<Row> {
    let names: Vec<QueueName> = (0..queues).map(queue).collect();
    let mut dice = SplitMix64::new(first);
    let mut made: Vec<Row> = (first..first + rows)
        .map(|id| {
            let mut body = Vec::with_capacity(BODY + 8);
            while body.len() < BODY {
                body.extend_from_slice(&dice.next().to_le_bytes());
            }
            body.truncate(BODY);
            let of = dice.next() % queues;
            let message = MessageContent {
                dedupe_id: None,
                id: MessageId(id),
                queue: names[usize::try_from(of).expect("a queue")].clone(),
                key: Some(Key::new(&format!("order-{id}")).expect("a key")),
                body: Bytes::from(body),
                headers: Vec::new(),
                options: Options::default(),
                enqueued_at: WallMs(1_800_000_000_000 + id / 10),
            };
            let due = Due::At(WallMs(1_800_000_000_000 + dice.next() % 864_000_000));
            Row { message: Arc::new(message), life: Life::new(due, None) }
        })
        .collect();
    made.sort_by_key(|row| (row.life.due.raw(), row.message.id));
    made
}

fn queue(n: u64) -> QueueName {
    QueueName::new(&format!("queue-{n}")).expect("a name")
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let result = work();
    (result, began.elapsed())
}

fn timed_ok<T>(work: impl FnOnce() -> Result<T, ReadFault>) -> Result<(T, Duration), ReadFault> {
    let (result, time) = timed(work);
    Ok((result?, time))
}

fn each(time: Duration, count: u64) -> u128 {
    time.as_nanos() / u128::from(count.max(1))
}
