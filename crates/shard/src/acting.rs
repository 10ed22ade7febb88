//! Calls that are acts ([`duewheel_core::act`]): operations that a task submits during the call are part of its act.
//!
//! The act belongs to the task, not to a client: so a handler submits operations through whatever it uses, and none of
//! them is left out.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use duewheel_core::act::{Act, RecordedAct};
use duewheel_core::engine::{Op, Reply};
use duewheel_core::name::QueueName;

tokio::task_local! {
    static CALL: Option<Arc<ActCall>>;
}

/// The act of a task.
#[derive(Debug)]
struct ActCall {
    act: Act,
    name: OnceLock<Box<str>>,
    queue: OnceLock<QueueName>,
    /// The act as the first operation has it.
    submitted: OnceLock<Arc<Act>>,
    count: AtomicU64,
    is_counted: AtomicBool,
    /// Whether messages are redriven one by one: each answer counts.
    is_of_ones: AtomicBool,
}

/// Runs `call` as an act. The second value is the act, if an operation was part of it, with the number of messages in
/// the answers.
///
/// # Cancel safety
/// As `call`. Operations that a task submits which `call` spawns are not part of the act.
pub async fn acting<F: Future>(act: Act, call: F) -> (F::Output, Option<RecordedAct>) {
    let (count, is_counted, is_of_ones) = Default::default();
    let (name, queue, submitted) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
    let acted = Arc::new(ActCall { act, name, queue, submitted, count, is_counted, is_of_ones });
    let output = CALL.scope(Some(Arc::clone(&acted)), call).await;
    let recorded = acted.submitted.get().map(|act| RecordedAct {
        act: Act::clone(act),
        count: acted.is_counted.load(Ordering::Relaxed).then(|| acted.count.load(Ordering::Relaxed)),
    });
    (output, recorded)
}

/// Runs `call`, which tidies up and is no part of the act of this task.
///
/// # Cancel safety
/// As `call`.
pub async fn without_act<F: Future>(call: F) -> F::Output {
    CALL.scope(None, call).await
}

/// The act of this task, if it is one.
fn current() -> Option<Arc<ActCall>> {
    CALL.try_with(Option::clone).ok().flatten()
}

/// States the queue that the act of this task concerns, if it is one: before its first operation.
pub fn concerns(queue: &QueueName) {
    let _ = current().map(|call| call.queue.set(queue.clone())); // the first one counts
}

/// Names the act of this task, if it is one, by more than its request is called: before its first operation.
pub fn is_called(name: &str) {
    let _ = current().map(|call| call.name.set(name.into())); // the first one counts
}

/// Makes operations part of the act of this task, if it is one.
pub(crate) fn of_act(ops: Vec<Op>) -> Vec<Op> {
    if !ops.iter().any(|op| op.operation().audited) {
        return ops;
    }
    let Some(call) = current() else { return ops };
    if ops.iter().any(|op| matches!(op.inner(), Op::Redrive { .. })) {
        call.is_of_ones.store(true, Ordering::Relaxed);
    }
    let make = || {
        let queue = call.act.queue.clone().or_else(|| call.queue.get().cloned());
        let name = call.name.get().unwrap_or(&call.act.name).clone();
        Arc::new(Act { name, queue, ..call.act.clone() })
    };
    let act = call.submitted.get_or_init(make);
    ops.into_iter().map(|op| op.of_act(act)).collect()
}

/// Adds the number of messages in an answer to the act of this task, if it is one.
pub(crate) fn count(reply: &Reply) {
    let Some(call) = current() else { return };
    let is_of_ones = call.is_of_ones.load(Ordering::Relaxed);
    let count = match reply {
        Reply::Count(count) => count.what,
        Reply::Change(changed) if is_of_ones => u64::from(changed.is_ok()),
        _ => return,
    };
    call.is_counted.store(true, Ordering::Relaxed);
    call.count.fetch_add(count, Ordering::Relaxed);
}
