//! A few threads that read runs in parallel, for look-ups that need many blocks. Reads for which the owner waits come
//! first.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Condvar, Mutex, PoisonError, mpsc};

use duewheel_core::store::{ErrorKind, StoreError};

use crate::fault::ReadFault;
use crate::shared::lock;

type ReadJob = Box<dyn FnOnce() + Send>;

/// Something to read.
pub(crate) type ReadTask<T> = Box<dyn FnOnce() -> Result<T, ReadFault> + Send>;

#[derive(Default)]
pub(crate) struct Readers {
    jobs: Mutex<ReadJobs>,
    more: Condvar,
}

#[derive(Default)]
struct ReadJobs {
    /// Waiting reads, by [`ReadPriority`].
    waiting: [VecDeque<ReadJob>; 4],
    closed: bool,
}

/// The priority of a read; the first variant is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReadPriority {
    /// The owner's thread waits, and with it all callers.
    Owner,
    /// A page or a look-up that the owner has asked for, while it goes on.
    Page,
    /// A whole look-up of that kind, which may ask for reads of pages itself: so a reader of a page never begins one.
    Fetch,
    /// A flush, a merge or a check.
    Background,
}

impl ReadJobs {
    /// The next read of priority `last` or higher.
    fn next(&mut self, last: ReadPriority) -> Option<ReadJob> {
        self.waiting[..=last as usize].iter_mut().find_map(VecDeque::pop_front)
    }
}

impl fmt::Debug for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readers").finish_non_exhaustive()
    }
}

impl Readers {
    /// Makes all reads, also on the caller's thread, and returns their results in no order. The caller's thread makes
    /// no read of a lower priority.
    pub(crate) fn all<T: Send + 'static>(
        &self,
        whom: ReadPriority,
        reads: Vec<ReadTask<T>>,
    ) -> Result<Vec<T>, ReadFault> {
        let count = reads.len();
        let results = self.ask(whom, reads);
        while let Some(job) = self.take(whom) {
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

    fn ask<T: Send + 'static>(
        &self,
        whom: ReadPriority,
        reads: Vec<ReadTask<T>>,
    ) -> mpsc::Receiver<Result<T, ReadFault>> {
        let (done, results) = mpsc::channel();
        {
            let mut jobs = lock(&self.jobs);
            for read in reads {
                let done = done.clone();
                jobs.waiting[whom as usize].push_back(Box::new(move || {
                    let _ = done.send(read()); // the receiver is gone when another read has failed
                }));
            }
        }
        self.more.notify_all();
        results
    }

    /// Lets a reader do this, and does not wait for it.
    pub(crate) fn spawn(&self, whom: ReadPriority, job: impl FnOnce() + Send + 'static) {
        lock(&self.jobs).waiting[whom as usize].push_back(Box::new(job));
        self.more.notify_one();
    }

    /// A reader's loop. A panic ends the reader, and with it the store; waiting callers learn that there is no answer.
    pub(crate) fn run(&self) {
        let mut jobs = lock(&self.jobs);
        loop {
            if let Some(job) = jobs.next(ReadPriority::Background) {
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

    /// Stops the readers.
    pub(crate) fn close(&self) {
        lock(&self.jobs).closed = true;
        self.more.notify_all();
    }

    fn take(&self, last: ReadPriority) -> Option<ReadJob> {
        lock(&self.jobs).next(last)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Story: all reads stood in one line. A look-up of the owner waited until a flush of a hundred thousand changed
    /// messages had read its rows, and read some of them itself.
    #[test]
    fn the_owners_reads_go_before_those_of_flushes_and_merges() {
        let readers = Readers::default();
        let order = Arc::new(Mutex::new(Vec::new()));
        let reads = |whom: ReadPriority| -> Vec<ReadTask<ReadPriority>> {
            (0..3)
                .map(|_| {
                    let order = Arc::clone(&order);
                    let read: ReadTask<ReadPriority> = Box::new(move || {
                        lock(&order).push(whom);
                        Ok(whom)
                    });
                    read
                })
                .collect()
        };
        let flush = readers.ask(ReadPriority::Background, reads(ReadPriority::Background));
        let page = readers.ask(ReadPriority::Page, reads(ReadPriority::Page));
        assert_eq!(
            readers.all(ReadPriority::Owner, reads(ReadPriority::Owner)).unwrap(),
            [ReadPriority::Owner; 3]
        );
        assert_eq!(*lock(&order), [ReadPriority::Owner; 3], "the owner does its own, and nothing else");
        let later = readers.ask(ReadPriority::Owner, reads(ReadPriority::Owner));
        readers.close();
        readers.run();
        let expected =
            [ReadPriority::Owner, ReadPriority::Owner, ReadPriority::Page, ReadPriority::Background]
                .map(|whom| [whom; 3])
                .concat();
        assert_eq!(*lock(&order), expected);
        for results in [flush, page, later] {
            assert_eq!(results.into_iter().count(), 3, "everything is read in the end");
        }
    }
}
