//! Answers in progress, and what happens to those that no caller receives.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use crate::budget::CallBudgetShare;
use crate::error::CallError;
use crate::inbox::Answers;

/// Answers in progress. Dropping it does not cancel the operations.
#[derive(Debug)]
pub struct Pending {
    answers: Receiver,
    ops: usize,
    /// The share of the budget, which is returned when the answers have arrived.
    room: Option<CallBudgetShare>,
}

impl Pending {
    /// The answers to `ops` operations, which arrive through this channel.
    pub fn new(answers: oneshot::Receiver<Answers>, ops: usize) -> Self {
        Pending { answers: Receiver { answers, undo: None }, ops, room: None }
    }

    /// Sets what to do with answers that have arrived but were not received when this is dropped.
    pub fn or_undo(mut self, undo: impl FnOnce(Answers) + Send + 'static) -> Self {
        self.answers.undo = Some(Undo(Box::new(undo)));
        self
    }

    /// Closes the channel, so that the sender knows that nobody receives the answers; returns those that arrived
    /// before.
    pub(crate) fn last(&mut self) -> Option<Answers> {
        self.answers.last()
    }

    /// Holds this share of the budget until the answers arrive.
    pub fn holding(self, room: Option<CallBudgetShare>) -> Self {
        Pending { room, ..self }
    }
}

/// The receiving end of a channel that delivers answers once.
#[derive(Debug)]
struct Receiver {
    answers: oneshot::Receiver<Answers>,
    undo: Option<Undo>,
}

/// The function that undoes answers which arrived but were not received: their sender does not know of it.
struct Undo(Box<dyn FnOnce(Answers) + Send>);

impl fmt::Debug for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Undo")
    }
}

impl Receiver {
    /// Closes the channel, so that the sender knows that nobody receives the answers; returns those that arrived
    /// before.
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
