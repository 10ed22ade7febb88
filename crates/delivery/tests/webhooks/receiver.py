"""A receiver that checks signatures: v1 with the reference library of the specification, v1a with cryptography.

usage: receiver.py WHSEC WHSK COUNT    prints its port, and ends when it has taken COUNT requests
"""

import base64
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from standardwebhooks import Webhook, WebhookVerificationError

shared, private, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
webhook = Webhook(shared)
public = Ed25519PrivateKey.from_private_bytes(base64.b64decode(private.removeprefix("whsk_"))).public_key()
taken = 0


def check(headers, body):
    webhook.verify(body, headers, json_parse=False)
    try:
        webhook.verify(body + b"x", headers, json_parse=False)
        raise AssertionError("v1 holds for another body")
    except WebhookVerificationError:
        pass
    both = dict(each.split(",", 1) for each in headers["webhook-signature"].split(" "))
    assert set(both) == {"v1", "v1a"}, both
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    signature = base64.b64decode(both["v1a"], validate=True)
    public.verify(signature, signed)
    try:
        public.verify(signature, signed + b"x")
        raise AssertionError("v1a holds for another body")
    except InvalidSignature:
        pass
    assert headers["duewheel-h-customer"] == "7" and headers["duewheel-key"].startswith("order%20"), headers


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"  # a connection for each request

    def do_POST(self):
        global taken
        body = self.rfile.read(int(self.headers["content-length"]))
        try:
            check({name.lower(): value for name, value in self.headers.items()}, body)
            taken += 1
            self.send_response(204)
        except Exception as error:  # noqa: BLE001: the sender is told, and gives up
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            self.send_response(410)
        self.end_headers()

    def log_message(self, *_):
        pass



server = HTTPServer(("127.0.0.1", 0), Receiver)
print(server.server_port, flush=True)
while taken < count:
    server.handle_request()
print(f"python: {taken} requests, each with a valid v1 and v1a")
