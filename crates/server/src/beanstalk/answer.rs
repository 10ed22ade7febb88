//! The engine's answer to an operation of a session, or the reason why there is none.

use duewheel::CallError;
use duewheel::core::engine::Reply;

pub(super) type EngineAnswer = Result<Reply, CallError>;
