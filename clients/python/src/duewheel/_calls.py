"""Every call of the client, written once, without a socket.

A call is a generator. It yields a `Request` to be sent and gets an `Answer` or the exception of the connection; it
yields a number to sleep for that many seconds; and it returns the result. `Client` runs it blocking, `AsyncClient`
on an event loop.
"""

from __future__ import annotations

import base64
import json as jsonlib
import math
import random
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import chain, repeat
from typing import Any, TypeVar, Union
from urllib.parse import quote, urlencode

from ._http import Answer
from .errors import BadAnswer, ConnectionFailed, DuewheelError, from_members

#: A length of time: a timedelta, a number of seconds, or text of the server such as "48h".
Duration = Union[timedelta, int, float, str]
#: An instant: a datetime with a zone, or RFC 3339.
Instant = Union[datetime, str]

#: How long the server remembers the dedupe id that the client makes.
DEDUPE_WINDOW_MS = 15 * 60 * 1000
LINES = 5_000  # of a batch; the server takes 10,000
BATCH_BYTES = 8 * 1024 * 1024  # the server takes 16 MiB
ITEMS = 1_000  # of a batch of settles

#: What `change` takes.
CHANGES = {"body", "json", "delay", "due_at", "past", "headers", "priority", "max_attempts", "lease", "if_generation", "target_url"}

Result = TypeVar("Result")


def milliseconds(name: str, value: timedelta | int | float) -> int:
    """Whole milliseconds, rounded up: never early."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(value, bool) or not isinstance(seconds, (int, float)) or not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{name}: {value!r} is no length of time; give seconds, a timedelta, or text such as \"48h\"")
    # Seconds as a float are not exact: 0.1 * 1000 is a little above 100.
    return math.ceil(round(seconds * 1000, 3))


def span(fields: dict[str, Any], name: str, value: Duration | None) -> None:
    """Puts a length of time into the fields of a request, if there is one."""
    if value is not None:
        if isinstance(value, str):
            fields[name] = value
        else:
            fields[f"{name}_ms"] = milliseconds(name, value)


def instant(name: str, value: Instant) -> str:
    """An instant as the server reads it."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{name}: a datetime needs a zone; for the local time use value.astimezone()")
        return value.isoformat()
    return value


def instant_of(text: str) -> datetime:
    """An instant of the server."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)


def moment(text: str | None) -> datetime | None:
    """An instant of the server that may be none."""
    return None if text is None else instant_of(text)


def put_body(fields: dict[str, Any], body: str | bytes | None, json: Any) -> None:
    if json is not None:
        if body is not None:
            raise ValueError("body: give a body or json, not both")
        fields["json"] = json
    elif isinstance(body, str):
        fields["body"] = body
    elif isinstance(body, (bytes, bytearray, memoryview)):
        try:
            fields["body"] = bytes(body).decode()
        except UnicodeDecodeError:
            fields["body_base64"] = base64.b64encode(body).decode()
    elif body is not None:
        raise TypeError(f"body: text or bytes, not {type(body).__name__}; json= takes other values")


def wire(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a message, or of its change, as the server names them. What is None is left out."""
    fields: dict[str, Any] = {}
    put_body(fields, values.get("body"), values.get("json"))
    for name, value in values.items():
        if value is None or name in ("body", "json"):
            continue
        if name in ("delay", "lease", "spread", "expires_in", "dedupe_window"):
            span(fields, name, value)
        elif name in ("due_at", "expires_at"):
            fields[name] = instant(name, value)
        else:
            fields[name] = dict(value) if name == "headers" else value
    return fields


def get_body(fields: Mapping[str, Any]) -> bytes:
    if "body_base64" in fields:
        return base64.b64decode(fields["body_base64"])
    return fields.get("body", "").encode()


class Body:
    """The body of a message, read as text or as JSON."""

    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return jsonlib.loads(self.body)


