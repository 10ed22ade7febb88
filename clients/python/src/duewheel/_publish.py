"""How brokers of frameworks enqueue a task: under its id as the key, and never dropped."""

import uuid
from contextlib import suppress
from typing import Any

from ._messages import Outgoing
from .client import Client
from .errors import DedupeMismatch, KeyExists, Leased

#: Attempts that never end, and the longest delay in seconds.
FOREVER = 4_294_967_295
DEFAULT_PRIORITY = 1024


def publish(client: Client, queue: str, key: str, fields: dict[str, Any], once: str | None = None) -> None:
    """Enqueues a message with the fields of `Outgoing`.

    Its key may be taken. A task that retries or replaces itself takes over the key of its own message, which a worker
    has leased. Any other message with the key is pending: then this one goes without a key, and only cannot be found by
    it. A publish that is repeated with the same `once` and content makes no second message.
    """
    message = Outgoing(max_attempts=FOREVER, dedupe_id=f"task-{once or uuid.uuid4().hex}", **fields)
    sent = {**message.fields(), "dedupe_window_ms": client._window_ms()}
    keyed = {"key": key} if 1 <= len(key.encode()) <= 512 else {}
    with suppress(DedupeMismatch):  # an earlier try with another key or none, whose answer was lost, has enqueued it
        try:
            client.schedule(queue, message, {**sent, **keyed})
        except (KeyExists, Leased) as error:
            taken = {**keyed, "if_exists": "supersede"} if error.state == "leased" else {}
            client.schedule(queue, message, {**sent, **taken})
