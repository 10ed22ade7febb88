//! The connection of a client command to the server, and the options for it.

use std::convert::Infallible;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io};

use clap::Args;
use duewheel_api::MAKE_CERTIFICATE;
use duewheel_api::token::Token;
use duewheel_client::{ApiAnswer, ApiCall, BlockingBody, BlockingClient, Code, ErrorCode, Method, Options};
pub(super) use duewheel_client::{Error, segment};
use rustls::{CertificateError, Error as TlsFailure, InvalidMessage};
use serde::Serialize;
use serde_json::Value;

use super::failure::CommandFailure;
use super::failure::{refused_line, with_flags};
use super::system_words::{of_file, on_stderr};
use super::wait::FirstContact;

/// The time limit of an answer, in addition to the time that a reserve waits.
const ANSWER: Duration = Duration::from_secs(60);
/// A reason for waiting that was not met for so long is told again.
const NOTED: Duration = Duration::from_secs(60);
/// The form of `--server`.
const ADDRESS: &str = "must be http://HOST:PORT or https://HOST:PORT";

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
    client: BlockingClient,
    base: String,
    /// Shared with the clones: a command waits once.
    contact: Arc<FirstContact>,
    waits: Arc<WaitNotes>,
}

/// The latest reason for waiting that was told, and when it was met last.
#[derive(Debug, Default)]
struct WaitNotes(Mutex<Option<(String, Instant)>>);

impl WaitNotes {
    fn note(&self, trouble: &Error) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let code = trouble.code.as_str();
        if last.as_ref().is_none_or(|(told, at)| told != code || at.elapsed() > NOTED) {
            on_stderr(refused_line(None, "waiting for the server", trouble));
        }
        *last = Some((code.to_owned(), Instant::now()));
    }
}

impl Remote {
    /// A server whose first request waits for it, for `wait` if that is given.
    pub(super) fn new(server: &ServerArgs, wait: Option<Duration>) -> Result<Remote, CommandFailure> {
        let base = with_scheme(&server.server)?;
        let usage = |what: &str| CommandFailure::Usage(format!("--server {}: {what}", shown(&base)));
        let mut options = Options::default().timeout(ANSWER);
        if let Some(token) = token(server)? {
            let is_secure = base.strip_prefix("http://").is_none_or(is_this_machine);
            if !is_secure && server.insecure != Some(true) {
                return Err(usage(
                    "the token would cross the network in the clear; say https://, or --insecure if that is meant",
                ));
            }
            options = options.token(token.reveal()).map_err(CommandFailure::failed)?;
        }
        if let Some(file) = &server.ca_cert {
            let bad = |what: &str| CommandFailure::Usage(format!("--ca-cert {what}"));
            let text = std::fs::read(file).map_err(|error| bad(&of_file(file, &error)))?;
            let read = options.authorities(&text);
            options = read.map_err(|error| bad(&format!("{}: {}", file.display(), error.detail)))?;
        }
        let waits = Arc::new(WaitNotes::default());
        let (notes, at) = (waits.clone(), base.clone());
        let options = options.on_retry(move |error| notes.note(&worded(&at, error.clone())));
        let client = BlockingClient::new(&base, options);
        let client = client.map_err(|error| match error.code == ErrorCode::Internal {
            true => CommandFailure::failed(error),
            false => usage(ADDRESS),
        })?;
        let authority = base.split_once("://").map_or("", |(_, authority)| authority);
        let contact = Arc::new(FirstContact::new(wait, is_this_machine(authority)));
        Ok(Remote { client, base, contact, waits })
    }

    pub(super) fn get(&self, path: &str) -> Result<Value, Error> {
        self.json(ApiCall::get(path), None::<&Value>)
    }

    /// The answer to a request that may take this time.
    pub(super) fn get_within(&self, path: &str, time: Duration) -> Result<Value, Error> {
        self.json(ApiCall::get(path).within(time), None::<&Value>)
    }