@dataclass(frozen=True)
class Enqueued:
    """The answer to an enqueue."""

    id: str
    queue: str
    key: str | None
    due_at: datetime
    generation: int
    created: bool
    replayed: bool
    replaced: str | None
    superseded: str | None
    durability: str | None
    raw: dict[str, Any] = field(repr=False)

    @classmethod
    def read(cls, raw: dict[str, Any]) -> Enqueued:
        return cls(str(raw["id"]), raw["queue"], raw.get("key"), instant_of(raw["due_at"]), raw["generation"], raw["created"],
                   raw.get("replayed", False), raw.get("replaced"), raw.get("superseded"), raw.get("durability"), raw)


@dataclass(frozen=True)
class Message(Body):
    """A message as it is now. `raw` has every member of the answer."""

    id: str
    queue: str
    key: str | None
    state: str
    due_at: datetime | None
    attempt: int
    generation: int
    body: bytes = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    raw: dict[str, Any] = field(repr=False)
    #: What the ack of a done message has brought.
    result: Any = None

    @classmethod
    def read(cls, raw: dict[str, Any]) -> Message:
        return cls(str(raw["id"]), raw["queue"], raw.get("key"), raw["state"], moment(raw.get("due_at")), raw.get("attempt", 0),
                   raw.get("generation", 1), get_body(raw), dict(raw.get("headers") or {}), raw, raw.get("result"))


@dataclass(frozen=True)
class Delivery(Body):
    """A message under a lease."""

    id: str
    queue: str
    key: str | None
    attempt: int
    priority: int
    generation: int
    due_at: datetime | None
    lateness_ms: int
    late: bool
    lease_token: str = field(repr=False)
    lease_ms: int
    lease_until: datetime | None
    body: bytes = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    raw: dict[str, Any] = field(repr=False)

    @classmethod
    def read(cls, raw: dict[str, Any]) -> Delivery:
        return cls(str(raw["id"]), raw["queue"], raw.get("key"), raw["attempt"], raw["priority"], raw["generation"], moment(raw["due_at"]),
                   raw["lateness_ms"], raw.get("late", False), raw["lease_token"], raw["lease_ms"], moment(raw["lease_until"]),
                   get_body(raw), dict(raw.get("headers") or {}), raw)


class Deliveries(list[Delivery]):
    """What a reserve has leased. Of an empty list `held_back` says why, when messages are ready: "leases" or "rate"."""

    def __init__(self, items: Iterable[Delivery] = (), held_back: str | None = None):
        super().__init__(items)
        self.held_back = held_back


@dataclass
class Outgoing:
    """A message of a batch; the fields are those of `enqueue`."""

    body: str | bytes | None = None
    json: Any = None
    delay: Duration | None = None
    due_at: Instant | None = None
    past: str | None = None
    key: str | None = None
    if_exists: str | None = None
    dedupe_id: str | None = None
    dedupe_window: Duration | None = None
    priority: int | None = None
    lease: Duration | None = None
    max_attempts: int | None = None
    headers: Mapping[str, str] | None = None
    spread: Duration | None = None
    expires_in: Duration | None = None
    expires_at: Instant | None = None
    target_url: str | None = None

    def fields(self) -> dict[str, Any]:
        """The fields of the request. A message without a dedupe id gets one, so that a repeated request doubles nothing."""
        if self.body is None and self.json is None:
            raise ValueError("body: a message needs a body or json; \"\" is an empty body")
        if self.due_at is not None and self.delay is not None:
            raise ValueError("due_at: give a delay or an instant, not both")
        fields = wire(vars(self))
        if self.due_at is None and self.delay is None:
            fields["delay_ms"] = 0
        if self.dedupe_id is None:
            fields["dedupe_id"] = f"py-{uuid.uuid4().hex}"
            if self.dedupe_window is None:
                fields["dedupe_window_ms"] = DEDUPE_WINDOW_MS
        return fields

    @classmethod
    def of(cls, message: Outgoing | Mapping[str, Any] | str | bytes) -> Outgoing:
        if isinstance(message, Outgoing):
            return message
        return cls(**message) if isinstance(message, Mapping) else cls(message)

    def without_window(self, error: DuewheelError, fields: dict[str, Any]) -> bool:
        """Whether the queue's window is shorter than the one that the client has asked for. Then that of the queue holds."""
        if error.field in ("dedupe_window", "dedupe_window_ms") and self.dedupe_window is None:
            return fields.pop("dedupe_window_ms", None) is not None
        return False


