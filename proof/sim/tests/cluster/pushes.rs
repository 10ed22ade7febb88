//! kill -9 of the node that pushes: its pushes go on at another one, judged with the log of the receiver.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use duewheel_judge::checker::Fact;
use duewheel_judge::history::{Blow, Fault, PushSeen, What};
use duewheel_judge::rng::Rng;
use duewheel_redis_rig::{Redis, Settings};
use duewheel_sim::blackbox::cluster::{Door, DuewheelCluster};
use duewheel_sim::pushing::{Pushing, QUEUE, Receiver, Work, config, pushed, target};
use serde_json::Value;

use crate::stage::{PATIENCE, Play, Stage, in_runs, ms, perform_alone};

const NODES: usize = 3;
/// Pushes before the kill, and by the next node, after which the run goes on.
const PUSHES: u64 = 100;

#[test]
fn killed_node_pushes_continue_elsewhere() {
    in_runs("DUEWHEEL_PUSHER_KILLS", 1, 10, killed);
}

fn killed(kills: u64) {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let play = Play {
        name: "pushes::killed_node_pushes_continue_elsewhere",
        count: ("DUEWHEEL_PUSHER_KILLS", kills),
        system: DuewheelCluster::new(Door::Http, Duration::from_secs(1)),
        stores: vec![redis.url(0); NODES],
        nodes: NODES,
        facts: vec![
            (Fact::Struck(Blow::NodeKilled), kills),
            (Fact::DeliveredByPush, 100 * kills),
            (Fact::DeadByPush, kills),
            (Fact::PushedAgainAfterAFailure, kills),
            (Fact::PushesCutByAKill, kills),
        ],
    };
    let (receiver, pushing, work) = (Receiver::default(), Mutex::new(Pushing::default()), Work::default());
    perform_alone(play, |stage| {
        let (run, seed) = (stage.run, stage.rng.bits());
        let present = || pushing.lock().unwrap_or_else(PoisonError::into_inner);
        let mood = |seen: &PushSeen| present().mood(seen);
        std::thread::scope(|scope| {
            let result = (|| {
                let address = receiver.listen(scope, &run.recorder, &mood)?;
                stage.done("PUT", "/v1/targets/hook", &target(address))?;
                stage.done("PATCH", &format!("/v1/queues/{QUEUE}/config"), &config())?;
                run.recorder.note(run.recorder.stamp(), 0, What::Pushed(pushed()));
                scope.spawn(|| work.produce(run, Rng::new(seed), 100..300));
                scope.spawn(|| work.look(run, Rng::new(!seed)));
                let until_pushed = |stage: &Stage<'_>| {
                    stage.until("pushes come", |_| Ok((present().requests() >= PUSHES).then_some(())))
                };
                for _ in 0..kills {
                    until_pushed(stage)?;
                    let node = pusher(stage)?;
                    // The others stand still until the blow is recorded: none of them pushes before.
                    let others: Vec<usize> = (0..NODES).filter(|other| *other != node).collect();
                    run.fault(Fault::Other("all other nodes are stopped for the kill".into()));
                    others.iter().try_for_each(|other| stage.pause(*other))?;
                    receiver.holds_one()?;
                    stage.kill(node)?;
                    // What it has sent is recorded before the blow, as by the death of a single server.
                    receiver.drained()?;
                    *present() = Pushing::default();
                    let since = stage.strike(Blow::NodeKilled);
                    others.iter().try_for_each(|other| stage.resume(*other))?;
                    stage.heal(since)?;
                    stage.until("the first push", |_| Ok((present().requests() > 0).then_some(())))?;
                    let took = since.elapsed();
                    // They begin elsewhere when its ticket has run out.
                    stage.say(format!(
                        "pushes of a killed node went on after {} ms (a ticket: 15 s)",
                        ms(took)
                    ));
                    until_pushed(stage)?;
                    let next = pusher(stage)?;
                    if next == node {
                        return Err(format!("node {node} is dead, and pushes"));
                    }
                    stage.start(node)?;
                }
                work.end();
                run.until_left(&[QUEUE], 0, PATIENCE)?;
                run.dump(QUEUE, &[])
            })();
            work.end();
            receiver.stop();
            result
        })
    });
}

/// The node that pushes: it alone knows how attempts have ended.
fn pusher(stage: &Stage<'_>) -> Result<usize, String> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        for node in (0..NODES).filter(|node| stage.http(*node).is_ok()) {
            let (_, view) = stage.call(node, "GET", "/v1/targets/hook", &Value::Null)?;
            if view["counts"].is_object() {
                return Ok(node);
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err("no node pushes".to_owned())
}
