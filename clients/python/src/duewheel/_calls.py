"""Every call of the client, and how requests are sent and repeated, written once for `Client` and `AsyncClient`.

Those say how a connection is opened and how to sleep. The parts of the blocking client never wait for an event loop, so
that its calls are coroutines that end at their first step.
"""

from __future__ import annotations

import asyncio
import json as jsonlib
import logging
import math
import os
import random
import ssl
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import chain, repeat
from typing import Any, TypeVar, Union
from urllib.parse import quote, urlencode

from ._http import Address, Answer, Request, encode
from ._messages import (DEDUPE_WINDOW_MS, Deliveries, Delivery, Duration, Enqueued, Instant, Members, Message, Outgoing,
                        Queues, ack_fields, extend_fields, instant_of, nack_fields, wire)
from .errors import BadAnswer, ConnectionFailed, DuewheelError, from_members

log = logging.getLogger("duewheel.client")

LINES = 5_000  # of a batch; the server takes 10,000
BATCH_BYTES = 8 * 1024 * 1024  # the server takes 16 MiB
ITEMS = 1_000  # of a batch of settles

C = TypeVar("C", bound="Caller")
#: For each item of a batch its answer, or the exception.
Results = list[Union[Members, DuewheelError]]
#: How long a call is repeated, and how long it may take in all, in seconds.
Limits = tuple[float, float]
#: Of a connection. The time-out of asyncio is an OSError only since Python 3.11.
FAILURES = (OSError, asyncio.TimeoutError)
UNTIL_ANSWERED: Limits = (math.inf, math.inf)
#: The results of a part of a batch, the error of items that have none, and whether an earlier try may have been
#: applied.
_Part = tuple[list[Any], DuewheelError, bool]


def queue_path(queue: str, rest: str = "") -> str:
    return f"/v1/queues/{quote(queue, safe='')}{rest}"


def message_path(message: str | int, rest: str = "") -> str:
    return f"/v1/messages/{quote(str(message), safe='')}{rest}"


def key_path(queue: str, key: str, rest: str = "") -> str:
    return queue_path(queue, f"/keys/{quote(key, safe='')}{rest}")


def problem(answer: Answer) -> DuewheelError:
    """The exception for an answer that is no 2xx."""
    try:
        error = from_members(decode(answer, "code"), answer.status)
    except BadAnswer as bad:  # perhaps a proxy's
        error = bad
    if answer.resent:
        error.members["outcome"] = "unknown"
    after = answer.headers.get("retry-after", "")
    if after.isdecimal() and len(after) < 10:
        error.members.setdefault("retry_after_ms", int(after) * 1000)
    return error


def decode(answer: Answer, name: str = "") -> Any:
    """The members of an answer, of which it has at least this one."""
    try:
        members = jsonlib.loads(answer.body or b"{}")
    except ValueError:
        members = None
    if not isinstance(members, dict) or (name and name not in members):
        wanted = f"JSON with {name}" if name else "JSON"
        raise BadAnswer(f"the answer {answer.status} is no {wanted}: {answer.body[:200]!r}", status=answer.status)
    return members


def _failed(error: Exception, members: Members) -> ConnectionFailed:
    return ConnectionFailed(f"{type(error).__name__}: {str(error) or 'timed out'}", members=members)


def passing(status: int, settles: bool = False) -> bool:
    """Whether an answer, or the one for an item of a batch, is worth another try."""
    return status in (429, 503) or (settles and status >= 500)


def backoff(tries: int, *errors: DuewheelError) -> float:
    """Seconds until the next try: with jitter, and never before `Retry-After`."""
    pause = min(0.1 * 2 ** min(tries - 1, 10), 5.0) * random.uniform(0.5, 1.0)
    return max(pause, *(error.retry_after or 0.0 for error in errors))


class Patience:
    """What is left of the time of a call."""

    def __init__(self, limits: Limits):
        self.repeated_for, seconds = limits
        self.end, self.tries = time.monotonic() + seconds, 0

    def left(self, timeout: float = math.inf) -> float:
        """Seconds that an attempt may take."""
        return max(min(timeout, self.end - time.monotonic()), 0.001)

    def pause(self, *errors: DuewheelError) -> float | None:
        """Seconds until the next try, or None when there is none."""
        now = time.monotonic()
        if self.tries == 0:
            self.end = min(self.end, now + self.repeated_for)
        self.tries += 1
        pause = backoff(self.tries, *errors)
        return pause if now + pause < self.end else None


