"""HTTP/1.1: addresses, bytes of a request, and how an answer is read."""

from __future__ import annotations

import http.client
import io
import json as jsonlib
import re
import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

from .errors import BadAnswer

LARGEST_HEAD = 64 * 1024
#: A kept connection is not used again after this time: the server closes one that is idle for 30 s.
IDLE = 20.0


class Address:
    """Where a server is, `http[s]://[:TOKEN@]HOST[:PORT][/PATH]`, and the token for it."""

    def __init__(self, url: str, token: str | None = None):
        try:
            parts = urlsplit(url)
            port, host = parts.port, parts.hostname
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
            shown = re.sub(r"dw_\w+", "dw_…", re.sub(r"(?s)^(\w+://)?.*@", r"\1…@", url))  # without its token
            raise ValueError(f"url: {shown!r} is no address such as http://localhost:7788, without a query")
        self.tls = parts.scheme == "https"
        self.host, self.port, self.path = host, port or (443 if self.tls else 80), parts.path.rstrip("/")
        self.token = token or (unquote(parts.password) if parts.password else None)
        self.host_header = parts.netloc.rpartition("@")[2]


def encode(value: Any) -> bytes:
    return jsonlib.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


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
    #: Set by `end`.
    ended: threading.Event = field(default_factory=threading.Event)
    #: The one that it is sent over now.
    connection: Connection | None = None

    @classmethod
    def json(cls, method: str, path: str, fields: Any = None, **options: Any) -> Request:
        return cls(method, path, None if fields is None else encode(fields), **options)

    def end(self) -> None:
        """Ends it early, from any thread. What a reserve has leased still comes."""
        self.ended.set()
        if connection := self.connection:
            connection.end()

    def to_bytes(self, address: Address) -> bytes:
        """All of it, for a server."""
        lines = [f"{self.method} {address.path}{self.path} HTTP/1.1", f"host: {address.host_header}",
                 "user-agent: duewheel-python"]
        if address.token:
            lines.append(f"authorization: Bearer {address.token}")
        if self.body is not None:
            lines += [f"content-type: {self.content_type}", f"content-length: {len(self.body)}"]
        elif self.method not in ("GET", "DELETE"):
            lines.append("content-length: 0")
        head = "\r\n".join(lines)
        if head.splitlines() != lines:
            raise ValueError("a header of a request has no line break; look at the token and the address")
        return head.encode() + b"\r\n\r\n" + (self.body or b"")


@dataclass
class Answer:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes
    keep_alive: bool
    #: Whether an earlier try of the same request may have been applied.
    resent: bool = False


def _response(data: bytes) -> http.client.HTTPResponse:
    # It reads the bytes as if they were those of a socket.
    source: Any = SimpleNamespace(makefile=lambda mode: io.BytesIO(data))
    response = http.client.HTTPResponse(source)
    try:
        response.begin()
    except http.client.HTTPException as error:
        raise BadAnswer(f"this is no HTTP: {data[:80]!r}") from error
    return response


class Connection:
    """A connection whose bytes `_write` and `_read` carry."""

    def __init__(self) -> None:
        self.used = time.monotonic()
        #: What has come of the present answer. Before its first byte a kept connection that ends was only idle for too
        #: long, and its request is sent again.
        self.got = bytearray()

    async def _write(self, data: bytes, seconds: float) -> None: ...

    async def _read(self, seconds: float) -> bytes:
        """Some bytes; none is the end of the connection."""
        raise NotImplementedError

    def end(self) -> None:
        """Ends the half that sends. The server answers a request that waits by the end of the connection, or has
        answered it already: nothing is lost, as it would be if the connection were closed while that is on the way."""

    def good(self) -> bool:
        """Whether another request may be sent."""
        return time.monotonic() - self.used < IDLE

    async def exchange(self, data: bytes, end: float) -> Answer:
        """Sends a request and reads its answer, until the time is `end`."""
        self.got.clear()
        await self._write(data, max(end - time.monotonic(), 0.001))
        while True:
            more = await self._read(max(end - time.monotonic(), 0.001))
            self.got += more
            if answer := self._answer(ended=not more):
                self.used = time.monotonic()
                return answer
            if not more:
                raise ConnectionResetError("the connection has ended before its answer was complete")

    def _answer(self, ended: bool) -> Answer | None:
        """The answer, if it is whole."""
        size = self.got.find(b"\r\n\r\n") + 4
        if size < 4:
            if len(self.got) > LARGEST_HEAD:
                raise BadAnswer("the head of the answer does not end")
            return None
        if self.got.startswith((b"HTTP/1.1 1", b"HTTP/1.0 1")):  # an interim answer
            del self.got[:size]
            return self._answer(ended)
        response = _response(bytes(self.got[:size]))
        if response.chunked:
            if not self.got.endswith(b"\r\n\r\n"):
                return None
            try:
                body = _response(bytes(self.got)).read()
            except http.client.IncompleteRead:
                return None
        elif (ended if response.length is None else len(self.got) - size >= response.length):
            body = bytes(self.got[size:])
        else:
            return None
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, body, not response.will_close)

    def partial(self) -> bytes:
        """What has come of the body of an answer that is not whole."""
        try:
            return _response(bytes(self.got)).read()
        except http.client.IncompleteRead as error:
            return error.partial
        except BadAnswer:
            return b""
