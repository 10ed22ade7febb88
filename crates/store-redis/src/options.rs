//! Options of the store: the address of Redis, and settings.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use duewheel_core::percent;
use duewheel_store_log::Options as LogOptions;
use duewheel_store_medium::{BadOption, MediumShared, fitted};

use crate::keys::HostPort;
use crate::memory::RememberedShards;

/// Address of Redis, and settings. `Options::parse` reads a URL; the setters set the rest.
///
/// | URL | meaning |
/// |---|---|
/// | `redis://user:password@host:6379/0` | one server; user, password, port and database may be left out |
/// | `rediss://…` | the same over TLS |
/// | `redis-cluster://host1:6379,host2:6379` | a Redis Cluster, of which these nodes are asked for the others |
/// | `rediss-cluster://…` | the same over TLS |
///
/// Clones share what their process has seen of the shards: a Redis that comes back empty is refused, and the time
/// between two owners of this process is taken from its own clock.
///
/// In user and password, `%` and two hexadecimal digits stand for a byte.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use duewheel_store_redis::Options;
///
/// let options = Options::parse("redis://orders:s3cr%40t@redis.internal:6380/2")?
///     .prefix("orders")?
///     .lease(Duration::from_secs(3))?
///     .wait_replicas(1, Duration::from_millis(500))?;
/// assert!(!format!("{options:?}").contains("s3cr"), "passwords are not shown");
/// # Ok::<(), duewheel_store_redis::BadOption>(())
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) shape: Topology,
    pub(crate) hosts: Vec<HostPort>,
    pub(crate) transport: Transport,
    pub(crate) db: i64,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) prefix: String,
    pub(crate) authority: Option<Vec<u8>>,
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
    pub(crate) wait: u32,
    pub(crate) wait_timeout: Duration,
    pub(crate) wait_for: WaitFor,
    pub(crate) without_aof: bool,
    pub(crate) lease: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) log: LogOptions,
    /// Blocks of files of all its shards.
    pub(crate) shared: MediumShared,
    pub(crate) create: Create,
    pub(crate) remembered: Arc<RememberedShards>,
}

/// Whether a missing cluster, or shard of one, is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Create {
    /// A missing cluster is created, unless this process or the cluster itself knows that it existed.
    #[default]
    Always,
    /// A missing cluster is refused, so that a Redis that has lost its data is not taken for a new one.
    Never,
}

/// The condition that an answer to a change waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitFor {
    /// Replicas have the change in memory (`WAIT`).
    #[default]
    Received,
    /// The master and replicas have synced the change to their append-only files (`WAITAOF`, Redis 7.2 and later).
    Synced,
}

/// The kind of Redis deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    /// A single server.
    Single,
    /// A Redis Cluster.
    Cluster,
}

/// How connections are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Connections are not encrypted.
    Plain,
    /// TLS is used.
    Tls,
}

const PORT: u16 = 6379;
const MAX_PREFIX: usize = 64;
const MIB: u64 = 1024 * 1024;
/// A group is one command: Redis serves no other client while it runs, some 0.5 ms for each MiB.
const GROUP: u64 = 4 * MIB;
/// A segment is given back as a whole.
const SEGMENT: u64 = 8 * MIB;
/// The journal is in Redis in addition to the runs, and is read as a whole when a shard changes its owner.
const MAX_JOURNAL: u64 = 32 * MIB;
/// A merge takes as much memory again as its runs have: this bounds it.
const RUN: u64 = 64 * MIB;
const LEASES: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(600);
const TIMEOUTS: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(600);

impl Options {
    /// The largest group that suits Redis, which serves no other client while it takes one, in bytes.
    pub const GROUP_BYTES: u64 = GROUP;

