//! Operations on the messages that a caller's token covers; other ids are not found.

use duewheel::CallError;
use duewheel::core::engine::{Ask, Op};
use duewheel::core::{MessageId, QueueName};

use super::App;
use crate::error::Problem;

/// Applies an operation to those of `ids` that are in `queue`; the others are not found.
///
/// Two steps are safe: a message never changes its queue, and an id is never used again.
pub(crate) async fn of_queue<A: Ask>(
    app: &App,
    queue: &QueueName,
    ids: &[MessageId],
    ask: impl Fn(MessageId) -> A,
) -> Result<Vec<Result<A::Reply, Problem>>, Problem> {
    let asked = ids.iter().map(|id| (*id, ask(*id))).collect();
    apply_within(app, asked, |found| found == queue).await
}

/// Applies the operations whose message is in a queue that the token covers; the other ids are not found.
pub(crate) async fn apply_within<A: Ask>(
    app: &App,
    asked: Vec<(MessageId, A)>,
    reaches: impl Fn(&QueueName) -> bool,
) -> Result<Vec<Result<A::Reply, Problem>>, Problem> {
    let ids: Vec<MessageId> = asked.iter().map(|(id, _)| *id).collect();
    let within = within(app, &ids, |queue| queue.is_some_and(&reaches)).await?;
    let reached = |((_, asked), within): ((MessageId, A), &Result<bool, Problem>)| {
        matches!(within, Ok(true)).then_some(asked)
    };
    let asked = asked.into_iter().zip(&within).filter_map(reached).collect();
    let mut done = app.ask_many(asked).await?.into_iter();
    let result = |within| match within {
        Ok(true) => done.next().unwrap_or_else(|| Err(CallError::NO_ANSWER.into())),
        Ok(false) => Err(Problem::message_not_found()),
        Err(problem) => Err(problem),
    };
    Ok(within.into_iter().map(result).collect())
}

/// The result of `reaches` for the queue of each id; without a queue where no message is pending.
pub(crate) async fn within<T>(
    app: &App,
    ids: &[MessageId],
    reaches: impl Fn(Option<&QueueName>) -> T,
) -> Result<Vec<Result<T, Problem>>, Problem> {
    let looks = ids.iter().map(|id| Op::outline(*id)).collect();
    let outlines = app.ask_many(looks).await?.into_iter();
    Ok(outlines
        .map(|outline| outline.map(|outline| reaches(outline.ok().as_ref().map(|found| &found.queue))))
        .collect())
}
