//! The connection of a client command to the server, and the options for it.

use std::convert::Infallible;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use clap::Args;
use duewheel_api::MAKE_CERTIFICATE;
use duewheel_api::token::Token;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{CertificateError, Error as TlsFailure, InvalidMessage};
use serde_json::Value;
use ureq::Timeout;
use ureq::http::header::AUTHORIZATION;
use ureq::http::request::Builder;
use ureq::http::{HeaderValue, Request, StatusCode};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use super::failure::CommandFailure;
use super::failure::with_flags;
pub(super) use super::failure::{ApiError, ServerRefusal, segment};
use super::system_words::of_file;
use super::wait::FirstContact;

const CONNECT: Duration = Duration::from_secs(5);
/// The time limit of an answer, in addition to the time that a reserve waits.
const ANSWER: Duration = Duration::from_secs(60);
/// The largest answer that is read: a page of the largest messages.
const MAX_ANSWER: u64 = 1 << 30;

/// The server that a client command talks to, and the credentials.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Server options")]
pub(super) struct ServerArgs {
    /// Print the answer as JSON, and an error as one JSON object on standard error
    #[arg(long, help_heading = None::<&'static str>)]
    pub(super) json: bool,
    /// The server's address; http:// may be left out for this machine, as in localhost:7788
    #[arg(long, env = "DUEWHEEL_SERVER", value_name = "URL", default_value = "http://127.0.0.1:7788")]
    pub(super) server: String,
    /// The token, if the server requires one. Other users of this machine can see options, so prefer DUEWHEEL_TOKEN or
    /// a file
    #[arg(long, env = "DUEWHEEL_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub(super) token: Option<HiddenText>,
    /// A file that contains the token
    #[arg(long, env = "DUEWHEEL_TOKEN_FILE", value_name = "FILE", conflicts_with = "token")]
    pub(super) token_file: Option<PathBuf>,
    /// Certificates of authorities (PEM) for https, in place of those that browsers trust
    #[arg(long, env = "DUEWHEEL_CA_CERT", value_name = "FILE")]
    pub(super) ca_cert: Option<PathBuf>,
    /// Send the token to another machine even without https
    #[arg(long, env = "DUEWHEEL_INSECURE", value_name = "YES", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_parser = insecure)]
    pub(super) insecure: Option<bool>,
}

/// The variable may be the server's, where it names listeners: such a value permits nothing for tokens.
fn insecure(text: &str) -> Result<bool, String> {
    let is_of_server = |word: &str| ["http", "peer", "beanstalk", "none"].contains(&word.trim());
    match text.parse() {
        Ok(is_given) => Ok(is_given),
        Err(_) if text.split(',').all(is_of_server) => Ok(false),
        Err(_) => Err("must be true or false".to_owned()),
    }
}

/// Text that is never shown, not even when it is invalid.
#[derive(Clone)]
pub(super) struct HiddenText(pub(super) String);

impl fmt::Debug for HiddenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl FromStr for HiddenText {
    type Err = Infallible;

    fn from_str(s: &str) -> Result<Self, Infallible> {
        Ok(HiddenText(s.to_owned()))
    }
}

/// A server.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    agent: ureq::Agent,
    base: String,
    token: Option<Token>,
    /// Shared with the clones: a command waits once.
    contact: Arc<FirstContact>,
}

