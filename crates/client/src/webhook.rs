//! Webhooks: whether a request is of your duewheel.

use std::time::{Duration, SystemTime};

use duewheel_api::rfc3339;
use duewheel_api::signing::VerifyingSecret;
use http::HeaderMap;
use percent_encoding::percent_decode_str;

use crate::error::{Code, Error};
use crate::types::Timestamp;

/// Checks that requests are of your duewheel. `Debug` shows no secret.
///
/// ```
/// use duewheel_client::{Webhooks, Code};
///
/// let webhooks = Webhooks::new(&["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]).unwrap();
/// let refused = webhooks.verify(&http::HeaderMap::new(), b"order 42").unwrap_err();
/// assert_eq!(refused.code, Code::WebhookHeader);
/// ```
#[derive(Debug)]
pub struct Webhooks {
    secrets: Vec<VerifyingSecret>,
    tolerance: Duration,
}

/// The headers of a request that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Webhook {
    /// An id that all attempts share: compare it to ignore repetitions.
    pub id: String,
    /// When it was sent.
    pub timestamp: SystemTime,
    /// The queue of the message.
    pub queue: String,
    /// The key of the message.
    pub key: Option<String>,
    /// Deliveries so far, this one included.
    pub attempt: u32,
    /// When it was due.
    pub due_at: Option<Timestamp>,
}

impl Webhooks {
    /// For the secrets of a target, `whsec_…`, or `whpk_…` for the public half of a `whsk_…`. One that fits is enough.
    ///
    /// # Errors
    /// `webhook_secret`: there is none, or one is no secret.
    pub fn new(secrets: &[&str]) -> Result<Webhooks, Error> {
        let bad = |what: String| Error::new(Code::WebhookSecret, what);
        if secrets.is_empty() {
            return Err(bad("there is no secret".to_owned()));
        }
        let read = secrets.iter().map(|text| VerifyingSecret::new(text));
        let secrets = read.collect::<Result<_, _>>().map_err(|why| bad(format!("a secret {why}")))?;
        Ok(Webhooks { secrets, tolerance: Duration::from_secs(300) })
    }

    /// For requests that are so old, or so far ahead; 5 minutes by default.
    #[must_use]
    pub fn tolerance(self, tolerance: Duration) -> Webhooks {
        Webhooks { tolerance, ..self }
    }

    /// Accepts a request if one of its signatures (Standard Webhooks 1.0, `v1` and `v1a`) is by one of the secrets, and
    /// its time is near. Otherwise answer 400.
    ///
    /// # Errors
    /// `webhook_header`, `webhook_timestamp` or `webhook_signature`.
    pub fn verify(&self, headers: &HeaderMap, body: &[u8]) -> Result<Webhook, Error> {
        self.verify_at(headers, body, SystemTime::now())
    }

    /// Verifies as [`verify`](Webhooks::verify) does, at another time.
    ///
    /// # Errors
    /// The same.
    pub fn verify_at(&self, headers: &HeaderMap, body: &[u8], now: SystemTime) -> Result<Webhook, Error> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let must = |name: &str| {
            let missing =
                || Error::new(Code::WebhookHeader, format!("{name}: is missing; this is no webhook"));
            text(name).ok_or_else(missing)
        };
        let (id, signatures) = (must("webhook-id")?, must("webhook-signature")?);
        let stamp = must("webhook-timestamp")?;
        let off = |what: &str| Error::new(Code::WebhookTimestamp, format!("webhook-timestamp: {what}"));
        let seconds: u32 = stamp.parse().map_err(|_| off("is no number of seconds"))?;
        let timestamp = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.into());
        let distance = now.duration_since(timestamp).unwrap_or_else(|ahead| ahead.duration());
        if distance > self.tolerance {
            return Err(off("is too far from now"));
        }
        if !self.secrets.iter().any(|secret| secret.verifies(signatures, id, seconds.into(), body)) {
            let what =
                "no signature is by one of the secrets: the body was changed, or the secret is another";
            return Err(Error::new(Code::WebhookSignature, what));
        }
        let plain = |name: &str| Some(percent_decode_str(text(name)?).decode_utf8_lossy().into_owned());
        let due_at = text("duewheel-due-at").and_then(|text| rfc3339::parse(text).ok());
        Ok(Webhook {
            id: id.to_owned(),
            timestamp,
            queue: plain("duewheel-queue").unwrap_or_default(),
            key: plain("duewheel-key"),
            attempt: text("duewheel-attempt").and_then(|text| text.parse().ok()).unwrap_or(0),
            due_at: due_at.map(|at| Timestamp(SystemTime::UNIX_EPOCH + Duration::from_millis(at.0))),
        })
    }
}
