//! A few threads that read runs side by side, for look-ups that need many blocks.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Condvar, Mutex, PoisonError, mpsc};

use duewheel_core::store::{ErrorKind, StoreError};

use crate::fault::Trouble;
use crate::shared::lock;

type Job = Box<dyn FnOnce() + Send>;

/// Something to read.
pub(crate) type Read<T> = Box<dyn FnOnce() -> Result<T, Trouble> + Send>;

#[derive(Default)]
pub(crate) struct Readers {
    jobs: Mutex<Jobs>,
    more: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    closed: bool,
}

impl fmt::Debug for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readers").finish_non_exhaustive()
    }
}

impl Readers {
    /// Does all of them, the caller's thread included, and gives what they have read, in no order.
    pub(crate) fn all<T: Send + 'static>(&self, reads: Vec<Read<T>>) -> Result<Vec<T>, Trouble> {
        let (done, results) = mpsc::channel();
        let count = reads.len();
        {
            let mut jobs = lock(&self.jobs);
            for read in reads {
                let done = done.clone();
                jobs.waiting.push_back(Box::new(move || {
                    let _ = done.send(read()); // nobody waits when another one has failed
                }));
            }
        }
        drop(done);
        self.more.notify_all();
        while let Some(job) = self.take() {
            job();
        }
        let mut all = Vec::with_capacity(count);
        for result in results {
            all.push(result?);
        }
        if all.len() < count {
            return Err(StoreError::new(ErrorKind::Closed, "a bug: a reader has panicked").into());
        }
        Ok(all)
    }

    /// A reader's life. A panic ends the reader, and with it the store; whoever waits hears that there is no answer.
    pub(crate) fn run(&self) {
        let mut jobs = lock(&self.jobs);
        loop {
            if let Some(job) = jobs.waiting.pop_front() {
                drop(jobs);
                job();
                jobs = lock(&self.jobs);
            } else if jobs.closed {
                return;
            } else {
                jobs = self.more.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Sends the readers home.
    pub(crate) fn close(&self) {
        lock(&self.jobs).closed = true;
        self.more.notify_all();
    }

    fn take(&self) -> Option<Job> {
        lock(&self.jobs).waiting.pop_front()
    }
}
