//! Writes the seeds of the corpora, `fuzz/corpus/<target>/seed-*`: what a fuzzer would need long to find out by itself.
//! The same each time; everything else in the corpora was found.
//!
//! ```text
//! scripts/fuzz --unpack
//! cargo run -p duewheel-fuzz --example seeds
//! DUEWHEEL_SEEDS=write cargo test -p duewheel-cluster --lib seeds     # those of `wire`, out of the samples of its tests
//! scripts/fuzz --pack
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use duewheel_core::message::Row;
use duewheel_core::record::{Record, Writer};
use duewheel_core::store::conformance::{Dice, History};

/// Kinds of edits, and healthy folders, that the scripts of folders know.
const EDITS: u8 = 14;
const FOLDERS: u8 = 5;

/// Bodies and requests as users write them.
const REQUESTS: [&str; 31] = [
    "POST /v1/queues/q/messages\n{\"body\": \"a\", \"delay_ms\": 0}",
    "POST /v1/queues/q/messages\n{\"body\": \"\\u0000ü\\n\", \"delay\": \"1d2h3m4s5ms\", \"key\": \"order/42 ü\", \"if_exists\": \"replace\", \"dedupe_id\": \"x\", \"priority\": 4294967295, \"lease_ms\": 1, \"max_attempts\": 1, \"headers\": {\"b\": \"1\", \"a\": \"\"}, \"backoff\": {\"min_ms\": 1, \"max_ms\": 2}}",
    "POST /v1/queues/q/messages\n{\"body_base64\": \"AP8=\", \"due_at\": \"2026-01-31T08:00:00.0001+01:00\", \"past\": \"fire\", \"state\": \"dead\"}",
    "POST /v1/queues/q/messages\n{\"body\": \"a\", \"due_at\": \"9999-12-31T23:59:59.999Z\"}",
    "POST /v1/queues/q/messages\n{\"body\": \"a\", \"delay\": \"99999999999999999999d\"}",
    "POST /v1/queues/q/messages\n{\"body\": 1, \"headers\": [1], \"backoff\": {\"min_ms\": -1}, \"n\": 1e3}",
    ">POST /v1/queues/a%2Fb/messages\n{\"body\": \"a\", \"delay_ms\": 0, \"key\": \"k\"}\n{\"body\": \"b\"}\r\n\n{\"body\": \"c\", \"delay\": \"200000d\"}\n",
    "POST /v1/queues/q/messages\n{\"body\": \"a\", \"delay_ms\": 0}\0POST /v1/queues/q/reserve\n{\"max\": 2, \"lease_ms\": 1000}\0POST /v1/messages/1/ack\n{\"lease_token\": \"000000010000000000000001\"}",
    "POST /v1/queues/q/messages\n{\"body\": \"a\", \"delay_ms\": 0, \"max_attempts\": 1}\0POST /v1/queues/q/reserve\n{}\0POST /v1/messages/1/nack\n{\"lease_token\": \"000000010000000000000001\", \"delay_ms\": 5, \"reason\": \"why\"}\0POST /v1/queues/q/redrive\n{\"ids\": [\"1\", 2]}",
    "POST /v1/queues/q/messages\n{\"body\": \"a\", \"delay_ms\": 0}\0POST /v1/queues/q/reserve\n\0POST /v1/messages/1/extend\n{\"lease_token\": \"000000010000000000000001\", \"lease_ms\": 18446744073709551615}",
    "POST /v1/queues/q/messages\n{\"body\": \"a\", \"delay_ms\": 99999, \"key\": \"k\"}\0PATCH /v1/queues/q/keys/k\n{\"delay\": \"1h\", \"body\": \"b\", \"if_generation\": 1}\0GET /v1/queues/q/keys/k\n\0POST /v1/queues/q/keys/k/fire\n{}\0DELETE /v1/queues/q/keys/k\n",
    "PATCH /v1/messages/1\n{\"due_at\": \"2027-01-01T00:00:00Z\", \"past\": \"refuse\", \"body_base64\": \"\"}",
    "POST /v1/queues/q/cancel\n{\"keys\": [\"k\", \"\"], \"ids\": [\"1\", 2]}",
    "POST /v1/ack\n{\"messages\": [{\"id\": \"1\", \"lease_token\": \"000000010000000000000001\"}]}",
    "GET /v1/queues/q/messages?state=ready&after=1&limit=10\n",
    "GET /v1/queues/q/histogram?from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00%2B01:00&buckets=10\n",
    "GET /v1/queues?after=a&limit=1\n\0GET /v1/queues/q\n\0GET /v1/wheel\n\0GET /healthz\n\0GET /metrics\n\0GET /openapi.json\n",
    "PUT /v1/queues/q/config\n{\"lease_ms\": 1, \"max_attempts\": 2, \"priority\": 3, \"backoff\": {\"min_ms\": 1, \"max_ms\": 2}, \"dedupe_window_ms\": 0, \"dead_ttl_ms\": 0, \"order\": \"arrival\"}",
    "POST /v1/queues/q/pause\n{\"for\": \"1h\"}\0POST /v1/queues/q/pause\n{\"for_ms\": 1}\0POST /v1/queues/q/resume\n\0POST /v1/queues/q/purge\n{}",
    "POST /v1/queues/q/redrive\n{\"max\": 1}",
    "POST /v1/backup\n{\"to\": \"x\"}",
    "DELETE /v1/messages/99999999999999999999\n",
    "{\"body\": \"\", \"delay\": \"1s\", \"headers\": {\"a\": \"1\", \"a\": \"2\"}}",
    "[{\"body\": \"a\"}]",
    "POST /v1/queues/q/messages\n{\"json\": {\"a\": [1.50, null, \"\\u00e9\"]}, \"delay_ms\": 0}\0POST /v1/reserve\n{\"queues\": [{\"queue\": \"q\", \"max\": 1}, {\"queue\": \"a:b\"}], \"max\": 2, \"lease_ms\": 1000}\0POST /v1/nack\n{\"messages\": [{\"id\": \"1\", \"lease_token\": \"000000010000000000000001\", \"dead\": true, \"reason\": \"why\"}]}",
    "POST /v1/extend\n{\"messages\": [{\"id\": 1, \"lease_token\": \"000000010000000000000001\", \"lease_ms\": 1}]}",
    "PATCH /v1/queues/q/config\n{\"lease_ms\": 1, \"order\": null, \"backoff\": null}\0GET /v1/queues/q/config\n\0DELETE /v1/queues/q\n\0DELETE /v1/queues/q\n",
    "GET /errors\n",
    "POST /v1/queues/gr%C3%B6%C3%9Fe%3A1/messages\n{\"body\": \"a\", \"delay_ms\": 0}\0GET /v1/queues?after=%C3%A4\n",
    "{\"json\": [[[]]], \"delay\": \"1s\", \"headers\": {\"Content-Type\": \"text/plain\"}}",
    "{\"json\": 1e999, \"delay\": \"1s\"}",
];

