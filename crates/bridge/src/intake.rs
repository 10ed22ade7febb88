//! Messages of the other side into the store: each is confirmed once its effect is durable.

use std::collections::HashSet;
use std::time::Duration;

use duewheel::core::engine::{ChangeRefusal, DedupeId, Enqueue, EnqueueRefusal, Op, Reply, Target};
use duewheel::{CallError, Client};
use duewheel_shard::random::doubled;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::figures::Meter;
use crate::seam::{ArrivalVerdict, BridgeArrival, Intent, SeamError, Source};

/// Messages that are pulled at a time.
const PULLED: usize = 1_000;
/// Bytes of the operations of one submission.
const SUBMITTED_BYTES: usize = 4 * 1024 * 1024;
/// The pause after a refusal that passes; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long a change waits for the end of the lease of its message.
const LEASED: Duration = Duration::from_secs(10);

/// Takes what a source has until that or the store fails, or `stop` becomes true; a batch that has begun is finished.
pub(crate) async fn pump(
    source: &mut impl Source,
    client: &Client,
    meter: &Meter,
    stop: &mut watch::Receiver<bool>,
) -> Result<(), SeamError> {
    loop {
        let arrivals = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
            arrivals = source.pull(PULLED) => arrivals?,
        };
        let verdicts = take(client, arrivals, meter).await.map_err(|why| SeamError::of("the store", why))?;
        source.confirm(verdicts).await?;
    }
}

/// An arrival that has no verdict yet.
struct WaitingArrival {
    mark: u64,
    op: Op,
    is_redelivered: bool,
}

/// The treatment of an arrival after an answer.
enum JudgedArrival {
    Over(ArrivalVerdict),
    Again(Op),
}

/// Applies arrivals in their order, and waits until all of them are durable or refused. What the store refuses for now is
/// tried again, without end.
pub(crate) async fn take(
    client: &Client,
    arrivals: Vec<BridgeArrival>,
    meter: &Meter,
) -> Result<Vec<(u64, ArrivalVerdict)>, CallError> {
    let mut verdicts = Vec::with_capacity(arrivals.len());
    let mut run = Vec::new();
    let (mut keys, mut bytes) = (HashSet::new(), 0);
    for BridgeArrival { mark, intent, is_redelivered } in arrivals {
        let op = match intent {
            Ok(Intent::Enqueue(enqueue)) => Op::Enqueue(enqueue),
            Ok(Intent::Change(mut op)) => {
                // It may be applied already, and end a message that has come since: that one comes again as well, and must
                // not be taken for the one that has ended.
                if let Op::Cancel { dedupe_id, .. } = &mut op
                    && is_redelivered
                {
                    *dedupe_id = DedupeId::Freed;
                }
                op
            }
            Err(why) => {
                verdicts.push((mark, ArrivalVerdict::Refused(why)));
                continue;
            }
        };
        // Of one key the second operation begins when the first is over: the first may have to be tried again.
        let key = keyed(&op);
        let again = key.as_ref().is_some_and(|key| keys.contains(key));
        if again || bytes > SUBMITTED_BYTES {
            verdicts.append(&mut apply(client, std::mem::take(&mut run), meter).await?);
            keys.clear();
            bytes = 0;
        }
        bytes += op.weight();
        keys.extend(key);
        run.push(WaitingArrival { mark, op, is_redelivered });
    }
    verdicts.append(&mut apply(client, run, meter).await?);
    let refused = verdicts.iter().filter(|(_, verdict)| *verdict != ArrivalVerdict::Taken).count();
    Meter::add(&meter.rejected, refused);
    Ok(verdicts)
}

fn keyed(op: &Op) -> Option<(String, String)> {
    match op.names() {
        duewheel::core::engine::Named::Key(queue, key) => {
            Some((queue.as_str().to_owned(), key.as_str().to_owned()))
        }
        _ => None,
    }
}

