"""A transport of kombu: Celery with duewheel as its broker, where `countdown` and `eta` are durable.

    broker_url = "duewheel://:TOKEN@host:7788/prefix"     # duewheels:// with TLS
    broker_transport = "duewheel.kombu:Transport"         # only where nothing imports duewheel

A task with an `eta` is a message that is due then, and no worker holds it before. Its key is the id of the task. The
path of the URL is a prefix of all names of queues. Bytes that a name of a queue cannot have are written `$XX`.

Transport options: `lease` (30 s) of messages, which is extended as long as they are unacked; `wait` (60 s) of one
reserve; `retry_for` (30 s), how long a call is repeated; `reconnect_for` (30 s), how long a consumer waits for a server
that is away before it reports a lost connection; `token`, in place of the one in the URL.

A token needs the scopes `enqueue`, `consume` and `cancel`. With `metrics` sizes of queues are known, and with `admin` a
purge is one call and also removes scheduled tasks.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import socket
import ssl
import threading
import time
import unicodedata
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timezone
from queue import Empty
from typing import Any

from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.json import dumps, loads

from . import __version__
from ._calls import queue_path
from ._leases import Fetcher, Keeper
from ._messages import Delivery, Message
from ._publish import DEFAULT_PRIORITY, FOREVER, publish
from .client import Client
from .errors import (BodyTooLarge, Draining, DuewheelError, Forbidden, GenerationMismatch, InUse, KeyExists, Leased,
                     MessageNotFound, NotFound, Overloaded, StorageUnavailable)

log = logging.getLogger("duewheel.kombu")

BINDINGS = "_kombu.bindings"
EXPIRIES = "_kombu.expiries"
FRESH = 1.0  # seconds that a table of bindings is taken from memory
KEEP = 15 * 60  # seconds that a queue with an end outlives a consumer that was killed
RENEW = 5 * 60
SWEEP = 60  # seconds after which a deleted queue is looked at again, for messages that were on their way
LARGE = 128 * 1024  # bytes of a message that is compressed
LARGEST = 64 * 1024 * 1024
ONCE = "duewheel-once"  # a property of a message that is not published yet: what its dedupe id is made of
BATCH = 100  # messages of one reserve without a prefetch count


def _allowed(char: str) -> bool:
    kind = unicodedata.category(char)
    return kind == "Nd" or kind[0] in "LM" or char in "+/;._():-"


def _written(char: str) -> str:
    return "".join(f"${byte:02X}" for byte in char.encode())


def queue_name(prefix: str, name: str) -> str:
    """The server's name of a queue: bytes that it cannot have are written `$XX`; one that is too long has a hash."""
    name = unicodedata.normalize("NFC", name)
    full = prefix + "".join(char if _allowed(char) else _written(char) for char in name)
    if full.startswith("-"):
        full = _written("-") + full[1:]
    if len(full.encode()) > 200:
        digest = hashlib.sha256(full.encode()).hexdigest()[:32]
        full = full.encode()[:160].decode("utf-8", "ignore") + "$_" + digest
    return full


def queue_prefix(virtual_host: str | None) -> str:
    """The prefix of all names: the path of the URL, and a dot unless it ends with a mark."""
    prefix = (virtual_host or "").strip("/")
    return prefix if not prefix or prefix[-1] in ".-_:/;" else prefix + "."


def due(headers: dict[str, Any]) -> str | None:
    """When a task is due, as RFC 3339; None at once."""
    at: Any = headers.get("eta")
    try:
        if isinstance(at, str):
            at = datetime.fromisoformat(at.replace("Z", "+00:00"))
        return (at if at.tzinfo else at.replace(tzinfo=timezone.utc)).isoformat()
    except (ValueError, AttributeError):
        return None  # there is none, or the worker looks at it once more


def text_of(message: Delivery | Message) -> str:
    """A message of kombu, which is compressed if it is large."""
    if message.headers.get("content-encoding") != "deflate":
        return message.text
    unpacked = zlib.decompressobj()
    text = unpacked.decompress(message.body, LARGEST)
    if unpacked.unconsumed_tail:
        raise ValueError(f"message {message.id} has more than {LARGEST} bytes when it is unpacked")
    return text.decode()


