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

/// Takes what a source has until that or the store fails, or `stop` becomes true. A batch that has begun is finished, but
/// for what the store refuses for now: that waits, while the rest is confirmed, and stays with the source at a stop.
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
        let mut verdicts = Vec::with_capacity(arrivals.len());
        for mut waiting in runs(arrivals, &mut verdicts) {
            let leased_until = Instant::now() + LEASED;
            let mut failures = 0;
            while !waiting.is_empty() {
                let applied = apply(client, &mut waiting, &mut verdicts, leased_until, meter).await;
                if applied.is_ok() && waiting.is_empty() {
                    break;
                }
                // Also when there is none: the source tells whether it still has what waits.
                confirm(source, std::mem::take(&mut verdicts), meter).await?;
                applied.map_err(|why| SeamError::of("the store", why))?;
                let pause = doubled(FIRST_PAUSE, LONGEST_PAUSE, failures);
                failures = failures.saturating_add(1);
                tokio::select! {
                    biased;
                    _ = stop.wait_for(|stop| *stop) => return Ok(()),
                    () = tokio::time::sleep(pause) => {}
                }
            }
        }
        confirm(source, verdicts, meter).await?;
    }
}

type Verdicts = Vec<(u64, ArrivalVerdict)>;

async fn confirm(source: &mut impl Source, verdicts: Verdicts, meter: &Meter) -> Result<(), SeamError> {
    let refused = verdicts.iter().filter(|(_, verdict)| *verdict != ArrivalVerdict::Taken).count();
    Meter::add(&meter.rejected, refused);
    source.confirm(verdicts).await
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

/// The arrivals in their order, in runs of which each begins when the one before is over.
fn runs(arrivals: Vec<BridgeArrival>, verdicts: &mut Verdicts) -> Vec<Vec<WaitingArrival>> {
    let mut runs = Vec::new();
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
            runs.push(std::mem::take(&mut run));
            keys.clear();
            bytes = 0;
        }
        bytes += op.weight();
        keys.extend(key);
        run.push(WaitingArrival { mark, op, is_redelivered });
    }
    runs.push(run);
    runs
}

fn keyed(op: &Op) -> Option<(String, String)> {
    match op.names() {
        duewheel::core::engine::Named::Key(queue, key) => {
            Some((queue.as_str().to_owned(), key.as_str().to_owned()))
        }
        _ => None,
    }
}

/// Applies what waits, once. What the store refuses for now still waits then.
async fn apply(
    client: &Client,
    waiting: &mut Vec<WaitingArrival>,
    verdicts: &mut Verdicts,
    leased_until: Instant,
    meter: &Meter,
) -> Result<(), CallError> {
    let answers = match client.submit(waiting.iter().map(|one| one.op.clone()).collect()) {
        Ok(pending) => pending.await,
        Err(error) => vec![Err(error); waiting.len()],
    };
    // An answer that is missing is unknown.
    let answers = answers.into_iter().chain(std::iter::repeat_with(|| Err(CallError::NO_ANSWER)));
    let mut ended = Ok(());
    for (one, answer) in std::mem::take(waiting).into_iter().zip(answers) {
        let WaitingArrival { mark, op, is_redelivered } = one;
        match judge(client, op, answer, is_redelivered, leased_until, meter).await {
            Ok(JudgedArrival::Over(verdict)) => verdicts.push((mark, verdict)),
            Ok(JudgedArrival::Again(op)) => waiting.push(WaitingArrival { mark, op, is_redelivered }),
            Err(error) => ended = Err(error),
        }
    }
    ended
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
