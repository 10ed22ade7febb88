//! Delays at the edges of number types, in the system's own unit: each is refused, or really is that far in the future,
//! also after a SIGKILL and a SIGTERM. None is delivered at once.

use std::time::Instant;

use duewheel_judge::history::{Answer, Call, MsgId, Refusal, State, When};

use super::{Done, Figures, Host, Trial, proof};
use crate::blackbox::Asked;
use crate::blackbox::client::{Client, Message, Run};
use crate::process::PATIENCE;

const QUEUE: &str = "edges";

/// The texts of delays, and their values; a negative delay has none.
const DELAYS: [(&str, Option<u64>); 8] = [
    ("-1", None),
    ("0", Some(0)),
    ("1", Some(1)),
    ("2147483648", Some(1 << 31)),
    ("4294967296", Some(1 << 32)),
    ("68719476736", Some(1 << 36)),
    ("9007199254740992", Some(1 << 53)),
    ("18446744073709551615", Some(u64::MAX)),
];

pub(super) fn act(trial: &Trial<'_>) -> Result<Done, String> {
    let run = trial.run;
    let mut host = Host::new(trial);
    host.begin(&[QUEUE])?;
    let mut client = Client::new(run, 1);
    let mut refused = Vec::new();
    let mut near = Vec::new();
    let mut far: Vec<(&str, MsgId, u64)> = Vec::new();
    let begun = Instant::now();
    for (text, units) in DELAYS {
        let ms = units.map_or(u64::MAX, |n| n.saturating_mul(run.system.unit_ms()));
        // A delay without a value is recorded in the history as one that never ends.
        let message = Message::new(run, QUEUE, When::DelayMs(ms));
        let asked =
            Asked { call: Call::Enqueue(message.call), bytes: message.bytes, delay: Some(text.to_owned()) };
        match (client.one(asked), units) {
            (Some(Ok(Answer::Enqueued { id, .. })), None) => {
                run.complain(format!("a delay of {text} was accepted as message {}", id.0));
                near.push(id);
            }
            (Some(Ok(Answer::Enqueued { id, .. })), Some(0 | 1)) => near.push(id),
            (Some(Ok(Answer::Enqueued { id, .. })), Some(_)) => far.push((text, id, ms)),
            (Some(Err(Refusal::Other(_))), None | Some(2..)) => refused.push(text),
            (other, _) => run.complain(format!("a delay of {text} came to {other:?}")),
        }
    }
    let deadline = Instant::now() + PATIENCE;
    let mut left = near.len();
    while left > 0 && Instant::now() < deadline {
        let grants = client.reserve(QUEUE, 1, 5, None);
        left = left.saturating_sub(client.ack_all(grants.iter().map(proof).collect()).len());
    }
    if left > 0 {
        return Err(format!("{left} of the messages of 0 and 1 are not delivered"));
    }
    let known: Vec<MsgId> = near.iter().copied().chain(far.iter().map(|f| f.1)).collect();
    let look = |after: &str, client: &mut Client<'_>| really_far(run, client, after, &far, &known, begun);
    look("at first", &mut client)?;
    host.kill()?;
    host.start()?;
    look("after a SIGKILL", &mut client)?;
    host.stop()?;
    host.start()?;
    look("after a SIGTERM", &mut client)?;
    host.run.dump(QUEUE, &known)?;
    drop(client);
    host.kill()?;
    let scheduled: Vec<&str> = far.iter().map(|f| f.0).collect();
    let figures = Figures::new(move |_| {
        format!("scheduled: {}; refused: {}", scheduled.join(", "), refused.join(", "))
    });
    Ok(Done { require: Vec::new(), figures })
}

/// Checks the state, the remaining time that the system reports, and a reserve.
fn really_far(
    run: &Run<'_>,
    client: &mut Client<'_>,
    after: &str,
    far: &[(&str, MsgId, u64)],
    known: &[MsgId],
    begun: Instant,
) -> Result<(), String> {
    for _ in 0..5 {
        for grant in client.reserve(QUEUE, 10, 5, None) {
            run.complain(format!("message {} was granted {after}", grant.id.0));
        }
    }
    let rows = client.peer()?.list(QUEUE, known)?;
    for (text, id, ms) in far {
        let state = rows.iter().find(|row| row.id == *id).map(|row| row.state);
        let left = client.peer()?.left_ms(QUEUE, *id)?;
        let gone = u64::try_from(begun.elapsed().as_millis()).unwrap_or(0) + run.system.unit_ms() + 50;
        // Numbers as large as the last ones may be rounded to 53 bits.
        let least = ms.saturating_sub(gone).saturating_sub(ms >> 50);
        if state != Some(State::Scheduled) || left.is_none_or(|left| left < least) {
            run.complain(format!("{after} a delay of {text} is {state:?} with {left:?} ms left"));
        }
    }
    Ok(())
}