/// The bytes of a stream of events.
pub(super) struct EventSource(ureq::BodyReader<'static>);

impl io::Read for EventSource {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Remote {
    /// A server whose first request waits for it, for `wait` if that is given.
    pub(super) fn new(server: &ServerArgs, wait: Option<Duration>) -> Result<Remote, CommandFailure> {
        let base = with_scheme(&server.server)?;
        let usage = |what: &str| CommandFailure::Usage(format!("--server {base}: {what}"));
        let token = token(server)?;
        if let Some(authority) = base.strip_prefix("http://") {
            if token.is_some() && server.insecure != Some(true) && !is_this_machine(authority) {
                return Err(usage(
                    "the token would cross the network in the clear; say https://, or --insecure if that is meant",
                ));
            }
        } else if !base.starts_with("https://") {
            return Err(usage("must be http://HOST:PORT or https://HOST:PORT"));
        }
        let roots = match &server.ca_cert {
            Some(file) => authorities(file)?,
            None => RootCerts::WebPki,
        };
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_connect(Some(CONNECT))
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .user_agent(concat!("duewheel/", env!("CARGO_PKG_VERSION")))
            .build();
        let authority = base.split_once("://").map_or("", |(_, authority)| authority);
        let contact = Arc::new(FirstContact::new(wait, is_this_machine(authority)));
        Ok(Remote { agent: config.new_agent(), base, token, contact })
    }

    pub(super) fn get(&self, path: &str) -> Result<Value, ApiError> {
        self.get_within(path, ANSWER)
    }

    /// The answer to a request that may take this time.
    pub(super) fn get_within(&self, path: &str, time: Duration) -> Result<Value, ApiError> {
        self.json(Request::get(self.url(path)).body(()), time, None)
    }

    /// The elements of all pages of a list; `path` has no `after`.
    pub(super) fn list(&self, path: &str, elements: &str) -> Result<Vec<Value>, ApiError> {
        let (mut all, mut after) = (Vec::new(), String::new());
        let separator = if path.contains('?') { '&' } else { '?' };
        loop {
            let mut page = self.get(&format!("{path}{after}"))?;
            if let Some(Value::Array(more)) = page.get_mut(elements).map(Value::take) {
                all.extend(more);
            }
            match page["next"].as_str() {
                Some(next) => after = format!("{separator}after={}", segment(next)),
                None => return Ok(all),
            }
        }
    }

    /// The bytes of an answer, in which the members of an object keep their order.
    pub(super) fn get_bytes(&self, path: &str) -> Result<Vec<u8>, ApiError> {
        self.run(Request::get(self.url(path)).body(()), ANSWER)
    }

    /// The JSON of an answer, whatever its status, and whether that is a success.
    pub(super) fn get_any(&self, path: &str) -> Result<(bool, Value), ApiError> {
        let (status, bytes) = self.exchange(Request::get(self.url(path)).body(()), ANSWER)?;
        Ok((status.is_success(), serde_json::from_slice(&bytes).map_err(|_| self.strange())?))
    }

    /// A stream of server-sent events, behind the one with this id.
    pub(super) fn events(&self, path: &str, after: Option<&str>) -> Result<EventSource, ApiError> {
        let mut request = Request::get(self.url(path)).header("accept", "text/event-stream");
        if let Some(id) = after {
            request = request.header("last-event-id", id);
        }
        let request = self.authorized(request.body(()))?;
        let connect = || -> Result<Result<EventSource, (StatusCode, Vec<u8>)>, ureq::Error> {
            let request = self.agent.configure_request(request.clone()).timeout_recv_response(Some(ANSWER));
            let mut response = self.agent.run(request.build())?;
            if response.status().is_success() {
                return Ok(Ok(EventSource(response.into_body().into_reader())));
            }
            let body = response.body_mut().with_config().limit(MAX_ANSWER).read_to_vec()?;
            Ok(Err((response.status(), body)))
        };
        let is_away = |made: &Result<Result<_, (StatusCode, Vec<u8>)>, ureq::Error>| match made {
            Ok(Ok(_)) => false,
            Ok(Err((status, body))) => is_not_ready(*status, body),
            Err(error) => is_unsent(error),
        };
        let made = self.contact.make(&self.base, connect, is_away);
        let (status, body) = match made.map_err(|error| self.unreachable(&error))? {
            Ok(source) => return Ok(source),
            Err(refused) => refused,
        };
        match self.refused(status, &body) {
            ApiError::Refused(refusal) => Err(ApiError::Refused(with_flags(refusal, None))),
            other => Err(other),
        }
    }

    pub(super) fn delete(&self, path: &str) -> Result<Value, ApiError> {
        self.json(Request::delete(self.url(path)).body(()), ANSWER, None)
    }

    pub(super) fn delete_with(&self, path: &str, body: &Value) -> Result<Value, ApiError> {
        self.send(Request::delete(self.url(path)), body, ANSWER)
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Value, ApiError> {
        self.post_waiting(path, body, Duration::ZERO)
    }

    /// A request that the server may answer only after `wait`.
    pub(super) fn post_waiting(&self, path: &str, body: &Value, wait: Duration) -> Result<Value, ApiError> {
        self.send(Request::post(self.url(path)), body, ANSWER + wait)
    }

    pub(super) fn patch(&self, path: &str, body: &Value) -> Result<Value, ApiError> {
        self.send(Request::patch(self.url(path)), body, ANSWER)
    }

    pub(super) fn put(&self, path: &str, body: &Value) -> Result<Value, ApiError> {
        self.send(Request::put(self.url(path)), body, ANSWER)
    }

    fn send(&self, request: Builder, body: &Value, time: Duration) -> Result<Value, ApiError> {
        let request = request.header("content-type", "application/json");
        self.json(request.body(&*body.to_string()), time, Some(body))
    }

    /// Posts lines; gives a result for each.
    pub(super) fn post_lines<'a>(
        &self,
        path: &str,
        lines: impl Iterator<Item = &'a str>,
    ) -> Result<Vec<Value>, ApiError> {
        let lines: String = lines.flat_map(|line| [line, "\n"]).collect();
        let request = Request::post(self.url(path)).header("content-type", "application/x-ndjson");
        let bytes = self.run(request.body(&*lines), ANSWER)?;
        let results = bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty());
        results.map(|line| serde_json::from_slice(line).map_err(|_| self.strange())).collect()
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// The JSON of an answer. A refusal of a field has the name that the command line has for it, and its value in `sent`.
    fn json<B: ureq::AsSendBody + Clone>(
        &self,
        request: Result<Request<B>, ureq::http::Error>,
        time: Duration,
        sent: Option<&Value>,
    ) -> Result<Value, ApiError> {
        let bytes = self.run(request, time).map_err(|error| match error {
            ApiError::Refused(refusal) => ApiError::Refused(with_flags(refusal, sent)),
            other => other,
        })?;
        serde_json::from_slice(&bytes).map_err(|_| self.strange())
    }

    fn run<B: ureq::AsSendBody + Clone>(
        &self,
        request: Result<Request<B>, ureq::http::Error>,
        time: Duration,
    ) -> Result<Vec<u8>, ApiError> {
        let (status, body) = self.exchange(request, time)?;
        if status.is_success() { Ok(body) } else { Err(self.refused(status, &body)) }
    }

    /// The error in the body of an answer that is no success. Without the `code` of a duewheel server it is of
    /// something else: of a proxy, if its status says that the server is away.
    fn refused(&self, status: StatusCode, body: &[u8]) -> ApiError {
        let problem = serde_json::from_slice(body).unwrap_or(Value::Null);
        if ServerRefusal::is_known(&problem) {
            ApiError::Refused(ServerRefusal::from_json(&problem))
        } else if status.is_server_error() {
            ApiError::Unreachable(format!(
                "{} answers {status}, but not as a duewheel server does",
                self.base
            ))
        } else {
            self.strange()
        }
    }

    /// The status and the body of an answer.
    fn exchange<B: ureq::AsSendBody + Clone>(
        &self,
        request: Result<Request<B>, ureq::http::Error>,
        time: Duration,
    ) -> Result<(StatusCode, Vec<u8>), ApiError> {
        let request = self.authorized(request)?;
        let exchange = || {
            let request = self.agent.configure_request(request.clone()).timeout_global(Some(time)).build();
            let mut response = self.agent.run(request)?;
            let body = response.body_mut().with_config().limit(MAX_ANSWER).read_to_vec()?;
            Ok((response.status(), body))
        };
        let is_away = |made: &Result<(StatusCode, Vec<u8>), ureq::Error>| match made {
            Ok((status, body)) => is_not_ready(*status, body),
            Err(error) => is_unsent(error),
        };
        self.contact.make(&self.base, exchange, is_away).map_err(|error| self.unreachable(&error))
    }

    /// The request with the token.
    fn authorized<B>(&self, request: Result<Request<B>, ureq::http::Error>) -> Result<Request<B>, ApiError> {
        let mut request =
            request.map_err(|error| ApiError::Unreachable(format!("--server {}: {error}", self.base)))?;
        if let Some(token) = &self.token
            && let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {}", token.reveal()))
        {
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        Ok(request)
    }

    fn unreachable(&self, error: &ureq::Error) -> ApiError {
        let base = &self.base;
        if let Some(advice) = tls_advice(base, error) {
            return ApiError::Mistaken(advice);
        }
        let what = match error {
            ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                format!(
                    "no server at {base}; start one with `duewheel serve`, or name another with --server URL"
                )
            }
            ureq::Error::ConnectionFailed => {
                format!("no server at {base} can be reached; name another with --server URL")
            }
            ureq::Error::HostNotFound => format!("--server {base}: there is no such host"),
            other => format!("{base}: {other}"),
        };
        ApiError::Unreachable(what)
    }

    fn strange(&self) -> ApiError {
        ApiError::Mistaken(format!("{} answers, but not as a duewheel server does", self.base))
    }
}

/// Whether a request has certainly not left this machine: no server has accepted the connection.
fn is_unsent(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Io(error) => error.kind() == io::ErrorKind::ConnectionRefused,
        ureq::Error::Timeout(timeout) => matches!(timeout, Timeout::Resolve | Timeout::Connect),
        ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => true,
        _ => false,
    }
}

/// Whether a server has refused a request, and done nothing of it, because it has no store yet. One that drains may do
/// so for hours.
fn is_not_ready(status: StatusCode, body: &[u8]) -> bool {
    let problem: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    status == StatusCode::SERVICE_UNAVAILABLE
        && problem["code"] == "storage_unavailable"
        && problem["outcome"] == "not_applied"
}

/// Whether a command that waits for its server tries again: it is away, or will take requests a little later.
pub(super) fn will_pass(trouble: &ApiError) -> bool {
    match trouble {
        ApiError::Unreachable(_) => true,
        ApiError::Mistaken(_) => false,
        ApiError::Refused(refusal) => refusal.is_passing() || refusal.code == "storage_unavailable",
    }
}

/// Whether an import sends the same request again: also one with an unknown outcome, under the same dedupe ids, and while
/// the disk is full.
pub(super) fn may_pass(trouble: &ApiError) -> bool {
    let is_unsure = |code: &str| matches!(code, "unknown" | "disk_full" | "request_timeout");
    will_pass(trouble) || matches!(trouble, ApiError::Refused(refusal) if is_unsure(&refusal.code))
}

fn token(server: &ServerArgs) -> Result<Option<Token>, CommandFailure> {
    let Some(file) = &server.token_file else {
        let token = server.token.as_ref().map(|secret| secret.0.trim().parse());
        return token.transpose().map_err(|what: String| CommandFailure::Usage(format!("--token: {what}")));
    };
    let bad = |what: String| CommandFailure::Usage(format!("--token-file {what}"));
    let text = std::fs::read_to_string(file).map_err(|error| bad(of_file(file, &error)))?;
    text.trim().parse().map(Some).map_err(|what: String| bad(format!("{}: {what}", file.display())))
}

/// The address of a server, whose scheme and port may be left out if it is on this machine: `localhost:7788`, `:7788`. A
/// server elsewhere mostly has TLS, and is never spoken to in the clear because of a guess.
fn with_scheme(server: &str) -> Result<String, CommandFailure> {
    let given = server.trim_end_matches('/');
    if given.contains("://") {
        return Ok(given.to_owned());
    }
    let here = if given.starts_with(':') { format!("127.0.0.1{given}") } else { given.to_owned() };
    if !is_this_machine(&here) {
        let what = "say http:// or https:// before it; only on this machine it may be left out";
        return Err(CommandFailure::Usage(format!("--server {server}: {what}")));
    }
    let authority = here.split('/').next().unwrap_or_default();
    // The last colon of [::1] is within the brackets.
    let port = authority.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.ends_with(']'));
    match port {
        Some(port) if port.parse::<u16>().is_err() => {
            Err(CommandFailure::Usage(format!("--server {server}: the port must be a number up to 65535")))
        }
        None if !here.contains('/') => Ok(format!("http://{here}:7788")),
        Some(_) | None => Ok(format!("http://{here}")),
    }
}

