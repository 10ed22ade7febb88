//! The store of the messages: the log in the data folder, or Redis or PostgreSQL, with one node or several.

use std::path::PathBuf;
use std::time::Duration;

use duewheel::core::store::MAX_SHARDS;
use duewheel_bridge::BridgeSettings;

use super::{ConfigError, Options, RedisCreate, RedisWaitFor, Secret};
use crate::span::TimeSpan;
use crate::tls;

const DEFAULT_NODE: &str = "duewheel";
/// With one node all messages can be in one shard, with ids 1, 2, 3, ...; several nodes need several shards.
const DEFAULT_SHARDS: [u32; 2] = [1, 16];
const DEFAULT_LEASE: Duration = Duration::from_secs(5);
/// With a shorter lease a busy server would lose its shards; with a longer one a dead server would keep them.
const LEASES: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60);
const DEFAULT_PREFIX: &str = "duewheel";
const DEFAULT_SCHEMA: &str = "duewheel";
/// After a power failure both may start together, and the supervisor of the process must see a failure in the end.
const DEFAULT_START_TIMEOUT: Duration = Duration::from_secs(60);

/// The store of the messages.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreChoice {
    /// The log in the data folder.
    Log {
        /// The number of shards that a new folder gets, and an existing one must have; `None`: one, or as many as there
        /// are.
        shards: Option<u32>,
    },
    /// A Redis or a Redis Cluster.
    Redis(Box<RedisSettings>),
    /// A PostgreSQL database.
    Postgres(Box<PostgresSettings>),
}

/// Redis, and the node that works on it.
#[derive(Clone, Debug, PartialEq)]
pub struct RedisSettings {
    /// `redis://…` or `redis-cluster://…`, as given.
    pub url: Secret,
    /// The user, if not in the URL.
    pub user: Option<String>,
    /// The password, if not in the URL.
    pub password: Option<Secret>,
    /// The prefix of all keys.
    pub prefix: String,
    /// Number of replicas that must have a change before it is answered.
    pub wait: u32,
    /// The replicas and syncs that an answer waits for.
    pub wait_for: RedisWaitFor,
    /// Whether a Redis without an append-only file is accepted.
    pub without_aof: bool,
    /// Whether a missing cluster is created.
    pub create: RedisCreate,
    /// How long startup waits for Redis.
    pub start_timeout: Duration,
    /// The authority of the server's certificate, in PEM.
    pub ca: Option<PathBuf>,
    /// The client certificate for the server, and its key, in PEM.
    pub client: Option<tls::Files>,
    /// The node.
    pub node: NodeSettings,
}

/// PostgreSQL, and the node that works on it.
#[derive(Clone, Debug, PartialEq)]
pub struct PostgresSettings {
    /// `postgres://…`, as given.
    pub url: Secret,
    /// The password, if not in the URL.
    pub password: Option<Secret>,
    /// The schema of the tables.
    pub schema: String,
    /// The authorities of the server's certificate, in PEM.
    pub ca: Option<PathBuf>,
    /// How long startup waits for PostgreSQL.
    pub start_timeout: Duration,
    /// The node.
    pub node: NodeSettings,
}

impl Options {
    /// The options without passwords, to be shown.
    #[must_use]
    pub fn without_secrets(mut self) -> Options {
        self.redis_password = None;
        self.postgres_password = None;
        let bridges = self.bridge.take();
        self.bridge = bridges.map(|all| all.into_iter().map(BridgeSettings::without_secrets).collect());
        let databases = self.postgres.iter_mut().flatten().map(|table| &mut table.url);
        for url in self.store.iter_mut().chain(databases) {
            *url = without_password(url);
        }
        self
    }
}

/// A URL with its user alone; other texts stay as they are.
fn without_password(url: &Secret) -> Secret {
    let Some((scheme, rest)) = url.expose().split_once("://") else { return url.clone() };
    let Some((who, hosts)) = rest.rsplit_once('@') else { return url.clone() };
    let user = who.split_once(':').map_or(who, |(user, _)| user);
    let at = if user.is_empty() { "" } else { "@" };
    Secret::from(format!("{scheme}://{user}{at}{hosts}").as_str())
}

impl StoreChoice {
    /// Whether the messages are in the log of this process.
    pub fn is_log(&self) -> bool {
        matches!(self, StoreChoice::Log { .. })
    }

