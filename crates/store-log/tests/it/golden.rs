//! The bytes, literally. `docs/format.md` draws them; whoever changes one of these changes the format.

use std::sync::Arc;

use duewheel_core::answers::AnswerPosition;
use duewheel_core::id::{Epoch, LeaseToken, SessionId};
use duewheel_core::message::{
    DeadReason, Died, DoneOutcome, Ended, Expiry, Kind, Lease, Life, Marks, MaxAttempts, MessageContent,
    Options, PastAttempt, Stage, State,
};
use duewheel_core::policy::{
    Backoff, GrantLimits, GrantRate, Lasting, OnExpiry, QueueSettings, ReadyOrder, TraceMode,
};
use duewheel_core::record::{
    BootAnchor, BootId, ClockPair, Created, DedupeRow, Gone, Group, Pause, Reader, Record, Was, Writer,
};
use duewheel_core::store::Store;
use duewheel_core::{Due, EngineMs, Key, Lsn, MessageId, QueueName, WallMs};

use duewheel_store_log::Worked;

use crate::rig::{by_hand, open};
use duewheel_sim_disk::SimDisk;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A record is these bytes, and these bytes are the record. Blanks between fields are for the reader.
#[track_caller]
fn is(record: Record, bytes: &str) {
    let mut writer = Writer::default();
    writer.record(&record);
    assert_eq!(hex(&writer.bytes), bytes.replace(' ', ""), "{record:?}");
    assert_eq!(Reader::new(writer.bytes.into()).record(), Ok(record));
}

fn queue() -> QueueName {
    QueueName::new("q").expect("a good name")
}

fn key() -> Option<Key> {
    Some(Key::new("k").expect("a good key"))
}

fn lease() -> Lease {
    Lease {
        token: LeaseToken { epoch: Epoch(2), counter: 300 },
        until: EngineMs(5_000),
        session: SessionId(4),
        granted_at: WallMs(1_000),
    }
}

/// As `WAS` below draws it.
fn was() -> Was {
    Was {
        queue: queue(),
        kind: Kind::Waiting,
        due: Due::At(WallMs(5_000)),
        weight: 5,
        detail: 0,
        past: 0,
        unweighed: 0,
    }
}

/// Queue, stage and clock class, due, weight.
const WAS: &str = "0171 00 8827 05 00";

fn put() -> Record {
    let message = MessageContent {
        dedupe_id: None,
        id: MessageId(1),
        queue: queue(),
        key: key(),
        body: "hi".into(),
        headers: vec![("a".into(), "b".into())],
        options: Options {
            lease_ms: None,
            max_attempts: MaxAttempts::new(3),
            backoff: Some(Backoff { min_ms: 1_000, max_ms: 60_000 }),
            ..Options::default()
        },
        enqueued_at: WallMs(1_000),
    };
    Record::Put { message: Arc::new(message), life: Life::new(Due::At(WallMs(5_000)), Some(7)), was: None }
}

#[test]
fn put_bytes() {
    //          kind id queue key  enq. options: count, max attempts, backoff headers   body   at due  gen att forg prio was?
    is(
        put(),
        "01   01 0171  016b e807 02 0a03 0f05e807e0d403         01 0161 0162 026869 00 8827 01  00  00  010607 00",
    );
    let Record::Put { message, life, .. } = put() else { unreachable!() };
    let mut writer = Writer::default();
    writer.record(&put());
    let mut expected = hex(&writer.bytes);
    expected.truncate(expected.len() - 2);
    is(Record::Put { message, life, was: Some(was()) }, &format!("{expected} 01 {WAS}"));
    // The other class and the other stages.
    let stands = [(Kind::Leased, 0, "01"), (Kind::Dead, 1, "06"), (Kind::Waiting, 1, "04")];
    for (kind, class, byte) in stands {
        let due = if class == 0 { Due::At(WallMs(5_000)) } else { Due::After(EngineMs(5_000)) };
        let was = Was { kind, due, ..was() };
        let removed = Record::Removed { id: MessageId(300), why: Gone::Acked, was };
        is(removed, &format!("04 ac02 00 0171 {byte} 8827 05 00"));
    }
}

