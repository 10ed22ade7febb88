"""Leases that a worker or a broker's transport holds: threads extend and settle them, and one waits for new ones.

They go on while the program's own thread works on a task, so that a message that was leased ahead keeps its lease.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ._calls import backoff, passing, reserve_request
from ._http import Request
from ._messages import Delivery, Duration, ack_fields, extend_fields, nack_fields
from .client import Client
from .errors import BadAnswer, BadRequest, BodyTooLarge, ConnectionFailed, DuewheelError, LeaseLost, MessageNotFound

log = logging.getLogger("duewheel.leases")

PATIENCE = 10.0  # seconds for what is left to settle when a keeper is closed
QUEUES, GRANTS = 100, 10_000  # of one reserve
GONE = (LeaseLost, MessageNotFound)
NO_ANSWER = (BadAnswer, ConnectionFailed)  # of duewheel
REFUSED = (BadRequest, BodyTooLarge)
REFUSABLE = {"delay", "delay_ms", "result"}  # what a settle does without if the server refuses it


def tag_of(delivery: Delivery) -> str:
    """The name of a lease: a message that comes again has another one."""
    return f"{delivery.id}.{delivery.lease_token}"


class _Lease:
    """A lease, when it ends, and when it is to be extended: at half its time."""

    def __init__(self, delivery: Delivery):
        self.delivery, self.half = delivery, delivery.lease_ms / 2000
        self.begin()

    def begin(self) -> None:
        self.extend_at = time.monotonic() + self.half
        self.ends = self.extend_at + self.half


@dataclass
class _Settle:
    verb: str
    fields: dict[str, Any]
    at: float = 0.0  # not before
    tries: int = 0


_keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()


@atexit.register
def _flush() -> None:
    for keeper in list(_keepers):
        keeper.flush()


class Keeper:
    """Extends leases at half their time, and settles messages in batches, each until it is answered. `lost` is called
    with the tag of a lease that is over before that, once."""

    def __init__(self, client: Client, lost: Callable[[str], None] = lambda tag: None):
        self.client, self.lost = client, lost
        self._leases: dict[str, _Lease] = {}
        self._settles: list[_Settle] = []
        self._threads: dict[str, threading.Thread] = {}
        self._sending, self._pid = False, os.getpid()
        self._changed, self._closed = threading.Condition(), threading.Event()
        _keepers.add(self)

    def add(self, delivery: Delivery) -> str:
        """Holds a lease from now on; its tag."""
        tag = tag_of(delivery)
        with self._changed:
            self._leases[tag] = _Lease(delivery)
            if not self._closed.is_set():
                self._start("leases", self._extending)
        return tag

    def holds(self, tag: str) -> bool:
        """Whether the lease of a message that nobody works on is still there; a lost one is forgotten."""
        if (one := self._leases.get(tag)) and one.extend_at == math.inf:
            self.requeue([tag])
        return tag in self._leases

    def every(self, seconds: float, function: Callable[[], None]) -> None:
        """Calls a function again and again, first after that time, in a thread of its own: its calls may take long, and
        leases do not wait."""

        def run() -> None:
            while not self._closed.wait(seconds):
                try:
                    function()
                except (DuewheelError, OSError) as error:
                    log.warning("%s", error)

        threading.Thread(target=run, name="duewheel-upkeep", daemon=True).start()

    def ack(self, tag: str, result: Any = None) -> None:
        """The message is done; it is settled within moments."""
        self._settle("ack", [tag], lambda delivery: ack_fields(delivery, result))

    def nack(self, tags: Iterable[str], **how: Any) -> None:
        """The messages are not done; they are settled within moments."""
        self._settle("nack", tags, lambda delivery: nack_fields(delivery, **how))

    def requeue(self, tags: Iterable[str]) -> None:
        """Gives messages back that were not worked on."""
        self.nack(tags, delay=0, attempt=False)

    def _settle(self, verb: str, tags: Iterable[str], fields: Callable[[Delivery], dict[str, Any]]) -> None:
        with self._changed:
            held = {tag: self._leases[tag] for tag in tags if tag in self._leases}
            # Of a lost lease only the end of the work may still count.
            self._settles += [_Settle(verb, fields(one.delivery)) for one in held.values()
                              if verb == "ack" or one.extend_at < math.inf]
            for tag in held:
                del self._leases[tag]
            if os.getpid() == self._pid:
                self._start("settles", self._settling)
                return
        while batch := self._ready():  # a process that was forked has no thread for it
            self._send(batch)

    def flush(self) -> None:
        """Returns when everything is settled, or patience ends."""
        with self._changed:
            # Of a process that was forked, what is here is its parent's.
            if os.getpid() == self._pid:
                self._changed.wait_for(lambda: not self._settles and not self._sending, PATIENCE)

    def close(self) -> None:
        """Settles what is left, and ends the threads. If the server is away for longer than patience, one goes on until
        everything is settled: a broker's connection ends then, but its work is done."""
        with self._changed:
            self._closed.set()
            self._leases.clear()
            self._changed.notify_all()
        self.flush()
        if self._settles:
            log.warning("%d messages are settled when the server is back", len(self._settles))

    def _start(self, name: str, run: Callable[[], None]) -> None:
        thread = self._threads.get(name)
        if (thread is None or not thread.is_alive()) and os.getpid() == self._pid:
            self._threads[name] = threading.Thread(target=run, name=f"duewheel-{name}", daemon=True)
            self._threads[name].start()
        self._changed.notify_all()

    def _wait_until(self, times: Iterable[float]) -> None:
        """Waits for the first of these times, or a change."""
        first = min(times, default=math.inf) - time.monotonic()
        self._changed.wait(min(max(first, 0.0), threading.TIMEOUT_MAX))

    def _ready(self) -> list[_Settle]:
        """Takes what is to be settled now, in one call."""
        now = time.monotonic()
        verb = next((one.verb for one in self._settles if one.at <= now), None)
        batch = [one for one in self._settles if one.at <= now and one.verb == verb]
        self._settles = [one for one in self._settles if one.at > now or one.verb != verb]
        return batch

    def _settling(self) -> None:
        while True:
            with self._changed:
                while not (batch := self._ready()):
                    if self._closed.is_set() and not self._settles:
                        return
                    self._wait_until(one.at for one in self._settles)
                self._sending = True
            self._send(batch)
            with self._changed:
                self._sending = False
                self._changed.notify_all()

    def _send(self, batch: list[_Settle]) -> None:
        try:
            results = self.client.settle_many(batch[0].verb, [one.fields for one in batch], (0.0, self.client.timeout))
        except DuewheelError as error:
            if isinstance(error, REFUSED) and len(batch) > 1:
                # One of them is at fault, and the others are not to suffer from it.
                for one in batch:
                    self._send([one])
                return
            results = [error] * len(batch)
        again = []
        for one, result in zip(batch, results):
            refused = one.fields.keys() & REFUSABLE
            if not isinstance(result, DuewheelError):
                continue
            if isinstance(result, NO_ANSWER) or passing(result.status, settles=True):
                one.tries += 1
                one.at = time.monotonic() + backoff(one.tries, result)
                again.append(one)
            elif isinstance(result, REFUSED) and refused:
                log.error("message %s is settled without %s: %s", one.fields["id"], " and ".join(refused), result)
                one.fields = {name: value for name, value in one.fields.items() if name not in refused}
                again.append(one)
            elif isinstance(result, GONE):
                log.warning("the lease of message %s was over before it was settled; it may be worked on again",
                            one.fields["id"])
            else:
                log.error("message %s cannot be settled, and comes again after its lease: %s", one.fields["id"], result)
        if again:
            log.warning("%d messages are not settled, and are tried again", len(again))
            with self._changed:
                self._settles += again

    def _extending(self) -> None:
        while True:
            with self._changed:
                while not (due := self._due()):
                    if self._closed.is_set():
                        return
                    self._wait_until(one.extend_at for one in self._leases.values())
            # What has no answer by then is tried again before the lease ends.
            half = min(one.half for one in due)
            try:
                items = [extend_fields(one.delivery) for one in due]
                results = self.client.settle_many("extend", items, (half / 4, half / 2))
            except DuewheelError as error:
                log.warning("%d leases cannot be extended, trying again: %s", len(due), error)
                results = [error] * len(due)
            for one, result in zip(due, results):
                if isinstance(result, GONE):
                    self._lose(one)
                elif not isinstance(result, DuewheelError):
                    one.begin()
                else:
                    one.extend_at = time.monotonic() + one.half / 4
                    if time.monotonic() >= one.ends:  # without an answer it ends all the same; a settle may still count
                        one.ends = math.inf
                        self.lost(tag_of(one.delivery))

    def _due(self) -> list[_Lease]:
        """Those to extend now, in one call with those that are near, and next after another half of their time."""
        now = time.monotonic()
        if all(one.extend_at > now for one in self._leases.values()):
            return []
        due = [one for one in self._leases.values() if one.extend_at - one.half / 5 <= now]
        for one in due:
            one.extend_at = now + one.half
        return due

    def _lose(self, one: _Lease) -> None:
        one.extend_at, it, tag = math.inf, one.delivery, tag_of(one.delivery)
        if tag in self._leases:
            log.warning("the lease of message %s of %s is lost; another worker may have it", it.id, it.queue)
            self.lost(tag)


