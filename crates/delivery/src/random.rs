//! Random texts.

use ring::rand::SecureRandom;

/// 128 random bits in hexadecimal digits.
pub(crate) fn random_text() -> String {
    format!("{:032x}", u128::from_be_bytes(random_bytes()))
}

/// A `traceparent` of a trace that nobody has begun, which is not sampled.
pub(crate) fn random_traceparent() -> String {
    // No part may be 0.
    let trace = u128::from_be_bytes(random_bytes()).max(1);
    let span = u64::from_be_bytes(random_bytes()).max(1);
    format!("00-{trace:032x}-{span:016x}-00")
}

fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0u8; N];
    // Without a random source neither TLS nor tokens work, either; a constant would only make ids predictable.
    let _ = ring::rand::SystemRandom::new().fill(&mut bytes);
    bytes
}