/// Each option is a field: four times its number, plus two, plus one if its value is bytes.
#[test]
fn spread_and_expiry_encoding_is_stable() {
    let with = |options: Options| {
        let Record::Put { message, life, was } = put() else { unreachable!() };
        Record::Put { message: Arc::new(MessageContent { options, ..(*message).clone() }), life, was }
    };
    let bytes = |options: &str| {
        format!("01   01 0171  016b e807 {options} 01 0161 0162 026869 00 8827 01 00 00 010607 00")
    };
    is(with(Options::default()), &bytes("00"));
    is(with(Options { lease_ms: Some(1_000), ..Options::default() }), &bytes("01 06e807"));
    let spread = Options { spread_ms: Some(1_000), ..Options::default() };
    is(with(spread.clone()), &bytes("01 12e807"));
    let expiry = Some(Expiry::In(300));
    is(with(Options { expiry, ..spread.clone() }), &bytes("02 12e807 16ac02"));
    let (backoff, expiry) = (Some(Backoff { min_ms: 1, max_ms: 2 }), Some(Expiry::At(WallMs(5_000))));
    is(with(Options { backoff, expiry, ..Options::default() }), &bytes("02 0f020102 1a8827"));
}

#[test]
fn changed_bytes() {
    let mut life = Life::new(Due::After(EngineMs(128)), None);
    life.generation = 2;
    life.attempt = 3;
    life.forgiven = 1;
    life.stage = Stage::Waiting { token: Some(lease().token) };
    life.history = vec![PastAttempt {
        attempt: 3,
        granted_at: WallMs(1_000),
        ended_at: WallMs(5_000),
        how: Ended::LeaseExpired,
        note: "no".into(),
    }];
    let id = MessageId(300);
    let changed = |life: &Life, stands: &str, fields: &str| {
        is(
            Record::Changed { id, life: life.clone(), was: was() },
            &format!("02 ac02 {stands} {fields} {WAS}"),
        );
    };
    // Class and stage, due, when; generation, attempt, forgiven; details of the stage; fields.
    let past = "0a 01 03 e807 8827 01 026e6f";
    changed(&life, "03 8001 02 03 01 02ac02", &format!("01 2f {past}"));
    life.history = vec![];
    life.stage = Stage::Leased(lease());
    changed(&life, "05 8001 8827 02 03 01 02ac02 04 e807", "00");
    let at = Died::at(WallMs(5_000)).next(WallMs(5_000)).next(WallMs(5_000));
    let done = DoneOutcome::ALL;
    let reasons = [DeadReason::MaxAttempts, DeadReason::Buried, DeadReason::Expired].into_iter();
    for (code, reason) in reasons.chain(done.map(DeadReason::Done)).enumerate() {
        let dead = format!("07 8001 828080c413 02 03 01 {code:02x}");
        life.stage = Stage::Dead { reason, at, token: None };
        changed(&life, &dead, "00");
        life.stage = Stage::Dead { reason, at: at.since(EngineMs(300)), token: None };
        changed(&life, &dead, "01 2aac02");
    }
    life.stage = Stage::Waiting { token: None };
    life.priority = Some(7);
    life.marks = Marks {
        timeouts: 1,
        releases: 2,
        burials: 300,
        fires: 4,
        delay_ms: Some(1_000),
        asked: Some(Due::At(WallMs(5_000))),
        limit: MaxAttempts::new(9),
        losses: 0,
        superseded_by: None,
    };
    let waits = "01 8001 02 03 01";
    changed(&life, waits, "08 0607 0a01 0e02 12ac02 1604 1ae807 1e8827 2609");
    life.marks = Marks { asked: Some(Due::After(EngineMs(300))), ..Marks::default() };
    changed(&life, waits, "02 0607 22ac02");
    life.marks = Marks { superseded_by: Some(MessageId(300)), ..Marks::default() };
    changed(&life, waits, "02 0607 3aac02");
}

#[test]
fn granted_bytes() {
    // kind id  att token  until session granted
    is(
        Record::Granted { id: MessageId(9), attempt: 2, lease: lease(), was: was() },
        &format!("03 09 02 02ac02 8827 04 e807 {WAS}"),
    );
}

#[test]
fn removed_bytes() {
    let all = [Gone::Acked, Gone::Cancelled, Gone::Replaced, Gone::Expired, Gone::Superseded];
    for (code, why) in all.into_iter().enumerate() {
        is(Record::Removed { id: MessageId(300), why, was: was() }, &format!("04 ac02 {code:02x} {WAS}"));
    }
}

