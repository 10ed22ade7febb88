//! Due messages to the exchange that took the plugin's place.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future as _, poll_fn};
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::Poll;
use std::time::Instant;

use duewheel::core::engine::Grant;
use duewheel::core::message::MessageContent;
use lapin::message::BasicReturnMessage;
use lapin::options::BasicPublishOptions;
use lapin::types::AMQPValue;
use lapin::{BasicProperties, Channel, Confirmation, Connection, ErrorKind, PublisherConfirm};
use tokio::sync::mpsc::UnboundedSender;

use super::connect::{ANSWER, RabbitConnector, confirming, short};
use super::delay;
use super::kept::{KEPT, KeptParts, for_delivery, without_routes};
use crate::seam::{SeamError, SendFate, Sink};

/// The header of the id here.
const DUEWHEEL_ID: &str = "duewheel-id";
/// The header of the routing key of a message that did not come over the bridge.
const ROUTING_KEY: &str = "amqp-routing-key";
/// The codes with which the broker closes a channel over a message: it refuses its routing key, or what is in it.
const ACCESS_REFUSED: u16 = 403;
const PRECONDITION_FAILED: u16 = 406;

/// Due messages to the broker, each confirmed by it.
pub struct RabbitSink {
    to: RabbitConnector,
    connection: Connection,
    channel: Channel,
}

impl fmt::Debug for RabbitSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitSink").field("to", &self.to).finish_non_exhaustive()
    }
}

/// Messages of a batch that were published and are not confirmed. lapin gives a returned message to the confirm that ends
/// next, which may be another message's: the id in a header tells whose it is.
struct Unconfirmed {
    waiting: Vec<(usize, Pin<Box<PublisherConfirm>>)>,
    /// Messages that were returned, by id, and why.
    returned: HashMap<String, String>,
    /// Confirmed messages that were given the return of another one: their own may come with a later confirm.
    unsure: Vec<usize>,
}

impl RabbitSink {
    pub(super) async fn connect(to: &RabbitConnector) -> Result<Self, SeamError> {
        let connection = to.connect("out").await?;
        let channel = confirming(&connection).await?;
        Ok(RabbitSink { to: to.clone(), connection, channel })
    }

    async fn publish(&self, message: &MessageContent) -> lapin::Result<PublisherConfirm> {
        let (routing_key, properties) = outgoing(message);
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let exchange = short(&self.to.settings.due_exchange());
        let publishing =
            self.channel.basic_publish(exchange, short(&routing_key), options, &message.body, properties);
        let published = tokio::time::timeout(ANSWER, publishing).await;
        published.unwrap_or_else(|_| Err(late("takes no messages")))
    }

    /// Sends these messages of a batch, and reports each fate; `known` has the messages whose fate was reported.
    async fn send_some(
        &self,
        batch: &[Grant],
        some: Range<usize>,
        known: &mut [bool],
        heard: &UnboundedSender<(usize, SendFate)>,
    ) -> lapin::Result<()> {
        let mut waiting = Vec::with_capacity(some.len());
        for (index, grant) in batch.iter().enumerate().take(some.end).skip(some.start) {
            waiting.push((index, Box::pin(self.publish(&grant.message).await?)));
        }
        let mut unconfirmed = Unconfirmed { waiting, returned: HashMap::new(), unsure: Vec::new() };
        while !unconfirmed.waiting.is_empty() {
            let ended = tokio::time::timeout(ANSWER, unconfirmed.next()).await;
            let ended = ended.unwrap_or_else(|_| Err(late("confirms nothing")))?;
            for (index, fate) in unconfirmed.judge(batch, ended) {
                known[index] = true;
                // The caller hears nothing any more when it has given up the batch.
                drop(heard.send((index, fate)));
            }
        }
        Ok(())
    }

    /// Whether the broker has closed the channel alone, as it does over a message that it refuses.
    fn is_refused(&self) -> bool {
        self.connection.status().connected() && !self.channel.status().connected()
    }
}

fn late(what: &str) -> lapin::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("the broker {what} for {ANSWER:?}")).into()
}

/// The reason of a broker that has closed the channel over a message, and not over the exchange.
fn refusal(error: &lapin::Error) -> Option<String> {
    let ErrorKind::ProtocolError(why) = error.kind() else { return None };
    let text = why.get_message().as_str();
    let is_of_message = match why.get_id() {
        PRECONDITION_FAILED => true,
        ACCESS_REFUSED => text.contains("access to topic '"),
        _ => false,
    };
    is_of_message.then(|| text.to_owned())
}