class Bindings:
    """Which queues are bound to an exchange. The table of an exchange is the body of a message that has the name of the
    exchange as its key, due in 136 years; it is changed under its generation. Queues with an end have a message as
    well, which is due when they end: whoever reserves it removes them."""

    def __init__(self, client: Client, prefix: str):
        self.client = client
        self.bindings, self.expiries = prefix + BINDINGS, prefix + EXPIRIES
        self._seen: dict[str, tuple[float, dict[str, Any]]] = {}
        self._refused = False

    def table(self, exchange: str, fresh: bool = False) -> dict[str, Any]:
        """The queues of an exchange: what is bound, their TTL, and whether they have an end."""
        at, table = self._seen.get(exchange, (0.0, {}))
        # A queue with an end may be a second old, and its consumer waits: those are not taken from memory.
        if not fresh and time.monotonic() - at < FRESH and not any(it.get("end") for it in table.values()):
            return table
        table = self._read(exchange)[1]
        self._seen[exchange] = time.monotonic(), table
        return table

    def _read(self, exchange: str) -> tuple[int | None, dict[str, Any]]:
        """The generation of a table, if it can be changed, and the table."""
        if not self._refused:
            try:
                message = self.client.get_key(self.bindings, exchange)
                return (message.generation if message.state in ("scheduled", "ready") else None), message.json()
            except MessageNotFound:
                pass
            except Forbidden:
                log.warning("the token lacks the scope cancel, so only this program's own bindings are known")
                self._refused = True
        return None, {}

    def bind(self, exchange: str, queue: str, key: str, pattern: str | None, ttl: int | None, end: bool) -> None:
        entry = {name: value for name, value in (("ttl", ttl), ("end", end)) if value}
        bound = [key, pattern]
        self._change(exchange, queue, lambda keys: keys if bound in keys else [*keys, bound], entry)

    def unbind(self, exchange: str, queue: str, routing_key: str | None = None) -> None:
        self._change(exchange, queue, lambda keys: [it for it in keys if routing_key not in (None, it[0])])

    def _change(self, exchange: str, queue: str, change: Callable[[list[Any]], list[Any]],
                entry: dict[str, Any] | None = None) -> None:
        """Changes the keys of a queue, and what else there is of it."""
        while True:
            generation, table = self._read(exchange)
            before = table.pop(queue, {})
            if keys := change(before.get("keys", [])):
                table[queue] = {**(before if entry is None else entry), "keys": keys}
            if self._refused or table.get(queue, {}) == before:
                break
            body = json.dumps(table, separators=(",", ":"))
            try:
                if generation is None:
                    self.client.enqueue(self.bindings, body, key=exchange, delay=FOREVER, max_attempts=FOREVER)
                else:
                    self.client.change_key(self.bindings, exchange, body=body, if_generation=generation)
                break
            except (GenerationMismatch, KeyExists, MessageNotFound):
                time.sleep(random.uniform(0.0, 0.05))
            except BodyTooLarge as error:
                raise BodyTooLarge(f"the exchange {exchange!r} has too many queues ({len(table)}): give groups of "
                                   "workers a prefix each, or raise --max-body", status=413,
                                   members=error.members) from error
        self._seen[exchange] = time.monotonic(), table

    def keep(self, queue: str, exchanges: Iterable[str], seconds: float) -> None:
        """The queue ends after that time, unless it is kept again before."""
        self.client.enqueue(self.expiries, json={"queue": queue, "exchanges": sorted(exchanges)}, delay=seconds,
                            key=queue_name("", queue), if_exists="supersede", max_attempts=FOREVER)

    def sweep(self, remove: Callable[[str], None]) -> None:
        """Removes queues that have ended."""
        with suppress(Forbidden):
            ended = self.client.reserve(self.expiries, 100, lease=60)
            for one in ended:
                what = one.json()
                for exchange in what["exchanges"]:
                    self.unbind(exchange, what["queue"])
                remove(what["queue"])
            self.client.ack_many(ended)


class QoS(virtual.QoS):
    """Counts what is unacked; the leases are the keeper's."""

    def ack(self, delivery_tag: str) -> None:
        self.channel.connection.keeper.ack(delivery_tag)
        super().ack(delivery_tag)
        self.channel.update()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        keeper = self.channel.connection.keeper
        if requeue:
            keeper.requeue([delivery_tag])
        else:
            keeper.nack([delivery_tag], dead=True, reason="rejected")
        keeper.flush()  # who gets from the queue next finds it there
        super().ack(delivery_tag)
        self.channel.update()

    def restore_unacked(self) -> list[Any]:
        self._flush()
        tags = list(self._delivered)
        self._delivered.clear()
        transport = self.channel.connection
        if transport is not None and os.getpid() == self.channel.pid:  # those of the parent are the parent's
            transport.keeper.requeue(tags)
        return []


