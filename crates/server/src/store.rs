//! Opens the wheel on the configured store.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use duewheel::core::store::{Coordinator, ErrorKind, StoreError};
use duewheel::{Duewheel, FleetError, NodeOptions, OpenError, PeerCertificates, VirtualClock};
use duewheel_store_log::Options as LogOptions;
use duewheel_store_medium::SecretRotation;
use duewheel_store_postgres::PostgresCoordinator;
use duewheel_store_redis::{BadOption, Create, Options, RedisCoordinator, Reset, WaitFor, Weight};

use crate::config::{
    ConfigError, LevelOption, NodeSettings, PostgresSettings, RedisCreate, RedisSettings, RedisWaitFor,
    Settings, StoreChoice,
};
use crate::http::StartWords;
use crate::serve::ServeError;

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// The part of the lease within which replicas must take a change; later it could not be answered any more.
const WAIT_PART: u32 = 4;

/// Opens the store, and reports to `waits` what it is waiting for.
pub(crate) async fn open(
    settings: &Settings,
    certificates: Option<PeerCertificates>,
    waits: &StartWords,
    clock: Option<VirtualClock>,
) -> Result<Duewheel, ServeError> {
    match &settings.store {
        StoreChoice::Log { shards } => {
            waits.send_replace(format!("reading the data folder {}", settings.data.display()));
            open_log(settings, *shards, clock).await
        }
        StoreChoice::Redis(redis) => open_redis(settings, redis, certificates, waits).await,
        StoreChoice::Postgres(postgres) => open_postgres(settings, postgres, certificates, waits).await,
    }
}

async fn open_log(
    settings: &Settings,
    shards: Option<u32>,
    clock: Option<VirtualClock>,
) -> Result<Duewheel, ServeError> {
    warn_of_open_folder(&settings.data);
    if settings.durability == LevelOption::Memory {
        tracing::warn!("durability is memory: nothing survives the end of this process");
    }
    let builder = match clock {
        Some(clock) => {
            tracing::warn!("time stands: only POST /v1/clock/advance moves it (--virtual-clock)");
            Duewheel::builder().clock(clock)
        }
        None => Duewheel::builder(),
    };
    let builder = match shards {
        Some(shards) => builder.shards(shards),
        None => builder,
    };
    let opened = builder
        .data(&settings.data)
        .durability(settings.durability.into())
        .policy(settings.engine_policy())
        .log_options(settings.log_options())
        .quotas(settings.quotas.clone())
        .open()
        .await;
    opened.map_err(|why| ServeError::Open { what: settings.data.display().to_string(), why })
}

async fn open_redis(
    settings: &Settings,
    redis: &RedisSettings,
    certificates: Option<PeerCertificates>,
    waits: &StartWords,
) -> Result<Duewheel, ServeError> {
    let node = node_options(settings, &redis.node, certificates)?;
    // As small as the largest message allows.
    let max_group_bytes = Options::GROUP_BYTES.max(settings.least_group_bytes());
    let log = LogOptions { max_group_bytes, ..settings.log_options() };
    let options = options_of(redis)?.log(log);
    let servers = options.servers();
    waits.send_replace(format!("opening the store in Redis at {servers}"));
    let redis_itself = Arc::new(RedisCoordinator::new(options));
    let start = SharedStart::new("Redis", servers, redis.start_timeout, waits);
    start.wait_for(async || inspect(&redis_itself).await).await?;
    start.join(settings, redis_itself, node, redis.node.shards).await
}

async fn open_postgres(
    settings: &Settings,
    postgres: &PostgresSettings,
    certificates: Option<PeerCertificates>,
    waits: &StartWords,
) -> Result<Duewheel, ServeError> {
    let failed = |why| ServeError::Open { what: "the store in PostgreSQL".to_owned(), why };
    let node = node_options(settings, &postgres.node, certificates)?;
    let options = postgres_options(postgres)?.log(settings.log_options());
    let servers = options.servers();
    waits.send_replace(format!("opening the store in PostgreSQL at {servers}"));
    let database = PostgresCoordinator::new(options).map_err(|error| failed(node_error(error)))?;
    let database = Arc::new(database);
    let start = SharedStart::new("PostgreSQL", servers, postgres.start_timeout, waits);
    start.wait_for(async || prepare(&database).await).await?;
    start.join(settings, database, node, postgres.node.shards).await
}

/// Makes the tables if they are missing, and logs how safely the server keeps changes.
async fn prepare(database: &Arc<PostgresCoordinator>) -> Result<(), OpenError> {
    let database = Arc::clone(database);
    let prepared = tokio::task::spawn_blocking(move || {
        if !database.has_tables()? {
            database.init()?;
        }
        database.inspect()
    });
    let late = |_| StoreError::new(ErrorKind::Unavailable, "PostgreSQL was not asked: a task ended");
    if let Some(warning) = prepared.await.map_err(late).flatten().map_err(node_error)? {
        tracing::warn!("PostgreSQL: {warning}");
    }
    Ok(())
}

