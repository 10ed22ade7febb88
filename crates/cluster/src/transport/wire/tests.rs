//! Round trips, and what is no frame.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a panic is a failed test; numbers are small

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::path::Path;

use duewheel_core::engine::{Ask as _, Target, View};
use duewheel_core::name::{Key, QueueName};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::samples::{answers as any_answers, error, kind, op, reply};
use super::*;
use crate::transport::wire::PROTOCOL;

const LIMITS: FrameLimits = FrameLimits { bytes: 1 << 20, parts: 1_000, body: 1 << 19 };
const SHARD: ShardId = ShardId(3);

fn asked(ops: &[Op]) -> Vec<u8> {
    request(7, SHARD, WhenBusy::Wait, ops, LIMITS).unwrap()
}

/// The answers of a frame without its length.
fn came(bytes: &[u8]) -> Vec<Option<Result<Reply, CallError>>> {
    match read(bytes, LIMITS).unwrap() {
        PeerFrame::Answers { id: 9, answers } => answers,
        other => panic!("{other:?}"),
    }
}

fn again(ops: &[Op]) -> Vec<Op> {
    let frame = asked(ops);
    let (length, rest) = frame.split_at(LENGTH);
    assert_eq!(u32::from_le_bytes(length.try_into().unwrap()) as usize, rest.len());
    match read(rest, LIMITS).unwrap() {
        PeerFrame::Request { id: 7, shard: SHARD, patience: WhenBusy::Wait, ops: Some(ops) } => ops,
        other => panic!("{other:?}"),
    }
}

