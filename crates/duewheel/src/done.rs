//! Done messages of a queue: read and replayed for as long as the queue keeps them.

use duewheel_core::engine::{Enqueue, Op, Target, View, When};
use duewheel_core::id::MessageId;
use duewheel_core::message::{Expiry, Options, State};
use duewheel_core::name::{Key, QueueName};
use duewheel_core::time::WallMs;

use crate::Queue;
use crate::enqueue::{EnqueueError, Receipt};
use crate::queue::QueueError;

/// The header of a replayed message: the id of the message whose content it has.
const REPLAY_OF: &str = "duewheel-replay-of";

/// A new message of the queue `to` with the content of another one, due `delay_ms` after `now`, without a key: body,
/// headers, priority and options. A spread is left out, and an expiry at an instant that would be over: they were for
/// the due time that the other message had.
pub fn same_content(view: &View, to: QueueName, now: WallMs, delay_ms: u64) -> Enqueue {
    let message = &view.message;
    let due = now.0.saturating_add(delay_ms);
    let expiry = message.options.expiry.filter(|expiry| match expiry {
        Expiry::In(_) => true,
        Expiry::At(at) => at.0 >= due,
    });
    Enqueue {
        headers: message.headers.clone(),
        when: When::After(delay_ms),
        priority: Some(view.priority),
        options: Options { spread_ms: None, expiry, ..message.options.clone() },
        ..Enqueue::new(to, message.body.clone())
    }
}

/// A new message with the content of a done or dead one ([`same_content`]), due at `now`; `None` if that is neither. It
/// has no key but the one given, and the header `duewheel-replay-of`.
pub fn replay_of(view: &View, key: Option<Key>, now: WallMs) -> Option<Enqueue> {
    match view.state {
        State::Scheduled | State::Ready | State::Leased => return None,
        State::Dead | State::Done => {}
    }
    let mut again = same_content(view, view.message.queue.clone(), now, 0);
    again.key = key;
    again.headers.retain(|(name, _)| !name.eq_ignore_ascii_case(REPLAY_OF));
    again.headers.push((REPLAY_OF.into(), view.message.id.0.to_string().into()));
    Some(again)
}

impl Queue {
    /// The message with this key, or else the newest one that had it and has ended, if the queue keeps such messages
    /// ([`duewheel_core::policy::QueueSettings::keep_done_ms`]). The state of that one is [`State::Done`], and
    /// [`View::dead`] says how and when it ended.
    ///
    /// # Errors
    /// [`QueueError::Name`] if the queue or the key has no valid name; [`QueueError::Call`] without an answer.
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    pub async fn recall_key(&self, key: &str) -> Result<Option<View>, QueueError> {
        let target = Target::Key(self.name.clone()?, Key::new(key)?);
        Ok(self.wheel.client().ask(Op::recall(target)).await?.map(|view| *view))
    }

    /// Enqueues the content of a done or dead message of this queue again, as a new message that is due now. It has no
    /// key but the one given. `None` if the queue has no such message. When it returns, the new message is as durable as
    /// after an enqueue; each call makes another one.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
    /// use duewheel::{Duewheel, core::policy::QueueSettings, core::State};
    /// let wheel = Duewheel::builder().in_memory().open().await?;
    /// let queue = wheel.queue("invoices");
    /// queue.configure(QueueSettings { keep_done_ms: Some(86_400_000), ..QueueSettings::default() }).await?;
    /// let sent = queue.body("invoice 42").key("42").enqueue().await?;
    /// queue.cancel_key("42").await?;
    ///
    /// let was = queue.recall_key("42").await?.expect("it is kept for a day");
    /// assert_eq!((was.state, was.message.id), (State::Done, sent.id));
    /// let again = queue.replay(sent.id, Some("42")).await?.expect("it is done");
    /// assert_ne!(again.id, sent.id);
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`EnqueueError`], as for an enqueue.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message may be enqueued or not.
    pub async fn replay(&self, id: MessageId, key: Option<&str>) -> Result<Option<Receipt>, EnqueueError> {
        let queue = self.name.clone().map_err(EnqueueError::Queue)?;
        let key = key.map(Key::new).transpose().map_err(EnqueueError::Key)?;
        let client = self.wheel.client();
        let found = client.ask(Op::recall(Target::Id(id))).await?;
        let found = found.filter(|view| view.message.queue == queue);
        let now = client.now().wall;
        let Some(again) = found.and_then(|view| replay_of(&view, key, now)) else { return Ok(None) };
        client.ask(again).await?.map(Receipt::from).map(Some).map_err(EnqueueError::Refused)
    }
}
