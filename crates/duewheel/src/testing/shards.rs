//! A wheel over several shards of this process, for tests.

use std::future::Future;
use std::pin::Pin;

use crate::backup::Copier;
use crate::builder::{Builder, Common, Elsewhere, OpenError};
use crate::wheel::WheelParts;

impl Builder {
    /// Keeps messages in memory only, in this many shards behind a router, as in a cluster: for tests. One shard is the
    /// same as a wheel in memory.
    #[doc(hidden)]
    pub fn shards(self, shards: u32) -> Self {
        match shards {
            0 | 1 => self,
            _ => self.elsewhere(InMemory { shards }),
        }
    }
}

/// This many shards, without a node.
#[derive(Debug)]
struct InMemory {
    shards: u32,
}

impl Elsewhere for InMemory {
    fn open(
        self: Box<Self>,
        common: Common,
    ) -> Pin<Box<dyn Future<Output = Result<WheelParts, OpenError>> + Send>> {
        Box::pin(async move {
            let seed = common.any_seed();
            let Common { policy, quotas, clock, .. } = common;
            let (client, life) =
                duewheel_cluster::testing::open(self.shards, &policy, seed, quotas.clone(), &clock)?;
            Ok(WheelParts { client, life, copier: Copier::None, policy, quotas, node: None })
        })
    }
}
