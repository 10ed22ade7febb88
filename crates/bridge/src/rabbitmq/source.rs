//! Messages of the bridge's queue.

use std::collections::BTreeMap;
use std::fmt;

use duewheel::core::engine::{Ask as _, Edit, Enqueue, IfExists, Op, Target};
use duewheel::core::name::Key;
use futures_util::{FutureExt, StreamExt};
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Confirmation, Connection, Consumer};

use super::connect::{ANSWER, RabbitConnector, confirming, short};
use super::delay;
use super::kept::{KEPT, KeptParts, for_delivery, without_routes};
use crate::seam::{ArrivalVerdict, BridgeArrival, Intent, SeamError, Source};

/// Messages that the broker delivers before they are confirmed.
const PREFETCH: u16 = 1_000;
/// The header of the key.
const X_KEY: &str = "x-duewheel-key";
/// The header of what a message does to the one that has the key: `cancel`, `replace`, `postpone`.
const X_ACTION: &str = "x-duewheel-action";
/// The header of why a message was put aside.
const X_REASON: &str = "x-duewheel-reason";

/// Messages of the bridge's queue, each acked once it is durable here.
pub struct RabbitSource {
    to: RabbitConnector,
    connection: Connection,
    channel: Channel,
    consumer: Consumer,
    /// Where messages are put aside.
    aside: Channel,
    /// Messages that are not confirmed, and whether the verdict is there.
    held: BTreeMap<u64, Delivery>,
}

impl fmt::Debug for RabbitSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitSource").field("to", &self.to).finish_non_exhaustive()
    }
}

impl RabbitSource {
    pub(super) async fn connect(to: &RabbitConnector) -> Result<Self, SeamError> {
        let connection = to.connect("in").await?;
        let aside = confirming(&connection).await?;
        let channel = connection.create_channel().await.map_err(|why| SeamError::of("channel", why))?;
        let limited = channel.basic_qos(PREFETCH, BasicQosOptions::default()).await;
        limited.map_err(|why| SeamError::of("prefetch", why))?;
        let source = to.settings.source();
        let consuming = channel.basic_consume(
            short(&source),
            short(&format!("duewheel.{}", to.settings.name)),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let consumer = consuming.await.map_err(|why| SeamError::of(&format!("queue {source:?}"), why))?;
        Ok(RabbitSource { to: to.clone(), connection, channel, consumer, aside, held: BTreeMap::new() })
    }

    fn hold(&mut self, delivery: Delivery) -> BridgeArrival {
        let arrival = BridgeArrival {
            mark: delivery.delivery_tag,
            intent: intent(&self.to, &delivery),
            is_redelivered: delivery.redelivered,
        };
        self.held.insert(delivery.delivery_tag, delivery);
        arrival
    }

    /// Puts a message into the queue of rejected ones, and waits until it is there.
    async fn put_aside(&self, delivery: &Delivery, why: &str) -> Result<(), SeamError> {
        let rejected = self.to.settings.rejected();
        // The broker would give it to the queues that it names as well.
        let mut headers = without_routes(&delivery.properties.headers().clone().unwrap_or_default(), false);
        headers.insert(X_REASON.into(), AMQPValue::LongString(why.into()));
        // It is to be read by people: it neither expires nor is lost with the broker.
        let properties = for_delivery(&delivery.properties, headers, false).with_delivery_mode(2);
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let failed = |why: lapin::Error| SeamError::of(&format!("queue {rejected:?}"), why);
        let publishing = async {
            let to = short(&rejected);
            self.aside.basic_publish("".into(), to, options, &delivery.data, properties).await?.await
        };
        match tokio::time::timeout(ANSWER, publishing).await {
            Ok(answer) => match answer.map_err(failed)? {
                Confirmation::Ack(None) => Ok(()),
                _ => Err(SeamError(format!("queue {rejected:?} does not take messages"))),
            },
            Err(_) => Err(SeamError(format!("queue {rejected:?} takes nothing for {ANSWER:?}"))),
        }
    }
}

/// The request of a message.
fn intent(to: &RabbitConnector, delivery: &Delivery) -> Result<Intent, String> {
    let none = FieldTable::default();
    let headers = delivery.properties.headers().as_ref().unwrap_or(&none);
    let when = delay::when(headers)?;
    let key = text(headers, X_KEY)?.map(|key| Key::new(key).map_err(|bad| format!("{X_KEY} {bad}")));
    let key = key.transpose()?;
    let action = text(headers, X_ACTION)?;
    let named = || match key.clone() {
        Some(key) => Ok(Target::Key(to.queue.clone(), key)),
        None => Err(format!("{X_ACTION} needs {X_KEY}")),
    };
    let if_exists = match action {
        None => IfExists::Reject,
        Some("replace") => named().map(|_| IfExists::Supersede)?,
        Some("cancel") => return Ok(Intent::Change(Op::cancel(named()?).into_op())),
        Some("postpone") => {
            let target = named()?;
            let when = when.ok_or(format!("postpone needs {} or {}", delay::X_DELAY, delay::X_AT))?;
            let edit = Box::new(Edit::due(when));
            return Ok(Intent::Change(Op::Postpone { target, edit, if_generation: None }));
        }
        Some(other) => return Err(format!("{X_ACTION} {other:?}: must be cancel, replace or postpone")),
    };
    let id = delivery.properties.message_id().as_ref().filter(|id| !id.as_str().is_empty());
    let dedupe_id = id.map(|id| format!("{}/{id}", delivery.exchange));
    if dedupe_id.as_ref().is_some_and(|id| id.len() > to.max_dedupe_id) {
        return Err(format!("exchange and message-id have more than {} bytes", to.max_dedupe_id));
    }
    let kept = KeptParts {
        exchange: delivery.exchange.clone(),
        routing_key: delivery.routing_key.clone(),
        properties: delivery.properties.clone(),
    };
    let mut enqueue = Enqueue::new(to.queue.clone(), delivery.data.clone());
    enqueue.headers = vec![(KEPT.into(), kept.text()?.into())];
    enqueue.key = key;
    enqueue.if_exists = if_exists;
    enqueue.dedupe_id = dedupe_id.map(Into::into);
    if let Some(when) = when {
        enqueue.when = when;
    }
    Ok(Intent::Enqueue(Box::new(enqueue)))
}

/// The text of a header.
fn text<'a>(headers: &'a FieldTable, name: &str) -> Result<Option<&'a str>, String> {
    match headers.inner().get(name) {
        None => Ok(None),
        Some(AMQPValue::LongString(text)) => {
            std::str::from_utf8(text.as_bytes()).map(Some).map_err(|_| format!("{name} is not UTF-8"))
        }
        Some(_) => Err(format!("{name} must be a text")),
    }
}

