//! The settings of `duewheel serve`, in order of precedence: flags, environment, file, defaults.
//!
//! [`Options`] names every option once; [`Settings`] are the effective values.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use duewheel::Policy;
use duewheel::core::engine::Quota;
use duewheel::core::policy::OF_RECORD;
use duewheel::store_log::{MemoryBudget, Options as LogOptions};
use duewheel_bridge::BridgeSettings;

use crate::auth::{Hosts, Prefixes};
use crate::beanstalk::{self, SocketMode};
use crate::http::HttpLimits;
use crate::span::TimeSpan;
use crate::tls;
use crate::toml_text::{self, BadToml};

#[cfg(test)]
mod listener_tests;
mod options;
mod otlp;
mod outbox;
mod store;
mod values;

pub use options::Options;
pub use otlp::{ClientFiles, OtlpSettings, SamplerOption};
pub use outbox::{PostgresTable, database};
pub use store::{NodeSettings, PeerFiles, PostgresSettings, RedisSettings, StoreChoice};
pub use values::{
    ConfigError, Endpoint, Insecure, LevelOption, Listen, LogFormat, QuotaTable, RedisCreate, RedisWaitFor,
    Secret, VirtualClockOption,
};

const DEFAULT_JOURNAL_BYTES: u64 = 256 * 1024 * 1024;
/// Memory for the histories of queues, and the size of those that are stored.
const HISTORY_BYTES: usize = 32 * 1024 * 1024;
/// Largest value of `--beanstalk-max-job-size`: less than beanstalkd allows with `-z`, because a record is written and
/// read in one piece.
const MAX_JOB_SIZE: usize = 64 * 1024 * 1024;
/// Smallest value of `--journal-bytes`: below it flushes would be as frequent as groups.
const MIN_JOURNAL_BYTES: u64 = 1024 * 1024;
/// Smallest value of `--memory`, for the same reason.
const MIN_MEMORY: u64 = 1024 * 1024;
/// Bytes of a segment besides the largest group.
const OF_SEGMENT: u64 = 2 * 4096;
/// Smallest value of `--memory-messages`.
const MIN_MEMORY_MESSAGES: usize = 100;

/// The effective settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Folder for the data.
    pub data: PathBuf,
    /// The address of the HTTP listener.
    pub http: Listen,
    /// The address of the listener for beanstalkd's protocol.
    pub beanstalk: Listen,
    /// Authorization over beanstalkd's protocol.
    pub of_beanstalk: BeanstalkSettings,
    /// Largest job over beanstalkd's protocol, in bytes.
    pub beanstalk_max_job_size: usize,
    /// The store of the messages.
    pub store: StoreChoice,
    /// The durability of an answered change.
    pub durability: LevelOption,
    /// Bytes of the journal's budget.
    pub journal_bytes: u64,
    /// Bytes of memory for recent changes, of all shards.
    pub memory: u64,
    /// The file of tokens.
    pub tokens: Option<PathBuf>,
    /// The file of keys that seal the secrets of targets.
    pub secrets_key: Option<PathBuf>,
    /// Certificate and key.
    pub tls: Option<tls::Files>,
    /// The host names under which the server may be called.
    pub hosts: Hosts,
    /// The listeners that may be at any address.
    pub insecure: Insecure,
    /// Time between the signal to stop and the drain.
    pub drain_delay: Duration,
    /// The time limit for running requests when the server stops.
    pub drain_timeout: Duration,
    /// The log lines that are written.
    pub log: String,
    /// The format of log lines.
    pub log_format: LogFormat,
    /// The collector that spans are sent to, if an option names it.
    pub otlp_endpoint: Option<String>,
    /// Limits and defaults of the engine.
    pub policy: Policy,
    /// Limits of the HTTP listener.
    pub limits: HttpLimits,
    /// Whether the clock stands still until a request moves it.
    pub virtual_clock: VirtualClockOption,
    /// Quotas of tenants.
    pub quotas: Vec<Quota>,
    /// Databases whose outboxes are drained.
    pub outboxes: Vec<PostgresTable>,
    /// Bridges to other systems.
    pub bridges: Vec<BridgeSettings>,
    /// The file from which quotas are read again.
    pub file: Option<PathBuf>,
}

