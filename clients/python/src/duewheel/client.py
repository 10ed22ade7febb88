"""The blocking client."""

from __future__ import annotations

import os
import socket
import ssl
import time
from typing import Any, TypeVar

from ._api import IDLE, Api
from ._calls import Call, Calls, Request
from ._http import Address, Answer, AnswerParser, request_bytes

R = TypeVar("R")


class Connection:
    """One connection, and how its answers are read."""

    def __init__(self, address: Address, context: ssl.SSLContext | None, timeout: float):
        self.sock: socket.socket = socket.create_connection((address.host, address.port), timeout)
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls:
                self.sock = (context or ssl.create_default_context()).wrap_socket(self.sock, server_hostname=address.host)
        except BaseException:
            self.sock.close()
            raise
        self.parser = AnswerParser()
        self.made = self.used = time.monotonic()
        self.pid = os.getpid()

    def exchange(self, data: bytes, timeout: float) -> Answer:
        """Sends a request and reads its answer, which may take `timeout` between two of its bytes."""
        try:
            self.sock.settimeout(timeout)
            self.sock.sendall(data)
            while True:
                answer = self.parser.feed(self.sock.recv(65536))
                if answer is not None:
                    self.used = time.monotonic()
                    return answer
        except OSError as error:
            error.partial = self.parser.partial()  # type: ignore[attr-defined]
            raise

    def good(self) -> bool:
        return self.pid == os.getpid() and time.monotonic() - self.used < IDLE

    def close(self) -> None:
        try:
            # Those of the parent go on there: close() of a socket is not a shutdown.
            self.sock.detach() if self.pid != os.getpid() and isinstance(self.sock, ssl.SSLSocket) else self.sock.close()
        except OSError:
            pass


class Client(Api):
    """A client that blocks. Threads may share it; a process that forks goes on with connections of its own.

    `url` is the server's address, by default `DUEWHEEL_SERVER` or http://127.0.0.1:7788, and `token` by default
    `DUEWHEEL_TOKEN`. `timeout` is how long an answer may take, in addition to the wait of a reserve, and `retry_for` how
    long a call is repeated in all while the server is away or answers 429 or 503.

    >>> client = Client()                                                        # doctest: +SKIP
    >>> client.enqueue("close-review", "order 42", delay="48h", key="order-42")  # doctest: +SKIP
    """

    def close(self) -> None:
        """Closes the kept connections. The client may be used again."""
        while (kept := self._kept()) is not None:
            kept.close()

    def check(self) -> dict[str, Any]:
        """Asks once, without repetition, whether the server is there and takes the token; what the token allows."""
        return self._run(Calls(0.0).request("GET", "/v1/token"))

    def connect(self) -> Connection:
        """A connection of its own, for calls that wait."""
        return Connection(self.address, self._context, self.timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, call: Call[R]) -> R:
        got: Any = None
        while True:
            try:
                step = call.send(got)
            except StopIteration as end:
                return end.value
            if not isinstance(step, Request):
                time.sleep(step)
                got = None
                continue
            try:
                got = self._exchange(step)
            except OSError as error:
                got = error

    def _exchange(self, request: Request) -> Answer:
        data = request_bytes(self.address, request.method, request.path, request.body, request.content_type)
        timeout = self.timeout + request.wait
        # A kept connection may be one that the server is closing, so what must not be sent twice gets a fresh one.
        kept = self._kept() if request.repeatable else None
        if kept is not None:
            try:
                return self._over(kept, data, timeout)
            except ConnectionError:
                if kept.parser.begun:
                    raise
        answer = self._over(self.connect(), data, timeout)
        answer.resent = kept is not None
        return answer

    def _over(self, connection: Connection, data: bytes, timeout: float) -> Answer:
        try:
            answer = connection.exchange(data, timeout)
        except BaseException:
            connection.close()
            raise
        if answer.keep_alive:
            self._idle.append(connection)
        else:
            connection.close()
        return answer