class Caller:
    """Where the server is, and how it is called."""

    def __init__(self, url: str | None = None, *, token: str | None = None, timeout: float = 10.0,
                 retry_for: float = 30.0, ssl_context: ssl.SSLContext | None = None):
        url = url or os.environ.get("DUEWHEEL_SERVER") or "http://127.0.0.1:7788"
        self.address = Address(url, token or os.environ.get("DUEWHEEL_TOKEN"))
        self.timeout, self.retry_for = timeout, retry_for
        self._context = (ssl_context or ssl.create_default_context()) if self.address.tls else None
        self._idle: list[Any] = []

    def _like(self, kind: type[C], **changes: Any) -> C:
        """A client of that kind for the same server."""
        made = kind.__new__(kind)
        vars(made).update(vars(self), **changes)
        return made

    async def _open(self, timeout: float) -> Any: ...

    async def _sleep(self, seconds: float, ended: threading.Event | None = None) -> None: ...

    def _kept(self) -> Any:
        """A connection that is still good, or None; others are closed."""
        with suppress(IndexError):
            while not (connection := self._idle.pop()).good():
                connection.close()
            return connection
        return None

    def limits(self, wait: float = 0.0) -> Limits:
        return self.retry_for, max(self.retry_for, self.timeout) + wait

    def _window_ms(self) -> int:
        """How long the server remembers an id of the client's: longer than a call is repeated, at most 30 days."""
        seconds = min(self.retry_for + 2 * self.timeout, 30 * 86_400)
        return max(DEDUPE_WINDOW_MS, math.ceil(seconds * 1000))

    async def _attempt(self, request: Request, timeout: float) -> Answer:
        """Sends a request once. Raises a refusal, or `ConnectionFailed`: "not_applied" if nothing of it was sent."""
        end = time.monotonic() + timeout
        # A kept connection may be one that the server is closing, so what must not be sent twice gets a fresh one.
        kept = self._kept() if request.repeatable else None
        if kept is not None:
            try:
                return await self._over(kept, request, end)
            except ConnectionFailed as error:
                if kept.got or request.ended.is_set() or not isinstance(error.__cause__, ConnectionError):
                    raise
        try:
            fresh = await self._open(max(min(self.timeout, end - time.monotonic()), 0.001))
        except FAILURES as error:
            raise _failed(error, {"outcome": "not_applied"} if kept is None else {}) from error
        return await self._over(fresh, request, end, resent=kept is not None)

    async def _over(self, connection: Any, request: Request, end: float, resent: bool = False) -> Answer:
        answer, request.connection = None, connection
        try:
            if request.ended.is_set():
                connection.end()
            answer = await connection.exchange(request.to_bytes(self.address), end)
        except FAILURES as error:
            failed = _failed(error, {})
            failed.partial = connection.partial()
            raise failed from error
        finally:
            request.connection = None
            if answer is not None and answer.keep_alive and not request.ended.is_set():
                self._idle.append(connection)
            else:
                connection.close()
        answer.resent = resent
        if answer.status // 100 != 2:
            raise problem(answer)
        return answer

    async def _send(self, request: Request, patience: Patience | None = None) -> Answer:
        """Sends a request until it has an answer other than 429 and 503, or patience ends, or it is stopped."""
        patience = patience or Patience(self.limits(request.wait))
        unknown = False
        while True:
            try:
                answer = await self._attempt(request, patience.left(self.timeout + request.wait))
                answer.resent = answer.resent or unknown
                return answer
            except DuewheelError as failed:
                error = failed
            again = isinstance(error, ConnectionFailed) or passing(error.status, request.settles)
            again = again and (request.repeatable or error.outcome == "not_applied")
            unknown = unknown or error.outcome == "unknown"
            if unknown:
                # An earlier try may have been applied: this refusal is not all that can have happened.
                error.members["outcome"] = "unknown"
            pause = patience.pause(error) if again and not request.ended.is_set() else None
            if pause is None:
                raise error
            log.warning("%s %s is tried again in %.1f s: %s", request.method, request.path, pause, error)
            await self._sleep(pause, request.ended)

    async def _request(self, method: str, path: str, json: Any = None, repeatable: bool = True, name: str = "") -> Any:
        """Any call by its path: `request("POST", "/v1/queues/sms/pause", {"for": "1h"})`. `name` is a member that the
        answer must have."""
        return decode(await self._send(Request.json(method, path, json, repeatable=repeatable)), name)

    async def _schedule(self, queue: str, message: Outgoing, fields: Members) -> Enqueued:
        """Sends the fields of a message, and again without the client's window if the queue's is shorter."""
        while True:
            try:
                return Enqueued.read(await self._request("POST", queue_path(queue, "/messages"), fields))
            except DuewheelError as error:
                if not message.without_window(error, fields):
                    raise

    async def _batch(self, parts: Iterable[list[int]], send: Callable[[list[int], Patience], Awaitable[_Part]],
                     again: Callable[[int, DuewheelError], bool], limits: Limits, keep: bool = False) -> list[Any]:
        """Sends the parts of a batch, and again those items with a refusal for the moment; the last result of each.

        A refusal of a whole part is raised; with `keep` it is the result of its items if others have one. Each part has
        the time of a call, but when one has used it up those after it are not sent.
        """
        results: dict[int, Any] = {}
        unknown: set[int] = set()
        over = False
        for waiting in parts:
            patience = Patience(limits)
            while waiting:
                try:
                    if over:
                        raise ConnectionFailed("no time is left for this message", members={"outcome": "not_applied"})
                    found, missing, resent = await send(waiting, patience)
                except DuewheelError as error:
                    over = over or keep
                    if not over or not results:
                        if unknown or any(isinstance(one, Enqueued) for one in results.values()):
                            error.members["outcome"] = "unknown"
                        raise
                    found, missing, resent = [], error, False
                if resent:
                    unknown.update(waiting)
                refused = []
                for place, index in enumerate(waiting):
                    result = results[index] = found[place] if place < len(found) else missing.copy()
                    if isinstance(result, DuewheelError):
                        if result.outcome == "unknown" or index in unknown:
                            unknown.add(index)
                            result.members["outcome"] = "unknown"
                        if again(index, result):
                            refused.append(index)
                pause = patience.pause(*(results[index] for index in refused)) if refused and not over else None
                if pause is None:
                    over = over or bool(refused)
                    break
                await self._sleep(pause)
                waiting = refused
        return [results[index] for index in range(len(results))]

    async def _cancel(self, path: str, forget_dedupe: bool) -> Members:
        return await self._request("DELETE", path, wire({"forget_dedupe": forget_dedupe or None}), name="result")

    async def _change(self, path: str, changes: Members) -> Message:
        return Message.read(await self._request("PATCH", path, wire(changes)))

    async def _granted(self, request: Request) -> Deliveries:
        try:
            granted = decode(await self._send(request), "messages")
        except DuewheelError:
            if not request.ended.is_set():
                raise
            return Deliveries()
        return Deliveries(map(Delivery.read, granted["messages"]), granted.get("held_back"))

    async def _settle(self, verb: str, item: Members, limits: Limits = UNTIL_ANSWERED) -> Members:
        request = Request.json("POST", message_path(item.pop("id"), f"/{verb}"), item, settles=True)
        return decode(await self._send(request, Patience(limits)), "result")

    def _within_leases(self, deliveries: Iterable[Delivery]) -> Limits:
        """Those of an extension: an answer after the lease is of no use."""
        lease = min((one.lease_ms / 1000 for one in deliveries), default=math.inf)
        seconds, limit = self.limits()
        return min(seconds, lease), min(limit, lease)

    async def _settle_many(self, verb: str, items: Sequence[Members], limits: Limits = UNTIL_ANSWERED) -> list[Any]:
        """A batch of `/v1/ack`, `/v1/nack` or `/v1/extend`: for each item its answer, or the exception. Items that are
        refused for the moment are sent again, as a whole batch is."""
        return await self._items(f"/v1/{verb}", items, lambda part: {"messages": part}, limits, settles=True)

    async def _items(self, path: str, items: Sequence[Any], fields: Callable[[list[Any]], Members], limits: Limits,
                     settles: bool = False) -> list[Any]:
        async def send(part: list[int], patience: Patience) -> _Part:
            request = Request.json("POST", path, fields([items[index] for index in part]), settles=settles)
            answer = await self._send(request, patience)
            found = [from_members(one) if "code" in one else one for one in decode(answer, "results")["results"]]
            return found, ConnectionFailed("the answer has no result for this message"), answer.resent

        return await self._batch(_parts(len(items), ITEMS), send, lambda _, refused: passing(refused.status, settles),
                                 limits, keep=True)


