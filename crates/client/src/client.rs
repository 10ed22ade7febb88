//! The client.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::batch;
use crate::call::{ApiAnswer, ApiCall, ApiStream, in_time, no_json, segment};
use crate::error::Error;
use crate::outgoing::{BatchItem, OutgoingMessage};
use crate::random;
use crate::retry::Attempts;
use crate::transport::{HttpTransport, Options};
use crate::types::{
    Accepted, CancelledMessage, Each, LeasedMessage, LeasedMessages, MessagePage, MessageRef, MessageView,
    Nack, NewMessage, Postponement, QueueOverview, Reserving, SettledMessage, millis,
};

/// The shortest time limit of an extend.
const EXTEND: Duration = Duration::from_secs(2);

/// A client of one server, for a runtime of tokio. Clones share its connections.
///
/// Each call is sent again for [`Options::retry_for`] after a lost connection, a 429 or a 503, when the server says so,
/// and ends with this time, unless its first attempt may take longer.
/// An enqueue is sent again under one `dedupe_id`, so that a lost answer never makes a second message. Acks, nacks and
/// extends are sent again until they are answered. All methods fail with an [`Error`] by its code.
///
/// A future that is dropped ends its call; as after a lost answer, the call may have been applied.
///
/// ```no_run
/// use std::time::Duration;
/// use duewheel_client::{DuewheelClient, MessageRef, NewMessage, Options};
///
/// # async fn order() -> Result<(), duewheel_client::Error> {
/// let wheel = DuewheelClient::new("http://localhost:7788", Options::default())?;
/// let close = NewMessage::default().body("order 42").delay(Duration::from_secs(48 * 3600)).key("order-42");
/// wheel.enqueue("close-review", close).await?;
/// wheel.cancel(&MessageRef::key("close-review", "order-42")).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct DuewheelClient(Arc<HttpTransport>);

/// The fields of a settle.
#[derive(Serialize)]
struct SettleFields<'a, M> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    lease_token: &'a str,
    #[serde(flatten)]
    more: M,
}

fn queue_path(queue: &str, rest: &str) -> String {
    format!("/v1/queues/{}{rest}", segment(queue))
}

/// The length of an extended lease: without one of the caller's that of the grant. `None`: neither is known.
fn extension(lease: Option<Duration>, message: &LeasedMessage) -> Option<Duration> {
    lease.or((message.lease_ms > 0).then(|| Duration::from_millis(message.lease_ms)))
}

/// The time of an attempt to extend a lease.
fn part_of(lease: Option<Duration>, message: &LeasedMessage) -> Duration {
    (extension(lease, message).unwrap_or_default() / 6).max(EXTEND)
}

fn lease_fields(lease: Option<Duration>, message: &LeasedMessage) -> Reserving {
    extension(lease, message).map_or_else(Reserving::default, |lease| Reserving::default().lease(lease))
}

impl DuewheelClient {
    /// A client; nothing is sent yet. A path in the address goes before that of every call.
    ///
    /// # Errors
    /// The address is none, or its certificates cannot be used.
    pub fn new(address: &str, options: Options) -> Result<DuewheelClient, Error> {
        Ok(DuewheelClient(Arc::new(HttpTransport::new(address, options)?)))
    }

    /// The answer to one attempt, whatever its status.
    ///
    /// # Errors
    /// There is none.
    pub async fn send(&self, call: &ApiCall) -> Result<ApiAnswer, Error> {
        self.0.send(call, None).await
    }

    /// The answer to one attempt, whatever its status, as its body comes.
    ///
    /// # Errors
    /// There is none.
    pub async fn open(&self, call: &ApiCall) -> Result<ApiStream, Error> {
        self.0.open(call).await
    }

    /// The whole answer to a stream that was opened, such as a refusal.
    pub async fn collect(&self, stream: ApiStream) -> ApiAnswer {
        stream.collect(in_time(self.0.options.timeout)).await
    }

