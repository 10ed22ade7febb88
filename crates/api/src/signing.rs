//! Signatures of Standard Webhooks 1.0.
//!
//! The signed text is `ID.TIMESTAMP.BODY`. The identifier `v1` stands for HMAC-SHA256 with a shared secret, `v1a` for
//! Ed25519 with a private key of the sender. A target with several secrets gets a signature of each, so that they can
//! be replaced one at a time. The receiver has the same shared secret, or `whpk_…`, the public half of the private key.

use std::fmt;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use ring::hmac;
use ring::signature::{ED25519, Ed25519KeyPair, UnparsedPublicKey};

/// Fewest bytes of a symmetric secret, as the specification says.
pub const MIN_SECRET: usize = 24;
/// Most bytes of a symmetric secret, as the specification says.
pub const MAX_SECRET: usize = 64;

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
    /// A receiver has the private key of its sender.
    #[error("is the private key of the sender; a receiver has its public half, whpk_…")]
    Private,
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
        let key = if let Some(shared) = text.strip_prefix("whsec_") {
            SigningKey::Shared(shared_key(shared)?)
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
        let signed = signed(id, timestamp, body);
        match &self.key {
            SigningKey::Shared(key) => format!("v1,{}", BASE64.encode(hmac::sign(key, &signed))),
            SigningKey::Private(pair) => format!("v1a,{}", BASE64.encode(pair.sign(&signed))),
        }
    }
}

/// A secret by which a receiver recognises its sender. `Debug` does not show it.
pub enum VerifyingSecret {
    /// The secret that the sender has as well.
    Shared(hmac::Key),
    /// The public half of the sender's key.
    Public(UnparsedPublicKey<Vec<u8>>),
}

impl VerifyingSecret {
    /// Reads `whsec_…` (shared, HMAC-SHA256; the prefix may be left out) or `whpk_…` (public key, Ed25519).
    ///
    /// # Errors
    /// See [`BadSecret`].
    pub fn new(text: &str) -> Result<Self, BadSecret> {
        if text.starts_with("whsk_") {
            return Err(BadSecret::Private);
        }
        let Some(public) = text.strip_prefix("whpk_") else {
            return Ok(VerifyingSecret::Shared(shared_key(text.strip_prefix("whsec_").unwrap_or(text))?));
        };
        let public = decode(public)?;
        if public.len() != 32 {
            return Err(BadSecret::Key);
        }
        Ok(VerifyingSecret::Public(UnparsedPublicKey::new(&ED25519, public)))
    }

    /// Whether one of the signatures of `webhook-signature` is by this secret. `timestamp` is in seconds since 1970. The
    /// comparison takes the same time wherever they differ.
    pub fn verifies(&self, signatures: &str, id: &str, timestamp: i64, body: &[u8]) -> bool {
        let signed = signed(id, timestamp, body);
        signatures.split(' ').filter_map(|each| each.split_once(',')).any(|(version, signature)| {
            let Ok(signature) = decode(signature) else { return false };
            match self {
                VerifyingSecret::Shared(key) => {
                    version == "v1" && hmac::verify(key, &signed, &signature).is_ok()
                }
                VerifyingSecret::Public(key) => version == "v1a" && key.verify(&signed, &signature).is_ok(),
            }
        })
    }
}

impl fmt::Debug for VerifyingSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VerifyingSecret(..)")
    }
}

fn decode(base64: &str) -> Result<Vec<u8>, BadSecret> {
    BASE64.decode(base64).map_err(|_| BadSecret::Base64)
}

fn shared_key(base64: &str) -> Result<hmac::Key, BadSecret> {
    let bytes = decode(base64)?;
    if !(MIN_SECRET..=MAX_SECRET).contains(&bytes.len()) {
        return Err(BadSecret::Length(bytes.len()));
    }
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
}

fn signed(id: &str, timestamp: i64, body: &[u8]) -> Vec<u8> {
    [format!("{id}.{timestamp}.").as_bytes(), body].concat()
}

/// The value of `webhook-signature`: a signature by each secret.
pub fn signatures(secrets: &[SigningSecret], id: &str, timestamp: i64, body: &[u8]) -> String {
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