class Calls(Caller):
    """All calls."""

    request = Caller._request

    async def check(self) -> Members:
        """Asks once, without repetition, whether the server is there and takes the token; what the token allows."""
        return decode(await self._send(Request("GET", "/v1/token"), Patience((0.0, self.timeout))))

    # -- produce

    async def enqueue(self, queue: str, body: str | bytes | None = None, *, json: Any = None,
                      delay: Duration | None = None, due_at: Instant | None = None, past: str | None = None,
                      key: str | None = None, if_exists: str | None = None, dedupe_id: str | None = None,
                      dedupe_window: Duration | None = None, priority: int | None = None,
                      lease: Duration | None = None, max_attempts: int | None = None,
                      headers: Mapping[str, str] | None = None, spread: Duration | None = None,
                      expires_in: Duration | None = None, expires_at: Instant | None = None,
                      target_url: str | None = None) -> Enqueued:
        """Schedules a message: due at once, after `delay`, or at `due_at`. When it returns, the message is durable.

        A retry after a lost answer never makes a second message: it has the same `dedupe_id`, which is made here when
        none is given. A `dedupe_window` is that of an id of your own. Raises `KeyExists`, `Leased`, `InThePast`, `DedupeMismatch`, `OverQuota` and others.
        """
        message = Outgoing(body, json, delay, due_at, past, key, if_exists, dedupe_id, dedupe_window, priority, lease,
                           max_attempts, headers, spread, expires_in, expires_at, target_url)
        return await self._schedule(queue, message, message.fields(self._window_ms()))

    async def enqueue_many(self, queue: str, messages: Iterable[Outgoing | Mapping[str, Any] | str | bytes]
                           ) -> list[Enqueued | DuewheelError]:
        """Schedules many messages, each an `Outgoing`, a mapping of its fields, or a body that is due at once.

        The list has one result for each, in order: `Enqueued`, or the exception that a single call would have raised.
        It is sent in batches; after a lost answer, 429 or 503 only the lines without a result are sent again. A refusal
        of a whole batch is raised; `outcome` of the exception is "unknown" when batches before it were applied.
        """
        outgoing = [Outgoing.of(message) for message in messages]
        fields = [message.fields(self._window_ms()) for message in outgoing]
        # All of them before the first is sent: one that cannot be sent is a mistake of the whole call.
        encoded = [encode(one) for one in fields]

        async def send(part: list[int], patience: Patience) -> _Part:
            lines = b"".join(encoded[index] + b"\n" for index in part)
            request = Request("POST", queue_path(queue, "/messages"), lines, "application/x-ndjson")
            try:
                answer = await self._attempt(request, patience.left())
            except ConnectionFailed as failed:
                # What came before a connection has ended is an answer.
                return _lines(failed.partial, whole=False), failed, False
            except DuewheelError as error:
                if not passing(error.status):
                    raise
                return [], error, False
            missing = ConnectionFailed("the answer has no line for this message")
            return _lines(answer.body, whole=True), missing, answer.resent

        def again(index: int, refused: DuewheelError) -> bool:
            if outgoing[index].without_window(refused, fields[index]):
                encoded[index] = encode(fields[index])
                return True
            return passing(refused.status) or isinstance(refused, ConnectionFailed)

        parts = _parts(len(encoded), LINES, lambda index: len(encoded[index]) + 1)
        return await self._batch(parts, send, again, self.limits())

    # -- one message

    async def get(self, message: str) -> Message:
        """The message with this id. Raises `MessageNotFound`."""
        return Message.read(await self._request("GET", message_path(message)))

    async def get_key(self, queue: str, key: str) -> Message:
        """The message that has this key, or else the dead or done one that had it last."""
        return Message.read(await self._request("GET", key_path(queue, key)))

    async def cancel(self, message: str, *, forget_dedupe: bool = False) -> Members:
        """Cancels a message. When it returns, the message is never delivered.

        Raises `Leased` when it was too late, and `MessageNotFound` when nothing is pending. If an earlier try got no
        answer, `outcome` of the exception is "unknown": that try may have cancelled it.
        """
        return await self._cancel(message_path(message), forget_dedupe)

    async def cancel_key(self, queue: str, key: str, *, forget_dedupe: bool = False) -> Members:
        """Cancels the message that has this key, as `cancel` does."""
        return await self._cancel(key_path(queue, key), forget_dedupe)

    async def cancel_many(self, queue: str, *, keys: Sequence[str] = (), ids: Sequence[str] = ()) -> Results:
        """Cancels many; one result for each key, then for each id: the answer, or the exception."""
        named = [("keys", key) for key in keys] + [("ids", id) for id in ids]

        def fields(part: list[Any]) -> Members:
            return wire({kind: [value for one, value in part if one == kind] or None for kind in ("keys", "ids")})

        return await self._items(queue_path(queue, "/cancel"), named, fields, self.limits())

    async def change(self, /, message: str, **changes: Any) -> Message:
        """Changes a scheduled or ready message: `delay`, `due_at`, `past`, `body` or `json`, `headers`, `priority`,
        `max_attempts`, `lease`, `if_generation`. What is not named stays."""
        return await self._change(message_path(message), changes)

    async def change_key(self, /, queue: str, key: str, **changes: Any) -> Message:
        """Changes the message that has this key, as `change` does."""
        return await self._change(key_path(queue, key), changes)

    async def postpone(self, message: str, *, delay: Duration | None = None, due_at: Instant | None = None) -> Message:
        """Moves the due time, in either direction."""
        return await self._change(message_path(message), {"delay": delay, "due_at": due_at})

    async def postpone_key(self, queue: str, key: str, *, delay: Duration | None = None,
                           due_at: Instant | None = None) -> Message:
        """Moves the due time of the message that has this key."""
        return await self._change(key_path(queue, key), {"delay": delay, "due_at": due_at})

    async def fire(self, message: str) -> Message:
        """Makes a message due now."""
        return Message.read(await self._request("POST", message_path(message, "/fire")))

    async def fire_key(self, queue: str, key: str) -> Message:
        """Makes the message that has this key due now."""
        return Message.read(await self._request("POST", key_path(queue, key, "/fire")))

    async def replay(self, message: str, *, key: str | None = None) -> Enqueued:
        """Enqueues the content of a dead or done message again."""
        fields = wire({"key": key, "dedupe_id": uuid.uuid4().hex})
        return Enqueued.read(await self._request("POST", message_path(message, "/replay"), fields))

    # -- consume

    async def reserve(self, queues: Queues, max: int = 1, *, wait: Duration = 0,
                      lease: Duration | None = None) -> Deliveries:
        """Leases up to `max` due messages, of one queue or the best of several; a mapping gives each queue a maximum.

        An empty list after `wait`. A wait that is given as text is not known to the client's time-out: give seconds.
        """
        return await self._granted(reserve_request(queues, max, wait, lease))

    async def ack(self, delivery: Delivery, result: Any = None) -> Members:
        """The message is done. `result` is any JSON of at most 16 KiB, which a queue with `keep_done` keeps.

        Repeated until it is answered; raises `LeaseLost` when another consumer may have it."""
        return await self._settle("ack", ack_fields(delivery, result))

    async def nack(self, delivery: Delivery, *, delay: Duration | None = None, reason: str | None = None,
                   dead: bool = False, attempt: bool = True) -> Members:
        """The message is not done: again after its backoff or `delay`, or `dead` at once. `attempt=False` is "not yet":
        the grant uses up no attempt. Repeated until it is answered."""
        return await self._settle("nack", nack_fields(delivery, delay=delay, reason=reason, dead=dead, attempt=attempt))

    async def extend(self, delivery: Delivery, *, lease: Duration | None = None) -> datetime:
        """The lease lasts for as long as it was granted, or `lease`, from now. Raises `LeaseLost`. It is not tried for
        longer than the lease that there is."""
        answer = await self._settle("extend", extend_fields(delivery, lease), self._within_leases([delivery]))
        return instant_of(answer["lease_until"])

    async def ack_many(self, deliveries: Iterable[Delivery], results: Iterable[Any] = ()) -> Results:
        """Acks many, with their `results`; for each its answer, or the exception, such as `LeaseLost`."""
        return await self._settle_many("ack", [ack_fields(*it) for it in zip(deliveries, chain(results, repeat(None)))])

    async def nack_many(self, deliveries: Iterable[Delivery], *, delay: Duration | None = None,
                        reason: str | None = None, dead: bool = False, attempt: bool = True) -> Results:
        """Nacks many in the same way."""
        items = [nack_fields(it, delay=delay, reason=reason, dead=dead, attempt=attempt) for it in deliveries]
        return await self._settle_many("nack", items)

    async def extend_many(self, deliveries: Iterable[Delivery], *, lease: Duration | None = None) -> Results:
        """Extends many leases, as `extend` does."""
        deliveries = list(deliveries)
        items = [extend_fields(it, lease) for it in deliveries]
        return await self._settle_many("extend", items, self._within_leases(deliveries))

    # -- inspect and operate

    async def queues(self) -> list[Members]:
        """All queues with their counts."""
        page = await self._request("GET", "/v1/queues", name="queues")
        found: list[Members] = page["queues"]
        while after := page.get("next"):
            page = await self._request("GET", f"/v1/queues?{urlencode({'after': after})}", name="queues")
            found += page["queues"]
        return found

    async def queue(self, queue: str) -> Members:
        """Counts, rates and settings of a queue."""
        return await self._request("GET", queue_path(queue))

    async def messages(self, /, queue: str, *, limit: int = 100, after: str | None = None, **filters: Any
                       ) -> tuple[list[Message], str | None]:
        """A page of pending messages in due order, and the `after` of the next page. Filters: `state`, `due_from`,
        `due_to`, `key_prefix`, `dead_reason`; those of headers by `**{"header.NAME": value}`."""
        text = urlencode(wire({"limit": limit, "after": after, **filters}))
        page = await self._request("GET", queue_path(queue, f"/messages?{text}"), name="messages")
        return [Message.read(one) for one in page["messages"]], page.get("next")

    async def config(self, /, queue: str, **settings: Any) -> Members:
        """Changes the settings of a queue that are named, such as `lease_ms`, `max_attempts`, `rate`; None resets one.
        Without settings it shows them."""
        method = "PATCH" if settings else "GET"
        return await self._request(method, queue_path(queue, "/config"), settings or None)

    async def pause(self, queue: str, *, duration: Duration | None = None) -> Members:
        """Grants nothing of the queue until it is resumed, or for that long."""
        return await self._request("POST", queue_path(queue, "/pause"), wire({"for": duration}))

    async def resume(self, queue: str) -> Members:
        """Ends a pause."""
        return await self._request("POST", queue_path(queue, "/resume"))

    async def purge(self, queue: str) -> int:
        """Removes scheduled, ready and dead messages; how many."""
        return (await self._request("POST", queue_path(queue, "/purge"), name="purged"))["purged"]

    async def redrive(self, queue: str, *, ids: Sequence[str] | None = None, max: int | None = None) -> Members:
        """Makes dead messages ready again. With `max` it is not repeated when its answer is lost."""
        fields = wire({"ids": ids, "max": max})
        return await self._request("POST", queue_path(queue, "/redrive"), fields, repeatable=max is None)

    async def advance(self, by: Duration) -> datetime:
        """Lets time pass on a server with `--virtual-clock`; the instant it is now."""
        request = Request.json("POST", "/v1/clock/advance", wire({"by": by}), wait=60.0, repeatable=False)
        return instant_of(decode(await self._send(request), "now")["now"])