/// Authorization over beanstalkd's protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BeanstalkSettings {
    /// Prefixes of the queues that its clients may use; `None`: all.
    pub queues: Option<Prefixes>,
    /// The authority of client certificates; with it the listener uses TLS.
    pub client_ca: Option<PathBuf>,
    /// The permissions of a socket file.
    pub socket_mode: SocketMode,
}

impl BeanstalkSettings {
    /// The address of the listener and its permitted clients. If HTTP requires tokens, this listener, which has none,
    /// is started only if the options name its address.
    ///
    /// # Errors
    /// An option belongs to another kind of listener.
    fn of(options: &mut Options) -> Result<(Listen, BeanstalkSettings), ConfigError> {
        let listen = options.beanstalk.take().unwrap_or_else(|| match options.tokens {
            Some(_) => Listen::Off,
            None => Listen::At("127.0.0.1:11300".into()),
        });
        let (is_unix, is_tcp) = (matches!(listen, Listen::Unix(_)), matches!(listen, Listen::At(_)));
        if options.beanstalk_client_ca.is_some() {
            if options.tls_cert.is_none() {
                let what = "--beanstalk-client-ca needs --tls-cert and --tls-key, too";
                return Err(ConfigError::Value(what.into()));
            }
            if !is_tcp {
                let what = "--beanstalk-client-ca is for --beanstalk HOST:PORT; TLS is not for sockets in the file system";
                return Err(ConfigError::Value(what.into()));
            }
        }
        if options.beanstalk_socket_mode.is_some() && !is_unix {
            return Err(ConfigError::Value("--beanstalk-socket-mode is for --beanstalk unix:PATH".into()));
        }
        let settings = BeanstalkSettings {
            queues: options.beanstalk_queues.take(),
            client_ca: options.beanstalk_client_ca.take(),
            socket_mode: options.beanstalk_socket_mode.take().unwrap_or_default(),
        };
        Ok((listen, settings))
    }
}

/// Reads only the quotas of a file.
///
/// # Errors
/// The file or one of the quotas is not valid.
pub fn read_quotas(file: &Path) -> Result<Vec<Quota>, ConfigError> {
    values::checked(Options::from_file(file)?.quota, &Policy::default())
}

impl Options {
    /// Reads a TOML file.
    ///
    /// # Errors
    /// [`ConfigError`] when it cannot be read, or contains an unknown key or an invalid value.
    pub fn from_file(file: &Path) -> Result<Options, ConfigError> {
        let text =
            std::fs::read_to_string(file).map_err(|error| ConfigError::Unreadable(file.to_owned(), error))?;
        toml_text::read(&text).map_err(|BadToml { line, what }| ConfigError::File {
            file: file.to_owned(),
            line,
            what,
        })
    }