    /// Reads a URL of one of the forms above.
    ///
    /// # Errors
    /// [`BadOption`] when the URL has another form; it names the wrong part, and never shows a password.
    pub fn parse(url: &str) -> Result<Self, BadOption> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| {
            BadOption::new("url", "must be redis://HOST:PORT/DB or redis-cluster://HOST:PORT,HOST:PORT")
        })?;
        let (shape, transport) = match scheme {
            "redis" => (Topology::Single, Transport::Plain),
            "rediss" => (Topology::Single, Transport::Tls),
            "redis-cluster" => (Topology::Cluster, Transport::Plain),
            "rediss-cluster" => (Topology::Cluster, Transport::Tls),
            _ => {
                let what = "must be redis, rediss, redis-cluster or rediss-cluster";
                return Err(BadOption::new("url scheme", what));
            }
        };
        let (who, rest) = match rest.rsplit_once('@') {
            Some((who, rest)) => (Some(who), rest),
            None => (None, rest),
        };
        let (hosts, db) = match rest.split_once('/') {
            Some((hosts, db)) => (hosts, db),
            None => (rest, ""),
        };
        let db = match (shape, db) {
            (_, "") | (Topology::Cluster, "0") => 0,
            (Topology::Single, db) => db
                .parse()
                .ok()
                .filter(|db| (0..=1_000_000).contains(db))
                .ok_or_else(|| BadOption::new("url database", "must be a number from 0"))?,
            (Topology::Cluster, _) => {
                return Err(BadOption::new("url database", "a Redis Cluster has no database but 0"));
            }
        };
        let hosts = hosts.split(',').map(host).collect::<Result<Vec<_>, _>>()?;
        if shape == Topology::Single && hosts.len() > 1 {
            return Err(BadOption::new("url host", "several hosts are for redis-cluster://"));
        }
        let (mut user, mut password) = (None, None);
        if let Some(who) = who {
            let (name, secret) = who.split_once(':').map_or((who, None), |(n, s)| (n, Some(s)));
            if !name.is_empty() {
                user = Some(decoded("url user", name)?);
            }
            password = secret.map(|secret| decoded("url password", secret)).transpose()?;
        }
        Ok(Options {
            shape,
            hosts,
            transport,
            db,
            user,
            password,
            prefix: "duewheel".into(),
            authority: None,
            client: None,
            wait: 0,
            wait_timeout: Duration::from_secs(1),
            wait_for: WaitFor::Received,
            without_aof: false,
            lease: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_secs(10),
            log: fitting(LogOptions { max_group_bytes: GROUP, ..LogOptions::default() }),
            shared: MediumShared::default(),
            create: Create::Always,
            remembered: Arc::default(),
        })
    }

    /// Sets the user of the access control list, in place of the URL's.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Sets the password, in place of the URL's.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Sets whether a missing cluster is created; by default always.
    #[must_use]
    pub fn create(mut self, create: Create) -> Self {
        self.create = create;
        self
    }

    /// Sets the prefix of all keys, `duewheel` by default: 1 to 64 of `A-Z a-z 0-9 - _ . :`.
    ///
    /// # Errors
    /// The prefix has another form.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Result<Self, BadOption> {
        self.prefix = prefix.into();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        if self.prefix.is_empty() || self.prefix.len() > MAX_PREFIX || !self.prefix.chars().all(plain) {
            return Err(BadOption::new("prefix", "must be 1 to 64 of A-Z a-z 0-9 - _ . :"));
        }
        Ok(self)
    }

    /// Sets the authority of the server's certificate, a PEM file; by default the system's authorities.
    ///
    /// # Errors
    /// The file cannot be read, or the URL is without TLS.
    pub fn tls_authority(mut self, file: impl AsRef<Path>) -> Result<Self, BadOption> {
        self.needs_tls("tls_authority")?;
        self.authority = Some(read("tls_authority", file.as_ref())?);
        Ok(self)
    }

    /// Sets the client certificate and key, PEM files.
    ///
    /// # Errors
    /// See [`Options::tls_authority`].
    pub fn tls_client(
        mut self,
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self, BadOption> {
        self.needs_tls("tls_client")?;
        self.client = Some((read("tls_client", certificate.as_ref())?, read("tls_client", key.as_ref())?));
        Ok(self)
    }

    /// Sets the number of replicas that must have a group before it is durable (`WAIT`), by default 0. When they do not
    /// have it in time, the outcome is unknown and the shard is opened again.
    ///
    /// # Errors
    /// The time is 0 or longer than ten minutes.
    pub fn wait_replicas(mut self, replicas: u32, timeout: Duration) -> Result<Self, BadOption> {
        (self.wait, self.wait_timeout) = (replicas, within("wait_replicas", timeout, TIMEOUTS)?);
        Ok(self)
    }

    /// Sets what each change waits for, at the master and at [`Options::wait_replicas`] replicas; by default
    /// [`WaitFor::Received`]. When it is not reached in time, the outcome is unknown.
    #[must_use]
    pub fn wait_for(mut self, wait_for: WaitFor) -> Self {
        self.wait_for = wait_for;
        self
    }

    /// Accepts masters without an append-only file, which
    /// [`RedisCoordinator::inspect`](crate::RedisCoordinator::inspect) refuses by default: such a master loses all
    /// changes since its last snapshot when it restarts.
    #[must_use]
    pub fn without_aof(mut self) -> Self {
        self.without_aof = true;
        self
    }

    /// Sets how long a shard stays with an owner that does not renew its lease, by default 5 s.
    ///
    /// # Errors
    /// The lease is shorter than 100 ms or longer than ten minutes.
    pub fn lease(mut self, lease: Duration) -> Result<Self, BadOption> {
        self.lease = within("lease", lease, LEASES)?;
        Ok(self)
    }

    /// Sets the time limit for a connection, by default 2 s.
    ///
    /// # Errors
    /// The time is 0 or longer than ten minutes.
    pub fn connect_timeout(mut self, timeout: Duration) -> Result<Self, BadOption> {
        self.connect_timeout = within("connect_timeout", timeout, TIMEOUTS)?;
        Ok(self)
    }

    /// Sets the time limit for an answer, including requests that wait before it, by default 10 s. After it the outcome
    /// is unknown.
    ///
    /// # Errors
    /// The time is 0 or longer than ten minutes.
    pub fn response_timeout(mut self, timeout: Duration) -> Result<Self, BadOption> {
        self.response_timeout = within("response_timeout", timeout, TIMEOUTS)?;
        Ok(self)
    }

    /// Sets how each shard's log store works. Sizes of files are bounded by what suits the medium; the largest group is taken
    /// as it is, and a segment of the journal is larger: [`Options::GROUP_BYTES`] suits most.
    #[must_use]
    pub fn log(mut self, log: LogOptions) -> Self {
        self.log = fitting(log);
        self
    }

    fn needs_tls(&self, field: &'static str) -> Result<(), BadOption> {
        match self.transport {
            Transport::Tls => Ok(()),
            Transport::Plain => {
                Err(BadOption::new(field, "is for rediss:// and rediss-cluster://, which are TLS"))
            }
        }
    }
}