impl Source for RabbitSource {
    async fn pull(&mut self, max: usize) -> Result<Vec<BridgeArrival>, SeamError> {
        let mut arrivals = Vec::new();
        loop {
            let next = match arrivals.is_empty() {
                true => self.consumer.next().await,
                false => match self.consumer.next().now_or_never() {
                    Some(next) => next,
                    None => return Ok(arrivals),
                },
            };
            match next {
                Some(Ok(delivery)) => arrivals.push(self.hold(delivery)),
                Some(Err(why)) => return Err(SeamError::of("the broker", why)),
                None => return Err(SeamError("the broker has cancelled the consumer".to_owned())),
            }
            if arrivals.len() >= max {
                return Ok(arrivals);
            }
        }
    }

    async fn confirm(&mut self, verdicts: Vec<(u64, ArrivalVerdict)>) -> Result<(), SeamError> {
        let failed = |why| SeamError::of("ack", why);
        let mut done = Vec::with_capacity(verdicts.len());
        for (mark, verdict) in verdicts {
            if let (ArrivalVerdict::Refused(why), Some(delivery)) = (&verdict, self.held.get(&mark)) {
                tracing::warn!(bridge = self.to.settings.name, why, "a message is put aside");
                self.put_aside(delivery, why).await?;
            }
            done.push(mark);
        }
        let all: Vec<Delivery> = done.iter().filter_map(|mark| self.held.remove(mark)).collect();
        // One ack for all that come before the first that is held.
        let first_held = self.held.keys().next().copied().unwrap_or(u64::MAX);
        let together = all.iter().map(|delivery| delivery.delivery_tag).filter(|tag| *tag < first_held).max();
        if let Some(tag) = together {
            let options = BasicAckOptions { multiple: true };
            self.channel.basic_ack(tag, options).await.map_err(failed)?;
        }
        for delivery in all.iter().filter(|delivery| delivery.delivery_tag > first_held) {
            delivery.ack(BasicAckOptions::default()).await.map_err(failed)?;
        }
        // An ack goes into a buffer even when the connection or the channel is gone.
        match self.connection.status().connected() && self.channel.status().connected() {
            true => Ok(()),
            false => Err(SeamError("the channel is closed".to_owned())),
        }
    }
}
