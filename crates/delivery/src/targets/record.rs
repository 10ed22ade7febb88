//! The record of one target, and the errors of operations on it.

use bytes::Bytes;
use duewheel::CallError;
use duewheel::core::engine::{ChangeRefusal, EnqueueRefusal};
use duewheel::core::name::QueueName;
use serde::{Deserialize, Serialize};

use super::seal::Sealing;
use crate::limits::{CONCURRENCY, DELAYS, MAX_ATTEMPTS, MAX_PAUSE_REASON, TIMEOUT};
use crate::records::NotWritten;
use crate::settings::{BadSettings, bad};
use crate::target::{NetworkSettings, PushRate, PushTarget, RetrySettings, TargetSettings};

/// The format of records that this version writes.
const FORMAT: u32 = 1;

/// The settings of a target with secrets masked and defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShownTarget {
    /// The URL; its query is masked.
    pub url: String,
    /// The method of its requests.
    pub method: String,
    /// The names of the headers.
    pub headers: Vec<String>,
    /// The last four characters of each secret; answers have `…` before them.
    pub secrets: Vec<String>,
    /// How long a request may take, in ms.
    pub timeout_ms: u64,
    /// Requests at a time.
    pub concurrency: u32,
    /// Requests a second; without it there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<PushRate>,
    /// When failed attempts are repeated.
    pub retry: RetrySettings,
    /// Attempts after which a message is dead.
    pub max_attempts: u32,
    /// Status codes that make a message dead at once.
    pub dead_on: Vec<u16>,
    /// The addresses that requests may go to.
    pub networks: NetworkSettings,
    /// Name prefixes of the queues that may be delivered to it; all of them by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<Vec<String>>,
    /// The authorities of its certificate, if they are not those of the web, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_pem: Option<String>,
    /// Whether requests show a certificate of ours.
    pub client_certificate: bool,
}

impl ShownTarget {
    fn of(settings: &TargetSettings, target: &PushTarget) -> Self {
        let texts = |delays: &[std::time::Duration]| delays.iter().map(|delay| length(*delay)).collect();
        let by_default = || RetrySettings { delays: Some(texts(&DELAYS)), ..RetrySettings::default() };
        ShownTarget {
            url: target.shown_url(),
            method: settings.method.clone().unwrap_or_else(|| "POST".into()),
            headers: settings.headers.keys().cloned().collect(),
            secrets: target.secret_hints().map(str::to_owned).collect(),
            timeout_ms: settings
                .timeout()
                .ok()
                .flatten()
                .unwrap_or(u64::try_from(TIMEOUT.as_millis()).unwrap_or(u64::MAX)),
            concurrency: settings.concurrency.unwrap_or(CONCURRENCY),
            rate: settings.rate,
            retry: settings.retry.clone().unwrap_or_else(by_default),
            max_attempts: settings.max_attempts.unwrap_or(MAX_ATTEMPTS),
            dead_on: settings.dead_on.clone(),
            networks: settings.networks.clone().unwrap_or_else(|| NetworkSettings::One("public".into())),
            queues: settings.queues.clone(),
            ca_pem: settings.ca_pem.clone(),
            client_certificate: settings.client_pem.is_some(),
        }
    }

    /// Whether this queue may be delivered to the target.
    pub fn serves(&self, queue: &QueueName) -> bool {
        let prefixes = self.queues.as_ref();
        prefixes.is_none_or(|all| all.iter().any(|prefix| queue.as_str().starts_with(prefix.as_str())))
    }
}

/// A default delay as people write it: whole seconds, minutes or hours.
fn length(delay: std::time::Duration) -> String {
    match delay.as_secs() {
        secs if secs % 3_600 == 0 => format!("{}h", secs / 3_600),
        secs if secs % 60 == 0 => format!("{}m", secs / 60),
        secs => format!("{secs}s"),
    }
}

/// Why and since when a target is paused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetPause {
    /// Why, in words.
    pub reason: String,
    /// Since when, in ms since 1970.
    pub at_ms: u64,
}

impl TargetPause {
    /// A pause from now on; a reason that is too long is cut.
    pub(crate) fn new(reason: &str, at_ms: u64) -> Self {
        let end = (0..=MAX_PAUSE_REASON).rev().find(|end| reason.is_char_boundary(*end));
        TargetPause { reason: reason[..end.unwrap_or(0)].to_owned(), at_ms }
    }
}

/// All settings, secrets included.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TargetContent {
    /// JSON, sealed.
    Sealed(String),
    /// JSON in the clear.
    Open(TargetSettingsText),
}

/// The JSON text of settings in the clear; it has no `Debug`.
type TargetSettingsText = String;

/// The record of one target. It has no `Debug`, because it may hold secrets.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct TargetRecord {
    format: u32,
    /// When it was created, in ms since 1970.
    pub(crate) created: u64,
    pub(crate) shown: ShownTarget,
    content: TargetContent,
    pub(crate) paused: Option<TargetPause>,
}

