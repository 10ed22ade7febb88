//! Calls that are acts ([`duewheel_core::act`]): operations that a task submits during the call are part of its act.
//!
//! The act belongs to the task, not to a client: so a handler submits operations through whatever it uses, and none of
//! them is left out.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use duewheel_core::act::Act;
use duewheel_core::engine::{Op, Reply};
use duewheel_core::name::QueueName;

tokio::task_local! {
    static CALL: Option<Arc<ActCall>>;
}

/// The act of a task.
#[derive(Debug)]
struct ActCall {
    /// The act, with the number of messages in the answers so far.
    act: Mutex<Act>,
    /// The act as the first operation has it.
    submitted: OnceLock<Arc<Act>>,
    /// Whether it changes messages one by one, so that each answer counts: it redrives them, or brings new ones.
    is_redrive: OnceLock<bool>,
}

impl ActCall {
    fn act(&self) -> MutexGuard<'_, Act> {
        self.act.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submitted(&self) -> &Arc<Act> {
        self.submitted.get_or_init(|| Arc::new(self.act().clone()))
    }
}

/// Runs `call` as an act. The second value is the act, if an operation was part of it, with the number of messages in
/// the answers.
///
/// # Cancel safety
/// As `call`. Operations that a task submits which `call` spawns are not part of the act.
pub async fn acting<F: Future>(act: Act, call: F) -> (F::Output, Option<Act>) {
    let (act, submitted, is_redrive) = (Mutex::new(act), OnceLock::new(), OnceLock::new());
    let acted = Arc::new(ActCall { act, submitted, is_redrive });
    let output = CALL.scope(Some(Arc::clone(&acted)), call).await;
    (output, acted.submitted.get().map(|_| acted.act().clone()))
}

/// Runs `call`, which tidies up and is no part of the act of this task.
///
/// # Cancel safety
/// As `call`.
pub async fn without_act<F: Future>(call: F) -> F::Output {
    CALL.scope(None, call).await
}

/// Reports an act, unless it has changed nothing: one line when it is answered, and one when its job has ended.
/// `failed`: a part of it may have no effect.
pub fn report(acted: &Act, failed: Option<&str>) {
    let Act { name, object, token, address, request_id, job, count, refused, .. } = acted;
    if (job, *count, failed) == (&None, Some(0), None) {
        return;
    }
    let (token, address, job) = (token.as_deref(), address.as_deref(), job.as_deref());
    let (act, object, request_id) = (&**name, &**object, &**request_id);
    tracing::info!(act, object, count, refused, job, token, address, request_id, failed, "act");
}

/// The act of this task, if it is one.
fn current() -> Option<Arc<ActCall>> {
    CALL.try_with(Option::clone).ok().flatten()
}

/// States the queue that the act of this task concerns, if it is one: before its first operation.
pub fn concerns(queue: &QueueName) {
    if let Some(call) = current() {
        call.act().queue.get_or_insert_with(|| queue.clone()); // the first one counts
    }
}

/// Names the act of this task, if it is one, by more than its request is called: before its first operation.
pub fn is_called(name: &str) {
    if let Some(call) = current() {
        call.act().name = name.into();
    }
}

/// States the job that does the act of this task, and returns the act, if it is one: before its first operation.
pub fn is_done_by(job: &str) -> Option<Arc<Act>> {
    let call = current()?;
    call.act().job = Some(job.into());
    Some(Arc::clone(call.submitted()))
}

/// Makes operations part of the act of this task, if it is one.
pub(crate) fn of_act(ops: Vec<Op>) -> Vec<Op> {
    if !ops.iter().any(|op| op.operation().audited) {
        return ops;
    }
    let Some(call) = current() else { return ops };
    if let Some(op) = ops.iter().find(|op| op.is_of_one()) {
        let _ = call.is_redrive.set(matches!(op.inner(), Op::Redrive { .. })); // an act does one of both
    }
    ops.into_iter().map(|op| op.of_act(call.submitted())).collect()
}

/// Adds the number of messages in an answer to the act of this task, if it is one.
pub(crate) fn count(reply: &Reply) {
    let Some(call) = current() else { return };
    let count = match (reply, call.is_redrive.get()) {
        (Reply::Count(count), _) => count.what,
        (Reply::Change(changed), Some(true)) => u64::from(changed.is_ok()),
        (Reply::Enqueue(entered), Some(false)) => {
            u64::from(entered.as_ref().is_ok_and(|entered| entered.is_new()))
        }
        _ => return,
    };
    *call.act().count.get_or_insert(0) += count;
}
