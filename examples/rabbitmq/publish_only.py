"""Publishes a message that is due in a second, and declares nothing, as it did with the plugin: publish_only.py PORT KEY BODY"""

import sys

import pika

port, routing_key, body = int(sys.argv[1]), sys.argv[2], sys.argv[3].encode()
connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
channel = connection.channel()
channel.confirm_delivery()
channel.basic_publish("delayed", routing_key, body, pika.BasicProperties("text/plain", headers={"x-delay": 1000, "order": "7"}))
connection.close()
