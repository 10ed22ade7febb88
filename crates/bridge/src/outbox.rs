//! The outbox in PostgreSQL: an application enqueues, cancels and postpones in a transaction of its own.
//!
//! ```text
//!  duewheel.enqueue(…)                     one drain transaction
//!        │ commit          ┌────────────────────────────────────────────────┐
//!        ▼                 ▼                                                │
//!  duewheel.outbox ──► advisory lock ─► read ─► intent ─► apply ─► delete ─►COMMIT ─► release
//!                      one drainer              durable   durable,                    rows that are gone
//!                                               here      recorded by row             are forgotten here
//! ```
//!
//! A row is read again until its delete is confirmed, and applied once: its id is recorded in the group of its effect
//! ([`duewheel::core::engine::Op::once`]). The *intent* names all rows that may be recorded, so that each is released
//! although the outcome of a commit was unknown, or the process has ended: a new connection first looks which of them are
//! still in the table.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use duewheel::core::name::QueueName;
use duewheel::core::store::StoreError;
use duewheel::{CallError, Duewheel, Policy};
use duewheel_delivery::{NotWritten, Stopped, Supervised};
use duewheel_store_postgres::{BadOption, Options};

mod database;
mod drain;
mod figures;
mod intent;
mod row;

pub use database::{OutboxStatus, install, install_sql, status};
pub use drain::DrainStep;
pub use figures::OutboxFigures;

use drain::Drain;
use intent::IntentRecord;

/// The longest name of a database.
const MAX_NAME: usize = 63;

/// A database with an outbox.
#[derive(Clone)]
pub struct OutboxSettings {
    name: String,
    options: Options,
    /// The system queue of its record, under which its rows are recorded.
    source: QueueName,
    prefixes: Option<Vec<QueueName>>,
    on_step: Option<StepHook>,
}

type StepHook = Arc<dyn Fn(DrainStep) + Send + Sync>;

impl OutboxSettings {
    /// The database of this name, which is 1 to 63 letters, digits, `-` and `_`, and of this URL, as [`Options::parse`]
    /// takes it. Rows that are in flight are recorded under the name.
    ///
    /// # Errors
    /// [`BadOption`] names what is wrong. The URL is not shown, because it may have a password.
    pub fn new(name: &str, url: &str) -> Result<Self, BadOption> {
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(is_plain) {
            let what = format!("{name:?}: must be 1 to {MAX_NAME} of A-Z a-z 0-9 - _");
            return Err(BadOption::new("name", what));
        }
        let options = Options::parse(url)?;
        let source =
            QueueName::system(&format!("#outbox/{name}")).map_err(|what| BadOption::new("name", what))?;
        Ok(OutboxSettings { name: name.to_owned(), options, source, prefixes: None, on_step: None })
    }

    /// The prefixes with which the queues begin that the database may name; without them it may name all.
    #[must_use]
    pub fn prefixes(mut self, prefixes: Vec<QueueName>) -> Self {
        self.prefixes = Some(prefixes);
        self
    }

    /// Called at each step of the drain, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn on_step(mut self, hook: impl Fn(DrainStep) + Send + Sync + 'static) -> Self {
        self.on_step = Some(Arc::new(hook));
        self
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How to connect.
    pub fn options(&self) -> &Options {
        &self.options
    }
}

impl fmt::Debug for OutboxSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxSettings")
            .field("name", &self.name)
            .field("options", &self.options)
            .field("prefixes", &self.prefixes)
            .finish_non_exhaustive()
    }
}

/// The drains of a node: one for each database. Of several nodes with the same database one drains, and the others stand
/// by. Dropping it signals them to stop.
#[derive(Debug)]
pub struct OutboxService {
    drains: Vec<(Supervised, Arc<OutboxFigures>)>,
}

impl OutboxService {
    /// Starts to drain on the runtime of the caller. `policy` is that of the wheel, and `node` the name of this node, which
    /// `duewheel pg status` shows.
    pub fn start(wheel: &Duewheel, policy: &Policy, node: &str, all: &[OutboxSettings]) -> Self {
        let start = |settings: &OutboxSettings| {
            let figures = Arc::new(OutboxFigures::new(&settings.name));
            let (wheel, policy, node) = (wheel.clone(), policy.clone(), node.to_owned());
            let (settings, theirs) = (settings.clone(), Arc::clone(&figures));
            let worker = format!("the drain of the outbox of {}", settings.name);
            let work = move |stop| {
                let figures = Arc::clone(&theirs);
                let intent = IntentRecord::new(&wheel, &policy, settings.source.clone());
                Drain::new(&wheel, intent, (&node, &settings), figures).run(stop)
            };
            (Supervised::start(worker, Arc::new(AtomicU64::new(0)), work), figures)
        };
        OutboxService { drains: all.iter().map(start).collect() }
    }

    /// The figures of each database.
    pub fn figures(&self) -> impl Iterator<Item = &OutboxFigures> {
        self.drains.iter().map(|(_, figures)| &**figures)
    }

    /// Ends the present batches, and begins no others. Batches that take longer than `deadline` are dropped: their rows
    /// are met again.
    ///
    /// # Cancel safety
    /// When the future is dropped, they end by themselves.
    pub async fn stop(self, deadline: Duration) -> Stopped {
        let mut stopped = Stopped::Complete;
        let stops: Vec<_> =
            self.drains.into_iter().map(|(drain, _)| tokio::spawn(drain.stop(deadline))).collect();
        for one in stops {
            if !matches!(one.await, Ok(Stopped::Complete)) {
                stopped = Stopped::Interrupted;
            }
        }
        stopped
    }
}

/// Why an outbox is not drained, installed or shown.
#[derive(Debug, thiserror::Error)]
pub enum OutboxError {
    /// The database cannot be reached, or does not let this user in.
    #[error(transparent)]
    Connect(#[from] StoreError),
    /// A statement was refused, or the connection has ended.
    #[error("PostgreSQL: {}", in_words(.0))]
    Statement(#[from] tokio_postgres::Error),
    /// A statement had no answer in time.
    #[error("PostgreSQL does not answer in time")]
    Late,
    /// A commit may not have reached the standby.
    #[error("the commit returned with a warning: it may not have reached its level")]
    Warned,
    /// The schema is missing.
    #[error("the outbox is not installed; `duewheel pg install` installs it")]
    NotInstalled,
    /// The schema has another version.
    #[error("the outbox has version {0}, and this program knows {known}; {todo}", known = database::VERSION, todo = remedy(*.0))]
    OtherVersion(i32),
    /// The wheel did not answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The intent was not written.
    #[error(transparent)]
    Intent(#[from] NotWritten),
    /// The record of rows in flight is not readable.
    #[error("the record of rows in flight is not one that this version knows")]
    BadRecord,
    /// The batch took so long that another node may drain.
    #[error("the batch came too late to be applied")]
    Stale,
}

fn in_words(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(refusal), _) => {
            let hint = refusal.hint().map(|hint| format!(". {hint}")).unwrap_or_default();
            format!("{} ({}){hint}", refusal.message(), refusal.code().code())
        }
        (None, Some(cause)) => format!("{error}: {cause}"),
        (None, None) => error.to_string(),
    }
}

fn remedy(installed: i32) -> &'static str {
    if installed > database::VERSION { "run the newer duewheel" } else { "`duewheel pg install` renews it" }
}
