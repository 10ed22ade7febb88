//! Records for stores that are measured without an engine.

use std::sync::Arc;

use duewheel_core::message::Life;
use duewheel_core::record::Record;
use duewheel_core::{Due, MessageContent, MessageId, QueueName, WallMs};

/// A new message without a key, with a body of this size.
pub fn put(id: MessageId, queue: &QueueName, body: usize, due: Due, enqueued_at: WallMs) -> Record {
    let message = MessageContent {
        dedupe_id: None,
        id,
        queue: queue.clone(),
        key: None,
        body: vec![b'x'; body].into(),
        headers: Vec::new(),
        options: Default::default(),
        enqueued_at,
    };
    Record::Put { message: Arc::new(message), life: Life::new(due, None), was: None }
}