    /// The JSON that any call is answered with. It is sent again like all others; a `POST` only while no attempt can
    /// have been applied, unless it is [`repeatable`](ApiCall::repeatable).
    ///
    /// # Errors
    /// [`Error`], by its code.
    pub async fn call<T: DeserializeOwned>(&self, call: ApiCall) -> Result<T, Error> {
        let mut attempts = Attempts::new(&call, &self.0);
        loop {
            match self.0.send(&call, attempts.ends()).await.and_then(|answer| answer.json()) {
                Ok(read) => return Ok(read),
                Err(error) => tokio::time::sleep(attempts.after(error)?).await,
            }
        }
    }

    /// Enqueues a message. It is durable when this returns.
    ///
    /// # Errors
    /// [`Error`], by its code.
    pub async fn enqueue(&self, queue: &str, message: NewMessage) -> Result<Accepted, Error> {
        let mut outgoing = OutgoingMessage::new(message, &self.0.options)?;
        loop {
            let call = ApiCall::post(queue_path(queue, "/messages")).json(&outgoing.message)?.repeatable();
            match self.call(call).await {
                Err(error) if outgoing.has_lost_window(&error) => {}
                answered => return answered,
            }
        }
    }

    /// Enqueues messages in order, and not as one transaction: a result for each. The error of the whole call is
    /// returned only if none was accepted.
    ///
    /// # Errors
    /// [`Error`], by its code.
    pub async fn enqueue_many(
        &self,
        queue: &str,
        messages: Vec<NewMessage>,
    ) -> Result<Each<Accepted>, Error> {
        let item = |message| {
            let outgoing = OutgoingMessage::new(message, &self.0.options)?;
            Ok(BatchItem::Message(Box::new(outgoing)))
        };
        let call = ApiCall::post(queue_path(queue, "/messages")).repeatable();
        batch::run(&self.0, call, None, messages.into_iter().map(item).collect()).await
    }

    /// The present state of a message; `message_not_found` if it was delivered, cancelled, or never there.
    ///
    /// # Errors
    /// [`Error`], by its code.
    pub async fn get(&self, message: &MessageRef) -> Result<MessageView, Error> {
        self.call(ApiCall::get(&message.0)).await
    }

    /// Cancels a message: `leased` if it is too late, `message_not_found` if nothing is pending. If the error
    /// [`may_be_applied`](Error::may_be_applied), an earlier attempt of this call may have cancelled it. By its key an
    /// attempt that is repeated after a lost answer may meet a message that has taken the key since; an id never does.
    ///
    /// # Errors
    /// [`Error`], by its code.
    pub async fn cancel(&self, message: &MessageRef) -> Result<CancelledMessage, Error> {
        self.call(ApiCall::new(Method::DELETE, &message.0)).await
    }

    /// Cancels a message, and makes its `dedupe_id` free again.
    ///
    /// # Errors
    /// [`Error`], by its code.
    pub async fn cancel_and_forget(&self, message: &MessageRef) -> Result<CancelledMessage, Error> {
        self.call(ApiCall::new(Method::DELETE, &message.0).json(&json!({"forget_dedupe": true}))?).await
    }

    /// Cancels messages of a queue by their keys: a result for each.
    ///
    /// # Errors
    /// [`Error`], by its code.
    pub async fn cancel_many(&self, queue: &str, keys: &[&str]) -> Result<Each<CancelledMessage>, Error> {
        let keys = keys.iter().map(|key| Ok(BatchItem::Other(Value::from(*key)))).collect();
        batch::run(&self.0, ApiCall::post(queue_path(queue, "/cancel")).repeatable(), Some("keys"), keys)
            .await
    }

    /// Changes due time, content or settings of a scheduled or ready message.
    ///
    /// # Errors
    /// [`Error`], by its code.
    pub async fn postpone(&self, message: &MessageRef, change: &Postponement) -> Result<MessageView, Error> {
        self.call(ApiCall::new(Method::PATCH, &message.0).json(change)?).await
    }

