//! Round trips, and what is no frame.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a panic is a failed test; numbers are small

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::path::Path;

use duewheel_core::name::{Key, QueueName};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::dialect::{DIALECTS, NEXT};
use super::samples::{answers as any_answers, error, kind_of_op, kind_of_reply, op, reply};
use super::*;

const LIMITS: FrameLimits = FrameLimits { bytes: 1 << 20, parts: 1_000, body: 1 << 19 };
const NOW: &Dialect = &DIALECTS[1];
const BEFORE: &Dialect = &DIALECTS[0];
const SHARD: ShardId = ShardId(3);

fn sent(frame: &[u8]) -> PeerFrame {
    let (length, rest) = frame.split_at(LENGTH);
    assert_eq!(u32::from_le_bytes(length.try_into().unwrap()) as usize, rest.len());
    read(rest, LIMITS, NOW).unwrap()
}

fn again(ops: &[Op]) -> Vec<Op> {
    let frame = request(7, SHARD, WhenBusy::Wait, ops, LIMITS, NOW).unwrap();
    match sent(&frame) {
        PeerFrame::Request { id: 7, shard: SHARD, patience: WhenBusy::Wait, ops } => ops,
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
        let PeerFrame::Answers { id: 9, answers: came } = sent(&answers(9, &all, LIMITS, NOW).unwrap()) else {
            panic!("another frame")
        };
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
    fn a_frame_that_is_cut_or_longer_is_refused(ops in vec(op(), 1..4), cut in any::<prop::sample::Index>()) {
        let frame = request(1, SHARD, WhenBusy::Refuse, &ops, LIMITS, NOW).unwrap();
        let rest = &frame[LENGTH..];
        let cut = cut.index(rest.len());
        prop_assert!(matches!(read(&rest[..cut], LIMITS, NOW), Err(WireError::Damaged)));
        let longer = [rest, &[0]].concat();
        prop_assert!(matches!(read(&longer, LIMITS, NOW), Err(WireError::Damaged)));
    }

    #[test]
    fn damaged_bytes_never_panic(
        all in any_answers(),
        ops in vec(op(), 0..4),
        hits in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        for frame in [answers(1, &all, LIMITS, NOW).unwrap(), request(1, SHARD, WhenBusy::Refuse, &ops, LIMITS, NOW).unwrap()] {
            let mut bytes = frame[LENGTH..].to_vec();
            for (at, by) in &hits {
                let at = at.index(bytes.len());
                bytes[at] ^= by;
            }
            let _ = read(&bytes, LIMITS, NOW);
        }
    }

    #[test]
    fn garbage_never_panics(bytes in vec(any::<u8>(), 0..300)) {
        let _ = read(&bytes, LIMITS, NOW);
        let _ = read_greeting::<(u64, Box<str>)>(&bytes);
    }
}

#[test]
fn the_samples_are_of_every_kind() {
    let mut runner = TestRunner::deterministic();
    let mut ops = BTreeSet::new();
    let mut replies = BTreeSet::new();
    for _ in 0..2_000 {
        ops.insert(kind_of_op(&op().new_tree(&mut runner).unwrap().current()));
        replies.insert(kind_of_reply(&reply().new_tree(&mut runner).unwrap().current()));
    }
    assert_eq!((ops.len(), replies.len()), (38, 20));
}

/// A new operation is behind all others, counted in its version, and among the samples.
#[test]
fn each_version_counts_the_operations_that_it_knows() {
    // One that is known begins with its number, and is cut off there; an unknown number is an error of another kind.
    let is_known =
        |number: &u8| postcard::from_bytes::<Op>(&[*number]) != Err(postcard::Error::SerdeDeCustom);
    let known = (0..u8::MAX).take_while(is_known).count();
    assert_eq!(DIALECTS.last().map(|dialect| dialect.ops as usize), Some(known));
    let mut runner = TestRunner::deterministic();
    let sampled: BTreeMap<u32, &str> = (0..2_000)
        .map(|_| op().new_tree(&mut runner).unwrap().current())
        .map(|op| (kind_of_op(&op), op.operation().name))
        .collect();
    let names: BTreeSet<&str> = sampled.values().copied().collect();
    assert_eq!((sampled.len(), names.len()), (known, known), "each has a row of its own in the table");
}

#[test]
fn limits_hold_in_both_directions() {
    let small = FrameLimits { bytes: 64, parts: 3, body: 64 };
    let ops = |n| vec![Op::Stats; n];
    assert!(request(1, SHARD, WhenBusy::Refuse, &ops(3), small, NOW).is_ok());
    assert_eq!(request(1, SHARD, WhenBusy::Refuse, &ops(4), small, NOW), Err(WireError::TooLarge));
    let large = request(1, SHARD, WhenBusy::Refuse, &ops(4), LIMITS, NOW).unwrap();
    assert!(matches!(read(&large[LENGTH..], small, NOW), Err(WireError::TooLarge)));
    let long = [Ok(Reply::Histogram(duewheel_core::engine::Histogram {
        from: duewheel_core::WallMs(0),
        width_ms: 0,
        counts: vec![0; 100],
        before: 0,
        after: 0,
        resolution_ms: 0,
    }))];
    assert_eq!(answers(1, &long, small, NOW), Err(WireError::TooLarge));
    let long = answers(1, &long, LIMITS, NOW).unwrap();
    assert!(matches!(read(&long[LENGTH..], small, NOW), Err(WireError::TooLarge)));
}

#[test]
fn a_number_of_parts_that_lies_makes_no_room() {
    let head = PeerFrameHead::Request { id: 1, shard: SHARD, patience: WhenBusy::Refuse, ops: 900 };
    let frame = plain(&head, NOW).unwrap();
    assert!(matches!(read(&frame[LENGTH..], LIMITS, NOW), Err(WireError::Damaged)));
}

#[test]
fn names_are_checked_on_their_way_in() {
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

/// The bytes of one frame. If this fails, nodes of two builds would misunderstand each other: raise [`PROTOCOL`].
#[test]
fn the_bytes_are_those_of_this_protocol() {
    let queue = QueueName::new("q").unwrap();
    let ops = [
        Op::Enqueue(Box::new(duewheel_core::engine::Enqueue::new(queue.clone(), "b"))),
        Op::Purge { queue },
        Op::NextDue,
    ];
    let frame = request(1, SHARD, WhenBusy::Refuse, &ops, LIMITS, NOW).unwrap();
    let expected: &[u8] = &[
        28, 0, 0, 0, // length
        0, 1, 3, 0, 3, // head
        0, 1, b'q', 0, 1, b'b', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // an enqueue
        0, 0, // beside it: no spread, no expiry
        28, 1, b'q', // a purge
        33,   // when is the next one due?
    ];
    assert_eq!((PROTOCOL, &*frame), (6, expected));
}

#[test]
fn a_frame_of_another_version_is_none_of_this_one() {
    let ops = [Op::Stats, Op::NextDue];
    let next = &NEXT[1];
    for (mine, theirs) in [(NOW, next), (next, NOW)] {
        let frame = request(7, SHARD, WhenBusy::Refuse, &ops, LIMITS, mine).unwrap();
        assert!(matches!(read(&frame[LENGTH..], LIMITS, mine), Ok(PeerFrame::Request { id: 7, .. })));
        assert!(matches!(read(&frame[LENGTH..], LIMITS, theirs), Err(WireError::Damaged)));
        let frame = plain(&PeerFrameHead::Ping, mine).unwrap();
        assert!(read(&frame[LENGTH..], LIMITS, theirs).is_err());
    }
}

/// What version 5 does not have is refused where leaving it out would change what is done, and left out of answers.
#[test]
fn details_are_left_out_for_a_node_of_the_version_before() {
    use duewheel_core::engine::{
        ChangeRefusal, Enqueue, HeldBack, Limit, RefusedPart, Reserved, SettingsRefusal, Settled, Target,
    };
    use duewheel_core::message::{DeadReason, Expiry, State};
    use duewheel_core::policy::{GrantLimits, QueueSettings, TraceMode};
    let queue = || QueueName::new("q").unwrap();
    let asked = |op: Op, dialect| {
        let frame = request(7, SHARD, WhenBusy::Refuse, &[op, Op::NextDue], LIMITS, dialect)?;
        let Ok(PeerFrame::Request { mut ops, .. }) = read(&frame[LENGTH..], LIMITS, dialect) else {
            panic!()
        };
        assert_eq!(ops.pop(), Some(Op::NextDue));
        Ok(ops.remove(0))
    };
    let enqueue = |spread_ms, expiry| {
        let mut e = Enqueue::new(queue(), "b");
        (e.options.spread_ms, e.options.expiry) = (spread_ms, expiry);
        Op::Enqueue(Box::new(e))
    };
    let limits = GrantLimits { concurrency: Some(3), ..GrantLimits::default() };
    let configure = |limits| Op::Configure {
        queue: queue(),
        settings: QueueSettings { limits, ..QueueSettings::default() },
    };
    for op in [enqueue(Some(1), None), enqueue(None, Some(Expiry::In(1))), configure(limits)] {
        assert_eq!(asked(op.clone(), NOW), Ok(op.clone()));
        assert_eq!(asked(op, BEFORE), Err(WireError::NotKnown));
    }
    let keep_done_ms = Some(5);
    let keeps = QueueSettings { keep_done_ms, ..QueueSettings::default() };
    let list = Op::List { queue: queue(), state: Some(State::Done), after: None, limit: 1, from: None };
    let traced = QueueSettings { trace: Some(TraceMode::Child), ..QueueSettings::default() };
    let configure_to = |settings| Op::Configure { queue: queue(), settings };
    for op in [configure_to(keeps), configure_to(traced), list] {
        assert_eq!(asked(op.clone(), NOW), Ok(op.clone()));
        assert_eq!(asked(op, BEFORE), Err(WireError::NotKnown));
    }
    let target = Target::Id(duewheel_core::MessageId(7));
    let recall = Op::Recall { target: target.clone() };
    assert_eq!(asked(recall.clone(), NOW), Ok(recall.clone()));
    assert_eq!(asked(recall, BEFORE), Ok(Op::Get { target }), "its node keeps nothing");
    for op in [enqueue(None, None), configure(GrantLimits::default())] {
        assert_eq!(asked(op.clone(), BEFORE), Ok(op));
    }

    let came = |reply: &Reply, dialect| {
        let frame = answers(7, &[Ok(reply.clone()), Ok(Reply::Done)], LIMITS, dialect).unwrap();
        let Ok(PeerFrame::Answers { mut answers, .. }) = read(&frame[LENGTH..], LIMITS, dialect) else {
            panic!()
        };
        assert!(matches!(answers.pop(), Some(Ok(Reply::Done))));
        answers.remove(0).unwrap()
    };
    let change = |refusal| Reply::Change(Err(refusal));
    let settled = |reason| Reply::Settle(Ok(Settled::Dead(reason).into()));
    for (reply, before) in [
        (
            Reply::Reserve(Reserved::HeldBack(HeldBack::Rate)),
            Reply::Reserve(Reserved::HeldBack(HeldBack::Leases)),
        ),
        (
            change(ChangeRefusal::Overloaded(Limit::GrantRate(9))),
            change(ChangeRefusal::Overloaded(Limit::Leases)),
        ),
        (change(ChangeRefusal::OutOfRange(RefusedPart::ExpiresAt)), change(ChangeRefusal::TooFar(0))),
        (settled(DeadReason::Expired), settled(DeadReason::MaxAttempts)),
        (
            Reply::Configure(SettingsRefusal::BelowShards("backoff", 4)),
            Reply::Configure(SettingsRefusal::OutOfRange("backoff", 4)),
        ),
    ] {
        assert_eq!(came(&reply, NOW), reply);
        assert_eq!(came(&reply, BEFORE), before);
    }
    // Answers with messages and queues: arbitrary ones come whole, and for the version before without what it lacks.
    let mut runner = TestRunner::deterministic();
    let mut left_out = 0;
    for _ in 0..2_000 {
        let reply = reply().new_tree(&mut runner).unwrap().current();
        assert_eq!(came(&reply, NOW), reply);
        left_out += usize::from(came(&reply, BEFORE) != reply);
    }
    assert!(left_out > 200, "{left_out}");
}

#[test]
fn what_an_earlier_version_does_not_know_is_not_sent_to_it() {
    let earlier = Dialect { ops: 33, ..*BEFORE };
    let queue = QueueName::new("q").unwrap();
    assert!(request(1, SHARD, WhenBusy::Refuse, &[Op::Purge { queue }], LIMITS, &earlier).is_ok());
    assert_eq!(
        request(1, SHARD, WhenBusy::Refuse, &[Op::NextDue], LIMITS, &earlier),
        Err(WireError::NotKnown)
    );
    assert_eq!(NOW.ops, 38, "all that there are");
    let events = Op::Events { shard: SHARD, after: None, limit: 1, fired_after: None };
    assert!(request(1, SHARD, WhenBusy::Refuse, std::slice::from_ref(&events), LIMITS, NOW).is_ok());
    assert_eq!(request(1, SHARD, WhenBusy::Refuse, &[events], LIMITS, BEFORE), Err(WireError::NotKnown));
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
        keep((0, kind_of_op(&op)), request(n, SHARD, WhenBusy::Refuse, &[op], LIMITS, NOW).unwrap());
        let reply = reply().new_tree(&mut runner).unwrap().current();
        keep((1, kind_of_reply(&reply)), answers(n, &[Ok(reply)], LIMITS, NOW).unwrap());
    }
    let mut frames: Vec<Vec<u8>> = kinds.into_values().collect();
    for _ in 0..6 {
        let error = error().new_tree(&mut runner).unwrap().current();
        frames.push(answers(1, &[Err(error)], LIMITS, NOW).unwrap());
    }
    let several = [Op::Stats, Op::NextDue, Op::Wheel, Op::Stats, Op::NextDue];
    frames.push(request(300, SHARD, WhenBusy::Wait, &several, LIMITS, NOW).unwrap());
    let why = "node a does not own it".into();
    for head in [
        PeerFrameHead::Ping,
        PeerFrameHead::Pong,
        PeerFrameHead::Nudge,
        PeerFrameHead::Bye,
        PeerFrameHead::NotMine { id: 1, why },
    ] {
        frames.push(plain(&head, NOW).unwrap());
    }
    let mut seeds: Vec<Vec<u8>> = frames.iter().map(|frame| [FRAME, &frame[LENGTH..]].concat()).collect();
    seeds.extend(frames.iter().rev().take(8).map(|frame| [TIGHT, &frame[LENGTH..]].concat()));
    // The parts of a greeting, as `peer::proof` has them.
    let (a, b) = (("a", 1_u32), ("b", 2_u32));
    let takes = (1_u64 << 20, 1_000_u64, 1_u64 << 18);
    let greetings = [
        greeting(&(*b"duewheel", (PROTOCOL - 1, PROTOCOL), takes, a, b)),
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

/// The corpus begins with a frame of each kind, and they are of this protocol. `DUEWHEEL_SEEDS=write` writes them anew
/// to `fuzz/corpus`; `scripts/fuzz --pack` takes them into the archive.
#[test]
fn the_seeds_of_the_fuzz_target_are_of_every_kind() {
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
        match read(&seed[1..], LIMITS, NOW).unwrap() {
            PeerFrame::Request { ops: all, .. } => ops.extend(all.iter().map(kind_of_op)),
            PeerFrame::Answers { answers, .. } => replies.extend(answers.iter().flatten().map(kind_of_reply)),
            PeerFrame::NotMine { .. }
            | PeerFrame::Ping
            | PeerFrame::Pong
            | PeerFrame::Nudge
            | PeerFrame::Bye => {}
        }
    }
    assert_eq!((ops.len(), replies.len()), (37, 20));
}
