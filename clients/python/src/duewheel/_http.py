"""HTTP/1.1 without sockets: bytes of a request, and a parser that answers are fed to.

The blocking client, the one on asyncio and the transport of kombu read the same answers with it.
"""

from __future__ import annotations

import re
import ssl
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
        self._head: tuple[int, dict[str, str], bool] | None = None
        self._body = bytearray()
        self._left: int | None = None  # bytes of the body; None with chunks, -1 up to the end of the connection
        self.begun = False

    def feed(self, data: bytes) -> Answer | None:
        """The answer, when these bytes complete it. Empty bytes are the end of the connection."""
        if data:
            self.begun = True
            self._data += data
        if self._head is None and not self._read_head():
            return self._ended() if not data else None
        assert self._head is not None
        if self._left is None:
            done = self._read_chunks()
        else:
            take = len(self._data) if self._left < 0 else min(self._left, len(self._data))
            self._body += self._data[:take]
            del self._data[:take]
            if self._left > 0:
                self._left -= take
            done = self._left == 0 or (self._left < 0 and not data)
        if done:
            return self._finish()
        return self._ended() if not data else None

    def partial(self) -> bytes:
        """What has come of the body of an answer 200 that is not complete."""
        return bytes(self._body) if self._head is not None and self._head[0] == 200 else b""

    def _ended(self) -> None:
        raise ConnectionResetError("the connection has ended before its answer was complete")

    def _finish(self) -> Answer:
        assert self._head is not None
        status, headers, keep = self._head
        answer = Answer(status, headers, bytes(self._body), keep and self._left != -1)
        self._head, self._left, self.begun = None, None, bool(self._data)
        self._body.clear()
        return answer

    def _read_head(self) -> bool:
        while True:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                if len(self._data) > LARGEST_HEAD:
                    raise BadAnswer("the head of the answer does not end")
                return False
            lines = self._data[:end].decode("latin-1").split("\r\n")
            del self._data[: end + 4]
            words = lines[0].split(" ", 2)
            if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
                raise BadAnswer(f"this is no HTTP: {lines[0][:80]!r}")
            status = int(words[1])
            if status // 100 == 1:
                continue  # an interim answer
            break
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        keep = words[0] != "HTTP/1.0" and headers.get("connection", "").lower() != "close"
        self._head = status, headers, keep
        if status in (204, 304):
            self._left = 0
        elif "chunked" in headers.get("transfer-encoding", "").lower():
            self._left = None
        else:
            length = headers.get("content-length")
            if length is not None and not length.isdigit():
                raise BadAnswer(f"this is no length: {length[:40]!r}")
            self._left = -1 if length is None else int(length)
        return True

    def _read_chunks(self) -> bool:
        while True:
            end = self._data.find(b"\r\n")
            if end < 0:
                return False
            try:
                size = int(self._data[:end].split(b";")[0], 16)
            except ValueError:
                raise BadAnswer("a chunk of the answer has no length") from None
            if size == 0:
                last = self._data.find(b"\r\n", end + 2)
                if last < 0:
                    return False
                if last > end + 2:  # a trailer
                    del self._data[end + 2 : last + 2]
                    continue
                del self._data[: last + 2]
                return True
            if len(self._data) < end + 2 + size + 2:
                return False
            self._body += self._data[end + 2 : end + 2 + size]
            del self._data[: end + 2 + size + 2]