@dataclass
class Request:
    """A request to be sent. `wait` is how long the server may take in addition to the client's time-out."""

    method: str
    path: str
    body: bytes | None = None
    content_type: str = "application/json"
    wait: float = 0.0
    #: Whether the request may be sent again when its outcome is unknown.
    repeatable: bool = True
    #: Whether it is sent again after any 5xx, as a settle is: a proxy's 502 says nothing about a lease.
    settles: bool = False

    @classmethod
    def json(cls, method: str, path: str, fields: Any = None, **options: Any) -> Request:
        return cls(method, path, None if fields is None else encode(fields), **options)


Call = Generator[Union[Request, float], Any, Result]

#: The results of a part of a batch, the error of items that have none, and whether an earlier try may have been applied.
_Part = tuple[list[Any], DuewheelError, bool]


def encode(value: Any) -> bytes:
    return jsonlib.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def queue_path(queue: str, rest: str = "") -> str:
    return f"/v1/queues/{quote(queue, safe='')}{rest}"


def message_path(message: str | int, rest: str = "") -> str:
    return f"/v1/messages/{quote(str(message), safe='')}{rest}"


def key_path(queue: str, key: str, rest: str = "") -> str:
    return queue_path(queue, f"/keys/{quote(key, safe='')}{rest}")


def problem(answer: Answer) -> DuewheelError:
    """The exception for an answer that is no 2xx."""
    try:
        members = jsonlib.loads(answer.body)
        if not isinstance(members, dict) or "code" not in members:
            raise ValueError
    except ValueError:
        return BadAnswer(f"an answer {answer.status} without a code: {answer.body[:200]!r}", status=answer.status)
    after = answer.headers.get("retry-after", "")
    if after.isdigit():
        members.setdefault("retry_after_ms", int(after) * 1000)
    return from_members(members, answer.status)


def decode(answer: Answer) -> Any:
    try:
        return jsonlib.loads(answer.body) if answer.body else {}
    except ValueError as error:
        raise BadAnswer(f"the answer is no JSON: {answer.body[:200]!r}", status=answer.status) from error


class Patience:
    """When a call is repeated: after pauses with jitter, never before `Retry-After`, and until `seconds` are over."""

    def __init__(self, seconds: float):
        self.until = time.monotonic() + seconds
        self.tries = 0

    def pause(self, *errors: DuewheelError) -> float | None:
        """Seconds until the next try, or None when there is none."""
        self.tries += 1
        pause = min(0.1 * 2 ** min(self.tries - 1, 10), 5.0) * random.uniform(0.5, 1.0)
        pause = max(pause, *(error.retry_after or 0.0 for error in errors))
        return pause if time.monotonic() + pause < self.until else None


def passing(status: int, settles: bool = False) -> bool:
    """Whether an answer, or the one for an item of a batch, is worth another try."""
    return status in (429, 503) or (settles and status >= 500)


