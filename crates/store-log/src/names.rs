//! One copy of each queue's name, however many runs have rows of it.

use std::collections::HashSet;

use duewheel_core::QueueName;
use duewheel_core::name::BadName;

/// Interns names, so that equal names share memory.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    names: HashSet<QueueName>,
}

impl Interner {
    /// The name with this text.
    pub(crate) fn name(&mut self, text: &str) -> Result<QueueName, BadName> {
        if let Some(name) = self.names.get(text) {
            return Ok(name.clone());
        }
        let name = QueueName::new(text)?;
        self.names.insert(name.clone());
        Ok(name)
    }

    /// Forgets names that are not used any more.
    pub(crate) fn keep(&mut self, wanted: impl Fn(&QueueName) -> bool) {
        self.names.retain(wanted);
    }
}
