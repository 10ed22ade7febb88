//! Fixed-width little-endian numbers at given offsets.

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut le = [0; 4];
    le.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(le)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut le = [0; 8];
    le.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(le)
}

pub(crate) fn u128_at(bytes: &[u8], at: usize) -> u128 {
    let mut le = [0; 16];
    le.copy_from_slice(&bytes[at..at + 16]);
    u128::from_le_bytes(le)
}

pub(crate) fn set_u32(bytes: &mut [u8], at: usize, n: u32) {
    bytes[at..at + 4].copy_from_slice(&n.to_le_bytes());
}

pub(crate) fn set_u64(bytes: &mut [u8], at: usize, n: u64) {
    bytes[at..at + 8].copy_from_slice(&n.to_le_bytes());
}

/// `n` rounded up to a multiple of eight.
pub(crate) fn align8(n: usize) -> usize {
    n.next_multiple_of(8)
}
