//! kill -9 of the real server under load, over HTTP and over beanstalkd's protocol.
//!
//! Clients enqueue, change their minds, reserve and settle; the server is killed at random moments, a fifth of them
//! while it recovers, and started again on the same folder. At the end everything is drained, what is left is listed,
//! and the history of what the clients saw is judged. A run counts only if its faults provably happened.
//!
//! `DUEWHEEL_KILLS` (20, and 6 over beanstalkd's protocol) says how often (0: a run of 5 s without a fault),
//! `DUEWHEEL_SEED` repeats the decisions of a run (not the scheduling of the machine), `DUEWHEEL_BIN` names the binary,
//! `DUEWHEEL_KEEP=1` keeps history and data of a good run.

use duewheel_sim::blackbox::System;
use duewheel_sim::blackbox::beanstalk::DuewheelBeanstalk;
use duewheel_sim::blackbox::http::DuewheelHttp;
use duewheel_sim::blackbox::kill9::conduct;

#[test]
fn what_was_accepted_survives_kill_9() {
    hold("what_was_accepted_survives_kill_9", &DuewheelHttp { shards: 1 }, 20);
}

#[test]
fn sharded_messages_survive_kill_9() {
    hold("sharded_messages_survive_kill_9", &DuewheelHttp { shards: 3 }, 20);
}

#[test]
fn beanstalk_jobs_survive_kill_9() {
    hold("beanstalk_jobs_survive_kill_9", &DuewheelBeanstalk::default(), 6);
}

fn hold(test: &str, system: &dyn System, kills: u64) {
    conduct(test, system, kills).expect("a temporary folder").must_hold();
}
