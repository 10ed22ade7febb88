//! A client of beanstalkd's protocol: bytes through the codec, and through a session over an engine.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock};

use duewheel::testing::Stepped;
use duewheel::{Duewheel, VirtualClock};
use duewheel_core::engine::{Op, Reply, Reserve, Reserved};
use duewheel_core::policy::Policy;
use duewheel_core::store::conformance::Dice;
use duewheel_server::fuzzing::beanstalk::{ClientInput, ClientNext, FuzzClient, PermittedReplies, commands};

use crate::harness::Rig;

/// Small, so that the fuzzer reaches bodies that are too large.
const MAX_BODY: usize = 60;
/// The largest number of bytes that may wait for the end of a line or of a body.
const MAX_WAITING: usize = 224;
/// The limit for commands that beanstalkd does not know; their names end in `-key`.
const MAX_WAITING_FOR_A_KEY: usize = 2_048;
const OF_A_KEY: &[u8] = b"-key ";
/// The reply to a client of another protocol.
const UNKNOWN: &[u8] = b"UNKNOWN_COMMAND\r\n";
/// The longest wait for a message.
const PATIENCE_MS: u64 = 100_000_000;
/// Error replies that any command may get.
const ERRORS: [&str; 7] = [
    "BAD_FORMAT",
    "UNKNOWN_COMMAND",
    "JOB_TOO_BIG",
    "EXPECTED_CRLF",
    "OUT_OF_MEMORY",
    "INTERNAL_ERROR",
    "DRAINING",
];

/// The first byte says how the stream is cut and begins, the others are the stream.
pub fn beanstalk(data: &[u8]) {
    let Some(first) = data.first() else { return };
    let stream = &stream(data)[..];
    let whole = commands(std::iter::once(stream), MAX_BODY);
    let cut = commands(pieces(stream, *first).into_iter(), MAX_BODY);
    assert_eq!(whole.0, cut.0, "the cuts decide what is heard");
    let single = commands(stream.chunks(1), MAX_BODY);
    assert_eq!(whole.0, single.0, "the cuts decide what is heard");
    let has_a_key = stream.windows(OF_A_KEY.len()).any(|part| part == OF_A_KEY);
    let most = if has_a_key { MAX_WAITING_FOR_A_KEY } else { MAX_WAITING };
    assert!(single.1 < most, "{} bytes wait for more", single.1);

    let told = talk(std::iter::once(stream));
    check(&whole.0, &told);
    let is_refused = told.bytes.starts_with(UNKNOWN);
    assert!(
        !is_refused || told.ended && told.bytes == UNKNOWN,
        "something runs behind an unknown first line"
    );
    let again = talk(pieces(stream, *first).into_iter());
    assert_eq!(comparable(&told), comparable(&again), "the cuts decide what is answered");
}

/// The replies to these bytes, without figures of the process.
pub fn beanstalk_answers(data: &[u8]) -> Vec<u8> {
    comparable(&talk(std::iter::once(&stream(data)[..]))).join("\n").into_bytes()
}

/// Half of the streams begin with a command: nothing is carried out behind a first line that is none.
fn stream(data: &[u8]) -> Vec<u8> {
    let Some((first, rest)) = data.split_first() else { return Vec::new() };
    let begin: &[u8] = if *first < 128 { b"list-tube-used\r\n" } else { b"" };
    [begin, rest].concat()
}

/// A stream in pieces of random lengths.
fn pieces(mut stream: &[u8], seed: u8) -> Vec<&[u8]> {
    let mut dice = Dice::new(u64::from(seed));
    let most = [1, 4, 30, 300][usize::from(seed % 4)];
    let mut pieces = Vec::new();
    while !stream.is_empty() {
        let length = usize::try_from(1 + dice.below(most)).unwrap_or(1).min(stream.len());
        let (piece, rest) = stream.split_at(length);
        pieces.push(piece);
        stream = rest;
    }
    pieces
}

/// The source of the numbers of waiters; operations of sessions never reach this wheel.
fn wheel() -> &'static Duewheel {
    static WHEEL: OnceLock<(Duewheel, Mutex<Stepped>)> = OnceLock::new();
    let (wheel, _) = WHEEL.get_or_init(|| {
        let opened = Stepped::open(Policy::default(), VirtualClock::at_2026(), 1);
        let (wheel, shard) = opened.expect("memory opens");
        (wheel, Mutex::new(shard))
    });
    wheel
}

/// The replies to the client.
#[derive(Debug)]
struct Told {
    bytes: Vec<u8>,
    /// The session waits for a message that does not arrive, or has got `quit`: later bytes are ignored.
    ended: bool,
}

