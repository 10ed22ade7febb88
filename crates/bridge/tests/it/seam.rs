//! The conformance suite: over RabbitMQ, and what it finds in sides that err.

use duewheel_bridge::conformance;

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
