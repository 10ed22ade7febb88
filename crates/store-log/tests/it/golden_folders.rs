//! Data folders of each format, as they were written then. Every later build opens them and finds exactly what was put.
//!
//! `tests/golden/<format>/<shape>/data` is the folder, and `expected.txt` beside it says what is in it. They are never
//! changed. A new format gets new ones from [`writes_the_folders_of_this_format`].

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use duewheel_core::id::{Epoch, LeaseToken, SessionId};
use duewheel_core::message::{
    DeadReason, Died, DoneOutcome, Ended, Expiry, Kind, Lease, Life, Marks, MaxAttempts, MessageContent,
    Options, PastAttempt, Row, Stage,
};
use duewheel_core::policy::{
    Backoff, GrantLimits, GrantRate, Lasting, OnExpiry, QueueSettings, ReadyOrder, TraceMode,
};
use duewheel_core::record::{
    BootAnchor, BootId, ClockPair, Created, DedupeRow, Gone, Group, Pause, Record, Was,
};
use duewheel_core::store::conformance::History;
use duewheel_core::store::{ErrorKind, Found, Lookups, Recovered, Store};
use duewheel_core::{Due, EngineMs, Key, Lsn, MessageId, QueueName, WallMs};
use duewheel_store_log::{LogStore, verify};

use crate::rig::{all_rows, by_hand, figure, small, work};

/// The format that this build writes.
const NOW: &str = "1";

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// Copies a folder; a name that is not text has no place in a golden folder.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("a name");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("a file");
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// A due time, with its clock.
fn due(due: Due) -> String {
    match due {
        Due::At(wall) => format!("at:{}", wall.0),
        Due::After(engine) => format!("after:{}", engine.0),
    }
}

/// All of a message, in words and numbers that do not follow the names of the code.
fn line(row: &Row) -> String {
    let (m, life) = (&row.message, &row.life);
    let headers: String = m.headers.iter().map(|(name, value)| format!("{name}={value};")).collect();
    let stage = match life.stage {
        Stage::Waiting { token: None } => "waiting".into(),
        Stage::Waiting { token: Some(t) } => format!("waiting,token:{}-{}", t.epoch.0, t.counter),
        Stage::Leased(l) => format!(
            "leased,token:{}-{},until:{},session:{},granted:{}",
            l.token.epoch.0, l.token.counter, l.until.0, l.session.0, l.granted_at.0
        ),
        Stage::Dead { reason, at, .. } => {
            let reason = match reason {
                DeadReason::MaxAttempts => "max_attempts",
                DeadReason::Buried => "buried",
                DeadReason::Expired => "expired",
                DeadReason::Done(_) => reason.as_str(),
            };
            let engine = at.engine().map_or(String::new(), |engine| format!(",engine:{}", engine.0));
            format!("dead,{reason},died:{}{engine}", at.raw())
        }
    };
    let past: String = life
        .history
        .iter()
        .map(|p| {
            let how = match p.how {
                Ended::Nacked => "nacked",
                Ended::LeaseExpired => "expired",
                Ended::Released => "released",
                Ended::Buried => "buried",
            };
            format!("{}:{}-{}:{how}:{};", p.attempt, p.granted_at.0, p.ended_at.0, p.note)
        })
        .collect();
    let marks = &life.marks;
    let mut more = String::new();
    if let Some(ms) = m.options.spread_ms {
        let _ = write!(more, " spread_ms={ms}");
    }
    match m.options.expiry {
        None => {}
        Some(Expiry::In(ms)) => {
            let _ = write!(more, " expires_in_ms={ms}");
        }
        Some(Expiry::At(at)) => {
            let _ = write!(more, " expires_at={}", at.0);
        }
    }
    if let Some(asked) = marks.asked {
        let _ = write!(more, " asked={}", due(asked));
    }
    if let Some(limit) = marks.limit {
        let _ = write!(more, " limit={}", limit.count());
    }
    format!(
        "message {} queue={} key={} body={} headers={headers} enqueued={} lease_ms={:?} max_attempts={:?} backoff={:?} \
         due={} generation={} attempt={} forgiven={} priority={:?} stage={stage} marks={},{},{},{},{:?} past={past}{more}",
        m.id.0,
        m.queue.as_str(),
        m.key.as_ref().map_or("", |key| key.as_str()),
        hex(&m.body),
        m.enqueued_at.0,
        m.options.lease_ms,
        m.options.max_attempts.map(MaxAttempts::count),
        m.options.backoff.map(|b| (b.min_ms, b.max_ms)),
        due(life.due),
        life.generation,
        life.attempt,
        life.forgiven,
        life.priority,
        marks.timeouts,
        marks.releases,
        marks.burials,
        marks.fires,
        marks.delay_ms,
    )
}