#[test]
fn queue_bytes() {
    let settings = QueueSettings::default();
    is(Record::Queue { name: queue(), settings, pause: Pause::Running }, "05 0171 00 00 00");
    let settings = QueueSettings {
        lease_ms: Some(1_000),
        max_attempts: MaxAttempts::new(5),
        priority: Some(7),
        backoff: Some(Backoff { min_ms: 1, max_ms: 2 }),
        dedupe_window_ms: Some(5_000),
        dead_ttl_ms: Some(300),
        order: Some(ReadyOrder::Arrival),
        ..QueueSettings::default()
    };
    is(
        Record::Queue { name: queue(), settings: settings.clone(), pause: Pause::Paused },
        "05 0171 07 06e807 0a05 0e07 13020102 168827 1aac02 1e01  01 00",
    );
    let rate = Some(GrantRate { burst: Some(5), ..GrantRate::per_second(300) });
    let limits = GrantLimits { rate, catchup_per_hour: Some(7 * 3_600), concurrency: Some(9) };
    let all = QueueSettings {
        limits,
        expires_in_ms: Some(1_000),
        on_expiry: Some(OnExpiry::Drop),
        ..QueueSettings::default()
    };
    is(
        Record::Queue { name: queue(), settings: all, pause: Pause::Running },
        "05 0171 06 26ac02 2a05 2e07 3209 36e807 3a02  00 00",
    );
    let limits =
        GrantLimits { rate: Some(GrantRate::per_hour(600)), catchup_per_hour: Some(5_400), ..limits };
    let fractions = QueueSettings { limits, ..QueueSettings::default() };
    is(
        Record::Queue { name: queue(), settings: fractions, pause: Pause::Running },
        "05 0171 05 2600 2e01 3209 46d804 4a880e  00 00",
    );
    for (on_expiry, byte) in [(OnExpiry::DeliverLate, "00"), (OnExpiry::Dead, "01")] {
        let settings = QueueSettings { on_expiry: Some(on_expiry), ..QueueSettings::default() };
        is(
            Record::Queue { name: queue(), settings, pause: Pause::Running },
            &format!("05 0171 01 3a{byte}  00 00"),
        );
    }
    for (trace, byte) in [(TraceMode::Link, "00"), (TraceMode::Child, "01")] {
        let (keep_done_ms, trace) = (Some(1_000), Some(trace));
        let settings = QueueSettings { keep_done_ms, trace, ..QueueSettings::default() };
        is(
            Record::Queue { name: queue(), settings, pause: Pause::Running },
            &format!("05 0171 02 3ee807 42{byte}  00 00"),
        );
    }
    let settings = QueueSettings { order: Some(ReadyOrder::Due), lasting: Lasting::WhileUsed, ..settings };
    is(
        Record::Queue {
            name: queue(),
            settings,
            pause: Pause::Until { end: EngineMs(300), length_ms: 5_000 },
        },
        "05 0171 08 06e807 0a05 0e07 13020102 168827 1aac02 1e00 2201  02ac028827 00",
    );
}

#[test]
fn purged_bytes() {
    let keep = vec![MessageId(3), MessageId(300)].into();
    let before = MessageId(301);
    //                                                                    kind queue before purged count ids
    is(Record::Purged { queue: queue(), keep, before, purged: 1_000 }, "06 0171 ad02 e807 02 03 a902 00");
}

#[test]
fn deduped_bytes() {
    let row = DedupeRow {
        defaults: None,
        queue: queue(),
        dedupe_id: "once".into(),
        content: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10,
        until: EngineMs(5_000),
        id: MessageId(300),
        key: key(),
        due_at: WallMs(1_000),
        generation: 1,
        created: Created::New,
        kept: None,
        position: None,
    };
    //          kind queue id         content (little-endian)          until id   key  due  gen
    let head = "07 0171 046f6e6365 100f0e0d0c0b0a090807060504030201 8827 ac02 016b e807 01";
    is(Record::Deduped(row.clone()), &format!("{head} 00 00"));
    let created = Created::Replacing(MessageId(9));
    is(Record::Deduped(DedupeRow { created, ..row.clone() }), &format!("{head} 01 09 00"));
    is(
        Record::Deduped(DedupeRow { created: Created::Kept, key: None, ..row.clone() }),
        &format!("{} 02 00", head.replace("016b", "00")),
    );
    let (created, kept) = (Created::Kept, Some(State::Leased));
    //                                                                                 kept fields state
    is(Record::Deduped(DedupeRow { created, kept, ..row.clone() }), &format!("{head} 02 01 12 02"));
    let created = Created::Superseding(MessageId(9));
    is(Record::Deduped(DedupeRow { created, ..row.clone() }), &format!("{head} 03 09 00"));
    let position = Some(AnswerPosition { nth: Lsn(300), at: EngineMs(200) });
    //                                                                     fields ordinal   time
    is(Record::Deduped(DedupeRow { position, ..row }), &format!("{head} 00 02 06 ac02 0a c801"));
    //                                                    kind queue upto
    is(Record::AnswersForgotten { queue: queue(), upto: Lsn(300) }, "08 0171 ac02 00");
}

