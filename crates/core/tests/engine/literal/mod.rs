//! Inputs in, literal effects out.

mod edits;
mod enqueues;
mod leases;
mod queues;
mod reserves;
mod settles;
mod supersede;

use std::sync::Arc;

use bytes::Bytes;
use duewheel_core::engine::*;
use duewheel_core::id::{Epoch, LeaseToken, Lsn, MessageId};
use duewheel_core::message::*;
use duewheel_core::policy::Policy;
use duewheel_core::record::Was;
use duewheel_core::time::{Due, EngineMs, WallMs};

use crate::harness::*;

fn rig() -> Rig {
    Rig::new(Policy::default())
}

fn token(counter: u64) -> LeaseToken {
    LeaseToken { epoch: Epoch(1), counter }
}

fn durable(n: u64) -> After {
    After { durable: Lsn(n), written: Lsn(0) }
}

fn plain(id: u64, name: &str, k: Option<&str>) -> Arc<MessageContent> {
    Arc::new(MessageContent {
        dedupe_id: None,
        id: MessageId(id),
        queue: queue(name),
        key: k.map(key),
        body: Bytes::from("body"),
        headers: vec![],
        options: Options::default(),
        enqueued_at: WallMs(WALL),
    })
}

fn was(kind: Kind, due: u64, weight: u64) -> Was {
    Was { queue: queue("q"), kind, due: Due::After(EngineMs(due)), weight, detail: 0, past: 0, unweighed: 0 }
}

fn life(due: u64) -> Life {
    Life::new(Due::After(EngineMs(due)), None)
}
