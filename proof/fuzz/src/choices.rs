//! The fuzzer's bytes as a sequence of decisions.

/// Reads decisions off bytes, front to back; zeros when they are used up.
#[derive(Clone, Debug)]
pub(crate) struct Choices<'a>(&'a [u8]);

/// Numbers at the edge of a range.
const EDGES: [u64; 20] = [
    0,
    1,
    2,
    7,
    8,
    127,
    128,
    255,
    4_095,
    4_096,
    65_535,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 53,
    1 << 60,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

impl<'a> Choices<'a> {
    /// Reads from the start of `bytes`.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Choices(bytes)
    }

    /// Whether all bytes are used up.
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// One byte.
    pub(crate) fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    /// A number below `n`, which is not 0, of as many bytes as `n` needs.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        let (mut drawn, mut most) = (0u64, 1u64);
        while most < n as u64 {
            drawn = drawn << 8 | u64::from(self.byte());
            most = most.saturating_mul(256);
        }
        usize::try_from(drawn % n as u64).unwrap_or(0)
    }

    /// One of several.
    pub(crate) fn pick<'b, T>(&mut self, of: &'b [T]) -> &'b T {
        &of[self.below(of.len())]
    }

    /// True once in `n` times.
    pub(crate) fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    /// Any number: a small one, one at an edge, or any eight bytes.
    pub(crate) fn number(&mut self) -> u64 {
        let first = self.byte();
        match first {
            0..=199 => u64::from(first),
            200..=219 => EDGES[usize::from(first - 200)],
            220..=235 => (0..2).fold(0, |n, _| n << 8 | u64::from(self.byte())),
            _ => (0..8).fold(0, |n, _| n << 8 | u64::from(self.byte())),
        }
    }

    /// Any number of 32 bits.
    pub(crate) fn number32(&mut self) -> u32 {
        let n = self.number();
        u32::try_from(n).unwrap_or_else(|_| u32::MAX - u32::try_from(n % 3).unwrap_or(0))
    }

    /// Up to `most` bytes unchanged; their number comes first.
    pub(crate) fn bytes(&mut self, most: usize) -> &'a [u8] {
        let n = self.below(most + 1).min(self.0.len());
        let (taken, rest) = self.0.split_at(n);
        self.0 = rest;
        taken
    }
}
