//! Opens the wheel on the configured store.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use duewheel::core::store::{Coordinator, ErrorKind, StoreError};
use duewheel::{Duewheel, FleetError, NodeOptions, OpenError, PeerCertificates, VirtualClock};
use duewheel_store_redis::{BadOption, Create, Options, RedisCoordinator, Reset, Rotation, WaitFor, Weight};

use crate::config::{
    ConfigError, LevelOption, RedisCreate, RedisSettings, RedisWaitFor, Settings, StoreChoice,
};
use crate::http::StartWords;
use crate::serve::ServeError;

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// The part of the lease within which replicas must take a change; later it could not be answered any more.
const WAIT_PART: u32 = 4;

/// Opens the store, and reports meanwhile what it waits for.
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
    let options = options_of(redis)?;
    let servers = options.servers();
    waits.send_replace(format!("opening the store in Redis at {servers}"));
    let mut node = NodeOptions::new(&redis.node).shards_if_new(redis.shards_if_new());
    node = node.settle_delay(redis.settle_delay);
    if let (Some(advertise), Some(bind)) = (&redis.advertise, settings.peer_address()?) {
        node = node.advertise(advertise).bind(bind.to_string());
    }
    if let Some(certificates) = certificates {
        node = node.certificates(certificates);
    }
    let redis_itself = Arc::new(RedisCoordinator::new(options));
    let coordinator: Arc<dyn Coordinator> = redis_itself.clone();
    let since = Instant::now();
    loop {
        match inspect(&redis_itself).await {
            Ok(()) => break,
            Err(why) if is_away(&why) && since.elapsed() < redis.start_timeout => {
                tracing::warn!(%why, "Redis is not there yet; trying again");
                waits.send_replace(format!("waiting for Redis at {servers}: {why}"));
                tokio::time::sleep(PAUSE).await;
            }
            Err(why) => return Err(ServeError::Open { what: "the store in Redis".to_owned(), why }),
        }
    }
    loop {
        let builder = Duewheel::builder().policy(settings.engine_policy());
        let builder = builder.quotas(settings.quotas.clone());
        match builder.cluster(Arc::clone(&coordinator), node.clone()).open().await {
            Ok(wheel) => return Ok(wheel),
            Err(why) if is_away(&why) && since.elapsed() < redis.start_timeout => {
                tracing::warn!(%why, "Redis is not there yet; trying again");
                waits.send_replace(format!("waiting for Redis at {servers}: {why}"));
                tokio::time::sleep(PAUSE).await;
            }
            Err(why) => return Err(ServeError::Open { what: "the store in Redis".to_owned(), why }),
        }
    }
}

/// Replaces the secret by which nodes authenticate each other; `says` is called with the rotation that is awaited.
///
/// # Errors
/// [`ServeError`] when the options are invalid, or Redis refuses or does not answer.
pub(crate) fn rotate_secret(redis: &RedisSettings, says: impl FnOnce(Rotation)) -> Result<(), ServeError> {
    let failed = |error| ServeError::Open {
        what: "the cluster's secret in Redis".to_owned(),
        why: OpenError::Node(FleetError::Store(error)),
    };
    let coordinator = RedisCoordinator::new(options_of(redis)?);
    let rotation = coordinator.begin_rotation().map_err(failed)?;
    says(rotation);
    std::thread::sleep(rotation.wait);
    coordinator.end_rotation().map_err(failed)
}

/// Gives up data that Redis has lost.
///
/// # Errors
/// [`ServeError`] when the options are invalid, or Redis refuses or does not answer.
pub(crate) fn reset(redis: &RedisSettings) -> Result<Reset, ServeError> {
    let what = "the store in Redis".to_owned();
    let done = RedisCoordinator::new(options_of(redis)?).reset(redis.shards_if_new());
    done.map_err(|error| ServeError::Open { what, why: OpenError::Node(FleetError::Store(error)) })
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

fn options_of(redis: &RedisSettings) -> Result<Options, ConfigError> {
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
    options = options.lease(redis.lease).map_err(named("shard-lease"))?;
    if redis.wait > 0 || redis.wait_for == RedisWaitFor::Synced {
        options = options.wait_replicas(redis.wait, redis.lease / WAIT_PART).map_err(named("redis-wait"))?;
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
