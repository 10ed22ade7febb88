//! Which queue is delivered to which target: a record for each queue that has one.

use std::collections::BTreeMap;

use bytes::Bytes;
use duewheel::CallError;
use duewheel::core::name::QueueName;

use super::edits::{TargetView, Targets};
use super::record::TargetError;
use crate::limits::{MAX_TARGET_QUEUES, TARGET_TRIES};
use crate::records::{NotWritten, StoredRecord};

/// Whether a caller may give a queue this target.
pub type TargetChoice<'a> = dyn Fn(&TargetView) -> bool + Sync + 'a;

impl Targets {
    /// The target that a queue is delivered to.
    ///
    /// # Errors
    /// No answer came.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn target_of(&self, queue: &QueueName) -> Result<Option<String>, CallError> {
        Ok(self.routes.read(queue.as_str()).await?.and_then(|row| target(&row)))
    }

    /// Delivers a queue to a target from now on, or to none. What is under way ends as it was begun. `may` says whether
    /// the caller may choose the target.
    ///
    /// # Errors
    /// [`TargetError::NotFound`] if there is no such target or the caller may not choose it,
    /// [`TargetError::NotForQueue`], or see [`TargetError`].
    ///
    /// # Cancel safety
    /// When it is dropped, the queue may have the target or not.
    pub async fn choose(
        &self,
        queue: &QueueName,
        name: Option<&str>,
        may: &TargetChoice<'_>,
    ) -> Result<(), TargetError> {
        if let Some(name) = name {
            self.check_target(queue, name, may).await?;
        }
        for _ in 0..TARGET_TRIES {
            if self.chosen(queue, name).await? {
                self.raise_stamp().await;
                return Ok(());
            }
        }
        Err(TargetError::Busy)
    }

    /// Whether a queue may be delivered to this target, by this caller's choice, and there is room for its record: what
    /// can be known before other things are done.
    ///
    /// # Errors
    /// As [`Targets::choose`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn check_choice(
        &self,
        queue: &QueueName,
        name: &str,
        may: &TargetChoice<'_>,
    ) -> Result<(), TargetError> {
        self.check_target(queue, name, may).await?;
        match self.routes.read(queue.as_str()).await? {
            Some(_) => Ok(()),
            None => self.check_count().await,
        }
    }

    async fn check_target(
        &self,
        queue: &QueueName,
        name: &str,
        may: &TargetChoice<'_>,
    ) -> Result<(), TargetError> {
        // Which queues it has is not asked: that would read the targets of all queues.
        let row = self.targets.read(name).await?.ok_or(TargetError::NotFound)?;
        let view = self.view(name, &row, Vec::new());
        if !may(&view) {
            return Err(TargetError::NotFound);
        }
        match &view.shown {
            Some(shown) if shown.serves(queue) => Ok(()),
            Some(_) => Err(TargetError::NotForQueue(queue.clone())),
            None => Err(TargetError::Unreadable(view.error.unwrap_or_default())),
        }
    }

    /// Whether one more queue may have a target.
    async fn check_count(&self) -> Result<(), TargetError> {
        let count = self.routes.count().await?;
        if count >= MAX_TARGET_QUEUES {
            return Err(TargetError::TooMany(count, "queues with a target"));
        }
        Ok(())
    }

    /// Tries once to set the target of a queue. Returns false if it was changed by another caller at the same time.
    async fn chosen(&self, queue: &QueueName, name: Option<&str>) -> Result<bool, TargetError> {
        let row = self.routes.read(queue.as_str()).await?;
        let done = match (row, name) {
            (None, None) => return Ok(true),
            (Some(row), None) => self.routes.remove(row.id).await,
            (Some(row), Some(name)) if target(&row).as_deref() == Some(name) => return Ok(true),
            (Some(row), Some(name)) => {
                let body = Bytes::copy_from_slice(name.as_bytes());
                self.routes.write((row.id, row.generation), body, None, None).await.map(drop)
            }
            (None, Some(name)) => {
                self.check_count().await?;
                let body = Bytes::copy_from_slice(name.as_bytes());
                return Ok(self.routes.create(queue.as_str(), body).await?);
            }
        };
        match done {
            Ok(()) => Ok(true),
            Err(NotWritten::Lost) => Ok(false),
            Err(why) => Err(why.into()),
        }
    }

    /// The queues that are delivered to this target.
    pub(super) async fn queues_of(&self, name: &str) -> Result<Vec<QueueName>, CallError> {
        let of_it = |_: &str, row: StoredRecord| (target(&row).as_deref() == Some(name)).then_some(());
        let found = self.routes.scan(of_it).await?;
        Ok(found.into_keys().filter_map(|queue| QueueName::new(&queue).ok()).collect())
    }

    /// The queues of each target.
    pub(super) async fn queues_by_target(&self) -> Result<BTreeMap<String, Vec<QueueName>>, CallError> {
        let found = self.routes.scan(|_, row| target(&row)).await?;
        let mut queues: BTreeMap<String, Vec<QueueName>> = BTreeMap::new();
        for (queue, target) in found {
            if let Ok(queue) = QueueName::new(&queue) {
                queues.entry(target).or_default().push(queue);
            }
        }
        Ok(queues)
    }
}

/// The target of a record.
fn target(row: &StoredRecord) -> Option<String> {
    std::str::from_utf8(&row.body).ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use duewheel::{Duewheel, Policy};

    use super::*;
    use crate::target::TargetSettings;
    use crate::targets::Sealing;

    /// The settings of a queue were set before its target was refused.
    #[tokio::test(flavor = "multi_thread")]
    async fn target_queue_limit_is_checked_first() {
        let wheel = Duewheel::builder().in_memory().open().await.unwrap();
        let targets = Targets::new(&wheel, &Policy::default(), Sealing::Open).unwrap();
        targets.put("shop", &TargetSettings::new("https://shop.example/")).await.unwrap();
        let queue = |n: u64| QueueName::new(&format!("q{n}")).unwrap();
        for n in 0..MAX_TARGET_QUEUES {
            targets.routes.create(queue(n).as_str(), Bytes::from_static(b"shop")).await.unwrap();
        }
        let check = async |n| targets.check_choice(&queue(n), "shop", &|_| true).await;
        assert!(matches!(check(MAX_TARGET_QUEUES).await, Err(TargetError::TooMany(MAX_TARGET_QUEUES, _))));
        assert!(check(0).await.is_ok(), "it has one");
        targets.choose(&queue(0), None, &|_| true).await.unwrap();
        assert!(check(MAX_TARGET_QUEUES).await.is_ok());
    }
}