class Channel(virtual.Channel):
    """A channel: consumers, and what they have not acked."""

    QoS = QoS
    supports_fanout = True
    prepare_queue_arguments = staticmethod(to_rabbitmq_queue_arguments)

    def __init__(self, connection: Transport, **kwargs: Any):
        super().__init__(connection, **kwargs)
        self.pid = os.getpid()
        self._no_ack: set[str] = set()
        self._own: set[str] = set()  # queues with an end that this channel has declared
        self._consumed: set[str] = set()
        self._fetcher: Fetcher | None = None
        self._inbox: deque[tuple[str, dict[str, Any]]] = deque()  # of which queue, and what is not delivered yet

    # -- producing

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> Any:
        # A publish that kombu or Celery repeats comes here with the same properties.
        message["properties"].setdefault(ONCE, uuid.uuid4().hex)
        result = super().basic_publish(message, exchange, routing_key, **kwargs)
        del message["properties"][ONCE]
        return result

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        headers, properties = message.get("headers") or {}, message.get("properties") or {}
        # The tag of a delivery is that of its lease; that of a publish would be another one in each try.
        stored = {name: value for name, value in properties.items() if name not in (ONCE, "delivery_tag")}
        due_at = due(headers)
        fields: dict[str, Any] = {
            "body": dumps({**message, "properties": stored}),
            "headers": {"content-type": "application/json"},
            "priority": DEFAULT_PRIORITY - self._get_message_priority(message),
            "due_at": due_at,
            "past": due_at and "fire",
            "expires_in": self._ttl(queue, properties),
        }
        key = ""
        if headers.get("task"):
            key, fields["headers"]["task"] = str(headers.get("id") or ""), str(headers["task"])
        if len(fields["body"]) > LARGE:
            # A chord with a thousand tasks has a message of 400 KiB, and the server takes 256.
            fields["body"] = zlib.compress(fields["body"].encode())
            fields["headers"]["content-encoding"] = "deflate"
        publish(self.connection.duewheel, self.connection.named(queue), key, fields, properties.get(ONCE))

    def _ttl(self, queue: str, properties: dict[str, Any]) -> float | None:
        """Seconds after which a message is of no use: the least of its own and its queue's, which are milliseconds."""
        ttl = self.connection.arguments.get(queue, {}).get("x-message-ttl", self.connection.ttls.get(queue))
        found = [it for it in (properties.get("expiration"), ttl or None) if it not in (None, "")]
        return min((max(int(float(it)), 1) / 1000 for it in found), default=None)

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        for _, _, queue in self.get_table(exchange):
            self._put(queue, message, **kwargs)

    # -- queues and exchanges

    def _new_queue(self, queue: str, arguments: Any = None, **options: Any) -> None:
        self.connection.arguments[queue] = arguments = dict(arguments or {})
        arguments["end"] = bool(options.get("auto_delete") or options.get("exclusive"))
        if self._ends(queue):
            self._own.add(queue)

    def _ends(self, queue: str) -> bool:
        arguments = self.connection.arguments.get(queue, {})
        return bool(arguments.get("end") or arguments.get("x-expires"))

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        ttl = self.connection.arguments.get(queue, {}).get("x-message-ttl")
        ends = self._ends(queue)
        if ends:
            self._renew(queue)
        self.connection.bindings.bind(exchange, queue, routing_key, pattern, int(ttl) if ttl else None, ends)

    def _renew(self, queue: str) -> None:
        exchanges = {it.exchange for it in self.state.queue_bindings(queue)}
        expires_ms = self.connection.arguments.get(queue, {}).get("x-expires", 0)
        self.connection.bindings.keep(queue, exchanges, max(expires_ms / 1000, KEEP))

    def renew(self) -> None:
        """Keeps the queues with an end, and binds them again if something has removed them."""
        for queue in list(self._own):
            self._renew(queue)
            for exchange, routing_key, arguments in list(self.state.queue_bindings(queue)):
                self._queue_bind(exchange, *self.typeof(exchange).prepare_bind(queue, exchange, routing_key, arguments))

    def get_table(self, exchange: str, fresh: bool = False) -> list[tuple[str, str | None, str]]:
        own = self.state.exchanges.get(exchange, {}).get("table", [])
        table = self.connection.bindings.table(exchange, fresh)
        found = [(key, pattern, queue) for queue, entry in table.items() for key, pattern in entry["keys"]]
        self.connection.ttls.update((queue, entry["ttl"]) for queue, entry in table.items() if entry.get("ttl"))
        # Where the shared table cannot be read, this program's own bindings hold; those of queues with an end may be
        # over.
        known = set(found)
        return found + [meta for meta in own if tuple(meta) not in known and not self._ends(meta[2])]

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        for fresh in (False, True) if exchange else ():  # it may have been bound within the last second
            table = self.get_table(exchange, fresh)
            found = list(self.typeof(exchange).lookup(table, exchange, routing_key, None))
            if found:
                return found
        return super()._lookup(exchange, routing_key, default)

    def queue_unbind(self, queue: str, exchange: str | None = None, routing_key: str = "", *args: Any,
                     **kwargs: Any) -> None:
        self.state.binding_delete(queue, exchange, routing_key)
        self._unbind(exchange, queue, routing_key)

    def _unbind(self, exchange: str | None, queue: str, routing_key: str | None = None) -> None:
        own = self.state.exchanges.get(exchange, {}).get("table", [])
        own[:] = [meta for meta in own if meta[2] != queue or routing_key not in (None, meta[0])]
        self.connection.bindings.unbind(exchange, queue, routing_key)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        if if_empty and self._size(queue):
            return
        exchanges = {it.exchange for it in self.state.queue_bindings(queue)}
        for exchange in exchanges:
            self._unbind(exchange, queue)
        self.state.queue_bindings_delete(queue)
        self._own.discard(queue)
        if self._ends(queue):
            # What was on its way to it while its binding was removed is removed then.
            self.connection.bindings.keep(queue, exchanges, SWEEP)
        self.connection.remove_queue(queue)

    def _counts(self, queue: str) -> dict[str, int] | None:
        """None if there is no such queue, and nothing if the token may not see it."""
        try:
            return self.connection.duewheel.queue(self.connection.named(queue))["counts"]
        except NotFound:
            return None
        except Forbidden:
            return {}

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return queue in self.connection.arguments or self._counts(queue) is not None

    def _size(self, queue: str) -> int:
        counts = self._counts(queue) or {}
        return counts.get("ready", 0) + counts.get("scheduled", 0)

    def _purge(self, queue: str) -> int:
        return self.connection.purge(queue)

    # -- consuming

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any) -> None:
        from .celery import extend_panel

        (self._no_ack.add if no_ack else self._no_ack.discard)(queue)
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        self._consumed.add(queue)
        extend_panel()
        transport = self.connection
        if queue in self._own:
            transport.keep_queues()
        if self._fetcher is None:
            self._fetcher = Fetcher(transport.keeper, transport.lease, transport.wait, transport.reconnect_for,
                                    self.wanted, self._take, transport.fail)
        self.update()

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            self._drop(queue)
        self.update()

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self.update()

    def update(self) -> None:
        """What the reserve asks for: the queues of the consumers, and as many messages as may be unacked."""
        if self._fetcher is not None:
            self._fetcher.update()

    def wanted(self) -> tuple[list[str], int]:
        """The queues of the consumers, and how many messages there is room for."""
        most = self.qos.can_consume_max_estimate()
        room = (BATCH if most is None else most) - len(self._inbox)
        return list(dict.fromkeys(self.connection.named(it) for it in self._active_queues)), max(room, 0)

    def _take(self, granted: list[Delivery]) -> None:
        transport = self.connection
        taken = [(transport.names[one.queue], payload) for one in granted if (payload := self._payload(one))]
        with transport.lock:
            self._inbox.extend(taken)
            # Nobody sweeps the inbox for a consumer that has been cancelled before.
            self._drop(*{queue for queue, _ in taken}.difference(self._active_queues))
        self.update()
        transport.wake()

    def _payload(self, delivery: Delivery) -> dict[str, Any] | None:
        """The message of kombu, and its lease is kept from now on. One that is none of kombu's is dead at once: it can
        be read there, and redriven."""
        tag = self.connection.keeper.add(delivery)
        try:
            payload = loads(text_of(delivery))
            if not isinstance(payload, dict) or "body" not in payload:
                raise ValueError("it has no body of kombu")
            properties, headers = (payload.get(name) or {} for name in ("properties", "headers"))
            if not isinstance(properties, dict) or not isinstance(headers, dict):
                raise ValueError("its properties and its headers are not both mappings")
            payload.update(properties=properties, headers=headers)
            info = properties.setdefault("delivery_info", {})
            info.setdefault("exchange", "")
            info.setdefault("routing_key", self.connection.names.get(delivery.queue, delivery.queue))
            at, now = due(headers), datetime.now(timezone.utc)
            if at is not None and datetime.fromisoformat(at) > now:
                # It is due by the server's clock, or somebody has fired it: the worker has nothing to wait for.
                headers["duewheel-eta"], headers["eta"] = headers["eta"], now.isoformat()
            if delivery.attempt > 1:
                payload["redelivered"] = headers["redelivered"] = info["redelivered"] = True
            properties["delivery_tag"] = tag
            self.Message(payload, channel=self)  # as it will be made for its consumer
            return payload
        except Exception as error:  # noqa: BLE001: whatever its content makes of it
            log.error("message %s of %s is not a task, and is dead now: %s", delivery.id, delivery.queue, error)
            self.connection.keeper.nack([tag], dead=True, reason=f"not a task: {error}")
            return None

    def _drop(self, *queues: str) -> None:
        """Gives back what was leased for queues that nobody consumes any more."""
        with self.connection.lock:
            dropped = [payload for queue, payload in self._inbox if queue in queues]
            self._inbox = deque(it for it in self._inbox if it[0] not in queues)
        self.connection.keeper.requeue(it["properties"]["delivery_tag"] for it in dropped)

    def deliver(self) -> int:
        """Calls the consumers with what is here now; how many messages those were."""
        transport, count = self.connection, 0
        for _ in range(len(self._inbox)):
            with transport.lock:
                if not self._inbox:
                    break
                queue, payload = self._inbox.popleft()
            tag = payload["properties"]["delivery_tag"]
            try:
                # A lease may have been lost while it waited here.
                if transport.keeper.holds(tag):
                    if queue in self._no_ack:
                        transport.keeper.ack(tag)
                    count += 1
                    transport._deliver(payload, queue)
            finally:
                self.update()
        return count

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        transport = self.connection
        while True:
            got = transport.duewheel.reserve(transport.named(queue), lease=transport.lease)
            if not got:
                raise Empty
            if got[0].late:
                transport.duewheel.ack(got[0])
            elif payload := self._payload(got[0]):
                return payload

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        message = super().basic_get(queue, no_ack=no_ack, **kwargs)
        if message is not None and no_ack:
            self.connection.keeper.ack(message.delivery_tag)
        return message

    def close(self) -> None:
        if self._fetcher is not None:
            self._fetcher.close()
            self._fetcher = None
            self._drop(*{queue for queue, _ in self._inbox})
            # A queue cannot be removed while its messages are leased.
            self.qos.restore_unacked_once()
            self.connection.keeper.flush()
            for queue in self._own & self._consumed:
                if self.connection.arguments.get(queue, {}).get("end"):
                    try:
                        self.queue_delete(queue)
                    except (DuewheelError, OSError) as error:
                        log.warning("the queue %r ends by itself: %s", queue, error)
        super().close()