    /// The node, if the store may be shared.
    pub fn node(&self) -> Option<&NodeSettings> {
        match self {
            StoreChoice::Redis(redis) => Some(&redis.node),
            StoreChoice::Postgres(postgres) => Some(&postgres.node),
            StoreChoice::Log { .. } => None,
        }
    }

    /// The files of the certificate that other nodes see, if there are any.
    pub fn peer_files(&self) -> Option<&PeerFiles> {
        self.node().and_then(|node| node.peer.as_ref())
    }
}

impl StoreChoice {
    /// The store of the options, each of which must belong to it.
    pub(super) fn of(options: &Options) -> Result<StoreChoice, ConfigError> {
        let bad = |what: String| Err(ConfigError::Value(what));
        let url = options.store.as_ref().map_or("log", Secret::expose);
        if let Some(n) = options.shards.filter(|n| !(1..=MAX_SHARDS).contains(n)) {
            return bad(format!("--shards {n}: must be from 1 to {MAX_SHARDS}"));
        }
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
        let kind = match scheme {
            "redis" | "rediss" | "redis-cluster" | "rediss-cluster" => StoreKind::Redis,
            "postgres" | "postgresql" => StoreKind::Postgres,
            _ if matches!(url, "log" | "log:") => StoreKind::Log,
            // The value is not shown, because it may contain a password.
            _ => {
                return bad(
                    "--store: must be log, redis://HOST:PORT/DB, redis-cluster://HOST:PORT,HOST:PORT \
                     (rediss:// and rediss-cluster:// with TLS) or postgres://USER@HOST:PORT/DATABASE"
                        .into(),
                );
            }
        };
        if let Some((name, belongs)) = options.given().find_map(|name| kind.lacks(name).map(|to| (name, to)))
        {
            return bad(format!("--{} is for {belongs}", name.replace('_', "-")));
        }
        match kind {
            StoreKind::Log => Ok(StoreChoice::Log { shards: options.shards }),
            StoreKind::Redis => Ok(StoreChoice::Redis(Box::new(RedisSettings::of(options, url)?))),
            StoreKind::Postgres => Ok(StoreChoice::Postgres(Box::new(PostgresSettings::of(options, url)?))),
        }
    }

    /// The settings as options.
    pub(super) fn into_options(self) -> Options {
        match self {
            StoreChoice::Log { shards } => {
                Options { store: Some("log".into()), shards, ..Options::default() }
            }
            StoreChoice::Redis(redis) => Options {
                store: Some(redis.url),
                redis_user: redis.user,
                redis_password: redis.password,
                redis_prefix: Some(redis.prefix),
                redis_wait: Some(redis.wait),
                redis_wait_for: Some(redis.wait_for),
                redis_without_aof: Some(redis.without_aof),
                redis_create: Some(redis.create),
                redis_start_timeout: Some(span(redis.start_timeout)),
                redis_ca: redis.ca,
                redis_cert: redis.client.as_ref().map(|files| files.cert.clone()),
                redis_key: redis.client.map(|files| files.key),
                ..redis.node.into_options()
            },
            StoreChoice::Postgres(postgres) => Options {
                store: Some(postgres.url),
                postgres_password: postgres.password,
                postgres_schema: Some(postgres.schema),
                postgres_ca: postgres.ca,
                postgres_start_timeout: Some(span(postgres.start_timeout)),
                ..postgres.node.into_options()
            },
        }
    }
}

impl RedisSettings {
    fn of(options: &Options, url: &str) -> Result<Self, ConfigError> {
        let bad = |what: String| Err(ConfigError::Value(what));
        let prefix = options.redis_prefix.clone().unwrap_or_else(|| DEFAULT_PREFIX.into());
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        if prefix.is_empty() || prefix.len() > 64 || !prefix.chars().all(plain) {
            return bad(format!("--redis-prefix {prefix:?}: must be 1 to 64 of A-Z a-z 0-9 - _ . :"));
        }
        let node = NodeSettings::of(options)?;
        let client = match (options.redis_cert.clone(), options.redis_key.clone()) {
            (Some(cert), Some(key)) => Some(tls::Files { cert, key }),
            (None, None) => None,
            (Some(_), None) => return bad("--redis-cert needs --redis-key, too".into()),
            (None, Some(_)) => return bad("--redis-key needs --redis-cert, too".into()),
        };
        Ok(RedisSettings {
            url: url.into(),
            user: options.redis_user.clone(),
            password: options.redis_password.clone(),
            prefix,
            wait: options.redis_wait.unwrap_or(0),
            wait_for: options.redis_wait_for.unwrap_or_default(),
            without_aof: options.redis_without_aof.unwrap_or(false),
            create: options.redis_create.unwrap_or_default(),
            start_timeout: options.redis_start_timeout.map_or(DEFAULT_START_TIMEOUT, Duration::from),
            ca: options.redis_ca.clone(),
            client,
            node,
        })
    }
}

