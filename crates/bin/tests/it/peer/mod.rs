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
pub(crate) mod wire;

use std::sync::Mutex;

use pair::Pair;
use server::{Kind, Setup};

/// One pair of servers each; those that take seconds come first.
const TRANSCRIPTS: &[(&str, Setup, &str)] = &[
    ("time_to_run.txt", Setup::Tcp, include_str!("transcripts/time_to_run.txt")),
    ("deadlines.txt", Setup::Tcp, include_str!("transcripts/deadlines.txt")),
    ("delays.txt", Setup::Tcp, include_str!("transcripts/delays.txt")),
    ("pause.txt", Setup::Tcp, include_str!("transcripts/pause.txt")),
    ("basics.txt", Setup::Unix, include_str!("transcripts/basics.txt")),
    ("basics.txt", Setup::Tcp, include_str!("transcripts/basics.txt")),
    ("numbers.txt", Setup::Tcp, include_str!("transcripts/numbers.txt")),
    ("lines.txt", Setup::Tcp, include_str!("transcripts/lines.txt")),
    ("names.txt", Setup::Tcp, include_str!("transcripts/names.txt")),
    ("bodies.txt", Setup::Tcp, include_str!("transcripts/bodies.txt")),
    ("order.txt", Setup::Tcp, include_str!("transcripts/order.txt")),
    ("reserve_job.txt", Setup::Tcp, include_str!("transcripts/reserve_job.txt")),
    ("connections.txt", Setup::Tcp, include_str!("transcripts/connections.txt")),
    ("tubes.txt", Setup::Tcp, include_str!("transcripts/tubes.txt")),
    ("stats.txt", Setup::Tcp, include_str!("transcripts/stats.txt")),
    ("together.txt", Setup::Tcp, include_str!("transcripts/together.txt")),
    ("one_waits.txt", Setup::Tcp, include_str!("transcripts/one_waits.txt")),
    ("drain.txt", Setup::Tcp, include_str!("transcripts/drain.txt")),
    ("small_jobs.txt", Setup::SmallJobs, include_str!("transcripts/small_jobs.txt")),
];

/// How many pairs run at a time; most of their time is waiting.
const AT_A_TIME: usize = 4;

fn run_all(other: Kind) {
    let only = std::env::var("DUEWHEEL_PEER_ONLY").ok();
    let chosen =
        TRANSCRIPTS.iter().rev().filter(|(file, ..)| only.as_deref().is_none_or(|only| only == *file));
    let left = Mutex::new(chosen.collect::<Vec<_>>());
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let Some((file, setup, text)) = left.lock().expect("left").pop() else { return };
                    let done = transcript::run(&mut Pair::start(other, *setup), file, text);
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
    run_all(Kind::Theirs);
}

#[test]
fn ours_answers_every_transcript_like_beanstalkd() {
    run_all(Kind::Ours);
}
