//! The replacement of the secret by which nodes authenticate each other.

use std::time::Duration;

/// A replacement of the nodes' secret in progress: both the new secret and the former one are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecretRotation {
    /// Whether this call has begun it; otherwise an earlier one was interrupted, and its new secret is valid.
    pub is_new: bool,
    /// How long to wait before the end of the rotation: until then a node may know the former secret alone.
    pub wait: Duration,
}
