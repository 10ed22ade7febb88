//! Signatures of Standard Webhooks 1.0.
//!
//! The signed text is `ID.TIMESTAMP.BODY`. The identifier `v1` stands for HMAC-SHA256 with a shared secret, `v1a` for
//! Ed25519 with a private key of the sender. A target with several secrets gets a signature of each, so that they can
//! be replaced one at a time.

use std::fmt;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use ring::hmac;
use ring::signature::Ed25519KeyPair;

use crate::limits::{MAX_SECRET, MIN_SECRET};

/// Base64 whose padding may be left out, as some tools show secrets.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A secret with which requests are signed. Neither `Debug` nor any error shows it.
pub struct SigningSecret {
    key: SigningKey,
    hint: String,
}

enum SigningKey {
    Shared(hmac::Key),
    Private(Box<Ed25519KeyPair>),
}

/// Why a text is no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSecret {
    /// The secret begins neither with `whsec_` nor with `whsk_`.
    #[error("begins neither with whsec_ nor with whsk_")]
    Prefix,
    /// The text behind the prefix is not base64.
    #[error("is not base64 behind its prefix")]
    Base64,
    /// A shared secret is too short or too long.
    #[error("has {0} bytes; a whsec_ secret has {MIN_SECRET} to {MAX_SECRET}")]
    Length(usize),
    /// The bytes are no Ed25519 key.
    #[error("is no Ed25519 key: 32 bytes, or 64 with the public half behind the private one")]
    Key,
}

impl SigningSecret {
    /// Reads `whsec_…` (shared, HMAC-SHA256) or `whsk_…` (private key, Ed25519).
    ///
    /// # Errors
    /// See [`BadSecret`].
    pub fn new(text: &str) -> Result<Self, BadSecret> {
        let decode = |base64: &str| BASE64.decode(base64).map_err(|_| BadSecret::Base64);
        let key = if let Some(shared) = text.strip_prefix("whsec_") {
            let bytes = decode(shared)?;
            if !(MIN_SECRET..=MAX_SECRET).contains(&bytes.len()) {
                return Err(BadSecret::Length(bytes.len()));
            }
            SigningKey::Shared(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
        } else if let Some(private) = text.strip_prefix("whsk_") {
            let bytes = decode(private)?;
            let pair = match bytes.len() {
                32 => Ed25519KeyPair::from_seed_unchecked(&bytes),
                64 => Ed25519KeyPair::from_seed_and_public_key(&bytes[..32], &bytes[32..]),
                _ => return Err(BadSecret::Key),
            };
            SigningKey::Private(Box::new(pair.map_err(|_| BadSecret::Key)?))
        } else {
            return Err(BadSecret::Prefix);
        };
        let last: String = text.chars().rev().take(4).collect();
        Ok(SigningSecret { key, hint: last.chars().rev().collect() })
    }

    /// The last four characters, by which people tell secrets apart.
    pub fn hint(&self) -> &str {
        &self.hint
    }

    /// The signature of one request: `v1,…` or `v1a,…`. `id` has no dot, `timestamp` is in seconds since 1970.
    pub fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let head = format!("{id}.{timestamp}.");
        match &self.key {
            SigningKey::Shared(key) => {
                let mut context = hmac::Context::with_key(key);
                context.update(head.as_bytes());
                context.update(body);
                format!("v1,{}", BASE64.encode(context.sign()))
            }
            SigningKey::Private(pair) => {
                let signed = [head.as_bytes(), body].concat();
                format!("v1a,{}", BASE64.encode(pair.sign(&signed)))
            }
        }
    }
}

/// The value of `webhook-signature`: a signature by each secret.
pub(crate) fn signatures(secrets: &[SigningSecret], id: &str, timestamp: i64, body: &[u8]) -> String {
    let signatures: Vec<String> = secrets.iter().map(|secret| secret.sign(id, timestamp, body)).collect();
    signatures.join(" ")
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningSecret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vector that the reference libraries of the specification share.
    #[test]
    fn a_vector_of_the_reference_libraries() {
        let secret = SigningSecret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signature =
            secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    /// Test 1 of RFC 8032, section 7.1, has this key; another implementation has made the signature.
    #[test]
    fn ed25519_signs_what_hmac_signs() {
        let seed = "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=";
        let both = "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2DXWpgBgrEKt9VL/tPJZAc6DuFy89qmIyWvAhpo9wdRGg==";
        for text in [seed, both] {
            let secret = SigningSecret::new(&format!("whsk_{text}")).unwrap();
            assert_eq!(
                secret.sign("msg_1", 1_614_265_330, b"hello"),
                "v1a,JVc6Op1SXhl7pFnMxF9ftY3CnbrUjWnZpguXX7lMHOQIDlN0hBNuqbIf5VxMRB2esWk4IeXWG2WbWynYSG1+DQ=="
            );
        }
    }

    #[test]
    fn what_is_no_secret() {
        let bad = |text: &str| SigningSecret::new(text).unwrap_err();
        assert_eq!(bad("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), BadSecret::Prefix);
        assert_eq!(bad("whsec_%%%"), BadSecret::Base64);
        assert_eq!(bad("whsec_MfKQ9r8G"), BadSecret::Length(6));
        assert_eq!(bad(&format!("whsec_{}", BASE64.encode([7; 65]))), BadSecret::Length(65));
        assert_eq!(bad(&format!("whsk_{}", BASE64.encode([7; 31]))), BadSecret::Key);
        // The public half belongs to another key.
        assert_eq!(bad(&format!("whsk_{}", BASE64.encode([7; 64]))), BadSecret::Key);
        // Padding may be left out.
        assert!(
            SigningSecret::new(&format!("whsec_{}", BASE64.encode([7; 25]).trim_end_matches('='))).is_ok()
        );
    }

    #[test]
    fn debug_and_errors_show_no_secret() {
        let text = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let secret = SigningSecret::new(text).unwrap();
        assert_eq!(format!("{secret:?}"), "SigningSecret(..)");
        assert_eq!(secret.hint(), "LaSw");
    }
}
