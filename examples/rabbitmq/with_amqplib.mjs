// Publishes a message that is due in a second, and consumes it: with_amqplib.mjs PORT BODY
import amqp from "amqplib";

const [port, body] = process.argv.slice(2);
const [queue, routingKey] = ["from-amqplib", "amqplib"];
const connection = await amqp.connect(`amqp://127.0.0.1:${port}`);
const channel = await connection.createChannel();
await channel.assertExchange("delayed", "fanout", {durable: true});
await channel.assertQueue(queue, {durable: true});
await channel.bindQueue(queue, "delayed.due", routingKey);
const headers = {"x-delay": 1000, order: "7"};
channel.publish("delayed", routingKey, Buffer.from(body), {contentType: "text/plain", messageId: "amqplib-7", headers});
await channel.consume(queue, async (message) => {
  const {contentType, messageId, headers} = message.properties;
  console.log(JSON.stringify({body: message.content.toString(), type: contentType, id: messageId, ...headers}));
  channel.ack(message);
  await channel.close();
  await connection.close();
});