    /// The effective settings: these options, and defaults for the rest.
    ///
    /// # Errors
    /// A value is not valid.
    pub fn settings(mut self) -> Result<Settings, ConfigError> {
        let store = StoreChoice::of(&self)?;
        let (beanstalk, of_beanstalk) = BeanstalkSettings::of(&mut self)?;
        let mut policy = Policy::default();
        let mut limits = HttpLimits::default();
        set(&mut policy.wheel_slots, self.wheel_slots);
        set(&mut policy.wheel_tick_ms, self.wheel_tick.map(|tick| tick.0));
        set(&mut policy.max_body, self.max_body);
        set(&mut policy.max_messages, self.max_messages);
        set(&mut policy.max_message_bytes, self.max_message_bytes);
        set(&mut limits.max_connections, self.max_connections);
        limits.backup_root.clone_from(&self.backup_root);
        set(&mut limits.header_timeout, self.header_timeout.map(Duration::from));
        set(&mut limits.body_timeout, self.body_timeout.map(Duration::from));
        for (name, zero) in [
            ("wheel-slots", policy.wheel_slots == 0),
            ("wheel-tick", policy.wheel_tick_ms == 0),
            ("max-body", policy.max_body == 0),
            ("beanstalk-max-job-size", self.beanstalk_max_job_size == Some(0)),
            ("max-messages", policy.max_messages == 0),
            ("max-message-bytes", policy.max_message_bytes == 0),
            ("max-connections", limits.max_connections == 0),
            ("header-timeout", limits.header_timeout.is_zero()),
            ("body-timeout", limits.body_timeout.is_zero()),
        ] {
            if zero {
                return Err(ConfigError::Value(format!("--{name} must not be 0")));
            }
        }
        if let Some(messages) = self.memory_messages {
            if messages < MIN_MEMORY_MESSAGES {
                let what = format!("--memory-messages {messages}: must be at least {MIN_MEMORY_MESSAGES}");
                return Err(ConfigError::Value(what));
            }
            policy.near_messages = messages / 2;
            policy.ready_messages = messages - messages / 2;
            policy.load_rows = policy.load_rows.min(messages / 10);
        }
        let journal_bytes = self.journal_bytes.unwrap_or(DEFAULT_JOURNAL_BYTES);
        if journal_bytes < MIN_JOURNAL_BYTES {
            let what = format!("--journal-bytes {journal_bytes}: must be at least {MIN_JOURNAL_BYTES}");
            return Err(ConfigError::Value(what));
        }
        // At least twice the journal: a single shard may fill it, and records take memory besides their bytes.
        let default = MemoryBudget::DEFAULT_BYTES.max(journal_bytes.saturating_mul(2));
        let memory = self.memory.unwrap_or(default);
        if memory < MIN_MEMORY {
            let what = format!("--memory {memory}: must be at least {MIN_MEMORY}");
            return Err(ConfigError::Value(what));
        }
        let max_job = self.beanstalk_max_job_size.unwrap_or(beanstalk::DEFAULT_MAX_BODY);
        if max_job > MAX_JOB_SIZE {
            let what = format!("--beanstalk-max-job-size {max_job}: must be at most {MAX_JOB_SIZE}");
            return Err(ConfigError::Value(what));
        }
        let virtual_clock = self.virtual_clock.unwrap_or_default();
        let durability = match (virtual_clock, self.durability) {
            (VirtualClockOption::On, None) => LevelOption::Memory,
            (_, durability) => durability.unwrap_or(LevelOption::Fsync),
        };
        let keeps = durability != LevelOption::Memory || !store.is_log();
        if virtual_clock == VirtualClockOption::On && keeps {
            let what = "--virtual-clock: would deliver messages that are kept before their time; leave --store and \
                        --durability out, or say --virtual-clock force";
            return Err(ConfigError::Value(what.into()));
        }
        if virtual_clock == VirtualClockOption::On && self.data.is_some() {
            let what = "--data: is not used with --virtual-clock, which keeps nothing; leave it out, or say \
                        --virtual-clock force";
            return Err(ConfigError::Value(what.into()));
        }
        if virtual_clock == VirtualClockOption::Force && !store.is_log() {
            let what =
                "--virtual-clock: is for one node with the log; nodes that share a store go by its clock";
            return Err(ConfigError::Value(what.into()));
        }
        if let Some(endpoint) = &self.otlp_endpoint {
            otlp::check_endpoint("--otlp-endpoint", endpoint)?;
        }
        Ok(Settings {
            data: self.data.unwrap_or_else(|| "duewheel-data".into()),
            http: self.http.unwrap_or_else(|| Listen::At("127.0.0.1:7788".into())),
            beanstalk,
            of_beanstalk,
            beanstalk_max_job_size: max_job,
            store,
            durability,
            journal_bytes,
            memory,
            tokens: self.tokens,
            secrets_key: self.secrets_key,
            tls: match (self.tls_cert, self.tls_key) {
                (Some(cert), Some(key)) => Some(tls::Files { cert, key }),
                (None, None) => None,
                (Some(_), None) => return Err(ConfigError::Value("--tls-cert needs --tls-key, too".into())),
                (None, Some(_)) => return Err(ConfigError::Value("--tls-key needs --tls-cert, too".into())),
            },
            hosts: self.hosts.unwrap_or_default(),
            insecure: self.insecure.unwrap_or_default(),
            drain_delay: self.drain_delay.map_or(Duration::ZERO, Duration::from),
            drain_timeout: self.drain_timeout.map_or(Duration::from_secs(10), Duration::from),
            log: self.log.unwrap_or_else(|| "info".into()),
            log_format: self.log_format.unwrap_or(LogFormat::Text),
            otlp_endpoint: self.otlp_endpoint,
            virtual_clock,
            quotas: values::checked(self.quota, &policy)?,
            outboxes: outbox::checked(self.postgres)?,
            bridges: self.bridge.unwrap_or_default(),
            file: None,
            policy,
            limits,
        })
    }
}

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