impl TargetRecord {
    /// The record of checked settings. `before`: the one that it replaces.
    pub(crate) fn new(
        name: &str,
        settings: &TargetSettings,
        sealing: &Sealing,
        before: Option<&TargetRecord>,
        now: u64,
    ) -> Result<Self, TargetError> {
        let target = PushTarget::new(settings)?;
        let text = zeroize::Zeroizing::new(settings.in_the_clear().to_string());
        let content = match sealing {
            Sealing::Keys(keys) => {
                TargetContent::Sealed(keys.seal(name, text.as_bytes()).ok_or(TargetError::NotSealed)?)
            }
            Sealing::Open => TargetContent::Open(text.to_string()),
            Sealing::Refused => match settings.secret_field() {
                None => TargetContent::Open(text.to_string()),
                Some(field) => return Err(TargetError::NeedsKey(field)),
            },
        };
        Ok(TargetRecord {
            format: FORMAT,
            created: before.map_or(now, |before| before.created),
            shown: ShownTarget::of(settings, &target),
            content,
            paused: before.and_then(|before| before.paused.clone()),
        })
    }

    /// Reads a record, or says in words why not.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct TargetFormat {
            format: u32,
        }
        // The text of such an error may repeat what was read.
        let unreadable = |_| "its record cannot be read".to_owned();
        let TargetFormat { format } = serde_json::from_slice(bytes).map_err(unreadable)?;
        if format != FORMAT {
            return Err(format!("its record has format {format}; this version reads {FORMAT}"));
        }
        serde_json::from_slice(bytes).map_err(unreadable)
    }

    /// The record as bytes.
    pub(crate) fn bytes(&self) -> Bytes {
        // Its types have text keys and whole numbers only, so this cannot fail.
        serde_json::to_vec(self).map(Bytes::from).unwrap_or_default()
    }

    /// Checks that it fits into a message.
    pub(crate) fn check_size(&self, max_body: usize) -> Result<(), BadSettings> {
        let size = self.bytes().len();
        if size <= max_body {
            return Ok(());
        }
        let field = if self.shown.ca_pem.is_some() { "ca_pem" } else { "headers" };
        let what = format!("is too large: the target takes {size} bytes of {max_body} (--max-body)");
        Err(bad(field, what))
    }

    /// Whether who reads the store's files reads a secret of the target.
    pub(crate) fn tells_secrets(&self) -> bool {
        let ShownTarget { url, headers, secrets, client_certificate, .. } = &self.shown;
        let has = url.contains('?') || !headers.is_empty() || !secrets.is_empty() || *client_certificate;
        matches!(self.content, TargetContent::Open(_)) && has
    }

    /// The settings in the clear, or why there are none, in words.
    pub(crate) fn settings(&self, name: &str, sealing: &Sealing) -> Result<TargetSettings, String> {
        let read = |text: &[u8]| {
            // The text of such an error may repeat a secret.
            serde_json::from_slice(text).map_err(|_| "its settings cannot be read".to_owned())
        };
        match (&self.content, sealing) {
            (TargetContent::Open(text), _) => read(text.as_bytes()),
            (TargetContent::Sealed(sealed), Sealing::Keys(keys)) => match keys.open(name, sealed) {
                Some(text) => read(&text),
                None => Err("no key of --secrets-key opens it".to_owned()),
            },
            (TargetContent::Sealed(_), Sealing::Open | Sealing::Refused) => {
                Err("it is sealed, and there is no --secrets-key".to_owned())
            }
        }
    }

    /// The target, ready for requests, or why it is not, in words.
    pub(crate) fn open(&self, name: &str, sealing: &Sealing) -> Result<PushTarget, String> {
        PushTarget::new(&self.settings(name, sealing)?).map_err(|bad| bad.to_string())
    }
}