    /// The elements of all pages of a list; `path` has no `after`.
    pub(super) fn list(&self, path: &str, elements: &str) -> Result<Vec<Value>, Error> {
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
    pub(super) fn get_bytes(&self, path: &str) -> Result<Vec<u8>, Error> {
        Ok(self.accepted(&ApiCall::get(path))?.body)
    }

    /// The JSON of an answer, whatever its status, and whether that is a success.
    pub(super) fn get_any(&self, path: &str) -> Result<(bool, Value), Error> {
        let answer = self.exchange(&ApiCall::get(path))?;
        Ok((answer.is_success(), serde_json::from_slice(&answer.body).map_err(|_| self.strange())?))
    }

    /// A stream of server-sent events, behind the one with this id.
    pub(super) fn events(&self, path: &str, after: Option<&str>) -> Result<BlockingBody, Error> {
        let call = ApiCall::get(path).events(after)?;
        let is_away = |opened: &Result<Result<_, ApiAnswer>, Error>| match opened {
            Ok(Ok(_)) => false,
            Ok(Err(answer)) => answer.refusal().is_some_and(|refusal| is_not_here(&refusal)),
            Err(error) => is_not_here(error),
        };
        let opened = self.contact.make(&self.base, || self.client.open(&call), is_away);
        match opened.map_err(|error| self.worded(error))? {
            Ok(body) => Ok(body),
            Err(answer) => {
                Err(with_flags(self.worded(answer.refusal().unwrap_or_else(|| self.strange())), None))
            }
        }
    }

    pub(super) fn delete(&self, path: &str) -> Result<Value, Error> {
        self.json(ApiCall::new(Method::DELETE, path), None::<&Value>)
    }

    pub(super) fn delete_with(&self, path: &str, body: &Value) -> Result<Value, Error> {
        self.json(ApiCall::new(Method::DELETE, path), Some(body))
    }

    pub(super) fn post(&self, path: &str, body: &impl Serialize) -> Result<Value, Error> {
        self.json(ApiCall::post(path), Some(body))
    }

    /// A request that the server may answer only after `wait`.
    pub(super) fn post_waiting(&self, path: &str, body: &Value, wait: Duration) -> Result<Value, Error> {
        self.json(ApiCall::post(path).waiting(wait), Some(body))
    }

    pub(super) fn patch(&self, path: &str, body: &Value) -> Result<Value, Error> {
        self.json(ApiCall::new(Method::PATCH, path), Some(body))
    }

    pub(super) fn put(&self, path: &str, body: &Value) -> Result<Value, Error> {
        self.json(ApiCall::new(Method::PUT, path), Some(body))
    }

    /// Posts lines. Returns a result for each.
    pub(super) fn post_lines<'a>(
        &self,
        path: &str,
        lines: impl Iterator<Item = &'a str>,
    ) -> Result<Vec<Value>, Error> {
        let (mut sent, mut count) = (String::new(), 0);
        for line in lines {
            sent.extend([line, "\n"]);
            count += 1;
        }
        let answer = self.accepted(&ApiCall::post(path).lines(sent))?;
        let results = answer.body.split(|b| *b == b'\n').filter(|line| !line.is_empty());
        let results = results.map(|line| serde_json::from_slice(line).map_err(|_| self.strange()));
        let results: Vec<Value> = results.collect::<Result<_, _>>()?;
        match results.len() == count {
            true => Ok(results),
            false => Err(Error::new(Code::Connection, "the answer has not a result for each line")),
        }
    }

    /// The JSON of an answer. A refusal of a field has the name that the command line has for it, and its value in `sent`.
    fn json(&self, call: ApiCall, sent: Option<&impl Serialize>) -> Result<Value, Error> {
        let call = sent.map_or_else(|| Ok(call.clone()), |body| call.clone().json(body))?;
        let sent = || sent.and_then(|body| serde_json::to_value(body).ok());
        let answer = self.accepted(&call).map_err(|error| with_flags(error, sent().as_ref()))?;
        serde_json::from_slice(&answer.body).map_err(|_| self.strange())
    }

    fn accepted(&self, call: &ApiCall) -> Result<ApiAnswer, Error> {
        let answer = self.exchange(call)?;
        answer.refusal().map_or(Ok(answer), |refusal| Err(self.worded(refusal)))
    }

