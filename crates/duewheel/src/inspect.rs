//! What is in a queue: looking at messages, listing them, and enqueuing their content again.

use duewheel_core::engine::{Enqueue, Op, QueueView, Target, View, When};
use duewheel_core::id::MessageId;
use duewheel_core::message::{Expiry, Options, State};
use duewheel_core::name::{Key, QueueName};
use duewheel_core::time::WallMs;
use duewheel_shard::listing::ListPositions;

use crate::enqueue::{EnqueueError, Receipt};
use crate::queue::{Queue, QueueError};

impl Queue {
    /// The message with this key, if there is one.
    ///
    /// # Errors
    /// [`QueueError::Name`] if the queue or the key has no valid name;
    /// [`QueueError::Call`] without an answer.
    pub async fn get_key(&self, key: &str) -> Result<Option<View>, QueueError> {
        let target = self.target(key)?;
        Ok(self.wheel.client().ask(Op::get(target)).await?.map(|view| *view))
    }

    /// The message with this id, if there is one.
    ///
    /// # Errors
    /// [`QueueError::Call`] without an answer.
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    pub async fn get_id(&self, id: MessageId) -> Result<Option<View>, QueueError> {
        Ok(self.wheel.client().ask(Op::get(Target::Id(id))).await?.map(|view| *view))
    }

    /// The messages of the queue, or those in one state, page by page, in due order. A message that does not change
    /// between two pages is listed once.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
    /// # let wheel = duewheel::Duewheel::builder().in_memory().open().await?;
    /// use duewheel::{HOUR, MessageState};
    ///
    /// wheel.queue("sms").body("hello").delay(HOUR).enqueue().await?;
    /// let mut pages = wheel.queue("sms").list(Some(MessageState::Scheduled));
    /// let page = pages.next(100).await?;
    /// assert_eq!(page[0].message.body.as_ref(), b"hello");
    /// assert!(pages.next(100).await?.is_empty(), "that was all");
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn list(&self, state: Option<State>) -> MessagePages {
        MessagePages { queue: self.clone(), state, at: PagePosition::Behind(None) }
    }

    /// The dead messages of the queue, page by page, in the order in which they died. Their `dead` has the reason, their
    /// `history` the last attempts.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
    /// # let wheel = duewheel::Duewheel::builder().in_memory().open().await?;
    /// # let queue = wheel.queue("sms");
    /// # queue.body("hello").enqueue().await?;
    /// # let message = queue.reserve(1, duewheel::SECOND).await?.remove(0);
    /// # queue.dead_letter(&message, "no such number").await?;
    /// for letter in queue.dead().next(100).await? {
    ///     println!("{} died at its attempt {}", letter.message.id, letter.attempt);
    /// }
    /// assert_eq!(queue.redrive(100).await?, 1); // all of them, after the handler was mended
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn dead(&self) -> MessagePages {
        self.list(Some(State::Dead))
    }

    /// The state of the queue; `None` when it has no messages, consumers or settings, and has had none for a day (or
    /// since the start).
    ///
    /// # Errors
    /// [`QueueError::Name`] if the queue has no valid name; [`QueueError::Call`] without an answer.
    pub async fn info(&self) -> Result<Option<QueueView>, QueueError> {
        let queue = self.name.clone()?;
        Ok(self.wheel.client().ask(Op::queue(queue)).await?)
    }

    /// The message with this key, or else the newest one that had it and has ended, if the queue keeps such messages
    /// ([`QueueSettings::keep_done`](crate::QueueSettings::keep_done)). The state of that one is [`State::Done`], and
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
    /// use duewheel::{DAY, Duewheel, MessageState, QueueSettings};
    /// let wheel = Duewheel::builder().in_memory().open().await?;
    /// let queue = wheel.queue("invoices");
    /// queue.configure(QueueSettings::default().keep_done(DAY)).await?;
    /// let sent = queue.body("invoice 42").key("42").enqueue().await?;
    /// let cancelled = queue.cancel_key("42").await?;
    ///
    /// let was = queue.recall_key("42").await?.expect("it is kept for a day");
    /// assert_eq!((was.state, was.message.id), (MessageState::Done, sent.id), "{cancelled:?}");
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

/// A listing; begun by [`Queue::list`] or [`Queue::dead`].
#[derive(Clone, Debug)]
#[must_use = "nothing is listed before `next`"]
pub struct MessagePages {
    queue: Queue,
    state: Option<State>,
    at: PagePosition,
}

/// How far a listing has got.
#[derive(Clone, Debug)]
enum PagePosition {
    Behind(Option<ListPositions>),
    End,
}

impl MessagePages {
    /// The next page, of at most `limit` messages and at most 1,000; empty behind the last message.
    ///
    /// # Errors
    /// [`QueueError::Name`] if the queue has no valid name; [`QueueError::Call`] without an answer: the same page can be
    /// asked for again.
    ///
    /// # Cancel safety
    /// Cancel safe: the next call returns the same page.
    pub async fn next(&mut self, limit: usize) -> Result<Vec<View>, QueueError> {
        let queue = self.queue.name.clone()?;
        while let PagePosition::Behind(after) = &self.at {
            let client = self.queue.wheel.client();
            let page = client.list(queue.clone(), self.state, after.clone(), limit.max(1)).await?;
            self.at = page.next.map_or(PagePosition::End, |next| PagePosition::Behind(Some(next)));
            if !page.views.is_empty() {
                return Ok(page.views);
            }
        }
        Ok(Vec::new())
    }
}

/// The header of a replayed message: the id of the message whose content it has.
const REPLAY_OF: &str = "duewheel-replay-of";

/// A new message of the queue `to` with the content of another one, due `delay_ms` after `now`, without a key: body,
/// headers, priority and options. A spread is left out, and an expiry at an instant that would be over: they were for
/// the due time that the other message had.
#[doc(hidden)]
pub fn same_content(view: &View, to: QueueName, now: WallMs, delay_ms: u64) -> Enqueue {
    let message = &view.message;
    let due = now.0.saturating_add(delay_ms);
    let expiry = message.options.expiry.filter(|expiry| match expiry {
        Expiry::In(_) => true,
        Expiry::At(at) => at.0 >= due,
    });
    Enqueue {
        headers: message.given_headers().cloned().collect(),
        when: When::After(delay_ms),
        priority: Some(view.priority),
        options: Options { spread_ms: None, expiry, ..message.options.clone() },
        ..Enqueue::new(to, message.body.clone())
    }
}

/// A new message with the content of a done or dead one ([`same_content`]), due at `now`; `None` if that is neither. It
/// has no key but the one given, and the header `duewheel-replay-of`.
#[doc(hidden)]
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