class Calls:
    """All calls. `retry_for` is how long one of them is repeated in all."""

    def __init__(self, retry_for: float = 30.0):
        self.retry_for = retry_for

    def send(self, request: Request, patience: Patience | None = None) -> Call[Answer]:
        """Sends a request until it has an answer other than 429 and 503, or patience ends."""
        patience = patience or Patience(self.retry_for)
        unknown = False
        while True:
            got = yield request
            if isinstance(got, Answer):
                unknown = unknown or got.resent
                if got.status // 100 == 2:
                    got.resent = unknown
                    return got
                error = problem(got)
                again = passing(got.status, request.settles) and (request.repeatable or error.outcome == "not_applied")
                unknown = unknown or error.outcome == "unknown"
                if unknown:
                    # An earlier try may have been applied: this refusal is not all that can have happened.
                    error.members["outcome"] = "unknown"
            else:
                error = _lost(got)
                unknown = True
                again = request.repeatable
            pause = patience.pause(error) if again else None
            if pause is None:
                raise error
            yield pause

    def request(self, method: str, path: str, json: Any = None, *, repeatable: bool = True) -> Call[Any]:
        """Any call by its path: `request("POST", "/v1/queues/sms/pause", {"for": "1h"})`."""
        answer = yield from self.send(Request.json(method, path, json, repeatable=repeatable))
        return decode(answer)

    # -- produce

    def enqueue(self, queue: str, body: str | bytes | None = None, *, json: Any = None, delay: Duration | None = None,
                due_at: Instant | None = None, past: str | None = None, key: str | None = None,
                if_exists: str | None = None, dedupe_id: str | None = None, dedupe_window: Duration | None = None,
                priority: int | None = None, lease: Duration | None = None, max_attempts: int | None = None,
                headers: Mapping[str, str] | None = None, spread: Duration | None = None,
                expires_in: Duration | None = None, expires_at: Instant | None = None,
                target_url: str | None = None) -> Call[Enqueued]:
        """Schedules a message: due at once, after `delay`, or at `due_at`. When it returns, the message is durable.

        A retry after a lost answer never makes a second message: it has the same `dedupe_id`, which is made here when
        none is given. Raises `KeyExists`, `Leased`, `InThePast`, `DedupeMismatch`, `OverQuota` and others.
        """
        message = Outgoing(body, json, delay, due_at, past, key, if_exists, dedupe_id, dedupe_window, priority, lease, max_attempts,
                           headers, spread, expires_in, expires_at, target_url)
        return (yield from self.schedule(queue, message, message.fields()))

    def schedule(self, queue: str, message: Outgoing, fields: dict[str, Any]) -> Call[Enqueued]:
        """Sends the fields of a message, and again without the client's window if the queue's is shorter."""
        path = queue_path(queue, "/messages")
        try:
            return Enqueued.read((yield from self.request("POST", path, fields)))
        except DuewheelError as error:
            if not message.without_window(error, fields):
                raise
        return Enqueued.read((yield from self.request("POST", path, fields)))

    def enqueue_many(self, queue: str, messages: Iterable[Outgoing | Mapping[str, Any] | str | bytes]) -> Call[list[Enqueued | DuewheelError]]:
        """Schedules many messages, each an `Outgoing`, a mapping of its fields, or a body that is due at once.

        The list has one result for each, in order: `Enqueued`, or the exception that a single call would have raised.
        It is sent in batches; after a lost answer, 429 or 503 only the lines without a result are sent again. A refusal
        of a whole batch is raised; `outcome` of the exception is "unknown" when batches before it were applied.
        """
        outgoing = [Outgoing.of(message) for message in messages]
        fields = [message.fields() for message in outgoing]
        # All of them before the first is sent: one that cannot be sent is a mistake of the whole call.
        encoded = [encode(one) for one in fields]

        def send(part: list[int]) -> Call[_Part]:
            lines = b"".join(encoded[index] + b"\n" for index in part)
            got = yield Request("POST", queue_path(queue, "/messages"), lines, "application/x-ndjson", wait=30.0)
            if not isinstance(got, Answer):
                # What came before a connection has ended is an answer.
                return _lines(getattr(got, "partial", b""), whole=False), _lost(got), False
            if got.status // 100 == 2:
                return _lines(got.body, whole=True), ConnectionFailed("the answer has no line for this message"), got.resent
            error = problem(got)
            if not passing(got.status):
                if got.resent:
                    error.members["outcome"] = "unknown"
                raise error
            return [], error, got.resent

        def again(index: int, refused: DuewheelError) -> bool:
            if outgoing[index].without_window(refused, fields[index]):
                encoded[index] = encode(fields[index])
                return True
            return passing(refused.status) or isinstance(refused, ConnectionFailed)

        def parts(waiting: list[int]) -> Iterable[list[int]]:
            return _parts(waiting, LINES, lambda index: len(encoded[index]) + 1)

        return (yield from _batch(len(encoded), parts, send, again, Patience(self.retry_for)))

    # -- one message

    def get(self, message: str) -> Call[Message]:
        """The message with this id. Raises `MessageNotFound`."""
        return Message.read((yield from self.request("GET", message_path(message))))

    def get_key(self, queue: str, key: str) -> Call[Message]:
        """The message that has this key, or else the dead or done one that had it last."""
        return Message.read((yield from self.request("GET", key_path(queue, key))))

    def cancel(self, message: str, *, forget_dedupe: bool = False) -> Call[dict[str, Any]]:
        """Cancels a message. When it returns, the message is never delivered.

        Raises `Leased` when it was too late, and `MessageNotFound` when nothing is pending. If an earlier try got no
        answer, `outcome` of the exception is "unknown": that try may have cancelled it.
        """
        fields = {"forget_dedupe": True} if forget_dedupe else None
        return (yield from self.request("DELETE", message_path(message), fields))

    def cancel_key(self, queue: str, key: str, *, forget_dedupe: bool = False) -> Call[dict[str, Any]]:
        """Cancels the message that has this key, as `cancel` does."""
        fields = {"forget_dedupe": True} if forget_dedupe else None
        return (yield from self.request("DELETE", key_path(queue, key), fields))

    def cancel_many(self, queue: str, *, keys: Sequence[str] = (), ids: Sequence[str] = ()) -> Call[list[dict[str, Any] | DuewheelError]]:
        """Cancels many; one result for each key, then for each id: the answer, or the exception."""
        named = [("keys", key) for key in keys] + [("ids", id) for id in ids]

        def request(part: list[Any]) -> Request:
            fields = {kind: [value for one, value in part if one == kind] for kind in ("keys", "ids")}
            return Request.json("POST", queue_path(queue, "/cancel"), {kind: values for kind, values in fields.items() if values})

        return (yield from self._items(named, request, Patience(self.retry_for)))

    def change(self, /, message: str, **changes: Any) -> Call[Message]:
        """Changes a scheduled or ready message: `delay`, `due_at`, `past`, `body` or `json`, `headers`, `priority`,
        `max_attempts`, `lease`, `if_generation`. What is not named stays."""
        return Message.read((yield from self.request("PATCH", message_path(message), changed(changes))))

    def change_key(self, /, queue: str, key: str, **changes: Any) -> Call[Message]:
        """Changes the message that has this key, as `change` does."""
        return Message.read((yield from self.request("PATCH", key_path(queue, key), changed(changes))))

    def postpone(self, message: str, *, delay: Duration | None = None, due_at: Instant | None = None) -> Call[Message]:
        """Moves the due time, in either direction."""
        return (yield from self.change(message, delay=delay, due_at=due_at))

    def postpone_key(self, queue: str, key: str, *, delay: Duration | None = None, due_at: Instant | None = None) -> Call[Message]:
        """Moves the due time of the message that has this key."""
        return (yield from self.change_key(queue, key, delay=delay, due_at=due_at))

    def fire(self, message: str) -> Call[Message]:
        """Makes a message due now."""
        return Message.read((yield from self.request("POST", message_path(message, "/fire"))))

    def fire_key(self, queue: str, key: str) -> Call[Message]:
        """Makes the message that has this key due now."""
        return Message.read((yield from self.request("POST", key_path(queue, key, "/fire"))))

    def replay(self, message: str, *, key: str | None = None) -> Call[Enqueued]:
        """Enqueues the content of a dead or done message again. Only with a `key` it is repeated when its answer is lost."""
        fields = {"key": key} if key is not None else {}
        return Enqueued.read((yield from self.request("POST", message_path(message, "/replay"), fields, repeatable=key is not None)))

    # -- consume

    def reserve(self, queues: str | Sequence[str] | Mapping[str, int | None], max: int = 1, *, wait: Duration = 0,
                lease: Duration | None = None) -> Call[Deliveries]:
        """Leases up to `max` due messages, of one queue or the best of several; a mapping gives each queue a maximum.

        An empty list after `wait`. A wait that is given as text is not known to the client's time-out: give seconds.
        """
        if isinstance(queues, str):
            queues = [queues]
        maxima = dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(queues)
        fields: dict[str, Any] = {
            "queues": [{"queue": name} if most is None else {"queue": name, "max": most} for name, most in maxima.items()],
            "max": max,
        }
        span(fields, "wait", wait)
        span(fields, "lease", lease)
        seconds = fields.get("wait_ms", 600_000) / 1000
        answer = yield from self.send(Request.json("POST", "/v1/reserve", fields, wait=seconds))
        granted = decode(answer)
        return Deliveries((Delivery.read(one) for one in granted["messages"]), granted.get("held_back"))

    def ack(self, delivery: Delivery, result: Any = None) -> Call[dict[str, Any]]:
        """The message is done. `result` is any JSON of at most 16 KiB, which a queue with `keep_done` keeps.

        Repeated until it is answered; raises `LeaseLost` when another consumer may have it."""
        return (yield from self._settle(delivery, "ack", {} if result is None else {"result": result}, math.inf))

    def nack(self, delivery: Delivery, *, delay: Duration | None = None, reason: str | None = None, dead: bool = False,
             attempt: bool = True) -> Call[dict[str, Any]]:
        """The message is not done: again after its backoff or `delay`, or `dead` at once. `attempt=False` is "not yet":
        the grant uses up no attempt. Repeated until it is answered."""
        return (yield from self._settle(delivery, "nack", how_fields(delay, reason, dead, attempt), math.inf))

    def extend(self, delivery: Delivery, *, lease: Duration | None = None) -> Call[datetime]:
        """The lease lasts for its length, or `lease`, from now. Raises `LeaseLost`."""
        fields: dict[str, Any] = {}
        span(fields, "lease", lease)
        return instant_of((yield from self._settle(delivery, "extend", fields, self.retry_for))["lease_until"])

    def _settle(self, delivery: Delivery, verb: str, fields: dict[str, Any], retry_for: float) -> Call[Any]:
        fields["lease_token"] = delivery.lease_token
        request = Request.json("POST", message_path(delivery.id, f"/{verb}"), fields, settles=True)
        return decode((yield from self.send(request, Patience(retry_for))))

    def settle_many(self, verb: str, items: Sequence[dict[str, Any]], retry_for: float | None = None) -> Call[list[Any]]:
        """A batch of `/v1/ack`, `/v1/nack` or `/v1/extend`: for each item its answer, or the exception. Items that are
        refused for the moment are sent again, as a whole batch is."""
        patience = Patience(self.retry_for if retry_for is None else retry_for)

        def request(part: list[Any]) -> Request:
            return Request.json("POST", f"/v1/{verb}", {"messages": part}, settles=True)

        return (yield from self._items(items, request, patience))

    def _items(self, items: Sequence[Any], request: Callable[[list[Any]], Request], patience: Patience) -> Call[list[Any]]:
        settles = False

        def send(part: list[int]) -> Call[_Part]:
            nonlocal settles
            sent = request([items[index] for index in part])
            settles = sent.settles
            answer = yield from self.send(sent, patience)
            found = [_item(one) for one in decode(answer)["results"]]
            return found, ConnectionFailed("the answer has no result for this message"), answer.resent

        return (yield from _batch(len(items), lambda waiting: _parts(waiting, ITEMS), send,
                                  lambda _, refused: passing(refused.status, settles), patience, keep=True))

    def ack_many(self, deliveries: Iterable[Delivery], results: Iterable[Any] = ()) -> Call[list[dict[str, Any] | DuewheelError]]:
        """Acks many, with their `results`; for each its answer, or the exception, such as `LeaseLost`."""
        return (yield from self.settle_many("ack", [ack_fields(*it) for it in zip(deliveries, chain(results, repeat(None)))], math.inf))

    def nack_many(self, deliveries: Iterable[Delivery], *, delay: Duration | None = None, reason: str | None = None,
                  dead: bool = False, attempt: bool = True) -> Call[list[dict[str, Any] | DuewheelError]]:
        """Nacks many in the same way."""
        items = [nack_fields(it, delay=delay, reason=reason, dead=dead, attempt=attempt) for it in deliveries]
        return (yield from self.settle_many("nack", items, math.inf))

    def extend_many(self, deliveries: Iterable[Delivery], *, lease: Duration | None = None) -> Call[list[dict[str, Any] | DuewheelError]]:
        """Extends many leases."""
        return (yield from self.settle_many("extend", [extend_fields(it, lease) for it in deliveries]))

    # -- inspect and operate

    def queues(self) -> Call[list[dict[str, Any]]]:
        """All queues with their counts."""
        found: list[dict[str, Any]] = []
        after = None
        while True:
            page = yield from self.request("GET", "/v1/queues" + (f"?{urlencode({'after': after})}" if after else ""))
            found += page["queues"]
            after = page.get("next")
            if not after:
                return found

    def queue(self, queue: str) -> Call[dict[str, Any]]:
        """Counts, rates and settings of a queue."""
        return (yield from self.request("GET", queue_path(queue)))

    def messages(self, /, queue: str, *, limit: int = 100, after: str | None = None, **filters: Any) -> Call[tuple[list[Message], str | None]]:
        """A page of pending messages in due order, and the `after` of the next page. Filters: `state`, `due_from`,
        `due_to`, `key_prefix`, `dead_reason`; those of headers by `**{"header.NAME": value}`."""
        query = {"limit": limit, "after": after, **filters}
        text = urlencode({name: value for name, value in query.items() if value is not None})
        page = yield from self.request("GET", queue_path(queue, f"/messages?{text}"))
        return [Message.read(one) for one in page["messages"]], page.get("next")

    def config(self, /, queue: str, **settings: Any) -> Call[dict[str, Any]]:
        """Changes the settings of a queue that are named, such as `lease_ms`, `max_attempts`, `rate`; None resets one.
        Without settings it shows them."""
        method = "PATCH" if settings else "GET"
        return (yield from self.request(method, queue_path(queue, "/config"), settings or None))

    def pause(self, queue: str, *, duration: Duration | None = None) -> Call[dict[str, Any]]:
        """Grants nothing of the queue until it is resumed, or for that long."""
        fields: dict[str, Any] = {}
        span(fields, "for", duration)
        return (yield from self.request("POST", queue_path(queue, "/pause"), fields))

    def resume(self, queue: str) -> Call[dict[str, Any]]:
        """Ends a pause."""
        return (yield from self.request("POST", queue_path(queue, "/resume")))

    def purge(self, queue: str) -> Call[int]:
        """Removes scheduled, ready and dead messages; how many."""
        return (yield from self.request("POST", queue_path(queue, "/purge")))["purged"]

    def redrive(self, queue: str, *, ids: Sequence[str] | None = None, max: int | None = None) -> Call[dict[str, Any]]:
        """Makes dead messages ready again. With `max` it is not repeated when its answer is lost."""
        fields = {name: value for name, value in (("ids", ids), ("max", max)) if value is not None}
        return (yield from self.request("POST", queue_path(queue, "/redrive"), fields, repeatable=max is None))

    def advance(self, by: Duration) -> Call[datetime]:
        """Lets time pass on a server with `--virtual-clock`; the instant it is now."""
        fields: dict[str, Any] = {}
        span(fields, "by", by)
        request = Request.json("POST", "/v1/clock/advance", fields, wait=60.0, repeatable=False)
        return instant_of(decode((yield from self.send(request)))["now"])


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """The fields of a change."""
    for name in sorted(changes.keys() - CHANGES):
        raise TypeError(f"{name}: a message has no such field to change")
    return wire(changes)


