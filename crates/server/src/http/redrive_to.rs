//! Redrive into another queue: each dead message becomes a new one there.

use duewheel::core::engine::{ChangeRefusal, Enqueue, EnqueueRefusal, Op, Target};
use duewheel::core::policy::OWN_DEDUPE;
use duewheel::core::store::Level;
use duewheel::core::{MessageId, QueueName, State, WallMs};
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
    let not_dead = || Problem::new(ErrorCode::NotDead, "the message is not dead");
    let (State::Dead, Some((_, died))) = (found.state, found.dead) else { return Err(not_dead()) };
    let copy = Enqueue {
        key: found.message.key.clone(),
        // Of this death: once redriven in its own queue the message may die, and be moved, again.
        dedupe_id: Some(format!("{OWN_DEDUPE}redrive/{}/{}", id.0, died.0).into()),
        ..same_content(&found, to.clone(), app.client.now().wall, 0)
    };
    if target_url::is_in(&copy) {
        target_url::check(app, caller, to).await?;
    }
    let moved = match app.ask(copy).await? {
        Ok(done) => MovedMessage { id: done.id, level: done.level },
        // An earlier call has made the copy, and a setting of the old queue has changed since then.
        Err(EnqueueRefusal::DedupeMismatch(id)) => MovedMessage { id, level: Level::default() },
        Err(refusal) => return Err(Problem::from_enqueue(refusal, "to_queue")),
    };
    finish(app, (id, died), moved).await
}

/// Removes the dead message of which there is a copy now. If it has been redriven in its own queue since, the copy is
/// cancelled, unless a consumer was quicker.
async fn finish(
    app: &App,
    (id, died): (MessageId, WallMs),
    moved: MovedMessage,
) -> Result<MovedMessage, Problem> {
    match app.ask(Op::remove_dead(id, died)).await? {
        Ok(removed) => Ok(MovedMessage { level: removed.level, ..moved }),
        Err(ChangeRefusal::NotDead) => match app.ask(Op::cancel(Target::Id(moved.id))).await? {
            Ok(_) => Err(Problem::from_change(ChangeRefusal::NotDead, "to_queue")),
            Err(ChangeRefusal::NotFound | ChangeRefusal::Leased) => Ok(moved),
            Err(refusal) => Err(Problem::from_change(refusal, "to_queue")),
        },
        Err(refusal) => Err(Problem::from_change(refusal, "to_queue")),
    }
}
