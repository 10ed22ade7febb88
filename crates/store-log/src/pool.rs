//! The threads that do the background work of one store, or of several that share them.
//!
//! Each store has a task for each kind of work, and each kind has a lane: a few threads, which serve the tasks in turn.
//! A task is never served by two threads. A step of a task is short, or makes room for new messages: so the merges of a
//! store do not keep another from flushing.
//!
//! A sync of the journal is not such a task. Callers wait for it, and several journals are synced at the same time: so
//! each store has a thread of its own for syncs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::num::NonZero;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use duewheel_core::store::StoreError;

use crate::fault::{failed, lock};
use crate::readers::Readers;

/// The background threads of all stores that are opened with it or with a clone of it.
///
/// Threads start when there is work for them, and end with the last store and the last clone. Stores whose folders lie on
/// different media should not share one: a medium that does not answer would delay the work of the others.
#[derive(Clone)]
pub struct WorkerPool(Arc<WorkerLanes>);

struct WorkerLanes {
    prepare: Arc<Lane>,
    merge: Arc<Lane>,
    load: Arc<Lane>,
    events: Arc<Lane>,
    readers: Arc<Readers>,
}

/// A kind of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneKind {
    /// Journal segments are prepared.
    Prepare,
    /// Memtables are flushed, and runs are merged.
    Merge,
    /// Pages of messages are loaded.
    Load,
    /// Events are read from the journal.
    Events,
}

impl LaneKind {
    /// The name of its threads.
    pub(crate) fn name(self) -> &'static str {
        match self {
            LaneKind::Prepare => "duewheel-prep",
            LaneKind::Merge => "duewheel-merge",
            LaneKind::Load => "duewheel-load",
            LaneKind::Events => "duewheel-events",
        }
    }
}

/// The condition for the next step of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskPause {
    /// The next step, after those of other stores.
    None,
    /// A step when the bell rings, or after this time.
    Within(Duration),
    /// A step when the bell rings.
    UntilRung,
    /// No step any more.
    Forever,
}

impl WorkerPool {
    /// Makes a pool with at most `threads` threads (one at least) for each kind of background work.
    pub fn new(threads: usize) -> Self {
        let lane = |kind: LaneKind| Arc::new(Lane::new(kind.name(), threads.max(1)));
        WorkerPool(Arc::new(WorkerLanes {
            prepare: lane(LaneKind::Prepare),
            merge: lane(LaneKind::Merge),
            load: lane(LaneKind::Load),
            events: lane(LaneKind::Events),
            readers: Arc::default(),
        }))
    }

    /// Number of threads at present, without those that read blocks for others.
    pub fn threads(&self) -> usize {
        self.0.lanes().iter().map(|lane| lock(&lane.state).threads).sum()
    }

    /// The threads that read blocks.
    pub(crate) fn readers(&self) -> &Arc<Readers> {
        &self.0.readers
    }

    /// Adds a task, which is served at once for the first time, until [`TaskBell::end`].
    pub(crate) fn add(
        &self,
        kind: LaneKind,
        bell: &TaskBell,
        step: impl Fn() -> TaskPause + Send + Sync + 'static,
    ) -> Result<(), StoreError> {
        let lane = match kind {
            LaneKind::Prepare => &self.0.prepare,
            LaneKind::Merge => &self.0.merge,
            LaneKind::Load => &self.0.load,
            LaneKind::Events => &self.0.events,
        };
        lane.add(bell, Arc::new(step))
    }
}

impl Default for WorkerPool {
    /// A pool with as many threads of each kind as there are processors, and two at least.
    fn default() -> Self {
        WorkerPool::new(thread::available_parallelism().map_or(2, NonZero::get).max(2))
    }
}

impl fmt::Debug for WorkerPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerPool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

impl WorkerLanes {
    fn lanes(&self) -> [&Arc<Lane>; 4] {
        [&self.prepare, &self.merge, &self.load, &self.events]
    }
}

impl Drop for WorkerLanes {
    fn drop(&mut self) {
        for lane in self.lanes() {
            lock(&lane.state).closed = true;
            lane.changed.notify_all();
        }
        self.readers.close();
    }
}

type Step = Arc<dyn Fn() -> TaskPause + Send + Sync>;

/// Threads that serve the tasks of one kind in turn.
struct Lane {
    name: &'static str,
    /// Largest number of threads.
    most: usize,
    state: Mutex<LaneState>,
    /// There is something to serve, or a task has ended.
    changed: Condvar,
}

#[derive(Default)]
struct LaneState {
    tasks: BTreeMap<u64, LaneTask>,
    next: u64,
    ready: VecDeque<u64>,
    /// Tasks that are ready at a time.
    later: BTreeSet<(Instant, u64)>,
    threads: usize,
    /// Threads that wait.
    idle: usize,
    closed: bool,
}