/// What an error says to a caller.
fn answered(error: &CallError) -> (String, Outcome, bool) {
    let text = match error {
        CallError::Store { error, .. } => format!("{error:?}"),
        // These name a driver on another machine: it is the store of a shard that cannot be had, for the caller.
        CallError::Closed(why) | CallError::Lost(why) | CallError::Bug(why) => format!("Unavailable: {why}"),
        other => other.to_string(), // overloaded or draining
    };
    let retryable = error.is_retryable() || matches!(error, CallError::Closed(_) | CallError::Lost(_));
    (text, error.outcome(), retryable)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn operations_come_as_they_were_sent(ops in vec(op(), 0..5)) {
        prop_assert_eq!(again(&ops), ops);
    }

    #[test]
    fn answers_come_as_they_were_sent(all in any_answers()) {
        let came = came(&answers(9, &all, LIMITS).unwrap()[LENGTH..]);
        let came: Vec<_> = came.into_iter().map(Option::unwrap).collect();
        prop_assert_eq!(came.len(), all.len());
        for (came, was) in came.iter().zip(&all) {
            match (came, was) {
                (Ok(came), Ok(was)) => prop_assert_eq!(came, was),
                (Err(came), Err(was)) => prop_assert_eq!(answered(came), answered(was)),
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }

    #[test]
    fn an_error_keeps_its_outcome(error in error()) {
        let came = CallError::from(WireFailure::from(&error));
        prop_assert_eq!(answered(&came), answered(&error));
    }

    #[test]
    fn truncated_or_extended_frame_is_refused(ops in vec(op(), 1..4), cut in any::<prop::sample::Index>()) {
        let frame = asked(&ops);
        let rest = &frame[LENGTH..];
        let cut = cut.index(rest.len());
        prop_assert!(matches!(read(&rest[..cut], LIMITS), Err(WireError::Damaged)));
        let longer = [rest, &[0]].concat();
        prop_assert!(matches!(read(&longer, LIMITS), Err(WireError::Damaged)));
    }

    #[test]
    fn damaged_bytes_never_panic(
        all in any_answers(),
        ops in vec(op(), 0..4),
        hits in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        for frame in [answers(1, &all, LIMITS).unwrap(), asked(&ops)] {
            let mut bytes = frame[LENGTH..].to_vec();
            for (at, by) in &hits {
                let at = at.index(bytes.len());
                bytes[at] ^= by;
            }
            let _ = read(&bytes, LIMITS);
        }
    }

    #[test]
    fn garbage_never_panics(bytes in vec(any::<u8>(), 0..300)) {
        let _ = read(&bytes, LIMITS);
        let _ = read_greeting::<(u64, Box<str>)>(&bytes);
    }
}

/// A new operation is behind all others, and among the samples.
#[test]
fn the_samples_are_of_every_kind() {
    let mut runner = TestRunner::deterministic();
    let mut ops = BTreeMap::new();
    let mut replies = BTreeSet::new();
    for _ in 0..2_000 {
        let op = op().new_tree(&mut runner).unwrap().current();
        ops.insert(kind(&op), op.operation().name);
        replies.insert(kind(&reply().new_tree(&mut runner).unwrap().current()));
    }
    // One that is known begins with its number, and is cut off there; an unknown number is an error of another kind.
    let is_known =
        |number: &u8| postcard::from_bytes::<Op>(&[*number]) != Err(postcard::Error::SerdeDeCustom);
    let known = (0..u8::MAX).take_while(is_known).count();
    let names: BTreeSet<&str> = ops.values().copied().collect();
    assert_eq!((ops.len(), names.len(), replies.len()), (known, known, 22));
}

#[test]
fn limits_hold_in_both_directions() {
    let small = FrameLimits { bytes: 64, parts: 3, body: 64 };
    let ops = |n| vec![Op::Stats; n];
    assert!(request(1, SHARD, WhenBusy::Refuse, &ops(3), small).is_ok());
    assert_eq!(request(1, SHARD, WhenBusy::Refuse, &ops(4), small), Err(WireError::TooLarge));
    let large = request(1, SHARD, WhenBusy::Refuse, &ops(4), LIMITS).unwrap();
    assert!(matches!(read(&large[LENGTH..], small), Err(WireError::TooLarge)));
    let long = [Ok(Reply::Histogram(duewheel_core::engine::Histogram {
        from: duewheel_core::WallMs(0),
        width_ms: 0,
        counts: vec![0; 100],
        before: 0,
        after: 0,
        resolution_ms: 0,
    }))];
    assert_eq!(answers(1, &long, small), Err(WireError::TooLarge));
    let long = answers(1, &long, LIMITS).unwrap();
    assert!(matches!(read(&long[LENGTH..], small), Err(WireError::TooLarge)));
}

#[test]
fn false_operation_count_allocates_nothing() {
    let head = PeerFrameHead::Request { id: 1, shard: SHARD, patience: WhenBusy::Refuse, ops: 900 };
    let frame = plain(&head).unwrap();
    assert!(matches!(read(&frame[LENGTH..], LIMITS), Err(WireError::Damaged)));
}

#[test]
fn decoded_names_are_validated() {
    // As texts they are bytes with their length before. The letters of a queue's name were checked by the node that
    // received it, whose tables may be later ones; its length is checked again.
    let bytes = postcard::to_allocvec("a later letter: \u{378}").unwrap();
    assert!(postcard::from_bytes::<QueueName>(&bytes).is_ok());
    assert!(postcard::from_bytes::<QueueName>(&postcard::to_allocvec("").unwrap()).is_err());
    assert!(postcard::from_bytes::<QueueName>(&postcard::to_allocvec(&*"q".repeat(201)).unwrap()).is_err());
    assert!(postcard::from_bytes::<Key>(&postcard::to_allocvec("").unwrap()).is_err());
    assert!(postcard::from_bytes::<Key>(&postcard::to_allocvec(&*"k".repeat(513)).unwrap()).is_err());
    let good = QueueName::new("good").unwrap();
    assert_eq!(postcard::from_bytes::<QueueName>(&postcard::to_allocvec("good").unwrap()), Ok(good));
}

#[test]
fn the_policy_s_largest_requests_fit() {
    let policy = Policy::default();
    let limits = FrameLimits::of(&policy);
    assert!(limits.bytes > policy.max_batch_bytes + policy.max_body && limits.bytes <= 1 << 30);
    assert!(limits.parts >= policy.max_batch_messages);
    let none = Policy { max_batch_bytes: 0, max_reserve_bytes: 0, max_body: 0, ..Policy::default() };
    assert!(FrameLimits::of(&none).bytes >= MAX_GREETING);
}

/// The bytes of one frame. If this fails, nodes of two builds would misunderstand each other: see `versions.rs`.
#[test]
fn request_frame_bytes_are_fixed() {
    let queue = QueueName::new("q").unwrap();
    let ops = [
        Op::Enqueue(Box::new(duewheel_core::engine::Enqueue::new(queue.clone(), "b"))),
        Op::Purge { at_most: None, queue },
        Op::NextDue,
    ];
    let frame = request(1, SHARD, WhenBusy::Refuse, &ops, LIMITS).unwrap();
    let expected: &[u8] = &[
        34, 0, 0, 0, // length
        0, 1, 3, 0, 3,  // head
        19, // length of an enqueue
        0, 1, b'q', 0, 1, b'b', 0, 0, 0, 0, 0, 0, 0, 0, // its parts
        1, 0, // options: one byte, no field
        0, 0, // how it begins, the order of a new queue
        0, // no field of the operation
        5, 28, 1, b'q', 0, 0, // a purge
        2, 33, 0, // when is the next one due?
    ];
    assert_eq!((PROTOCOL, &*frame), (1, expected));
}

/// An act is a field of its operation, which an earlier build skips.
#[test]
fn act_is_a_field_of_its_operation() {
    let act = Act { nonce: 300, name: "purge".into(), request_id: "r".into(), ..Act::default() };
    let purge = Op::Purge { at_most: None, queue: QueueName::new("q").unwrap() };
    let ops = [purge.clone().of_act(&Arc::new(act.clone())), Op::NextDue];
    let frame = asked(&ops);
    assert!(
        matches!(read(&frame[LENGTH..], LIMITS), Ok(PeerFrame::Request { ops: Some(read), .. }) if read == ops)
    );
    let act = postcard::to_allocvec(&act).unwrap();
    let part = [&[28, 1, b'q', 0, 1, 1 << 2 | 1, act.len() as u8][..], &act].concat();
    assert!(frame.windows(part.len()).any(|bytes| bytes == part), "{frame:?}");
    let Some((Op::Purge { .. }, [1, ..])) = read_part::<Op>(&part) else { panic!("{part:?}") };
    let damaged = [28, 1, b'q', 0, 1, 1 << 2 | 1, 1, 0xff];
    let (op, section) = read_part::<Op>(&damaged).unwrap();
    assert_eq!(with_fields(op, section), Some(purge), "an act that cannot be read is left out");
}

/// A row is a field of its operation that an earlier build refuses: without it the operation would be applied again.
#[test]
fn row_is_required_field_of_its_operation() {
    let target = Target::Key(QueueName::new("q").unwrap(), Key::new("k").unwrap());
    let cancel = || Op::cancel(target.clone()).into_op();
    let row = SourceRow { source: QueueName::system("#outbox/a").unwrap(), id: "7".into() };
    let act = Arc::new(Act { nonce: 300, ..Act::default() });
    let ops = [cancel().once(row.clone()), cancel().once(row).of_act(&act), cancel()];
    let frame = asked(&ops);
    assert!(
        matches!(read(&frame[LENGTH..], LIMITS), Ok(PeerFrame::Request { ops: Some(read), .. }) if read == ops)
    );
    let (plain, fields) = (postcard::to_allocvec(&cancel()).unwrap(), b"\x0c\x09#outbox/a\x017");
    let part = [&*plain, &[1, 2 << 2 | 3], fields].concat();
    assert!(frame.windows(part.len()).any(|bytes| bytes == part), "{frame:?}");
    let other = [&*postcard::to_allocvec(&Op::NextDue).unwrap(), &[1, 2 << 2 | 3], fields].concat();
    for (part, is_read) in [(part, true), (other, false), ([&*plain, &[1, 2 << 2 | 3, 1, 9]].concat(), false)]
    {
        let op = read_part::<Op>(&part).and_then(|(op, fields)| with_fields(op, fields));
        assert_eq!(op.is_some(), is_read, "{part:?}");
    }
}

/// The result of an ack is a field of it: an ack without one has the bytes that it always had.
#[test]
fn result_is_a_field_of_its_ack() {
    let ack = |result: Option<&str>| Op::Ack {
        id: duewheel_core::MessageId(7),
        proof: duewheel_core::engine::Proof::Session(duewheel_core::id::SessionId(3)),
        result: result.map(Box::from),
    };
    let ops = [ack(Some("[1]")), ack(None), Op::NextDue];
    assert_eq!(again(&ops), ops);
    let (with, without) = (asked(&ops[..1]), asked(&ops[1..2]));
    assert!(with.ends_with(&[1, 3 << 2 | 1, 3, b'[', b'1', b']']), "{with:?}");
    assert_eq!(with.len(), without.len() + 5);
}

/// The detail of a settlement is a field of it, and that of a message a field of the answer.
#[test]
fn detail_is_a_field_of_its_settlement() {
    let id = duewheel_core::MessageId(7);
    let proof = duewheel_core::engine::Proof::Session(duewheel_core::id::SessionId(3));
    let ack = || Op::ack_with(id, proof, Some("1".into()));
    let bury = Op::bury(id, proof, "").with_detail(Some((*b"no").into()));
    let ops = [ack().with_detail(Some((*b"yes").into())).into_op(), ack().into_op(), bury.into_op()];
    assert_eq!(again(&ops), ops);
    assert!(asked(&ops[..1]).ends_with(&[2, 3 << 2 | 1, 1, b'1', 4 << 2 | 1, 3, b'y', b'e', b's']));
    let mut runner = TestRunner::deterministic();
    let mut replies = std::iter::repeat_with(|| reply().new_tree(&mut runner).unwrap().current());
    let view = replies.find_map(|reply| if let Reply::View(view) = reply { view } else { None }).unwrap();
    let whole = View { detail: Some((*b"seen").into()), ..(*view).clone() };
    let views = [whole.into(), view].map(|view| Ok(Reply::View(Some(view))));
    assert!(answers(9, &views[..1], LIMITS).unwrap().ends_with(&[1, 4 << 2 | 1, 4, b's', b'e', b'e', b'n']));
    for (came, view) in came(&answers(9, &views, LIMITS).unwrap()[LENGTH..]).into_iter().zip(views) {
        assert_eq!(came.unwrap().unwrap(), view.unwrap());
    }
}

/// Story: a redrive knew no time of death. It is a field that an earlier build refuses, and stands at no other operation.
#[test]
fn death_is_required_field_of_its_redrive() {
    let redrive = |died: Option<u64>| Op::Redrive {
        id: duewheel_core::MessageId(7),
        delay_ms: None,
        died: died.map(duewheel_core::WallMs),
    };
    let ops = [redrive(Some(300)), redrive(None), Op::NextDue];
    assert_eq!(again(&ops), ops);
    let frame = asked(&ops[..1]);
    let section = [1, 5 << 2 | 3, 2, 0xac, 0x02];
    assert!(frame.ends_with(&section), "{frame:?}");
    let plain = postcard::to_allocvec(&Op::NextDue).unwrap();
    let other = [&*plain, &section].concat();
    assert_eq!(read_part::<Op>(&other).and_then(|(op, fields)| with_fields(op, fields)), None);
}

/// Replaces the section of the last part of a frame; `bytes` is the length of that part.
fn with_section(frame: &[u8], bytes: usize, section: &[u8]) -> Vec<u8> {
    let (rest, part) = frame[LENGTH..].split_at(frame.len() - LENGTH - bytes);
    let (length, before) = rest.split_last().map(|(length, before)| (usize::from(*length), before)).unwrap();
    assert_eq!((length, part.last()), (bytes, Some(&0)), "a short part without fields");
    let part = [&part[..bytes - 1], section].concat();
    [before, &[part.len() as u8], &part].concat()
}

/// Optional fields: a number, and two bytes behind it.
const OPTIONAL: [&[u8]; 2] = [&FIELD_OF_NEXT, &[2, 1 << 2, 9, 3 << 2 | 1, 2, 8, 8]];
/// Required fields: a number, and one byte behind an optional field.
const REQUIRED: [&[u8]; 2] = [&[1, 6 << 2 | 2, 9], &[2, 1 << 2, 9, 6 << 2 | 3, 1, 8]];

#[test]
fn unknown_optional_fields_are_skipped() {
    for section in OPTIONAL {
        let ops = [Op::Stats, Op::NextDue];
        let frame = with_section(&asked(&ops), 2, section);
        assert!(
            matches!(read(&frame, LIMITS), Ok(PeerFrame::Request { ops: Some(read), .. }) if read == ops)
        );
        let done = answers(9, &[Err(CallError::Overloaded), Ok(Reply::Done)], LIMITS).unwrap();
        let answers = came(&with_section(&done, 3, section));
        assert!(matches!(&answers[..], [Some(Err(CallError::Overloaded)), Some(Ok(Reply::Done))]));
    }
}

#[test]
fn unknown_required_fields_are_refused() {
    for section in REQUIRED {
        let frame = with_section(&asked(&[Op::Stats, Op::NextDue]), 2, section);
        assert!(matches!(read(&frame, LIMITS), Ok(PeerFrame::Request { id: 7, ops: None, .. })));
        let done = answers(9, &[Err(CallError::Overloaded), Ok(Reply::Done)], LIMITS).unwrap();
        let answers = came(&with_section(&done, 3, section));
        assert!(matches!(&answers[..], [Some(Err(CallError::Overloaded)), None]));
    }
}

#[test]
fn unknown_kinds_are_refused_alone() {
    const UNKNOWN: u8 = 0x7f;
    let mut frame = asked(&[Op::Stats, Op::NextDue]);
    let kind = frame.len() - 2;
    frame[kind] = UNKNOWN;
    assert!(matches!(read(&frame[LENGTH..], LIMITS), Ok(PeerFrame::Request { id: 7, ops: None, .. })));
    let mut frame = answers(9, &[Ok(Reply::Done), Err(CallError::Overloaded)], LIMITS).unwrap();
    let kind = frame.len() - 5;
    frame[kind] = UNKNOWN;
    assert!(matches!(&came(&frame[LENGTH..])[..], [None, Some(Err(CallError::Overloaded))]));
}

/// Seeds for the fuzz target: an operation and an answer of each kind, errors, heads, greetings and streams. What it
/// does with them is in `proof/fuzz/src/wire.rs`.
fn seeds() -> Vec<Vec<u8>> {
    const FRAME: &[u8] = &[0];
    const TIGHT: &[u8] = &[1, 16];
    const GREETING: &[u8] = &[2];
    const STREAM: &[u8] = &[3, 5];
    let mut runner = TestRunner::deterministic();
    // Of each kind the longest that is short.
    let mut kinds: BTreeMap<(u8, u32), Vec<u8>> = BTreeMap::new();
    let mut keep = |kind, frame: Vec<u8>| {
        let kept = kinds.entry(kind).or_insert_with(|| frame.clone());
        let better = if frame.len() > 120 { frame.len() < kept.len() } else { frame.len() > kept.len() };
        if better || (kept.len() > 120 && frame.len() <= 120) {
            *kept = frame;
        }
    };
    for n in 0..2_000 {
        let op = op().new_tree(&mut runner).unwrap().current();
        keep((0, kind(&op)), request(n, SHARD, WhenBusy::Refuse, &[op], LIMITS).unwrap());
        let reply = reply().new_tree(&mut runner).unwrap().current();
        keep((1, kind(&reply)), answers(n, &[Ok(reply)], LIMITS).unwrap());
    }
    let mut frames: Vec<Vec<u8>> = kinds.into_values().collect();
    for _ in 0..6 {
        let error = error().new_tree(&mut runner).unwrap().current();
        frames.push(answers(1, &[Err(error)], LIMITS).unwrap());
    }
    let several = [Op::Stats, Op::NextDue, Op::Wheel, Op::Stats, Op::NextDue];
    frames.push(request(300, SHARD, WhenBusy::Wait, &several, LIMITS).unwrap());
    let row = SourceRow { source: QueueName::system("#outbox/a").unwrap(), id: "7".into() };
    let once = Op::cancel(Target::Key(QueueName::new("q").unwrap(), Key::new("k").unwrap())).once(row);
    frames.push(request(301, SHARD, WhenBusy::Wait, &[once], LIMITS).unwrap());
    let why = "node a does not own it".into();
    for head in [
        PeerFrameHead::Ping,
        PeerFrameHead::Pong,
        PeerFrameHead::Nudge,
        PeerFrameHead::Bye,
        PeerFrameHead::NotMine { id: 1, why },
        PeerFrameHead::NotKnown { id: 1, why: "node b does not know it".into() },
    ] {
        frames.push(plain(&head).unwrap());
    }
    let mut seeds: Vec<Vec<u8>> = frames.iter().map(|frame| [FRAME, &frame[LENGTH..]].concat()).collect();
    seeds.extend(frames.iter().rev().take(8).map(|frame| [TIGHT, &frame[LENGTH..]].concat()));
    // The parts of a greeting, as `peer::proof` has them.
    let (a, b) = (("a", 1_u32), ("b", 2_u32));
    let takes = (1_u64 << 20, 1_000_u64, 1_u64 << 18);
    let greetings = [
        greeting(&(*b"duewnode", (PROTOCOL, PROTOCOL + 1), takes, a, b)),
        greeting(&vec![[3_u8; 32], [4_u8; 32]]),
        greeting(&(0_u32, PROTOCOL, takes, [4_u8; 32])),
        greeting(&1_u32),
        greeting(&(2_u32, 2_u32, 3_u32)),
        greeting(&(3_u32, b)),
    ];
    seeds.extend(greetings.into_iter().map(|part| [GREETING, &part.unwrap()[LENGTH..]].concat()));
    let lies = [255, 255, 255, 127, 1];
    seeds.extend(frames.chunks(8).map(|few| [STREAM, &few.concat(), &lies].concat()));
    seeds
}

/// The seeds of `wire` in the archive of the corpora.
fn packed_seeds() -> Vec<Vec<u8>> {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus.tar.gz");
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(fs::File::open(archive).unwrap()));
    let is_seed = |path: &Path| path.to_string_lossy().starts_with("corpus/wire/seed-");
    let files = archive.entries().unwrap().map(Result::unwrap).filter(|file| is_seed(&file.path().unwrap()));
    files
        .map(|mut file| {
            let mut seed = Vec::new();
            file.read_to_end(&mut seed).unwrap();
            seed
        })
        .collect()
}

/// The corpus begins with a frame of each kind, and they have the bytes of this protocol. `DUEWHEEL_SEEDS=write` writes them anew
/// to `fuzz/corpus`; `scripts/fuzz --pack` takes them into the archive.
#[test]
fn fuzz_seeds_cover_every_wire_kind() {
    let all = if std::env::var("DUEWHEEL_SEEDS").is_ok_and(|wish| wish == "write") {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/wire");
        fs::create_dir_all(&folder).unwrap();
        for (n, seed) in seeds().iter().enumerate() {
            fs::write(folder.join(format!("seed-{n:03}")), seed).unwrap();
        }
        seeds()
    } else {
        packed_seeds()
    };
    let (mut ops, mut replies) = (BTreeSet::new(), BTreeSet::new());
    for seed in all.iter().filter(|seed| seed[0] == 0) {
        let written = match read(&seed[1..], LIMITS).unwrap() {
            PeerFrame::Request { id, shard, patience, ops: Some(all) } => {
                ops.extend(all.iter().map(|op| kind(op.inner())));
                request(id, shard, patience, &all, LIMITS)
            }
            PeerFrame::Answers { id, answers: all } => {
                let all: Vec<_> = all.into_iter().map(Option::unwrap).collect();
                replies.extend(all.iter().flatten().map(kind));
                answers(id, &all, LIMITS)
            }
            PeerFrame::Request { ops: None, .. } => panic!("{seed:?}"),
            PeerFrame::NotMine { .. }
            | PeerFrame::NotKnown { .. }
            | PeerFrame::Ping
            | PeerFrame::Pong
            | PeerFrame::Nudge
            | PeerFrame::Bye => continue,
        };
        assert_eq!(&written.unwrap()[LENGTH..], &seed[1..], "the bytes of protocol {PROTOCOL}");
    }
    assert_eq!((ops.len(), replies.len()), (42, 22));
}
