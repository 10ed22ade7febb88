//! Pieces of files that wait to be written, and pieces that were read.

use crate::medium::Piece;

/// Largest size of a piece, in bytes.
pub const MAX_PIECE: usize = 1024 * 1024;

/// Bytes that wait to be written.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    rows: Vec<(u64, Vec<u8>)>,
    bytes: usize,
    /// No piece begins before this offset and ends behind it; 0: any may.
    apart: u64,
}

impl Pieces {
    /// No pieces, of a file whose first bytes, up to this offset, are written again: they are a piece of their own.
    pub(crate) fn with_head(apart: u64) -> Self {
        Pieces { apart, ..Pieces::default() }
    }

    /// Takes what waits, in the order in which it was written.
    pub(crate) fn take(&mut self) -> Vec<Piece> {
        self.bytes = 0;
        std::mem::take(&mut self.rows).into_iter().map(|(at, bytes)| Piece { at, bytes }).collect()
    }

    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds bytes at an offset: behind the last piece if they follow it, and in place of what waits at the same offset.
    pub(crate) fn write(&mut self, mut at: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = self.write_some(at, bytes);
            at += taken as u64;
            bytes = &bytes[taken..];
        }
    }

    fn write_some(&mut self, at: u64, mut bytes: &[u8]) -> usize {
        if at < self.apart {
            let before = usize::try_from(self.apart - at).unwrap_or(usize::MAX);
            bytes = &bytes[..bytes.len().min(before)];
        }
        if let Some((from, row)) = self.rows.last_mut()
            && *from + row.len() as u64 == at
            && row.len() < MAX_PIECE
            && at != self.apart
        {
            let taken = bytes.len().min(MAX_PIECE - row.len());
            row.extend_from_slice(&bytes[..taken]);
            self.bytes += taken;
            return taken;
        }
        let taken = bytes.len().min(MAX_PIECE);
        let bytes = &bytes[..taken];
        // No write may have two pieces at one offset.
        if let Some((_, row)) = self.rows.iter_mut().find(|(from, _)| *from == at) {
            let kept = row.len().min(taken);
            row[..kept].copy_from_slice(&bytes[..kept]);
            row.extend_from_slice(&bytes[kept..]);
            self.bytes += taken - kept;
        } else {
            self.rows.push((at, bytes.to_vec()));
            self.bytes += taken;
        }
        taken
    }

    /// Puts what waits over what was read.
    pub(crate) fn lay_over(&self, buffer: &mut [u8], at: u64) {
        for (from, row) in &self.rows {
            lay_over(buffer, at, *from, row);
        }
    }
}

/// Copies the part of a piece at `from` that a buffer, of the bytes from `at` on, covers.
pub fn lay_over(buffer: &mut [u8], at: u64, from: u64, row: &[u8]) {
    let end = at + buffer.len() as u64;
    let (begin, stop) = (from.max(at), (from + row.len() as u64).min(end));
    if begin >= stop {
        return;
    }
    let index = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    buffer[index(begin - at)..index(stop - at)]
        .copy_from_slice(&row[index(begin - from)..index(stop - from)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_pieces_join_within_limit() {
        let mut pieces = Pieces::default();
        pieces.write(0, &[1; 10]);
        pieces.write(10, &vec![2; MAX_PIECE]);
        pieces.write(4_000_000, &[3; 5]);
        pieces.write(0, &[4; 12]);
        assert_eq!(pieces.bytes(), 10 + MAX_PIECE + 5);
        let mut read = vec![9; 20];
        pieces.lay_over(&mut read, 0);
        assert_eq!(read, [&[4; 12][..], &[2; 8]].concat());
        let pieces = pieces.take();
        let lengths: Vec<_> = pieces.iter().map(|piece| (piece.at, piece.bytes.len())).collect();
        assert_eq!(lengths, [(0, MAX_PIECE), (MAX_PIECE as u64, 10), (4_000_000, 5)]);
    }

    /// Story: a header and the groups behind it were one piece. When the header was written again, PostgreSQL replaced
    /// the whole piece.
    #[test]
    fn head_is_separate_piece() {
        let mut pieces = Pieces::with_head(100);
        let lengths = |pieces: &mut Pieces| {
            pieces.take().iter().map(|piece| (piece.at, piece.bytes.len())).collect::<Vec<_>>()
        };
        pieces.write(0, &[1; 100]);
        pieces.write(100, &[2; 30]);
        pieces.write(130, &[3; 30]);
        assert_eq!(lengths(&mut pieces), [(0, 100), (100, 60)]);
        pieces.write(0, &[1; 130]);
        assert_eq!((lengths(&mut pieces), pieces.bytes()), (vec![(0, 100), (100, 30)], 0));
        pieces.write(130, &[1; 30]);
        assert_eq!(lengths(&mut pieces), [(130, 30)]);
    }

    #[test]
    fn parts_of_rows_are_laid_over() {
        let mut buffer = [0; 10];
        lay_over(&mut buffer, 100, 95, &[1; 7]);
        lay_over(&mut buffer, 100, 108, &[2; 7]);
        lay_over(&mut buffer, 100, 110, &[3; 7]);
        lay_over(&mut buffer, 100, 10, &[3; 90]);
        assert_eq!(buffer, [1, 1, 0, 0, 0, 0, 0, 0, 2, 2]);
    }
}
