//! Ours beside the real beanstalkd: the same bytes to both, the same replies from both.
//!
//! beanstalkd is Debian's package (`scripts/test` installs it); `DUEWHEEL_BEANSTALKD` names another program. With
//! `DUEWHEEL_PEER_SHOW=1` and `--nocapture` every reply is printed; `DUEWHEEL_PEER_ONLY=order.txt` runs one transcript.

mod compare;
mod pair;
mod random;
mod restart;
mod rng;
mod server;
mod splits;
mod transcript;
mod wire;

use std::sync::Mutex;

use pair::Pair;
use server::{Kind, Over};

/// One pair of servers each.
const TRANSCRIPTS: &[(&str, &str)] = &[
    ("basics.txt", include_str!("transcripts/basics.txt")),
    ("numbers.txt", include_str!("transcripts/numbers.txt")),
    ("lines.txt", include_str!("transcripts/lines.txt")),
    ("names.txt", include_str!("transcripts/names.txt")),
    ("bodies.txt", include_str!("transcripts/bodies.txt")),
    ("order.txt", include_str!("transcripts/order.txt")),
    ("reserve_job.txt", include_str!("transcripts/reserve_job.txt")),
    ("connections.txt", include_str!("transcripts/connections.txt")),
    ("tubes.txt", include_str!("transcripts/tubes.txt")),
    ("pause.txt", include_str!("transcripts/pause.txt")),
    ("times.txt", include_str!("transcripts/times.txt")),
    ("stats.txt", include_str!("transcripts/stats.txt")),
    ("drain.txt", include_str!("transcripts/drain.txt")),
];

/// How many pairs run at a time; most of their time is waiting.
const AT_A_TIME: usize = 4;

fn run_all(other: Kind, over: Over) {
    let only = std::env::var("DUEWHEEL_PEER_ONLY").ok();
    let chosen =
        TRANSCRIPTS.iter().rev().filter(|(file, _)| only.as_deref().is_none_or(|only| only == *file));
    let left = Mutex::new(chosen.collect::<Vec<_>>());
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let Some((file, text)) = left.lock().expect("left").pop() else { return };
                    let done = transcript::run(&mut Pair::start(other, over), file, text);
                    failed.lock().expect("failed").extend(done.err());
                }
            });
        }
    });
    let failed = failed.into_inner().expect("failed");
    assert!(failed.is_empty(), "{} of the transcripts differ:\n\n{}", failed.len(), failed.join("\n\n"));
}

#[test]
fn two_beanstalkds_answer_every_transcript_alike() {
    run_all(Kind::Theirs, Over::Tcp);
}

#[test]
fn ours_answers_every_transcript_like_beanstalkd() {
    run_all(Kind::Ours, Over::Tcp);
}

#[test]
fn ours_is_the_same_over_a_unix_socket() {
    let (file, text) = TRANSCRIPTS[0];
    transcript::run(&mut Pair::start(Kind::Ours, Over::Unix), file, text).unwrap_or_else(|e| panic!("{e}"));
}