pub(crate) fn node_error(error: StoreError) -> OpenError {
    OpenError::Node(FleetError::Store(error))
}

/// This node as the others see it. An address that other machines must not reach is refused before anything is asked.
fn node_options(
    settings: &Settings,
    node: &NodeSettings,
    certificates: Option<PeerCertificates>,
) -> Result<NodeOptions, ConfigError> {
    let mut options = NodeOptions::new(&node.name).shards_if_new(node.shards_if_new());
    options = options.settle_delay(node.settle_delay);
    if let (Some(advertise), Some(bind)) = (&node.advertise, settings.peer_address()?) {
        options = options.advertise(advertise).bind(bind.to_string());
    }
    Ok(match certificates {
        Some(certificates) => options.certificates(certificates),
        None => options,
    })
}

/// A start on a store that nodes share, which may not be there yet.
struct SharedStart<'a> {
    name: &'static str,
    servers: String,
    since: Instant,
    timeout: Duration,
    waits: &'a StartWords,
}

impl<'a> SharedStart<'a> {
    fn new(name: &'static str, servers: String, timeout: Duration, waits: &'a StartWords) -> Self {
        SharedStart { name, servers, since: Instant::now(), timeout, waits }
    }

    /// Tries until the store answers, or the time of the start is over.
    async fn wait_for<T>(&self, attempt: impl AsyncFn() -> Result<T, OpenError>) -> Result<T, ServeError> {
        let SharedStart { name, servers, .. } = self;
        loop {
            match attempt().await {
                Ok(done) => return Ok(done),
                Err(why) if is_away(&why) && self.since.elapsed() < self.timeout => {
                    tracing::warn!(%why, "{name} is not there yet; trying again");
                    self.waits.send_replace(format!("waiting for {name} at {servers}: {why}"));
                    tokio::time::sleep(PAUSE).await;
                }
                Err(why) => return Err(ServeError::Open { what: format!("the store in {name}"), why }),
            }
        }
    }

    /// Joins the nodes that share it. `asked` is the number of shards in the options.
    async fn join(
        &self,
        settings: &Settings,
        coordinator: Arc<dyn Coordinator>,
        node: NodeOptions,
        asked: Option<u32>,
    ) -> Result<Duewheel, ServeError> {
        let open = async || {
            let builder = Duewheel::builder().policy(settings.engine_policy());
            let builder = builder.quotas(settings.quotas.clone());
            builder.cluster(Arc::clone(&coordinator), node.clone()).open().await
        };
        let wheel = self.wait_for(open).await.map_err(|failed| match failed {
            ServeError::Open { why: OpenError::Node(FleetError::Listen(address, why)), .. } => {
                let is_own = settings.store.node().is_some_and(|node| node.peer_listen.is_some());
                ServeError::Bind { option: if is_own { "peer-listen" } else { "advertise" }, address, why }
            }
            other => other,
        })?;
        let has = wheel.client().shards();
        if let Some(asked) = asked.filter(|asked| *asked != has) {
            tracing::warn!(asked, has, "--shards is for a new cluster; this one keeps its number");
        }
        Ok(wheel)
    }
}

/// The address of PostgreSQL, and the settings of this node.
pub(crate) fn postgres_options(
    postgres: &PostgresSettings,
) -> Result<duewheel_store_postgres::Options, ConfigError> {
    let mut options = postgres.address()?;
    if let Some(password) = &postgres.password {
        options = options.password(password.expose());
    }
    if let Some(file) = &postgres.ca {
        let named = |error| ConfigError::Value(format!("--postgres-ca: {error}"));
        options = options.tls_authority(file).map_err(named)?;
    }
    Ok(options)
}

/// Makes the tables in PostgreSQL.
///
/// # Errors
/// [`ServeError`] when the options are invalid, or PostgreSQL refuses or does not answer.
pub fn init_postgres(postgres: &PostgresSettings) -> Result<(), ServeError> {
    let failed =
        |error| ServeError::Open { what: "the tables in PostgreSQL".to_owned(), why: node_error(error) };
    PostgresCoordinator::new(postgres_options(postgres)?).and_then(|database| database.init()).map_err(failed)
}