    /// The answer to a request, whatever its status.
    fn exchange(&self, call: &ApiCall) -> Result<ApiAnswer, Error> {
        let is_away = |sent: &Result<ApiAnswer, Error>| match sent {
            Ok(answer) => answer.refusal().is_some_and(|refusal| is_not_here(&refusal)),
            Err(error) => is_not_here(error),
        };
        let whole = || self.client.send(call).and_then(ApiAnswer::whole);
        self.contact.make(&self.base, whole, is_away).map_err(|error| self.worded(error))
    }

    pub(super) fn worded(&self, error: Error) -> Error {
        worded(&self.base, error)
    }

    fn strange(&self) -> Error {
        strange(&self.base)
    }

    /// The client, for what is sent again.
    pub(super) fn client(&self) -> &BlockingClient {
        &self.client
    }

    /// Tells why the server is asked again: once, and again if that is another reason, or a minute later.
    pub(super) fn note_wait(&self, worded: &Error) {
        self.waits.note(worded);
    }
}

/// A failure of the connection, or an answer that is not duewheel's, with advice of the command line.
fn worded(base: &str, mut error: Error) -> Error {
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    error.detail = match (&error.code, error.status) {
        (Code::BadAnswer, Some(status)) if status >= 500 => {
            format!("{base} answers {status}, but not as a duewheel server does")
        }
        (Code::BadAnswer, _) => return strange(base),
        (Code::Connection, _) => {
            if let Some(advice) = error.cause().map(|failure| tls_words(base, failure)) {
                advice
            } else if error.cause().is_some_and(refused) {
                format!(
                    "no server at {base}; start one with `duewheel serve`, or name another with --server URL"
                )
            } else if error.detail.contains("dns error") {
                format!("--server {base}: there is no such host")
            } else if error.may_be_applied {
                format!("{base}: {}", error.detail)
            } else {
                format!("no server at {base} can be reached; name another with --server URL")
            }
        }
        _ => return error,
    };
    error
}

fn strange(base: &str) -> Error {
    Error::new(Code::BadAnswer, format!("{base} answers, but not as a duewheel server does"))
}

/// Whether a request has certainly done nothing, because no server has accepted the connection, or the one that has is
/// without its store yet. One that drains may do so for hours.
fn is_not_here(error: &Error) -> bool {
    let is_away = error.code == Code::Connection && error.is_passing();
    (is_away || error.code == ErrorCode::StorageUnavailable) && !error.may_be_applied
}

/// Whether a command that waits for its server tries again: it is away, or will take requests a little later.
pub(super) fn will_pass(trouble: &Error) -> bool {
    match &trouble.code {
        Code::Connection => trouble.is_passing(),
        // A proxy says that the server is away.
        Code::BadAnswer => trouble.status.is_some_and(|status| status >= 500),
        Code::Server(ErrorCode::Draining | ErrorCode::StorageUnavailable) => true,
        _ => is_full(trouble),
    }
}

/// Whether a request was refused for lack of space, of the server or within the quota of the queue's tenant.
pub(super) fn is_full(trouble: &Error) -> bool {
    matches!(trouble.code, Code::Server(ErrorCode::Overloaded | ErrorCode::OverQuota))
}

/// Whether an import sends the same request again: also one with an unknown outcome, under the same dedupe ids, and while
/// the disk is full.
pub(super) fn may_pass(trouble: &Error) -> bool {
    use ErrorCode as E;
    will_pass(trouble) || matches!(trouble.code, Code::Server(E::Unknown | E::DiskFull | E::RequestTimeout))
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
    if let Some((scheme, rest)) = given.split_once("://") {
        // Everything behind this knows them in small letters only.
        let scheme = scheme.to_ascii_lowercase();
        return match scheme.as_str() {
            "http" | "https" => Ok(format!("{scheme}://{rest}")),
            _ => Err(CommandFailure::Usage(format!("--server {}: {ADDRESS}", shown(server)))),
        };
    }
    let here = if given.starts_with(':') { format!("127.0.0.1{given}") } else { given.to_owned() };
    if !is_this_machine(&here) {
        let what = "say http:// or https:// before it; only on this machine it may be left out";
        return Err(CommandFailure::Usage(format!("--server {}: {what}", shown(server))));
    }
    let authority = here.split('/').next().unwrap_or_default();
    // The last colon of [::1] is within the brackets.
    let port = authority.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.ends_with(']'));
    match port {
        Some(port) if port.parse::<u16>().is_err() => {
            let what = "the port must be a number up to 65535";
            Err(CommandFailure::Usage(format!("--server {}: {what}", shown(server))))
        }
        None if !here.contains('/') => Ok(format!("http://{here}:7788")),
        Some(_) | None => Ok(format!("http://{here}")),
    }
}