/// Routing key and properties of a due message.
fn outgoing(message: &MessageContent) -> (String, BasicProperties) {
    let header = |wanted: &str| {
        let found = message.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
        found.map(|(_, value)| &**value)
    };
    let id = AMQPValue::LongString(message.id.to_string().into());
    if let Some(kept) = header(KEPT).and_then(KeptParts::read) {
        let mut headers = without_routes(&kept.properties.headers().clone().unwrap_or_default(), true);
        if let Some(negated) = delay::negated(&headers) {
            headers.insert(delay::X_DELAY.into(), negated);
        }
        headers.insert(DUEWHEEL_ID.into(), id);
        return (kept.routing_key.as_str().to_owned(), for_delivery(&kept.properties, headers, true));
    }
    let mut headers = lapin::types::FieldTable::default();
    for (name, value) in &message.headers {
        headers.insert(short(name), AMQPValue::LongString((&**value).into()));
    }
    let mut headers = without_routes(&headers, true);
    headers.insert(DUEWHEEL_ID.into(), id);
    let mut properties = BasicProperties::default().with_headers(headers).with_delivery_mode(2);
    if let Some(kind) = header("content-type") {
        properties = properties.with_content_type(short(kind));
    }
    (header(ROUTING_KEY).unwrap_or(message.queue.as_str()).to_owned(), properties)
}

impl Unconfirmed {
    /// Waits for confirms, and takes all that have come.
    async fn next(&mut self) -> Result<Vec<(usize, Confirmation)>, lapin::Error> {
        let mut ended = Vec::new();
        poll_fn(|context| {
            // Twice: a confirm that ended before the last one that is seen must be seen as well.
            for _ in 0..2 {
                let mut n = 0;
                while let Some((index, confirm)) = self.waiting.get_mut(n) {
                    match confirm.as_mut().poll(context) {
                        Poll::Pending => n += 1,
                        Poll::Ready(Ok(confirmation)) => {
                            ended.push((*index, confirmation));
                            self.waiting.swap_remove(n);
                        }
                        Poll::Ready(Err(why)) => return Poll::Ready(Err(why)),
                    }
                }
            }
            match ended.is_empty() && !self.waiting.is_empty() {
                true => Poll::Pending,
                false => Poll::Ready(Ok(std::mem::take(&mut ended))),
            }
        })
        .await
    }

    /// The fates that are certain after these confirms.
    fn judge(&mut self, batch: &[Grant], ended: Vec<(usize, Confirmation)>) -> Vec<(usize, SendFate)> {
        let mut fates = Vec::with_capacity(ended.len());
        let mut clean = Vec::with_capacity(ended.len());
        for (index, confirmation) in ended {
            let nacked = confirmation.is_nack();
            let carried = confirmation.take_message();
            let is_clean = carried.is_none();
            if let Some(message) = carried {
                let (id, why) = whose(&message);
                self.returned.insert(id, why);
            }
            match (nacked, is_clean) {
                (true, _) => {
                    fates.push((index, SendFate::NotNow("the broker has refused it for now".into())))
                }
                (false, true) => clean.push(index),
                (false, false) => self.unsure.push(index),
            }
        }
        let over = self.waiting.is_empty();
        let returned = &mut self.returned;
        let mut fate = |index: usize| {
            let id = batch.get(index).map(|grant| grant.message.id.to_string())?;
            returned.remove(&id).map(SendFate::Unroutable)
        };
        fates.extend(clean.into_iter().map(|index| (index, fate(index).unwrap_or(SendFate::Sent))));
        self.unsure.retain(|index| match (fate(*index), over) {
            (Some(unroutable), _) => {
                fates.push((*index, unroutable));
                false
            }
            (None, true) => {
                fates.push((*index, SendFate::Sent));
                false
            }
            (None, false) => true,
        });
        fates
    }
}

/// The id here of a returned message, and why it was returned.
fn whose(message: &BasicReturnMessage) -> (String, String) {
    let headers = message.delivery.properties.headers().as_ref();
    let id = headers.and_then(|headers| headers.inner().get(DUEWHEEL_ID));
    let id = match id {
        Some(AMQPValue::LongString(id)) => id.to_string(),
        _ => String::new(),
    };
    (id, format!("{} for routing key {:?}", message.reply_text, message.delivery.routing_key.as_str()))
}

impl Sink for RabbitSink {
    async fn send(
        &mut self,
        batch: &[Grant],
        heard: &UnboundedSender<(usize, SendFate)>,
    ) -> Result<(), SeamError> {
        let exchange = format!("exchange {:?}", self.to.settings.due_exchange());
        let failed = |why| SeamError::of(&exchange, why);
        let mut known = vec![false; batch.len()];
        let Err(why) = self.send_some(batch, 0..batch.len(), &mut known, heard).await else { return Ok(()) };
        if !self.is_refused() {
            return Err(failed(why));
        }
        // Which message it was shows when they are sent one by one.
        let begun = Instant::now();
        for index in 0..batch.len() {
            if known[index] {
                continue;
            }
            if begun.elapsed() > ANSWER {
                return Err(failed(why));
            }
            if self.is_refused() {
                let opened = tokio::time::timeout(ANSWER, confirming(&self.connection)).await;
                self.channel = opened.unwrap_or_else(|_| Err(failed(late("opens no channel"))))?;
            }
            if let Err(why) = self.send_some(batch, index..index + 1, &mut known, heard).await {
                let refused = refusal(&why).ok_or_else(|| failed(why))?;
                drop(heard.send((index, SendFate::Unroutable(refused))));
            }
        }
        Ok(())
    }
}
