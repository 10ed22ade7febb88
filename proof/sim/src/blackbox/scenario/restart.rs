//! Delays of seconds across a SIGKILL and across a SIGTERM, each with a downtime in which messages come due; and some
//! of an hour, whose remaining time must be right afterwards.

use std::time::{Duration, Instant};

use duewheel_judge::checker::Fact;
use duewheel_judge::history::{MsgId, State, When};
use duewheel_judge::rng::Rng;

use super::{Done, Figures, Host, Trial, accepted, ms, proof, wait};
use crate::blackbox::client::{Client, Message, Run, Stage};
use crate::process::PATIENCE;

const QUEUE: &str = "later";
const HOUR_MS: u64 = 3_600_000;
const FAR: u64 = 10;

pub(super) fn act(trial: &Trial<'_>) -> Result<Done, String> {
    let run = trial.run;
    let mut rng = Rng::new(trial.seed);
    let mut host = Host::new(trial);
    host.begin(&[QUEUE])?;
    std::thread::scope(|scope| {
        let consumers = (1..=2).map(|n| scope.spawn(move || consume(run, n))).collect();
        let result = ups_and_downs(&mut host, trial.size, &mut rng);
        run.set_stage(Stage::Stop);
        wait(consumers)?;
        result
    })?;
    let figures = Figures::new(|report| {
        let late = report.lateness.get("downtime").and_then(|l| l.seen());
        late.map_or(String::new(), |l| {
            format!("due while down or just after: late p50 {}, max {}", ms(l.p50), ms(l.max))
        })
    });
    Ok(Done { require: vec![(Fact::OverdueFromDowntime, trial.size / 10)], figures })
}

fn ups_and_downs(host: &mut Host<'_>, size: u64, rng: &mut Rng) -> Result<(), String> {
    let run = host.run;
    let unit = run.system.unit_ms();
    let mut producer = Client::new(run, 3);
    // Spread over six seconds, from now on.
    let near: Vec<Message> = (0..size)
        .map(|_| Message::new(run, QUEUE, When::DelayMs(rng.range(300, 6_000).next_multiple_of(unit))))
        .collect();
    let far: Vec<Message> = (0..FAR).map(|_| Message::new(run, QUEUE, When::DelayMs(HOUR_MS))).collect();
    let since = Instant::now();
    let far = accepted(producer.enqueue_all(&far))?;
    let until = Instant::now();
    let near = accepted(producer.enqueue_all(&near))?;
    drop(producer);

    std::thread::sleep(Duration::from_millis(500));
    host.kill()?;
    std::thread::sleep(Duration::from_millis(1_200));
    host.start()?;
    std::thread::sleep(Duration::from_millis(700));
    host.stop()?;
    std::thread::sleep(Duration::from_millis(1_200));
    host.start()?;
    host.run.until_left(&[QUEUE], FAR, PATIENCE)?;

    let mut looker = Client::new(run, 4);
    let peer = looker.peer()?;
    let known: Vec<MsgId> = far.iter().chain(&near).copied().collect();
    let rows = peer.list(QUEUE, &known)?;
    for id in &far {
        let state = rows.iter().find(|row| row.id == *id).map(|row| row.state);
        // By the client's clock, before the question and after the answer; the system may report whole units.
        let most = Duration::from_millis(HOUR_MS + unit + 50).saturating_sub(until.elapsed());
        let left = peer.left_ms(QUEUE, *id)?;
        let least =
            Duration::from_millis(HOUR_MS).saturating_sub(since.elapsed() + Duration::from_millis(unit + 50));
        let right = left.is_some_and(|ms| (least..=most).contains(&Duration::from_millis(ms)));
        if state != Some(State::Scheduled) || !right {
            run.complain(format!(
                "message {} of an hour is {state:?} with {left:?} ms left, should be scheduled with {least:?} to {most:?}",
                id.0
            ));
        }
    }
    host.run.dump(QUEUE, &known)
}

fn consume(run: &Run<'_>, number: u32) {
    let mut client = Client::new(run, number);
    while run.stage() != Stage::Stop {
        if !client.connect() {
            std::thread::sleep(Duration::from_millis(2));
            continue;
        }
        let grants = client.reserve(QUEUE, 10, 20, None);
        client.ack_all(grants.iter().map(proof).collect());
    }
}