fn answer(row: &DedupeRow) -> String {
    let created = match row.created {
        Created::New => "new".into(),
        Created::Replacing(id) => format!("replacing:{}", id.0),
        Created::Kept => "kept".to_owned(),
        Created::Superseding(id) => format!("superseding:{}", id.0),
    };
    format!(
        "answer {} {} content={:032x} until={} id={} key={} due={} generation={} {created}",
        row.queue.as_str(),
        row.dedupe_id,
        row.content,
        row.until.0,
        row.id.0,
        row.key.as_ref().map_or("", |key| key.as_str()),
        row.due_at.0,
        row.generation,
    )
}

/// Limits, expiry and the like of a queue; nothing where none is set.
fn more_settings(s: &QueueSettings) -> String {
    let mut more = String::new();
    if let Some(rate) = s.limits.rate {
        let _ = write!(more, " rate={},{:?}", rate.per_hour / 3_600, rate.burst);
    }
    let catchup = s.limits.catchup_per_hour.map(|n| n / 3_600);
    for (name, number) in [("catchup_rate", catchup), ("concurrency", s.limits.concurrency.map(u64::from))] {
        if let Some(number) = number {
            let _ = write!(more, " {name}={number}");
        }
    }
    if let Some(ms) = s.expires_in_ms {
        let _ = write!(more, " expires_in_ms={ms}");
    }
    match s.on_expiry {
        None => {}
        Some(OnExpiry::DeliverLate) => more.push_str(" on_expiry=deliver_late"),
        Some(OnExpiry::Dead) => more.push_str(" on_expiry=dead"),
        Some(OnExpiry::Drop) => more.push_str(" on_expiry=drop"),
    }
    if let Some(ms) = s.keep_done_ms {
        let _ = write!(more, " keep_done_ms={ms}");
    }
    match s.trace {
        None => {}
        Some(TraceMode::Link) => more.push_str(" trace=link"),
        Some(TraceMode::Child) => more.push_str(" trace=child"),
    }
    more
}

