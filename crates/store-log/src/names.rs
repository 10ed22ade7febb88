//! A shared copy of each queue's name, however many runs have rows of it.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use duewheel_core::QueueName;
use duewheel_core::name::BadName;

/// Interns names, so that equal names share memory; for several threads.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    names: Mutex<HashSet<QueueName>>,
}

impl Interner {
    /// The name with this text.
    pub(crate) fn name(&self, text: &str) -> Result<QueueName, BadName> {
        let mut names = self.lock();
        if let Some(name) = names.get(text) {
            return Ok(name.clone());
        }
        let name = QueueName::stored(text)?;
        names.insert(name.clone());
        Ok(name)
    }

    /// Forgets names that are not used any more.
    pub(crate) fn keep(&self, wanted: impl Fn(&QueueName) -> bool) {
        self.lock().retain(wanted);
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<QueueName>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
