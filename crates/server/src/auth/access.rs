//! The permission that a call needs, and the queues and messages that it concerns.

use super::scope::Scope;

/// The permission that a call needs where tokens are required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessRule {
    /// No access is needed: the call shows nothing of queues and messages.
    Open,
    /// A valid token with any scopes.
    Identified,
    /// A token with this scope that covers what the call concerns.
    Needs(Scope, About),
}

/// The subject of a call, which determines whether a token that is limited to queues may make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// The queue in the path: the token must cover it.
    Queue,
    /// The message whose id is in the path: if the token does not cover its queue, the message is not found.
    Message,
    /// The message whose id is in the path, also one that is done: the handler checks its queue, and if the token does not
    /// cover it, the message is not found.
    Recalled,
    /// The lease of the message whose id is in the path. The message may have been acked already, so the handler checks
    /// its queue once the request has been validated.
    Lease,
    /// Several queues or messages: the handler leaves out those that the token does not cover.
    Several,
    /// The whole server: limited tokens may not make the call.
    Server,
}