/// Everything that a store has: its own answers to every question of the interface. `answers` are looked up, since no
/// page lists them.
fn dump(store: &mut LogStore, recovered: &Recovered, answers: &[(QueueName, Box<str>)]) -> String {
    let mut lines =
        vec![format!("next id {}", recovered.next_id), format!("next lsn {}", recovered.next_lsn.0)];
    let clock = recovered.clock.expect("a golden folder has noted the clocks");
    lines.push(format!("clocks engine={} wall={}", clock.engine.0, clock.wall.0));
    if let Some(anchor) = recovered.anchor.and_then(|anchor| anchor.at(EngineMs(5_000_000))) {
        lines.push(format!("boot {:032x} at engine 5000000: {} ns", anchor.boot.0, anchor.elapsed_ns));
    }
    for queue in &recovered.queues {
        let s = &queue.settings;
        let more = more_settings(s);
        let pause = match queue.pause {
            Pause::Running => "running".into(),
            Pause::Paused => "paused".into(),
            Pause::Until { end, length_ms } => format!("until:{},length:{length_ms}", end.0),
        };
        let t = &queue.totals;
        let parts: String = [Kind::Waiting, Kind::Leased, Kind::Dead]
            .map(|kind| queue.tally.part(kind))
            .iter()
            .map(|part| format!("{}x{};", part.count, part.weight))
            .collect();
        lines.push(format!(
            "queue {} {pause} lease_ms={:?} max_attempts={:?} priority={:?} backoff={:?} dedupe_window_ms={:?} \
             dead_ttl_ms={:?} arrival={:?} while_used={} totals={},{},{},{},{},{},{},{},{} holds={parts}{more}",
            queue.name.as_str(),
            s.lease_ms,
            s.max_attempts.map(MaxAttempts::count),
            s.priority,
            s.backoff.map(|b| (b.min_ms, b.max_ms)),
            s.dedupe_window_ms,
            s.dead_ttl_ms,
            s.order.map(|order| order == ReadyOrder::Arrival),
            s.lasting == Lasting::WhileUsed,
            t.enqueued,
            t.granted,
            t.acked,
            t.cancelled,
            t.replaced,
            t.purged,
            t.died,
            t.expired,
            t.paused,
        ));
    }
    let rows = all_rows(store);
    lines.extend(rows.iter().map(line));
    let lookups = Lookups { answers: answers.to_vec(), ..Lookups::default() };
    let mut found = Found::default();
    store.find_many(&lookups, &mut found).expect("answers");
    // What is over or forgotten may be found or not.
    let is_forgotten = |row: &DedupeRow| {
        let log = recovered.queues.iter().find(|queue| queue.name == row.queue).map(|queue| &queue.answers);
        row.position.is_some_and(|position| !log.is_some_and(|log| log.remembers(position.nth)))
    };
    found.answers.retain(|row| row.until > clock.engine && !is_forgotten(row));
    let found: BTreeMap<_, _> =
        found.answers.iter().map(|row| ((row.queue.as_str(), &*row.dedupe_id), answer(row))).collect();
    lines.extend(found.into_values());
    // Each message is found by its key and by its id, too.
    for row in &rows {
        let keys = row.message.key.iter().map(|key| (row.message.queue.clone(), key.clone())).collect();
        for lookups in [
            Lookups { ids: vec![row.message.id], ..Lookups::default() },
            Lookups { keys, ..Lookups::default() },
        ] {
            let mut found = Found::default();
            store.find_many(&lookups, &mut found).expect("a message");
            assert!(lookups.is_empty() || found.rows.contains(row), "{lookups:?} finds {row:?}");
        }
    }
    lines.join("\n") + "\n"
}

/// The answers that an expectation names.
fn named_answers(expected: &str) -> Vec<(QueueName, Box<str>)> {
    let lines = expected.lines().filter_map(|line| line.strip_prefix("answer "));
    lines
        .map(|line| {
            let mut words = line.split(' ');
            let queue = QueueName::new(words.next().expect("a queue")).expect("a good name");
            (queue, words.next().expect("an id").into())
        })
        .collect()
}

/// Opens a copy, compares, goes on with it, and compares once more.
fn opens(shape: &Path) {
    let what = shape.display();
    let expected = fs::read_to_string(shape.join("expected.txt")).expect("an expectation");
    let answers = named_answers(&expected);
    let scratch = tempfile::tempdir().expect("a folder");
    let data = scratch.path().join("data");
    copy(&shape.join("data"), &data);
    let report = verify(&data).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(report.problems, [], "{what}");
    let open = || LogStore::open(&data, small(), Arc::new(|| {})).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut store = open();
    let recovered = store.recovered();
    assert_eq!(dump(&mut store, &recovered, &answers), expected, "{what}: as it was found");
    let clock = recovered.clock.expect("a pair");

    // The folder is continued: one more queue in it, everything else as before, in journal and runs alike.
    let name = QueueName::new("zz-continued").expect("a good name");
    let record = Record::Queue { name, settings: QueueSettings::default(), pause: Pause::Paused };
    store.append(&Group { first: recovered.next_lsn, clock, records: vec![record] }).expect("append");
    store.close(clock).expect("close");
    drop(store);
    let flush_all = duewheel_store_log::Options { journal_records: 0, ..by_hand() };
    let mut store = LogStore::open(&data, flush_all, Arc::new(|| {})).expect("open");
    store.recovered();
    while work(&store.hands()) == duewheel_store_log::Worked::Done {}
    store.close(clock).expect("close");
    drop(store);
    let mut store = open();
    let recovered = store.recovered();
    let expected = expected.lines().filter(|line| !line.starts_with("next lsn "));
    let dumped = dump(&mut store, &recovered, &answers);
    let dumped: Vec<_> = dumped
        .lines()
        .filter(|line| !line.starts_with("next lsn ") && !line.starts_with("queue zz-continued "))
        .collect();
    assert_eq!(dumped, expected.collect::<Vec<_>>(), "{what}: continued, flushed and merged");
}