/// Options of a log store whose files are in Redis.
fn fitting(log: LogOptions) -> LogOptions {
    fitted(log, SEGMENT, MAX_JOURNAL, RUN)
}

fn host(text: &str) -> Result<HostPort, BadOption> {
    let bad = || BadOption::new("url host", "must be HOST or HOST:PORT, IPv6 as [::1]:6379");
    let port = |text: &str| text.parse().ok().filter(|port| *port > 0).ok_or_else(bad);
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or_else(bad)?;
        (host, if rest.is_empty() { PORT } else { port(rest.strip_prefix(':').ok_or_else(bad)?)? })
    } else {
        match text.split_once(':') {
            Some((host, digits)) => (host, port(digits)?),
            None => (text, PORT),
        }
    };
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || "?#@/".contains(c)) {
        return Err(bad());
    }
    Ok((host.into(), port))
}

fn decoded(field: &'static str, text: &str) -> Result<String, BadOption> {
    percent::decode(text)
        .map(Cow::into_owned)
        .map_err(|_| BadOption::new(field, "% must be followed by two hexadecimal digits, and all be UTF-8"))
}

fn read(field: &'static str, file: &Path) -> Result<Vec<u8>, BadOption> {
    std::fs::read(file).map_err(|error| BadOption::new(field, format_args!("{}: {error}", file.display())))
}

