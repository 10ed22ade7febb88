//! The consumers of this process and whether they work, so that a test's clock holds still while one does.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use duewheel_core::name::QueueName;
use tokio::sync::Notify;

/// A consumer of a queue in this process: a loop that waits for messages, and runs that work on them.
#[derive(Debug)]
pub struct Activity {
    queue: QueueName,
    stage: Mutex<LoopStage>,
    running: AtomicUsize,
    started: AtomicUsize,
    changed: Notify,
}

/// The stage of a consumer's loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoopStage {
    /// Neither of the others: about to wait, or with messages just received.
    Works,
    /// Waiting for messages.
    Waits,
    /// Not taking messages for now.
    Away,
}

impl Activity {
    /// The queue of the consumer.
    pub fn queue(&self) -> &QueueName {
        &self.queue
    }

    /// Waits for messages with this future, whose first poll submits the demand.
    ///
    /// # Cancel safety
    /// As that of `reserve`.
    pub async fn waiting<T>(&self, reserve: impl Future<Output = T>) -> T {
        self.during(LoopStage::Waits, reserve).await
    }

    /// Takes no messages until this future ends.
    ///
    /// # Cancel safety
    /// As that of `pause`.
    pub async fn away<T>(&self, pause: impl Future<Output = T>) -> T {
        self.during(LoopStage::Away, pause).await
    }

    /// While `future` is pending the loop is in this stage. The stage is left before each poll, so a stage that is seen
    /// means that the future has not returned.
    async fn during<T>(&self, stage: LoopStage, future: impl Future<Output = T>) -> T {
        struct Leave<'a>(&'a Activity);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                self.0.set(LoopStage::Works);
            }
        }
        let _leave = Leave(self);
        let mut future = pin!(future);
        std::future::poll_fn(|cx| {
            self.set(LoopStage::Works);
            let polled = future.as_mut().poll(cx);
            if polled.is_pending() {
                self.set(stage);
            }
            polled
        })
        .await
    }

    /// Begins a run, before the loop waits again. It ends when the returned value is dropped.
    pub fn begin(self: &Arc<Self>) -> ActiveRun {
        self.started.fetch_add(1, Ordering::SeqCst);
        self.running.fetch_add(1, Ordering::SeqCst);
        ActiveRun(self.clone())
    }

    /// Whether no run is under way, and the loop waits or is away.
    pub fn is_resting(&self) -> bool {
        self.stage() != LoopStage::Works && self.running.load(Ordering::SeqCst) == 0
    }

    /// Whether the loop takes no messages for now.
    pub fn is_away(&self) -> bool {
        self.stage() == LoopStage::Away
    }

    /// The number of runs started so far.
    pub fn started(&self) -> usize {
        self.started.load(Ordering::SeqCst)
    }

    /// Waits until a run ends or the loop comes to rest. A change before the call is not noticed.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    fn stage(&self) -> LoopStage {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, stage: LoopStage) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
        if stage != LoopStage::Works {
            self.changed.notify_waiters();
        }
    }
}

/// A run in progress, until its message is settled. It is dropped also when the code in between panics.
#[derive(Debug)]
pub struct ActiveRun(Arc<Activity>);

impl Drop for ActiveRun {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        self.0.changed.notify_waiters();
    }
}

/// The consumers of a process, as long as their owners keep them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Activities(Arc<Mutex<Vec<Weak<Activity>>>>);

impl Activities {
    pub(crate) fn add(&self, queue: QueueName) -> Arc<Activity> {
        let activity = Arc::new(Activity {
            queue,
            stage: Mutex::new(LoopStage::Works),
            running: AtomicUsize::new(0),
            started: AtomicUsize::new(0),
            changed: Notify::new(),
        });
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|activity| activity.strong_count() > 0);
        all.push(Arc::downgrade(&activity));
        activity
    }

    pub(crate) fn all(&self) -> Vec<Arc<Activity>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(Weak::upgrade).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Context;

    use super::*;

    #[test]
    fn consumer_rests_only_while_it_waits() {
        let all = Activities::default();
        let activity = all.add(QueueName::new("q").unwrap());
        assert!(!activity.is_resting(), "it has not begun to wait");
        let mut context = Context::from_waker(std::task::Waker::noop());
        let (sent, got) = tokio::sync::oneshot::channel();
        {
            let mut waiting = pin!(activity.waiting(got));
            assert!(waiting.as_mut().poll(&mut context).is_pending() && activity.is_resting());
            sent.send(()).unwrap();
            assert!(waiting.as_mut().poll(&mut context).is_ready() && !activity.is_resting());
        }
        let run = activity.begin();
        {
            let mut away = pin!(activity.away(std::future::pending::<()>()));
            assert!(away.as_mut().poll(&mut context).is_pending());
            assert!(activity.is_away() && !activity.is_resting(), "a run is under way");
            drop(run);
            assert!(activity.is_resting() && activity.started() == 1);
        }
        assert!(!activity.is_resting(), "a future that was dropped waits no more");
        drop(activity);
        assert!(all.all().is_empty());
    }
}
