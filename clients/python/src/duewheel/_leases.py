"""Leases that a broker's transport holds: a thread extends and settles them, another one waits for new ones.

They go on while the program's own thread works on a task, so that a message that was leased ahead keeps its lease.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from ._calls import Delivery, Request, ack_fields, decode, extend_fields, nack_fields, passing, problem
from ._extending import Lease, due_leases, log, lost_leases, report, until_due
from ._http import request_bytes
from .client import Client, Connection
from .errors import BadAnswer, BadRequest, ConnectionFailed, DuewheelError

PATIENCE = 10.0  # seconds for what is left to settle when a keeper is closed
QUEUES = 100  # of one reserve


def tag_of(delivery: Delivery) -> str:
    """The name of a lease: a message that comes again has another one."""
    return f"{delivery.id}.{delivery.lease_token}"


_late: set[Keeper] = set()  # closed, and not everything is settled


@atexit.register
def _flush_late() -> None:
    for keeper in list(_late):
        if keeper._pid == os.getpid():
            keeper.flush()


class Keeper:
    """Extends leases at half their time, and settles messages in batches, each until it is answered."""

    def __init__(self, client: Client):
        self.client = client
        self._leases: dict[str, Lease] = {}
        self._settles: list[dict[str, Any]] = []
        self._sending = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._closed = False
        self._ended = threading.Event()

    def add(self, delivery: Delivery) -> str:
        """Holds a lease from now on; its tag."""
        tag = tag_of(delivery)
        with self._changed:
            self._leases[tag] = Lease(delivery)
            if not self._closed:
                self._start()
        return tag

    def holds(self, tag: str) -> bool:
        return tag in self._leases

    def every(self, seconds: float, function: Callable[[], None]) -> None:
        """Calls a function again and again, first after that time, in a thread of its own: its calls may take long, and
        leases do not wait."""

        def run() -> None:
            while not self._ended.wait(seconds):
                try:
                    function()
                except (DuewheelError, OSError) as error:
                    log.warning("%s", error)

        threading.Thread(target=run, name="duewheel-upkeep", daemon=True).start()

    def ack(self, tag: str) -> None:
        """The message is done; it is settled within moments."""
        with self._changed:
            lease = self._leases.pop(tag, None)
            if lease is None:
                return
            self._settles.append(ack_fields(lease.delivery))
            if os.getpid() == self._pid and not self._closed:
                self._start()
                return
        self.flush()  # a process that was forked, or one that ends, has no thread for it

    def nack(self, tags: Iterable[str], **how: Any) -> None:
        """Nacks messages, and returns when that is done."""
        with self._changed:
            leases = [self._leases.pop(tag) for tag in list(tags) if tag in self._leases]
        self._nack([it.delivery for it in leases], **how)

    def requeue(self, tags: Iterable[str]) -> None:
        """Gives messages back that were not worked on."""
        self.nack(tags, delay=0, attempt=False)

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        """Gives back what it has never held."""
        self._nack(list(deliveries), delay=0, attempt=False)

    def _nack(self, deliveries: list[Delivery], **how: Any) -> None:
        if deliveries:
            # As long as any call, not until it is answered: leases end by themselves.
            results = self.client.settle_many("nack", [nack_fields(one, **how) for one in deliveries])
            for one, result in zip(deliveries, results):
                report(f"message {one.id}", result)

    def flush(self) -> None:
        """Returns when everything is settled, or patience ends."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            with self._changed:
                batch, self._settles = self._settles, []
            if batch:
                self._send(batch)
            elif self._sending:
                time.sleep(0.002)
            else:
                return

    def close(self) -> None:
        """Settles what is left, and ends the thread. If the server is away for longer than patience, the thread goes on
        until everything is settled: a broker's connection ends then, but its work is done."""
        self._ended.set()
        with self._changed:
            self._closed = True
            self._leases.clear()
            self._changed.notify_all()
        if os.getpid() != self._pid:
            return
        self.flush()
        with self._changed:
            if self._settles or self._sending:
                log.warning("%d messages are settled when the server is back", len(self._settles))
                _late.add(self)
                self._start()

    def _start(self) -> None:
        if (self._thread is None or not self._thread.is_alive()) and os.getpid() == self._pid:
            self._thread = threading.Thread(target=self._run, name="duewheel-leases", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and not self._settles:
                    seconds = until_due(self._leases.values())
                    if seconds == 0.0:
                        break
                    self._changed.wait(seconds)
                if self._closed and not self._settles:
                    _late.discard(self)
                    return
                batch, self._settles = self._settles, []
                self._sending = bool(batch)
            try:
                if batch:
                    self._send(batch)
            finally:
                self._sending = False
            self._extend()

    def _send(self, batch: list[dict[str, Any]]) -> None:
        failed: DuewheelError | None = None
        try:
            results = self.client.settle_many("ack", batch, 1.0)
        except DuewheelError as error:
            failed = None if isinstance(error, BadRequest) else error
            results = [error] * len(batch)
        again = []
        for item, result in zip(batch, results):
            if failed is not None or (isinstance(result, DuewheelError) and passing(result.status, True)):
                again.append(item)
            else:
                report(f"message {item['id']}", result)
        if again:
            log.warning("%d acks are not answered, trying again: %s", len(again), failed or "they are refused for the moment")
            with self._changed:
                self._settles[:0] = again
            time.sleep(0.2)

    def _extend(self) -> None:
        with self._changed:
            due = due_leases(self._leases.values())
        if not due:
            return
        try:
            results = self.client.settle_many("extend", [extend_fields(lease.delivery) for lease in due], 1.0)
        except DuewheelError as error:
            log.warning("%d leases cannot be extended, trying again: %s", len(due), error)
            results = [error] * len(due)
        for lease in lost_leases(due, results):
            with self._changed:
                held = self._leases.pop(tag_of(lease.delivery), None)
            if held is not None:
                log.warning("the lease of message %s of %s is lost; another worker may have it", lease.delivery.id, lease.delivery.queue)


class Fetcher:
    """Waits in one reserve over its queues, in a thread. `wanted` says which they are and how many messages there is
    room for, and `update` that it has changed; a reserve that does not fit any more is ended, and nothing that it has
    leased is lost."""

    def __init__(self, keeper: Keeper, lease_ms: int, wait: float, patience: float, wanted: Callable[[], tuple[Iterable[str], int]],
                 deliver: Callable[[list[Delivery]], None], fail: Callable[[Exception], None]):
        self.keeper, self.client = keeper, keeper.client
        self.lease_ms, self.wait, self.patience = lease_ms, wait, patience
        self.wanted, self.deliver, self.fail = wanted, deliver, fail
        self._changed = threading.Condition()
        self._queues: tuple[str, ...] = ()
        self._room = 0
        self._closed = False
        self._connection: Connection | None = None
        self._asked: tuple[tuple[str, ...], int] | None = None  # what is under way
        self._thread: threading.Thread | None = None
        self._turn = 0

    def update(self) -> None:
        with self._changed:
            if self._closed:
                return
            # Under the lock: of two threads that have made room the later one also sees that of the other.
            queues, room = self.wanted()
            self._queues, self._room = tuple(queues), room
            if self._asked is not None and (self._asked[0] != self._queues or self._asked[1] > room):
                self._interrupt()
            self._changed.notify_all()
            if self._queues and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="duewheel-reserve", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Ends the reserve that waits; what it has leased is given back."""
        with self._changed:
            self._closed = True
            self._queues = ()
            self._interrupt()
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(PATIENCE)

    def _interrupt(self) -> None:
        # Half of the connection: the answer may be on its way.
        if self._connection is not None:
            try:
                # That of an SSLSocket would take the rest of the answer for plain text.
                socket.socket.shutdown(self._connection.sock, socket.SHUT_WR)
            except OSError:
                pass

    def _run(self) -> None:
        failing_since: float | None = None
        said = float("-inf")
        while True:
            with self._changed:
                while not self._closed and (not self._queues or self._room < 1):
                    self._changed.wait()
                if self._closed:
                    self._disconnect()
                    return
                wanted, room = self._queues, self._room
            try:
                granted = self._reserve(wanted, room)
                failing_since = None
            except DuewheelError as error:
                again = isinstance(error, (BadAnswer, ConnectionFailed)) or error.status == 429 or error.status >= 500
                failing_since = failing_since or time.monotonic()
                if not again or time.monotonic() - failing_since > self.patience:
                    failing_since = None
                    self.fail(error)
                    again = False
                if time.monotonic() - said > 10:
                    said = time.monotonic()
                    log.warning("no messages can be leased%s: %s", ", trying again" if again else "", error)
                with self._changed:
                    if not self._closed:
                        self._changed.wait(max(error.retry_after or 0, 0.5))
                continue
            with self._changed:
                kept = [it for it in granted if it.queue in self._queues and not it.late]
                lost = [it for it in granted if it.queue not in self._queues and not it.late]
                # Before the next look at the room, which `deliver` updates.
                self._room -= len(kept)
            if kept:
                try:
                    self.deliver(kept)
                except Exception:  # noqa: BLE001: the messages come again after their leases, and others are leased
                    log.exception("%d messages cannot be delivered", len(kept))
            for one in granted:
                if one.late:  # it has expired while it waited
                    self.keeper.ack(self.keeper.add(one))
            try:
                self.keeper.give_back(lost)
            except DuewheelError as error:
                log.warning("messages that nobody asks for any more come again after their lease: %s", error)

    def _reserve(self, queues: tuple[str, ...], room: int) -> list[Delivery]:
        asked, wait = queues, self.wait
        if len(queues) > QUEUES:  # they take turns
            self._turn = (self._turn + QUEUES) % len(queues)
            asked, wait = (queues * 2)[self._turn : self._turn + QUEUES], 0.5
        fields = {"queues": [{"queue": name} for name in asked], "max": room, "wait_ms": int(wait * 1000), "lease_ms": self.lease_ms}
        request = Request.json("POST", "/v1/reserve", fields)
        data = request_bytes(self.client.address, request.method, request.path, request.body)
        try:
            connection = self._connection
            if connection is None or not connection.good():
                self._disconnect()
                connection = self.client.connect()
            with self._changed:
                if self._queues != queues or self._room < room:
                    self._connection = connection
                    return []
                self._connection, self._asked = connection, (queues, room)
            try:
                answer = connection.exchange(data, wait + self.client.timeout)
            finally:
                with self._changed:
                    interrupted = self._queues != queues or self._room < room
                    self._asked = None
            if interrupted or not answer.keep_alive:
                self._disconnect()
        except OSError as error:
            kept = self._connection is not None and not self._connection.parser.begun and self._connection.used > self._connection.made
            self._disconnect()
            if (kept and isinstance(error, ConnectionError)) or self._queues != queues or self._room < room:
                return []  # the server has ended a kept connection, or `update` has ended the reserve
            raise ConnectionFailed(f"{type(error).__name__}: {error}") from error
        except BadAnswer:
            self._disconnect()
            raise
        if answer.status != 200:
            raise problem(answer)
        try:
            return [Delivery.read(one) for one in decode(answer)["messages"]]
        except (KeyError, TypeError, ValueError) as error:
            raise BadAnswer(f"the answer to a reserve lacks {error}", status=answer.status) from error

    def _disconnect(self) -> None:
        with self._changed:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