    /// Makes a message due now.
    ///
    /// # Errors
    /// [`Error`], by its code.
    pub async fn fire(&self, message: &MessageRef) -> Result<MessageView, Error> {
        self.call(ApiCall::post(format!("{}/fire", message.0)).repeatable()).await
    }

    /// Makes a new message, due now, with the content of a done or dead one.
    ///
    /// # Errors
    /// [`Error`], by its code.
    pub async fn replay(&self, id: &str, key: Option<&str>) -> Result<Accepted, Error> {
        let mut fields = json!({"dedupe_id": random::id()});
        if let Some(key) = key {
            fields["key"] = key.into();
        }
        let call = ApiCall::post(format!("{}/replay", MessageRef::id(id).0)).json(&fields)?;
        self.call(call.repeatable()).await
    }

    /// Leases messages of one or more queues, the best ones first; none if none came while it waited. A message that is
    /// granted while this is dropped comes again when its lease is over.
    ///
    /// # Errors
    /// [`Error`], by its code.
    pub async fn reserve(&self, queues: &[&str], how: &Reserving) -> Result<LeasedMessages, Error> {
        let mut body = serde_json::to_value(how).map_err(no_json)?;
        body["queues"] = queues.iter().map(|queue| json!({"queue": queue})).collect();
        let wait = Duration::from_millis(how.wait_ms.unwrap_or(0));
        self.call(ApiCall::post("/v1/reserve").json(&body)?.waiting(wait).repeatable()).await
    }

    async fn settle(
        &self,
        verb: &str,
        message: &LeasedMessage,
        more: impl Serialize,
        within: Option<Duration>,
    ) -> Result<SettledMessage, Error> {
        let fields = SettleFields { id: None, lease_token: &message.lease_token, more };
        let path = format!("{}/{verb}", MessageRef::id(&message.id).0);
        let call = ApiCall::post(path).json(&fields)?.endless();
        self.call(within.map_or(call.clone(), |time| call.often(time))).await
    }

    /// The message is done, and `result`, at most 16 KiB of JSON, is kept with it if its queue keeps done messages;
    /// `lease_lost` if another consumer has it, or had it.
    ///
    /// # Errors
    /// [`Error`], by its code.
    pub async fn ack(
        &self,
        message: &LeasedMessage,
        result: Option<&Value>,
    ) -> Result<SettledMessage, Error> {
        self.settle("ack", message, result.map(|result| json!({"result": result})), None).await
    }

    /// The message is not done.
    ///
    /// # Errors
    /// [`Error`], by its code.
    pub async fn nack(&self, message: &LeasedMessage, nack: &Nack) -> Result<SettledMessage, Error> {
        self.settle("nack", message, nack, None).await
    }

    /// Keeps the lease for so long from now, or for as long as it was granted; if the message has no `lease_ms`, for as
    /// long as message and queue say now, and never shorter than it is. Attempts and pauses take a sixth of it, or 2 s: a
    /// dead connection must not outlast the lease, nor does a time that the server has named.
    ///
    /// # Errors
    /// [`Error`], by its code.
    pub async fn extend(
        &self,
        message: &LeasedMessage,
        lease: Option<Duration>,
    ) -> Result<SettledMessage, Error> {
        self.settle("extend", message, lease_fields(lease, message), Some(part_of(lease, message))).await
    }

    async fn settle_many<M: Serialize>(
        &self,
        verb: &str,
        messages: &[LeasedMessage],
        more: impl Fn(usize) -> M,
        within: Option<Duration>,
    ) -> Result<Each<SettledMessage>, Error> {
        let items = messages.iter().enumerate().map(|(i, message)| {
            let (id, lease_token) = (Some(message.id.as_str()), message.lease_token.as_str());
            let fields = serde_json::to_value(SettleFields { id, lease_token, more: more(i) });
            fields.map(BatchItem::Other).map_err(no_json)
        });
        let call = ApiCall::post(format!("/v1/{verb}")).endless();
        let call = within.map_or(call.clone(), |time| call.often(time));
        batch::run(&self.0, call, Some("messages"), items.collect()).await
    }

