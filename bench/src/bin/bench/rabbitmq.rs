//! A bridge to RabbitMQ against plain consume-and-republish, by the same library and with the same broker.
//!
//! | part | does |
//! |---|---|
//! | plain | consumes, publishes each message with a confirm, and acks, all at the same time |
//! | bridge | takes messages in, durably, and gives them out: they are due at once |
//!
//! A private broker and the log store sync, in folders of their own. Both parts find a filled quorum queue, with a prefetch
//! of 1,000 and batches of 500, and alternate; the figures are medians.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use duewheel::{Duewheel, Policy};
use duewheel_bench::median;
use duewheel_bridge::rabbitmq::RabbitConnector;
use duewheel_bridge::{BridgeConnector as _, BridgeService, BridgeSettings};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ExchangeDeclareOptions,
    QueueBindOptions, QueueDeclareOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, ExchangeKind};

#[path = "../../../../crates/bridge/tests/it/broker.rs"]
#[allow(dead_code, unreachable_pub, clippy::unwrap_used)] // that of tests
mod broker;

use broker::{Broker, lay_out};

/// Messages that are under way at a time.
const BATCH: usize = 500;
const PREFETCH: u16 = 1_000;
/// The queues behind both parts, and the routing key.
const JOBS: &str = "jobs";
const KEY: &str = "key";
/// The queue of the plain part, and the exchange that it publishes to.
const PLAIN: &str = "plain";
const PLAIN_DUE: &str = "plain.due";

/// Measures a bridge to RabbitMQ.
#[derive(Debug, Parser)]
struct Args {
    /// Messages of a part
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    messages: usize,
    /// Bytes of a message's body
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    body: usize,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Folder for the log store, if not among the temporary files
    #[arg(long, value_name = "DIR")]
    within: Option<PathBuf>,
}

#[tokio::main]
pub(crate) async fn main() {
    let args = crate::arguments::<Args>();
    println!("{}", duewheel_bench::machine::describe());
    let broker = Broker::start();
    let settings = broker.settings();
    let folder = args.within.as_ref().map_or_else(tempfile::tempdir, tempfile::tempdir_in).expect("a folder");
    let wheel = Duewheel::open(folder.path().join("data")).await.expect("a wheel");
    // It declares what the bridge needs.
    let connector = RabbitConnector::new(&settings, &Policy::default()).expect("a connector");
    drop(connector.sink().await.expect("a sink"));
    let (_connection, channel) = broker.connect().await;
    lay_out(&channel, &settings, JOBS, KEY).await;
    lay_out_plain(&channel).await;

    let mut rates: [Vec<f64>; 2] = Default::default();
    for round in 0..args.rounds {
        fill(&channel, ("", PLAIN), &args, round).await;
        rates[0].push(plain(&broker, args.messages).await);
        purge(&channel).await;

        fill(&channel, (&settings.exchange, KEY), &args, round).await;
        rates[1].push(bridge(&wheel, &settings, args.messages).await);
        purge(&channel).await;
        println!("round {round}: plain {:.0}/s, bridge {:.0}/s", rates[0][round], rates[1][round]);
    }
    let [plain, bridge] = rates.map(median);
    println!("plain {plain:.0}/s, bridge {bridge:.0}/s, ratio {:.2}", bridge / plain);
}

/// Messages a second since then.
fn rate(messages: usize, since: Instant) -> f64 {
    messages as f64 / since.elapsed().as_secs_f64()
}

/// A quorum queue as that of the bridge, and an exchange as that of due messages.
async fn lay_out_plain(channel: &Channel) {
    let durable = QueueDeclareOptions { durable: true, ..Default::default() };
    let mut quorum = FieldTable::default();
    quorum.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    channel.queue_declare(PLAIN.into(), durable, quorum).await.expect("a queue");
    let kept = ExchangeDeclareOptions { durable: true, ..Default::default() };
    let declared =
        channel.exchange_declare(PLAIN_DUE.into(), ExchangeKind::Direct, kept, FieldTable::default());
    declared.await.expect("an exchange");
    let (options, none) = (QueueBindOptions::default(), FieldTable::default());
    channel.queue_bind(JOBS.into(), PLAIN_DUE.into(), KEY.into(), options, none).await.expect("bound");
}

/// Publishes the messages of a part, each with an id of its own.
async fn fill(channel: &Channel, (exchange, key): (&str, &str), args: &Args, round: usize) {
    let body = vec![b'x'; args.body];
    let mut headers = FieldTable::default();
    headers.insert("x-delay".into(), AMQPValue::LongInt(0));
    let properties = BasicProperties::default().with_delivery_mode(2).with_headers(headers);
    let mut n = 0;
    while n < args.messages {
        let mut confirms = Vec::new();
        for _ in 0..BATCH.min(args.messages - n) {
            let properties = properties.clone().with_message_id(format!("{round}-{n}").into());
            let options = BasicPublishOptions::default();
            let publishing = channel.basic_publish(exchange.into(), key.into(), options, &body, properties);
            confirms.push(publishing.await.expect("published"));
            n += 1;
        }
        for confirm in confirms {
            assert!(confirm.await.expect("a confirm").is_ack());
        }
    }
}

async fn purge(channel: &Channel) {
    channel.queue_purge(JOBS.into(), QueuePurgeOptions::default()).await.expect("purged");
}

/// Consumes and publishes at the same time, with a batch under way, and acks what is confirmed.
async fn plain(broker: &Broker, messages: usize) -> f64 {
    let begun = Instant::now();
    let (_connection, out) = broker.connect().await;
    let (_other, channel) = broker.connect().await;
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await.expect("a prefetch");
    let (options, none) = (BasicConsumeOptions::default(), FieldTable::default());
    let mut consumer =
        channel.basic_consume(PLAIN.into(), "".into(), options, none).await.expect("a consumer");
    let (mut done, mut under_way) = (0, FuturesOrdered::new());
    while done < messages {
        tokio::select! {
            Some(message) = consumer.next(), if under_way.len() < BATCH => {
                let message = message.expect("a message");
                let options = BasicPublishOptions { mandatory: true, ..Default::default() };
                let (body, properties) = (&message.data, message.properties.clone());
                let publishing = out.basic_publish(PLAIN_DUE.into(), KEY.into(), options, body, properties);
                let confirm = publishing.await.expect("published");
                under_way.push_back(async move { (message, confirm.await.expect("a confirm")) });
            }
            Some((message, confirmed)) = under_way.next() => {
                assert!(confirmed.is_ack());
                done += 1;
                if done % (BATCH / 5) == 0 || under_way.is_empty() {
                    message.ack(BasicAckOptions { multiple: true }).await.expect("acked");
                }
            }
        }
    }
    rate(messages, begun)
}

/// Runs the bridge until all messages have gone through it.
async fn bridge(wheel: &Duewheel, settings: &BridgeSettings, messages: usize) -> f64 {
    let begun = Instant::now();
    let service = BridgeService::start(wheel, &Policy::default(), vec![settings.clone()]).expect("a bridge");
    until("all are sent", async || {
        service.figures().map(|(_, figures)| figures.sent).sum::<u64>() >= messages as u64
    })
    .await;
    let rate = rate(messages, begun);
    service.stop(Duration::from_secs(10)).await;
    rate
}

/// Polls until `done`.
pub(crate) async fn until(_: &str, mut done: impl AsyncFnMut() -> bool) {
    while !done().await {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