#[test]
fn the_folders_of_every_format_open() {
    let mut shapes = 0;
    for format in fs::read_dir(golden()).expect("golden folders") {
        let format = format.expect("a name").path();
        if !format.is_dir() {
            continue;
        }
        for shape in fs::read_dir(format).expect("shapes") {
            opens(&shape.expect("a name").path());
            shapes += 1;
        }
    }
    assert!(shapes >= 4, "{shapes}");
    assert!(golden().join(NOW).is_dir(), "this format has its golden folders");
}

/// A folder of a version that is not known yet is refused in words by each kind of file that says its version, and is
/// not touched.
#[test]
fn newer_format_is_refused_untouched() {
    let shape = golden().join(NOW).join("merged");
    let mut kinds = 0;
    for dir in ["", "journal", "runs", "state"] {
        let names = fs::read_dir(shape.join("data").join(dir)).expect("a folder");
        let name = names
            .map(|entry| entry.expect("a name").file_name().into_string().expect("text"))
            .filter(|name| name == "MANIFEST" || name.contains('.'))
            .min()
            .expect("a file");
        let scratch = tempfile::tempdir().expect("a folder");
        let data = scratch.path().join("data");
        copy(&shape.join("data"), &data);
        let path = data.join(dir).join(&name);
        let mut bytes = fs::read(&path).expect("a file");
        bytes[8..12].copy_from_slice(&1_000u32.to_le_bytes());
        // The checksum of what has the version in it is made right, as a newer program does.
        let covered = match dir {
            "" => bytes.len(),
            "journal" => 4_096,
            _ => 64,
        };
        let sum = crc32c(&[&bytes[..12], &bytes[16..covered]]);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
        fs::write(&path, &bytes).expect("a file");
        let error = LogStore::open(&data, small(), Arc::new(|| {})).expect_err("an unknown format");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{dir}/{name}: {error}");
        assert!(error.to_string().contains("format version 1000 is unknown to this program"), "{error}");
        assert_eq!(fs::read(&path).expect("a file"), bytes, "{dir}/{name} is as it was");
        kinds += 1;
    }
    assert_eq!(kinds, 4);
}

/// What was written before 0.1.0 had versions with the same numbers: its first bytes say what it is.
#[test]
fn earlier_build_folder_is_refused() {
    let scratch = tempfile::tempdir().expect("a folder");
    let data = scratch.path().join("data");
    copy(&golden().join(NOW).join("journal/data"), &data);
    let path = data.join("MANIFEST");
    let mut bytes = fs::read(&path).expect("a file");
    for version in 1..=7_u32 {
        bytes[..8].copy_from_slice(b"dw-manif");
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        let sum = crc32c(&[&bytes[..12], &bytes[16..]]);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
        fs::write(&path, &bytes).expect("a file");
        let opened = LogStore::open(&data, small(), Arc::new(|| {})).expect_err("an earlier format");
        assert_eq!(opened.kind(), ErrorKind::Corrupt, "{opened}");
        let salvaged =
            duewheel_store_log::salvage(&data, scratch.path().join("to")).expect_err("not damaged");
        let verified = verify(&data).expect_err("not damaged, either");
        for error in [opened, salvaged, verified] {
            let error = error.to_string();
            assert!(error.contains("before 0.1.0") && error.contains("`duewheel export`"), "{error}");
        }
        assert_eq!(fs::read(&path).expect("a file"), bytes, "it is as it was");
    }
    assert!(!scratch.path().join("to").exists());
}

/// The checksum of the formats, bit by bit: an independent one.
pub(crate) fn crc32c(pieces: &[&[u8]]) -> u32 {
    let mut crc = u32::MAX;
    for byte in pieces.iter().flat_map(|piece| piece.iter()) {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
        }
    }
    !crc
}

const EPOCH: Epoch = Epoch(1);
const BEGINNING: ClockPair = ClockPair { engine: EngineMs(1_000), wall: WallMs(1_700_000_000_000) };
const BOOT: BootAnchor = BootAnchor {
    boot: BootId(0x1234_5678_9abc_def0),
    engine: EngineMs(1_000),
    elapsed_ns: 86_400_000_000_000,
};

