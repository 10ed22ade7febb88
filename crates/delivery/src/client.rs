//! Delivery of a message, from the look-up of the target's name to the end of its answer.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use hyper::header::LOCATION;
use rustls::CertificateError;
use tokio::time::Instant;

use crate::answer::{PushVerdict, excerpt, judge};
use crate::connect::{AddressRefused, LookupFailed, NameLookups, Resolver, connector};
use crate::connections::{OriginConnections, PushAnswer, TwoLengths};
use crate::request::PushRequest;
use crate::target::{OriginKind, PushTarget};

/// How an attempt ended, in a word: what statistics count, and the reason of a dead message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PushClass {
    /// An answer with this status: `status_200`.
    Status(u16),
    /// A 2xx with a `duewheel-snooze` that is no length of time.
    BadSnooze,
    /// The target's name could not be looked up.
    DnsError,
    /// The target's networks do not permit its address.
    AddressRefused,
    /// The target refuses connections: no process listens at its port.
    ConnectionRefused,
    /// The connection ended before the answer did.
    ConnectionReset,
    /// The connection failed for another reason: no route, for example.
    ConnectionFailed,
    /// TLS could not be agreed on, or the certificate is not accepted for a reason without a class of its own.
    TlsError,
    /// No authority that the target trusts has signed the certificate.
    TlsUnknownAuthority,
    /// The certificate has expired.
    TlsExpired,
    /// The certificate is for other names.
    TlsWrongName,
    /// The time-out has passed.
    Timeout,
    /// The answer is not valid HTTP.
    BadAnswer,
}

impl fmt::Display for PushClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PushClass::Status(code) => return write!(f, "status_{code}"),
            PushClass::BadSnooze => "bad_snooze",
            PushClass::DnsError => "dns_error",
            PushClass::AddressRefused => "address_refused",
            PushClass::ConnectionRefused => "connection_refused",
            PushClass::ConnectionReset => "connection_reset",
            PushClass::ConnectionFailed => "connection_failed",
            PushClass::TlsError => "tls_error",
            PushClass::TlsUnknownAuthority => "tls_unknown_authority",
            PushClass::TlsExpired => "tls_expired",
            PushClass::TlsWrongName => "tls_wrong_name",
            PushClass::Timeout => "timeout",
            PushClass::BadAnswer => "bad_answer",
        })
    }
}

impl PushClass {
    /// The status of the answer, if it tells one.
    pub fn status(self) -> Option<u16> {
        match self {
            PushClass::Status(code) => Some(code),
            PushClass::BadSnooze
            | PushClass::DnsError
            | PushClass::AddressRefused
            | PushClass::ConnectionRefused
            | PushClass::ConnectionReset
            | PushClass::ConnectionFailed
            | PushClass::TlsError
            | PushClass::TlsUnknownAuthority
            | PushClass::TlsExpired
            | PushClass::TlsWrongName
            | PushClass::Timeout
            | PushClass::BadAnswer => None,
        }
    }

    /// Whether the target has given no answer at all.
    pub fn is_unreachable(self) -> bool {
        !matches!(self, PushClass::Status(_) | PushClass::BadSnooze | PushClass::BadAnswer)
    }
}

/// How one attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushOutcome {
    /// The consequence for the message.
    pub verdict: PushVerdict,
    /// Whether the target takes no more messages after this one.
    pub disable: bool,
    /// How it ended.
    pub class: PushClass,
    /// How long it took.
    pub took: Duration,
    /// The first KiB of the answer, without control characters, behind a remark in parentheses if it was cut or is a
    /// redirect. Of a failure of TLS, the reason.
    pub answer: String,
}

/// The client of one target, with its connections. Cheap to clone; clones share them.
#[derive(Clone)]
pub struct PushClient {
    target: Arc<PushTarget>,
    lookups: NameLookups,
    connections: OriginConnections,
}

impl PushClient {
    /// A client that asks the operating system for addresses.
    pub fn new(target: Arc<PushTarget>) -> Self {
        Self::with_lookups(target, NameLookups::system())
    }

    /// A client that looks names up elsewhere. What it finds is judged all the same.
    pub fn with_resolver(target: Arc<PushTarget>, resolver: Arc<dyn Resolver>) -> Self {
        Self::with_lookups(target, NameLookups::new(resolver))
    }

    fn with_lookups(target: Arc<PushTarget>, lookups: NameLookups) -> Self {
        let idle = usize::try_from(target.concurrency.get()).unwrap_or(usize::MAX);
        let connections = connections(&target, &lookups, OriginKind::Own, idle);
        PushClient { target, lookups, connections }
    }

    /// Connections as those to the target, and none of them; `idle` stay open at most.
    pub(crate) fn connections(
        &self,
        target: &PushTarget,
        kind: OriginKind,
        idle: usize,
    ) -> OriginConnections {
        connections(target, &self.lookups, kind, idle)
    }

    /// A client of another target over these connections.
    pub(crate) fn over(&self, target: Arc<PushTarget>, connections: OriginConnections) -> Self {
        PushClient { target, lookups: self.lookups.clone(), connections }
    }

    /// The target.
    pub fn target(&self) -> &Arc<PushTarget> {
        &self.target
    }

