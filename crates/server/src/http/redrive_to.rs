//! Redrive into another queue: each dead message becomes a new one there.

use duewheel::core::engine::{Enqueue, EnqueueRefusal, Op, Target};
use duewheel::core::policy::OWN_DEDUPE;
use duewheel::core::store::Level;
use duewheel::core::{MessageId, QueueName, State};
use duewheel::same_content;

use super::message::room;
use super::{App, target_url};
use crate::auth::Caller;
use crate::error::{ErrorCode, Problem};

/// A dead message that became another one.
#[derive(Debug)]
pub(super) struct MovedMessage {
    pub(super) id: MessageId,
    pub(super) level: Level,
}

/// Enqueues the content of a dead message in `to`, and removes the message once the new one is durable. The same request
/// again, after one without an answer, finds the message gone, or finishes what was begun: the new message has a dedupe
/// id of the old one.
pub(super) async fn redrive_to(
    (app, caller): (&App, &Caller),
    from: &QueueName,
    id: MessageId,
    to: &QueueName,
) -> Result<MovedMessage, Problem> {
    let _room = room(app).await?;
    let found = app.ask(Op::get(Target::Id(id))).await?;
    let found = found.filter(|found| found.message.queue == *from).ok_or_else(Problem::message_not_found)?;
    if found.state != State::Dead {
        return Err(Problem::new(ErrorCode::NotDead, "the message is not dead"));
    }
    let copy = Enqueue {
        key: found.message.key.clone(),
        dedupe_id: Some(format!("{OWN_DEDUPE}redrive/{}", id.0).into()),
        ..same_content(&found, to.clone(), app.client.now().wall, 0)
    };
    if target_url::is_in(&copy) {
        target_url::check(app, caller, to).await?;
    }
    let moved = match app.ask(copy).await? {
        Ok(done) => MovedMessage { id: done.id, level: done.level },
        // It is there since an earlier call, before a setting of the old queue has changed.
        Err(EnqueueRefusal::DedupeMismatch(id)) => MovedMessage { id, level: Level::default() },
        Err(refusal) => return Err(Problem::from_enqueue(refusal, "to_queue")),
    };
    // Whatever has happened to the old message since, the new one is there.
    let removed = app.ask(Op::cancel(Target::Id(id))).await?;
    let removed = removed.map_err(|refusal| Problem::from_change(refusal, "to_queue"))?;
    Ok(MovedMessage { level: removed.level, ..moved })
}