fn name(name: &str) -> QueueName {
    QueueName::new(name).expect("a good name")
}

fn message(id: u64, queue: &str, key: Option<&str>) -> MessageContent {
    MessageContent {
        dedupe_id: None,
        id: MessageId(id),
        queue: name(queue),
        key: key.map(|key| Key::new(key).expect("a good key")),
        body: format!("body of {id}").into(),
        headers: vec![("content-type".into(), "text/plain".into()), ("x".into(), id.to_string().into())],
        options: Options::default(),
        enqueued_at: WallMs(1_700_000_000_000),
    }
}

fn put(message: MessageContent, life: Life) -> Record {
    Record::Put { message: Arc::new(message), life, was: None }
}

fn lease(counter: u64, session: u64) -> Lease {
    Lease {
        token: LeaseToken { epoch: EPOCH, counter },
        until: EngineMs(31_000),
        session: SessionId(session),
        granted_at: WallMs(1_700_000_000_500),
    }
}

/// One of everything that a record can say.
#[allow(clippy::too_many_lines)] // a list
fn one_of_everything() -> Vec<Vec<Record>> {
    let at = Due::At(WallMs(1_700_000_060_000));
    let after = Due::After(EngineMs(172_800_000));
    let weight = |m: &MessageContent| {
        let headers: usize = m.headers.iter().map(|(n, v)| n.len() + v.len()).sum();
        (m.body.len() + headers + m.key.as_ref().map_or(0, |key| key.as_str().len())) as u64
    };
    let was = |m: &MessageContent, kind, due| Was {
        queue: m.queue.clone(),
        kind,
        due,
        weight: weight(m),
        detail: 0,
        past: 0,
        unweighed: 0,
    };
    let plain: Vec<MessageContent> = (1..=12)
        .map(|id| message(id, if id % 2 == 0 { "mail" } else { "bills" }, (id <= 8).then_some("k")))
        .map(|mut m| {
            if let Some(key) = &m.key {
                m.key = Key::new(format!("{key}-{}", m.id.0).as_str()).ok();
            }
            m
        })
        .collect();
    let of = |id: usize| &plain[id - 1];
    let mut own = message(13, "own", None);
    own.options = Options {
        queue_limit: duewheel_core::message::QueueLimit::Yields,
        lease_ms: Some(1_500),
        max_attempts: MaxAttempts::new(3),
        backoff: Some(Backoff { min_ms: 10, max_ms: 60_000 }),
        spread_ms: Some(3_600_000),
        expiry: Some(Expiry::In(86_400_000)),
    };
    let settings = QueueSettings {
        lease_ms: Some(7_000),
        max_attempts: MaxAttempts::new(4),
        priority: Some(9),
        backoff: Some(Backoff { min_ms: 5, max_ms: 500 }),
        dedupe_window_ms: Some(600_000),
        dead_ttl_ms: Some(86_400_000),
        order: Some(ReadyOrder::Arrival),
        lasting: Lasting::Always,
        limits: GrantLimits {
            rate: Some(GrantRate { burst: Some(5), ..GrantRate::per_second(50) }),
            catchup_per_hour: Some(20 * 3_600),
            concurrency: Some(300),
        },
        expires_in_ms: Some(172_800_000),
        on_expiry: Some(OnExpiry::Drop),
        keep_done_ms: Some(60_000),
        trace: Some(TraceMode::Child),
    };
    let mut postponed = Life::new(after, Some(3));
    postponed.generation = 2;
    postponed.marks = Marks {
        timeouts: 1,
        releases: 2,
        burials: 3,
        fires: 4,
        delay_ms: Some(5_000),
        asked: None,
        limit: MaxAttempts::new(9),
        losses: 0,
        superseded_by: None,
    };
    let mut retried = Life::new(at, None);
    retried.marks = Marks { releases: 1, asked: Some(after), ..Marks::default() };
    retried.attempt = 2;
    retried.forgiven = 1;
    retried.stage = Stage::Waiting { token: Some(LeaseToken { epoch: EPOCH, counter: 41 }) };
    retried.history = [Ended::Nacked, Ended::LeaseExpired, Ended::Released, Ended::Buried]
        .into_iter()
        .zip(1..)
        .map(|(how, attempt)| PastAttempt {
            attempt,
            granted_at: WallMs(1_700_000_000_100),
            ended_at: WallMs(1_700_000_000_200),
            how,
            note: "no answer".into(),
        })
        .collect();
    let dead = |reason, place| {
        let mut life = Life::new(at, None);
        life.attempt = 4;
        let mut died = Died::at(WallMs(1_700_000_000_900));
        for _ in 0..place {
            died = died.next(WallMs(1_700_000_000_900));
        }
        life.stage = Stage::Dead { reason, at: died.since(EngineMs(900 + place)), token: None };
        life
    };
    let due_of = |id: usize| if id.is_multiple_of(3) { after } else { at };
    let ended = |id: usize, reason| Record::Changed {
        id: MessageId(id as u64),
        life: dead(reason, id as u64),
        was: was(of(id), Kind::Waiting, due_of(id)),
    };
    let dedupe = |dedupe_id: &str, created, key: Option<&str>| {
        Record::Deduped(DedupeRow {
            defaults: None,
            queue: name("mail"),
            dedupe_id: dedupe_id.into(),
            content: 0x0123_4567_89ab_cdef_0011_2233_4455_6677,
            until: EngineMs(600_000),
            id: MessageId(2),
            key: key.map(|key| Key::new(key).expect("a good key")),
            due_at: WallMs(1_700_000_060_000),
            generation: 1,
            created,
            kept: None,
            position: None,
        })
    };
    let puts =
        plain.iter().map(|m| put(m.clone(), Life::new(if m.id.0 % 3 == 0 { after } else { at }, None)));
    let gone = |id: usize, why| Record::Removed {
        id: MessageId(id as u64),
        why,
        was: was(of(id), Kind::Waiting, due_of(id)),
    };
    let kept = message(15, "empty", Some("kept"));
    vec![
        puts.collect(),
        vec![
            put(own, Life::new(Due::At(WallMs(1_700_000_000_001)), Some(1))),
            Record::Queue { name: name("own"), settings, pause: Pause::Running },
            Record::Queue { name: name("held"), settings: QueueSettings::default(), pause: Pause::Paused },
            Record::Queue {
                name: name("mail"),
                settings: QueueSettings { lasting: Lasting::WhileUsed, ..QueueSettings::default() },
                pause: Pause::Until { end: EngineMs(90_000), length_ms: 60_000 },
            },
        ],
        vec![
            Record::Granted {
                id: MessageId(1),
                attempt: 1,
                lease: lease(40, 0),
                was: was(of(1), Kind::Waiting, due_of(1)),
            },
            Record::Granted {
                id: MessageId(2),
                attempt: 1,
                lease: lease(42, 7),
                was: was(of(2), Kind::Waiting, due_of(2)),
            },
            Record::Changed { id: MessageId(3), life: postponed, was: was(of(3), Kind::Waiting, due_of(3)) },
            Record::Changed { id: MessageId(4), life: retried, was: was(of(4), Kind::Waiting, due_of(4)) },
            ended(5, DeadReason::Buried),
            ended(6, DeadReason::Expired),
            ended(7, DeadReason::MaxAttempts),
            ended(12, DeadReason::Done(DoneOutcome::Acked)),
        ],
        vec![
            dedupe("once", Created::New, Some("k-2")),
            dedupe("again", Created::Replacing(MessageId(1)), None),
            dedupe("kept", Created::Kept, Some("k-2")),
        ],
        vec![
            gone(8, Gone::Acked),
            gone(9, Gone::Cancelled),
            gone(10, Gone::Replaced),
            gone(11, Gone::Expired),
            put(message(14, "empty", Some("purged")), Life::new(at, None)),
            put(kept.clone(), Life::new(at, None)),
            // A purge keeps what is leased.
            Record::Granted {
                id: kept.id,
                attempt: 1,
                lease: lease(43, 0),
                was: was(&kept, Kind::Waiting, at),
            },
        ],
        vec![Record::Purged {
            queue: name("empty"),
            keep: vec![MessageId(15)].into(),
            before: MessageId(16),
            purged: 1,
        }],
    ]
}