struct LaneTask {
    step: Step,
    phase: TaskPhase,
    /// The task was rung for during its step.
    rung: bool,
    /// The task has no step after this one.
    ending: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskPhase {
    Resting(Option<Instant>),
    Ready,
    Serving,
}

impl Lane {
    fn new(name: &'static str, most: usize) -> Self {
        Lane { name, most, state: Mutex::default(), changed: Condvar::new() }
    }

    fn add(self: &Arc<Self>, bell: &TaskBell, step: Step) -> Result<(), StoreError> {
        let mut state = lock(&self.state);
        if state.threads == 0 {
            self.start_thread(&mut state).map_err(failed("start", self.name))?;
        }
        let task = state.next;
        if bell.0.set((Arc::clone(self), task)).is_err() {
            return Ok(()); // it has been added
        }
        state.next += 1;
        state.tasks.insert(task, LaneTask { step, phase: TaskPhase::Ready, rung: false, ending: false });
        state.ready.push_back(task);
        self.call_thread(&mut state);
        Ok(())
    }

    fn ring(self: &Arc<Self>, task: u64) {
        let mut state = lock(&self.state);
        let Some(known) = state.tasks.get_mut(&task) else { return };
        match known.phase {
            TaskPhase::Serving => known.rung = true,
            TaskPhase::Ready => {}
            TaskPhase::Resting(until) => {
                known.phase = TaskPhase::Ready;
                if let Some(until) = until {
                    state.later.remove(&(until, task));
                }
                state.ready.push_back(task);
                self.call_thread(&mut state);
            }
        }
    }

    /// Removes a task, after its present step. Not for use within a step.
    fn end(&self, task: u64) {
        let mut state = lock(&self.state);
        loop {
            match state.tasks.get_mut(&task) {
                None => return,
                Some(serving) if serving.phase == TaskPhase::Serving => {
                    serving.ending = true;
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                Some(_) => break,
            }
        }
        let step = state.remove(task);
        drop(state);
        drop(step); // with all that it refers to
    }

    /// Lets a thread look for ready tasks. Further threads are a help, but not needed.
    fn call_thread(self: &Arc<Self>, state: &mut LaneState) {
        if state.idle > 0 {
            // Threads and those that wait for the end of a task wait for the same.
            self.changed.notify_all();
        } else if state.threads < self.most.min(state.tasks.len()) {
            let _ = self.start_thread(state);
        }
    }

    fn start_thread(self: &Arc<Self>, state: &mut LaneState) -> std::io::Result<()> {
        let lane = Arc::clone(self);
        thread::Builder::new().name(self.name.into()).spawn(move || lane.serve())?;
        state.threads += 1;
        Ok(())
    }

    /// A thread's loop. A step catches its panics.
    fn serve(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        loop {
            state.make_ready(Instant::now());
            if let Some((task, step)) = state.take() {
                if !state.ready.is_empty() {
                    self.call_thread(&mut state); // a step may be long
                }
                drop(state);
                let pause = step();
                drop(step);
                state = lock(&self.state);
                let over = state.put_back(task, pause);
                if over.is_some() {
                    drop(state);
                    drop(over);
                    self.changed.notify_all();
                    state = lock(&self.state);
                }
            } else if state.closed {
                state.threads -= 1;
                return;
            } else {
                state.idle += 1;
                let until = state.later.first().map(|(at, _)| at.saturating_duration_since(Instant::now()));
                state = match until {
                    None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                    Some(time) => {
                        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
                    }
                };
                state.idle -= 1;
            }
        }
    }
}

impl LaneState {
    /// Makes tasks ready whose time has come.
    fn make_ready(&mut self, now: Instant) {
        while let Some((at, task)) = self.later.first().copied().filter(|(at, _)| *at <= now) {
            self.later.remove(&(at, task));
            if let Some(task) = self.tasks.get_mut(&task) {
                task.phase = TaskPhase::Ready;
            }
            self.ready.push_back(task);
        }
    }

    /// Takes the task that has been ready for longest.
    fn take(&mut self) -> Option<(u64, Step)> {
        let no = self.ready.pop_front()?;
        let task = self.tasks.get_mut(&no)?;
        (task.phase, task.rung) = (TaskPhase::Serving, false);
        Some((no, Arc::clone(&task.step)))
    }

    /// Puts a task back after its step. Returns what it was if it is over.
    fn put_back(&mut self, no: u64, pause: TaskPause) -> Option<Step> {
        let task = self.tasks.get_mut(&no)?;
        if task.ending {
            return self.remove(no);
        }
        let now_ready = match pause {
            TaskPause::Forever => return self.remove(no),
            TaskPause::None => true,
            TaskPause::Within(_) | TaskPause::UntilRung => task.rung,
        };
        if now_ready {
            task.phase = TaskPhase::Ready;
            self.ready.push_back(no);
            return None;
        }
        let until = match pause {
            TaskPause::Within(time) => Instant::now().checked_add(time),
            TaskPause::None | TaskPause::UntilRung | TaskPause::Forever => None,
        };
        task.phase = TaskPhase::Resting(until);
        if let Some(until) = until {
            self.later.insert((until, no));
        }
        None
    }

