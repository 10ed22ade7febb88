//! kill -9 of the real server under load, over HTTP (M9 of `docs/testing.md`).
//!
//! Clients enqueue, change their minds, reserve and settle; the server is killed at random moments, a fifth of them
//! while it recovers, and started again on the same folder. At the end everything is drained, what is left is listed,
//! and the history of what the clients saw is judged. A run counts only if its faults provably happened.
//!
//! `DUEWHEEL_KILLS` (20) says how often (0: a run of 5 s without a fault), `DUEWHEEL_SEED` repeats the decisions of a
//! run (not the scheduling of the machine), `DUEWHEEL_BIN` names the binary, `DUEWHEEL_KEEP=1` keeps history and data
//! of a good run, too.

use duewheel_sim::blackbox::http::{DuewheelHttp, Memory};
use duewheel_sim::blackbox::scenario::KILL9;
use duewheel_sim::blackbox::verdict::{Settings, conduct, seed};

#[test]
fn what_was_accepted_survives_kill_9() {
    kill9(1);
}

#[test]
fn sharded_messages_survive_kill_9() {
    kill9(3);
}

fn kill9(shards: u32) {
    let system = DuewheelHttp { memory: Memory::Little, shards };
    let command = "cargo test -p duewheel-sim --test kill9 -- --nocapture";
    conduct(&KILL9, &system, Settings { seed: seed(), size: None, command }).must_hold();
}