/// The answers that a history has remembered.
fn answers_of(groups: &[Group]) -> Vec<(QueueName, Box<str>)> {
    let records = groups.iter().flat_map(|group| &group.records);
    let mut answers: Vec<_> = records
        .filter_map(|record| match record {
            Record::Deduped(row) => Some((row.queue.clone(), row.dedupe_id.clone())),
            _ => None,
        })
        .collect();
    answers.sort_unstable();
    answers.dedup();
    answers
}

/// How a golden folder is left by its owner.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    Closed,
    Killed,
}

/// Writes one shape: what `fill` appends, then what a build of today finds in it. So many `records` are cut off at half
/// of their number.
fn write_shape(
    shape: &str,
    records: u64,
    left: Left,
    fill: impl FnOnce(&mut LogStore, Lsn) -> (Vec<Group>, ClockPair),
) {
    let folder = golden().join(NOW).join(shape);
    assert!(!folder.exists(), "{} is there already, and golden folders are never changed", folder.display());
    let data = folder.join("data");
    let by_hand = by_hand();
    // Segments of one size: a close leaves the journal as it is.
    let small_segment_bytes = by_hand.segment_bytes;
    let options = duewheel_store_log::Options { journal_records: records, small_segment_bytes, ..by_hand };
    let mut store = LogStore::open(&data, options, Arc::new(|| {})).expect("open");
    let next = store.recovered().next_lsn;
    store.idle(BEGINNING, Some(BOOT)).expect("anchor");
    let (groups, clock) = fill(&mut store, next);
    match left {
        Left::Closed => drop(store.close(clock).expect("close")),
        Left::Killed => {}
    }
    drop(store);
    for name in ["LOCK", "RESERVE"] {
        let _ = fs::remove_file(data.join(name)); // the next owner makes them
    }
    let scratch = tempfile::tempdir().expect("a folder");
    let copied = scratch.path().join("data");
    copy(&data, &copied);
    let mut store = LogStore::open(&copied, small(), Arc::new(|| {})).expect("open");
    let recovered = store.recovered();
    let expected = dump(&mut store, &recovered, &answers_of(&groups));
    fs::write(folder.join("expected.txt"), expected).expect("an expectation");
}

