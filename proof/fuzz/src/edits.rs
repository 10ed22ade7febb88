//! Damage to files as the fuzzer decides it: with checksums left unchanged, or corrected so that it passes them.

use duewheel_core::record::Writer;

use crate::choices::Choices;
use crate::disk::MemDisk;
use crate::pieces::{self, Piece, u32_at, u64_at};
use crate::wild;

/// The largest number of changes of one script.
const MOST: usize = 24;

/// Changes files of a folder: those whose names start with one of `scope`.
pub(crate) fn apply(disk: &MemDisk, scope: &[&str], c: &mut Choices<'_>) {
    let names: Vec<String> =
        disk.names().into_iter().filter(|name| scope.iter().any(|scope| name.starts_with(scope))).collect();
    if names.is_empty() {
        return;
    }
    for _ in 0..MOST {
        if c.is_over() {
            return;
        }
        let name = c.pick(&names);
        let mut bytes = disk.read(name).to_vec();
        let other = disk.read(c.pick(&names).as_str());
        edit(name, &mut bytes, &other, c);
        disk.overwrite(name, bytes);
        if c.once_in(32) {
            list_as_it_is(disk);
        }
    }
}

fn edit(name: &str, bytes: &mut Vec<u8>, other: &[u8], c: &mut Choices<'_>) {
    let walk = pieces::walk(name, bytes);
    // Bytes behind the last piece have no meaning, except for the first of them.
    let used = walk.last().map_or(bytes.len(), |last| last.range.end + 128).min(bytes.len());
    // Without a head there are no pieces.
    match c.below(if walk.is_empty() { 7 } else { 14 }) {
        0 => {
            if let Some(byte) = at(bytes, used, 1, c) {
                byte[0] ^= c.byte().max(1);
            }
        }
        1 => {
            if let Some(field) = at(bytes, used, 4, c) {
                field.copy_from_slice(&c.number32().to_le_bytes());
            }
        }
        2 => {
            if let Some(field) = at(bytes, used, 8, c) {
                field.copy_from_slice(&c.number().to_le_bytes());
            }
        }
        3 => {
            let new = c.bytes(64);
            if let Some(part) = at(bytes, used, new.len(), c) {
                part.copy_from_slice(new);
            }
        }
        4 => {
            let length = c.below(1 + 2 * 512);
            let from = c.below(other.len() + 1) & !7;
            let from = &other[from.min(other.len())..(from + length).min(other.len())];
            let to = c.below(bytes.len() + 1) & !7;
            let to = &mut bytes[to..];
            let length = from.len().min(to.len());
            to[..length].copy_from_slice(&from[..length]);
        }
        5 => {
            let length = c.below(512);
            let with = *c.pick(&[0, 0xff]);
            if let Some(part) = at(bytes, used, length, c) {
                part.fill(with);
            }
        }
        6 => {
            let length = c.below(bytes.len() + 64);
            bytes.resize(length, 0);
        }
        7 => payload(bytes, &walk, c, |part, c| {
            let new = c.bytes(64);
            let from = c.below(part.len() + 1);
            for (to, new) in part[from..].iter_mut().zip(new) {
                *to = *new;
            }
        }),
        8 => payload(bytes, &walk, c, |part, c| {
            let from = c.below(part.len() + 1);
            let mut number = Writer::default();
            number.varint(c.number());
            let until = (from + c.below(10)).min(part.len());
            part.splice(from..until, number.bytes);
        }),
        9 => {
            let piece = c.pick(&walk).clone();
            let fields = if piece.head == 0 { piece.range.len().min(160) } else { piece.head };
            let field = piece.range.start + 4 * c.below(fields / 4);
            if c.once_in(2) {
                bytes[field..field + 4].copy_from_slice(&c.number32().to_le_bytes());
            } else if field + 8 <= bytes.len() {
                bytes[field..field + 8].copy_from_slice(&c.number().to_le_bytes());
            }
            pieces::seal(bytes, &piece);
        }
        10 => group(name, bytes, &walk, c),
        11 => walk.iter().for_each(|piece| pieces::seal(bytes, piece)),
        12 => {
            // The same piece is repeated at another position.
            let piece = c.pick(&walk).range.clone();
            let to = c.pick(&walk).range.end;
            let copy = bytes[piece].to_vec();
            let end = (to + copy.len()).min(bytes.len());
            bytes[to..end].copy_from_slice(&copy[..end - to]);
        }
        _ => {
            // Two pieces of the same length are exchanged.
            let (a, b) = (c.pick(&walk).range.clone(), c.pick(&walk).range.clone());
            if a.len() == b.len() && (a.end <= b.start || b.end <= a.start) {
                let (of_a, of_b) = (bytes[a.clone()].to_vec(), bytes[b.clone()].to_vec());
                bytes[a].copy_from_slice(&of_b);
                bytes[b].copy_from_slice(&of_a);
            }
        }
    }
}