def how_fields(delay: Duration | None = None, reason: str | None = None, dead: bool = False, attempt: bool = True) -> dict[str, Any]:
    """How a message is nacked."""
    fields: dict[str, Any] = {}
    span(fields, "delay", delay)
    if reason is not None:
        fields["reason"] = short(reason)
    if dead:
        fields["dead"] = True
    if not attempt:
        fields["attempt"] = False
    return fields


def ack_fields(delivery: Delivery, result: Any = None) -> dict[str, Any]:
    """An item of a batch of acks."""
    fields = {"id": delivery.id, "lease_token": delivery.lease_token}
    return fields if result is None else {**fields, "result": result}


def nack_fields(delivery: Delivery, **how: Any) -> dict[str, Any]:
    """An item of a batch of nacks; `how` is that of `how_fields`."""
    return {**ack_fields(delivery), **how_fields(**how)}


def extend_fields(delivery: Delivery, lease: Duration | None = None) -> dict[str, Any]:
    """An item of a batch of extensions."""
    fields = ack_fields(delivery)
    # Without a length the server would take that of the message, not that of the reserve.
    span(fields, "lease", timedelta(milliseconds=delivery.lease_ms) if lease is None else lease)
    return fields


def short(reason: str) -> str:
    """A reason as the history of a message keeps it: at most 256 bytes of whole characters."""
    return reason.encode("utf-8", "replace")[:256].decode("utf-8", "ignore")


