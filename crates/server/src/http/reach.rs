//! Operations on messages that are within a caller's reach; under other ids nothing is found.

use duewheel::core::engine::{Op, Reply};
use duewheel::core::{MessageId, QueueName};

use super::App;
use crate::error::Problem;

/// Applies an operation to those of `ids` that are in `queue`; the others are not found there.
///
/// Two steps are safe: a message never changes its queue, and an id is never used again.
pub(crate) async fn of_queue(
    app: &App,
    queue: &QueueName,
    ids: &[MessageId],
    op: impl Fn(MessageId) -> Op,
) -> Result<Vec<Result<Reply, Problem>>, Problem> {
    let ops = ids.iter().map(|id| (*id, op(*id))).collect();
    apply_within(app, ops, |found| found == queue).await
}

/// Applies those operations whose message is in a queue within reach; under the other ids nothing is found.
pub(crate) async fn apply_within(
    app: &App,
    ops: Vec<(MessageId, Op)>,
    reaches: impl Fn(&QueueName) -> bool,
) -> Result<Vec<Result<Reply, Problem>>, Problem> {
    let ids: Vec<MessageId> = ops.iter().map(|(id, _)| *id).collect();
    let within = within(app, &ids, |queue| queue.is_some_and(&reaches)).await?;
    let reached = |((_, op), within): ((MessageId, Op), &Result<bool, Problem>)| {
        matches!(within, Ok(true)).then_some(op)
    };
    let ops = ops.into_iter().zip(&within).filter_map(reached).collect();
    let mut done = app.ask_many(ops).await?.into_iter();
    let result = |within| match within {
        Ok(true) => done.next().unwrap_or(Err(Problem::internal())),
        Ok(false) => Err(Problem::message_not_found()),
        Err(problem) => Err(problem),
    };
    Ok(within.into_iter().map(result).collect())
}

/// What `reaches` says of the queue of each id: of none where no message is pending under it.
pub(crate) async fn within<T>(
    app: &App,
    ids: &[MessageId],
    reaches: impl Fn(Option<&QueueName>) -> T,
) -> Result<Vec<Result<T, Problem>>, Problem> {
    let looks = ids.iter().map(|id| Op::Outline { id: *id }).collect();
    let outlines = app.ask_many(looks).await?.into_iter();
    let look = |outline: Result<Reply, Problem>| match outline? {
        Reply::Change(Ok(outline)) => Ok(reaches(Some(&outline.queue))),
        Reply::Change(Err(_)) => Ok(reaches(None)),
        _ => Err(Problem::internal()),
    };
    Ok(outlines.map(look).collect())
}