    /// Acks messages, each with the result at its place, as [`DuewheelClient::ack`] does; `results` may be shorter. A
    /// result that is too large fails the ack of its own message alone.
    ///
    /// # Errors
    /// [`Error`], by its code.
    pub async fn ack_many(
        &self,
        messages: &[LeasedMessage],
        results: &[Option<Value>],
    ) -> Result<Each<SettledMessage>, Error> {
        let result = |i: usize| match results.get(i) {
            Some(Some(result)) => json!({"result": result}),
            _ => json!({}),
        };
        self.settle_many("ack", messages, result, None).await
    }

    /// Nacks messages: a result for each.
    ///
    /// # Errors
    /// [`Error`], by its code.
    pub async fn nack_many(
        &self,
        messages: &[LeasedMessage],
        nack: &Nack,
    ) -> Result<Each<SettledMessage>, Error> {
        self.settle_many("nack", messages, |_| nack, None).await
    }

    /// Extends leases, each as [`DuewheelClient::extend`] does: a result for each.
    ///
    /// # Errors
    /// [`Error`], by its code.
    pub async fn extend_many(
        &self,
        messages: &[LeasedMessage],
        lease: Option<Duration>,
    ) -> Result<Each<SettledMessage>, Error> {
        let within = messages.iter().map(|message| part_of(lease, message)).min();
        self.settle_many("extend", messages, |i| lease_fields(lease, &messages[i]), within).await
    }

    /// A part of the messages of a queue, in due order, behind an earlier part's `next`. `filter` has names and values
    /// as HTTP has them, such as `("state", "dead")`.
    ///
    /// # Errors
    /// [`Error`], by its code.
    pub async fn list(
        &self,
        queue: &str,
        limit: usize,
        after: Option<&str>,
        filter: &[(&str, &str)],
    ) -> Result<MessagePage, Error> {
        let mut path = queue_path(queue, &format!("/messages?limit={limit}"));
        for (name, value) in filter.iter().copied().chain(after.map(|after| ("after", after))) {
            path += &format!("&{}={}", segment(name), segment(value));
        }
        self.call(ApiCall::get(path)).await
    }

    /// Counts and settings of a queue.
    ///
    /// # Errors
    /// [`Error`], by its code.
    pub async fn queue(&self, queue: &str) -> Result<QueueOverview, Error> {
        self.call(ApiCall::get(queue_path(queue, ""))).await
    }

    /// Changes the settings of a queue that are named, as HTTP names them: `{"lease_ms": 60000}`. The scope is `admin`.
    ///
    /// # Errors
    /// [`Error`], by its code.
    pub async fn configure(&self, queue: &str, settings: &Value) -> Result<Value, Error> {
        self.call(ApiCall::new(Method::PATCH, queue_path(queue, "/config")).json(settings)?).await
    }

    /// Makes dead messages ready again: those with these ids, or all; gives their number. The scope is `admin`.
    ///
    /// # Errors
    /// [`Error`], by its code.
    pub async fn redrive(&self, queue: &str, ids: Option<&[&str]>) -> Result<u64, Error> {
        let body = ids.map_or_else(|| json!({}), |ids| json!({"ids": ids}));
        let answer: Value =
            self.call(ApiCall::post(queue_path(queue, "/redrive")).json(&body)?.repeatable()).await?;
        Ok(answer["redriven"].as_u64().unwrap_or(0))
    }

    /// Lets time pass on a server with `--virtual-clock`, for tests. It is not sent again after a lost answer: time
    /// would pass twice.
    ///
    /// # Errors
    /// [`Error`], by its code.
    pub async fn advance(&self, by: Duration) -> Result<Value, Error> {
        let call = ApiCall::post("/v1/clock/advance").json(&json!({"by_ms": millis(by)}))?;
        self.call(call).await
    }
}
