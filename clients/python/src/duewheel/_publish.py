"""How brokers of frameworks enqueue a task: under its id as the key, and never dropped."""

import uuid
from typing import Any

from ._messages import DEDUPE_WINDOW_MS, Outgoing
from .client import Client
from .errors import KeyExists, Leased

#: Attempts that never end, and the longest delay in seconds.
FOREVER = 4_294_967_295
DEFAULT_PRIORITY = 1024


def publish(client: Client, queue: str, key: str, fields: dict[str, Any], once: str | None = None) -> None:
    """Enqueues a message with the fields of `Outgoing`.

    Its key may be taken. A task that retries or replaces itself takes over the key of its own message, which a worker
    has leased. Any other message with the key is pending: then this one goes without a key, and only cannot be found by
    it. A publish that is repeated with the same `once` and content makes no second message.
    """
    once = once or uuid.uuid4().hex
    if not 1 <= len(key.encode()) <= 512:
        return _enqueue(client, queue, once, fields)
    try:
        _enqueue(client, queue, once, {**fields, "key": key})
    except (KeyExists, Leased) as error:
        if error.state == "leased":
            _enqueue(client, queue, once + "-s", {**fields, "key": key, "if_exists": "supersede"})
        else:
            _enqueue(client, queue, once + "-k", fields)


def _enqueue(client: Client, queue: str, once: str, fields: dict[str, Any]) -> None:
    message = Outgoing(max_attempts=FOREVER, dedupe_id=f"task-{once}", **fields)
    client.schedule(queue, message, {**message.fields(), "dedupe_window_ms": DEDUPE_WINDOW_MS})