impl PostgresSettings {
    fn of(options: &Options, url: &str) -> Result<Self, ConfigError> {
        let settings = PostgresSettings {
            url: url.into(),
            password: options.postgres_password.clone(),
            schema: options.postgres_schema.clone().unwrap_or_else(|| DEFAULT_SCHEMA.into()),
            ca: options.postgres_ca.clone(),
            start_timeout: options.postgres_start_timeout.map_or(DEFAULT_START_TIMEOUT, Duration::from),
            node: NodeSettings::of(options)?,
        };
        settings.address()?;
        Ok(settings)
    }

    /// The address and the schema, as the store takes them.
    ///
    /// # Errors
    /// The URL or the schema is not valid.
    pub(crate) fn address(&self) -> Result<duewheel_store_postgres::Options, ConfigError> {
        let named = |option: &str, error: &duewheel_store_postgres::BadOption| {
            ConfigError::Value(format!("--{option}: {error}"))
        };
        let options = duewheel_store_postgres::Options::parse(self.url.expose());
        let options = options.map_err(|error| named("store", &error))?.schema(&self.schema);
        let options = options.map_err(|error| named("postgres-schema", &error))?.lease(self.node.lease);
        options.map_err(|error| named("shard-lease", &error))
    }
}

/// The kind of store, which the URL of `--store` chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreKind {
    Log,
    Redis,
    Postgres,
}

impl StoreKind {
    /// The stores that an option belongs to, if this is none of them.
    fn lacks(self, name: &str) -> Option<&'static str> {
        let nodes = ["node", "advertise", "shard_lease", "settle_delay"];
        if name.starts_with("redis_") {
            return (self != StoreKind::Redis).then_some("--store redis://… and redis-cluster://…");
        }
        if name.starts_with("postgres_") {
            return (self != StoreKind::Postgres).then_some("--store postgres://…");
        }
        if name.starts_with("peer_") || nodes.contains(&name) {
            let shared = "--store redis://…, redis-cluster://… and postgres://…";
            return (self == StoreKind::Log).then_some(shared);
        }
        let why = "--store log; with Redis and PostgreSQL each answer says what it has reached";
        (name == "durability" && self != StoreKind::Log).then_some(why)
    }
}

/// The files of the certificates by which nodes authenticate each other, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFiles {
    /// The certificate of this node, and its key.
    pub own: tls::Files,
    /// The authority of all nodes.
    pub ca: PathBuf,
}

/// A node among those that share a store.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSettings {
    /// The name of the node.
    pub name: String,
    /// The address at which other nodes reach it; `None`: it is a single node.
    pub advertise: Option<String>,
    /// The certificate that other nodes see; `None`: a key that the node generates.
    pub peer: Option<PeerFiles>,
    /// The address of the listener for other nodes, if it is not `advertise`.
    pub peer_listen: Option<String>,
    /// The number of shards of a new cluster.
    pub shards: Option<u32>,
    /// How long a shard stays with a node that does not renew its lease.
    pub lease: Duration,
    /// How long a new node must stay before others give up shards to it.
    pub settle_delay: Duration,
}

impl NodeSettings {
    /// The number of shards of a new cluster.
    pub fn shards_if_new(&self) -> u32 {
        self.shards.unwrap_or(DEFAULT_SHARDS[usize::from(self.advertise.is_some())])
    }

