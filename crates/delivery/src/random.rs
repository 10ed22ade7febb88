//! Random texts.

use ring::rand::SecureRandom;

/// 128 random bits in hexadecimal digits.
pub(crate) fn random_text() -> String {
    let mut bytes = [0u8; 16];
    // Without a random source neither TLS nor tokens work, either; a constant would only make ids predictable.
    let _ = ring::rand::SystemRandom::new().fill(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
