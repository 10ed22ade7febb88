"""Publishes a message that is due in a second, and consumes it: with_pika.py PORT BODY"""

import json
import sys

import pika

port, body = int(sys.argv[1]), sys.argv[2].encode()
queue, routing_key = "from-pika", "pika"
channel = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)).channel()
channel.exchange_declare("delayed", exchange_type="fanout", durable=True)
channel.queue_declare(queue, durable=True)
channel.queue_bind(queue, "delayed.due", routing_key)
headers = {"x-delay": 1000, "order": "7"}
channel.basic_publish("delayed", routing_key, body, pika.BasicProperties("text/plain", headers=headers, message_id="pika-7"))
for method, properties, body in channel.consume(queue):
    channel.basic_ack(method.delivery_tag)
    got = {"body": body.decode(), "type": properties.content_type, "id": properties.message_id, **properties.headers}
    print(json.dumps(got))
    break