class Transport(virtual.Transport):
    """duewheel over HTTP."""

    Channel = Channel
    default_port = 7788
    driver_type = "duewheel"
    driver_name = "duewheel"
    tls = False

    implements = virtual.Transport.implements.extend(asynchronous=True,
                                                     exchange_type=frozenset(["direct", "topic", "fanout"]))
    connection_errors = (*virtual.Transport.connection_errors, Draining, Overloaded, StorageUnavailable, OSError)
    channel_errors = (*virtual.Transport.channel_errors, DuewheelError)
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors = ()

    def __init__(self, client: Any, **kwargs: Any):
        super().__init__(client, **kwargs)
        options = client.transport_options
        host = client.hostname or "localhost"
        address = f"[{host}]" if ":" in host else host
        scheme = "https" if self.tls or client.ssl else "http"
        self.prefix = queue_prefix(client.virtual_host)
        self.lease = max(float(options.get("lease", 30)), 0.001)
        self.wait = float(options.get("wait", 60))
        self.reconnect_for = float(options.get("reconnect_for", 30))
        self.duewheel = Client(f"{scheme}://{address}:{client.port or self.default_port}",
                               token=options.get("token") or client.password or None,
                               timeout=max(float(client.connect_timeout or 0), 10.0),
                               retry_for=float(options.get("retry_for", 30)),
                               ssl_context=_context(client.ssl) if scheme == "https" else None)
        self.keeper = Keeper(self.duewheel)
        self.bindings = Bindings(self.duewheel, self.prefix)
        self.arguments: dict[str, dict[str, Any]] = {}
        self.ttls: dict[str, int] = {}
        self.lock = threading.RLock()  # of the inboxes
        self.names: dict[str, str] = {}  # of queues, by those of the server
        self._error: Exception | None = None
        self._hub: Any = None
        self._keeping = False

    # -- names

    def named(self, queue: str) -> str:
        """The server's name of a queue."""
        name = queue_name(self.prefix, queue)
        self.names[name] = queue
        return name

    # -- queues

    def purge(self, queue: str) -> int:
        """Removes what is pending: with the scope `admin` all of it, else what is due."""
        name, count = self.named(queue), 0
        with suppress(NotFound):
            try:
                return self.duewheel.purge(name)
            except Forbidden:
                while got := self.duewheel.reserve(name, 1000):
                    self.duewheel.ack_many(got)
                    count += len(got)
        return count

    def remove_queue(self, queue: str) -> None:
        with suppress(NotFound):
            try:
                self.duewheel.request("DELETE", queue_path(self.named(queue)))
            except (Leased, InUse, Forbidden):
                self.purge(queue)

    def keep_queues(self) -> None:
        """Renews the queues with an end from now on, and removes those that have ended."""
        if not self._keeping:
            self._keeping = True
            self.keeper.every(RENEW, self._renew)
            self.bindings.sweep(self.remove_queue)

    def _renew(self) -> None:
        for channel in list(self.channels):
            channel.renew()
        self.bindings.sweep(self.remove_queue)

    # -- consuming

    def fail(self, error: Exception) -> None:
        self._error = error
        self.wake()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Delivers everything that has arrived, and waits for it at most that long. Raises socket.timeout."""
        end = time.monotonic() + (timeout or 0)
        while not self._deliver_all():
            self._woken.settimeout(None if timeout is None else max(end - time.monotonic(), 0.001))
            self._woken.recv(4096)

    def _deliver_all(self) -> int:
        error, self._error = self._error, None
        if error is not None:
            raise error
        return sum(channel.deliver() for channel in list(self.channels) if not channel.closed)

    # -- the event loop

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        self._hub = loop
        loop.add_reader(self._woken, self._on_woken)
        self.wake()

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        self._hub = None
        with suppress(KeyError, ValueError, OSError):
            loop.remove_reader(self._woken)

    def wake(self) -> None:
        """Something has come."""
        with suppress(OSError):  # full: it is awake; closed: it needs nothing
            self._wake.send(b".")

    def _on_woken(self) -> None:
        self._woken.setblocking(False)
        with suppress(OSError):
            self._woken.recv(4096)
        self._deliver_all()

    # -- the connection

    def establish_connection(self) -> Transport:
        # One call says whether there is a server that takes the token.
        self.duewheel.check()
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        if self._hub is not None:
            self.unregister_from_event_loop(connection, self._hub)
        self._woken.close()
        self._wake.close()
        # What it cannot settle now it settles as soon as the server is back.
        self.keeper.close()
        self.keeper = Keeper(self.duewheel)
        self._keeping = False
        self.duewheel.close()

    def driver_version(self) -> str:
        return __version__


class TLSTransport(Transport):
    """duewheel over HTTPS."""

    tls = True


def _context(options: Any) -> ssl.SSLContext:
    """`broker_use_ssl`: True, or a dict with ca_certs, certfile, keyfile and cert_reqs."""
    options = {name.removeprefix("ssl_"): it for name, it in options.items()} if isinstance(options, dict) else {}
    context = ssl.create_default_context(cafile=options.get("ca_certs"))
    if options.get("certfile"):
        context.load_cert_chain(options["certfile"], options.get("keyfile"))
    if options.get("cert_reqs") in (ssl.CERT_NONE, "none", "CERT_NONE"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
