"""What can go wrong, as exceptions: one class for each `code` of the server.

Every class stands for one section of the server's page of errors. A code that this version does not know is a plain
`DuewheelError`; compare its `code` then.
"""

from __future__ import annotations

from typing import Any


def _member(name: str, doc: str) -> Any:
    return property(lambda error: error.members.get(name), doc=doc)


class DuewheelError(Exception):
    """A refusal of the server.

    `code` is stable and meant for programs, `detail` is for people. `field` names the field, the part of the path or
    the query parameter at fault. `outcome` is "not_applied" or "unknown". `members` has every member of the answer,
    such as `existing_id`, `state`, `generation`, `quota` and `used`.
    """

    code = "error"

    def __init__(self, detail: str, *, status: int = 0, code: str | None = None, members: dict[str, Any] | None = None):
        super().__init__(detail)
        self.detail = detail
        self.status = status
        self.code = code or type(self).code
        self.members = members or {}

    def __str__(self) -> str:
        place = f" (field {self.field})" if self.field else ""
        return f"{self.code}: {self.detail}{place}"

    def copy(self) -> DuewheelError:
        """The same refusal, with members of its own."""
        return type(self)(self.detail, status=self.status, code=self.code, members=dict(self.members))

    field = _member("field", "The field, the part of the path or the query parameter at fault.")
    existing_id = _member("existing_id", "The message that has the key.")
    state = _member("state", "The state of that message.")

    @property
    def outcome(self) -> str:
        """Whether the request may have been applied: "not_applied", or "unknown"."""
        known = self.code not in ("internal", "unknown", "connection", "bad_answer")
        return self.members.get("outcome", "not_applied" if known else "unknown")

    @property
    def retry_after(self) -> float | None:
        """Seconds after which the server asks to try again."""
        after = self.members.get("retry_after_ms")
        return after / 1000 if isinstance(after, (int, float)) else None


class ConnectionFailed(DuewheelError, ConnectionError):
    """The server was not reached ("not_applied"), or its answer was lost: the request may have been applied or not."""

    code = "connection"
    #: What came of the body of an answer.
    partial = b""


class BadAnswer(DuewheelError):
    """The answer is not one of duewheel's: the address belongs to another program, or to a proxy."""

    code = "bad_answer"


def _error(name: str, code: str, doc: str) -> type[DuewheelError]:
    return type(name, (DuewheelError,), {"code": code, "__doc__": doc, "__module__": __name__})


BadRequest = _error("BadRequest", "bad_request", "The request does not follow the documentation; see `field`.")
Unauthorized = _error("Unauthorized", "unauthorized", "The server needs a token, and this one is missing or invalid.")
Forbidden = _error("Forbidden", "forbidden", "The token lacks the scope, or does not cover the queue.")
CrossOrigin = _error("CrossOrigin", "cross_origin", "The Host or Origin of the request is refused (option --hosts).")
NotFound = _error("NotFound", "not_found", "There is no such path, queue, schedule or target.")
MessageNotFound = _error("MessageNotFound", "message_not_found", "Nothing is pending under this id or key.")
MethodNotAllowed = _error("MethodNotAllowed", "method_not_allowed", "The path does not support the method.")
RequestTimeout = _error("RequestTimeout", "request_timeout", "The body of the request came too slowly.")
KeyExists = _error("KeyExists", "key_exists", "Another unsettled message has this key: `existing_id`, in `state`.")
Leased = _error("Leased", "leased", "A consumer has leased the message: it was too late for the change.")
Dead = _error("Dead", "dead", "The message is dead and has no due time to change; redrive or cancel it.")
NotDead = _error("NotDead", "not_dead", "The message needs no redrive.")
NotDone = _error("NotDone", "not_done", "The message is pending, and will be delivered without a replay.")
LeaseLost = _error("LeaseLost", "lease_lost", "The lease is over, and another consumer may have the message.")
GenerationMismatch = _error("GenerationMismatch", "generation_mismatch", "The message has changed since it was read.")
DedupeMismatch = _error("DedupeMismatch", "dedupe_mismatch", "The dedupe id was used for another content.")
Paused = _error("Paused", "paused", "The queue is paused.")
InUse = _error("InUse", "in_use", "The queue or the target is in use.")
Changed = _error("Changed", "changed", "The number of matching messages is not the expected one.")
BodyTooLarge = _error("BodyTooLarge", "body_too_large", "A body or a batch is above its limit.")
UnsupportedMediaType = _error("UnsupportedMediaType", "unsupported_media_type", "The content type is refused.")
InThePast = _error("InThePast", "in_the_past", "The instant has passed; `past=\"fire\"` accepts it as due now.")
Overloaded = _error("Overloaded", "overloaded", "A limit of the server is reached; nothing was applied.")
OverQuota = _error("OverQuota", "over_quota", "The tenant of the queue has used up its quota.")
HeadersTooLarge = _error("HeadersTooLarge", "headers_too_large", "The headers of the request are too large.")
Internal = _error("Internal", "internal", "A fault of the server; the request may have been applied or not.")
Draining = _error("Draining", "draining", "The server is stopping, or accepts no new messages.")
StorageUnavailable = _error("StorageUnavailable", "storage_unavailable", "The store failed; see `outcome`.")
Unknown = _error("Unknown", "unknown", "The line of a batch may have been applied or not.")
DiskFull = _error("DiskFull", "disk_full", "The store has no room for new messages.")

CLASSES: dict[str, type[DuewheelError]] = {it.code: it for it in DuewheelError.__subclasses__()}


def from_members(members: dict[str, Any], status: int = 0) -> DuewheelError:
    """The exception for a problem, or for a refused item of a batch."""
    code = str(members.get("code", "error"))
    detail = str(members.get("detail") or members.get("title") or code)
    status = status or members.get("status", 0)
    return CLASSES.get(code, DuewheelError)(detail, status=status, code=code, members=members)