fn talk<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Told {
    let policy = Policy { max_body: MAX_BODY, wheel_slots: 16, ..Policy::default() };
    let mut rig = Rig::new(policy);
    let mut client = FuzzClient::new(wheel(), MAX_BODY);
    for op in client.opening() {
        ask(&mut rig, op);
    }
    let mut ended = false;
    for piece in pieces {
        if ended {
            break;
        }
        let mut next = client.say(piece);
        loop {
            next = match next {
                ClientNext::Ask(ops) => {
                    let answers = ops.into_iter().map(|op| Ok(ask(&mut rig, op))).collect();
                    client.answered(answers)
                }
                ClientNext::Wait(_, op) => match wait(&mut rig, op) {
                    Some(reply) => client.answered(vec![Ok(reply)]),
                    None => {
                        ended = true;
                        break;
                    }
                },
                ClientNext::Read => {
                    // A session reads when it has nothing to do, and checks once more.
                    match client.say(&[]) {
                        ClientNext::Read => break,
                        other => other,
                    }
                }
                ClientNext::Close => {
                    ended = true;
                    break;
                }
            };
        }
    }
    let bytes = std::mem::take(&mut client.out);
    for op in client.close() {
        ask(&mut rig, op);
    }
    let Reply::Stats(stats) = ask(&mut rig, Op::Stats) else { panic!("stats have an answer of their own") };
    assert_eq!((stats.counts.leased, stats.waiters), (0, 0), "a closed connection leaves nothing behind");
    Told { bytes, ended }
}

/// The answer to an operation: at once, or when all pages have arrived.
fn ask(rig: &mut Rig, op: Op) -> Reply {
    let to = rig.step(op);
    rig.reply(to).unwrap_or_else(|| {
        rig.settle();
        rig.reply(to).expect("answered at once")
    })
}

/// Waits for a reserve; `None` if it waits for longer than the limit.
fn wait(rig: &mut Rig, op: Op) -> Option<Reply> {
    let Op::Reserve(Reserve { wait_ms, .. }) = op else { panic!("only a reserve waits: {op:?}") };
    let until = rig.now.engine.0.saturating_add(wait_ms.min(PATIENCE_MS));
    rig.timeout();
    let to = rig.step(op);
    loop {
        rig.settle();
        if let Some(reply) = rig.reply(to) {
            let by_time = matches!(&reply, Reply::Reserve(Reserved::Grants(grants)) if grants.is_empty());
            assert!(!by_time || wait_ms <= PATIENCE_MS && rig.now.engine.0 >= until, "it was not waited for");
            return Some(reply);
        }
        let next = rig.engine.next_wakeup().map_or(u64::MAX, |t| t.0).min(until);
        if next <= rig.now.engine.0 {
            return None;
        }
        rig.pass(next - rig.now.engine.0);
    }
}

/// Checks that every reply is one that the protocol permits for its command, in order, with the body that was put.
fn check(heard: &[ClientInput], told: &Told) {
    let mut rest = &told.bytes[..];
    let mut bodies: BTreeMap<&str, &[u8]> = BTreeMap::new();
    for heard in heard {
        let words = match heard.answer {
            PermittedReplies::Nothing => continue,
            PermittedReplies::End => break,
            PermittedReplies::Words(words) => words,
        };
        if rest.is_empty() {
            assert!(told.ended, "{heard:?} has no answer");
            return;
        }
        let end = rest.windows(2).position(|two| two == b"\r\n").expect("a reply ends with CRLF");
        let line = std::str::from_utf8(&rest[..end]).expect("a reply is text");
        rest = &rest[end + 2..];
        let mut parts = line.split(' ');
        let word = parts.next().unwrap_or_default();
        let numbers: Vec<&str> = parts.collect();
        assert!(words.contains(&word) || ERRORS.contains(&word), "{heard:?} is answered with {line}");
        assert!(word != "INTERNAL_ERROR", "{heard:?} is answered with {line}");
        let data = |size: &str| {
            let size: usize = size.parse().expect("a size");
            assert!(rest.len() >= size + 2 && rest[size..size + 2] == *b"\r\n", "{line}: another size");
            &rest[..size]
        };
        match (word, numbers.as_slice()) {
            ("INSERTED", [id]) => {
                bodies.insert(id, heard.body().expect("only a put is answered so"));
            }
            ("RESERVED" | "FOUND", [id, size]) => {
                let data = data(size);
                rest = &rest[data.len() + 2..];
                let put = bodies.get(id).unwrap_or_else(|| panic!("{line}: nobody has put it"));
                assert!(*put == data, "{line}: {data:?}, and not {put:?}");
            }
            ("OK", [size]) => {
                let data = data(size);
                rest = &rest[data.len() + 2..];
                let text = std::str::from_utf8(data).expect("YAML is text");
                assert!(text.starts_with("---\n") && text.ends_with('\n'), "{text}");
            }
            ("KICKED", [] | [_])
            | ("KEY_EXISTS" | "KEY_RESERVED", [] | [_])
            | ("USING" | "WATCHING", [_])
            | (_, []) => {}
            _ => panic!("{heard:?} is answered with {line}"),
        }
    }
    assert!(rest.is_empty(), "more is answered than was asked: {:?}", String::from_utf8_lossy(rest));
}

/// The replies, without those that depend on the process.
fn comparable(told: &Told) -> Vec<String> {
    let of_the_process = ["rusage-", "uptime: ", "id: ", "OK ", "current-", "total-connections"];
    let text = String::from_utf8_lossy(&told.bytes);
    let is_kept = |line: &&str| !of_the_process.iter().any(|start| line.starts_with(start));
    text.lines().filter(is_kept).map(str::to_owned).collect()
}
