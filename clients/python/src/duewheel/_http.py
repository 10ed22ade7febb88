"""HTTP/1.1 without sockets: bytes of a request, and a parser that answers are fed to.

The blocking client, the one on asyncio and the transport of kombu read the same answers with it.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Generator
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from .errors import BadAnswer

LARGEST_HEAD = 64 * 1024


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
    scheme = before.partition("://")[0]
    return (f"{scheme}://" if scheme.isalnum() and "://" in before else "") + "…@" + after if mark else re.sub(r"dw_\w+", "dw_…", url)


def request_bytes(address: Address, method: str, path: str, body: bytes | None, content_type: str = "application/json") -> bytes:
    """A whole request."""
    lines = [f"{method} {address.path}{path} HTTP/1.1", f"host: {address.host_header}", "user-agent: duewheel-python"]
    if address.token:
        lines.append(f"authorization: Bearer {address.token}")
    if body is not None:
        lines.append(f"content-type: {content_type}")
        lines.append(f"content-length: {len(body)}")
    elif method not in ("GET", "DELETE"):
        lines.append("content-length: 0")
    for line in lines:
        if "\r" in line or "\n" in line:
            raise ValueError("a header of a request has no line break; look at the token and the address")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")


@dataclass
class Answer:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes
    keep_alive: bool
    #: Whether an earlier try of the same request may have been applied.
    resent: bool = False


class AnswerParser:
    """Takes the bytes of a connection, and gives whole answers.

    `begun` says whether a byte of the present answer has come: before, a kept connection that ends was only idle for
    too long, and its request is sent again.
    """

    def __init__(self) -> None:
        self._data = bytearray()
        self._ended = False
        self._status = 0
        self._body = bytearray()
        self._reading = self._read()
        self.begun = False

    def feed(self, data: bytes) -> Answer | None:
        """The answer, when these bytes complete it. Empty bytes are the end of the connection."""
        self.begun = self.begun or bool(data)
        self._ended = not data
        self._data += data
        try:
            next(self._reading)
        except StopIteration as end:
            self._status, self._body, self._reading, self.begun = 0, bytearray(), self._read(), bool(self._data)
            return end.value
        return None

    def partial(self) -> bytes:
        """What has come of the body of an answer 200 that is not complete."""
        return bytes(self._body) if self._status == 200 else b""

    def _read(self) -> Generator[None, None, Answer]:
        """Reads one answer, and yields where it needs more bytes."""
        status = 100
        while status // 100 == 1:  # an interim answer
            lines = (yield from self._up_to(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            words = lines[0].split(" ", 2)
            if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
                raise BadAnswer(f"this is no HTTP: {lines[0][:80]!r}")
            status = int(words[1])
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        self._status = status
        keep = words[0] != "HTTP/1.0" and headers.get("connection", "").lower() != "close"
        length = headers.get("content-length")
        if status in (204, 304):
            pass
        elif "chunked" in headers.get("transfer-encoding", "").lower():
            yield from self._chunks()
        elif length is None:
            keep = False
            yield from self._take(None)
        elif length.isdigit():
            yield from self._take(int(length))
        else:
            raise BadAnswer(f"this is no length: {length[:40]!r}")
        return Answer(status, headers, bytes(self._body), keep)

    def _chunks(self) -> Generator[None, None, None]:
        size = -1
        while size != 0:
            line = yield from self._up_to(b"\r\n")
            try:
                size = int(line.split(b";")[0], 16)
            except ValueError:
                raise BadAnswer("a chunk of the answer has no length") from None
            if size > 0:
                yield from self._take(size)
                yield from self._up_to(b"\r\n")
        while (yield from self._up_to(b"\r\n")):
            pass  # a trailer

    def _up_to(self, mark: bytes) -> Generator[None, None, bytes]:
        """The bytes before a mark, which is dropped."""
        while (end := self._data.find(mark)) < 0:
            if len(self._data) > LARGEST_HEAD:
                raise BadAnswer("the head of the answer does not end")
            yield from self._more()
        found = bytes(self._data[:end])
        del self._data[: end + len(mark)]
        return found

    def _take(self, count: int | None) -> Generator[None, None, None]:
        """Moves so many bytes to the body; with None all up to the end of the connection."""
        while True:
            part = self._data[:count]
            del self._data[: len(part)]
            self._body += part
            if count is not None:
                count -= len(part)
            if count == 0 or (count is None and self._ended):
                return
            yield from self._more()

    def _more(self) -> Generator[None, None, None]:
        if self._ended:
            raise ConnectionResetError("the connection has ended before its answer was complete")
        yield