    fn remove(&mut self, no: u64) -> Option<Step> {
        let task = self.tasks.remove(&no)?;
        match task.phase {
            TaskPhase::Ready => self.ready.retain(|ready| *ready != no),
            TaskPhase::Resting(Some(until)) => {
                self.later.remove(&(until, no));
            }
            TaskPhase::Resting(None) | TaskPhase::Serving => {}
        }
        Some(task.step)
    }
}

/// Asks for a step of one task; several rings during a step count as one. It does nothing before there is a task.
#[derive(Default)]
pub(crate) struct TaskBell(OnceLock<(Arc<Lane>, u64)>);

impl TaskBell {
    pub(crate) fn ring(&self) {
        if let Some((lane, task)) = self.0.get() {
            lane.ring(*task);
        }
    }

    /// Ends the task, and waits for its present step.
    pub(crate) fn end(&self) {
        if let Some((lane, task)) = self.0.get() {
            lane.end(*task);
        }
    }
}

impl fmt::Debug for TaskBell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TaskBell").field(&self.0.get().map(|(lane, _)| lane.name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn ring_during_step_runs_another_step() {
        let pool = WorkerPool::new(1);
        let bell = Arc::new(TaskBell::default());
        let (begun, begins) = mpsc::channel();
        let (go, goes) = mpsc::channel();
        let goes = Mutex::new(goes);
        let step = move || {
            begun.send(()).expect("the test waits");
            lock(&goes).recv_timeout(PATIENCE).expect("the test goes on");
            TaskPause::UntilRung
        };
        pool.add(LaneKind::Load, &bell, step).expect("a thread");
        begins.recv_timeout(PATIENCE).expect("served at once");
        for _ in 0..3 {
            bell.ring();
        }
        go.send(()).expect("the task waits");
        begins.recv_timeout(PATIENCE).expect("three rings, one more step");
        go.send(()).expect("the task waits");
        bell.end();
        assert!(begins.try_recv().is_err(), "no step but these two");
        bell.ring();
        assert!(begins.try_recv().is_err(), "an ended task is not served");
    }

    #[test]
    fn few_threads_serve_tasks_in_turn() {
        let pool = WorkerPool::new(2);
        let (done, steps) = mpsc::channel();
        let (serving, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let bells: Vec<TaskBell> = (0..8).map(|_| TaskBell::default()).collect();
        for (no, bell) in bells.iter().enumerate() {
            let (done, serving, most) = (done.clone(), Arc::clone(&serving), Arc::clone(&most));
            let left = AtomicUsize::new(50);
            let step = move || {
                most.fetch_max(serving.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                done.send(no).expect("the test counts");
                serving.fetch_sub(1, Ordering::SeqCst);
                let left = left.fetch_sub(1, Ordering::SeqCst) - 1;
                if left > 0 { TaskPause::None } else { TaskPause::Forever }
            };
            pool.add(LaneKind::Merge, bell, step).expect("a thread");
        }
        drop(done);
        let mut counts = [0; 8];
        while let Ok(no) = steps.recv_timeout(PATIENCE) {
            counts[no] += 1;
        }
        assert_eq!(counts, [50; 8]);
        assert!(most.load(Ordering::SeqCst) <= 2 && pool.threads() <= 2, "two threads at most");
        bells.iter().for_each(TaskBell::end);
    }

    #[test]
    fn timed_pause_is_served_again() {
        let pool = WorkerPool::new(1);
        let (done, steps) = mpsc::channel();
        let bell = TaskBell::default();
        let step = move || {
            let _ = done.send(());
            TaskPause::Within(Duration::from_millis(1))
        };
        pool.add(LaneKind::Prepare, &bell, step).expect("a thread");
        for _ in 0..3 {
            steps.recv_timeout(PATIENCE).expect("nobody rings");
        }
        bell.end();
    }

    #[test]
    fn the_threads_end_with_the_pool() {
        let pool = WorkerPool::new(4);
        let lane = Arc::clone(&pool.0.load);
        let bell = TaskBell::default();
        pool.add(LaneKind::Load, &bell, || TaskPause::UntilRung).expect("a thread");
        bell.end();
        assert_eq!(pool.threads(), 1);
        drop(pool);
        let deadline = Instant::now() + PATIENCE;
        while lock(&lane.state).threads > 0 {
            assert!(Instant::now() < deadline, "a thread is left");
            thread::yield_now();
        }
    }
}
