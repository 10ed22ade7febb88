//! The move of dead messages into other queues, for jobs and for single requests.
//!
//! The queues may be in different shards, so a move has two steps: a copy enters the other queue, once for its
//! `dedupe_id`, and then the dead message is removed, once under its name ([`Op::once`]). So a caller that asks again,
//! after an answer was lost or on another node, learns whether it is the move that has removed the message. If others
//! have redriven, cancelled or purged it before, the copy is taken back.

use duewheel::CallError;
use duewheel::core::MessageId;
use duewheel::core::engine::{
    ChangeRefusal, Enqueue, EnqueueRefusal, Enqueued, InitialState, Op, Reply, SourceRow, Target,
};
use duewheel::core::name::QueueName;
use duewheel::core::store::Level;
use duewheel::core::time::WallMs;
use duewheel_shard::acting::without_act;
use duewheel_shard::client::Client;

/// The system queue under which removals are recorded. It has no messages.
const MOVES: &str = "#moves";

/// A dead message that moves into another queue.
#[derive(Clone, Debug)]
pub struct DeadMove {
    /// The message.
    pub id: MessageId,
    /// The time of its death. A message that has died at another time was redriven since, and is not moved.
    pub died: WallMs,
    /// The message that enters the other queue. Its `dedupe_id` names the move.
    pub copy: Enqueue,
    /// Whether the copy may enter. `false`: the message is not that dead one any more. A copy that has entered before is
    /// taken back, unless the message was removed for it; only its queue, key and `dedupe_id` count.
    pub enters: bool,
}

/// The message that a dead one has become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedDead {
    /// The copy; `None`: it has entered before, and was not asked for.
    pub id: Option<MessageId>,
    /// The durability that the removal has reached.
    pub level: Level,
}

/// Why a dead message was not moved.
#[derive(Clone, Debug)]
pub enum MoveFailure {
    /// The copy was refused, so the message stays dead.
    Copy(EnqueueRefusal),
    /// The message was not removed. If it is not found or not dead, others have changed it, and no copy is left.
    Removal(ChangeRefusal),
    /// There was no answer. Unless the outcome is that nothing was applied there may be a copy.
    Call(CallError),
}

/// The result of a step: the copy, if it is known.
type Copied = Result<Option<MessageId>, MoveFailure>;

/// Moves dead messages; one result for each, in order. The same moves may be asked for again.
///
/// # Cancel safety
/// When the future is dropped there may be copies of messages that are still dead, until the same moves are asked for
/// again.
pub async fn move_dead(client: &Client, moves: &[DeadMove]) -> Vec<Result<MovedDead, MoveFailure>> {
    let copies = enter_copies(client, moves).await;
    remove_moved(client, moves, copies).await
}

/// Lets the copies enter.
pub(super) async fn enter_copies(client: &Client, moves: &[DeadMove]) -> Vec<Copied> {
    let entering = moves.iter().filter(|one| one.enters);
    let entering = entering.map(|one| Op::Enqueue(Box::new(one.copy.clone()))).collect();
    let mut answers = replies(client, entering).await.into_iter();
    let copied = |one: &DeadMove| {
        if !one.enters {
            return Ok(None);
        }
        match Client::answer_to::<Enqueue>(answers.next()) {
            Ok(Ok(Enqueued { id, .. }) | Err(EnqueueRefusal::DedupeMismatch(id))) => Ok(Some(id)),
            Ok(Err(refusal)) => Err(MoveFailure::Copy(refusal)),
            Err(error) => Err(MoveFailure::Call(error)),
        }
    };
    moves.iter().map(copied).collect()
}

/// Removes the messages whose copies may have entered.
pub(super) async fn remove_moved(
    client: &Client,
    moves: &[DeadMove],
    copies: Vec<Copied>,
) -> Vec<Result<MovedDead, MoveFailure>> {
    let copied = moves.iter().zip(&copies).filter(|(_, copy)| copy.is_ok());
    let removals = copied.filter_map(|(one, _)| one.removal()).collect();
    let mut removed = replies(client, removals).await.into_iter();
    let mut ends = Vec::with_capacity(moves.len());
    for (one, copy) in moves.iter().zip(copies) {
        ends.push(match copy {
            Err(failure) => Err(failure),
            Ok(copy) => one.end(client, copy, removed.next().unwrap_or(Err(CallError::NO_ANSWER))).await,
        });
    }
    ends
}

/// Submits operations; one answer for each, in order.
async fn replies(client: &Client, ops: Vec<Op>) -> Vec<Result<Reply, CallError>> {
    let n = ops.len();
    match client.submit(ops) {
        Ok(_) if n == 0 => Vec::new(),
        Ok(pending) => pending.await,
        Err(error) => vec![Err(error); n],
    }
}

impl DeadMove {
    fn removal(&self) -> Option<Op> {
        let id = format!("{}/{}", self.copy.dedupe_id.as_deref()?, self.copy.queue).into();
        let row = SourceRow { source: QueueName::system(MOVES).ok()?, id };
        Some(Op::remove_dead(self.id, self.died, None).once(row))
    }

    /// The end of the move, after this answer to the removal of the message.
    async fn end(
        &self,
        client: &Client,
        copy: Option<MessageId>,
        removed: Result<Reply, CallError>,
    ) -> Result<MovedDead, MoveFailure> {
        let moved = |level| MovedDead { id: copy, level };
        match removed {
            Ok(Reply::Change(Ok(removed))) => Ok(moved(removed.level)),
            Ok(Reply::Recorded(_)) => Ok(moved(Level::default())),
            Ok(Reply::Change(Err(refusal @ (ChangeRefusal::NotFound | ChangeRefusal::NotDead)))) => {
                without_act(self.take_back(client, copy, refusal)).await
            }
            Ok(Reply::Change(Err(refusal))) => Err(MoveFailure::Removal(refusal)),
            Ok(_) => Err(MoveFailure::Call(CallError::Bug("a removal was answered as something else"))),
            Err(error) => Err(MoveFailure::Call(error.of_one_of_several())),
        }
    }

    /// Removes the copy of a message that others have changed, unless a consumer was quicker.
    async fn take_back(
        &self,
        client: &Client,
        copy: Option<MessageId>,
        why: ChangeRefusal,
    ) -> Result<MovedDead, MoveFailure> {
        let unknown = |error: CallError| MoveFailure::Call(error.of_one_of_several());
        let stand_in = Enqueue { begins: InitialState::Dead, ..self.copy.clone() };
        let id = match copy {
            Some(id) => id,
            // If it has not entered, a dead one takes its place, so that it does not enter later.
            None => match client.ask(stand_in).await.map_err(unknown)? {
                Ok(Enqueued { id, .. }) | Err(EnqueueRefusal::DedupeMismatch(id)) => id,
                Err(refusal) => return Err(MoveFailure::Copy(refusal)),
            },
        };
        match client.ask(Op::cancel(Target::Id(id))).await.map_err(unknown)? {
            Ok(_) => Err(MoveFailure::Removal(why)),
            Err(ChangeRefusal::NotFound | ChangeRefusal::Leased) => {
                Ok(MovedDead { id: Some(id), level: Level::default() })
            }
            Err(refusal) => Err(MoveFailure::Removal(refusal)),
        }
    }
}
