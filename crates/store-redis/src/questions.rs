//! Requests to several masters at the same time: a master that does not answer does not delay the answers of the
//! others.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use duewheel_core::store::{ErrorKind, StoreError};
use duewheel_store_medium::locked;
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt, Shared, join_all};
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

use crate::address::HostPort;
use crate::fault;

/// How long a master that answered its last request is awaited: half of a lease, within these limits. The caller must
/// also renew the node's membership.
const TIME_LIMITS: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(1)];
/// How long a master that did not answer its last request is awaited.
const SHORT_TIME_LIMIT: Duration = Duration::from_millis(20);

/// A request in progress, whether its answer is awaited or not.
type Question<T> = Shared<BoxFuture<'static, Result<T, StoreError>>>;

/// The masters that have not answered their last request. An unanswered request stays open and is not repeated, so the
/// answer of a slow master is used as soon as it arrives, and one that hangs hardly delays the others.
pub(crate) struct Questions<T>(Mutex<BTreeMap<HostPort, Option<Question<T>>>>);

impl<T> Default for Questions<T> {
    fn default() -> Self {
        Questions(Mutex::default())
    }
}

impl<T: Clone + Send + Sync + 'static> Questions<T> {
    /// Asks these masters, or waits for the answers to their open requests. While none of them has answered, it waits
    /// until one has, or until no request is open.
    ///
    /// # Cancel safety
    /// When the future is dropped, requests continue; their answers are lost.
    pub(crate) async fn ask<F>(
        &self,
        lease: Duration,
        asked: Vec<(HostPort, F)>,
    ) -> Vec<(HostPort, Result<T, StoreError>)>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let usual = (lease / 2).clamp(TIME_LIMITS[0], TIME_LIMITS[1]);
        let mut silent = std::mem::take(&mut *self.silent());
        let questions: Vec<(HostPort, Question<T>, Duration)> = asked
            .into_iter()
            .map(|(master, new)| match silent.remove(&master) {
                Some(Some(open)) => (master, open, SHORT_TIME_LIMIT),
                Some(None) => (master, under_way(new), SHORT_TIME_LIMIT),
                None => (master, under_way(new), usual),
            })
            .collect();
        let answers =
            questions.iter().map(|(_, question, time_limit)| timeout(*time_limit, question.clone()));
        let answers = join_all(answers).await;
        if !answers.iter().any(|answer| matches!(answer, Ok(Ok(_)))) {
            let mut open: FuturesUnordered<_> = questions
                .iter()
                .filter(|(_, question, _)| question.peek().is_none())
                .map(|(_, question, _)| question.clone())
                .collect();
            while let Some(Err(_)) = open.next().await {}
        }
        let answers = questions.into_iter().map(|(master, question, _)| {
            let answer = match question.peek() {
                Some(Ok(answer)) => return (master, Ok(answer.clone())),
                Some(Err(error)) => (error.clone(), None),
                None => {
                    let what = format_args!("{}:{} does not answer", master.0, master.1);
                    (StoreError::new(ErrorKind::Unavailable, what), Some(question))
                }
            };
            self.silent().insert(master.clone(), answer.1);
            (master, Err(answer.0))
        });
        answers.collect()
    }

    fn silent(&self) -> MutexGuard<'_, BTreeMap<HostPort, Option<Question<T>>>> {
        locked(&self.0)
    }
}

/// Begins a request. Must be called on a thread of the connections.
fn under_way<T: Clone + Send + Sync + 'static>(
    question: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Question<T> {
    let task = tokio::spawn(question);
    async move { task.await.unwrap_or_else(|_| Err(fault::bug("a question has ended without an answer"))) }
        .boxed()
        .shared()
}

impl<T> fmt::Debug for Questions<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Questions")
    }
}
