//! The versions of the nodes' protocol.
//!
//! Two nodes speak the highest version that both know; without a common one they refuse each other, and both log it. A
//! new version is needed where a change of [`super::wire`] cannot be a tagged field or a further kind of operation or
//! answer, and where nodes must place messages or assign shards in another way. A build that has one also speaks the
//! version before, so that a cluster can be upgraded node by node.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The newest version.
pub(crate) const PROTOCOL: u32 = 1;

/// The versions that a node speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SupportedVersions {
    pub(crate) lowest: u32,
    pub(crate) highest: u32,
}

/// The versions of a later build, for tests.
#[cfg(any(test, debug_assertions))]
pub(crate) const NEXT: SupportedVersions = SupportedVersions { lowest: PROTOCOL, highest: PROTOCOL + 1 };

impl Default for SupportedVersions {
    fn default() -> Self {
        SupportedVersions { lowest: PROTOCOL, highest: PROTOCOL }
    }
}

impl fmt::Display for SupportedVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the versions {} to {}", self.lowest, self.highest)
    }
}

impl SupportedVersions {
    /// The versions of this process.
    pub(crate) fn of_this_process() -> Self {
        #[cfg(debug_assertions)]
        if is_next() {
            tracing::warn!("this process pretends to be of the next version, for a test");
            return NEXT;
        }
        SupportedVersions::default()
    }

    /// The highest version that `other` also has.
    pub(crate) fn common(self, other: SupportedVersions) -> Option<u32> {
        let highest = self.highest.min(other.highest);
        (highest >= self.lowest.max(other.lowest)).then_some(highest)
    }
}

/// Whether this process pretends to be a later build, for tests of an upgrade with real processes: it speaks one more
/// version, and sends a field that this build does not know with each operation and answer. A release build never does.
#[cfg(debug_assertions)]
pub(crate) fn is_next() -> bool {
    static IS_NEXT: std::sync::LazyLock<bool> =
        std::sync::LazyLock::new(|| std::env::var_os("DUEWHEEL_TEST_NEXT_VERSION").is_some());
    *IS_NEXT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn highest_common_version_is_spoken() {
        let this = SupportedVersions::default();
        let later = SupportedVersions { lowest: PROTOCOL + 1, highest: PROTOCOL + 2 };
        let turned = SupportedVersions { lowest: PROTOCOL + 1, highest: 0 };
        for (a, b, common) in [
            (this, this, Some(PROTOCOL)),
            (this, NEXT, Some(PROTOCOL)),
            (NEXT, NEXT, Some(PROTOCOL + 1)),
            (NEXT, later, Some(PROTOCOL + 1)),
            (this, later, None),
            (NEXT, turned, None),
        ] {
            assert_eq!((a.common(b), b.common(a)), (common, common), "{a}, {b}");
        }
    }
}