/// Whether nothing leaves this machine on the way to `HOST:PORT`.
fn is_this_machine(authority: &str) -> bool {
    let authority = authority.split(['/', '?', '#']).next().unwrap_or_default();
    // The part in front of an @ may contain anything.
    let host = authority.rsplit('@').next().unwrap_or_default();
    let host = match host.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
        Some(_) | None => host,
    };
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.map_or(host.eq_ignore_ascii_case("localhost"), |address| address.is_loopback())
}

fn authorities(file: &Path) -> Result<RootCerts, CommandFailure> {
    let bad =
        |what: &dyn fmt::Display| CommandFailure::Usage(format!("--ca-cert {}: {what}", file.display()));
    let unread = |error| CommandFailure::Usage(format!("--ca-cert {}", of_file(file, &error)));
    let text = std::fs::read(file).map_err(unread)?;
    let certs: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text)
        .map(|cert| cert.map(|der| Certificate::from_der(&der).to_owned()))
        .collect();
    match certs {
        Ok(certs) if certs.is_empty() => Err(bad(&"there is no certificate in it (PEM)")),
        Ok(certs) => Ok(RootCerts::new_with_certs(&certs)),
        Err(error) => Err(bad(&error)),
    }
}

/// Advice on a failed handshake with `base`; `None` for other failures.
fn tls_advice(base: &str, error: &ureq::Error) -> Option<String> {
    match error {
        ureq::Error::Rustls(failure) => tls_words(base, failure),
        ureq::Error::Io(error) => {
            error.get_ref()?.downcast_ref::<TlsFailure>().and_then(|e| tls_words(base, e))
        }
        _ => None,
    }
}

