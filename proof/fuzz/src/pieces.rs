//! The pieces of a file that have a checksum of their own, by `docs/format.md`: implemented again from that page, so
//! that a mistake in the store does not hide itself here.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use crc32c::{crc32c, crc32c_append};

/// A part of a file with a checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The position of the piece.
    pub(crate) range: Range<usize>,
    /// Bytes in front of its payload; 0 for a head of a file, which has none.
    pub(crate) head: usize,
}

/// The first bytes of a file: its head, which has its checksum at 12.
fn file_head(name: &str, length: usize) -> usize {
    match folder(name) {
        "journal" => 4_096,
        "runs" | "state" => 64,
        _ => length,
    }
}

fn folder(name: &str) -> &str {
    name.split_once('/').map_or("", |(folder, _)| folder)
}

/// Bytes of the head of a frame or block.
fn block_head(name: &str) -> usize {
    if folder(name) == "journal" { 56 } else { 32 }
}

/// The incarnation, which marks the frames of a segment as its own.
pub(crate) fn incarnation(name: &str, bytes: &[u8]) -> Option<u64> {
    (folder(name) == "journal" && bytes.len() >= 32).then(|| u64_at(bytes, 24))
}

/// The pieces one after the other, as far as their lengths are possible.
pub(crate) fn walk(name: &str, bytes: &[u8]) -> Vec<Piece> {
    let head = file_head(name, bytes.len());
    if bytes.len() < head || head < 16 {
        return Vec::new();
    }
    let mut pieces = vec![Piece { range: 0..head, head: 0 }];
    let (mut at, head) = (head, block_head(name));
    while at + head <= bytes.len() && bytes[at..at + 4] != [0; 4] {
        let end = block_end(bytes, at, head);
        if end > bytes.len() {
            break;
        }
        pieces.push(Piece { range: at..end, head });
        at = end;
    }
    pieces
}

/// Hashes of everything in a file whose checksum is correct, wherever it is.
pub(crate) fn of(name: &str, bytes: &[u8], incarnation: Option<u64>) -> Vec<u64> {
    let mut hashes = Vec::new();
    let mut note = |piece: &[u8]| {
        let mut hasher = DefaultHasher::new();
        piece.hash(&mut hasher);
        hashes.push(hasher.finish());
    };
    let length = file_head(name, bytes.len());
    if bytes.len() >= length && length >= 16 && u32_at(bytes, 12) == head_checksum(&bytes[..length]) {
        note(&bytes[..length]);
    }
    let head = block_head(name);
    if folder(name).is_empty() {
        return hashes;
    }
    for at in (0..bytes.len().saturating_sub(head - 1)).step_by(8) {
        if incarnation.is_some_and(|incarnation| u64_at(bytes, at + 16) != incarnation) {
            continue;
        }
        let end = block_end(bytes, at, head);
        if end <= bytes.len() && u32_at(bytes, at) == crc32c(&bytes[at + 4..end]) {
            note(&bytes[at..end]);
        }
    }
    hashes
}

/// Corrects the checksum of a piece.
pub(crate) fn seal(bytes: &mut [u8], piece: &Piece) {
    let Some(part) = bytes.get_mut(piece.range.clone()) else { return };
    let (at, crc) = if piece.head == 0 { (12, head_checksum(part)) } else { (0, crc32c(&part[4..])) };
    part[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

fn head_checksum(head: &[u8]) -> u32 {
    crc32c_append(crc32c(&head[..12]), &head[16..])
}

fn block_end(bytes: &[u8], at: usize, head: usize) -> usize {
    at + (head + u32_at(bytes, at + 4) as usize).next_multiple_of(8)
}

/// Four bytes as a number.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |n, b| n << 8 | u32::from(*b))
}

/// Eight bytes as a number.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}
