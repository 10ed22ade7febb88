//! The declarations that replace the delayed-message plugin.

use serde_json::{Value, json};

use crate::report::{BridgePlan, PlannedChange};
use crate::settings::BridgeSettings;

/// Returns the plan of a bridge.
pub fn plan(settings: &BridgeSettings) -> BridgePlan {
    let BridgeSettings { exchange, exchange_type, .. } = settings;
    let (source, rejected, due) = (settings.source(), settings.rejected(), settings.due_exchange());
    let vhost = super::connect::address(settings).map_or_else(|_| "/".to_owned(), |uri| uri.vhost);
    let one = |name: &str, kind: &str| {
        json!({"name": name, "vhost": vhost, "type": kind, "durable": true, "auto_delete": false,
            "internal": false, "arguments": {}})
    };
    let mut arguments = json!({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": rejected});
    if settings.quorum {
        arguments["x-queue-type"] = "quorum".into();
        arguments["x-dead-letter-strategy"] = "at-least-once".into();
        arguments["x-overflow"] = "reject-publish".into();
    }
    let queue = |name: &str, arguments: Value| json!({"name": name, "vhost": vhost, "durable": true, "auto_delete": false, "arguments": arguments});
    let definitions = json!({
        "exchanges": [one(exchange, "fanout"), one(&due, exchange_type)],
        "queues": [queue(&source, arguments), queue(&rejected, json!({}))],
        "bindings": [{"source": exchange, "vhost": vhost, "destination": source, "destination_type": "queue",
            "routing_key": "", "arguments": {}}],
    });
    let steps = vec![
        format!("The bridge declares the queues {source} and {rejected} and the exchange {due} ({exchange_type}) itself when it starts."),
        format!("Bind each queue that is bound to {exchange} to {due} as well, with the same routing keys; rabbitmqctl list_bindings has them."),
        format!("Stop publishers, or let them wait, and wait until the plugin holds no message of {exchange}: it does not give them out."),
        format!("rabbitmqadmin delete exchange name={exchange}"),
        format!("rabbitmqadmin declare exchange name={exchange} type=fanout durable=true"),
        format!("rabbitmqadmin declare binding source={exchange} destination={source}"),
        "Start publishers again. Those that only publish need no change; those that declare the exchange change the lines below.".to_owned(),
    ];
    let programs = vec![
        PlannedChange {
            library: "pika",
            declare: format!(
                "channel.exchange_declare({exchange:?}, exchange_type=\"fanout\", durable=True)"
            ),
            bind: format!("channel.queue_bind(queue, {due:?}, routing_key)"),
        },
        PlannedChange {
            library: "amqplib",
            declare: format!("await channel.assertExchange({exchange:?}, \"fanout\", {{durable: true}});"),
            bind: format!("await channel.bindQueue(queue, {due:?}, routingKey);"),
        },
        PlannedChange {
            library: "Java",
            declare: format!("channel.exchangeDeclare({exchange:?}, \"fanout\", true);"),
            bind: format!("channel.queueBind(queue, {due:?}, routingKey);"),
        },
    ];
    BridgePlan { definitions, steps, programs }
}
