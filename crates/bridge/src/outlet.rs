//! Due messages to the other side: each is acked here once the other side has confirmed it.

use std::time::Duration;

use duewheel::core::MessageId;
use duewheel::core::engine::{Attempt, Grant, Op, Reserve, Reserved, SettleRefusal, Settled};
use duewheel::core::id::{LeaseToken, SessionId};
use duewheel::core::message::MaxAttempts;
use duewheel::core::name::QueueName;
use duewheel::{Applied, CallError, Client};
use duewheel_shard::random::doubled;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;

use crate::figures::Meter;
use crate::seam::{SeamError, SendFate, Sink};

/// Messages that are under way at a time.
const SENT_TOGETHER: usize = 500;
/// Bytes of their bodies and headers; the first message always fits.
const SENT_BYTES: usize = 16 * 1024 * 1024;
/// Length of a lease. Sinks give up a batch whose answers do not come long before.
const LEASE_MS: u64 = 120_000;
/// How long a reserve waits; it only limits how often an idle loop repeats.
const WAIT_MS: u64 = 30_000;
/// The pause after a reserve that was refused.
const PAUSE: Duration = Duration::from_millis(200);
/// When a message comes again that the other side does not take at present.
const NOT_NOW_MS: u64 = 1_000;
/// The pause after messages could not be settled; it doubles.
const FIRST_SETTLE_PAUSE: Duration = Duration::from_millis(20);
/// The longest such pause.
const LONGEST_SETTLE_PAUSE: Duration = Duration::from_secs(1);
/// How often settling is tried; then the lease runs out, and the message is sent again.
const SETTLE_TRIES: u32 = 60;

/// A message that an outlet sends.
#[derive(Clone, Debug)]
pub(crate) struct OutletPlan {
    pub(crate) client: Client,
    pub(crate) queue: QueueName,
    /// Attempts after which a message is dead that has no place on the other side.
    pub(crate) max_attempts: MaxAttempts,
    /// The session of the leases; the caller closes it.
    pub(crate) session: SessionId,
}

/// Sends due messages until the sink or the store fails, or `stop` becomes true; a batch that has begun is finished.
pub(crate) async fn pump(
    sink: &mut impl Sink,
    plan: &OutletPlan,
    meter: &Meter,
    stop: &mut watch::Receiver<bool>,
) -> Result<(), SeamError> {
    loop {
        let demand = Reserve {
            max: SENT_TOGETHER,
            max_bytes: SENT_BYTES,
            wait_ms: WAIT_MS,
            lease_ms: Some(LEASE_MS),
            session: plan.session,
            // Not with `max_attempts`: a crash would make messages dead whose fate is unknown.
            ..Reserve::new(plan.queue.clone())
        };
        let reserved = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
            reserved = plan.client.reserve(demand) => reserved,
        };
        match reserved {
            Ok(Reserved::Grants(grants)) if grants.is_empty() => {}
            Ok(Reserved::Grants(grants)) => send(sink, plan, &grants, meter).await?,
            Ok(_) => tokio::time::sleep(PAUSE).await,
            Err(error) if error.may_pass() => tokio::time::sleep(PAUSE).await,
            Err(error) => return Err(SeamError::of("the store", error)),
        }
    }
}

/// Sends a batch, and settles each message as its fate is known. Messages of unknown fate are ready at once, and have
/// used up no attempt.
async fn send(
    sink: &mut impl Sink,
    plan: &OutletPlan,
    grants: &[Grant],
    meter: &Meter,
) -> Result<(), SeamError> {
    let (heard, fates) = unbounded_channel();
    let sending = async {
        let sent = sink.send(grants, &heard).await;
        drop(heard);
        sent
    };
    let (sent, known) = tokio::join!(sending, settle_all(plan, grants, fates, meter));
    let unknown: Vec<(MessageId, LeaseToken)> = grants
        .iter()
        .zip(&known)
        .filter(|(_, known)| !**known)
        .map(|(grant, _)| (grant.message.id, grant.token))
        .collect();
    if !unknown.is_empty() {
        drop(plan.client.ask(Op::undelivered(unknown.clone())).await);
    }
    sent?;
    match unknown.len() {
        0 => Ok(()),
        n => Err(SeamError(format!("a bug: nothing was heard of {n} messages"))),
    }
}

/// Settles messages as their fates come. Returns of which messages that was so.
async fn settle_all(
    plan: &OutletPlan,
    grants: &[Grant],
    mut fates: UnboundedReceiver<(usize, SendFate)>,
    meter: &Meter,
) -> Vec<bool> {
    let mut known = vec![false; grants.len()];
    let mut some = Vec::new();
    while fates.recv_many(&mut some, SENT_TOGETHER).await > 0 {
        let settled: Vec<(&Grant, SendFate)> = some
            .drain(..)
            .filter_map(|(n, fate)| {
                Some((grants.get(n)?, {
                    known[n] = true;
                    fate
                }))
            })
            .collect();
        settle(plan, settled, meter).await;
    }
    known
}

type OutletAnswer = Result<Result<Applied<Settled>, SettleRefusal>, CallError>;

async fn settle(plan: &OutletPlan, mut fates: Vec<(&Grant, SendFate)>, meter: &Meter) {
    let sent = fates.iter().filter(|(_, fate)| *fate == SendFate::Sent).count();
    Meter::add(&meter.sent, sent);
    for tries in 0..SETTLE_TRIES {
        let ops = fates.iter().map(|(grant, fate)| {
            let (id, token) = (grant.message.id, grant.token);
            match fate {
                SendFate::Sent => Op::ack(id, token),
                SendFate::Unroutable(why) => {
                    let note = format!("unroutable: {why}");
                    Op::nack(id, token, Attempt::FailedOf(plan.max_attempts), None, &note)
                }
                SendFate::NotNow(why) => Op::nack(id, token, Attempt::NotYet, Some(NOT_NOW_MS), why),
            }
        });
        let answers = match plan.client.ask_many(ops.collect()).await {
            Ok(answers) => answers,
            Err(error) => vec![Err(error); fates.len()],
        };
        let mut answers = answers.into_iter();
        fates.retain(|(grant, _)| may_pass(grant, answers.next()));
        if fates.is_empty() {
            return;
        }
        tokio::time::sleep(doubled(FIRST_SETTLE_PAUSE, LONGEST_SETTLE_PAUSE, tries)).await;
    }
    tracing::warn!(messages = fates.len(), "messages could not be settled, and are sent again");
}

/// Whether settling a message is to be tried again.
fn may_pass(grant: &Grant, answer: Option<OutletAnswer>) -> bool {
    match answer {
        Some(Ok(Ok(_))) => false,
        Some(Ok(Err(_))) => {
            tracing::warn!(id = %grant.message.id, "settled too late: the lease was lost");
            false
        }
        Some(Err(error)) => error.may_pass(),
        None => true,
    }
}