/// A new folder after two groups, a sync between them, and a close.
#[test]
fn journal_and_manifest_bytes() {
    let disk = SimDisk::new(0);
    let mut store = open(&disk, by_hand()).expect("open");
    let clock = |ms| ClockPair { engine: EngineMs(ms), wall: WallMs(0x0001_0000 + ms) };
    store.append(&Group { first: Lsn(1), clock: clock(1), records: vec![put()] }).expect("append");
    store.sync().expect("sync");
    store.hands().sync();
    let acked = Record::Removed { id: MessageId(1), why: Gone::Acked, was: was() };
    let two = vec![acked.clone(), acked];
    store.append(&Group { first: Lsn(2), clock: clock(2), records: two }).expect("append");
    store.close(clock(3)).expect("close");

    let segment = disk.read("journal/0000000001.log");
    assert_eq!(segment.len(), 12 * 1024);
    let number = |at: usize| hex(&segment[at..at + 8]);
    assert_eq!(
        hex(&segment[..16]),
        "647565777365676d 01000000 13f63218".replace(' ', ""),
        "magic, version, checksum"
    );
    assert_eq!(number(16), "0100000000000000", "file number");
    let incarnation = number(24);
    assert_eq!(incarnation, "afcd1d7b39a820e2", "the first number that this disk draws");
    assert_eq!(number(32), "0030000000000000", "size");
    assert_eq!(number(40), "0100000000000000", "first LSN");
    assert_eq!(number(48), "0000000000000000", "watermark");
    assert_eq!(number(56), "0100000000000000", "epoch 1, no clock pair");
    assert!(segment[64..4096].iter().all(|b| *b == 0));

    let frames = [
        // A group: sum, length, kind, records, incarnation, first LSN, watermark, clocks; payload, zeros up to 8.
        "b5db9943 24000000 01000000 01000000 INC 0100000000000000 0000000000000000 0100000000000000 0100010000000000",
        "01 010171016be807 020a030f05e807e0d403 0101610162026869 008827010000 010607 00 00000000",
        // The next one knows that LSN 1 is durable.
        "5d25198f 14000000 01000000 02000000 INC 0200000000000000 0100000000000000 0200000000000000 0200010000000000",
        "040100 0171 00 8827 05 00 040100 0171 00 8827 05 00 00000000",
        // A mark: LSN 4 comes next, everything up to 3 is durable.
        "04516b34 00000000 02000000 00000000 INC 0400000000000000 0300000000000000 0300000000000000 0300010000000000",
    ];
    let expected = frames.join("").replace(' ', "").replace("INC", &incarnation);
    assert_eq!(hex(&segment[4096..4096 + expected.len() / 2]), expected);
    assert!(segment[4096 + expected.len() / 2..].iter().all(|b| *b == 0));

    let manifest = disk.read("MANIFEST");
    let seed = hex(&manifest[48..64]);
    assert_ne!(seed, "0".repeat(32), "drawn when the folder was made");
    assert_eq!(
        hex(&manifest),
        // magic, version, sum, epoch, segments, runs, states, next file, proven LSN, seed, closed; file, incarnation,
        // size
        "647565776d616e69 01000000 a94d488d 01000000 01000000 00000000 00000000 0200000000000000 0300000000000000 \
         SEED 01000000 00000000 \
         0100000000000000 INC 0030000000000000"
            .replace(' ', "")
            .replace("INC", &incarnation)
            .replace("SEED", &seed)
    );
}

