//! Messages over a bridge and a real broker.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use duewheel::core::engine::{Op, Quota, Target};
use duewheel::core::message::{DeadReason, State};
use duewheel::core::name::{Key, QueueName};
use duewheel::core::policy::{Backoff, QueueSettings};
use duewheel::{Duewheel, Policy};
use duewheel_bridge::rabbitmq::{RabbitConnector, plan, probe};
use duewheel_bridge::{BridgeFigures, BridgeService, BridgeSettings};
use lapin::message::Delivery;
use lapin::options::{BasicGetOptions, BasicNackOptions, BasicPublishOptions};
use lapin::types::{AMQPValue, FieldArray, FieldTable};
use lapin::{BasicProperties, Channel, Connection};

use crate::broker::{Broker, drain, lay_out};
use crate::until;

/// A broker, a store, and a bridge between them.
pub struct Rig {
    pub broker: Broker,
    pub wheel: Duewheel,
    pub service: BridgeService,
    pub settings: BridgeSettings,
    _connection: Connection,
    pub channel: Channel,
}

pub const JOBS: &str = "jobs";
pub const KEY: &str = "key";

impl Rig {
    pub async fn new() -> Rig {
        let broker = Broker::start();
        let settings = broker.settings();
        let wheel = Duewheel::builder().in_memory().open().await.unwrap();
        Rig::over(broker, wheel, settings).await
    }

    pub async fn over(broker: Broker, wheel: Duewheel, settings: BridgeSettings) -> Rig {
        let service = BridgeService::start(&wheel, &Policy::default(), vec![settings.clone()]).unwrap();
        let (connection, channel) = broker.connect().await;
        until("the bridge has declared", async || {
            let (_connection, channel) = broker.connect().await;
            let passive = lapin::options::ExchangeDeclareOptions { passive: true, ..Default::default() };
            let due = settings.due_exchange();
            let kind = lapin::ExchangeKind::Direct;
            channel.exchange_declare((&*due).into(), kind, passive, FieldTable::default()).await.is_ok()
        })
        .await;
        lay_out(&channel, &settings, JOBS, KEY).await;
        let rig = Rig { broker, wheel, service, settings, _connection: connection, channel };
        until("the bridge consumes", async || rig.queue(&rig.settings.source()).await.consumer_count() == 1)
            .await;
        rig
    }

    pub async fn publish(&self, routing_key: &str, body: &str, properties: BasicProperties) {
        publish(&self.channel, routing_key, body, properties).await;
    }

    pub fn figures(&self) -> BridgeFigures {
        self.service.figures().next().unwrap().1
    }

    /// Waits for this number of messages of the consumer's queue.
    async fn jobs(&self, count: usize) -> Vec<Delivery> {
        let mut all = Vec::new();
        until("the messages are there", async || {
            all.extend(drain(&self.channel, JOBS).await);
            all.len() >= count
        })
        .await;
        all
    }

    /// Pauses the bridge, and waits until it consumes nothing.
    async fn pause(&self, reason: &str) {
        let view = self.service.set_pause("shop", Some(reason)).await.unwrap();
        assert_eq!(view.paused.unwrap().reason, reason);
        until("nobody consumes", async || self.queue("duewheel.shop").await.consumer_count() == 0).await;
    }

    async fn queue(&self, name: &str) -> lapin::Queue {
        let passive = lapin::options::QueueDeclareOptions { passive: true, ..Default::default() };
        self.channel.queue_declare(name.into(), passive, FieldTable::default()).await.unwrap()
    }

    async fn pending(&self, key: &str) -> Option<State> {
        let key = Target::Key(QueueName::new("shop-due").unwrap(), Key::new(key).unwrap());
        self.wheel.client().ask(Op::get(key)).await.unwrap().map(|view| view.state)
    }
}

pub async fn publish(channel: &Channel, routing_key: &str, body: &str, properties: BasicProperties) {
    let options = BasicPublishOptions::default();
    let publishing =
        channel.basic_publish("delayed".into(), routing_key.into(), options, body.as_bytes(), properties);
    assert!(publishing.await.unwrap().await.unwrap().is_ack());
}

pub fn headers(values: &[(&str, AMQPValue)]) -> BasicProperties {
    let mut headers = FieldTable::default();
    for (name, value) in values {
        headers.insert((*name).into(), value.clone());
    }
    BasicProperties::default().with_headers(headers).with_delivery_mode(2)
}

pub fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