const TEXTS: [&str; 20] = [
    "2026-01-31T08:00:00Z",
    "2026-01-31t09:00:00.250000001+01:00",
    "2016-12-31 23:59:60z",
    "1969-07-20T20:17:40-23:59",
    "9999-12-31T23:59:59.999Z",
    "1d2h3m4s5ms",
    "18446744073709551615ms",
    "213503982334d",
    "0s",
    "queue/a-b;c.$_()",
    "key ü \u{1f980}",
    "000000010000000000000001",
    "ffffffffFFFFFFFFFFFFFFFF",
    "18446744073709551615",
    "FOUND 7 12",
    "---\nid: 7\ntube: a/b\nstate: delayed\npri: 4294967295\nage: 3\ndelay: 9\nttr: 4294967295\ntime-left: -5\n",
    "---\n- default\n- a;b\n",
    "---\ncurrent-jobs-ready: 1\ncurrent-jobs-reserved: 2\ncurrent-jobs-delayed: 3\ncurrent-jobs-buried: 4\n",
    "---\ncurrent-jobs-ready: 1\ncurrent-jobs-reserved: 2\ncurrent-jobs-delayed: 3\ncurrent-jobs-buried: 4\ntotal-jobs: 99\nversion: \"1.13\"\nid: 6d4f\n",
    "---\n\u{1b}[2J: x\n",
];

/// Cron expressions that have been trouble, are rare, or are wrong.
const EXPRESSIONS: [&str; 42] = [
    "* * * * *",
    "30 9 * * MON-FRI",
    "*/5 * * * *",
    "0 0 1 1 *",
    "0 0 29 2 *",
    "0 0 31 2 *",
    "* * * 31 2,4,6,9,11 *",
    "0 0 29 2 +7#1",
    "0 0 0 1 1 * 2037",
    "0 0 0 1 2 * 2037",
    "@hourly",
    "@daily",
    "@weekly",
    "@monthly",
    "@yearly",
    "30 2 * * *",
    "0 30 1 * * *",
    "0 0 L * *",
    "0 0 LW * *",
    "0 0 15W * *",
    "0 12 * * 5#3",
    "0 12 * * 5L",
    "0 0 * * SUN,MON#2",
    "59 59 23 31 12 7 2099",
    "0-59/7 0-23/5 1-31/3 1-12/2 0-6/2",
    "* * * * * *",
    "*/59 */59 */23 */30 */11 */6",
    "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30 * * * *",
    "0 0 13 * FRI",
    "0 0 13 * +FRI",
    "0 3 * * *",
    "0 0 30 12 * 2011",
    "60 * * * *",
    "0 24 * * *",
    "a b c d e",
    "? ? ? ? ?",
    "0 0 1-7 * +1",
    "0 0 32 * *",
    "-1 * * * *",
    "0/0 * * * *",
    "99999999999999999999 * * * *",
    "1-99999999999999999999/1 * * * *",
];

fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for target in ["journal", "run_file", "manifest", "state"] {
        write(&root, target, &folders(target))?;
    }
    write(&root, "record", &records())?;
    write(&root, "engine", &engine())?;
    write(&root, "beanstalk", &transcripts(&root)?)?;
    write(&root, "http", &REQUESTS.map(|text| text.as_bytes().to_vec()))?;
    write(&root, "text", &TEXTS.map(|text| text.as_bytes().to_vec()))?;
    write(&root, "cron", &expressions())
}

