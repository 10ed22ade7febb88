//! Broker and duewheel are killed in mid-stream: nothing is lost, and comes in once where `message-id` makes it so.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use duewheel::core::engine::Op;
use duewheel::core::name::QueueName;
use duewheel::core::policy::QueueSettings;
use duewheel::{Duewheel, Policy};
use duewheel_bridge::{BridgeService, BridgeSettings};
use lapin::options::{BasicPublishOptions, ExchangeDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};

use crate::broker::{Broker, drain, lay_out};
use crate::flows::{JOBS, KEY, headers};
use crate::until;

/// Messages of a round.
const MESSAGES: usize = 1_000;
/// The variables of a node: its folder, and the address of its broker.
const FOLDER: &str = "DUEWHEEL_TEST_NODE_FOLDER";
const URL: &str = "DUEWHEEL_TEST_NODE_URL";

/// Crashes of each side: as many as the issue asks for with `DUEWHEEL_TEST_FULL`.
fn crashes() -> usize {
    if std::env::var_os("DUEWHEEL_TEST_FULL").is_some() { 20 } else { 2 }
}

fn settings(url: &str) -> BridgeSettings {
    let json = serde_json::json!({"name": "shop", "kind": "rabbitmq", "url": url, "queue": "shop-due",
        "exchange": "delayed"});
    serde_json::from_value(json).unwrap()
}

/// Duewheel with a bridge, in a process of its own: started by the test below, and killed by it.
#[tokio::test(flavor = "multi_thread")]
async fn node_of_its_own_process() {
    let (Some(folder), Ok(url)) = (std::env::var_os(FOLDER), std::env::var(URL)) else { return };
    let wheel = Duewheel::open(std::path::PathBuf::from(folder)).await.unwrap();
    // So that the totals of the queue stay when it is empty.
    let kept = QueueSettings { priority: Some(7), ..QueueSettings::default() };
    wheel.queue("shop-due").configure(kept).await.unwrap();
    let _service = BridgeService::start(&wheel, &Policy::default(), vec![settings(&url)]).unwrap();
    std::future::pending::<()>().await;
}

fn node(folder: &std::path::Path, broker: &Broker) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crashes::node_of_its_own_process"])
        .env(FOLDER, folder)
        .env(URL, broker.url())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn kill(node: &mut Child) {
    node.kill().unwrap();
    node.wait().unwrap();
}

/// Publishes, and waits until the broker has confirmed each message: then the bridge is in the middle of them.
async fn publish_all(broker: &Broker, bodies: &[String]) {
    let (_connection, channel) = broker.connect().await;
    let mut confirms = Vec::new();
    for body in bodies {
        let properties = headers(&[("x-delay", AMQPValue::LongInt(1))]).with_message_id(body.as_str().into());
        let options = BasicPublishOptions::default();
        let publishing =
            channel.basic_publish("delayed".into(), KEY.into(), options, body.as_bytes(), properties);
        confirms.push(publishing.await.unwrap());
    }
    for confirm in confirms {
        assert!(confirm.await.unwrap().is_ack());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn crashes_of_both_sides_lose_nothing() {
    let mut broker = Broker::start();
    let settings = settings(&broker.url());
    let folder = tempfile::tempdir().unwrap();
    let mut child = node(folder.path(), &broker);
    until("it has declared", async || {
        let (_connection, channel) = broker.connect().await;
        let passive = ExchangeDeclareOptions { passive: true, ..Default::default() };
        let kind = lapin::ExchangeKind::Direct;
        channel.exchange_declare("delayed.due".into(), kind, passive, FieldTable::default()).await.is_ok()
    })
    .await;
    {
        let (_connection, channel) = broker.connect().await;
        lay_out(&channel, &settings, JOBS, KEY).await;
        broker.remembers(&settings.source()).await;
    }
    let mut all = BTreeSet::new();
    let mut came: BTreeMap<String, usize> = BTreeMap::new();
    for round in 0..2 * crashes() {
        let bodies: Vec<String> = (0..MESSAGES).map(|n| format!("{round}-{n}")).collect();
        all.extend(bodies.iter().cloned());
        publish_all(&broker, &bodies).await;
        if round % 2 == 0 {
            broker.kill();
            broker.run();
        } else {
            kill(&mut child);
            child = node(folder.path(), &broker);
        }
        let (_connection, channel) = broker.connect().await;
        until("all have come", async || {
            for job in drain(&channel, JOBS).await {
                *came.entry(String::from_utf8(job.data).unwrap()).or_default() += 1;
            }
            came.len() >= all.len()
        })
        .await;
    }
    assert_eq!(came.keys().cloned().collect::<BTreeSet<_>>(), all);
    kill(&mut child);
    let wheel = Duewheel::open(folder.path()).await.unwrap();
    let queue = QueueName::new("shop-due").unwrap();
    let view = wheel.client().ask(Op::queue(queue)).await.unwrap().unwrap();
    assert_eq!(view.totals.enqueued, all.len() as u64, "each came in once");
    let duplicates: usize = came.values().map(|count| count - 1).sum();
    println!("{} messages over {} crashes, {duplicates} duplicates out", all.len(), 2 * crashes());
    wheel.shutdown(Duration::from_secs(10)).await.unwrap();
}