#[tokio::test(flavor = "multi_thread")]
async fn delayed_message_crosses_with_its_properties() {
    let rig = Rig::new().await;
    let properties = headers(&[("x-delay", AMQPValue::LongInt(1_200)), ("n", AMQPValue::ShortShortInt(-3))])
        .with_message_id("m1".into())
        .with_user_id("guest".into())
        .with_expiration("600000".into())
        .with_type("order".into());
    let begun = std::time::Instant::now();
    rig.publish(KEY, "later", properties.clone()).await;
    rig.publish(KEY, "later", properties).await;
    rig.publish(KEY, "now", BasicProperties::default()).await;
    let jobs = rig.jobs(2).await;
    assert!(begun.elapsed() >= Duration::from_millis(1_200), "never early");
    assert_eq!(jobs.len(), 2, "one message-id, one message");
    assert_eq!(jobs[0].data, b"now");
    let later = &jobs[1];
    assert_eq!((&*later.data, later.routing_key.as_str()), (&b"later"[..], KEY));
    assert_eq!(later.exchange.as_str(), "delayed.due");
    let out = &later.properties;
    assert_eq!(out.message_id().as_ref().unwrap().as_str(), "m1");
    assert_eq!(out.expiration().as_ref().unwrap().as_str(), "600000");
    assert_eq!(out.kind().as_ref().unwrap().as_str(), "order");
    assert_eq!(*out.user_id(), None);
    let headers = out.headers().as_ref().unwrap().inner();
    assert_eq!(headers["x-delay"], AMQPValue::LongInt(-1_200));
    assert_eq!(headers["n"], AMQPValue::ShortShortInt(-3));
    assert!(matches!(headers["duewheel-id"], AMQPValue::LongString(_)));
    until("it is counted", async || rig.figures().sent == 2).await;
    let figures = rig.figures();
    assert_eq!((figures.taken, figures.duplicates, figures.rejected), (2, 1, 0));
    // Another content under the same id is not lost.
    rig.publish(KEY, "other", BasicProperties::default().with_message_id("m1".into())).await;
    assert_eq!(rig.jobs(1).await[0].data, b"other");
    rig.service.stop(Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_cancel_replace_and_postpone() {
    let rig = Rig::new().await;
    let hour = AMQPValue::LongInt(3_600_000);
    let to = |key: &str, action: Option<&str>, delay: AMQPValue| {
        let mut values = vec![("x-duewheel-key", text(key)), ("x-delay", delay)];
        values.extend(action.map(|action| ("x-duewheel-action", text(action))));
        headers(&values)
    };
    for key in ["cancelled", "replaced", "postponed", "hurried"] {
        rig.publish(KEY, key, to(key, None, hour.clone())).await;
    }
    until("all wait", async || rig.pending("hurried").await == Some(State::Scheduled)).await;
    rig.publish(KEY, "", to("cancelled", Some("cancel"), AMQPValue::Void)).await;
    rig.publish(KEY, "new", to("replaced", Some("replace"), AMQPValue::LongInt(50))).await;
    rig.publish(KEY, "", to("postponed", Some("postpone"), AMQPValue::LongInt(50))).await;
    rig.publish(KEY, "", to("hurried", Some("postpone"), AMQPValue::LongInt(0))).await;
    rig.publish(KEY, "", to("nobody", Some("cancel"), AMQPValue::Void)).await;
    let bodies: BTreeSet<Vec<u8>> = rig.jobs(3).await.into_iter().map(|job| job.data).collect();
    assert_eq!(bodies, BTreeSet::from([b"new".to_vec(), b"postponed".to_vec(), b"hurried".to_vec()]));
    assert_eq!(rig.pending("cancelled").await, None);
    assert_eq!(rig.figures().rejected, 0);
    rig.service.stop(Duration::from_secs(10)).await;
}

/// All three were applied, and their acks were lost.
#[tokio::test(flavor = "multi_thread")]
async fn cancel_that_comes_again_loses_nothing() {
    let rig = Rig::new().await;
    let publish_all = async || {
        for (id, action) in [("first", None), ("cancel", Some("cancel")), ("second", None)] {
            let mut values = vec![("x-duewheel-key", text("k")), ("x-delay", AMQPValue::LongInt(3_600_000))];
            values.extend(action.map(|action| ("x-duewheel-action", text(action))));
            rig.publish(KEY, id, headers(&values).with_message_id(id.into())).await;
        }
    };
    publish_all().await;
    until("they are applied", async || rig.figures().taken == 3).await;
    rig.pause("to take them back").await;
    publish_all().await;
    let mut back = Vec::new();
    until("all are there", async || {
        let queue = rig.channel.basic_get("duewheel.shop".into(), BasicGetOptions::default()).await.unwrap();
        back.extend(queue);
        back.len() == 3
    })
    .await;
    for message in back {
        message.nack(BasicNackOptions { requeue: true, ..Default::default() }).await.unwrap();
    }
    rig.service.set_pause("shop", None).await.unwrap();
    until("they have come again", async || rig.figures().taken + rig.figures().duplicates == 6).await;
    assert_eq!(rig.pending("k").await, Some(State::Scheduled), "{:?}", rig.figures());
    rig.service.stop(Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pauses_repeat_no_message() {
    let rig = Rig::new().await;
    let ended = Arc::new(AtomicBool::new(false));
    let (channel, stop) = (rig.channel.clone(), ended.clone());
    let publishing = tokio::spawn(async move {
        let mut published = 0;
        while !stop.load(Ordering::Relaxed) {
            let mut confirms = Vec::new();
            for _ in 0..200 {
                let options = BasicPublishOptions::default();
                let persistent = BasicProperties::default().with_delivery_mode(2);
                let publishing =
                    channel.basic_publish("delayed".into(), KEY.into(), options, b"x", persistent);
                confirms.push(publishing.await.unwrap());
            }
            for confirm in confirms {
                assert!(confirm.await.unwrap().is_ack());
                published += 1;
            }
        }
        published
    });
    for _ in 0..4 {
        rig.pause("for a moment").await;
        let before = rig.figures().taken;
        rig.service.set_pause("shop", None).await.unwrap();
        until("it goes on", async || rig.figures().taken > before).await;
    }
    ended.store(true, Ordering::Relaxed);
    let published = publishing.await.unwrap();
    until("all is sent", async || rig.figures().sent >= u64::from(published)).await;
    assert_eq!(rig.queue(JOBS).await.message_count(), published);
    assert_eq!((rig.figures().taken, rig.figures().sent), (published.into(), published.into()));
    rig.service.stop(Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_messages_are_put_aside() {
    let rig = Rig::new().await;
    let too_large = "x".repeat(Policy::default().max_body + 1);
    rig.publish(KEY, &too_large, BasicProperties::default().with_expiration("60000".into())).await;
    rig.publish(KEY, "text", headers(&[("x-delay", text("soon"))])).await;
    let others = AMQPValue::FieldArray(FieldArray::from(vec![text(JOBS)]));
    let action = headers(&[("x-duewheel-action", text("cancel")), ("CC", others.clone()), ("BCC", others)]);
    rig.publish(KEY, "action", action).await;
    rig.publish(KEY, "good", BasicProperties::default()).await;
    let mut jobs = rig.jobs(1).await;
    let mut aside = Vec::new();
    until("they are put aside", async || {
        aside.extend(drain(&rig.channel, "duewheel.shop.rejected").await);
        aside.len() == 3
    })
    .await;
    let reason = |n: usize| {
        let delivery: &Delivery = &aside[n];
        match &delivery.properties.headers().as_ref().unwrap().inner()["x-duewheel-reason"] {
            AMQPValue::LongString(text) => text.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let reasons: Vec<String> = (0..3).map(reason).collect();
    assert!(reasons.iter().any(|why| why.contains("body is larger")), "{reasons:?}");
    assert!(reasons.iter().any(|why| why.contains("no integer")), "{reasons:?}");
    assert!(reasons.iter().any(|why| why.contains("needs x-duewheel-key")), "{reasons:?}");
    assert!(aside.iter().all(|delivery| delivery.properties.expiration().is_none()));
    jobs.extend(rig.jobs(0).await);
    let bodies: Vec<&[u8]> = jobs.iter().map(|job| &*job.data).collect();
    assert_eq!(bodies, [b"good"], "none went to the queues of its CC");
    assert_eq!(rig.figures().rejected, 3);
    rig.service.stop(Duration::from_secs(10)).await;
}

/// The returns of unroutable messages come between the confirms of others.
#[tokio::test(flavor = "multi_thread")]
async fn unroutable_messages_are_dead_at_last() {
    let rig = Rig::new().await;
    let quick = Backoff { min_ms: 1, max_ms: 2 };
    let settings = QueueSettings { backoff: Some(quick), ..QueueSettings::default() };
    rig.wheel.queue("shop-due").configure(settings).await.unwrap();
    rig.service.set_pause("shop", Some("to gather a batch")).await.unwrap();
    let count = 200;
    for n in 0..count {
        let key = if n % 3 == 0 { "nowhere" } else { KEY };
        let queue = rig.wheel.queue("shop-due");
        queue.body(format!("{n}")).header("amqp-routing-key", key).enqueue().await.unwrap();
    }
    rig.service.set_pause("shop", None).await.unwrap();
    let nowhere = (0..count).filter(|n| n % 3 == 0).count();
    let jobs = rig.jobs(count - nowhere).await;
    let bodies: BTreeSet<String> = jobs.into_iter().map(|job| String::from_utf8(job.data).unwrap()).collect();
    let expected: BTreeSet<String> = (0..count).filter(|n| n % 3 != 0).map(|n| n.to_string()).collect();
    assert_eq!(bodies, expected);
    let name = QueueName::new("shop-due").unwrap();
    let mut dead = Vec::new();
    until("the others are dead", async || {
        let page = rig.wheel.client().list(name.clone(), Some(State::Dead), None, 1_000).await.unwrap();
        dead = page.views;
        dead.len() == nowhere
    })
    .await;
    for view in &dead {
        let (reason, _) = view.dead.unwrap();
        assert_eq!((reason, view.attempt), (DeadReason::MaxAttempts, 3));
        assert!(view.history.iter().all(|past| past.note.starts_with("unroutable: NO_ROUTE")), "{view:?}");
    }
    let stats = rig.wheel.stats().await.unwrap();
    assert_eq!(stats.counts.ready + stats.counts.scheduled, 0, "each is at the broker, or dead");
    rig.service.stop(Duration::from_secs(10)).await;
}

/// The broker closes the channel over a message with an `expiration` that is no number.
#[tokio::test(flavor = "multi_thread")]
async fn message_that_closes_channel_dies_alone() {
    let rig = Rig::new().await;
    let quick = Backoff { min_ms: 1, max_ms: 2 };
    let settings = QueueSettings { backoff: Some(quick), ..QueueSettings::default() };
    rig.wheel.queue("shop-due").configure(settings).await.unwrap();
    rig.pause("to gather a batch").await;
    let queue = rig.wheel.queue("shop-due");
    let count = 30;
    for n in 0..count {
        let message = queue.body(format!("{n}"));
        let message = match n {
            // Version, exchange "", routing key "key", the flag of `expiration`, "soon".
            10 => message.header("amqp-message", &STANDARD.encode(b"\x01\x00\x03key\x01\x00\x04soon")),
            _ => message.header("amqp-routing-key", KEY).header("CC", "text").header("BCC", "text"),
        };
        message.enqueue().await.unwrap();
    }
    rig.service.set_pause("shop", None).await.unwrap();
    let mut bodies = BTreeSet::new();
    until("the others arrive", async || {
        bodies.extend(drain(&rig.channel, JOBS).await.into_iter().map(|job| job.data));
        bodies.len() == count - 1
    })
    .await;
    let name = QueueName::new("shop-due").unwrap();
    let mut dead = Vec::new();
    until("it is dead", async || {
        dead = rig.wheel.client().list(name.clone(), Some(State::Dead), None, 10).await.unwrap().views;
        dead.len() == 1
    })
    .await;
    assert_eq!(dead[0].message.body, "10");
    let notes = &dead[0].history;
    assert!(notes.iter().all(|past| past.note.contains("invalid expiration")), "{notes:?}");
    assert_eq!(rig.figures().last_error, None, "the bridge has stayed connected");
    rig.service.stop(Duration::from_secs(10)).await;
}

/// A quota lets one in: it is confirmed at once, and the other one waits, also over a pause.
#[tokio::test(flavor = "multi_thread")]
async fn message_over_quota_waits_alone() {
    let rig = Rig::new().await;
    let quota = |messages| Quota { prefix: "shop-due".into(), messages: Some(messages), ..Quota::default() };
    rig.wheel.set_quotas(vec![quota(1)]).unwrap();
    rig.pause("to gather a batch").await;
    let hour = headers(&[("x-delay", AMQPValue::LongInt(3_600_000))]);
    for body in ["in", "waits"] {
        rig.publish(KEY, body, hour.clone()).await;
    }
    rig.service.set_pause("shop", None).await.unwrap();
    until("one is in", async || rig.figures().taken == 1).await;
    rig.pause("while one waits").await;
    assert_eq!(rig.queue("duewheel.shop").await.message_count(), 1, "the other one was confirmed");
    rig.wheel.set_quotas(vec![quota(10)]).unwrap();
    rig.service.set_pause("shop", None).await.unwrap();
    until("both are in", async || rig.figures().taken == 2).await;
    rig.pause("to see what is left").await;
    assert_eq!(rig.queue("duewheel.shop").await.message_count(), 0);
    assert_eq!(rig.wheel.stats().await.unwrap().counts.scheduled, 2, "none came twice");
    rig.service.stop(Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_bridge_takes_and_gives_nothing() {
    let rig = Rig::new().await;
    until("it runs", async || rig.service.view("shop").await.unwrap().is_owner).await;
    rig.pause("maintenance").await;
    rig.publish(KEY, "in", BasicProperties::default()).await;
    rig.wheel.queue("shop-due").body("out").header("amqp-routing-key", KEY).enqueue().await.unwrap();
    until("lateness is counted", async || rig.figures().lag_ms > 0).await;
    assert!(drain(&rig.channel, JOBS).await.is_empty());
    // Another node sees it as well.
    let other = BridgeService::start(&rig.wheel, &Policy::default(), vec![rig.settings.clone()]).unwrap();
    assert_eq!(other.view("shop").await.unwrap().paused.unwrap().reason, "maintenance");
    other.set_pause("shop", None).await.unwrap();
    assert_eq!(rig.jobs(2).await.len(), 2);
    other.stop(Duration::from_secs(10)).await;
    rig.service.stop(Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_node_runs_a_bridge_at_a_time() {
    let rig = Rig::new().await;
    until("it runs", async || rig.service.view("shop").await.unwrap().is_owner).await;
    let other = BridgeService::start(&rig.wheel, &Policy::default(), vec![rig.settings.clone()]).unwrap();
    for n in 0..20 {
        rig.publish(KEY, &n.to_string(), BasicProperties::default().with_message_id(n.to_string().into()))
            .await;
    }
    assert_eq!(rig.jobs(20).await.len(), 20);
    assert!(!other.view("shop").await.unwrap().is_owner);
    assert_eq!(other.figures().next().unwrap().1, BridgeFigures::default());
    let Rig { broker: _broker, wheel, service, channel, .. } = rig;
    service.stop(Duration::from_secs(10)).await;
    until("the other one takes over", async || other.view("shop").await.unwrap().is_owner).await;
    publish(&channel, KEY, "after", BasicProperties::default()).await;
    until("it works", async || other.figures().next().unwrap().1.sent == 1).await;
    assert_eq!(drain(&channel, JOBS).await.len(), 1);
    other.stop(Duration::from_secs(10)).await;
    wheel.shutdown(Duration::from_secs(10)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn amqps_connects_to_the_named_authority_alone() {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate =
        rcgen::CertificateParams::new(vec!["localhost".into()]).unwrap().self_signed(&key).unwrap();
    let broker = Broker::start_with(Some((&certificate.pem(), &key.serialize_pem())));
    let ca = broker.folder().join("cert.pem");
    let settings = BridgeSettings { url: broker.tls_url(), ca: Some(ca), ..broker.settings() };
    settings.check().unwrap();
    let step = async |settings: &BridgeSettings| {
        probe(&RabbitConnector::new(settings, &Policy::default()).unwrap()).await
    };
    crate::until("all steps succeed", async || {
        let steps = step(&settings).await;
        steps.len() == 3 && steps.iter().all(|step| step.ok == Some(true))
    })
    .await;
    let unknown = BridgeSettings { ca: None, ..settings };
    crate::until("the certificate is refused", async || {
        let steps = step(&unknown).await;
        steps.len() == 1 && steps[0].detail.contains("certificate")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn probe_says_what_is_missing() {
    let broker = Broker::start();
    let settings = broker.settings();
    let connector = RabbitConnector::new(&settings, &Policy::default()).unwrap();
    crate::until("all steps succeed", async || {
        let steps = probe(&connector).await;
        steps.len() == 3 && steps.iter().all(|step| step.ok == Some(true))
    })
    .await;
    let wrong =
        BridgeSettings { url: broker.url().replace("guest:guest", "guest:wrong"), ..settings.clone() };
    let steps = probe(&RabbitConnector::new(&wrong, &Policy::default()).unwrap()).await;
    assert!(steps.len() == 1 && steps[0].ok == Some(false), "{steps:?}");
    assert!(steps[0].detail.contains("ACCESS_REFUSED"), "{steps:?}");
    let plan = plan(&settings);
    assert_eq!(plan.definitions["bindings"][0]["destination"], "duewheel.shop");
    assert_eq!(plan.definitions["exchanges"][0]["type"], "fanout");
    assert_eq!(plan.definitions["exchanges"][1]["name"], "delayed.due");
}
