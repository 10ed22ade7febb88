//! A server of a medium for a benchmark.

use std::io;
use std::time::Duration;

use clap::ValueEnum;
use duewheel_postgres_rig::{Postgres, Settings};
use duewheel_redis_rig::{Redis, Settings as RedisSettings};

use crate::process::processor_time_of_tree;

/// Where the shards lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MediumKind {
    /// One Redis.
    Redis,
    /// One PostgreSQL.
    Postgres,
}

/// A server of a medium, which ends with this value.
#[derive(Debug)]
pub enum MediumServer {
    /// See [`MediumKind::Redis`].
    Redis(Redis),
    /// See [`MediumKind::Postgres`].
    Postgres(Postgres),
}

impl MediumServer {
    /// Starts an empty one, with the settings of the tests' rigs: each write is synced before it is answered.
    ///
    /// # Errors
    /// [`io::Error`] when the program is missing or does not answer.
    pub fn start(kind: MediumKind) -> io::Result<Self> {
        Ok(match kind {
            MediumKind::Redis => MediumServer::Redis(Redis::start(RedisSettings::default())?),
            MediumKind::Postgres => {
                MediumServer::Postgres(Postgres::start(Settings::default().within(&std::env::temp_dir()))?)
            }
        })
    }

    /// The value for `--store`.
    pub fn url(&self) -> String {
        match self {
            MediumServer::Redis(redis) => redis.url(0),
            MediumServer::Postgres(postgres) => postgres.url(),
        }
    }

    /// Processor time of all its processes so far.
    pub fn processor_time(&self) -> Duration {
        let process = match self {
            MediumServer::Redis(redis) => redis.id(),
            MediumServer::Postgres(postgres) => postgres.id(),
        };
        process.map_or(Duration::ZERO, processor_time_of_tree)
    }

    /// What the medium keeps, in words.
    ///
    /// # Errors
    /// [`io::Error`] when the server does not answer.
    pub fn kept(&self) -> io::Result<String> {
        match self {
            MediumServer::Redis(redis) => {
                let info = redis.command(&["INFO", "memory"])?.text().unwrap_or_default();
                let used = info.lines().find_map(|line| line.strip_prefix("used_memory_human:"));
                Ok(format!("{} of memory", used.unwrap_or("?").trim()))
            }
            MediumServer::Postgres(postgres) => postgres.query(
                "SELECT pg_size_pretty(pg_database_size('postgres')) || ', dead rows ' || sum(n_dead_tup) \
                 FROM pg_stat_user_tables",
            ),
        }
    }

    /// The dead rows of all tables; `None` on a medium that has none.
    ///
    /// # Errors
    /// [`io::Error`] when the server does not answer.
    pub fn dead_rows(&self) -> io::Result<Option<u64>> {
        let MediumServer::Postgres(postgres) = self else { return Ok(None) };
        let dead = postgres.query("SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables")?;
        dead.trim().parse().map(Some).map_err(io::Error::other)
    }
}