class Fetcher:
    """Waits in one reserve over its queues, in a thread. `wanted` says which they are and how many messages there is
    room for, and `update` that it has changed; a reserve that does not fit any more is ended, and nothing that it has
    leased is lost. `late` says whether messages are delivered that expired while they waited. A server that is away is
    waited for during `patience`; that and any other refusal is given to `fail`, and the fetcher goes on."""

    def __init__(self, keeper: Keeper, lease: Duration | None, wait: float, patience: float,
                 wanted: Callable[[], tuple[Iterable[str], int]], deliver: Callable[[list[Delivery]], None],
                 fail: Callable[[Exception], None], late: bool = False):
        self.keeper = keeper
        self.client = keeper.client._like(Client, retry_for=patience)
        self.lease, self.longest, self.late = lease, wait, late
        self.wanted, self.deliver, self.fail = wanted, deliver, fail
        self._changed = threading.Condition()
        self._queues: tuple[str, ...] = ()
        self._room = 0
        self._asked: tuple[tuple[str, ...], int] = (), 0  # by the last reserve
        self._request: Request | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        self._turn = 0

    def update(self) -> None:
        with self._changed:
            if self._closed:
                return
            # Under the lock: of two threads that have made room the later one also sees that of the other.
            queues, room = self.wanted()
            self._queues, self._room = tuple(queues), min(room, GRANTS)
            self._end_misfit()
            if self._queues and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="duewheel-reserve", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Ends the reserve that waits; what it has leased is given back."""
        with self._changed:
            self._closed = True
            self._queues = ()
            self._end_misfit()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(PATIENCE)

    def _end_misfit(self) -> None:
        """Ends a reserve that asks for something else, or for too much."""
        if self._request is not None and (self._asked[0] != self._queues or self._asked[1] > self._room):
            self._request.end()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or (self._queues and self._room > 0))
                if self._closed:
                    return
                self._asked = self._queues, self._room
                self._request = request = self._reserve(*self._asked)
            try:
                granted = self.client.granted(request)
            except Exception as error:  # noqa: BLE001: the thread outlives it
                self.fail(error)
                request.ended.wait(max(getattr(error, "retry_after", None) or 0, 0.5))
            else:
                self._hand_over(granted)

    def _reserve(self, queues: tuple[str, ...], room: int) -> Request:
        wait = self.longest
        if len(queues) > QUEUES:  # they take turns
            self._turn = (self._turn + QUEUES) % len(queues)
            queues, wait = (queues * 2)[self._turn : self._turn + QUEUES], 0.5
        request = reserve_request(queues, room, wait, self.lease)
        request.settles = True  # a proxy in trouble does not end it either
        return request

    def _hand_over(self, granted: list[Delivery]) -> None:
        kept = []
        with self._changed:
            for one in granted:
                if one.late and not self.late:
                    self.keeper.ack(self.keeper.add(one))
                elif one.queue in self._queues:
                    kept.append(one)
                else:
                    self.keeper.requeue([self.keeper.add(one)])
            # Before the next look at the room, which `deliver` updates.
            self._room -= len(kept)
        try:
            self.deliver(kept)
        except Exception:  # noqa: BLE001: the messages come again after their leases, and others are leased
            log.exception("%d messages cannot be delivered", len(kept))
