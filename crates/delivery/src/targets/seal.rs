//! Sealing: a record of a target has no secret in the clear.
//!
//! AES-256-GCM with a random nonce of 96 bits (NIST SP 800-38D, section 8.2.2), which is safe for 2^32 edits with one
//! key. The name of the target is authenticated with the text, so a sealed record is good for its own target only.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

use crate::limits::MAX_SEAL_KEYS;

/// The keys that seal the records of targets. Neither `Debug` nor any error shows one. Cheap to clone.
///
/// ```
/// use duewheel_delivery::SealKeys;
/// let keys = SealKeys::parse("BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=\n")?;
/// assert_eq!(format!("{keys:?}"), "SealKeys(1)");
/// # Ok::<_, duewheel_delivery::BadSealKey>(())
/// ```
#[derive(Clone)]
pub struct SealKeys(Arc<Vec<LessSafeKey>>);

/// Why a text has no keys. It repeats nothing of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSealKey {
    /// The file has no key.
    #[error("there is no key in it: 32 random bytes in base64, one key a line")]
    None,
    /// A line of the file, counted from 1, is no key.
    #[error("line {0} has no key: 32 random bytes in base64")]
    Line(usize),
    /// The file has too many keys.
    #[error("there are more than {MAX_SEAL_KEYS} keys in it")]
    Many,
}

impl SealKeys {
    /// Reads keys: each line has 32 bytes in base64, or is empty. The first one seals, and all open, so that a key is
    /// replaced by a line before it.
    ///
    /// # Errors
    /// [`BadSealKey`] names the line.
    pub fn parse(text: &str) -> Result<Self, BadSealKey> {
        let mut keys = Vec::new();
        for (n, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let wrong = BadSealKey::Line(n + 1);
            let bytes = Zeroizing::new(STANDARD.decode(line.trim()).map_err(|_| wrong)?);
            keys.push(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| wrong)?));
        }
        match keys.len() {
            0 => Err(BadSealKey::None),
            1..=MAX_SEAL_KEYS => Ok(SealKeys(Arc::new(keys))),
            _ => Err(BadSealKey::Many),
        }
    }

    /// Seals a text for the target of this name. `None`: the system has no random source.
    pub(crate) fn seal(&self, name: &str, text: &[u8]) -> Option<String> {
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).ok()?;
        let mut sealed = Zeroizing::new(text.to_vec());
        let key = self.0.first()?;
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), about(name), &mut *sealed).ok()?;
        Some(STANDARD.encode([&nonce[..], &sealed[..]].concat()))
    }

    /// Opens what one of the keys has sealed for the target of this name.
    pub(crate) fn open(&self, name: &str, sealed: &str) -> Option<Zeroizing<Vec<u8>>> {
        let sealed = STANDARD.decode(sealed).ok()?;
        let (nonce, text) = sealed.split_first_chunk::<NONCE_LEN>()?;
        self.0.iter().find_map(|key| {
            let mut text = Zeroizing::new(text.to_vec());
            let nonce = Nonce::assume_unique_for_key(*nonce);
            let length = key.open_in_place(nonce, about(name), &mut text).ok()?.len();
            text.truncate(length);
            Some(text)
        })
    }
}

/// The additional data that is authenticated with the text: it binds the text to its target.
fn about(name: &str) -> Aad<String> {
    Aad::from(format!("duewheel target\n{name}"))
}

impl fmt::Debug for SealKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealKeys({})", self.0.len())
    }
}

/// How the secrets of targets are kept.
#[derive(Clone, Debug)]
pub enum Sealing {
    /// Sealed by these keys.
    Keys(SealKeys),
    /// In the clear: who can read the store's files knows them.
    Open,
    /// Secrets are not sealed: a target that needs secrets is refused.
    Refused,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(lines: &[[u8; 32]]) -> SealKeys {
        let lines: Vec<String> = lines.iter().map(|bytes| STANDARD.encode(bytes)).collect();
        SealKeys::parse(&lines.join("\n")).unwrap()
    }

    #[test]
    fn sealed_text_is_bound_to_target() {
        let (old, new) = ([1; 32], [2; 32]);
        let sealed = keys(&[old]).seal("shop", b"whsec_x").unwrap();
        assert!(!sealed.contains("whsec"));
        assert_eq!(&**keys(&[new, old]).open("shop", &sealed).unwrap(), b"whsec_x", "after a change of keys");
        assert!(keys(&[new]).open("shop", &sealed).is_none());
        assert!(keys(&[old]).open("other", &sealed).is_none(), "moved to another target");
        assert_ne!(keys(&[old]).seal("shop", b"whsec_x"), Some(sealed.clone()), "a nonce is used once");
        for at in 0..STANDARD.decode(&sealed).unwrap().len() {
            let mut bytes = STANDARD.decode(&sealed).unwrap();
            bytes[at] ^= 1;
            assert!(keys(&[old]).open("shop", &STANDARD.encode(bytes)).is_none(), "byte {at} is another");
        }
        for short in ["", "%", "AAAA"] {
            assert!(keys(&[old]).open("shop", short).is_none());
        }
    }

    #[test]
    fn what_has_no_keys() {
        let bad = |text: &str| SealKeys::parse(text).map(drop).unwrap_err();
        assert_eq!(bad(" \n\n"), BadSealKey::None);
        let good = STANDARD.encode([7; 32]);
        assert_eq!(bad(&format!("{good}\n\nhunter2\n")), BadSealKey::Line(3));
        assert_eq!(bad(&STANDARD.encode([7; 31])), BadSealKey::Line(1));
        assert_eq!(bad(&format!("{good}\n").repeat(MAX_SEAL_KEYS + 1)), BadSealKey::Many);
        assert!(!BadSealKey::Line(3).to_string().contains("hunter2"));
    }
}