impl Settings {
    /// The address to listen on for HTTP; `None` when that is off.
    ///
    /// # Errors
    /// [`ConfigError`] when the name cannot be resolved, or other machines reach the address and the options do not
    /// permit that.
    pub fn http_address(&self) -> Result<Option<SocketAddr>, ConfigError> {
        match &self.http {
            Listen::Off => Ok(None),
            Listen::At(text) => {
                let missing = match (&self.tokens, &self.tls) {
                    (Some(_), Some(_)) => None,
                    (None, None) => Some("it needs --tokens, and --tls-cert with --tls-key"),
                    (None, Some(_)) => Some("it needs --tokens: clients are not authenticated"),
                    (Some(_), None) => Some(
                        "it needs --tls-cert with --tls-key: tokens and messages would cross the network in the clear",
                    ),
                };
                self.address(Endpoint::Http, "http", text, missing).map(Some)
            }
            Listen::Unix(path) => {
                let what = "HTTP is served at HOST:PORT";
                Err(ConfigError::Value(format!("--http unix:{}: {what}", path.display())))
            }
        }
    }

    /// The address to listen on for beanstalkd's protocol; `None` when that is off.
    ///
    /// # Errors
    /// See [`Settings::http_address`].
    pub fn beanstalk_address(&self) -> Result<Option<beanstalk::ListenAddress>, ConfigError> {
        Ok(match &self.beanstalk {
            Listen::Off => None,
            Listen::At(text) => {
                let missing = match self.of_beanstalk.client_ca {
                    Some(_) => None,
                    None => Some(
                        "beanstalkd's protocol neither authenticates clients nor encrypts, with or without --tokens; it needs --beanstalk-client-ca",
                    ),
                };
                Some(beanstalk::ListenAddress::Tcp(self.address(
                    Endpoint::Beanstalk,
                    "beanstalk",
                    text,
                    missing,
                )?))
            }
            Listen::Unix(path) => Some(beanstalk::ListenAddress::Unix(path.clone())),
        })
    }

    /// The address to listen on for other nodes; `None` when there are none.
    ///
    /// # Errors
    /// See [`Settings::http_address`].
    pub fn peer_address(&self) -> Result<Option<SocketAddr>, ConfigError> {
        let Some(node) = self.store.node() else { return Ok(None) };
        let missing = match node.peer {
            Some(_) => None,
            None => Some(
                "nodes authenticate each other by a secret that every reader of the store has, too; it needs --peer-cert with --peer-key and --peer-ca",
            ),
        };
        // The name that other nodes use may be one that this node cannot resolve, or an address that is not its own.
        let at = match &node.peer_listen {
            Some(text) => Some(("peer-listen", text)),
            None => node.advertise.as_ref().map(|text| ("advertise", text)),
        };
        at.map(|(option, text)| self.address(Endpoint::Peer, option, text, missing)).transpose()
    }

