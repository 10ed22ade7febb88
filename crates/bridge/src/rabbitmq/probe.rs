//! A test of a bridge's two ways that no consumer notices.

use std::time::SystemTime;

use lapin::options::BasicPublishOptions;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Confirmation, Connection};

use super::connect::{RabbitConnector, confirming, short};
use crate::report::ProbeStep;
use crate::seam::SeamError;

/// Tests a bridge: connects, checks declarations and permissions, and sends a message each way. Into the bridge's queue
/// goes the cancel of a key that nobody has; to the exchange of due messages one that no queue is bound for, so that the
/// broker returns it.
///
/// # Cancel safety
/// Cancel safe.
pub async fn probe(to: &RabbitConnector) -> Vec<ProbeStep> {
    let settings = &to.settings;
    let connection = match to.connect("test").await {
        Ok(connection) => connection,
        Err(why) => return vec![step("connect", Err(why))],
    };
    let declared = format!(
        "queues {:?} and {:?} and exchange {:?} are there",
        settings.source(),
        settings.rejected(),
        settings.due_exchange()
    );
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let name = format!("duewheel-bridge-test-{}", now.as_nanos());
    let text = |text: &str| AMQPValue::LongString(text.into());
    let mut headers = FieldTable::default();
    headers.insert("x-duewheel-action".into(), text("cancel"));
    headers.insert("x-duewheel-key".into(), text(&name));
    let properties = BasicProperties::default().with_headers(headers);
    let source = settings.source();
    let taken = publish(&connection, "", &source, properties).await.and_then(|confirmed| match confirmed {
        Confirmation::Ack(None) => Ok(format!("the broker has put a message into queue {source:?}")),
        _ => Err(SeamError(format!("queue {source:?} does not take messages"))),
    });
    let mut steps = vec![step("connect", Ok(declared)), step("in", taken)];
    if matches!(&*settings.exchange_type, "fanout" | "headers") {
        let detail = format!(
            "left out: an exchange of type {} gives each message to consumers",
            settings.exchange_type
        );
        steps.push(ProbeStep { step: "out", ok: None, detail });
        return steps;
    }
    let due = settings.due_exchange();
    let sent = publish(&connection, &due, &name, BasicProperties::default()).await;
    let sent = sent.and_then(|confirmed| match confirmed {
        Confirmation::Ack(Some(_)) => {
            Ok(format!("exchange {due:?} takes messages, and returns those without a queue"))
        }
        Confirmation::Ack(None) => {
            Ok(format!("exchange {due:?} takes messages, and a queue takes those with any key"))
        }
        _ => Err(SeamError(format!("exchange {due:?} does not take messages"))),
    });
    steps.push(step("out", sent));
    steps
}

fn step(step: &'static str, ended: Result<String, SeamError>) -> ProbeStep {
    let ok = Some(ended.is_ok());
    ProbeStep { step, ok, detail: ended.unwrap_or_else(|why| why.0) }
}

async fn publish(
    connection: &Connection,
    exchange: &str,
    routing_key: &str,
    properties: BasicProperties,
) -> Result<Confirmation, SeamError> {
    let channel = confirming(connection).await?;
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    let failed = |why: lapin::Error| SeamError::of("publish", why);
    let publishing = channel.basic_publish(short(exchange), short(routing_key), options, b"", properties);
    publishing.await.map_err(failed)?.await.map_err(failed)
}
