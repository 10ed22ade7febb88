//! What the tests need: a server of PostgreSQL with an outbox, a wheel, and a drain between them.

use std::collections::BTreeMap;

use duewheel::core::QueueName;
use duewheel::core::engine::View;
use duewheel::core::store::{MemoryDisk, MemoryStore, Store};
use duewheel::{Builder, Duewheel, Policy};
use duewheel_bridge::outbox::{OutboxService, OutboxSettings, install};
use duewheel_postgres_rig::{Postgres, Settings};
use duewheel_store_postgres::{Options, PgConnection, connect};

use crate::until;

pub(crate) const MAX_BODY: usize = 262_144;

pub(crate) struct Place {
    pub(crate) postgres: Postgres,
    pub(crate) wheel: Duewheel,
}

impl Place {
    /// With the outbox installed, and a wheel in memory.
    pub(crate) async fn new() -> Place {
        Place::over(1).await
    }

    /// With several shards, as in a cluster.
    pub(crate) async fn over(shards: u32) -> Place {
        Place::of(Duewheel::builder().in_memory().shards(shards)).await
    }

    /// On a disk that tests may fill.
    pub(crate) async fn on(disk: &MemoryDisk) -> Place {
        let disk = disk.clone();
        let open = move |waker| Ok(Box::new(MemoryStore::open(&disk, waker)) as Box<dyn Store>);
        Place::of(Duewheel::builder().store(open)).await
    }

    async fn of(builder: Builder) -> Place {
        let postgres =
            tokio::task::block_in_place(|| Postgres::start(Settings::default())).expect("a server");
        install(&options(&postgres.url()), MAX_BODY).await.expect("installed");
        let wheel = builder.open().await.expect("a wheel");
        Place { postgres, wheel }
    }

    pub(crate) fn settings(&self) -> OutboxSettings {
        OutboxSettings::new("shop", &self.postgres.url()).expect("settings")
    }

    pub(crate) fn drain(&self, settings: OutboxSettings) -> OutboxService {
        OutboxService::start(&self.wheel, &Policy::default(), "a", &[settings])
    }

    /// A connection of the application.
    pub(crate) async fn connect(&self) -> PgConnection {
        connect(&options(&self.postgres.url())).await.expect("a connection")
    }

    /// Makes statements by `psql`.
    pub(crate) fn psql(&self, sql: &str) -> String {
        tokio::task::block_in_place(|| self.postgres.query(sql)).expect("an answer")
    }

    pub(crate) fn try_psql(&self, sql: &str) -> String {
        tokio::task::block_in_place(|| self.postgres.query(sql)).unwrap_or_else(|error| error.to_string())
    }

    /// Waits until the outbox is empty.
    pub(crate) async fn drained(&self) {
        until("the outbox is empty", || async { self.psql("SELECT count(*) FROM duewheel.outbox") == "0" })
            .await;
    }

    /// The messages of a queue, by id, which is their order.
    pub(crate) async fn messages(&self, queue: &str) -> Vec<View> {
        let queue = QueueName::new(queue).expect("a name");
        let (mut all, mut after) = (BTreeMap::new(), None);
        loop {
            let page = self.wheel.client().list(queue.clone(), None, after, 1_000).await.expect("a page");
            all.extend(page.views.into_iter().map(|view| (view.message.id, view)));
            after = page.next;
            if after.is_none() {
                return all.into_values().collect();
            }
        }
    }

    pub(crate) async fn bodies(&self, queue: &str) -> Vec<String> {
        let text = |view: View| String::from_utf8(view.message.body.to_vec()).expect("a text");
        self.messages(queue).await.into_iter().map(text).collect()
    }
}

pub(crate) fn options(url: &str) -> Options {
    Options::parse(url).expect("a URL")
}