    /// Sends one request and judges the answer. It is sent a second time if a connection that was kept from an earlier
    /// request ends before the first byte of an answer. Redirects are not followed, and environment variables that name
    /// proxies are not read.
    ///
    /// # Cancel safety
    /// When the future is dropped, the target may have got the request.
    pub async fn deliver(&self, request: &PushRequest) -> PushOutcome {
        self.deliver_to(&self.target.uri, request, || ()).await
    }

    /// Delivers to this address instead of the target's. The target's networks must allow it all the same. `repeated` is
    /// called when the request is sent once more, because a kept connection ended without an answer.
    pub(crate) async fn deliver_to(
        &self,
        uri: &Uri,
        request: &PushRequest,
        repeated: impl FnOnce(),
    ) -> PushOutcome {
        let started = Instant::now();
        let (sent, deadline) = (request.to_http(&self.target, uri), started + self.target.timeout);
        let answer = match self.connections.exchange(sent, deadline, repeated).await {
            Ok(answer) => answer,
            Err(error) => {
                return PushOutcome {
                    verdict: PushVerdict::Failed,
                    disable: false,
                    class: class_of(&*error),
                    took: started.elapsed(),
                    answer: tls_words(&*error),
                };
            }
        };
        let judgement = judge(answer.status, &answer.headers, &self.target.dead_on, request.now);
        PushOutcome {
            verdict: judgement.verdict,
            disable: judgement.disable,
            class: if judgement.bad_snooze {
                PushClass::BadSnooze
            } else {
                PushClass::Status(answer.status.as_u16())
            },
            took: started.elapsed(),
            answer: excerpt(&[remarks(&answer), answer.body].concat()),
        }
    }
}

impl fmt::Debug for PushClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushClient").field("target", &self.target).finish_non_exhaustive()
    }
}

fn connections(
    target: &PushTarget,
    lookups: &NameLookups,
    kind: OriginKind,
    most: usize,
) -> OriginConnections {
    OriginConnections::new(connector(target, Arc::new(lookups.shared(kind, target.timeout))), most)
}

/// The remark before the body of an answer: why it is cut, and where a redirect leads. The query is left out,
/// because it may repeat that of the target.
fn remarks(answer: &PushAnswer) -> Vec<u8> {
    let mut remarks = match answer.cut.as_deref().map(|error| class_of(error)) {
        None => Vec::new(),
        Some(PushClass::Timeout) => b"(cut: the time-out passed) ".to_vec(),
        Some(PushClass::BadAnswer) => b"(cut: its body is not valid HTTP) ".to_vec(),
        Some(_) => b"(cut: the connection ended early) ".to_vec(),
    };
    if answer.status.is_redirection()
        && let Some(location) = answer.headers.get(LOCATION)
    {
        let mut parts = location.as_bytes().splitn(2, |b| matches!(b, b'?' | b'#'));
        remarks.extend_from_slice(b"(location: ");
        remarks.extend_from_slice(parts.next().unwrap_or_default());
        remarks.extend_from_slice(if parts.next().is_some() { "?…) ".as_bytes() } else { b") " });
    }
    remarks
}

/// The class of an error of TLS.
fn tls_class(error: &rustls::Error) -> PushClass {
    let rustls::Error::InvalidCertificate(wrong) = error else { return PushClass::TlsError };
    match wrong {
        // The other one: signed by another key of an authority with a known name.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => PushClass::TlsUnknownAuthority,
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => PushClass::TlsExpired,
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            PushClass::TlsWrongName
        }
        _ => PushClass::TlsError,
    }
}

/// The reason of an error of TLS, in words; of another one, nothing.
fn tls_words(error: &(dyn Error + 'static)) -> String {
    let Some(tls) = causes(error).find_map(|cause| cause.downcast_ref::<rustls::Error>()) else {
        return String::new();
    };
    match tls_class(tls) {
        PushClass::TlsUnknownAuthority => {
            "no known authority has signed the certificate; ca_pem names one of your own".to_owned()
        }
        _ => excerpt(tls.to_string().as_bytes()),
    }
}

/// An error and its causes. An error of one's own inside one of the system is no source of it.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        inner.map(|inner| inner as &(dyn Error + 'static)).or_else(|| error.source())
    })
}

/// The class of an error: the innermost cause that says something.
fn class_of(error: &(dyn Error + 'static)) -> PushClass {
    let mut class = PushClass::ConnectionFailed;
    for error in causes(error) {
        if error.is::<AddressRefused>() {
            return PushClass::AddressRefused;
        }
        if error.is::<LookupFailed>() {
            return PushClass::DnsError;
        }
        if let Some(tls) = error.downcast_ref() {
            return tls_class(tls);
        }
        if error.is::<TwoLengths>() {
            return PushClass::BadAnswer;
        }
        if let Some(io) = error.downcast_ref::<io::Error>() {
            class = match io.kind() {
                io::ErrorKind::ConnectionRefused => PushClass::ConnectionRefused,
                io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::UnexpectedEof => PushClass::ConnectionReset,
                io::ErrorKind::TimedOut => PushClass::Timeout,
                // A chunk without a length, for example. Errors of TLS have one of their own inside.
                io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => PushClass::BadAnswer,
                _ => class,
            };
        } else if let Some(http) = error.downcast_ref::<hyper::Error>() {
            if http.is_parse() || http.is_parse_too_large() {
                class = PushClass::BadAnswer;
            } else if http.is_incomplete_message() || http.is_closed() || http.is_canceled() {
                class = PushClass::ConnectionReset;
            }
        }
    }
    class
}
