//! Positions at which bytes are cut, to check that a part of them is not taken for the whole.

use duewheel_core::store::conformance::Dice;

/// Bytes up to this length are cut at every position.
const SHORT: usize = 40;
/// Longer ones are cut at this number of positions at either end,
const END: usize = 12;
/// and at this number of random positions, which the bytes determine.
const DRAWN: usize = 12;

/// Lengths of parts of `bytes`, from their start; none is all of them. The same for the same bytes.
pub(crate) fn cuts(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let length = bytes.len();
    let ends = if length <= SHORT { 0..length } else { 0..END };
    let last = if length <= SHORT { 0..0 } else { length - END..length };
    let drawn = if length <= SHORT { 0 } else { DRAWN };
    let mut dice = Dice::new(u64::from(crc32c::crc32c(bytes)));
    let drawn = (0..drawn).map(move |_| usize::try_from(dice.below(length as u64)).unwrap_or(0));
    ends.chain(last).chain(drawn)
}