#[test]
#[ignore = "writes the golden folders of this build's format into the repository; run once for each new format"]
fn writes_the_folders_of_this_format() {
    let everything = |store: &mut LogStore, next: Lsn| {
        let mut clock = BEGINNING;
        let mut first = next;
        let mut groups = Vec::new();
        for records in one_of_everything() {
            let group = Group { first, clock, records };
            store.append(&group).expect("append");
            store.sync().expect("sync");
            store.hands().sync();
            first = group.last().next();
            clock.engine.0 += 10;
            clock.wall.0 += 10;
            groups.push(group);
        }
        (groups, clock)
    };
    write_shape("journal", 300, Left::Closed, everything);
    write_shape("killed", 300, Left::Killed, everything);
    // A state of which most files have only what is different.
    write_shape("deltas", 300, Left::Closed, |store, _| {
        let mut history = History::new(5);
        let hands = store.hands();
        let state = golden().join(NOW).join("deltas/data/state");
        while fs::read_dir(&state).map_or(0, Iterator::count) < 3 {
            store.append(&history.group(9)).expect("append");
            store.sync().expect("sync");
            work(&hands);
            hands.prepare();
        }
        (history.groups().to_vec(), history.clock())
    });
    write_shape("run", 0, Left::Closed, |store, next| {
        let filled = everything(store, next);
        let hands = store.hands();
        while hands.flush() == duewheel_store_log::Worked::Done {}
        filled
    });
    // Several runs, some of them merged, sealed segments and one in use, groups that no mark has proven.
    write_shape("merged", 300, Left::Killed, |store, _| {
        let mut history = History::new(3);
        let hands = store.hands();
        while figure(store, "merges_total") == 0 || figure(store, "runs") < 2 {
            store.append(&history.group(9)).expect("append");
            work(&hands);
            hands.prepare();
        }
        for _ in 0..90 {
            store.append(&history.group(9)).expect("append");
            hands.prepare();
        }
        (history.groups().to_vec(), history.clock())
    });
}