/// An address without the name and the password in it.
fn shown(server: &str) -> String {
    let Some((front, host)) = server.rsplit_once('@') else { return server.to_owned() };
    let scheme = ["http://", "https://"].iter().find(|scheme| front.starts_with(**scheme));
    format!("{}{host}", scheme.unwrap_or(&""))
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

/// Advice on a failure of TLS with `base`; the failure itself if there is none.
fn tls_words(base: &str, failure: &TlsFailure) -> String {
    let why = match failure {
        TlsFailure::InvalidMessage(
            InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
        ) => {
            let rest = base.strip_prefix("https://").unwrap_or(base);
            format!("this is an HTTP port, without TLS: say --server http://{rest}")
        }
        TlsFailure::InvalidCertificate(error) => of_certificate(error).unwrap_or_else(|| failure.to_string()),
        TlsFailure::AlertReceived(alert) => format!("the server ended the TLS handshake: {alert:?}"),
        _ => failure.to_string(),
    };
    format!("{base}: {why}")
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
        let told = |failure: TlsFailure| tls_words("https://h:1", &failure);
        let plain = TlsFailure::InvalidMessage(InvalidMessage::InvalidContentType);
        assert_eq!(told(plain), "https://h:1: this is an HTTP port, without TLS: say --server http://h:1");
        assert!(told(CertificateError::UnknownIssuer.into()).contains("--ca-cert"));
        assert!(told(CertificateError::NotValidForName.into()).contains("other host names"));
        for unknown in [TlsFailure::HandshakeNotComplete, CertificateError::Revoked.into()] {
            assert_eq!(told(unknown.clone()), format!("https://h:1: {unknown}"));
        }
    }

    #[test]
    fn tokens_leave_in_the_clear_only_knowingly() {
        let connect = |server: &str, insecure| {
            let token = Some(HiddenText("dw_".to_owned() + &"A".repeat(43)));
            Remote::new(&ServerArgs { server: server.into(), token, insecure, ..ServerArgs::default() }, None)
        };
        for clear in ["http://192.0.2.1:7788", "HTTP://192.0.2.1:7788", "hTTp://localhost@192.0.2.1:1"] {
            let Err(CommandFailure::Usage(why)) = connect(clear, None) else { panic!("{clear}") };
            assert!(why.contains("in the clear"), "{why}");
        }
        assert!(connect("HTTP://192.0.2.1:7788", Some(true)).is_ok());
        assert!(connect("HTTPS://192.0.2.1:7788", None).is_ok() && connect("HTTP://[::1]:1", None).is_ok());
        for other in ["ws://192.0.2.1:7788", "ftp://localhost", "://localhost", "x/http://192.0.2.1"] {
            let Err(CommandFailure::Usage(why)) = connect(other, Some(true)) else { panic!("{other}") };
            assert!(why.contains("must be http://HOST:PORT"), "{why}");
        }
    }

    #[test]
    fn passwords_in_addresses_are_not_shown() {
        for server in [
            "http://me:secret@192.0.2.1:1",
            "https://me:secret@localhost:1",
            "me:secret@localhost:99999",
            "me:secret@192.0.2.1",
            "ws://me:secret@localhost",
        ] {
            let args = ServerArgs { server: server.into(), ..ServerArgs::default() };
            let Err(CommandFailure::Usage(why)) = Remote::new(&args, None) else { panic!("{server}") };
            assert!(!why.contains("secret"), "{why}");
        }
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
            let problem: Value = serde_json::from_str(problem).unwrap_or_default();
            let refusal = Error::of_problem(&problem).unwrap_or_else(|| Error::new(Code::BadAnswer, ""));
            assert_eq!(is_not_here(&refusal), expected, "{problem}");
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
