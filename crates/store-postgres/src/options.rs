//! Options of the store: the address of PostgreSQL, and settings.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use duewheel_store_log::Options as LogOptions;
use duewheel_store_medium::{BadOption, fitted, millis};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

const MIB: u64 = 1024 * 1024;
const DEFAULT_SCHEMA: &str = "duewheel";
/// The longest identifier of PostgreSQL, which cuts longer ones.
const MAX_NAME: usize = 63;
const DEFAULT_LEASE: Duration = Duration::from_secs(5);
const LEASES: std::ops::RangeInclusive<Duration> = Duration::from_millis(500)..=Duration::from_secs(600);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections of a process: each shard has a few threads, of which most wait.
const CONNECTIONS: usize = 16;
/// A segment costs nothing until it is written, and is read as a whole when a shard changes its owner.
const SEGMENT: u64 = 16 * MIB;
const MAX_JOURNAL: u64 = 64 * MIB;
/// A run is written and removed in few seconds, and merged in memory of this order.
const RUN: u64 = 128 * MIB;

/// Address of PostgreSQL, and settings. [`Options::parse`] reads a URL; the setters set the rest.
///
/// `postgres://USER:PASSWORD@HOST:PORT/DATABASE` or `postgresql://…`, with the parameters that libpq knows. A server that
/// is not on this machine is reached by TLS alone, and its certificate must be for its name.
///
/// # Examples
/// ```
/// use duewheel_store_postgres::Options;
///
/// let options = Options::parse("postgres://duewheel:s3cret@127.0.0.1:5432/orders")?.schema("wheel")?;
/// assert!(!format!("{options:?}").contains("s3cret"), "passwords are not shown");
/// assert!(Options::parse("postgres://duewheel@db.internal/orders?sslmode=disable").is_err());
/// # Ok::<(), duewheel_store_postgres::BadOption>(())
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) config: Config,
    pub(crate) is_encrypted: bool,
    pub(crate) tls: Option<Arc<ClientConfig>>,
    pub(crate) schema: String,
    pub(crate) lease: Duration,
    pub(crate) connections: usize,
    pub(crate) log: LogOptions,
}

impl Options {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`BadOption`] if it is malformed, names no host, or asks for an unencrypted or unverified connection to another
    /// machine. The URL is not shown, because it may have a password.
    pub fn parse(url: &str) -> Result<Self, BadOption> {
        let bad = |what: &str| BadOption::new("url", what);
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(bad("must begin with postgres:// or postgresql://"));
        }
        // `sslmode` is judged here: the client library knows fewer of its words. Several hosts are no URL of the web, so
        // the rest is left to that library.
        let (address, parameters) = url.split_once('?').unwrap_or((url, ""));
        let (modes, others): (Vec<&str>, Vec<&str>) = parameters
            .split('&')
            .filter(|part| !part.is_empty())
            .partition(|part| part.starts_with("sslmode="));
        let mode = modes.last().and_then(|part| part.split_once('=')).map(|(_, mode)| mode);
        let plain =
            if others.is_empty() { address.to_owned() } else { format!("{address}?{}", others.join("&")) };
        let mut config: Config = plain.parse().map_err(|error: tokio_postgres::Error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            // The library quotes what it does not know, which may be part of a password.
            let cause = cause.split('`').next().unwrap_or_default().trim_end().to_owned();
            bad(&format!("cannot be read: {cause}"))
        })?;
        if config.get_hosts().is_empty() {
            return Err(bad("names no host"));
        }
        let is_here = config.get_hosts().iter().all(is_on_this_machine);
        let is_encrypted = match (mode, is_here) {
            (None | Some("disable" | "allow" | "prefer"), true) => false,
            (None | Some("require" | "verify-ca" | "verify-full"), _) => true,
            (Some("disable" | "allow" | "prefer"), false) => {
                return Err(bad(
                    "sslmode: a server on another machine is reached by TLS alone (verify-full)",
                ));
            }
            (Some(_), _) => return Err(bad("sslmode: must be disable or verify-full")),
        };
        config.ssl_mode(if is_encrypted { SslMode::Require } else { SslMode::Disable });
        config.connect_timeout(CONNECT_TIMEOUT).application_name("duewheel");
        config.keepalives_idle(Duration::from_secs(15));
        Ok(Options {
            config,
            is_encrypted,
            tls: None,
            schema: DEFAULT_SCHEMA.into(),
            lease: DEFAULT_LEASE,
            connections: CONNECTIONS,
            log: fitting(LogOptions::default()),
        })
    }

    /// The user, if not in the URL.
    #[must_use]
    pub fn user(mut self, user: &str) -> Self {
        self.config.user(user);
        self
    }

    /// The password, if not in the URL.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.config.password(password);
        self
    }

    /// The schema of the tables, `duewheel` by default: lower-case letters, digits and `_`, not beginning with a digit.
    ///
    /// # Errors
    /// [`BadOption`] for another name.
    pub fn schema(mut self, schema: &str) -> Result<Self, BadOption> {
        check_identifier("schema", schema)?;
        self.schema = schema.into();
        Ok(self)
    }

    /// How long a node has a shard without renewing its lease; 5 s by default. It must be the same at all nodes.
    ///
    /// # Errors
    /// [`BadOption`] outside of 500 ms to 10 minutes.
    pub fn lease(mut self, lease: Duration) -> Result<Self, BadOption> {
        if !LEASES.contains(&lease) {
            return Err(BadOption::new(
                "lease",
                format!("{} ms: must be from 500 ms to 10 minutes", millis(lease)),
            ));
        }
        self.lease = lease;
        Ok(self)
    }

    /// The authorities of the server's certificate, in PEM, instead of those of the web.
    ///
    /// # Errors
    /// [`BadOption`] if the file cannot be read or has no certificate.
    pub fn tls_authority(mut self, file: &Path) -> Result<Self, BadOption> {
        let bad = |what: String| BadOption::new("authority", format!("{}: {what}", file.display()));
        let read = CertificateDer::pem_file_iter(file).map_err(|error| bad(error.to_string()))?;
        let mut roots = RootCertStore::empty();
        for certificate in read {
            let certificate = certificate.map_err(|error| bad(error.to_string()))?;
            roots.add(certificate).map_err(|error| bad(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(bad("there is no certificate in it".into()));
        }
        self.tls = Some(client_config(roots)?);
        Ok(self)
    }

    /// Settings of each shard's log store. Sizes of files are bounded by what suits the medium.
    #[must_use]
    pub fn log(mut self, log: LogOptions) -> Self {
        self.log = fitting(log);
        self
    }

    /// The servers, without user and password.
    pub fn servers(&self) -> String {
        let ports = self.config.get_ports();
        let port = |i: usize| ports.get(i).or(ports.first()).copied().unwrap_or(5432);
        let name = |(i, host): (usize, &Host)| match host {
            Host::Tcp(name) => format!("{name}:{}", port(i)),
            Host::Unix(path) => path.display().to_string(),
        };
        self.config.get_hosts().iter().enumerate().map(name).collect::<Vec<_>>().join(",")
    }

    /// TLS with the chosen authorities, or those of the web.
    pub(crate) fn tls(&self) -> Result<Arc<ClientConfig>, BadOption> {
        match &self.tls {
            Some(tls) => Ok(Arc::clone(tls)),
            None => client_config(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() }),
        }
    }
}

