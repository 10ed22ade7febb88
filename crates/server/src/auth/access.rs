//! Who may make a call, and what it is about.

use super::scope::Scope;

/// Who may make a call, where tokens are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessRule {
    /// Everybody: it tells nothing of queues and messages.
    Open,
    /// Every valid token, whatever its scopes.
    Identified,
    /// A token with this scope, that is for what the call is about.
    Needs(Scope, About),
}

/// What a call is about, and so which tokens that are limited to queues may make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// The queue in the path: it must be within reach.
    Queue,
    /// The message whose id is in the path: out of reach, it is not found.
    Message,
    /// The lease of the message whose id is in the path, which may have been acked: the handler looks at its queue, once it
    /// knows that the request is a good one.
    Lease,
    /// Several queues or messages: the handler leaves out what is out of reach.
    Several,
    /// The whole server: no limited token may.
    Server,
}
