//! The versions of the protocol between nodes, and their differences.
//!
//! A build speaks its own version and the one before it, so that a cluster can be upgraded node by node. Two nodes
//! speak the highest version that both know; without a common version they refuse each other, and both log it. A node
//! knows the version of its counterpart before it sends a request, so all differences between two versions are decided
//! where a frame is made or read, by the row of [`DIALECTS`].
//!
//! To make a new version: add a row, drop the oldest one, and put the difference where frames are made. New kinds of
//! operations and answers go behind the existing ones. What a row cannot express (the placement of messages, the
//! assignment of shards) must not differ between two versions that are in use together.

/// A version of the nodes' protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dialect {
    /// The number of the version; each is one higher than the one before.
    pub(crate) number: u32,
    /// The number of kinds of operations that it knows, counted from the first one of [`duewheel_core::engine::Op`].
    pub(crate) ops: u32,
    /// The details that are beside operations and answers.
    pub(crate) details: DetailsOnWire,
    /// The bytes behind the last part of each frame.
    pub(crate) tail: &'static [u8],
}

/// The details that are beside operations and answers: see [`super::details`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DetailsOnWire {
    /// The numbers of the queues of a reserve, and whether an enqueue was answered before.
    Reserves,
    /// Details of the version before, and limits of grants, spreads and expiries.
    Limits,
}

/// All versions that this build speaks, in order, without gaps.
pub(crate) static DIALECTS: &[Dialect] = &[
    Dialect { number: 5, ops: 35, details: DetailsOnWire::Reserves, tail: &[] },
    Dialect { number: 6, ops: 38, details: DetailsOnWire::Limits, tail: &[] },
];

/// The versions of a later build, for tests: the newest one of this build, and one that differs in every way that a row
/// can express.
#[cfg(any(test, debug_assertions))]
pub(crate) static NEXT: &[Dialect] =
    &[DIALECTS[1], Dialect { number: 7, ops: 39, details: DetailsOnWire::Limits, tail: &[5, 5] }];

/// The versions that a node speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SupportedVersions(pub(crate) &'static [Dialect]);

impl Default for SupportedVersions {
    fn default() -> Self {
        SupportedVersions(DIALECTS)
    }
}

impl SupportedVersions {
    /// The versions of this process. A debug build pretends to be the next version if the environment has
    /// `DUEWHEEL_TEST_NEXT_VERSION`, for tests of an upgrade with real processes; a release build ignores it.
    pub(crate) fn of_this_process() -> Self {
        #[cfg(debug_assertions)]
        if std::env::var_os("DUEWHEEL_TEST_NEXT_VERSION").is_some() {
            tracing::warn!("this process pretends to be of the next version, for a test");
            return SupportedVersions(NEXT);
        }
        SupportedVersions::default()
    }

    /// The lowest and the highest version.
    pub(crate) fn range(self) -> (u32, u32) {
        let number = |dialect: Option<&Dialect>| dialect.map_or(0, |dialect| dialect.number);
        (number(self.0.first()), number(self.0.last()))
    }

    /// The highest version that is in `range`, too.
    pub(crate) fn common(self, range: (u32, u32)) -> Option<&'static Dialect> {
        self.0.iter().rev().find(|dialect| (range.0..=range.1).contains(&dialect.number))
    }
}

impl Dialect {
    /// Ends a frame.
    pub(super) fn close(&self, mut frame: Vec<u8>) -> Vec<u8> {
        frame.extend_from_slice(self.tail);
        frame
    }

    /// Whether these bytes end a frame.
    pub(super) fn ends(&self, rest: &[u8]) -> bool {
        rest == self.tail
    }

    /// Whether this version knows the kind of an operation, given its bytes in a frame.
    pub(super) fn knows(&self, op: &[u8]) -> bool {
        postcard::take_from_bytes::<u32>(op).is_ok_and(|(kind, _)| kind < self.ops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_builds_speak_the_highest_version_that_both_know() {
        let (this, next) = (SupportedVersions(DIALECTS), SupportedVersions(NEXT));
        let later = SupportedVersions(&NEXT[1..]);
        let of =
            |a: SupportedVersions, b: SupportedVersions| a.common(b.range()).map(|dialect| dialect.number);
        assert_eq!(of(this, this), Some(6));
        assert_eq!((of(this, next), of(next, this)), (Some(6), Some(6)));
        assert_eq!((of(next, next), of(next, later)), (Some(7), Some(7)));
        assert_eq!((of(this, later), of(later, this)), (None, None));
    }

    #[test]
    fn the_rows_follow_each_other() {
        for rows in [DIALECTS, NEXT] {
            assert!(
                rows.windows(2).all(|two| two[1].number == two[0].number + 1 && two[1].ops >= two[0].ops)
            );
        }
        assert_eq!(DIALECTS.last().map(|dialect| dialect.number), Some(super::super::PROTOCOL));
    }
}