/// Checks a name that is written into statements as it is.
pub(crate) fn check_identifier(field: &'static str, name: &str) -> Result<(), BadOption> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    if !begins || name.len() > MAX_NAME || !name.chars().all(is_plain) || name.starts_with("pg_") {
        let what = format!(
            "{name:?}: must be 1 to {MAX_NAME} of a-z 0-9 _, and begin with a letter or _, not with pg_"
        );
        return Err(BadOption::new(field, what));
    }
    Ok(())
}

fn client_config(roots: RootCertStore) -> Result<Arc<ClientConfig>, BadOption> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let versions = versions.map_err(|error| BadOption::new("authority", error))?;
    Ok(Arc::new(versions.with_root_certificates(roots).with_no_client_auth()))
}

/// Options of a log store whose files are rows.
fn fitting(log: LogOptions) -> LogOptions {
    let segment_bytes = SEGMENT.min(log.segment_bytes);
    fitted(log, segment_bytes, MAX_JOURNAL, RUN)
}

fn is_on_this_machine(host: &Host) -> bool {
    match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost"
                || name.trim_matches(['[', ']']).parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("servers", &self.servers())
            .field("is_encrypted", &self.is_encrypted)
            .field("schema", &self.schema)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_postgres_requires_tls() {
        for (url, is_encrypted) in [
            ("postgres://u@127.0.0.1/d", false),
            ("postgresql://u@localhost:5433/d?sslmode=prefer", false),
            ("postgres://u@[::1]/d", false),
            ("postgres://u@127.0.0.1:1,127.0.0.1:2/d?target_session_attrs=read-write", false),
            ("postgres://u@127.0.0.1:1,db.internal:2/d", true),
            ("postgres://u@localhost/d?sslmode=verify-full", true),
            ("postgres://u@db.internal/d", true),
            ("postgres://u@10.0.0.1/d?sslmode=require&connect_timeout=3", true),
        ] {
            let options = Options::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!(options.is_encrypted, is_encrypted, "{url}");
        }
        for url in ["postgres://u@db.internal/d?sslmode=disable", "postgres://u@db.internal/d?sslmode=prefer"]
        {
            assert!(Options::parse(url).unwrap_err().to_string().contains("TLS alone"), "{url}");
        }
    }

    #[test]
    fn invalid_url_error_hides_password() {
        for url in [
            "redis://u:geheim@h/1",
            "postgres://u:geheim@",
            "postgres://u:geheim@h:x/d",
            "postgres://u:geheim@h/d?sslmode=geheim",
            "geheim",
        ] {
            let refused = Options::parse(url).unwrap_err();
            assert!(!refused.to_string().contains("geheim@"), "{refused}");
            assert_eq!(refused.field(), "url");
        }
    }

    #[test]
    fn schemas_are_plain_identifiers() {
        let options = || Options::parse("postgres://u@localhost/d").unwrap();
        for good in ["duewheel", "_x", "a1_b"] {
            assert_eq!(options().schema(good).unwrap().schema, good);
        }
        for bad in ["", "1a", "Orders", "a-b", "a;drop", "a\"", "pg_x", &"a".repeat(64)] {
            assert!(options().schema(bad).is_err(), "{bad}");
        }
    }
}
