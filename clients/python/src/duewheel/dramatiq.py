"""A broker of Dramatiq, whose delays are durable.

    import dramatiq
    from duewheel.dramatiq import DuewheelBroker

    dramatiq.set_broker(DuewheelBroker("http://localhost:7788", prefix="shop."))

A message with a delay waits in the server, not in a worker: `send_with_options(delay=…)`, and the backoff of retries.
Its key is its message id. The priority of its actor is also that of the server, and `broker_priority` (higher first),
as RabbitMQ's broker knows it, comes on top. A message that Dramatiq gives up is dead, and can be redriven.
"""

import math
import queue as queues
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from dramatiq.broker import Broker, Consumer, MessageProxy
from dramatiq.common import dq_name
from dramatiq.errors import ActorNotFound, ConnectionClosed, QueueJoinTimeout, QueueNotFound
from dramatiq.message import Message
from dramatiq.middleware import Middleware

from ._leases import Fetcher, Keeper, tag_of
from ._messages import Delivery
from ._publish import DEFAULT_PRIORITY, publish
from .client import Client
from .errors import Forbidden, Leased, MessageNotFound, NotFound

HIGHEST = 4_294_967_295
PATIENCE = 30.0  # seconds that a consumer waits for a server that is away before Dramatiq is given an error


class DuewheelBroker(Broker):
    """`client` is an address or a `Client`; without one, the environment says where the server is. `prefix` is put
    before the names of queues; `lease` are the seconds of a lease, which is extended as long as a worker has the
    message."""

    def __init__(self, client: Client | str | None = None, *, prefix: str = "", token: str | None = None,
                 lease: float = 30.0, middleware: list[Middleware] | None = None):
        super().__init__(middleware=middleware)
        self.client = client if isinstance(client, Client) else Client(client, token=token)
        self.prefix = prefix
        self.lease = max(lease, 0.001)
        self.queues: set[str] = set()
        # Not of a consumer: Dramatiq replaces those after an error, and the messages under way go on.
        self.keeper = Keeper(self.client)

    def named(self, queue_name: str) -> str:
        """The server's name of a queue."""
        return self.prefix + queue_name

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> Consumer:
        """A consumer, which waits up to `timeout` milliseconds for its next message."""
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        return _Consumer(self, queue_name, prefetch, timeout)

    def declare_queue(self, queue_name: str) -> None:
        """Makes a queue known to this program. The server needs no declaration, and delays no queue of their own."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: Message, *, delay: int | None = None) -> Message:
        """Enqueues a message, due after `delay` milliseconds. When it returns, the message is durable."""
        queue_name = message.queue_name
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        self.emit_before("enqueue", message, delay)
        publish(self.client, self.named(queue_name), message.message_id, {
            "body": message.encode(),
            "headers": {"actor": message.actor_name},
            "priority": min(max(DEFAULT_PRIORITY + self._priority(message), 0), HIGHEST),
            "delay": max(delay or 0, 0) / 1000,
        })
        self.emit_after("enqueue", message, delay)
        return message

    def _priority(self, message: Message) -> int:
        try:
            own = self.get_actor(message.actor_name).priority
        except ActorNotFound:
            own = 0
        return int(own) - int(message.options.get("broker_priority") or 0)

    def get_declared_queues(self) -> set[str]:
        """The queues that this program knows."""
        return self.queues.copy()

    def get_declared_delay_queues(self) -> set[str]:
        """None: messages wait in their own queue."""
        return set()

    def cancel(self, message: Message) -> bool:
        """Takes a message back. True: it never runs. False: it is gone, or a worker has it."""
        with suppress(MessageNotFound, Leased):
            self.client.cancel_key(self.named(message.queue_name), message.message_id)
            return True
        return False

    def flush(self, queue_name: str) -> None:
        """Drops what waits in a queue: with a token, that of the scope `admin`."""
        with suppress(NotFound):
            self.client.purge(self.named(queue_name))

    def flush_all(self) -> None:
        """Drops what waits in all declared queues."""
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Waits until nothing is pending in a queue, delayed messages included; for tests."""
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        end = math.inf if timeout is None else time.monotonic() + timeout / 1000
        with suppress(NotFound):
            while True:
                counts = self.client.queue(self.named(queue_name))["counts"]
                if counts["scheduled"] + counts["ready"] + counts["leased"] == 0:
                    return
                if time.monotonic() >= end:
                    raise QueueJoinTimeout(queue_name)
                time.sleep(interval / 1000)

    def close(self) -> None:
        """Settles what is left, and closes the connections."""
        self.keeper.close()
        self.keeper = Keeper(self.client)
        self.client.close()


class _Consumer(Consumer):
    def __init__(self, broker: DuewheelBroker, queue_name: str, prefetch: int, timeout: int):
        self.broker, self.queue_name, self.prefetch, self.timeout = broker, queue_name, max(prefetch, 1), timeout
        self.keeper = broker.keeper
        self.inbox: queues.Queue[Delivery | Exception] = queues.Queue()
        self.held: set[str] = set()
        self.fetcher = Fetcher(self.keeper, broker.lease, 60.0, PATIENCE, self._wanted, self._take, self.inbox.put)
        self.fetcher.update()

    def _take(self, granted: list[Delivery]) -> None:
        for one in granted:
            self.held.add(self.keeper.add(one))
            self.inbox.put(one)
        self.fetcher.update()

    def _wanted(self) -> tuple[list[str], int]:
        return [self.broker.named(self.queue_name)], max(self.prefetch - len(self.held), 0)

    def _settled(self, *tags: str) -> None:
        self.held.difference_update(tags)
        self.fetcher.update()

    def ack(self, message: Any) -> None:
        self.keeper.ack(message.tag)
        self._settled(message.tag)

    def nack(self, message: Any) -> None:
        self._bury(message.tag, "rejected")

    def _bury(self, tag: str, reason: str) -> None:
        self.keeper.nack([tag], dead=True, reason=reason)
        self._settled(tag)

    def requeue(self, messages: Iterable[Any]) -> None:
        tags = [message.tag for message in messages]
        self.keeper.requeue(tags)
        self._settled(*tags)

    def __next__(self) -> MessageProxy | None:
        while True:
            try:
                got = self.inbox.get(timeout=self.timeout / 1000)
            except queues.Empty:
                return None
            if isinstance(got, Exception):
                raise got if isinstance(got, Forbidden) else ConnectionClosed(got)
            tag = tag_of(got)
            if not self.keeper.holds(tag):
                self._settled(tag)  # its lease was lost while it waited here
                continue
            try:
                message = Message.decode(got.body)
                if message.queue_name == dq_name(self.queue_name) or message.options.get("eta") is not None:
                    # Of another broker's queue of delays: it is due.
                    message = message.copy(queue_name=self.queue_name, options={"eta": None})
                proxy = MessageProxy(message)
            except Exception as error:  # noqa: BLE001: whatever its content makes of it
                self._bury(tag, f"cannot be decoded: {error}")
                continue
            proxy.tag = tag
            return proxy

    def close(self) -> None:
        self.fetcher.close()
        while not self.inbox.empty():
            got = self.inbox.get_nowait()
            if isinstance(got, Delivery):
                self.keeper.requeue([tag_of(got)])
        self.keeper.flush()