    /// Checks the address of a listener. `missing`: the requirement without which other machines must not reach it.
    fn address(
        &self,
        endpoint: Endpoint,
        option: &str,
        text: &str,
        missing: Option<&str>,
    ) -> Result<SocketAddr, ConfigError> {
        let bad = |what: &dyn fmt::Display| ConfigError::Value(format!("--{option} {text}: {what}"));
        let mut found = text.to_socket_addrs().map_err(|error| bad(&error))?;
        let address = found.next().ok_or_else(|| bad(&"this name has no address"))?;
        if let Some(missing) = missing
            && !address.ip().is_loopback()
            && !self.insecure.has(endpoint)
        {
            let word = endpoint.as_str();
            return Err(bad(&format_args!(
                "other machines reach this address; {missing}; or say --insecure {word} if that is meant"
            )));
        }
        Ok(address)
    }

    /// The limits of the engine: those of HTTP, extended to the largest job.
    pub fn engine_policy(&self) -> Policy {
        let job = if self.beanstalk == Listen::Off { 0 } else { self.beanstalk_max_job_size };
        let max_body = self.policy.max_body.max(job);
        Policy { max_body, max_history_bytes: HISTORY_BYTES, ..self.policy.clone() }
    }

    /// The log store's settings: a journal of this budget, of at least four segments.
    pub fn log_options(&self) -> LogOptions {
        let default = LogOptions::default();
        // A record takes memory besides its bytes, so the number of records is also bounded. The product fits a u128.
        let records = u128::from(default.journal_records) * u128::from(self.journal_bytes)
            / u128::from(DEFAULT_JOURNAL_BYTES);
        let group = self.least_group_bytes();
        LogOptions {
            max_group_bytes: default.max_group_bytes.max(group),
            journal_bytes: self.journal_bytes,
            memory: MemoryBudget::new(self.memory),
            journal_records: u64::try_from(records).unwrap_or(u64::MAX),
            segment_bytes: default
                .segment_bytes
                .min(self.journal_bytes / 4)
                .max(group.saturating_add(OF_SEGMENT)),
            ..default
        }
    }

    /// The least size of a group that takes every message, in bytes: the driver cuts a group at a quarter of the agreed size,
    /// and the message that is decided then comes on top.
    pub(crate) fn least_group_bytes(&self) -> u64 {
        let policy = self.engine_policy();
        let largest = policy.max_body.saturating_add(policy.max_headers).saturating_add(OF_RECORD) as u64;
        largest.saturating_mul(2)
    }