fn tls_words(base: &str, failure: &TlsFailure) -> Option<String> {
    let why = match failure {
        TlsFailure::InvalidMessage(
            InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
        ) => {
            let rest = base.strip_prefix("https://").unwrap_or(base);
            format!("this is an HTTP port, without TLS: say --server http://{rest}")
        }
        TlsFailure::InvalidCertificate(error) => return Some(format!("{base}: {}", of_certificate(error)?)),
        TlsFailure::AlertReceived(alert) => format!("the server ended the TLS handshake: {alert:?}"),
        _ => return None,
    };
    Some(format!("{base}: {why}"))
}

fn of_certificate(error: &CertificateError) -> Option<String> {
    Some(match error {
        CertificateError::UnknownIssuer => {
            "the certificate is of an authority that is not known here; name the file of \
             the authority's certificate with --ca-cert"
                .to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the certificate has expired".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the certificate is not valid yet; is the clock of this machine right?".to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "the certificate is for other host names; use one of them, or make one for this name \
             (subjectAltName)"
                .to_owned()
        }
        other if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            format!("the certificate is a CA's, not a server's. {}", MAKE_CERTIFICATE)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_addresses_are_local() {
        for here in ["127.0.0.1:7788", "127.9.9.9", "[::1]:7788", "localhost:1", "LOCALHOST", "localhost/x"] {
            assert!(is_this_machine(here), "{here}");
        }
        for there in [
            "192.0.2.1:7788",
            "[2001:db8::1]:1",
            "localhost.example:1",
            "localhost@192.0.2.1:1",
            "127.0.0.1.example",
            "",
            "duewheel:7788",
            "192.0.2.1:1#@localhost",
            "127.0.0.1@x.example",
        ] {
            assert!(!is_this_machine(there), "{there}");
        }
    }

    #[test]
    fn scheme_is_left_out_only_here() {
        for (given, address) in [
            ("localhost:7799", "http://localhost:7799"),
            (":7799", "http://127.0.0.1:7799"),
            ("127.0.0.2", "http://127.0.0.2:7788"),
            ("[::1]", "http://[::1]:7788"),
            ("[::1]:7799/", "http://[::1]:7799"),
            ("https://db1:7788/", "https://db1:7788"),
        ] {
            assert_eq!(with_scheme(given).expect(given), address);
        }
        for elsewhere in
            ["db1:7788", "192.0.2.1:7788", "localhost.example", "localhost@192.0.2.1:1", "", "7788"]
        {
            let Err(CommandFailure::Usage(why)) = with_scheme(elsewhere) else { panic!("{elsewhere}") };
            assert!(why.contains("say http:// or https://"), "{why}");
        }
        for wrong in ["localhost:99999", ":99999/", "[::1]:99999", "localhost:"] {
            let Err(CommandFailure::Usage(why)) = with_scheme(wrong) else { panic!("{wrong}") };
            assert!(why.contains("the port must be"), "{why}");
        }
    }

    #[test]
    fn failures_tell_what_to_do() {
        let told = |failure: TlsFailure| tls_words("https://h:1", &failure).unwrap_or_default();
        let plain = TlsFailure::InvalidMessage(InvalidMessage::InvalidContentType);
        assert_eq!(told(plain), "https://h:1: this is an HTTP port, without TLS: say --server http://h:1");
        assert!(told(CertificateError::UnknownIssuer.into()).contains("--ca-cert"));
        assert!(told(CertificateError::NotValidForName.into()).contains("other host names"));
        assert_eq!(told(TlsFailure::HandshakeNotComplete), "");
    }

    /// Story: `duewheel serve &` and a command behind it failed: the server listens before it has read its folder.
    #[test]
    fn only_starting_servers_are_waited_for() {
        for (problem, expected) in [
            (r#"{"code": "storage_unavailable", "detail": "starting: …", "outcome": "not_applied"}"#, true),
            (r#"{"code": "storage_unavailable", "outcome": "unknown"}"#, false),
            (r#"{"code": "draining", "outcome": "not_applied"}"#, false),
            (r#"{"code": "overloaded"}"#, false),
            ("bad gateway", false),
        ] {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            assert_eq!(is_not_ready(status, problem.as_bytes()), expected, "{problem}");
        }
    }

    /// A container may have the server's variable, and its client commands must continue to work.
    #[test]
    fn listener_insecure_value_exposes_no_token() {
        for (text, means) in
            [("true", Ok(true)), ("false", Ok(false)), ("http,peer", Ok(false)), ("none", Ok(false))]
        {
            assert_eq!(insecure(text), means, "{text}");
        }
        assert!(insecure("yes").is_err() && insecure("").is_err());
    }
}