/// Each expression in another zone and year, then two that are too long.
fn expressions() -> Vec<Vec<u8>> {
    let long = ["0,".repeat(130) + "0 * * * *", "*".repeat(300)];
    let all = EXPRESSIONS.iter().map(|text| (*text).to_owned()).chain(long);
    (0u8..).zip(all).map(|(n, text)| [&[n, n % 4, n, 0, 0, 96 + n][..], text.as_bytes()].concat()).collect()
}

fn write(root: &Path, target: &str, seeds: &[Vec<u8>]) -> io::Result<()> {
    let folder: PathBuf = root.join("fuzz/corpus").join(target);
    fs::create_dir_all(&folder)?;
    for (n, seed) in seeds.iter().enumerate() {
        fs::write(folder.join(format!("seed-{n:03}")), seed)?;
    }
    println!("{target}: {} seeds", seeds.len());
    Ok(())
}

fn random(dice: &mut Dice, length: u64) -> Vec<u8> {
    (0..length).map(|_| dice.roll().to_le_bytes()[0]).collect()
}

/// Each folder untouched, and each kind of edit on each of them.
fn folders(target: &str) -> Vec<Vec<u8>> {
    let mut dice = Dice::new(target.len() as u64);
    let mut seeds: Vec<Vec<u8>> = (0..FOLDERS).map(|folder| vec![folder]).collect();
    for edit in 0..EDITS {
        for folder in 0..3 {
            let mut seed = vec![folder];
            for _ in 0..=folder {
                seed.extend([dice.roll().to_le_bytes()[0], 0, edit]);
                seed.extend(random(&mut dice, 24));
            }
            seeds.push(seed);
        }
    }
    seeds
}

/// Records as a store gets them, rows as runs hold them, and books.
fn records() -> Vec<Vec<u8>> {
    let (mut history, mut dice) = (History::new(3), Dice::new(3));
    let mut seeds = Vec::new();
    for record in (0..24).flat_map(|_| history.group(4).records) {
        if let Record::Put { message, life, .. } = &record {
            let mut row = Writer { bytes: vec![1] };
            row.stored(&Row { message: message.clone(), life: life.clone() });
            seeds.push(row.bytes);
        }
        let mut seed = Writer { bytes: vec![0] };
        seed.record(&record);
        seeds.push(seed.bytes);
    }
    for row in history.model().recovered(duewheel_core::Epoch(1)).queues {
        let mut tally = Writer { bytes: vec![2] };
        row.tally.encode(&mut tally);
        tally.bytes.extend(random(&mut dice, 64));
        seeds.push(tally.bytes);
    }
    for kind in 0..16 {
        let mut seed = vec![3, kind];
        seed.extend(random(&mut dice, 48));
        seeds.push(seed);
    }
    seeds.retain(|seed| seed.len() < 600);
    seeds
}

fn engine() -> Vec<Vec<u8>> {
    let mut dice = Dice::new(7);
    (0..40u8)
        .map(|n| {
            let mut seed = vec![n % 2, n / 2];
            seed.extend(random(&mut dice, 60 + 16 * u64::from(n)));
            seed
        })
        .collect()
}

/// What the first connection of each transcript says, cut in several ways.
fn transcripts(root: &Path) -> io::Result<Vec<Vec<u8>>> {
    let mut files: Vec<PathBuf> = fs::read_dir(root.join("crates/bin/tests/it/peer/transcripts"))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<_>>()?;
    files.sort();
    let mut seeds = Vec::new();
    for (n, file) in (0u8..).zip(files) {
        let mut stream = vec![n];
        for line in fs::read_to_string(file)?.lines() {
            if let Some(line) = line.strip_prefix("A: ") {
                stream.extend(unescape(line));
                stream.extend(b"\r\n");
            } else if let Some(line) = line.strip_prefix("A>> ").or_else(|| line.strip_prefix("A> ")) {
                stream.extend(unescape(line));
            }
        }
        // One long conversation, and parts of it that are short enough to be changed at every place.
        for part in stream[1..].chunks(700).take(4) {
            seeds.push([&stream[..1], part].concat());
        }
    }
    for own in
        ["put-key k%20 1 0 60 1\r\nx\r\n", "replace-key k 1 0 60 1\r\nx\r\npeek-key k\r\ndelete-key k\r\n"]
    {
        seeds.push([b"\x02", own.as_bytes()].concat());
    }
    Ok(seeds)
}

/// The escapes of a transcript, as far as they are bytes; an id `{1}` is 1.
fn unescape(text: &str) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        match (first, rest.first()) {
            (b'\\', Some(next)) if b"rnt0s\\".contains(next) => {
                out.push(match next {
                    b'r' => b'\r',
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'0' => 0,
                    b's' => b' ',
                    _ => b'\\',
                });
                rest = &rest[1..];
            }
            (b'{' | b'}', _) => {}
            _ => out.push(*first),
        }
    }
    out
}
