//! Broker and duewheel are killed in mid-stream: nothing is lost, and comes in once where `message-id` makes it so.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use duewheel::core::name::QueueName;
use duewheel::{Duewheel, Policy};
use duewheel_bridge::BridgeService;
use lapin::types::AMQPValue;

use crate::broker::{Broker, drain, lay_out};
use crate::flows::{JOBS, KEY, headers};
use crate::until;

/// Messages of a round.
const MESSAGES: usize = 400;

/// Rounds, each with one crash of either side: `DUEWHEEL_TEST_FULL` makes them as many as the issue asks for.
fn rounds() -> usize {
    if std::env::var_os("DUEWHEEL_TEST_FULL").is_some() { 20 } else { 2 }
}

/// Publishes until the broker has confirmed each message; the broker may be killed meanwhile.
async fn publish_all(broker: &Broker, bodies: &[String]) {
    let (_connection, channel) = broker.connect().await;
    for body in bodies {
        let properties = headers(&[("x-delay", AMQPValue::LongInt(1))]).with_message_id(body.as_str().into());
        crate::flows::publish(&channel, KEY, body, properties).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn crashes_of_both_sides_lose_nothing() {
    let mut broker = Broker::start();
    let settings = broker.settings();
    let folder = tempfile::tempdir().unwrap();
    let open = async || {
        let wheel = Duewheel::open(folder.path()).await.unwrap();
        let service = BridgeService::start(&wheel, &Policy::default(), [settings.clone()]).unwrap();
        (wheel, service)
    };
    let (mut wheel, mut service) = open().await;
    until("it runs", async || {
        service.figures().next().unwrap().1.is_open || { service.view("shop").await.unwrap().is_owner }
    })
    .await;
    {
        let (_connection, channel) = broker.connect().await;
        let declared = async || {
            let (_connection, channel) = broker.connect().await;
            let passive = lapin::options::ExchangeDeclareOptions { passive: true, ..Default::default() };
            let kind = lapin::ExchangeKind::Direct;
            let none = lapin::types::FieldTable::default();
            channel.exchange_declare("delayed.due".into(), kind, passive, none).await.is_ok()
        };
        until("it has declared", declared).await;
        lay_out(&channel, &settings, JOBS, KEY).await;
    }
    let mut all = BTreeSet::new();
    let mut came: BTreeMap<String, usize> = BTreeMap::new();
    let mut taken = 0;
    for round in 0..rounds() {
        let bodies: Vec<String> = (0..MESSAGES).map(|n| format!("{round}-{n}")).collect();
        all.extend(bodies.iter().cloned());
        // The bridge is in the middle of it in each case.
        publish_all(&broker, &bodies).await;
        if round % 2 == 0 {
            broker.kill();
            broker.run();
        } else {
            // Tasks are dropped where they are.
            taken += service.figures().next().unwrap().1.taken;
            drop((service, wheel));
            (wheel, service) = open().await;
        }
        let (_connection, channel) = broker.connect().await;
        until("all have come", async || {
            for job in drain(&channel, JOBS).await {
                *came.entry(String::from_utf8(job.data).unwrap()).or_default() += 1;
            }
            came.len() == all.len()
        })
        .await;
    }
    assert_eq!(came.keys().cloned().collect::<BTreeSet<_>>(), all);
    let queue = QueueName::new("shop-due").unwrap();
    let view = wheel.client().ask(duewheel::core::engine::Op::queue(queue)).await.unwrap().unwrap();
    let totals = view.totals.enqueued;
    assert_eq!(totals, all.len() as u64, "each came in once: {taken} were counted before the last start");
    let duplicates: usize = came.values().map(|count| count - 1).sum();
    println!("{} messages, {duplicates} duplicates out", all.len());
    service.stop(Duration::from_secs(10)).await;
    wheel.shutdown(Duration::from_secs(10)).await.unwrap();
}
