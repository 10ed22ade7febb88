//! The black-box scenarios for our server, over both of its protocols. kill -9 over HTTP is `kill9.rs`.
//!
//! `DUEWHEEL_SEED` repeats the decisions of a run; how much is done is said by the variable that a scenario names,
//! which the command printed by a failing run has in it. `docs/testing.md` lists the commands.

use duewheel_judge::history::Told;
use duewheel_sim::blackbox::System;
use duewheel_sim::blackbox::beanstalk::DuewheelBeanstalk;
use duewheel_sim::blackbox::http::{DuewheelHttp, Memory};
use duewheel_sim::blackbox::scenario::{BURST, EXTREMES, KILL9, RACE, RESTART, STALE, Scenario};
use duewheel_sim::blackbox::verdict::{Settings, conduct, env, seed};

fn hold(test: &str, scenario: &Scenario, system: &dyn System, size: Option<u64>) {
    let command = format!("cargo test -p duewheel-sim --test blackbox -- --nocapture {test}");
    conduct(scenario, system, Settings { seed: seed(), size, command: &command }).must_hold();
}

fn http() -> DuewheelHttp {
    DuewheelHttp { memory: Memory::Usual, shards: 1 }
}

fn beanstalk() -> DuewheelBeanstalk {
    DuewheelBeanstalk::new(Memory::Usual, Told::Yes)
}

#[test]
fn beanstalk_kill_9() {
    let system = DuewheelBeanstalk::new(Memory::Little, Told::Yes);
    hold("beanstalk_kill_9", &KILL9, &system, env(KILL9.knob).or(Some(6)));
}

#[test]
fn http_restart_keeps_due_times() {
    hold("http_restart_keeps_due_times", &RESTART, &http(), None);
}

#[test]
fn beanstalk_restart_keeps_due_times() {
    hold("beanstalk_restart_keeps_due_times", &RESTART, &beanstalk(), None);
}

#[test]
fn http_many_due_at_one_instant() {
    hold("http_many_due_at_one_instant", &BURST, &http(), None);
}

#[test]
fn beanstalk_many_due_at_one_instant() {
    hold("beanstalk_many_due_at_one_instant", &BURST, &beanstalk(), None);
}

#[test]
fn http_extreme_delays() {
    hold("http_extreme_delays", &EXTREMES, &http(), None);
}

#[test]
fn beanstalk_extreme_delays() {
    hold("beanstalk_extreme_delays", &EXTREMES, &beanstalk(), None);
}

#[test]
fn http_stale_settles_are_refused() {
    hold("http_stale_settles_are_refused", &STALE, &http(), None);
}

#[test]
fn beanstalk_stale_settles_are_refused() {
    hold("beanstalk_stale_settles_are_refused", &STALE, &beanstalk(), None);
}

#[test]
fn http_cancel_against_grant() {
    hold("http_cancel_against_grant", &RACE, &http(), None);
}

#[test]
fn beanstalk_cancel_against_grant() {
    hold("beanstalk_cancel_against_grant", &RACE, &beanstalk(), None);
}