def reserve_request(queues: Queues, max: int, wait: Duration, lease: Duration | None) -> Request:
    named = [queues] if isinstance(queues, str) else queues
    maxima = named if isinstance(named, Mapping) else dict.fromkeys(named)
    fields = wire({"queues": [wire({"queue": name, "max": most}) for name, most in maxima.items()],
                   "max": max, "wait": wait, "lease": lease})
    return Request.json("POST", "/v1/reserve", fields, wait=fields.get("wait_ms", 600_000) / 1000)


def _parts(count: int, most: int, size: Callable[[int], int] = lambda _: 0) -> Iterable[list[int]]:
    """Batches within the limits of the server."""
    part: list[int] = []
    total = 0
    for index in range(count):
        if part and (len(part) == most or total + size(index) > BATCH_BYTES):
            yield part
            part, total = [], 0
        part.append(index)
        total += size(index)
    if part:
        yield part


def _lines(data: bytes, whole: bool) -> list[Any]:
    """The results of a batch; of a part of an answer its whole lines."""
    lines = data.split(b"\n") if whole else data.split(b"\n")[:-1]
    try:
        found = [jsonlib.loads(line) for line in lines if line.strip()]
        return [from_members(one) if "code" in one else Enqueued.read(one) for one in found]
    except (TypeError, ValueError) as error:
        raise BadAnswer(f"a line of the answer is none of duewheel's: {error}") from error
