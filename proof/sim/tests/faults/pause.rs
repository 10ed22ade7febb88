//! The server's process is stopped for a while, as a machine that swaps or a hypervisor that moves it does.

use std::time::Duration;

use duewheel_judge::checker::Fact;
use duewheel_judge::history::Fault;
use duewheel_sim::process;
use serde_json::json;

use crate::stage::{Crew, PATIENCE, Play, env, perform};

/// Leases are at most 0.8 s long and most delays less than 3 s, so each pause has ends of both in it; half of the
/// pauses begin just before a lease of the test's own runs out and a message of its own comes due.
#[test]
fn pauses_lose_and_break_nothing() {
    let pauses = env("DUEWHEEL_PAUSES", 3);
    let play = Play {
        name: "pauses_lose_and_break_nothing",
        count: ("DUEWHEEL_PAUSES", pauses),
        data: None,
        more: &[],
        slack_ms: None,
        facts: vec![
            (Fact::Pauses, pauses),
            (Fact::LeasesEndedInAPause, pauses),
            (Fact::OverdueFromPauses, pauses),
            (Fact::ExpiredLeasesGrantedAgain, pauses),
            (Fact::StaleSettlesRefused, pauses.div_ceil(3)),
        ],
        crew: Crew::All,
    };
    perform(play, |stage, server| {
        let id = server.id();
        for pause in 0..pauses {
            std::thread::sleep(Duration::from_millis(stage.rng.range(500, 1_500)));
            let queue = format!("own-{pause}");
            if pause % 2 == 0 {
                // Own messages, beside the history: leased, and due, for 60 ms from now.
                let messages = format!("/v1/queues/{queue}/messages");
                let reserve = format!("/v1/queues/{queue}/reserve");
                stage.done("POST", &messages, &json!({"body": "leased", "delay_ms": 0}))?;
                stage.done("POST", &messages, &json!({"body": "due", "delay_ms": 60}))?;
                let grant = stage.done("POST", &reserve, &json!({"max": 1, "lease_ms": 60}))?;
                std::thread::sleep(Duration::from_millis(stage.rng.range(20, 58)));
                stop(stage, id)?;
                std::thread::sleep(Duration::from_millis(stage.rng.range(1_000, 5_000)));
                go_on(stage, id)?;
                let (mut seen, mut token) = (0, None);
                stage.until("both are granted", |stage| {
                    let got = stage.done("POST", &reserve, &json!({"max": 2, "wait_ms": 1_000}))?;
                    for message in got["messages"].as_array().into_iter().flatten() {
                        seen += 1;
                        if message["body"] == "leased" {
                            token = Some(message.clone());
                        }
                    }
                    Ok((seen >= 2).then_some(()))
                })?;
                let (old, new) = (&grant["messages"][0], token.ok_or("the leased one is missing")?);
                let ack = format!("/v1/messages/{}/ack", old["id"].as_str().ok_or("id")?);
                let (status, said) = stage.call("POST", &ack, &json!({"lease_token": old["lease_token"]}))?;
                if (status, &said["code"]) != (409, &json!("lease_lost")) {
                    return Err(format!("a lease that ran out in a pause was acked: {status} {said}"));
                }
                stage.done("POST", &ack, &json!({"lease_token": new["lease_token"]}))?;
            } else {
                stop(stage, id)?;
                std::thread::sleep(Duration::from_millis(stage.rng.range(1_000, 5_000)));
                go_on(stage, id)?;
            }
        }
        std::thread::sleep(Duration::from_millis(1_000));
        Ok(server)
    });
}

/// Stops all threads, and writes it down when none runs any more.
fn stop(stage: &crate::stage::Stage<'_>, id: u32) -> Result<(), String> {
    process::pause(id, PATIENCE)?;
    stage.fault(Fault::Paused);
    Ok(())
}

fn go_on(stage: &crate::stage::Stage<'_>, id: u32) -> Result<(), String> {
    stage.fault(Fault::Resumed);
    process::resume(id)
}
