//! A few threads that read runs in parallel, for look-ups that need many blocks of one store or of several. Reads for
//! which an owner waits come first.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread;

use duewheel_core::store::StoreError;

use crate::fault::{ReadFault, failed};
use crate::shared::lock;

/// The name of the threads.
const THREAD: &str = "duewheel-read";

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
    /// Largest number of threads.
    most: usize,
    threads: usize,
    /// Threads that wait.
    idle: usize,
    closed: bool,
}

/// The result of a read, or its panic.
type ReadOutcome<T> = thread::Result<Result<T, ReadFault>>;

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
    /// Lets so many threads read, or more if more were allowed before. The first one starts here.
    pub(crate) fn allow(self: &Arc<Self>, most: usize) -> Result<(), StoreError> {
        let mut jobs = lock(&self.jobs);
        jobs.most = jobs.most.max(most);
        if jobs.threads == 0 && most > 0 {
            self.start_thread(&mut jobs).map_err(failed("start", THREAD))?;
        }
        Ok(())
    }

    /// Makes all reads, also on the caller's thread, and returns their results in no order. The caller's thread makes
    /// no read of a lower priority. A read that panics does so here, again.
    pub(crate) fn all<T: Send + 'static>(
        self: &Arc<Self>,
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
            all.push(result.unwrap_or_else(|panic| resume_unwind(panic))?);
        }
        Ok(all)
    }

    fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        whom: ReadPriority,
        reads: Vec<ReadTask<T>>,
    ) -> mpsc::Receiver<ReadOutcome<T>> {
        let (done, results) = mpsc::channel();
        let mut jobs = lock(&self.jobs);
        for read in reads {
            let done = done.clone();
            jobs.waiting[whom as usize].push_back(Box::new(move || {
                // The receiver is gone when another read has failed.
                let _ = done.send(catch_unwind(AssertUnwindSafe(read)));
            }));
            self.call_thread(&mut jobs);
        }
        self.more.notify_all();
        results
    }

    /// Lets a reader do this, which catches its panics, and does not wait for it.
    pub(crate) fn spawn(self: &Arc<Self>, whom: ReadPriority, job: impl FnOnce() + Send + 'static) {
        let mut jobs = lock(&self.jobs);
        jobs.waiting[whom as usize].push_back(Box::new(job));
        self.call_thread(&mut jobs);
        self.more.notify_one();
    }

    /// Starts another thread if there are more reads than threads that wait. It is a help, but not needed.
    fn call_thread(self: &Arc<Self>, jobs: &mut ReadJobs) {
        let waiting: usize = jobs.waiting.iter().map(VecDeque::len).sum();
        if waiting > jobs.idle && jobs.threads < jobs.most {
            let _ = self.start_thread(jobs);
        }
    }

    fn start_thread(self: &Arc<Self>, jobs: &mut ReadJobs) -> std::io::Result<()> {
        let readers = Arc::clone(self);
        thread::Builder::new().name(THREAD.into()).spawn(move || readers.run())?;
        jobs.threads += 1;
        Ok(())
    }

    /// A reader's loop.
    fn run(&self) {
        let mut jobs = lock(&self.jobs);
        loop {
            if let Some(job) = jobs.next(ReadPriority::Background) {
                drop(jobs);
                job();
                jobs = lock(&self.jobs);
            } else if jobs.closed {
                jobs.threads = jobs.threads.saturating_sub(1);
                return;
            } else {
                jobs.idle += 1;
                jobs = self.more.wait(jobs).unwrap_or_else(PoisonError::into_inner);
                jobs.idle -= 1;
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
    use super::*;

    /// Story: all reads stood in one line. A look-up of the owner waited until a flush of a hundred thousand changed
    /// messages had read its rows, and read some of them itself.
    #[test]
    fn owner_reads_precede_background_reads() {
        let readers = Arc::new(Readers::default());
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

    #[test]
    fn read_panic_surfaces_at_its_caller() {
        let readers = Arc::new(Readers::default());
        readers.allow(2).expect("a thread");
        let reads = || -> Vec<ReadTask<u64>> {
            let read = |n: u64| -> ReadTask<u64> {
                Box::new(move || {
                    assert!(n != 5, "the test wants it");
                    Ok(n)
                })
            };
            (0..10).map(read).collect()
        };
        let asked = catch_unwind(AssertUnwindSafe(|| readers.all(ReadPriority::Page, reads())));
        assert!(asked.is_err(), "its caller learns of it");
        let others = reads().into_iter().take(5).collect();
        let mut read = readers.all(ReadPriority::Page, others).expect("the readers go on");
        read.sort_unstable();
        assert_eq!(read, [0, 1, 2, 3, 4]);
        readers.close();
    }
}
