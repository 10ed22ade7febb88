//! The settings of an outbox: a table `[[postgres]]` of the configuration.

use std::fmt;
use std::sync::Arc;

use duewheel::core::name::QueueName;
use duewheel_store_postgres::{BadOption, Options};

/// The steps of a batch, at which tests end something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainStep {
    /// Rows were read.
    Read,
    /// The intent that names the rows is durable.
    Intended,
    /// The effects of the rows are durable.
    Applied,
    /// The rows are deleted, and the commit comes next.
    Deleted,
    /// The commit is confirmed, and the rows are still recorded.
    Committed,
    /// The rows are released.
    Released,
}

/// The longest name of a database.
const MAX_NAME: usize = 63;

/// A database with an outbox.
#[derive(Clone)]
pub struct OutboxSettings {
    pub(super) name: String,
    pub(super) options: Options,
    /// The system queue of its record, under which its rows are recorded.
    pub(super) source: QueueName,
    pub(super) prefixes: Option<Vec<QueueName>>,
    pub(super) on_step: Option<StepHook>,
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