fn within(
    field: &'static str,
    time: Duration,
    range: std::ops::RangeInclusive<Duration>,
) -> Result<Duration, BadOption> {
    if range.contains(&time) {
        return Ok(time);
    }
    let what = format_args!("{time:?} is not within {:?} to {:?}", range.start(), range.end()).to_string();
    Err(BadOption::new(field, what))
}

impl Options {
    /// The servers that are named, `host:port` each, for people.
    pub fn servers(&self) -> String {
        let server = |(host, port): &(String, u16)| match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        self.hosts.iter().map(server).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Debug for Options {
    /// Shows the options without passwords and keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("shape", &self.shape)
            .field("hosts", &self.hosts)
            .field("transport", &self.transport)
            .field("db", &self.db)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "<secret>"))
            .field("prefix", &self.prefix)
            .field("wait", &self.wait)
            .field("wait_timeout", &self.wait_timeout)
            .field("wait_for", &self.wait_for)
            .field("create", &self.create)
            .field("lease", &self.lease)
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        let o = Options::parse("redis://u%3a:p%40ss:w@h.example:6400/3").unwrap();
        assert_eq!((o.shape, o.transport, o.db), (Topology::Single, Transport::Plain, 3));
        assert_eq!(o.hosts, [("h.example".to_string(), 6400)]);
        assert_eq!((o.user.as_deref(), o.password.as_deref()), (Some("u:"), Some("p@ss:w")));
        let o = Options::parse("rediss-cluster://:pw@[::1]:7000,b,c:7002").unwrap();
        assert_eq!((o.shape, o.transport), (Topology::Cluster, Transport::Tls));
        assert_eq!(o.hosts, [("::1".to_string(), 7000), ("b".to_string(), 6379), ("c".to_string(), 7002)]);
        assert_eq!(o.servers(), "[::1]:7000, b:6379, c:7002");
        assert_eq!((o.user, o.password.as_deref()), (None, Some("pw")));
    }

    #[test]
    fn errors_name_field_without_password() {
        for (url, field) in [
            ("h:6379", "url"),
            ("http://h", "url scheme"),
            ("redis://a,b", "url host"),
            ("redis://", "url host"),
            ("redis://h:0", "url host"),
            ("redis://h:99999", "url host"),
            ("redis://h/x", "url database"),
            ("redis://h/-1", "url database"),
            ("redis-cluster://a,b/2", "url database"),
            ("redis://u:hunter2%zz@h", "url password"),
            ("redis://u%:hunter2@h", "url user"),
        ] {
            let error = Options::parse(url).expect_err(url);
            assert_eq!(error.field(), field, "{url}");
            assert!(error.to_string().starts_with(field) && !error.to_string().contains("hunter2"), "{url}");
        }
        let o = Options::parse("redis://u:hunter2@h").unwrap();
        assert!(!format!("{o:?}").contains("hunter2"));
        assert_eq!(o.clone().prefix("a b").unwrap_err().field(), "prefix");
        assert_eq!(o.clone().lease(Duration::ZERO).unwrap_err().field(), "lease");
        assert_eq!(o.clone().wait_replicas(1, Duration::ZERO).unwrap_err().field(), "wait_replicas");
        assert_eq!(o.clone().tls_authority("ca.pem").unwrap_err().field(), "tls_authority");
        let tls = Options::parse("rediss://h").unwrap();
        assert_eq!(tls.tls_authority("no/such/file").unwrap_err().field(), "tls_authority");
    }
}