/// Where engine time lies in the boot, in a mark and in the header of the next owner's segment.
#[test]
fn anchor_bytes() {
    let disk = SimDisk::new(0);
    let mut store = open(&disk, by_hand()).expect("open");
    let clock = |ms| ClockPair { engine: EngineMs(ms), wall: WallMs(0x0001_0000 + ms) };
    let boot = BootId(0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100);
    let anchor = BootAnchor { boot, engine: EngineMs(6), elapsed_ns: 7_000_009 };
    store.idle(clock(5), Some(anchor)).expect("anchor");
    store.idle(clock(5), Some(anchor)).expect("told again, it is no news");
    drop(store);
    let segment = disk.read("journal/0000000001.log");
    let incarnation = hex(&segment[24..32]);
    // A mark at engine ms 5, which was 6,000,009 ns after the boot.
    let mark = "18000000 02000000 00000000 INC 0100000000000000 0000000000000000 0500000000000000 0500010000000000 \
                000102030405060708090a0b0c0d0e0f 898d5b0000000000";
    assert_eq!(hex(&segment[4100..4176]), mark.replace(' ', "").replace("INC", &incarnation));
    assert!(segment[4176..].iter().all(|b| *b == 0), "one mark");
    let mut store = open(&disk, by_hand()).expect("open");
    assert_eq!(store.recovered().anchor, anchor.at(EngineMs(5)));
    drop(store);
    let segment = disk.read("journal/0000000002.log");
    assert_eq!(
        hex(&segment[60..112]),
        "01000000 0500000000000000 0500010000000000 01000000 00000000 898d5b0000000000 000102030405060708090a0b0c0d0e0f"
            .replace(' ', "")
    );
    assert!(segment[112..4096].iter().all(|b| *b == 0));
}

/// The manifest and the state after a cut: a queue with a message in a run, and one with settings.
#[test]
fn state_bytes() {
    let disk = SimDisk::new(0);
    let options = duewheel_store_log::Options { journal_bytes: 0, ..by_hand() };
    let mut store = open(&disk, options).expect("open");
    let clock = |ms| ClockPair { engine: EngineMs(ms), wall: WallMs(0x0001_0000 + ms) };
    store
        .append(&Group { first: Lsn(1), clock: clock(1), records: vec![put(), put_other()] })
        .expect("append");
    assert_eq!(store.hands().flush(), Worked::Done);
    let purged =
        Record::Purged { queue: queue(), keep: vec![MessageId(1)].into(), before: MessageId(300), purged: 0 };
    let granted = Record::Granted { id: MessageId(1), attempt: 1, lease: lease(), was: was() };
    let removed = Record::Removed { id: MessageId(2), why: Gone::Acked, was: Was { weight: 0, ..was() } };
    let settings = QueueSettings { lease_ms: Some(1_000), ..QueueSettings::default() };
    let name = QueueName::new("p").expect("a good name");
    let set = Record::Queue { name, settings, pause: Pause::Running };
    store
        .append(&Group { first: Lsn(3), clock: clock(2), records: vec![removed, granted, purged, set] })
        .expect("append");
    assert_eq!(store.hands().flush(), Worked::Done);
    let name = disk.names("state").pop().expect("a state");
    assert_eq!(name, "state/0000000005.state");
    let state = disk.read(&name);
    let incarnation = hex(&state[24..32]);
    let parts = [
        // The file: magic, version, sum, file number, incarnation, last LSN, zeros.
        "6475657773746174 01000000 4952b607 0500000000000000 INC 0600000000000000",
        "000000000000000000000000000000000000000000000000",
        // A block: sum, length, kind 1, entries, incarnation, its place. The books: next id, the clock pair, when what
        // waits is due (doublings, columns of either class).
        "79b9ab35 0b000000 01000000 01000000 INC 4000000000000000",
        "0a 03 01 02828004 000000 00 0000000000",
        // Two queues: name, settings, pause, totals, tally (waiting, leased, dead: count and weight), its due times.
        "6bb56708 29000000 02000000 02000000 INC 7000000000000000",
        "12 0170 0106e807 00 00 000000000000 000000 00",
        "15 0171 00 00 0306020a010e01 0000 0105 0000 000000 00 00000000000000",
        // Two runs: number, masks (queue, before, ids kept: the one that the purge kept is in the second run), removed ids
        // as the Roaring format has them, their weight.
        "a7530571 38000000 03000000 02000000 INC c000000000000000",
        "29 02 01 00ac0200 20 0100000000000000 00000000 3a300000010000000000010010000000 01000200 05 00",
        "0d 04 00 08 0000000000000000 00 00",
        // The end: a whole state, how many queues and runs there were.
        "624c015e 08000000 04000000 01000000 INC 1801000000000000",
        "07 00 0202000000 00",
    ];
    let expected = parts.join("").replace(' ', "").replace("INC", &incarnation);
    assert_eq!(hex(&state), expected);
    let manifest = hex(&disk.read("MANIFEST"));
    let (runs, own) = (&manifest[2 * 96..2 * 176], &manifest[2 * 176..]);
    // File, incarnation, size, last LSN, start of the tail.
    assert!(runs.starts_with("0200000000000000") && runs[80..].starts_with("0400000000000000"), "{runs}");
    let footer = |no: u64| {
        let bytes = disk.read(&format!("runs/{no:010}.run"));
        hex(&bytes[bytes.len() - 104 + 56..][..8])
    };
    assert_eq!([&runs[64..80], &runs[144..]], [footer(2), footer(4)]);
    assert_eq!(own, format!("0500000000000000{incarnation}40010000000000000600000000000000"));
}

