"""HTTP/1.1 without sockets: bytes of a request, and how an answer is read."""

from __future__ import annotations

import json as jsonlib
import re
import ssl
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from .errors import BadAnswer

LARGEST_HEAD = 64 * 1024
#: A kept connection is not used again after this time: the server closes one that is idle for 30 s.
IDLE = 20.0


@dataclass(frozen=True)
class Address:
    """Where a server is, and the token for it."""

    host: str
    port: int
    tls: bool
    path: str
    token: str | None

    @classmethod
    def parse(cls, url: str, token: str | None = None) -> Address:
        """Reads `http[s]://[:TOKEN@]HOST[:PORT][/PATH]`."""
        try:
            parts = urlsplit(url)
            port = parts.port
            good = parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:
            good = False
        if not good:
            raise ValueError(f"url: {_shown(url)!r} is no address such as http://localhost:7788")
        assert parts.hostname is not None
        if parts.query or parts.fragment:
            raise ValueError("url: an address has no query and no fragment")
        tls = parts.scheme == "https"
        token = token or (unquote(parts.password) if parts.password else None)
        return cls(parts.hostname, port or (443 if tls else 80), tls, parts.path.rstrip("/"), token)

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    def context(self) -> ssl.SSLContext | None:
        return ssl.create_default_context() if self.tls else None


def _shown(url: str) -> str:
    """An address without its token."""
    before, mark, after = url.rpartition("@")
    if not mark:
        return re.sub(r"dw_\w+", "dw_…", url)
    scheme = before.partition("://")[0]
    return (f"{scheme}://" if scheme.isalnum() and "://" in before else "") + "…@" + after


def encode(value: Any) -> bytes:
    return jsonlib.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


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
    #: What ends it early: `is_set()`, and `watching(connection)`, in which it may end the connection.
    stop: Any = None

    @classmethod
    def json(cls, method: str, path: str, fields: Any = None, **options: Any) -> Request:
        return cls(method, path, None if fields is None else encode(fields), **options)

    @property
    def stopped(self) -> bool:
        return self.stop is not None and self.stop.is_set()

    def watching(self, connection: Connection) -> AbstractContextManager[Any]:
        return nullcontext() if self.stop is None else self.stop.watching(connection)

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
        for line in lines:
            if "\r" in line or "\n" in line:
                raise ValueError("a header of a request has no line break; look at the token and the address")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + (self.body or b"")


@dataclass
class Answer:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes
    keep_alive: bool
    #: Whether an earlier try of the same request may have been applied.
    resent: bool = False


class Connection:
    """A connection whose bytes `_write` and `_read` carry, and how answers are read from it.

    `begun` says whether a byte of the present answer has come: before, a kept connection that ends was only idle for
    too long, and its request is sent again. `partial` is what has come of the body of an answer.
    """

    def __init__(self) -> None:
        self._data = bytearray()
        self._ended = False
        self._end = 0.0
        self.used = time.monotonic()
        self.begun = False
        self.partial = bytearray()

    async def _write(self, data: bytes, seconds: float) -> None:
        raise NotImplementedError

    async def _read(self, seconds: float) -> bytes:
        """Some bytes; none is the end of the connection."""
        raise NotImplementedError

    def good(self) -> bool:
        """Whether another request may be sent."""
        return time.monotonic() - self.used < IDLE

    async def exchange(self, data: bytes, end: float) -> Answer:
        """Sends a request and reads its answer, until the time is `end`."""
        self.begun, self.partial, self._end = bool(self._data), bytearray(), end
        await self._write(data, self._left())
        status = 100
        while status // 100 == 1:  # an interim answer
            lines = (await self._up_to(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            words = lines[0].split(" ", 2)
            if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
                raise BadAnswer(f"this is no HTTP: {lines[0][:80]!r}")
            status = int(words[1])
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        framed = await self._take_body(status, headers)
        keep = framed and words[0] != "HTTP/1.0" and headers.get("connection", "").lower() != "close"
        self.used = time.monotonic()
        return Answer(status, headers, bytes(self.partial), keep)

    def _left(self) -> float:
        return max(self._end - time.monotonic(), 0.001)

    async def _take_body(self, status: int, headers: dict[str, str]) -> bool:
        """Reads the body; whether the connection goes on after it."""
        length = headers.get("content-length")
        if status in (204, 304):
            return True
        if "chunked" in headers.get("transfer-encoding", "").lower():
            await self._chunks()
            return True
        if length is not None and not length.isdigit():
            raise BadAnswer(f"this is no length: {length[:40]!r}")
        await self._take(None if length is None else int(length))
        return length is not None

    async def _chunks(self) -> None:
        size = -1
        while size != 0:
            line = await self._up_to(b"\r\n")
            try:
                size = int(line.split(b";")[0], 16)
            except ValueError:
                raise BadAnswer("a chunk of the answer has no length") from None
            if size > 0:
                await self._take(size)
                await self._up_to(b"\r\n")
        while await self._up_to(b"\r\n"):
            pass  # a trailer

    async def _up_to(self, mark: bytes) -> bytes:
        """The bytes before a mark, which is dropped."""
        while (end := self._data.find(mark)) < 0:
            if len(self._data) > LARGEST_HEAD:
                raise BadAnswer("the head of the answer does not end")
            await self._more()
        found = bytes(self._data[:end])
        del self._data[: end + len(mark)]
        return found

    async def _take(self, count: int | None) -> None:
        """Moves so many bytes to the body; with None all up to the end of the connection."""
        while True:
            part = self._data[:count]
            del self._data[: len(part)]
            self.partial += part
            if count is not None:
                count -= len(part)
            if count == 0 or (count is None and self._ended):
                return
            await self._more()

    async def _more(self) -> None:
        if self._ended:
            raise ConnectionResetError("the connection has ended before its answer was complete")
        data = await self._read(self._left())
        self.begun = self.begun or bool(data)
        self._ended = not data
        self._data += data