/// Why something was not done with a target. No text repeats a secret.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The settings are not valid.
    #[error(transparent)]
    Bad(#[from] BadSettings),
    /// There is no target of this name.
    #[error("there is no target of this name")]
    NotFound,
    /// There are too many targets, or too many queues that have one.
    #[error("there are {0} {1}, and no more are accepted")]
    TooMany(u64, &'static str),
    /// The target cannot be read, or no key opens it: it can be put anew, or removed.
    #[error("the target cannot be used until it is put anew: {0}")]
    Unreadable(String),
    /// Queues are delivered to the target. Give them another one, or none, first.
    #[error("queues are delivered to the target, and need another one or none first: {}", names(.0))]
    InUse(Vec<QueueName>),
    /// The target is not for this queue.
    #[error("the target is not for the queue {0}: see its queues")]
    NotForQueue(QueueName),
    /// This field tells a secret, and the store is elsewhere and keeps none in the clear.
    #[error("{0}: needs --secrets-key, because the store is on another server")]
    NeedsKey(&'static str),
    /// The system has no random source to seal with. Nothing was changed.
    #[error("the secrets could not be sealed")]
    NotSealed,
    /// Others edit the target. Nothing was changed; try again.
    #[error("the target is being edited; try again")]
    Busy,
    /// The store refused a new record.
    #[error("the record was refused: {0}")]
    Refused(EnqueueRefusal),
    /// The store refused a change of the record.
    #[error("the record was refused: {0}")]
    RecordRefused(ChangeRefusal),
    /// The store gave no answer; the edit may be made.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// The first names, as a text.
fn names(queues: &[QueueName]) -> String {
    let first: Vec<&str> = queues.iter().take(5).map(QueueName::as_str).collect();
    let more = if queues.len() > first.len() { ", …" } else { "" };
    format!("{}{more}", first.join(", "))
}

impl From<NotWritten> for TargetError {
    fn from(why: NotWritten) -> Self {
        match why {
            NotWritten::Lost => TargetError::Busy,
            NotWritten::Refused(refusal) => TargetError::RecordRefused(refusal),
            NotWritten::NewRefused(refusal) => TargetError::Refused(refusal),
            NotWritten::Unknown(error) => TargetError::Call(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::seal::SealKeys;

    fn secret_settings() -> TargetSettings {
        TargetSettings {
            headers: [("authorization".to_owned(), "Bearer hunter2".to_owned())].into(),
            secrets: vec!["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into()],
            dead_on: vec![404],
            retry: Some(RetrySettings { min_ms: Some(5), max_ms: Some(50), ..RetrySettings::default() }),
            queues: Some(vec!["shop.".into()]),
            ..TargetSettings::new("https://example.com/hook?token=swordfish")
        }
    }

    /// All that a sealed record tells without its key.
    #[test]
    fn sealed_target_record_hides_secrets() {
        let keys = Sealing::Keys(SealKeys::parse("BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=").unwrap());
        let settings = secret_settings();
        let record = TargetRecord::new("shop", &settings, &keys, None, 5).unwrap();
        assert!(!record.tells_secrets());
        assert!(TargetRecord::new("shop", &settings, &Sealing::Open, None, 5).unwrap().tells_secrets());
        let text = String::from_utf8(record.bytes().to_vec()).unwrap();
        for secret in ["hunter2", "MfKQ9r8G", "swordfish"] {
            assert!(!text.contains(secret), "{text}");
        }
        let read = TargetRecord::read(text.as_bytes()).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(read.shown.secrets, ["LaSw"]);
        let opened = read.settings("shop", &keys).unwrap();
        assert_eq!(opened.in_the_clear(), settings.in_the_clear());
        let why = |sealing: &Sealing| read.open("shop", sealing).map(drop).unwrap_err();
        assert_eq!(why(&Sealing::Open), "it is sealed, and there is no --secrets-key");
        let other = Sealing::Keys(SealKeys::parse("CAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAg=").unwrap());
        assert_eq!(why(&other), "no key of --secrets-key opens it");
    }

    /// Each field that may hold a secret is refused by its name; a target without one is not.
    #[test]
    fn remote_store_refuses_plaintext_secrets() {
        let refused =
            |settings: TargetSettings| match TargetRecord::new("shop", &settings, &Sealing::Refused, None, 5)
                .map(drop)
            {
                Err(TargetError::NeedsKey(field)) => field,
                other => panic!("{other:?}"),
            };
        let plain = || TargetSettings::new("https://example.com/hook");
        assert_eq!(refused(secret_settings()), "secrets");
        assert_eq!(refused(TargetSettings { headers: secret_settings().headers, ..plain() }), "headers");
        assert_eq!(refused(TargetSettings::new("https://example.com/?a")), "url");
        assert!(!TargetRecord::new("shop", &plain(), &Sealing::Refused, None, 5).unwrap().tells_secrets());
    }

    #[test]
    fn shown_target_settings_have_defaults() {
        let settings = TargetSettings::new("http://example.com");
        let record = TargetRecord::new("t", &settings, &Sealing::Open, None, 5).unwrap();
        let delays: Vec<String> = ["5s", "5m", "30m", "2h", "5h", "10h"].map(str::to_owned).into();
        assert_eq!(record.shown.retry.delays, Some(delays));
        assert_eq!((record.shown.timeout_ms, record.shown.max_attempts), (30_000, 10));
    }

    #[test]
    fn a_reason_is_cut_between_characters() {
        let reason = "é".repeat(MAX_PAUSE_REASON);
        assert_eq!(TargetPause::new(&reason, 0).reason.len(), MAX_PAUSE_REASON);
        assert_eq!(TargetPause::new(&format!("a{reason}"), 0).reason.len(), MAX_PAUSE_REASON - 1);
        assert_eq!(TargetPause::new("no", 0).reason, "no");
    }

    /// A newer server's record, and one that is none.
    #[test]
    fn what_is_no_record() {
        let why = |text: &str| TargetRecord::read(text.as_bytes()).map(drop).unwrap_err();
        assert_eq!(why(r#"{"format": 2}"#), "its record has format 2; this version reads 1");
        assert_eq!(why("hunter2"), "its record cannot be read");
        assert_eq!(why(r#"{"format": 1, "content": "hunter2"}"#), "its record cannot be read");
    }
}