def _item(one: dict[str, Any]) -> dict[str, Any] | DuewheelError:
    return from_members(one) if "code" in one else one


def _batch(count: int, parts: Callable[[list[int]], Iterable[list[int]]], send: Callable[[list[int]], Call[_Part]],
           again: Callable[[int, DuewheelError], bool], patience: Patience, keep: bool = False) -> Call[list[Any]]:
    """Sends items in parts, and again those with a refusal for the moment; the last result of each.

    A refusal of a whole part is raised; with `keep` it is the result of its items if others have one.
    """
    results: list[Any] = [None] * count
    unknown: set[int] = set()
    waiting = list(range(count))
    while waiting:
        refused = []
        for part in parts(waiting):
            try:
                found, missing, resent = yield from send(part)
            except DuewheelError as error:
                if not keep or all(one is None for one in results):
                    if unknown or any(isinstance(one, Enqueued) for one in results):
                        error.members["outcome"] = "unknown"
                    raise
                found, missing, resent = [], error, False
            if resent:
                unknown.update(part)
            for index in part[len(found) :]:
                found.append(from_members({**missing.members, "code": missing.code, "detail": missing.detail}, missing.status))
            for index, result in zip(part, found):
                results[index] = result
                if isinstance(result, DuewheelError):
                    if result.outcome == "unknown":
                        unknown.add(index)
                    elif index in unknown:
                        result.members["outcome"] = "unknown"
                    if again(index, result):
                        refused.append(index)
        if refused:
            pause = patience.pause(*(results[index] for index in refused))
            if pause is None:
                break
            yield pause
        waiting = refused
    return results


def _parts(waiting: list[int], most: int, size: Callable[[int], int] = lambda _: 0) -> Iterable[list[int]]:
    """Batches within the limits of the server."""
    part: list[int] = []
    total = 0
    for index in waiting:
        if part and (len(part) == most or total + size(index) > BATCH_BYTES):
            yield part
            part, total = [], 0
        part.append(index)
        total += size(index)
    if part:
        yield part


def _lines(data: bytes, whole: bool) -> list[Any]:
    """The results of a batch; of a part of an answer its whole lines."""
    lines = data.split(b"\n")
    last = lines.pop()
    if whole and last.strip():
        lines.append(last)
    try:
        found = [jsonlib.loads(line) for line in lines if line]
    except ValueError as error:
        raise BadAnswer(f"a line of the answer is no JSON: {error}") from error
    return [Enqueued.read(one) if one.get("status", 500) // 100 == 2 and "id" in one else from_members(one) for one in found]


def _lost(error: BaseException) -> ConnectionFailed:
    failed = ConnectionFailed(f"{type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed
