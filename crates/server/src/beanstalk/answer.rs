//! What the engine says to an operation of a session, or why it says nothing.

use duewheel::CallError;
use duewheel::core::engine::Reply;

pub(super) type EngineAnswer = Result<Reply, CallError>;