/// `length` bytes somewhere in what is used.
fn at<'a>(bytes: &'a mut [u8], used: usize, length: usize, c: &mut Choices<'_>) -> Option<&'a mut [u8]> {
    let from = c.below(used.checked_sub(length)? + 1);
    bytes.get_mut(from..from + length)
}

/// Changes the payload of a piece, and corrects length and checksum. The following bytes move, or are overwritten.
fn payload(
    bytes: &mut Vec<u8>,
    walk: &[Piece],
    c: &mut Choices<'_>,
    change: impl FnOnce(&mut Vec<u8>, &mut Choices<'_>),
) {
    let Some(piece) = walk.get(c.below(walk.len().max(1))).filter(|piece| piece.head > 0) else { return };
    let start = piece.range.start;
    let length = u32_at(bytes, start + 4) as usize;
    let mut part = bytes[start + piece.head..start + piece.head + length].to_vec();
    change(&mut part, c);
    put(bytes, piece, &part);
}

/// Replaces a payload by another one. The file keeps its length.
fn put(bytes: &mut Vec<u8>, piece: &Piece, payload: &[u8]) {
    let (start, size) = (piece.range.start, bytes.len());
    let mut new = bytes[start..start + piece.head].to_vec();
    new[4..8].copy_from_slice(&u32::try_from(payload.len()).unwrap_or(0).to_le_bytes());
    new.extend_from_slice(payload);
    new.resize(new.len().next_multiple_of(8), 0);
    let range = start..start + new.len();
    pieces::seal(&mut new, &Piece { range: 0..range.len(), head: piece.head });
    bytes.splice(piece.range.clone(), new);
    bytes.resize(size, 0);
}

/// Puts a group of the fuzzer's own records into a segment: in place of another group, or behind the last.
fn group(name: &str, bytes: &mut Vec<u8>, walk: &[Piece], c: &mut Choices<'_>) {
    if !name.starts_with("journal") || walk.len() < 2 {
        return;
    }
    let last = &walk[walk.len() - 1];
    let count = 1 + c.below(4);
    let mut payload = Writer::default();
    (0..count).for_each(|_| payload.record(&wild::record(c)));
    let room = last.range.end + 56 + payload.bytes.len() + 8 < bytes.len();
    let piece = if c.once_in(2) || !room {
        c.pick(&walk[1..]).clone()
    } else {
        let records = u64::from(u32_at(bytes, last.range.start + 12));
        let next = u64_at(bytes, last.range.start + 24).wrapping_add(records);
        let mut head = bytes[last.range.start..last.range.start + 56].to_vec();
        head[8] = 1;
        head[24..32].copy_from_slice(&next.to_le_bytes());
        let from = last.range.end;
        bytes[from..from + 56].copy_from_slice(&head);
        Piece { range: from..from + 56, head: 56 }
    };
    let start = piece.range.start;
    bytes[start + 12..start + 16].copy_from_slice(&u32::try_from(count).unwrap_or(1).to_le_bytes());
    put(bytes, &piece, &payload.bytes);
}

/// Corrects the lengths of files in the manifest.
fn list_as_it_is(disk: &MemDisk) {
    let mut manifest = disk.read("MANIFEST").to_vec();
    if manifest.len() < 72 {
        return;
    }
    let [segments, runs, states] = [20, 24, 28].map(|at| u32_at(&manifest, at) as usize);
    let mut at = 72;
    for n in 0..segments.saturating_add(runs).saturating_add(states).min(100) {
        let (folder, ending, size) = match n {
            n if n < segments => ("journal", "log", 24),
            n if n < segments.saturating_add(runs) => ("runs", "run", 40),
            _ => ("state", "state", 32),
        };
        if at + size > manifest.len() {
            break;
        }
        let length = disk.read(&format!("{folder}/{:010}.{ending}", u64_at(&manifest, at))).len() as u64;
        manifest[at + 16..at + 24].copy_from_slice(&length.to_le_bytes());
        at += size;
    }
    let all = Piece { range: 0..manifest.len(), head: 0 };
    pieces::seal(&mut manifest, &all);
    disk.overwrite("MANIFEST", manifest);
}