async fn apply(
    client: &Client,
    mut waiting: Vec<WaitingArrival>,
    meter: &Meter,
) -> Result<Vec<(u64, ArrivalVerdict)>, CallError> {
    let mut verdicts = Vec::with_capacity(waiting.len());
    let leased_until = Instant::now() + LEASED;
    let mut failures = 0;
    while !waiting.is_empty() {
        let answers = match client.submit(waiting.iter().map(|one| one.op.clone()).collect()) {
            Ok(pending) => pending.await,
            Err(error) => vec![Err(error); waiting.len()],
        };
        // An answer that is missing is unknown.
        let answers = answers.into_iter().chain(std::iter::repeat_with(|| Err(CallError::NO_ANSWER)));
        let mut rest = Vec::new();
        for (one, answer) in waiting.into_iter().zip(answers) {
            let WaitingArrival { mark, op, is_redelivered } = one;
            match judge(client, op, answer, is_redelivered, leased_until, meter).await? {
                JudgedArrival::Over(verdict) => verdicts.push((mark, verdict)),
                JudgedArrival::Again(op) => rest.push(WaitingArrival { mark, op, is_redelivered }),
            }
        }
        waiting = rest;
        if !waiting.is_empty() {
            tokio::time::sleep(doubled(FIRST_PAUSE, LONGEST_PAUSE, failures)).await;
            failures = failures.saturating_add(1);
        }
    }
    Ok(verdicts)
}

async fn judge(
    client: &Client,
    mut op: Op,
    answer: Result<Reply, CallError>,
    is_redelivered: bool,
    leased_until: Instant,
    meter: &Meter,
) -> Result<JudgedArrival, CallError> {
    let over = |count, verdict| {
        Meter::add(count, 1);
        Ok(JudgedArrival::Over(verdict))
    };
    let refused =
        |why: &dyn std::fmt::Display| Ok(JudgedArrival::Over(ArrivalVerdict::Refused(why.to_string())));
    match answer {
        Ok(Reply::Enqueue(Ok(enqueued))) if enqueued.is_new() => over(&meter.taken, ArrivalVerdict::Taken),
        Ok(Reply::Enqueue(Ok(_))) => over(&meter.duplicates, ArrivalVerdict::Taken),
        Ok(Reply::Enqueue(Err(refusal))) => match refusal {
            EnqueueRefusal::Overloaded(_)
            | EnqueueRefusal::Busy
            | EnqueueRefusal::DiskFull
            | EnqueueRefusal::OverQuota(_)
            | EnqueueRefusal::Leased(_) => Ok(JudgedArrival::Again(op)),
            EnqueueRefusal::DedupeMismatch(id) => {
                tracing::warn!(%id, "a message has the id of an earlier one and another content; it is enqueued");
                Meter::add(&meter.duplicates, 1);
                if let Op::Enqueue(enqueue) = &mut op {
                    enqueue.dedupe_id = None;
                }
                Ok(JudgedArrival::Again(op))
            }
            EnqueueRefusal::KeyExists(holder) => match &op {
                Op::Enqueue(enqueue) if is_redelivered => match is_there(client, holder.id, enqueue).await {
                    Ok(true) => over(&meter.duplicates, ArrivalVerdict::Taken),
                    Ok(false) => refused(&EnqueueRefusal::KeyExists(holder)),
                    Err(error) if error.may_pass() => Ok(JudgedArrival::Again(op)),
                    Err(error) => Err(error),
                },
                _ => refused(&EnqueueRefusal::KeyExists(holder)),
            },
            other => refused(&other),
        },
        Ok(Reply::Change(Ok(_)) | Reply::Change(Err(ChangeRefusal::NotFound))) => {
            over(&meter.taken, ArrivalVerdict::Taken)
        }
        Ok(Reply::Change(Err(refusal))) => match refusal {
            ChangeRefusal::Overloaded(_)
            | ChangeRefusal::Busy
            | ChangeRefusal::DiskFull
            | ChangeRefusal::OverQuota(_) => Ok(JudgedArrival::Again(op)),
            ChangeRefusal::Leased if Instant::now() < leased_until => Ok(JudgedArrival::Again(op)),
            other => refused(&other),
        },
        Ok(_) => Err(CallError::Bug("the driver answered another operation")),
        Err(error) if error.may_pass() => Ok(JudgedArrival::Again(op)),
        Err(error) => Err(error),
    }
}

/// Whether the message with this id is the one that is enqueued again.
async fn is_there(client: &Client, id: duewheel::MessageId, enqueue: &Enqueue) -> Result<bool, CallError> {
    let view = client.ask(Op::get(Target::Id(id))).await?;
    Ok(view.is_some_and(|view| view.message.body == enqueue.body && view.message.headers == enqueue.headers))
}
