//! A token, which its holder keeps, and its hash, which the server keeps.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use subtle::{Choice, ConstantTimeEq};

/// The prefix by which secret scanners find tokens.
const PREFIX: &str = "dw_";
const RANDOM_BYTES: usize = 32;
const HASH_PREFIX: &str = "sha256:";

/// A bearer token: `dw_` and 256 random bits. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// The hash of a token, which the server keeps.
///
/// A single round of SHA-256 is sufficient, and a slow hash for passwords would be wrong: a token has 256 bits of the
/// system's random source, so it cannot be guessed from its hash, and a server must not spend a tenth of a second on
/// each invalid token.
#[derive(Clone, Copy)]
pub struct Hash([u8; 32]);

impl Token {
    /// A new token, from the system's random source.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn generate() -> Result<Token, String> {
        let mut random = [0; RANDOM_BYTES];
        SystemRandom::new().fill(&mut random).map_err(|_| "the system gives no random bytes".to_owned())?;
        Ok(Token(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random))))
    }

    /// The text of the token, to be shown to its holder only.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The hash of the token.
    pub fn hash(&self) -> Hash {
        Hash::of(self.0.as_bytes())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl FromStr for Token {
    type Err = String;

    /// Parses the text of a token. The error does not repeat it.
    fn from_str(s: &str) -> Result<Self, String> {
        let random = s.strip_prefix(PREFIX).and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
        match random {
            Some(random) if random.len() == RANDOM_BYTES => Ok(Token(s.to_owned())),
            Some(_) | None => Err("this is not a token: it must be dw_ and 43 letters and digits".to_owned()),
        }
    }
}

impl Hash {
    /// The hash of anything that a client has sent.
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
    fn token_is_recognised_and_never_shown() {
        let (one, two) = (Token::generate().unwrap(), Token::generate().unwrap());
        assert_ne!(one, two);
        assert!(one.reveal().starts_with("dw_") && one.reveal().len() == 46, "{}", one.reveal());
        assert_eq!(one.reveal().parse::<Token>().unwrap(), one);
        assert_eq!(format!("{one:?} {:?}", one.hash()), "Token(..) Hash(..)");
        let short = &one.reveal()[..45];
        for bad in ["", "dw_", "secret", short, &format!("{}x", one.reveal()), &one.reveal()[3..]] {
            let why = bad.parse::<Token>().unwrap_err();
            assert!(bad.len() < 5 || !why.contains(bad), "{why}");
        }
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
