//! A leaf of an index: sorted entries of `C` numbers, each column as wide as its largest difference from its least
//! value needs, so that an entry is found by halving without decoding the others.
//!
//! | at | bytes | |
//! |---|---|---|
//! | 0 | 8 *C* | the least value of each column |
//! | 8 *C* | *C* | bytes of each column, 0 to 8 |
//! | 9 *C* | | entries: of each column, value minus least value |

use crate::le::u64_at;

use super::block::{BLOCK, HEAD};

/// An entry of an index.
pub(crate) type LeafEntry<const C: usize> = [u64; C];

/// Collects entries for a leaf.
#[derive(Debug)]
pub(crate) struct LeafWriter<const C: usize> {
    entries: Vec<LeafEntry<C>>,
    least: LeafEntry<C>,
    most: LeafEntry<C>,
}

/// The layout of the entries in the payload of a leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeafLayout<const C: usize> {
    least: LeafEntry<C>,
    width: [usize; C],
    stride: usize,
    pub(crate) len: usize,
}

impl<const C: usize> LeafWriter<C> {
    pub(crate) fn new() -> Self {
        LeafWriter { entries: Vec::new(), least: [u64::MAX; C], most: [0; C] }
    }

    pub(crate) fn first(&self) -> Option<&LeafEntry<C>> {
        self.entries.first()
    }

    /// Adds an entry if it fits.
    pub(crate) fn push(&mut self, entry: LeafEntry<C>) -> bool {
        let (mut least, mut most, mut stride) = (self.least, self.most, 0);
        for ((n, least), most) in entry.iter().zip(&mut least).zip(&mut most) {
            *least = *n.min(least);
            *most = *n.max(most);
            stride += width(*most - *least);
        }
        if HEAD + 9 * C + stride * (self.entries.len() + 1) > BLOCK || self.entries.len() == BLOCK {
            return false;
        }
        (self.least, self.most) = (least, most);
        self.entries.push(entry);
        true
    }

    /// Writes the payload, and resets the writer. Returns the number of entries.
    pub(crate) fn write(&mut self, out: &mut Vec<u8>) -> u32 {
        let widths: [usize; C] = std::array::from_fn(|i| width(self.most[i].saturating_sub(self.least[i])));
        for least in self.least {
            out.extend_from_slice(&least.to_le_bytes());
        }
        for width in widths {
            out.push(u8::try_from(width).unwrap_or(8));
        }
        for entry in &self.entries {
            for ((n, least), width) in entry.iter().zip(self.least).zip(widths) {
                out.extend_from_slice(&(n - least).to_le_bytes()[..width]);
            }
        }
        let count = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        self.entries.clear();
        (self.least, self.most) = ([u64::MAX; C], [0; C]);
        count
    }
}

impl<const C: usize> LeafLayout<C> {
    /// Reads the layout of a payload, and checks its length.
    pub(crate) fn read(payload: &[u8], entries: u32) -> Option<Self> {
        let widths = payload.get(8 * C..9 * C)?;
        let mut shape = LeafLayout { least: [0; C], width: [0; C], stride: 0, len: entries as usize };
        for (i, width) in widths.iter().enumerate() {
            shape.least[i] = u64_at(payload, 8 * i);
            shape.width[i] = usize::from(*width);
            shape.stride += shape.width[i];
        }
        let fits = shape.width.iter().all(|width| *width <= 8)
            && shape.len <= BLOCK
            && 9 * C + shape.stride * shape.len == payload.len();
        fits.then_some(shape)
    }

    /// The entry at this position, which is below `len`.
    #[inline]
    pub(crate) fn entry(&self, payload: &[u8], position: usize) -> LeafEntry<C> {
        let mut at = 9 * C + position * self.stride;
        let mut entry = self.least;
        for (n, width) in entry.iter_mut().zip(self.width) {
            // A damaged leaf has no such sum; whatever comes of it is checked against the row it leads to.
            *n = n.wrapping_add(number(payload, at, width));
            at += width;
        }
        entry
    }

    /// The first position whose entry is not below `wanted`.
    #[inline]
    pub(crate) fn lower_bound(&self, payload: &[u8], wanted: &LeafEntry<C>) -> usize {
        let (mut low, mut high) = (0, self.len);
        while low < high {
            let middle = low.midpoint(high);
            if self.entry(payload, middle) < *wanted {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// Number of bytes of a number.
#[inline]
fn width(n: u64) -> usize {
    (64 - n.leading_zeros()).div_ceil(8) as usize
}

/// A number of `width` bytes.
#[inline]
fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    if width == 0 {
        return 0;
    }
    if at + 8 <= bytes.len() {
        return u64_at(bytes, at) & (u64::MAX >> (64 - 8 * width));
    }
    bytes[at..at + width].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}