    /// Reads the options that concern nodes, whichever store they share.
    fn of(options: &Options) -> Result<NodeSettings, ConfigError> {
        let bad = |what: String| Err(ConfigError::Value(what));
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        let name = options.node.clone().unwrap_or_else(|| DEFAULT_NODE.into());
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
            return bad(format!("--node {name:?}: must be 1 to 64 of A-Z a-z 0-9 - _ . :"));
        }
        if options.advertise.is_some() && options.node.is_none() {
            return bad("--advertise needs --node: nodes are told apart by their names".into());
        }
        if options.peer_listen.is_some() && options.advertise.is_none() {
            return bad("--peer-listen needs --advertise: others must know where to reach this node".into());
        }
        let lease = options.shard_lease.map_or(DEFAULT_LEASE, Duration::from);
        if !LEASES.contains(&lease) {
            return bad(format!("--shard-lease {}: must be from 1s to 60s", span(lease)));
        }
        let peer = match (options.peer_cert.clone(), options.peer_key.clone(), options.peer_ca.clone()) {
            (Some(cert), Some(key), Some(ca)) => Some(PeerFiles { own: tls::Files { cert, key }, ca }),
            (None, None, None) => None,
            (cert, key, ca) => {
                let all = [("peer-cert", cert), ("peer-key", key), ("peer-ca", ca)];
                let words = |given: bool| {
                    let words = all.iter().filter(|(_, file)| file.is_some() == given);
                    words.map(|(name, _)| format!("--{name}")).collect::<Vec<_>>().join(" and ")
                };
                return bad(format!(
                    "{} without {}: nodes need all three, or none",
                    words(true),
                    words(false)
                ));
            }
        };
        if peer.is_some() && options.advertise.is_none() {
            return bad("--peer-cert needs --advertise: a node that is alone speaks with no other".into());
        }
        Ok(NodeSettings {
            name,
            advertise: options.advertise.clone(),
            peer,
            peer_listen: options.peer_listen.as_deref().map(super::values::with_host),
            shards: options.shards,
            lease,
            settle_delay: options.settle_delay.map_or(duewheel::DEFAULT_SETTLE_DELAY, Duration::from),
        })
    }

    /// The settings as options.
    fn into_options(self) -> Options {
        Options {
            shards: Some(self.shards_if_new()),
            node: Some(self.name),
            advertise: self.advertise,
            peer_cert: self.peer.as_ref().map(|files| files.own.cert.clone()),
            peer_key: self.peer.as_ref().map(|files| files.own.key.clone()),
            peer_ca: self.peer.map(|files| files.ca),
            peer_listen: self.peer_listen,
            shard_lease: Some(span(self.lease)),
            settle_delay: Some(span(self.settle_delay)),
            ..Options::default()
        }
    }
}