    /// The settings as options that can be written to a file.
    pub fn to_options(&self) -> Options {
        let span = |d: Duration| Some(TimeSpan(u64::try_from(d.as_millis()).unwrap_or(u64::MAX)));
        Options {
            data: (self.virtual_clock != VirtualClockOption::On).then(|| self.data.clone()),
            http: Some(self.http.clone()),
            beanstalk: Some(self.beanstalk.clone()),
            beanstalk_queues: self.of_beanstalk.queues.clone(),
            beanstalk_client_ca: self.of_beanstalk.client_ca.clone(),
            beanstalk_socket_mode: match self.beanstalk {
                Listen::Unix(_) => Some(self.of_beanstalk.socket_mode),
                Listen::At(_) | Listen::Off => None,
            },
            beanstalk_max_job_size: Some(self.beanstalk_max_job_size),
            durability: match self.store {
                StoreChoice::Log { .. } => Some(self.durability),
                StoreChoice::Redis(_) | StoreChoice::Postgres(_) => None,
            },
            journal_bytes: Some(self.journal_bytes),
            memory: Some(self.memory),
            memory_messages: Some(self.policy.near_messages + self.policy.ready_messages),
            tokens: self.tokens.clone(),
            secrets_key: self.secrets_key.clone(),
            tls_cert: self.tls.as_ref().map(|files| files.cert.clone()),
            tls_key: self.tls.as_ref().map(|files| files.key.clone()),
            hosts: Some(self.hosts.clone()),
            insecure: Some(self.insecure.clone()),
            backup_root: self.limits.backup_root.clone(),
            drain_delay: span(self.drain_delay),
            drain_timeout: span(self.drain_timeout),
            log: Some(self.log.clone()),
            log_format: Some(self.log_format),
            otlp_endpoint: self.otlp_endpoint.clone(),
            virtual_clock: match self.store {
                StoreChoice::Log { .. } => Some(self.virtual_clock),
                StoreChoice::Redis(_) | StoreChoice::Postgres(_) => None,
            },
            wheel_slots: Some(self.policy.wheel_slots),
            wheel_tick: Some(TimeSpan(self.policy.wheel_tick_ms)),
            max_body: Some(self.policy.max_body),
            max_messages: Some(self.policy.max_messages),
            max_message_bytes: Some(self.policy.max_message_bytes),
            max_connections: Some(self.limits.max_connections),
            header_timeout: span(self.limits.header_timeout),
            body_timeout: span(self.limits.body_timeout),
            bridge: (!self.bridges.is_empty()).then(|| self.bridges.clone()),
            quota: (!self.quotas.is_empty()).then(|| self.quotas.iter().map(QuotaTable::from).collect()),
            postgres: (!self.outboxes.is_empty()).then(|| self.outboxes.clone()),
            ..self.store.clone().into_options()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(toml: &str) -> Options {
        toml::from_str(toml).unwrap()
    }

    #[test]
    fn upper_config_layer_wins() {
        let file = options("http = '127.0.0.1:3'\ndurability = 'buffered'\nmax_body = 3");
        let upper = options("http = '127.0.0.1:1'\nmax_body = 1");
        let settings = upper.over(file).settings().unwrap();
        assert_eq!(settings.http, Listen::At("127.0.0.1:1".into()));
        assert_eq!(settings.durability, LevelOption::Buffered);
        assert_eq!(settings.policy.max_body, 1);
        assert_eq!(settings.policy.max_messages, Policy::default().max_messages);
    }

    #[test]
    fn the_documented_defaults() {
        let settings = Options::default().settings().unwrap();
        assert_eq!(settings.data, Path::new("duewheel-data"));
        assert_eq!(settings.http, Listen::At("127.0.0.1:7788".into()));
        assert_eq!(settings.durability, LevelOption::Fsync);
        assert_eq!(settings.drain_timeout, Duration::from_secs(10));
        assert_eq!(settings.beanstalk, Listen::At("127.0.0.1:11300".into()));
        assert_eq!(settings.policy, Policy::default());
        assert_eq!(settings.limits, HttpLimits::default());
        let (log, default) = (settings.log_options(), LogOptions::default());
        assert_eq!(
            (log.journal_bytes, log.journal_records, log.segment_bytes),
            (default.journal_bytes, default.journal_records, default.segment_bytes)
        );
    }

    #[test]
    fn every_option_survives_layering_and_settings() {
        let all = "data = '/d'\nhttp = 'off'\nbeanstalk = 'unix:/b'\nbeanstalk_queues = ['shop/', 'b']\nbeanstalk_socket_mode = '660'\nbeanstalk_max_job_size = 7\ndurability = 'memory'\n\
            journal_bytes = 1048576\nmemory = 1048577\nmemory_messages = 101\ntokens = '/t'\nsecrets_key = '/s'\ntls_cert = '/c'\ntls_key = '/k'\nhosts = 'a.example'\ninsecure = 'http,peer'\nbackup_root = '/b'\ndrain_delay = '4s'\ndrain_timeout = '1s500ms'\nlog = 'debug'\nlog_format = 'json'\notlp_endpoint = 'http://c:4318'\nwheel_slots = 60\n\
            wheel_tick = '10ms'\nmax_body = 1\nmax_messages = 2\nmax_message_bytes = 3\nmax_connections = 4\n\
            header_timeout = '5s'\nbody_timeout = '6s'";
        let quotas = "[[quota]]\nprefix = 'acme.'\nmessages = 1\nbytes = 2\nleases = 3\nenqueues_per_second = 4\nburst = 5\n\
            [[quota]]\nprefix = 'b'\n[[postgres]]\nname = 'shop'\nurl = 'postgres://u:p@localhost/shop'\nqueues = ['shop/']\n\
            [[bridge]]\nname = 'shop'\nkind = 'rabbitmq'\nurl = 'amqp://h'\nqueue = 'q'\nexchange = 'x'\nsource = 's'\n\
            exchange_type = 'topic'\nquorum = false\nmax_attempts = 3\nca = '/ca'\n";
        let log = format!("{all}\nvirtual_clock = 'force'\nstore = 'log'\n{quotas}");
        let redis = "store = 'redis://h:1/3'\nredis_user = 'u'\nredis_password = 'p'\nredis_prefix = 'x'\nredis_wait = 2\nredis_wait_for = 'synced'\nredis_without_aof = true\nredis_create = 'never'\nredis_start_timeout = '5m'\nredis_ca = '/a'\n\
            redis_cert = '/c'\nredis_key = '/k'\nnode = 'n'\nadvertise = 'h:2'\npeer_listen = '0.0.0.0:2'\npeer_cert = '/pc'\npeer_key = '/pk'\npeer_ca = '/pa'\nshards = 7\nshard_lease = '3s'\nsettle_delay = '9s'";
        let redis = format!("{}\n{redis}", all.replace("durability = 'memory'\n", ""));
        for all in [log, redis] {
            let given = options(&all);
            assert_eq!(given.clone().over(Options::default()), given);
            assert_eq!(Options::default().over(given.clone()), given);
            assert_eq!(given.clone().settings().unwrap().to_options(), given);
            let text = toml::to_string(&given).unwrap();
            assert_eq!(options(&text), given);
        }
    }

    /// Story: one list was a text in the file and another an array, and the switch of the flag was no switch there.
    #[test]
    fn file_takes_flag_forms_and_toml_forms() {
        for (text, array) in [
            ("hosts = 'a.example, b.example'", "hosts = ['a.example', 'b.example']"),
            ("insecure = 'http,peer'", "insecure = ['http', 'peer']"),
            ("beanstalk_queues = 'shop/,b'", "beanstalk_queues = ['shop/', 'b']"),
            ("virtual_clock = 'on'", "virtual_clock = true"),
            ("virtual_clock = 'off'", "virtual_clock = false"),
            ("insecure = 'none'", "insecure = false"),
        ] {
            assert_eq!(options(text), options(array), "{text}");
        }
        for (bad, why) in [
            ("hosts = true", "hosts: must be a list"),
            ("hosts = 7", "hosts: must be"),
            ("insecure = true", "say which listeners"),
            ("insecure = ['all']", "\"all\" is none of the listeners"),
            ("beanstalk_queues = []", "say how their names begin"),
            ("beanstalk_queues = ['a b']", "\"a b\" may hold only"),
            ("virtual_clock = 'yes'", "must be on, off or force"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("duewheel.toml");
            std::fs::write(&file, bad).unwrap();
            let error = Options::from_file(&file).unwrap_err().to_string();
            assert!(error.contains("line 1") && error.contains(why), "{bad}: {error}");
        }
    }

    #[test]
    fn virtual_clock_is_volatile_unless_forced() {
        let settings = |text: &str| options(text).settings();
        let alone = settings("virtual_clock = 'on'").unwrap();
        assert_eq!(alone.durability, LevelOption::Memory);
        let forced = settings("virtual_clock = 'force'").unwrap();
        assert_eq!(forced.durability, LevelOption::Fsync);
        for wrong in [
            "virtual_clock = 'on'\ndurability = 'fsync'",
            "virtual_clock = 'on'\nstore = 'redis://h:1'",
            "virtual_clock = 'force'\nstore = 'redis://h:1'",
        ] {
            let error = settings(wrong).unwrap_err().to_string();
            assert!(error.contains("--virtual-clock: "), "{wrong}: {error}");
        }
        let error = settings("virtual_clock = 'on'\ndata = '/d'").unwrap_err().to_string();
        assert!(error.contains("--data: is not used with --virtual-clock"), "{error}");
        assert_eq!(alone.to_options().data, None, "what is printed can be read");
        assert_eq!(settings("virtual_clock = 'force'\ndata = '/d'").unwrap().data, Path::new("/d"));
        assert_eq!(settings("").unwrap().virtual_clock, VirtualClockOption::Off);
    }

    /// Story: the page of the command line says what each length of time may be, and those of `serve` took `90s` only.
    #[test]
    fn config_durations_accept_common_forms() {
        for (toml, ms) in [
            ("drain_delay = '90'", 90_000),
            ("drain_delay = 90", 90_000),
            ("drain_delay = '1.5s'", 1_500),
            ("drain_delay = 'PT5S'", 5_000),
            ("drain_delay = '2 days'", 172_800_000),
            ("drain_delay = '1h30m'", 5_400_000),
        ] {
            let settings = options(toml).settings().unwrap();
            assert_eq!(settings.drain_delay, Duration::from_millis(ms), "{toml}");
        }
    }

    #[test]
    fn invalid_config_names_file_line_key() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("duewheel.toml");
        for (text, line, says) in [
            ("data = 'x'\nhtpp = 'off'\n", 2, "there is no key `htpp` here; did you mean `http`?"),
            ("durability = 'sometimes'", 1, "sometimes"),
            ("\n\nhttp = '7788'", 3, "neither HOST:PORT"),
            ("drain_timeout = 'soon'", 1, "drain_timeout: must be a length of time"),
            ("drain_timeout = -10", 1, "drain_timeout: invalid value"),
            ("max_body = -1", 1, "-1"),
            // Story: an error of a type did not say which key it was about.
            ("max_body = 'a'", 1, "max_body: invalid type: string \"a\""),
            ("\n[[quota]]\nprefix = 'a'\nmessages = 'x'", 4, "quota[0].messages: "),
            ("\n[[quota]]\nprefix = 'a'\nmesages = 1", 4, "mesages"),
            ("[[quota]]\nmessages = 1", 1, "prefix"),
            ("[[quota]]\nprefix = 'a'\nleases = 'many'", 3, "many"),
            ("data = ", 1, ""),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = Options::from_file(&file).unwrap_err().to_string();
            assert!(error.contains(&format!("duewheel.toml, line {line}: ")), "{text}: {error}");
            assert!(error.contains(says) && !error.contains('\n'), "{text}: {error}");
        }
        assert!(
            Options::from_file(&dir.path().join("none")).unwrap_err().to_string().contains("cannot read")
        );
    }

    #[test]
    fn journal_budget_has_minimum() {
        let refused = options("journal_bytes = 1048575").settings().unwrap_err().to_string();
        assert_eq!(refused, "--journal-bytes 1048575: must be at least 1048576");
        let refused = options("memory = 1048575").settings().unwrap_err().to_string();
        assert_eq!(refused, "--memory 1048575: must be at least 1048576");
        let memory = |text: &str| options(text).settings().unwrap().log_options().memory.bytes();
        assert_eq!(memory(""), 536_870_912);
        assert_eq!(memory("journal_bytes = 1000000000"), 2_000_000_000);
        assert_eq!(memory("journal_bytes = 1000000000\nmemory = 5000000"), 5_000_000);
        let least = options("journal_bytes = 1048576").settings().unwrap().log_options();
        // Two of the largest messages, with the other fields of a record; so each agreed group fits into one segment.
        assert_eq!((least.segment_bytes, least.journal_records), (2 * (256 + 16 + 4) * 1024 + 8_192, 7_812));
        let large = options("journal_bytes = 1048576\nmax_body = 20000000").settings().unwrap().log_options();
        assert!(large.max_group_bytes > 40_000_000 && large.segment_bytes > large.max_group_bytes + 4_096);
        let most = Options { journal_bytes: Some(u64::MAX), ..Options::default() };
        assert_eq!(most.settings().unwrap().log_options().segment_bytes, LogOptions::default().segment_bytes);
    }

    #[test]
    fn zero_limits_are_refused() {
        for text in ["wheel_slots = 0", "wheel_tick = '0s'", "max_body = 0", "body_timeout = '0s'"] {
            assert!(options(text).settings().unwrap_err().to_string().contains("must not be 0"), "{text}");
        }
    }
}
