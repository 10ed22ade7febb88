//! The conformance suite: over RabbitMQ, and what it finds in sides that err. A bridge to a side that panics.

use std::time::Duration;

use duewheel::{Duewheel, Policy};
use duewheel_bridge::conformance::{self, OtherSide};
use duewheel_bridge::{BridgeKind, BridgeService, BridgeSettings};

use crate::until;
use crate::world::{Error, MemoryWorld, RabbitWorld};

#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq_source_and_sink_conform() {
    let mut world = RabbitWorld::new().await;
    conformance::source(&mut world).await.unwrap();
    conformance::sink(&mut world).await.unwrap();
}

#[tokio::test]
async fn memory_source_and_sink_conform() {
    let mut world = MemoryWorld::new(Error::None);
    conformance::source(&mut world).await.unwrap();
    conformance::sink(&mut world).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn suite_accuses_sources_that_err() {
    for error in [Error::ConfirmsEarly, Error::ConfirmsOthers] {
        let told = conformance::source(&mut MemoryWorld::new(error)).await.unwrap_err();
        assert!(told.contains("lost"), "{error:?}: {told}");
    }
}

#[tokio::test]
async fn suite_accuses_sinks_that_err() {
    let told = async |error| conformance::sink(&mut MemoryWorld::new(error)).await.unwrap_err();
    assert!(told(Error::Forgets).await.contains("nothing was heard"));
    assert!(told(Error::SaysEarly).await.contains("lost"));
}

#[tokio::test(flavor = "multi_thread")]
async fn direction_that_panics_begins_again() {
    let wheel = Duewheel::builder().in_memory().open().await.unwrap();
    let mut service = BridgeService::none(&wheel, &Policy::default()).unwrap();
    let mut world = MemoryWorld::new(Error::Panics);
    world.offer(&["across".to_owned()]).await;
    let settings = BridgeSettings {
        name: "shop".into(),
        kind: BridgeKind::Rabbitmq,
        url: String::new(),
        queue: "q".into(),
        exchange: String::new(),
        exchange_type: String::new(),
        source: None,
        quorum: false,
        max_attempts: 3,
        ca: None,
    };
    service.add(&wheel, settings, world.clone()).unwrap();
    until("it is across", async || world.clone().arrived().await == ["across"]).await;
    assert_eq!(service.restarts(), 1);
    until("it is well", async || {
        let figures = service.figures().next().unwrap().1;
        !figures.is_open && figures.last_error.is_none()
    })
    .await;
    service.stop(Duration::from_secs(10)).await;
}
