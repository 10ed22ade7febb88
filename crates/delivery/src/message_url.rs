//! The URL of a message, to which it is sent instead of to the target of its queue.

use std::fmt;

use duewheel::core::MessageContent;
use hyper::Uri;
use url::{Origin, Url};

use crate::networks::Networks;
use crate::settings::{BadSettings, bad};
use crate::target::{OriginKind, PushTarget, address, masked};

/// The header of a message with a URL of its own. Front ends set it, and take it from no caller as a header.
pub const TARGET_URL_HEADER: &str = "duewheel-target-url";
/// The field that callers give the URL in.
const FIELD: &str = "target_url";

/// A checked URL of a message: `http` or `https`, without user information and without a fragment, at a public address
/// as far as it is an address. `Debug` leaves out its query.
///
/// ```
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// use duewheel_delivery::MessageUrl;
/// # let wheel = duewheel::Duewheel::builder().in_memory().open().await?;
/// let url = MessageUrl::new("https://customer.example/hook")?;
/// let (name, value) = url.header();
/// wheel.queue("close-review").message(&"order-42").header(name, value).enqueue().await?;
///
/// let error = MessageUrl::new("https://me@customer.example/").unwrap_err();
/// assert_eq!(error.to_string(), "target_url: has user information");
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct MessageUrl {
    text: Box<str>,
    url: Url,
    uri: Uri,
}

impl MessageUrl {
    /// Checks a URL.
    ///
    /// # Errors
    /// [`BadSettings`], whose field is `target_url`.
    pub fn new(text: &str) -> Result<Self, BadSettings> {
        let checked = address(text, &Networks::default());
        let (url, uri) = checked.map_err(|why| bad(FIELD, why.what))?;
        Ok(MessageUrl { text: text.into(), url, uri })
    }

    /// The header that gives a message this URL.
    pub fn header(&self) -> (&'static str, &str) {
        (TARGET_URL_HEADER, &self.text)
    }

    /// The URL of a message, as it was given.
    pub fn of(message: &MessageContent) -> Option<&str> {
        MessageUrl::in_headers(&message.headers)
    }

    /// The URL in the headers of a message, as it was given.
    pub fn in_headers(headers: &[(Box<str>, Box<str>)]) -> Option<&str> {
        headers.iter().find(|(name, _)| &**name == TARGET_URL_HEADER).map(|(_, value)| &**value)
    }

    /// Whether only a front end may give a message this header. Names are compared without regard to case.
    pub fn is_its_header(name: &str) -> bool {
        name.eq_ignore_ascii_case(TARGET_URL_HEADER)
    }

    pub(crate) fn uri(&self) -> &Uri {
        &self.uri
    }

    pub(crate) fn origin(&self) -> Origin {
        self.url.origin()
    }

    /// Whether it has the origin of a target: the same scheme, host and port.
    pub(crate) fn kind(&self, target: &PushTarget) -> OriginKind {
        if self.url.origin() == target.url.origin() { OriginKind::Own } else { OriginKind::Foreign }
    }
}

impl fmt::Debug for MessageUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MessageUrl").field(&masked(&self.url)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::TargetSettings;

    #[test]
    fn bad_message_url_is_not_echoed() {
        for (text, says) in [
            ("", "relative URL"),
            ("customer.example/hook", "relative URL"),
            ("ftp://customer.example/hunter2", "neither http nor https"),
            ("https://me:hunter2@customer.example/", "user information"),
            ("https://customer.example/#hunter2", "fragment"),
            ("https://customer.example/ hunter2", "a space"),
            ("https://customer.example:0/", "port 0"),
            ("http://127.0.0.1/hunter2", "networks"),
            ("http://2130706433/hunter2", "networks"),
            ("http://[::ffff:10.0.0.1]/", "networks"),
            ("http://169.254.169.254/latest", "networks"),
        ] {
            let error = MessageUrl::new(text).unwrap_err().to_string();
            assert!(error.starts_with("target_url: ") && error.contains(says), "{text}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
        let long = format!("https://customer.example/{}", "x".repeat(4_096));
        assert!(MessageUrl::new(&long).unwrap_err().what.contains("longer"));
        let url = MessageUrl::new("https://customer.example/hook?token=hunter2").unwrap();
        assert_eq!(format!("{url:?}"), r#"MessageUrl("https://customer.example/hook?…")"#);
        assert_eq!(url.header().1, "https://customer.example/hook?token=hunter2");
    }

    #[test]
    fn origin_is_scheme_host_and_port() {
        let target = PushTarget::new(&TargetSettings::new("https://shop.example/hook?a=b")).unwrap();
        for (text, kind) in [
            ("https://shop.example/", OriginKind::Own),
            ("https://SHOP.example:443/other?c", OriginKind::Own),
            ("http://shop.example/hook", OriginKind::Foreign),
            ("https://shop.example:8443/hook", OriginKind::Foreign),
            ("https://shop.example./hook", OriginKind::Foreign),
            ("https://shop.example.evil.example/hook", OriginKind::Foreign),
            ("https://api.shop.example/hook", OriginKind::Foreign),
        ] {
            assert_eq!(MessageUrl::new(text).unwrap().kind(&target), kind, "{text}");
        }
    }

    #[test]
    fn foreign_origin_gets_no_target_credentials() {
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(["shop.example".to_owned()]).unwrap();
        let settings = TargetSettings {
            headers: [("x-shop".to_owned(), "hunter2".to_owned())].into(),
            secrets: vec!["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into()],
            ca_pem: Some(cert.pem()),
            client_pem: Some(format!("{}{}", cert.pem(), signing_key.serialize_pem())),
            ..TargetSettings::new("https://shop.example/hook")
        };
        let target = PushTarget::new(&settings).unwrap();
        for (kind, has) in [(OriginKind::Own, true), (OriginKind::Foreign, false)] {
            let it = target.for_urls(kind, Networks::default());
            assert_eq!((!it.headers.is_empty(), !it.secrets.is_empty()), (has, has));
            assert_eq!(it.tls.client_auth_cert_resolver.has_certs(), has);
        }
    }
}
