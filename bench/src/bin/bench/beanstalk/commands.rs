//! The bytes that are sent, made before the measurement.

use duewheel_judge::rng::scatter;

/// The number of different bodies; a run of commands may start at any of them.
const BODIES: usize = 1024;
/// A body begins with its number, in as many digits.
pub(crate) const NUMBER: usize = 8;
const DELAY_S: u32 = 3600;
/// Longer than any measurement: no job is released by its TTR.
const TTR_S: u32 = 3600;
const RESERVE: &[u8] = b"reserve-with-timeout 0\r\n";

/// Whether jobs may be reserved at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Kind {
    /// At once
    Ready,
    /// In an hour
    Delayed,
}

/// `put`s one after another, and as many `reserve`s as are sent at a time.
#[derive(Debug)]
pub(crate) struct Commands {
    bodies: Vec<Vec<u8>>,
    puts: Vec<u8>,
    put: usize,
    reserves: Vec<u8>,
}

impl Commands {
    /// For jobs of this size, up to `depth` commands at a time.
    pub(crate) fn new(kind: Kind, body: usize, depth: usize) -> Self {
        let delay = if kind == Kind::Delayed { DELAY_S } else { 0 };
        let head = format!("put 1024 {delay} {TTR_S} {body}\r\n");
        let bodies: Vec<Vec<u8>> = (0..BODIES).map(|n| make_body(n, body)).collect();
        let turns = bodies.iter().cycle().take(BODIES + depth);
        let puts: Vec<u8> = turns.flat_map(|body| [head.as_bytes(), body, b"\r\n"].concat()).collect();
        let put = puts.len() / (BODIES + depth);
        Commands { bodies, puts, put, reserves: RESERVE.repeat(depth) }
    }

    /// This number of puts; with another `start` they have other bodies.
    pub(crate) fn puts(&self, start: usize, count: usize) -> &[u8] {
        let start = start % BODIES;
        &self.puts[start * self.put..(start + count) * self.put]
    }

    /// This number of reserves.
    pub(crate) fn reserves(&self, count: usize) -> &[u8] {
        &self.reserves[..count * RESERVE.len()]
    }

    /// Bytes of a body.
    pub(crate) fn body(&self) -> usize {
        self.bodies.first().map_or(0, Vec::len)
    }

    #[cfg(test)]
    pub(crate) fn bodies(&self) -> &[Vec<u8>] {
        &self.bodies
    }

    /// Whether a body is one of those that were sent.
    pub(crate) fn knows(&self, body: &[u8]) -> bool {
        let number = body.iter().take(NUMBER).try_fold(0, |number: usize, digit| {
            digit.is_ascii_digit().then(|| number * 10 + usize::from(digit - b'0'))
        });
        number.and_then(|n| self.bodies.get(n)).is_some_and(|known| known == body)
    }
}

fn make_body(number: usize, length: usize) -> Vec<u8> {
    let letter =
        |at: usize| b'a' + u8::try_from(scatter((number * length + at) as u64) % 26).unwrap_or_default();
    let mut body = format!("{number:0NUMBER$}").into_bytes();
    body.extend((NUMBER..length).map(letter));
    body
}