/// Replaces the secret by which nodes authenticate each other; `says` is called with the rotation that is awaited.
///
/// # Errors
/// [`ServeError`] when the options are invalid, or the store refuses or does not answer.
pub fn rotate_secret(store: &StoreChoice, says: impl FnOnce(SecretRotation)) -> Result<(), ServeError> {
    let failed = |error| ServeError::Open { what: "the cluster's secret".to_owned(), why: node_error(error) };
    let await_it = |rotation: SecretRotation| {
        says(rotation);
        std::thread::sleep(rotation.wait);
    };
    match store {
        StoreChoice::Log { .. } => Ok(()),
        StoreChoice::Redis(redis) => {
            let coordinator = RedisCoordinator::new(options_of(redis)?);
            await_it(coordinator.begin_rotation().map_err(failed)?);
            coordinator.end_rotation().map_err(failed)
        }
        StoreChoice::Postgres(postgres) => {
            let coordinator = PostgresCoordinator::new(postgres_options(postgres)?).map_err(failed)?;
            await_it(coordinator.begin_rotation().map_err(failed)?);
            coordinator.end_rotation().map_err(failed)
        }
    }
}

/// Gives up data that Redis has lost.
///
/// # Errors
/// [`ServeError`] when the options are invalid, or Redis refuses or does not answer.
pub fn reset(redis: &RedisSettings) -> Result<Reset, ServeError> {
    let what = "the store in Redis".to_owned();
    let done = RedisCoordinator::new(options_of(redis)?).reset(redis.node.shards_if_new());
    done.map_err(|error| ServeError::Open { what, why: OpenError::Node(FleetError::Store(error)) })
}

/// Gives up what PostgreSQL has lost of shards that are refused for it. Returns their numbers.
///
/// # Errors
/// [`ServeError`] when the options are invalid, or the server refuses or does not answer.
pub fn give_up_lost(postgres: &PostgresSettings) -> Result<Vec<String>, ServeError> {
    let failed = |error| ServeError::Open {
        what: "the store in PostgreSQL".to_owned(),
        why: OpenError::Node(FleetError::Store(error)),
    };
    let coordinator = PostgresCoordinator::new(postgres_options(postgres)?).map_err(failed)?;
    let shards = coordinator.give_up_lost().map_err(failed)?;
    Ok(shards.iter().map(ToString::to_string).collect())
}

/// Logs how safely Redis keeps changes, and refuses a Redis that does not meet the options.
async fn inspect(redis: &Arc<RedisCoordinator>) -> Result<(), OpenError> {
    let redis = Arc::clone(redis);
    let inspected = tokio::task::spawn_blocking(move || redis.inspect()).await;
    let late =
        |_| StoreError::new(ErrorKind::Unavailable, "Redis was not asked for its settings: a task ended");
    let findings =
        inspected.map_err(late).flatten().map_err(|why| OpenError::Node(FleetError::Store(why)))?;
    for finding in findings {
        match finding.weight {
            Weight::Note => tracing::info!("Redis {}", finding.what),
            Weight::Danger => tracing::warn!("Redis {}", finding.what),
        }
    }
    Ok(())
}

/// Whether the store may be reachable a little later.
fn is_away(why: &OpenError) -> bool {
    matches!(why, OpenError::Node(FleetError::Store(error)) if error.kind() == ErrorKind::Unavailable)
}

pub(crate) fn options_of(redis: &RedisSettings) -> Result<Options, ConfigError> {
    let named = |option: &str| {
        let option = option.to_owned();
        move |error: BadOption| ConfigError::Value(format!("--{option}: {error}"))
    };
    let mut options = Options::parse(redis.url.expose()).map_err(named("store"))?;
    if let Some(user) = &redis.user {
        options = options.user(user);
    }
    if let Some(password) = &redis.password {
        options = options.password(password.expose());
    }
    options = options.prefix(&redis.prefix).map_err(named("redis-prefix"))?;
    options = options.lease(redis.node.lease).map_err(named("shard-lease"))?;
    if redis.wait > 0 || redis.wait_for == RedisWaitFor::Synced {
        options =
            options.wait_replicas(redis.wait, redis.node.lease / WAIT_PART).map_err(named("redis-wait"))?;
    }
    options = options.wait_for(match redis.wait_for {
        RedisWaitFor::Received => WaitFor::Received,
        RedisWaitFor::Synced => WaitFor::Synced,
    });
    if redis.without_aof {
        options = options.without_aof();
    }
    options = options.create(match redis.create {
        RedisCreate::Always => Create::Always,
        RedisCreate::Never => Create::Never,
    });
    if let Some(file) = &redis.ca {
        options = options.tls_authority(file).map_err(named("redis-ca"))?;
    }
    if let Some(files) = &redis.client {
        options = options.tls_client(&files.cert, &files.key).map_err(named("redis-cert"))?;
    }
    Ok(options)
}

/// The permissions of an existing folder are its operator's responsibility. The files in it always belong to the owner
/// alone.
fn warn_of_open_folder(data: &Path) {
    let Ok(meta) = std::fs::metadata(data) else { return };
    let mode = meta.mode() & 0o777;
    if mode & 0o077 != 0 {
        tracing::warn!(data = %data.display(), mode = format!("{mode:03o}"), "others may look into the data folder; chmod 700 it");
    }
}
