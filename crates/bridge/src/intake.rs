//! Messages of the other side into the store: each is confirmed once its effect is durable.

use std::collections::HashSet;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use duewheel::core::engine::{ChangeRefusal, DedupeId, Enqueue, EnqueueRefusal, Op, Reply, Target};
use duewheel::core::policy::OWN_DEDUPE;
use duewheel::{CallError, Client, Outcome};
use duewheel_shard::random::doubled;
use sha2::{Digest as _, Sha256};
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
    /// Whether it may have been applied before: the other side delivers it again, or an answer was lost.
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
        let is_lost = answer.as_ref().is_err_and(|error| error.outcome() == Outcome::Unknown);
        let is_redelivered = is_redelivered || is_lost;
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
                    enqueue.dedupe_id = Some(id_of_content(enqueue));
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

/// The id of a message whose own id another content has: with this one it enters once as well.
fn id_of_content(enqueue: &Enqueue) -> Box<str> {
    let mut hash = Sha256::new();
    let headers = enqueue.headers.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]);
    let id = enqueue.dedupe_id.as_deref().unwrap_or_default();
    for part in [id.as_bytes(), &enqueue.body[..]].into_iter().chain(headers) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    format!("{OWN_DEDUPE}bridge/{}", STANDARD.encode(hash.finalize())).into()
}

/// Whether the message with this id is the one that is enqueued again.
async fn is_there(client: &Client, id: duewheel::MessageId, enqueue: &Enqueue) -> Result<bool, CallError> {
    let view = client.ask(Op::get(Target::Id(id))).await?;
    Ok(view.is_some_and(|view| view.message.body == enqueue.body && view.message.headers == enqueue.headers))
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use duewheel::core::name::{Key, QueueName};
    use duewheel::core::store::Level;
    use duewheel::{Duewheel, Policy, VirtualClock};
    use duewheel_shard::client::{LocalShard, Route};
    use duewheel_shard::inbox::{Inbox, Pending, WhenBusy};
    use duewheel_shard::listing::{ListRequest, Listing};
    use duewheel_shard::shared::DriverShared;
    use tokio::sync::oneshot;

    use super::*;

    /// A way to a wheel on which answers are lost: so many submissions.
    #[derive(Debug)]
    struct Lossy(Client, AtomicUsize);

    impl Route for Lossy {
        fn offer(&self, ops: Vec<Op>, patience: WhenBusy) -> Result<Pending, (CallError, Vec<Op>)> {
            let n = ops.len();
            let pending = self.0.offer(ops, patience)?;
            if self.1.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_err() {
                return Ok(pending);
            }
            let (to, answers) = oneshot::channel();
            tokio::spawn(async move {
                pending.await;
                drop(to.send(vec![Err(CallError::NO_ANSWER); n]));
            });
            Ok(Pending::new(answers, n))
        }

        fn shards(&self) -> u32 {
            1
        }

        fn waiting(&self) -> Option<u64> {
            None
        }

        fn bound_leases(&self) -> u64 {
            0
        }

        fn local_shards(&self) -> Vec<LocalShard> {
            Vec::new()
        }

        fn list(
            &self,
            _asked: ListRequest,
        ) -> Pin<Box<dyn Future<Output = Result<Listing, CallError>> + Send>> {
            Box::pin(async { Err(CallError::NO_ANSWER) })
        }

        fn end_waits(&self) {}
    }

    /// A source of these messages, which ends when they are confirmed.
    struct Few(Vec<BridgeArrival>, Verdicts);

    impl Source for &mut Few {
        async fn pull(&mut self, _max: usize) -> Result<Vec<BridgeArrival>, SeamError> {
            if self.0.is_empty() {
                return Err(SeamError("that is all".to_owned()));
            }
            Ok(std::mem::take(&mut self.0))
        }

        async fn confirm(&mut self, verdicts: Verdicts) -> Result<(), SeamError> {
            self.1.extend(verdicts);
            Ok(())
        }
    }

    /// Takes these messages; the first `lost` submissions have no answer. Returns the verdicts, and the messages then.
    async fn taken(arrivals: Vec<Enqueue>, lost: usize) -> (Vec<ArrivalVerdict>, usize) {
        let clock = VirtualClock::at_2026();
        let wheel = Duewheel::builder().in_memory().clock(clock.clone()).open().await.unwrap();
        let (inbox, shared) =
            (Arc::new(Inbox::new(&Policy::default())), DriverShared::new(Level::Memory, Arc::new(clock)));
        let route = Arc::new(Lossy(wheel.client().clone(), AtomicUsize::new(lost)));
        let client = Client::routed(inbox, Arc::new(shared), route, 0);
        let arrival = |(mark, enqueue)| {
            let intent = Ok(Intent::Enqueue(Box::new(enqueue)));
            BridgeArrival { mark, intent, is_redelivered: false }
        };
        let mut few = Few((0..).zip(arrivals).map(arrival).collect(), Vec::new());
        let (_keep, mut stop) = watch::channel(false);
        let ended = pump(&mut &mut few, &client, &Meter::default(), &mut stop).await;
        assert_eq!(ended, Err(SeamError("that is all".to_owned())));
        few.1.sort_by_key(|(mark, _)| *mark);
        let all = wheel.client().list(queue(), None, None, 100).await.unwrap().views;
        (few.1.into_iter().map(|(_, verdict)| verdict).collect(), all.len())
    }

    fn queue() -> QueueName {
        QueueName::new("shop-due").unwrap()
    }

    /// Story: a message whose answer was lost met its own key when it was tried again, and was put aside as one whose key
    /// is taken, although it was there.
    #[tokio::test]
    async fn lost_answer_puts_no_message_aside() {
        let keyed =
            |body: &str| Enqueue { key: Key::new("k").ok(), ..Enqueue::new(queue(), body.to_owned()) };
        assert_eq!(taken(vec![keyed("one")], 2).await, (vec![ArrivalVerdict::Taken], 1));
        let (verdicts, left) = taken(vec![keyed("one"), keyed("other")], 1).await;
        assert!(matches!(verdicts[..], [ArrivalVerdict::Taken, ArrivalVerdict::Refused(_)]), "{verdicts:?}");
        assert_eq!(left, 1);
    }

    /// Story: a message that had the id of an earlier one and another content was entered without any id, and once more for
    /// each answer that was lost.
    #[tokio::test]
    async fn other_content_of_one_id_enters_once() {
        let with_id = |body: &str| Enqueue {
            dedupe_id: Some("exchange/m1".into()),
            ..Enqueue::new(queue(), body.to_owned())
        };
        let arrivals = ["one", "two", "three", "two"].map(with_id);
        for lost in 0..6 {
            let taken = taken(arrivals.to_vec(), lost).await;
            assert_eq!(taken, (vec![ArrivalVerdict::Taken; 4], 3), "{lost} answers were lost");
        }
    }
}
