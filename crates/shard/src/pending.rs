//! Answers under way, and what becomes of those that nobody takes.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use crate::budget::Room;
use crate::error::CallError;
use crate::inbox::Answers;

/// Answers under way. Dropping it does not take the operations back.
#[derive(Debug)]
pub struct Pending {
    answers: Receiver,
    ops: usize,
    /// Given back when the answers are there.
    room: Option<Room>,
}

impl Pending {
    /// Answers to so many operations, on their way through this channel.
    pub fn new(answers: oneshot::Receiver<Answers>, ops: usize) -> Self {
        Pending { answers: Receiver { answers, undo: None }, ops, room: None }
    }

    /// The same; answers that are there when it is dropped, and were never taken, go to `undo`.
    pub fn or_undo(mut self, undo: impl FnOnce(Answers) + Send + 'static) -> Self {
        self.answers.undo = Some(Undo(Box::new(undo)));
        self
    }

    /// From now on the sender knows that nobody takes them; what has arrived before.
    pub(crate) fn last(&mut self) -> Option<Answers> {
        self.answers.last()
    }

    /// The same, and they count as under way.
    pub fn holding(self, room: Option<Room>) -> Self {
        Pending { room, ..self }
    }
}

/// The end of a channel from which answers come, once.
#[derive(Debug)]
struct Receiver {
    answers: oneshot::Receiver<Answers>,
    undo: Option<Undo>,
}

/// What becomes of answers that nobody takes although they have arrived: their sender does not know.
struct Undo(Box<dyn FnOnce(Answers) + Send>);

impl fmt::Debug for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Undo")
    }
}

impl Receiver {
    /// From now on the sender knows that nobody takes them; what has arrived before.
    fn last(&mut self) -> Option<Answers> {
        self.undo = None;
        self.answers.close();
        self.answers.try_recv().ok()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some(Undo(undo)) = self.undo.take()
            && let Some(answers) = self.last()
        {
            undo(answers);
        }
    }
}

impl Future for Pending {
    type Output = Answers;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answers> {
        let ops = self.ops;
        let polled = Pin::new(&mut self.answers.answers).poll(cx);
        if polled.is_ready() {
            self.room = None;
            self.answers.undo = None;
        }
        polled.map(|answers| {
            answers.unwrap_or_else(|_| {
                (0..ops).map(|_| Err(CallError::Lost("the driver ended before it answered"))).collect()
            })
        })
    }
}
