//! The conformance suite: over RabbitMQ, and what it finds in sides that err. A bridge to a side that panics.

use std::time::Duration;

use duewheel::{Duewheel, MessageState, Policy};
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

fn shop(max_attempts: u32) -> BridgeSettings {
    BridgeSettings {
        name: "shop".into(),
        kind: BridgeKind::Rabbitmq,
        url: String::new(),
        queue: "q".into(),
        exchange: String::new(),
        exchange_type: String::new(),
        source: None,
        quorum: false,
        max_attempts,
        ca: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn direction_that_panics_begins_again() {
    let wheel = Duewheel::builder().in_memory().open().await.unwrap();
    let mut service = BridgeService::none(&wheel, &Policy::default()).unwrap();
    let mut world = MemoryWorld::new(Error::Panics);
    world.offer(&["across".to_owned()]).await;
    service.add(&wheel, shop(3), world.clone()).unwrap();
    until("it is across", async || world.clone().arrived().await == ["across"]).await;
    assert_eq!(service.restarts(), 1);
    until("it is well", async || {
        let figures = service.figures().next().unwrap().1;
        !figures.is_open && figures.last_error.is_none()
    })
    .await;
    service.stop(Duration::from_secs(10)).await;
}

/// Story: a bridge that was paused while it waited for its next try kept its error, and its figure `open`.
#[tokio::test(flavor = "multi_thread")]
async fn paused_bridge_is_not_open() {
    let wheel = Duewheel::builder().in_memory().open().await.unwrap();
    let mut service = BridgeService::none(&wheel, &Policy::default()).unwrap();
    service.add(&wheel, shop(3), MemoryWorld::new(Error::Panics)).unwrap();
    until("it is open", async || service.figures().next().unwrap().1.is_open).await;
    assert!(service.set_pause("shop", Some("for a test")).await.unwrap().paused.is_some());
    until("it is only paused", async || {
        let view = service.view("shop").await.unwrap();
        !view.figures.is_open && view.figures.last_error.is_none()
    })
    .await;
    service.stop(Duration::from_secs(10)).await;
}

/// Story: with `max_attempts = 1` a crash made messages dead that the broker may never have seen.
#[tokio::test(flavor = "multi_thread")]
async fn crash_makes_no_message_dead() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Duewheel::open(dir.path().join("data"));
    let state = async |wheel: &Duewheel| wheel.queue("q").get_key("k").await.unwrap().unwrap().state;
    let wheel = open().await.unwrap();
    let mut service = BridgeService::none(&wheel, &Policy::default()).unwrap();
    service.add(&wheel, shop(1), MemoryWorld::new(Error::Hangs)).unwrap();
    wheel.queue("q").body("x").key("k").enqueue().await.unwrap();
    until("it is under way", async || state(&wheel).await == MessageState::Leased).await;
    drop((service, wheel));
    let mut opened = None;
    until("the former one has ended", async || {
        opened = open().await.ok();
        opened.is_some()
    })
    .await;
    let wheel = opened.unwrap();
    until("its lease has ended", async || state(&wheel).await != MessageState::Leased).await;
    assert_eq!(state(&wheel).await, MessageState::Ready);
}
