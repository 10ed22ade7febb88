//! kill -9 of a server that pushes, judged with the log of a receiver that is not always well.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use duewheel_judge::checker::Fact;
use duewheel_judge::history::{PushSeen, What};
use duewheel_judge::rng::Rng;
use duewheel_sim::pushing::{Pushing, QUEUE, Receiver, Work, config, pushed, target};

use crate::stage::{Crew, Play, env, perform};

/// Story: the next process repeated a push 7 ms after the kill of the one that had heard its success, before the rig had
/// recorded that it was started. The judge took both for one process. Its end is what is recorded in time.
#[test]
fn pushes_go_on_over_kill_9() {
    let kills = env("DUEWHEEL_PUSH_KILLS", 6);
    let play = Play {
        name: "pushes_go_on_over_kill_9",
        count: ("DUEWHEEL_PUSH_KILLS", kills),
        data: None,
        more: &[],
        slack_ms: None,
        facts: vec![
            (Fact::KillsServing, kills),
            (Fact::DeliveredByPush, 20 * kills),
            (Fact::DeadByPush, kills),
            (Fact::PushedAgainAfterAFailure, kills),
            (Fact::PushedAgainWhenAsked, 1),
            (Fact::PushesCutByAKill, kills / 2),
        ],
        crew: Crew::None,
    };
    perform(play, |stage, mut server| {
        let (receiver, process, work) =
            (Receiver::default(), Mutex::new(Pushing::default()), Work::default());
        let (run, seed) = (stage.run, stage.rng.bits());
        let mood = |seen: &PushSeen| process.lock().unwrap_or_else(PoisonError::into_inner).mood(seen);
        std::thread::scope(|scope| {
            let result = (|| {
                let address = receiver.listen(scope, &run.recorder, &mood)?;
                stage.done("PUT", "/v1/targets/hook", &target(address))?;
                stage.done("PATCH", &format!("/v1/queues/{QUEUE}/config"), &config())?;
                run.recorder.note(run.recorder.stamp(), 0, What::Pushed(pushed()));
                scope.spawn(|| work.produce(run, Rng::new(seed), 20..80));
                scope.spawn(|| work.look(run, Rng::new(!seed)));
                for _ in 0..kills {
                    std::thread::sleep(Duration::from_millis(stage.rng.range(400, 1_200)));
                    receiver.holds_one()?;
                    stage.kill_and_hear(server, || receiver.drained())?;
                    *process.lock().unwrap_or_else(PoisonError::into_inner) = Pushing::default();
                    server = stage.start()?;
                }
                work.end();
                run.until_left(&[QUEUE], 0, crate::stage::PATIENCE)?;
                run.dump(QUEUE, &[])?;
                Ok(server)
            })();
            work.end();
            receiver.stop();
            result
        })
    });
}