fn span(d: Duration) -> TimeSpan {
    TimeSpan(u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(toml: &str) -> Result<StoreChoice, String> {
        StoreChoice::of(&toml::from_str(toml).unwrap()).map_err(|error| error.to_string())
    }

    fn redis(toml: &str) -> RedisSettings {
        match choose(toml).unwrap() {
            StoreChoice::Redis(redis) => *redis,
            other => panic!("{toml}: {other:?}"),
        }
    }

    fn postgres(toml: &str) -> PostgresSettings {
        match choose(toml).unwrap() {
            StoreChoice::Postgres(postgres) => *postgres,
            other => panic!("{toml}: {other:?}"),
        }
    }

    #[test]
    fn log_store_refuses_redis_options() {
        assert_eq!(choose(""), Ok(StoreChoice::Log { shards: None }));
        assert_eq!(choose("store = 'log:'"), Ok(StoreChoice::Log { shards: None }));
        assert_eq!(choose("shards = 4"), Ok(StoreChoice::Log { shards: Some(4) }));
        assert!(choose("shards = 0").unwrap_err().contains("--shards 0"));
        for (toml, says) in [
            ("node = 'a'", "--node is for"),
            ("advertise = 'h:1'", "--advertise is for"),
            ("shard_lease = '3s'", "--shard-lease is for"),
            ("redis_password = 'x'", "--redis-password is for"),
            ("redis_prefix = 'x'", "--redis-prefix is for"),
            ("redis_create = 'never'", "--redis-create is for"),
            ("redis_start_timeout = '1s'", "--redis-start-timeout is for"),
            ("peer_listen = 'h:1'", "--peer-listen is for"),
            ("settle_delay = '1s'", "--settle-delay is for"),
            ("redis_wait_for = 'synced'", "--redis-wait-for is for"),
            ("redis_without_aof = true", "--redis-without-aof is for"),
            ("redis_cert = 'x'", "--redis-cert is for"),
            ("redis_key = 'x'", "--redis-key is for"),
            ("peer_ca = 'x'", "--peer-ca is for"),
            ("postgres_schema = 'x'", "--postgres-schema is for"),
            ("postgres_password = 'x'", "--postgres-password is for"),
            ("store = 'postgres://u@localhost/d'\nredis_wait = 1", "--redis-wait is for"),
            ("store = 'redis://localhost'\npostgres_ca = '/x'", "--postgres-ca is for"),
            ("store = 'postgres://u@localhost/d'\ndurability = 'fsync'", "--durability is for --store log"),
        ] {
            assert!(choose(toml).unwrap_err().contains(says), "{toml}");
        }
    }

    #[test]
    fn redis_with_defaults() {
        let alone = redis("store = 'redis://127.0.0.1:6379/2'");
        assert_eq!(
            (
                alone.prefix.as_str(),
                alone.node.name.as_str(),
                alone.wait,
                alone.node.shards_if_new(),
                alone.node.lease
            ),
            ("duewheel", "duewheel", 0, 1, Duration::from_secs(5))
        );
        let several = redis("store = 'redis-cluster://a:1,b:2'\nnode = 'n1'\nadvertise = '127.0.0.1:7800'");
        let node = several.node;
        assert_eq!((node.shards_if_new(), node.advertise.as_deref()), (16, Some("127.0.0.1:7800")));
    }

    #[test]
    fn postgres_with_defaults() {
        let alone = postgres("store = 'postgres://me:hunter2@127.0.0.1:5433/orders'");
        assert_eq!((alone.schema.as_str(), alone.node.shards_if_new()), ("duewheel", 1));
        assert!(!format!("{alone:?}").contains("hunter2"));
        let shown = StoreChoice::Postgres(Box::new(alone)).into_options().without_secrets();
        assert_eq!(shown.store.unwrap().expose(), "postgres://me@127.0.0.1:5433/orders");
        for (toml, says) in [
            ("store = 'postgres://me:hunter2@db.internal/d?sslmode=disable'", "--store: url: sslmode"),
            ("store = 'postgres://u@localhost/d'\npostgres_schema = 'a;b'", "--postgres-schema"),
            ("store = 'postgres://u@localhost/d'\nshard_lease = '10ms'", "--shard-lease"),
        ] {
            let refused = choose(toml).unwrap_err();
            assert!(refused.contains(says) && !refused.contains("hunter2"), "{refused}");
        }
    }

    #[test]
    fn invalid_store_options_hide_passwords() {
        let base = "store = 'redis://127.0.0.1:6379'\n";
        for (toml, says) in [
            ("advertise = 'h:1'", "--advertise needs --node"),
            ("peer_listen = 'h:1'", "--peer-listen needs --advertise"),
            ("node = 'a b'", "--node \"a b\""),
            ("shards = 0", "--shards 0"),
            ("shards = 1025", "--shards 1025"),
            ("shard_lease = '10ms'", "--shard-lease 10ms"),
            ("redis_prefix = '{x}'", "--redis-prefix"),
            ("redis_cert = '/c'", "--redis-cert needs --redis-key"),
            ("redis_key = '/k'", "--redis-key needs --redis-cert"),
            ("peer_cert = '/c'\npeer_ca = '/a'", "--peer-cert and --peer-ca without --peer-key"),
            ("peer_cert = '/c'\npeer_key = '/k'\npeer_ca = '/a'", "--peer-cert needs --advertise"),
            ("durability = 'fsync'", "--durability is for --store log"),
        ] {
            assert!(choose(&format!("{base}{toml}")).unwrap_err().contains(says), "{toml}");
        }
        let wrong = choose("store = 'mysql://me:hunter2@h/d'").unwrap_err();
        assert!(wrong.contains("--store") && !wrong.contains("hunter2"), "{wrong}");
        let settings = redis("store = 'redis://me:hunter2@h:1/0'\nredis_password = 'hunter2'");
        assert!(!format!("{settings:?}").contains("hunter2"));
        for (url, shown) in [
            ("redis://me:hunter2@h:1/0", "redis://me@h:1/0"),
            ("redis://:hunter2@h:1/0", "redis://h:1/0"),
            ("redis://me:hunt@er2@h:1", "redis://me@h:1"),
            ("redis://h:1", "redis://h:1"),
            ("log", "log"),
        ] {
            let options =
                Options { store: Some(url.into()), redis_password: Some("x".into()), ..Options::default() };
            let options = options.without_secrets();
            assert_eq!((options.store, options.redis_password), (Some(shown.into()), None));
        }
    }
}
