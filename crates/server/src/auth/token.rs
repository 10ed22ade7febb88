//! A token, which its holder keeps, and its hash, which the server keeps.

use std::fmt;
use std::str::FromStr;

use duewheel_api::token::Token;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use subtle::{Choice, ConstantTimeEq};

const HASH_PREFIX: &str = "sha256:";

/// The hash of a token, which the server keeps.
///
/// A single round of SHA-256 is sufficient, and a slow hash for passwords would be wrong: a token has 256 bits of the
/// system's random source, so it cannot be guessed from its hash, and a server must not spend a tenth of a second on
/// each invalid token.
#[derive(Clone, Copy)]
pub struct Hash([u8; 32]);

/// A new token, from the system's random source.
///
/// # Errors
/// The system provides no random bytes.
pub fn generate() -> Result<Token, String> {
    let mut random = [0; 32];
    SystemRandom::new().fill(&mut random).map_err(|_| "the system gives no random bytes".to_owned())?;
    Ok(Token::of(random))
}

impl Hash {
    /// The hash of a token, or of anything else that a client has sent.
    pub fn of(bytes: &[u8]) -> Hash {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
        Hash(hash)
    }

    /// Whether both hashes are equal, in a time that does not depend on where they differ.
    pub fn same(&self, other: &Hash) -> Choice {
        self.0.ct_eq(&other.0)
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hash(..)")
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HASH_PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Hash {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let bad = || "a hash is sha256: and 64 hexadecimal digits".to_owned();
        let digits = s.strip_prefix(HASH_PREFIX).ok_or_else(bad)?;
        if digits.len() != 64 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let mut hash = [0; 32];
        for (byte, n) in hash.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&digits[n..n + 2], 16).map_err(|_| bad())?;
        }
        Ok(Hash(hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_random() {
        assert_ne!(generate().unwrap(), generate().unwrap());
        assert_eq!(format!("{:?}", Hash::of(b"abc")), "Hash(..)");
    }

    #[test]
    fn token_hash_round_trips() {
        // The example of FIPS 180-2.
        let hash = Hash::of(b"abc");
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash.to_string(), text);
        assert!(bool::from(text.parse::<Hash>().unwrap().same(&hash)));
        assert!(bool::from(text.to_uppercase().replace("SHA", "sha").parse::<Hash>().unwrap().same(&hash)));
        assert!(!bool::from(Hash::of(b"abd").same(&hash)));
        for bad in ["", "sha256:", &text[..70], &text[7..], &text.replace('b', "g"), &format!("{text}0")] {
            assert!(bad.parse::<Hash>().is_err(), "{bad}");
        }
    }
}
