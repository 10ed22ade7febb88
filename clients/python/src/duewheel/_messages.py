"""Messages as the server has them, and as Python does: fields of requests, and members of answers."""

from __future__ import annotations

import base64
import json as jsonlib
import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar, Union

from .errors import BadAnswer, DuewheelError

A = TypeVar("A", bound="Answered")
#: A length of time: a timedelta, a number of seconds, or text of the server such as "48h".
Duration = Union[timedelta, int, float, str]
#: An instant: a datetime with a zone, or RFC 3339.
Instant = Union[datetime, str]

#: The queues of a reserve: one, or several, or the most messages of each.
Queues = Union[str, Sequence[str], Mapping[str, Union[int, None]]]
#: JSON of a request or of an answer.
Members = dict[str, Any]

#: How long the server remembers the dedupe id that the client makes.
DEDUPE_WINDOW_MS = 15 * 60 * 1000
SPANS = {"delay", "lease", "spread", "expires_in", "dedupe_window", "wait", "for", "by"}


def milliseconds(name: str, value: timedelta | int | float) -> int:
    """Whole milliseconds, rounded up: never early."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(value, bool) or not isinstance(seconds, (int, float)) or not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{name}: {value!r} is no length of time; give seconds, a timedelta, or text such as \"48h\"")
    # Seconds as a float are not exact: 0.1 * 1000 is a little above 100.
    return math.ceil(round(seconds * 1000, 3))


def instant_of(text: str) -> datetime:
    """An instant of the server."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)


def wire(values: Mapping[str, Any]) -> Members:
    """Fields of a request as the server names them. What is None is left out."""
    fields: Members = {}
    for name, value in values.items():
        if value is None:
            continue
        if name in SPANS and not isinstance(value, str):
            fields[f"{name}_ms"] = milliseconds(name, value)
        elif isinstance(value, datetime):
            if value.tzinfo is None:
                raise ValueError(f"{name}: a datetime needs a zone; for the local time use value.astimezone()")
            fields[name] = value.isoformat()
        elif name == "body" and isinstance(value, (bytes, bytearray, memoryview)):
            try:
                fields["body"] = bytes(value).decode()
            except UnicodeDecodeError:
                fields["body_base64"] = base64.b64encode(value).decode()
        elif name == "body" and not isinstance(value, str):
            raise TypeError(f"body: text or bytes, not {type(value).__name__}; json= takes other values")
        else:
            fields[name] = dict(value) if name == "headers" else value
    if values.get("body") is not None and "json" in fields:
        raise ValueError("body: give a body or json, not both")
    return fields


class Body:
    """The body of a message, read as text or as JSON."""

    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return jsonlib.loads(self.body)


#: How members of an answer are read that are not taken as they are.
READERS: dict[str, Callable[[Any], Any]] = {"id": str, "headers": lambda value: dict(value or {})}
READERS["due_at"] = READERS["lease_until"] = lambda text: None if text is None else instant_of(text)


@dataclass(frozen=True, kw_only=True)
class Answered:
    """What an answer says of a message. `raw` has every member of the answer."""

    id: str
    queue: str
    key: str | None = None
    due_at: datetime | None = None
    generation: int = 1
    raw: Members = field(repr=False)

    @classmethod
    def read(cls: type[A], raw: Members) -> A:
        """Of an answer: the members that have a field. Those without a default must be there."""
        try:
            found = {name: READERS[name](raw[name]) if name in READERS else raw[name]
                     for name in cls.__dataclass_fields__ if name in raw}
            if "body" in cls.__dataclass_fields__:
                encoded = raw.get("body_base64")
                found["body"] = raw.get("body", "").encode() if encoded is None else base64.b64decode(encoded)
            return cls(**{**found, "raw": raw})
        except (AttributeError, TypeError, ValueError) as error:
            raise BadAnswer(f"the answer is no message of duewheel's: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Enqueued(Answered):
    """The answer to an enqueue."""

    due_at: datetime
    created: bool
    replayed: bool = False
    replaced: str | None = None
    superseded: str | None = None
    durability: str | None = None


@dataclass(frozen=True, kw_only=True)
class Message(Answered, Body):
    """A message as it is now."""

    state: str
    attempt: int = 0
    body: bytes = field(repr=False)
    headers: dict[str, str] = field(repr=False, default_factory=dict)
    #: What the ack of a done message has brought.
    result: Any = None


@dataclass(frozen=True, kw_only=True)
class Delivery(Answered, Body):
    """A message under a lease."""

    attempt: int
    priority: int
    lateness_ms: int
    late: bool = False
    lease_token: str = field(repr=False)
    lease_ms: int
    lease_until: datetime | None
    body: bytes = field(repr=False)
    headers: dict[str, str] = field(repr=False, default_factory=dict)


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

    def fields(self, window_ms: int = DEDUPE_WINDOW_MS) -> Members:
        """The fields of the request. A message without a dedupe id gets one, which is remembered for `window_ms`, so
        that a repeated request doubles nothing."""
        if self.body is None and self.json is None:
            raise ValueError("body: a message needs a body or json; \"\" is an empty body")
        if self.due_at is not None and self.delay is not None:
            raise ValueError("due_at: give a delay or an instant, not both")
        if self.dedupe_window is not None and self.dedupe_id is None:
            raise ValueError("dedupe_window: needs a dedupe_id, which is remembered for so long")
        fields = wire(vars(self))
        if self.due_at is None and self.delay is None:
            fields["delay_ms"] = 0
        if self.dedupe_id is None:
            fields.update(dedupe_id=f"py-{uuid.uuid4().hex}", dedupe_window_ms=window_ms)
        return fields

    @classmethod
    def of(cls, message: Outgoing | Mapping[str, Any] | str | bytes) -> Outgoing:
        if isinstance(message, Outgoing):
            return message
        return cls(**message) if isinstance(message, Mapping) else cls(message)

    def without_window(self, error: DuewheelError, fields: Members) -> bool:
        """Whether the queue's window is shorter than the one that the client has asked for. Then the queue's holds."""
        refused = error.field in ("dedupe_window", "dedupe_window_ms") and self.dedupe_window is None
        return refused and fields.pop("dedupe_window_ms", None) is not None


def how_fields(delay: Duration | None = None, reason: str | None = None, dead: bool = False,
               attempt: bool = True) -> Members:
    """How a message is nacked. Of a reason the history of a message keeps at most 256 bytes of whole characters."""
    if reason is not None:
        reason = reason.encode("utf-8", "replace")[:256].decode("utf-8", "ignore")
    return wire({"delay": delay, "reason": reason, "dead": dead or None, "attempt": None if attempt else False})


def ack_fields(delivery: Delivery, result: Any = None) -> Members:
    """An item of a batch of acks."""
    return wire({"id": delivery.id, "lease_token": delivery.lease_token, "result": result})


def nack_fields(delivery: Delivery, **how: Any) -> Members:
    """An item of a batch of nacks; `how` is that of `how_fields`."""
    return {**ack_fields(delivery), **how_fields(**how)}


def extend_fields(delivery: Delivery, lease: Duration | None = None) -> Members:
    """An item of a batch of extensions."""
    # Without a length the server would take that of the message, not that of the reserve.
    lease = timedelta(milliseconds=delivery.lease_ms) if lease is None else lease
    return {**ack_fields(delivery), **wire({"lease": lease})}