/// The state behind a cut that changes little of a larger one: a removed message, and a queue that is no more.
#[test]
fn delta_bytes() {
    let disk = SimDisk::new(0);
    let options = duewheel_store_log::Options { journal_bytes: 0, ..by_hand() };
    let mut store = open(&disk, options).expect("open");
    let clock = |ms| ClockPair { engine: EngineMs(ms), wall: WallMs(0x0001_0000 + ms) };
    let paused = |no: u64, pause| {
        let name = QueueName::new(format!("p{no}").as_str()).expect("a good name");
        Record::Queue { name, settings: QueueSettings::default(), pause }
    };
    let mut records = vec![put(), put_other()];
    records.extend((0..9).map(|no| paused(no, Pause::Paused)));
    store.append(&Group { first: Lsn(1), clock: clock(1), records }).expect("append");
    assert_eq!(store.hands().flush(), Worked::Done);
    let removed = Record::Removed { id: MessageId(2), why: Gone::Acked, was: Was { weight: 0, ..was() } };
    let records = vec![removed, paused(3, Pause::Running)];
    store.append(&Group { first: Lsn(12), clock: clock(2), records }).expect("append");
    assert_eq!(store.hands().flush(), Worked::Done);
    let names = disk.names("state");
    assert_eq!(names, ["state/0000000003.state", "state/0000000005.state"]);
    let [whole, delta] = [&names[0], &names[1]].map(|name| disk.read(name));
    assert!(whole[40..64].iter().all(|byte| *byte == 0), "it continues none");
    let (before, incarnation) = (hex(&whole[24..32]), hex(&delta[24..32]));
    let parts = [
        // The file: magic, version, sum, file number, incarnation, last LSN; the file before and its incarnation, zeros.
        "6475657773746174 01000000 d6f345d0 0500000000000000 INC 0d00000000000000",
        "0300000000000000 BEFORE 0000000000000000",
        // The books.
        "86d5723f 0d000000 01000000 01000000 INC 4000000000000000",
        "0c 03 01 02828004 0001000100 00 000000",
        // A queue that is different.
        "5d950e1c 16000000 02000000 01000000 INC 7000000000000000",
        "15 0171 00 00 0206020e01 0105 0000 0000 0001000100 00 0000",
        // A queue that is no more: its name.
        "6b63666f 05000000 05000000 01000000 INC a800000000000000",
        "04 027033 00 000000",
        // A run: number, the masks are as they were, ids removed since, the weight of all removed rows.
        "cbaffbe1 24000000 06000000 01000000 INC d000000000000000",
        "23 02 00 1e 0100000000000000 00000000 3a300000010000000000000010000000 0200 00 00 00000000",
        // The runs: numbers.
        "46fb7574 03000000 07000000 01000000 INC 1801000000000000",
        "02 02 00 0000000000",
        // The end: a delta, how many queues, new runs, gone queues, changed runs, runs there were.
        "1009ab6e 08000000 04000000 01000000 INC 4001000000000000",
        "07 01 0100010101 00",
    ];
    let expected = parts.join("").replace(' ', "").replace("INC", &incarnation).replace("BEFORE", &before);
    assert_eq!(hex(&delta), expected);
    let manifest = hex(&disk.read("MANIFEST"));
    let own = &manifest[manifest.len() - 2 * 64..];
    assert!(own[..16] == *"0300000000000000" && own[16..32] == before, "{own}");
    assert!(own[64..80] == *"0500000000000000" && own[80..96] == incarnation, "{own}");
}

fn put_other() -> Record {
    let Record::Put { message, life, was } = put() else { unreachable!() };
    let message = MessageContent {
        id: MessageId(2),
        key: None,
        body: "".into(),
        headers: vec![],
        ..MessageContent::clone(&message)
    };
    Record::Put { message: Arc::new(message), life, was }
}
